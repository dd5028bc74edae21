"""Traps of dp_accounting, each shown to be one still, and beside it that our own function answers
rightly.

A failure of a test named `…_still_…` means that a newer dp-accounting has mended the trap: its
message says what may then be simpler here. A failure of the test after it means that our price is
wrong.
"""

import math
import warnings

import dp_accounting
import pytest
from dp_accounting.pld import privacy_loss_distribution as plds

from accounting import composition, gaussian, langevin, mixture
from accounting.loss import Gaussian, Pure, SubsampledGaussian
from tests.cases.accounting_gaussian import epsilon_rdp_mironov

DELTA = 1e-5
REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
RdpAccountant, PLDAccountant = dp_accounting.rdp.RdpAccountant, dp_accounting.pld.PLDAccountant


def mended(what: str, simplify: str) -> str:
    return f"a newer dp-accounting has mended this trap ({what}); {simplify}"


def rdp_price(event, **options) -> float:
    return RdpAccountant(**options).compose(event).get_epsilon(DELTA)


def noise(z: float):
    return dp_accounting.GaussianDpEvent(z)


# --------------------------------------------------------------------------------------------------


def test_rdp_conversion_still_is_tighter_than_the_papers():
    rho = gaussian.rho_from_step(0.4, 0.01, 300)
    best = gaussian.optimal_order(rho, DELTA)
    theirs = rdp_price(noise(1 / math.sqrt(2 * rho)), orders=[best])
    assert theirs < 0.95 * epsilon_rdp_mironov(rho, DELTA, [best]), mended(
        "its conversion is Mironov's, or another",
        "compare the closed form with RdpAccountant directly in verification",
    )


def test_our_closed_form_is_the_papers_conversion_and_our_rdp_the_tighter_one():
    rho = gaussian.rho_from_step(0.4, 0.01, 300)
    closed = gaussian.epsilon_closed_form(rho, DELTA)
    assert closed == pytest.approx(13.18366, abs=1e-5)
    assert epsilon_rdp_mironov(rho, DELTA, [gaussian.optimal_order(rho, DELTA)]) == pytest.approx(
        closed
    )
    assert gaussian.epsilon_rdp(1 / math.sqrt(2 * rho), 1, DELTA) == pytest.approx(12.255, abs=3e-3)


# --------------------------------------------------------------------------------------------------


def answers(epsilon: float, rounds: int):
    one = dp_accounting.RandomizedResponseDpEvent(2 / (1 + math.exp(epsilon)), 2)
    return dp_accounting.SelfComposedDpEvent(one, rounds)


def test_pld_accountant_still_ignores_the_count_of_randomised_responses():
    once, often = (
        PLDAccountant(REPLACE).compose(answers(0.5, k)).get_epsilon(DELTA) for k in (1, 10)
    )
    assert once == often, mended(
        "PLDAccountant counts randomised responses",
        "`composition` may compose RandomizedResponseDpEvent",
    )


def test_our_pure_rounds_are_counted():
    ten = composition.pld([Pure(epsilon=5.0, num_rounds=10)], unit="user").epsilon(DELTA)
    assert 4.9 < ten <= 5
    twenty = composition.pld([Pure(epsilon=5.0, num_rounds=10)] * 2, unit="user")
    assert twenty.epsilon(DELTA) > 1.5 * ten


# --------------------------------------------------------------------------------------------------


def test_relation_of_a_gaussian_still_is_ignored_by_rdp_and_doubled_by_pld():
    removed = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    assert rdp_price(noise(1.0), neighboring_relation=REPLACE) == rdp_price(
        noise(1.0), neighboring_relation=removed
    ), mended("RdpAccountant knows REPLACE_ONE for Gaussians", "the relation may be left to it")
    pld = PLDAccountant(REPLACE).compose(noise(1.0)).get_epsilon(DELTA)
    assert pld == pytest.approx(gaussian.epsilon_exact(2.0, DELTA), rel=1e-3), mended(
        "PLDAccountant no longer doubles Δ under REPLACE_ONE",
        "the relation need not be chosen loss by loss",
    )


@pytest.mark.parametrize("unit", ["rating value", "rating presence", "user"])
def test_our_gaussian_has_the_relation_in_its_noise_multiplier_whatever_the_unit(unit):
    losses = [Gaussian(noise_multiplier=1.0, num_steps=1)]
    exact = gaussian.epsilon_exact(0.5, DELTA)
    assert composition.pld(losses, unit=unit).epsilon(DELTA) == pytest.approx(exact, rel=1e-4)
    assert exact < composition.rdp(losses, unit=unit).epsilon(DELTA) < 1.2 * exact


# --------------------------------------------------------------------------------------------------


def test_noise_that_is_not_a_number_still_is_free_in_rdp_and_refused_by_pld():
    assert rdp_price(noise(math.nan)) == 0, mended(
        "RdpAccountant no longer prices NaN at 0", "our guards stay: they name the argument"
    )
    with pytest.raises(ValueError):  # noqa: PT011
        PLDAccountant().compose(noise(math.nan)).get_epsilon(DELTA)


def test_our_losses_and_prices_refuse_what_is_not_a_number():
    for make in (
        lambda: Gaussian(noise_multiplier=math.nan, num_steps=1),
        lambda: SubsampledGaussian(noise_multiplier=math.nan, sampling_rate=0.1, num_steps=1),
        lambda: gaussian.epsilon_rdp(math.nan, 1, DELTA),
        lambda: langevin.langevin_phases(
            sampling_rate=0.1, temperature=math.nan, clip_norm=1.0, learning_rates=[0.1]
        ),
    ):
        with pytest.raises(ValueError, match="must be"):
            make()


# --------------------------------------------------------------------------------------------------


def test_rdp_still_refuses_poisson_sampling_under_replace_one():
    step = dp_accounting.PoissonSampledDpEvent(0.1, noise(1.0))
    try:
        RdpAccountant(neighboring_relation=REPLACE).compose(step)
    except dp_accounting.UnsupportedEventError:
        return
    pytest.fail(
        mended(
            "RdpAccountant prices a changed value under sampling",
            "`composition.rdp` need not refuse it",
        )
    )


def test_we_refuse_it_by_name_and_price_it_by_pld():
    step = SubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.1, num_steps=1)
    with pytest.raises(
        ValueError, match="does not price a changed value under Poisson sampling; pld does"
    ):
        composition.rdp([step], unit="rating value")
    value, presence = (
        composition.pld([step], unit=unit).epsilon(DELTA)
        for unit in ("rating value", "rating presence")
    )
    assert presence < value < gaussian.epsilon_exact(2.0, DELTA)


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [1e-7, 5e3])
def test_default_orders_still_exceed_the_closed_form(rho):
    price = rdp_price(noise(1 / math.sqrt(2 * rho)))
    assert price > gaussian.epsilon_closed_form(rho, DELTA), mended(
        f"the default orders suffice at ρ = {rho}", "`gaussian.epsilon_rdp` need not add orders"
    )


@pytest.mark.parametrize("rho", [1e-7, 5e3])
def test_our_orders_do_not(rho):
    z, closed = 1 / math.sqrt(2 * rho), gaussian.epsilon_closed_form(rho, DELTA)
    assert gaussian.epsilon_rdp(z, 1, DELTA) <= closed
    assert (
        composition.rdp([Gaussian(noise_multiplier=z, num_steps=1)], unit="user").epsilon(DELTA)
        <= closed
    )


# --------------------------------------------------------------------------------------------------


def points(distribution) -> int:
    return distribution._pmf_remove.size


@pytest.mark.seconds
def test_default_grid_still_grows_with_rho():
    sizes = [points(plds.from_gaussian_mechanism(1 / math.sqrt(2 * rho))) for rho in (0.3, 30)]
    assert sizes[1] > 1_000_000 > 0.2 * sizes[1] > sizes[0], mended(
        "PLD's default grid follows the loss",
        "`gaussian.epsilon_pld` and `composition` may use the default grid",
    )


@pytest.mark.parametrize("rho", [1e-6, 0.3, 30, 1e4])
def test_our_grid_follows_the_loss(rho):
    factor = composition._gaussian_factor(rho)
    assert points(factor.distribution(math.sqrt(2 * rho) / 1000)) < 200_000
    price = composition.pld(
        [Gaussian(noise_multiplier=1 / math.sqrt(2 * rho), num_steps=1)], unit="user"
    )
    exact = gaussian.epsilon_exact(rho, DELTA)
    assert exact - 1e-9 <= price.epsilon(DELTA) <= exact * (1 + 1e-4)


# --------------------------------------------------------------------------------------------------


def test_search_for_epsilon_still_fails_from_700():
    price = plds.from_gaussian_mechanism(
        1 / math.sqrt(2 * 1250), value_discretization_interval=0.05
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = price.get_epsilon_for_delta(DELTA)
    assert found > 1.0005 * gaussian.epsilon_exact(1250, DELTA), mended(
        "its search for ε does not overflow",
        "`composition._inverse` may be its get_epsilon_for_delta",
    )


def test_our_search_does_not():
    price = composition.pld([Gaussian(noise_multiplier=0.02, num_steps=1)], unit="user").epsilon(
        DELTA
    )
    assert price == pytest.approx(gaussian.epsilon_exact(1250, DELTA), rel=1e-5)


# --------------------------------------------------------------------------------------------------


def test_mixture_still_is_searched_point_by_point(monkeypatch):
    from dp_accounting.pld.privacy_loss_mechanism import MixtureGaussianPrivacyLoss as Loss

    calls, original = [], Loss.privacy_loss
    monkeypatch.setattr(
        Loss, "privacy_loss", lambda self, x: (calls.append(x), original(self, x))[1]
    )
    size = points(
        plds.from_mixture_gaussian_mechanism(
            1.0, *mixture.binomial(20, 0.01), value_discretization_interval=0.1
        )
    )
    assert len(calls) > size, mended(
        "mixtures are inverted in arrays", "`accounting.mixture` may call dp_accounting's"
    )
