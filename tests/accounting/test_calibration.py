"""What a budget buys on Poisson samples: affordable, nearly tight, and refused where it must be."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import calibration, composition
from accounting.langevin import decaying_rates, langevin_phases
from tests.cases.subsampled import (
    DELTA,
    PRESENCE,
    USER,
    VALUE,
    epsilon_pld,
    epsilon_rdp,
    multipliers,
    phases,
    prices,
    units,
)

targets = st.floats(0.3, 20)


@pytest.mark.seconds
@settings(max_examples=2)
@given(targets, st.floats(0.02, 1), st.sampled_from([1, 100]), units)
def test_noise_multiplier_is_affordable_and_nearly_tight(epsilon, q, num_steps, unit):
    z = calibration.solve_noise_multiplier(
        epsilon, DELTA, sampling_rate=q, num_steps=num_steps, unit=unit
    )
    assert epsilon_pld(phases(z, q, num_steps), DELTA, unit=unit) <= epsilon
    assert epsilon_pld(phases(z * (1 - 1e-3), q, num_steps), DELTA, unit=unit) > epsilon


@pytest.mark.slow
@settings(max_examples=2)
@given(targets, multipliers, st.sampled_from([10, 100]), units)
def test_sampling_rate_is_affordable_and_nearly_tight(epsilon, z, num_steps, unit):
    q = calibration.solve_sampling_rate(
        epsilon, DELTA, noise_multiplier=z, num_steps=num_steps, unit=unit
    )
    assert epsilon_pld(phases(z, q, num_steps), DELTA, unit=unit) <= epsilon
    assert (
        q == 1 or epsilon_pld(phases(z, min(1.0, q * 1.002), num_steps), DELTA, unit=unit) > epsilon
    )


@pytest.mark.seconds
@settings(max_examples=4)
@given(targets, st.floats(1, 4), st.floats(0.05, 0.5), st.sampled_from(["pld", "rdp"]))
def test_number_of_steps_is_affordable_and_the_next_step_is_not(epsilon, z, q, accountant):
    count = calibration.solve_num_steps(
        epsilon, DELTA, noise_multiplier=z, sampling_rate=q, unit=PRESENCE, accountant=accountant
    )
    priced = {"pld": epsilon_pld, "rdp": epsilon_rdp}[accountant]
    assert count == 0 or priced(phases(z, q, count), DELTA, unit=PRESENCE) <= epsilon
    assert priced(phases(z, q, count + 1), DELTA, unit=PRESENCE) > epsilon


@pytest.mark.seconds
def test_inverses_by_rdp_and_at_their_ends():
    z = calibration.solve_noise_multiplier(
        1.0, DELTA, sampling_rate=0.1, num_steps=50, unit=PRESENCE, accountant="rdp"
    )
    assert 1 - 1e-3 < epsilon_rdp(phases(z, 0.1, 50), DELTA, unit=PRESENCE) <= 1
    assert (
        calibration.solve_num_steps(0.01, DELTA, noise_multiplier=0.5, sampling_rate=0.5, unit=USER)
        == 0
    )
    assert (
        calibration.solve_sampling_rate(90.0, DELTA, noise_multiplier=9.0, num_steps=2, unit=USER)
        == 1
    )
    with pytest.raises(ValueError, match="nothing beyond is tried"):  # q·J < δ: any noise would do
        calibration.solve_noise_multiplier(
            1.0, 1e-2, sampling_rate=1e-3, num_steps=1, unit=PRESENCE
        )
    with pytest.raises(ValueError, match="no sampling_rate between"):
        calibration.solve_sampling_rate(
            1e-9, 1e-12, noise_multiplier=0.5, num_steps=10, unit=PRESENCE, accountant="rdp"
        )
    for epsilon in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon must be"):
            calibration.solve_noise_multiplier(
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
        calibration.solve_num_steps(epsilon, DELTA, **known)
    assert not asked  # Rényi's price says so in no time
    count = calibration.solve_num_steps(epsilon, DELTA, accountant="rdp", **known)
    assert count > 10**7
    more = count + max(1, count // 10**9)
    assert epsilon_rdp(phases(z, q, count), DELTA, unit=PRESENCE) <= epsilon
    assert epsilon_rdp(phases(z, q, more), DELTA, unit=PRESENCE) > epsilon
    with pytest.raises(ValueError, match="steps or more are affordable"):
        calibration.solve_num_steps(
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


langevin = {"clip_norm": 1.0, "temperature": 1.0, "unit": PRESENCE}


def langevin_price(
    q, accountant="pld", *, num_steps, learning_rate, decay=0.0, clip_norm, temperature, unit
):
    losses = langevin_phases(
        sampling_rate=q,
        temperature=temperature,
        clip_norm=clip_norm,
        learning_rates=decaying_rates(learning_rate, decay, num_steps),
    )
    return prices(losses, DELTA, unit=unit)[accountant]


@pytest.mark.seconds
@settings(max_examples=2)
@given(st.floats(1.05, 20), st.sampled_from([1, 30]), st.floats(3e-4, 1e-2), units)
def test_langevin_rate_is_affordable_and_so_is_every_one_above_that_was_looked_at(
    times, num_steps, rate, unit
):
    known = {**langevin, "num_steps": num_steps, "learning_rate": rate, "unit": unit}
    epsilon = times * langevin_price(1.0, **known)
    q = calibration.solve_langevin_rate(epsilon, DELTA, **known)
    assert langevin_price(q, **known) <= epsilon
    assert langevin_price(q * (1 - 1e-4), **known) > epsilon
    for halvings in range(10):
        assert 0.5**halvings < q or langevin_price(0.5**halvings, **known) <= epsilon


@pytest.mark.slow
def test_langevin_rate_by_rdp_with_decay_and_at_its_ends():
    known = {**langevin, "num_steps": 10, "learning_rate": 6e-3}
    q = calibration.solve_langevin_rate(1.0, DELTA, decay=9.0, accountant="rdp", **known)
    assert 1 - 2e-3 < langevin_price(q, "rdp", decay=9.0, **known) <= 1
    assert q < calibration.solve_langevin_rate(1.0, DELTA, accountant="rdp", **known)
    full = langevin_price(1.0, **known)
    with pytest.raises(
        ValueError, match="even the full batch, sampling_rate 1, costs more than epsilon"
    ):
        calibration.solve_langevin_rate(full * (1 - 1e-6), DELTA, **known)
    with pytest.raises(ValueError, match="epsilon must be positive"):
        calibration.solve_langevin_rate(math.nan, DELTA, **known)


def test_no_rate_below_is_dearer_where_delta_covers_that_a_record_takes_part():
    known = {
        **langevin,
        "num_steps": 2,
        "learning_rate": 1e-9,
    }  # z is above 1 down to q = 1e-4, and 2q below δ soon
    with pytest.raises(
        ValueError, match=r"no sampling_rate down to 1e-09 .* costs more than epsilon"
    ):
        calibration.solve_langevin_rate(1e6, 0.01, **known)


@pytest.mark.slow
@settings(max_examples=2)
@given(st.floats(0.2, 0.8), st.sampled_from([2, 4]), st.sampled_from([PRESENCE, VALUE]))
def test_decay_is_affordable_and_nearly_the_smallest(part, num_steps, unit):
    known = {**langevin, "num_steps": num_steps, "learning_rate": 2e-3, "unit": unit}
    first = langevin_price(0.05, **{**known, "num_steps": 1})
    constant = langevin_price(0.05, **known)
    epsilon = first + part * (constant - first)
    decay = calibration.solve_langevin_decay(epsilon, DELTA, sampling_rate=0.05, **known)
    assert decay > 0
    assert langevin_price(0.05, decay=decay, **known) <= epsilon
    assert langevin_price(0.05, decay=decay * (1 - 2e-3), **known) > epsilon


@pytest.mark.seconds
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
    temperature = calibration.solve_langevin_temperature(
        0.8, DELTA, sampling_rate=0.05, accountant=accountant, **known
    )
    assert langevin_price(0.05, accountant, temperature=temperature, **known) <= 0.8
    assert langevin_price(0.05, accountant, temperature=temperature * (1 - 2e-3), **known) > 0.8


def test_decay_is_none_where_it_need_not_be_and_refused_where_it_cannot_help():
    known = {**langevin, "num_steps": 5, "learning_rate": 2e-3}
    first = langevin_price(0.05, **{**known, "num_steps": 1})
    constant = langevin_price(0.05, **known)
    assert calibration.solve_langevin_decay(constant, DELTA, sampling_rate=0.05, **known) == 0
    with pytest.raises(
        ValueError, match="the first step alone, which no decay makes cheaper, costs more"
    ):
        calibration.solve_langevin_decay(first * (1 - 1e-6), DELTA, sampling_rate=0.05, **known)
    by_rdp = calibration.solve_langevin_decay(
        3.0, DELTA, sampling_rate=0.05, accountant="rdp", **known
    )
    assert langevin_price(0.05, "rdp", decay=by_rdp, **known) <= 3
