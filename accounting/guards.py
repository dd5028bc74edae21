"""Guards on numbers: each returns the number, or raises ValueError that says what is allowed.

NaN passes none of them. A bool or a text is no number, and no count either.
"""

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any


def number(name: str, value: Any) -> float:
    """Any float, infinities and NaN too. The other guards ask for this first."""
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        raise ValueError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (OverflowError, TypeError):  # an integer of 400 digits; an array
        raise ValueError(f"{name} must be a number that a float can hold") from None


def is_line(value: Any) -> bool:
    """Whether it is a text of one line with something in it."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def line(name: str, value: Any) -> str:
    """A name, a sentence: one line of text with something in it."""
    if not is_line(value):
        raise ValueError(f"{name} must be one line of text, got {value!r}")
    return value


def positive(name: str, value: Any) -> float:
    """A scale, a bound, a target: above 0, below infinity."""
    if not 0 < (checked := number(name, value)) < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return checked


def nonnegative(name: str, value: Any) -> float:
    """A cost that is known: from 0 on, below infinity."""
    if not 0 <= (checked := number(name, value)) < math.inf:
        raise ValueError(f"{name} must be at least 0 and finite, got {value!r}")
    return checked


def finite(name: str, value: Any) -> float:
    """A centre: of either sign, below infinity."""
    if not -math.inf < (checked := number(name, value)) < math.inf:
        raise ValueError(f"{name} must be finite, got {value!r}")
    return checked


def interval(name: str, value: Any) -> tuple[float, float]:
    """A declared range: two finite numbers, the lower one first."""
    low, high = (number(name, end) for end in value)
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"{name} must be two finite numbers, low < high, got {value!r}")
    return low, high


def from_zero(name: str, value: Any) -> float:
    """An ε, a threshold: from 0 on, and infinity is one."""
    if not (checked := number(name, value)) >= 0:
        raise ValueError(f"{name} must be at least 0, got {value!r}")
    return checked


def probability(name: str, value: Any) -> float:
    """A probability, or a δ, at which something, but not everything, has to hold: inside (0, 1)."""
    if not 0 < (checked := number(name, value)) < 1:
        raise ValueError(f"{name} must be between 0 and 1, both excluded, got {value!r}")
    return checked


def delta(name: str, value: Any) -> float:
    """A δ that pure differential privacy may leave at 0: in [0, 1), and -0.0 is none."""
    if not (0 <= (checked := number(name, value)) < 1 and math.copysign(1, checked) > 0):
        raise ValueError(
            f"{name} must be at least 0 and below 1, where it would say nothing, got {value!r}"
        )
    return checked


def rate(name: str, value: Any) -> float:
    """A sampling rate: in (0, 1]."""
    if not 0 < (checked := number(name, value)) <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, got {value!r}")
    return checked


def share(name: str, value: Any) -> float:
    """A part of the whole, none and all included: in [0, 1]."""
    if not 0 <= (checked := number(name, value)) <= 1:
        raise ValueError(f"{name} must be between 0 and 1, got {value!r}")
    return checked


def count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """A number of steps, rounds, ratings: an integer, and True is none."""
    try:
        checked = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool) or not checked >= least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    if most is not None and not checked <= most:
        raise ValueError(f"{name} must be an integer of at most {most}, got {value!r}")
    return checked


def fields(
    owner: Any, guard: Callable[[str, Any], Any], *names: str, optional: Iterable[str] = ()
) -> None:
    """Holds fields of an object to one guard, by their names; an optional one may be None."""
    for name in (*names, *optional):
        value = getattr(owner, name)
        if not (value is None and name in optional):
            guard(name, value)
