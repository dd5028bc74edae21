"""`dpmf tune`: one price for a choice, said in words; text that names no settings is refused."""

import json
from pathlib import Path

import pytest

from experiments.fit.tune import parsed
from tests.cases.fit import RANGE, run

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")

TUNE = ("tune", "mine.csv", *RANGE, "--seed", "3", "--runs", "2", "--steps", "2")


@pytest.mark.seconds
def test_a_choice_is_printed_with_its_price_and_saved(capsys):
    words = ["--candidates", "rank=0,2", "--epsilon", "4"]
    code, out, err = run(capsys, *TUNE, *words, "--out", "one")
    assert code == 0, err
    assert "secret number of runs" in " ".join(out.split())
    assert "chosen and released: rank" in out
    assert "saved in one" in out
    code, out, err = run(capsys, *TUNE, *words, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["guarantee"]["epsilon"] <= 4.0
    assert told["tuned"]["candidates"] == [{"rank": 0}, {"rank": 2}]
    model = json.loads((Path(told["out"]) / "model.json").read_text())
    assert model["settings"]["tuned"] == told["tuned"]
    assert model["settings"]["steps" if "steps" in model["settings"] else "rank"] is not None
    # the audit of a tuned model tries to break the price of one of its runs
    words = ["audit", told["out"], "--ratings", "mine.csv", *RANGE, "--quick", "--only", "noise"]
    code, out, err = run(capsys, *words)
    assert code == 0, err


@pytest.mark.seconds
def test_the_number_of_runs_is_not_in_the_result(capsys):
    code, out, _ = run(capsys, *TUNE, "--candidates", "rank=0,2", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["ledger"] is None  # an experiment; tests of the pages have a release
    assert set(told["tuned"]) == {
        *("epsilon", "run_epsilon", "runs", "shape", "holdout", "score_share"),
        *("candidates", "chosen", "score"),
    }


def test_values_are_numbers_words_and_whether():
    assert parsed(
        ["rank=0, 3,5", "--learning-rate=1e-3,0.1", "slopes=true,False", "center=none,3"]
    ) == {
        "rank": [0, 3, 5],
        "learning_rate": [1e-3, 0.1],
        "slopes": [True, False],
        "center": ["none", 3],
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--candidates", "rank"], "names no values"),
        (["--candidates", "rank=1,2", "rank=3"], "named twice"),
        (["--candidates", "rank=2"], "nothing to choose"),
        (["--candidates", "rnk=1,2"], "no setting 'rnk'"),
        (["--candidates", "rank=1,x"], "rank is 'x'"),
        (["--candidates", "rank=1,2", "--holdout", "2"], "holdout"),
        ([], "candidates"),
    ],
)
def test_what_cannot_be_tuned_is_refused_with_a_fix(words, told, capsys):
    code, _, err = run(capsys, *TUNE, *words)
    assert code == 2
    assert told in err
    assert "fix:" in err
    assert "Traceback" not in err


@pytest.mark.seconds
def test_the_price_of_a_choice_is_told_at_another_delta_and_drawn_against_it(capsys):
    code, _, err = run(capsys, *TUNE, "--candidates", "rank=0,1", "--out", "one")
    assert code == 0, err
    words = ["epsilon", "model", "one", "--delta", "1e-7", "--curves", "curves", "--json"]
    code, out, err = run(capsys, *words)
    assert code == 0, err
    told = json.loads(out)
    assert told["epsilon"] > told["saved_epsilon"]
    assert sorted(path.name for path in Path("curves").iterdir()) == [
        "delta-epsilon.csv",
        "delta-epsilon.svg",
    ]
