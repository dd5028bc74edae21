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

    solve: Literal["epsilon", "delta", "steps", "temperature", "learning-rate", "clip-norm"] = "epsilon"
    """What is unknown; all the rest is given. (Not q: the noise grows with it, and the price may rise or fall.)"""
    sampling_rate: float
    """q, the public probability with which each record takes part in a step."""
    steps: int | None = None
    """J, fixed up front."""
    learning_rate: float | None = None
    """Of the first step."""
    decay: float = 0.0
    """b: the learning rate of step t is that of the first, divided by 1 + b·t/J."""
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
    """Also the price of all ratings of a user who has so many, each sampled by itself (unit rating-presence)."""
    json: bool = False
    """Print one JSON object on stdout."""


MAX_STEPS = 10**6  # of Langevin dynamics, whose steps are listed one by one
MAX_SAMPLED = 10**7  # of the others: 20 s measured there at q = 0.001, z = 10, and beyond soon minutes
MAX_RATINGS = 10_000  # of one user: more are no mixture that is priced
QUANTITIES = {
    "sampled": {
        "noise": ("noise_multiplier",),
        "rate": ("sampling_rate",),
        "steps": ("steps",),
        "epsilon": ("epsilon",),
        "delta": ("delta",),
    },
    "langevin": {
        "steps": ("steps",),
        "learning rate": ("learning_rate",),
        "clip": ("clip_norm",),
        "temperature": ("temperature",),
        "epsilon": ("epsilon",),
        "delta": ("delta",),
    },
}


def run(command: Sampled | Langevin) -> None:
    report.check_flags(command)
    name = type(command).__name__.lower()
    program = f"dpmf epsilon {name}"
    solve = command.solve.replace("-", "_")
    report.check_known(command, QUANTITIES[name], solve=solve, program=program)
    _check_sizes(command, program)
    with report.pricing(program):
        try:
            result, guarantee = _sampled(command, solve) if isinstance(command, Sampled) else _langevin(command, solve)
        except ArithmeticError as error:
            noise = "--noise-multiplier" if isinstance(command, Sampled) else "--temperature"
            raise UsageError(
                f"{noise}: with so little noise, or so much, the price is beyond what floats hold ({error})",
                where=program,
                fix=f"a {noise} at which a record is neither plainly seen nor lost, such as one with z near 1",
            ) from error
    if isinstance(command, Sampled) and command.curves is not None:
        with report.pricing(program):
            result["curves"] = _curves(command.curves, result, guarantee)
    console.emit(result, json=command.json, render=lambda shown: _render(shown, guarantee))


def _check_sizes(command: Sampled | Langevin, program: str) -> None:
    """Refuses, before anything is priced, what would take minutes, or has no price per user."""
    most = MAX_SAMPLED if isinstance(command, Sampled) else MAX_STEPS
    if command.steps is not None and not command.steps <= most:
        raise UsageError(
            f"--steps must be at most {most:,} here, got {command.steps:,}", where=program, fix=f"--steps {most}"
        )
    if (asked := command.user_ratings) is None:
        return
    if command.unit == "user":
        raise UsageError(
            "--user-ratings means nothing for the unit user: all ratings of a user are one record, and ε is the user's "
            "price already",
            where=program,
            fix="leave out --user-ratings",
        )
    if command.unit == "rating-value":
        raise UsageError(
            "--user-ratings: no price per user is known for ratings that change value under sampling",
            where=program,
            fix="--unit rating-presence, which prices ratings that are there or not",
        )
    if not asked <= MAX_RATINGS:
        raise UsageError(
            f"--user-ratings must be at most {MAX_RATINGS:,} under sampling, got {asked:,}",
            where=program,
            fix=f"--user-ratings {MAX_RATINGS}, or --unit user, where all ratings of a user are one record",
        )


# ---- DP-SGD -------------------------------------------------------------------------------------------------------


def _sampled(command: Sampled, solve: str) -> tuple[dict[str, Any], Guarantee]:
    from accounting import loss, subsampled

    known = _known(command, solve)
    known["num_steps"], cut = report.capped(known["num_steps"], "steps", MAX_SAMPLED)
    phase = loss.SubsampledGaussian(**known)
    if not phase.num_steps >= 1:
        raise UsageError(
            f"not one step costs as little as ε = {report.exactly(command.epsilon or math.nan)}",
            where="dpmf epsilon sampled",
            fix="more noise, a smaller --sampling-rate, or a larger --epsilon or --delta",
        )
    delta, command, notes = _delta(command, solve, (phase,))
    guarantee = subsampled.sampled_guarantee(
        (phase,),
        delta=delta,
        clip_norm=command.clip_norm,
        unit=report.unit(command.unit),
    )
    z, q = phase.noise_multiplier, phase.sampling_rate
    result = _told(command, solve, guarantee, [*cut, *notes]) | {
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

    cut: list[str] = []
    if solve == "steps":
        steps, cut = _langevin_steps(command)
        command = dataclasses.replace(command, steps=steps)
    elif solve in _CHEAPER:
        command = dataclasses.replace(command, **{solve: _langevin_noise(command, solve)})
    phases = _phases(command)
    delta, command, notes = _delta(command, solve, phases)
    assert command.temperature is not None
    assert command.learning_rate is not None
    assert command.clip_norm is not None
    guarantee = subsampled.langevin_guarantee(
        phases, delta=delta, clip_norm=command.clip_norm, unit=report.unit(command.unit)
    )
    multipliers = [phase.noise_multiplier for phase in phases]
    result = _told(command, solve, guarantee, [*cut, *notes]) | {
        "temperature": command.temperature,
        "learning_rate": command.learning_rate,
        "decay": command.decay,
        "noise_multiplier": min(multipliers),
        "largest_noise_multiplier": max(multipliers),
        "phases": len(phases),
        "sampling_rate": command.sampling_rate,
        "title": f"T = {report.at_least(command.temperature)}, z from {report.at_least(min(multipliers), 6)}, "
        f"q = {report.at_most(command.sampling_rate)}",
    }
    return result, guarantee


def _phases(command: Langevin) -> tuple[SubsampledGaussian, ...]:
    from accounting import subsampled

    assert command.temperature is not None
    assert command.learning_rate is not None
    assert command.clip_norm is not None
    assert command.steps is not None
    return subsampled.langevin_phases(
        sampling_rate=command.sampling_rate,
        temperature=command.temperature,
        clip_norm=command.clip_norm,
        learning_rates=subsampled.decaying_rates(command.learning_rate, command.decay, command.steps),
    )


def _costs_too_much(command: Langevin) -> bool:
    from accounting import composition

    assert command.epsilon is not None
    delta = report.USUAL_DELTA if command.delta is None else command.delta
    compose = composition.pld if command.accountant == "pld" else composition.rdp
    return not compose(_phases(command), unit=report.unit(command.unit)).epsilon(delta) <= command.epsilon


_CHEAPER = {"temperature": 1, "learning_rate": -1, "clip_norm": -1}  # 1: ε falls in it, −1: ε rises


def _langevin_noise(command: Langevin, solve: str) -> float:
    """The T, η or C (to 1e-4 relative) whose steps just about cost ε: each sets z alone, as the root of T/(η·C²)."""
    side = _CHEAPER[solve]

    def too_dear(log_value: float) -> bool:
        return _costs_too_much(dataclasses.replace(command, **{solve: math.exp(log_value)}))

    # from where the first step has z = 1, by factors of 4 to both sides of the target
    logs = {name: math.log(getattr(command, name) or 1.0) for name in _CHEAPER}
    ahead = math.log(2) + 2 * math.log(command.sampling_rate) + logs["temperature"] - logs["learning_rate"]
    ahead -= 2 * logs["clip_norm"]  # ln z² with 1 for the unknown
    first = -side * ahead / (2 if solve == "clip_norm" else 1)
    dear = cheap = first
    for _ in range(20):
        if too_dear(cheap):
            dear, cheap = cheap, cheap + side * math.log(4)
        elif dear != cheap:
            break
        else:
            dear = cheap - side * math.log(4)
            if not too_dear(dear):
                cheap = dear
    else:
        raise ValueError(
            f"no {solve.replace('_', '-')} was found at which {report.counted(command.steps or 0, 'step')} cost "
            f"ε = {report.exactly(command.epsilon or math.nan)}"
        )
    while abs(cheap - dear) > 1e-4:
        middle = (dear + cheap) / 2
        dear, cheap = (middle, cheap) if too_dear(middle) else (dear, middle)
    return math.exp(cheap) * (1 + side * 1e-12)


def _langevin_steps(command: Langevin) -> tuple[int, list[str]]:
    """The largest J that costs at most ε, and a note where more than `MAX_STEPS` would."""

    def too_dear(steps: int) -> bool:
        return _costs_too_much(dataclasses.replace(command, steps=steps))

    if too_dear(1):
        raise UsageError(
            f"not one step costs as little as ε = {report.exactly(command.epsilon or math.nan)}",
            where="dpmf epsilon langevin",
            fix="a higher --temperature, a smaller --learning-rate or --clip-norm, or a larger --epsilon or --delta",
        )
    few, many = 1, 2
    while not too_dear(many):
        if many == MAX_STEPS:
            return report.capped(MAX_STEPS + 1, "steps", MAX_STEPS)
        few, many = many, min(2 * many, MAX_STEPS)
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if too_dear(middle) else (middle, many)
    return few, []


# ---- both ---------------------------------------------------------------------------------------------------------


def _delta(command: Any, solve: str, phases: Sequence[SubsampledGaussian]) -> tuple[float, Any, list[str]]:
    """δ, and where it is solved for the command with the accountant that says it, and why where that is another one.

    The distribution knows no δ below 9e-16 for each step; there Rényi's is asked too, and the smaller one holds.
    """
    if solve != "delta":
        return report.USUAL_DELTA if command.delta is None else command.delta, command, []
    floor = 9e-16 * sum(phase.num_steps for phase in phases)
    if command.accountant != "pld":
        return _least_delta(command, "rdp", phases), command, []
    delta = _least_delta(command, "pld", phases)
    if not delta <= 2 * floor:
        return delta, command, []
    told = f"δ is at the floor of pld, {report.shown(floor)} for so many steps, and not at what these cost"
    if command.unit == "rating-value":
        return delta, command, [f"{told}; rdp, which is better there, does not price a changed value"]
    try:
        by_rdp = _least_delta(command, "rdp", phases)
    except ValueError:  # its δ is below every float, or 1
        return delta, command, [f"{told}; rdp says none"]
    if by_rdp >= delta:
        return delta, command, [f"{told}; rdp says no less"]
    return (
        by_rdp,
        dataclasses.replace(command, accountant="rdp"),
        [f"pld says δ = {report.shown(delta)}, its floor for so many steps; rdp says less, and is taken"],
    )


def _least_delta(command: Any, accountant: str, phases: Sequence[SubsampledGaussian]) -> float:
    from accounting import composition

    compose = composition.pld if accountant == "pld" else composition.rdp
    composed = compose(phases, unit=report.unit(command.unit))
    least = composed.delta(command.epsilon)
    for room in (0.0, 1e-5, 1e-3):  # a few roundings are between δ(ε) and ε(δ)
        delta = report.shown_delta(least * (1 + room))
        if 0 < delta < 1 and composed.epsilon(delta) <= command.epsilon:
            return delta
    raise ValueError(f"no δ below 1 was found at ε = {report.exactly(command.epsilon)} by {accountant}")


def _told(command: Sampled | Langevin, solve: str, guarantee: Guarantee, notes: Sequence[str]) -> dict[str, Any]:
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
        "notes": [*notes, *left_out, *report.price_notes(prices, guarantee.delta)],
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
            ("learning_rate", report.at_most),
            ("clip_norm", report.at_most),
            ("sampling_rate", report.at_most),
            ("steps", str),
            ("delta", report.at_least),
        )
        if name in result
    }
    lines = [*report.solved_line(result, answers), *report.user_lines(result)]
    lines += [f"wrote {path}" for path in result.get("curves") or ()]
    return report.page(drawn, lines, result["notes"], report.without_prices(guarantee))
