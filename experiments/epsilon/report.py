"""What the `dpmf epsilon` commands print: numbers on their safe side, a table and a statement."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.epsilon.flags import flag

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee

# ---- numbers as they are shown: on the safe side -------------------------------------------------


def at_least(value: float, digits: int = 8) -> str:
    """The number in so many significant digits, rounded up: for what is safe when larger."""
    from accounting.digits import printed_up

    return printed_up(value, digits)


def at_most(value: float, digits: int = 8) -> str:
    """The number in so many significant digits, rounded down: for what is safe when smaller."""
    from accounting.digits import printed_down

    return printed_down(value, digits)


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def epsilon_text(epsilon: float, digits: int = 6) -> str:
    """ε rounded up at so many decimals, or at 8 digits where it is beyond any use."""
    from accounting.digits import round_up

    if epsilon >= 1e9:
        return at_least(epsilon)
    return f"{round_up(epsilon, digits):.{digits}f}" if math.isfinite(epsilon) else "inf"


def rounded_delta(delta: float) -> float:
    """A solved δ, rounded up to the 6 digits that are shown: these are priced."""
    return float(at_least(delta, 6))


def delta_text(delta: float) -> str:
    """δ as every page shows it: never below the one that is priced."""
    from accounting.digits import printed_delta

    return printed_delta(delta)


def in_full(value: float) -> str:
    """A number that was given, in all its digits, such as a target."""
    from accounting.digits import printed_whole

    return printed_whole(value)


# ---- the result ----------------------------------------------------------------------------------


def kinds(names: Sequence[str]) -> dict[str, str]:
    """What kind of number each accountant gives: an upper bound, exact, or an approximation."""
    from accounting.statement import KINDS

    return {name: KINDS[name] for name in names if name in KINDS}


def unit_of_flag(name: str) -> Any:
    """A flag's rating-value as the unit it names."""
    return name.replace("-", " ")


def guarantee_fields(guarantee: Guarantee) -> dict[str, Any]:
    """What a reader of JSON needs of a guarantee, flat; its statement included."""
    return {
        "unit": guarantee.unit,
        "relation": str(guarantee.relation),
        "relation_kind": guarantee.relation.kind,
        "status": guarantee.status,
        "leaves_open": guarantee.leaves_open,
        "trust_model": guarantee.trust_model,
        "stated_epsilon": guarantee.epsilon,
        "statement": str(guarantee),
    }


def table(title: str, prices: Mapping[str, float], delta: float) -> Any:
    """ε by accountant, rounded up at 6 decimals, and the kind of each."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(title), title_justify="left")
    drawn.add_column("accountant")
    drawn.add_column(Text(f"ε at δ = {delta_text(delta)}, rounded up"), justify="right")
    drawn.add_column("kind")
    known = kinds(list(prices))
    for name, value in prices.items():
        drawn.add_row(name, epsilon_text(value), Text(known.get(name, "")))
    return drawn


def check_answer(price: float, target: float | None, solve: str) -> None:
    """Refuses an answer that costs more than was asked, which happens where a price jumps."""
    if solve != "epsilon" and target is not None and not price <= target:
        raise ValueError(
            f"no {solve.replace('_', '-')} was found that surely costs at most ε ="
            f" {in_full(target)}"
        )


def price_notes(prices: Mapping[str, float], delta: float) -> list[str]:
    """Notes on prices that mislead: an ε of 0, and an infinite pld beside a finite price."""
    free = [name for name, value in prices.items() if value == 0]
    finite = [name for name, value in prices.items() if value < math.inf]
    notes = []
    if prices.get("pld") == math.inf and finite:
        notes.append(
            f"pld = inf is that accountant's floor and no price: at δ = {delta_text(delta)} its"
            " Fourier transforms leave an error as large as δ (9e-16 for each step);"
            f" {' and '.join(finite)} is below"
        )
    if not free:
        return notes
    return [
        *notes,
        (
            f"ε = 0 by {', '.join(free)} is not free: δ = {delta_text(delta)} alone covers all that"
            " tells two neighbours apart, and with a probability of δ anything may be learnt"
        ),
    ]


def solved_line(result: Mapping[str, Any], answers: Mapping[str, str]) -> list[str]:
    """The answer, as it is to be typed, where something other than ε was solved for.

    Args:
      result: with solved, target and accountant in it.
      answers: by field, rounded to the safe side.
    """
    if (solved := result["solved"]) == "epsilon":
        return []
    return [
        f"solved: {flag(solved)} {answers[solved]}, for ε = {in_full(result['target'])} by"
        f" {result['accountant']}"
    ]


def user_lines(result: Mapping[str, Any]) -> list[str]:
    """What all ratings of one user cost, where that was asked for."""
    if not (user := result["user"]):
        return []
    rho = "" if user["rho"] is None else f"ρ = {at_least(user['rho'], 6)}, "
    return [
        f"a user with {user['num_ratings']} ratings pays ε = {epsilon_text(user['epsilon'], 4)}"
        f" ({rho}{user['status']})"
    ]


def written_lines(result: Mapping[str, Any]) -> list[str]:
    """The files of --curves."""
    return [f"wrote {path}" for path in result["curves"] or ()]


def page(drawn: Any, lines: Sequence[str], notes: Sequence[str], *statements: str) -> Any:
    """A table, what belongs beside it, notes, and the whole privacy statement or statements."""
    import textwrap

    from rich.console import Group
    from rich.text import Text

    noted = [textwrap.fill(f"note: {note}", 110, subsequent_indent="      ") for note in notes]
    return Group(
        Text(drawn) if isinstance(drawn, str) else drawn,
        Text("\n".join([*lines, *noted, *(f"\n{statement}" for statement in statements)])),
    )


def without_prices(guarantee: Guarantee) -> str:
    """The statement under a table that has the accountants already."""
    return str(dataclasses.replace(guarantee, accountants={}))
