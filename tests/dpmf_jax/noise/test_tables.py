"""Tables against mpmath, to the last unit, and the two tables together against the one law."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpmf_jax.noise import tables, whole

WIDE = Fraction(528) ** 2


def mass(number: int, variance: Fraction) -> mpmath.mpf:
    """P(⌊Z⌉ = number) by the error function, of which mpmath knows 100 digits."""
    root = mpmath.sqrt(2 * mpmath.mpf(variance.numerator) / variance.denominator)
    ends = ((2 * abs(number) - sign) / (2 * root) for sign in (1, -1))
    near, beyond = (mpmath.erfc(end) for end in ends)
    return (near - beyond) / 2


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.7, 20.0, 47.9, 48.0])
def test_every_number_has_its_probability_to_the_last_unit(scale):
    variance = Fraction(scale) ** 2
    found = tables.probabilities(tables.rounded_normal(variance))
    assert sum(found.values()) == tables.UNITS
    with mpmath.workdps(100):
        wrong = {k: abs(p - mass(k, variance) * tables.UNITS) for k, p in found.items() if k}
        assert max(wrong.values()) <= 1
        assert sum(wrong.values()) / tables.UNITS / 2 <= tables.DISTANCE
        # 0 takes what the others lose by rounding down
        assert 0 <= found[0] - mass(0, variance) * tables.UNITS <= len(found) + 1


@pytest.mark.parametrize("scale", [100.0, 500.0, 528.0])
def test_wide_tables_have_their_probabilities_to_the_last_unit(scale):
    variance = Fraction(scale) ** 2
    found = tables.probabilities(tables.rounded_normal(variance))
    assert sum(found.values()) == tables.UNITS
    assert len(found) <= tables.CELLS
    with mpmath.workdps(100):
        for number in range(1, max(found), max(found) // 60):
            for signed in (number, -number):
                expected = mass(number, variance) * tables.UNITS
                assert abs(found.get(signed, 0) - expected) <= 1, number


def test_the_discrete_normal_has_its_law():
    found = tables.probabilities(tables.discrete_normal(WIDE))
    assert sum(found.values()) == tables.UNITS
    with mpmath.workdps(100):
        weights = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * 528**2)) for k in found}
        total = 528 * mpmath.sqrt(2 * mpmath.pi)  # of all whole numbers, to 10^-100 and more
        worst = max(abs(found[k] - weights[k] / total * tables.UNITS) for k in found if k)
    assert worst <= 1


def test_a_constant_is_one_number():
    assert tables.probabilities(tables.constant()) == {0: tables.UNITS}


@pytest.mark.parametrize("scale", [529.0, 600.0, 4096.5, 50_000.0, 111_000.0])
def test_two_tables_together_have_the_law_of_one(scale):
    """Their convolution in whole numbers, against the error function: relative to the mass of each
    number, and of its own in the tail.
    """
    law = whole.Law(*whole.numbers(scale))
    stride = int(law.stride)
    sides = [
        tables.probabilities(tables.Table(law.threshold[side], law.alias[side], law.first[side]))
        for side in (0, 1)
    ]
    variance = Fraction(scale) ** 2
    with mpmath.workdps(100):
        for number in (0, 1, stride // 2, stride, *(int(share * scale) for share in (0.7, 2, 5))):
            found = sum(
                part * sides[1].get(number - stride * coarse, 0)
                for coarse, part in sides[0].items()
            )
            expected = (
                mass(number, variance)
                if number
                else 2 * mpmath.mpf(0.5)
                - 2 * mpmath.fsum([mpmath.erfc(1 / mpmath.sqrt(8 * mpmath.mpf(scale) ** 2)) / 2])
            )
            relative = abs(mpmath.mpf(found) / tables.UNITS**2 / expected - 1)
            # the mass of this number is made of a few thousand units of either table
            assert relative < mpmath.mpf(2) ** -100, (number, relative)


def test_cells_never_lack_room():
    """The widest table: 31 standard deviations of 528 are fewer than 2^14."""
    assert len(tables.rounded_normal(WIDE).alias) == tables.CELLS
    assert 2 * tables._end(WIDE) + 1 <= tables.CELLS


def test_a_table_is_read_back_as_it_was_made():
    random = np.random.default_rng(0)
    parts = tables.units([int(n) for n in random.integers(1, 2**60, 5_000)])
    found = tables.probabilities(tables.alias_table(-7, parts))
    assert found == {place - 7: part for place, part in enumerate(parts)}
