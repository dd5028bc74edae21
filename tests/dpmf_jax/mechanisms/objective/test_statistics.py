"""Noisy normal equations: what a rating's presence moves, the scales, and the system that is
solved.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpmf_jax import layout, protocol
from dpmf_jax.devices import keys
from dpmf_jax.kernels import positive_systems
from dpmf_jax.mechanisms.objective import mechanisms as objective
from tests.cases.objective import ALPHA, RANK, RATINGS, begun, config, query, sample, sums

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def split_data():
    return layout.make(RATINGS, kind="split", num_devices=1)


# --- noisy statistics


def test_statistics_are_the_clipped_sums_and_their_noise_is_the_priced_one(split_data):
    mechanism = objective.statistics(config(delta=1e-5, rating_bound=1.5, matrix_share=0.3))
    state = begun(mechanism, split_data)
    made, info = query(mechanism, state, split_data)
    matrix, vector = sums(state.public.user_factors, -1.5, 1.5)
    np.testing.assert_allclose(made.matrix, matrix, rtol=1e-4, atol=1e-5)
    weight = float(np.linalg.norm(made.vector) / np.linalg.norm(vector))
    np.testing.assert_allclose(made.vector, weight * vector, rtol=1e-4, atol=1e-4)
    guarantee, scale = mechanism.guarantee(1), float(mechanism.noise.sample.args[0])
    z = guarantee.noise_multiplier
    assert guarantee.sensitivity * z == pytest.approx(scale, rel=1e-6)
    assert (1 / scale) ** 2 / (1 / z) ** 2 == pytest.approx(0.3, rel=1e-4)
    assert (weight * 1.5 / scale) ** 2 / (1 / z) ** 2 == pytest.approx(0.7, rel=1e-4)
    assert guarantee.epsilon == pytest.approx(1.0, abs=1e-4)
    assert guarantee.epsilon <= 1
    assert (guarantee.unit, guarantee.status) == ("rating presence", "proved for real-number noise")
    response = sample(
        mechanism, keys.from_seed(0), jax.tree.map(lambda leaf: jnp.zeros((300, *leaf.shape)), made)
    )
    for leaf in response:
        for factor, accepted in ((1.0, True), (2 / 3, False), (1.5, False)):
            pvalue = scipy.stats.kstest(
                np.ravel(leaf), scipy.stats.norm(scale=factor * scale).cdf
            ).pvalue
            assert (pvalue > ALPHA) == accepted
    error = RATINGS.value - 3.0
    assert float(info.loss) == pytest.approx(np.mean(error**2), rel=1e-5)


def test_a_rating_added_or_removed_moves_statistics_by_no_more_than_is_priced(split_data):
    mechanism = objective.statistics(config(delta=1e-5, rating_bound=1.0))
    state = begun(mechanism, split_data)
    here, _ = query(mechanism, state, split_data)
    moved = []
    for at in range(RATINGS.num_ratings):
        address = layout.locate(split_data, RATINGS.user[at], RATINGS.item[at])
        there, _ = query(mechanism, state, layout.remove_rating(split_data, address))
        moved.append(float(protocol.l2_distance(None, here, there)))
    bound = mechanism.guarantee(1).sensitivity
    assert max(moved) <= bound * (1 + 1e-5)
    assert max(moved) > 0.999 * bound  # values of 1 and 5 reach it


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 50.0])
def test_the_system_that_is_solved_is_well_conditioned(epsilon, split_data):
    mechanism = objective.statistics(config(epsilon=epsilon, delta=1e-5))
    state = begun(mechanism, split_data)
    made, _ = query(mechanism, state, split_data)
    response = sample(mechanism, keys.from_seed(1), made)
    after = jax.jit(mechanism.update)(state, response, split_data)
    scale = float(mechanism.noise.sample.args[0])
    noisy = np.asarray(response.matrix, np.float64)
    values, vectors = np.linalg.eigh((noisy + np.swapaxes(noisy, 1, 2)) / 2)
    floor = scale * math.sqrt(2 * RANK)
    assert values.min() < floor  # what it is for
    raised = np.einsum("jab,jb,jcb->jac", vectors, np.maximum(values, floor), vectors)
    projected = jax.jit(positive_systems.raise_eigenvalues)(
        jnp.float32((noisy + np.swapaxes(noisy, 1, 2)) / 2), jnp.float32(floor)
    )
    np.testing.assert_allclose(projected, raised, atol=2e-5 * np.abs(noisy).max())
    assert np.linalg.eigvalsh(np.asarray(projected, np.float64)).min() > 0.999 * floor
    weight = float(np.linalg.norm(made.vector) / np.linalg.norm(sums(state.public.user_factors)[1]))
    target = np.asarray(response.vector, np.float64)[..., None] / weight
    expected = np.linalg.solve(raised + 2.0 * np.eye(RANK), target)[..., 0]
    np.testing.assert_allclose(after.public.item_factors, expected, rtol=1e-2, atol=1e-3)
