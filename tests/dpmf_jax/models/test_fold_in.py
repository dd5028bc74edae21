"""New users: a fold-in by the release alone is the curator's private pass, to the bit, and it
refuses what no list can follow from.
"""

import dataclasses
import shutil

import numpy as np
import pyarrow
import pytest

import dpmf_jax
from dpmf_jax import load_model
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, UsageError
from dpmf_jax.mechanisms import table
from dpmf_jax.mechanisms.als.config import Config
from dpmf_jax.mechanisms.spec import config_values
from tests.cases.als import ITEMS, RATINGS, USERS, phases, untrained, write_features

pytestmark = pytest.mark.usefixtures("quick_compilation")


def of_user(user):
    """{item: rating} of a training user, by raw ids."""
    rated = RATINGS.user == user
    items = RATINGS.items[RATINGS.item[rated]]
    return dict(zip(items.tolist(), RATINGS.value[rated].tolist(), strict=True))


def write_budgets(folder):
    path = folder / "budgets.csv"
    path.write_text("user,epsilon\n" + "".join(f"{user},5\n" for user in RATINGS.users[::2]))
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory, quick_compilation):
    folder = tmp_path_factory.mktemp("models")
    return {
        "als": untrained("als", rank=2, steps=2).save(folder / "als"),
        "means": untrained("means").save(folder / "means"),
        "non-negative": untrained("als", rank=3, steps=2, non_negative=True).save(folder / "nn"),
        "budgets": untrained("als", rank=2, steps=2, user_budgets=write_budgets(folder)).save(
            folder / "budgets"
        ),
        "features": untrained("als", write_features(folder / "features.csv"), rank=2, steps=2).save(
            folder / "features"
        ),
    }


@pytest.fixture
def model(models):
    return models["als"]


def assert_same_bits(model):
    """Of fold-ins without a private part, one user's and everybody's, and of the private pass."""
    public = dataclasses.replace(model, factors=None, seen=None, metrics=None)
    expected = model.factors.user_factors
    rows = public.fold_in(RATINGS)
    assert rows.dtype == np.float32
    learned = np.asarray(model.release.item_factors).any(axis=0)
    np.testing.assert_array_equal(np.ptp(rows, axis=0) > 0, learned)
    np.testing.assert_array_equal(bits(rows), bits(expected))
    for user in range(0, USERS, 6):  # each number of ratings compiles once more
        np.testing.assert_array_equal(bits(public.fold_in(of_user(user))), bits(expected[user]))


def bits(rows):
    return rows.view(np.int32)


def test_a_fold_in_is_the_ridge_that_the_release_and_the_settings_say(model):
    """In quarters of the width, which is 1 here. What is not known of the factors counts."""
    release, own = model.release, of_user(3)
    config = Config(**config_values(Config, model.settings))
    at = [*own]
    target = np.array([*own.values()]) - release.center[at]
    unknown = release.factor_variance[at].sum(0) / config.noise_variance
    precision = [config.level_regularization, *(config.regularization + unknown)]
    design = release.item_factors[at].astype(np.float64)
    expected = np.linalg.solve(
        design.T @ design / config.noise_variance + np.diag(precision),
        design.T @ target / config.noise_variance,
    )
    np.testing.assert_allclose(model.fold_in(own), expected, atol=0.006)


@pytest.mark.parametrize("name", ["als", "means", "non-negative", "budgets"])
def test_users_get_the_bits_of_the_private_pass(models, name):
    assert_same_bits(models[name])


def test_factors_that_may_not_be_negative_are_not_in_a_fold_in(models):
    """Of the same drawn items, which have factors of any sign."""
    rows = models["non-negative"].fold_in(RATINGS)
    assert rows[:, 1:4].min() == 0
    assert rows[:, 0].min() < 0
    assert rows[:, 4:].min() < 0  # slopes
    assert models["als"].fold_in(RATINGS)[:, 1:3].min() < 0


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "kind", "flags"),
    [
        ("als", "dense", {"rank": 2, "steps": 2}),
        ("als-federated", "dense", {"rank": 2, "steps": 2}),
        ("als", "split", {"rank": 3, "steps": 1}),
        ("als", "split", {"rank": 3, "steps": 1, "non_negative": True}),
        ("means", "split", {}),
    ],
)
def test_training_users_get_the_bits_of_their_training(name, kind, flags, request, tmp_path):
    """However the fold-in is compiled, the training quickly."""
    (*earlier, (mechanism, num_steps)), settings = phases(name, **flags)
    model = dpmf_jax.fit(
        RATINGS,
        mechanism,
        num_steps=num_steps,
        earlier=earlier,
        seed=0,
        settings=settings,
        out=tmp_path / "model",
        layout_kind=kind,
        num_devices=1,
    )
    assert_same_bits(model)
    request.getfixturevalue("optimized")
    assert_same_bits(load_model(tmp_path / "model"))


@pytest.mark.parametrize("name", ["als", "means"])
def test_lists_are_those_of_the_curator_and_need_no_private_folder(models, name, tmp_path):
    shutil.copytree(models[name].path, tmp_path / "model")
    shutil.rmtree(tmp_path / "model" / "private")
    before = sorted(tmp_path.rglob("*"))
    loaded = load_model(tmp_path / "model")
    for user in range(0, USERS, 7):
        own = of_user(user)
        for seen in (False, True):
            found = loaded.recommend(ratings=own, k=5, include_seen=seen)
            assert found == models[name].recommend(user, 5, include_seen=seen)
        assert not {item for item, _ in loaded.recommend(ratings=own, k=ITEMS)} & set(own)
    assert sorted(tmp_path.rglob("*")) == before


def test_neither_order_nor_form_of_the_ratings_matters(model):
    own = of_user(3)
    row = model.fold_in(own)
    assert row.shape == (1 + 2 + 2,)
    pairs = [*own.items()][::-1]
    items, ratings = zip(*pairs, strict=True)
    text = [str(item) for item in items]
    frame = {"item": list(items), "rating": list(ratings)}
    alone = Ratings.from_columns(
        [7] * len(own), items, ratings, rating_range=(1, 5), users=[7], fewest=1
    )
    for given in (
        (pairs,),
        (items, ratings),
        (text, np.array(ratings)),
        (np.array(items, float), list(ratings)),
        (pyarrow.table(frame),),
    ):
        assert model.fold_in(*given).tobytes() == row.tobytes()
    for several in (pyarrow.table({"user": ["a"] * len(own), **frame}), alone):
        assert model.fold_in(several).tobytes() == row.tobytes()
        assert model.fold_in(several).shape == (1, 5)


def test_several_new_users_get_a_table_and_do_not_touch_each_other(model):
    some = RATINGS.take(np.isin(RATINGS.user, [4, 9, 11]))
    found = model.recommend(ratings=some, k=3)
    users, items = found["user"].to_pylist(), found["item"].to_pylist()
    assert found.column_names == ["user", "item", "predicted_rating"]
    for user in (4, 9, 11):
        mine = [item for one, item in zip(users, items, strict=True) if one == user]
        assert mine == [item for item, _ in model.recommend(ratings=of_user(user), k=3)]


@pytest.mark.parametrize("name", ["als", "means"])
def test_weights_of_new_users_count(models, name):
    model, items, stars = models[name], [1, 2, 3], [5.0, 1.0, 2.0]
    alike = model.fold_in(items, stars)
    assert model.fold_in(items, stars, weight=[1, 1, 1]).tobytes() == alike.tobytes()
    assert not np.array_equal(model.fold_in(items, stars, weight=[0.5, 1, 1]), alike)
    without = model.fold_in(items[1:], stars[1:])
    # what counts nothing might be anything, also of an item that the model does not know
    assert model.fold_in(items, stars, weight=[0, 1, 1]).tobytes() == without.tobytes()
    unknown = model.fold_in(["x", 2, 3], stars, weight=[1, 1, 1], ignore_unknown=True)
    assert unknown.tobytes() == without.tobytes()
    with pytest.raises(DataError, match="3 ratings and 2 weights"):
        model.fold_in(items, stars, weight=[1, 1])
    with pytest.raises(DataError, match="the weight 2 is not between 0 and 1"):
        model.fold_in(items, stars, weight=[1, 2, 1])
    other = dataclasses.replace(model, settings=model.settings | {"mechanism": "ridge"})
    with pytest.raises(UsageError, match="no weights for a model of ridge"):
        other.fold_in(items, stars, weight=[1, 1, 1])


def test_what_a_fold_in_predicts_is_what_its_list_says(model):
    row = model.fold_in(of_user(5))
    release = model.release
    scores = release.center + release.item_factors @ row
    found = model.recommend(ratings=of_user(5), k=ITEMS, include_seen=True)
    expected = np.clip(scores[[item for item, _ in found]], 1, 5)
    np.testing.assert_allclose([rating for _, rating in found], expected, atol=1e-5)


def test_unknown_items_are_named_or_left_out(model):
    own = of_user(2)
    more = own | {"x": 1.0, "y": 2.0, -3: 3.0, 10**6: 4.0}
    with pytest.raises(DataError, match=rf"4 of {len(more)} ratings .*: 'x', 'y', '-3' and 1 more"):
        model.fold_in(more)
    assert model.fold_in(more, ignore_unknown=True).tobytes() == model.fold_in(own).tobytes()
    assert not model.fold_in({"x": 1.0}, ignore_unknown=True).any()
    by_mean = model.recommend(ratings={"x": 1.0}, k=ITEMS, ignore_unknown=True)
    assert by_mean[0][1] == pytest.approx(min(5, model.release.center.max()))


def test_ratings_are_checked_as_a_reader_checks_them(model):
    with pytest.raises(DataError, match="rating 6 is outside the declared range 1 to 5"):
        model.fold_in({1: 6.0, 2: 3.0})
    clipped = model.fold_in({1: 6.0, 2: 3.0}, out_of_range="clip")
    assert clipped.tobytes() == model.fold_in({1: 5.0, 2: 3.0}).tobytes()
    with pytest.raises(DataError, match="rates item 1 more than once"):
        model.fold_in([(1, 2.0), (3, 4.0), ("1", 4.0)])
    last = model.fold_in([1, 3, 1], [2.0, 4.0, 5.0], duplicates="last")
    assert last.tobytes() == model.fold_in({1: 5.0, 3: 4.0}).tobytes()
    with pytest.raises(DataError, match="not a number\nwhere: ratings, row 1"):
        model.fold_in([1, 2], [3.0, float("nan")])
    with pytest.raises(DataError, match="not numeric"):
        model.fold_in({1: "good"})
    for nothing in ({}, [], RATINGS.take(np.empty(0, np.int64))):
        with pytest.raises(DataError, match="there is no rating"):
            model.fold_in(nothing)
    with pytest.raises(DataError, match="2 items and 1 ratings"):
        model.fold_in([1, 2], [3.0])
    with pytest.raises(DataError, match="no column 'rating'"):
        model.fold_in(pyarrow.table({"item": [1], "liked": [2.0]}))


@pytest.mark.parametrize("given", [3, "a movie", [1, 2], [(1, 2, 3)]])
def test_what_is_no_ratings_is_refused(model, given):
    with pytest.raises(UsageError, match="no ratings of one user"):
        model.fold_in(given)


def test_a_list_is_for_training_users_or_for_new_ones(model):
    for given in ({}, {"user": 1, "ratings": {1: 2.0}}):
        with pytest.raises(UsageError, match="give one of them"):
            model.recommend(**given)
    with pytest.raises(UsageError, match="ignore_unknown without ratings"):
        model.recommend(1, ignore_unknown=True)
    with pytest.raises(UsageError, match="at least 1"):
        model.recommend(ratings={1: 2.0}, k=0)


def test_other_mechanisms_say_which_serve_new_users(model):
    for settings, said in (
        (model.settings | {"mechanism": "gaussian-joint-noise"}, "of gaussian-joint-noise gives"),
        ({}, "does not say its mechanism"),
    ):
        other = dataclasses.replace(model, settings=settings)
        for ask in (other.fold_in, lambda ratings, other=other: other.recommend(ratings=ratings)):
            with pytest.raises(UsageError, match=said) as refused:
                ask({1: 2.0})
            assert "als and als-federated and means and als-implicit and ridge" in refused.value.fix
    assert {name for name, spec in table().items() if spec.fold_in} == {
        *("als", "als-federated", "means", "als-implicit", "ridge"),
    }


def test_a_release_that_does_not_fit_is_refused(models, model):
    """One of an earlier version serves its training users still."""
    earlier = model.release._replace(factor_variance=None, factor_unit=None)
    old = dataclasses.replace(model, release=earlier)
    with pytest.raises(UsageError, match="an earlier version made it"):
        old.fold_in({1: 2.0})
    assert old.recommend(1) == model.recommend(1)
    fewer = dataclasses.replace(model, settings=models["means"].settings)
    with pytest.raises(UsageError, match="releases 4 factors and its settings say 2"):
        fewer.fold_in({1: 2.0})
    odd = dataclasses.replace(model, settings={"mechanism": "als", "rating_range": [1, 5]})
    with pytest.raises(UsageError, match="settings are not those of als"):
        odd.fold_in({1: 2.0})


def test_only_als_with_factors_releases_their_variances(models):
    """What users have slopes for is known exactly."""
    for name, rank in (("als", 2), ("means", 0)):
        release = load_model(models[name].path).release
        assert release.factor_variance.shape == (ITEMS, rank + 2)
        assert release.factor_variance[:, :rank].any(axis=0).all()
        assert not release.factor_variance[:, rank:].any()
        assert release.factor_unit.shape == ()
        said = "their posterior variances" in models[name].guarantee.released
        assert said == (rank > 0)
