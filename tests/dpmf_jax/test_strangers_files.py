"""Files as strangers publish them, in layouts that are not in `DATASETS`: recommendations in three
lines of Python.

The layouts are the publishers'; who rated what is made up.
"""

from pathlib import Path

import numpy as np
import pytest

import dpmf_jax
from dpmf_jax.errors import DataError

pytestmark = [pytest.mark.usefixtures("books", "quick_compilation")]

PEOPLE, THINGS = 25, 12
RANDOM = np.random.default_rng(4)
PAIRS = RANDOM.choice(PEOPLE * THINGS, 160, replace=False)
STARS = RANDOM.integers(1, 6, len(PAIRS))


def rows():
    return zip((PAIRS // THINGS).tolist(), (PAIRS % THINGS).tolist(), STARS.tolist(), strict=True)


def book_crossing():
    """BX-Book-Ratings.csv: semicolons, everything quoted, ratings from 0 to 10, ISBNs with an X."""
    lines = ['"User-ID";"ISBN";"Book-Rating"']
    lines += [f'"{276_725 + user}";"{book:09d}X";"{2 * stars}"' for user, book, stars in rows()]
    Path("BX-Book-Ratings.csv").write_text("\r\n".join(lines) + "\r\n", encoding="latin-1")


def amazon():
    """Amazon Reviews 2023, ratings only: ids of letters, times in milliseconds."""
    lines = ["user_id,parent_asin,rating,timestamp"]
    lines += [
        f"AE{user:024d}Q,B0{thing:07d}Z,{stars}.0,{1_600_000_000_000 + user}"
        for user, thing, stars in rows()
    ]
    Path("Books.csv").write_text("\n".join(lines) + "\n")


def recipes():
    """Food.com's interactions: a quoted review with commas, quotes and ends of lines in it."""
    lines = ["user_id,recipe_id,date,rating,review"]
    lines += [
        f'{user},{dish},2011-12-21,{stars},"So simple,\nso ""delicious""! Great."'
        for user, dish, stars in rows()
    ]
    Path("RAW_interactions.csv").write_text("\n".join(lines) + "\n")


def goodbooks():
    """goodbooks-10k."""
    lines = ["user_id,book_id,rating", *(",".join(map(str, row)) for row in rows())]
    Path("ratings.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("write", "file", "rating_range", "user", "item"),
    [
        (book_crossing, "BX-Book-Ratings.csv", (0, 10), 276_725, "000000003X"),
        (amazon, "Books.csv", (1, 5), f"AE{0:024d}Q", f"B0{3:07d}Z"),
        (recipes, "RAW_interactions.csv", (0, 5), 0, 3),
        (goodbooks, "ratings.csv", (1, 5), 0, 3),
    ],
)
def test_three_lines_from_a_file_to_recommendations(write, file, rating_range, user, item):
    write()
    model = dpmf_jax.fit(file, "ridge", epsilon=3, rating_range=rating_range)
    found = model.recommend(user, k=3)
    assert len(found) == 3
    assert model.guarantee.status == "proved"
    assert item in model.items.tolist()
    assert (len(model.users), len(model.items)) == (PEOPLE, THINGS)


def test_times_of_the_reviews_are_read_where_they_are_asked_for():
    recipes()
    ratings = dpmf_jax.load("RAW_interactions.csv", rating_range=(0, 5), time_column=True)
    assert len(set(ratings.time.tolist())) == 1  # the date is the same everywhere
    assert set(ratings.value.tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}


def long_file(reviews):
    """20 MB in which a text goes over several lines wherever a block of the reader ends."""
    lines = ["user_id,recipe_id,date,rating,review"]
    lines += [
        f'{at // 500},{at % 500},2011-12-21,{at % 5 + 1},"{review}{"x" * (at % 150)}\n"'
        for at, review in enumerate(reviews)
    ]
    Path("long.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.seconds
def test_a_text_over_several_lines_is_read_where_a_block_ends_in_it_too():
    long_file(['So simple,\n\nand ""good""; '] * 150_000)
    ratings = dpmf_jax.load("long.csv", rating_range=(1, 5))
    assert len(ratings) == 150_000
    np.testing.assert_array_equal(ratings.value, np.arange(150_000) % 5 + 1)


def test_a_fault_behind_such_texts_is_named_by_its_own_line():
    long_file(["good\n", "fine\n\n", "bad"])
    with Path("long.csv").open("a") as file:
        file.write("7,8,2011-12-21,9,worse\n")
    with pytest.raises(DataError) as raised:
        dpmf_jax.load("long.csv", rating_range=(1, 5))
    lines = Path("long.csv").read_text().splitlines()
    assert "rating 9 is outside" in raised.value.what
    assert raised.value.where.endswith(f"line {len(lines)}")
    assert lines[-1].startswith("7,8")
