"""Pure prices: definitions first, then composition against its formula in many digits and against
dp_accounting.
"""

import math
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import loss, price, pure
from tests.cases.roundings import named

RANDOM = np.random.default_rng(1)
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
        losses, probabilities = pure._losses(epsilon_round, num_rounds)
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

_FINE = {
    **dict.fromkeys(("epsilon", "epsilon_round", "total"), 1.0),
    **dict.fromkeys(("num_rounds", "count"), 3),
    "delta": 1e-5,
}
_POSITIVE = (0.0, -1.0, math.inf, math.nan)
_BAD = {
    "total": _POSITIVE,
    "num_rounds": (-1, True),
    "count": (0, -1, True),
    "delta": (1.0, -1e-5, math.nan, math.inf),
    "epsilon_round": (-1.0, math.nan),
    "epsilon": (math.nan,),
}
_ARGUMENTS = {
    pure.epsilon_basic: ("epsilon_round", "num_rounds"),
    pure.delta_optimal: ("epsilon_round", "num_rounds", "epsilon"),
    pure.epsilon_optimal: ("epsilon_round", "num_rounds", "delta"),
    pure.share: ("total", "count"),
    pure.solve_epsilon_round: ("epsilon", "num_rounds", "delta"),
    pure.solve_num_rounds: ("epsilon", "epsilon_round", "delta"),
}
_MORE = {  # where less is allowed than elsewhere
    **{(f, "epsilon"): _POSITIVE for f in (pure.solve_epsilon_round, pure.solve_num_rounds)},
    **{(f, "num_rounds"): (0, -1, True) for f in (pure.solve_epsilon_round,)},
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


# --------------------------------------------------------------------------------------------------


def test_the_losses_of_rounds_are_not_below_the_exact_ones():
    """By one float: k - 2j reports of ε each, where the product may have been rounded down."""
    for each in RANDOM.uniform(0.01, 1, 20).tolist():
        losses, _ = pure._new_losses(each, 7)
        for count, each_loss in enumerate(losses.tolist()):
            needed = (7 - 2 * count) * Fraction(each)
            assert (
                Fraction(math.nextafter(math.nextafter(each_loss, -math.inf), -math.inf))
                < needed
                <= Fraction(each_loss)
            )


def test_rounds_share_what_is_paid_and_no_float_more():
    for total in [0.1, 1.0, 1e-5, 1 / 3, *RANDOM.uniform(1e-6, 10, 100).tolist()]:
        for count in (1, 3, 6, 7, 10, 49):
            each = pure.share(total, count)
            assert (
                named(each) * count <= named(total) < named(math.nextafter(each, math.inf)) * count
            )


def test_the_optimal_price_is_of_rounds_that_are_not_below_their_share(monkeypatch):
    """ε/k as a float: the least one that k rounds of ε need, or the next one."""
    asked = []
    own = pure.epsilon_optimal
    monkeypatch.setattr(pure, "epsilon_optimal", lambda *given: asked.append(given) or own(*given))
    for epsilon in [0.1, 0.3, 1.0, 1.6, *RANDOM.uniform(0.1, 5, 30).tolist()]:
        for count in (1, 3, 7, 10):
            asked.clear()
            found = price.accountants(
                [loss.Pure(epsilon=epsilon, num_rounds=count)], delta=1e-3, unit="user"
            )
            ((each, times, _),) = asked
            assert (times, found["optimal"] <= found["basic"]) == (count, True)
            low = math.nextafter(math.nextafter(each, 0), 0)
            assert Fraction(low) * count < Fraction(epsilon) <= Fraction(each) * count


@pytest.mark.parametrize("num_rounds", [2, 5, 10, 33])
def test_the_largest_round_is_paid_for_and_a_little_more_is_not(num_rounds):
    for epsilon, exponent in zip(
        RANDOM.uniform(0.1, 8, 15).tolist(), RANDOM.uniform(-10, -1, 15), strict=True
    ):
        delta = float(10.0**exponent)
        each = pure.solve_epsilon_round(epsilon, num_rounds, delta)
        assert pure.epsilon_optimal(each, num_rounds, delta) <= epsilon
        assert pure.delta_optimal(each, num_rounds, epsilon) <= delta
        assert pure.delta_optimal(each * (1 + 1e-11), num_rounds, epsilon) > delta
