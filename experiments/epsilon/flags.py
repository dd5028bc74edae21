"""What the `dpmf epsilon` commands ask of a command line: numbers in range, and one unknown."""

from __future__ import annotations

import dataclasses
import functools
import typing
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from accounting import guards
from dpmf_jax.errors import UsageError, usage_errors

LARGEST_COUNT = 10**12  # of steps, rounds, reports: beyond it floats and patience end
USUAL_DELTA = 1e-5


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_flags(command: Any, *, pure: bool = False) -> None:
    """Refuses numbers that no quantity of these commands can have, by the name of the field.

    Whole numbers are at least 1, a delta is inside (0, 1), a sampling rate in (0, 1]; every other
    one is positive and finite. NaN, infinities, 0 and negative numbers therefore end here, and
    never as a price of 0.

    Args:
      command: the dataclass.
      pure: whether --delta may be 0, at which pure differential privacy has a price and Gaussian
        noise has none.

    Raises:
      UsageError: names the flag, what it must be, and what was given.
    """
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        guard = guards.positive
        if isinstance(value, int):
            guard = functools.partial(guards.count, most=LARGEST_COUNT)
        elif field.name.startswith("delta"):
            guard = guards.delta if pure and field.name == "delta" else guards.probability
        elif field.name.endswith("rate") and "learning" not in field.name:
            guard = guards.rate
        elif field.name == "decay":
            guard = guards.nonnegative
        with usage_errors(fix=f"give {flag(field.name)} a number in this range"):
            guard(flag(field.name), value)


@contextmanager
def pricing(program: str) -> Generator[None, None, None]:
    """Turns what an accountant refuses, or what no float can hold, into a usage error.

    It goes around everything that prices.

    NumPy's warnings of overflows on the way are not shown: what comes out is checked, and is never
    NaN.
    """
    try:
        with (
            warnings.catch_warnings(),
            usage_errors(where=program, fix=f"{program} --help"),
        ):
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
    """Refuses a command line that does not leave exactly one quantity unknown.

    It names what is missing and what is superfluous.

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
                f"{word} (solved for{'' if word == flag(solve) else ', as ' + flag(solve)})"
                for word in given
            ]
        elif not given and name not in optional:
            missing.append(" or ".join(map(flag, fields)))
        elif len(given) > 1:
            superfluous.append(f"{' or '.join(given)} (they say the same)")
    if not missing and not superfluous:
        return
    wrong = [
        f"{word} {', '.join(names)}"
        for word, names in (("missing", missing), ("too many", superfluous))
        if names
    ]
    wanted = [
        " or ".join(map(flag, fields)) for fields in quantities.values() if solve not in fields
    ]
    unknowns = [field.replace("_", "-") for fields in quantities.values() for field in fields]
    unknowns = [name for name in unknowns if name in solvable(command)]
    raise UsageError(
        f"to solve for {solve.replace('_', '-')}: {'; '.join(wrong)}",
        where=program,
        fix=f"give {', '.join(wanted)}; or name another unknown: --solve {'|'.join(unknowns)}",
    )


def solvable(command: Any) -> list[str]:
    """What --solve takes: the words of its type."""
    kinds = [typing.get_type_hints(type(command))["solve"]]
    words: list[str] = []
    while kinds:
        kind = kinds.pop(0)
        words += [kind] if isinstance(kind, str) else []
        kinds += typing.get_args(kind)
    return words


def require(
    command: Any, program: str, *, needed: Sequence[str], unused: Sequence[str], why: str
) -> None:
    """Refuses a command line, naming every flag that is missing or means nothing here."""
    missing = [flag(name) for name in needed if getattr(command, name) is None]
    idle = [flag(name) for name in unused if getattr(command, name) is not None]
    if missing or idle:
        wrong = [f"missing {', '.join(missing)}"] if missing else []
        wrong += [f"{', '.join(idle)} means nothing here"] if idle else []
        fix = f"give {', '.join(map(flag, needed))}" if needed else f"leave out {', '.join(idle)}"
        raise UsageError(f"{why}: {'; '.join(wrong)}", where=program, fix=fix)


def check_one_way(command: Any, program: str, ways: Sequence[Sequence[str]]) -> None:
    """Refuses a command line that does not give exactly one of these ways to write the noise."""
    given = [way for way in ways if all(getattr(command, name) is not None for name in way)]
    touched = [way for way in ways if any(getattr(command, name) is not None for name in way)]
    if len(given) != 1 or touched != given:
        words = " or ".join(" with ".join(map(flag, way)) for way in ways)
        state = "missing" if not touched else "incomplete" if not given else "they say the same"
        raise UsageError(
            f"exactly one way to write the noise is needed ({state})",
            where=program,
            fix=f"give {words}",
        )


def unknown_quantity(
    command: Any, program: str, *, noise: Sequence[Sequence[str]], others: Sequence[str] = ()
) -> str:
    """The unknown: what --solve says, or what is not given of scale and ε.

    It refuses flags that do not fit.

    Args:
      noise: ways to write the noise, each by flags that go together.
      others: further quantities that have to be given unless they are solved for.
    """
    if command.solve is None:
        check_one_way(command, program, (*noise, ("epsilon",)))
        solve = "epsilon" if command.epsilon is None else "scale"
    else:
        solve = command.solve
        if solve == "scale":
            require(
                command,
                program,
                needed=("epsilon",),
                unused=[f for way in noise for f in way],
                why="for the scale",
            )
        else:
            check_one_way(command, program, noise)
            given = ("epsilon",)
            needed, unused = (
                ((), given)
                if solve == "epsilon"
                else (given, ("delta",) if solve == "delta" else ())
            )
            require(command, program, needed=needed, unused=unused, why=f"to solve for {solve}")
    needed = [name for name in others if name != solve]
    unused = [name for name in others if name == solve]
    require(command, program, needed=needed, unused=unused, why=f"to solve for {solve}")
    return solve


def capped(count: int, what: str, most: int = LARGEST_COUNT) -> tuple[int, list[str]]:
    """A solved number of steps, cut to what its flag takes, and a note where it is cut."""
    if count <= most:
        return count, []
    return most, [
        f"more {what} than {most:,} are affordable, the most that --{what} takes; these cost less"
    ]
