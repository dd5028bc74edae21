"""Noise, steps and step sizes for a target: affordable, nearly tight, and never rounded down."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

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


@given(usual_rhos, st.floats(0, 20), st.floats(0, 1))
def test_delta_is_the_largest_gap_of_the_trade_off(rho, epsilon, rate):
    mu, delta = math.sqrt(2 * rho), gaussian.delta_exact(rho, epsilon)

    def missed(alpha):
        """Φ(Φ⁻¹(1 − α) − μ): what the best guess with this rate of false alarms misses."""
        return float(ndtr(-ndtri(alpha) - mu))

    assert 1 - missed(rate) - math.exp(epsilon) * rate <= delta + 1e-9 * math.exp(epsilon) * rate
    best = math.erfc((epsilon / mu + mu / 2) / math.sqrt(2)) / 2
    gap = 1 - missed(best) - math.exp(epsilon) * best
    assert gap == pytest.approx(delta, rel=1e-6, abs=1e-12)


# --------------------------------------------------------------------------------------------------


@given(epsilons, usual_deltas)
def test_noise_of_one_step_is_affordable_and_tight_by_the_oracle(epsilon, delta):
    z = gaussian.solve_noise_multiplier(epsilon, delta, 1)
    assert (
        true_delta(gaussian.rho(z, 1), epsilon)
        <= delta
        < true_delta(gaussian.rho(z * (1 - 1e-10), 1), epsilon)
    )


def test_a_step_far_above_the_classical_theorem_only_writes_noise():
    """From ε_i = 1 on the theorem says nothing, and beyond its range the formula promises too
    much.
    """
    z = gaussian.noise_multiplier_from_step(10.0, DELTA)
    assert true_delta(gaussian.rho(z, 1), 10.0) > DELTA


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
