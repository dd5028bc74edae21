"""Pure prices: definitions first, then composition against its formula in many digits and against
dp_accounting.
"""

import math
from decimal import Decimal

import mpmath
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import loss, pure
from accounting import rounds as of_rounds
from dpmf_jax.mechanisms.local.guarantee import local_guarantee

positive = st.floats(-100, 100).map(lambda power: 10.0**power)
epsilons = st.floats(-6, 2).map(lambda power: 10.0**power)
deltas = st.floats(-15, -0.1).map(lambda power: 10.0**power)
rounds = st.sampled_from([1, 2, 3, 10, 77, 500])


def true_delta(epsilon_round, num_rounds, epsilon):
    """Σ_l C(k, l)(e^{(k − l)ε₀} − e^{ε + lε₀})₊/(1 + e^ε₀)^k with enough digits that nothing
    cancels or overflows.
    """
    with mpmath.workdps(80):
        each, epsilon, k = mpmath.mpf(epsilon_round), mpmath.mpf(epsilon), num_rounds
        terms = (
            mpmath.binomial(k, n)
            * max(0, mpmath.exp((k - n) * each) - mpmath.exp(epsilon + n * each))
            for n in range(k + 1)
        )
        return mpmath.fsum(terms) / (1 + mpmath.exp(each)) ** k


# --------------------------------------------------------------------------------------------------


@given(positive, positive)
def test_laplace_price_and_scale_are_safe_in_decimals_and_tight(epsilon, sensitivity):
    scale = pure.scale_laplace(epsilon, sensitivity)
    price = pure.epsilon_laplace(scale, sensitivity)
    assert price <= epsilon
    assert price == pytest.approx(epsilon, rel=1e-15)
    assert pure.epsilon_laplace(math.nextafter(scale, 0), sensitivity) > epsilon or price == epsilon
    exact = Decimal(repr(sensitivity)) / Decimal(repr(scale))
    assert Decimal(repr(price)) >= exact * (1 - Decimal("1e-27"))
    assert pure.epsilon_l2_laplace(scale, sensitivity) == price
    assert pure.scale_l2_laplace(epsilon, sensitivity) == scale


def test_laplace_by_example():
    assert pure.epsilon_laplace(10.0, 1.0) == 0.1
    assert pure.epsilon_laplace(3.0, 1.0) > 1 / 3  # the quotient is no float: the next one above
    assert pure.epsilon_laplace(1e300, 1e-300) > 0
    assert pure.scale_laplace(0.1, 2.0) == 20
    with pytest.raises(ValueError, match="too small"):
        pure.scale_laplace(1e-300, 1e300)


@given(st.lists(st.floats(-50, 50), min_size=6, max_size=6), st.floats(0.1, 10))
def test_log_densities_move_by_no_more_than_the_price(numbers, scale):
    point, shift = numbers[:3], numbers[3:]
    moved = [a - b for a, b in zip(point, shift, strict=True)]
    l1, l2 = sum(map(abs, shift)), math.hypot(*shift)
    if l2 < 1e-6:
        return
    laplace = (sum(map(abs, moved)) - sum(map(abs, point))) / scale
    l2_laplace = (math.hypot(*moved) - math.hypot(*point)) / scale
    assert abs(laplace) <= pure.epsilon_laplace(scale, l1) + 1e-9
    assert abs(l2_laplace) <= pure.epsilon_l2_laplace(scale, l2) + 1e-9


# --------------------------------------------------------------------------------------------------


@given(st.floats(0, 1, exclude_min=True, exclude_max=True), st.integers(2, 1000))
def test_randomised_response_costs_the_largest_log_ratio_of_an_answer(probability, num_values):
    with mpmath.workdps(60):
        truth = mpmath.mpf(repr(probability))
        lie = (1 - truth) / (num_values - 1)
        largest = max(mpmath.log(truth / lie), mpmath.log(lie / truth))
        price = pure.epsilon_randomized_response(probability, num_values)
        assert mpmath.mpf(repr(price)) >= largest * (1 - mpmath.mpf(10) ** -40)
        assert price == pytest.approx(float(largest), rel=1e-15, abs=5e-324)


def test_randomised_response_by_example():
    assert pure.epsilon_randomized_response(0.5) == 0
    assert pure.epsilon_randomized_response(0.25, 4) == 0
    assert pure.epsilon_randomized_response(0.75) == pytest.approx(math.log(3), rel=1e-15)
    assert pure.epsilon_randomized_response(0.25) == pytest.approx(
        math.log(3), rel=1e-15
    )  # it lies: as telling
    assert pure.epsilon_randomized_response(1 / 3, 3) > 0  # no float is a third
    for certain in (0.0, 1.0):
        assert pure.epsilon_randomized_response(certain, 3) == math.inf
    with pytest.raises(ValueError, match="too small"):
        pure.truth_probability(1e-17, 3)
    assert pure.truth_probability(1e-300) == 0.5


@given(st.floats(-12, 4).map(lambda power: 10.0**power), st.integers(2, 1000))
@example(epsilon=10.0**0.62595, num_values=71)  # the rounded guess is several floats too low
def test_truth_probability_is_affordable_and_the_largest(epsilon, num_values):
    probability = pure.truth_probability(epsilon, num_values)
    assert 1 / num_values <= probability < 1
    assert pure.epsilon_randomized_response(probability, num_values) <= epsilon
    above = math.nextafter(probability, 1)
    assert above >= 1 or pure.epsilon_randomized_response(above, num_values) > epsilon


def test_dp_accounting_writes_the_probability_of_a_uniform_value():
    from dp_accounting.pld import privacy_loss_distribution

    for probability, num_values in ((0.75, 2), (0.4, 5)):
        uniform = (1 - probability) * num_values / (num_values - 1)
        theirs = privacy_loss_distribution.from_randomized_response(
            uniform, num_values, value_discretization_interval=1e-5
        )
        ours = pure.epsilon_randomized_response(probability, num_values)
        assert theirs.get_epsilon_for_delta(0.0) == pytest.approx(ours, abs=2e-5)


# --------------------------------------------------------------------------------------------------


@given(st.floats(-2, 2), st.floats(-12, 2.8).map(lambda power: 10.0**power))
def test_one_bit_probability_is_the_printed_one_to_the_last_digits(value, epsilon):
    with mpmath.workdps(350):
        x, e = mpmath.mpf(max(-1, min(1, value))), mpmath.exp(epsilon)
        for sign in (1, -1):
            printed = (sign * x * (e - 1) + e + 1) / (2 * (e + 1))
            ours = pure.one_bit_probability(sign * value, epsilon)
            assert abs(ours - printed) <= 4e-16 * printed
            assert 0 < ours <= 1


@given(
    st.floats(-12, 4).map(lambda power: 10.0**power),
    st.lists(st.floats(-3, 3), max_size=8),
)
@example(1e-12, [])
@example(700.0, [0.0])
@example(700.1, [0.5, -0.5])
@example(745.0, [0.0])
def test_one_bit_report_costs_its_epsilon_by_enumeration(epsilon, values):
    assert pure.one_bit_epsilon(epsilon, [-1, 1, *values]) == pytest.approx(epsilon, rel=1e-12)
    assert pure.one_bit_epsilon(epsilon, [-math.inf, 7, *values]) == pytest.approx(
        epsilon, rel=1e-12
    )
    if values:
        assert pure.one_bit_epsilon(epsilon, values) <= epsilon * (1 + 1e-12)
    assert pure.one_bit_epsilon(epsilon, [0.3, 0.3]) == 0
    assert pure.one_bit_epsilon(epsilon, [1.5, 2.0]) == 0  # both are clipped to 1


@given(
    st.floats(-9, 2.98).map(lambda power: 10.0**power),
    st.lists(st.floats(-1.5, 1.5), min_size=2, max_size=6),
)
def test_enumeration_is_the_largest_ratio_of_the_printed_probabilities(epsilon, values):
    with mpmath.workdps(600):
        e = mpmath.exp(mpmath.mpf(epsilon))
        ones = [(max(-1, min(1, mpmath.mpf(x))) * (e - 1) + e + 1) / (2 * (e + 1)) for x in values]
        largest = max(mpmath.log(max(side) / min(side)) for side in (ones, [1 - p for p in ones]))
        assert pure.one_bit_epsilon(epsilon, values) == pytest.approx(
            float(largest), rel=1e-12, abs=1e-15 * epsilon
        )


def test_one_bit_report_is_unbiased():
    for epsilon in (0.01, 1.0, 5.0):
        size = (math.exp(epsilon) + 1) / (math.exp(epsilon) - 1)
        for value in (-1.0, -0.2, 0.0, 0.7, 1.0):
            probability = pure.one_bit_probability(value, epsilon)
            assert size * (2 * probability - 1) == pytest.approx(value, abs=1e-12)


def test_a_certain_report_is_refused():
    assert pure.one_bit_probability(-1.0, 745.0) > 0
    with pytest.raises(ValueError, match="745"):
        pure.one_bit_probability(-1.0, 746.0)
    with pytest.raises(ValueError, match="at least one"):
        pure.one_bit_epsilon(1.0, [])


# --------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**9), st.integers(-6, 3), st.sampled_from([1, 2, 4, 5, 10, 20, 50, 100]))
def test_k_rounds_at_a_share_that_is_a_decimal_cost_epsilon_again(numerator, power, num_rounds):
    epsilon = float(Decimal(numerator).scaleb(power))
    assert pure.epsilon_basic(pure.share(epsilon, num_rounds), num_rounds) == epsilon
    assert pure.epsilon_basic(epsilon, num_rounds) == loss.total([epsilon] * num_rounds)


@given(positive, st.integers(1, 10**12))
def test_a_share_is_affordable_and_the_next_float_is_not(epsilon, num_rounds):
    each = pure.share(epsilon, num_rounds)
    assert pure.epsilon_basic(each, num_rounds) <= epsilon
    assert pure.epsilon_basic(each, num_rounds) == pytest.approx(epsilon, rel=1e-15)
    assert Decimal(repr(math.nextafter(each, math.inf))) * num_rounds > Decimal(repr(epsilon))
    assert pure.solve_epsilon_round(epsilon, num_rounds) == each


def test_basic_composition_by_example():
    assert pure.epsilon_basic(0.1, 10) == 1
    assert pure.epsilon_basic(0.002, 50) == 0.1
    assert (
        pure.epsilon_basic(1.0, 0)
        == pure.epsilon_basic(0.0, 7)
        == pure.epsilon_basic(math.inf, 0)
        == 0
    )
    assert pure.epsilon_basic(math.inf, 3) == math.inf
    assert pure.epsilon_basic(5e-324, 1) > 0


# -------------------------------------------------------------------------------------------------


@given(st.floats(-10, 2).map(lambda power: 10.0**power), rounds, st.floats(-0.5, 0.999))
@example(0.1, 50, 0.4)  # a point of the grid (k − 2i)ε₀ of Kairouz, Oh & Viswanath
@example(700.0, 3, 0.9)
@example(1e-12, 300, 0.01)
@example(1e-9, 1, math.nextafter(1, 0))
def test_optimal_delta_is_an_upper_bound_within_2e_11_of_the_formula(
    epsilon_round, num_rounds, part
):
    epsilon = part * num_rounds * epsilon_round
    true, ours = (
        true_delta(epsilon_round, num_rounds, epsilon),
        pure.delta_optimal(epsilon_round, num_rounds, epsilon),
    )
    assert ours >= true * (1 - mpmath.mpf(10) ** -15)
    assert ours <= true * (1 + 2e-11) + 1e-15 * epsilon_round * num_rounds + 1.01e-300


@given(st.floats(-6, 2.5).map(lambda power: 10.0**power), st.floats(0, 1, exclude_max=True))
def test_one_round_has_a_price_in_closed_form(epsilon_round, part):
    with mpmath.workdps(400):
        e = mpmath.exp(mpmath.mpf(epsilon_round))
        delta = float(part * (e - 1) / (1 + e))
        direct = mpmath.log(e - mpmath.mpf(delta) * (1 + e))
    if 1e-12 < part < 0.999:
        assert pure.epsilon_optimal(epsilon_round, 1, delta) == pytest.approx(
            float(direct), rel=1e-9
        )
        assert pure.epsilon_optimal(epsilon_round, 1, delta) >= float(direct) * (1 - 1e-15)


@given(epsilons, rounds, deltas)
def test_optimal_is_at_most_basic_and_affordable_and_tight(epsilon_round, num_rounds, delta):
    epsilon = pure.epsilon_optimal(epsilon_round, num_rounds, delta)
    assert 0 <= epsilon <= pure.epsilon_basic(epsilon_round, num_rounds)
    assert pure.delta_optimal(epsilon_round, num_rounds, epsilon) <= delta
    if epsilon > 0:
        below = epsilon - 1e-10 * epsilon_round * num_rounds - 1e-9 * epsilon
        assert below < 0 or true_delta(epsilon_round, num_rounds, below) > delta
    assert pure.epsilon_optimal(epsilon_round, num_rounds, 0.0) == pure.epsilon_basic(
        epsilon_round, num_rounds
    )


@given(epsilons, rounds, deltas, st.floats(1.0001, 3))
def test_optimal_grows_with_rounds_and_epsilon_and_falls_with_delta(
    epsilon_round, num_rounds, delta, factor
):
    epsilon = pure.epsilon_optimal(epsilon_round, num_rounds, delta)
    assert pure.epsilon_optimal(epsilon_round, num_rounds + 1, delta) >= epsilon * (1 - 1e-11)
    assert pure.epsilon_optimal(epsilon_round * factor, num_rounds, delta) >= epsilon * (1 - 1e-11)
    assert pure.epsilon_optimal(epsilon_round, num_rounds, delta / factor) >= epsilon


@pytest.mark.parametrize(("epsilon_round", "num_rounds"), [(0.1, 100), (1.0, 20), (0.01, 1000)])
def test_optimal_agrees_with_dp_accounting_composed_by_hand(epsilon_round, num_rounds):
    from dp_accounting.pld import privacy_loss_distribution

    lie, interval = 2 / (1 + math.exp(epsilon_round)), epsilon_round / 1000
    one = privacy_loss_distribution.from_randomized_response(
        lie, 2, value_discretization_interval=interval
    )
    theirs = one.self_compose(num_rounds)
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        delta, moved = theirs.get_delta_for_epsilon(epsilon), epsilon - num_rounds * interval
        # theirs rounds the loss of each round up, by an interval at most
        assert pure.delta_optimal(epsilon_round, num_rounds, epsilon) * (1 - 1e-9) - 1e-12 <= delta
        assert delta <= pure.delta_optimal(epsilon_round, num_rounds, moved) * (1 + 1e-9) + 1e-12


def test_optimal_for_many_rounds_is_a_gaussian():
    # mean loss k·ε₀·tanh(ε₀/2) = μ²/2
    from accounting import gaussian

    for num_rounds in (10**5, 10**7):
        each = 1 / math.sqrt(num_rounds)
        rho = num_rounds * each * math.tanh(each / 2)
        limit = gaussian.epsilon_exact(rho, 1e-6)
        assert pure.epsilon_optimal(each, num_rounds, 1e-6) == pytest.approx(limit, rel=1e-3)


def test_binomial_of_many_rounds_is_within_its_slack():
    for num_rounds, epsilon_round in ((10**5, 0.01), (10**8, 1e-4)):
        losses, probabilities = of_rounds._losses(epsilon_round, num_rounds)
        with mpmath.workdps(40):
            lie = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon_round)))
            for index in range(0, len(losses), len(losses) // 40):
                count = round((num_rounds - losses[index] / epsilon_round) / 2)
                log = mpmath.loggamma(num_rounds + 1) - mpmath.loggamma(count + 1)
                log += -mpmath.loggamma(num_rounds - count + 1) + count * mpmath.log(lie)
                true = mpmath.exp(log + (num_rounds - count) * mpmath.log(1 - lie))
                assert true < 1e-290 or true <= probabilities[index] <= true * (1 + 1e-9)
        assert 0 <= probabilities.sum() - 1 < 1e-9


def test_limits_of_optimal_composition():
    assert pure.epsilon_optimal(0.0, 10, 1e-5) == pure.delta_optimal(0.0, 10, 0.0) == 0
    assert pure.epsilon_optimal(1.0, 0, 1e-5) == pure.delta_optimal(1.0, 0, 0.0) == 0
    assert pure.epsilon_optimal(math.inf, 2, 1e-5) == math.inf
    assert pure.epsilon_optimal(1e-9, 10**12, 0.0) == 1000  # without a sum over the rounds
    assert pure.delta_optimal(math.inf, 2, 1e6) == 1
    assert pure.delta_optimal(0.5, 4, 2.0) == pure.delta_optimal(0.5, 4, math.inf) == 0
    assert 0 < pure.delta_optimal(0.5, 4, math.nextafter(2.0, 0)) < 1e-14
    assert (
        pure.delta_optimal(0.1, 10**6, math.nextafter(1e5, 0)) > 0
    )  # far below the smallest float
    assert pure.delta_optimal(0.5, 4, -math.inf) == 1
    assert pure.delta_optimal(1.0, 2, 0.0) == pytest.approx(
        math.tanh(0.5), rel=1e-11
    )  # the total variation
    with pytest.raises(ValueError, match="at most"):
        pure.epsilon_optimal(1e-9, 10**9 + 1, 1e-5)


# --------------------------------------------------------------------------------------------------


@given(epsilons, rounds, deltas)
def test_epsilon_of_a_round_is_affordable_and_nearly_tight(epsilon, num_rounds, delta):
    each = pure.solve_epsilon_round(epsilon, num_rounds, delta)
    assert pure.epsilon_optimal(each, num_rounds, delta) <= epsilon
    assert pure.epsilon_optimal(each * (1 + 1e-9) + 1e-11 * epsilon, num_rounds, delta) > epsilon
    assert each >= pure.solve_epsilon_round(epsilon, num_rounds)


@given(st.floats(1e-2, 10), st.floats(1e-2, 10), st.sampled_from([0.0, 1e-9, 1e-3]))
def test_number_of_rounds_is_affordable_and_the_next_round_is_not(epsilon, epsilon_round, delta):
    num_rounds = pure.solve_num_rounds(epsilon, epsilon_round, delta)
    assert pure.epsilon_optimal(epsilon_round, num_rounds, delta) <= epsilon
    assert pure.epsilon_optimal(epsilon_round, num_rounds + 1, delta) > epsilon


def test_number_of_rounds_by_example():
    assert pure.solve_num_rounds(1.0, 0.1) == 10
    assert pure.solve_num_rounds(1.0, 1.5) == 0
    assert pure.solve_num_rounds(1.0, 0.01, 1e-6) > 100
    assert pure.solve_num_rounds(1.0, 1e-12) == 10**12
    with pytest.raises(ValueError, match="epsilon_round must be larger"):
        pure.solve_num_rounds(1.0, 1e-12, 1e-6)


# --------------------------------------------------------------------------------------------------


def test_local_guarantee_is_pure_per_user_and_names_its_conditions():
    g = local_guarantee(0.1, 50)
    assert (g.epsilon, g.delta, g.unit, g.status, g.steps) == (0.1, 0, "user", "proved", 50)
    assert g.losses == (loss.Pure(epsilon=0.1, num_rounds=50),)
    assert g.user_price is None
    text = " ".join(str(g).split())
    for part in (
        "any change to all of one user's ratings",
        "nobody but the user sees",
        "exactly 50 times (k rounds, not the printed loop's k + 1)",
        "drawn uniformly and without looking at data",
        "the bit's probability is a float",
        "who sends reports is visible",
    ):
        assert part in text
    assert "once" in " ".join(local_guarantee(0.1, 1).assumptions)


@given(st.floats(1e-3, 20), st.integers(1, 200))
def test_local_guarantee_costs_epsilon_whatever_the_number_of_rounds(epsilon, num_rounds):
    g = local_guarantee(epsilon, num_rounds)
    assert epsilon <= g.epsilon <= epsilon + 1.0001e-4
    assert g.accountants == {"basic": epsilon}


def test_local_guarantee_at_a_delta_is_the_optimal_composition():
    g = local_guarantee(1.0, 50, delta=1e-5)
    assert g.accountants["basic"] == 1
    assert g.accountants["optimal"] == pytest.approx(
        pure.epsilon_optimal(0.02, 50, 1e-5), rel=1e-12
    )
    assert g.accountants["optimal"] <= g.epsilon <= g.accountants["optimal"] + 1e-4


# --------------------------------------------------------------------------------------------------

_FINE = {
    **dict.fromkeys(("scale", "sensitivity", "epsilon", "epsilon_round", "value", "total"), 1.0),
    **dict.fromkeys(("num_values", "num_rounds", "count"), 3),
    "truth_probability": 0.7,
    "delta": 1e-5,
    "values": [0.5],
}
_POSITIVE = (0.0, -1.0, math.inf, math.nan)
_BAD = {
    "scale": _POSITIVE,
    "sensitivity": _POSITIVE,
    "total": _POSITIVE,
    "truth_probability": (-0.1, 1.1, math.nan),
    "num_values": (1, 0, -2, True),
    "num_rounds": (-1, True),
    "count": (0, -1, True),
    "delta": (1.0, -1e-5, math.nan, math.inf),
    "epsilon_round": (-1.0, math.nan),
    "value": (math.nan,),
    "values": ([math.nan], [0.5, math.nan], []),
    "epsilon": (math.nan,),
}
_ARGUMENTS = {
    pure.epsilon_laplace: ("scale", "sensitivity"),
    pure.scale_laplace: ("epsilon", "sensitivity"),
    pure.epsilon_l2_laplace: ("scale", "sensitivity"),
    pure.scale_l2_laplace: ("epsilon", "sensitivity"),
    pure.epsilon_randomized_response: ("truth_probability", "num_values"),
    pure.truth_probability: ("epsilon", "num_values"),
    pure.one_bit_probability: ("value", "epsilon"),
    pure.one_bit_epsilon: ("epsilon", "values"),
    pure.epsilon_basic: ("epsilon_round", "num_rounds"),
    pure.delta_optimal: ("epsilon_round", "num_rounds", "epsilon"),
    pure.epsilon_optimal: ("epsilon_round", "num_rounds", "delta"),
    pure.share: ("total", "count"),
    pure.solve_epsilon_round: ("epsilon", "num_rounds", "delta"),
    pure.solve_num_rounds: ("epsilon", "epsilon_round", "delta"),
    local_guarantee: ("epsilon", "num_rounds", "delta"),
}
_MORE = {  # where less is allowed than elsewhere
    **{
        (f, "epsilon"): _POSITIVE
        for f in (pure.scale_laplace, pure.scale_l2_laplace, pure.truth_probability)
    },
    **{
        (f, "epsilon"): _POSITIVE
        for f in (pure.solve_epsilon_round, pure.solve_num_rounds, local_guarantee)
    },
    **{
        (f, "epsilon"): (-1.0, math.inf, math.nan)
        for f in (pure.one_bit_probability, pure.one_bit_epsilon)
    },
    **{(f, "num_rounds"): (0, -1, True) for f in (pure.solve_epsilon_round, local_guarantee)},
    (pure.solve_num_rounds, "epsilon_round"): _POSITIVE,
}


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        (f, name, value)
        for f, names in _ARGUMENTS.items()
        for name in names
        for value in _MORE.get((f, name), _BAD[name])
    ],
    ids=lambda x: getattr(x, "__name__", repr(x)),
)
def test_values_that_are_not_allowed_are_refused(function, name, value):
    arguments = {key: _FINE[key] for key in _ARGUMENTS[function]}
    function(**arguments)
    with pytest.raises(ValueError, match="must be"):
        function(**{**arguments, name: value})
