"""Laws of whole numbers as alias tables (Walker 1977, Vose 1991), worked out in whole numbers.

A table has 2^14 cells. A draw takes one cell at random, and then the cell's own number or its
alias, by comparing 160 random bits with a threshold. The probabilities that come out are multiples
of 2^-174, and they add up to exactly 1.
"""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import mpmath

CELL_BITS, THRESHOLD_BITS = 14, 160
CELLS = 1 << CELL_BITS
UNIT_BITS = CELL_BITS + THRESHOLD_BITS
SHIFTS = range(THRESHOLD_BITS - 32, -1, -32)  # of the words of a threshold
UNITS = 1 << UNIT_BITS  # probabilities are whole numbers of 2^-UNIT_BITS
FRACTION = 288  # bits of what is computed before it is rounded to units
NARROW = 48  # a standard deviation: below this, cells are too wide for the rule of `NODES` nodes
NODES = 12
REACH = 15.5  # standard deviations that a normal table holds
# Of a table from its law, in total variation: a unit for every cell, and what lies beyond the ends,
# 2·Q(15.5) < 2^-177.
DISTANCE = (CELLS + 1) * 2.0**-UNIT_BITS


class Table(NamedTuple):
    """An alias table: cell c is the number first + c.

    threshold: uint32[5, 2^14], the 160 bits of each cell's share, most significant word first: the
      cell's own number is taken with probability threshold / 2^160.
    alias: int32[2^14], the cell whose number is taken else.
    first: int32[], the number of cell 0.
    """

    threshold: np.ndarray
    alias: np.ndarray
    first: np.int32


def units(probabilities: list[int]) -> list[int]:
    """Whole numbers near these, of whatever sum, that add up to `UNITS`.

    Each is rounded down, and the largest takes the rest. So no more than one unit a number moves.
    """
    total = sum(probabilities)
    rounded = [(p << UNIT_BITS) // total for p in probabilities]
    rounded[max(range(len(rounded)), key=rounded.__getitem__)] += UNITS - sum(rounded)
    return rounded


def alias_table(first: int, parts: list[int]) -> Table:
    """The table of P(first + k) = parts[k] / UNITS; at most 2^14 parts, which add up to UNITS."""
    share = 1 << THRESHOLD_BITS  # of a cell
    left = parts + [0] * (CELLS - len(parts))
    threshold, alias = [share] * CELLS, list(range(CELLS))
    small = [cell for cell in range(CELLS) if left[cell] < share]
    large = [cell for cell in range(CELLS) if left[cell] > share]
    while small and large:
        poor, rich = small.pop(), large[-1]
        threshold[poor], alias[poor] = left[poor], rich
        left[rich] -= share - left[poor]
        if left[rich] <= share:
            large.pop()
            if left[rich] < share:
                small.append(rich)
    # A cell that is full is its own alias, and a threshold of 2^160 need not be held.
    threshold = [0 if number == share else number for number in threshold]
    words = [[number >> shift & 0xFFFFFFFF for number in threshold] for shift in SHIFTS]
    return Table(np.array(words, np.uint32), np.array(alias, np.int32), np.int32(first))


def probabilities(table: Table) -> dict[int, int]:
    """number -> its probability in UNITS, read back from a table."""
    share, found = 1 << THRESHOLD_BITS, {}
    words = table.threshold.tolist()
    for cell, alias in enumerate(table.alias.tolist()):
        own = sum(word[cell] << shift for word, shift in zip(words, SHIFTS, strict=True))
        own = share if alias == cell else own
        for number, part in ((cell, own), (alias, share - own)):
            if part:
                found[int(table.first) + number] = found.get(int(table.first) + number, 0) + part
    return found


@functools.lru_cache(maxsize=1)
def constant() -> Table:
    """Always 0."""
    return alias_table(0, [UNITS])


@functools.lru_cache(maxsize=64)
def rounded_normal(variance: Fraction) -> Table:
    """⌊Z⌉ for Z ~ N(0, variance), cut at 15.5 standard deviations, of which 31 are at most 2^14."""
    if variance < NARROW**2:
        return _symmetric(_narrow_masses(variance))
    columns = [(weight, _densities(variance, node)) for node, weight in _rule()]
    return _symmetric(
        [
            sum(weight * column[k] for weight, column in columns) >> FRACTION
            for k in range(_end(variance) + 1)
        ]
    )


@functools.lru_cache(maxsize=64)
def discrete_normal(variance: Fraction) -> Table:
    """The discrete normal law P(k) ∝ exp(-k²/(2·variance)), cut as `rounded_normal`."""
    import mpmath

    return _symmetric(_densities(variance, mpmath.mpf(0)))


def _end(variance: Fraction) -> int:
    return math.isqrt(math.ceil(Fraction(REACH) ** 2 * variance)) + 1


def _symmetric(half: list[int]) -> Table:
    """The table of a law that is the same on both sides, from its weights at 0, 1, …, end."""
    return alias_table(1 - len(half), units([*half[:0:-1], *half]))


def _fixed(number: mpmath.mpf) -> int:
    import mpmath

    with mpmath.workprec(FRACTION + 32):
        return int(mpmath.nint(mpmath.ldexp(number, FRACTION)))


def _densities(variance: Fraction, shift: mpmath.mpf) -> list[int]:
    """exp(-(k + shift)²/(2·variance)) at k = 0, …, end, in 2^-FRACTION.

    Each is the one before it times a ratio; all errors together stay below 2^-250.
    """
    import mpmath

    with mpmath.workprec(FRACTION + 32):
        inverse = mpmath.mpf(variance.denominator) / variance.numerator
        value = _fixed(mpmath.exp(-(shift**2) * inverse / 2))
        ratio = _fixed(mpmath.exp(-(2 * shift + 1) * inverse / 2))
        further, values = _fixed(mpmath.exp(-inverse)), []
    for _ in range(_end(variance) + 1):
        values.append(value)
        value, ratio = value * ratio >> FRACTION, ratio * further >> FRACTION
    return values


def _narrow_masses(variance: Fraction) -> list[int]:
    """P(⌊Z⌉ = k) at k = 0, …, end, up to a factor, in 2^-FRACTION: by the error function."""
    import mpmath

    with mpmath.workprec(FRACTION + 32):
        root = mpmath.sqrt(2 * mpmath.mpf(variance.numerator) / variance.denominator)
        beyond = [mpmath.erfc((k + mpmath.mpf("0.5")) / root) for k in range(_end(variance) + 1)]
        masses = [2 - 2 * beyond[0], *(a - b for a, b in itertools.pairwise(beyond))]
        return [_fixed(mass) for mass in masses]


@functools.lru_cache(maxsize=1)
def _rule() -> list[tuple[mpmath.mpf, int]]:
    """Gauss and Legendre's rule on [-1/2, 1/2]: nodes, and weights in 2^-FRACTION."""
    import mpmath

    with mpmath.workprec(FRACTION + 32):
        found = []
        for guess in np.polynomial.legendre.leggauss(NODES)[0].tolist():
            node = mpmath.mpf(guess)
            for _ in range(4):  # Newton's steps, each of which doubles the digits
                value, before = (mpmath.legendre(n, node) for n in (NODES, NODES - 1))
                slope = NODES * (before - node * value) / (1 - node**2)
                node -= value / slope
            found.append((node / 2, _fixed(1 / ((1 - node**2) * slope**2))))
        return found
