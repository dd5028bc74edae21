"""Prices of paper 003 against the densities of its noise: never exceeded, reached at the worst
pair.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import digits, gaussian, iterations, objective, user
from accounting.loss import Gaussian
from accounting.price import rho

PURE = ["laplace", "l2_laplace"]
NOISES = [*PURE, "gaussian"]
CHANGES = ["replace", "remove"]

seeds = st.integers(0, 2**32 - 1)
powers = st.floats(-6, 6).map(lambda power: 10.0**power)
ranks = st.integers(1, 60)


def log_density(noise, eta, scale):
    """ln p(η) of one item's noise, up to a constant."""
    return {
        "laplace": -np.abs(eta).sum() / scale,
        "l2_laplace": -np.linalg.norm(eta) / scale,
        "gaussian": -(eta @ eta) / (2 * scale**2),
    }[noise]


def log_density_of_item(noise, item, users, ratings, scale, ridge):
    """ln p(v given the ratings) of (Σuuᵀ + Mμ I) v = Σru − η/2, Jacobian included, up to a
    constant.
    """
    matrix = users.T @ users + ridge * np.eye(users.shape[1])
    eta = 2 * (users.T @ ratings - matrix @ item)
    return log_density(noise, eta, scale) + np.linalg.slogdet(2 * matrix)[1]


def factors(random, count, rank):
    """Rows of norm 1 at most, some of norm 1."""
    rows = random.normal(size=(count, rank))
    return (
        rows
        / np.linalg.norm(rows, axis=1, keepdims=True)
        * np.minimum(1, random.uniform(0, 1.5, size=(count, 1)))
    )


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", PURE)
@given(seed=seeds, rank=st.integers(1, 8), width=st.floats(0.5, 10), scale=st.floats(0.1, 100))
def test_log_ratio_of_the_released_items_density_never_exceeds_epsilon(
    noise, seed, rank, width, scale
):
    random = np.random.default_rng(seed)
    users, ratings = factors(random, 5, rank), random.uniform(0, width, 5)
    other = ratings.copy()
    other[0] = random.choice([0.0, width, random.uniform(0, width)])
    epsilon = objective.value_change_loss(
        noise=noise, scale=scale, range_width=width, rank=rank
    ).epsilon
    for spread in (0.1, 1, 100):
        item = random.normal(size=rank) * spread
        first, second = (
            log_density_of_item(noise, item, users, values, scale, 0.3)
            for values in (ratings, other)
        )
        assert abs(first - second) <= epsilon * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("noise", PURE)
@pytest.mark.parametrize("rank", [1, 2, 9, 50])
def test_log_ratio_of_the_released_items_density_reaches_epsilon(noise, rank):
    width, scale = 4.0, 7.0
    users = np.full(
        (1, rank), 1 / math.sqrt(rank)
    )  # the direction in which the L1 norm is √d times the L2 norm
    matrix = users.T @ users + 0.3 * np.eye(rank)
    item = np.linalg.solve(matrix, -3 * users[0])  # η points along u in both worlds
    low, high = (
        log_density_of_item(noise, item, users, np.array([value]), scale, 0.3)
        for value in (0.0, width)
    )
    epsilon = objective.value_change_loss(
        noise=noise, scale=scale, range_width=width, rank=rank
    ).epsilon
    assert low - high == pytest.approx(epsilon, rel=1e-12)


@given(seed=seeds, rank=st.integers(1, 8), width=st.floats(0.5, 10), scale=st.floats(0.1, 100))
def test_gaussian_shift_never_exceeds_the_price_and_reaches_it_at_norm_1(seed, rank, width, scale):
    random = np.random.default_rng(seed)
    user, change = factors(random, 1, rank)[0], random.uniform(-width, width)
    loss = objective.value_change_loss(noise="gaussian", scale=scale, range_width=width, rank=rank)
    assert isinstance(loss, Gaussian)
    assert np.sum((2 * change * user) ** 2) / (2 * scale**2) <= rho([loss]) * (1 + 1e-12)
    assert (2 * width) ** 2 / (2 * scale**2) == pytest.approx(rho([loss]), rel=1e-12)
    assert rho([loss]) == pytest.approx(gaussian.rho(scale / (2 * width), 1), rel=1e-12)


@pytest.mark.parametrize("noise", NOISES)
def test_a_user_with_m_ratings_pays_m_times(noise):
    """Ratings of m items: m independent noises, each shifted as far as one rating goes."""
    scale, width, rank, m = 50.0, 4.0, 6, 20
    loss = objective.value_change_loss(noise=noise, scale=scale, range_width=width, rank=rank)
    (own,) = user.losses([loss], m)
    shift = 2 * width * np.full((m, rank), 1 / math.sqrt(rank))
    if noise == "gaussian":
        assert np.sum(shift**2) / (2 * scale**2) == pytest.approx(rho([own]), rel=1e-12)
        assert rho([own]) == pytest.approx(m * rho([loss]), rel=1e-12)
    else:
        ratio = sum(
            log_density(noise, row, scale) - log_density(noise, 2 * row, scale) for row in shift
        )
        assert ratio == pytest.approx(own.epsilon, rel=1e-12)
        assert own.epsilon == pytest.approx(m * loss.epsilon, rel=1e-12)


def test_presence_has_no_finite_epsilon_because_the_log_ratio_grows_with_the_item():
    random = np.random.default_rng(0)
    users, ratings = factors(random, 5, 3), random.uniform(1, 5, 5)
    users[0] /= np.linalg.norm(users[0])
    scale = 80.0  # ε = 0.1 for a changed value
    ratios = [
        log_density_of_item("l2_laplace", -size * users[0], users[1:], ratings[1:], scale, 0.3)
        - log_density_of_item("l2_laplace", -size * users[0], users, ratings, scale, 0.3)
        for size in (1e2, 1e3, 1e4, 1e5)
    ]
    assert all(9 < later / earlier < 11 for earlier, later in itertools.pairwise(ratios[1:]))
    assert ratios[-1] > 1000


# --------------------------------------------------------------------------------------------------


def test_l2_laplace_needs_half_of_lemma_1_and_gaussian_a_seventh():
    spent = {"range_width": 4.0, "rank": 50}
    noise = {
        name: objective.squared_noise(
            name,
            scale=objective.value_change_scale(noise=name, epsilon=1.0, delta=delta, **spent),
            rank=50,
        )
        for name, delta in (("laplace", None), ("l2_laplace", None), ("gaussian", 1e-5))
    }
    assert noise["l2_laplace"] / noise["laplace"] == pytest.approx(0.51, abs=1e-9)
    assert noise["gaussian"] / noise["laplace"] == pytest.approx(1 / 7, abs=0.005)
    assert noise["gaussian"] / noise["l2_laplace"] == pytest.approx(0.27, abs=0.005)


@pytest.mark.parametrize("noise", NOISES)
def test_squared_noise_is_that_of_draws(noise):
    """200,000 draws at d = 3; the standard error is at most 0.3%, so 2% is six of them and more."""
    random, rank, scale, draws = np.random.default_rng(1), 3, 1.7, 200_000
    direction = random.normal(size=(draws, rank))
    drawn = {
        "laplace": random.laplace(scale=scale, size=(draws, rank)),
        "l2_laplace": (
            direction
            / np.linalg.norm(direction, axis=1, keepdims=True)
            * random.gamma(rank, scale, size=(draws, 1))
        ),
        "gaussian": scale * direction,
    }[noise]
    assert np.mean(np.sum(drawn**2, axis=1)) == pytest.approx(
        objective.squared_noise(noise, scale=scale, rank=rank), rel=0.02
    )


# --------------------------------------------------------------------------------------------------


@given(
    seed=seeds,
    rank=st.integers(1, 8),
    bound=st.floats(0.1, 10),
    first=st.floats(0.1, 100),
    second=st.floats(0.1, 100),
)
def test_one_rating_never_moves_the_statistics_further_than_priced(
    seed, rank, bound, first, second
):
    random = np.random.default_rng(seed)
    user, rating = (
        factors(random, 1, rank)[0],
        random.choice([bound, -bound, random.uniform(-bound, bound)]),
    )
    loss = objective.statistics_loss(matrix_scale=first, vector_scale=second, rating_bound=bound)
    outer = np.outer(user, user)
    vector = np.sum((rating * user) ** 2) / (2 * second**2)
    full = np.sum(outer**2) / (2 * first**2)
    deviation = np.where(np.eye(rank, dtype=bool), first, first / math.sqrt(2))
    symmetric = np.sum(np.triu(outer / deviation) ** 2) / 2
    mirrored = np.sum(np.triu(outer) ** 2) / (2 * first**2)
    assert full + vector <= rho([loss]) * (1 + 1e-12)
    assert symmetric == pytest.approx(full, rel=1e-9)
    assert mirrored <= full * (1 + 1e-12)


def test_one_rating_can_move_the_statistics_as_far_as_priced():
    loss = objective.statistics_loss(matrix_scale=3.0, vector_scale=5.0, rating_bound=2.0)
    assert rho([loss]) == pytest.approx(1 / (2 * 3.0**2) + 2.0**2 / (2 * 5.0**2), rel=1e-12)
    (own,) = user.losses([loss], 7)  # seven ratings are of seven items
    assert rho([own]) == pytest.approx(7 * rho([loss]), rel=1e-12)


@given(
    epsilon=st.floats(-3, 2).map(lambda p: 10.0**p),
    share=st.floats(0.01, 0.99),
    bound=st.floats(0.1, 10),
)
def test_statistics_scales_cost_at_most_epsilon_and_share_it_as_asked(epsilon, share, bound):
    first, second = objective.statistics_scales(
        epsilon=epsilon, delta=1e-6, rating_bound=bound, matrix_share=share
    )
    spent = rho(
        [objective.statistics_loss(matrix_scale=first, vector_scale=second, rating_bound=bound)]
    )
    assert epsilon * (1 - 1e-6) <= gaussian.epsilon_exact(spent, 1e-6) <= epsilon
    assert 1 / (2 * first**2) == pytest.approx(share * spent, rel=1e-9)


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", PURE)
@given(epsilon=powers, width=powers, rank=ranks, num_iterations=st.integers(1, 10_000))
def test_pure_scales_cost_at_most_epsilon_and_no_less_than_a_rounding(
    noise, epsilon, width, rank, num_iterations
):
    scale = objective.value_change_scale(noise=noise, epsilon=epsilon, range_width=width, rank=rank)
    spent = objective.value_change_loss(
        noise=noise, scale=scale, range_width=width, rank=rank
    ).epsilon
    assert epsilon * (1 - 1e-14) <= spent <= epsilon
    for change in CHANGES:
        run = {
            "noise": noise,
            "clip_norm": width,
            "num_iterations": num_iterations,
            "change": change,
        }
        scale = iterations.iterations_scale(epsilon=epsilon, **run)
        assert (
            epsilon * (1 - 1e-14)
            <= iterations.iterations_per_user(scale=scale, **run).epsilon
            <= epsilon
        )


@given(
    epsilon=st.floats(-3, 3).map(lambda p: 10.0**p),
    width=powers,
    num_iterations=st.integers(1, 10_000),
)
def test_gaussian_scales_cost_at_most_epsilon(epsilon, width, num_iterations):
    scale = objective.value_change_scale(
        noise="gaussian", epsilon=epsilon, delta=1e-5, range_width=width, rank=9
    )
    loss = objective.value_change_loss(noise="gaussian", scale=scale, range_width=width, rank=9)
    assert epsilon * (1 - 1e-9) <= gaussian.epsilon_exact(rho([loss]), 1e-5) <= epsilon
    run = {"noise": "gaussian", "clip_norm": width, "num_iterations": num_iterations}
    loss = iterations.iterations_per_user(
        scale=iterations.iterations_scale(epsilon=epsilon, delta=1e-5, **run), **run
    )
    assert epsilon * (1 - 1e-9) <= gaussian.epsilon_exact(rho([loss]), 1e-5) <= epsilon


@pytest.mark.parametrize("noise", NOISES)
@given(scale=powers, more=st.floats(1.001, 100), rank=ranks)
def test_more_noise_costs_less_and_a_wider_range_more(noise, scale, more, rank):
    def spent(scale, width):
        loss = objective.value_change_loss(noise=noise, scale=scale, range_width=width, rank=rank)
        return rho([loss]) if noise == "gaussian" else loss.epsilon

    assert spent(scale * more, 1.0) < spent(scale, 1.0) < spent(scale, more)


def test_decimals_stay_decimals():
    """Where floats add a digit, an ε printed at 4 decimals would be one digit too high."""
    for sensitivity, scale, epsilon in (
        (1.1, 22, 0.1),
        (0.7, 14, 0.1),
        (4, 80, 0.1),
        (4, 26, 0.3076923076923077),
    ):
        loss = objective.value_change_loss(
            noise="l2_laplace", scale=scale, range_width=sensitivity, rank=50
        )
        assert loss.epsilon == pytest.approx(epsilon, rel=1e-15)
        assert digits.round_up(loss.epsilon) == pytest.approx(epsilon, abs=1e-4)
    assert (
        objective.value_change_loss(noise="l2_laplace", scale=22, range_width=1.1, rank=50).epsilon
        == 0.1
    )
    assert (
        objective.value_change_loss(noise="laplace", scale=160, range_width=4, rank=4).epsilon
        == 0.1
    )


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("noise", NOISES)
def test_numbers_that_are_not_positive_and_finite_are_refused(noise, bad):
    calls = [
        lambda: objective.value_change_loss(noise=noise, scale=bad, range_width=4, rank=2),
        lambda: objective.value_change_loss(noise=noise, scale=1, range_width=bad, rank=2),
        lambda: iterations.iterations_per_user(
            noise=noise, clip_norm=bad, scale=1, num_iterations=2
        ),
        lambda: iterations.iterations_per_user(
            noise=noise, clip_norm=1, scale=bad, num_iterations=2
        ),
        lambda: objective.squared_noise(noise, scale=bad, rank=2),
        lambda: iterations.iterations_claimed(bad, 2),
        lambda: objective.statistics_loss(matrix_scale=bad, vector_scale=1, rating_bound=1),
        lambda: objective.statistics_loss(matrix_scale=1, vector_scale=bad, rating_bound=1),
        lambda: objective.statistics_loss(matrix_scale=1, vector_scale=1, rating_bound=bad),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="must be positive and finite, got"):
            call()


@pytest.mark.parametrize("bad", [0, -1, True])
def test_counts_that_are_not_positive_integers_are_refused(bad):
    calls = [
        lambda: objective.value_sensitivity("laplace", range_width=4, rank=bad),
        lambda: iterations.iterations_claimed(0.1, bad),
        lambda: iterations.iterations_per_user(
            noise="laplace", clip_norm=1, scale=1, num_iterations=bad
        ),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="must be an integer of at least 1, got"):
            call()


def test_other_refusals_name_what_is_allowed():
    with pytest.raises(ValueError, match="delta must be given for Gaussian noise"):
        objective.value_change_scale(noise="gaussian", epsilon=1, range_width=4, rank=2)
    with pytest.raises(ValueError, match="delta must be left out for pure noise"):
        objective.value_change_scale(noise="laplace", epsilon=1, delta=1e-5, range_width=4, rank=2)
    for share in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="matrix_share must be between 0 and 1"):
            objective.statistics_scales(epsilon=1, delta=1e-5, rating_bound=1, matrix_share=share)
    with pytest.raises(ValueError, match="out of range"):
        objective.value_sensitivity("laplace", range_width=1e308, rank=2)


def test_a_price_never_underflows_to_nothing_and_is_infinite_beyond_every_float():
    def spent(scale, width):
        return objective.value_change_loss(
            noise="l2_laplace", scale=scale, range_width=width, rank=2
        ).epsilon

    assert 0 < spent(1e300, 1e-300) < 1e-300
    assert spent(1e-300, 1e300) == math.inf
