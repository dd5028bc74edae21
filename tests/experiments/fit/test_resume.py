"""An interrupted `dpmf fit` goes on, with its own settings and ratings alone."""

import typing
from pathlib import Path

import pytest

from dpmf_jax.mechanisms import table
from experiments.fit import resume
from experiments.fit.command import Command
from experiments.fit.flags import with_flags_of
from tests.cases.fit import (
    fit,
    interrupted,
    resumed,
    run,
)

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")

SIX = ("--steps", "6")


@pytest.mark.seconds
def test_an_interrupted_run_says_how_to_go_on_and_ends_the_same(capsys, monkeypatch):
    whole = fit(capsys, *SIX, "--seed", "5", "--out", "whole")
    told = interrupted(capsys, monkeypatch, *SIX, "--seed", "5", "--out", "parts")
    assert "dpmf fit --resume parts" in told
    found = resumed(capsys, "parts")
    for name in ("rmse_train", "rmse_test", "guarantee", "steps"):
        assert found[name] == whole[name]
    for name in ("release.safetensors", "private/factors.safetensors"):
        assert Path("parts", name).read_bytes() == Path("whole", name).read_bytes()


@pytest.mark.parametrize(
    "change", [("--epsilon", "9"), ("--rank", "3"), ("--seed", "6"), ("--steps", "7")]
)
def test_a_resume_refuses_other_settings(capsys, monkeypatch, change):
    interrupted(capsys, monkeypatch, *SIX, "--seed", "5", "--out", "parts")
    code, _, err = run(capsys, "fit", "--resume", "parts", *change)
    assert code == 4
    assert change[0] in err


def test_a_resume_refuses_other_ratings(capsys, monkeypatch):
    interrupted(capsys, monkeypatch, *SIX, "--seed", "5", "--out", "parts")
    Path("mine.csv").write_text(Path("mine.csv").read_text().replace(",5\n", ",4\n"))
    code, _, err = run(capsys, "fit", "--resume", "parts", "--devices", "1")
    assert code == 4
    assert "ratings" in err


def test_a_resume_of_nothing_is_a_clear_error(capsys):
    code, _, err = run(capsys, "fit", "--resume", "nowhere")
    assert code == 3
    assert "nowhere" in err


def test_every_file_that_a_fit_is_given_is_a_path_again():
    """run.json keeps words; a flag that is a Path must be one when the run goes on."""
    named = set()
    for name in table():
        hints = typing.get_type_hints(with_flags_of(Command, name))
        named |= {flag for flag, hint in hints.items() if Path in typing.get_args(hint)}
    assert {"item_features", "user_budgets", "data_dir"} <= named
    assert named - set(resume.PER_PROCESS) == set(resume.PATHS)
