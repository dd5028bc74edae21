"""`dpmf compare`: a table to choose by, that says what it is."""

import json
from pathlib import Path

import pytest

from tests.cases.fit import RANGE, fit, run

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")


@pytest.mark.seconds
def test_mechanisms_stand_beside_each_other_at_every_epsilon(capsys):
    words = ["compare", "mine.csv", *RANGE, "--folds", "2", "--mechanism", "means"]
    code, out, err = run(capsys, *words, "--epsilon", "4", "20", "--top", "3", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [row["label"] for row in found["rows"]] == [
        *("means, ε = 4", "means, ε = 20"),
        *("global_mean", "item_means", "popularity"),
    ]
    assert found["rows"][0]["rmse"] != found["rows"][1]["rmse"]
    assert (found["holdout"], found["splits"], found["k"]) == ("ratings", 2, 3)
    code, out, _ = run(capsys, *words, "--beside", "popularity")
    assert code == 0
    shown = " ".join(out.split())
    assert "no privacy" in shown
    assert "item_means" not in shown
    assert "±" in shown
    assert "not priced" in shown


def test_an_epsilon_that_is_none_and_a_missing_file_are_refused(capsys):
    code, _, err = run(capsys, "compare", "mine.csv", *RANGE, "--epsilon", "0")
    assert (code, "must be above 0" in err) == (2, True)
    code, _, err = run(capsys, "compare", "gone.csv", *RANGE)
    assert (code, "no data set or file 'gone.csv'" in err) == (3, True)


@pytest.mark.seconds
def test_the_last_rating_of_each_user_is_held_out(capsys):
    lines = Path("mine.csv").read_text().splitlines()
    timed = [f"{line},{'when' if at == 0 else at % 37}" for at, line in enumerate(lines)]
    Path("timed.csv").write_text("\n".join(timed) + "\n")
    words = ["--holdout", "last", "--mechanism", "means", "--json"]
    code, out, err = run(capsys, "compare", "timed.csv", *RANGE, *words, "--time-column", "when")
    assert code == 0, err
    found = json.loads(out)
    assert (found["holdout"], found["splits"]) == ("last", 1)
    assert found["rows"][0]["users_evaluated"] == len({line.split(",")[0] for line in lines[1:]})
    code, _, err = run(capsys, "compare", "mine.csv", *RANGE, *words)
    assert (code, "there is no time column" in err) == (3, True)


@pytest.mark.seconds
def test_several_models_are_evaluated_beside_each_other(capsys):
    folders = [
        fit(capsys, "--steps", "2", "--seed", seed, "--test-fraction", "0.3")["out"]
        for seed in ("1", "2")
    ]
    words = ["evaluate", *folders, "--data", "mine.csv"]
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [one["model"] for one in found["models"]] == folders
    alone = json.loads(run(capsys, "evaluate", folders[1], *words[-2:], "--json")[1])
    assert found["models"][1]["rmse"] == alone["rmse"]
    assert alone["rmse_low"] < alone["rmse"] < alone["rmse_high"]
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert out.count(f"{folders[0]}: ") >= 1
    assert "over popularity" in out
