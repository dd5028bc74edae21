"""What `dpmf audit` puts on trial: a mechanism on generated ratings, or a saved model."""

import dataclasses
import json

import pytest

import audits
import dpmf_jax
from accounting.status import REAL_NUMBERS
from audits.finding import Finding
from dpmf_jax.errors import UsageError
from experiments.audit import subjects
from experiments.audit.flags import Command
from experiments.cli import main as cli
from tests.cases import fit as fit_cases
from tests.cases.audits import CONFIG, RANGE, RATINGS, STEPS, joint
from tests.cases.fit import run

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")


def command(*words):
    flags = ["--steps", str(STEPS), "--rank", "3", "--layout", "dense"]
    return ["audit", "--mechanism", "gaussian-joint-noise", *flags, *words]


@pytest.fixture
def few_ratings(monkeypatch):
    """As many as in `RATINGS`, so that the programs are compiled already."""
    monkeypatch.setattr(subjects, "SMALL", (16, 7, 56, 2))


@pytest.mark.seconds
def test_the_command_prints_one_object_of_all_families_that_are_quick(few_ratings, capsys):
    assert cli.main(command("--json", "--quick", "--center", "3")) == 0
    result = json.loads(capsys.readouterr().out)
    keys = {"mechanism", "audit", "claim", "measured", "lower", "upper", "confidence", "verdict"}
    assert all(keys <= set(finding) for finding in result["findings"])
    assert {finding["family"] for finding in result["findings"]} == set(audits.FAMILIES) - set(
        audits.NOT_QUICK
    )
    assert result["guarantee"]["status"] == "proved"
    assert violated_names(result) == set()
    assert result["steps"] == STEPS


def violated_names(result) -> set[str]:
    return {finding["audit"] for finding in result["findings"] if finding["verdict"] == "violated"}


def test_the_command_ends_with_5_after_printing_what_is_violated(few_ratings, capsys, monkeypatch):
    broken = Finding(audit="x", claim="y", verdict="violated", measured=2.0, claimed=1.0)
    monkeypatch.setattr(audits, "audit", lambda *args, **options: [broken])
    assert cli.main(command()) == 5
    said = capsys.readouterr()
    assert "violated" in said.out
    assert said.err.splitlines()[-3].startswith(
        "error: the claim of gaussian-joint-noise does not hold"
    )
    assert "where: x" in said.err


def test_the_command_refuses_what_is_no_claim(capsys):
    assert cli.main(command("--center", "item")) == 4
    assert cli.main(command("--ratings", "synthetic")) == 2
    assert cli.main(["audit", "--neighbours", "0"]) == 2
    capsys.readouterr()


@pytest.mark.seconds
def test_a_saved_model_is_audited_by_its_own_settings(tmp_path, few_ratings, capsys):
    settings = {
        "mechanism": "gaussian-joint-noise",
        **dataclasses.asdict(CONFIG),
        "residual_clip": 2.0,  # that of `joint`
        "rating_range": list(RANGE),
    }
    dpmf_jax.fit(RATINGS, joint(), num_steps=2, seed=0, settings=settings, out=tmp_path / "model")
    ((made, steps),), found = subjects.saved(tmp_path / "model", Command())
    assert (found["noise_multiplier"], steps) == (2.0, 2)
    assert made.guarantee(2) == joint().guarantee(2)
    assert cli.main(["audit", str(tmp_path / "model"), "--rank", "3"]) == 2
    assert "--rank would be another claim" in capsys.readouterr().err


def test_a_model_whose_noise_is_no_longer_drawn_is_not_audited_by_todays(tmp_path, few_ratings):
    """As float32 noise was saved: a status of its own, and no distance in what is spent."""
    settings = {
        "mechanism": "gaussian-joint-noise",
        **dataclasses.asdict(CONFIG),
        "residual_clip": 2.0,
        "rating_range": list(RANGE),
    }
    folder = tmp_path / "model"

    def of_floats(num_steps):
        today = joint().guarantee(num_steps)
        losses = tuple(dataclasses.replace(loss, distance=0.0) for loss in today.losses)
        return dataclasses.replace(today, status=REAL_NUMBERS, losses=losses)

    made = joint()._replace(guarantee=of_floats)
    dpmf_jax.fit(RATINGS, made, num_steps=2, seed=0, settings=settings, out=folder)
    with pytest.raises(UsageError, match="draws other noise") as refused:
        subjects.saved(folder, Command())
    assert "fit it anew" in refused.value.fix


@pytest.mark.seconds
def test_another_delta_of_a_saved_model_is_no_other_claim(capsys, monkeypatch):
    fit_cases.fit(
        capsys,
        "--mechanism",
        "gaussian-joint-noise",
        "--steps",
        "2",
        "--center",
        "3",
        "--seed",
        "0",
        "--out",
        "model",
    )
    words = [
        "audit",
        "model",
        "--ratings",
        "mine.csv",
        "--rating-range",
        "1",
        "5",
        "--only",
        "enumeration",
        "--json",
    ]
    asked = []
    real = audits.audit
    monkeypatch.setattr(
        audits, "audit", lambda *a, **options: asked.append(options["delta"]) or real(*a, **options)
    )
    prices = []
    for delta in ((), ("--delta", "1e-3")):
        code, out, err = run(capsys, *words, *delta)
        assert code == 0, err
        prices.append(json.loads(out)["guarantee"]["epsilon"])
    assert asked == [None, 1e-3]
    assert prices[0] > prices[1]


def test_small_sizes_are_those_of_the_command():
    assert subjects.read(Command(), None).num_ratings == subjects.SMALL[2]
