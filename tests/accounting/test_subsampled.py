"""Gaussian steps on Poisson samples: laws, inverses, a user's ratings, Langevin dynamics,
guarantees.
"""

import math
import subprocess
import sys

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accounting import calibration, composition, gaussian, subsampled, user
from accounting.loss import SubsampledGaussian
from dpmf_jax.mechanisms.sampled.guarantee import langevin_guarantee, sampled_guarantee
from dpmf_jax.mechanisms.sketch.guarantee import sketch_published_guarantee

DELTA = 1e-5
PRESENCE, VALUE, USER = "rating presence", "rating value", "user"

multipliers = st.floats(math.log(0.5), math.log(10)).map(math.exp)
rates = st.floats(math.log(5e-3), 0).map(lambda power: min(1.0, math.exp(power)))
steps = st.sampled_from([1, 3, 40, 2000])
deltas = st.floats(-8, -2).map(lambda power: 10.0**power)
units = st.sampled_from([PRESENCE, VALUE, USER])
more = st.floats(0.05, 3)

few = settings(max_examples=8)

NOISE = 5e-4  # of two neighbouring prices: each has its own grid


def phases(z, q, num_steps):
    return [SubsampledGaussian(noise_multiplier=z, sampling_rate=q, num_steps=num_steps)]


def both(losses, delta, unit):
    return list(subsampled.accountants(losses, delta, unit=unit).values())


# --------------------------------------------------------------------------------------------------


@few
@given(multipliers, rates, steps, deltas, units)
def test_sampling_only_lowers_a_price(z, q, num_steps, delta, unit):
    exact = gaussian.epsilon_exact(gaussian.rho(z / (2 if unit == VALUE else 1), num_steps), delta)
    assert (
        subsampled.epsilon_pld(phases(z, q, num_steps), delta, unit=unit)
        <= exact * (1 + NOISE) + 1e-6
    )
    if unit != VALUE:
        rdp = subsampled.epsilon_rdp(phases(z, q, num_steps), delta, unit=unit)
        assert rdp <= gaussian.epsilon_rdp(z, num_steps, delta) * (1 + 1e-3) + 1e-3


@settings(max_examples=4)
@given(multipliers, rates, steps, deltas, units, more)
def test_a_price_grows_with_rate_and_steps_and_falls_with_noise_and_delta(
    z, q, num_steps, delta, unit, extra
):
    prices = both(phases(z, q, num_steps), delta, unit)
    dearer = (
        both(phases(z, min(1.0, q * (1 + extra)), num_steps), delta, unit),
        both(phases(z / (1 + extra), q, num_steps), delta, unit),
        both(phases(z, q, math.ceil(num_steps * (1 + extra))), delta, unit),
        both(phases(z, q, num_steps), delta / (1 + extra), unit),
    )
    for others in dearer:
        for before, after in zip(prices, others, strict=True):
            assert after >= before * (1 - NOISE)


@few
@given(multipliers, rates, steps, deltas)
@example(
    z=math.exp(2.0), q=math.exp(-3.0), num_steps=1, delta=0.01
)  # ε = 0 is more than is needed: says nothing
def test_a_changed_value_costs_more_than_presence_and_less_than_two_of_them(z, q, num_steps, delta):
    value = subsampled.epsilon_pld(phases(z, q, num_steps), delta, unit=VALUE)
    assert value >= subsampled.epsilon_pld(phases(z, q, num_steps), delta, unit=PRESENCE) * (
        1 - NOISE
    )
    if 0 < value < 100:
        half = subsampled.delta_pld(phases(z, q, num_steps), value / 2, unit=PRESENCE)
        assert half * (1 + math.exp(value / 2)) >= delta * (
            1 - 1e-2
        )  # removed and added again is a change of value


@few
@given(multipliers, rates, steps, deltas, units)
def test_pld_stands_below_rdp_and_delta_is_its_inverse(z, q, num_steps, delta, unit):
    prices = subsampled.accountants(phases(z, q, num_steps), delta, unit=unit)
    assert list(prices) == (["pld"] if unit == VALUE else ["rdp", "pld"])
    if unit != VALUE:
        assert prices["pld"] <= prices["rdp"] * (1 + NOISE)
    assert subsampled.delta_pld(phases(z, q, num_steps), prices["pld"], unit=unit) <= delta


@few
@given(multipliers, rates, steps, deltas)
def test_rdp_is_at_most_what_the_default_orders_give(z, q, num_steps, delta):
    import dp_accounting

    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(subsampled.event(phases(z, q, num_steps), unit=PRESENCE))
    ours = subsampled.epsilon_rdp(phases(z, q, num_steps), delta, unit=PRESENCE)
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
        added = composition._xi(order, phases(z, q, 1), [])
        assert mpmath.mpf(float(computed)) + mpmath.mpf(added) >= true
    assert added < 1e-12 + 1e-7 * float(true)


def test_examples_agree_with_dp_accounting_on_a_fine_grid():
    import dp_accounting

    replace, presence = (
        dp_accounting.NeighboringRelation.REPLACE_ONE,
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    for unit, relation in ((VALUE, replace), (PRESENCE, presence)):
        for z, q, count in ((1.0, 0.01, 100), (2.0, 0.2, 50)):
            accountant = dp_accounting.pld.PLDAccountant(relation, 1e-4)
            accountant.compose(subsampled.event(phases(z, q, count), unit=unit))
            ours = subsampled.epsilon_pld(phases(z, q, count), DELTA, unit=unit)
            assert ours == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-4)


# ------------------------------------------------------------------------------------------------ a


def test_a_user_of_twenty_ratings_pays_more_than_m_squared_in_rho():
    losses = phases(1.0, 0.01, 100)
    mixture = subsampled.epsilon_user(losses, 1e-6, num_ratings=20)
    assert mixture == pytest.approx(21.70, abs=0.01)
    rho = (
        100 * 0.01**2 * math.expm1(1) / 2
    )  # the limit of many small steps, by the central limit theorem
    assert gaussian.epsilon_exact(400 * rho, 1e-6) == pytest.approx(15.3, abs=0.05)


@settings(max_examples=6)
@given(multipliers, rates, st.sampled_from([1, 20]), deltas, st.integers(1, 12))
def test_a_user_with_one_rating_more_pays_more_and_never_above_the_unsampled_price(
    z, q, num_steps, delta, m
):
    losses = phases(z, q, num_steps)
    fewer, ratings = (
        subsampled.epsilon_user(losses, delta, num_ratings=count) for count in (m, m + 1)
    )
    assert fewer <= ratings * (1 + NOISE)
    assert (
        ratings
        <= gaussian.epsilon_exact((m + 1) ** 2 * gaussian.rho(z, num_steps), delta) * (1 + NOISE)
        + 1e-6
    )
    one = subsampled.epsilon_pld(losses, delta, unit=PRESENCE)
    assert subsampled.epsilon_user(losses, delta, num_ratings=1) == one


def test_a_user_is_priced_over_phases_of_different_noise_and_rate():
    parts = [*phases(1.0, 0.01, 50), *phases(3.0, 0.1, 50)]
    whole = subsampled.epsilon_user(parts, DELTA, num_ratings=5)
    assert whole == pytest.approx(
        subsampled.epsilon_user(parts[::-1], DELTA, num_ratings=5), rel=1e-9
    )
    assert whole > max(subsampled.epsilon_user([part], DELTA, num_ratings=5) for part in parts)
    assert user.epsilon(tuple(parts), DELTA, num_ratings=5, unit=PRESENCE) == whole


# --------------------------------------------------------------------------------------------------

targets = st.floats(0.3, 20)


@settings(max_examples=2)
@given(targets, st.floats(0.02, 1), st.sampled_from([1, 100]), units)
def test_noise_multiplier_is_affordable_and_nearly_tight(epsilon, q, num_steps, unit):
    z = subsampled.solve_noise_multiplier(
        epsilon, DELTA, sampling_rate=q, num_steps=num_steps, unit=unit
    )
    assert subsampled.epsilon_pld(phases(z, q, num_steps), DELTA, unit=unit) <= epsilon
    assert subsampled.epsilon_pld(phases(z * (1 - 1e-3), q, num_steps), DELTA, unit=unit) > epsilon


@pytest.mark.slow
@settings(max_examples=2)
@given(targets, multipliers, st.sampled_from([10, 100]), units)
def test_sampling_rate_is_affordable_and_nearly_tight(epsilon, z, num_steps, unit):
    q = subsampled.solve_sampling_rate(
        epsilon, DELTA, noise_multiplier=z, num_steps=num_steps, unit=unit
    )
    assert subsampled.epsilon_pld(phases(z, q, num_steps), DELTA, unit=unit) <= epsilon
    assert (
        q == 1
        or subsampled.epsilon_pld(phases(z, min(1.0, q * 1.002), num_steps), DELTA, unit=unit)
        > epsilon
    )


@settings(max_examples=4)
@given(targets, st.floats(1, 4), st.floats(0.05, 0.5), st.sampled_from(["pld", "rdp"]))
def test_number_of_steps_is_affordable_and_the_next_step_is_not(epsilon, z, q, accountant):
    count = subsampled.solve_num_steps(
        epsilon, DELTA, noise_multiplier=z, sampling_rate=q, unit=PRESENCE, accountant=accountant
    )
    priced = {"pld": subsampled.epsilon_pld, "rdp": subsampled.epsilon_rdp}[accountant]
    assert count == 0 or priced(phases(z, q, count), DELTA, unit=PRESENCE) <= epsilon
    assert priced(phases(z, q, count + 1), DELTA, unit=PRESENCE) > epsilon


def test_inverses_by_rdp_and_at_their_ends():
    z = subsampled.solve_noise_multiplier(
        1.0, DELTA, sampling_rate=0.1, num_steps=50, unit=PRESENCE, accountant="rdp"
    )
    assert 1 - 1e-3 < subsampled.epsilon_rdp(phases(z, 0.1, 50), DELTA, unit=PRESENCE) <= 1
    assert (
        subsampled.solve_num_steps(0.01, DELTA, noise_multiplier=0.5, sampling_rate=0.5, unit=USER)
        == 0
    )
    assert (
        subsampled.solve_sampling_rate(90.0, DELTA, noise_multiplier=9.0, num_steps=2, unit=USER)
        == 1
    )
    with pytest.raises(ValueError, match="nothing beyond is tried"):  # q·J < δ: any noise would do
        subsampled.solve_noise_multiplier(1.0, 1e-2, sampling_rate=1e-3, num_steps=1, unit=PRESENCE)
    with pytest.raises(ValueError, match="no sampling_rate between"):
        subsampled.solve_sampling_rate(
            1e-9, 1e-12, noise_multiplier=0.5, num_steps=10, unit=PRESENCE, accountant="rdp"
        )
    for epsilon in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon must be"):
            subsampled.solve_noise_multiplier(
                epsilon, DELTA, sampling_rate=0.1, num_steps=1, unit=PRESENCE
            )


@pytest.mark.parametrize(
    ("z", "q", "epsilon"), [(10.0, 1e-3, 2.0), (50.0, 1e-4, 4.0), (5.0, 0.01, 300.0)]
)
def test_more_steps_than_a_distribution_is_priced_for_are_refused_and_rdp_counts_them(
    z, q, epsilon, monkeypatch
):
    asked = []
    monkeypatch.setattr(composition, "pld", lambda *_, **__: asked.append("pld"))
    known = {"noise_multiplier": z, "sampling_rate": q, "unit": PRESENCE}
    with pytest.raises(
        ValueError, match="10000000 steps or more are affordable; rdp prices any number"
    ):
        subsampled.solve_num_steps(epsilon, DELTA, **known)
    assert not asked  # Rényi's price says so in no time
    count = subsampled.solve_num_steps(epsilon, DELTA, accountant="rdp", **known)
    assert count > 10**7
    more = count + max(1, count // 10**9)
    assert subsampled.epsilon_rdp(phases(z, q, count), DELTA, unit=PRESENCE) <= epsilon
    assert subsampled.epsilon_rdp(phases(z, q, more), DELTA, unit=PRESENCE) > epsilon
    with pytest.raises(ValueError, match="steps or more are affordable"):
        subsampled.solve_num_steps(
            3e4, DELTA, accountant="rdp", noise_multiplier=1e4, sampling_rate=1e-4, unit=USER
        )


@given(
    st.integers(0, 10**6),
    st.integers(1, 10**7),
    st.floats(0.3, 3),
    st.floats(0, 25),
    st.sampled_from([10, 10**9]),
)
def test_a_search_for_a_count_ends_at_the_last_that_is_affordable(last, likely, power, jump, apart):
    looked = []

    def excess(count):  # 0 at the last, and a step beyond it, as a price has that ends in infinity
        looked.append(count)
        return (
            max(-30.0, power * math.log(count / last)) + (jump if count > last else 0.0)
            if last
            else 1.0
        )

    found = calibration.last_affordable(excess, likely, 10**7, apart=apart)
    assert found <= last <= found + max(0, found // apart)
    assert len(looked) <= 80
    assert all(1 <= count <= 10**7 for count in looked)


@given(st.floats(-15, -1.0), st.floats(1.0, 5), st.floats(0, 1e-3), st.floats(0, 6))
def test_a_walk_down_ends_at_the_first_price_that_is_too_high(top, width, noise, phase):
    looked = {}

    def excess(x):  # a hill from `top` down, free below it and above; rough, as prices are
        looked[x] = (top - x if x > top - width else -1.0) + noise * math.sin(1e6 * x + phase)
        return looked[x]

    found = calibration._lowest(excess, -20.0)
    assert top - noise - 1e-4 <= found <= top + 2 * noise + 1e-4
    assert looked[found] <= 0
    assert all(value <= 0 for x, value in looked.items() if x >= found)
    assert calibration._lowest(lambda _: -1.0, -20.0) is None


def test_a_search_for_a_count_ends_at_the_most_that_is_tried():
    assert calibration.last_affordable(lambda _: -1.0, 3, 10**7, apart=10) == 10**7
    assert (
        calibration.last_affordable(lambda count: count - 10**7 + 0.5, 3, 10**7, apart=10**9)
        == 10**7 - 1
    )


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


# --------------------------------------------------------------------------------------------------

langevin = {"clip_norm": 1.0, "temperature": 1.0, "unit": PRESENCE}


def langevin_price(
    q, accountant="pld", *, num_steps, learning_rate, decay=0.0, clip_norm, temperature, unit
):
    losses = subsampled.langevin_phases(
        sampling_rate=q,
        temperature=temperature,
        clip_norm=clip_norm,
        learning_rates=subsampled.decaying_rates(learning_rate, decay, num_steps),
    )
    return subsampled.accountants(losses, DELTA, unit=unit)[accountant]


@settings(max_examples=2)
@given(st.floats(1.05, 20), st.sampled_from([1, 30]), st.floats(3e-4, 1e-2), units)
def test_langevin_rate_is_affordable_and_so_is_every_one_above_that_was_looked_at(
    times, num_steps, rate, unit
):
    known = {**langevin, "num_steps": num_steps, "learning_rate": rate, "unit": unit}
    epsilon = times * langevin_price(1.0, **known)
    q = subsampled.solve_langevin_rate(epsilon, DELTA, **known)
    assert langevin_price(q, **known) <= epsilon
    assert langevin_price(q * (1 - 1e-4), **known) > epsilon
    for halvings in range(10):
        assert 0.5**halvings < q or langevin_price(0.5**halvings, **known) <= epsilon


@pytest.mark.slow
def test_langevin_rate_by_rdp_with_decay_and_at_its_ends():
    known = {**langevin, "num_steps": 10, "learning_rate": 6e-3}
    q = subsampled.solve_langevin_rate(1.0, DELTA, decay=9.0, accountant="rdp", **known)
    assert 1 - 2e-3 < langevin_price(q, "rdp", decay=9.0, **known) <= 1
    assert q < subsampled.solve_langevin_rate(1.0, DELTA, accountant="rdp", **known)
    full = langevin_price(1.0, **known)
    with pytest.raises(
        ValueError, match="even the full batch, sampling_rate 1, costs more than epsilon"
    ):
        subsampled.solve_langevin_rate(full * (1 - 1e-6), DELTA, **known)
    with pytest.raises(ValueError, match="epsilon must be positive"):
        subsampled.solve_langevin_rate(math.nan, DELTA, **known)


def test_no_rate_below_is_dearer_where_delta_covers_that_a_record_takes_part():
    known = {
        **langevin,
        "num_steps": 2,
        "learning_rate": 1e-9,
    }  # z is above 1 down to q = 1e-4, and 2q below δ soon
    with pytest.raises(
        ValueError, match=r"no sampling_rate down to 1e-09 .* costs more than epsilon"
    ):
        subsampled.solve_langevin_rate(1e6, 0.01, **known)


@pytest.mark.slow
@settings(max_examples=2)
@given(st.floats(0.2, 0.8), st.sampled_from([2, 4]), st.sampled_from([PRESENCE, VALUE]))
def test_decay_is_affordable_and_nearly_the_smallest(part, num_steps, unit):
    known = {**langevin, "num_steps": num_steps, "learning_rate": 2e-3, "unit": unit}
    first = langevin_price(0.05, **{**known, "num_steps": 1})
    constant = langevin_price(0.05, **known)
    epsilon = first + part * (constant - first)
    decay = subsampled.solve_langevin_decay(epsilon, DELTA, sampling_rate=0.05, **known)
    assert decay > 0
    assert langevin_price(0.05, decay=decay, **known) <= epsilon
    assert langevin_price(0.05, decay=decay * (1 - 2e-3), **known) > epsilon


@pytest.mark.parametrize(
    ("decay", "num_steps", "unit", "accountant"),
    [(0.0, 3, VALUE, "pld"), (3.0, 2, PRESENCE, "pld"), (9.0, 4, PRESENCE, "rdp")],
)
def test_temperature_is_affordable_and_nearly_the_lowest(decay, num_steps, unit, accountant):
    known = {
        "num_steps": num_steps,
        "learning_rate": 2e-3,
        "decay": decay,
        "clip_norm": 0.7,
        "unit": unit,
    }
    temperature = subsampled.solve_langevin_temperature(
        0.8, DELTA, sampling_rate=0.05, accountant=accountant, **known
    )
    assert langevin_price(0.05, accountant, temperature=temperature, **known) <= 0.8
    assert langevin_price(0.05, accountant, temperature=temperature * (1 - 2e-3), **known) > 0.8


def test_decay_is_none_where_it_need_not_be_and_refused_where_it_cannot_help():
    known = {**langevin, "num_steps": 5, "learning_rate": 2e-3}
    first = langevin_price(0.05, **{**known, "num_steps": 1})
    constant = langevin_price(0.05, **known)
    assert subsampled.solve_langevin_decay(constant, DELTA, sampling_rate=0.05, **known) == 0
    with pytest.raises(
        ValueError, match="the first step alone, which no decay makes cheaper, costs more"
    ):
        subsampled.solve_langevin_decay(first * (1 - 1e-6), DELTA, sampling_rate=0.05, **known)
    by_rdp = subsampled.solve_langevin_decay(
        3.0, DELTA, sampling_rate=0.05, accountant="rdp", **known
    )
    assert langevin_price(0.05, "rdp", decay=by_rdp, **known) <= 3


@given(
    st.floats(1e-4, 1),
    st.floats(1e-3, 10),
    st.floats(1e-2, 10),
    st.floats(1e-6, 1e-1),
    st.integers(1, 50),
)
def test_noise_of_langevin_steps(q, temperature, clip_norm, rate, num_steps):
    (phase,) = subsampled.langevin_phases(
        sampling_rate=q,
        temperature=temperature,
        clip_norm=clip_norm,
        learning_rates=[rate] * num_steps,
    )
    noise, one_record = (
        math.sqrt(2 * rate * temperature),
        rate * clip_norm / q,
    )  # of one update of the parameters
    assert phase.noise_multiplier == pytest.approx(noise / one_record, rel=1e-12)
    assert (phase.sampling_rate, phase.num_steps) == (q, num_steps)


def test_rates_decay_from_the_first_to_nearly_the_last():
    rates = subsampled.decaying_rates(0.1, 4.0, 100)
    assert rates[0] == 0.1
    assert rates[50] == pytest.approx(0.1 / 3)
    assert 0.02 < rates[-1] < 0.0205
    assert rates == sorted(rates, reverse=True)
    assert subsampled.decaying_rates(0.1, 0.0, 3) == [0.1] * 3
    assert subsampled.decaying_rates(0.1, 1.0, 0) == []


@settings(max_examples=15)
@given(st.floats(0, 50), st.integers(1, 300), st.integers(1, 40))
def test_groups_of_steps_are_never_priced_below_the_steps(decay, num_steps, max_phases):
    settings_ = {"sampling_rate": 0.05, "temperature": 1.0, "clip_norm": 2.0}
    rates = subsampled.decaying_rates(1e-3, decay, num_steps)
    single = subsampled.langevin_phases(learning_rates=rates, max_phases=num_steps, **settings_)
    grouped = subsampled.langevin_phases(learning_rates=rates, max_phases=max_phases, **settings_)
    assert len(grouped) <= max_phases
    assert sum(phase.num_steps for phase in grouped) == num_steps
    noise = sorted(phase.noise_multiplier for phase in single for _ in range(phase.num_steps))
    priced = sorted(phase.noise_multiplier for phase in grouped for _ in range(phase.num_steps))
    width = (noise[-1] / noise[0]) ** (1 / max_phases)
    for z, of_group in zip(noise, priced, strict=True):
        assert z / width * (1 - 1e-9) <= of_group <= z
    assert min(priced) == min(noise)


def test_groups_cost_what_the_docstring_says():
    settings_ = {"sampling_rate": 0.05, "temperature": 1.0, "clip_norm": 0.5}
    rates = subsampled.decaying_rates(0.01, 9.0, 60)
    prices = {}
    for groups in (8, 16, 32, 60):
        losses = subsampled.langevin_phases(learning_rates=rates, max_phases=groups, **settings_)
        prices[groups] = subsampled.epsilon_pld(losses, DELTA, unit=PRESENCE)
    assert prices[60] <= prices[32] <= 1.025 * prices[60]
    assert prices[32] <= prices[16] <= 1.05 * prices[60]
    assert prices[16] <= prices[8] <= 1.11 * prices[60]


@pytest.mark.parametrize("name", ["temperature", "clip_norm", "learning_rates", "sampling_rate"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_langevin_refuses(name, value):
    numbers = {"sampling_rate": 0.1, "temperature": 1.0, "clip_norm": 1.0, "learning_rates": [0.1]}
    numbers[name] = [0.1, value] if name == "learning_rates" else value
    with pytest.raises(ValueError, match=r"must be|out of range"):
        subsampled.langevin_phases(**numbers)


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [PRESENCE, VALUE, USER])
@pytest.mark.parametrize("make", [sampled_guarantee, langevin_guarantee])
def test_a_guarantee_states_the_smallest_price_rounded_up(make, unit):
    losses = phases(2.0, 0.05, 200)
    guarantee = make(losses, delta=DELTA, clip_norm=0.3, unit=unit)
    lowest = min(both(losses, DELTA, unit))
    assert lowest <= guarantee.epsilon <= lowest + 1.01e-4
    assert (guarantee.status, guarantee.unit, guarantee.steps) == (
        "proved for real-number noise",
        unit,
        200,
    )
    assert guarantee.sensitivity == pytest.approx(0.6 if unit == VALUE else 0.3)
    text = " ".join(guarantee.statement.split())
    for words in (
        "independently, and the sample stays secret",
        "batches of a fixed size",
        "rate q",
    ):
        assert words in text
    assert type(guarantee).from_dict(guarantee.to_dict()) == guarantee


def test_what_the_statements_say():
    sketch = " ".join(
        sampled_guarantee(phases(1.0, 0.1, 1), delta=DELTA, clip_norm=1.0).statement.split()
    )
    assert "the hashes, the initial table and the size of the sketch are public" in sketch
    langevin = " ".join(
        langevin_guarantee(phases(1.0, 0.1, 1), delta=DELTA, clip_norm=1.0).statement.split()
    )
    assert "convergence: clipping changes the distribution" in langevin
    user = sampled_guarantee(phases(1.0, 0.1, 1), delta=DELTA, clip_norm=1.0, unit=USER)
    assert "all of a user's ratings together are one record" in " ".join(user.statement.split())
    with pytest.raises(ValueError, match="at least one"):
        sampled_guarantee([], delta=DELTA, clip_norm=1.0)
    with pytest.raises(ValueError, match="clip_norm must be"):
        sampled_guarantee(phases(1.0, 0.1, 1), delta=DELTA, clip_norm=math.nan)


def test_paper_002_as_published_has_no_guarantee_and_says_why():
    guarantee = sketch_published_guarantee(num_steps=7, clip_threshold=0.5)
    assert (guarantee.status, guarantee.epsilon, guarantee.steps) == ("none", math.inf, 7)
    text = " ".join(guarantee.statement.split())
    assert (
        "ε here is a clipping threshold of the log-likelihood (here 0.5), not a privacy parameter"
        in text
    )
    assert "(here" not in sketch_published_guarantee(num_steps=7).statement


def test_values_of_the_wrong_kind_are_refused_without_a_type_checker():
    code = """
from accounting import composition, subsampled
from accounting.loss import Gaussian, SubsampledGaussian
from dpmf_jax.mechanisms.sampled.guarantee import sampled_guarantee
step = SubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.1, num_steps=1)
plain = Gaussian(noise_multiplier=1.0, num_steps=1)
for call in (
    lambda: subsampled.epsilon_pld([plain], 1e-5, unit="user"),
    lambda: subsampled.epsilon_pld([step], 1e-5, unit="group"),
    lambda: composition.pld([step], unit="user", num_ratings=1.5),
    lambda: subsampled.solve_num_steps(
        1.0, 1e-5, noise_multiplier=1.0, sampling_rate=0.1, unit="user", accountant="exact"
    ),
    lambda: sampled_guarantee([step], delta=1e-5, clip_norm=1.0, unit="group"),
):
    try:
        print(call())
    except ValueError as error:
        print("refused:", error)
"""
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split(":")[0] for line in output.splitlines()] == ["refused"] * 5
