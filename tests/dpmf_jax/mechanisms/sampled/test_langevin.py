"""One step of Langevin dynamics and dense DP-SGD against NumPy, its sensitivity, and its noise on
every row.
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
from dpmf_jax.kernels import whole_descent
from dpmf_jax.mechanisms.sampled import langevin, sampled
from dpmf_jax.noise import keys, whole
from tests.cases.langevin import MAKE, ROW_UNIT, SMALL, SOUND, begun, config, gradients, stacked
from tests.cases.sampled import EMPTY, in_reals, neighbours, query, silent, unit

pytestmark = pytest.mark.usefixtures("quick_compilation")

FALSE_ALARM = 1e-5


# --- one step


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "kind"), [("published", "dense"), ("dp", "split"), ("dp", "dense"), ("dpsgd", "split")]
)
def test_without_noise_and_clip_all_ratings_make_a_gradient_step(name, kind):
    made = config(sampling_rate=1.0, clip_norm=20.0, decay=3.0, temperature=0.1)
    mechanism = silent(MAKE[name](made))
    data = layout.make(SMALL, kind=kind, num_devices=1)
    state = begun(mechanism, data)._replace(step=jnp.int32(2))
    after, info = protocol.train(mechanism, keys.from_seed(0), state, data, 1)
    before = stacked(state.public[:2])
    each = gradients(state.public, SMALL.user, SMALL.item, SMALL.value)
    eta = 0.05 / (1 + 3 * 2 / 5)
    # sums of a row's ratings, at most 8, are off by half a unit each, and by half a step of e
    rough = 2e-6 if name == "published" else eta * 8 * (unit(mechanism) + 2.25 / 4096 * 3)
    np.testing.assert_allclose(
        stacked(after.public[:2]),
        (1 - eta * 0.3) * before + eta * each.sum(0),
        atol=rough,
        rtol=2e-5,
    )
    assert np.abs(eta * each.sum(0)).max() > 10 * rough
    users, items = (np.asarray(rows, np.float64) for rows in state.public[:2])
    error = SMALL.value - 2.75 - np.sum(users[SMALL.user] * items[SMALL.item], 1)
    assert float(info.loss[0]) == pytest.approx(np.mean(error**2), rel=1e-3)
    assert float(info.clipped_fraction[0]) == 0
    assert after.public.center == 2.75


@pytest.mark.parametrize("name", SOUND)
def test_each_rating_is_clipped_as_one_vector(name):
    mechanism = MAKE[name](config(sampling_rate=1.0, clip_norm=0.8))
    data = layout.make(SMALL, kind="dense", num_devices=1)
    state = begun(mechanism, data)
    total, info = query(mechanism, state, data, keys.from_seed(0))
    each = gradients(state.public, SMALL.user, SMALL.item, SMALL.value)
    norm = np.linalg.norm(each, axis=(1, 2), keepdims=True)
    assert 0.2 < (norm > 0.8).mean() < 1
    np.testing.assert_allclose(
        unit(mechanism) * stacked(total), np.sum(each * np.minimum(1, 0.8 / norm), 0), atol=0.01
    )
    assert float(info.clipped_fraction) == pytest.approx((norm > 0.8).mean())


def test_the_sample_estimates_the_gradient_of_the_sum():
    """The mean over the coins of 1/q times the sample's sum, and so of the step, is that of all
    ratings.
    """
    mechanism = langevin.mechanism(config(sampling_rate=0.2))
    data = layout.make(SMALL, kind="split", num_devices=1)
    state = begun(mechanism, data)
    draw = jax.jit(jax.vmap(lambda k: mechanism.query(state, data, mechanism.coins(k))[0]))
    found = (
        np.concatenate(
            [np.asarray(part) for part in draw(jax.random.split(keys.from_seed(4), 4000))], 1
        )
        / 0.2
    )
    whole = gradients(state.public, SMALL.user, SMALL.item, SMALL.value).sum(0)
    error = found.std(0) / len(found) ** 0.5
    assert (
        np.abs(found.mean(0) - whole) <= 5.5 * error + 1e-6
    ).all()  # 56 entries: a false alarm of 2e-6
    assert (error < 0.1 * np.abs(whole).max()).all()


# --- sensitivity, exhaustively


@pytest.mark.one_case
@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_no_rating_added_removed_or_changed_moves_the_sum_by_more_than_its_bound(name, rate):
    mechanism = MAKE[name](config(sampling_rate=rate, decay=2.0))
    bounds = np.asarray(mechanism.query.args[0].grid.bounds)
    assert bounds[0] == 4094
    data = layout.make(SMALL, kind="dense", num_devices=1)
    others, which = neighbours(data)
    present = np.asarray(data.stored.present).ravel()
    presence, value = [], []
    run = jax.jit(
        lambda state, others, k: jax.vmap(
            lambda d: mechanism.query(state, d, mechanism.coins(k))[0]
        )(others)
    )
    for seed in range(3):
        state, coins = begun(mechanism, data)._replace(step=jnp.int32(seed)), keys.from_seed(seed)
        one = stacked(query(mechanism, state, data, coins)[0])
        many = np.concatenate([in_reals(part) for part in run(state, others, coins)], 1)
        distance = np.linalg.norm(many - one, axis=(1, 2)) / bounds[seed]
        same = present[which[:, 0]] == which[:, 1]
        presence += distance[~same].tolist()
        value += distance[same & (which[:, 1] == 1)].tolist()
    assert 0.998 < max(presence) <= 1  # in whole numbers, so there is nothing to round
    assert 1.9 < max(value) <= 2


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 3, 16, 300]),
    st.sampled_from([1e-6, 0.01, 1.0, 40.0, 1e30]),
    st.sampled_from([64.0, 65.0, 4094.0]),
)
def test_a_part_of_a_rating_is_never_longer_than_its_bound(seed, num_terms, clip_norm, bound):
    random = np.random.default_rng(seed)
    rows = jnp.asarray(
        np.round(random.normal(size=(50, num_terms)) * 10.0 ** random.uniform(-1, 3, (50, 1))),
        jnp.float32,
    )
    errors = jnp.asarray(np.round(random.normal(size=50) * 10.0 ** random.uniform(0, 6, 50)))
    params = sampled.dpsgd_params(config(clip_norm=clip_norm))
    made = params.grid._replace(bounds=jnp.full(5, bound))
    params = dataclasses.replace(params, grid=made)
    lengths = jnp.sqrt(whole_descent.squared_norm(rows.astype(jnp.int32)))
    factor, shrunk = sampled.clipped(
        params, jnp.int32(0), errors.astype(jnp.float32), lengths, num_terms**0.5
    )
    part = in_reals(sampled.part(factor, rows)).astype(np.int64)
    squares = (part**2).sum(axis=1)
    assert squares.max() <= bound**2
    tight = np.asarray(shrunk) & (np.asarray(lengths) > 0)
    assert np.all(np.sqrt(squares[tight]) >= bound * (1 - 2.0**-17) - num_terms**0.5)


@pytest.mark.parametrize("size", [1e-3, 0.8, 30.0, np.inf])
def test_rows_of_any_size_have_residuals_that_are_whole(size):
    """Long ones are shrunk; of what is not finite nothing is left."""
    mechanism = langevin.dpsgd(config(sampling_rate=1.0))
    (params,) = mechanism.query.args
    data = layout.make(SMALL, kind="dense", num_devices=1)
    state = begun(mechanism, data)
    users = size * state.public.user_factors
    rows = np.asarray(sampled.on_grid(params, users))
    assert (rows == np.round(rows)).all()
    assert np.linalg.norm(rows, axis=1).max() <= 4096
    if size <= 0.8:
        np.testing.assert_allclose(rows * ROW_UNIT, users, atol=ROW_UNIT / 2 * 1.001)
    long = state._replace(public=state.public._replace(user_factors=users))
    total, _ = query(mechanism, long, data, keys.from_seed(0))
    assert np.abs(stacked(total)).max() <= 8 * 4094


@pytest.mark.parametrize(("bad", "counts_as"), [(np.nan, 2.75), (np.inf, 5.0), (-3e38, 0.5)])
def test_what_is_no_rating_counts_as_the_middle_or_an_end_of_the_range(bad, counts_as):
    data = layout.make(SMALL, kind="dense", num_devices=1)
    mechanism = langevin.dpsgd(config(sampling_rate=1.0))
    state = begun(mechanism, data)
    place = layout.locate(data, SMALL.user[3], SMALL.item[3])
    total, expected = (
        query(mechanism, state, layout.replace_value(data, place, jnp.float32(v)), key)[0]
        for v, key in ((bad, keys.from_seed(0)), (counts_as, keys.from_seed(0)))
    )
    np.testing.assert_array_equal(stacked(total), stacked(expected))


# --- noise


@pytest.mark.seconds
@pytest.mark.parametrize("name", SOUND)
def test_the_noise_is_the_one_that_was_promised_on_every_row(name):
    """Read back from the parameters after a step without ratings, of rows that nobody ever
    touched.
    """
    mechanism = MAKE[name](config(sampling_rate=0.1, num_steps=1))
    promised = mechanism.guarantee(1)
    units = promised.noise_multiplier * promised.sensitivity
    sigma = units * unit(mechanism)
    assert sigma == pytest.approx(1.5 * 0.8 if name == "dpsgd" else 0.1 * (2 / 0.05) ** 0.5)
    data = layout.make(EMPTY, kind="dense", num_devices=1)
    state = begun(mechanism, data)

    def drawn(mechanism, steps=8):
        for seed in range(steps):
            after, _ = protocol.train(mechanism, keys.from_seed(seed), state, data, 1)
            moved = stacked(after.public[:2]) - (1 - 0.05 * 0.3) * stacked(state.public[:2])
            yield moved / (0.05 / 0.1)

    found = np.stack(list(drawn(mechanism)))
    critical = sampler.critical_distance(found.size, FALSE_ALARM) + 1e-4
    assert (found.std(0) > 0).all()
    assert sampler.kolmogorov_smirnov(found, sigma) < critical
    for factor in (2 / 3, 3 / 2):
        wrong = mechanism._replace(noise=whole.rounded_normal(float(np.float32(factor * units))))
        assert sampler.kolmogorov_smirnov(np.stack(list(drawn(wrong))), sigma) > critical


def test_coins_say_who_is_in_and_nothing_else():
    """One key, one sample; other coins, another; a step's public state follows the response
    alone.
    """
    mechanism = langevin.dpsgd(config())
    data = layout.make(SMALL, kind="split", num_devices=1)
    state = begun(mechanism, data)
    one, other = jax.random.split(keys.from_seed(5))
    first, again, second = (stacked(query(mechanism, state, data, k)[0]) for k in (one, one, other))
    np.testing.assert_array_equal(first, again)
    assert (first != second).any()
    assert not [
        leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    ]
    assert state.private is None


# --- as any mechanism


@pytest.mark.seconds
@pytest.mark.parametrize("name", list(MAKE))
def test_a_sweep_over_numbers_compiles_once(name):
    data = layout.make(SMALL, kind="split", num_devices=1)

    def run(**settings):
        mechanism = MAKE[name](config(**settings))
        protocol.train(
            mechanism,
            keys.from_seed(0),
            protocol.begin(mechanism, keys.from_seed(0), data),
            data,
            2,
        )

    run()
    before = protocol.train._cache_size(), protocol._init._cache_size()
    run(
        learning_rate=0.01,
        decay=2.0,
        regularization=0.1,
        clip_norm=3.0,
        noise_multiplier=4.0,
        temperature=0.2,
        center=1.0,
        sampling_rate=0.45,
        delta=1e-7,
    )
    assert (protocol.train._cache_size(), protocol._init._cache_size()) == before


@pytest.mark.seconds
@pytest.mark.parametrize(
    "unit", ["rating presence", pytest.param("rating value", marks=pytest.mark.slow)]
)
def test_the_audits_find_nothing(unit):
    mechanism = langevin.dp(config(unit=unit))
    data = layout.make(SMALL, kind="split", num_devices=1)
    found = []
    for place, audit in enumerate((post_processing.audit, sensitivity.audit, sampler.audit)):
        found += audit(
            mechanism, SMALL, data, key=keys.from_seed(place), num_steps=3, num_neighbours=5
        )
    assert {finding.verdict for finding in found} == {"consistent"}, found


@pytest.mark.seconds
def test_the_noise_audit_finds_half_of_the_noise_that_a_changed_value_is_priced_at():
    mechanism = langevin.dpsgd(config(unit="rating value"))
    less = float(np.float32(mechanism.guarantee(1).noise_scale / 2))
    halved = mechanism._replace(noise=whole.rounded_normal(less))
    data = layout.make(SMALL, kind="split", num_devices=1)
    for one, verdict in ((mechanism, "consistent"), (halved, "violated")):
        scale = sampler.audit(
            one, SMALL, data, key=keys.from_seed(0), num_steps=3, num_neighbours=5
        )[0]
        assert (scale.audit, scale.verdict) == ("noise: scale", verdict)


def test_both_factors_and_the_centre_are_released():
    mechanism = langevin.dp(config(center=3.0))
    data = layout.make(SMALL, num_devices=1)
    state = begun(mechanism, data)
    released = mechanism.release(state)
    assert released.user_factors is state.public.user_factors
    assert released.item_factors is state.public.item_factors
    assert released.center == 3
