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

MOST_SHUFFLED = 10**9  # reports that are tried: a price of more takes ten seconds
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
    """Delta of the optimal composition; 1e-5 unless it is solved for. At 0 the basic one is all there is."""
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

    epsilon: float | None = None
    """Of all reports of one user together."""
    rounds: int
    """k."""
    schedule: Literal["rounds", "partition"] = "rounds"
    """rounds: everybody reports in each, at epsilon/k; partition: k groups of users, each reports once, at epsilon."""
    reports: int | None = None
    """Honest users in all; the price after a trusted shuffler is added."""
    delta: float | None = None
    """Of the shuffled price, and of the optimal composition of a user's reports; 1e-5 with --reports."""
    solve: Literal["epsilon", "reports"] | None = None
    """epsilon: the largest, reports: the least number, at which the shuffled price is at most --shuffled-epsilon."""
    shuffled_epsilon: float | None = None
    """The target behind the trusted shuffler, where something is solved for."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Pure | Local) -> None:
    report.check_flags(command, pure=True)
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
    """(ε of a round, k, δ), one of them solved for; δ is 0 where basic composition is all there is."""
    from accounting import pure

    limit = pure.ROUNDS_LIMIT
    if solve in ("epsilon_round", "delta") and command.accountant == "optimal" and (command.rounds or 0) > limit:
        raise UsageError(
            f"--accountant optimal takes at most {limit:,} rounds, got {command.rounds:,}",
            where=program,
            fix=f"--accountant basic, or --rounds {limit}",
        )
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
        if priced_at and pure.solve_num_rounds(target, each) >= limit:
            raise UsageError(
                f"more than {limit:,} rounds at ε = {report.at_most(each)} are affordable, where the optimal "
                "composition takes too long",
                where=program,
                fix="--accountant basic",
            )
        rounds = pure.solve_num_rounds(target, each, priced_at)
        if not rounds >= 1:
            raise UsageError(
                f"not one round at ε = {report.at_most(each)} costs as little as ε = {report.exactly(target)}",
                where=program,
                fix="a smaller --epsilon-round, or a larger --epsilon",
            )
        return each, rounds, delta
    assert rounds is not None
    if solve == "delta":
        assert target is not None
        if command.accountant == "basic":
            if (basic := pure.epsilon_basic(each, rounds)) > target:
                raise UsageError(
                    f"no δ helps basic composition: {report.counted(rounds, 'round')} cost ε = "
                    f"{report.at_least(basic, 6)}",
                    where=program,
                    fix="--accountant optimal",
                )
            return each, rounds, 0.0
        delta = report.shown_delta(pure.delta_optimal(each, rounds, target))
        if not delta < 1:
            raise UsageError(
                f"no δ below 1 holds at ε = {report.exactly(target)}",
                where=program,
                fix="a smaller --epsilon-round, fewer --rounds, or a larger --epsilon",
            )
    return each, rounds, delta


def _priced(command: Pure, solve: str, each: float, rounds: int, delta: float) -> tuple[dict[str, Any], Guarantee]:
    from accounting import loss, priced, pure

    rounds, notes = report.capped(rounds, "rounds")
    basic = pure.epsilon_basic(each, rounds)
    prices = {"basic": basic}
    if rounds > pure.ROUNDS_LIMIT:
        delta = 0.0
        notes.append(f"optimal is left out: above {pure.ROUNDS_LIMIT:,} rounds its sum takes too long")
    if delta > 0:
        prices["optimal"] = min(basic, pure.epsilon_optimal(each, rounds, delta))
    accountant = command.accountant if command.accountant in prices else "basic"
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
            f"each round is pure differentially private at ε = {report.exactly(each)} for this relation, "
            "whatever came before",
            "the number of rounds is fixed beforehand",
            "nothing was run: the numbers are as given, and nothing here checks them",
        ),
    )
    report.check_answer(prices[accountant], command.epsilon, solve)
    result = {
        "mechanism": "pure",
        "solved": solve,
        "accountant": accountant,
        "epsilon": prices[accountant],
        "target": command.epsilon,
        "delta": delta,
        "epsilon_round": each,
        "rounds": rounds,
        "optimal": None,
        **prices,
        "kinds": report.kinds(list(prices)),
        **report.of_guarantee(guarantee),
        "notes": [
            *notes,
            *(["basic composition holds at δ = 0 already"] if delta else []),
            *report.price_notes(prices, delta),
        ],
    }
    return result, guarantee


def _render_pure(result: Mapping[str, Any], guarantee: Guarantee) -> Any:
    rounds = report.counted(result["rounds"], "round")
    drawn = report.table(
        f"{rounds} of pure differential privacy, each at ε = {report.at_most(result['epsilon_round'])}",
        {name: result[name] for name in ("basic", "optimal") if result[name] is not None},
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
    quantities = {"epsilon": ("epsilon",), "reports": ("reports",), "shuffled epsilon": ("shuffled_epsilon",)}
    optional = () if command.solve else ("reports",)
    report.check_known(
        command, quantities, solve=command.solve or "shuffled_epsilon", program=program, optional=optional
    )
    if command.reports is not None and command.reports < (groups := _groups(command)):
        raise UsageError(
            f"{command.reports} users cannot be split into {groups} groups", where=program, fix="fewer --rounds"
        )
    if command.delta == 0 and (command.reports is not None or command.solve):
        raise UsageError(
            "--delta must be between 0 and 1, both excluded, for a shuffled price, got 0",
            where=program,
            fix="--delta 1e-5, or leave out --reports for the local price alone",
        )
    with report.pricing(program):
        if command.solve:
            command = dataclasses.replace(command, **{command.solve: _solved_local(command)})
        result, guarantees = _priced_local(command)
        if result["shuffled"] and command.solve:
            report.check_answer(result["shuffled"]["epsilon"], command.shuffled_epsilon, command.solve)
    console.emit(result, json=command.json, render=lambda shown: _render_local(shown, guarantees))


def _groups(command: Local) -> int:
    return command.rounds if command.schedule == "partition" else 1


def _solved_local(command: Local) -> float | int:
    """ε of a user (to 1e-6 relative), or the number of users, at which the shuffled price is at most the target."""
    from accounting import shuffle

    target, groups = command.shuffled_epsilon, _groups(command)
    assert target is not None
    times = command.rounds // groups
    delta = report.USUAL_DELTA if command.delta is None else command.delta

    def affordable(epsilon: float, count: int) -> bool:
        priced = shuffle.shuffled_guarantee(epsilon, times, num_reports=count, delta=delta)
        return priced.accountants["basic"] <= target

    if command.solve == "reports":
        assert command.epsilon is not None
        few, enough = 0, 1
        while not affordable(command.epsilon, enough):
            if enough > MOST_SHUFFLED:
                raise ValueError(f"not even {MOST_SHUFFLED:.0e} reports bring ε down to {report.exactly(target)}")
            few, enough = enough, 2 * enough
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if affordable(command.epsilon, middle) else (middle, enough)
        return enough * groups
    assert command.reports is not None
    count = command.reports // groups
    low = target  # whose shuffled price is no larger, but for roundings
    while not affordable(low, count):
        low *= 1 - 1e-6
    high = 2 * low
    while high < 700 and affordable(high, count):
        low, high = high, 2 * high
    while high - low > 1e-6 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if affordable(middle, count) else (low, middle)
    return float(report.at_most(low))


def _priced_local(command: Local) -> tuple[dict[str, Any], list[Guarantee]]:
    from accounting import pure, shuffle

    assert command.epsilon is not None
    times = command.rounds // _groups(command)  # reports of one user
    delta = report.USUAL_DELTA if command.reports and command.delta is None else command.delta or None
    left_out = []
    if delta is not None and times > pure.ROUNDS_LIMIT:
        if command.reports is not None:
            raise ValueError(f"--rounds must be at most {pure.ROUNDS_LIMIT:,} with --reports, got {times:,}")
        delta = None
        left_out.append(f"optimal is left out: above {pure.ROUNDS_LIMIT:,} rounds its sum takes too long")
    guarantee = pure.local_guarantee(command.epsilon, times)
    guarantees = [guarantee]
    optimal = (
        None if delta is None else pure.local_guarantee(command.epsilon, times, delta=delta).accountants["optimal"]
    )
    notes = left_out if delta is None or optimal is None else report.price_notes({"optimal": optimal}, delta)
    if command.schedule == "rounds":
        printed = pure.epsilon_basic(command.epsilon / command.rounds, command.rounds + 1)
        notes.append(
            f"paper 004's loop as printed runs {command.rounds + 1} rounds, which would cost ε = "
            f"{report.at_least(printed, 6)}"
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
        "solved": command.solve or "epsilon",
        "target": command.shuffled_epsilon,
        "rounds": command.rounds,
        "reports": command.reports,
        "reports_of_a_user": times,
        "epsilon": command.epsilon,
        "epsilon_round": command.epsilon / times,
        "delta": 0.0,
        "basic": guarantee.accountants["basic"],
        "optimal": optimal,
        "optimal_delta": delta,
        "shuffled": shuffled,
        "kinds": report.kinds(["basic"] if optimal is None else ["basic", "optimal"]),
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
    if (target := result["target"]) is not None:
        answer = report.at_most(result["epsilon"]) if result["solved"] == "epsilon" else result["reports"]
        lines.append(f"solved: --{result['solved']} {answer}, for ε = {report.exactly(target)} behind the shuffler")
    if result["optimal"] is not None:
        optimal = report.decimals(result["optimal"])
        lines.append(f"local, by optimal composition at δ = {report.shown(result['optimal_delta'])}: ε = {optimal}")
    if shuffled := result["shuffled"]:
        closed = shuffled["closed_form"]
        lines.append(
            f"central, behind a trusted shuffler, {shuffled['reports']} honest reports in each shuffle, "
            f"δ = {report.shown(shuffled['delta'])}:\n  ε = {report.decimals(shuffled['epsilon'])} (numerical), "
            f"closed form {'says nothing' if closed is None else report.decimals(closed)}"
        )
    return report.page(drawn, lines, result["notes"], *map(str, guarantees))
