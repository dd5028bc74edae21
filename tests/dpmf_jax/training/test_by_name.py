"""A fit from Python, of any form of ratings, is the fit of the command; what cannot be fitted is
told in arguments.
"""

import logging
import re
from functools import partial

import numpy as np
import pandas
import polars
import pytest
import scipy.sparse

import dpmf_jax
from dpmf_jax.data.given import NAME
from dpmf_jax.errors import DataError, PrivacyError, UsageError
from dpmf_jax.mechanisms import table
from dpmf_jax.models import ledger
from dpmf_jax.models.model import load
from dpmf_jax.training import resolve
from tests.cases import fit as cases

pytestmark = pytest.mark.usefixtures("quick_compilation", "folder")

RANGE = {"rating_range": (1, 5)}
SMALL = {"epsilon": 3.0, "steps": 3, "rank": 2, "num_devices": 1}
JOINT = "gaussian-joint-noise"
CATALOGUE = {"catalogue_users": "users.txt", "catalogue_items": "items.txt"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    cases.enter(tmp_path, monkeypatch)
    return tmp_path


def frame(library=pandas):
    return library.DataFrame(
        {
            "user": [f"u{u}" for u in cases.PAIRS // 7],
            "item": cases.PAIRS % 7,
            "stars": cases.VALUES,
        }
    )


def columns():
    return tuple(frame()[name].to_numpy() for name in ("user", "item", "stars"))


def test_a_fit_from_python_is_the_fit_of_the_command(capsys):
    words = ["--seed", "7", "--rank", "2", "--steps", "3", "--epsilon", "3"]
    told = cases.fit(capsys, *words)
    theirs = load(told["out"])
    for data in ("mine.csv", frame(), frame(polars), columns()):
        ours = dpmf_jax.fit(data, JOINT, seed=7, controls="simple", **RANGE, **SMALL)
        for name, array in theirs.released_arrays.items():
            np.testing.assert_array_equal(ours.released_arrays[name], array)
        assert ours.guarantee == theirs.guarantee
        same = {"test_fraction", "split", "split_seed"}
        kept = {name: value for name, value in theirs.settings.items() if name not in same}
        assert ours.settings == (kept if isinstance(data, str) else kept | {"data": NAME})
        for name in ("rmse_train", "rmse_test", "controls"):
            assert ours.metrics[name] == told[name]


@pytest.mark.slow
def test_the_default_from_python_is_the_default_of_the_command(capsys):
    code, _, err = cases.run(
        capsys, *("fit", "mine.csv", *cases.RANGE, *cases.CATALOGUE, "--controls", "none"), "--json"
    )
    assert code == 0, err
    ours = dpmf_jax.fit(frame(), **RANGE, **CATALOGUE, controls="none", population="shop")
    (theirs,) = [load(path.parent) for path in cases.Path("runs").rglob("model.json")]
    assert ours.guarantee == theirs.guarantee
    assert ours.settings["mechanism"] == "als"
    kept = {name: ours.settings[name] for name in theirs.settings if name in ours.settings}
    assert kept | {"data": "mine"} == {name: theirs.settings[name] for name in kept}
    assert len(ours.recommend("u3", k=3)) == 3
    assert [entry.population for entry in ledger.read(ledger.ledger_path())] == ["mine", "shop"]


def test_the_shape_of_a_sparse_matrix_is_a_declared_catalogue(caplog):
    matrix = scipy.sparse.coo_array((cases.VALUES, divmod(cases.PAIRS, 7)), shape=(25, 9))
    words = "the guarantee of als needs a declared catalogue"
    with pytest.raises(PrivacyError, match=words):
        dpmf_jax.fit(frame(), **RANGE)
    with caplog.at_level(logging.WARNING, "dpmf_jax"):
        model = dpmf_jax.fit(matrix, "means", epsilon=4.0, seed=0, controls="none", **RANGE)
    assert (len(model.users), len(model.items)) == (25, 9)
    assert "the matrix has 25 users: that is taken for your declaration" in caplog.text
    caplog.clear()
    own = {"catalogue_users": np.arange(25), "catalogue_items": np.arange(9)}
    dpmf_jax.fit(matrix, "means", epsilon=4.0, seed=0, controls="none", **own, **RANGE)
    assert not caplog.records


def test_a_file_that_is_not_there_is_missed_before_its_catalogue(tmp_path):
    for gone in (tmp_path / "gone.csv", str(tmp_path / "gone.csv")):
        with pytest.raises(DataError, match=r"no data set or file '.*gone.csv'"):
            dpmf_jax.fit(gone, **RANGE)


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, pandas.Series, polars.Series, pandas.Index]
)
def test_a_catalogue_may_be_declared_in_any_sequence(kind):
    users, items = kind([f"u{u}" for u in range(25)]), kind(list(range(9)))
    catalogue = {"catalogue_users": users, "catalogue_items": items}
    model = dpmf_jax.fit(
        frame(), "means", epsilon=4.0, population="shop", controls="none", **RANGE, **catalogue
    )
    assert model.users.tolist() == list(users)
    assert model.items.tolist() == list(items)


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("", "is empty", "ids.txt"),
        ("User ID\nu0\nu1\n", "begins with 'User ID'", "ids.txt, line 1"),
    ],
)
def test_a_file_of_ids_has_ids_alone(tmp_path, text, what, where):
    """A heading would be one more user, who pays for the size of the catalogue."""
    (tmp_path / "ids.txt").write_text(text)
    catalogue = {"catalogue_users": tmp_path / "ids.txt", "catalogue_items": list(range(9))}
    with pytest.raises(DataError, match=what) as raised:
        dpmf_jax.fit(frame(), "means", population="shop", **RANGE, **catalogue)
    assert raised.value.where.endswith(where)


@pytest.mark.parametrize(
    ("arguments", "error", "what"),
    [
        ({}, PrivacyError, "the guarantee of als needs a declared catalogue"),
        ({"mechanism": "gausian"}, UsageError, "there is no mechanism 'gausian'"),
        ({"mechanism": JOINT, "rang": 3}, UsageError, "gaussian-joint-noise has no setting 'rang'"),
        ({"mechanism": JOINT, "rank": "three"}, UsageError, "rank is 'three'"),
        ({"mechanism": JOINT, "rank": 2.5}, UsageError, "rank is 2.5"),
        ({"mechanism": JOINT, "rank": True}, UsageError, "rank is True"),
        ({"mechanism": JOINT, "relation": "friends"}, UsageError, "relation is 'friends'"),
        ({"mechanism": JOINT, "steps": 0}, UsageError, "steps must be at least 1; got 0"),
        ({"mechanism": JOINT, "rating_range": None}, UsageError, "range must be declared"),
        ({"mechanism": JOINT, "rating_range": (1, 4)}, DataError, "outside the declared range"),
        ({"mechanism": JOINT, "test_fraction": 1.0}, UsageError, "test_fraction must be at least"),
        ({"mechanism": JOINT, "controls": "some"}, UsageError, "there are no controls 'some'"),
        ({"mechanism": JOINT, "population": "a\nb"}, UsageError, "population"),
        ({"mechanism": JOINT, "implicit": True}, UsageError, "learns from ratings"),
        ({"mechanism": "sketch"}, PrivacyError, "guarantee"),
        (
            {"mechanism": JOINT, "accept_no_guarantee": True},
            UsageError,
            "accept_no_guarantee means",
        ),
        ({"mechanism": JOINT, "user_column": "who"}, DataError, "there is no user column who"),
    ],
)
def test_what_cannot_be_fitted_is_told_in_arguments(arguments, error, what):
    with pytest.raises(error, match=re.escape(what)) as refused:
        dpmf_jax.fit(frame(), **({"rating_range": (1, 5)} | arguments))
    assert refused.value.fix
    told = re.sub(r"dpmf \w+( --mechanism \S+)? --help", "", str(refused.value))
    assert "--" not in told
    assert not list(cases.Path().glob("runs"))


def test_features_in_a_frame_are_refused_with_what_is_taken():
    own = {"catalogue_users": [f"u{user}" for user in range(25)], "catalogue_items": range(9)}
    with pytest.raises(UsageError, match="item_features is a DataFrame") as refused:
        dpmf_jax.fit(frame(), "als", seed=0, item_features=frame(), **own, **RANGE)
    assert "an array with a row for every item" in refused.value.fix


def test_a_mechanism_in_capitals_is_told_its_name():
    with pytest.raises(UsageError, match="there is no mechanism 'ALS'") as refused:
        dpmf_jax.fit(frame(), "ALS", **RANGE)
    assert "als" in refused.value.fix.split()[-1].split("=")[-1]


def test_a_release_is_entered_once_where_its_people_have_a_name(caplog):
    def entries():
        return ledger.read(ledger.ledger_path())

    options = RANGE | SMALL | {"controls": "none"}
    dpmf_jax.fit(frame(), JOINT, seed=1, population="shop", **options)
    dpmf_jax.fit("synthetic-30x20x200", JOINT, population="shop", **SMALL, controls="none")
    assert entries() == ()
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "dpmf_jax"):
        dpmf_jax.fit(frame(), JOINT, **options)
    assert entries() == ()
    assert "this release is in no ledger: nobody named" in caplog.text
    model = dpmf_jax.fit(frame(), JOINT, population="shop", **options)
    (entry,) = entries()
    assert (entry.population, entry.data_set, entry.model) == ("shop", "shop", "in memory")
    assert entry.guarantee == model.guarantee
    with pytest.raises(ledger.Entered):
        ledger.record(model.save("later").path, population="shop")
    dpmf_jax.fit("mine.csv", JOINT, out="run", **options)
    assert [entry.population for entry in entries()] == ["shop", "mine"]
    assert entries()[0].data_hash == entries()[1].data_hash


def test_a_fitted_model_is_not_lost_where_the_ledger_cannot_be_written(caplog):
    """It could be read before anything was spent, and is damaged while the model is trained."""

    def damage(now):
        ledger.ledger_path().write_text("no entry\n")

    with caplog.at_level(logging.WARNING, "dpmf_jax"):
        model = dpmf_jax.fit(
            frame(), JOINT, population="shop", controls="none", report=damage, **RANGE, **SMALL
        )
    assert "this release is in no ledger: line 1 of the ledger cannot be used" in caplog.text
    assert model.guarantee.epsilon <= 3.0


@pytest.mark.parametrize("fit", [dpmf_jax.fit, partial(dpmf_jax.tune, candidates={"rank": [0, 1]})])
def test_nothing_is_spent_where_the_ledger_cannot_be_read(fit, monkeypatch, tmp_path):
    monkeypatch.setenv("DPMF_LEDGER", str(tmp_path / "damaged"))
    (tmp_path / "damaged").write_text("no entry\n")
    with pytest.raises(DataError, match="line 1 of the ledger cannot be used"):
        fit("mine.csv", out="run", **RANGE)
    assert not (tmp_path / "run").exists()


def test_errors_are_measured_on_what_is_given_for_it():
    rest, test = frame()[:70], frame()[70:]
    test = test[test["user"].isin(rest["user"]) & test["item"].isin(rest["item"])]
    model = dpmf_jax.fit(rest, JOINT, seed=0, test=test, controls="none", **RANGE, **SMALL)
    assert len(model.seen[0]) == 70
    found = model.evaluate(test)
    assert found == model.evaluate(dpmf_jax.Ratings.from_table(test, rating="stars", **RANGE))
    assert model.metrics["rmse_test"] == pytest.approx(found["rmse"], rel=1e-5)


def test_a_mechanism_of_ones_own_takes_any_form_of_ratings():
    config = dpmf_jax.gaussian.Config(rank=2, noise_multiplier=40.0, **RANGE)
    made = dpmf_jax.gaussian.joint_noise(config)
    first, *others = (
        dpmf_jax.fit(data, made, num_steps=2, seed=3, rating_column="stars", **RANGE)
        for data in (frame(), frame(polars), frame().to_dict("list"))
    )
    assert first.metrics["rmse_test"] is None
    for other in others:
        np.testing.assert_array_equal(other.release.item_factors, first.release.item_factors)


def test_a_mechanism_of_ones_own_that_hides_who_rated_needs_a_declared_catalogue():
    config = dpmf_jax.gaussian.Config(
        rank=2, noise_multiplier=40.0, relation="rating presence", residual_clip=1.0, **RANGE
    )
    made = dpmf_jax.gaussian.joint_noise(config)
    with pytest.raises(PrivacyError, match="needs a declared catalogue"):
        dpmf_jax.fit(frame(), made, num_steps=2, **RANGE)
    declared = {"catalogue_users": [f"u{u}" for u in range(25)], "catalogue_items": range(9)}
    assert len(dpmf_jax.fit(frame(), made, num_steps=2, **RANGE, **declared).users) == 25
    assert dpmf_jax.fit(frame(), made, num_steps=2, seed=0, **RANGE).guarantee.seeded


@pytest.mark.slow
def test_who_has_seen_what_is_learned_without_being_asked_where_there_are_no_ratings(folder):
    (folder / "seen.csv").write_text(
        "user,item\n" + "".join(f"u{u},{i}\n" for u, i in zip(*divmod(cases.PAIRS, 7), strict=True))
    )
    options = CATALOGUE | {"seed": 0, "holdout_users": 0, "controls": "none", "num_devices": 1}
    model = dpmf_jax.fit("seen.csv", **options)
    assert model.implicit
    again = dpmf_jax.fit(frame().iloc[:, :2], implicit=True, **options)
    np.testing.assert_array_equal(again.release.item_factors, model.release.item_factors)


@pytest.mark.parametrize("name", table())
def test_flags_of_the_command_are_arguments_of_their_types(name):
    spec = table()[name]
    defaults = vars(spec.flags())
    assert resolve.flags_of(spec, defaults) == spec.flags()
    if "rank" in defaults:
        assert resolve.flags_of(spec, {"rank": np.int64(3)}).rank == 3
    if "center" in defaults:
        assert resolve.flags_of(spec, {"center": 3.5}).center == "3.5"
    if "epsilon" in defaults:
        assert resolve.flags_of(spec, {"epsilon": np.float32(3)}).epsilon == 3.0
