"""`dpmf benchmark add`: what is checked of others' results, and how their prices stand."""

import copy
import json

import jsonschema
import pytest

from dpmf_jax.data.catalogue import DATASETS
from experiments.benchmark import page, submissions
from tests.cases.fit import run

RESULT = {
    "data": "ml-100k",
    "data_sha256": DATASETS["ml-100k"].triples,
    "split": "ratings",
    "seeds": [0, 1],
    "promise": {
        "epsilon": 2.0,
        "delta": 1e-5,
        "unit": "user",
        "relation": "all ratings of one user are removed",
        "trust_model": "curator",
        "released": ["item factors"],
        "statement": None,
    },
    "settings": {"rank": 8},
    "numbers": {"rmse": [0.95, 0.96], "ndcg_at_10": [0.2, 0.21]},
}
SUBMISSION = {
    "version": 1,
    "name": "Somebody's recommender",
    "authors": "Somebody",
    "source": "a paper",
    "results": [RESULT],
}


def changed(*place, value):
    """The submission with another value at this place."""
    whole = copy.deepcopy(SUBMISSION)
    inner = whole
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return whole


def added(capsys, tmp_path, submission, *more):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(submission), encoding="utf-8")
    return run(capsys, "benchmark", "add", str(path), "--to", str(tmp_path / "all"), *more)


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(submissions.schema())


@pytest.mark.parametrize(
    ("statement", "status"),
    [(None, "claimed by its author"), ("PRIVACY STATEMENT: ...", "stated by its author")],
)
def test_a_price_stands_as_what_it_is(capsys, tmp_path, statement, status):
    mine = changed("results", 0, "promise", "statement", value=statement)
    code, out, err = added(capsys, tmp_path, mine, "--json")
    assert code == 0, err
    [row] = json.loads(out)["rows"]
    assert row["promise"]["status"] == status
    assert row["promise"]["epsilon_of_a_user"] == 2.0
    assert row["numbers"]["rmse"]["mean"] == pytest.approx(0.955)
    assert row["numbers"]["mae"] is None
    written = page.write(tmp_path / "page", "small", [], tmp_path / "all")
    assert str(tmp_path / "page" / "ml-100k.md") in written
    text = (tmp_path / "page" / "ml-100k.md").read_text(encoding="utf-8")
    assert "Somebody's recommender" in text
    assert status in text


def test_a_name_is_taken_once(capsys, tmp_path):
    assert added(capsys, tmp_path, SUBMISSION)[0] == 0
    code, _, err = added(capsys, tmp_path, SUBMISSION)
    assert code == 2
    assert "already" in err
    code, out, _ = added(capsys, tmp_path, SUBMISSION, "--replace")
    assert code == 0
    assert "claimed by its author" in out


@pytest.mark.parametrize(
    ("submission", "said"),
    [
        (changed("results", 0, "promise", "epsilon", value=0), "epsilon"),
        (changed("results", 0, "promise", "epsilon", value="2"), "epsilon"),
        (changed("results", 0, "promise", "unit", value="session"), "unit"),
        (changed("results", 0, "data", value="ml-9z"), "data"),
        (changed("results", 0, "data_sha256", value="0" * 64), "other data than the benchmark's"),
        (changed("results", 0, "data_sha256", value=None), "other data than the benchmark's"),
        (changed("results", 0, "numbers", value={}), "numbers"),
        (changed("results", 0, "numbers", "rmse", value=[0.9]), "2 seeds"),
        (changed("results", 0, "numbers", "rmse", value=[0.9, 5.1]), "an RMSE of 5.1"),
        (changed("results", 0, "numbers", "ndcg_at_10", value=[0.9, 1.1]), "ndcg_at_10"),
        (changed("results", 0, "numbers", "rmse", value=[0.9, float("nan")]), "NaN"),
        (changed("name", value="als"), "a row of the benchmark's own"),
        (changed("name", value="mine | 1 | proved"), "name"),
        (changed("results", value=[]), "results"),
        ([], "object"),
    ],
)
def test_what_is_no_submission_is_refused_and_not_kept(capsys, tmp_path, submission, said):
    code, _, err = added(capsys, tmp_path, submission)
    assert code in (2, 3)
    assert said in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("all/*"))


def test_a_file_that_is_no_json_is_refused(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("user,item", encoding="utf-8")
    for name in (path, tmp_path / "none.json"):
        code, _, err = run(capsys, "benchmark", "add", str(name))
        assert code == 3
        assert "no file of JSON" in err
