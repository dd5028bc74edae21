"""The one-bit report: its exact law, its sampler beside it, and a report that is not sent."""

import decimal
import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpmf_jax.noise import keys
from dpmf_jax.noise import laws as noise
from dpmf_jax.noise.laws import Report
from tests.cases.one_bit import one_bit_probability

pytestmark = pytest.mark.usefixtures("quick_compilation")


EPSILONS = (1e-3, 0.05, 0.7, 1.6, 5.0, 20.0)


def report(values, *, sent=True) -> Report:
    values = jnp.atleast_1d(jnp.asarray(values, jnp.float32))
    zeros = jnp.zeros(values.shape, jnp.int32)
    return Report(zeros, zeros, values, jnp.full(values.shape, sent))


def law(epsilon: float, values) -> list[Fraction]:
    """P(bit = 1) of every entry, as the sampler has it."""
    params, values = noise.one_bit(epsilon).sample.args[0], np.asarray(values, np.float32)
    upper, lower = noise._unlikely(params, jnp.asarray(values))
    unlikely = [Fraction(int(u) * 2**32 + int(w), 2**64) for u, w in zip(upper, lower, strict=True)]
    return [p if value < 0 else 1 - p for p, value in zip(unlikely, values, strict=True)]


@pytest.mark.seconds
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_largest_log_ratio_over_all_entries_and_bits_is_epsilon(epsilon):
    """By enumeration, in whole numbers: never above ε, and as near to it as 32 bits allow."""
    random = np.random.default_rng(0).uniform(-1.2, 1.2, 500)
    extreme = [
        -1.0,
        1.0,
        0.0,
        -0.0,
        5.0,
        -5.0,
        math.inf,
        -math.inf,
        math.nan,
        1e-30,
        np.nextafter(1, 0),
        1 - 2**-24,
    ]
    ones = law(epsilon, [*extreme, *random])
    assert all(0 < p < 1 for p in ones)  # so 1 - p is what is left, and both sum to 1
    ratio = max(max(ones) / min(ones), (1 - min(ones)) / (1 - max(ones)))
    with decimal.localcontext(prec=50):
        measured = float((decimal.Decimal(ratio.numerator) / ratio.denominator).ln())
    assert measured <= epsilon * (1 + 1e-12)
    assert measured == pytest.approx(epsilon, rel=1e-12)
    low, high = min(ones), max(ones)
    assert low + high == 1


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_expected_report_is_the_clipped_entry(epsilon):
    values = np.linspace(-1.5, 1.5, 301).astype(np.float32)
    expected = [(2 * p - 1) / Fraction(noise.one_bit_gain(epsilon)) for p in law(epsilon, values)]
    np.testing.assert_allclose(
        [float(e) for e in expected],
        np.clip(values, -1, 1),
        atol=1e-7 / noise.one_bit_gain(epsilon),
    )
    printed = [one_bit_probability(float(value), epsilon) for value in values]
    np.testing.assert_allclose([float(p) for p in law(epsilon, values)], printed, atol=2e-7)


@pytest.mark.seconds
def test_the_sampler_keeps_to_the_law():
    """200,000 bits at five entries against Binomial(n, p), false alarm 1e-4 each; 0.02 beside p is
    seen.
    """
    made, num = noise.one_bit(1.0), 200_000
    for value, p in zip(
        (-1.0, -0.3, 0.0, 0.8, 1.0), law(1.0, [-1.0, -0.3, 0.0, 0.8, 1.0]), strict=True
    ):
        drawn = made.sample(keys.from_seed(7), report(np.full(num, value)))
        ones = int(jnp.sum(drawn.value > 0))
        assert set(np.unique(drawn.value)) == {-1.0, 1.0}
        assert scipy.stats.binomtest(ones, num, float(p)).pvalue > 1e-4
        assert scipy.stats.binomtest(ones, num, float(p) + 0.02).pvalue < 1e-6


def test_log_prob_is_the_law_and_log_ratio_its_difference():
    made = noise.one_bit(1.0)
    values = np.array([-1.0, -0.2, 0.5, 1.0], np.float32)
    bits = np.array([1.0, -1.0, 1.0, -1.0], np.float32)
    p = [float(x) for x in law(1.0, values)]
    expected = sum(math.log(one if bit > 0 else 1 - one) for one, bit in zip(p, bits, strict=True))
    assert float(made.log_prob(report(bits), report(values))) == pytest.approx(expected, rel=1e-5)
    other = report(-values)
    ratio = float(made.log_ratio(report(bits), report(values), other))
    expected -= float(made.log_prob(report(bits), other))
    assert ratio == pytest.approx(expected, rel=1e-5)


def test_a_report_that_is_not_sent_says_nothing_in_every_world():
    made = noise.one_bit(1.0)
    drawn = made.sample(keys.from_seed(0), report([-1.0, 1.0], sent=False))
    assert np.all(np.asarray(drawn.value) == 0)
    assert float(made.log_prob(drawn, report([0.3, 1.0], sent=False))) == 0
    assert float(made.log_prob(drawn, report([0.3, 1.0]))) == -math.inf
    moved = drawn._replace(row=drawn.row + 1)
    assert float(made.log_prob(moved, report([0.3, 1.0], sent=False))) == -math.inf


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 21.0])
def test_a_report_has_a_finite_epsilon(bad):
    with pytest.raises(ValueError, match="epsilon of one report"):
        noise.one_bit(bad)


def test_an_entry_of_0_is_a_fair_coin():
    assert law(1.0, [0.0])[0] == Fraction(1, 2)
