"""`dpmf epsilon plan`: rounds, schedule and projection of local DP for so many users."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpmf_jax.mechanisms.local.guarantee import local_guarantee
from experiments.cli import console
from experiments.epsilon import flags as epsilon_flags
from experiments.epsilon import report

if TYPE_CHECKING:
    from dpmf_jax.mechanisms.local.plan import Assumptions, Plan

PROGRAM = "dpmf epsilon plan"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """What one-bit reports (paper 004) can be expected to give, from public sizes alone.

    It prints the plan with the least expected error of every kind, by schedule and projection.
    Sizes and assumptions are public constants: guesses, or numbers of another data set. Never
    compute them from the ratings that are to be protected.
    """

    epsilon: float
    """Of all reports of one user together."""
    users: int
    """n."""
    items: int
    """m, all of the catalogue."""
    rank: int = 15
    """d."""
    ratings_per_user: float | None = None
    """Mean number of ratings of a user; 100, or a quarter of the items where that is less."""
    deviation: float | None = None
    """Standard deviation of ratings about their mean; 1.1."""
    gain: float | None = None
    """Share of the deviation that factors without any noise would take off in the end; 0.2."""
    popularity: float | None = None
    """Raters of a rating's item over raters of the mean item; 3."""
    largest_learning_rate: float | None = None
    """Of the first round; by default what users of the mean number of ratings can bear."""
    rounds: tuple[int, ...] | None = None
    """Which k to try; from 1 to 200 by default."""
    projections: tuple[int, ...] | None = None
    """Which q to try; items, and their quarters down to 1/64, by default."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    epsilon_flags.check_flags(command)
    with epsilon_flags.pricing(PROGRAM):
        found, result = _plans_and_result(command)
    console.emit(result, json=command.json, render=lambda shown: _render(shown, found))


def _plans_and_result(command: Command) -> tuple[tuple[Plan, ...], dict[str, Any]]:
    from dpmf_jax.mechanisms.local import plan as local_plan

    found = local_plan.plans(
        epsilon=command.epsilon,
        num_users=command.users,
        num_items=command.items,
        rank=command.rank,
        assumptions=_assumptions(command),
        rounds=command.rounds or local_plan.ROUNDS,
        num_projected=command.projections,
    )
    best = found[0]
    reports = 1 if best.config.schedule == "partition" else best.config.num_rounds
    guarantee = local_guarantee(command.epsilon, reports, mechanism=_mechanism(best))
    return found, {
        "epsilon": command.epsilon,
        "users": command.users,
        "items": command.items,
        "rank": command.rank,
        "useful": best.useful,
        "sentence": best.sentence,
        "users_needed": _number(best.users_needed),
        "users_for_noise": best.users_for_noise,
        "mean_rmse": best.mean_rmse,
        "plans": [_row(plan) for plan in found],
        "assumptions": dataclasses.asdict(best.assumptions),
        **report.guarantee_fields(guarantee),
        "notes": _notes(best),
    }


def _assumptions(command: Command) -> Assumptions:
    from dpmf_jax.mechanisms.local import plan as local_plan

    usual = local_plan.Assumptions()
    given = {
        "ratings_per_user": (
            command.ratings_per_user or min(usual.ratings_per_user, command.items / 4)
        ),
        "deviation": command.deviation,
        "gain": command.gain,
        "popularity": command.popularity,
        "largest_rate": command.largest_learning_rate,
    }
    return dataclasses.replace(
        usual, **{name: value for name, value in given.items() if value is not None}
    )


def _mechanism(plan: Plan) -> str:
    return "local-gd" if plan.config.num_projected is None else "local-gd-dr"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _row(plan: Plan) -> dict[str, Any]:
    config = plan.config
    return {
        "mechanism": _mechanism(plan),
        "schedule": config.schedule,
        "lift": None if config.num_projected is None else config.lift,
        "fresh_projection": config.fresh_projection,
        "rounds": config.num_rounds,
        "projected": config.num_projected,
        "learning_rate": config.learning_rate,
        "clip": config.clip,
        "clipped": plan.clipped,
        "noise": plan.noise,
        "learnt": plan.learnt,
        "rmse": plan.rmse,
        "users_needed": _number(plan.users_needed),
        "rate_bound": plan.rate_bound,
    }


def _notes(best: Plan) -> list[str]:
    assumed = best.assumptions
    return [
        (
            f"assumed: {assumed.ratings_per_user:g} ratings of a user, of a standard deviation of"
            f" {assumed.deviation:g}, of which factors could take off {100 * assumed.gain:g}%;"
            f" {assumed.popularity:g} times as many raters of a rating's item as of the mean item"
        ),
        (
            "noise: root mean square of what randomness leaves in an entry of V; an RMSE is a"
            " model's, not a promise: in trials that converged it was from 12% too low to 14% too"
            " high"
        ),
        (
            f"{'theorem' if best.config.num_projected is None else 'corollary'} 2's bound on the"
            f" largest error of V in the best plan, without its constant: {best.rate_bound:.3g}"
        ),
    ]


def _render(result: Mapping[str, Any], found: tuple[Plan, ...]) -> Any:
    from rich.table import Table
    from rich.text import Text

    from dpmf_jax.mechanisms.local import plan as local_plan

    title = (
        f"local: the best plan of every kind at ε = {report.in_full(result['epsilon'])} per user,"
        " best first"
    )
    drawn = Table(title=Text(title), title_justify="left")
    for name in ("schedule", "Φ"):
        drawn.add_column(name)
    for name in ("k", "q", "rate", "clip", "noise", "RMSE", "users needed"):
        drawn.add_column(name, justify="right")
    for row, plan in zip(result["plans"], found, strict=True):
        lift = {None: "none", "pseudo-inverse": "fixed, Φ†", "transpose": "fresh, Φᵀ"}[row["lift"]]
        numbers = (f"{row[name]:.3g}" for name in ("learning_rate", "clip", "noise"))
        drawn.add_row(
            row["schedule"],
            lift,
            str(row["rounds"]),
            str(row["projected"] or "-"),
            *numbers,
            f"{row['rmse']:.3f}",
            local_plan.count(plan.users_needed),
        )
    lines = [f"predicting the mean: RMSE {result['mean_rmse']:.3f}", result["sentence"]]
    return report.page(drawn, lines, result["notes"], result["statement"])
