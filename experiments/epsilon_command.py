"""`dpmf epsilon gaussian`: what J Gaussian steps on all of the data cost, by every accountant; no data, no training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import PrivacyError, UsageError
from experiments import console
from experiments import epsilon_report as report

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee

PROGRAM = "dpmf epsilon gaussian"
ROOM = 1 + 1e-12  # z written as ε_i or as σ and read back may lose its last digits, and must not cost more then
# What must be known, all but one, and the flags that write it.
QUANTITIES = {
    "noise": ("epsilon_step", "noise_multiplier", "sigma"),
    "steps": ("steps",),
    "epsilon": ("epsilon",),
    "delta": ("delta",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """The price of J Gaussian steps on all of the data, or (--solve) any one number that a price leaves open.

    The noise of a step is written in one of three ways: --epsilon-step with --delta-step as paper 001 does,
    --noise-multiplier, or --sigma with --sensitivity. Every answer errs on the safe side: it costs no more than asked.
    """

    solve: Literal["epsilon", "delta", "steps", "epsilon-step", "noise-multiplier", "sigma"] = "epsilon"
    """What is unknown; all the rest is given."""
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
    sensitivity: float = 1.0
    """How far a neighbour moves a step's statistics, in L2, for the relation."""
    epsilon: float | None = None
    """The target of the whole, where something else is solved for."""
    delta: float | None = None
    """Delta of the whole; 1e-5 unless it is solved for."""
    accountant: Literal["exact", "pld", "rdp", "closed_form"] | None = None
    """The one that --epsilon is stated in; by default closed_form where a claim is made, exact where it is proved."""
    mechanism: Literal["gaussian", "gaussian-joint-noise", "gaussian-public-items"] = "gaussian"
    """Whose steps they are: it decides status, relation and what a user pays. `gaussian` is paper 001 as published."""
    relation: Literal["rating-value", "rating-presence"] = "rating-value"
    """What neighbouring data sets differ in, for which the sensitivity holds."""
    user_ratings: int | None = None
    """Also the price of all ratings of a user who has so many."""
    curves: Path | None = None
    """Folder for epsilon-steps and delta-epsilon, each as svg and csv (needs the extra `report`)."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    report.check_flags(command)
    solve = command.solve.replace("-", "_")
    report.check_known(command, QUANTITIES, solve=solve, program=PROGRAM)
    if command.mechanism == "gaussian" and command.relation == "rating-presence":
        raise PrivacyError(
            "mechanism gaussian has no finite sensitivity for a rating's presence",
            where="a rating added or removed moves the gradient by its residual, which as published is unbounded",
            fix="--mechanism gaussian-joint-noise or gaussian-public-items, which clip it",
        )
    with report.pricing(PROGRAM):
        result, guarantee = _priced(command, solve)
    if command.curves is not None:
        with report.pricing(PROGRAM):
            result["curves"] = _curves(command.curves, result)
    console.emit(result, json=command.json, render=lambda shown: render(shown, guarantee))


def _priced(command: Command, solve: str) -> tuple[dict[str, Any], Guarantee]:
    from accounting import gaussian

    accountant = command.accountant or ("closed_form" if command.mechanism == "gaussian" else "exact")
    try:
        z, steps, delta = _solved(command, solve, accountant)
    except ValueError as error:
        if accountant == "pld" and "takes too long" in str(error):
            raise UsageError(f"--accountant pld: {error}", where=PROGRAM, fix="--accountant exact") from error
        raise
    steps, cut = report.capped(steps, "steps")
    guarantee = _guarantee(command, z, steps, delta)
    prices = gaussian.accountants(z, steps, delta)
    rho = gaussian.rho(z, steps)
    epsilon_step = gaussian.step_from_noise_multiplier(z, command.delta_step)
    sigma = z * command.sensitivity if command.sigma is None else command.sigma
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma, {z!r} times --sensitivity {command.sensitivity!r}, is out of range")
    if accountant not in prices:
        raise ValueError(
            f"--accountant {accountant}: ρ = {report.at_least(rho, 6)} is above {gaussian.PLD_LIMIT:g}, where it takes "
            "too long; --accountant exact knows every ρ"
        )
    report.check_answer(prices[accountant], command.epsilon, solve)
    result = {
        "mechanism": command.mechanism,
        "solved": solve,
        "accountant": accountant,
        "epsilon": prices[accountant],
        "target": command.epsilon,
        "delta": delta,
        "steps": steps,
        "epsilon_step": epsilon_step if command.epsilon_step is None else command.epsilon_step,
        "delta_step": command.delta_step,
        "noise_multiplier": z,
        "sigma": sigma,
        "sensitivity": command.sensitivity,
        "rho": rho,
        "alpha_star": gaussian.optimal_order(rho, delta),
        "pld": None,
        **prices,
        "kinds": report.kinds(list(prices)),
        **report.of_guarantee(guarantee),
        "user": guarantee.for_user(command.user_ratings)._asdict() if command.user_ratings else None,
        "curves": None,
    }
    as_steps = "epsilon_step" in (solve, *_given(command))
    result["notes"] = [*cut, *_notes(result, as_steps=as_steps), *report.price_notes(prices, delta)]
    return result, guarantee


def _given(command: Command) -> list[str]:
    return [name for name in QUANTITIES["noise"] if getattr(command, name) is not None]


def _solved(command: Command, solve: str, accountant: Any) -> tuple[float, int, float]:
    """(z, J, δ), one of them solved for."""
    from accounting import gaussian

    delta = report.USUAL_DELTA if command.delta is None else command.delta
    if solve in QUANTITIES["noise"]:
        assert command.epsilon is not None
        assert command.steps is not None
        target, steps = command.epsilon, command.steps
        if solve == "epsilon_step":
            step = gaussian.solve_epsilon_step(target, delta, steps, command.delta_step, price=accountant)
            return gaussian.noise_multiplier_from_step(step, command.delta_step) * ROOM, steps, delta
        z = gaussian.solve_noise_multiplier(target, delta, steps, price=accountant)
        return z * (ROOM if solve == "sigma" else 1.0), steps, delta
    z = _noise_multiplier(command)
    if solve == "steps":
        assert command.epsilon is not None
        steps = gaussian.solve_num_steps(command.epsilon, delta, z, price=accountant)
        if not steps >= 1:
            raise UsageError(
                f"not one step at z = {z:.6g} costs as little as ε = {report.exactly(command.epsilon)} "
                f"at δ = {report.shown(delta)}",
                where=PROGRAM,
                fix="more noise, or a larger --epsilon or --delta",
            )
        return z, steps, delta
    assert command.steps is not None
    if solve == "delta":
        assert command.epsilon is not None
        delta = report.shown_delta(gaussian.solve_delta(command.epsilon, z, command.steps, price=accountant))
        if not delta < 1:
            raise UsageError(
                f"no δ below 1 holds at ε = {report.exactly(command.epsilon)} by {accountant}",
                where=PROGRAM,
                fix="more noise, fewer steps, a larger --epsilon, or --accountant exact",
            )
    return z, command.steps, delta


def _noise_multiplier(command: Command) -> float:
    from accounting import gaussian

    if command.noise_multiplier is not None:
        return command.noise_multiplier
    if command.epsilon_step is not None:
        return gaussian.noise_multiplier_from_step(command.epsilon_step, command.delta_step)
    assert command.sigma is not None
    z = command.sigma / command.sensitivity
    if not 0 < z < math.inf:
        raise ValueError(f"--sigma / --sensitivity = {command.sigma!r}/{command.sensitivity!r} is out of range")
    return z


def _notes(result: Mapping[str, Any], *, as_steps: bool) -> list[str]:
    notes = []
    if result["pld"] is None:
        notes.append("pld is left out: above ρ = 1e4 it takes too long")
    if as_steps and result["epsilon_step"] >= 1:
        notes.append(
            f"ε_i = {result['epsilon_step']:.6g} is 1 or more, where Theorem 1 of paper 001 says nothing about a step; "
            "the noise is priced by ρ, which holds"
        )
    if as_steps and (spent := result["steps"] * result["delta_step"]) >= 1:
        notes.append(
            f"{report.counted(result['steps'], 'step')} at δ_i = {report.shown(result['delta_step'])} "
            f"add up to δ = {spent:g}, which is 1 or more: "
            "(ε_i, δ_i) per step says nothing about the whole by basic composition; it only writes the noise, "
            "and `basic` composes other pairs of the same noise"
        )
    stated = "closed_form" if result["status"] == "claimed" else "exact"
    if result["target"] is not None and result["accountant"] != stated:
        notes.append(
            f"the target is stated in {result['accountant']}, the statement's ε in {stated}, as that of every result "
            f"with status {result['status']}"
        )
    return notes


# ---- the guarantee that such steps have ---------------------------------------------------------------------------

_VALUE = "two data sets with the same rated pairs, one rating's value differs, by no more than the sensitivity covers"
_PRESENCE = "two data sets, one of which has one rating more than the other"
_CURATOR = "trusted curator: one party holds the ratings, runs the training and reveals nothing but the release"
_GIVEN = "nothing was run: noise, sensitivity and number of steps are as given, and nothing here checks them"
_UP_FRONT = "the number of steps and all settings are chosen without looking at the ratings"
_FIXED_ITEMS = "the item factors are the same in both worlds at every step; they are not, since they follow raw ratings"
# Released, (a, b) of a user's (a·m² + b·m)·ρ, status.
_MECHANISMS: dict[str, tuple[tuple[str, ...], tuple[float, float], Literal["proved", "claimed"]]] = {
    "gaussian": (("user factors",), (1.0, 0.0), "claimed"),
    "gaussian-joint-noise": (("user factors", "item factors"), (0.5, 0.5), "proved"),
    "gaussian-public-items": (("user factors", "item factors, which were public"), (1.0, 0.0), "proved"),
}


def _guarantee(command: Command, z: float, steps: int, delta: float) -> Guarantee:
    from accounting import loss, priced

    released, user_rho, status = _MECHANISMS[command.mechanism]
    presence = command.relation == "rating-presence"
    mask = (
        "the declared catalogue covers every user and item there could be" if presence else "who rated what is public"
    )
    other = "a changed value at this price: it may cost up to four times ρ" if presence else "the presence of a rating"
    return priced(
        mechanism=command.mechanism,
        losses=(loss.Gaussian(noise_multiplier=z, num_steps=steps, user_rho=user_rho),),
        delta=delta,
        sensitivity=command.sensitivity,
        unit="rating presence" if presence else "rating value",
        relation=_PRESENCE if presence else _VALUE,
        released=released,
        trust_model=_CURATOR,
        status=status,
        assumptions=(*((_FIXED_ITEMS,) if status == "claimed" else ()), _GIVEN, _UP_FRONT, mask),
        not_covered=(other,),
    )


# ---- what is printed ----------------------------------------------------------------------------------------------


def _curves(folder: Path, result: Mapping[str, Any]) -> list[str]:
    from accounting import gaussian
    from experiments import epsilon_curves

    z = result["noise_multiplier"]
    return epsilon_curves.write(
        folder,
        lambda steps, delta: gaussian.accountants(z, steps, delta),
        steps=result["steps"],
        delta=result["delta"],
        title=f"{result['mechanism']}, z = {report.at_least(z, 6)}",
        status=result["status"],
        relation=result["relation"],
    )


def render(result: Mapping[str, Any], guarantee: Guarantee) -> Any:
    steps = result["steps"]
    drawn = report.table(
        f"{report.counted(steps, 'Gaussian step')} ({result['mechanism']}), z = σ/Δ = "
        f"{report.at_least(result['noise_multiplier'])}",
        {name: result[name] for name in guarantee.accountants},
        result["delta"],
    )
    sigma, epsilon_step = report.at_least(result["sigma"]), report.at_most(result["epsilon_step"])
    answers = {
        "epsilon_step": epsilon_step,
        "noise_multiplier": report.at_least(result["noise_multiplier"]),
        "sigma": sigma,
        "steps": f"{steps}",
        "delta": report.at_least(result["delta"]),
    }
    lines = report.solved_line(result, answers)
    lines += [
        f"ρ = {report.at_least(result['rho'], 6)}, α* = {result['alpha_star']:.6g}, σ = {sigma} at "
        f"Δ = {report.exactly(result['sensitivity'])}, ε_i = {epsilon_step} at "
        f"δ_i = {report.exactly(result['delta_step'])}"
    ]
    lines += report.user_lines(result)
    lines += [f"wrote {path}" for path in result["curves"] or ()]
    return report.page(drawn, lines, result["notes"], report.without_prices(guarantee))
