"""Who has seen what: files without ratings, and ratings of which only their presence is read."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from dpmf_jax.data import datasets, formats
from dpmf_jax.data.report import check
from dpmf_jax.errors import DataError, UsageError

PAIRS = [("1", "10"), ("1", "20"), ("2", "10")]


def pairs(ratings):
    user, item = ratings.users[ratings.user], ratings.items[ratings.item]
    assert ratings.rating_range == (0.0, 1.0)
    assert ratings.value.dtype == np.float32
    assert (ratings.value == 1).all()
    return sorted(zip(map(str, user), map(str, item), strict=True))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("user,item\n1,10\n1,20\n2,10\n", {}),
        ("item_id\tuserId\n10\t1\n20\t1\n10\t2\n", {}),
        ("1 10\n1 20\n2 10\n", {"no_header": True}),
        ("10::1\n20::1\n10::2\n", {"user_column": "2", "item_column": "1"}),
        ("who,what\n1,10\n1,20\n2,10\n", {"user_column": "who", "item_column": "what"}),
        # with ratings, whatever they are
        ("user,item,rating\n1,10,5\n1,20,-7\n2,10,none\n", {}),
        ("1,10,5,881250949\n1,20,3,0\n2,10,1,0\n", {"no_header": True}),
    ],
)
def test_a_row_says_that_a_user_has_seen_an_item(tmp_path, text, options):
    path = tmp_path / "seen.csv"
    path.write_text(text)
    found = datasets.load(path, implicit=True, **options)
    assert pairs(found) == PAIRS
    assert "every row counts as seen: no rating is read" in found.notes


def test_parquet_and_named_and_generated_ratings(tmp_path):
    table = pyarrow.table({"user": [1, 1, 2], "item": [10, 20, 10]})
    pyarrow.parquet.write_table(table, tmp_path / "seen.parquet")
    assert pairs(datasets.load(tmp_path / "seen.parquet", implicit=True)) == PAIRS
    more = table.append_column("rating", [[5, 1, 2]])
    pyarrow.parquet.write_table(more, tmp_path / "rated.parquet")
    assert pairs(datasets.load(tmp_path / "rated.parquet", implicit=True)) == PAIRS
    whole, seen = (datasets.load("synthetic-9x7x20", implicit=one) for one in (False, True))
    assert len(pairs(seen)) == 20
    np.testing.assert_array_equal(seen.item, whole.item)


def test_what_is_wrong_is_said(tmp_path):
    path = tmp_path / "seen.csv"
    path.write_text("user,item\n1,10\n1,20\n2,10\n1,10\n")
    with pytest.raises(DataError, match="rates item 10 more than once"):
        datasets.load(path, implicit=True)
    path.write_text("user,item\n1,10\n1,\n")
    with pytest.raises(DataError, match="item id is empty"):
        datasets.load(path, implicit=True)
    path.write_text("1,10\n2,20\n")
    with pytest.raises(DataError, match="no header") as refused:
        datasets.load(path, implicit=True)
    assert "user, item in this order" in refused.value.fix
    assert "--user-column 1 --item-column 2 with" in refused.value.fix
    with pytest.raises(UsageError, match="has no column 'what'"):
        datasets.load(path, implicit=True, no_header=True, item_column="what")
    with pytest.raises(DataError, match="who has seen what") as refused:
        datasets.load(path, rating_range=(1, 5))
    assert "dpmf fit takes it for who has seen what" in refused.value.fix


@pytest.mark.parametrize(
    ("text", "options", "users"),
    [
        ("item\n10\n20\n", {}, ["new"]),
        ("10\n20\n", {"no_header": True}, ["new"]),
        ("what\n10\n20\n", {"item_column": "what"}, ["new"]),
        ("item,rating\n10,5\n20,1\n", {}, ["new"]),
        ("user,item\n7,10\n7,20\n", {}, [7]),
        ("7 10\n7 20\n", {"no_header": True}, [7]),
    ],
)
def test_new_users_give_items_alone_or_with_a_column_of_users(tmp_path, text, options, users):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    found = datasets.load_new_users(path, rating_range=(0, 1), implicit=True, **options)
    assert found.users.tolist() == users
    assert found.items[found.item].tolist() == [10, 20]
    assert (found.value == 1).all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("user,item\n1,2\n", True), ("1 2\n", True), ("1,2,3\n", False), ("item\n1\n", False)],
)
def test_a_file_without_ratings_is_known_by_its_first_line(tmp_path, text, expected):
    path = tmp_path / "seen.csv"
    path.write_text(text)
    assert formats.has_no_ratings(path) == expected
    assert not formats.has_no_ratings(tmp_path / "elsewhere.csv")


def test_two_columns_are_who_has_seen_what(tmp_path):
    path = tmp_path / "seen.csv"
    path.write_text("user,item\nada,tea\nada,rye\nbob,tea\nbob,tea\n,tea\n")
    report = check(path)
    assert (report["num_problems"], report["ok"]) == (1, False)
    path.write_text("user,item\nada,tea\nada,rye\nbob,tea\n")
    report = check(path)
    assert report["ok"]
    assert (report["rows"], report["users"], report["items"]) == (3, 2, 2)
    assert report["histogram"] == {"1": 3}
