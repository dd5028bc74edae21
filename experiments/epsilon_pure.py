"""`dpmf epsilon pure` and `dpmf epsilon local`: rounds of pure differential privacy, and one-bit reports of users."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import UsageError
from experiments import console
from experiments import epsilon_report as report

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee

ROOM = 1 - 1e-12  # ε of a round, multiplied by k and divided again, must not cost more


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pure:
    """The price of k rounds that are pure differentially private, each at --epsilon-round, or (--solve) one unknown.

    Laplace noise, randomised response, one-bit reports. By basic composition the rounds cost k times as much, at
    delta 0; by the optimal one (Kairouz, Oh and Viswanath 2015) less, at a delta above 0.
    """

    solve: Literal["epsilon", "epsilon-round", "rounds", "delta"] = "epsilon"
    """What is unknown; all the rest is given."""
    epsilon_round: float | None = None
    """Epsilon of each round."""
    rounds: int | None = None
    """k, fixed up front."""
    epsilon: float | None = None
    """The target of the whole, where something else is solved for."""
    delta: float | None = None
    """Delta of the optimal composition; 1e-5 unless it is solved for. The basic one needs none."""
    accountant: Literal["optimal", "basic"] = "optimal"
    """The one that --epsilon is stated in."""
    unit: Literal["rating-value", "rating-presence", "user"] = "rating-value"
    """Whose change each round hides."""
    json: bool = False
    """Print one JSON object on stdout."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Local:
    """The price of paper 004's one-bit reports: per user, against the server itself; with --reports, shuffled as well.

    The shuffled number holds behind a trusted shuffler only. It stands beside the local one, never in its place.
    """

    epsilon: float
    """Of all reports of one user together."""
    rounds: int
    """k."""
    schedule: Literal["rounds", "partition"] = "rounds"
    """rounds: everybody reports in each, at epsilon/k; partition: k groups of users, each reports once, at epsilon."""
    reports: int | None = None
    """Honest users in all; the price after a trusted shuffler is added."""
    delta: float | None = None
    """Of the shuffled price, and of the optimal composition of a user's reports; 1e-5 with --reports."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Pure | Local) -> None:
    report.check_flags(command)
    match command:
        case Pure():
            _run_pure(command)
        case Local():
            _run_local(command)


# ---- pure rounds --------------------------------------------------------------------------------------------------

QUANTITIES = {
    "round": ("epsilon_round",),
    "rounds": ("rounds",),
    "epsilon": ("epsilon",),
    "delta": ("delta",),
}
_RELATIONS = {
    "rating-value": "two data sets with the same rated pairs, one rating's value differs",
    "rating-presence": "two data sets, one of which has one rating more than the other",
    "user": "any change to all of one user's ratings",
}


def _run_pure(command: Pure) -> None:
    solve = command.solve.replace("-", "_")
    program = "dpmf epsilon pure"
    optional = ("delta",)
    report.check_known(command, QUANTITIES, solve=solve, program=program, optional=optional)
    with report.pricing(program):
        each, rounds, delta = _solved(command, solve, program)
        result, guarantee = _priced(command, solve, each, rounds, delta)
    console.emit(result, json=command.json, render=lambda shown: _render_pure(shown, guarantee))


def _solved(command: Pure, solve: str, program: str) -> tuple[float, int, float]:
    """(ε of a round, k, δ), one of them solved for."""
    from accounting import pure

    delta = report.USUAL_DELTA if command.delta is None else command.delta
    priced_at = 0.0 if command.accountant == "basic" else delta
    each, rounds, target = command.epsilon_round, command.rounds, command.epsilon
    if solve == "epsilon_round":
        assert target is not None
        assert rounds is not None
        each = pure.solve_epsilon_round(target, rounds, priced_at)
        return (each * ROOM if priced_at else each), rounds, delta
    assert each is not None
    if solve == "rounds":
        assert target is not None
        rounds = pure.solve_num_rounds(target, each, priced_at)
        if not rounds >= 1:
            raise UsageError(
                f"not one round at ε = {each:g} costs as little as ε = {target:g}",
                where=program,
                fix="a smaller --epsilon-round, or a larger --epsilon",
            )
        return each, rounds, delta
    assert rounds is not None
    if solve == "delta":
        assert target is not None
        if command.accountant == "basic" and pure.epsilon_basic(each, rounds) > target:
            raise UsageError(
                f"no δ helps basic composition: {rounds} rounds cost ε = {pure.epsilon_basic(each, rounds):g}",
                where=program,
                fix="--accountant optimal",
            )
        delta = report.shown_delta(pure.delta_optimal(each, rounds, target))
        if not delta < 1:
            raise UsageError(
                f"no δ below 1 holds at ε = {target:g}",
                where=program,
                fix="a smaller --epsilon-round, fewer --rounds, or a larger --epsilon",
            )
    return each, rounds, delta


def _priced(command: Pure, solve: str, each: float, rounds: int, delta: float) -> tuple[dict[str, Any], Guarantee]:
    from accounting import loss, priced, pure

    basic = pure.epsilon_basic(each, rounds)
    optimal = min(basic, pure.epsilon_optimal(each, rounds, delta))
    guarantee = priced(
        mechanism="rounds of pure differential privacy",
        losses=(loss.Pure(epsilon=basic, num_rounds=rounds),),
        delta=delta,
        unit=report.unit(command.unit),
        relation=_RELATIONS[command.unit],
        released=("every round's answer",),
        trust_model="that of the rounds: whoever draws the noise, or answers at random, sees the ratings",
        status="proved",
        assumptions=(
            f"each round is pure differentially private at ε = {each:g} for this relation, whatever came before",
            "the number of rounds is fixed beforehand",
            "nothing was run: the numbers are as given, and nothing here checks them",
        ),
    )
    prices = {"basic": basic, "optimal": optimal}
    report.check_answer(prices[command.accountant], command.epsilon, solve)
    result = {
        "mechanism": "pure",
        "solved": solve,
        "accountant": command.accountant,
        "epsilon": prices[command.accountant],
        "target": command.epsilon,
        "delta": delta,
        "epsilon_round": each,
        "rounds": rounds,
        **prices,
        "kinds": report.kinds(list(prices)),
        **report.of_guarantee(guarantee),
        "notes": ["basic composition holds at δ = 0 already", *report.free_note(prices, delta)],
    }
    return result, guarantee


def _render_pure(result: Mapping[str, Any], guarantee: Guarantee) -> Any:
    rounds = report.counted(result["rounds"], "round")
    drawn = report.table(
        f"{rounds} of pure differential privacy, each at ε = {report.at_most(result['epsilon_round'])}",
        {name: result[name] for name in ("basic", "optimal")},
        result["delta"],
    )
    answers = {
        "epsilon_round": report.at_most(result["epsilon_round"]),
        "rounds": str(result["rounds"]),
        "delta": report.at_least(result["delta"]),
    }
    return report.page(drawn, report.solved_line(result, answers), result["notes"], report.without_prices(guarantee))


# ---- one-bit reports ----------------------------------------------------------------------------------------------


def _run_local(command: Local) -> None:
    program = "dpmf epsilon local"
    if command.reports is not None and command.reports < (groups := _groups(command)):
        raise UsageError(
            f"{command.reports} users cannot be split into {groups} groups", where=program, fix="fewer --rounds"
        )
    with report.pricing(program):
        result, guarantees = _priced_local(command)
    console.emit(result, json=command.json, render=lambda shown: _render_local(shown, guarantees))


def _groups(command: Local) -> int:
    return command.rounds if command.schedule == "partition" else 1


def _priced_local(command: Local) -> tuple[dict[str, Any], list[Guarantee]]:
    from accounting import pure, shuffle

    times = command.rounds // _groups(command)  # reports of one user
    delta = report.USUAL_DELTA if command.reports and command.delta is None else command.delta
    guarantee = pure.local_guarantee(command.epsilon, times)
    guarantees = [guarantee]
    optimal = (
        None if delta is None else pure.local_guarantee(command.epsilon, times, delta=delta).accountants["optimal"]
    )
    notes = [] if delta is None or optimal is None else report.free_note({"optimal": optimal}, delta)
    if command.schedule == "rounds":
        printed = pure.epsilon_basic(command.epsilon / command.rounds, command.rounds + 1)
        notes.append(
            f"paper 004's loop as printed runs {command.rounds + 1} rounds, which would cost ε = {printed:.6g}"
        )
    shuffled = None
    if command.reports is not None:
        assert delta is not None
        count = command.reports // _groups(command)
        central = shuffle.shuffled_guarantee(command.epsilon, times, num_reports=count, delta=delta)
        guarantees.append(central)
        closed_form = None
        try:
            each = math.nextafter(command.epsilon / times, math.inf)
            closed_form = pure.epsilon_basic(shuffle.epsilon_closed_form(each, count, delta / times), times)
        except ValueError as refused:
            notes.append(f"shuffled, the closed form says nothing: {refused}")
        shuffled = {
            "reports": count,
            "delta": delta,
            "epsilon": central.accountants["basic"],
            "closed_form": closed_form,
            **report.of_guarantee(central),
        }
    result = {
        "mechanism": "local",
        "schedule": command.schedule,
        "rounds": command.rounds,
        "reports_of_a_user": times,
        "epsilon": command.epsilon,
        "epsilon_round": command.epsilon / times,
        "delta": 0.0,
        "basic": guarantee.accountants["basic"],
        "optimal": optimal,
        "optimal_delta": delta,
        "shuffled": shuffled,
        "kinds": report.kinds(["basic", "optimal"]),
        **report.of_guarantee(guarantee),
        "notes": notes,
    }
    return result, guarantees


def _render_local(result: Mapping[str, Any], guarantees: list[Guarantee]) -> Any:
    times = report.counted(result["reports_of_a_user"], "one-bit report")
    drawn = report.table(
        f"local: {times} of each user, each at ε = {report.at_most(result['epsilon_round'])}",
        {"basic": result["basic"]},
        0.0,
    )
    lines = []
    if result["optimal"] is not None:
        optimal = report.decimals(result["optimal"])
        lines.append(f"local, by optimal composition at δ = {result['optimal_delta']:g}: ε = {optimal}")
    if shuffled := result["shuffled"]:
        closed = shuffled["closed_form"]
        lines.append(
            f"central, behind a trusted shuffler, {shuffled['reports']} honest reports in each shuffle, "
            f"δ = {shuffled['delta']:g}:\n  ε = {report.decimals(shuffled['epsilon'])} (numerical), closed form "
            f"{'says nothing' if closed is None else report.decimals(closed)}"
        )
    return report.page(drawn, lines, result["notes"], *map(str, guarantees))
