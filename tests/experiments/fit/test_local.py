"""`dpmf fit --mechanism local` as a user meets it: the price per user, what is released, what is
refused.
"""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.local import spec as local_spec
from dpmf_jax.mechanisms.local import variance as local_variance
from experiments.cli.main import parse
from tests.cases.fit import (
    CATALOGUE,
    FIT,
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

LOCAL = ["--mechanism", "local", "--rounds", "4", "--rank", "3"]


@pytest.mark.seconds
@pytest.mark.parametrize(
    "more", [(), ("--projection", "4"), ("--projection", "4", "--schedule", "partition")]
)
def test_a_local_fit_is_priced_per_user_and_releases_the_items_alone(capsys, more):
    found = fit(capsys, *LOCAL, "--epsilon", "1.6", "--seed", "0", *more)
    guarantee = found["guarantee"]
    assert (guarantee["epsilon"], guarantee["delta"], guarantee["unit"]) == (1.6, 0.0, "user")
    assert guarantee["status"] == "proved"
    assert guarantee["steps"] == (1 if "partition" in more else 4)
    assert "local" in guarantee["trust_model"]
    assert any("public and declared" in one for one in guarantee["assumptions"])
    assert sorted(load_file(Path(found["out"]) / "release.safetensors")) == [
        "center",
        "item_factors",
    ]
    assert found["steps"] == 4
    assert math.isfinite(found["rmse_test"])


@pytest.mark.seconds
def test_the_shuffled_price_stands_beside_and_is_labelled(capsys):
    found = fit(capsys, *LOCAL, "--epsilon", "1.6", "--seed", "0")
    beside = found["shuffled"]
    assert beside["reports"] == 20
    assert "shuffler" in beside["statement"]
    assert found["guarantee"]["trust_model"].startswith("local")
    assert "shuffl" not in found["guarantee"]["statement"]
    code, out, _ = run(
        capsys, *FIT, *LOCAL, "--learning-rate", "0.01", "--seed", "0", "--out", "shown"
    )
    assert code == 0
    assert "beside it:" in out


@pytest.mark.seconds
def test_in_a_partition_only_a_group_is_shuffled_together(capsys):
    found = fit(capsys, *LOCAL, "--seed", "0", "--schedule", "partition")
    assert found["shuffled"]["reports"] == 5


@pytest.mark.seconds
def test_a_release_needs_a_catalogue_that_no_rating_tells(capsys):
    code, err = refused(capsys, *LOCAL)
    assert code == 4
    assert "catalogue" in err
    found = fit(capsys, *LOCAL, *CATALOGUE)
    assert found["guarantee"]["seeded"] is False
    assert load_file(Path(found["out"]) / "release.safetensors")["item_factors"].shape == (9, 3)


def test_who_is_held_out_does_not_depend_on_other_users(capsys, monkeypatch):
    """The coin of a pair is its own: taking another user's ratings away moves nobody else's."""
    from experiments.fit import command as fit_command
    from experiments.fit import ratings as fit_ratings

    def parts(path):
        words = [path, "--mechanism", "local", "--seed", "0", *RANGE, "--test-fraction", "0.3"]
        command = parse("fit", fit_command.Command, words)
        train, _ = fit_ratings.read(command)
        return {
            (str(train.users[u]), str(train.items[i]))
            for u, i in zip(train.user, train.item, strict=True)
        }

    lines = Path("mine.csv").read_text().splitlines()
    Path("fewer.csv").write_text(
        "\n".join(line for line in lines if not line.startswith("u3,")) + "\n"
    )
    whole = {pair for pair in parts("mine.csv") if pair[0] != "u3"}
    assert parts("fewer.csv") == whole


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--steps", "5"), "--steps means nothing to --mechanism local"),
        (("--tau", "4"), "--tau means nothing"),
        (("--relation", "rating-presence"), "--relation means nothing"),
        (("--center", "item"), "nobody has in the local model"),
        (("--center", "noisy-means"), "nobody has in the local model"),
        (("--center", "x"), "is not noisy-means, item, global, none or a number"),
        (("--lift", "transpose"), "--lift goes with --projection"),
        (("--projection", "8"), "more rows than there are items"),
        (("--projection", "4", "--fresh-projection"), "transpose"),
        (("--rounds", "0"), "--rounds must be at least 1"),
        (("--epsilon", "0"), "epsilon must be positive"),
        (("--epsilon", "90"), "at most 20"),
        (("--slice", "paper001"), "does not go with --slice"),
    ],
)
def test_refusals(capsys, words, told):
    code, err = refused(capsys, *LOCAL, "--seed", "0", *words)
    assert code in (2, 4)
    assert told in err
    assert "fix:" in err


def test_flags_of_local_mean_nothing_elsewhere(capsys):
    code, _, err = run(capsys, *FIT, "--rounds", "3")
    assert code == 2
    assert "--rounds means nothing to --mechanism gaussian-joint-noise" in err


@pytest.mark.seconds
def test_an_interrupted_run_goes_on_to_the_same_bytes(capsys, monkeypatch):
    """After two of four rounds, by Ctrl-C; each round's reports are drawn from the seed and the
    round.
    """
    whole = fit(capsys, *LOCAL, "--seed", "0", "--projection", "4", "--out", "whole")

    told = interrupted(
        capsys, monkeypatch, *LOCAL, "--seed", "0", "--projection", "4", "--out", "cut"
    )
    assert "--resume cut" in told
    assert resumed(capsys, "cut")["rmse_train"] == whole["rmse_train"]
    first, second = (load_file(Path(name) / "release.safetensors") for name in ("whole", "cut"))
    assert all(np.array_equal(first[part], second[part]) for part in first)


@pytest.mark.slow
def test_a_saved_model_is_audited_with_its_own_settings(capsys):
    words = [*LOCAL, "--seed", "0", "--schedule", "partition", "--projection", "4"]
    fit(capsys, *words, "--out", "model")
    audit = audited(capsys, "model", "--neighbours", "4", "--quick")
    assert audit["steps"] == 4
    assert audit["violated"] == 0
    assert audit["guarantee"]["epsilon"] == 1.6
    assert "consistent" in verdicts(audit, "enumeration")


def test_the_default_learning_rate_is_that_of_the_noise():
    """1.5 over the cube root of d times a round's variance; 2 where there is hardly any."""
    config = local.Config(epsilon=1.6, num_rounds=20, num_projected=512)
    variance = local_variance.step_variance(config, num_users=6_040, num_items=3_706)
    assert local_spec.learning_rate(config, 6_040, 3_706) == pytest.approx(
        1.5 / (15 * variance) ** (1 / 3)
    )
    own = dataclasses.replace(config, user_learning_rate=3.0)
    rate = local_spec.learning_rate(own, 6_040, 3_706)
    assert 3.0 * 15 * variance * rate**2 == pytest.approx(1.5**3)
    assert local_spec.learning_rate(config, 10**12, 3_706) == 2.0
    assert math.isfinite(
        local_spec.learning_rate(config, 6_040, 512)
    )  # where Φ† has no finite mean square
