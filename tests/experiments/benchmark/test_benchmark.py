"""`dpmf benchmark`: every setting on several splits, and nothing twice."""

import json

import numpy as np
import pytest

from experiments.benchmark import cases, command, runs
from experiments.benchmark.cases import Case
from experiments.cli import main as cli
from experiments.fit.tune import parsed
from tests.cases.fit import run

SMALL = "synthetic-40x20x300"
TINY = (
    Case(SMALL, "ridge", 3.0, must=5.0),
    Case(SMALL, "ridge", 3.0, (("steps", 2),), must=0.1),
    Case("ml-32m", "ridge", 3.0),
)


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    monkeypatch.setitem(cases.TABLES, "goals", ("tiny", TINY))
    monkeypatch.setenv("DPMF_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_goals_are_those_that_were_set():
    goals = {(one.data, one.label, one.epsilon): one.must for one in cases.TABLES["goals"][1]}
    assert len(goals) == 12
    assert goals["ml-1m", "als", 8.0] == 0.883
    assert goals["ml-100k", "als --item-features movielens", 4.0] == 0.936
    assert goals[cases.ML_10M_SIZE, "als", 1.0] == 0.918
    assert all(one.stretch <= one.must for one in cases.TABLES["goals"][1])


def test_factors_stand_beside_means_on_every_data_set():
    pairs = {(one.data, one.epsilon): set() for one in cases.TABLES["factors"][1]}
    for one in cases.TABLES["factors"][1]:
        pairs[one.data, one.epsilon].add(one.mechanism)
    assert len(pairs) == 15
    assert all(found == {"means", "als"} for found in pairs.values())


def test_a_choice_stands_beside_each_setting_by_itself_and_the_default():
    tables = cases.TABLES["tuned"][1]
    for choice in (one for one in tables if one.tried):
        ((name, values),) = parsed(choice.tried).items()
        beside = [
            dict(one.flags)
            for one in tables
            if not one.tried
            and (one.data, one.mechanism, one.epsilon)
            == (choice.data, choice.mechanism, choice.epsilon)
        ]
        assert beside == [{}, *({name: value} for value in values)]


@pytest.mark.seconds
@pytest.mark.usefixtures("quick_compilation")
def test_a_choice_is_made_on_what_a_fit_of_the_same_split_learns_from(tiny):
    fixed = Case(SMALL, "als", 4.0, (("rank", 0),))
    choice = Case(SMALL, "als", 4.0, tried=("rank=0,2",))
    one = runs.fitted(choice, 1, data_dir=None, devices=1)
    other = runs.fitted(fixed, 1, data_dir=None, devices=1)
    assert one["promise"]["epsilon"] <= other["promise"]["epsilon"] == 4.0
    assert one["promise"]["unit"] == other["promise"]["unit"] == "user"
    assert one["chosen"]["tuned"]["chosen"]["rank"] in (0, 2)
    assert one["rmse"] == pytest.approx(other["rmse"], abs=0.5)
    assert runs.settings(choice, 1)["tried"] == ["rank=0,2"]
    assert "tried" not in runs.settings(fixed, 1)


@pytest.mark.usefixtures("quick_compilation")
def test_a_table_has_the_mean_of_its_splits_and_goes_on_where_it_was(tiny, capsys, monkeypatch):
    words = ["benchmark", "goals", "--repeats", "2", "--devices", "1", "--json"]
    code, out, err = run(capsys, *words)
    assert code == 0, err
    first, second, absent = json.loads(out)["rows"]
    kept = [json.loads(path.read_text()) for path in tiny.glob("runs/benchmark/private/fit-*")]
    assert len(kept) == 4
    mine = [one["rmse"] for one in kept if not one["settings"]["flags"]]
    assert len(set(mine)) == 2  # another split, other noise
    assert first["rmse"] == pytest.approx(np.mean(mine))
    assert first["rmse_deviation"] == pytest.approx(np.std(mine, ddof=1))
    assert (first["met"], second["met"]) == (True, False)
    assert first["promise"]["unit"] == "rating value"
    assert first["promise"]["status"] == "proved"
    assert (absent["splits"], absent["rmse"], absent["met"]) == (0, None, None)
    assert "ml-32m" in absent["absent"]

    really = runs.fitted

    def refused(case, seed, **more):
        assert case.data == "ml-32m", f"fitted again: {case}"
        return really(case, seed, **more)

    monkeypatch.setattr(runs, "fitted", refused)
    code, again, err = run(capsys, *words[:-1])
    assert code == 0, err
    for text in (f"{first['rmse']:.4f}", "met", "missed", "not here: ml-32m", "for the curator"):
        assert text in again
    with pytest.raises(AssertionError, match="fitted again"):
        list(runs.collect(TINY[:1], 3, tiny / "runs" / "benchmark"))
    with pytest.raises(AssertionError, match="fitted again"):
        list(runs.collect(TINY[:1], 1, tiny / "runs" / "benchmark", again=True))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("goals", "--data", "ml-9z"), "the table goals has no ml-9z"),
        (("goals", "--repeats", "0"), "--repeats must be at least 1"),
    ],
)
def test_what_is_no_table_is_refused(capsys, words, said):
    code, _, err = run(capsys, "benchmark", *words)
    assert code == 2
    assert said in err


def test_the_command_is_listed(capsys):
    assert command.Command().table == "board"
    cli.main(["--help"])
    assert "benchmark" in capsys.readouterr().out
