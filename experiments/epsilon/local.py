"""`dpmf epsilon local`: the price of users' one-bit reports, by themselves and shuffled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.local.guarantee import local_guarantee, shuffled_guarantee
from experiments.cli import console
from experiments.epsilon import flags as epsilon_flags
from experiments.epsilon import report

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee

PROGRAM = "dpmf epsilon local"
MOST_SHUFFLED = 10**9  # reports that are tried: a price of more takes ten seconds
QUANTITIES = {
    "epsilon": ("epsilon",),
    "rounds": ("rounds",),
    "reports": ("reports",),
    "shuffled epsilon": ("shuffled_epsilon",),
    "delta": ("delta",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Local:
    """The price of paper 004's one-bit reports per user; with --reports, shuffled as well.

    The shuffled number holds behind a trusted shuffler only. It stands beside the local one and
    never replaces it.
    """

    epsilon: float | None = None
    """Of all reports of one user together."""
    rounds: int | None = None
    """k."""
    schedule: Literal["rounds", "partition"] = "rounds"
    """rounds: everybody reports in each, at epsilon/k; partition: k groups of users, each reports
    once, at epsilon.
    """
    reports: int | None = None
    """Honest users in all; the price after a trusted shuffler is added."""
    delta: float | None = None
    """Of the shuffled price, and of the optimal composition of a user's reports; 1e-5 with
    --reports.
    """
    solve: Literal["epsilon", "reports", "rounds", "delta"] | None = None
    """What brings the shuffled price to --shuffled-epsilon: the largest epsilon; the least number
    of reports; the least number of rounds that share epsilon, or with partition the largest number
    of groups; the least delta.
    """
    shuffled_epsilon: float | None = None
    """The target behind the trusted shuffler, where something is solved for."""
    curves: Path | None = None
    """Folder for epsilon-steps (of reports of one user, each as here) and delta-epsilon, as svg and
    csv (`report`).
    """
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Local) -> None:
    epsilon_flags.check_flags(command, pure=True)
    optional = ("delta",) if command.solve else ("delta", "reports")
    solve = command.solve or "shuffled_epsilon"
    epsilon_flags.check_known(command, QUANTITIES, solve=solve, program=PROGRAM, optional=optional)
    if (
        command.reports is not None
        and command.rounds is not None
        and command.reports < (groups := _groups(command))
    ):
        raise UsageError(
            f"{command.reports} users cannot be split into {groups} groups",
            where=PROGRAM,
            fix="fewer --rounds",
        )
    if command.delta == 0 and (command.reports is not None or command.solve):
        raise UsageError(
            "--delta must be between 0 and 1, both excluded, for a shuffled price, got 0",
            where=PROGRAM,
            fix="--delta 1e-5, or leave out --reports for the local price alone",
        )
    with epsilon_flags.pricing(PROGRAM):
        if command.solve:
            command = dataclasses.replace(command, **{command.solve: _solve(command)})
        result, guarantees = _price(command)
        if result["shuffled"] and command.solve:
            report.check_answer(
                result["shuffled"]["epsilon"], command.shuffled_epsilon, command.solve
            )
        if command.curves is not None:
            result["curves"] = _curves(command.curves, result, guarantees[0])
    console.emit(result, json=command.json, render=lambda shown: _render(shown, guarantees))


def _groups(command: Local) -> int:
    assert command.rounds is not None
    return command.rounds if command.schedule == "partition" else 1


def _times(command: Local) -> int:
    """Reports of one user."""
    assert command.rounds is not None
    return command.rounds // _groups(command)


def _solve(command: Local) -> float | int:
    """ε of a user (to 1e-6 relative), users, rounds or δ at which the shuffled price is the target.

    The price is at most the target.
    """
    from accounting import shuffle

    target = command.shuffled_epsilon
    assert target is not None
    if command.solve == "delta":
        assert command.epsilon is not None
        assert command.reports is not None
        groups, times = _groups(command), _times(command)
        delta = shuffle.solve_shuffled_delta(
            target,
            epsilon_local=command.epsilon,
            num_rounds=times,
            num_reports=command.reports // groups,
        )
        if not delta > 0:
            raise UsageError(
                f"any δ will do: the local ε = {report.in_full(command.epsilon)} is no larger than "
                f"{report.in_full(target)}, without a shuffler",
                where=PROGRAM,
                fix="a smaller --shuffled-epsilon",
            )
        return report.rounded_delta(delta)
    delta = epsilon_flags.USUAL_DELTA if command.delta is None else command.delta
    if command.solve == "rounds":
        assert command.epsilon is not None
        assert command.reports is not None
        if command.schedule == "rounds":
            return shuffle.solve_shuffled_rounds(
                target, delta, epsilon_local=command.epsilon, num_reports=command.reports
            )
        needed = _least_reports(target, command.epsilon, 1, delta)
        if not (rounds := command.reports // needed) >= 1:
            raise UsageError(
                f"{command.reports} reports in one shuffle cost more than ε ="
                f" {report.in_full(target)}, which takes {needed}",
                where=PROGRAM,
                fix=(
                    f"--reports {needed} for one round, a smaller --epsilon, or a larger"
                    " --shuffled-epsilon"
                ),
            )
        return rounds
    times, groups = _times(command), _groups(command)
    if command.solve == "reports":
        assert command.epsilon is not None
        return _least_reports(target, command.epsilon, times, delta) * groups
    assert command.reports is not None
    count = command.reports // groups

    def affordable(epsilon: float) -> bool:
        return shuffle.epsilon_shuffled(epsilon, times, num_reports=count, delta=delta) <= target

    low = target  # whose shuffled price is no larger, but for roundings
    while not affordable(low):
        low *= 1 - 1e-6
    high = 2 * low
    while high < 700 and affordable(high):
        low, high = high, 2 * high
    while high - low > 1e-6 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return float(report.at_most(low))


def _least_reports(target: float, epsilon: float, times: int, delta: float) -> int:
    """The fewest reports in each shuffle at which `times` rounds cost at most the target."""
    from accounting import shuffle

    def affordable(count: int) -> bool:
        return shuffle.epsilon_shuffled(epsilon, times, num_reports=count, delta=delta) <= target

    few, enough = 0, 1
    while not affordable(enough):
        if enough > MOST_SHUFFLED:
            raise ValueError(
                f"not even {MOST_SHUFFLED:.0e} reports bring ε down to {report.in_full(target)}"
            )
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if affordable(middle) else (middle, enough)
    return enough


def _price(command: Local) -> tuple[dict[str, Any], list[Guarantee]]:
    from accounting import pure, shuffle

    assert command.epsilon is not None
    assert command.rounds is not None
    times = _times(command)
    delta = (
        epsilon_flags.USUAL_DELTA
        if command.reports and command.delta is None
        else command.delta or None
    )
    left_out = []
    if delta is not None and times > pure.ROUNDS_LIMIT:
        if command.reports is not None:
            raise ValueError(
                f"--rounds must be at most {pure.ROUNDS_LIMIT:,} with --reports, got {times:,}"
            )
        delta = None
        left_out.append(
            f"optimal is left out: above {pure.ROUNDS_LIMIT:,} rounds its sum takes too long"
        )
    guarantee = local_guarantee(command.epsilon, times)
    guarantees = [guarantee]
    optimal = (
        None
        if delta is None
        else local_guarantee(command.epsilon, times, delta=delta).accountants["optimal"]
    )
    notes = (
        left_out
        if delta is None or optimal is None
        else report.price_notes({"optimal": optimal}, delta)
    )
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
        central = shuffled_guarantee(command.epsilon, times, num_reports=count, delta=delta)
        guarantees.append(central)
        closed_form = None
        try:
            each = math.nextafter(command.epsilon / times, math.inf)
            closed_form = pure.epsilon_basic(
                shuffle.epsilon_closed_form(each, count, delta / times), times
            )
        except ValueError as refused:
            notes.append(f"shuffled, the closed form says nothing: {refused}")
        shuffled = {
            "reports": count,
            "delta": delta,
            "epsilon": central.accountants["basic"],
            "closed_form": closed_form,
            **report.guarantee_fields(central),
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
        **report.guarantee_fields(guarantee),
        "curves": None,
        "notes": notes,
    }
    return result, guarantees


def _curves(folder: Path, result: Mapping[str, Any], guarantee: Guarantee) -> list[str]:
    from accounting import loss, pure, shuffle
    from experiments.epsilon import curves as epsilon_curves

    times, delta = result["reports_of_a_user"], result["optimal_delta"]
    count = result["shuffled"]["reports"] if result["shuffled"] else 0
    losses = epsilon_curves.first_steps(guarantee.losses)

    def shuffled(reports: int, delta: float) -> float:
        (spent,) = losses(reports)
        assert isinstance(spent, loss.Pure)
        return shuffle.epsilon_shuffled(spent.epsilon, reports, num_reports=count, delta=delta)

    summed = times > pure.ROUNDS_LIMIT
    return epsilon_curves.draw(
        folder,
        losses,
        guarantee.at_delta(delta or 0.0),
        title=(
            "one-bit reports of each user, each at ε ="
            f" {report.at_least(result['epsilon_round'], 6)}"
        ),
        accountants=("basic",) if summed else ("basic", "optimal"),
        noun="report",
        letter="k",
        most=epsilon_flags.LARGEST_COUNT if summed else pure.ROUNDS_LIMIT,
        others={epsilon_curves.SHUFFLED: shuffled} if count else {},
    )


def _render(result: Mapping[str, Any], guarantees: list[Guarantee]) -> Any:
    times = report.counted(result["reports_of_a_user"], "one-bit report")
    drawn = report.table(
        f"local: {times} of each user, each at ε = {report.at_least(result['epsilon_round'])}",
        {"basic": result["basic"]},
        0.0,
    )
    lines = []
    if (target := result["target"]) is not None:
        answers = {
            "epsilon": report.at_most(result["epsilon"]),
            "delta": report.at_least(result["optimal_delta"]),
            "reports": result["reports"],
            "rounds": result["rounds"],
        }
        answer = f"--{result['solved']} {answers[result['solved']]}"
        lines.append(f"solved: {answer}, for ε = {report.in_full(target)} behind the shuffler")
    if result["optimal"] is not None:
        optimal = report.epsilon_text(result["optimal"])
        lines.append(
            f"local, by optimal composition at δ = {report.delta_text(result['optimal_delta'])}:"
            f" ε = {optimal}"
        )
    if shuffled := result["shuffled"]:
        closed = shuffled["closed_form"]
        lines.append(
            f"central, behind a trusted shuffler, {shuffled['reports']} honest reports in each"
            f" shuffle, δ = {report.delta_text(shuffled['delta'])}:\n  ε ="
            f" {report.epsilon_text(shuffled['epsilon'])} (numerical), closed form"
            f" {'says nothing' if closed is None else report.epsilon_text(closed)}"
        )
    lines += report.written_lines(result)
    return report.page(drawn, lines, result["notes"], *map(str, guarantees))
