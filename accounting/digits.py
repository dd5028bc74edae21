"""Numbers as they are printed: what is paid never below the value, what protects never above it."""

import decimal
import math

from accounting import gaussian

DIGITS = 4  # decimals of a printed ε, rounded up


def printed(epsilon: float) -> str:
    """ε rounded up, at 4 decimals; from a million on at 5 digits."""
    if epsilon < 1e6:
        return f"{gaussian.round_up(epsilon, DIGITS):.{DIGITS}f}"
    return "inf" if epsilon == math.inf else _rounded_up(epsilon, DIGITS)


def printed_delta(delta: float) -> str:
    """δ, in 6 digits, rounded up."""
    return printed_up(delta)


def printed_up(value: float, digits: int = 6) -> str:
    """In so many significant digits, never below the value: for what is paid, such as δ, ρ and
    rates.
    """
    return _significant(value, digits, decimal.ROUND_CEILING)


def printed_down(value: float, digits: int = 6) -> str:
    """In so many significant digits, never above the value: for what protects, such as a noise
    multiplier.
    """
    return _significant(value, digits, decimal.ROUND_FLOOR)


def printed_whole(value: float) -> str:
    """Every digit, and no more: for bounds that a relation names."""
    return repr(float(value)).removesuffix(".0")


def _significant(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return str(value)
    with decimal.localcontext(decimal.Context(prec=digits, rounding=rounding)):
        return f"{float(+decimal.Decimal(repr(float(value)))):.{digits}g}"


def _rounded_up(value: float, digits: int) -> str:
    """In scientific notation, with so many digits after the point, not below the value."""
    with decimal.localcontext(decimal.Context(prec=digits + 1, rounding=decimal.ROUND_CEILING)):
        return f"{+decimal.Decimal(repr(value)):.{digits}e}"
