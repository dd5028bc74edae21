"""`dpmf epsilon langevin`: the price of Langevin dynamics on secret Poisson samples."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.sampled.guarantee import langevin_guarantee
from experiments.cli import console
from experiments.epsilon import flags as epsilon_flags
from experiments.epsilon import report, sampling

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee
    from accounting.loss import SubsampledGaussian

PROGRAM = "dpmf epsilon langevin"
MAX_STEPS = 10**6  # which are listed one by one
QUANTITIES = {
    "rate": ("sampling_rate",),
    "steps": ("steps",),
    "learning rate": ("learning_rate",),
    "decay": ("decay",),
    "clip": ("clip_norm",),
    "temperature": ("temperature",),
    "epsilon": ("epsilon",),
    "delta": ("delta",),
}
CHEAPER = {"temperature": 1, "learning_rate": -1, "clip_norm": -1}  # 1: ε falls in it, −1: ε rises


@dataclasses.dataclass(frozen=True, kw_only=True)
class Langevin:
    """The price of J steps of Langevin dynamics on secret Poisson samples, or (--solve) an unknown.

    Temperature, learning rate and clip fix the noise of a step: z = q·sqrt(2T / learning rate) / C.
    The price is that of the steps that are taken; it makes no use of convergence.
    """

    solve: Literal[
        "epsilon",
        "delta",
        "steps",
        "temperature",
        "learning-rate",
        "decay",
        "clip-norm",
        "sampling-rate",
    ] = "epsilon"
    """What is unknown; all the rest is given. sampling-rate: the smallest on the way down from 1,
    since the noise grows with q and the price may rise or fall in it. decay: the smallest, 0 if
    that will do.
    """
    sampling_rate: float | None = None
    """q, the public probability with which each record takes part in a step."""
    steps: int | None = None
    """J, fixed up front."""
    learning_rate: float | None = None
    """Of the first step."""
    decay: float | None = None
    """b: the learning rate of step t is that of the first, divided by 1 + b·t/J; 0 by default."""
    clip_norm: float | None = None
    """C, of one record's gradient before the learning rate."""
    temperature: float | None = None
    """T; an exact posterior has 1."""
    epsilon: float | None = None
    """The target of the whole, where something else is solved for."""
    delta: float | None = None
    """Delta of the whole; 1e-5 unless it is solved for."""
    accountant: Literal["pld", "rdp"] = "pld"
    """The one that --epsilon is stated in."""
    unit: Literal["rating-presence", "rating-value", "user"] = "rating-presence"
    """What neighbouring data sets differ in; `user`: all ratings of a user are one record."""
    user_ratings: int | None = None
    """Also the price of all ratings of a user who has so many, each sampled by itself (unit
    rating-presence).
    """
    curves: Path | None = None
    """Folder for epsilon-steps (of runs with so many steps) and delta-epsilon, as svg and csv
    (extra `report`).
    """
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Langevin) -> None:
    epsilon_flags.check_flags(command)
    solve = command.solve.replace("-", "_")
    epsilon_flags.check_known(
        command, QUANTITIES, solve=solve, program=PROGRAM, optional=("delta", "decay")
    )
    sampling.check_sizes(command, PROGRAM, most=MAX_STEPS)
    with sampling.pricing(PROGRAM, "--temperature"):
        result, guarantee = _price(command, solve)
    if command.curves is not None:
        with sampling.pricing(PROGRAM, "--temperature"):
            result["curves"] = _curves(command.curves, result, guarantee)
    console.emit(result, json=command.json, render=lambda shown: sampling.render(shown, guarantee))


def _price(command: Langevin, solve: str) -> tuple[dict[str, Any], Guarantee]:
    command = dataclasses.replace(command, decay=command.decay or 0.0)
    cut: list[str] = []
    if solve == "steps":
        steps, cut = _solve_steps(command)
        command = dataclasses.replace(command, steps=steps)
    elif solve in CHEAPER:
        command = dataclasses.replace(command, **{solve: _solve_noise(command, solve)})
    elif solve in ("sampling_rate", "decay"):
        command = dataclasses.replace(command, **{solve: _solve_upwards(command, solve)})
    phases = _phases(command)
    delta, command, notes = sampling.solved_delta(command, solve, phases)
    assert command.clip_norm is not None
    guarantee = langevin_guarantee(
        phases, delta=delta, clip_norm=command.clip_norm, unit=report.unit_of_flag(command.unit)
    )
    multipliers = [phase.noise_multiplier for phase in phases]
    assert command.temperature is not None
    assert command.sampling_rate is not None
    result = sampling.result_fields(command, solve, guarantee, [*cut, *notes]) | {
        "temperature": command.temperature,
        "learning_rate": command.learning_rate,
        "decay": command.decay,
        "noise_multiplier": min(multipliers),
        "largest_noise_multiplier": max(multipliers),
        "phases": len(phases),
        "sampling_rate": command.sampling_rate,
        "title": (
            f"T = {report.at_least(command.temperature)}, z from"
            f" {report.at_least(min(multipliers), 6)}, q = {report.at_least(command.sampling_rate)}"
        ),
    }
    return result, guarantee


def _noise_settings(command: Langevin) -> dict[str, Any]:
    """What decides the noise, by the names of `accounting.calibration`; None if unknown."""
    names = ("sampling_rate", "learning_rate", "decay", "clip_norm", "temperature")
    return {name: getattr(command, name) for name in names}


@functools.lru_cache(maxsize=4)  # a million steps take ten seconds
def _phases(command: Langevin) -> tuple[SubsampledGaussian, ...]:
    from accounting import langevin

    known = _noise_settings(command)
    rates = langevin.decaying_rates(
        known.pop("learning_rate"), known.pop("decay"), command.steps or 0
    )
    return langevin.langevin_phases(**known, learning_rates=rates)


def _curves(folder: Path, result: Mapping[str, Any], guarantee: Guarantee) -> list[str]:
    """Every number of steps is a run of its own, with the same decay over all of it."""
    known = {
        name: result[name]
        for name in ("sampling_rate", "learning_rate", "decay", "clip_norm", "temperature")
    }
    run_of = Langevin(**known)
    return sampling.curves(
        folder,
        lambda steps: _phases(dataclasses.replace(run_of, steps=steps)),
        guarantee,
        result["title"],
        MAX_STEPS,
    )


# ---- one unknown ---------------------------------------------------------------------------------


def _gap(command: Langevin) -> float:
    """ln(price/ε) within ±30: at most 0 where the steps cost no more than the target."""
    from accounting import composition

    assert command.epsilon is not None
    compose = composition.pld if command.accountant == "pld" else composition.rdp
    price = compose(_phases(command), unit=report.unit_of_flag(command.unit)).epsilon(
        sampling.delta_of(command)
    )
    return max(-30.0, min(30.0, math.log(price / command.epsilon))) if price > 0 else -30.0


def _solve_upwards(command: Langevin, solve: str) -> float:
    """The rate or decay of `accounting.calibration`, rounded up as shown, and still at most ε."""
    from accounting import calibration

    assert command.epsilon is not None
    solver: Any = (
        calibration.solve_langevin_rate
        if solve == "sampling_rate"
        else calibration.solve_langevin_decay
    )
    known = {name: value for name, value in _noise_settings(command).items() if name != solve}
    answer = solver(
        command.epsilon,
        sampling.delta_of(command),
        num_steps=command.steps,
        unit=report.unit_of_flag(command.unit),
        accountant=command.accountant,
        **known,
    )
    most = 1.0 if solve == "sampling_rate" else math.inf
    for room in (0.0, 1e-6, 1e-4, 1e-3):
        shown = min(most, float(report.at_least(answer * (1 + room))))
        if _gap(dataclasses.replace(command, **{solve: shown})) <= 0:
            return shown
    return answer


def _solve_noise(command: Langevin, solve: str) -> float:
    """The T, η or C (to 1e-6 relative) whose steps just about cost ε.

    Each sets z alone, as the root of T/(η·C²).
    """
    from scipy.optimize import brentq

    side = CHEAPER[solve]

    @functools.cache
    def gap(log_value: float) -> float:
        return _gap(dataclasses.replace(command, **{solve: math.exp(log_value)}))

    # From where the first step has z = 1, by factors of 4 to both sides of the target.
    assert command.sampling_rate is not None
    logs = {name: math.log(getattr(command, name) or 1.0) for name in CHEAPER}
    ahead = (
        math.log(2)
        + 2 * math.log(command.sampling_rate)
        + logs["temperature"]
        - logs["learning_rate"]
    )
    ahead -= 2 * logs["clip_norm"]  # ln z² with 1 for the unknown
    dear = cheap = -side * ahead / (2 if solve == "clip_norm" else 1)
    for _ in range(20):
        if gap(cheap) > 0:
            dear, cheap = cheap, cheap + side * math.log(4)
        elif gap(dear) <= 0:
            dear, cheap = dear - side * math.log(4), dear
        else:
            break
    else:
        raise ValueError(
            f"no {solve.replace('_', '-')} was found at which"
            f" {report.counted(command.steps or 0, 'step')} cost ε ="
            f" {report.in_full(command.epsilon or math.nan)}"
        )
    root, nudge = float(brentq(gap, dear, cheap, xtol=1e-6)), 1e-6
    while gap(root) > 0:
        root, nudge = root + side * nudge, 2 * nudge
    return math.exp(root) * (1 + side * 1e-12)


def _solve_steps(command: Langevin) -> tuple[int, list[str]]:
    """The largest J that costs at most ε, and a note where more than `MAX_STEPS` would."""
    from accounting import calibration

    @functools.cache
    def gap(steps: int) -> float:
        return _gap(dataclasses.replace(command, steps=steps))

    if gap(1) > 0:
        raise UsageError(
            f"not one step costs as little as ε = {report.in_full(command.epsilon or math.nan)}",
            where=PROGRAM,
            fix=(
                "a higher --temperature, a smaller --learning-rate or --clip-norm, or a larger"
                " --epsilon or --delta"
            ),
        )
    found = calibration.last_affordable(gap, _likely_steps(command), MAX_STEPS, apart=MAX_STEPS)
    return (
        epsilon_flags.capped(MAX_STEPS + 1, "steps", MAX_STEPS)
        if found == MAX_STEPS
        else (found, [])
    )


def _likely_steps(command: Langevin) -> int:
    """J by the ρ that steps of the mean learning rate come to resemble: where the search begins."""
    from accounting import composition, gaussian

    known = _noise_settings(command)
    assert command.epsilon is not None
    # The mean of the learning rates over the first one.
    slower = math.log1p(known["decay"]) / known["decay"] if known["decay"] > 0 else 1.0
    mean = dataclasses.replace(
        command, decay=0.0, learning_rate=known["learning_rate"] * slower, steps=1
    )
    affordable = gaussian.solve_rho(command.epsilon, sampling.delta_of(command))
    each = composition.step_rho(_phases(mean)[0], unit=report.unit_of_flag(command.unit))
    return min(MAX_STEPS, max(2, round(affordable / max(each, affordable / MAX_STEPS))))
