"""A column of weights: read where it is named, checked, and kept beside its ratings."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from dpmf_jax.data import datasets, splits
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, UsageError

ROWS = [("a", 1, 3, 0.5), ("a", 2, 4, 1), ("b", 1, 5, 0), ("b", 2, 1, 0.3), ("c", 2, 2, 0.125)]
HEADER = "user,item,rating,trust\n"
TEXT = HEADER + "".join(",".join(map(str, row)) + "\n" for row in ROWS)
RANGE = (1.0, 5.0)


def rows(ratings):
    ids = ratings.users[ratings.user].tolist(), ratings.items[ratings.item].tolist()
    return sorted(zip(*ids, ratings.value.tolist(), ratings.weight.tolist(), strict=True))


def loaded(path, **options):
    return datasets.load(path, rating_range=RANGE, **({"weight_column": "trust"} | options))


def expected():
    return sorted((user, item, value, float(np.float32(w))) for user, item, value, w in ROWS)


def test_a_file_has_the_weights_that_are_named(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    (tmp_path / "mine.csv").write_text(TEXT)
    (tmp_path / "mine.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "bare.csv").write_text(TEXT.removeprefix(HEADER))
    columns = [list(column) for column in zip(*ROWS, strict=True)]
    names = HEADER.strip().split(",")
    table = pa.table(dict(zip(names, columns, strict=True)))
    pyarrow.parquet.write_table(table, tmp_path / "mine.parquet")
    for name in ("mine.csv", "mine.csv.gz", "mine.parquet"):
        assert rows(loaded(tmp_path / name)) == expected()
        assert datasets.load(tmp_path / name, rating_range=RANGE).weight is None
    bare = loaded(tmp_path / "bare.csv", no_header=True, weight_column="4")
    assert rows(bare) == expected()
    tables = table, dict(zip(names, columns, strict=True))
    for of in tables:
        assert rows(Ratings.from_table(of, rating_range=RANGE, weight="trust")) == expected()


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("1.5", "the weight 1.5 is not between 0 and 1"),
        ("-0.1", "the weight -0.1 is not between 0 and 1"),
        ("nan", "the weight nan is not between 0 and 1"),
        ("much", "the weight 'much' is not a number"),
        ("", "the weight '' is not a number"),
    ],
)
def test_a_weight_that_is_none_is_named_with_its_line(tmp_path, entry, says):
    (tmp_path / "mine.csv").write_text(TEXT.replace("0.3", entry))
    with pytest.raises(DataError) as error:
        loaded(tmp_path / "mine.csv")
    assert says in error.value.what
    assert error.value.where.endswith("mine.csv, line 5")
    assert error.value.fix


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("mine.csv", {"weight_column": "confidence"}, "there is no weight column confidence"),
        ("mine.csv", {"weight_column": "rating"}, "name different columns"),
        ("mine.csv", {"weight_column": "9"}, "there is no weight column 9"),
        ("synthetic", {}, "generated ratings have no weights"),
        ("ml-100k", {}, "ml-100k has its own layout"),
        ("prize", {}, "prize has its own layout"),
    ],
)
def test_a_column_that_is_not_there_is_refused(tmp_path, monkeypatch, name, options, says):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text(TEXT)
    Path("prize").mkdir()
    Path("prize/combined_data_1.txt").write_text("1:\n7,3,2005-01-01\n8,4,2005-01-01\n")
    with pytest.raises((DataError, UsageError)) as error:
        loaded(name, **options)
    assert says in f"{error.value.what} {error.value.fix}"


def ratings(weight, **options):
    user, item, value, _ = zip(*ROWS, strict=True)
    return Ratings.from_columns(
        list(user), list(item), list(value), rating_range=RANGE, weight=weight, **options
    )


def test_weights_go_where_their_ratings_go():
    of = ratings([row[3] for row in ROWS])
    some = of.take(np.array([3, 0]))
    np.testing.assert_array_equal(some.weight, np.float32([0.3, 0.5]))
    train, test = splits.random(of, fraction=0.4, seed=1)
    assert sorted(rows(train) + rows(test)) == expected()
    with pytest.raises(DataError, match="5 ratings have 2 weights"):
        ratings([1, 1])


@pytest.mark.parametrize(
    ("duplicates", "expected"), [("first", 0.5), ("last", 0.0), ("mean", 0.25)]
)
def test_duplicates_are_merged_with_their_weights(duplicates, expected):
    of = Ratings.from_columns(
        ["a", "b", "a"],
        [1, 2, 1],
        [1, 2, 3],
        rating_range=RANGE,
        weight=[0.5, 1, 0],
        duplicates=duplicates,
    )
    kept = {(user, item): weight for user, item, _, weight in rows(of)}
    assert kept == {("a", 1): expected, ("b", 2): 1}


def test_rows_that_are_dropped_take_their_weights_along():
    of = Ratings.from_columns(
        ["a", "b", "a"],
        [1, 2, 2],
        [1, 9, 3],
        rating_range=RANGE,
        weight=[0.5, 1, 0],
        out_of_range="drop",
    )
    np.testing.assert_array_equal(of.weight, np.float32([0.5, 0]))


def test_the_hash_tells_weights_apart():
    alike = ratings([1.0] * 5)
    hashes = {of.sha256() for of in (ratings(None), alike, ratings([0.5, 1, 1, 1, 1]))}
    assert len(hashes) == 3
    assert alike.take(np.array([4, 1, 2, 0, 3])).sha256() == alike.sha256()
