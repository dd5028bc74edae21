"""Ratings in any form that people hold are the same ratings, and what is no such form says so."""

import dataclasses

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import scipy.sparse

from dpmf_jax.data import datasets, frames, given
from dpmf_jax.errors import DataError, UsageError
from tests.cases.fit import write_ratings

USER = np.array([3, 0, 3, 2, 1])
ITEM = np.array([0, 1, 2, 1, 2])
VALUE = np.array([4.0, 1.0, 2.5, 5.0, 3.0], np.float32)
ROWS = list(zip(USER.tolist(), ITEM.tolist(), VALUE.tolist(), strict=True))
COLUMNS = {"userId": USER, "movie_id": ITEM, "stars": VALUE}
RANGE = {"rating_range": (1, 5)}


class OldFrame:
    """Of the dataframe interface alone, as pandas was before it spoke Arrow's."""

    def __init__(self, frame):
        self._frame = frame

    def __dataframe__(self, *words, **named):
        return self._frame.__dataframe__(*words, **named)


FORMS = {
    "pandas": pandas.DataFrame(COLUMNS),
    "pandas, other columns": pandas.DataFrame(
        {"when": [{}, 1, "a", None, object()]} | COLUMNS | {3: VALUE}
    ),
    "polars": polars.DataFrame(COLUMNS),
    "arrow": pyarrow.table(COLUMNS),
    "old frame": OldFrame(pyarrow.table(COLUMNS)),
    "mapping": COLUMNS,
    "coo": scipy.sparse.coo_array((VALUE, (USER, ITEM))),
    "csr": scipy.sparse.csr_matrix((VALUE, (USER, ITEM))),
    "columns": (USER, ITEM, VALUE),
    "lists": (USER.tolist(), ITEM.tolist(), VALUE.tolist()),
    "rows": ROWS,
    "array": np.array(ROWS),
}


def pairs(ratings):
    return sorted(
        zip(
            ratings.users[ratings.user].tolist(),
            ratings.items[ratings.item].tolist(),
            ratings.value.tolist(),
            strict=True,
        )
    )


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same_ratings(form):
    read = given.read(FORMS[form], **RANGE)
    assert pairs(read) == sorted(ROWS)
    assert read.rating_range == (1.0, 5.0)
    assert (read.users.tolist(), read.items.tolist()) == ([0, 1, 2, 3], [0, 1, 2])


@pytest.mark.parametrize("form", FORMS)
def test_a_declared_catalogue_is_kept(form):
    if scipy.sparse.issparse(FORMS[form]):
        names = {"users": ["a", "b", "c", "d"], "items": ["x", "y", "z"]}
        read = given.read(FORMS[form], **RANGE, **names)
        assert pairs(read)[0] == ("a", "y", 1.0)
        assert pairs(read)[-1] == ("d", "z", 2.5)
        with pytest.raises(DataError, match="the matrix has 4 users and 3 ids of them"):
            given.read(FORMS[form], **RANGE, users=["a", "b", "c"])
        return
    read = given.read(FORMS[form], **RANGE, users=np.arange(9), items=[2, 1, 0])
    assert (read.num_users, read.items.tolist()) == (9, [2, 1, 0])
    assert pairs(read) == sorted(ROWS)


def test_the_shape_of_a_sparse_matrix_is_its_catalogue_and_a_stored_zero_a_rating():
    read = given.read(scipy.sparse.coo_array((VALUE, (USER, ITEM)), shape=(8, 5)), **RANGE)
    assert (read.num_users, read.num_items) == (8, 5)
    stored = scipy.sparse.coo_array(([0.0, 2.0], ([0, 1], [1, 0])))
    with pytest.raises(DataError, match="rating 0 is outside the declared range 1 to 5"):
        given.read(stored, **RANGE)
    assert len(given.read(stored, rating_range=(0, 5))) == 2


@pytest.mark.parametrize("form", FORMS)
def test_without_ratings_every_row_is_something_seen(form):
    read = given.read(FORMS[form], implicit=True)
    assert set(read.value.tolist()) == {1.0}
    assert read.rating_range == (0.0, 1.0)
    assert [pair[:2] for pair in pairs(read)] == sorted(row[:2] for row in ROWS)


@pytest.mark.parametrize(
    "data",
    [
        (USER, ITEM),
        [row[:2] for row in ROWS],
        np.array(ROWS)[:, :2],
        pandas.DataFrame(COLUMNS).iloc[:, :2],
        {"user": USER, "item": ITEM},
    ],
)
def test_two_columns_are_for_what_was_seen(data):
    assert len(given.read(data, implicit=True)) == 5
    with pytest.raises(DataError, match="no rating"):
        given.read(data, **RANGE)


@pytest.mark.parametrize("weighted", [(USER, ITEM, VALUE, VALUE / 5), np.c_[ROWS, VALUE / 5]])
def test_a_fourth_column_is_the_weight(weighted):
    assert given.read(weighted, **RANGE).weight == pytest.approx(VALUE / 5)


@pytest.mark.parametrize("library", [pandas, polars])
def test_columns_of_other_names_are_told(library):
    frame = library.DataFrame({"a": USER, "b": ITEM, "c": VALUE, "d": VALUE / 5})
    with pytest.raises(DataError, match="there is no user column"):
        given.read(frame, **RANGE)
    names = {"user_column": "a", "item_column": "2", "rating_column": "c", "weight_column": "d"}
    read = given.read(frame, **RANGE, **names)
    assert pairs(read) == sorted(ROWS)
    assert read.weight == pytest.approx(VALUE / 5)
    with pytest.raises(UsageError, match="--weight-column: this means nothing to rows of which"):
        given.read(frame, implicit=True, **names)


def test_categories_and_strings_are_ids():
    frame = pandas.DataFrame(COLUMNS)
    frame["userId"] = ("u" + frame["userId"].astype(str)).astype("category")
    assert given.read(frame, **RANGE).users.tolist() == ["u0", "u1", "u2", "u3"]
    plain = polars.DataFrame(frame.astype({"userId": str}))
    for kind in (polars.Categorical, polars.Enum(["u3", "u2", "u1", "u0"])):
        named = plain.with_columns(polars.col("userId").cast(kind))
        both = polars.concat([named[:3], named[3:]], rechunk=False)
        assert pairs(given.read(both, **RANGE)) == pairs(given.read(frame, **RANGE))


def test_what_is_not_computed_yet_is_to_be_collected():
    with pytest.raises(DataError, match="a LazyFrame is no table") as raised:
        given.read(polars.DataFrame(COLUMNS).lazy(), **RANGE)
    assert raised.value.fix.startswith("give what its collect() returns")


def test_names_and_paths_and_checked_ratings_are_read_as_ever(tmp_path):
    path = tmp_path / "mine.csv"
    write_ratings(path, ROWS)
    for data in (path, str(path), datasets.load(path, **RANGE)):
        assert pairs(given.read(data, **(RANGE if data is path or data == str(path) else {}))) == (
            sorted(ROWS)
        )
    assert len(given.read("synthetic-30x20x100")) == 100
    checked = datasets.load(path, **RANGE)
    assert given.read(checked) is checked
    assert given.read(checked, implicit=True).rating_range == (0.0, 1.0)
    with pytest.raises(UsageError, match="--rating-range: this means nothing to ratings that are"):
        given.read(checked, rating_range=(1, 5))


@pytest.mark.parametrize(
    ("data", "options", "error", "words"),
    [
        (COLUMNS, {}, UsageError, "the rating range must be declared"),
        (COLUMNS, RANGE | {"split": "u1"}, UsageError, "--split: this means nothing to a dict"),
        ((USER, ITEM, VALUE), RANGE | {"user_column": "a"}, UsageError, "--user-column: this"),
        (3, RANGE, DataError, "a int is no table of ratings"),
        (None, RANGE, DataError, "a NoneType is no table of ratings"),
        ([], RANGE, DataError, "a list is no table of ratings"),
        ([3, 4], RANGE, DataError, "a list is no table of ratings"),
        ([(1, 2, 3), (1, 2)], RANGE, DataError, "a list is no table of ratings"),
        ((USER,), RANGE, DataError, "a tuple is no table of ratings"),
        (np.eye(9), RANGE, DataError, r"a ndarray of shape \(9, 9\) is no table of ratings"),
        (np.arange(3), RANGE, DataError, r"a ndarray of shape \(3,\) is no table of ratings"),
        ((USER, ITEM, VALUE[:2]), RANGE, DataError, "5, 5 and 2 rows"),
        ((USER, ITEM + 0.5, VALUE), RANGE, DataError, "the item id 0.5 is not a whole"),
        (scipy.sparse.coo_array(VALUE), RANGE, DataError, "a sparse array of 1 dimensions"),
    ],
)
def test_what_is_no_ratings_is_told_and_how_they_are_given(data, options, error, words):
    with pytest.raises(error, match=words) as refused:
        given.read(data, **options)
    assert refused.value.fix


def test_a_result_is_of_the_library_that_the_question_was_of():
    table = pyarrow.table({"user": [1, 2]})
    for library in (pandas, polars):
        frame = library.DataFrame({"user": [1, 2]})
        assert frames.kind_of(frame["user"]) == library.__name__
        assert type(frames.as_kind(table, frames.kind_of(frame))) is library.DataFrame
    assert frames.as_kind(table, frames.kind_of(table)) is table
    assert frames.kind_of(dataclasses.dataclass) is None
