"""Langevin dynamics as phases of Gaussian steps: their noise, and groups that cost no less."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.langevin import decaying_rates, langevin_phases
from tests.cases.subsampled import DELTA, PRESENCE, epsilon_pld


@given(
    st.floats(1e-4, 1),
    st.floats(1e-3, 10),
    st.floats(1e-2, 10),
    st.floats(1e-6, 1e-1),
    st.integers(1, 50),
)
def test_noise_of_langevin_steps(q, temperature, clip_norm, rate, num_steps):
    (phase,) = langevin_phases(
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
    rates = decaying_rates(0.1, 4.0, 100)
    assert rates[0] == 0.1
    assert rates[50] == pytest.approx(0.1 / 3)
    assert 0.02 < rates[-1] < 0.0205
    assert rates == sorted(rates, reverse=True)
    assert decaying_rates(0.1, 0.0, 3) == [0.1] * 3
    assert decaying_rates(0.1, 1.0, 0) == []


@settings(max_examples=15)
@given(st.floats(0, 50), st.integers(1, 300), st.integers(1, 40))
def test_groups_of_steps_are_never_priced_below_the_steps(decay, num_steps, max_phases):
    settings_ = {"sampling_rate": 0.05, "temperature": 1.0, "clip_norm": 2.0}
    rates = decaying_rates(1e-3, decay, num_steps)
    single = langevin_phases(learning_rates=rates, max_phases=num_steps, **settings_)
    grouped = langevin_phases(learning_rates=rates, max_phases=max_phases, **settings_)
    assert len(grouped) <= max_phases
    assert sum(phase.num_steps for phase in grouped) == num_steps
    noise = sorted(phase.noise_multiplier for phase in single for _ in range(phase.num_steps))
    priced = sorted(phase.noise_multiplier for phase in grouped for _ in range(phase.num_steps))
    width = (noise[-1] / noise[0]) ** (1 / max_phases)
    for z, of_group in zip(noise, priced, strict=True):
        assert z / width * (1 - 1e-9) <= of_group <= z
    assert min(priced) == min(noise)


@pytest.mark.seconds
def test_groups_cost_what_the_docstring_says():
    settings_ = {"sampling_rate": 0.05, "temperature": 1.0, "clip_norm": 0.5}
    rates = decaying_rates(0.01, 9.0, 60)
    found = {}
    for groups in (8, 16, 32, 60):
        losses = langevin_phases(learning_rates=rates, max_phases=groups, **settings_)
        found[groups] = epsilon_pld(losses, DELTA, unit=PRESENCE)
    assert found[60] <= found[32] <= 1.025 * found[60]
    assert found[32] <= found[16] <= 1.05 * found[60]
    assert found[16] <= found[8] <= 1.11 * found[60]


@pytest.mark.parametrize("name", ["temperature", "clip_norm", "learning_rates", "sampling_rate"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_langevin_refuses(name, value):
    numbers = {"sampling_rate": 0.1, "temperature": 1.0, "clip_norm": 1.0, "learning_rates": [0.1]}
    numbers[name] = [0.1, value] if name == "learning_rates" else value
    with pytest.raises(ValueError, match=r"must be|out of range"):
        langevin_phases(**numbers)
