"""The one-run audit on trial: its theorem by hand, exact and reckless mechanisms, another project's
estimator.
"""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from accounting import gaussian as price
from audits.release import guesses, one_run
from audits.release.guesses import Guesses
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.noise import keys
from tests.cases.membership import CONFIG, DATA, RATINGS, STEPS, blind, loud, sound

pytestmark = pytest.mark.usefixtures("quick_compilation")


def by_hand(m, r, v, epsilon, delta):
    """Theorem 5.2 as it is written, one i at a time."""
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    at_least = [stats.binom.sf(x - 1, r, right) for x in range(v + 1)]
    steepest = max(((at_least[v - i] - at_least[v]) / i for i in range(1, v + 1)), default=0)
    return min(1, at_least[v] + 2 * m * delta * steepest)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
@pytest.mark.parametrize(
    ("m", "r", "v"), [(10, 4, 0), (10, 10, 10), (100, 40, 37), (1000, 1000, 700)]
)
def test_the_p_value_is_the_theorem_s(m, r, v, delta):
    for epsilon in (0.0, 0.5, 3.0):
        found = guesses.p_value(Guesses(m, r, v), epsilon, delta)
        assert found == pytest.approx(by_hand(m, r, v, epsilon, delta), rel=1e-9, abs=1e-300)


def test_more_guesses_than_canaries_are_refused():
    with pytest.raises(ValueError, match="right guesses"):
        guesses.p_value(Guesses(10, 11, 3), 1.0, 0.0)
    with pytest.raises(ValueError, match="right guesses"):
        guesses.p_value(Guesses(10, 5, 6), 1.0, 0.0)


def test_the_bound_is_where_the_p_value_is_alpha():
    for some, delta in (
        (Guesses(200, 100, 95), 0.0),
        (Guesses(200, 100, 95), 1e-5),
        (Guesses(50, 50, 49), 1e-3),
    ):
        bound = guesses.epsilon_bound(some, delta, 0.05)
        assert guesses.p_value(some, bound, delta) <= 0.05
        assert guesses.p_value(some, bound + 1e-6, delta) > 0.05
    assert guesses.epsilon_bound(Guesses(100, 100, 50), 0.0, 0.05) == 0
    assert guesses.epsilon_bound(Guesses(10, 0, 0), 0.0, 0.05) == 0


def coins_of(random, num):
    return random.random(num) < 0.5


REPEATS = 200


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_a_gaussian_mechanism_is_bounded_below_its_exact_price(mu):
    """One run of 1,000 canaries, each behind N(0, 1) noise at distance μ; the guarantee of each is
    exactly μ-GDP.

    At α = 0.05 at most 5% of the bounds may exceed ε; at a δ where the theorem gives little away
    they reach a third.
    """
    random, delta, num = np.random.default_rng(1), 1e-6, 1000
    exact = price.epsilon_exact(mu**2 / 2, delta)
    bounds = []
    for _ in range(REPEATS):
        inside = coins_of(random, num)
        scores = mu * inside + random.normal(size=num)
        bounds.append(guesses.epsilon_bound(guesses.guess(scores, inside, (0.1, 0.1)), delta, 0.05))
    assert np.mean(np.array(bounds) > exact) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / REPEATS)
    assert np.median(bounds) > (0.2 if mu == 0.5 else 0.3) * exact


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_randomised_response_is_refuted_as_often_as_alpha_allows_and_bounded_closely(epsilon):
    """The mechanism for which the theorem is tight: every coin said through ε; all guesses."""
    random, num, alpha = np.random.default_rng(2), 500, 0.05
    right = 1 / (1 + math.exp(-epsilon))
    bounds = []
    for _ in range(REPEATS):
        inside = coins_of(random, num)
        said = np.where(random.random(num) < right, inside, ~inside)
        bounds.append(
            guesses.epsilon_bound(guesses.guess(said.astype(float), inside, (0.5, 0.5)), 0.0, alpha)
        )
    assert np.mean(np.array(bounds) > epsilon) <= alpha + 3 * math.sqrt(
        alpha * (1 - alpha) / REPEATS
    )
    if epsilon:
        assert np.median(bounds) > 0.7 * epsilon


@pytest.mark.parametrize("share", [0.02, 1.0])
def test_a_delta_that_tells_some_coins_outright_is_allowed_for(share):
    """With probability δ/share a share of all coins is told, the rest is randomised response: (ε,
    δ) for each coin.
    """
    random, num, epsilon, delta, alpha = np.random.default_rng(3), 200, 0.5, 0.05, 0.05
    right = 1 / (1 + math.exp(-epsilon))
    alarms = 0
    for _ in range(4 * REPEATS):
        inside = coins_of(random, num)
        said = np.where(random.random(num) < right, inside, ~inside)
        told = (random.random(num) < share) & (random.random() < min(1, delta / share))
        said = np.where(told, inside, said)
        made = guesses.guess(said + 0.1 * random.random(num), inside, (0.5, 0.5))
        alarms += guesses.p_value(made, epsilon, delta) <= alpha
    assert alarms / (4 * REPEATS) <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / (4 * REPEATS))


def test_how_many_are_guessed_does_not_depend_on_what_is_seen():
    random = np.random.default_rng(5)
    made = {
        guesses.guess(random.normal(size=(7, 9)), coins_of(random, (7, 9)), (0.1, 0.35)).made
        for _ in range(20)
    }
    assert made == {6 + 22}
    inside = np.array([True, True, False, False])
    assert guesses.guess(np.array([4.0, 3.0, 2.0, 1.0]), inside, (0.5, 0.5)) == (4, 4, 4)
    assert guesses.guess(np.array([1.0, 2.0, 3.0, 4.0]), inside, (0.5, 0.5)) == (4, 4, 0)


def test_shares_are_chosen_where_scores_say_most():
    random, num = np.random.default_rng(6), 400
    inside = coins_of(random, num)
    scores = random.normal(size=num)
    scores[:60] = np.where(
        inside[:60], 9.0, -1.0
    )  # members of these stand out at the top, nothing does at the bottom
    chosen = guesses.choose_shares(scores, inside, 0.1)
    assert 0 < chosen.widest[0] <= 0.1
    assert chosen.widest[1] == 0
    assert guesses.choose_shares(np.zeros(num), np.arange(num) % 2 == 0, 0.1).sharpest == (0.5, 0.5)


def audit(mechanism, seed=0, **settings):
    return one_run.audit(
        mechanism, RATINGS, DATA, key=keys.from_seed(seed), num_steps=STEPS, **settings
    )


@pytest.mark.seconds
def test_little_noise_is_seen_in_one_run_and_what_is_priced_is_not():
    [broken] = audit(loud())
    assert broken.verdict == "violated"
    assert broken.measured > broken.claimed
    assert broken.details["replay"]["pair"]["change"].startswith("the rating there")
    assert audit(sound())[0].verdict == "consistent"
    assert audit(blind())[0].verdict != "violated"


@pytest.mark.seconds
def test_where_one_run_could_refute_nothing_several_are_attacked():
    """At ε = 8.4 all of 48 guesses about one run may be right; those about eight may not."""
    config = dataclasses.replace(CONFIG, noise_multiplier=2.4)
    [honest], [broken] = audit(sound(config)), audit(loud(config))
    assert honest.claimed > 8
    assert {honest.details["runs_attacked"], broken.details["runs_attacked"]} == {one_run.RUNS}
    assert (honest.verdict, broken.verdict) == ("consistent", "violated")
    assert audit(sound())[0].details["runs_attacked"] == 1


@pytest.mark.slow
def test_who_never_looks_is_bounded_above_nothing_no_more_often_than_is_said():
    found = [audit(blind(), seed)[0] for seed in range(100)]
    assert "violated" not in {finding.verdict for finding in found}
    assert np.mean([finding.measured > 0 for finding in found]) <= 0.05 + 3 * math.sqrt(
        0.05 * 0.95 / 100
    )


@pytest.mark.seconds
def test_the_same_key_says_the_same():
    one, two = (audit(sound(), 1)[0].to_dict() for _ in range(2))
    assert one == two


def test_nothing_to_refute():
    control = gaussian.non_private(
        dataclasses.replace(CONFIG, noise_multiplier=None, relation="rating value")
    )
    [finding] = audit(control)
    assert finding.verdict == "not applicable"
    assert finding.details["why"] == "nothing is released"


def test_another_project_bounds_alike():
    """jax-privacy's estimator, at a threshold and a number of guesses that are fixed; never its
    epsilon_from_gdp.
    """
    auditing = pytest.importorskip("jax_privacy.auditing", reason="jax-privacy is not installed")
    random, num, delta = np.random.default_rng(7), 600, 1e-5
    for mu in (1.0, 3.0):
        inside = coins_of(random, num)
        scores = mu * inside + random.normal(size=num)
        share = 0.2
        made = guesses.guess(scores, inside, (share, 0.0))
        threshold = float(np.sort(scores)[-made.made])
        theirs = auditing.CanaryScoreAuditor(scores[inside], scores[~inside]).epsilon_one_run(
            significance=0.05, delta=delta, threshold_strategy=auditing.Explicit(threshold)
        )
        assert guesses.epsilon_bound(made, delta, 0.05) == pytest.approx(theirs, abs=1e-5)


def test_effects_of_all_coins_are_told_apart():
    random = np.random.default_rng(8)
    base, each = random.normal(size=12), np.eye(12) + 0.4 * random.normal(size=(12, 12))
    coins = coins_of(random, (40, 12))
    found = one_run._effects(base + coins @ each, coins)
    np.testing.assert_allclose(found.base, base, atol=1e-9)
    np.testing.assert_allclose(found.each, each, atol=1e-9)
    inside = coins_of(random, 12)
    scores = one_run._decoded(base + inside @ each, found, np.zeros((3, 12)))
    assert np.all((scores > 0) == inside)
    few = one_run._effects(base + coins[:20] @ each, coins[:20])
    assert np.count_nonzero(few.each) == 12
