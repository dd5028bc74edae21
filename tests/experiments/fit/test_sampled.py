"""`dpmf fit` on secret samples: dpsgd, langevin and sketch-dpsgd cost what they are told to."""

import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from accounting import composition
from accounting.loss import SubsampledGaussian
from dpmf_jax.data import synthetic
from experiments.fit import mechanisms as fit_mechanisms
from tests.cases.fit import (
    CATALOGUE,
    fit,
    refused,
)

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")

DPSGD = ["--mechanism", "sketch-dpsgd", "--rank", "3", "--steps", "4", "--sampling-rate", "0.5"]
DENSE = ["--mechanism", "dpsgd", "--rank", "3", "--steps", "4", "--sampling-rate", "0.5"]
LANGEVIN = ["--mechanism", "langevin", *DENSE[2:]]
SKETCH = ["center", "hashes", "median", "rank", "sketch"]


def released(folder):
    return load_file(Path(folder) / "release.safetensors")


@pytest.mark.parametrize(
    ("rate", "steps", "epsilon", "learning_rate"),
    [(0.3, 4, 1.0, 0.06678333976622469), (1.0, 8, 0.5, 0.05955820518517844), (0.1, 30, 4.0, 0.1)],
)
@pytest.mark.parametrize("mechanism", ["sketch-dpsgd", "langevin"])
def test_no_total_is_exceeded_by_rounding(mechanism, rate, steps, epsilon, learning_rate):
    """Numbers that float32 does not hold: the price is that of the ones which the mechanism
    reads.
    """
    train = synthetic.generate(num_users=30, num_items=20, num_ratings=100)
    given = {
        "sampling_rate": rate,
        "steps": steps,
        "epsilon": epsilon,
        "learning_rate": learning_rate,
    }
    flags = fit_mechanisms.flags(mechanism, clip_norm=0.7, **given)
    ((made, num_steps),), _ = fit_mechanisms.phases_and_settings(mechanism, flags, train)
    assert num_steps == steps
    assert 0.9999 * epsilon < min(made.guarantee(steps).accountants.values()) <= epsilon


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([*DPSGD, "--gain", "2", "--depth", "3", "--query", "median", "--decay", "3"], SKETCH),
        ([*DENSE, "--decay", "3"], ["center", "item_factors", "user_factors"]),
        (LANGEVIN, ["center", "item_factors", "user_factors"]),
        ([*LANGEVIN, "--decay", "3"], ["center", "item_factors", "user_factors"]),
    ],
)
def test_a_sound_fit_costs_what_was_asked_for(capsys, words, parts):
    found = fit(capsys, *words, "--epsilon", "4", "--delta", "1e-6", "--seed", "0")
    guarantee = found["guarantee"]
    assert (guarantee["status"], guarantee["unit"], guarantee["delta"]) == (
        "proved",
        "rating value",
        1e-6,
    )
    assert 3.999 < guarantee["epsilon"] <= 4
    assert (found["steps"], guarantee["steps"], guarantee["mechanism"]) == (
        4,
        4,
        found["mechanism"],
    )
    assert sorted(released(found["out"])) == parts
    assert math.isfinite(found["rmse_test"])
    assert found["utility"]
    assert guarantee["statement"].startswith("EXPERIMENT: seeded, do not release")
    settings = found["settings"]
    assert {loss["sampling_rate"] for loss in guarantee["losses"]} == {0.5}
    if found["mechanism"] == "langevin":
        slowed = (
            [1 + settings["decay"] * step / 4 for step in range(4)] if settings["decay"] else [1.0]
        )
        first = (
            0.5
            * math.sqrt(2 * settings["temperature"] / settings["learning_rate"])
            / settings["clip_norm"]
        )
        multipliers = [first * math.sqrt(slow) for slow in slowed]
    else:
        multipliers = [settings["noise_multiplier"]]
    # the clip of a later step is whole units, rounded down: z is a little larger
    found = np.array([loss["noise_multiplier"] for loss in guarantee["losses"]])
    assert (found >= np.array(multipliers) * (1 - 1e-6)).all()
    assert found == pytest.approx(multipliers, rel=1e-3)
    assert found[0] == pytest.approx(multipliers[0], rel=1e-6)


@pytest.mark.seconds
def test_langevin_at_one_step_size_says_that_it_is_dpsgd(capsys):
    """At equal ε the solvers end at the same noise, T = η(zC/q)²/2, and so the same model."""
    more = ["--epsilon", "2", "--learning-rate", "0.05", "--clip-norm", "0.7", "--seed", "0"]
    one, other = fit(capsys, *LANGEVIN, *more), fit(capsys, *DENSE, *more)
    multiplier = other["settings"]["noise_multiplier"]
    temperature = 0.05 * (multiplier * 0.7 / 0.5) ** 2 / 2
    assert one["settings"]["temperature"] == pytest.approx(temperature, rel=1e-4)
    assert one["rmse_test"] == pytest.approx(other["rmse_test"], rel=1e-4)
    said = [note for note in one["notes"] if "is dpsgd" in note]
    assert said == [
        "with one learning rate for all steps langevin is dpsgd, here with noise multiplier"
        f" {multiplier:.4g}; --decay makes it another algorithm"
    ]
    assert not any("is dpsgd" in note for note in other["notes"])
    slowed = fit(capsys, *LANGEVIN, *more, "--decay", "3")
    assert not any("is dpsgd" in note for note in slowed["notes"])
    assert slowed["rmse_test"] != pytest.approx(
        fit(capsys, *DENSE, *more, "--decay", "3")["rmse_test"], rel=1e-4
    )


@pytest.mark.seconds
def test_a_presence_needs_a_declared_catalogue(capsys):
    words = [*DPSGD, "--relation", "rating-presence"]
    code, err = refused(capsys, *words, "--seed", "0")
    assert code == 4
    assert "catalogue" in err
    found = fit(capsys, *words, *CATALOGUE)
    assert (found["guarantee"]["unit"], found["guarantee"]["seeded"]) == ("rating presence", False)
    assert released(found["out"])["sketch"].size >= (25 + 9) * 3 / 0.25


def test_a_presence_takes_half_the_noise_of_a_value():
    """Of all ratings in every step: C added or removed, against -C in the place of C."""
    train = synthetic.generate(num_users=30, num_items=20, num_ratings=100)
    value, presence = (
        fit_mechanisms.phases_and_settings(
            "dpsgd",
            fit_mechanisms.flags("dpsgd", sampling_rate=1.0, steps=4, relation=relation),
            train,
        )[1]["noise_multiplier"]
        for relation in ("rating-value", "rating-presence")
    )
    assert value == pytest.approx(2 * presence, rel=1e-3)


@pytest.mark.seconds
def test_a_temperature_has_its_price(capsys):
    words = [*LANGEVIN, "--temperature", "1", "--learning-rate", "0.1", "--seed", "0"]
    found = fit(capsys, *words)
    z = 0.5 * math.sqrt(2 / 0.1)
    phase = SubsampledGaussian(noise_multiplier=z, sampling_rate=0.5, num_steps=4)
    price = composition.pld((phase,), unit="rating value").epsilon(1e-5)
    assert found["guarantee"]["epsilon"] == pytest.approx(price, abs=2e-4)
    code, err = refused(capsys, *words, "--epsilon", "3")
    assert code == 2
    assert "both set the noise" in err
