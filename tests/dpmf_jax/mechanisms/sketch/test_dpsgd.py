"""DP-SGD on a count sketch: clip after the scatter, collisions forced; one step against NumPy;
noise on every cell.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audits.mechanism import post_processing, sampler, sensitivity
from dpmf_jax import layout, protocol
from dpmf_jax.kernels import count_sketch
from dpmf_jax.kernels.count_sketch import ITEMS, USERS
from dpmf_jax.mechanisms.sketch import dpsgd as sketch_dpsgd
from dpmf_jax.noise import keys, whole
from dpmf_jax.noise import laws as noise
from tests.cases.sampled import EMPTY, in_reals, neighbours, query, rated_at, unit

pytestmark = pytest.mark.usefixtures("quick_compilation")

FALSE_ALARM = 1e-5


SMALL = rated_at(np.argwhere(np.random.default_rng(1).random((7, 5)) < 0.5), (7, 5))
TINY = 16.0  # a gain at which the table of SMALL has rows of one cell to a few


def config(**settings):
    usual = {
        "rating_range": (0.5, 5.0),
        "num_steps": 5,
        "sampling_rate": 0.5,
        "noise_multiplier": 1.5,
        "rank": 4,
    }
    more = {
        "learning_rate": 0.05,
        "regularization": 0.3,
        "clip_norm": 0.8,
        "depth": 3,
        "initial_scale": 1.0,
    }
    return sketch_dpsgd.Config(**usual | more | settings)


def begun(mechanism, data, seed=3):
    return protocol.begin(mechanism, keys.from_seed(seed), data)


def scattered(public, user, item, value):
    """One table per rating, float64[ratings, depth, width]: what it alone makes of an empty one,
    unclipped.
    """
    depth, width = public.table.shape
    rank, how = public.rank, public.query
    table = np.asarray(public.table, np.float64)
    out = np.zeros((len(user), depth, width))
    every = [
        [
            np.asarray(part)
            for part in count_sketch.cells(public.hashes, family, ids, rank=rank, width=width)
        ]
        for family, ids in ((USERS, user), (ITEMS, item))
    ]
    average = {"mean": np.mean, "median": np.median}[how]
    for place, r in enumerate(value):
        cells = [(addresses[place], signs[place]) for addresses, signs in every]
        p, q = (
            average([s[row] * table[row, a[row]] for row in range(depth)], axis=0) for a, s in cells
        )
        error = r - float(public.center) - p @ q
        for (addresses, signs), change in zip(cells, (error * q, error * p), strict=True):
            for row in range(depth):
                for component in range(rank):
                    out[place, row, addresses[row, component]] += (
                        signs[row, component] * change[component]
                    )
    return out


# --- the clip


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("gain", "how"), [(0.5, "mean"), (2.0, "median"), (TINY, "mean"), (TINY, "median")]
)
def test_each_rating_is_clipped_by_its_norm_in_the_table(gain, how):
    """Against an oracle that scatters into an empty table; at the largest gain a row has a cell or
    two.
    """
    mechanism = sketch_dpsgd.mechanism(config(sampling_rate=1.0, gain=gain, query=how))
    data = layout.make(SMALL, kind="dense", num_devices=1)
    state = begun(mechanism, data)
    total, info = query(mechanism, state, data, keys.from_seed(0))
    each = scattered(state.public, SMALL.user, SMALL.item, SMALL.value)
    norm = np.linalg.norm(each, axis=(1, 2), keepdims=True)
    assert (norm > 0.8).mean() > 0.1
    expected = np.sum(each * np.minimum(1, 0.8 / np.maximum(norm, 1e-30)), 0)
    found = unit(mechanism) * in_reals(total)
    # an entry is off by half a unit, and a cell of the tiny table has hundreds of them
    np.testing.assert_allclose(found, expected, atol=0.01 * np.abs(expected).max())
    near = np.abs(norm / 0.8 - 1) < 0.02
    assert abs(float(info.clipped_fraction) - (norm > 0.8).mean()) <= near.mean() + 1e-6
    if (
        gain == TINY
    ):  # collisions are there, or each norm would be √depth times that of the gradient
        users, items = (
            np.asarray(rows, np.float64)
            for rows in (state.public.user_factors, state.public.item_factors)
        )
        p, q = users[SMALL.user], items[SMALL.item]
        alone = np.sqrt(3 * np.sum(p**2 + q**2, 1)) * np.abs(SMALL.value - 2.75 - np.sum(p * q, 1))
        assert np.max(np.abs(norm.ravel() / alone - 1)) > 0.2


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 3, 40]),
    st.sampled_from([1, 3, 8, 64]),
    st.booleans(),
)
def test_scattered_norms_are_those_of_the_table(seed, width, entries, cancelling):
    """Also where all entries share a cell and are as large as they can be."""
    rng = np.random.default_rng(seed)
    addresses = rng.integers(0, width, (600, 2, entries)).astype(np.int32)  # more than one block
    signs = np.where(rng.random(addresses.shape) < 0.5, -1, 1).astype(np.float32)
    rows = np.floor(4096 * rng.random((600, entries)) * (2 / entries) ** 0.5)
    rows[0] = 4096 * (2 / entries) ** 0.5 // 1
    signs[0] = 1
    if cancelling:
        rows[1:, 1::2] = rows[1:, 0 : entries - 1 : 2]
        signs[1:, :, 1::2] = -signs[1:, :, 0 : entries - 1 : 2]
    norms = []
    for values in (signs * rows[:, None, :], np.ones(addresses.shape)):
        table = np.zeros((600, 2, width))
        places = np.arange(600)[:, None, None], np.arange(2)[None, :, None], addresses
        np.add.at(table, places, values.astype(np.float64))
        norms.append(np.linalg.norm(table, axis=(1, 2)))
    arguments = addresses, signs, rows.astype(np.float32)
    found = jax.jit(sketch_dpsgd.scattered_norms)(*arguments)
    for ours, exact in zip(found, norms, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=2.0**-22)


@pytest.mark.seconds
@pytest.mark.one_case
@pytest.mark.parametrize(("gain", "rate"), [(TINY, 1.0), (4.0, 0.5)])
def test_no_rating_added_removed_or_changed_moves_the_table_by_more_than_its_bound(gain, rate):
    mechanism = sketch_dpsgd.mechanism(config(sampling_rate=rate, gain=gain))
    data = layout.make(SMALL, kind="dense", num_devices=1)
    others, which = neighbours(data)
    present = np.asarray(data.stored.present).ravel()
    presence, value = [], []
    run = jax.jit(
        lambda state, others, k: jax.lax.map(
            lambda d: mechanism.query(state, d, mechanism.coins(k))[0], others
        )
    )
    for seed in range(3):
        state, coins = begun(mechanism, data, seed), keys.from_seed(seed)
        one = in_reals(query(mechanism, state, data, coins)[0])
        distance = np.linalg.norm(in_reals(run(state, others, coins)) - one, axis=(1, 2))
        same = present[which[:, 0]] == which[:, 1]
        presence += distance[~same].tolist()
        value += distance[same & (which[:, 1] == 1)].tolist()
    assert 0.98 * 4094 < max(presence) <= 4094  # in whole numbers, so there is nothing to round
    assert 1.9 * 4094 < max(value) <= 2 * 4094


@pytest.mark.parametrize(("bad", "counts_as"), [(np.nan, 2.75), (np.inf, 5.0), (-3e38, 0.5)])
def test_what_is_no_rating_counts_as_the_middle_or_an_end_of_the_range(bad, counts_as):
    data = layout.make(SMALL, kind="dense", num_devices=1)
    mechanism = sketch_dpsgd.mechanism(config(sampling_rate=1.0))
    state = begun(mechanism, data)
    place = layout.locate(data, SMALL.user[3], SMALL.item[3])
    total, expected = (
        query(mechanism, state, layout.replace_value(data, place, jnp.float32(v)), key)[0]
        for v, key in ((bad, keys.from_seed(0)), (counts_as, keys.from_seed(0)))
    )
    np.testing.assert_array_equal(total, expected)


# --- one step


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("gain", "depth", "how", "kind"),
    [(1.0, 3, "mean", "split"), (4.0, 1, "mean", "dense"), (2.0, 4, "median", "dense")],
)
def test_without_noise_and_clip_all_ratings_make_a_plain_step(gain, depth, how, kind):
    made = config(sampling_rate=1.0, clip_norm=90.0, decay=3.0, gain=gain, depth=depth, query=how)
    mechanism = sketch_dpsgd.mechanism(made)._replace(noise=noise.none())
    data = layout.make(SMALL, kind=kind, num_devices=1)
    state = begun(mechanism, data)._replace(step=jnp.int32(2))
    after, info = protocol.train(mechanism, keys.from_seed(0), state, data, 1)
    each = scattered(state.public, SMALL.user, SMALL.item, SMALL.value)
    eta = 0.05 / (1 + 3 * 2 / 5)
    expected = (1 - eta * 0.3) * np.asarray(state.public.table, np.float64) + eta * each.sum(0)
    # a cell's entries are off by half a unit each, and by what rounding does to residuals
    rough = eta * 8 * (unit(mechanism) + 2.25 / 4096 * 4)
    np.testing.assert_allclose(after.public.table, expected, rtol=2e-5, atol=rough)
    assert np.abs(eta * each.sum(0)).max() > 10 * rough
    users, items = state.public.user_factors, state.public.item_factors
    error = (
        SMALL.value
        - 2.75
        - np.sum(np.asarray(users)[SMALL.user] * np.asarray(items)[SMALL.item], 1)
    )
    assert float(info.loss[0]) == pytest.approx(np.mean(error**2), rel=2e-3)
    assert float(info.clipped_fraction[0]) == 0
    np.testing.assert_array_equal(after.public.hashes.words, state.public.hashes.words)
    assert after.public.center == 2.75


@pytest.mark.seconds
def test_it_learns():
    """Ratings of two kinds of users and items: the error falls well below the ratings' variance,
    with noise.
    """
    signs = np.where(np.random.default_rng(2).random(100) < 0.5, -1, 1)
    pairs = np.argwhere(np.random.default_rng(3).random((60, 40)) < 0.6)
    value = (3 + 2 * signs[pairs[:, 0]] * signs[60 + pairs[:, 1]]).astype(np.float32)
    two = dataclasses.replace(rated_at(pairs, (60, 40)), value=value, rating_range=(1.0, 5.0))
    made = config(
        rating_range=(1.0, 5.0),
        sampling_rate=0.3,
        noise_multiplier=0.3,
        num_steps=80,
        clip_norm=2.0,
        learning_rate=0.01,
        regularization=0.1,
        initial_scale=0.3,
        depth=2,
    )
    mechanism, data = sketch_dpsgd.mechanism(made), layout.make(two, num_devices=1)
    _, info = protocol.train(mechanism, keys.from_seed(6), begun(mechanism, data), data, 80)
    assert info.loss[0] > 3
    assert info.loss[-5:].mean() < 1.5


# --- noise


@pytest.mark.seconds
def test_the_noise_is_the_one_that_was_promised_on_every_cell():
    mechanism = sketch_dpsgd.mechanism(config(sampling_rate=0.1))
    promised = mechanism.guarantee(1)
    units = promised.noise_multiplier * promised.sensitivity
    sigma = units * unit(mechanism)
    assert sigma == pytest.approx(1.5 * 0.8)
    data = layout.make(EMPTY, kind="dense", num_devices=1)
    state = begun(mechanism, data)

    def drawn(mechanism, steps=8):
        for seed in range(steps):
            after, _ = protocol.train(mechanism, keys.from_seed(seed), state, data, 1)
            yield (
                np.asarray(after.public.table) - (1 - 0.05 * 0.3) * np.asarray(state.public.table)
            ) / (0.05 / 0.1)

    found = np.stack(list(drawn(mechanism)))
    critical = sampler.critical_distance(found.size, FALSE_ALARM) + 1e-4
    assert (found.std(0) > 0).all()
    assert sampler.kolmogorov_smirnov(found, sigma) < critical
    for factor in (2 / 3, 3 / 2):
        wrong = mechanism._replace(noise=whole.rounded_normal(float(np.float32(factor * units))))
        assert sampler.kolmogorov_smirnov(np.stack(list(drawn(wrong))), sigma) > critical


@pytest.mark.seconds
def test_noise_in_a_queried_coordinate_is_that_of_dense_steps():
    """z·C of the table at clip √depth·C, read as a mean over depth rows, has standard deviation
    z·C.
    """
    data = layout.make(EMPTY, kind="dense", num_devices=1)
    made = config(depth=4, clip_norm=2.0, regularization=0.0, initial_scale=1e-9, gain=0.25)
    mechanism = sketch_dpsgd.mechanism(made)
    after, _ = protocol.train(mechanism, keys.from_seed(8), begun(mechanism, data), data, 1)
    read = np.asarray(after.public.user_factors) / (0.05 / 0.5)
    assert np.std(read) == pytest.approx(
        1.5, rel=0.12
    )  # 1,200 coordinates, of which some share cells


# --- as any mechanism


@pytest.mark.seconds
def test_a_sweep_over_numbers_compiles_once():
    data = layout.make(SMALL, kind="split", num_devices=1)

    def run(**settings):
        mechanism = sketch_dpsgd.mechanism(config(**settings))
        protocol.train(mechanism, keys.from_seed(0), begun(mechanism, data), data, 2)

    run()
    before = protocol.train._cache_size(), protocol._init._cache_size()
    run(
        learning_rate=0.01,
        decay=2.0,
        regularization=0.1,
        clip_norm=3.0,
        noise_multiplier=4.0,
        center=1.0,
        sampling_rate=0.45,
        initial_scale=0.2,
        delta=1e-7,
    )
    assert (protocol.train._cache_size(), protocol._init._cache_size()) == before


@pytest.mark.slow
def test_the_audits_find_nothing():
    mechanism = sketch_dpsgd.mechanism(config(gain=4.0))
    data = layout.make(SMALL, kind="split", num_devices=1)
    found = []
    for place, audit in enumerate((post_processing.audit, sensitivity.audit)):
        found += audit(
            mechanism, SMALL, data, key=keys.from_seed(place), num_steps=3, num_neighbours=5
        )
    assert {finding.verdict for finding in found} == {"consistent"}, found


@pytest.mark.parametrize("how", ["mean", "median"])
def test_the_release_is_the_table_from_which_all_vectors_follow(how):
    mechanism = sketch_dpsgd.mechanism(config(query=how))
    data = layout.make(SMALL, num_devices=1)
    state = begun(mechanism, data)
    released = jax.device_get(mechanism.release(state))
    assert released.user_factors is None
    assert released.item_factors is None
    read, known = count_sketch.factors(released, 7, 5), protocol.factors(state)
    jax.tree.map(np.testing.assert_array_equal, read, protocol.Factors(*jax.device_get(known)))


@pytest.mark.seconds
def test_nothing_of_the_size_of_all_vectors_is_kept_or_made():
    made = config(rank=8, depth=4, gain=64.0, sampling_rate=0.01, initial_scale=0.1)
    mechanism = sketch_dpsgd.mechanism(made)
    data = layout.make(
        rated_at([(9, 4), (70_000, 3), (5, 7)], (100_000, 10_000)), kind="split", num_devices=1
    )
    state = begun(mechanism, data)
    dense = 4 * 110_000 * 8
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) < dense / 60

    def step(table):
        public = dataclasses.replace(state.public, table=table)
        return protocol.step(mechanism, keys.from_seed(0), state._replace(public=public), data)[
            0
        ].public.table

    needed = jax.jit(step).lower(state.public.table).compile().memory_analysis()
    assert needed.temp_size_in_bytes < dense / 8
