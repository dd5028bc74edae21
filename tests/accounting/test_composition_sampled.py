"""Gaussian steps on Poisson samples: laws of their prices, and what a user's ratings cost."""

import math

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accounting import composition, gaussian, price, user
from tests.cases.subsampled import (
    DELTA,
    NOISE,
    PRESENCE,
    VALUE,
    delta_pld,
    epsilon_pld,
    epsilon_rdp,
    multipliers,
    phases,
    prices,
    rates,
    units,
)

steps = st.sampled_from([1, 3, 40, 2000])
deltas = st.floats(-8, -2).map(lambda power: 10.0**power)
more = st.floats(0.05, 3)
few = settings(max_examples=8)


def all_prices(losses, delta, unit):
    return list(prices(losses, delta, unit=unit).values())


def epsilon_user(losses, delta, *, num_ratings):
    return epsilon_pld(losses, delta, unit=PRESENCE, num_ratings=num_ratings)


# --------------------------------------------------------------------------------------------------


@few
@given(multipliers, rates, steps, deltas, units)
def test_sampling_only_lowers_a_price(z, q, num_steps, delta, unit):
    exact = gaussian.epsilon_exact(gaussian.rho(z / (2 if unit == VALUE else 1), num_steps), delta)
    assert epsilon_pld(phases(z, q, num_steps), delta, unit=unit) <= exact * (1 + NOISE) + 1e-6
    if unit != VALUE:
        rdp = epsilon_rdp(phases(z, q, num_steps), delta, unit=unit)
        assert rdp <= gaussian.epsilon_rdp(z, num_steps, delta) * (1 + 1e-3) + 1e-3


@pytest.mark.seconds
@settings(max_examples=4)
@given(multipliers, rates, steps, deltas, units, more)
def test_a_price_grows_with_rate_and_steps_and_falls_with_noise_and_delta(
    z, q, num_steps, delta, unit, extra
):
    before = all_prices(phases(z, q, num_steps), delta, unit)
    dearer = (
        all_prices(phases(z, min(1.0, q * (1 + extra)), num_steps), delta, unit),
        all_prices(phases(z / (1 + extra), q, num_steps), delta, unit),
        all_prices(phases(z, q, math.ceil(num_steps * (1 + extra))), delta, unit),
        all_prices(phases(z, q, num_steps), delta / (1 + extra), unit),
    )
    for others in dearer:
        for one, after in zip(before, others, strict=True):
            assert after >= one * (1 - NOISE)


@pytest.mark.seconds
@few
@given(multipliers, rates, steps, deltas)
@example(
    z=math.exp(2.0), q=math.exp(-3.0), num_steps=1, delta=0.01
)  # ε = 0 is more than is needed: says nothing
def test_a_changed_value_costs_more_than_presence_and_less_than_two_of_them(z, q, num_steps, delta):
    value = epsilon_pld(phases(z, q, num_steps), delta, unit=VALUE)
    assert value >= epsilon_pld(phases(z, q, num_steps), delta, unit=PRESENCE) * (1 - NOISE)
    if 0 < value < 100:
        half = delta_pld(phases(z, q, num_steps), value / 2, unit=PRESENCE)
        assert half * (1 + math.exp(value / 2)) >= delta * (
            1 - 1e-2
        )  # removed and added again is a change of value


@pytest.mark.seconds
@few
@given(multipliers, rates, steps, deltas, units)
def test_pld_stands_below_rdp_and_delta_is_its_inverse(z, q, num_steps, delta, unit):
    found = prices(phases(z, q, num_steps), delta, unit=unit)
    assert list(found) == (["pld"] if unit == VALUE else ["rdp", "pld"])
    if unit != VALUE:
        assert found["pld"] <= found["rdp"] * (1 + NOISE)
    assert delta_pld(phases(z, q, num_steps), found["pld"], unit=unit) <= delta


@few
@given(multipliers, rates, steps, deltas)
def test_rdp_is_at_most_what_the_default_orders_give(z, q, num_steps, delta):
    import dp_accounting

    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(price.event(phases(z, q, num_steps), unit=PRESENCE))
    ours = epsilon_rdp(phases(z, q, num_steps), delta, unit=PRESENCE)
    assert ours <= accountant.get_epsilon(delta) * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize(
    ("z", "q"), [(1.0, 1e-9), (1.0, 1e-4), (0.5, 0.01), (3.0, 0.3), (0.3, 0.9), (20.0, 1e-6)]
)
@pytest.mark.parametrize("order", [2, 5, 33, 128, 1024])
def test_rounding_errors_of_a_divergence_are_covered(z, q, order):
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    with mpmath.workdps(60):
        terms = (
            mpmath.binomial(order, i)
            * mpmath.mpf(q) ** i
            * (1 - mpmath.mpf(q)) ** (order - i)
            * mpmath.exp((i * i - i) / (2 * mpmath.mpf(z) ** 2))
            for i in range(order + 1)
        )
        true = mpmath.log(mpmath.fsum(terms)) / (order - 1)
        computed = rdp._compute_rdp_poisson_subsampled_gaussian(q, z, [order])[0]
        added = composition._extra_divergence(order, phases(z, q, 1), [], [])
        assert mpmath.mpf(float(computed)) + mpmath.mpf(added) >= true
    assert added < 1e-12 + 1e-7 * float(true)


@pytest.mark.seconds
def test_examples_agree_with_dp_accounting_on_a_fine_grid():
    import dp_accounting

    replace, presence = (
        dp_accounting.NeighboringRelation.REPLACE_ONE,
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    for unit, relation in ((VALUE, replace), (PRESENCE, presence)):
        for z, q, count in ((1.0, 0.01, 100), (2.0, 0.2, 50)):
            accountant = dp_accounting.pld.PLDAccountant(relation, 1e-4)
            accountant.compose(price.event(phases(z, q, count), unit=unit))
            ours = epsilon_pld(phases(z, q, count), DELTA, unit=unit)
            assert ours == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-4)


# --------------------------------------------------------------------------------------------------


def test_a_user_of_twenty_ratings_pays_more_than_m_squared_in_rho():
    losses = phases(1.0, 0.01, 100)
    mixture = epsilon_user(losses, 1e-6, num_ratings=20)
    assert mixture == pytest.approx(21.70, abs=0.01)
    rho = (
        100 * 0.01**2 * math.expm1(1) / 2
    )  # the limit of many small steps, by the central limit theorem
    assert gaussian.epsilon_exact(400 * rho, 1e-6) == pytest.approx(15.3, abs=0.05)


@pytest.mark.seconds
@settings(max_examples=6)
@given(multipliers, rates, st.sampled_from([1, 20]), deltas, st.integers(1, 12))
def test_a_user_with_one_rating_more_pays_more_and_never_above_the_unsampled_price(
    z, q, num_steps, delta, m
):
    losses = phases(z, q, num_steps)
    fewer, ratings = (epsilon_user(losses, delta, num_ratings=count) for count in (m, m + 1))
    assert fewer <= ratings * (1 + NOISE)
    assert (
        ratings
        <= gaussian.epsilon_exact((m + 1) ** 2 * gaussian.rho(z, num_steps), delta) * (1 + NOISE)
        + 1e-6
    )
    one = epsilon_pld(losses, delta, unit=PRESENCE)
    assert epsilon_user(losses, delta, num_ratings=1) == one


def test_a_user_is_priced_over_phases_of_different_noise_and_rate():
    parts = (*phases(1.0, 0.01, 50), *phases(3.0, 0.1, 50))
    whole = epsilon_user(parts, DELTA, num_ratings=5)
    assert whole == pytest.approx(epsilon_user(parts[::-1], DELTA, num_ratings=5), rel=1e-9)
    assert whole > max(epsilon_user((part,), DELTA, num_ratings=5) for part in parts)
    assert user.epsilon(parts, DELTA, num_ratings=5, unit=PRESENCE) == whole


# --------------------------------------------------------------------------------------------------


@given(multipliers, st.floats(1e-4, 0.05), st.sampled_from([PRESENCE, VALUE]))
def test_many_small_steps_resemble_a_gaussian_of_step_rho(z, q, unit):
    if z < 1.5:
        z += 1  # below, more steps are needed than are quick
    (step,) = phases(z, q, 1)
    rho = composition.step_rho(step, unit=unit)
    quotient = (
        math.expm1(1 / z**2) if unit == PRESENCE else 4 * math.sinh(1 / z**2)
    )  # ∫ (P − Q)²/N(0) over q²
    assert rho == pytest.approx(q * q * quotient / 2, rel=40 * q)
