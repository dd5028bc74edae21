"""Lists of a model: among some items, like an item, and why; tables of the kind that was given."""

import dataclasses
import pickle

import numpy as np
import pandas
import polars
import pyarrow
import pytest

from dpmf_jax.errors import DataError, PrivacyError, UsageError
from dpmf_jax.models.model import Model
from dpmf_jax.protocol import Factors, Release
from tests.cases.als import ITEMS, untrained

pytestmark = pytest.mark.usefixtures("quick_compilation")

ALL = range(ITEMS)
OWN = {0: 5.0, 3: 1.0, 4: 4.0}


@pytest.fixture(scope="module")
def model(quick_compilation):
    return untrained("als", rank=2, steps=2)


def own_table(library):
    return library.DataFrame({"movieId": list(OWN), "Rating": list(OWN.values())})


def several(library):
    return library.DataFrame({"userId": ["a", "a", "b"], "movieId": [0, 3, 4], "stars": [5, 1, 4]})


def test_a_list_among_candidates_is_the_whole_list_without_the_others(model):
    user = model.users[3].item()
    whole = model.recommend(user, ITEMS, include_seen=True)
    some = [item for item, _ in whole][1::2]
    among = [pair for pair in whole if pair[0] in some]
    assert model.recommend(user, ITEMS, include_seen=True, candidates=some) == among
    others = [item for item in ALL if item not in some]
    assert model.recommend(user, ITEMS, include_seen=True, exclude=others) == among
    assert model.recommend(user, 2, include_seen=True, candidates=some) == among[:2]
    unseen = model.recommend(user, ITEMS)
    assert model.recommend(user, ITEMS, candidates=some) == [one for one in unseen if one in among]
    assert model.recommend(user, 3, candidates=some, exclude=some[1:]) in ([], [among[0]])
    new = model.recommend(ratings=OWN, k=ITEMS)
    assert model.recommend(ratings=OWN, k=ITEMS, exclude=some) == [
        pair for pair in new if pair[0] not in some
    ]
    assert not {item for item, _ in new} & set(OWN)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"candidates": [999]}, DataError, "unknown item 999"),
        ({"exclude": "none"}, DataError, "unknown item 'none'"),
        ({"candidates": [2], "exclude": [2]}, UsageError, "no item is left"),
        ({"candidates": []}, UsageError, "no item is left"),
    ],
)
def test_a_list_of_no_item_is_refused(model, given, error, words):
    with pytest.raises(error, match=words):
        model.recommend(model.users[0].item(), **given)


@pytest.mark.parametrize("library", [pandas, polars])
def test_a_table_is_of_the_library_that_the_question_was_of(model, library):
    rows = model.recommend(ratings=several(library), k=2)
    assert type(rows) is library.DataFrame
    assert list(rows.columns) == ["user", "item", "predicted_rating"]
    plain = model.recommend(ratings=pyarrow.table(several(polars)), k=2)
    assert type(plain) is pyarrow.Table
    assert plain.to_pydict() == pyarrow.table(rows).to_pydict()
    users = library.Series(model.users[:2].tolist())
    assert type(model.recommend(users, k=2)) is library.DataFrame
    fitted = dataclasses.replace(model, frames=library.__name__)
    assert type(fitted.recommend(model.users[:2], k=2)) is library.DataFrame
    assert fitted.recommend(model.users[0].item(), 2) == model.recommend(model.users[0].item(), 2)


def test_columns_of_new_users_have_their_usual_names(model):
    mapping = model.recommend(ratings=OWN, k=3)
    assert model.recommend(ratings=own_table(polars), k=3) == mapping
    assert model.recommend(ratings=own_table(pandas), k=3) == mapping
    with pytest.raises(DataError, match="there is no column 'rating'"):
        model.recommend(ratings=own_table(pandas)[["movieId"]], k=3)


def test_inner_products_of_vectors_are_predictions(model):
    vectors = model.to_numpy()
    assert vectors.users is None  # everybody's own
    user = np.append(model.fold_in(OWN), np.float32(1))
    order = np.argsort(-(vectors.items @ user), kind="stable")
    ranked = [item for item in vectors.item_ids[order].tolist() if item not in OWN]
    assert ranked[:5] == [item for item, _ in model.recommend(ratings=OWN, k=5)]
    rows = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    items = np.arange(10, dtype=np.float32).reshape(5, 2)
    open_ = a_model(Release(user_factors=rows, item_factors=items, center=np.float32(3)))
    open_ = dataclasses.replace(open_, factors=Factors(rows, items, np.float32(3)))
    both = open_.to_numpy()
    predicted = open_.predict(np.repeat(open_.users, 5), np.tile(open_.items, 3), clip=False)
    np.testing.assert_allclose((both.users @ both.items.T).ravel(), predicted)
    with pytest.raises(UsageError, match="releases no item factors"):
        a_model(Release(center=np.float32(3))).to_numpy()


def test_similar_items_point_the_same_way():
    items = np.array([[1, 0], [2, 0.1], [0, 3], [-1, 0], [0, 0]], np.float32)
    model = a_model(Release(item_factors=items, center=np.zeros(5, np.float32)))
    found = model.similar_items("i0", 10)
    assert [item for item, _ in found] == ["i1", "i2", "i4", "i3"]
    assert [round(cosine, 3) for _, cosine in found] == [0.999, 0.0, 0.0, -1.0]
    assert model.similar_items("i0", 1) == found[:1]
    levels = a_model(
        Release(item_factors=np.c_[np.ones(5), items].astype(np.float32), center=np.zeros(5))
    )
    assert levels.similar_items("i0", 10) == found
    with pytest.raises(DataError, match="unknown item"):
        model.similar_items("i9")
    with pytest.raises(UsageError, match="k must be a whole number, at least 1"):
        model.similar_items("i0", 0)
    with pytest.raises(UsageError, match="releases no item factors"):
        a_model(Release(center=np.zeros(5, np.float32))).similar_items("i0")
    with pytest.raises(UsageError, match="releases no item factors"):
        a_model(Release(item_factors=np.ones((5, 1)), center=np.zeros(5))).similar_items("i0")


def test_similar_users_only_where_user_factors_are_released(model):
    with pytest.raises(PrivacyError, match="releases no user factors"):
        model.similar_users(model.users[0])
    rows = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    assert [user for user, _ in a_model(Release(user_factors=rows)).similar_users("u0")] == [
        "u2",
        "u1",
    ]


def test_the_effect_of_a_rating_is_what_the_prediction_loses_without_it(model):
    target = 6
    found = model.explain(target, OWN).to_pylist()
    assert {row["item"]: row["rating"] for row in found} == OWN
    assert sorted(found, key=lambda row: -abs(row["effect"])) == found
    with_all = predicted(model, OWN, target)
    for row in found:
        without = {item: value for item, value in OWN.items() if item != row["item"]}
        assert row["effect"] == pytest.approx(
            with_all - predicted(model, without, target), abs=1e-6
        )
    assert any(row["effect"] for row in found)
    assert model.explain(target, OWN, 1).to_pylist() == found[:1]
    assert type(model.explain(target, own_table(pandas))) is pandas.DataFrame


def test_an_item_is_explained_to_one_user_who_rated_something(model):
    with pytest.raises(UsageError, match="to one user"):
        model.explain(0, several(pandas))
    with pytest.raises(DataError, match="no rating to explain"):
        model.explain(0, {"unknown": 3.0}, ignore_unknown=True)
    with pytest.raises(DataError, match="unknown item"):
        model.explain(999, OWN)


def test_a_model_says_in_short_what_it_is_and_a_notebook_unfolds_its_statement(model):
    said = repr(model)
    assert said.startswith("Model(als on ")
    assert model.guarantee.headline in said
    assert len(said) < 400
    page = dataclasses.replace(model, settings={"mechanism": "<b>", "data": "&"})._repr_html_()
    assert "&lt;b&gt; on &amp;: " in page
    assert model.guarantee.statement.splitlines()[0].replace("'", "&#x27;") in page


def test_a_pickled_model_is_the_same_model(model):
    again = pickle.loads(pickle.dumps(model))
    user = model.users[2].item()
    assert again.recommend(user, 5) == model.recommend(user, 5)
    assert again.guarantee == model.guarantee
    assert repr(again) == repr(model)


def predicted(model, own, item):
    row = model.fold_in(own)
    return float(row @ model.release.item_factors[item])


def a_model(release):
    users, items = np.array(["u0", "u1", "u2"]), np.array([f"i{k}" for k in range(5)])
    shape = untrained("means")
    return Model(
        release=release,
        guarantee=shape.guarantee,
        users=users,
        items=items,
        rating_range=(1.0, 5.0),
        settings={},
        factors=Factors(),
    )
