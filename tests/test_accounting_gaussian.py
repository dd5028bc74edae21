"""Prices of Gaussian steps: laws, then the trade-off in 50 digits, then the table's numbers."""

import math
import subprocess
import sys

import mpmath
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from accounting import gaussian

DELTA = 1e-5
PRICES = {"exact": gaussian.epsilon_exact, "closed_form": gaussian.epsilon_closed_form}

rhos = st.floats(-8, 4).map(lambda power: 10.0**power)
deltas = st.floats(-15, -1).map(lambda power: 10.0**power)
epsilons = st.floats(-3, 3).map(lambda power: 10.0**power)
steps = st.sampled_from([1, 7, 791, 100_000])
prices = st.sampled_from(sorted(PRICES))

# ε_i, J, closed form, RDP at real order, PLD, exact; δ = 0.01 per step, 1e-5 in all; dp-accounting 0.6.0 and 40 digits
TABLE = [
    (0.05, 1, 0.07734, 0.05186, 0.04612, 0.04612),
    (0.05, 1000, 2.57099, 2.20808, 2.03237, 2.03237),
    (0.1, 10, 0.49349, 0.38241, 0.34721, 0.34721),
    (0.1, 300, 2.82991, 2.44347, 2.25071, 2.25071),
    (0.15, 1, 0.23279, 0.17088, 0.15401, 0.15401),
    (0.15, 100, 2.43276, 2.08287, 1.91630, 1.91630),
    (0.15, 1000, 8.48964, 7.74687, 7.20046, 7.20046),
    (0.2, 300, 5.97050, 5.35940, 4.96623, 4.96623),
    (0.3, 10, 1.51153, 1.25872, 1.15375, 1.15375),
    (0.3, 1000, 19.30929, 18.20344, 17.05734, 17.05734),
    (0.4, 300, 13.18366, 12.25505, 11.43799, 11.43799),
    (0.5, 1000, 37.35995, 35.92247, 33.92081, 33.92081),
    (0.8, 300, 31.33801, 29.99119, 28.25939, 28.25939),
    (0.8, 1000, 72.20262, 70.41657, 67.05577, 67.05577),
]


def true_delta(rho, epsilon):
    """Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) with enough digits that nothing cancels or underflows."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.sqrt(2 * mpmath.mpf(rho)), mpmath.mpf(epsilon)
        upper = mpmath.erfc((epsilon / mu - mu / 2) / mpmath.sqrt(2))
        return (upper - mpmath.exp(epsilon) * mpmath.erfc((epsilon / mu + mu / 2) / mpmath.sqrt(2))) / 2


# ---------------------------------------------------------------------------------------------------------- the exact ε


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


@given(st.floats(-150, 60).map(lambda power: 10.0**power), st.floats(-300, -1e-4).map(lambda power: 10.0**power))
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
    assert gaussian.accountants(1.0, 0, DELTA) == {"closed_form": 0, "rdp": 0, "pld": 0, "exact": 0}


# ------------------------------------------------------------------------------------------------------ the accountants


@given(rhos, deltas, steps)
def test_exact_pld_rdp_closed_form_stand_in_this_order(rho, delta, num_steps):
    prices = gaussian.accountants(math.sqrt(num_steps / 2 / rho), num_steps, delta)
    assert list(prices) == ["closed_form", "rdp", "pld", "exact"]
    assert prices["exact"] <= prices["pld"] + 1e-9 <= prices["rdp"] + 2e-9
    assert prices["rdp"] <= prices["closed_form"]
    if prices["pld"] > 1e-3 * math.sqrt(rho) and delta > 1e-9 and prices["pld"] < 700:
        assert prices["pld"] == pytest.approx(prices["exact"], rel=1e-6)


@pytest.mark.parametrize(("epsilon_step", "num_steps", "closed_form", "rdp", "pld", "exact"), TABLE)
def test_table_of_the_project(epsilon_step, num_steps, closed_form, rdp, pld, exact):
    prices = gaussian.accountants(gaussian.noise_multiplier_from_step(epsilon_step), num_steps, DELTA)
    half = 0.5000001e-5  # of the last printed digit
    assert prices["closed_form"] == pytest.approx(closed_form, abs=half)
    assert prices["exact"] == pytest.approx(exact, abs=half)
    assert prices["pld"] == pytest.approx(pld, abs=half + 1e-6 * pld)  # the table's grid is another one
    assert rdp - 1e-3 * rdp < prices["rdp"] <= rdp + half  # the table's orders are a grid: ours may only be better


def test_closed_form_is_equation_9_and_its_minimum_over_orders():
    rho = gaussian.rho_from_step(0.15, 0.01, 791)
    assert rho == pytest.approx(791 * 0.15**2 / (4 * math.log(1.25 / 0.01)), rel=1e-14)
    closed = gaussian.epsilon_closed_form(rho, DELTA)
    best = gaussian.optimal_order(rho, DELTA)
    assert gaussian.epsilon_rdp_mironov(rho, DELTA, [best]) == pytest.approx(closed, rel=1e-14)
    assert gaussian.epsilon_rdp_mironov(rho, DELTA, [best * 0.9, best * 1.1]) > closed
    assert gaussian.optimal_order(0.0, DELTA) == math.inf


@given(rhos, deltas, st.lists(st.floats(1.001, 1e5), min_size=1))
def test_no_order_beats_the_closed_form_by_its_own_conversion(rho, delta, orders):
    closed = gaussian.epsilon_closed_form(rho, delta)
    assert gaussian.epsilon_rdp_mironov(rho, delta, orders) >= closed * (1 - 1e-12)


# ------------------------------------------------------------------------- traps of dp_accounting, each shown to be one


def test_default_orders_alone_exceed_the_closed_form():
    import dp_accounting

    for rho, delta in ((1e-7, 1e-5), (5e3, 1e-5)):
        accountant = dp_accounting.rdp.RdpAccountant()
        accountant.compose(dp_accounting.GaussianDpEvent(1 / math.sqrt(2 * rho)))
        closed = gaussian.epsilon_closed_form(rho, delta)
        assert accountant.get_epsilon(delta) > closed
        assert gaussian.epsilon_rdp(1 / math.sqrt(2 * rho), 1, delta) <= closed


def test_relation_is_not_left_to_dp_accounting_which_reads_it_two_ways():
    import dp_accounting

    replace = dp_accounting.NeighboringRelation.REPLACE_ONE
    prices = {}
    for accountant in (dp_accounting.rdp.RdpAccountant, dp_accounting.pld.PLDAccountant):
        composed = accountant(neighboring_relation=replace).compose(dp_accounting.GaussianDpEvent(1.0))
        prices[accountant] = composed.get_epsilon(DELTA)
    rdp, pld = prices.values()
    assert pld > rdp  # an upper bound below an exact value: they price different things
    assert gaussian.epsilon_pld(1.0, 1, DELTA) <= gaussian.epsilon_rdp(1.0, 1, DELTA) < pld


def test_not_a_number_is_free_in_dp_accounting_and_refused_here():
    import dp_accounting

    nothing = dp_accounting.rdp.RdpAccountant().compose(dp_accounting.GaussianDpEvent(math.nan)).get_epsilon(DELTA)
    assert nothing == 0
    with pytest.raises(ValueError, match="noise_multiplier"):
        gaussian.epsilon_rdp(math.nan, 1, DELTA)


def test_pld_has_as_many_points_at_any_rho_and_is_left_out_by_name_above_its_limit():
    assert gaussian.accountants(math.sqrt(0.5 / 100), 1, DELTA)["pld"] == pytest.approx(159.44149, abs=1e-4)
    dear = math.sqrt(0.5 / (1.01 * gaussian.PLD_LIMIT))
    assert list(gaussian.accountants(dear, 1, DELTA)) == ["closed_form", "rdp", "exact"]
    with pytest.raises(ValueError, match="too long"):
        gaussian.epsilon_pld(dear, 1, DELTA)


def test_steps_are_one_gaussian_in_every_accountant():
    split, whole = gaussian.accountants(20.0, 400, DELTA), gaussian.accountants(1.0, 1, DELTA)
    assert split == pytest.approx(whole, rel=1e-9)


# ------------------------------------------------------------------------------------------------------------- inverses


@given(epsilons, deltas, steps, prices)
def test_noise_multiplier_is_affordable_and_nearly_tight(epsilon, delta, num_steps, price):
    z = gaussian.solve_noise_multiplier(epsilon, delta, num_steps, price=price)
    assert PRICES[price](gaussian.rho(z, num_steps), delta) <= epsilon
    assert PRICES[price](gaussian.rho(z * (1 - 1e-11), num_steps), delta) > epsilon


@given(epsilons, deltas, steps, prices)
def test_noise_multiplier_leaves_room_for_being_stored_as_sigma_and_divided_again(epsilon, delta, num_steps, price):
    z = gaussian.solve_noise_multiplier(epsilon, delta, num_steps, price=price)
    assert PRICES[price](gaussian.rho(z * (1 - 1e-12), num_steps), delta) <= epsilon


@given(epsilons, deltas, steps, deltas, prices)
def test_epsilon_step_is_affordable_and_nearly_tight(epsilon, delta, num_steps, delta_step, price):
    step = gaussian.solve_epsilon_step(epsilon, delta, num_steps, delta_step, price=price)
    assert PRICES[price](gaussian.rho_from_step(step, delta_step, num_steps), delta) <= epsilon
    assert PRICES[price](gaussian.rho_from_step(step * (1 + 1e-11), delta_step, num_steps), delta) > epsilon


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
    assert gaussian.step_from_noise_multiplier(z, delta_step) == pytest.approx(epsilon_step, rel=1e-14)


# ------------------------------------------------------------------------------------------------------------- rounding


@given(st.floats(0, 1e20), st.integers(0, 12))
def test_round_up_never_rounds_down_nor_by_a_whole_digit(epsilon, digits):
    rounded = gaussian.round_up(epsilon, digits)
    assert epsilon <= rounded
    assert rounded <= math.nextafter(epsilon + 10.0**-digits, math.inf)


@given(st.floats(0, 1e6))
def test_what_is_printed_is_not_below(epsilon):
    with mpmath.workdps(60):
        assert mpmath.mpf(f"{gaussian.round_up(epsilon, 4):.4f}") >= mpmath.mpf(epsilon)


def test_round_up_by_example():
    assert gaussian.round_up(6.26153721, 4) == 6.2616
    assert gaussian.round_up(0.5, 4) == 0.5
    assert gaussian.round_up(0.1 + 0.2, 4) == 0.3001  # the float is above 0.3
    assert gaussian.round_up(1e-300, 4) == 1e-4
    assert gaussian.round_up(0.0, 4) == 0
    assert gaussian.round_up(1e300, 4) == 1e300
    assert gaussian.round_up(math.inf, 4) == math.inf


# --------------------------------------------------------------------------------------------------------------- guards

_ONE = {"noise_multiplier": 1.0, "num_steps": 1, "delta": DELTA, "rho": 1.0, "epsilon": 1.0, "epsilon_step": 0.5}
_BAD = {
    "noise_multiplier": (0.0, -1.0, math.inf, math.nan, 1e-150, 1e150),
    "num_steps": (-1,),
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
    gaussian.round_up: ("epsilon",),
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
    for orders in ([], [1.0], [math.nan]):
        with pytest.raises(ValueError, match="above 1"):
            gaussian.epsilon_rdp_mironov(1.0, DELTA, orders)
    with pytest.raises(ValueError, match="digits"):
        gaussian.round_up(1.0, -1)


def test_values_of_the_wrong_type_are_refused_without_a_type_checker():
    code = """
from accounting import gaussian
for call in (
    lambda: gaussian.rho(1.0, 1.0), lambda: gaussian.rho(1.0, float("nan")), lambda: gaussian.rho(1.0, "1"),
    lambda: gaussian.epsilon_pld(1.0, None, 1e-5), lambda: gaussian.solve_rho(1.0, 1e-5, price="rdp"),
):
    try:
        print(call())
    except ValueError as error:
        print("refused:", error)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert [line.split(":")[0] for line in output.splitlines()] == ["refused"] * 5


def test_importing_accounting_brings_no_heavy_package():
    code = "import sys, accounting; print(sorted({'jax', 'numpy', 'scipy', 'dp_accounting'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
