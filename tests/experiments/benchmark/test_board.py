"""`dpmf benchmark`: every contender by the protocol, and its pages."""

import dataclasses
import json
import math

import numpy as np
import pytest

from dpmf_jax import mechanisms
from dpmf_jax.data import splits, synthetic
from dpmf_jax.models import metrics
from dpmf_jax.protocol import Factors
from experiments.benchmark import board, fits, page, pictures, protocol, scores
from experiments.benchmark.protocol import Contender, Part, Setting
from experiments.benchmark.scores import NUMBERS
from tests.cases import CHECKOUT
from tests.cases.fit import run

SMALL = "synthetic-40x20x300"
BY_LABEL = {one.label: one for one in protocol.contenders()}


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The benchmark with few contenders on one small data set, and one that is not here."""
    few = tuple(
        BY_LABEL[label]
        for label in ("ridge", "federated", "non-private", "popularity", "item means")
    )
    parts = (
        Part((SMALL,), ("ratings", "users"), (1.0, 8.0), 2, tuned=False),
        Part(("ml-32m",), ("ratings",), (1.0,), 1, tuned=False),
    )
    monkeypatch.setattr(protocol, "contenders", lambda: few)
    monkeypatch.setitem(protocol.SCALES, "small", parts)
    monkeypatch.setenv("DPMF_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def a_row(label="a", epsilon=1.0, rmse=1.0, *, user=None, status="proved", unit="user"):
    return {
        "data": "d",
        "split": "ratings",
        "contender": label,
        "kind": "mechanism",
        "epsilon": epsilon,
        "repeats": 1,
        "diverged": 0,
        "promise": {
            "status": status,
            "unit": unit,
            "trust": "curator",
            "epsilon": epsilon,
            "epsilon_of_a_user": epsilon if user is None else user,
        },
        "audits": None,
        "numbers": dict.fromkeys(NUMBERS) | {"rmse": board.interval([rmse])},
        "rmse_by_activity": None,
        "seconds": 1.0,
        "memory_mib": None,
        "commits": ["c"],
        "devices": ["d"],
        "absent": "",
    }


# --- the protocol


def test_every_mechanism_of_the_table_takes_part_under_its_own_name():
    labels = [one.label for one in protocol.contenders()]
    assert len(set(labels)) == len(labels)
    mine = {one.name for one in protocol.contenders() if one.kind == "mechanism"}
    assert mine == set(mechanisms.table())
    for scale in protocol.SCALES:
        asked = {setting.contender.name for setting, _ in protocol.settings(scale)}
        assert mine <= asked


def test_a_scale_has_what_the_protocol_says():
    full = protocol.settings("full")
    assert {setting.data for setting, _ in full} == {protocol.GENERATED, *protocol.REAL}
    assert {setting.split for setting, _ in full} == set(protocol.SPLITS)
    assert {setting.epsilon for setting, _ in full} == {None, 0.5, 1, 2, 4, 8, 20}
    assert {repeats for _, repeats in full} == {5}
    for setting, _ in full:
        assert (setting.epsilon is None) == (not setting.contender.priced)
        if setting.split == "last":
            assert setting.data in ("ml-100k", "ml-1m")


def test_the_page_of_the_protocol_says_what_the_program_does():
    text = (CHECKOUT / "docs" / "benchmark" / "protocol.md").read_text(encoding="utf-8")
    for one in protocol.contenders():
        assert f"`{one.name}`" in text or one.name in text, one
    for what in (*protocol.SPLITS.values(), *scores.DEFINITIONS):
        assert what in text, what
    assert ", ".join(f"{one:g}" for one in protocol.EPSILONS) in text
    for data in (protocol.GENERATED, *protocol.REAL):
        assert f"`{data}`" in text


@pytest.mark.parametrize("name", ["federated"])
def test_an_epsilon_of_rounds_is_that_of_all(name):
    one = BY_LABEL[name]
    assert dict(one.flags)["steps"] == one.rounds


# --- what is measured


@pytest.fixture
def some():
    ratings = synthetic.generate(num_users=60, num_items=30, num_ratings=700, seed=1)
    train, test = splits.random(ratings, fraction=0.2, seed=0)
    random = np.random.default_rng(0)
    users, items = (random.normal(size=(rows, 3)).astype(np.float32) for rows in (60, 30))
    return Factors(users, items, np.full(30, 3.0, np.float32)), train, test


def test_numbers_are_those_of_the_metrics(some):
    factors, train, test = some
    found = scores.scores(factors, train, test)
    assert found["rmse"] == pytest.approx(metrics.rmse(factors, test))
    assert found["mae"] == pytest.approx(metrics.mae(factors, test))
    assert found["ndcg_at_10"] == pytest.approx(metrics.ndcg_at_k(factors, train, test, k=10))
    assert found["recall_at_20"] == pytest.approx(metrics.recall_at_k(factors, train, test, k=20))
    lists = metrics.top_k(factors, np.unique(test.user), train, 10).items
    assert found["coverage_at_10"] == len(np.unique(lists[lists >= 0])) / 30


def test_popularity_is_one_where_everybody_is_shown_the_most_popular(some):
    _, train, test = some
    nobody = dataclasses.replace(train, user=np.zeros_like(train.user))  # all of one user
    alone = test.take(test.user != 0)
    most = scores.scores(metrics.popularity(train), nobody, alone, errors=False)
    fewest = Factors(*(-part for part in metrics.popularity(train)))
    least = scores.scores(fewest, nobody, alone, errors=False)
    assert most["rmse"] is most["rmse_by_activity"] is None
    assert most["popularity_at_10"] > 0.75
    assert least["popularity_at_10"] < 0.25
    assert most["coverage_at_10"] == pytest.approx(1 / 3)  # the same ten of thirty for everybody


def test_errors_by_activity_are_those_of_the_users_in_each_group(some):
    factors, train, test = some
    group = scores.activity(train)
    count = np.bincount(train.user, minlength=60)
    assert sorted(set(group)) == list(range(protocol.GROUPS))
    for one in range(protocol.GROUPS - 1):
        assert count[group == one].max() < count[group > one].min()
    found = scores.scores(factors, train, test)["rmse_by_activity"]
    held = test.take(group[test.user] == 2)
    assert found[2] == pytest.approx(metrics.rmse(factors, held))


def test_an_interval_is_that_of_students_t():
    found = board.interval([1.0, 2.0, 4.0])
    assert found["mean"] == pytest.approx(7 / 3)
    # quantile 0.975 of t with 2 degrees of freedom, from a table
    assert found["half"] == pytest.approx(4.303 * math.sqrt(7 / 3) / math.sqrt(3), rel=1e-3)
    assert board.interval([1.0])["half"] is None
    assert board.interval([1.0, None]) is None
    assert board.interval([]) is None


# --- fits


@pytest.mark.seconds
@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("split", ["ratings", "users"])
def test_a_fit_is_that_of_the_library_on_that_split(split):
    import dpmf_jax

    setting = Setting(SMALL, split, BY_LABEL["means"], 4.0)
    found = fits.fitted(setting, 3)
    cut = fits.parts(SMALL, split, 3, None)
    model = dpmf_jax.fit(
        cut.train, "means", epsilon=4.0, seed=3, test_fraction=0, controls="none", progress=False
    )
    users = model.fold_in(cut.shown) if split == "users" else model.all_factors().user_factors
    factors = Factors(users, model.release.item_factors, np.asarray(model.release.center))
    assert found["rmse"] == pytest.approx(metrics.rmse(factors, cut.test), rel=1e-6)
    assert found["promise"]["epsilon"] == model.guarantee.epsilon <= 4.0
    assert (found["promise"]["unit"], found["promise"]["trust"]) == ("user", "curator")
    assert found["promise"]["epsilon_of_a_user"] == found["promise"]["epsilon"]
    assert not found["diverged"]
    if split == "users":
        assert not set(cut.train.users[np.unique(cut.train.user)]) & set(cut.test.users)
        assert cut.shown.num_ratings > cut.test.num_ratings > 0


@pytest.mark.seconds
@pytest.mark.usefixtures("quick_compilation")
def test_rounds_share_the_price_and_one_rating_is_less_than_a_user():
    contender = BY_LABEL["federated"]._replace(flags=(("steps", 4), ("rank", 2)), rounds=4)
    promise = fits.fitted(Setting(SMALL, "ratings", contender, 2.0), 0)["promise"]
    assert promise["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert promise["trust"] == "untrusted server"
    assert promise["epsilon_of_a_user"] >= 20 * promise["epsilon"] * (1 - 1e-9)


@pytest.mark.usefixtures("quick_compilation")
def test_a_run_that_diverges_has_a_row_without_numbers():
    wild = Contender("wild", "mechanism", "non-private", (("learning_rate", 1e6), ("steps", 30)))
    found = fits.fitted(Setting(SMALL, "ratings", wild, None), 0)
    assert found["diverged"]
    assert all(found[name] is None for name in NUMBERS)
    row = board.row_of(Setting(SMALL, "ratings", wild, None), [found], "")
    assert row["numbers"]["rmse"] is None
    assert "diverged" in page.in_short(row)[2]


def test_a_model_that_is_not_finite_diverged(monkeypatch):
    bad = Factors(np.full((40, 1), np.nan), np.ones((20, 1)), np.zeros(20))
    monkeypatch.setitem(fits.controls.CONTROLS, "item_means", lambda train: bad)
    found = fits.fitted(Setting(SMALL, "ratings", BY_LABEL["item means"], None), 0)
    assert found["diverged"]
    assert found["rmse"] is None


# --- the command


@pytest.mark.seconds
@pytest.mark.usefixtures("quick_compilation")
def test_the_board_is_written_and_goes_on_where_it_was(tiny, capsys, monkeypatch):
    code, out, err = run(capsys, "benchmark", "--json")
    assert code == 0, err
    result = json.loads(out)
    rows = [row for row in result["rows"] if not row["absent"]]
    found = {(row["split"], row["contender"], row["epsilon"]): row for row in rows}
    assert set(found) == {
        *(("ratings", name, e) for name in ("ridge", "federated") for e in (1.0, 8.0)),
        *(("ratings", name, None) for name in ("non-private", "popularity", "item means")),
        *(("users", "ridge", e) for e in (1.0, 8.0)),
        *(("users", name, None) for name in ("popularity", "item means")),
    }
    ridge = found["ratings", "ridge", 8.0]
    assert ridge["repeats"] == len(ridge["numbers"]["rmse"]["each"]) == 2
    assert ridge["promise"]["status"] == "proved"
    assert ridge["audits"]["violated"] == 0 < ridge["audits"]["consistent"]
    assert found["ratings", "federated", 1.0]["audits"]["violated"] > 0
    assert found["ratings", "popularity", None]["numbers"]["rmse"] is None
    assert any("ml-32m" in row["absent"] for row in result["rows"])

    folder = tiny / "runs" / "benchmark" / "private" / "small"
    text = (folder / f"{SMALL}.md").read_text(encoding="utf-8")
    assert f"{ridge['numbers']['rmse']['mean']:.3f}" in text
    assert "Hidden: one rating value; from the server too" in text
    assert "claimed" in text
    private, without = text.split("### Without privacy", 1)
    assert "non-private" in without
    assert "| non-private |" not in private
    assert (folder / f"{SMALL}-epsilon.svg").read_text(encoding="utf-8").startswith("<?xml")
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert "ridge" in index
    assert "ml-32m" in index
    kept = json.loads((folder / f"{SMALL}.json").read_text(encoding="utf-8"))
    assert kept["rows"] == rows

    monkeypatch.setattr(fits, "fitted", lambda *words, **more: pytest.fail("fitted again"))
    code, again, err = run(capsys, "benchmark", "--data", SMALL)
    assert code == 0, err
    assert "the benchmark, scale small" in again
    assert "may be released" in again


def test_an_interrupted_board_has_pages_of_the_splits_that_are_done(tiny, capsys, monkeypatch):
    few = (BY_LABEL["popularity"], BY_LABEL["item means"])
    monkeypatch.setattr(protocol, "contenders", lambda: few)
    really = fits.fitted

    def until(setting, seed, **more):
        if (setting.split, setting.contender.label) == ("users", "item means"):
            raise KeyboardInterrupt
        return really(setting, seed, **more)

    monkeypatch.setattr(fits, "fitted", until)
    code, _, err = run(capsys, "benchmark")
    assert code == 130
    assert "dpmf benchmark --scale small" in err
    folder = tiny / "runs" / "benchmark" / "private" / "small"
    kept = json.loads((folder / f"{SMALL}.json").read_text(encoding="utf-8"))["rows"]
    assert {row["split"] for row in kept} == {"ratings"}
    monkeypatch.setattr(fits, "fitted", really)
    code, out, err = run(capsys, "benchmark", "--split", "users", "--json")
    assert code == 0, err
    assert {row["split"] for row in json.loads(out)["rows"]} == {"users"}
    assert run(capsys, "benchmark")[0] == 0
    kept = json.loads((folder / f"{SMALL}.json").read_text(encoding="utf-8"))["rows"]
    assert {row["split"] for row in kept} == {"ratings", "users"}


def test_a_front_has_what_nothing_else_beats():
    rows = [
        a_row("cheap", 1.0, 1.2),
        a_row("dear and worse", 2.0, 1.3),
        a_row("better", 2.0, 1.0),
        a_row("claimed", 1.0, 0.5, status="claimed"),
        a_row("one rating", 1.0, 0.9, unit="rating value", user=20.0),
        a_row("no price of a user", 1.0, 0.8, unit="rating value", user="inf"),
        a_row("dearest", 30.0, 0.95),
    ]
    assert [row["contender"] for row in pictures.front(rows)] == ["cheap", "better", "one rating"]


def test_prices_are_rounded_up(tmp_path):
    row = a_row("a", 5.40701, 1.0, user=58.7401)
    page.write(tmp_path, "small", [row])
    text = (tmp_path / "d.md").read_text(encoding="utf-8")
    assert "| 5.408 |" in text
    assert "| 58.75 |" in text


@pytest.mark.slow
def test_the_small_scale_has_a_row_of_every_contender(tmp_path, monkeypatch, capsys):
    """As it ships, on the generated ratings, and on MovieLens-100K where that is here."""
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "benchmark", "--scale", "small", "--repeats", "1", "--json")
    assert code == 0, err
    result = json.loads(out)
    done = [row for row in result["rows"] if row["repeats"]]
    missing = {row["contender"] for row in result["rows"]} - {row["contender"] for row in done}
    assert missing <= set(protocol.PEERS)
    assert not [row for row in done if row["diverged"]]
    for row in done:
        if row["kind"] == "mechanism" and row["epsilon"] is not None:
            assert row["promise"]["epsilon"] <= row["epsilon"] * (1 + 1e-9), row["contender"]
            assert row["promise"]["status"] in ("proved", "claimed")
    assert {path for path in result["page"] if path.endswith(".svg")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data", "ml-9z"), "small has no ml-9z"),
        (("--repeats", "0"), "--repeats must be at least 1"),
        (("goals", "--scale", "full"), "--scale is for the table board"),
        (("goals", "--split", "last"), "--split is for the table board"),
        (("--devices", "2"), "--devices is for the other tables"),
    ],
)
def test_what_the_board_has_not_is_refused(tiny, capsys, words, said):
    code, _, err = run(capsys, "benchmark", *words)
    assert code == 2
    assert said in err
