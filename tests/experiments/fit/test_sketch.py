"""`dpmf fit` of paper 002: no guarantee unless accepted, prices on secret samples, what a sketch
releases, refusals.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import dpmf_jax
from dpmf_jax.mechanisms.sampled import langevin
from dpmf_jax.mechanisms.sampled import spec as sampled_spec
from dpmf_jax.mechanisms.sketch import published as sketch
from dpmf_jax.mechanisms.sketch import spec as sketch_spec
from experiments.cli.main import parse
from experiments.fit import command as fit_command
from experiments.fit import ratings as fit_ratings
from tests.cases import CHECKOUT
from tests.cases.fit import (
    AUDIT,
    CATALOGUE,
    FIT,
    JOINT,
    RANGE,
    audited,
    fit,
    interrupted,
    refused,
    resumed,
    run,
    verdicts,
)

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")

PUBLISHED = ["--mechanism", "sketch", "--rank", "3", "--epochs", "4"]
ACCEPTED = [*PUBLISHED, "--accept-no-guarantee"]
DPSGD = ["--mechanism", "sketch-dpsgd", "--rank", "3", "--steps", "4", "--sampling-rate", "0.5"]
DENSE = ["--mechanism", "dpsgd", "--rank", "3", "--steps", "4", "--sampling-rate", "0.5"]
LANGEVIN = ["--mechanism", "langevin", *DENSE[2:]]
SKETCH = ["center", "hashes", "median", "rank", "sketch"]
MEANS = ["item_factors", "user_factors"]


def released(folder):
    return load_file(Path(folder) / "release.safetensors")


def same(first, second):
    one, other = released(first), released(second)
    return one.keys() == other.keys() and all(
        np.array_equal(one[part], other[part]) for part in one
    )


# --- as published


@pytest.mark.parametrize("more", [[], ["--seed", "0"], ["--threshold", "4"]])
def test_the_published_sketch_is_refused_without_consent(capsys, more):
    code, err = refused(capsys, *PUBLISHED, *more)
    assert code == 4
    assert "not a privacy parameter" in err
    assert "--accept-no-guarantee" in err
    assert "sketch-dpsgd" in err


@pytest.mark.parametrize("words", [DPSGD, ["--mechanism", "non-private"], []])
def test_consent_means_nothing_where_it_is_not_needed(capsys, words):
    code, err = refused(capsys, *words, "--accept-no-guarantee")
    assert code == 2
    assert "--accept-no-guarantee means nothing" in err


def test_an_epsilon_is_no_threshold(capsys):
    code, err = refused(capsys, *ACCEPTED, "--epsilon", "4")
    assert code == 4
    assert "--threshold 4" in err
    assert "privacy" in err


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ([], [*SKETCH, *MEANS]),
        (["--center", "3", "--query", "median", "--depth", "3", "--gain", "2"], SKETCH),
    ],
)
def test_a_published_fit_releases_its_sketch_and_promises_nothing(capsys, more, parts):
    found = fit(capsys, *ACCEPTED, *more, "--threshold", "8", "--seed", "0")
    guarantee = found["guarantee"]
    assert (guarantee["status"], guarantee["epsilon"], guarantee["mechanism"]) == (
        "none",
        "inf",
        "sketch",
    )
    assert "a clipping threshold of the log-likelihood (here 8)" in " ".join(
        guarantee["statement"].split()
    )
    assert (found["steps"], guarantee["steps"]) == (4, 4)
    assert sorted(released(found["out"])) == sorted(parts)
    assert found["settings"]["threshold"] == 8
    assert math.isfinite(found["rmse_test"])
    folder = Path(found["out"])
    assert {file.name for file in folder.iterdir()} == {
        "release.safetensors",
        "model.json",
        "PRIVACY.md",
        "private",
    }
    assert "NO PRIVACY GUARANTEE" in (folder / "PRIVACY.md").read_text()


@pytest.mark.seconds
def test_conventions_and_infinite_thresholds(capsys):
    words = [*ACCEPTED, "--seed", "0"]
    half, whole = (
        fit(capsys, *words, *more)["out"]
        for more in (["--threshold", "0.5", "--convention", "3.2"], ["--threshold", "1"])
    )
    assert same(half, whole)
    infinite, none = (fit(capsys, *words, *more) for more in (["--threshold", "inf"], []))
    assert same(infinite["out"], none["out"])
    assert not same(none["out"], whole)
    assert infinite["settings"]["threshold"] is None


def test_each_epoch_has_an_order_of_its_own_that_the_seed_decides(capsys):
    first, again, other = (fit(capsys, *ACCEPTED, "--seed", seed)["out"] for seed in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("words", "module", "make", "settings"),
    [
        (
            [
                *ACCEPTED,
                "--decay",
                "3",
                "--threshold",
                "4",
                "--convention",
                "3.2",
                "--depth",
                "3",
                "--gain",
                "2",
            ],
            *(sketch, sketch.mechanism),
            {
                "num_epochs": 4,
                "decay": 3.0,
                "threshold": 4.0,
                "convention": "3.2",
                "depth": 3,
                "gain": 2.0,
            },
        ),
        (
            [*LANGEVIN, "--temperature", "2", "--clip-norm", "0.5", "--center", "2.5"],
            *(langevin, langevin.dp),
            {
                "num_steps": 4,
                "sampling_rate": 0.5,
                "temperature": 2.0,
                "clip_norm": 0.5,
                "center": 2.5,
            }
            | {"unit": "rating value", "rating_range": (1.0, 5.0)},
        ),
    ],
    ids=["sketch", "langevin"],
)
def test_a_fit_is_that_of_its_mechanism_in_python(capsys, words, module, make, settings):
    more = [
        "--learning-rate",
        "0.07",
        "--regularization",
        "0.3",
        "--seed",
        "3",
        "--test-fraction",
        "0",
    ]
    found = fit(capsys, *words, *more, "--layout", "split")
    words = ["mine.csv", *JOINT, *RANGE, "--test-fraction", "0"]
    command = parse("fit", fit_command.Command, words)
    mechanism = make(module.Config(rank=3, learning_rate=0.07, regularization=0.3, **settings))
    model = dpmf_jax.fit(
        fit_ratings.read(command)[0], mechanism, num_steps=4, seed=3, layout_kind="split"
    )
    expected = {name: part for name, part in model.release._asdict().items() if part is not None}
    assert expected.keys() == released(found["out"]).keys()
    assert all(
        np.array_equal(part, expected[name]) for name, part in released(found["out"]).items()
    )


@pytest.mark.slow
def test_where_there_are_several_devices_the_published_sketch_takes_one():
    words = [
        sys.executable,
        "-m",
        "experiments.cli",
        *FIT[:2],
        *RANGE,
        "--controls",
        "none",
        *ACCEPTED,
    ]
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    env |= {"PYTHONPATH": str(CHECKOUT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [*words, "--json"], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["device"].startswith("1 x")
    done = subprocess.run(
        [*words, "--devices", "2"],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 2
    assert "2 devices" in done.stderr


@pytest.mark.one_case
@pytest.mark.parametrize("words", [ACCEPTED, DPSGD])
def test_a_released_sketch_answers_where_the_private_part_is_absent(capsys, words):
    folder = Path(fit(capsys, *words, "--seed", "0")["out"])
    asked = ["predict", folder, "--user", "u1", "u2", "--item", "2", "3", "--json"]
    told = []
    for _ in range(2):
        code, out, err = run(capsys, *asked)
        assert code == 0, err
        told.append([row["rating"] for row in json.loads(out)["predicted"]])
        code, out, err = run(
            capsys, "recommend", folder, "--user", "u1", "--include-seen", "--json"
        )
        assert code == 0, err
        if (folder / "private").exists():
            code, out, err = run(capsys, "evaluate", folder, "--data", "mine.csv", "--json")
            assert code == 0, err
            assert json.loads(out)["unknown"] == 0
            shutil.rmtree(folder / "private")
    assert told[0] == pytest.approx(told[1], abs=1e-6)
    assert len(set(told[0])) == 2


@pytest.mark.seconds
def test_a_release_is_entered_in_the_ledger_and_never_the_same_twice(capsys):
    first, second = (fit(capsys, *ACCEPTED) for _ in range(2))
    assert not np.array_equal(released(first["out"])["hashes"], released(second["out"])["hashes"])
    assert first["ledger"]
    assert first["guarantee"]["seeded"] is False
    code, out, err = run(capsys, "budget", "show")
    assert code == 0, err
    assert "NO GUARANTEE" in out


@pytest.mark.one_case
@pytest.mark.parametrize("words", [[*ACCEPTED, "--decay", "2"], [*DPSGD, "--decay", "2"]])
def test_an_interrupted_run_goes_on_to_the_same_bytes(capsys, monkeypatch, words):
    """After two of four steps: orders and samples follow from the seed and the step; so does a
    release's, but anew.
    """
    whole = fit(capsys, *words, "--seed", "0", "--out", "whole")
    told = interrupted(capsys, monkeypatch, *words, "--seed", "0", "--out", "cut")
    assert "--resume cut" in told
    assert resumed(capsys, "cut")["rmse_train"] == whole["rmse_train"]
    assert same("whole", "cut")
    interrupted(capsys, monkeypatch, *words, "--out", "release")
    found = resumed(capsys, "release")
    assert found["guarantee"] | {"seeded": True, "statement": ""} == whole["guarantee"] | {
        "statement": ""
    }


@pytest.mark.seconds
def test_a_saved_price_is_computed_again(capsys):
    folder = fit(capsys, *DPSGD, "--epsilon", "2", "--seed", "0")["out"]
    code, out, err = run(capsys, "epsilon", "model", folder, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["epsilon"] == told["saved_epsilon"] <= 2
    folder = fit(capsys, *ACCEPTED, "--seed", "0")["out"]
    code, out, err = run(capsys, "epsilon", "model", folder, "--json")
    assert code == 0, err
    assert json.loads(out)["epsilon"] == "inf"


@pytest.mark.slow
def test_the_published_one_is_audited_without_consent_for_nothing_is_released(capsys):
    code, out, err = run(capsys, "audit", *PUBLISHED, "--neighbours", "2", "--quick", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["guarantee"]["status"], found["violated"]) == ("none", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
def test_a_saved_model_is_audited_with_its_own_settings(capsys):
    fit(capsys, *DPSGD, "--seed", "0", "--test-fraction", "0", "--out", "model")
    tried = ("sensitivity", "post-processing")  # test_coins.py, test_lookup.py have the others
    audit = audited(capsys, "model", "--neighbours", "2", "--quick", "--only", *tried)
    assert (audit["steps"], audit["violated"]) == (4, 0)
    assert "consistent" in verdicts(audit, "sensitivity")
    code, _, err = run(capsys, "audit", "model", *AUDIT, "--sampling-rate", "0.5")
    assert code == 2
    assert "another claim" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*ACCEPTED, "--steps", "5"), "--steps means nothing to --mechanism sketch"),
        ((*ACCEPTED, "--delta", "1e-6"), "--delta means nothing"),
        ((*ACCEPTED, "--relation", "rating-presence", *CATALOGUE), "--relation means nothing"),
        ((*ACCEPTED, "--clip-norm", "2"), "--clip-norm means nothing"),
        ((*ACCEPTED, "--sampling-rate", "0.1"), "--sampling-rate means nothing"),
        ((*ACCEPTED, "--center", "item"), "--center item is not for"),
        ((*ACCEPTED, "--center", "x"), "is not noisy-means, item, global, none or a number"),
        ((*ACCEPTED, "--convention", "3.2"), "--convention goes with --threshold"),
        ((*ACCEPTED, "--threshold", "-1"), "threshold must be at least 0"),
        ((*ACCEPTED, "--threshold", "nan"), "threshold must be at least 0"),
        (
            (*ACCEPTED[:-2], "0", "--accept-no-guarantee"),
            "num_epochs must be an integer of at least 1",
        ),
        ((*ACCEPTED, "--gain", "0"), "gain must be positive"),
        ((*ACCEPTED, "--depth", "0"), "depth must be an integer of at least 1"),
        ((*DPSGD, "--threshold", "4"), "--threshold means nothing to --mechanism sketch-dpsgd"),
        ((*DPSGD, "--epochs", "4"), "--epochs means nothing"),
        ((*DPSGD, "--temperature", "1"), "--temperature means nothing"),
        ((*DPSGD, "--center", "means"), "is not noisy-means, item, global, none or a number"),
        ((*DPSGD, "--center", "noisy-means"), "--center noisy-means is not for"),
        ((*DPSGD, "--epsilon", "0"), "epsilon must be positive"),
        ((*DPSGD, "--epsilon", "nan"), "epsilon must be positive"),
        ((*DPSGD, "--delta", "0"), "delta must"),
        ((*DPSGD, "--steps", "0"), "--steps must be at least 1"),
        ((*DPSGD, "--sampling-rate", "0"), "sampling_rate must be"),
        ((*DPSGD, "--sampling-rate", "1.5"), "sampling_rate must be"),
        ((*DPSGD, "--clip-norm", "0"), "clip_norm must be positive"),
        ((*DPSGD, "--rank", "0"), "rank must be an integer of at least 1"),
        ((*DENSE, "--gain", "2"), "--gain means nothing to --mechanism dpsgd"),
        ((*LANGEVIN, "--decay", "-1"), "decay must"),
        ((*LANGEVIN, "--temperature", "0"), "temperature must be positive"),
        ((*LANGEVIN, "--learning-rate", "0"), "learning_rate must be positive"),
        (
            ("--sampling-rate", "0.5"),
            "--sampling-rate means nothing to --mechanism gaussian-joint-noise",
        ),
    ],
)
def test_refusals(capsys, words, told):
    code, err = refused(capsys, "--seed", "0", *words)
    assert code in (2, 4)
    assert told in err
    assert "fix:" in err


def test_the_default_rates_are_made_of_public_sizes():
    for defaults in (partial(sketch_spec.defaults, "sketch-dpsgd"), sampled_spec.defaults):
        small, large = (defaults(*sizes) for sizes in ((100, 50), (100, 1000)))
        assert small.learning_rate == pytest.approx(10 * large.learning_rate)
    assert sketch_spec.defaults("sketch", 10, 10) == sketch_spec.defaults("sketch", 10_000, 10_000)
