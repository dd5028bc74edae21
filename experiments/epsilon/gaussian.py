"""`dpmf epsilon gaussian`: the price of Gaussian steps on all of the data, by every accountant."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from accounting import guards
from dpmf_jax.errors import PrivacyError, UsageError
from experiments.cli import console
from experiments.epsilon import flags as epsilon_flags
from experiments.epsilon import phases as epsilon_phases
from experiments.epsilon import report

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee
    from accounting.loss import Gaussian

PROGRAM = "dpmf epsilon gaussian"
# z written as ε_i or as σ and read back may lose its last digits, and must not cost more then.
ROOM = 1 + 1e-12
# What must be known, all but one, and the flags that write it.
QUANTITIES = {
    "noise": ("epsilon_step", "noise_multiplier", "sigma"),
    "steps": ("steps",),
    "epsilon": ("epsilon",),
    "delta": ("delta",),
}
OPTIONAL = ("delta", "sensitivity")
QUANTITIES_OF_PHASES = {"phases": ("phases",), "epsilon": ("epsilon",), "delta": ("delta",)}
REPLACED = ("epsilon_step", "noise_multiplier", "sigma", "sensitivity", "steps")  # by --phases


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """The price of J Gaussian steps on all of the data, or (--solve) one number it leaves open.

    The noise of a step is written in one of three ways: --epsilon-step with --delta-step as paper
    001 does, --noise-multiplier, or --sigma with --sensitivity. Steps of several noises are
    --phases. Every answer errs on the safe side: it costs no more than asked.
    """

    solve: Literal[
        "epsilon", "delta", "steps", "epsilon-step", "noise-multiplier", "sigma", "sensitivity"
    ] = "epsilon"
    """What is unknown; all the rest is given. sensitivity: the largest that --sigma covers."""
    steps: int | None = None
    """J, fixed up front."""
    epsilon_step: float | None = None
    """Paper 001's epsilon_i: sigma / sensitivity = sqrt(2 ln(1.25 / delta_step)) / epsilon_i."""
    delta_step: float = 0.01
    """Goes with epsilon_i; it says nothing about the total."""
    noise_multiplier: float | None = None
    """z = sigma / sensitivity of a step."""
    sigma: float | None = None
    """Standard deviation of the noise in each coordinate."""
    sensitivity: float | None = None
    """How far a neighbour moves a step's statistics, in L2, for the relation; 1 by default."""
    phases: tuple[str, ...] | None = None
    """Steps of several noises, each NOISE_MULTIPLIERxSTEPS, such as 20x1 8x300, in place of a noise
    and --steps.
    """
    epsilon: float | None = None
    """The target of the whole, where something else is solved for."""
    delta: float | None = None
    """Delta of the whole; 1e-5 unless it is solved for."""
    accountant: Literal["exact", "pld", "rdp", "closed_form"] | None = None
    """The one that --epsilon is stated in; by default closed_form where a claim is made, exact
    where it is proved.
    """
    mechanism: Literal["gaussian", "gaussian-joint-noise", "gaussian-public-items"] = "gaussian"
    """Whose steps they are: it decides status, relation and what a user pays. `gaussian` is paper
    001 as published.
    """
    relation: Literal["rating-value", "rating-presence"] = "rating-value"
    """What neighbouring data sets differ in, for which the sensitivity holds."""
    user_ratings: int | None = None
    """Also the price of all ratings of a user who has so many."""
    curves: Path | None = None
    """Folder for epsilon-steps (phases in their order) and delta-epsilon, as svg and csv (needs the
    extra `report`).
    """
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    epsilon_flags.check_flags(command)
    solve = command.solve.replace("-", "_")
    _check_given(command, solve)
    if command.mechanism == "gaussian" and command.relation == "rating-presence":
        raise PrivacyError(
            "mechanism gaussian has no finite sensitivity for a rating's presence",
            where=(
                "a rating added or removed moves the gradient by its residual, which as published"
                " is unbounded"
            ),
            fix="--mechanism gaussian-joint-noise or gaussian-public-items, which clip it",
        )
    with epsilon_flags.pricing(PROGRAM):
        result, guarantee = _price(command, solve)
    if command.curves is not None:
        with epsilon_flags.pricing(PROGRAM):
            result["curves"] = _curves(command.curves, result, guarantee)
    console.emit(result, json=command.json, render=lambda shown: render(shown, guarantee))


def _check_given(command: Command, solve: str) -> None:
    """Refuses a command line that does not leave exactly one number open."""
    if command.phases is None:
        if solve == "sensitivity":
            unused = ("epsilon_step", "noise_multiplier", "sensitivity")
            why = "to solve for the sensitivity that a noise covers"
            epsilon_flags.require(command, PROGRAM, needed=("sigma",), unused=unused, why=why)
        epsilon_flags.check_known(
            command,
            QUANTITIES | {"sensitivity": ("sensitivity",)},
            solve=solve,
            program=PROGRAM,
            optional=OPTIONAL,
        )
        return
    if solve not in ("epsilon", "delta"):
        raise UsageError(
            f"--solve {command.solve} means nothing with --phases, which say the noise and the"
            " steps",
            where=PROGRAM,
            fix="--solve epsilon or --solve delta, or one noise and --steps in place of --phases",
        )
    epsilon_flags.require(
        command, PROGRAM, needed=(), unused=REPLACED, why="with --phases, which say noise and steps"
    )
    epsilon_flags.check_known(command, QUANTITIES_OF_PHASES, solve=solve, program=PROGRAM)


def _price(command: Command, solve: str) -> tuple[dict[str, Any], Guarantee]:
    from accounting import gaussian, price

    accountant = command.accountant or (
        "closed_form" if command.mechanism == "gaussian" else "exact"
    )
    cut: list[str] = []
    try:
        if command.phases is not None:
            phases = epsilon_phases.parse(command.phases, PROGRAM)
            sensitivity = None
            losses = epsilon_phases.losses_of(command.mechanism, phases)
            delta = _delta(command, solve, losses, accountant)
        else:
            z, steps, sensitivity = _solve(command, solve, accountant)
            steps, cut = epsilon_flags.capped(steps, "steps")
            losses = epsilon_phases.losses_of(command.mechanism, [(z, steps)])
            delta = _delta(command, solve, losses, accountant)
    except ValueError as error:
        if accountant == "pld" and "takes too long" in str(error):
            raise UsageError(
                f"--accountant pld: {error}", where=PROGRAM, fix="--accountant exact"
            ) from error
        raise
    guarantee = epsilon_phases.guarantee_of(
        command.mechanism, losses, relation=command.relation, sensitivity=sensitivity, delta=delta
    )
    prices = dict(guarantee.accountants)
    rho = price.rho(losses)
    assert rho is not None
    if accountant not in prices:
        raise ValueError(
            f"--accountant {accountant}: ρ = {report.at_least(rho, 6)} is above"
            f" {gaussian.PLD_LIMIT:g}, where it takes too long; --accountant exact knows every ρ"
        )
    report.check_answer(prices[accountant], command.epsilon, solve)
    result = {
        "mechanism": command.mechanism,
        "solved": solve,
        "accountant": accountant,
        "epsilon": prices[accountant],
        "target": command.epsilon,
        "delta": delta,
        "steps": guarantee.steps,
        **_noise_spellings(command, losses, sensitivity),
        "phases": [
            {"noise_multiplier": phase.noise_multiplier, "steps": phase.num_steps}
            for phase in losses
        ],
        "rho": rho,
        "alpha_star": gaussian.optimal_order(rho, delta),
        "pld": None,
        **prices,
        "kinds": report.kinds(list(prices)),
        **report.guarantee_fields(guarantee),
        "user": (
            guarantee.for_user(command.user_ratings)._asdict() if command.user_ratings else None
        ),
        "curves": None,
    }
    as_steps = "epsilon_step" in (solve, *_noise_flags(command))
    result["notes"] = [*cut, *_notes(result, as_steps=as_steps), *report.price_notes(prices, delta)]
    return result, guarantee


def _noise_spellings(
    command: Command, losses: Sequence[Gaussian], sensitivity: float | None
) -> dict[str, Any]:
    """The noise of a step in all its spellings.

    Phases have no one noise, unless their multipliers are equal.
    """
    from accounting import gaussian

    if sensitivity is None:
        multipliers = {phase.noise_multiplier for phase in losses}
        z = multipliers.pop() if len(multipliers) == 1 else None
        step = None if z is None else gaussian.step_from_noise_multiplier(z, command.delta_step)
        sigma = None
    else:
        z = losses[0].noise_multiplier
        step = command.epsilon_step or gaussian.step_from_noise_multiplier(z, command.delta_step)
        sigma = z * sensitivity if command.sigma is None else command.sigma
        guards.positive(f"sigma, {z!r} times --sensitivity {sensitivity!r},", sigma)
    return {
        "epsilon_step": step,
        "delta_step": command.delta_step,
        "noise_multiplier": z,
        "sigma": sigma,
        "sensitivity": sensitivity,
    }


def _noise_flags(command: Command) -> list[str]:
    return [name for name in QUANTITIES["noise"] if getattr(command, name) is not None]


def _solve(command: Command, solve: str, accountant: Any) -> tuple[float, int, float]:
    """(z, J, Δ), one of them, or none, solved for."""
    from accounting import gaussian

    delta = epsilon_flags.USUAL_DELTA if command.delta is None else command.delta
    sensitivity = 1.0 if command.sensitivity is None else command.sensitivity
    if solve in (*QUANTITIES["noise"], "sensitivity"):
        assert command.epsilon is not None
        assert command.steps is not None
        target, steps = command.epsilon, command.steps
        if solve == "epsilon_step":
            step = gaussian.solve_epsilon_step(
                target, delta, steps, command.delta_step, price=accountant
            )
            return (
                gaussian.noise_multiplier_from_step(step, command.delta_step) * ROOM,
                steps,
                sensitivity,
            )
        z = gaussian.solve_noise_multiplier(target, delta, steps, price=accountant)
        if solve != "sensitivity":
            return z * (ROOM if solve == "sigma" else 1.0), steps, sensitivity
        assert command.sigma is not None
        sensitivity = command.sigma / (z * ROOM)
        return _ratio(command.sigma, sensitivity), steps, sensitivity
    z = _noise_multiplier(command, sensitivity)
    if solve == "steps":
        assert command.epsilon is not None
        steps = gaussian.solve_num_steps(command.epsilon, delta, z, price=accountant)
        if not steps >= 1:
            raise UsageError(
                f"not one step at z = {z:.6g} costs as little as ε ="
                f" {report.in_full(command.epsilon)} at δ = {report.delta_text(delta)}",
                where=PROGRAM,
                fix="more noise, or a larger --epsilon or --delta",
            )
        return z, steps, sensitivity
    assert command.steps is not None
    return z, command.steps, sensitivity


def _delta(command: Command, solve: str, losses: Sequence[Gaussian], accountant: Any) -> float:
    """δ as given, or the smallest at which the losses cost at most ε."""
    from accounting import gaussian

    if solve != "delta":
        return epsilon_flags.USUAL_DELTA if command.delta is None else command.delta
    assert command.epsilon is not None
    delta = gaussian.solve_delta(
        command.epsilon, *epsilon_phases.equivalent_steps(losses), price=accountant
    )
    if not (delta := report.rounded_delta(delta)) < 1:
        raise UsageError(
            f"no δ below 1 holds at ε = {report.in_full(command.epsilon)} by {accountant}",
            where=PROGRAM,
            fix="more noise, fewer steps, a larger --epsilon, or --accountant exact",
        )
    return delta


def _noise_multiplier(command: Command, sensitivity: float) -> float:
    from accounting import gaussian

    if command.noise_multiplier is not None:
        return command.noise_multiplier
    if command.epsilon_step is not None:
        return gaussian.noise_multiplier_from_step(command.epsilon_step, command.delta_step)
    assert command.sigma is not None
    return _ratio(command.sigma, sensitivity)


def _ratio(sigma: float, sensitivity: float) -> float:
    z = sigma / sensitivity if sensitivity > 0 else math.inf
    return guards.positive(f"--sigma / --sensitivity = {sigma!r}/{sensitivity!r}", z)


def _notes(result: Mapping[str, Any], *, as_steps: bool) -> list[str]:
    notes = []
    if result["pld"] is None:
        notes.append("pld is left out: above ρ = 1e4 it takes too long")
    if as_steps and result["epsilon_step"] >= 1:
        notes.append(
            f"ε_i = {result['epsilon_step']:.6g} is 1 or more, where Theorem 1 of paper 001 says"
            " nothing about a step; the noise is priced by ρ, which holds"
        )
    if as_steps and (spent := result["steps"] * result["delta_step"]) >= 1:
        notes.append(
            f"{report.counted(result['steps'], 'step')} at δ_i ="
            f" {report.delta_text(result['delta_step'])} add up to δ = {spent:g}, which is 1 or"
            " more: (ε_i, δ_i) per step says nothing about the whole by basic composition; it only"
            " writes the noise, and `basic` composes other pairs of the same noise"
        )
    stated = "closed_form" if result["status"] == "claimed" else "exact"
    if result["target"] is not None and result["accountant"] != stated:
        notes.append(
            f"the target is stated in {result['accountant']}, the statement's ε in {stated}, as"
            f" that of every result with status {result['status']}"
        )
    return notes


# ---- what is printed -----------------------------------------------------------------------------


def _curves(folder: Path, result: Mapping[str, Any], guarantee: Guarantee) -> list[str]:
    from experiments.epsilon import curves as epsilon_curves

    return epsilon_curves.draw(
        folder,
        epsilon_curves.first_steps(guarantee.losses),
        guarantee,
        title=f"{result['mechanism']}, {_noise_text(result, digits=6)}",
        accountants=("basic", "closed_form", "rdp", "pld", "exact"),
    )


def _noise_text(result: Mapping[str, Any], digits: int = 8) -> str:
    if (z := result["noise_multiplier"]) is not None:
        return f"z = {report.at_least(z, digits)}"
    phases = [
        f"{report.in_full(phase['noise_multiplier'])}x{phase['steps']}"
        for phase in result["phases"]
    ]
    shown = phases if len(phases) <= 6 else [*phases[:5], f"and {len(phases) - 5} more"]
    return f"phases z x J = {', '.join(shown)}"


def render(result: Mapping[str, Any], guarantee: Guarantee) -> Any:
    steps = result["steps"]
    drawn = report.table(
        f"{report.counted(steps, 'Gaussian step')} ({result['mechanism']}), "
        f"{_noise_text(result).replace('z = ', 'z = σ/Δ = ')}",
        {name: result[name] for name in guarantee.accountants},
        result["delta"],
    )
    lines = report.solved_line(result, _answers(result))
    noise = f"ρ = {report.at_least(result['rho'], 6)}, α* = {result['alpha_star']:.6g}"
    if result["sigma"] is not None:
        noise += (
            f", σ = {report.at_least(result['sigma'])} at Δ ="
            f" {report.in_full(result['sensitivity'])}"
        )
    if result["epsilon_step"] is not None:
        noise += (
            f", ε_i = {report.at_most(result['epsilon_step'])} at δ_i ="
            f" {report.in_full(result['delta_step'])}"
        )
    lines += [noise, *report.user_lines(result), *report.written_lines(result)]
    return report.page(drawn, lines, result["notes"], report.without_prices(guarantee))


def _answers(result: Mapping[str, Any]) -> dict[str, str]:
    """What may be solved for, as it is to be typed: rounded to where it costs no more."""
    down, up = ("epsilon_step", "sensitivity"), ("noise_multiplier", "sigma", "delta")
    return {
        "steps": f"{result['steps']}",
        **{name: report.at_most(result[name]) for name in down if result[name] is not None},
        **{name: report.at_least(result[name]) for name in up if result[name] is not None},
    }
