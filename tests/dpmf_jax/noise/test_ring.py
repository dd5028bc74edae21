"""The ring of 32-bit integers: fixed point both ways, sums that wrap, and a discrete Laplace law
that is exact.
"""

import itertools
import math
from functools import partial

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given

from dpmf_jax.noise import bits, chacha, ring

ALPHA = 1e-4
# every element of the ring is within the thresholds' reach
FULL_SCALES = (
    2.0**20,
    1234567.89,
    2.0**28,
)
SMALL_SCALES = (0.25, 1.0, 3.7)

# --------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**24), 2**24), min_size=8, max_size=8), st.integers(-30, 10))
def test_multiples_of_the_step_come_back(multiples, exponent):
    step = 2.0**exponent
    values = jnp.asarray(np.array(multiples) * step, jnp.float32)
    assert np.array_equal(ring.decode(ring.encode(values, step), step), values)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4))
@example([-0.99, 0.99, -1.5, 1.5])
def test_rounding_is_toward_zero(values):
    encoded = np.asarray(ring.signed(ring.encode(jnp.asarray(values, jnp.float32), 0.25)), np.int64)
    assert np.array_equal(
        encoded, np.trunc(np.asarray(values, np.float32).astype(np.float64) / 0.25)
    )


def test_large_values_are_clipped_and_what_is_no_number_is_nothing():
    values = jnp.array(
        [2.0**30, 2.0**30 + 64, 1e38, jnp.inf, -(2.0**31), -jnp.inf, jnp.nan, 0.0, -0.0]
    )
    expected = [2**30, 2**30, 2**30, 2**30, -(2**30), -(2**30), 0, 0, 0]
    assert ring.signed(ring.encode(values, 1.0)).tolist() == expected


@given(
    st.lists(st.integers(-(2**30), 2**30), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_sums_wrap_around_in_any_order_and_pads_come_off_exactly(numbers, random):
    elements = [jnp.uint32(number % 2**32) for number in numbers]
    pads = [jnp.uint32(random.randrange(2**32)) for _ in numbers]
    masked = [element + pad for element, pad in zip(elements, pads, strict=True)]
    random.shuffle(masked)
    opened = sum(masked[1:], masked[0]) - sum(pads[1:], pads[0])
    total = (sum(numbers) + 2**31) % 2**32 - 2**31
    assert int(ring.signed(opened)) == total


def test_the_edge_of_the_ring():
    half = ring.encode(jnp.array([2.0**30]), 1.0)
    assert int(ring.signed(half + half - jnp.uint32(1))[0]) == 2**31 - 1
    assert int(ring.signed(half + half)[0]) == -(2**31)
    assert float(ring.decode(half + half, 0.5)[0]) == -(2.0**30)


# -------------------------------------------------------------------------------- the law that the


def exact_bits(scale: float) -> list[mpmath.mpf]:
    """P(1) of [zero, negative, digit 0, …, digit 31], which are whole numbers of 2^(32 words)."""
    table = ring.thresholds(scale)
    words = table.shape[1]
    numbers = [
        sum(int(word) << (32 * (words - 1 - w)) for w, word in enumerate(row)) for row in table
    ]
    return [mpmath.ldexp(mpmath.mpf(number), -32 * words) for number in numbers]


def law(scale: float, elements) -> list[mpmath.mpf]:
    """P(η = x mod 2^32) of whole numbers x, from zero, the sign and both ways round."""
    zero, negative, *digits = exact_bits(scale)

    def geometric(k: int) -> mpmath.mpf:
        return math.prod(
            (p if k >> i & 1 else 1 - p for i, p in enumerate(digits)), start=mpmath.mpf(1)
        )

    out = []
    for x in elements:
        y = x % 2**32
        up, down = geometric((y - 1) % 2**32), geometric((-y - 1) % 2**32)
        out.append(zero * (y == 0) + (1 - zero) * ((1 - negative) * up + negative * down))
    return out


@pytest.fixture(autouse=True)
def many_digits():
    """Thresholds have up to 4,096 bits."""
    with mpmath.workdps(1300):
        yield


@pytest.mark.parametrize("scale", SMALL_SCALES)
def test_by_enumeration_neighbours_never_differ_by_more_than_one_over_the_scale(scale):
    """Ratios of probabilities themselves, down to 1e-43 of the whole."""
    far = max(10, int(100 * scale))
    probabilities = law(scale, range(-far, far + 1))
    ratios = [b / a for a, b in itertools.pairwise(probabilities)]
    bound = mpmath.exp(mpmath.mpf(1) / mpmath.mpf(scale))
    assert max(ratios) <= bound
    assert min(ratios) >= 1 / bound
    assert float(max(ratios) / bound) == pytest.approx(1, rel=1e-9)
    assert float(sum(probabilities)) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("scale", FULL_SCALES)
def test_on_the_whole_ring_no_carry_costs_more_than_one_over_the_scale(scale):
    """P(G = k)/P(G = k + 1) depends on the number of trailing ones of k alone: 32 cases are all
    there are.
    """
    _zero, negative, *digits = exact_bits(scale)
    assert negative == mpmath.mpf(1) / 2
    bound = mpmath.mpf(1) / mpmath.mpf(scale)
    odds = [mpmath.log((1 - p) / p) for p in digits]
    carries = [odds[t] - sum(odds[:t], mpmath.mpf(0)) for t in range(32)]
    assert max(carries) <= bound
    assert min(carries) >= 0
    assert float(min(carries)) == pytest.approx(1 / scale, rel=1e-9)
    around_zero = [mpmath.log(p) for p in law(scale, (-1, 0, 1))]
    assert abs(around_zero[1] - around_zero[0]) <= bound
    assert abs(around_zero[1] - around_zero[2]) <= bound
    antipode = [mpmath.log(p) for p in law(scale, range(2**31 - 3, 2**31 + 4))]
    assert max(abs(a - b) for a, b in itertools.pairwise(antipode)) <= bound


@pytest.mark.parametrize("scale", [*SMALL_SCALES, *FULL_SCALES])
def test_the_law_is_the_discrete_laplace_and_log_prob_is_its_logarithm(scale):
    some = [0, 1, -1, 2, -7, int(3 * scale), -int(10 * scale)]
    probabilities = [float(p) for p in law(scale, some)]
    around = [min(x % 2**32, -x % 2**32) for x in some]
    both_ways = [math.exp(-far / scale) + math.exp(-(2**32 - far) / scale) for far in around]
    expected = [
        math.tanh(1 / (2 * scale)) * both / -math.expm1(-(2**32) / scale) for both in both_ways
    ]
    np.testing.assert_allclose(probabilities, expected, rtol=1e-9)
    noise = ring.discrete_laplace(scale)
    statistics = jnp.zeros(1, jnp.uint32)
    for x, p in zip(some, probabilities, strict=True):
        at = jnp.array([x % 2**32], jnp.uint32)
        assert float(noise.log_prob(at, statistics)) == pytest.approx(math.log(p), rel=1e-5)


def test_far_out_both_ways_round_the_ring_count():
    scale = 2.0**28
    noise, zero = ring.discrete_laplace(scale), jnp.zeros(1, jnp.uint32)
    for x in (2**31, 2**31 - 2**20, 2**30):
        expected = float(mpmath.log(law(scale, [x])[0]))
        assert float(noise.log_prob(jnp.array([x], jnp.uint32), zero)) == pytest.approx(
            expected, rel=1e-5
        )


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(-(2**20), 2**20))
def test_log_ratio_is_the_difference_and_never_beyond_how_far_the_worlds_are_apart(
    response, statistic, apart
):
    noise = NOISE
    r, q, other = (
        jnp.array([number % 2**32], jnp.uint32)
        for number in (response, statistic, (statistic + apart) % 2**32)
    )
    ratio = float(noise.log_ratio(r, q, other))
    assert abs(ratio) <= abs(apart) / 2.0**20 * (1 + 1e-6)
    difference = float(noise.log_prob(r, q)) - float(noise.log_prob(r, other))
    assert ratio == pytest.approx(difference, abs=2e-3)


NOISE = ring.discrete_laplace(2.0**20)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2.0**29, 0.01])
def test_scales_that_the_ring_cannot_hold_are_refused(scale):
    with pytest.raises(ValueError, match="scale_in_steps must be between"):
        ring.discrete_laplace(scale)


# --------------------------------------------------------------------------------------------------


def draws(scale: float, num: int, seed: int) -> np.ndarray:
    noise = ring.discrete_laplace(scale)
    return np.asarray(
        ring.signed(jax.jit(noise.sample)(jax.random.key(seed), jnp.zeros(num, jnp.uint32))),
        np.int64,
    )


@pytest.mark.parametrize("scale", [1.0, 3.7, 2.0**20])
def test_ks_accepts_the_scale_and_rejects_two_thirds_and_three_halves(scale):
    """Kolmogorov's bound is conservative for a discrete law, so the false alarm rate is at most
    ALPHA.
    """
    num = 30_000
    drawn = np.sort(draws(scale, num, 1))
    critical = scipy.stats.kstwo(num).isf(ALPHA)

    def distance(b: float) -> float:
        values = np.unique(drawn)
        below = np.where(values < 0, np.exp(values / b), 0.0) / (1 + np.exp(-1 / b))
        above = np.where(values >= 0, np.exp(-(values + 1.0) / b), 0.0) / (1 + np.exp(-1 / b))
        cdf = np.where(values < 0, below, 1 - above)
        at = np.searchsorted(drawn, values, side="right") / num
        before = np.searchsorted(drawn, values, side="left") / num
        mass = np.tanh(1 / (2 * b)) * np.exp(-np.abs(values) / b)
        return max(np.max(np.abs(at - cdf)), np.max(np.abs(before - (cdf - mass))))

    assert distance(scale) < critical
    assert distance(scale * 2 / 3) > critical
    assert distance(scale * 3 / 2) > critical


def test_every_small_outcome_comes_as_often_as_it_should():
    scale, num = 1.5, 60_000
    drawn = draws(scale, num, 2)
    edges = np.arange(-6, 7)
    seen = np.array([np.sum(drawn == x) for x in edges])
    expected = np.tanh(1 / (2 * scale)) * np.exp(-np.abs(edges) / scale) * num
    seen, expected = np.append(seen, num - seen.sum()), np.append(expected, num - expected.sum())
    assert scipy.stats.chisquare(seen, expected).pvalue > ALPHA


def test_entries_leaves_and_keys_are_independent_and_noise_is_added():
    tree = {"a": jnp.full((400, 2), 7, jnp.uint32), "b": jnp.zeros(400, jnp.uint32)}
    noise = ring.discrete_laplace(2.0**20)
    sample = jax.jit(noise.sample)
    first, second = sample(jax.random.key(0), tree), sample(jax.random.key(1), tree)
    columns = [
        ring.signed(x).astype(float)
        for x in (first["a"][:, 0] - 7, first["a"][:, 1] - 7, first["b"])
    ]
    columns += [ring.signed(second["b"]).astype(float)]
    correlation = np.corrcoef(np.stack(columns))[np.triu_indices(4, 1)]
    assert np.max(np.abs(correlation)) < 5 / math.sqrt(400)
    assert np.unique(np.stack([np.asarray(c) for c in columns])).size > 1590


def test_a_further_word_is_drawn_where_the_first_ones_are_equal():
    """Words that can only be 0 or 2^31, and a threshold of (2^31, 2^31): below it are three of four
    numbers.
    """
    table, shape = jnp.array([[2**31, 2**31], [2**31, 0]], jnp.uint32), (20_000,)

    def words(number):
        key = jax.random.fold_in(jax.random.key(0), number)
        return jax.random.bits(key, (2, *shape)) & jnp.uint32(1 << 31)

    share = np.mean(ring._below(table, words, shape), axis=1)
    np.testing.assert_allclose(share, [0.75, 0.5], atol=0.02)


def numbers_of(bits_of_draws) -> np.ndarray:
    zero, negative, *digits = np.asarray(bits_of_draws)
    magnitude = 1 + sum(digit.astype(np.int64) << place for place, digit in enumerate(digits))
    return np.where(zero, 0, np.where(negative, -magnitude, magnitude)) % 2**32


@pytest.mark.parametrize("scale", [0.25, 3.7, 2.0**20, 2.0**28])
@pytest.mark.parametrize("make_key", [jax.random.key, partial(jax.random.key, impl=chacha.IMPL)])
def test_a_draw_is_told_by_its_first_words_as_by_all_of_them(scale, make_key):
    """Against whole numbers of the host: a word below the first of its threshold is a bit."""
    table, shape = jnp.asarray(ring.thresholds(scale)), (300, 2)
    words = np.concatenate(ring._words_of_bits(bits.source(make_key(3)), 0, shape))
    limit = np.asarray(table)[:, :1, None]
    assert not (words == limit).any()
    expected = numbers_of(words < limit)
    law = ring.Law(jnp.float32(scale), table)
    np.testing.assert_array_equal(ring.draw(law, make_key(3), shape), expected)
    drawn = jnp.zeros(shape, jnp.uint32)
    np.testing.assert_array_equal(
        ring._by_all_words(drawn, table, bits.source(make_key(3))), expected
    )


@pytest.mark.parametrize("bit", [0, 1, 2, 16, 17, 33])
def test_a_word_that_ties_leaves_its_draw_open_and_no_other(bit):
    table = jnp.asarray(ring.thresholds(1000.0))
    words = jnp.concatenate(ring._words_of_bits(bits.source(jax.random.key(4)), 0, (50,)))
    plain = ring._by_first_words(table, *jnp.split(words, 2))
    found = ring._by_first_words(table, *jnp.split(words.at[bit, 7].set(table[bit, 0]), 2))
    assert np.flatnonzero(ring._undecided(found)).tolist() == [7]
    np.testing.assert_array_equal(np.delete(found, 7), np.delete(plain, 7))


@pytest.mark.parametrize("together", [False, True])
def test_an_open_draw_is_made_of_further_words(together, monkeypatch):
    """All first words tie, so each bit is that of the second word of its threshold."""
    law = ring.discrete_laplace(2.0**20).sample.args[0]
    table, real = law.thresholds, ring._words_of_bits

    def first_words_tie(of, number, shape):
        rows = table[:, 0].reshape(-1, *(1,) * len(shape))
        drawn = jnp.concatenate(real(of, number, shape))
        return jnp.split(jnp.where(number == 0, rows, drawn), 2)

    monkeypatch.setattr(ring, "_words_of_bits", first_words_tie)
    keys = jax.random.split(jax.random.key(6), 3)
    draw = partial(ring.draw, law, shape=(40,))
    drawn = jax.vmap(draw)(keys) if together else jnp.stack(list(map(draw, keys)))
    for key, found in zip(keys, drawn, strict=True):
        words = np.concatenate(real(bits.source(key), 1, (40,)))
        np.testing.assert_array_equal(found, numbers_of(words < np.asarray(table)[:, 1:2]))


def test_many_draws_share_one_condition():
    """The compiled program has a condition, where `vmap` would have made a choice of it."""
    law = ring.discrete_laplace(50.0).sample.args[0]
    draw = jax.jit(jax.vmap(lambda key: ring.draw(law, key, (5,))))
    assert "stablehlo.case" in draw.lower(jax.random.split(jax.random.key(2), 4)).as_text()
