"""`evaluate` tells the ratings that a model was fitted with from the others, and has the flags that
its errors name.
"""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpmf_jax import load_model
from dpmf_jax.data import datasets
from experiments.cli.evaluate import Command, _warning
from tests.cases.fit import fit, run, write_ratings

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    ("seen", "unseen", "said"),
    [
        (0, 5, None),
        (None, 5, "nobody can tell which"),
        (5, 0, "all 5 ratings"),
        (2, 3, "with 2 of these ratings; rmse and mae are of the other 3"),
    ],
)
def test_a_reader_is_told_which_ratings_the_model_was_fitted_with(seen, unseen, said):
    told = _warning({"seen": seen, "unseen": unseen, "rmse": 1.0})
    assert told is None if said is None else said in told


def fitted(capsys):
    """A model's folder, and the lines of the file that it was and was not fitted with."""
    folder = fit(capsys, "--steps", "6", "--seed", "1", "--test-fraction", "0.3")["out"]
    model = load_model(folder)
    assert model.seen is not None
    pairs = set(
        zip(model.users[model.seen[0]].tolist(), model.items[model.seen[1]].tolist(), strict=True)
    )
    ratings = datasets.load("mine.csv", rating_range=model.rating_range)
    rows = zip(
        ratings.users[ratings.user].tolist(),
        ratings.items[ratings.item].tolist(),
        ratings.value,
        strict=True,
    )
    seen, unseen = [], []
    for user, item, value in rows:
        (seen if (user, item) in pairs else unseen).append((user, item, value))
    return folder, model, seen, unseen


def rmse(model, rows):
    users, items, values = zip(*rows, strict=True)
    return float(
        np.sqrt(np.mean((model.predict(list(users), list(items)) - np.array(values)) ** 2))
    )


def evaluate(capsys, folder, *words):
    code, out, err = run(capsys, "evaluate", folder, "--data", "held.csv", "--json", *words)
    assert code == 0, err
    return json.loads(out)


@pytest.mark.seconds
def test_seen_and_unseen_ratings_are_told_apart(capsys):
    folder, model, seen, unseen = fitted(capsys)
    write_ratings("held.csv", seen[:20] + unseen)
    found = evaluate(capsys, folder)
    assert (found["ratings"], found["seen"], found["unseen"]) == (20 + len(unseen), 20, len(unseen))
    assert found["rmse"] == pytest.approx(rmse(model, unseen), rel=1e-5)
    assert found["rmse_seen"] == pytest.approx(rmse(model, seen[:20]), rel=1e-5)
    assert "fitted with 20 of these" in found["warning"]
    write_ratings("held.csv", unseen)
    found = evaluate(capsys, folder)
    assert (found["seen"], found["warning"], found["rmse_seen"]) == (0, None, None)
    assert "warning" not in run(capsys, "evaluate", folder, "--data", "held.csv")[1]
    write_ratings("held.csv", seen)
    found = evaluate(capsys, folder)
    assert (found["rmse"], found["unseen"]) == (None, 0)
    assert "nothing here is unseen" in found["warning"]


@pytest.mark.seconds
def test_without_the_private_part_it_says_that_nobody_can_tell(capsys):
    folder, model, seen, unseen = fitted(capsys)
    (Path(folder) / "private" / "seen.safetensors").unlink()
    write_ratings("held.csv", seen + unseen)
    found = evaluate(capsys, folder)
    assert found["seen"] is found["unseen"] is found["ndcg_at_k"] is None
    assert found["rmse"] == pytest.approx(rmse(model, seen + unseen), rel=1e-5)
    assert "nobody can tell" in found["warning"]
    assert run(capsys, "evaluate", folder, "--data", "held.csv")[0] == 0
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "text",
    [
        "u1,1,3\nu2,2,4\n",
        "1,1,3\n2,2,4\n",
        "user,item\nu1,1\n",
        "user,item,rating\nu1,1,9\nu2,2,4\n",
        "user,item,rating\nu1,1,3\nu1,1,4\nu2,2,4\n",
        "user,item,rating\nu1,1\n",
        "who,what,stars\nu1,1,3\nu2,2,4\n",
        "hello\nworld\n",
    ],
)
def test_every_flag_that_an_error_names_is_one_of_evaluate(capsys, text):
    folder = fit(capsys, "--steps", "1")["out"]
    Path("held.csv").write_text(text)
    code, _, err = run(capsys, "evaluate", folder, "--data", "held.csv")
    assert code in (2, 3)
    own = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Command)}
    assert set(re.findall(r"--[a-z][a-z-]+", err)) <= own


def test_evaluate_merges_duplicates_when_told(capsys):
    folder, _, _, unseen = fitted(capsys)
    write_ratings("held.csv", [*unseen, unseen[0]])
    assert run(capsys, "evaluate", folder, "--data", "held.csv")[0] == 3
    assert evaluate(capsys, folder, "--duplicates", "first", "--rating-range", "1", "5")[
        "ratings"
    ] == len(unseen)
