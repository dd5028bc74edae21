"""`dpmf epsilon sampled` and `dpmf epsilon langevin`: Gaussian steps on secret Poisson samples of the ratings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import UsageError
from experiments import console
from experiments import epsilon_report as report

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee
    from accounting.loss import SubsampledGaussian


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled:
    """The price of J Gaussian steps, each on a fresh, secret Poisson sample, or (--solve) any one unknown.

    A record's part is clipped to C where it enters the sum and the noise is z·C. Batches of a fixed size, and batches
    cut from a shuffled order, are other mechanisms, and are not priced here.
    """

    solve: Literal["epsilon", "delta", "steps", "noise-multiplier", "sampling-rate"] = "epsilon"
    """What is unknown; all the rest is given."""
    noise_multiplier: float | None = None
    """z = sigma / C, C the clip of one record, for every unit."""
    sampling_rate: float | None = None
    """q, the public probability with which each record takes part in a step."""
    steps: int | None = None
    """J, fixed up front."""
    epsilon: float | None = None
    """The target of the whole, where something else is solved for."""
    delta: float | None = None
    """Delta of the whole; 1e-5 unless it is solved for."""
    accountant: Literal["pld", "rdp"] = "pld"
    """The one that --epsilon is stated in."""
    unit: Literal["rating-presence", "rating-value", "user"] = "rating-presence"
    """What neighbouring data sets differ in; `user`: all ratings of a user are one record."""
    clip_norm: float = 1.0
    """C; it sets the scale of sigma and not the price."""
    user_ratings: int | None = None
    """Also the price of all ratings of a user who has so many, each sampled by itself (unit rating-presence)."""
    curves: Path | None = None
    """Folder for epsilon-steps and delta-epsilon, each as svg and csv (needs the extra `report`; a minute)."""
    json: bool = False
    """Print one JSON object on stdout."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Langevin:
    """The price of J steps of Langevin dynamics on secret Poisson samples, or (--solve) one unknown.

    Temperature, learning rate and clip fix the noise of a step: z = q·sqrt(2T / learning rate) / C. Convergence is not
    used: the price is that of the steps that are taken.
    """

    solve: Literal["epsilon", "delta", "temperature"] = "epsilon"
    """What is unknown; all the rest is given."""
    sampling_rate: float
    """q, the public probability with which each record takes part in a step."""
    steps: int
    """J, fixed up front."""
    learning_rate: float
    """Of the first step."""
    decay: float = 0.0
    """b: the learning rate of step t is that of the first, divided by 1 + b·t/J."""
    clip_norm: float
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
    """Also the price of all ratings of a user who has so many, each sampled by itself (unit rating-presence)."""
    json: bool = False
    """Print one JSON object on stdout."""


MAX_STEPS = 10**6  # of Langevin dynamics, whose steps are listed one by one
QUANTITIES = {
    "sampled": {
        "noise": ("noise_multiplier",),
        "rate": ("sampling_rate",),
        "steps": ("steps",),
        "epsilon": ("epsilon",),
        "delta": ("delta",),
    },
    "langevin": {"temperature": ("temperature",), "epsilon": ("epsilon",), "delta": ("delta",)},
}


def run(command: Sampled | Langevin) -> None:
    report.check_flags(command)
    name = type(command).__name__.lower()
    program = f"dpmf epsilon {name}"
    solve = command.solve.replace("-", "_")
    report.check_known(command, QUANTITIES[name], solve=solve, program=program)
    with report.pricing(program):
        result, guarantee = _sampled(command, solve) if isinstance(command, Sampled) else _langevin(command, solve)
    if isinstance(command, Sampled) and command.curves is not None:
        with report.pricing(program):
            result["curves"] = _curves(command.curves, result, guarantee)
    console.emit(result, json=command.json, render=lambda shown: _render(shown, guarantee))


# ---- DP-SGD -------------------------------------------------------------------------------------------------------


def _sampled(command: Sampled, solve: str) -> tuple[dict[str, Any], Guarantee]:
    from accounting import loss, subsampled

    phase = loss.SubsampledGaussian(**_known(command, solve))
    if not phase.num_steps >= 1:
        raise UsageError(
            f"not one step costs as little as ε = {command.epsilon:g}",
            where="dpmf epsilon sampled",
            fix="more noise, a smaller --sampling-rate, or a larger --epsilon or --delta",
        )
    guarantee = subsampled.sampled_guarantee(
        (phase,),
        delta=_delta(command, solve, (phase,)),
        clip_norm=command.clip_norm,
        unit=report.unit(command.unit),
    )
    z, q = phase.noise_multiplier, phase.sampling_rate
    result = _told(command, solve, guarantee) | {
        "noise_multiplier": z,
        "sigma": z * command.clip_norm,
        "sampling_rate": q,
        "title": f"z = σ/C = {report.at_least(z)}, q = {report.at_most(q)}",
        "curves": None,
    }
    return result, guarantee


def _known(command: Sampled, solve: str) -> dict[str, Any]:
    """z, q and J, one of them solved for."""
    from accounting import subsampled

    known = {
        "noise_multiplier": command.noise_multiplier,
        "sampling_rate": command.sampling_rate,
        "num_steps": command.steps,
    }
    solvers = {
        "noise_multiplier": subsampled.solve_noise_multiplier,
        "sampling_rate": subsampled.solve_sampling_rate,
        "num_steps": subsampled.solve_num_steps,
    }
    unknown = "num_steps" if solve == "steps" else solve
    if unknown not in known:
        return known
    given: dict[str, Any] = {name: value for name, value in known.items() if name != unknown}
    assert command.epsilon is not None
    delta = report.USUAL_DELTA if command.delta is None else command.delta
    unit = report.unit(command.unit)
    answer = solvers[unknown](command.epsilon, delta, unit=unit, accountant=command.accountant, **given)
    return known | {unknown: answer}


def _curves(folder: Path, result: Mapping[str, Any], guarantee: Guarantee) -> list[str]:
    from accounting import price
    from experiments import epsilon_curves

    (phase,) = guarantee.losses

    def prices(steps: int, delta: float) -> Mapping[str, float]:
        return price.accountants([dataclasses.replace(phase, num_steps=steps)], delta, unit=guarantee.unit)

    return epsilon_curves.write(
        folder,
        prices,
        steps=result["steps"],
        delta=result["delta"],
        title=f"{result['mechanism']}, {result['title']}",
        status=guarantee.status,
        relation=guarantee.relation,
        points=7,
    )


# ---- Langevin dynamics --------------------------------------------------------------------------------------------


def _langevin(command: Langevin, solve: str) -> tuple[dict[str, Any], Guarantee]:
    from accounting import subsampled

    if not command.steps <= MAX_STEPS:
        raise UsageError(f"--steps must be at most {MAX_STEPS:,} here, got {command.steps}", fix=f"--steps {MAX_STEPS}")
    temperature = _temperature(command) if solve == "temperature" else command.temperature
    assert temperature is not None
    phases = _phases(command, temperature)
    delta = _delta(command, solve, phases)
    guarantee = subsampled.langevin_guarantee(
        phases, delta=delta, clip_norm=command.clip_norm, unit=report.unit(command.unit)
    )
    multipliers = [phase.noise_multiplier for phase in phases]
    result = _told(command, solve, guarantee) | {
        "temperature": temperature,
        "learning_rate": command.learning_rate,
        "decay": command.decay,
        "noise_multiplier": min(multipliers),
        "largest_noise_multiplier": max(multipliers),
        "phases": len(phases),
        "sampling_rate": command.sampling_rate,
        "title": f"T = {report.at_least(temperature)}, z from {report.at_least(min(multipliers), 6)}, "
        f"q = {report.at_most(command.sampling_rate)}",
    }
    return result, guarantee


def _phases(command: Langevin, temperature: float) -> tuple[SubsampledGaussian, ...]:
    from accounting import subsampled

    return subsampled.langevin_phases(
        sampling_rate=command.sampling_rate,
        temperature=temperature,
        clip_norm=command.clip_norm,
        learning_rates=subsampled.decaying_rates(command.learning_rate, command.decay, command.steps),
    )


def _temperature(command: Langevin) -> float:
    """The smallest T (to 1e-4 relative) whose steps cost at most ε: noise grows with its root, so ε falls in it."""
    from accounting import composition

    assert command.epsilon is not None
    target, unit = command.epsilon, report.unit(command.unit)
    delta = report.USUAL_DELTA if command.delta is None else command.delta
    compose = composition.pld if command.accountant == "pld" else composition.rdp

    def costs_too_much(log_temperature: float) -> bool:
        return not compose(_phases(command, math.exp(log_temperature)), unit=unit).epsilon(delta) <= target

    # from the T at which the first step has z = 1, by factors of 4 to both sides of the target
    first = math.log(command.learning_rate / 2) + 2 * math.log(command.clip_norm / command.sampling_rate)
    dear = cheap = first
    for _ in range(20):
        if costs_too_much(cheap):
            dear, cheap = cheap, cheap + math.log(4)
        elif dear < cheap:
            break
        else:
            dear = cheap - math.log(4)
            if not costs_too_much(dear):
                cheap = dear
    else:
        raise ValueError(f"no temperature was found at which {command.steps} steps cost ε = {target:g}")
    while cheap - dear > 1e-4:
        middle = (dear + cheap) / 2
        dear, cheap = (middle, cheap) if costs_too_much(middle) else (dear, middle)
    return math.exp(cheap) * (1 + 1e-12)


# ---- both ---------------------------------------------------------------------------------------------------------


def _delta(command: Sampled | Langevin, solve: str, phases: Sequence[SubsampledGaussian]) -> float:
    if solve != "delta":
        return report.USUAL_DELTA if command.delta is None else command.delta
    from accounting import composition

    assert command.epsilon is not None
    compose = composition.pld if command.accountant == "pld" else composition.rdp
    composed = compose(phases, unit=report.unit(command.unit))
    least = composed.delta(command.epsilon)
    for room in (0.0, 1e-5, 1e-3):  # a few roundings are between δ(ε) and ε(δ)
        delta = report.shown_delta(least * (1 + room))
        if 0 < delta < 1 and composed.epsilon(delta) <= command.epsilon:
            return delta
    raise ValueError(f"no δ below 1 was found at ε = {command.epsilon:g} by {command.accountant}")


def _told(command: Sampled | Langevin, solve: str, guarantee: Guarantee) -> dict[str, Any]:
    prices = dict(guarantee.accountants)
    if command.accountant not in prices:
        raise ValueError(f"--accountant {command.accountant} does not price the unit {guarantee.unit}; pld does")
    report.check_answer(prices[command.accountant], command.epsilon, solve)
    user = guarantee.for_user(command.user_ratings)._asdict() if command.user_ratings else None
    left_out = [] if "rdp" in prices else ["rdp is left out: it does not price a changed value under sampling"]
    return {
        "mechanism": guarantee.mechanism,
        "solved": solve,
        "accountant": command.accountant,
        "epsilon": prices[command.accountant],
        "target": command.epsilon,
        "delta": guarantee.delta,
        "steps": guarantee.steps,
        "clip_norm": command.clip_norm,
        "rdp": None,
        **prices,
        "kinds": report.kinds(list(prices)),
        **report.of_guarantee(guarantee),
        "user": user,
        "notes": [*left_out, *report.free_note(prices, guarantee.delta)],
    }


def _render(result: Mapping[str, Any], guarantee: Guarantee) -> Any:
    drawn = report.table(
        f"{report.counted(result['steps'], 'step')} ({result['mechanism']}), {result['title']}",
        guarantee.accountants,
        result["delta"],
    )
    answers = {
        name: side(result[name])
        for name, side in (
            ("noise_multiplier", report.at_least),
            ("temperature", report.at_least),
            ("sampling_rate", report.at_most),
            ("steps", str),
            ("delta", report.at_least),
        )
        if name in result
    }
    lines = [*report.solved_line(result, answers), *report.user_lines(result)]
    lines += [f"wrote {path}" for path in result.get("curves") or ()]
    return report.page(drawn, lines, result["notes"], report.without_prices(guarantee))
