"""Noise, steps and step sizes for a target: affordable, nearly tight, and never rounded down."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from accounting import gaussian
from tests.cases.accounting_gaussian import (
    DELTA,
    PRICES,
    deltas,
    epsilons,
    prices,
    steps,
    true_delta,
    usual_deltas,
    usual_rhos,
)

# ------------------------------------------------------------------------------ the trade-off, and


@given(usual_rhos, st.floats(0, 20), st.floats(0, 1))
def test_delta_is_the_largest_gap_of_the_trade_off(rho, epsilon, rate):
    mu, delta = gaussian.mu_from_rho(rho), gaussian.delta_exact(rho, epsilon)
    assert (
        1 - gaussian.trade_off(rho, rate) - math.exp(epsilon) * rate
        <= delta + 1e-9 * math.exp(epsilon) * rate
    )
    best = math.erfc((epsilon / mu + mu / 2) / math.sqrt(2)) / 2
    gap = 1 - gaussian.trade_off(rho, best) - math.exp(epsilon) * best
    assert gap == pytest.approx(delta, rel=1e-6, abs=1e-12)


@given(usual_rhos, st.floats(1e-6, 1 - 1e-6))
def test_trade_off_is_symmetric_and_below_guessing(rho, rate):
    missed = gaussian.trade_off(rho, rate)
    assert missed < 1 - rate
    assume(missed > 1e-300 and 1 - missed > 1e-6)
    assert gaussian.trade_off(rho, missed) == pytest.approx(rate, rel=1e-6)


def test_trade_off_at_its_ends():
    assert gaussian.trade_off(1.0, 0.0) == 1
    assert gaussian.trade_off(1.0, 1.0) == 0
    assert gaussian.trade_off(0.0, 0.3) == pytest.approx(0.7, rel=1e-14)
    assert gaussian.trade_off(0.5, 0.5) == pytest.approx(math.erfc(1 / math.sqrt(2)) / 2, rel=1e-14)


@given(usual_rhos)
def test_mu_and_rho_are_inverse(rho):
    assert gaussian.rho_from_mu(gaussian.mu_from_rho(rho)) == pytest.approx(rho, rel=1e-14)
    assert gaussian.mu_from_rho(rho) ** 2 / 2 == pytest.approx(rho, rel=1e-14)


@given(st.floats(1e-3, 0.999), usual_deltas)
def test_classical_calibration_holds_and_the_analytic_one_needs_less_noise(epsilon, delta):
    classical, analytic = (
        gaussian.calibrate_classical(epsilon, delta),
        gaussian.calibrate_analytic(epsilon, delta),
    )
    assert classical == gaussian.noise_multiplier_from_step(epsilon, delta)
    assert true_delta(gaussian.rho(classical, 1), epsilon) <= delta
    assert analytic < classical


@given(epsilons, usual_deltas)
def test_analytic_calibration_is_affordable_and_tight_by_the_oracle(epsilon, delta):
    z = gaussian.calibrate_analytic(epsilon, delta)
    assert (
        true_delta(gaussian.rho(z, 1), epsilon)
        <= delta
        < true_delta(gaussian.rho(z * (1 - 1e-10), 1), epsilon)
    )


def test_classical_calibration_ends_where_its_theorem_does():
    for epsilon in (1.0, 1.5, math.inf, math.nan, 0.0, -0.5):
        with pytest.raises(ValueError, match="epsilon must be above 0 and below 1"):
            gaussian.calibrate_classical(epsilon, DELTA)
    assert (
        gaussian.noise_multiplier_from_step(1.5) > 0
    )  # only a way to write z: defined for any ε_i
    # beyond its range the formula promises too much
    assert (
        true_delta(gaussian.rho(gaussian.noise_multiplier_from_step(10.0, DELTA), 1), 10.0) > DELTA
    )


# --------------------------------------------------------------------------------------------------


@given(epsilons, deltas, steps, prices)
def test_noise_multiplier_is_affordable_and_nearly_tight(epsilon, delta, num_steps, price):
    z = gaussian.solve_noise_multiplier(epsilon, delta, num_steps, price=price)
    assert PRICES[price](gaussian.rho(z, num_steps), delta) <= epsilon
    assert PRICES[price](gaussian.rho(z * (1 - 1e-11), num_steps), delta) > epsilon


@given(epsilons, deltas, steps, prices)
def test_noise_multiplier_leaves_room_for_being_stored_as_sigma_and_divided_again(
    epsilon, delta, num_steps, price
):
    z = gaussian.solve_noise_multiplier(epsilon, delta, num_steps, price=price)
    assert PRICES[price](gaussian.rho(z * (1 - 1e-12), num_steps), delta) <= epsilon


@given(epsilons, deltas, steps, deltas, prices)
def test_epsilon_step_is_affordable_and_nearly_tight(epsilon, delta, num_steps, delta_step, price):
    step = gaussian.solve_epsilon_step(epsilon, delta, num_steps, delta_step, price=price)
    assert PRICES[price](gaussian.rho_from_step(step, delta_step, num_steps), delta) <= epsilon
    assert (
        PRICES[price](gaussian.rho_from_step(step * (1 + 1e-11), delta_step, num_steps), delta)
        > epsilon
    )


@given(epsilons, deltas, st.floats(0.1, 1e3), prices)
def test_number_of_steps_is_affordable_and_the_next_step_is_not(epsilon, delta, z, price):
    num_steps = gaussian.solve_num_steps(epsilon, delta, z, price=price)
    assert num_steps == 0 or PRICES[price](gaussian.rho(z, num_steps), delta) <= epsilon
    assert PRICES[price](gaussian.rho(z, num_steps + 1), delta) > epsilon


@given(st.integers(1, 10_000), st.floats(0.5, 1e3), deltas, prices)
def test_steps_to_price_to_steps(num_steps, z, delta, price):
    epsilon = PRICES[price](gaussian.rho(z, num_steps), delta)
    assume(epsilon > 0)
    assert gaussian.solve_num_steps(epsilon, delta, z, price=price) == num_steps


@given(st.floats(1e-3, 10), deltas)
def test_step_and_noise_multiplier_are_inverse(epsilon_step, delta_step):
    z = gaussian.noise_multiplier_from_step(epsilon_step, delta_step)
    assert z == pytest.approx(math.sqrt(2 * math.log(1.25 / delta_step)) / epsilon_step, rel=1e-14)
    assert gaussian.step_from_noise_multiplier(z, delta_step) == pytest.approx(
        epsilon_step, rel=1e-14
    )


# --------------------------------------------------------------------------------------------------


@given(st.floats(0, 1e20), st.integers(0, 12))
def test_round_up_never_rounds_down_nor_by_a_whole_digit(epsilon, digits):
    rounded = gaussian.round_up(epsilon, digits)
    assert epsilon <= rounded
    assert rounded <= math.nextafter(epsilon + 10.0**-digits, math.inf)


@given(st.floats(0, 1e20), st.integers(0, 12))
def test_what_is_printed_is_not_below_when_it_is_read_back(epsilon, digits):
    assert float(f"{gaussian.round_up(epsilon, digits):.{digits}f}") >= epsilon


@given(st.integers(0, 10**9), st.integers(0, 6))
def test_a_decimal_with_few_enough_digits_stays_what_its_user_wrote(count, digits):
    written = float(f"{count}e-{digits}")
    assert gaussian.round_up(written, digits) == written


def test_round_up_by_example():
    assert gaussian.round_up(6.26153721, 4) == 6.2616
    assert gaussian.round_up(0.5, 4) == 0.5
    assert gaussian.round_up(0.1) == 0.1  # though the float is above one tenth
    assert gaussian.round_up(0.3) == 0.3
    assert gaussian.round_up(0.1 + 0.2, 4) == 0.3001  # the float 0.30000000000000004
    assert gaussian.round_up(1e-300, 4) == 1e-4
    assert gaussian.round_up(0.0, 4) == 0
    assert gaussian.round_up(1e300, 4) == 1e300
    assert gaussian.round_up(math.inf, 4) == math.inf
