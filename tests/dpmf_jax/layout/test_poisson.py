"""The Poisson sample really is one: sizes, pairs, the same members in neighbouring worlds, a bound
on the capacity.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.extend.random import threefry_2x32

from dpmf_jax import layout
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import poisson
from dpmf_jax.noise import chacha
from tests.cases.layout import KINDS
from tests.cases.ordered import CASES, make
from tests.cases.processes import python

FALSE_ALARM = 1e-5  # of each statistical test here; keys are fixed, so it can only go off once
RATINGS = make(*CASES["one heavy user"])
DRAWS = 3000
compiled = jax.jit(poisson.sample, static_argnums=3)


def sample(*arguments):
    return poisson.Sample(*jax.device_get(tuple(compiled(*arguments))))


def slots_of(data, sample):
    """user · items + item of the members, which names a rating in any layout; -1 elsewhere."""
    return np.where(
        sample.present, np.asarray(sample.user) * data.num_items + np.asarray(sample.item), -1
    )


def members(kind, rate, key, data=None, capacity=None):
    """bool[draws, ratings]: who is in."""
    data = layout.make(RATINGS, kind=kind, num_devices=1) if data is None else data
    capacity = poisson.capacity_for(poisson.num_slots(data), rate) if capacity is None else capacity
    draw = jax.jit(
        lambda key, data: jax.vmap(lambda k: poisson.sample(data, k, rate, capacity))(key)
    )
    found = slots_of(data, draw(jax.random.split(key, DRAWS), data))
    cells = np.zeros((DRAWS, data.num_users * data.num_items + 1), int)
    np.add.at(cells, (np.arange(DRAWS)[:, None], found), 1)
    assert cells[:, :-1].max() <= 1  # nobody twice
    cells = cells[:, :-1]
    stored = RATINGS.user * data.num_items + RATINGS.item
    assert cells.sum() == cells[:, stored].sum()  # nobody who is not stored
    return cells[:, stored].astype(bool)


@pytest.mark.one_case
@pytest.mark.parametrize("rate", [0.02, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_sizes_and_rates_are_binomial(key, kind, rate):
    drawn = members(kind, rate, key)
    n = RATINGS.num_ratings
    sizes = drawn.sum(1)
    law = scipy.stats.binom(n, rate)
    edges = np.unique(law.ppf(np.linspace(0.05, 0.95, 15)))
    cuts = np.concatenate([[-1], edges, [n]])
    counts = np.histogram(sizes, cuts + 0.5)[0]
    expected = DRAWS * np.diff(law.cdf(cuts))
    assert scipy.stats.chisquare(counts, expected * DRAWS / expected.sum()).pvalue > FALSE_ALARM
    z = (sizes.mean() - n * rate) / np.sqrt(n * rate * (1 - rate) / DRAWS)
    assert 2 * scipy.stats.norm.sf(abs(z)) > FALSE_ALARM
    # its standard deviation is about √(2/draws)
    spread = sizes.var(ddof=1) / (n * rate * (1 - rate)) - 1
    assert 2 * scipy.stats.norm.sf(abs(spread) / np.sqrt(2 / DRAWS)) > FALSE_ALARM
    each = scipy.stats.binom(DRAWS, rate)
    low, high = drawn.sum(0).min(), drawn.sum(0).max()
    assert 2 * n * min(each.cdf(low), each.sf(high - 1)) > FALSE_ALARM


def test_members_are_independent_in_pairs_and_from_draw_to_draw(key):
    rate = 0.3
    drawn = (members("split", rate, key) - rate) / np.sqrt(rate * (1 - rate))
    n = drawn.shape[1]
    for product in (
        drawn.T @ drawn / np.sqrt(DRAWS),
        drawn[1:].T @ drawn[:-1] / np.sqrt(DRAWS - 1),
    ):
        z = product[~np.eye(n, dtype=bool)]
        assert 2 * z.size * scipy.stats.norm.sf(np.abs(z).max()) > FALSE_ALARM
        assert abs(z.var() - 1) < 0.05


def pair_words(key, user, item):
    """One word for each rating, of its user and item, from either generator's blocks."""
    data = jax.random.key_data(key)
    if len(data) == 2:
        both = jnp.concatenate([user, item]).astype(jnp.uint32)
        return np.bitwise_xor(*np.asarray(threefry_2x32(data, both)).reshape(2, -1))
    return np.array(
        [
            np.asarray(chacha.blocks(data, jnp.array([i // 16], jnp.uint32), (u, 0, 4)))[i % 16, 0]
            for u, i in zip(user.tolist(), item.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("rate", [0.1, 1.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("generator", ["threefry2x32", chacha.IMPL])
def test_members_are_those_whose_word_is_small_in_the_order_of_slots(kind, rate, generator):
    key = jax.random.key(5, impl=generator)
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    chosen = np.ones(RATINGS.num_ratings, bool)
    if rate < 1:
        below = np.floor(np.float32(rate) * ((1 - 2.0**-22) * 2.0**32))
        chosen = pair_words(key, RATINGS.user, RATINGS.item).astype(np.float64) < below
        assert 0 < chosen.sum() < len(chosen)
    found = sample(data, key, rate, poisson.num_slots(data))
    expected = np.sort((RATINGS.user * data.num_items + RATINGS.item)[chosen])
    slots = slots_of(data, found)
    np.testing.assert_array_equal(np.sort(slots[found.present]), expected)
    assert found.present[: len(expected)].all()
    everybody = slots_of(data, sample(data, key, 1.0, poisson.num_slots(data)))
    kept = everybody[np.isin(everybody, expected)]
    np.testing.assert_array_equal(slots[: len(expected)], kept)


def test_a_row_of_words_is_the_words_of_its_pairs():
    data = jax.random.key_data(jax.random.key(1, impl=chacha.IMPL))
    rows = np.asarray(chacha.row_words(data, jnp.arange(9, dtype=jnp.uint32), 37))
    user, item = (part.ravel().astype(np.uint32) for part in np.indices((9, 37)))
    pairs = chacha.pair_words(data, jnp.asarray(user), jnp.asarray(item))
    np.testing.assert_array_equal(rows.ravel(), pairs)
    assert len(np.unique(rows)) == rows.size


@pytest.mark.one_case
@pytest.mark.parametrize("share", [0.0, 0.002, 0.3, 1.0])
@pytest.mark.parametrize("size", [1, 31, 32, 33, 5_000])
def test_places_of_members_are_found(size, share):
    places = jax.jit(poisson._first_true, static_argnums=1)
    chosen = np.random.default_rng(size).random(size) < share
    true = np.flatnonzero(chosen)
    for capacity in (0, 1, size // 2, size, size + 40):
        at, found = (np.asarray(part) for part in places(jnp.asarray(chosen), capacity))
        number = min(len(true), capacity)
        assert found.sum() == number
        np.testing.assert_array_equal(
            at, np.where(found, np.append(true, [0] * capacity)[:capacity], 0)
        )


@pytest.mark.seconds
def test_several_devices_draw_what_one_draws():
    python(
        """
        import jax, numpy as np
        from dpmf_jax import layout
        from dpmf_jax.layout import poisson
        from dpmf_jax.noise import chacha
        from tests.cases import layout as t
        ratings = t.make_ratings(t.ragged())
        draw = jax.jit(poisson.sample, static_argnums=3)
        for kind in ("split", "dense"):
            for capacity, generator in ((40, chacha.IMPL), (3000, None)):
                one, *others = (
                    layout.make(ratings, kind=kind, num_devices=devices) for devices in (1, 2, 4))
                for rate, impl in ((0.0, None), (0.3, None), (0.3, generator), (1.0, None)):
                    key = jax.random.key(3, impl=impl)
                    expected = jax.device_get(draw(one, key, rate, capacity))
                    assert expected.present.any() == (rate > 0)
                    for data in others:
                        drawn = jax.device_get(draw(data, key, rate, capacity))
                        jax.tree.map(np.testing.assert_array_equal, expected, drawn)
        """,
        devices=4,
        quick=True,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_draw_the_same(key, kind):
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    capacity = poisson.capacity_for(poisson.num_slots(data), 0.3)
    user, item = int(RATINGS.user[5]), int(RATINGS.item[5])
    place = layout.locate(data, user, item)
    worlds = (
        layout.remove_rating(data, place),
        layout.replace_value(data, place, 0.5),
        layout.remove_user(data, user),
    )
    was_in = 0
    for k in jax.random.split(key, 12):
        base = sample(data, k, 0.3, capacity)
        target = (base.user == user) & (base.item == item)
        was_in += int(target.sum())
        gone, changed, left = (sample(world, k, 0.3, capacity) for world in worlds)
        np.testing.assert_array_equal(changed.present, base.present)
        np.testing.assert_array_equal(changed.value, np.where(target, 0.5, base.value))
        for world, stays in ((gone, ~target), (left, base.user != user)):
            for part, other in zip(world[:3], base[:3], strict=True):
                np.testing.assert_array_equal(part[world.present], other[base.present & stays])
            assert (world.user[~world.present] == data.num_users).all()
            assert (world.item[~world.present] == data.num_items).all()
            assert (world.value[~world.present] == 0).all()
    assert 0 < was_in < 12  # both cases were seen


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_ratings_and_keys_matter(key, kind):
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    everyone = sample(data, key, 1.0, poisson.num_slots(data))
    value = np.zeros((data.num_users, data.num_items), np.float32)
    value[RATINGS.user, RATINGS.item] = RATINGS.value
    present = np.asarray(everyone.present)
    assert present.sum() == RATINGS.num_ratings
    users, items = np.asarray(everyone.user)[present], np.asarray(everyone.item)[present]
    np.testing.assert_array_equal(np.asarray(everyone.value)[present], value[users, items])
    assert not sample(data, key, 0.0, 50).present.any()
    draws = [slots_of(data, sample(data, k, 0.3, 200)) for k in jax.random.split(key)]
    again = slots_of(data, sample(data, jax.random.split(key)[0], 0.3, 200))
    assert set(draws[0]) != set(draws[1])
    np.testing.assert_array_equal(draws[0], again)


def test_a_small_capacity_keeps_the_first_members(key):
    data = layout.make(RATINGS, kind="split", num_devices=1)
    whole, part = (sample(data, key, 0.5, capacity) for capacity in (poisson.num_slots(data), 10))
    for a, b in zip(whole, part, strict=True):
        np.testing.assert_array_equal(a[:10], b)


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.01, 0.37, 0.999, 1.0])
def test_the_rate_is_never_exceeded_and_hardly_missed(rate):
    """Of the 2³² equally likely words, those that let a rating in."""
    below = int(poisson.threshold(jnp.float32(rate)))
    share = 1.0 if rate == 1 else below / 2**32
    assert rate * (1 - 2**-21) - 2**-32 <= share <= rate


@pytest.mark.parametrize(
    ("slots", "rate"), [(1, 0.5), (1000, 0.01), (10**6, 0.001), (10**7, 0.5), (30, 0.99)]
)
def test_capacity_is_the_smallest_that_holds(slots, rate):
    capacity = poisson.capacity_for(slots, rate)
    law = scipy.stats.binom(slots, rate)
    assert law.sf(capacity) <= 1e-15 < law.sf(capacity - 1)


def test_capacity_at_the_edges():
    assert [poisson.capacity_for(n, q) for n, q in ((0, 0.5), (9, 0.0), (9, 1.0))] == [0, 0, 9]
    for n, q in ((-1, 0.5), (9, -0.1), (9, 1.1), (9, float("nan"))):
        with pytest.raises(UsageError):
            poisson.capacity_for(n, q)
