"""Ratings: the laws of `from_columns`, its options, tables, and the hash of triples."""

import hashlib

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest

from dpmf_jax.data import ids
from dpmf_jax.data.ratings import Ratings, check_range
from dpmf_jax.errors import DataError, UsageError
from tests.cases.processes import python

IDS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=7, unique=True),
    st.lists(st.integers(0, 9), min_size=2, max_size=7, unique=True),
    st.lists(
        st.text("abcé01 -", min_size=1, max_size=4).map(str.strip).filter(bool),
        min_size=2,
        max_size=7,
        unique=True,
    ),
)


@st.composite
def columns(draw):
    """User ids, item ids and values of distinct pairs that use at least two users and two items."""
    users, items = draw(IDS), draw(IDS)
    pairs = [(user, item) for user in users for item in items]
    chosen = [
        *draw(st.lists(st.sampled_from(pairs), unique=True, max_size=12)),
        pairs[0],
        pairs[-1],
    ]
    chosen = list(dict.fromkeys(chosen))
    value = draw(
        hnp.arrays(np.float32, len(chosen), elements=st.sampled_from([1, 1.5, 2, 3, 4.5, 5]))
    )
    return [user for user, _ in chosen], [item for _, item in chosen], value


@hypothesis.given(columns())
def test_the_columns_come_back_through_the_catalogue(table):
    user, item, value = table
    ratings = Ratings.from_columns(user, item, value, rating_range=(1, 5))
    assert ratings.users[ratings.user].tolist() == user
    assert ratings.items[ratings.item].tolist() == item
    np.testing.assert_array_equal(ratings.value, value)
    assert ratings.users.tolist() == sorted(set(user))
    assert (ratings.user.dtype, ratings.item.dtype, ratings.value.dtype) == (
        np.int32,
        np.int32,
        np.float32,
    )
    assert ratings.notes == ()


@hypothesis.given(columns(), st.randoms())
def test_order_and_catalogue_change_no_hash_but_a_value_does(table, random):
    user, item, value = table
    ratings = Ratings.from_columns(user, item, value, rating_range=(1, 5))
    rows = list(range(len(value)))
    random.shuffle(rows)
    shuffled = ratings.take(np.array(rows))
    assert shuffled.sha256() == ratings.sha256()
    more = np.append(ratings.users, [77 if ratings.users.dtype.kind == "i" else "zz"])
    if len(set(more.tolist())) == len(more):
        wider = Ratings.from_columns(user, item, value, users=more, rating_range=(1, 5))
        assert wider.num_users == ratings.num_users + 1
        assert wider.sha256() == ratings.sha256()
    value[0] = 4
    assert (
        Ratings.from_columns(user, item, value + (value == 4) * 0.5, rating_range=(1, 5)).sha256()
        != ratings.sha256()
    )


def test_the_hash_is_that_of_the_sorted_lines():
    ratings = Ratings.from_columns([10, 9, 9], ["b", "b", "a"], [3, 4.5, 1], rating_range=(1, 5))
    lines = sorted([b"10\tb\t3\n", b"9\tb\t4.5\n", b"9\ta\t1\n"])
    assert ratings.sha256() == hashlib.sha256(b"".join(lines)).hexdigest()


def test_dense_sparse_and_object_integers_agree():
    user, item, value = np.array([5, 3, 5, 4]), np.array([1, 1, 2, 2]), [1, 2, 3, 4]
    dense = Ratings.from_columns(user, item, value, rating_range=(1, 5))
    for other in (user.astype(np.uint8), user.astype(object), user.astype(float), pa.array(user)):
        assert (
            Ratings.from_columns(other, item, value, rating_range=(1, 5)).sha256() == dense.sha256()
        )
    sparse = Ratings.from_columns(user * 2**59, item, value, rating_range=(1, 5))
    np.testing.assert_array_equal(sparse.user, dense.user)
    assert sparse.users.tolist() == [3 * 2**59, 4 * 2**59, 5 * 2**59]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("first", [(1, 7, 1), (2, 7, 5), (2, 8, 2)]),
        ("last", [(2, 7, 5), (2, 8, 2), (1, 7, 4)]),
        ("mean", [(1, 7, 2), (2, 7, 5), (2, 8, 2)]),
    ],
)
def test_duplicates_are_merged_in_place_and_recorded(option, expected):
    user, item, value = [1, 2, 1, 2, 1], [7, 7, 7, 8, 7], [1, 5, 1, 2, 4]
    ratings = Ratings.from_columns(user, item, value, rating_range=(1, 5), duplicates=option)
    triples = zip(
        ratings.users[ratings.user], ratings.items[ratings.item], ratings.value, strict=True
    )
    assert list(triples) == expected
    assert ratings.notes == (f"2 duplicate ratings merged: {option}",)


def test_values_out_of_range_are_refused_dropped_or_clipped():
    user, item, value = [1, 2, 3, 3], [7, 7, 8, 7], [0, 5, 9, 3]
    with pytest.raises(
        DataError,
        match=r"rating 0 is outside the declared range 1 to 5 \(2 such rows\)\nwhere: .* row 0",
    ):
        Ratings.from_columns(user, item, value, rating_range=(1, 5))
    dropped = Ratings.from_columns(user, item, value, rating_range=(1, 5), out_of_range="drop")
    assert dropped.value.tolist() == [5, 3]
    assert dropped.users.tolist() == [1, 2, 3]  # the catalogue does not depend on values
    clipped = Ratings.from_columns(user, item, value, rating_range=(1, 5), out_of_range="clip")
    assert clipped.value.tolist() == [1, 5, 5, 3]
    assert dropped.notes == ("2 ratings outside 1 to 5: drop",)
    assert clipped.notes == ("2 ratings outside 1 to 5: clip",)


def test_rows_are_named_as_they_came_in_after_others_were_dropped():
    user, item = [1, 1, 2, 3, 2], [7, 8, 7, 8, 7]
    with pytest.raises(
        DataError, match="user 2 rates item 7 more than once\nwhere: ratings, row 4 "
    ):
        Ratings.from_columns(
            user, item, [-1, 9, 2, 3, 4], rating_range=(1, 5), out_of_range="drop", not_rated=-1
        )


def test_a_bound_that_float32_rounds_is_inside():
    ratings = Ratings.from_columns([1, 2], [1, 2], [0.1, 0.7], rating_range=(0.1, 0.7))
    assert ratings.num_ratings == 2


def test_a_declared_catalogue_is_kept_and_unknown_ids_are_refused():
    ratings = Ratings.from_columns(
        [2, 1], ["b", "a"], [1, 2], rating_range=(1, 5), users=[3, 2, 1], items=["b", "a", "c"]
    )
    assert ratings.user.tolist() == [1, 2]
    assert ratings.item.tolist() == [0, 1]
    assert (ratings.num_users, ratings.num_items) == (3, 3)
    with pytest.raises(
        DataError, match="the item d is not among the declared items\nwhere: ratings, row 1 "
    ):
        Ratings.from_columns([2, 1], ["b", "d"], [1, 2], rating_range=(1, 5), items=["b", "a"])
    with pytest.raises(DataError, match="repeat an id"):
        Ratings.from_columns([2, 1], ["b", "a"], [1, 2], rating_range=(1, 5), items=["b", "a", "b"])


@pytest.mark.parametrize(
    ("user", "item", "value", "says"),
    [
        ([1, 2], [1, 2, 3], [1, 2], "2, 3 and 2 rows"),
        ([], [], [], "there is no rating"),
        ([1, 1], [1, 2], [1, 2], "only one user, 1"),
        ([1, 2], [1, 1], [1, 2], "only one item, 1"),
        ([1, 2], [1, 2], [1, np.nan], "not a number"),
        ([1, 2], [1, 2], [1, np.inf], "infinite"),
        ([1, 2], [1, 2], np.ma.masked_array([1.0, 2.0], [False, True]), "not a number"),
        ([1, 2], [1, 2], ["1", "good"], "not numeric"),
        ([1, 2], [1, 2], [[1], [2]], "2 dimensions"),
        ([1, None], [1, 2], [1, 2], "the user id None"),
        ([1, True], [1, "b"], [1, 2], "outside|not a string|type"),
        ([1.0, 2.5], [1, 2], [1, 2], "2.5 is not a whole number"),
        (
            [1.0, 2.0**60],
            [1, 2],
            [1, 2],
            "is not a whole number",
        ),  # a float that has lost digits is no id
        ([1.0, np.nan], [1, 2], [1, 2], "nan is not a whole number"),
        ([1.0, 2.0**53], [1, 2], [1, 2], "is not a whole number"),  # or may not have been one
        (np.array([1, 2**64 - 1], np.uint64), [1, 2], [1, 2], "more than 63 bits"),
        ([b"a", b"b"], [1, 2], [1, 2], "type"),
        ([1, 2], ["a", ""], [1, 2], "the item id is empty"),
        ([1, 2], ["a", "b\n"], [1, 2], "control character"),
        ([1, 2], ["a", "b" * 300], [1, 2], "300 characters"),
    ],
)
def test_bad_columns_are_refused(user, item, value, says):
    if says.startswith("outside"):
        user = np.array(user, object)
    with pytest.raises(DataError, match=says):
        Ratings.from_columns(user, item, value, rating_range=(1, 5))


@pytest.mark.parametrize(
    "rating_range", [(1, 1), (5, 1), (1, np.nan), (-np.inf, 5), (1,), None, "15x"]
)
def test_a_range_is_two_finite_numbers_in_order(rating_range):
    with pytest.raises(UsageError, match="rating range"):
        check_range(rating_range)


class Capsule:
    """Any library's dataframe: all that it offers is the Arrow interface."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def test_every_kind_of_table_gives_the_same_ratings():
    plain = {"who": ["b", "a", "a"], "what": [2**40, 2**40, 7], "stars": [1, 2.5, 3]}
    table = pa.table(plain)
    encoded = table.set_column(0, "who", table["who"].dictionary_encode())
    large = table.set_column(0, "who", table["who"].cast(pa.large_string()))
    chunked = pa.concat_tables([encoded.slice(0, 1), encoded.slice(1)])
    names = {"user": "who", "item": "what", "rating": "stars"}
    expected = Ratings.from_columns(*plain.values(), rating_range=(1, 5)).sha256()
    batch = table.to_batches()[0]
    for given in (plain, table, batch, table.to_reader(), Capsule(table), encoded, large, chunked):
        assert Ratings.from_table(given, **names, rating_range=(1, 5)).sha256() == expected


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (pa.table({"user": [1, 2], "item": [1, 2]}), "no column 'rating'"),
        ({"user": [1, 2], "rating": [1, 2]}, "no column 'item'"),
        (pa.table({"user": [1, None], "item": [1, 2], "rating": [1, 2]}), "the user id is empty"),
        (pa.table({"user": [1, 2], "item": [1, 2], "rating": [1, None]}), "not a number"),
        (pa.table({"user": [1, 2], "item": [1, 2], "rating": ["1", "x"]}), "not numeric"),
        (pa.table({"user": [[1], [2]], "item": [1, 2], "rating": [1, 2]}), "of type list"),
        (7, "int is no Arrow table"),
    ],
)
def test_bad_tables_are_refused(table, says):
    with pytest.raises(DataError, match=says):
        Ratings.from_table(table, rating_range=(1, 5))


def test_ids_that_only_look_like_integers_stay_strings():
    def column(*entries):
        return ids.Coded(np.arange(len(entries), dtype=np.int32), np.array(entries))

    for entry in ("07", "+7", "7.0", "-0", "9223372036854775808", "7e1", "٧"):
        assert ids.integers(column("1", entry)) is None
    numbers = ids.integers(column("-7", "0", "9223372036854775807"))
    assert numbers is not None
    assert numbers.ids.tolist() == [-7, 0, 2**63 - 1]


def test_importing_ratings_imports_neither_jax_nor_pyarrow():
    program = (
        "import dpmf_jax.data.ratings, sys; print(sorted({'jax', 'pyarrow'} & set(sys.modules)))"
    )
    assert python(program).stdout.strip() == "[]"
