"""Amplification by shuffling: enumerated for few users, against reports that are really shuffled,
then laws.
"""

import collections
import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from accounting import pure, shuffle
from tests.cases.one_bit import one_bit_probability
from tests.cases.roundings import named

locals_ = st.floats(-6, 1.2).map(lambda power: 10.0**power)
reports = st.floats(0, 8).map(lambda power: int(10.0**power))
deltas = st.floats(-12, -1).map(lambda power: 10.0**power)


def divergence(p, q, epsilon):
    return mpmath.fsum(max(mpmath.mpf(0), p[x] - mpmath.exp(epsilon) * q[x]) for x in p)


def clones(local, num_reports):
    """P and Q of the theorem, by enumerating C, A and B."""
    p, q = collections.Counter(), collections.Counter()
    clone, own = mpmath.exp(-mpmath.mpf(local)), 1 / (1 + mpmath.exp(-mpmath.mpf(local)))
    n = num_reports - 1
    for c, a, b in itertools.product(range(n + 1), range(n + 1), (0, 1)):
        if a <= c:
            weight = (
                mpmath.binomial(n, c)
                * clone**c
                * (1 - clone) ** (n - c)
                * mpmath.binomial(c, a)
                / 2**c
            )
            weight *= own if b else 1 - own
            p[a + b, c - a + 1 - b] += weight
            q[a + 1 - b, c - a + b] += weight
    return p, q


def shuffled(first, others):
    """The law of the multiset of reports, given the law of the first user's report and those of the
    others.
    """
    law = {(): mpmath.mpf(1)}
    for report in (first, *others):
        grown = collections.Counter()
        for (seen, weight), (message, probability) in itertools.product(
            law.items(), report.items()
        ):
            grown[tuple(sorted((*seen, message)))] += weight * probability
        law = grown
    return law


def one_bit_report(values, epsilon):
    """The law of (coordinate, bit): the coordinate uniform, its bit as paper 004 has it."""
    law = {}
    for coordinate, value in enumerate(values):
        probability = mpmath.mpf(one_bit_probability(value, epsilon))
        law[coordinate, 1], law[coordinate, 0] = (
            probability / len(values),
            (1 - probability) / len(values),
        )
    return law


# --------------------------------------------------------------------------------------------------


@given(st.floats(-4, 1.5).map(lambda power: 10.0**power), st.integers(1, 12), st.floats(0, 0.9999))
def test_bounds_enclose_the_enumerated_divergence_in_both_directions(local, num_reports, part):
    with mpmath.workdps(60):
        p, q = clones(local, num_reports)
        lower, upper = shuffle.delta_bounds(local, num_reports, part * local)
        for true in (divergence(p, q, part * local), divergence(q, p, part * local)):
            assert lower <= true <= upper
            assert upper - lower <= 1e-9 * true
        assert shuffle.delta_numerical(local, num_reports, part * local) == upper


@given(
    st.floats(0.01, 8),
    st.integers(1, 5),
    st.lists(st.floats(-1, 1), min_size=4, max_size=4),
    st.floats(0, 0.999),
)
def test_one_bit_reports_that_are_really_shuffled_leak_no_more(local, num_reports, values, part):
    with mpmath.workdps(40):
        others = [one_bit_report((value, -value), local) for value in values[: num_reports - 1]]
        p = shuffled(one_bit_report((1.0, -1.0), local), others)
        q = shuffled(one_bit_report((-1.0, 0.5), local), others)
        bound = shuffle.delta_numerical(local, num_reports, part * local)
        assert divergence(p, q, part * local) <= bound
        assert divergence(q, p, part * local) <= bound


@given(st.floats(0.01, 8), st.integers(2, 40), st.floats(0, 1), st.floats(0, 0.999))
def test_randomised_responses_that_are_really_shuffled_leak_no_more(local, num_reports, ones, part):
    with mpmath.workdps(40):
        truth, num_ones = 1 / (1 + mpmath.exp(-mpmath.mpf(local))), round(ones * (num_reports - 1))
        law = [mpmath.mpf(1)]
        for user in range(num_reports - 1):
            one = truth if user < num_ones else 1 - truth
            law = [a * one + b * (1 - one) for a, b in zip([0, *law], [*law, 0], strict=True)]
        p, q = (
            {
                k: a * one + b * (1 - one)
                for k, (a, b) in enumerate(zip([0, *law], [*law, 0], strict=True))
            }
            for one in (truth, 1 - truth)
        )
        bound = shuffle.delta_numerical(local, num_reports, part * local)
        assert max(divergence(p, q, part * local), divergence(q, p, part * local)) <= bound


def test_numbers_of_the_authors_program():
    epsilon = shuffle.epsilon_numerical(4, 10**5, 1e-6)
    assert 0.1675 < epsilon < 0.1728
    assert epsilon == pytest.approx(0.1697697, abs=1e-7)
    lower, upper = shuffle.delta_bounds(4, 10**5, epsilon)
    assert 1e-6 * (1 - 1e-8) < lower <= upper <= 1e-6


@given(locals_, reports, deltas)
def test_bounds_are_close_where_many_clones_share_a_bucket(local, num_reports, delta):
    epsilon = shuffle.epsilon_numerical(local, num_reports, delta)
    if 0 < epsilon < local * (1 - 1e-6):
        lower, upper = shuffle.delta_bounds(local, num_reports, epsilon)
        assert delta * (1 - 1e-4) <= upper <= delta
        assert upper * (1 - 1e-3) <= lower <= upper


@pytest.mark.parametrize(
    ("local", "num_reports", "epsilon"), [(0.5, 10**6, 2e-3), (2.0, 3 * 10**6, 6e-3)]
)
def test_bounds_enclose_the_sum_over_every_number_of_clones(local, num_reports, epsilon):
    import numpy as np
    from scipy.stats import binom

    mean, own = (num_reports - 1) * math.exp(-local), 1 / (1 + math.exp(-local))
    c = np.arange(int(mean - 8 * math.sqrt(mean)), int(mean + 8 * math.sqrt(mean)))
    assert len(c) > 2 * shuffle.BUCKETS
    best = 0.0
    for m in (
        np.ceil((c + 1) * (1 + math.tanh(epsilon / 2) / math.tanh(local / 2)) / 2) + k
        for k in (-1, 0)
    ):
        low, high = (
            binom.sf(m - 1, c, 0.5),
            binom.sf(m, c, 0.5),
        )  # "more than m" with and without the user's report
        best = np.maximum(
            best, own * low + (1 - own) * high - math.exp(epsilon) * ((1 - own) * low + own * high)
        )
    true = float(binom.pmf(c, num_reports - 1, math.exp(-local)) @ best)
    lower, upper = shuffle.delta_bounds(local, num_reports, epsilon)
    assert 1e-12 < lower < true < upper < true * (1 + 1e-3)


def test_buckets_hold_all_clones_once():
    from scipy.stats import binom

    for local, num_reports in (
        (0.01, 10**7),
        (1.0, 10**6),
        (3.0, 5_000),
        (20.0, 50),
        (1e-18, 10**6),
        (800.0, 3),
    ):
        firsts, lasts, masses = shuffle._clones(local, num_reports)
        assert (firsts[0], lasts[-1]) == (0, num_reports - 1)
        assert (firsts[1:] == lasts[:-1] + 1).all()
        assert (firsts <= lasts).all()
        assert masses.sum() == pytest.approx(1, abs=1e-12)
        mean = firsts @ masses
        assert mean == pytest.approx((num_reports - 1) * math.exp(-local), rel=0.01, abs=1e-6)
        middle = int(mean)
        below = masses[lasts <= middle].sum()
        assert below <= binom.cdf(middle, num_reports - 1, math.exp(-local)) + 1e-12


def test_many_clones_are_a_gaussian():
    # P against Q, given C = c: a mean apart by tanh(ε₀/2) in c fair coins, of standard deviation
    # ½√c
    from accounting import gaussian

    for local in (0.1, 1.0, 2.0):
        n = 10**8
        mean_shift = math.tanh(local / 2) / (0.5 * math.sqrt(n * math.exp(-local)))
        ours, limit = (
            shuffle.epsilon_numerical(local, n, 1e-6),
            gaussian.epsilon_exact(mean_shift**2 / 2, 1e-6),
        )
        assert ours == pytest.approx(limit, rel=0.01)


# --------------------------------------------------------------------------------------------------


@given(
    locals_,
    st.floats(0, 12).map(lambda power: int(10.0**power)),
    st.floats(-12, -1e-3).map(lambda p: 10.0**p),
)
def test_closed_form_is_theorem_3_1_and_above_the_numerical_one(local, num_reports, delta):
    limit = math.log(num_reports / (16 * math.log(2 / delta)))
    if local > limit:
        with pytest.raises(ValueError, match=r"epsilon_local must be at most ln\(n/"):
            shuffle.epsilon_closed_form(local, num_reports, delta)
        return
    with mpmath.workdps(30):
        e, n = mpmath.exp(local), mpmath.mpf(num_reports)
        printed = (
            8 * mpmath.sqrt(e * mpmath.log(4 / mpmath.mpf(delta))) / mpmath.sqrt(n) + 8 * e / n
        )
        printed = mpmath.log(1 + (e - 1) / (e + 1) * printed)
    closed = shuffle.epsilon_closed_form(local, num_reports, delta)
    assert closed == pytest.approx(min(local, float(printed)), rel=1e-12)
    assert shuffle.delta_numerical(local, num_reports, closed) <= delta


def test_closed_form_at_the_edge_of_its_condition():
    for delta in (0.9, 0.1, 1e-6, 1e-12):
        for num_reports in (20, 1_000, 10**6, 10**9):
            limit = math.log(num_reports / (16 * math.log(2 / delta)))
            if limit > 0:
                with pytest.raises(ValueError, match="for the closed form"):
                    shuffle.epsilon_closed_form(limit * (1 + 1e-9), num_reports, delta)
                closed = shuffle.epsilon_closed_form(limit * (1 - 1e-12), num_reports, delta)
                assert shuffle.delta_numerical(limit * (1 - 1e-12), num_reports, closed) <= delta
    assert shuffle.epsilon_closed_form(4, 10**5, 1e-6) == pytest.approx(0.5346339916517, rel=1e-12)
    assert shuffle.epsilon_closed_form(0.01, 235, 1e-6) == 0.01  # as printed it would be above ε₀


# --------------------------------------------------------------------------------------------------


@given(locals_, reports, deltas)
def test_price_is_affordable_and_at_most_the_local_one(local, num_reports, delta):
    epsilon = shuffle.epsilon_numerical(local, num_reports, delta)
    assert 0 <= epsilon <= local
    assert shuffle.delta_numerical(local, num_reports, epsilon) <= delta
    if epsilon > 0:
        assert shuffle.delta_numerical(local, num_reports, epsilon * (1 - 1e-8)) > delta


@pytest.mark.seconds
@given(locals_, reports, deltas, st.floats(1.01, 10))
def test_price_falls_with_reports_and_delta_and_grows_with_the_local_one(
    local, num_reports, delta, factor
):
    epsilon, room = shuffle.epsilon_numerical(local, num_reports, delta), 1 + 1e-4  # of the buckets
    assert shuffle.epsilon_numerical(local, int(num_reports * factor) + 1, delta) <= epsilon * room
    assert shuffle.epsilon_numerical(local, num_reports, delta * factor / 10) >= epsilon * (
        1 - 1e-9
    )
    assert shuffle.epsilon_numerical(local * factor, num_reports, delta) * room >= epsilon


def test_delta_is_zero_from_the_local_price_on_and_nowhere_else():
    for local, num_reports in ((1e-9, 1), (1.0, 10**9), (30.0, 10**9), (800.0, 10), (800.0, 1)):
        assert shuffle.delta_bounds(local, num_reports, local) == (0, 0)
        assert shuffle.delta_numerical(local, num_reports, math.inf) == 0
        assert shuffle.delta_numerical(local, num_reports, math.nextafter(local, 0)) > 0
        assert 0 < shuffle.delta_numerical(local, num_reports, 0.0) <= 1
    assert shuffle.epsilon_numerical(1.0, 10**9, 0.01) == 0  # the total variation is below
    for num_reports in (1, 10, 1000):
        assert (
            shuffle.epsilon_numerical(9.0, num_reports, 1e-200) == 9.0
        )  # no float below it is enough


@given(st.floats(-6, 2.5).map(lambda power: 10.0**power), deltas)
def test_alone_in_the_shuffle_nothing_is_gained(local, delta):
    exact = pure.epsilon_optimal(local, 1, delta)
    assert shuffle.epsilon_numerical(local, 1, delta) == pytest.approx(
        exact, rel=1e-8, abs=1e-9 * local
    )


# --------------------------------------------------------------------------------------------------


@functools.cache
def price_of(epsilon_local, num_rounds, num_reports, delta):
    return shuffle.epsilon_shuffled(epsilon_local, num_rounds, num_reports=num_reports, delta=delta)


@pytest.mark.parametrize(("local", "num_reports"), [(8.0, 1), (17.0, 200), (100.0, 200)])
def test_where_a_report_has_nobody_to_hide_among_two_rounds_may_cost_more_than_one(
    local, num_reports
):
    """Then δ is all there is to share out: two rounds cost a little more than one, and neither more
    than ε.
    """
    one, two = price_of(local, 1, num_reports, 0.1), price_of(local, 2, num_reports, 0.1)
    assert one < two < one * (1 + 1e-3)
    assert two <= local


@given(st.floats(0.001, 1), st.integers(200, 10**6), deltas, st.integers(1, 3000), st.floats(1, 4))
def test_price_of_all_rounds_falls_with_their_number(share, num_reports, delta, num_rounds, factor):
    """From where a report of the fewer rounds has others to hide among."""
    fewer, more = num_rounds, max(num_rounds + 1, int(num_rounds * factor))
    local = share * math.log(num_reports) * fewer
    dear, cheap = (
        price_of(local, fewer, num_reports, delta),
        price_of(local, more, num_reports, delta),
    )
    assert cheap <= dear * (1 + 1e-7)
    assert dear <= local * (1 + 1e-12)


@pytest.mark.seconds
@given(st.floats(0.5, 60), st.integers(200, 10**5), deltas, st.floats(0.01, 0.99))
def test_rounds_are_affordable_and_one_fewer_is_not(local, num_reports, delta, part):
    first, last = price_of(local, 1, num_reports, delta), price_of(local, 2**12, num_reports, delta)
    target = last + part * (first - last)
    if not target > last:
        return  # nothing is gained by rounds
    count = shuffle.solve_shuffled_rounds(
        target, delta, epsilon_local=local, num_reports=num_reports
    )
    assert price_of(local, count, num_reports, delta) <= target
    assert count == 1 or price_of(local, count - 1, num_reports, delta) > target


@pytest.mark.one_case
@pytest.mark.parametrize("target", [49.0, 6.0, 1.9, 1.0])
def test_rounds_are_the_fewest_of_all(target):
    count = shuffle.solve_shuffled_rounds(target, 1e-6, epsilon_local=50.0, num_reports=100_000)
    assert all(price_of(50.0, fewer, 100_000, 1e-6) > target for fewer in range(1, count))


def test_rounds_at_their_ends():
    assert shuffle.solve_shuffled_rounds(9.0, 1e-5, epsilon_local=8.0, num_reports=10) == 1
    least = price_of(8.0, shuffle.ROUNDS_TRIED, 1000, 1e-5)
    known = {"epsilon_local": 8.0, "num_reports": 1000}
    assert shuffle.solve_shuffled_rounds(least, 1e-5, **known) <= shuffle.ROUNDS_TRIED
    with pytest.raises(ValueError, match="epsilon must be larger: 65536 rounds still cost"):
        shuffle.solve_shuffled_rounds(least * (1 - 1e-3), 1e-5, **known)
    assert price_of(8.0, 4 * shuffle.ROUNDS_TRIED, 1000, 1e-5) > least * (1 - 1e-4)


@pytest.mark.seconds
@given(st.floats(0.5, 30), st.integers(1, 50), st.integers(2, 10**6), st.floats(0.001, 0.999))
def test_delta_is_affordable_and_nearly_the_smallest(local, num_rounds, num_reports, part):
    target = part * local
    known = {"epsilon_local": local, "num_rounds": num_rounds, "num_reports": num_reports}
    least = num_rounds * shuffle.delta_numerical(
        local / num_rounds, num_reports, target / num_rounds
    )
    assume(not 1 - 1e-5 < least < 1 + 1e-9)
    if least > 1:
        with pytest.raises(ValueError, match="no δ below 1"):
            shuffle.solve_shuffled_delta(target, **known)
        return
    delta = shuffle.solve_shuffled_delta(target, **known)
    assert 0 < delta < 1
    assert price_of(local, num_rounds, num_reports, delta) <= target
    less = delta * (1 - 2e-6)
    if delta > 1.01e-300 * num_rounds:
        assert price_of(local, num_rounds, num_reports, less) > target


def test_delta_at_its_ends():
    known = {"epsilon_local": 2.0, "num_rounds": 4, "num_reports": 1000}
    assert shuffle.solve_shuffled_delta(2.0, **known) == 0
    assert 0 < shuffle.solve_shuffled_delta(math.nextafter(2.0, 0), **known) < 1e-100
    for rounds in (37, 41, 50):  # a δ that is no float once it is shared
        delta = shuffle.solve_shuffled_delta(
            0.4995, epsilon_local=0.5, num_rounds=rounds, num_reports=10**6
        )
        assert delta == pytest.approx(rounds * 1e-300)
        assert price_of(0.5, rounds, 10**6, delta) <= 0.4995
    with pytest.raises(ValueError, match="no δ below 1"):
        shuffle.solve_shuffled_delta(1e-9, epsilon_local=50.0, num_rounds=5, num_reports=2)


# --------------------------------------------------------------------------------------------------

_FINE = {
    "epsilon_local": 1.0,
    "num_reports": 10_000,
    "delta": 1e-5,
    "epsilon": 0.1,
    "num_rounds": 2,
}
_BAD = {
    "epsilon_local": (0.0, -1.0, math.inf, math.nan),
    "num_reports": (0, -1, 10**13, True),
    "delta": (0.0, 1.0, -1e-5, math.nan),
    "epsilon": (-1.0, math.nan),
    "num_rounds": (0, -1, True),
}
_ARGUMENTS = {
    shuffle.epsilon_closed_form: ("epsilon_local", "num_reports", "delta"),
    shuffle.epsilon_numerical: ("epsilon_local", "num_reports", "delta"),
    shuffle.delta_numerical: ("epsilon_local", "num_reports", "epsilon"),
    shuffle.delta_bounds: ("epsilon_local", "num_reports", "epsilon"),
    shuffle.epsilon_shuffled: ("epsilon", "num_rounds", "num_reports", "delta"),
    shuffle.solve_shuffled_rounds: ("epsilon", "delta", "epsilon_local", "num_reports"),
    shuffle.solve_shuffled_delta: ("epsilon", "epsilon_local", "num_rounds", "num_reports"),
}


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("function", "name", "value"),
    [(f, name, value) for f, names in _ARGUMENTS.items() for name in names for value in _BAD[name]],
    ids=lambda x: getattr(x, "__name__", repr(x)),
)
def test_values_that_are_not_allowed_are_refused(function, name, value):
    arguments = {key: _FINE[key] for key in _ARGUMENTS[function]}
    function(**arguments)
    with pytest.raises(ValueError, match="must be"):
        function(**{**arguments, name: value})


def test_shuffled_rounds_spend_no_more_than_the_delta_they_share(monkeypatch):
    monkeypatch.setattr(shuffle, "epsilon_numerical", lambda *_: 0.1)  # ε is no matter here
    drawn = 10.0 ** np.random.default_rng(1).uniform(-9, -4, 20)
    for delta in [1e-5, 1e-6, 3e-7, *drawn.tolist()]:
        for num_rounds in (3, 7, 10):
            loss = shuffle.shuffled_loss(0.5, num_rounds, 20_000, delta)
            spent = named(loss.delta) * num_rounds
            assert spent <= named(delta) < named(math.nextafter(loss.delta, 1)) * num_rounds
