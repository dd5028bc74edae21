"""Normal noise in whole numbers: the sampler against its law, and its densities against both."""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from dpmf_jax.noise import bits, chacha, tables, whole
from dpmf_jax.noise.ring import signed

FALSE_ALARM = 1e-5  # of every statistical test here; keys are fixed
SCALES = (0.5, 5.0, 528.0, 600.0, 4_097.0, 111_000.0)


def ring(numbers) -> jax.Array:
    return jnp.asarray(np.asarray(numbers, np.int64).astype(np.uint32))


def draws(scale: float, count: int, key: jax.Array) -> np.ndarray:
    sample = whole.rounded_normal(scale).sample
    return np.asarray(jax.jit(sample)(key, jnp.zeros(count, jnp.uint32))).view(np.int32)


def chacha_key(number: int) -> jax.Array:
    return jax.random.key(number, impl=chacha.IMPL)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("make", [jax.random.key, chacha_key])
def test_the_sampler_has_the_promised_scale_and_no_other(scale, make):
    numbers = draws(scale, 200_000, make(3))
    if scale < 100:  # a table of counts
        law = tables.probabilities(_fine(scale))
        often = [k for k, p in law.items() if p / tables.UNITS > 1e-4]
        counts = np.array([np.sum(numbers == k) for k in often])
        shares = np.array([law[k] / tables.UNITS for k in often])
        rest = len(numbers) - counts.sum()
        expected = np.r_[shares, 1 - shares.sum()] * len(numbers)
        found = np.r_[counts, rest]
        keep = expected > 5
        statistic = np.sum((found[keep] - expected[keep]) ** 2 / expected[keep])
        assert scipy.stats.chi2.sf(statistic, keep.sum() - 1) > FALSE_ALARM
        return
    spread = numbers + np.random.default_rng(0).random(len(numbers)) - 0.5
    assert scipy.stats.kstest(spread / scale, "norm").pvalue > FALSE_ALARM
    for wrong in (0.97, 1.03):
        assert scipy.stats.kstest(spread / (wrong * scale), "norm").pvalue < FALSE_ALARM


def _fine(scale: float) -> tables.Table:
    law = whole.Law(*whole.numbers(scale))
    assert int(law.stride) == 0
    return tables.Table(law.threshold[1], law.alias[1], law.first[1])


def batches(scale: float, count: int, each: int = 1 << 24) -> Iterator[jax.Array]:
    noise = whole.rounded_normal(scale)
    sample = jax.jit(lambda key: noise.sample(key, jnp.zeros(each, jnp.uint32)))
    for key in jax.random.split(jax.random.key(11), -(-count // each)):
        yield sample(key)


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "draws"), [(20.0, 10**9), (600.0, 10**8)])
def test_a_thousand_million_draws_have_the_law(scale, draws):
    """χ² of the counts of all numbers, and exact binomial tests of the tails from 3 to 5.5 σ."""
    end, total = int(15 * scale), 0
    counts = np.zeros(2 * end + 1, np.int64)
    count = jax.jit(lambda drawn: jnp.bincount(drawn.astype(jnp.int32) + end, length=2 * end + 1))
    for drawn in batches(scale, draws):
        counts += np.asarray(count(drawn))
        total += drawn.size
    numbers = np.arange(1, end + 1)
    tail = scipy.special.ndtr(-(np.arange(end + 1) + 0.5) / scale)
    beside = tail[numbers - 1] - tail[numbers]
    masses = np.r_[beside[::-1], 1 - 2 * tail[0], beside]
    expected = masses * total
    keep = expected > 10
    statistic = np.sum((counts[keep] - expected[keep]) ** 2 / expected[keep])
    assert scipy.stats.chi2.sf(statistic, keep.sum() - 1) > FALSE_ALARM
    for sigmas in (3, 4, 5, 5.5):
        first = math.ceil(sigmas * scale)
        beyond = int(counts[end + first :].sum() + counts[: end - first + 1].sum())
        share = 2 * scipy.special.ndtr(-(first - 0.5) / scale)
        assert scipy.stats.binomtest(beyond, total, share).pvalue > FALSE_ALARM, sigmas


@pytest.mark.parametrize("scale", [20.0, 600.0, 50_000.0])
def test_words_that_tie_are_told_by_the_words_after_them(scale):
    """Every way to tie or not, for either table, against Python's integers."""
    law = whole.Law(*map(jnp.asarray, whole.numbers(scale)))
    random, key, count = np.random.default_rng(0), jax.random.key(5), 3_000
    cells = random.integers(0, tables.CELLS, (2, count))
    thresholds = [np.asarray(law.threshold[side])[:, cells[side]].astype(object) for side in (0, 1)]
    words = [random.integers(0, 2**32, count).astype(object) for _ in range(2)]
    tied = [random.random(count) < 0.5 for _ in range(2)]
    words = [np.where(t, limit[0], w) for t, limit, w in zip(tied, thresholds, words, strict=True)]
    given_words = [jnp.asarray(w.astype(np.uint32)) for w in words]
    both = (cells[0] << tables.CELL_BITS | cells[1]) << (32 - 2 * tables.CELL_BITS)
    drawn = whole._by_first_words(law, [*given_words, jnp.asarray(both.astype(np.uint32))])
    np.testing.assert_array_equal(whole._undecided(drawn), tied[0] | tied[1])
    found = whole._by_all_words(drawn, law, key)
    expected = np.zeros(count, np.int64)
    stride = (int(law.stride), 1)
    drawn = np.concatenate(bits.random_halves(bits.source(key), 4, (count,))).astype(object)
    for side in (0, 1):
        more = drawn[4 * side : 4 * side + 4]
        whole_word, limit = (
            sum(part << shift for part, shift in zip(parts, tables.SHIFTS, strict=True))
            for parts in ((words[side], *more), thresholds[side])
        )
        alias = np.asarray(law.alias[side])[cells[side]]
        number = np.where(whole_word < limit, cells[side], alias)
        expected += stride[side] * (int(law.first[side]) + number)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("further", "below"), [((0, 0, 0), False), ((-1, 1, 1), True)])
def test_further_words_that_tie_are_told_by_those_after_them_too(further, below, monkeypatch):
    """Once in 2^63 draws; the first word that differs decides."""
    law = whole.Law(*map(jnp.asarray, whole.numbers(600.0)))
    limits = np.asarray(law.threshold[:, 1:])  # after the first word
    inside = ((limits > 0) & (limits < 2**32 - 1)).all(axis=1)
    cells = [int(np.flatnonzero(inside[side])[0]) for side in (0, 1)]
    words = [
        np.array([int(limits[side, place, cells[side]]) + shift], np.uint32)
        for side in (0, 1)
        for place, shift in enumerate((0, *further))
    ]
    halves = tuple(jnp.split(jnp.asarray(words), 2))
    monkeypatch.setattr(bits, "random_halves", lambda key, rows, shape: halves)
    found = whole._lower(law, jax.random.key(0), [jnp.array([cell]) for cell in cells])
    assert [bool(side[0]) for side in found] == [below, below]


def test_no_number_looks_like_one_that_is_undecided():
    """The largest numbers of any law are far from those that mark a tie."""
    for scale in (528.0, 111_000.0):
        law = whole.Law(*whole.numbers(scale))
        ends = [(int(first), int(first) + tables.CELLS - 1) for first in law.first]
        largest = int(law.stride) * max(map(abs, ends[0])) + max(map(abs, ends[1]))
        assert largest < 1 << 28


@given(st.integers(-3_000, 3_000), st.integers(-9, 9), st.sampled_from(SCALES[1:]))
def test_densities_are_those_of_the_rounded_normal(number, apart, scale):
    noise = whole.rounded_normal(scale)
    r, q, other = ring([number]), ring([0]), ring([apart])

    def exact(k: int) -> float:
        low, high = sorted((abs(k) - 0.5, abs(k) + 0.5))
        tail = scipy.special.log_ndtr([-low / scale, -high / scale])
        return tail[0] + math.log1p(-math.exp(tail[1] - tail[0]))

    if abs(number) > 20 * scale:
        return
    with jax.enable_x64(True):
        here, there = (float(noise.log_prob(r, world)) for world in (q, other))
        ratio = float(noise.log_ratio(r, q, other))
    assert here == pytest.approx(exact(number), rel=1e-5)
    assert ratio == pytest.approx(here - there, abs=1e-9, rel=1e-9)
    assert float(noise.log_ratio(r, q, other)) == pytest.approx(ratio, rel=2e-3, abs=1e-5)


def test_the_ratio_of_equal_worlds_is_nothing_and_wrapping_changes_none():
    noise = whole.rounded_normal(40.0)
    q, r = ring([2**31 - 3, 5]), ring([-(2**31) + 4, 9])
    assert float(noise.log_ratio(r, q, q)) == 0.0
    moved = [ring([1_000_000, 7]) + part for part in (r, q)]
    assert float(noise.log_prob(*moved)) == float(noise.log_prob(r, q))


@pytest.mark.seconds
def test_noise_is_added_mod_2_to_the_32_and_does_not_depend_on_the_statistics(key):
    noise = whole.rounded_normal(5.0)
    alone = noise.sample(key, jnp.zeros(500, jnp.uint32))
    for number in (7, 2**31 - 2, 2**32 - 1):
        statistics = jnp.full(500, number, jnp.uint32)
        np.testing.assert_array_equal(noise.sample(key, statistics) - statistics, alone)


def test_leaves_have_keys_of_their_own(key):
    both = whole.rounded_normal(400.0).sample(key, (jnp.zeros(900, jnp.uint32),) * 2)
    first, second = (np.asarray(leaf).view(np.int32) for leaf in both)
    assert scipy.stats.pearsonr(first, second).pvalue > FALSE_ALARM
    assert np.mean(first == second) < 0.02


@pytest.mark.seconds
def test_all_scales_share_one_program():
    """Laws are leaves of one shape, so a sweep over σ is a vmap and compiles once."""
    laws = [whole.rounded_normal(scale) for scale in SCALES]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *laws)
    key = jax.random.key(0)
    together = jax.vmap(lambda one: one.sample(key, jnp.zeros(50, jnp.uint32)))(stacked)
    for row, law in zip(together, laws, strict=True):
        np.testing.assert_array_equal(row, law.sample(key, jnp.zeros(50, jnp.uint32)))


@pytest.mark.parametrize("scale", [0.0, 0.4, -1.0, 111_001.0, 0.7, math.nan, math.inf])
def test_scales_that_no_table_holds_are_refused(scale):
    with pytest.raises(ValueError, match="scale must be a float32 number"):
        whole.rounded_normal(scale)


def test_the_distance_of_a_draw_is_what_is_booked():
    """Of 2^48 draws, at an ε of 20: less than 10^-12."""
    assert (1 + math.exp(20)) * 2.0**48 * whole.DISTANCE < 1e-12


@pytest.mark.parametrize("scale", [16.0, 100.0, 5000.0, 1e5])
def test_the_mass_of_a_cell_of_wide_noise_has_its_series(scale):
    """Against mpmath's integral, from the middle to where a cell's mass is at its end."""
    shares = (0, 0.01, 0.3, 0.99, 1.01, 3, 30)
    for number in {int(share * scale**2) for share in shares} | {1, int(3 * scale), int(8 * scale)}:
        if number >= 2**31:
            continue
        with mpmath.workdps(40):
            square = mpmath.mpf(scale) ** 2
            mass = mpmath.quad(
                lambda t, k=number, s=square: mpmath.exp(-(k * t + t * t / 2) / s),
                [-0.5, -0.25, 0, 0.25, 0.5],
            )
            expected = float(mpmath.log(mass))
        found = _log_inner(jnp.float32(scale), jnp.uint32([number]), jnp.zeros(1, jnp.uint32))
        assert float(found) == pytest.approx(expected, rel=2e-7, abs=2e-7)


def _log_inner(scale, response, statistics):
    """What a cell's mass is beyond its middle's density, added up over the cells."""

    def total(inner, scale, r, q):
        return jnp.sum(inner(scale, signed(r - q).astype(float)))

    return whole._by_scale(total, scale, response, statistics)


def test_one_cell_that_is_far_off_leaves_the_others_as_they_are():
    """A closed form is taken for all where one needs it; it is the short series' for the others."""
    scale, numbers = jnp.float32(20.0), [0, 3, -150, 399, 401, -5000]
    statistics = jnp.zeros((len(numbers), 1), jnp.uint32)
    responses = ring(numbers)[:, None]
    alone = [_log_inner(scale, *both) for both in zip(responses, statistics, strict=True)]
    together = _log_inner(scale, responses, statistics)
    assert float(together) == pytest.approx(sum(map(float, alone)), rel=1e-6)
    of_many = jax.vmap(_log_inner, in_axes=(None, 0, 0))(scale, responses, statistics)
    np.testing.assert_allclose(of_many, alone, rtol=1e-6)


@pytest.mark.seconds
def test_many_keys_at_once_draw_what_each_draws():
    laws = [whole.rounded_normal(scale).sample.args[0] for scale in (3.0, 500.0)]
    keys = jax.random.split(jax.random.key(2), 4)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *laws)
    draw = jax.vmap(lambda law, key: whole.draw(law, key, (5,)), in_axes=(None, 0))
    found = jax.jit(jax.vmap(draw, in_axes=(0, None)))(stacked, keys)
    for row, law in zip(found, laws, strict=True):
        for one, key in zip(row, keys, strict=True):
            np.testing.assert_array_equal(one, whole.draw(law, key, (5,)))


def test_only_a_draw_that_ties_costs_further_words_of_many_keys_too():
    """The compiled program still has its condition, where `vmap` would have made a choice of it."""
    law = whole.rounded_normal(500.0).sample.args[0]
    draw = jax.jit(jax.vmap(lambda key: whole.draw(law, key, (5,))))
    text = draw.lower(jax.random.split(jax.random.key(2), 4)).as_text()
    assert "stablehlo.case" in text
