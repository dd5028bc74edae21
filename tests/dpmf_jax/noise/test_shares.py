"""Shares of noise: what k' of them sum to, what fewer and more of them do, and what H gives
away.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpmf_jax.noise import ring, shares

FALSE_ALARM = 1e-4  # of every test here, with the keys fixed
WRONG = (2 / 3, 3 / 2)
RANK, NUM = 5, 2000
GROUPS = (1, 3, 12)


@partial(jax.jit, static_argnames=("draw", "rest"))
def drawn_by_one(draw, key, numbers, rest):
    return jax.vmap(lambda key: draw(key, *numbers, rest))(jax.random.split(key, NUM))


def summed(draw, numbers, rest, num_shares: int, seed: int = 0):
    """NUM sums of so many users' draw(key, *numbers, rest); the program is compiled for one
    user.
    """
    keys = jax.random.split(jax.random.key(seed), num_shares)
    return sum(np.asarray(drawn_by_one(draw, key, numbers, rest), np.float64) for key in keys)


def fits(values, law) -> bool:
    return scipy.stats.kstest(np.ravel(values), law.cdf).pvalue > FALSE_ALARM


@pytest.mark.seconds
@pytest.mark.parametrize("num_shares", GROUPS)
def test_l2_laplace_shares_sum_to_its_radius_and_direction(num_shares):
    """Radius Gamma(d, b), direction uniform on the sphere and independent of it: the density ∝
    exp(−‖η‖/b).
    """
    drawn = summed(shares.l2_laplace, (2.5, num_shares), RANK, num_shares)
    radius = np.linalg.norm(drawn, axis=1)
    assert fits(radius, scipy.stats.gamma(RANK, scale=2.5))
    for wrong in WRONG:
        assert not fits(radius, scipy.stats.gamma(RANK, scale=2.5 * wrong))
    direction = drawn / radius[:, None]
    half = (RANK - 1) / 2
    for towards in np.eye(RANK)[:2], np.full((1, RANK), RANK**-0.5):
        for cosine in direction @ towards.T[:, :1], direction @ towards.T[:, -1:]:
            assert fits((1 + cosine) / 2, scipy.stats.beta(half, half))
    assert scipy.stats.spearmanr(radius, np.abs(direction[:, 0])).pvalue > FALSE_ALARM
    # a normal of the same variance is told apart, and so is Lemma 1's
    assert not fits(radius, scipy.stats.chi(RANK, scale=2.5 * math.sqrt(RANK + 1)))
    assert not fits(
        np.linalg.norm(np.random.default_rng(0).laplace(0, 2.5, (NUM, RANK)), axis=1), _radius(2.5)
    )


def test_the_mean_square_of_a_sum_of_l2_laplace_shares_is_that_of_theorem_1():
    """b²·d·(d + 1); 20,000 sums of three, so right within 5% but for once in a million."""
    scale, rank, num_shares = 2.0, 3, 3
    drawn = jax.vmap(lambda key: shares.l2_laplace(key, scale, num_shares, rank))(
        jax.random.split(jax.random.key(5), 20_000 * num_shares)
    )
    sums = np.asarray(drawn).reshape(-1, num_shares, rank).sum(axis=1)
    expected = scale**2 * rank * (rank + 1)
    assert (sums**2).sum(axis=1).mean() == pytest.approx(expected, rel=0.05)


def _radius(scale):
    return scipy.stats.gamma(RANK, scale=scale)


@pytest.mark.seconds
@pytest.mark.parametrize("num_shares", GROUPS)
def test_differences_of_gammas_sum_to_the_laplace(num_shares):
    drawn = summed(shares.laplace, (2.5, num_shares), (2,), num_shares)
    assert fits(drawn, scipy.stats.laplace(scale=2.5))
    for wrong in WRONG:
        assert not fits(drawn, scipy.stats.laplace(scale=2.5 * wrong))
    assert scipy.stats.spearmanr(np.abs(drawn[:, 0]), np.abs(drawn[:, 1])).pvalue > FALSE_ALARM


# --------------------------------------------------------------------------------------------------


@jax.jit
def integers_of_one(key, scale_in_steps, num_shares):
    return shares.discrete_laplace(key, scale_in_steps, num_shares, (NUM, 2))


def integers(scale_in_steps: float, num_shares: int, *, of: int | None = None, seed: int = 0):
    """NUM × 2 signed sums of `of` shares (all of them): a user draws all coordinates at once."""
    total = np.zeros((NUM, 2), np.uint32)
    for key in jax.random.split(jax.random.key(seed), of or num_shares):
        total = total + np.asarray(integers_of_one(key, scale_in_steps, num_shares))
    assert total.dtype == np.uint32
    return total.view(np.int32).astype(np.int64)


def polya_difference(scale_in_steps: float, shape: float, reach: int):
    """P(z), z = 0..reach, of NB(shape) − NB(shape): exact but for a tail below 1e-12."""
    most = int(60 * scale_in_steps) + reach + 60
    law = scipy.stats.nbinom(shape, -math.expm1(-1 / scale_in_steps)).pmf(np.arange(most))
    return np.array([law[: most - z] @ law[z:] for z in range(reach + 1)])


def chi_square(drawn, law) -> float:
    """The p-value of |z| against P(z) from 0 to where 10 are expected, and the rest."""
    both = np.concatenate([law[:1], 2 * law[1:]])
    reach = int(np.sum(both * drawn.size > 10))
    expected = np.append(both[:reach], 1 - both[:reach].sum()) * drawn.size
    found = np.bincount(np.minimum(np.abs(drawn).ravel(), reach), minlength=reach + 1)
    return scipy.stats.chisquare(found, expected).pvalue


@pytest.mark.seconds
@pytest.mark.parametrize("num_shares", GROUPS)
@pytest.mark.parametrize("scale", [0.4, 3.0, 15.0])
def test_integer_shares_sum_to_the_discrete_laplace(scale, num_shares):
    drawn = integers(scale, num_shares)
    reach = np.arange(int(12 * scale) + 3)

    def law(b):
        return math.tanh(1 / (2 * b)) * np.exp(-reach / b)

    assert chi_square(drawn, law(scale)) > FALSE_ALARM
    for wrong in WRONG:
        assert chi_square(drawn, law(scale * wrong)) < FALSE_ALARM
    assert (
        scipy.stats.binomtest(int(np.sum(drawn > 0)), int(np.sum(drawn != 0))).pvalue > FALSE_ALARM
    )
    np.testing.assert_allclose(polya_difference(scale, 1.0, 5), law(scale)[:6], rtol=1e-9)


@pytest.mark.seconds
@pytest.mark.parametrize("num_shares", [2, 12])
def test_one_integer_share_has_the_law_of_a_difference_of_polya_numbers(num_shares):
    drawn = integers(3.0, num_shares, of=1)
    assert chi_square(drawn, polya_difference(3.0, 1 / num_shares, 60)) > FALSE_ALARM
    assert chi_square(drawn, polya_difference(3.0, 1.5 / num_shares, 60)) < FALSE_ALARM


@pytest.mark.parametrize("num_shares", GROUPS)
def test_integer_shares_leave_no_gaps_at_scales_where_floats_do(num_shares):
    """b = 2^26: the law is Laplace's, and the lowest bits are those of any integer."""
    drawn = integers(2.0**26, num_shares)
    assert fits(drawn / 2.0**26, scipy.stats.laplace())
    for wrong in WRONG:
        assert not fits(drawn / 2.0**26, scipy.stats.laplace(scale=wrong))
    assert scipy.stats.chisquare(np.bincount(drawn.ravel() & 15, minlength=16)).pvalue > FALSE_ALARM


def test_the_sum_of_shares_is_the_noise_that_the_ring_adds():
    """Two samplers of one law, of which the ring's is exact: 4,000 draws each."""
    noise = ring.discrete_laplace(7.0).sample(jax.random.key(1), jnp.zeros((NUM, 2), jnp.uint32))
    reach = 60
    tables = [
        np.bincount(np.clip(np.ravel(z) + reach, 0, 2 * reach), minlength=2 * reach + 1)
        for z in (integers(7.0, 3), np.asarray(ring.signed(noise)))
    ]
    often = sum(tables) > 10
    assert scipy.stats.chi2_contingency([table[often] for table in tables]).pvalue > FALSE_ALARM


# -------------------------------------------------------------------------------------- fewer hones


@pytest.mark.parametrize("honest", [6, 11])
def test_with_fewer_honest_integer_shares_than_counted_the_claim_fails(honest):
    """k' = 12, b = 3: two neighbours one step apart should differ by 1/b at most. With fewer, zero
    tells them apart.
    """
    law = polya_difference(3.0, honest / 12, 40)
    assert math.log(law[0] / law[1]) > 1.03 / 3
    if honest == 6:
        drawn = integers(3.0, 12, of=honest)
        assert chi_square(drawn, law) > FALSE_ALARM
        assert chi_square(drawn, polya_difference(3.0, 1.0, 40)) < FALSE_ALARM


@pytest.mark.parametrize("honest", [12, 13, 36])
def test_with_as_many_or_more_it_holds(honest):
    law = polya_difference(3.0, honest / 12, 40)
    assert np.max(np.abs(np.diff(np.log(law)))) <= (1 + 1e-9) / 3


@pytest.mark.parametrize(
    ("honest", "holds"), [(5, False), (9, False), (10, True), (11, True), (30, True)]
)
def test_the_slope_of_the_log_density_of_l2_laplace_shares(honest, holds):
    """The sum of m of k' shares has density ∝ r^λ·K_λ(r/b), λ = m(d + 1)/2k' − d/2, of slope
    −K_{λ−1}/K_λ/b.

    1/b for λ = 1/2, everywhere below it for more, everywhere above it for fewer.
    """
    order = honest / 10 * (RANK + 1) / 2 - RANK / 2
    radii = np.linspace(0.01, 20, 200)
    slope = scipy.special.kve(order - 1, radii) / scipy.special.kve(order, radii)
    assert np.all(slope <= 1 + 1e-9) if holds else np.all(slope > 1 + 1e-4)


@pytest.mark.seconds
def test_fewer_l2_laplace_shares_are_seen_in_the_radius():
    drawn = summed(shares.l2_laplace, (1.0, 10), RANK, 5)
    assert not fits(np.linalg.norm(drawn, axis=1), _radius(1.0))


# -------------------------------------------------------------------------------------------------


def given(factor, num_shares: int = 7, seed: int = 0):
    return summed(shares.published, (factor, 2.5, num_shares), (2,), num_shares, seed)


def test_published_shares_sum_to_the_laplace_over_a_random_h():
    """Per coordinate only: the radius is not that of (10), although the paper says so."""
    factors = jax.random.exponential(jax.random.key(3), (NUM, RANK))
    keys = jax.random.split(jax.random.key(4), (7, NUM))
    draw = jax.vmap(jax.vmap(lambda key, h: shares.published(key, h, 2.5, 7, (RANK,))), (0, None))
    drawn = np.asarray(jnp.sum(draw(keys, factors), axis=0))
    assert fits(drawn, scipy.stats.laplace(scale=2.5))
    for wrong in WRONG:
        assert not fits(drawn, scipy.stats.laplace(scale=2.5 * wrong))
    assert not fits(np.linalg.norm(drawn, axis=1), _radius(2.5))


def test_given_h_the_published_sum_is_gaussian_of_the_variance_that_the_recommender_chose():
    for h in (1e-3, 1.0, 4.0):
        drawn = given(jnp.full(2, h))
        assert fits(drawn, scipy.stats.norm(scale=2.5 * math.sqrt(2 * h)))
        for wrong in WRONG:
            assert not fits(drawn, scipy.stats.norm(scale=2.5 * math.sqrt(2 * h) * wrong))


def test_given_h_the_likelihood_ratio_exceeds_e_to_the_epsilon():
    """Lemma 1 at ε = 0.1, Δ = 4, d = 2: b = 2Δ√d/ε. The sum moves by 2Δ along one axis, and H =
    0.001 is drawn.

    A Laplace sum has a log-ratio of at most 2Δ/b = ε/√d, for any output. Given H the sum is N(·,
    2b²H), and of 2,000 sums that the shares make more than a third have a log-ratio beyond ε, the
    largest beyond ten times that.
    """
    epsilon, width, rank, h = 0.1, 4.0, 2, 1e-3
    scale = 2 * width * math.sqrt(rank) / epsilon
    moved = 2 * width
    drawn = summed(shares.published, (jnp.full(rank, h), scale, 9), (rank,), 9)[:, 0]
    variance = 2 * scale**2 * h
    log_ratio = ((drawn + moved) ** 2 - drawn**2) / (2 * variance)
    direct = scipy.stats.norm(0, math.sqrt(variance)).logpdf(drawn) - scipy.stats.norm(
        -moved, math.sqrt(variance)
    ).logpdf(drawn)
    np.testing.assert_allclose(log_ratio, direct, rtol=1e-4, atol=1e-4)
    assert np.mean(np.abs(log_ratio) > epsilon) > 1 / 3
    assert np.max(np.abs(log_ratio)) > 10 * epsilon
    laplace = scipy.stats.laplace(scale=scale)
    assert (
        np.max(np.abs(laplace.logpdf(drawn) - laplace.logpdf(drawn + moved)))
        <= epsilon / math.sqrt(rank) + 1e-9
    )


# --------------------------------------------------------------------------------------------------


def makers(scale, num_shares):
    key = jax.random.key(0)
    yield lambda: shares.published(key, jnp.ones(2), scale, num_shares, (2,))
    yield lambda: shares.l2_laplace(key, scale, num_shares, 2)
    yield lambda: shares.laplace(key, scale, num_shares, (2,))
    yield lambda: shares.discrete_laplace(key, scale, num_shares, (2,))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_that_is_not_positive_is_refused(scale):
    for make in makers(scale, 3):
        with pytest.raises(ValueError, match="scale"):
            make()


@pytest.mark.parametrize("num_shares", [0, -2, math.nan])
def test_fewer_than_one_share_is_refused(num_shares):
    for make in makers(1.0, num_shares):
        with pytest.raises(ValueError, match="number of shares"):
            make()


def test_scales_and_numbers_of_shares_do_not_recompile():
    for scale, num_shares in ((1.0, 3), (9.0, 12)):
        integers(scale, num_shares, of=1)
    assert integers_of_one._cache_size() == 1
