"""Floats as the decimals that their users wrote: each stands for the shortest one that names it.

Quotients and multiples are exact in decimals, to 60 digits, and rounded away from what would look
cheaper.
"""

import decimal
import math
from decimal import Decimal

EXACT = decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


def named(value: float) -> Decimal:
    """The decimal that a float stands for."""
    return Decimal(repr(float(value)))


def quotient(numerator: float, denominator: float) -> Decimal:
    """The quotient of two numbers as written."""
    with decimal.localcontext(EXACT):
        return named(numerator) / named(denominator)


def float_up(value: Decimal) -> float:
    """The smallest float whose name is not below a decimal."""
    nearest = float(value)
    return (
        nearest
        if nearest == math.inf or named(nearest) >= value
        else math.nextafter(nearest, math.inf)
    )


def float_down(value: Decimal) -> float:
    """The largest float whose name is not above a decimal."""
    nearest = float(value)
    return nearest if named(nearest) <= value else math.nextafter(nearest, 0)
