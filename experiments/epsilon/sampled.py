"""`dpmf epsilon sampled`: Gaussian steps on secret Poisson samples of the ratings, as in DP-SGD."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from accounting.composition import STEPS_LIMIT as MAX_STEPS
from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.sampled.guarantee import sampled_guarantee
from experiments.cli import console
from experiments.epsilon import flags as epsilon_flags
from experiments.epsilon import report, sampling

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee

PROGRAM = "dpmf epsilon sampled"
QUANTITIES = {
    "noise": ("noise_multiplier",),
    "rate": ("sampling_rate",),
    "steps": ("steps",),
    "epsilon": ("epsilon",),
    "delta": ("delta",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled:
    """The price of J Gaussian steps on secret Poisson samples, or (--solve) any one unknown.

    A record's part is clipped to C where it enters the sum and the noise is z·C. Batches of a fixed
    size, and batches cut from a shuffled order, are other mechanisms, and are not priced here.
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
    """The one that --epsilon is stated in; above 10,000,000 steps rdp, which is the only price
    there.
    """
    unit: Literal["rating-presence", "rating-value", "user"] = "rating-presence"
    """What neighbouring data sets differ in; `user`: all ratings of a user are one record."""
    clip_norm: float = 1.0
    """C; it sets the scale of sigma and not the price."""
    user_ratings: int | None = None
    """Also the price of all ratings of a user who has so many, each sampled by itself (unit
    rating-presence).
    """
    curves: Path | None = None
    """Folder for epsilon-steps and delta-epsilon, each as svg and csv (needs the extra `report`;
    half a minute).
    """
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Sampled) -> None:
    epsilon_flags.check_flags(command)
    solve = command.solve.replace("-", "_")
    epsilon_flags.check_known(command, QUANTITIES, solve=solve, program=PROGRAM)
    fix = "" if _most(command) > MAX_STEPS else ", or --accountant rdp, which is linear in them"
    sampling.check_sizes(command, PROGRAM, most=_most(command), fix=fix)
    if command.user_ratings is not None and (command.steps or 0) > MAX_STEPS:
        raise UsageError(
            f"--user-ratings: a mixture of Gaussians is priced up to {MAX_STEPS:,} steps, got"
            f" {command.steps:,}",
            where=PROGRAM,
            fix=(
                "--unit user, where all ratings of a user are one record, or leave out"
                " --user-ratings"
            ),
        )
    with sampling.pricing(PROGRAM, "--noise-multiplier"):
        result, guarantee = _price(command, solve)
    if command.curves is not None:
        with sampling.pricing(PROGRAM, "--noise-multiplier"):
            result["curves"] = _curves(command.curves, result, guarantee)
    console.emit(result, json=command.json, render=lambda shown: sampling.render(shown, guarantee))


def _most(command: Sampled) -> int:
    """The number of steps up to which the accountant that was asked for takes less than minutes."""
    return (
        epsilon_flags.LARGEST_COUNT
        if command.accountant == "rdp" and command.unit != "rating-value"
        else MAX_STEPS
    )


def _price(command: Sampled, solve: str) -> tuple[dict[str, Any], Guarantee]:
    from accounting import loss

    known = _known(command, solve)
    known["num_steps"], cut = epsilon_flags.capped(known["num_steps"], "steps", _most(command))
    phase = loss.SubsampledGaussian(**known)
    if not phase.num_steps >= 1:
        raise UsageError(
            f"not one step costs as little as ε = {report.in_full(command.epsilon or math.nan)}",
            where=PROGRAM,
            fix="more noise, a smaller --sampling-rate, or a larger --epsilon or --delta",
        )
    delta, command, notes = sampling.solved_delta(command, solve, (phase,))
    unit = report.unit_of_flag(command.unit)
    guarantee = sampled_guarantee((phase,), delta=delta, clip_norm=command.clip_norm, unit=unit)
    if "pld" not in guarantee.accountants:
        notes.append(
            f"pld is left out: above {MAX_STEPS:,} steps it takes minutes; rdp is linear in them"
        )
    z, q = phase.noise_multiplier, phase.sampling_rate
    result = sampling.result_fields(command, solve, guarantee, [*cut, *notes]) | {
        "noise_multiplier": z,
        "sigma": z * command.clip_norm,
        "sampling_rate": q,
        "title": f"z = σ/C = {report.at_least(z)}, q = {report.at_most(q)}",
    }
    return result, guarantee


def _known(command: Sampled, solve: str) -> dict[str, Any]:
    """z, q and J, one of them solved for."""
    from accounting import calibration

    known = {
        "noise_multiplier": command.noise_multiplier,
        "sampling_rate": command.sampling_rate,
        "num_steps": command.steps,
    }
    solvers = {
        "noise_multiplier": calibration.solve_noise_multiplier,
        "sampling_rate": calibration.solve_sampling_rate,
        "num_steps": calibration.solve_num_steps,
    }
    unknown = "num_steps" if solve == "steps" else solve
    if unknown not in known:
        return known
    given: dict[str, Any] = {name: value for name, value in known.items() if name != unknown}
    assert command.epsilon is not None
    delta = sampling.delta_of(command)
    unit = report.unit_of_flag(command.unit)
    try:
        answer = solvers[unknown](
            command.epsilon, delta, unit=unit, accountant=command.accountant, **given
        )
    except ValueError as error:
        if "steps or more are affordable" not in str(error):
            raise
        raise UsageError(
            f"--steps: {error}", where=PROGRAM, fix=f"--steps {_most(command)}, or --accountant rdp"
        ) from error
    return known | {unknown: answer}


def _curves(folder: Path, result: dict[str, Any], guarantee: Guarantee) -> list[str]:
    from experiments.epsilon import curves as epsilon_curves

    most = MAX_STEPS if "pld" in guarantee.accountants else epsilon_flags.LARGEST_COUNT
    return sampling.curves(
        folder, epsilon_curves.first_steps(guarantee.losses), guarantee, result["title"], most
    )
