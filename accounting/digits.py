"""Numbers as they are printed: a cost is rounded up, and a protection is rounded down."""

import decimal
import math

from accounting import guards

DIGITS = 4  # decimals of a printed ε, rounded up


def round_up(epsilon: float, digits: int = 4) -> float:
    """The smallest decimal with so many places that is not below ε, as the nearest float.

    inf stays inf. A float stands for the shortest decimal that names it, which is how its user
    wrote it: 0.1 stays 0.1, though the float is 5e-18 above that. 0.1 + 0.2 is the float
    0.30000000000000004, and becomes 0.3001. `f"{round_up(epsilon, digits):.{digits}f}"` is never
    below ε when it is read back as a float.

    Raises:
      ValueError: ε is negative or NaN, or `digits` is not an integer of at least 0.
    """
    epsilon, digits = guards.from_zero("epsilon", epsilon), guards.count("digits", digits, 0)
    if epsilon == math.inf:
        return math.inf
    named = decimal.Decimal(repr(epsilon))
    context = decimal.Context(prec=400 + digits, rounding=decimal.ROUND_CEILING)
    # Rounding to the nearest float is monotone and takes `named` to ε: this cannot fall below ε.
    return float(named.quantize(decimal.Decimal(1).scaleb(-digits), context=context))


def printed(epsilon: float) -> str:
    """ε rounded up, at 4 decimals; from a million on at 5 digits."""
    if epsilon < 1e6:
        return f"{round_up(epsilon, DIGITS):.{DIGITS}f}"
    return "inf" if epsilon == math.inf else _rounded_up(epsilon, DIGITS)


def printed_delta(delta: float) -> str:
    """δ, in 6 digits, rounded up."""
    return printed_up(delta)


def printed_up(value: float, digits: int = 6) -> str:
    """In so many significant digits, rounded up: for costs, such as δ, ρ and rates."""
    return _significant(value, digits, decimal.ROUND_CEILING)


def printed_down(value: float, digits: int = 6) -> str:
    """In so many significant digits, rounded down: for protections, such as a noise multiplier."""
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
