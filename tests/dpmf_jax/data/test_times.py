"""When each rating was given: read where it is asked for, from every kind of data, and what of each
user is last.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from dpmf_jax.data import datasets, given, splits
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, UsageError

RANGE = (1.0, 5.0)
USER, ITEM, VALUE = [1, 1, 1, 2, 2, 3], [10, 11, 12, 10, 11, 12], [1, 2, 3, 4, 5, 1]
SECONDS = [30, 10, 20, 5, 5, 7]
DATES = [f"2024-01-01 00:00:{second:02d}" for second in SECONDS]
FRAME = pd.DataFrame({"user": USER, "item": ITEM, "rating": VALUE, "timestamp": SECONDS})


def pairs(ratings):
    return sorted(
        zip(
            ratings.users[ratings.user].tolist(),
            ratings.items[ratings.item].tolist(),
            strict=True,
        )
    )


def written(folder: Path, column: list) -> Path:
    path = folder / "mine.csv"
    lines = ["user,item,rating,when"]
    lines += [",".join(map(str, row)) for row in zip(USER, ITEM, VALUE, column, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def of_text(folder):
    return datasets.load(written(folder, SECONDS), rating_range=RANGE, time_column="when")


def of_dates(folder):
    return datasets.load(written(folder, DATES), rating_range=RANGE, time_column="4")


def of_parquet(folder):
    pa.parquet.write_table(pa.Table.from_pandas(FRAME), folder / "mine.parquet")
    return datasets.load(folder / "mine.parquet", rating_range=RANGE, time_column=True)


def of_frame(folder):
    del folder
    return given.read(FRAME, rating_range=RANGE, time_column=True)


def of_frame_with_dates(folder):
    del folder
    frame = FRAME.assign(timestamp=pd.to_datetime(DATES))
    return given.read(frame, rating_range=RANGE, time_column="timestamp")


def of_mapping(folder):
    del folder
    columns = {name: FRAME[name].to_numpy() for name in FRAME}
    return given.read(columns, rating_range=RANGE, time_column="timestamp")


@pytest.mark.parametrize(
    "read", [of_text, of_dates, of_parquet, of_frame, of_frame_with_dates, of_mapping]
)
def test_the_last_of_each_user_is_held_out_whatever_the_data_are(read, tmp_path):
    ratings = read(tmp_path)
    train, test = splits.last(ratings)
    # of user 2's equal times the later row; user 3 has but one, which is trained on
    assert pairs(test) == [(1, 10), (2, 11)]
    assert pairs(train) == [(1, 11), (1, 12), (2, 10), (3, 12)]
    assert pairs(splits.last(ratings, number=2)[1]) == [(1, 10), (1, 12), (2, 11)]
    np.testing.assert_array_equal(ratings.time - ratings.time.min(), _scaled(ratings.time))


def _scaled(time):
    """The seconds since the first, in the unit of these times."""
    return (np.array(SECONDS) - 5) * (1e6 if time.max() > 1e9 else 1)


def test_times_are_read_only_where_they_are_asked_for(tmp_path):
    path = written(tmp_path, DATES)
    assert datasets.load(path, rating_range=RANGE).time is None
    assert given.read(FRAME, rating_range=RANGE).time is None
    with_times, without = (
        given.read(FRAME, rating_range=RANGE, time_column=asked) for asked in (True, None)
    )
    assert with_times.sha256() == without.sha256()


def test_of_a_repeated_pair_the_time_is_that_of_the_row_that_is_kept():
    columns = [1, 1, 2], [5, 5, 6], [1.0, 2.0, 3.0]
    for how, time in (("first", 8.0), ("last", 4.0), ("mean", 6.0)):
        found = Ratings.from_columns(
            *columns, rating_range=RANGE, duplicates=how, time=[8.0, 4.0, 1.0]
        )
        assert found.time.tolist() == [time, 1.0]


@pytest.mark.parametrize("name", ["ml-100k", "ml-1m"])
def test_published_data_sets_have_theirs(name, data_dir):
    ratings = datasets.load(name, data_dir=data_dir, time_column=True)
    train, test = splits.last(ratings)
    assert len(test) == ratings.num_users
    for user in (0, 17, 400):
        latest = ratings.time[ratings.user == user].max()
        assert test.time[test.user == user] == latest
        assert train.time[train.user == user].max() <= latest
    assert datasets.load(name, data_dir=data_dir).time is None


def test_an_official_file_has_its_times_too(data_dir):
    path = data_dir / "ml-100k" / "u.data"
    ratings = datasets.load(path, rating_range=RANGE, time_column=True)
    assert ratings.time.min() > 8e8  # seconds since 1970


@pytest.mark.parametrize(
    ("data", "options", "kind", "words"),
    [
        (FRAME.drop(columns="timestamp"), {"time_column": True}, DataError, "no time column"),
        (FRAME.assign(timestamp="soon"), {"time_column": True}, DataError, "nor dates"),
        (FRAME.assign(timestamp=[1, 2, 3, 4, 5, None]), {"time_column": True}, DataError, "time"),
        ((USER, ITEM, VALUE), {"time_column": "t"}, UsageError, "no names"),
        ("synthetic-30x20x100", {"time_column": True}, UsageError, "have no times"),
    ],
)
def test_what_has_no_times_is_refused(data, options, kind, words):
    options = options if isinstance(data, str) else options | {"rating_range": RANGE}
    with pytest.raises(kind, match=words):
        given.read(data, **options)
    with pytest.raises(UsageError, match="nobody knows when"):
        splits.last(Ratings.from_columns(USER, ITEM, VALUE, rating_range=RANGE))


def test_a_data_set_without_times_says_so(data_dir):
    with pytest.raises(UsageError, match="no times are read of anime-5000"):
        datasets.load("anime-5000", data_dir=data_dir, time_column=True)
