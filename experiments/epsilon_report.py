"""What the `dpmf epsilon` commands share: which quantity is unknown, guards on flags, the table and the statement."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dpmf_jax.errors import UsageError
from experiments import console

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee

LARGEST_COUNT = 10**12  # of steps, rounds, reports: beyond it floats and patience end
USUAL_DELTA = 1e-5


# ---- the command line ---------------------------------------------------------------------------------------------


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_flags(command: Any, *, pure: bool = False) -> None:
    """Refuses numbers that no quantity of these commands can have, by the name of the field.

    Whole numbers are at least 1; a delta is inside (0, 1); a sampling rate in (0, 1]; every other one is positive and
    finite. So NaN, infinities, 0 and negative numbers end here, and never as a price of 0.

    Args:
      command: the dataclass.
      pure: whether --delta may be 0, at which pure differential privacy has a price and Gaussian noise has none.

    Raises:
      UsageError: names the flag, what it must be, and what was given.
    """
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if isinstance(value, int):
            allowed, right = f"a whole number from 1 to {LARGEST_COUNT:.0e}", 1 <= value <= LARGEST_COUNT
        elif pure and field.name == "delta":
            allowed, right = "at least 0 and below 1", 0 <= value < 1 and math.copysign(1, value) == 1
        elif field.name.startswith("delta"):
            allowed, right = "between 0 and 1, both excluded", 0 < value < 1
        elif field.name.endswith("rate") and "learning" not in field.name:
            allowed, right = "above 0 and at most 1", 0 < value <= 1
        elif field.name == "decay":
            allowed, right = "at least 0 and finite", 0 <= value < math.inf
        else:
            allowed, right = "positive and finite", 0 < value < math.inf
        if not right:
            raise UsageError(
                f"{flag(field.name)} must be {allowed}, got {value}", fix=f"give a number that is {allowed}"
            )


@contextmanager
def pricing(program: str) -> Generator[None, None, None]:
    """Around everything that prices: what an accountant refuses, or cannot hold in a float, is a usage error.

    NumPy's warnings of overflows on the way are not shown: what comes out is checked, and is never NaN.
    """
    try:
        with warnings.catch_warnings(), console.usage_errors(where=program, fix=f"{program} --help"):
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    except ArithmeticError as error:
        raise UsageError(
            f"these numbers are beyond what the accountants can compute ({error})",
            where=program,
            fix="noise that is neither next to nothing nor without end, and fewer steps",
        ) from error


def check_known(
    command: Any,
    quantities: Mapping[str, Sequence[str]],
    *,
    solve: str,
    program: str,
    optional: Sequence[str] = ("delta",),
) -> None:
    """Refuses a command line that does not leave exactly one quantity unknown, naming what is missing and superfluous.

    Args:
      command: the dataclass; a field that was not given is None.
      quantities: each quantity and the fields that are ways to write it.
      solve: the field that is asked for.
      program: for the message, such as `dpmf epsilon gaussian`.
      optional: quantities that have a usual value.

    Raises:
      UsageError: a quantity is not given, is given twice, or is given and asked for.
    """
    missing, superfluous = [], []
    for name, fields in quantities.items():
        given = [flag(field) for field in fields if getattr(command, field) is not None]
        if solve in fields:
            superfluous += [
                f"{word} (solved for{'' if word == flag(solve) else ', as ' + flag(solve)})" for word in given
            ]
        elif not given and name not in optional:
            missing.append(" or ".join(map(flag, fields)))
        elif len(given) > 1:
            superfluous.append(f"{' or '.join(given)} (they say the same)")
    if not missing and not superfluous:
        return
    told = [f"{word} {', '.join(names)}" for word, names in (("missing", missing), ("too many", superfluous)) if names]
    wanted = [" or ".join(map(flag, fields)) for fields in quantities.values() if solve not in fields]
    unknowns = [field.replace("_", "-") for fields in quantities.values() for field in fields]
    raise UsageError(
        f"to solve for {solve.replace('_', '-')}: {'; '.join(told)}",
        where=program,
        fix=f"give {', '.join(wanted)}; or name another unknown: --solve {'|'.join(unknowns)}",
    )


# ---- numbers as they are shown: on the safe side --------------------------------------------------------------------


def at_least(value: float, digits: int = 8) -> str:
    """The number with so many significant digits, rounded up: for what is safe when larger, such as noise."""
    from accounting.statement import printed_up

    return printed_up(value, digits)


def at_most(value: float, digits: int = 8) -> str:
    """The number with so many significant digits, rounded down: for what is safe when smaller, such as ε of a step."""
    from accounting.statement import printed_down

    return printed_down(value, digits)


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def decimals(epsilon: float, digits: int = 6) -> str:
    """ε rounded up at so many decimals, or at 8 digits where it is beyond any use."""
    from accounting.gaussian import round_up

    if epsilon >= 1e9:
        return at_least(epsilon)
    return f"{round_up(epsilon, digits):.{digits}f}" if math.isfinite(epsilon) else "inf"


def shown_delta(delta: float) -> float:
    """A solved δ rounded up to the 6 digits that statements show of it, so that what is shown is what is priced."""
    return float(at_least(delta, 6))


def shown(delta: float) -> str:
    """δ as every page shows it: never below the one that is priced."""
    from accounting.statement import printed_delta

    return printed_delta(delta)


def exactly(value: float) -> str:
    """A number that was given, in all its digits: a target that is shown is the one that is kept."""
    from accounting.statement import printed_whole

    return printed_whole(value)


# ---- the result ---------------------------------------------------------------------------------------------------


def kinds(names: Sequence[str]) -> dict[str, str]:
    """What kind of number each accountant gives: an upper bound, exact, or an approximation."""
    from accounting.statement import KINDS

    return {name: KINDS[name] for name in names if name in KINDS}


def unit(name: str) -> Any:
    """A flag's rating-value as the unit it names."""
    return name.replace("-", " ")


def of_guarantee(guarantee: Guarantee) -> dict[str, Any]:
    """What a reader of JSON needs of a guarantee, flat; its statement included."""
    return {
        "unit": guarantee.unit,
        "relation": guarantee.relation,
        "status": guarantee.status,
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
    drawn.add_column(Text(f"ε at δ = {shown(delta)}, rounded up"), justify="right")
    drawn.add_column("kind")
    known = kinds(list(prices))
    for name, value in prices.items():
        drawn.add_row(name, decimals(value), Text(known.get(name, "")))
    return drawn


def check_answer(price: float, target: float | None, solve: str) -> None:
    """Refuses an answer that costs more than was asked, as one may where a price jumps: no safe one was found."""
    if solve != "epsilon" and target is not None and not price <= target:
        raise ValueError(f"no {solve.replace('_', '-')} was found that surely costs at most ε = {exactly(target)}")


def price_notes(prices: Mapping[str, float], delta: float) -> list[str]:
    """What an ε of 0 means, where an accountant finds one, and what an infinite one of pld beside a finite one."""
    free = [name for name, value in prices.items() if value == 0]
    finite = [name for name, value in prices.items() if value < math.inf]
    notes = []
    if prices.get("pld") == math.inf and finite:
        notes.append(
            f"pld = inf is that accountant's floor and no price: at δ = {shown(delta)} its Fourier transforms leave an "
            f"error as large as δ (9e-16 for each step); {' and '.join(finite)} is below"
        )
    if not free:
        return notes
    return [
        *notes,
        f"ε = 0 by {', '.join(free)} is not free: δ = {shown(delta)} alone covers all that tells two neighbours apart, "
        "and with a probability of δ anything may be learnt",
    ]


def capped(count: int, what: str, most: int = LARGEST_COUNT) -> tuple[int, list[str]]:
    """A solved number of steps that is not above what its flag takes, and a note where it is cut."""
    if count <= most:
        return count, []
    return most, [f"more {what} than {most:,} are affordable, the most that --{what} takes; these cost less"]


def solved_line(result: Mapping[str, Any], answers: Mapping[str, str]) -> list[str]:
    """The answer, as it is to be typed, where something other than ε was solved for.

    Args:
      result: with solved, target and accountant in it.
      answers: by field, rounded to the safe side.
    """
    if (solved := result["solved"]) == "epsilon":
        return []
    return [f"solved: {flag(solved)} {answers[solved]}, for ε = {exactly(result['target'])} by {result['accountant']}"]


def user_lines(result: Mapping[str, Any]) -> list[str]:
    """What all ratings of one user cost, where that was asked for."""
    if not (user := result["user"]):
        return []
    rho = "" if user["rho"] is None else f"ρ = {at_least(user['rho'], 6)}, "
    return [
        f"a user with {user['num_ratings']} ratings pays ε = {decimals(user['epsilon'], 4)} ({rho}{user['status']})"
    ]


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
