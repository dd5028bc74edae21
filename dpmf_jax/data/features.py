"""Public features of items, from a file of numbers and categories or from MovieLens' own files.

Features are what everybody may know of an item: its genres, its year. They follow from no rating.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from dpmf_jax.data.catalogue import DATASETS
from dpmf_jax.data.sources import data_folder, existing
from dpmf_jax.errors import DataError

MOVIELENS = ("u.item", "movies.dat", "movies.csv")  # as GroupLens ships them
NO_GENRES = "(no genres listed)"
# Of the 19 flags of u.item, in their order; the first, unknown, says nothing.
GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance"),
    *("Sci-Fi", "Thriller", "War", "Western"),
)
FARTHEST = 3.0  # standard deviations that a number lies from its mean, at most
MOST = 256  # columns
FORMATS = (
    "give csv, tsv or parquet: the item id, then columns of numbers or of categories (several of an"
    " item with | between them); or MovieLens' u.item, movies.dat or movies.csv"
)

Table = dict[str, Sequence[Any]]  # column name -> one cell an item, None where unknown


def read(path: Path, ids: np.ndarray) -> Float32[np.ndarray, "items features"]:
    """Features of a catalogue's items, in its order.

    A column of numbers is standardised over the items, and cut at 3 deviations. A column of text is
    one column for each category, less its mean. An item that the file does not have, and a cell
    that is empty, are 0 there: average. Columns that are the same for all items are left out.

    Args:
      path: csv, tsv or parquet with the item ids in the first column; or, by its name, a file of
        MovieLens, of which genres and year are taken.
      ids: the catalogue; other items in the file are left out.

    Raises: DataError for a file that is not there, that holds no item of the catalogue, one twice,
      or no feature.
    """
    if not path.is_file():
        raise DataError(
            "there is no such file of item features",
            where=str(path),
            fix="give --item-features an existing file",
        )
    try:
        items, table = _movielens(path) if path.name in MOVIELENS else _columns(path)
    except (ValueError, OSError) as error:  # pyarrow's errors are ValueErrors
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"the item features cannot be read: {error}", where=str(path), fix=FORMATS
        ) from None
    place = {str(one): row for row, one in enumerate(items)}
    if len(place) < len(items):
        twice = next(one for row, one in enumerate(items) if place[str(one)] != row)
        raise DataError(
            f"item {twice} is there twice", where=str(path), fix="give every item one row"
        )
    rows = [place.get(str(one)) for one in np.asarray(ids).tolist()]
    if all(row is None for row in rows):
        raise DataError(
            "no item of the ratings is in the file",
            where=str(path),
            fix="let its first column hold the item ids of the ratings",
        )
    found = [
        column
        for cells in table.values()
        for column in _features([None if row is None else cells[row] for row in rows])
    ]
    if not found or len(found) > MOST:
        raise DataError(
            f"the items differ in {len(found)} features of the file; 1 to {MOST} can be used",
            where=str(path),
            fix=FORMATS,
        )
    return np.stack(found, axis=1).astype(np.float32)


def published(name: str, data_dir: Path | str | None = None) -> Path:
    """The file of movies that a named MovieLens data set was published with.

    Raises: DataError where there is none beside its ratings.
    """
    folder, dataset = data_folder(data_dir), DATASETS.get(name)
    paths = existing(dataset, folder, dataset.files) if dataset and folder else []
    for path in paths:
        for file in MOVIELENS:
            if (path.parent / file).is_file():
                return path.parent / file
    raise DataError(
        f"no file of movies ({', '.join(MOVIELENS)}) stands beside the ratings of {name}",
        where="--item-features movielens",
        fix="give --item-features a file",
    )


def _features(cells: list[Any]) -> Iterable[np.ndarray]:
    """float64[items] columns of one column of a table."""
    known = [cell for cell in cells if cell is not None]
    if all(isinstance(cell, int | float) for cell in known):
        number = np.array([np.nan if cell is None else cell for cell in cells], np.float64)
        there = np.isfinite(number)
        deviation = number[there].std() if there.any() else 0.0
        if deviation > 0:
            standard = (number - number[there].mean()) / deviation
            yield np.where(there, np.clip(standard, -FARTHEST, FARTHEST), 0.0)
        return
    parts = [None if cell is None else set(str(cell).split("|")) for cell in cells]
    there = np.array([part is not None for part in parts])
    for category in sorted(set().union(*(part for part in parts if part is not None))):
        has = np.array([part is not None and category in part for part in parts], np.float64)
        if category and 0 < has[there].mean() < 1:
            yield np.where(there, has - has[there].mean(), 0.0)


def _columns(path: Path) -> tuple[Sequence[Any], Table]:
    from pyarrow import csv, parquet

    if path.suffix == ".parquet":
        table = parquet.read_table(path)
    elif path.suffix in (".csv", ".tsv"):
        options = csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
        empty = csv.ConvertOptions(null_values=[""], strings_can_be_null=True)
        table = csv.read_csv(path, parse_options=options, convert_options=empty)
    else:
        raise DataError(
            f"item features in a {path.suffix or 'nameless'} file", where=str(path), fix=FORMATS
        )
    if table.num_columns < 2:
        raise DataError("the file has no columns of features", where=str(path), fix=FORMATS)
    items, *others = (column.to_pylist() for column in table.columns)
    return items, dict(zip(table.column_names[1:], others, strict=True))


def _movielens(path: Path) -> tuple[Sequence[Any], Table]:
    """Genres and year of every movie."""
    if path.name == "movies.csv":
        items, table = _columns(path)
        titles, genres = table.get("title"), table.get("genres")
        if titles is None or genres is None:
            raise DataError(
                "the file has no columns title and genres", where=str(path), fix=FORMATS
            )
    else:
        separator = "::" if path.name == "movies.dat" else "|"
        lines = path.read_text(encoding="latin-1").splitlines()
        rows = [line.split(separator) for line in lines if line.strip()]
        if any(len(row) < 3 for row in rows):
            raise DataError(f"a line has no {separator}", where=str(path), fix=FORMATS)
        items, titles = [row[0] for row in rows], [row[1] for row in rows]
        genres = [row[2] if separator == "::" else _flagged(row[-len(GENRES) :]) for row in rows]
    found = [re.search(r"\((\d{4})\)\s*$", title or "") for title in titles]
    years = [int(year[1]) if year else None for year in found]
    said = [None if genre in (None, "", NO_GENRES) else genre for genre in genres]
    return items, {"year": years, "genres": said}


def _flagged(flags: Sequence[str]) -> str:
    """The genres of a line of u.item."""
    named = zip(GENRES[1:], flags[1:], strict=True)
    return "|".join(genre for genre, flag in named if flag == "1")
