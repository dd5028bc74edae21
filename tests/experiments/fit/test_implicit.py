"""`dpmf fit` of who has seen what: two columns, users held out, and lists for new ones."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

from dpmf_jax import load_model
from dpmf_jax.errors import UsageError
from dpmf_jax.models import strong_generalisation as strong
from experiments.cli import main as cli
from experiments.fit import implicit
from tests.cases import fit as cases
from tests.cases.fit import CATALOGUE, PAIRS, run

FIT = ["--seed", "0", "--devices", "1", "--rank", "2", "--steps", "2", "--epsilon", "60"]
SEEN = [(f"u{user}", str(item)) for user, item in zip(PAIRS // 7, PAIRS % 7, strict=True)]


def write_seen(path, rows):
    lines = ["user,item", *(",".join(map(str, row)) for row in rows)]
    Path(path).write_text("\n".join(lines) + "\n")


def enter(folder, monkeypatch):
    cases.enter(folder, monkeypatch)
    write_seen("seen.csv", SEEN)


@pytest.fixture
def here(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, quick_compilation):
    """(what a fit of two columns says as JSON, on stderr, the folder)"""
    folder = tmp_path_factory.mktemp("fitted")
    with pytest.MonkeyPatch.context() as patch:
        enter(folder, patch)
        out, err = io.StringIO(), io.StringIO()
        words = ["fit", "seen.csv", *CATALOGUE, *FIT, "--out", "model", "--json"]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main([*words, "--holdout-users", "5"])
        told = out.getvalue(), err.getvalue()
    assert code == 0, told[1]
    return json.loads(told[0]), told[1], folder


def test_a_file_of_two_columns_is_taken_for_what_users_have_seen(fitted):
    found, err, _ = fitted
    assert "seen.csv has no ratings: it is taken for who has seen what (--implicit)" in err
    assert "rmse" not in err
    assert found["mechanism"] == "als-implicit"
    assert "every row counts as seen: no rating is read" in found["notes"]
    assert (found["guarantee"]["unit"], found["guarantee"]["status"]) == ("user", "proved")
    assert not {"rmse_train", "rmse_test", "ndcg_at_10", "ranks_alike"} & set(found)
    assert set(found["controls"]) == {"noisy_popularity", "popularity", "implicit_als"}
    for values in (found, *found["controls"].values()):
        assert 0 <= values["recall_at_20"] <= 1
        assert 0 <= values["ndcg_at_20"] <= 1
    assert 0 < found["users_evaluated"] <= 5
    private = {name: values["private"] for name, values in found["controls"].items()}
    assert private == {"noisy_popularity": True, "popularity": False, "implicit_als": False}
    assert "as much as" in found["utility"]  # 20 are more items than there are


def test_nobody_who_is_held_out_was_in_training(fitted):
    """And the numbers are those of the lists that the saved model makes."""
    found, _, folder = fitted
    model = load_model(folder / "model")
    trained = {model.users[user] for user in model.seen[0]}
    held = sorted({user for user, _ in SEEN} - trained)
    assert 0 < len(held) <= 5
    assert not np.asarray(model.factors.user_factors)[~np.isin(model.users, list(trained))].any()
    public = model.release._asdict()
    assert public["user_factors"] is None
    own = [(user, item) for user, item in SEEN if user in held]
    whole = model.pairs(
        np.array([model.users.tolist().index(user) for user, _ in own]),
        np.array([model.items.tolist().index(item) for _, item in own]),
    )
    users = strong.held_out(whole, seed=0)
    table = model.recommend(ratings=users.shown, k=20)
    assert table.column_names == ["user", "item", "score"]
    recalls = []
    for row, user in enumerate(users.hidden.users):
        hidden = set(users.hidden.items[users.hidden.item[users.hidden.user == row]].tolist())
        listed = [
            item for one, item, _ in zip(*table.to_pydict().values(), strict=True) if one == user
        ]
        if hidden:
            recalls.append(len(hidden & set(listed[:20])) / min(20, len(hidden)))
    assert found["recall_at_20"] == pytest.approx(np.mean(recalls))
    assert found["users_evaluated"] == len(recalls)


def test_lists_for_users_old_and_new(fitted, capsys, monkeypatch):
    _, _, folder = fitted
    monkeypatch.chdir(folder)
    model = load_model("model")
    user = model.users[model.seen[0][0]]
    own = [item for one, item in SEEN if one == user]
    code, out, err = run(capsys, "recommend", "model", "--user", user, "--json")
    assert code == 0, err
    by_name = json.loads(out)["recommended"]
    assert by_name
    assert not set(own) & {row["item"] for row in by_name}
    # the same person as a stranger: the same numbers, of the file and of the release
    Path("one.csv").write_text("\n".join(["item", *own]) + "\n")
    code, out, err = run(capsys, "recommend", "model", "--ratings", "one.csv", "--json")
    assert json.loads(out)["recommended"] == by_name, err
    assert model.recommend(ratings=own) == [tuple(row.values()) for row in by_name]
    rows = model.fold_in(own)
    np.testing.assert_array_equal(rows, model.factors.user_factors[model.seen[0][0]])
    write_seen("two.csv", [("ann", own[0]), ("bob", own[-1])])
    words = ["--ratings", "two.csv", "--top", "1", "--format", "csv"]
    code, out, err = run(capsys, "recommend", "model", *words)
    assert out.splitlines()[0] == "user,item,score", err
    assert [line.split(",")[0] for line in out.splitlines()[1:]] == ["ann", "bob"]
    code, out, err = run(capsys, "recommend", "model", "--user", user)
    assert " score " in out


def test_a_model_of_what_is_seen_predicts_no_ratings(fitted, capsys, monkeypatch):
    _, _, folder = fitted
    monkeypatch.chdir(folder)
    code, _, err = run(capsys, "predict", "model", "--user", "u1", "--item", "1")
    assert code == 2
    assert "predicts no ratings" in err


def test_it_is_evaluated_by_what_is_seen_later(fitted, capsys, monkeypatch):
    """What training had is no candidate; of ratings only who gave them is read."""
    _, _, folder = fitted
    monkeypatch.chdir(folder)
    model = load_model("model")
    user, item = model.seen
    lists = {row: model.recommend(model.users[row], k=7) for row in np.unique(user)}
    row = max(lists, key=lambda row: len(lists[row]))
    later = str(lists[row][1][0])  # the second of a list, so of a DCG of 1/log2(3)
    known = [(model.users[one], model.items[item[user == one][0]]) for one in list(lists)[:2]]
    rows = [*known, (model.users[row], later)]
    write_seen("later.csv", rows)
    Path("rated.csv").write_text(
        "user,item,rating\n" + "".join(f"{user},{item},2\n" for user, item in rows)
    )
    for name in ("later.csv", "rated.csv"):
        code, out, err = run(capsys, "evaluate", "model", "--data", name, "--json")
        assert code == 0, err
        told = json.loads(out)
        counts = told["seen"], told["unseen"], told["users_evaluated"], told["recall_at_k"]
        assert counts == (2, 1, 1, 1.0)
        assert told["ndcg_at_k"] == pytest.approx(1 / np.log2(3))
        assert told["rmse"] is told["rmse_seen"] is None
    frame = dict(zip(("user", "item"), zip(*rows, strict=True), strict=True))
    assert model.evaluate(frame)["ndcg_at_k"] == told["ndcg_at_k"]
    code, out, err = run(capsys, "evaluate", "model", "--data", "later.csv")
    assert "│ rmse " not in out
    assert "the model was fitted with 2 of these; the other 1 count" in out


@pytest.mark.seconds
def test_ratings_count_as_seen_whatever_they_are(here, capsys):
    """Alike with --implicit, and by the mechanism's name."""
    rest = [*CATALOGUE, *FIT, "--controls", "none", "--holdout-users", "0", "--json"]
    models = []
    for number, words in enumerate((["--implicit"], ["--mechanism", "als-implicit"])):
        code, out, err = run(capsys, "fit", "mine.csv", *words, *rest, "--out", f"of-{number}")
        assert code == 0, err
        found = json.loads(out)
        assert found["recall_at_20"] is None
        assert "nobody is held out" in found["utility"]
        models.append(load_model(here / f"of-{number}"))
    one, other = (model.release.item_factors for model in models)
    np.testing.assert_array_equal(one, other)
    code, out, err = run(capsys, "fit", "mine.csv", "--implicit", *CATALOGUE, "--seed", "0")
    assert code == 0, err
    assert "popularity alone: for so few users" in out
    assert "Recall@20" in out
    assert "RMSE" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mine.csv", "--implicit", "--mechanism", "als", *cases.RANGE], "leaves unread"),
        (["seen.csv", "--mechanism", "als", *cases.RANGE, *CATALOGUE], "with --implicit"),
        (["seen.csv", "--rating-column", "item"], "--rating-column means nothing"),
        (["mine.csv", "--implicit", "--test-fraction", "0.2"], "--holdout-users 0.1"),
        (["mine.csv", "--holdout-users", "0.2", *cases.RANGE], "--test-fraction 0.1"),
        (["mine.csv", "--implicit", *CATALOGUE, "--holdout-users", "25"], "leaves none"),
        (["mine.csv", "--implicit", *CATALOGUE, "--holdout-users", "-1"], "leaves none"),
        (["mine.csv", "--implicit"], "needs a declared catalogue"),
        (["mine.csv", "--implicit", "--item-features", "x.csv"], "means nothing"),
    ],
)
def test_what_does_not_go_together_is_refused(here, capsys, words, said):
    before = sorted(here.rglob("*"))
    code, out, err = run(capsys, "fit", *words)
    assert code in (2, 3, 4)
    assert said in err
    assert out == ""
    assert sorted(here.rglob("*")) == before


def test_a_model_that_finds_less_than_the_popularity_it_releases_says_so():
    controls = {name: {"recall_at_20": 0.3} for name in ("noisy_popularity", "popularity")}
    for recall, said in ((0.2, "NOT USEFUL: finds (0.2000"), (0.4, "finds (0.4000")):
        found = implicit.utility({"recall_at_20": recall, "controls": controls})
        assert found.startswith(said)
        assert ("less than" in found) == (recall < 0.3)


def test_pairs_are_no_items_of_one_user(fitted):
    model = load_model(fitted[2] / "model")
    with pytest.raises(UsageError, match="no items of one user"):
        model.fold_in([("1", 5.0), ("2", 4.0)])
    assert model.recommend(ratings={"1": 5.0}) == model.recommend(ratings=["1"])
