"""The bound from privacy losses is exact: on Gaussian pairs, where δ(ε) is known, it errs as rarely
as it says.
"""

import math

import numpy as np
import pytest
from scipy import stats

from accounting import gaussian
from audits.mechanism import loss_bound
from audits.mechanism.loss_bound import Losses

TRIALS = 2_000


def delta_of(mu: float, epsilon: float) -> float:
    """δ(ε) of N(μ, 1) against N(0, 1)."""
    upper, lower = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return stats.norm.cdf(upper) - math.exp(epsilon) * stats.norm.cdf(lower)


def pair(random: np.random.Generator, num: int, mu: float, shift: float) -> Losses:
    """Responses around shift·μ: L = μr - μ²/2, and the weight of N(μ, 1) against N(shift·μ, 1)."""
    response = random.normal(shift * mu, 1, num)
    weight = (mu - shift * mu) * (response - (mu + shift * mu) / 2)
    return Losses(mu * response - mu**2 / 2, weight)


def largest_term(mu: float, shift: float, epsilon: float) -> float:
    """The supremum of w(1 - e^(ε-L))₊ for a shift above 1."""
    if shift == 1:
        return 1.0
    u = math.log(shift / (shift - 1))
    return -math.expm1(-u) * math.exp(
        -(shift - 1) * (epsilon + u) + shift * (shift - 1) * mu**2 / 2
    )


def tilted(mu: float, delta: float) -> tuple[float, float, float]:
    """(ε, shift, B)."""
    epsilon = gaussian.epsilon_exact(mu**2 / 2, delta)
    shift = max(1.0, epsilon / mu**2 + 0.5)
    return epsilon, shift, largest_term(mu, shift, epsilon)


def test_the_mean_of_the_terms_is_delta():
    for mu, epsilon, shift in ((1.0, 0.5, 1.0), (1.0, 3.0, 3.5), (0.3, 1.0, 11.6)):
        terms = loss_bound.terms(pair(np.random.default_rng(0), 400_000, mu, shift), epsilon)
        error = np.std(terms) / math.sqrt(len(terms))
        assert abs(np.mean(terms) - delta_of(mu, epsilon)) < 4 * error


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_true_claims_are_refuted_as_rarely_as_alpha_says(mu, delta):
    random, alpha = np.random.default_rng(1), 0.05
    epsilon, shift, largest = tilted(mu, delta)
    refuted = missed = 0
    for _ in range(TRIALS):
        scored = loss_bound.scores(pair(random, 500, mu, shift), random.random(500), largest)
        refuted += loss_bound.p_value(scored, epsilon, delta, largest) <= alpha
        missed += loss_bound.epsilon_bound(scored, delta, largest, alpha) > epsilon
    limit = TRIALS * alpha + 3 * math.sqrt(TRIALS * alpha)
    assert refuted <= limit
    assert missed <= limit
    assert refuted + missed > 0  # counts are whole, so below α, but not for nothing


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_the_bound_is_tight_and_a_smaller_sigma_is_seen(delta):
    random, mu = np.random.default_rng(2), 1.0
    epsilon, shift, largest = tilted(mu, delta)
    scored = loss_bound.scores(pair(random, 3_000, mu, shift), random.random(3_000), largest)
    bound = loss_bound.epsilon_bound(scored, delta, largest, 0.05)
    assert 0.95 * epsilon < bound
    seen = loss_bound.delta_seen(3_000, delta, largest, 1e-4)
    assert delta < seen < 2 * delta
    caught = 0
    for _ in range(200):
        scored = loss_bound.scores(
            pair(random, 3_000, mu / 0.9, shift), random.random(3_000), largest
        )
        caught += loss_bound.p_value(scored, epsilon, delta, largest) <= 1e-4
    assert caught >= 190


def test_a_largest_term_that_is_too_small_only_weakens_the_bound():
    random = np.random.default_rng(3)
    epsilon, shift, largest = tilted(1.0, 1e-5)
    losses, uniform = pair(random, 20_000, 1.0, shift), random.random(20_000)
    whole = loss_bound.epsilon_bound(
        loss_bound.scores(losses, uniform, largest), 1e-5, largest, 0.01
    )
    cut = loss_bound.epsilon_bound(
        loss_bound.scores(losses, uniform, largest / 4), 1e-5, largest / 4, 0.01
    )
    assert cut < whole <= epsilon


def test_few_runs_say_nothing():
    losses = Losses(np.full(10, 5.0), np.zeros(10))
    scored = loss_bound.scores(losses, np.full(10, 0.5), 1.0)
    assert np.all(scored < 5.0)
    assert loss_bound.least_count(10, 0.5, 1.0, 1e-4) is None
    assert loss_bound.epsilon_bound(scored, 0.5, 1.0, 1e-4) == 0
    assert loss_bound.p_value(np.full(10, -np.inf), 1.0, 1e-5, 1.0) == 1
    assert loss_bound.delta_seen(10, 0.5, 1.0, 1e-4) == math.inf


def test_infinite_losses_count():
    scored = loss_bound.scores(Losses(np.full(100, np.inf), np.zeros(100)), np.full(100, 0.5), 1.0)
    assert loss_bound.p_value(scored, 50.0, 0.01, 1.0) < 1e-10
    assert loss_bound.epsilon_bound(scored, 0.01, 1.0, 0.05) == math.inf


def test_the_estimate_finds_epsilon():
    epsilon, shift, _ = tilted(1.0, 1e-5)
    guess = loss_bound.estimate(pair(np.random.default_rng(4), 100_000, 1.0, shift), 1e-5)
    assert abs(guess - epsilon) < 0.02
    assert loss_bound.estimate(Losses(np.zeros(5), np.full(5, -50.0)), 0.5) == -math.inf
