"""The audits of entries, values, support and tails of noise, on numbers drawn for each."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, norm

from audits.finding import ALPHA
from audits.mechanism import noise_entries, noise_law, noise_values
from dpmf_jax.noise import ring
from tests.zoo.sound import sound

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_independent_entries_are_not_called_dependent():
    """The chi square is too careful for few columns and right for many: 600 p-values, one below
    1e-4 at most.
    """
    random = np.random.default_rng(0)
    p = {
        m: [noise_entries.friedman(random.normal(size=(64, m)))[1] for _ in range(200)]
        for m in (2, 5, 30)
    }
    assert np.sum(np.array(list(p.values())) <= ALPHA) <= 1
    assert np.mean(np.array(p[2]) < 0.05) < 0.05
    assert 0.01 < np.mean(np.array(p[30]) < 0.05) < 0.1


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_entries_that_share_a_variance_are_seen_by_their_size_alone(share):
    random = np.random.default_rng(1)
    rows = random.normal(size=(256, 20))
    spread = np.sqrt(2 * random.exponential(size=(256, 1)))
    rows[:, : int(20 * share)] *= spread
    _, signs = noise_entries.friedman(rows)
    _, sizes = noise_entries.friedman(np.abs(rows))
    assert signs > 1e-3
    assert sizes < ALPHA


def test_the_bound_on_repeated_values_holds_for_the_real_sampler():
    """With room for what the sampler rounds together, and none for a grid of a sixteenth as
    many.
    """
    x = np.asarray(jax.random.normal(jax.random.key(0), (1 << 9, 1 << 9)))
    found = noise_values.of_floats(x.astype(np.float64), {})
    assert found.verdict == "consistent"
    assert 0.3 * found.claimed < found.measured < found.claimed
    coarser = np.round(x.astype(np.float64) * 2**15) / 2**15
    assert noise_values.of_floats(coarser, {}).verdict == "violated"


@pytest.mark.parametrize("words", [(), ("float32 normals end at 5.42",), ("noise is normal",)])
def test_what_float32_costs_is_stated_and_no_verdict_hangs_on_words(words):
    guarantee = dataclasses.replace(sound("gaussian-joint-noise").guarantee(6), assumptions=words)
    x = np.asarray(jax.random.normal(jax.random.key(0), (1 << 10, 1 << 10)))
    found = noise_law._support(x, guarantee, 10**6, {})
    assert found.verdict == "consistent"
    assert (
        found.details["beyond_float32"] > found.details["delta"]
    )  # a response beyond the support is likelier than δ
    assert np.max(np.abs(x)) == found.measured > found.claimed


def apart(*leaves):
    noisy = [np.ones(leaf.shape[1:], bool) for leaf in leaves]
    return noise_entries.finding(list(leaves), noisy, {})


SHAPES = ((300, 8, 3), (300, 5))
KEPT = {
    "signs, a column of leaf 0": (0, np.s_[:, :, 1], 1),
    "signs, a row of leaf 0": (0, np.s_[:, 2, :], 1),
    "signs, leaf 1": (1, np.s_[:, :], 1),
}


@pytest.mark.parametrize("where", KEPT)
@pytest.mark.parametrize("grid", [0.0, 0.5])
def test_a_total_that_is_kept_is_seen_where_it_is(where, grid):
    random = np.random.default_rng(0)
    leaves = [random.normal(size=shape) for shape in SHAPES]
    place, part, axis = KEPT[where]
    leaves[place][part] -= leaves[place][part].mean(axis=axis, keepdims=True)
    if grid:  # nearly kept
        leaves = [np.round(leaf / grid) * grid for leaf in leaves]
    found = apart(*leaves)
    assert found.verdict == "violated"
    assert found.details["p_values"][where] < ALPHA / 10
    assert found.measured < 0.3


def test_sizes_that_make_up_for_each_other_are_seen():
    """Noise of a fixed length: signs are independent."""
    drawn = np.random.default_rng(0).normal(size=(512, 6))
    found = apart(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))
    assert (found.verdict, found.details["worst"]) == ("violated", "sizes, all entries")


@pytest.mark.parametrize("grid", [0.0, 1.5])  # numbers of which many are equal
def test_independent_entries_keep_no_total(grid):
    random, found = np.random.default_rng(0), []
    for _ in range(200):
        leaves = [random.normal(size=shape) for shape in ((64, 6, 3), (64, 4))]
        leaves = [np.round(leaf / grid) * grid for leaf in leaves] if grid else leaves
        found.append(apart(*leaves).details["p_value"])
    assert np.min(found) > ALPHA
    assert np.mean(np.array(found) <= 0.05) < 0.1


LARGE = ((600, 20, 5), (600, 40))


def _shared_by_two(leaves):
    leaves[0][:, 11, 3] = leaves[0][:, 10, 3]


def _shared_by_two_far_apart(leaves):
    leaves[1][:, 31] = -leaves[1][:, 2]


def _shared_a_little_by_two(leaves):
    leaves[0][:, 11, 3] += leaves[0][:, 10, 3]


def _shared_by_leaves(leaves):
    leaves[1] += 0.2 * leaves[0].reshape(600, -1)[:, :40]


def _signed_total_is_kept(leaves):
    signs = np.random.default_rng(5).choice([-1, 1], 40)
    leaves[1] -= signs * np.mean(signs * leaves[1], axis=1, keepdims=True)


def _direction_is_kept(leaves):
    along = np.zeros(20)
    along[np.random.default_rng(6).permutation(20)[:7]] = np.random.default_rng(7).normal(size=7)
    along /= np.linalg.norm(along)
    leaves[0][:, :, 2] -= np.outer(leaves[0][:, :, 2] @ along, along)


def _shared_with_signs(leaves):
    signs = np.random.default_rng(8).choice([-1, 1], 40)
    leaves[1] += 0.5 * signs * np.random.default_rng(9).normal(size=(600, 1))


DEPENDENT = {
    _shared_by_two: "two of the neighbours",
    _shared_by_two_far_apart: "all pairs of 140 entries",
    _shared_a_little_by_two: "two of the neighbours",
    _shared_by_leaves: "all the same place of two leaves",
    _signed_total_is_kept: "a combination kept",
    _direction_is_kept: "a combination kept",
    _shared_with_signs: "a combination shared",
}


@pytest.mark.parametrize("change", DEPENDENT, ids=lambda change: change.__name__[1:])
@pytest.mark.parametrize("law", ["normal", "laplace"])
def test_entries_that_share_noise_are_seen_by_the_test_that_is_made_for_it(change, law):
    random = np.random.default_rng(3)
    leaves = [getattr(random, law)(size=shape) for shape in LARGE]
    assert apart(*leaves).verdict == "consistent"
    change(leaves)
    found = apart(*leaves)
    assert found.verdict == "violated"
    assert found.details["p_values"][DEPENDENT[change]] < ALPHA / 10


@pytest.mark.parametrize("law", ["normal", "laplace", "standard_cauchy"])
def test_no_test_of_independent_entries_says_more_than_it_may(law):
    """300 runs: of each test as many p-values below 1 in 20 as it may have, and few more."""
    random, found = np.random.default_rng(0), []
    for _ in range(300):
        leaves = [getattr(random, law)(size=shape) for shape in ((64, 12, 4), (64, 9), (64,))]
        found.append(list(apart(*leaves).details["p_values"].values()))
    p_values = np.array(found)
    assert p_values.shape[1] == 8
    assert np.min(p_values) > ALPHA / 10
    assert np.max(np.mean(p_values <= 0.05, axis=0)) < 0.09


# --- whole numbers


def values_of(*leaves, deviation=1000.0, normal=True):
    seen = noise_values.Whole(deviation, normal=normal)
    seen.add([leaf[200:] for leaf in leaves])
    return seen.finding([leaf[:200] for leaf in leaves], {})


def whole_normals(seed, shape=(4000, 50), deviation=1000.0):
    random = np.random.default_rng(seed)
    return np.round(deviation * random.normal(size=shape)).astype(np.int64)


def _rarely_none(leaf):
    leaf[np.random.default_rng(1).random(len(leaf)) < 1 / 500] = 0


def _entries_rarely_none(leaf):
    leaf[np.random.default_rng(1).random(leaf.shape) < 1 / 500] = 0


def _rarely_the_same(leaf):
    leaf[np.random.default_rng(1).random(leaf.shape) < 1 / 300] = 777


def _even(leaf):
    leaf &= ~1


def _a_fifth_in_eights(leaf):
    leaf[:, ::5] &= ~7


def _one_entry_odd(leaf):
    leaf[:, 7] |= 1


def _multiples_of_five(leaf):
    leaf[:, 3] -= leaf[:, 3] % 5


OFTEN = (
    *(_rarely_none, _entries_rarely_none, _rarely_the_same),
    *(_even, _a_fifth_in_eights, _one_entry_odd, _multiples_of_five),
)


@pytest.mark.parametrize("change", OFTEN, ids=lambda change: change.__name__[1:])
def test_whole_numbers_that_come_too_often_are_seen(change):
    leaf = whole_normals(0)
    assert values_of(leaf).verdict == "consistent"
    change(leaf)
    assert values_of(leaf).verdict == "violated"


def test_sound_whole_numbers_do_not_come_too_often():
    found = [values_of(whole_normals(seed, (600, 40))).details["p_value"] for seed in range(200)]
    assert np.min(found) > ALPHA
    assert np.mean(np.array(found) <= 0.05) < 0.1
    narrow = values_of(whole_normals(0, deviation=5.0), deviation=5.0)
    assert narrow.verdict == "not applicable"


@pytest.mark.parametrize("scale", [100.0, 5e3, 2.0**20])
def test_a_sound_discrete_laplace_is_not_called_uneven(scale):
    law = ring.discrete_laplace(scale)
    drawn = law.sample(jax.random.key(1), jnp.zeros((20_000, 50), jnp.uint32))
    leaf = np.asarray(drawn).view(np.int32).astype(np.int64)
    found = values_of(leaf, deviation=scale * 2**0.5, normal=False)
    assert (found.verdict, bool(found.details["moduli"])) == ("consistent", scale > 2e3)


def tails(noise, sigma, whole):
    found = noise_law.Tails(sigma, whole=whole)
    for some in noise:
        found.add(some)
    return found.finding({})


@pytest.mark.parametrize("sigma", [0.4, 1.3, 90.0])
def test_rounded_normals_have_the_tails_that_are_expected(sigma):
    random = np.random.default_rng(0)
    p_values = [
        tails([np.round(sigma * random.normal(size=(4, 2500)))] * 1, sigma, True).details["p_value"]
        for _ in range(200)
    ]
    assert np.min(p_values) > ALPHA
    assert np.mean(np.array(p_values) <= 0.05) < 0.1


def test_tails_that_are_too_light_or_heavy_are_seen():
    random = np.random.default_rng(0)
    twelve = random.random((12, 1 << 20)).sum(axis=0) - 6
    heavy = np.concatenate([1.05 * random.normal(size=1 << 19), 0.95 * random.normal(size=1 << 19)])
    assert tails([twelve], 1.0, False).verdict == "violated"
    assert tails([heavy], 1.0, False).measured > 1
    assert tails([heavy], 1.0, False).verdict == "violated"
    assert tails([random.normal(size=1 << 20)], 1.0, False).verdict == "consistent"


@pytest.mark.parametrize("total", [3_000, 200_000])
def test_the_power_over_tails_is_that_of_simulated_counts(total):
    """As many draws beyond as are stated are refuted in 95% of runs, by the test as it stands."""
    random, level = np.random.default_rng(0), ALPHA / (2 * len(noise_law.BEYOND))
    for t in noise_law.BEYOND:
        chance = 2 * norm.sf(t)
        seen, _, _ = noise_law._seen_beyond(t, total, chance, level).partition(" times")
        *low, high = re.findall(r"\d+\.\d+", seen)
        assert len(low) == (binom.cdf(0, total, chance) <= level)  # where none at all says enough
        for stated in (*low, high):
            counts = random.binomial(total, float(stated) * chance, size=20_000)
            tail = np.minimum(binom.sf(counts - 1, total, chance), binom.cdf(counts, total, chance))
            assert np.mean(tail <= level) > 0.945
            assert np.mean(tail <= level) < 0.999 or float(stated) < 0.2


@pytest.mark.parametrize("cut", [3.0, 4.0])
def test_noise_that_is_cut_off_early_is_seen_and_so_much_less_is_not(cut):
    guarantee = sound("gaussian-joint-noise").guarantee(6)
    x = np.asarray(jax.random.normal(jax.random.key(0), (1 << 10, 1 << 10)))
    assert noise_law._support(np.clip(x, -cut, cut), guarantee, 10**6, {}).verdict == "violated"
    assert noise_law._support(x[:4], guarantee, 10**6, {}).verdict == "consistent"
    alarms = [
        noise_law._support(some, guarantee, 10**6, {}).details["p_value"] <= 0.05 for some in x
    ]
    assert sum(alarms) <= 0.09 * len(alarms)
