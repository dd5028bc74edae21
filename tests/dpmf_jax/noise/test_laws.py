"""A sampler and its density belong together: one is held to the other, and both to the scale that
was promised.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpmf_jax.noise import laws as noise

FALSE_ALARM = 1e-4  # of every statistical test here
SHAPES = {"users": (20, 3), "items": (7, 3)}
finite = st.floats(-100, 100, width=32)
scales = st.floats(0.0625, 50, width=32)


def tree(seed: int, scale: float = 1.0, dtype=np.float32):
    random = np.random.default_rng(seed)
    return {
        name: jnp.asarray(scale * random.normal(size=shape), dtype)
        for name, shape in SHAPES.items()
    }


@pytest.fixture(scope="module")
def drawn():
    """response - statistics for 2,000 keys at scale 2.5, flat."""
    zeros = jax.tree.map(jnp.zeros_like, tree(0))
    sample = jax.jit(jax.vmap(noise.gaussian(2.5).sample, in_axes=(0, None)))
    return jax.tree.map(np.asarray, sample(jax.random.split(jax.random.key(1), 2000), zeros))


def p_value(values, scale: float) -> float:
    return stats.kstest(np.ravel(values) / scale, stats.norm.cdf).pvalue


@pytest.mark.seconds
@pytest.mark.parametrize("leaf", SHAPES)
def test_the_sampler_has_the_promised_scale_and_no_other(drawn, leaf):
    assert p_value(drawn[leaf], 2.5) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert p_value(drawn[leaf], 2.5 * wrong) < FALSE_ALARM


def test_a_laplace_draw_has_the_promised_scale_and_no_other(key):
    values = np.asarray(noise.laplace(2.5).sample(key, jnp.zeros(10_000)))
    p = [stats.kstest(values / (2.5 * f), stats.laplace.cdf).pvalue for f in (1, 2 / 3, 1.5)]
    assert p[0] > FALSE_ALARM
    assert max(p[1:]) < FALSE_ALARM


@pytest.mark.seconds
def test_leaves_and_keys_are_independent(drawn):
    users = drawn["users"].reshape(2000, -1)[:, :21]
    items = drawn["items"].reshape(2000, -1)
    for a, b in ((users, items), (users[:-1], users[1:])):
        assert stats.pearsonr(a.ravel(), b.ravel()).pvalue > FALSE_ALARM
        assert not np.any(a == b)


def test_response_has_the_shapes_and_types_of_the_statistics(key):
    response = noise.gaussian(1.0).sample(key, tree(1))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), response) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), tree(1)
    )


def test_the_noise_does_not_depend_on_the_statistics(key):
    sample = noise.gaussian(1.0).sample
    for leaf, at_zero, q in zip(
        *map(
            jax.tree.leaves,
            (sample(key, tree(1)), sample(key, jax.tree.map(jnp.zeros_like, tree(1))), tree(1)),
        ),
        strict=True,
    ):
        np.testing.assert_allclose(leaf - q, at_zero, atol=1e-6)


def test_float32_normals_end_where_the_guarantee_says():
    """The quantile transform of 23 random bits: the assumption that every Gaussian guarantee
    names.
    """
    uniform = np.nextafter(np.float32(-1), np.float32(0))
    assert math.sqrt(2) * abs(float(jax.lax.erf_inv(jnp.float32(uniform)))) <= 5.42


@given(scale=scales, q=finite, r=finite)
def test_log_prob_is_the_normal_density(scale, q, r):
    with jax.enable_x64(True):
        found = float(noise.gaussian(scale).log_prob(jnp.float64(r), jnp.float64(q)))
    assert found == pytest.approx(stats.norm.logpdf(r, q, scale), rel=1e-6, abs=1e-6)


def test_log_prob_adds_over_entries_and_leaves():
    response, statistics = tree(1), tree(2)
    expected = sum(
        stats.norm.logpdf(response[name], statistics[name], 1.5).sum() for name in SHAPES
    )
    assert float(noise.gaussian(1.5).log_prob(response, statistics)) == pytest.approx(
        expected, rel=1e-5
    )


@given(seed=st.integers(0, 10**6), scale=scales)
def test_log_ratio_is_the_difference_of_log_densities(seed, scale):
    made = noise.gaussian(scale)
    with jax.enable_x64(True):
        r, q, other = (tree(seed + i, 3.0, np.float64) for i in range(3))
        ratio = float(made.log_ratio(r, q, other))
        difference = float(made.log_prob(r, q)) - float(made.log_prob(r, other))
    assert ratio == pytest.approx(difference, rel=1e-9, abs=1e-9)


def test_log_ratio_does_not_drown_in_float32():
    """One entry of a big tree moves by 1e-3: the ratio keeps its digits where the difference of
    densities has none.
    """
    made = noise.gaussian(1.0)
    random = np.random.default_rng(0)
    q = (1e3 * random.normal(size=(400, 50))).astype(np.float32)
    q[0, 0] = 1.0
    other = q.copy()
    other[0, 0] += np.float32(1e-3)
    r = (q + random.normal(size=q.shape)).astype(np.float32)
    exact = stats.norm.logpdf(float(r[0, 0]), float(q[0, 0])) - stats.norm.logpdf(
        float(r[0, 0]), float(other[0, 0])
    )
    r, q, other = map(jnp.asarray, (r, q, other))
    assert float(made.log_ratio(r, q, other)) == pytest.approx(exact, rel=1e-3)
    assert float(made.log_prob(r, q) - made.log_prob(r, other)) != pytest.approx(exact, rel=1e-1)


def test_log_ratio_is_zero_between_equal_worlds_and_antisymmetric():
    made, r, q, other = noise.gaussian(0.7), tree(1), tree(2), tree(3)
    assert float(made.log_ratio(r, q, q)) == 0.0
    assert float(made.log_ratio(r, q, other)) == pytest.approx(
        -float(made.log_ratio(r, other, q)), rel=1e-6
    )


def test_noise_is_a_pytree_whose_scale_is_its_leaf():
    """So that a sweep over scales is a vmap, and compiles once."""
    assert jax.tree.leaves(noise.gaussian(2.0).sample) == [2.0]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(noise.gaussian, (1.0, 2.0, 3.0)))
    key = jax.random.key(0)
    together = jax.vmap(lambda made: made.sample(key, jnp.zeros(4)))(stacked)
    for row, scale in zip(together, (1.0, 2.0, 3.0), strict=True):
        np.testing.assert_array_equal(row, noise.gaussian(scale).sample(key, jnp.zeros(4)))


def test_no_noise_is_the_identity_with_a_point_mass(key):
    made, q, other = noise.none(), tree(1), tree(2)
    response = made.sample(key, q)
    assert all(np.array_equal(response[name], q[name]) for name in SHAPES)
    assert float(made.log_prob(response, q)) == 0.0
    assert float(made.log_prob(response, other)) == -math.inf
    assert float(made.log_ratio(response, q, q)) == 0.0
    assert float(made.log_ratio(response, q, other)) == math.inf
    assert float(made.log_ratio(response, other, q)) == -math.inf
    assert float(made.log_ratio(response, other, other)) == 0.0  # never not-a-number
