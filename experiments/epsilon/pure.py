"""`dpmf epsilon pure`: rounds of pure differential privacy, added up, and composed optimally."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from accounting import relation
from dpmf_jax.errors import UsageError
from experiments.cli import console
from experiments.epsilon import flags as epsilon_flags
from experiments.epsilon import report

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee

PROGRAM = "dpmf epsilon pure"
ROOM = 1 - 1e-12  # ε of a round, multiplied by k and divided again, must not cost more
QUANTITIES = {
    "round": ("epsilon_round",),
    "rounds": ("rounds",),
    "epsilon": ("epsilon",),
    "delta": ("delta",),
}
_RELATIONS = {
    "rating-value": relation.value(),
    "rating-presence": relation.PRESENCE,
    "user": relation.USER_REPLACED,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pure:
    """The price of k rounds of pure differential privacy, or (--solve) any one unknown.

    Laplace noise, randomised response, one-bit reports. By basic composition the rounds cost k
    times as much, at delta 0; by the optimal one (Kairouz, Oh and Viswanath 2015) less, at a delta
    above 0.
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
    """Delta of the optimal composition; 1e-5 unless it is solved for. At 0 the basic one is all
    there is.
    """
    accountant: Literal["optimal", "basic"] = "optimal"
    """The one that --epsilon is stated in."""
    unit: Literal["rating-value", "rating-presence", "user"] = "rating-value"
    """Whose change each round hides."""
    curves: Path | None = None
    """Folder for epsilon-steps (of rounds) and delta-epsilon (optimal composition), as svg and csv
    (extra `report`).
    """
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Pure) -> None:
    epsilon_flags.check_flags(command, pure=True)
    solve = command.solve.replace("-", "_")
    epsilon_flags.check_known(command, QUANTITIES, solve=solve, program=PROGRAM)
    with epsilon_flags.pricing(PROGRAM):
        each, rounds, delta = _solve(command, solve)
        result, guarantee = _price(command, solve, each, rounds, delta)
        if command.curves is not None:
            result["curves"] = _curves(command.curves, result, guarantee)
    console.emit(result, json=command.json, render=lambda shown: _render(shown, guarantee))


def _solve(command: Pure, solve: str) -> tuple[float, int, float]:
    """(ε of a round, k, δ), one of them solved for; δ is 0 where only basic composition applies."""
    from accounting import pure

    limit = pure.ROUNDS_LIMIT
    if (
        solve in ("epsilon_round", "delta")
        and command.accountant == "optimal"
        and (command.rounds or 0) > limit
    ):
        raise UsageError(
            f"--accountant optimal takes at most {limit:,} rounds, got {command.rounds:,}",
            where=PROGRAM,
            fix=f"--accountant basic, or --rounds {limit}",
        )
    delta = epsilon_flags.USUAL_DELTA if command.delta is None else command.delta
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
                f"more than {limit:,} rounds at ε = {report.at_most(each)} are affordable, where"
                " the optimal composition takes too long",
                where=PROGRAM,
                fix="--accountant basic",
            )
        rounds = pure.solve_num_rounds(target, each, priced_at)
        if not rounds >= 1:
            raise UsageError(
                f"not one round at ε = {report.at_most(each)} costs as little as ε ="
                f" {report.in_full(target)}",
                where=PROGRAM,
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
                    where=PROGRAM,
                    fix="--accountant optimal",
                )
            return each, rounds, 0.0
        delta = report.rounded_delta(pure.delta_optimal(each, rounds, target))
        if not delta < 1:
            raise UsageError(
                f"no δ below 1 holds at ε = {report.in_full(target)}",
                where=PROGRAM,
                fix="a smaller --epsilon-round, fewer --rounds, or a larger --epsilon",
            )
    return each, rounds, delta


def _price(
    command: Pure, solve: str, each: float, rounds: int, delta: float
) -> tuple[dict[str, Any], Guarantee]:
    from accounting import loss, priced, pure

    rounds, notes = epsilon_flags.capped(rounds, "rounds")
    basic = pure.epsilon_basic(each, rounds)
    prices = {"basic": basic}
    if rounds > pure.ROUNDS_LIMIT:
        delta = 0.0
        notes.append(
            f"optimal is left out: above {pure.ROUNDS_LIMIT:,} rounds its sum takes too long"
        )
    if delta > 0:
        prices["optimal"] = min(basic, pure.epsilon_optimal(each, rounds, delta))
    accountant = command.accountant if command.accountant in prices else "basic"
    guarantee = priced(
        mechanism="rounds of pure differential privacy",
        losses=(loss.Pure(epsilon=basic, num_rounds=rounds),),
        delta=delta,
        unit=report.unit_of_flag(command.unit),
        relation=_RELATIONS[command.unit],
        released=("every round's answer",),
        trust_model=(
            "that of the rounds: whoever draws the noise, or answers at random, sees the ratings"
        ),
        status="proved",
        assumptions=(
            (
                f"each round is pure differentially private at ε = {report.in_full(each)} for this"
                " relation, whatever came before"
            ),
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
        **report.guarantee_fields(guarantee),
        "curves": None,
        "notes": [
            *notes,
            *(["basic composition holds at δ = 0 already"] if delta else []),
            *report.price_notes(prices, delta),
        ],
    }
    return result, guarantee


def _curves(folder: Path, result: Mapping[str, Any], guarantee: Guarantee) -> list[str]:
    from accounting import loss, pure
    from experiments.epsilon import curves as epsilon_curves

    each = result["epsilon_round"]
    summed = result["rounds"] > pure.ROUNDS_LIMIT
    return epsilon_curves.draw(
        folder,
        lambda rounds: [loss.Pure(epsilon=pure.epsilon_basic(each, rounds), num_rounds=rounds)],
        guarantee,
        title=f"rounds of pure differential privacy, each at ε = {report.at_least(each, 6)}",
        accountants=("basic",) if summed else ("basic", "optimal"),
        noun="round",
        letter="k",
        most=epsilon_flags.LARGEST_COUNT if summed else pure.ROUNDS_LIMIT,
    )


def _render(result: Mapping[str, Any], guarantee: Guarantee) -> Any:
    rounds = report.counted(result["rounds"], "round")
    drawn = report.table(
        f"{rounds} of pure differential privacy, each at ε ="
        f" {report.at_least(result['epsilon_round'])}",
        {name: result[name] for name in ("basic", "optimal") if result[name] is not None},
        result["delta"],
    )
    answers = {
        "epsilon_round": report.at_most(result["epsilon_round"]),
        "rounds": str(result["rounds"]),
        "delta": report.at_least(result["delta"]),
    }
    lines = [*report.solved_line(result, answers), *report.written_lines(result)]
    return report.page(drawn, lines, result["notes"], report.without_prices(guarantee))
