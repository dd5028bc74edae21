"""Public features of items: numbers, categories, and the files that MovieLens ships."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dpmf_jax.data import features
from dpmf_jax.data.datasets import load
from dpmf_jax.errors import DataError

IDS = np.array([3, 5, 8, 9])
CSV = "item,price,kind,same\n9,1,a|b,7\n5,3,b,7\n3,2,a,7\n77,100,c,7\n"


def test_numbers_are_standardised_and_categories_are_columns(tmp_path):
    """In the catalogue's order; item 8 has no row, 77 is none of the catalogue's."""
    path = tmp_path / "features.csv"
    path.write_text(CSV)
    found = features.read(path, IDS)
    deviation = np.std([1, 2, 3])
    expected = [[0, 1 / 3, -2 / 3], [1 / deviation, -2 / 3, 1 / 3], [0, 0, 0]]
    expected += [[-1 / deviation, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_parquet_and_ids_that_are_text_and_cells_that_are_empty(tmp_path):
    table = pa.table({"id": ["x", "y", "z"], "n": [1.0, None, 3.0], "c": ["u", None, "v"]})
    parquet.write_table(table, tmp_path / "features.parquet")
    found = features.read(tmp_path / "features.parquet", np.array(["x", "y", "z"]))
    np.testing.assert_allclose(found, [[-1, 0.5, -0.5], [0, 0, 0], [1, -0.5, 0.5]])


def test_a_number_lies_at_most_three_deviations_from_the_mean(tmp_path):
    path = tmp_path / "features.tsv"
    path.write_text("item\tn\n" + "\n".join(f"{i}\t{0 if i else 1e9}" for i in range(100)))
    assert np.abs(features.read(path, np.arange(100))).max() == 3


MOVIES = {
    "movies.dat": (
        "3::One (1994)::Drama|War\n5::Two, The (1996)::Drama\n8::Three::War\n9::Four (1995)::War\n"
    ),
    "movies.csv": (
        'movieId,title,genres\n3,One (1994),Drama|War\n5,"Two, The (1996)",Drama\n8,Three,War\n'
        "9,Four (1995),War\n"
    ),
    "u.item": "".join(
        f"{item}|{title}|01-Jan-1995||url|"
        + "|".join("01"[g in genres] for g in features.GENRES)
        + "\n"
        for item, title, genres in (
            ("3", "One (1994)", ("Drama", "War")),
            ("5", "Two, The (1996)", ("Drama",)),
            ("8", "Three", ("War",)),
            ("9", "Four (1995)", ("War",)),
        )
    ),
}


@pytest.mark.parametrize("name", MOVIES)
def test_movielens_files_give_year_and_genres(name, tmp_path):
    (tmp_path / name).write_text(MOVIES[name], encoding="latin-1")
    found = features.read(tmp_path / name, IDS)
    years, drama, war = found.T
    np.testing.assert_allclose(years, np.array([-1, 1, 0, 0]) / np.std([1994, 1996, 1995]))
    np.testing.assert_allclose(drama, [0.5, 0.5, -0.5, -0.5])
    np.testing.assert_allclose(war, [0.25, -0.75, 0.25, 0.25])


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("gone.csv", None, "no such file"),
        ("f.csv", "item,n\n3,1\n3,2\n", "twice"),
        ("f.csv", "item,n\n1,1\n2,2\n", "no item of the ratings"),
        ("f.csv", "item,n\n3,1\n5,1\n", "differ in 0 features"),
        ("f.csv", "item\n3\n", "no columns of features"),
        ("f.txt", "3 1\n", "txt file"),
        ("f.parquet", "no parquet", "cannot be read"),
        ("movies.dat", "3,One,Drama\n", "has no ::"),
        ("movies.csv", "movieId,name\n3,One\n", "title and genres"),
        ("f.csv", "", "cannot be read"),
    ],
)
def test_a_file_that_is_none_gets_a_clear_answer(name, text, what, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=what) as error:
        features.read(tmp_path / name, IDS)
    assert error.value.fix


def test_a_data_set_without_a_file_of_movies_has_no_published_features(tmp_path):
    (tmp_path / "u.data").write_text("1\t2\t3\t0\n")
    with pytest.raises(DataError, match="no file of movies"):
        features.published("ml-100k", tmp_path)
    with pytest.raises(DataError, match="no file of movies"):
        features.published("mine.csv", tmp_path)


@pytest.mark.parametrize("name", ["ml-100k", "ml-1m"])
def test_movielens_was_published_with_eighteen_genres_and_a_year(name, data_dir):
    ratings = load(name, data_dir=data_dir)
    found = features.read(features.published(name, data_dir), ratings.items)
    assert found.shape == (ratings.num_items, 19)
    assert (found != 0).any(axis=1).mean() > 0.999
