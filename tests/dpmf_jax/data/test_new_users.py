"""Files of new users: two columns are one user's ratings, and nobody's are taken for another's."""

import numpy as np
import pytest

from dpmf_jax.data import datasets
from dpmf_jax.data.columns import LONE_USER
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, UsageError


@pytest.fixture
def load(tmp_path):
    def load(text, name="mine.csv", **options):
        (tmp_path / name).write_text(text)
        return datasets.load_new_users(tmp_path / name, rating_range=(1, 5), **options)

    return load


def rows(ratings):
    return [
        (ratings.users[user].item(), ratings.items[item].item(), float(value))
        for user, item, value in zip(ratings.user, ratings.item, ratings.value, strict=True)
    ]


MINE = [(LONE_USER, 7, 5.0), (LONE_USER, 3, 1.5)]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("item,rating\n7,5\n3,1.5\n", {}),
        ("rating;movieId\n5;7\n1.5;3\n", {}),
        ("7,5\n3,1.5\n", {"no_header": True}),
        ("5\t7\n1.5\t3\n", {"item_column": "2", "rating_column": "1"}),
        (
            "item,title,rating\n7,Heat,5\n3,Up,1.5\n",
            {"item_column": "item", "rating_column": "rating"},
        ),
    ],
)
def test_two_columns_are_one_users_ratings(load, text, options):
    assert rows(load(text, **options)) == MINE


def test_one_rating_will_do(load):
    assert rows(load("item,rating\nheat,4\n")) == [(LONE_USER, "heat", 4.0)]
    assert rows(load("user,item,rating\nann,heat,4\n")) == [("ann", "heat", 4.0)]


def test_a_column_of_users_keeps_them_apart(load):
    expected = [("ann", 7, 5.0), ("bob", 7, 2.0)]
    assert rows(load("user,item,rating\nann,7,5\nbob,7,2\n")) == expected
    assert rows(load("ann,7,5\nbob,7,2\n", no_header=True)) == expected
    told = {"item_column": "item", "rating_column": "rating"}
    assert rows(load("user,item,rating\nann,7,5\nbob,7,2\n", **told)) == expected
    for options in ({}, {"user_column": "name"}):
        with pytest.raises(DataError, match="no user column"):
            load("who,item,rating\nann,7,5\nbob,7,2\n", **options)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the file is empty"),
        ("item,rating\n", "there is no rating\n"),
        ("user,item\nann,7\n", "there is no rating column"),
        ("film,rating\n7,5\n", "there is no item column"),
        ("7,5\n3,1\n", "add --no-header if the columns are item, rating in this order"),
        ("item,rating\n7,5\n3,good\n", "the rating 'good' is not a number\nwhere: .*line 3"),
        ("item,rating\n7,5\n3,6\n", "rating 6 is outside the declared range.*\nwhere: .*line 3"),
        ("item,rating\n7,5\n3,4,1\n", "3 columns where 2 are expected\nwhere: .*line 3"),
        ("item,rating\n7,5\n,4\n", "the item id is empty\nwhere: .*line 3"),
        ("item,rating\n7,5\n7,4\n", "user new rates item 7 more than once\nwhere: .*line 3"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(load, text, what):
    with pytest.raises(DataError, match=what) as refused:
        load(text)
    assert refused.value.fix


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(DataError, match="there is no file"):
            datasets.load_new_users(path, rating_range=(1, 5))


def test_training_data_needs_users_still(tmp_path):
    (tmp_path / "mine.csv").write_text("item,rating\n7,5\n3,1\n")
    with pytest.raises(DataError, match="who has seen what"):
        datasets.load(tmp_path / "mine.csv", rating_range=(1, 5))
    with pytest.raises(DataError, match="only one user"):
        Ratings.from_columns([1, 1], [1, 2], np.array([1, 2]), rating_range=(1, 5))
    with pytest.raises(UsageError, match="has no column 'item'"):
        datasets.load_new_users(
            tmp_path / "mine.csv", rating_range=(1, 5), no_header=True, item_column="item"
        )
