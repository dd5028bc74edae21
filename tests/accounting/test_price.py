"""From losses to ε: which accountant prices what, that they agree, and that nothing is free by
accident.
"""

import itertools
import math

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from accounting import gaussian, price, user
from accounting.loss import Approximate, Gaussian, Pure, SubsampledGaussian

DELTA = 1e-5
UNITS = ("rating value", "rating presence", "user")

steps = st.builds(Gaussian, noise_multiplier=st.floats(0.5, 1e3), num_steps=st.integers(1, 1000))
rounds = st.builds(Pure, epsilon=st.floats(0, 20), num_rounds=st.integers(1, 50))
deltas = st.floats(-12, -2).map(lambda power: 10.0**power)


def gauss(z=20.0, num_steps=300, user_rho=None):
    return Gaussian(noise_multiplier=z, num_steps=num_steps, user_rho=user_rho)


SAMPLED = SubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01, num_steps=100)


# --------------------------------------------------------------------------------------------------


@pytest.mark.seconds
@settings(max_examples=15)
@example(
    [Gaussian(noise_multiplier=0.5, num_steps=1), Gaussian(noise_multiplier=0.5, num_steps=269)],
    1e-7,
)
@given(st.lists(steps, min_size=1, max_size=4), deltas)
def test_gaussian_phases_are_one_gaussian_of_their_total_rho_whatever_the_order(phases, delta):
    spent = math.fsum(gaussian.rho(phase.noise_multiplier, phase.num_steps) for phase in phases)
    assume(spent < 1e3)
    prices = price.accountants(phases, delta, unit="rating value")
    assert list(prices) == ["basic", "closed_form", "rdp", "pld", "exact"]
    assert prices["exact"] == pytest.approx(gaussian.epsilon_exact(spent, delta), rel=1e-12)
    assert prices["exact"] <= prices["pld"] + 1e-9 <= prices["rdp"] + 2e-9
    assert prices["rdp"] <= prices["closed_form"] * (1 + 1e-12)
    assert prices["exact"] <= prices["basic"] * (1 + 1e-12)
    backwards = price.accountants(phases[::-1], delta, unit="user")
    assert all(backwards[name] == pytest.approx(prices[name], rel=1e-9) for name in prices)


def test_basic_composition_of_unequal_phases_gives_each_step_its_share_of_delta():
    phases = [gauss(10.0, 2), gauss(5.0, 1)]
    by_hand = [gaussian.epsilon_exact(gaussian.rho(z, 1), DELTA / 3) for z in (10.0, 10.0, 5.0)]
    assert price.accountants(phases, DELTA, unit="user")["basic"] == pytest.approx(
        math.fsum(by_hand), rel=1e-12
    )


def test_rho_adds_up_and_belongs_to_gaussians_only():
    assert price.rho([gauss(1.0, 2), gauss(2.0, 4)]) == pytest.approx(1.0 + 0.5)
    for losses in ([], [SAMPLED], [Pure(epsilon=1.0)], [gauss(), SAMPLED]):
        assert price.rho(losses) is None


def test_no_step_costs_nothing_and_every_step_something():
    for nothing in ([], [gauss(1.0, 0)], [Pure(epsilon=0.0)]):
        assert price.epsilon(nothing, DELTA, unit="user") == 0
    for loss in (gauss(1e3, 1), Pure(epsilon=1e-9), Approximate(epsilon=1e-9, delta=1e-13)):
        assert price.epsilon([loss], 1e-12, unit="user") > 0


# --------------------------------------------------------------------------------------------------


@given(st.lists(rounds, min_size=1, max_size=5))
def test_pure_rounds_at_delta_zero_cost_their_decimal_sum(phases):
    assert price.accountants(phases, 0.0, unit="user") == {
        "basic": pytest.approx(math.fsum(phase.epsilon for phase in phases), rel=1e-12, abs=1e-300)
    }


@settings(max_examples=25)
@given(rounds, deltas)
def test_equal_rounds_compose_at_best_optimally_and_never_above_basic(phase, delta):
    assume(phase.epsilon > 0)
    prices = price.accountants([phase], delta, unit="user")
    assert list(prices) == ["basic", "optimal"]
    assert prices["optimal"] <= prices["basic"]


def test_unequal_rounds_are_composed_by_the_loss_distribution_near_the_optimum_of_equal_ones():
    equal = price.accountants([Pure(epsilon=2.0, num_rounds=20)], DELTA, unit="user")["optimal"]
    nearly = [Pure(epsilon=1.0, num_rounds=10), Pure(epsilon=1.001, num_rounds=10)]
    prices = price.accountants(nearly, DELTA, unit="user")
    assert list(prices) == ["basic", "pld"]
    assert equal * 0.999 < prices["pld"] < equal * 1.01 < prices["basic"]


# --------------------------------------------------------------------------------------------------


def test_a_changed_value_under_sampling_costs_more_than_a_present_rating_and_only_pld_prices_it():
    presence = price.accountants([SAMPLED], DELTA, unit="rating presence")
    value = price.accountants([SAMPLED], DELTA, unit="rating value")
    assert list(presence) == ["rdp", "pld"]
    assert list(value) == ["pld"]
    assert presence["pld"] < presence["rdp"]
    assert presence["pld"] < value["pld"]
    assert price.accountants([SAMPLED], DELTA, unit="user") == presence


@pytest.mark.seconds
@pytest.mark.parametrize("unit", UNITS)
def test_a_mix_costs_at_most_the_sum_of_its_parts_and_at_least_each(unit):
    parts = [SAMPLED, gauss(30.0, 10), Pure(epsilon=0.3, num_rounds=3)]
    for some in itertools.chain(itertools.combinations(parts, 2), [parts]):
        whole = price.epsilon(some, DELTA, unit=unit)
        assert whole >= max(price.epsilon([one], DELTA, unit=unit) for one in some) - 1e-6
        assert (
            whole
            <= math.fsum(price.epsilon([one], DELTA / len(some), unit=unit) for one in some) + 1e-3
        )
        assert price.epsilon(some[::-1], DELTA, unit=unit) == pytest.approx(whole, rel=1e-9)


def test_what_dp_accounting_makes_of_the_event_is_our_price():
    import dp_accounting

    value, presence = (
        dp_accounting.NeighboringRelation.REPLACE_ONE,
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    for losses, unit, relation in (
        ([gauss(5.0, 10), gauss(2.0, 3)], "rating value", presence),
        ([SAMPLED], "rating value", value),
        ([SAMPLED], "rating presence", presence),
        ([Pure(epsilon=0.5)], "user", value),
    ):
        accountant = dp_accounting.pld.PLDAccountant(relation).compose(
            price.event(losses, unit=unit)
        )
        assert price.epsilon(losses, DELTA, unit=unit) == pytest.approx(
            accountant.get_epsilon(DELTA), rel=2e-3
        )
    assert price.event([Approximate(epsilon=1.0, delta=1e-6)], unit="user") is None
    assert price.event([], unit="user") == dp_accounting.NoOpDpEvent()
    assert price.event([Pure(epsilon=math.inf)], unit="user") == dp_accounting.NonPrivateDpEvent()


# -------------------------------------------------------------------------------------------------


def test_approximate_losses_take_their_deltas_out_of_the_whole():
    one = Approximate(epsilon=0.4, delta=1e-6, num_steps=3)
    assert price.accountants([one], DELTA, unit="user") == {"basic": 1.2}
    assert price.epsilon([one, gauss()], DELTA, unit="user") == pytest.approx(
        1.2 + price.epsilon([gauss()], 7e-6, unit="user"), rel=1e-9
    )
    assert price.epsilon([one, Pure(epsilon=0.1)], 3e-6, unit="user") == pytest.approx(
        1.3, rel=1e-12
    )
    assert (
        price.epsilon([one, gauss()], 3e-6, unit="user") == math.inf
    )  # nothing is left for the Gaussian steps
    with pytest.raises(ValueError, match="at least 3e-06"):
        price.epsilon([one], 2.9e-6, unit="user")
    with pytest.raises(ValueError, match="says nothing"):
        price.epsilon([Approximate(epsilon=0.4, delta=0.6)] * 2, 0.9, unit="user")


@pytest.mark.parametrize("loss", [gauss(), SAMPLED])
def test_no_gaussian_noise_is_pure(loss):
    assert price.accountants([loss], 0.0, unit="rating presence") == {"basic": math.inf}
    assert price.accountants([loss, Pure(epsilon=1.0)], 0.0, unit="rating presence") == {
        "basic": math.inf
    }


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan, math.inf])
def test_a_delta_that_says_nothing_is_refused(delta):
    with pytest.raises(ValueError, match="delta must be"):
        price.accountants([gauss()], delta, unit="user")


# --------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.sampled_from([(1.0, 0.0), (0.5, 0.5), (0.0, 1.0)]))
def test_a_user_pays_m_squared_or_the_triangle_or_m_times_rho(m, weights):
    (own,) = user.losses([gauss(user_rho=weights)], m)
    factor = {(1.0, 0.0): m**2, (0.5, 0.5): (m**2 + m) / 2, (0.0, 1.0): m}[weights]
    assert price.rho([own]) == pytest.approx(factor * price.rho([gauss()]), rel=1e-12)


@given(st.integers(1, 300), st.sampled_from([0.1, 0.3, 2.0]))
def test_a_user_pays_m_times_a_pure_epsilon(m, epsilon):
    (own,) = user.losses([Pure(epsilon=epsilon, num_rounds=7)], m)
    assert own == Pure(epsilon=round(m * epsilon, 9), num_rounds=7)


def test_a_user_of_sampled_steps_pays_a_mixture_which_is_more_than_m_squared_in_rho():
    paid = user.epsilon((SAMPLED,), 1e-6, num_ratings=20, unit="rating presence")
    assert paid == pytest.approx(21.7, abs=0.05)  # m² in ρ would say 15.5
    fewer = user.epsilon((SAMPLED,), DELTA, num_ratings=1, unit="rating presence")
    assert fewer == pytest.approx(price.epsilon([SAMPLED], DELTA, unit="rating presence"), rel=2e-3)


@pytest.mark.slow
def test_a_user_of_thousands_of_ratings_is_priced_and_of_millions_refused():
    half = (SubsampledGaussian(noise_multiplier=100.0, sampling_rate=0.5, num_steps=3),)
    paid = user.epsilon(half, DELTA, num_ratings=2000, unit="rating presence")
    least = gaussian.epsilon_exact(
        gaussian.rho(100.0 / 900, 3), DELTA
    )  # 900 of them are in all but surely
    most = gaussian.epsilon_exact(gaussian.rho(100.0 / 1100, 3), DELTA)
    assert least < paid < most
    with pytest.raises(ValueError, match="num_ratings must be at most"):
        user.epsilon(half, DELTA, num_ratings=10**6, unit="rating presence")


def test_a_user_of_a_mix_pays_each_phase_by_its_own_kind():
    mix = (SAMPLED, gauss(user_rho=(1.0, 0.0)), Pure(epsilon=0.01))

    def paid(losses):
        return user.epsilon(losses, 1e-6, num_ratings=5, unit="rating presence")

    assert (
        max(paid((part,)) for part in mix)
        < paid(mix)
        < math.fsum(paid((part,)) for part in mix) + 1e-3
    )
    assert paid(mix[1:]) == pytest.approx(price.epsilon(user.losses(mix[1:], 5), 1e-6, unit="user"))


def test_no_user_price_is_made_up():
    for losses, unit in (
        ((gauss(),), "rating value"),
        ((SAMPLED,), "rating value"),
        ((SAMPLED, gauss()), "rating presence"),
        ((SAMPLED, gauss(user_rho=(1.0, 0.0))), "rating value"),
        ((Approximate(epsilon=1.0, delta=1e-6),), "rating presence"),
        ((gauss(user_rho=(1.0, 0.0)),), "user"),
    ):
        assert user.epsilon(losses, DELTA, num_ratings=3, unit=unit) is None
    for m in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            user.losses([gauss(user_rho=(1.0, 0.0))], m)
