"""Shares of rounded normal noise: what k of them sum to, how near that is to what is priced, and
that the bound is no larger than it has to be.
"""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpmf_jax.noise import normal_shares, tables, whole

FALSE_ALARM = 1e-5  # of every statistical test here; keys are fixed
END = 120  # numbers on either side of 0


def share_law(scale):
    """P(⌊N(0, scale²)⌉ = n), n = -END..END."""
    n = np.arange(-END, END + 1)
    return scipy.special.ndtr((n + 0.5) / scale) - scipy.special.ndtr((n - 0.5) / scale)


def convolved(law, num_shares):
    found = np.ones(1)
    for _ in range(num_shares):
        found = np.convolve(found, law)
        cut = max(0, (len(found) - (2 * END + 1)) // 2)
        found = found[cut : len(found) - cut]
    return found


def proven_law(scale, num_shares):
    """h at -END..END: the density of N(0, k·scale²) and k uniform numbers, at whole numbers.

    By its characteristic function, with the trapezoidal rule.
    """
    step = 2 * math.pi / 1024
    t = step * np.arange(1, int(40 / (scale * math.sqrt(num_shares)) / step))
    real = np.exp(-num_shares * (scale * t) ** 2 / 2) * np.sinc(t / 2 / math.pi) ** num_shares
    n = np.arange(-END, END + 1)
    return step / math.pi * (0.5 + np.cos(np.outer(n, t)) @ real)


@pytest.mark.parametrize("num_shares", [2, 3, 4, 30])
@pytest.mark.parametrize("scale", [0.4, 0.5, 0.6, 0.8, 1.0])
def test_the_sum_of_shares_is_within_the_bound_of_what_is_priced(scale, num_shares):
    """Where shares are so small that it shows: number by number, and in total variation."""
    found, proven = convolved(share_law(scale), num_shares), proven_law(scale, num_shares)
    assert proven.sum() == pytest.approx(1, abs=1e-12)
    bound = min(normal_shares.aliasing(scale, num_shares), 1e9)
    assert np.all(np.abs(found - proven) <= bound * np.maximum(proven, 0) + 1e-13)
    total_variation = np.abs(found - proven).sum() / 2
    assert total_variation > 1e-10  # there is something to see
    assert total_variation <= normal_shares.distance(scale, num_shares)


@pytest.mark.parametrize("num_shares", [2, 3])
@pytest.mark.parametrize("scale", [0.5, 0.6, 0.8, 1.0])
def test_the_bound_binds(scale, num_shares):
    """Some number's probability is off by a quarter of it at least."""
    found, proven = convolved(share_law(scale), num_shares), proven_law(scale, num_shares)
    often = proven > 1e-7
    worst = np.max(np.abs(found[often] / proven[often] - 1))
    assert worst <= normal_shares.aliasing(scale, num_shares) <= 4 * worst


def test_the_tables_themselves_sum_to_what_is_priced():
    """What is drawn, in whole numbers of 2^-174."""
    scale, num_shares = 2.5, 3
    law = tables.probabilities(tables.rounded_normal(Fraction(scale) ** 2))
    end = max(law)
    one = [law.get(n, 0) for n in range(-end, end + 1)]
    found, total = one, tables.UNITS
    for _ in range(num_shares - 1):
        found = [
            sum(found[j] * one[n - j] for j in range(len(found)) if 0 <= n - j < len(one))
            for n in range(len(found) + len(one) - 1)
        ]
        total *= tables.UNITS
    with mpmath.workdps(70):
        step = mpmath.pi / 64
        rows = [
            (
                t,
                mpmath.exp(-num_shares * (scale * t) ** 2 / 2)
                * mpmath.sincpi(t / 2 / mpmath.pi) ** num_shares,
            )
            for t in (step * j for j in range(1, int(24 / scale / step)))
        ]
        apart = mpmath.mpf(0)
        middle = len(found) // 2
        for n in range(45):  # 10 deviations
            proven = (
                step
                / mpmath.pi
                * (mpmath.mpf(1) / 2 + mpmath.fsum(part * mpmath.cos(t * n) for t, part in rows))
            )
            off = abs(mpmath.mpf(found[middle + n]) / total - proven)
            apart += off if n else off / 2
    bound = normal_shares.distance(scale, num_shares)
    assert 0.1 * bound < apart < bound < 1e-34


def test_the_bound_falls_as_shares_grow_and_never_says_less_than_the_tables():
    for num_shares in (2, 10, 10**6, 10**9):
        found = [normal_shares.distance(scale, num_shares) for scale in (2.5, 3.0, 5.0, 500.0)]
        assert found == sorted(found, reverse=True)
        assert found[-1] >= num_shares * whole.DISTANCE
    assert normal_shares.aliasing(2.5, 10**6) < 1e-40  # as the module says
    assert normal_shares.aliasing(0.5, 10**6) == math.inf
    assert normal_shares.distance(0.5, 10**6) == 1
    assert normal_shares.distance(0.01, 1) == whole.DISTANCE  # one share is what is priced


@pytest.mark.parametrize(("scale", "num_shares"), [(2.5, 1), (2.5, 4), (3.5, 20)])
def test_one_draw_stands_for_the_sum_with_its_moments(scale, num_shares):
    found = convolved(share_law(scale), num_shares)
    n = np.arange(-END, END + 1)
    variance = found @ n**2
    one = normal_shares.deviation(scale, num_shares)
    assert one >= scale * math.sqrt(num_shares)
    assert variance == pytest.approx(one**2 + 1 / 12, rel=1e-9)
    fourth = found @ n**4 - 3 * variance**2
    assert fourth - (-1 / 120) == pytest.approx(-(num_shares - 1) / 120, abs=2e-5 * variance)


def drawn(scale, num_shares, count=40_000):
    law = normal_shares.law(scale)
    each = jax.jit(lambda key: normal_shares.draw(key, law, (count,)))
    total = sum(np.asarray(each(key)) for key in jax.random.split(jax.random.key(7), num_shares))
    assert total.dtype == np.uint32
    return total.view(np.int32)


def p_value(numbers, law):
    expected = law * len(numbers)
    counts = np.bincount(np.clip(numbers + END, 0, 2 * END), minlength=2 * END + 1)
    keep = expected > 10
    rest = expected[~keep].sum()
    expected, counts = np.r_[expected[keep], rest], np.r_[counts[keep], counts[~keep].sum()]
    statistic = np.sum((counts - expected)[expected > 5] ** 2 / expected[expected > 5])
    return scipy.stats.chi2.sf(statistic, np.sum(expected > 5) - 1)


@pytest.mark.parametrize(("scale", "num_shares"), [(2.5, 1), (2.5, 5), (0.5, 2)])
def test_drawn_shares_sum_to_the_law(scale, num_shares):
    numbers = drawn(scale, num_shares)
    assert p_value(numbers, convolved(share_law(scale), num_shares)) > FALSE_ALARM
    for wrong in (0.9, 1.1):
        assert p_value(numbers, convolved(share_law(wrong * scale), num_shares)) < FALSE_ALARM


def test_shares_of_no_table_are_refused():
    with pytest.raises(ValueError, match="float32"):
        normal_shares.law(0.1)
    with pytest.raises(ValueError, match="111"):
        normal_shares.law(2.0**17)
    assert jnp.float32(normal_shares.law(2.5).scale) == 2.5
