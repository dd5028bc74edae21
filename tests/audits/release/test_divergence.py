"""The divergence of errors on trial: a bound that holds as often as it says, ceilings, null and
planted mechanisms.
"""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from accounting.loss import Approximate, Gaussian, Pure, SubsampledGaussian
from audits.release import divergence, kl
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.noise import keys
from tests.cases.membership import CONFIG, DATA, RATINGS, STEPS, VALUE, blind, loud, sound

pytestmark = pytest.mark.usefixtures("quick_compilation")

REPEATS = 400


def bounds(shift, num, alpha, repeats=REPEATS, seed=0):
    """Of errors that are Gaussian, `shift` apart, num on each side and half of that to make the
    rule.
    """
    random = np.random.default_rng(seed)
    for _ in range(repeats):
        inside, outside = random.normal(size=num), shift + random.normal(size=num)
        made = divergence.choose_event(inside[: num // 2], outside[: num // 2])
        yield divergence.lower_bound(made, inside[num // 2 :], outside[num // 2 :], alpha)


@pytest.mark.parametrize("shift", [0.3, 1.0])
def test_the_bound_is_above_the_truth_no_more_often_than_it_says(shift):
    above = np.mean([bound > shift**2 / 2 for bound in bounds(shift, 100, 0.2)])
    assert above <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / REPEATS)


def test_two_coins_are_bounded_as_often_as_the_intervals_allow():
    random, num = np.random.default_rng(1), 400
    event, truth = divergence.Event(False, 0.0, False), divergence.binary(0.7, 0.4)
    assert truth == pytest.approx(0.7 * math.log(0.7 / 0.4) + 0.3 * math.log(0.3 / 0.6))
    found = []
    for _ in range(REPEATS):
        inside, outside = (
            np.where(random.random(num) < chance, -1.0, 1.0) for chance in (0.7, 0.4)
        )
        found.append(divergence.lower_bound(event, inside, outside, 0.3))
    assert np.mean(np.array(found) > truth) <= 0.3 + 3 * math.sqrt(0.3 * 0.7 / REPEATS)
    assert np.mean(np.array(found) > truth) > 0.01  # and it is not far below
    assert np.median(found) > 0.6 * truth


@pytest.mark.parametrize("alpha", [0.05, 1e-4])
def test_the_chances_are_clopper_and_pearson_s(alpha):
    event = divergence.Event(False, 0.0, False)
    inside, outside = np.array([-1.0] * 18 + [1.0] * 2), np.array([-1.0] * 3 + [1.0] * 27)
    least = stats.binomtest(18, 20).proportion_ci(1 - alpha, method="exact").low
    most = stats.binomtest(3, 30).proportion_ci(1 - alpha, method="exact").high
    expected = divergence.binary(least, most) if least > most else 0
    assert divergence.lower_bound(event, inside, outside, alpha) == pytest.approx(expected)
    assert divergence.lower_bound(event, outside, inside, alpha) == 0


def test_with_many_errors_the_bound_nears_the_divergence_of_two_bins():
    """Two Gaussians a standard deviation apart, half a nat: the best cut keeps 0.64 of it or a
    little more.
    """
    [bound] = bounds(1.0, 40_000, 0.05, repeats=1)
    cuts = np.linspace(-2, 3, 501)
    binned = max(divergence.binary(stats.norm.cdf(cut), stats.norm.cdf(cut - 1)) for cut in cuts)
    assert 0.6 * 0.5 < binned < 0.75 * 0.5
    assert 0.9 * binned < bound < binned * 1.02


def test_the_event_is_what_tells_them_apart():
    random = np.random.default_rng(2)
    small, large = random.normal(size=500), 3 * random.normal(size=500)
    assert divergence.choose_event(small, large)[::2] == (True, False)  # sizes, below
    assert divergence.choose_event(large, small)[::2] == (True, True)
    assert divergence.choose_event(small, small + 2)[::2] == (False, False)
    assert divergence.choose_event(small + 2, small)[::2] == (False, True)


def test_errors_alike_are_bounded_by_nothing():
    assert np.mean([bound > 0 for bound in bounds(0.0, 60, 0.05)]) <= 0.05 + 3 * math.sqrt(
        0.05 * 0.95 / REPEATS
    )
    far = list(bounds(30.0, 60, 1e-4, repeats=3))
    assert min(far) > 0.3


def test_ceilings():
    """Randomised response reaches ε tanh(ε/2); one Gaussian step reaches ρ; losses add up."""
    for epsilon in (0.3, 2.0):
        p = 1 / (1 + math.exp(-epsilon))
        reached = p * math.log(p / (1 - p)) + (1 - p) * math.log((1 - p) / p)
        assert divergence.ceiling([Pure(epsilon=epsilon)]) == pytest.approx(reached)
        assert divergence.ceiling([Pure(epsilon=3 * epsilon, num_rounds=3)]) == pytest.approx(
            3 * reached
        )
    two = [Gaussian(noise_multiplier=2.0, num_steps=6), Pure(epsilon=1.0)]
    assert divergence.ceiling(two) == pytest.approx(0.75 + math.tanh(0.5))
    assert (
        divergence.ceiling(
            [SubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.1, num_steps=3)]
        )
        is None
    )
    assert divergence.ceiling([Approximate(epsilon=1.0, delta=1e-5)]) is None


def test_the_power_that_is_stated_is_that_of_simulated_errors():
    num, limit, alpha = 600, 0.05, 1e-4
    least = divergence.visible_divergence(num, limit, alpha)
    random, found = np.random.default_rng(9), []
    for _ in range(200):
        inside, outside = random.normal(size=300), math.sqrt(2 * least) + random.normal(size=300)
        made = divergence.choose_event(inside[:100], outside[:100])
        found.append(divergence.lower_bound(made, inside[100:], outside[100:], alpha) > limit)
    assert np.mean(found) >= 0.85
    assert divergence.visible_divergence(num, 20.0, alpha) == math.inf


QUICK = dataclasses.replace(CONFIG, learning_rate=0.2)


def audit(mechanism, seed=0, **settings):
    return divergence.audit(
        mechanism, RATINGS, DATA, key=keys.from_seed(seed), num_steps=STEPS, **settings
    )


@pytest.mark.seconds
def test_little_noise_is_seen_and_what_is_priced_is_not():
    paper, bound = audit(loud(QUICK))
    assert paper.verdict == "not applicable"
    assert paper.measured > 0
    assert bound.verdict == "violated"
    assert bound.measured > bound.claimed == pytest.approx(sound(QUICK).guarantee(STEPS).rho)
    assert bound.details["replay"]["pair"]["change"].startswith("the rating there")
    for made in (sound(QUICK), blind(QUICK)):
        paper, bound = audit(made)
        assert bound.verdict == "consistent"
        assert bound.measured <= bound.claimed
        assert "0.95" in bound.details["power"]
    assert paper.details["divergence"]["everyone"][0] == pytest.approx(paper.measured)


@pytest.mark.slow
def test_who_never_looks_is_bounded_above_nothing_no_more_often_than_is_said():
    found = [audit(blind(), seed, num_runs=120)[1] for seed in range(200)]
    assert "violated" not in {finding.verdict for finding in found}
    assert np.mean([finding.measured > 0 for finding in found]) <= 0.05 + 3 * math.sqrt(
        0.05 * 0.95 / 200
    )


@pytest.mark.seconds
def test_few_runs_say_nothing():
    [_, few] = audit(sound(QUICK), num_runs=24)
    assert few.verdict == "inconclusive"
    assert few.details["power"].startswith("none")
    random = np.random.default_rng(5)
    alone = divergence._bound(sound().guarantee(STEPS), random.normal(size=9), np.ones(9, bool), {})
    assert alone.verdict == "inconclusive"
    assert "too few" in alone.details["why"]


@pytest.mark.seconds
def test_what_does_not_cover_presence_has_no_ceiling():
    [_, bound] = audit(sound(VALUE), num_runs=24)
    assert bound.verdict == "not applicable"
    assert bound.claimed is None
    assert bound.measured is not None
    assert "not whether it is there" in bound.details["why"]
    control = gaussian.non_private(dataclasses.replace(VALUE, noise_multiplier=None))
    assert [finding.details["why"] for finding in audit(control)] == ["nothing is released"] * 2


def test_the_paper_s_number_is_kl_s():
    random = np.random.default_rng(3)
    plan = divergence.canaries.plan(
        random, RATINGS, DATA, presence=True, side=None, num_ratings=40, num_users=0, natural=True
    )
    errors, inside = random.normal(size=plan.num), random.random(plan.num) < 0.5
    found = divergence._paper(RATINGS, plan, errors, inside)
    assert found.measured == kl.gaussian_kl(errors[inside], errors[~inside])
    heavy = np.isin(RATINGS.user[plan.index], kl.top_users(RATINGS, 2))
    value = found.details["divergence"]["heaviest users"]
    if min(np.sum(heavy & inside), np.sum(heavy & ~inside)) >= 2:
        assert value[0] == kl.gaussian_kl(errors[heavy & inside], errors[heavy & ~inside])
    else:
        assert value is None


def test_natural_canaries_are_ratings_as_they_are():
    plan = divergence.canaries.plan(
        np.random.default_rng(0),
        RATINGS,
        DATA,
        presence=True,
        side=None,
        num_ratings=40,
        num_users=0,
        natural=True,
    )
    assert plan.num == 40
    np.testing.assert_array_equal(plan.value_in, RATINGS.value[plan.index])
