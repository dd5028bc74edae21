"""`recommend --ratings`: lists for users who were never in the training data, of the release alone.

What the command says of users by name is in `tests.experiments.fit.test_command`.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from dpmf_jax import load_model
from tests.cases.als import untrained
from tests.cases.fit import run, write_ratings

MINE = "item,rating\n3,5\n5,1\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory, quick_compilation):
    """The folder of a model without a private part."""
    model = dataclasses.replace(untrained("als", rank=2), factors=None, seen=None)
    return model.save(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def model(saved, tmp_path, monkeypatch):
    """The model in a folder with nothing else but files of ratings."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved.path, "model")
    Path("new.csv").write_text(MINE)
    return "model"


def recommended(capsys, *words):
    code, out, err = run(capsys, "recommend", *words, "--json")
    assert code == 0, err
    return json.loads(out), err


def test_a_file_of_one_new_user(model, capsys):
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    found, err = recommended(capsys, model, "--ratings", "new.csv", "--top", "3")
    expected = load_model(model).recommend(ratings={3: 5.0, 5: 1.0}, k=3)
    assert [tuple(row.values()) for row in found["recommended"]] == expected
    assert (found["user"], found["left_out"], err) == ("new", 0, "")
    assert "own ratings" in found["note"]
    again, _ = recommended(capsys, model, "--ratings", "new.csv", "--include-seen", "--top", "40")
    assert {3, 5} <= {row["item"] for row in again["recommended"]}
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    code, out, _ = run(capsys, "recommend", model, "--ratings", "new.csv")
    assert code == 0
    assert "for user new" in out
    assert "predicted rating" in out


def test_a_file_without_a_header_and_csv_out(model, capsys):
    Path("bare.csv").write_text(MINE.partition("\n")[2])
    words = ("--no-header", "--top", "2", "--format", "csv")
    code, out, err = run(capsys, "recommend", model, "--ratings", "bare.csv", *words)
    assert load_model(model).guarantee.headline in err  # rows alone have no place for it
    assert "follows from the user's own ratings" in err
    expected = load_model(model).recommend(ratings={3: 5.0, 5: 1.0}, k=2)
    assert code == 0
    assert out.splitlines() == [
        "item,predicted_rating",
        *(f"{item},{rating}" for item, rating in expected),
    ]


def test_a_file_of_several_new_users(model, capsys):
    write_ratings("several.csv", [("zoe", 3, 5), ("ann", 1, 2), ("zoe", 5, 1)])
    found, _ = recommended(capsys, model, "--ratings", "several.csv", "--top", "2")
    assert found["users"] == ["ann", "zoe"]
    assert [row["user"] for row in found["recommended"]] == ["ann", "ann", "zoe", "zoe"]
    assert "each list is for its user alone" in found["note"]
    zoe, _ = recommended(capsys, model, "--ratings", "new.csv", "--top", "2")
    assert [row["item"] for row in found["recommended"][2:]] == [
        row["item"] for row in zoe["recommended"]
    ]


def test_unknown_items_are_left_out_where_that_is_asked_for(model, capsys):
    Path("more.csv").write_text(MINE + "heat,4\nup,2\n")
    code, out, err = run(capsys, "recommend", model, "--ratings", "more.csv")
    assert (code, out) == (3, "")
    assert "2 of 4 ratings are of items that the model does not know: 'heat', 'up'" in err
    assert "--ignore-unknown" in err
    found, err = recommended(capsys, model, "--ratings", "more.csv", "--ignore-unknown")
    expected, _ = recommended(capsys, model, "--ratings", "new.csv")
    assert (found["recommended"], found["left_out"]) == (expected["recommended"], 2)
    code, _, err = run(capsys, "recommend", model, "--ratings", "more.csv", "--ignore-unknown")
    assert code == 0
    assert "2 ratings left out" in err


@pytest.mark.parametrize(
    ("words", "text", "code", "what"),
    [
        (("--ratings", "none.csv"), None, 3, "there is no file 'none.csv'"),
        (("--ratings", "x.csv"), "", 3, "the file is empty"),
        (("--ratings", "x.csv"), "item,rating\n", 3, "there is no rating"),
        (("--ratings", "x.csv"), "film,rating\n3,5\n", 3, "there is no item column"),
        (("--ratings", "x.csv"), "who,item,rating\na,3,5\n", 3, "there is no user column"),
        (("--ratings", "x.csv"), "item,rating\n3,six\n", 3, "'six' is not a number"),
        (("--ratings", "x.csv"), "item,rating\n3,6\n", 3, "rating 6 is outside"),
        (("--ratings", "x.csv"), "item,rating\n3,4\n3,4\n", 3, "more than once"),
        (("--ratings", "x.csv", "--top", "0"), MINE, 2, "at least 1"),
        (("--ratings", "x.csv", "--user", "u1"), MINE, 2, "training data, and --ratings new ones"),
        (("--user", "u1", "--no-header"), None, 2, "--no-header says how --ratings is read"),
        ((), None, 2, "no user is named"),
    ],
)
def test_what_is_wrong_is_said_with_its_remedy(model, capsys, words, text, code, what):
    if text is not None:
        Path("x.csv").write_text(text)
    ended, out, err = run(capsys, "recommend", model, *words)
    assert (ended, out) == (code, "")
    assert what in err
    assert "fix: " in err
    assert "Traceback" not in err


def test_rows_are_mended_where_that_is_asked_for(model, capsys):
    Path("x.csv").write_text("item,rating\n3,6\n5,2\n5,1\n")
    words = ("--out-of-range", "clip", "--duplicates", "last")
    found, _ = recommended(capsys, model, "--ratings", "x.csv", *words)
    expected, _ = recommended(capsys, model, "--ratings", "new.csv")
    assert found == expected


def test_another_mechanism_says_which_serve_new_users(model, saved, capsys):
    settings = saved.settings | {"mechanism": "gaussian-joint-noise"}
    dataclasses.replace(saved, settings=settings).save("other")
    code, _, err = run(capsys, "recommend", "other", "--ratings", "new.csv")
    assert code == 2
    assert "als and als-federated and means and als-implicit and ridge" in err
