"""Perturbed minimisers and passes: laws of η, the exact density against numerical Jacobians, what
one rating can do.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpmf_jax.kernels import positive_systems
from dpmf_jax.mechanisms.objective import perturbed
from dpmf_jax.noise import keys

pytestmark = pytest.mark.usefixtures("quick_compilation")

ALPHA = 1e-4
LAWS = ("l2_laplace", "laplace", "gaussian")
ITEMS, RANK, RIDGE, RATE = 3, 4, 0.7, 0.1


def quadratic(seed: int = 0) -> perturbed.Quadratic:
    random = np.random.default_rng(seed)
    factors = random.standard_normal((ITEMS, 6, RANK))
    matrix = np.einsum("jka,jkb->jab", factors, factors)
    matrix[2] = 0.0  # an item without raters
    return perturbed.Quadratic(
        jnp.float32(matrix), jnp.float32(random.standard_normal((ITEMS, RANK)))
    )


def affine(seed: int = 0) -> perturbed.Passes:
    random = np.random.default_rng(seed)
    matrix = 0.999 * np.tile(np.eye(RANK), (ITEMS, 1, 1))
    for item, count in enumerate((7, 2, 0)):
        for _ in range(count):
            u = random.standard_normal(RANK) / 2
            matrix[item] = matrix[item] - 2 * RATE * np.outer(u, u @ matrix[item])
    vectors = random.standard_normal((2, ITEMS, RANK))
    return perturbed.Passes(
        jnp.float32(matrix), jnp.float32(RATE * vectors[0]), jnp.float32(vectors[1])
    )


def noises(law: str, scale: float = 0.8):
    return (
        (perturbed.minimiser(law, scale, RIDGE), quadratic),
        (perturbed.passes(law, scale, RATE, 7), affine),
    )


def cdf(law: str, scale: float):
    """Of what is tested: the radius of the L2-Laplace, each coordinate of the others."""
    if law == "l2_laplace":
        return scipy.stats.gamma(RANK, scale=scale).cdf
    return (scipy.stats.laplace if law == "laplace" else scipy.stats.norm)(scale=scale).cdf


@pytest.mark.parametrize("law", LAWS)
def test_eta_has_its_law(law):
    drawn = np.asarray(perturbed.draw(keys.from_seed(0), law, 2.5, (2000, RANK)), np.float64)
    seen = np.linalg.norm(drawn, axis=1) if law == "l2_laplace" else drawn.ravel()
    for factor, accepted in ((1.0, True), (2 / 3, False), (1.5, False)):
        assert (scipy.stats.kstest(seen, cdf(law, 2.5 * factor)).pvalue > ALPHA) == accepted
    direction = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    assert np.abs(direction.mean(0)).max() < 5 / math.sqrt(2000 * RANK)
    assert np.abs(direction.T @ direction / 2000 - np.eye(RANK) / RANK).max() < 0.05
    assert len(np.unique(drawn)) > 0.998 * drawn.size  # float32 repeats few


def test_the_l2_laplace_needs_half_of_lemma_1s_squared_noise():
    from accounting import objective as prices

    scales = {
        law: prices.value_change_scale(noise=law, epsilon=1.0, range_width=4.0, rank=50)
        for law in ("l2_laplace", "laplace")
    }
    key = keys.from_seed(1)
    squares = {
        law: np.mean(np.sum(perturbed.draw(key, law, s, (1000, 50)) ** 2, 1))
        for law, s in scales.items()
    }
    assert squares["l2_laplace"] / squares["laplace"] == pytest.approx(0.51, rel=0.06)


def log_density(law: str, scale: float, eta: np.ndarray) -> float:
    """Of all rows, by scipy; the L2-Laplace's from its radius, spread over a sphere."""
    if law != "l2_laplace":
        return float(
            np.sum(
                (scipy.stats.laplace if law == "laplace" else scipy.stats.norm)(scale=scale).logpdf(
                    eta
                )
            )
        )
    radius, d = np.linalg.norm(eta, axis=1), eta.shape[1]
    log_sphere = math.log(2 * math.pi ** (d / 2)) - math.lgamma(d / 2) + (d - 1) * np.log(radius)
    return float(np.sum(scipy.stats.gamma(d, scale=scale).logpdf(radius) - log_sphere))


@jax.jit
def log_ratio(noise, response, here, there):
    return noise.log_ratio(response, here, there)


@jax.jit
def log_prob(noise, response, here):
    return noise.log_prob(response, here)


def wide(tree):
    return jax.tree.map(
        lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), tree
    )  # under enable_x64


@pytest.mark.one_case
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("which", [0, 1])
def test_log_prob_is_that_of_eta_through_the_numerical_jacobian_of_what_eta_becomes(law, which):
    noise, statistics = noises(law)[which]
    eta = np.random.default_rng(3).standard_normal((ITEMS, RANK))
    with jax.enable_x64(True):
        made = wide(statistics())

        @jax.jit
        def become(eta):
            if which == 0:
                return perturbed.minimise(made, float(np.float32(RIDGE)), eta)
            return perturbed.run_passes(made, 7, float(np.float32(RATE)), eta)

        v = become(eta)
        step = 1e-6
        columns = [
            (
                become(eta + step * e.reshape(eta.shape))
                - become(eta - step * e.reshape(eta.shape))
            ).ravel()
            / (2 * step)
            for e in np.eye(eta.size)
        ]
        log_det = np.linalg.slogdet(np.array(columns).T)[1]
        logs = float(log_prob(noise, v, made))
    assert logs == pytest.approx(log_density(law, float(np.float32(0.8)), eta) - log_det, rel=1e-6)


@pytest.mark.one_case
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("which", [0, 1])
def test_log_ratio_is_the_difference_of_log_prob_and_exactly_0_between_equals(law, which):
    noise, statistics = noises(law)[which]
    here, there = statistics(0), statistics(1)
    near = here._replace(vector=here.vector.at[1].add(0.01))
    response = noise.sample(keys.from_seed(2), here)
    assert float(log_ratio(noise, response, here, here)) == 0
    for other in (there, near, there._replace(matrix=here.matrix)):
        with jax.enable_x64(True):
            r, q, q_ = wide(response), wide(here), wide(other)
            ratio = float(log_ratio(noise, r, q, q_))
            assert ratio == pytest.approx(
                float(log_prob(noise, r, q) - log_prob(noise, r, q_)), rel=1e-7, abs=1e-9
            )
        assert float(log_ratio(noise, response, here, other)) == pytest.approx(
            ratio, rel=2e-2, abs=2e-2
        )


@pytest.mark.parametrize("law", ["l2_laplace", "laplace"])
def test_a_ratio_far_away_keeps_its_digits(law):
    """The noise of a response far out moves by a distance that float32 log-densities there cannot
    tell.
    """
    noise, _ = noises(law)[0]
    here = quadratic()
    there = here._replace(vector=here.vector.at[0, 0].add(0.004))
    far = (
        jnp.zeros((ITEMS, RANK))
        .at[0]
        .set(-jnp.linalg.inv(here.matrix[0] + RIDGE * jnp.eye(RANK))[:, 0] * 1e5)
    )
    assert float(noise.log_ratio(far, here, there)) == pytest.approx(2 * 0.004 / 0.8, rel=1e-3)


def test_the_minimiser_is_numpys_and_the_gradient_there_is_0():
    statistics = quadratic()
    eta = perturbed.draw(keys.from_seed(4), "laplace", 1.0, (ITEMS, RANK))
    v = perturbed.minimise(statistics, RIDGE, eta)

    def objective(v):
        quadratic_part = jnp.einsum("ja,jab,jb->", v, statistics.matrix, v) + RIDGE * jnp.sum(v**2)
        return quadratic_part - 2 * jnp.sum(statistics.vector * v) + jnp.sum(eta * v)

    np.testing.assert_allclose(jax.grad(objective)(v), 0, atol=1e-5)
    system, target = (
        np.asarray(leaf, np.float64) for leaf in (statistics.matrix, statistics.vector - eta / 2)
    )
    expected = np.linalg.solve(system + RIDGE * np.eye(RANK), target[..., None])[..., 0]
    np.testing.assert_allclose(v, expected, rtol=1e-4, atol=1e-6)
    sampled = perturbed.minimiser("gaussian", 0.0, RIDGE).sample(keys.from_seed(0), statistics)
    np.testing.assert_array_equal(sampled, perturbed.minimise(statistics, RIDGE))


@pytest.mark.parametrize("num_passes", [1, 2, 7, 100])
def test_passes_are_a_loop(num_passes):
    statistics = affine()
    eta = perturbed.draw(keys.from_seed(4), "laplace", 1.0, (ITEMS, RANK))
    v = np.array(statistics.start, np.float64)
    for _ in range(num_passes):
        v = (
            np.einsum("jab,jb->ja", statistics.matrix, v)
            + statistics.vector
            - RATE * np.asarray(eta)
        )
    np.testing.assert_allclose(
        perturbed.run_passes(statistics, num_passes, RATE, eta), v, rtol=1e-4, atol=1e-5
    )
    noise = perturbed.passes("gaussian", 0.0, RATE, num_passes)
    np.testing.assert_array_equal(
        noise.sample(keys.from_seed(0), statistics),
        perturbed.run_passes(statistics, num_passes, RATE),
    )


@pytest.mark.one_case
@pytest.mark.parametrize(("n", "d"), [(1, 1), (5, 2), (3, 10), (7, 11), (2, 50), (700, 20)])
def test_systems_are_solved_as_numpy_solves_them(n, d):
    random = np.random.default_rng(n + d)
    factors = random.standard_normal((n, d + 2, d))
    matrix, target = (
        np.einsum("jka,jkb->jab", factors, factors) + 0.1 * np.eye(d),
        random.standard_normal((n, d)),
    )
    with jax.enable_x64(True):
        made = jax.jit(positive_systems.solve)(matrix, target)
    np.testing.assert_allclose(
        made.solved, np.linalg.solve(matrix, target[..., None])[..., 0], rtol=1e-8, atol=1e-8
    )
    np.testing.assert_allclose(made.log_det, np.linalg.slogdet(matrix)[1], rtol=1e-8, atol=1e-8)


def test_a_matrix_that_is_not_positive_shows():
    solved = positive_systems.solve(jnp.array([[[1.0, 2.0], [2.0, 1.0]]]), jnp.ones((1, 2)))
    assert np.isnan(solved.log_det).all()


def test_an_unknown_law_is_refused():
    for make in (
        lambda: perturbed.minimiser("cauchy", 1.0, 1.0),
        lambda: perturbed.passes("cauchy", 1.0, 1.0, 1),
    ):
        with pytest.raises((ValueError, TypeError), match="cauchy"):
            make()
