"""The bound of a whole trade-off curve: against linear programming, and known mechanisms."""

import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

from accounting import gaussian as price
from accounting.loss import Approximate, Gaussian, Pure, SubsampledGaussian
from audits.release import guesses, trade_off
from audits.release.guesses import Guesses


def by_programming(made, curve):
    """The largest P(K ≥ v) of any law of K that the inequalities of the proof allow."""
    m, r, v = made
    right = np.arange(r + 1)
    rows, limits = [], []
    for slope, offset in zip(curve.slopes, curve.offsets, strict=True):
        for c in range(1, r + 1):
            of_right = np.where(right >= c, right, 0) / m
            of_wrong = np.where(right >= c - 1, r - right, 0) / m
            rows.append(slope * of_right - of_wrong)
            limits.append(offset)
    found = linprog(
        -(right >= v).astype(float),
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        A_eq=np.ones((1, r + 1)),
        b_eq=[1.0],
    )
    assert found.status == 0
    return -found.fun


@pytest.mark.parametrize(
    ("m", "r", "v", "mu"),
    [(10, 6, 6, 1.0), (20, 10, 9, 1.0), (20, 20, 16, 0.5), (40, 12, 12, 2.0), (40, 12, 10, 2.0)],
)
def test_the_recursion_is_the_best_that_its_inequalities_give(m, r, v, mu):
    made, curve = Guesses(m, r, v), trade_off.of_gaussian(mu)
    assert trade_off.p_value(made, curve) == pytest.approx(by_programming(made, curve), abs=1e-5)


def test_h_is_the_normal_curve_s_and_never_above():
    for mu in (0.3, 1.0, 3.0):
        curve = trade_off.of_gaussian(mu)
        for p in (1e-6, 1e-3, 0.1, 0.5, 0.9):
            exact = norm.cdf(norm.ppf(p) - mu)
            assert 0.9 * exact <= curve.least(p) <= exact * (1 + 1e-9)
        assert curve.least(0.0) == 0.0


def test_points_in_any_order_are_valid_lines():
    """Where points lie on no convex curve a worse line may be taken, never a wrong one."""
    points = [(1.0, 0.01), (0.0, 0.3), (2.0, 0.005), (0.5, 0.2), (0.7, 0.3)]
    curve = trade_off.lines(points)
    for p in np.linspace(0, 1, 101):
        best = max(
            [0.0]
            + [(p - delta) * math.exp(-epsilon) for epsilon, delta in points]
            + [1 - delta - math.exp(epsilon) * (1 - p) for epsilon, delta in points]
        )
        assert 0 <= curve.least(p) <= best + 1e-12
    assert trade_off.lines([(1.0, 0.0)]).least(0.5) == pytest.approx(0.5 / math.e)


def test_a_pure_claim_is_bounded_near_its_binomial():
    made, curve = Guesses(200, 200, 170), trade_off.lines([(1.0, 0.0)])
    exact = guesses.p_value(made, 1.0, 0.0)
    assert exact <= trade_off.p_value(made, curve) <= 20 * exact
    assert trade_off.p_value(Guesses(200, 200, 0), curve) == 1.0


def test_the_curve_of_losses_is_theirs():
    rho = 4 / (2 * 3.0**2)
    found = trade_off.of_losses(
        (Gaussian(num_steps=4, noise_multiplier=3.0),), 1e-5, unit="rating value"
    )
    assert found == trade_off.of_gaussian(math.sqrt(2 * rho))
    away = Gaussian(num_steps=4, noise_multiplier=3.0, distance=1e-3)
    worse = trade_off.of_losses((away,), 1e-5, unit="rating value")
    assert all(a > b for a, b in zip(worse.offsets[1:], found.offsets[1:], strict=True))
    sampled = trade_off.of_losses(
        (SubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.1, num_steps=10),),
        1e-5,
        unit="rating presence",
    )
    assert len(sampled.slopes) == 2 * trade_off.LINES
    for losses, delta in (
        ((Pure(epsilon=1.5),), 0.0),
        ((Approximate(epsilon=1.5, delta=1e-5),), 1e-5),
    ):
        one = trade_off.of_losses(losses, delta, unit="user")
        assert one == trade_off.lines([(1.5, delta)])


@pytest.mark.parametrize("multiplier", [0.04, 1e-3])
def test_a_claim_of_thousands_allows_everything(multiplier):
    """Its ε is so large that no float holds e^ε: a user with many ratings may pay that much."""
    loss = Gaussian(num_steps=20, noise_multiplier=multiplier, distance=1e-38)
    assert price.epsilon_exact(loss.num_steps / (2 * multiplier**2), 1e-5) > trade_off.FARTHEST
    curve = trade_off.of_losses((loss,), 1e-5, unit="rating value")
    assert trade_off.p_value(Guesses(1000, 1000, 1000), curve) == 1.0
    one = trade_off.of_losses((Approximate(epsilon=1e4, delta=1e-6),), 1e-5, unit="user")
    assert trade_off.p_value(Guesses(1000, 1000, 1000), one) == 1.0


REPEATS = 300


@pytest.mark.parametrize(("mu", "share"), [(0.5, 0.5), (2.0, 0.1)])
def test_gaussian_noise_is_refuted_no_more_often_than_alpha_allows(mu, share):
    """One run of 400 canaries, each behind N(0, 1) noise, μ apart: the claim holds exactly."""
    random, num, curve = np.random.default_rng(1), 400, trade_off.of_gaussian(mu)
    alarms, alpha = 0, 0.05
    for _ in range(REPEATS):
        inside = random.random(num) < 0.5
        made = guesses.guess(mu * inside + random.normal(size=num), inside, (share, share))
        alarms += not trade_off.possible(made, curve, alpha)
    assert alarms / REPEATS <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / REPEATS)


def test_coins_that_are_told_together_are_allowed_for():
    """All coins are told at once or none: the right guesses have the largest spread there is."""
    random, num, delta, alpha = np.random.default_rng(2), 100, 0.04, 0.05
    curve, alarms = trade_off.lines([(0.0, delta)]), 0
    for _ in range(REPEATS):
        inside, told = random.random(num) < 0.5, random.random() < delta
        said = inside if told else random.random(num) < 0.5
        made = guesses.guess(said.astype(float), inside, (0.5, 0.5))
        alarms += not trade_off.possible(made, curve, alpha)
    assert alarms / REPEATS <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / REPEATS)


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 10.0])
def test_the_curve_bounds_more_closely_than_one_point_of_it(epsilon):
    """1,000 canaries of one run, each behind its own Gaussian noise, at δ = 1e-5."""
    random, num, delta = np.random.default_rng(3), 1000, 1e-5
    mu = math.sqrt(2 * price.solve_rho(epsilon, delta))
    points, curves = [], []
    for _ in range(5):
        inside = random.random(num) < 0.5
        scores = mu * inside + random.normal(size=num)
        made = guesses.guess(scores, inside, (0.05, 0.05))
        points.append(guesses.epsilon_bound(made, delta, 0.05))
        curves.append(price.epsilon_exact(trade_off.mu_bound(made, 0.05) ** 2 / 2, delta))
    assert np.median(curves) <= epsilon
    assert np.median(curves) > 1.3 * np.median(points) or epsilon == 1.0
    assert trade_off.mu_bound(Guesses(100, 100, 50), 0.05) == 0.0
