"""What `dpmf epsilon sampled` and `langevin` share: δ, sizes, curves and the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmf_jax.errors import UsageError
from experiments.epsilon import flags as epsilon_flags
from experiments.epsilon import report

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee
    from accounting.loss import Loss, SubsampledGaussian

MAX_RATINGS = 10_000  # of one user: more are no mixture that is priced


@contextmanager
def pricing(program: str, noise: str) -> Generator[None, None, None]:
    """`epsilon_flags.pricing`, where what no float holds is laid to the noise, by its flag."""
    with epsilon_flags.pricing(program):
        try:
            yield
        except ArithmeticError as error:
            raise UsageError(
                f"{noise}: with so little noise, or so much, the price is beyond what floats hold"
                f" ({error})",
                where=program,
                fix=(
                    f"a {noise} at which a record is neither plainly seen nor lost, such as one"
                    " with z near 1"
                ),
            ) from error


def check_sizes(command: Any, program: str, *, most: int, fix: str = "") -> None:
    """Refuses, before anything is priced, what would take minutes, or has no price per user."""
    if command.steps is not None and not command.steps <= most:
        raise UsageError(
            f"--steps must be at most {most:,} here, got {command.steps:,}",
            where=program,
            fix=f"--steps {most}{fix}",
        )
    if (asked := command.user_ratings) is None:
        return
    if command.unit == "user":
        raise UsageError(
            "--user-ratings means nothing for the unit user: all ratings of a user are one record,"
            " and ε is the user's price already",
            where=program,
            fix="leave out --user-ratings",
        )
    if command.unit == "rating-value":
        raise UsageError(
            "--user-ratings: no price per user is known for ratings that change value under"
            " sampling",
            where=program,
            fix="--unit rating-presence, which prices ratings that are there or not",
        )
    if not asked <= MAX_RATINGS:
        raise UsageError(
            f"--user-ratings must be at most {MAX_RATINGS:,} under sampling, got {asked:,}",
            where=program,
            fix=(
                f"--user-ratings {MAX_RATINGS}, or --unit user, where all ratings of a user are one"
                " record"
            ),
        )


def delta_of(command: Any) -> float:
    """δ as given, or the usual one."""
    return epsilon_flags.USUAL_DELTA if command.delta is None else command.delta


def solved_delta(
    command: Any, solve: str, phases: Sequence[SubsampledGaussian]
) -> tuple[float, Any, list[str]]:
    """(δ, the command with the accountant that says it, notes) where δ is solved for.

    Otherwise δ is as given.

    The distribution knows no δ below 9e-16 for each step; there Rényi's is asked too, and the
    smaller one holds.
    """
    if solve != "delta":
        return delta_of(command), command, []
    floor = 9e-16 * sum(phase.num_steps for phase in phases)
    if command.accountant != "pld":
        return _least_delta(command, "rdp", phases), command, []
    delta = _least_delta(command, "pld", phases)
    if not delta <= 2 * floor:
        return delta, command, []
    floor_note = (
        f"δ is at the floor of pld, {report.delta_text(floor)} for so many steps, and not at"
        " what these cost"
    )
    if command.unit == "rating-value":
        return (
            delta,
            command,
            [f"{floor_note}; rdp, which is better there, does not price a changed value"],
        )
    try:
        by_rdp = _least_delta(command, "rdp", phases)
    except ValueError:  # its δ is below every float, or 1
        return delta, command, [f"{floor_note}; rdp says none"]
    if by_rdp >= delta:
        return delta, command, [f"{floor_note}; rdp says no less"]
    return (
        by_rdp,
        dataclasses.replace(command, accountant="rdp"),
        [
            f"pld says δ = {report.delta_text(delta)}, its floor for so many steps; rdp says"
            " less, and is taken"
        ],
    )


def _least_delta(command: Any, accountant: str, phases: Sequence[SubsampledGaussian]) -> float:
    from accounting import composition

    compose = composition.pld if accountant == "pld" else composition.rdp
    composed = compose(phases, unit=report.unit_of_flag(command.unit))
    least = composed.delta(command.epsilon)
    for room in (0.0, 1e-5, 1e-3):  # a few roundings are between δ(ε) and ε(δ)
        delta = report.rounded_delta(least * (1 + room))
        if 0 < delta < 1 and composed.epsilon(delta) <= command.epsilon:
            return delta
    raise ValueError(
        f"no δ below 1 was found at ε = {report.in_full(command.epsilon)} by {accountant}"
    )


def result_fields(
    command: Any, solve: str, guarantee: Guarantee, notes: Sequence[str]
) -> dict[str, Any]:
    """The part of the result that both commands have."""
    prices = dict(guarantee.accountants)
    if command.accountant not in prices:
        raise ValueError(
            f"--accountant {command.accountant} does not price the unit {guarantee.unit}; pld does"
        )
    report.check_answer(prices[command.accountant], command.epsilon, solve)
    user = guarantee.for_user(command.user_ratings)._asdict() if command.user_ratings else None
    left_out = (
        []
        if "rdp" in prices
        else ["rdp is left out: it does not price a changed value under sampling"]
    )
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
        "pld": None,
        **prices,
        "kinds": report.kinds(list(prices)),
        **report.guarantee_fields(guarantee),
        "user": user,
        "curves": None,
        "notes": [*notes, *left_out, *report.price_notes(prices, guarantee.delta)],
    }


def curves(
    folder: Path,
    losses: Callable[[int], Sequence[Loss]],
    guarantee: Guarantee,
    title: str,
    most: int,
) -> list[str]:
    """Seven numbers of steps, each a distribution of its own: a minute."""
    from experiments.epsilon import curves as epsilon_curves

    names = tuple(guarantee.accountants)
    title = f"{guarantee.mechanism}, {title}"
    return epsilon_curves.draw(
        folder, losses, guarantee, title=title, accountants=names, points=7, most=most
    )


def render(result: Mapping[str, Any], guarantee: Guarantee) -> Any:
    """The page of either command."""
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
            ("decay", report.at_least),
            ("learning_rate", report.at_most),
            ("clip_norm", report.at_most),
            ("sampling_rate", report.at_most),
            ("steps", str),
            ("delta", report.at_least),
        )
        if name in result
    }
    if result["mechanism"] == "langevin":
        answers["sampling_rate"] = report.at_least(
            result["sampling_rate"]
        )  # there the noise grows with the rate
    lines = [
        *report.solved_line(result, answers),
        *report.user_lines(result),
        *report.written_lines(result),
    ]
    return report.page(drawn, lines, result["notes"], report.without_prices(guarantee))
