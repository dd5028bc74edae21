"""The best of a random number of runs: the law of the number, and the price against an attack."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import integrate, stats

from accounting import composition, gaussian, ledger, loss, price, repetition, user
from accounting.loss import Approximate, BestOf, Gaussian, Pure, SubsampledGaussian
from tests.cases.guarantee import proved

DELTA = 1e-5
LAWS = [(5.0, 0.0), (3.0, 0.5), (10.0, 1.0)]


def best_of(rho: float, mean: float, shape: float, **more) -> BestOf:
    step = Gaussian(noise_multiplier=1 / math.sqrt(2 * rho), num_steps=1, **more)
    return BestOf(run=(step,), stop=repetition.stop_for(mean, shape), shape=shape)


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_the_law_has_the_mean_that_was_asked_for(mean, shape):
    stop = repetition.stop_for(mean, shape)
    shares = np.array(repetition.probabilities(stop, shape, 3000))
    assert shares.sum() == pytest.approx(1, abs=1e-9)
    assert shares @ np.arange(1, 3001) == pytest.approx(mean, rel=1e-9)
    assert repetition.mean_runs(stop, shape) == pytest.approx(mean, rel=1e-9)


def test_one_run_is_priced_as_one_run_by_the_same_accountant():
    alone = gaussian.epsilon_rdp(1 / math.sqrt(0.4), 1, DELTA)
    assert price.epsilon((best_of(0.2, 1.0, 0.0),), DELTA, unit="user") == pytest.approx(alone)


@pytest.mark.parametrize(("mean", "shape"), LAWS)
@pytest.mark.parametrize("rho", [0.01, 0.2, 2.0])
def test_the_price_is_that_of_dp_accounting_on_a_fine_grid_of_orders(rho, mean, shape):
    from dp_accounting.rdp import rdp_privacy_accountant

    choice = best_of(rho, mean, shape)
    accountant = rdp_privacy_accountant.RdpAccountant(1 + np.geomspace(1e-2, 1e4, 800))
    accountant.compose(price.event((choice,), unit="user"))
    theirs = accountant.get_epsilon(DELTA)
    ours = price.epsilon((choice,), DELTA, unit="user")
    assert ours <= theirs * (1 + 1e-9)
    assert ours == pytest.approx(theirs, rel=2e-3)


def delta_of_the_best(rho: float, law: tuple[float, float], epsilon: float) -> float:
    """The true δ at ε where a run is its score alone, N(0, 1) or N(√(2ρ), 1), and the largest of
    the K scores is released: the density of the largest is f · Σ P(K = k) k F^(k−1).
    """
    stop = repetition.stop_for(*law)
    shares = np.array(repetition.probabilities(stop, law[1], 400))
    powers = np.arange(400)
    shift = math.sqrt(2 * rho)

    def density(x, center):
        below = stats.norm.cdf(x - center)
        return stats.norm.pdf(x - center) * np.sum(
            shares * (powers + 1) * below[..., None] ** powers, axis=-1
        )

    x = np.linspace(-14, 14 + shift, 40_001)
    one, other = density(x, 0.0), density(x, shift)
    gaps = (one - math.exp(epsilon) * other, other - math.exp(epsilon) * one)
    return max(float(integrate.simpson(np.maximum(gap, 0.0), x=x)) for gap in gaps)


@pytest.mark.seconds
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("rho", [0.05, 0.5])
def test_the_price_holds_for_the_largest_of_several_scores(rho, law):
    choice = best_of(rho, *law)
    for delta in (1e-2, 1e-5):
        epsilon = price.epsilon((choice,), delta, unit="user")
        assert delta_of_the_best(rho, law, epsilon) <= delta


def test_the_price_of_one_run_does_not_hold_for_the_best_of_many():
    epsilon = gaussian.epsilon_exact(0.5, 1e-2)
    assert delta_of_the_best(0.5, (10.0, 1.0), epsilon) > 1e-2


def test_two_choices_add_up_and_are_never_one():
    choice = best_of(0.1, 3.0, 0.0)
    assert loss.merged([choice, choice]) == (choice, choice)
    once, twice = (price.epsilon((choice,) * times, DELTA, unit="user") for times in (1, 2))
    assert once < twice <= 2 * once


def test_beside_other_losses_it_costs_more_than_either():
    choice, steps = best_of(0.1, 3.0, 0.0), Gaussian(noise_multiplier=3.0, num_steps=2)
    sampled = SubsampledGaussian(noise_multiplier=2.0, sampling_rate=0.1, num_steps=3)
    both = price.accountants((choice, steps, sampled, Pure(epsilon=0.1)), DELTA, unit="user")
    assert set(both) == {"rdp"}
    alone = price.epsilon((choice,), DELTA, unit="user")
    assert both["rdp"] > max(alone, price.epsilon((steps,), DELTA, unit="user"))
    with_more = price.epsilon((choice, Approximate(epsilon=1.0, delta=1e-6)), DELTA, unit="user")
    assert with_more > 1.0 + alone


def test_noise_that_is_not_quite_normal_counts_once_a_run():
    choice = best_of(0.1, 4.0, 0.0, distance=1e-12)
    assert loss.distance((choice,)) == pytest.approx(4e-12)
    exact = price.epsilon((best_of(0.1, 4.0, 0.0),), DELTA, unit="user")
    assert price.epsilon((choice,), DELTA, unit="user") > exact


def test_no_distribution_of_losses_is_made_up_for_it():
    with pytest.raises(ValueError, match="best of several runs"):
        composition.pld((best_of(0.1, 3.0, 0.0),), unit="user")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": ()}, "at least one"),
        ({"stop": 0.0}, "stop"),
        ({"shape": -0.1}, "shape"),
    ],
)
def test_what_is_no_choice_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(best_of(0.1, 3.0, 0.0), **changes)


@pytest.mark.parametrize("mean", [0.5, math.inf, 1e6])
def test_a_mean_without_a_law_is_refused(mean):
    with pytest.raises(ValueError, match="mean"):
        repetition.stop_for(mean, 0.0)


def chosen(**changes):
    run = (
        Gaussian(noise_multiplier=9.0, num_steps=3, user_rho=(0.5, 0.5)),
        Gaussian(noise_multiplier=8.0, num_steps=1, user_rho=(0.0, 1.0)),
    )
    choice = BestOf(run=run, stop=repetition.stop_for(5.0, 0.0), shape=0.0)
    return proved(losses=(choice,), sensitivity=None, **changes)


def test_a_statement_says_that_the_choice_is_priced_and_the_number_of_runs_is_secret():
    guarantee = chosen()
    text = " ".join(guarantee.statement.split())
    assert guarantee.steps == 4
    assert "the best of a random, secret number of runs (5 on average)" in text
    assert "any other choice by the same ratings" in text
    assert "the price is that of one run" not in text


def test_a_guarantee_goes_to_json_and_back():
    guarantee = chosen()
    again = type(guarantee).from_dict(guarantee.to_dict())
    assert again == guarantee
    assert again.losses == guarantee.losses


def test_json_that_understates_the_price_is_refused():
    values = chosen().to_dict()
    with pytest.raises(ValueError, match="below"):
        type(chosen()).from_dict({**values, "epsilon": values["epsilon"] * 0.9})


def test_a_user_with_many_ratings_pays_for_runs_that_spend_as_much():
    guarantee = chosen()
    own = user.losses(guarantee.losses, 20)
    assert own is not None
    (choice,) = own
    assert isinstance(choice, BestOf)
    assert choice.rho == pytest.approx(3 / (2 * 81) * 210 + 20 / (2 * 64))
    assert guarantee.for_user(20).epsilon > guarantee.for_user(1).epsilon
    assert guarantee.for_user(1).epsilon == guarantee.epsilon
    assert guarantee.user_price is not None


def test_a_ledger_adds_it_up_at_its_delta():
    assert ledger.common_delta([chosen(), proved()]) == DELTA
