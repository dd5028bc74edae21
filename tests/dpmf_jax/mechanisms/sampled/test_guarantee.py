"""What mechanisms on secret Poisson samples promise."""

import math
import subprocess
import sys

import pytest

from dpmf_jax.mechanisms.sampled.guarantee import langevin_guarantee, sampled_guarantee
from tests.cases.subsampled import DELTA, PRESENCE, USER, VALUE, phases, prices


@pytest.mark.parametrize("unit", [PRESENCE, VALUE, USER])
@pytest.mark.parametrize("make", [sampled_guarantee, langevin_guarantee])
def test_a_guarantee_states_the_smallest_price_rounded_up(make, unit):
    losses = phases(2.0, 0.05, 200)
    guarantee = make(losses, delta=DELTA, clip_norm=0.3, unit=unit)
    lowest = min(prices(losses, DELTA, unit=unit).values())
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


def test_values_of_the_wrong_kind_are_refused_without_a_type_checker():
    code = """
from accounting import calibration, composition
from accounting.loss import Gaussian, SubsampledGaussian
from dpmf_jax.mechanisms.sampled.guarantee import sampled_guarantee
step = SubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.1, num_steps=1)
plain = Gaussian(noise_multiplier=1.0, num_steps=1)
for call in (
    lambda: sampled_guarantee([plain], delta=1e-5, clip_norm=1.0),
    lambda: composition.pld([step], unit="group"),
    lambda: composition.pld([step], unit="user", num_ratings=1.5),
    lambda: calibration.solve_num_steps(
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
