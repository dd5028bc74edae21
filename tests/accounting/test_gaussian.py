"""Prices of Gaussian steps: the exact one in 50 digits, the accountants, laws of all."""

import functools
import itertools
import math
import subprocess
import sys

import mpmath
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from accounting import gaussian
from tests.cases.accounting_gaussian import (
    DELTA,
    DELTAS,
    EPSILON,
    NAMES,
    TABLE,
    deltas,
    epsilon_rdp_mironov,
    epsilons,
    names,
    rhos,
    steps,
    true_delta,
    usual_deltas,
    usual_rhos,
)


@pytest.fixture(scope="module", autouse=True)
def solved_once():
    """One ρ for each target, where a test asks two solvers: each takes ten prices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaussian, "solve_rho", functools.cache(gaussian.solve_rho))
        yield


# --------------------------------------------------------------------------------------------------


@given(rhos, deltas)
def test_exact_epsilon_is_an_upper_bound_within_1e_10_of_the_true_one(rho, delta):
    epsilon = gaussian.epsilon_exact(rho, delta)
    assert true_delta(rho, epsilon) <= delta
    below = epsilon * (1 - 1e-10) - 1e-11 * math.sqrt(rho)
    assert below <= 0 or true_delta(rho, below) > delta


@given(rhos, st.floats(-6, 4).map(lambda power: 10.0**power))
def test_exact_delta_is_an_upper_bound_within_1e_11_of_the_true_one(rho, epsilon):
    true, ours = true_delta(rho, epsilon), gaussian.delta_exact(rho, epsilon)
    assert ours >= true
    assert true < 1e-290 or ours <= true * (1 + 1e-11)


@given(rhos, deltas)
def test_delta_of_the_exact_epsilon_is_at_most_delta_in_floats(rho, delta):
    assert gaussian.delta_exact(rho, gaussian.epsilon_exact(rho, delta)) <= delta


@given(
    st.floats(-150, 60).map(lambda power: 10.0**power),
    st.floats(-300, -1e-4).map(lambda power: 10.0**power),
)
def test_exact_epsilon_never_fails_or_exceeds_the_closed_form_even_at_absurd_inputs(rho, delta):
    assert 0 <= gaussian.epsilon_exact(rho, delta) <= gaussian.epsilon_closed_form(rho, delta)


@given(rhos, deltas, st.floats(1e-9, 10))
def test_exact_epsilon_grows_with_rho_and_falls_with_delta(rho, delta, more):
    epsilon = gaussian.epsilon_exact(rho, delta)
    dearer, looser = (
        gaussian.epsilon_exact(rho * (1 + more), delta),
        gaussian.epsilon_exact(rho, delta * (1 - more / 11)),
    )
    if epsilon > 1e-3 * math.sqrt(rho):
        assert dearer > epsilon
        assert looser > epsilon
    assert dearer >= epsilon
    assert looser >= epsilon


def test_exact_epsilon_is_zero_from_the_total_variation_on_and_not_before():
    rho = 0.01
    total_variation = math.erf(math.sqrt(2 * rho) / 2 / math.sqrt(2))
    assert gaussian.epsilon_exact(rho, total_variation * (1 + 1e-9)) == 0
    assert gaussian.epsilon_exact(rho, total_variation * (1 - 1e-9)) > 0


def test_a_positive_price_is_never_pure_and_no_price_is_free():
    assert gaussian.delta_exact(1.0, 1e30) > 0
    assert gaussian.delta_exact(1.0, 54.73703262878217) >= true_delta(
        1.0, 54.73703262878217
    )  # 1e-317, three digits left
    assert gaussian.delta_exact(0.0, 0.0) == 0
    assert gaussian.accountants(1.0, 0, DELTA) == {
        "basic": 0,
        "closed_form": 0,
        "rdp": 0,
        "pld": 0,
        "exact": 0,
    }
    for name in NAMES:
        assert EPSILON[name](1.0, 0, DELTA) == 0
        assert DELTAS[name](1.0, 0, 1.0) == 0
        assert gaussian.solve_delta(1.0, 1.0, 0, price=name) == 0
        assert 0 < DELTAS[name](1.0, 1, 1e6) < 1e-15
        assert 0 < DELTAS[name](1.0, 1, math.inf) < 1e-15
    assert gaussian.epsilon_basic(1e-200, 10**6, 1e-300) > 0


# --------------------------------------------------------------------------------------------------


@given(rhos, deltas, steps)
@example(10**-2.25, 10**-1.375, 1)  # ε is 0.002 of the loss's deviation, whose grid then shows
def test_exact_pld_rdp_closed_form_stand_in_this_order(rho, delta, num_steps):
    prices = gaussian.accountants(math.sqrt(num_steps / 2 / rho), num_steps, delta)
    assert list(prices) == ["basic", "closed_form", "rdp", "pld", "exact"]
    assert prices["basic"] >= prices["exact"]
    assert prices["exact"] <= prices["pld"] + 1e-9 <= prices["rdp"] + 2e-9
    assert prices["rdp"] <= prices["closed_form"]
    if delta > 1e-9 and prices["pld"] < 700:
        assert prices["pld"] == pytest.approx(
            prices["exact"], rel=1e-6, abs=1.25e-7 * math.sqrt(2 * rho)
        )


@pytest.mark.parametrize(("epsilon_step", "num_steps", "closed_form", "rdp", "pld", "exact"), TABLE)
def test_table_of_the_project(epsilon_step, num_steps, closed_form, rdp, pld, exact):
    prices = gaussian.accountants(
        gaussian.noise_multiplier_from_step(epsilon_step), num_steps, DELTA
    )
    half = 0.5000001e-5  # of the last printed digit
    assert prices["closed_form"] == pytest.approx(closed_form, abs=half)
    assert prices["exact"] == pytest.approx(exact, abs=half)
    assert prices["pld"] == pytest.approx(
        pld, abs=half + 1e-6 * pld
    )  # the table's grid is another one
    assert (
        rdp - 1e-3 * rdp < prices["rdp"] <= rdp + half
    )  # the table's orders are a grid: ours may only be better


def test_closed_form_is_equation_9_and_its_minimum_over_orders():
    rho = gaussian.rho_from_step(0.15, 0.01, 791)
    assert rho == pytest.approx(791 * 0.15**2 / (4 * math.log(1.25 / 0.01)), rel=1e-14)
    closed = gaussian.epsilon_closed_form(rho, DELTA)
    best = gaussian.optimal_order(rho, DELTA)
    assert epsilon_rdp_mironov(rho, DELTA, [best]) == pytest.approx(closed, rel=1e-14)
    assert epsilon_rdp_mironov(rho, DELTA, [best * 0.9, best * 1.1]) > closed
    assert gaussian.optimal_order(0.0, DELTA) == math.inf


@given(rhos, deltas, st.lists(st.floats(1.001, 1e5), min_size=1))
def test_no_order_beats_the_closed_form_by_its_own_conversion(rho, delta, orders):
    closed = gaussian.epsilon_closed_form(rho, delta)
    assert epsilon_rdp_mironov(rho, delta, orders) >= closed * (1 - 1e-12)


# --------------------------------------------------------------------------------------------------


@given(usual_rhos, usual_deltas, st.integers(1, 400), st.integers(2, 30))
def test_scale_law_epsilon_step_times_c_and_steps_over_c_squared_cost_the_same(
    rho, delta, num_steps, c
):
    z = math.sqrt(num_steps * c**2 / 2 / rho)
    for name in NAMES:
        split = EPSILON[name](z, num_steps * c**2, delta)
        assert EPSILON[name](z / c, num_steps, delta) == pytest.approx(split, rel=1e-9, abs=1e-11)


@pytest.mark.seconds
@given(usual_rhos, usual_deltas, st.sampled_from([2, 700]), st.floats(1e-3, 2))
def test_every_price_grows_with_the_steps_and_falls_with_the_noise_and_delta(
    rho, delta, num_steps, more
):
    z = math.sqrt(num_steps / 2 / rho)
    for name in NAMES:
        price = EPSILON[name](z, num_steps, delta)
        dearer = (
            EPSILON[name](z, math.ceil(num_steps * (1 + more)), delta),
            EPSILON[name](z / (1 + more), num_steps, delta),
            EPSILON[name](z, num_steps, delta / (1 + more)),
        )
        strictly = price > 1e-3 * math.sqrt(rho) and (
            name != "pld" or price < 600
        )  # its grid is coarse above 700
        for other in dearer:
            assert other > price if strictly else other >= price


def test_every_price_grows_with_epsilon_step():
    prices = [
        gaussian.accountants(gaussian.noise_multiplier_from_step(e), 300, DELTA)
        for e in (0.1, 0.11, 0.2, 2.0)
    ]
    for fewer, more in itertools.pairwise(prices):
        assert all(more[name] > fewer[name] for name in fewer)


@given(usual_rhos, usual_deltas, st.sampled_from([1, 791]), names)
def test_epsilon_to_delta_to_epsilon(rho, delta, num_steps, name):
    z = math.sqrt(num_steps / 2 / rho)
    epsilon = EPSILON[name](z, num_steps, delta)
    assume(epsilon > 0)
    if name == "pld":
        assume(epsilon < 600)  # dp_accounting's δ is coarse above 700
    found = gaussian.solve_delta(epsilon, z, num_steps, price=name)
    assert EPSILON[name](z, num_steps, found) <= epsilon
    assert EPSILON[name](z, num_steps, found) == pytest.approx(epsilon, rel=1e-9)
    assert found == pytest.approx(DELTAS[name](z, num_steps, epsilon), rel=1e-9)


@pytest.mark.seconds
@example(0.0003148088080484504, 0.01, 1, "exact")
@given(usual_rhos, usual_deltas, st.sampled_from([1, 791]), names)
def test_epsilon_to_noise_to_epsilon(rho, delta, num_steps, name):
    epsilon = EPSILON[name](math.sqrt(num_steps / 2 / rho), num_steps, delta)
    assume(epsilon > 1e-6)
    z = gaussian.solve_noise_multiplier(epsilon, delta, num_steps, price=name)
    assert EPSILON[name](z, num_steps, delta) <= epsilon
    assert (
        EPSILON[name](z / (1 + 1e-9), num_steps, delta) > epsilon
    )  # in z: near ε = 0 the last digit of z moves ε far
    spent = gaussian.solve_rho(epsilon, delta, price=name)
    assert EPSILON[name](math.sqrt(0.5 / spent), 1, delta) <= epsilon
    assert EPSILON[name](math.sqrt(0.5 / spent) / (1 + 1e-8), 1, delta) > epsilon


@pytest.mark.seconds
@given(
    st.floats(-2, 2).map(lambda power: 10.0**power), usual_deltas, st.sampled_from([1, 791]), names
)
def test_epsilon_step_and_steps_are_affordable_by_every_price(epsilon, delta, num_steps, name):
    step = gaussian.solve_epsilon_step(epsilon, delta, num_steps, price=name)
    z = gaussian.noise_multiplier_from_step(step)
    assert EPSILON[name](z, num_steps, delta) <= epsilon
    assert EPSILON[name](z / (1 + 1e-8), num_steps, delta) > epsilon
    found = gaussian.solve_num_steps(epsilon, delta, z * 1.001, price=name)
    assert (
        EPSILON[name](z * 1.001, found, delta)
        <= epsilon
        < EPSILON[name](z * 1.001, found + 1, delta)
    )


@given(usual_rhos, epsilons)
def test_deltas_stand_in_the_order_of_the_prices(rho, epsilon):
    delta = {name: DELTAS[name](math.sqrt(0.5 / rho), 1, epsilon) for name in NAMES}
    assert delta["exact"] <= delta["pld"] * (1 + 1e-9) + 1e-15
    assert delta["exact"] <= delta["rdp"] <= delta["closed_form"] <= 1


@given(usual_rhos, usual_deltas)
def test_delta_closed_form_inverts_equation_9(rho, delta):
    epsilon = gaussian.epsilon_closed_form(rho, delta)
    assert gaussian.delta_closed_form(rho, epsilon) == pytest.approx(delta, rel=1e-9)
    assert gaussian.delta_closed_form(rho, rho) == gaussian.delta_closed_form(rho, 0.0) == 1
    with mpmath.workdps(40):
        true = mpmath.exp(-((mpmath.mpf(epsilon) - rho) ** 2) / (4 * mpmath.mpf(rho)))
        assert true <= gaussian.delta_closed_form(rho, epsilon) <= true * (1 + mpmath.mpf("1e-12"))


# --------------------------------------------------------------------------------------------------

_ONE = {
    "noise_multiplier": 1.0,
    "num_steps": 1,
    "delta": DELTA,
    "rho": 1.0,
    "epsilon": 0.9,
    "epsilon_step": 0.5,
}
_BAD = {
    "noise_multiplier": (0.0, -1.0, math.inf, math.nan, 1e-150, 1e150),
    "num_steps": (-1, True),
    "delta": (0.0, 1.0, -1e-5, math.nan, math.inf),
    "rho": (-1.0, math.inf, math.nan),
    "epsilon": (-1.0, math.nan),
    "epsilon_step": (0.0, -1.0, math.inf, math.nan),
    "delta_step": (0.0, 1.0, math.nan),
}
_ARGUMENTS = {
    gaussian.rho: ("noise_multiplier", "num_steps"),
    gaussian.noise_multiplier_from_step: ("epsilon_step", "delta_step"),
    gaussian.rho_from_step: ("epsilon_step", "delta_step", "num_steps"),
    gaussian.epsilon_closed_form: ("rho", "delta"),
    gaussian.optimal_order: ("rho", "delta"),
    gaussian.epsilon_exact: ("rho", "delta"),
    gaussian.delta_exact: ("rho", "epsilon"),
    gaussian.epsilon_rdp: ("noise_multiplier", "num_steps", "delta"),
    gaussian.epsilon_pld: ("noise_multiplier", "num_steps", "delta"),
    gaussian.solve_rho: ("epsilon", "delta"),
    gaussian.solve_noise_multiplier: ("epsilon", "delta", "num_steps"),
    gaussian.solve_epsilon_step: ("epsilon", "delta", "num_steps", "delta_step"),
    gaussian.solve_num_steps: ("epsilon", "delta", "noise_multiplier"),
    gaussian.epsilon_basic: ("rho", "num_steps", "delta"),
    gaussian.delta_closed_form: ("rho", "epsilon"),
    gaussian.delta_rdp: ("noise_multiplier", "num_steps", "epsilon"),
    gaussian.delta_pld: ("noise_multiplier", "num_steps", "epsilon"),
    gaussian.solve_delta: ("epsilon", "noise_multiplier", "num_steps"),
    gaussian.accountants: ("noise_multiplier", "num_steps", "delta"),
}


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [(f, name, value) for f, names in _ARGUMENTS.items() for name in names for value in _BAD[name]],
    ids=lambda x: getattr(x, "__name__", repr(x)),
)
def test_values_that_are_not_allowed_are_refused(function, name, value):
    arguments = {key: _ONE.get(key, 0.01) for key in _ARGUMENTS[function]}
    function(**arguments)  # the other arguments are fine
    with pytest.raises(ValueError, match=r"must be|out of range"):
        function(**{**arguments, name: value})


def test_other_refusals():
    for unreachable in (0.0, math.inf):
        with pytest.raises(ValueError, match="epsilon"):
            gaussian.solve_rho(unreachable, DELTA)
    with pytest.raises(ValueError, match="at least 1"):
        gaussian.solve_noise_multiplier(1.0, DELTA, 0)
    with pytest.raises(ValueError, match="at least 1"):
        gaussian.epsilon_basic(1.0, 0, DELTA)
    with pytest.raises(ValueError, match="out of reach"):
        gaussian.solve_noise_multiplier(
            1.0, 1e-40, 1, price="pld"
        )  # the distribution is cut off above that δ
    with pytest.raises(ValueError, match="too long"):
        gaussian.solve_noise_multiplier(1e6, DELTA, 1, price="pld")


def test_an_answer_that_says_nothing_is_one_and_not_a_number_out_of_range():
    assert gaussian.solve_delta(0.0, 1.0, 1, price="closed_form") == 1
    assert gaussian.solve_delta(1.0, 1e-3, 1, price="exact") == 1
    total_variation = math.erf(1 / math.sqrt(8))  # of μ = 1
    assert gaussian.solve_delta(0.0, 1.0, 1, price="exact") == pytest.approx(
        total_variation, rel=1e-10
    )


def test_values_of_the_wrong_type_are_refused_without_a_type_checker():
    code = """
from accounting import gaussian
for call in (
    lambda: gaussian.rho(1.0, 1.0),
    lambda: gaussian.rho(1.0, float("nan")),
    lambda: gaussian.rho(1.0, "1"),
    lambda: gaussian.rho(1.0, 1.5),
    lambda: gaussian.rho(1.0, True),
    lambda: gaussian.accountants(1.0, True, 1e-5),
    lambda: gaussian.epsilon_pld(1.0, None, 1e-5),
    lambda: gaussian.solve_rho(1.0, 1e-5, price="basic"),
    lambda: gaussian.solve_delta(1.0, 1.0, 1, price="none"),
):
    try:
        print(call())
    except ValueError as error:
        print("refused:", error)
"""
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split(":")[0] for line in output.splitlines()] == ["refused"] * 9


def test_importing_accounting_brings_no_heavy_package():
    code = (
        "import sys, accounting; print(sorted({'jax', 'numpy', 'scipy', 'dp_accounting'} &"
        " set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
