"""Noisy normal equations: what a rating's presence moves, the scales, and the system that is
solved.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from accounting import objective as prices
from dpmf_jax import layout
from dpmf_jax.errors import PrivacyError
from dpmf_jax.kernels import positive_systems
from dpmf_jax.mechanisms.objective import mechanisms as objective
from dpmf_jax.noise import keys
from tests.cases.objective import ALPHA, RANK, RATINGS, begun, config, query, sample

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def split_data():
    return layout.make(RATINGS, kind="split", num_devices=1)


# --- noisy statistics


@pytest.mark.parametrize("kind", ["dense", "split"])
@pytest.mark.parametrize("share", [0.03, 0.3, 0.5, 0.99])
def test_statistics_are_the_clipped_sums_in_whole_numbers(kind, share):
    """Against Python's integers, halved k times."""
    mechanism = objective.statistics(config(delta=1e-5, rating_bound=1.5, matrix_share=share))
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    state = begun(mechanism, data)
    (params,) = mechanism.query.args
    steps, size, shift = int(params.steps), int(params.user_units), int(params.shift)
    assert 128 < max(steps, size) <= 256
    assert steps / size == pytest.approx(math.sqrt((1 - share) / share), rel=0.02)
    units = np.asarray(state.public.user_factors, np.float64) * size
    assert (units == np.round(units)).all()
    assert ((units**2).sum(axis=1) <= size**2).all()
    features = np.zeros((RATINGS.num_ratings, RANK + 1), np.int64)
    features[:, :RANK] = units[RATINGS.user]
    features[:, RANK] = np.round(np.clip(RATINGS.value - 3, -1.5, 1.5) * np.float32(steps / 1.5))
    total = np.zeros((data.num_items, RANK + 1, RANK + 1), np.int64)
    np.add.at(total, RATINGS.item, features[:, :, None] * features[:, None, :])
    halved = (total + (1 << shift >> 1)) >> shift
    made, info = query(mechanism, state, data)
    for leaf, expected in zip(made, (halved[:, :RANK, :RANK], halved[:, RANK, :RANK]), strict=True):
        np.testing.assert_array_equal(np.asarray(leaf).view(np.int32), expected)
    error = np.clip(RATINGS.value - 3.0, -1.5, 1.5)
    assert float(info.loss) == pytest.approx(np.mean(error**2), rel=0.02)


def test_the_noise_is_the_priced_one(split_data):
    mechanism = objective.statistics(config(delta=1e-5, rating_bound=1.5, matrix_share=0.3))
    made, _ = query(mechanism, begun(mechanism, split_data), split_data)
    guarantee, scale = mechanism.guarantee(1), float(mechanism.noise.sample.args[0].scale)
    assert guarantee.sensitivity * guarantee.noise_multiplier == pytest.approx(scale, rel=1e-12)
    real = prices.statistics_scales(epsilon=1.0, delta=1e-5, rating_bound=1.5, matrix_share=0.3)
    (params,) = mechanism.query.args
    size, steps = float(params.user_units), float(params.steps)
    unit = 2.0 ** int(params.shift) / size
    for more, priced in zip((unit / size, unit * 1.5 / steps), real, strict=True):
        assert scale * more == pytest.approx(priced, rel=0.01)  # what rounding costs, and E
    assert guarantee.epsilon == pytest.approx(1.0, abs=1e-4)
    assert guarantee.epsilon <= 1
    assert (guarantee.unit, guarantee.status) == ("rating presence", "proved")
    response = sample(
        mechanism,
        keys.from_seed(0),
        jax.tree.map(lambda leaf: jnp.zeros((300, *leaf.shape), leaf.dtype), made),
    )
    for leaf in response:
        drawn = np.ravel(leaf).view(np.int32)
        for factor, accepted in ((1.0, True), (2 / 3, False), (1.5, False)):
            pvalue = scipy.stats.kstest(drawn, scipy.stats.norm(scale=factor * scale).cdf).pvalue
            assert (pvalue > ALPHA) == accepted


def test_a_rating_added_or_removed_moves_statistics_by_no_more_than_is_priced(split_data):
    mechanism = objective.statistics(config(delta=1e-5, rating_bound=1.0))
    state = begun(mechanism, split_data)
    here, _ = query(mechanism, state, split_data)
    moved = []
    for at in range(RATINGS.num_ratings):
        address = layout.locate(split_data, RATINGS.user[at], RATINGS.item[at])
        there, _ = query(mechanism, state, layout.remove_rating(split_data, address))
        apart = [np.asarray(a - b).view(np.int32) for a, b in zip(here, there, strict=True)]
        moved.append(math.sqrt(sum(np.sum(leaf.astype(np.float64) ** 2) for leaf in apart)))
    bound = mechanism.guarantee(1).sensitivity
    assert max(moved) <= bound
    assert max(moved) > 0.98 * bound  # values of 1 and 5 reach it


def test_shares_and_prices_that_no_grid_has_are_refused():
    for share in (0.015, 0.997):
        with pytest.raises(ValueError, match="matrix_share must be from"):
            objective.statistics(config(delta=1e-5, matrix_share=share))
    with pytest.raises(PrivacyError, match="epsilon 1e-05 is too small"):
        objective.statistics(config(epsilon=1e-5, delta=1e-5))


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 50.0])
def test_the_system_that_is_solved_is_well_conditioned(epsilon, split_data):
    mechanism = objective.statistics(config(epsilon=epsilon, delta=1e-5))
    state = begun(mechanism, split_data)
    made, _ = query(mechanism, state, split_data)
    response = sample(mechanism, keys.from_seed(1), made)
    after = jax.jit(mechanism.update)(state, response, split_data)
    (params,) = mechanism.update.args
    unit = 2.0 ** int(params.shift) / float(params.user_units)
    scale = float(params.noise_scale) * unit / float(params.user_units)
    noisy, target = (np.asarray(leaf).view(np.int32) * unit for leaf in response)
    noisy = noisy / float(params.user_units)
    target = target[..., None] * float(params.bound) / float(params.steps)
    values, vectors = np.linalg.eigh((noisy + np.swapaxes(noisy, 1, 2)) / 2)
    floor = scale * math.sqrt(2 * RANK)
    assert values.min() < floor  # what it is for
    raised = np.einsum("jab,jb,jcb->jac", vectors, np.maximum(values, floor), vectors)
    projected = jax.jit(positive_systems.raise_eigenvalues)(
        jnp.float32((noisy + np.swapaxes(noisy, 1, 2)) / 2), jnp.float32(floor)
    )
    np.testing.assert_allclose(projected, raised, atol=2e-5 * np.abs(noisy).max())
    assert np.linalg.eigvalsh(np.asarray(projected, np.float64)).min() > 0.999 * floor
    expected = np.linalg.solve(raised + 2.0 * np.eye(RANK), target)[..., 0]
    np.testing.assert_allclose(after.public.item_factors, expected, rtol=1e-2, atol=1e-3)
