"""Ratings by name or path: load, list, check, convert. Nothing is downloaded."""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any, overload

import numpy as np

from dpmf_jax.data import lifelike, splits, synthetic
from dpmf_jax.data.catalogue import DATASETS
from dpmf_jax.data.ratings import (
    Duplicates,
    OutOfRange,
    Ratings,
    duplicated,
)
from dpmf_jax.data.sources import SEEN, Source, data_folder, existing, find, of_file
from dpmf_jax.data.text import read_text
from dpmf_jax.devices import hosts
from dpmf_jax.errors import DataError, UsageError

SYNTHETIC = re.compile(r"(synthetic|lifelike)(-(\d+)x(\d+)x(\d+))?(-seed(\d+))?")
GENERATED = {
    "synthetic": "generated ratings, of any size",
    "lifelike": "generated ratings, more like public ones",
}


# The overloads leave the options to the implementation, which checks them: a caller sees what
# `split` decides.
@overload
def load(  # ty: ignore[inconsistent-overload-implementation]
    name_or_path: str | os.PathLike[str], *, split: None = None, **options: Any
) -> Ratings: ...
@overload
def load(  # ty: ignore[inconsistent-overload-implementation]
    name_or_path: str | os.PathLike[str], *, split: str, **options: Any
) -> tuple[Ratings, Ratings]: ...
@overload
def load(  # ty: ignore[inconsistent-overload-implementation]
    name_or_path: str | os.PathLike[str], *, split: str | None, **options: Any
) -> Ratings | tuple: ...
def load(
    name_or_path: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    split: str | None = None,
    rating_range: tuple[float, float] | None = None,
    user_column: str | None = None,
    item_column: str | None = None,
    rating_column: str | None = None,
    delimiter: str | None = None,
    no_header: bool = False,
    duplicates: Duplicates = "refuse",
    out_of_range: OutOfRange = "refuse",
    slice: str | None = None,
    users: Any = None,
    items: Any = None,
    shared: bool = False,
    implicit: bool = False,
    weight_column: str | None = None,
    time_column: str | bool | None = None,
) -> Ratings | tuple[Ratings, Ratings]:
    """Checked ratings: of a named data set, generated, or of a csv, tsv or parquet file.

    Nothing is downloaded.

    Args:
      name_or_path: a name in `DATASETS`; "synthetic-USERSxITEMSxRATINGS-seedN" or "lifelike-...",
        with either part left out or both; a file (text or gzip or parquet); the folder of a named
        data set or of the Netflix Prize.
      data_dir: the folder of named data sets, or the folder of this one; None takes the variable
        DPMF_DATA.
      split: an official split ("u1"). Then (train, test) with one catalogue is returned.
      rating_range: the declared range; needed for a file, since it is never computed from ratings.
      user_column, item_column, rating_column: of a file, by name, or by position ("1" is the first;
        digits are always a position). None finds usual names.
      delimiter: of a file; None finds it.
      no_header: the file's first line holds ratings. Columns without a position are then user,
        item, rating in this order.
      duplicates, out_of_range, users, items: as in `Ratings.from_columns`.
      slice: "paper001" is `splits.paper001_slice`.
      shared: of several processes (`hosts`) that all call this, only the ratings of this one's
        users, over the catalogue of all. Of text no others are kept while reading; other files are
        read whole first.
      implicit: every rating is 1, in the range from 0 to 1: the user has seen the item. A file of
        your own needs no column of ratings then, and no range.
      weight_column: of a file, told like the others: how much each rating counts, from 0 to 1.
        None: there are no weights.
      time_column: of a file, told like the others: when each rating was given, numbers or dates.
        True: the column that a published data set has, or one with a usual name. None: no times.

    Raises: DataError for a missing file (with every place where it looked) and for whatever is
      wrong inside; UsageError for an unknown name, split or slice, or a file without a rating
      range.
    """
    if slice not in (None, "paper001"):
        raise UsageError(f"there is no slice {slice!r}", fix="choose paper001, or none")
    if slice and split:
        raise UsageError(
            "a slice of an official split is not defined", fix="give --slice or --split, not both"
        )
    options = {"duplicates": duplicates, "out_of_range": out_of_range}
    if match := SYNTHETIC.fullmatch(str(name_or_path)):
        if split:
            raise UsageError("generated ratings have no official splits", fix="leave out --split")
        ratings = generated(match, weight_column, time_column)
        if shared:
            ratings = ratings.take(hosts.owned(ratings.users.tolist())[ratings.user])
        ratings = as_seen(ratings) if implicit else ratings
        return splits.paper001_slice(ratings) if slice else ratings
    flags = {
        "user_column": user_column,
        "item_column": item_column,
        "rating_column": rating_column,
        "weight_column": weight_column,
        "time_column": time_column,
        "delimiter": delimiter,
        "no_header": no_header,
    }
    catalogue = {"users": users, "items": items}
    if shared:
        if split or slice:
            raise UsageError(
                "splits and slices look at all ratings",
                fix="leave them out, or let one process do it",
            )
        part = _share(name_or_path, data_dir, flags, rating_range, options, catalogue, implicit)
        return as_seen(part) if implicit else part
    source = find(name_or_path, data_dir, flags, rating_range, implicit=implicit)
    if split is None:
        ratings = source.rate(source.read(), **options, **catalogue)
        ratings = as_seen(ratings) if implicit else ratings
        return splits.paper001_slice(ratings) if slice else ratings
    train, test = _official(source, split, options, catalogue)
    return (as_seen(train), as_seen(test)) if implicit else (train, test)


def as_seen(ratings: Ratings) -> Ratings:
    """The same pairs, of which a rating says that the user has seen the item."""
    return dataclasses.replace(
        ratings,
        value=np.ones_like(ratings.value),
        rating_range=SEEN,
        notes=(*ratings.notes, "every row counts as seen: no rating is read"),
    )


def load_new_users(
    path: str | os.PathLike[str],
    *,
    rating_range: tuple[float, float],
    duplicates: Duplicates = "refuse",
    out_of_range: OutOfRange = "refuse",
    implicit: bool = False,
    **flags: Any,
) -> Ratings:
    """Checked ratings of one or more users, who need not be in any training data, from a file.

    A text file without a column of users holds one user's, who gets the id `LONE_USER`.

    Args:
      rating_range: of the model that they are for.
      duplicates, out_of_range: as in `Ratings.from_columns`.
      implicit: as in `load`; a file of one user's may then have the items alone.
      flags: the columns, delimiter and no_header of `load`.

    Raises: DataError for a missing file, and for whatever is wrong inside.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(
            f"there is no file {path.name!r}",
            where=f"looked for {path.absolute()}",
            fix="name a file with columns item and rating, or user, item and rating",
        )
    source = of_file(path, flags, rating_range, lone_user=True, implicit=implicit)
    return source.rate(source.read(), duplicates=duplicates, out_of_range=out_of_range, fewest=1)


def list_datasets(data_dir: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Every known data set, one row each.

    A row has name, title, size, rating_range, splits, path (None where it is absent) and
    how_to_get.
    """
    rows = [
        {
            "name": name,
            "title": f"{what}: {name}-USERSxITEMSxRATINGS-seedN",
            "size": "100,000 ratings, 943 users, 1,682 items",
            "rating_range": (1.0, 5.0),
            "splits": [],
            "path": None,
            "how_to_get": "it is generated, nothing is needed",
        }
        for name, what in GENERATED.items()
    ]
    folder = data_folder(data_dir)
    for name, dataset in DATASETS.items():
        found = (
            []
            if folder is None
            else existing(dataset, folder, [file for file in dataset.files if "/" in file])
        )
        rows.append(
            {
                "name": name,
                "title": dataset.title,
                "size": dataset.size,
                "rating_range": dataset.rating_range,
                "splits": list(dataset.splits),
                "path": str(found[0]) if found else None,
                "how_to_get": dataset.source,
            }
        )
    return rows


def _share(
    name_or_path: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None,
    flags: dict[str, Any],
    rating_range: tuple[float, float] | None,
    options: dict[str, Any],
    catalogue: dict[str, Any],
    implicit: bool,
) -> Ratings:
    """The ratings that this process holds.

    Blocks in which one process may fail alone stand in `hosts.together`.
    """
    source, columns = None, None
    with hosts.together():
        source = find(name_or_path, data_dir, flags, rating_range, implicit=implicit)
        columns = source.read(hosts.owned)
    assert source is not None
    assert columns is not None
    for what, column in (("users", columns.user), ("items", columns.item)):
        if catalogue[what] is None:
            catalogue[what] = hosts.union(column.ids[np.unique(column.codes)])
    rows = int(hosts.total(len(columns.value)))
    ratings = None
    with hosts.together():
        if rows and not len(columns.value):  # the others have some
            nothing = np.zeros(0, np.int32)
            ratings = Ratings(
                nothing,
                nothing,
                np.zeros(0, np.float32),
                np.asarray(catalogue["users"]),
                np.asarray(catalogue["items"]),
                source.rating_range,
                source.name,
                weight=columns.weight,
                time=columns.time,
            )
        else:
            ratings = source.rate(columns, **options, **catalogue)
    assert ratings is not None
    return ratings


def _official(
    source: Source, split: str, options: dict[str, Any], catalogue: dict[str, Any]
) -> tuple[Ratings, Ratings]:
    """(train, test) of an official split over the union of their ids.

    A rating that is in both is an error.
    """
    if split not in source.splits or source.layout is None:
        known = (
            f"choose one of {', '.join(source.splits)}"
            if source.splits
            else "it has none: leave out --split"
        )
        raise UsageError(f"{source.name} has no official split {split!r}", fix=known)
    columns = []
    for file in source.splits[split]:
        path = source.paths[0].parent / file
        if not path.is_file():
            fix = "unpack the whole official archive (and run its split script, if it has one)"
            raise DataError(
                f"a file of the split {split} is not there", where=f"looked for {path}", fix=fix
            )
        columns.append(read_text(path, source.layout))
    if catalogue["users"] is None:
        catalogue["users"] = np.union1d(columns[0].user.ids, columns[1].user.ids)
    if catalogue["items"] is None:
        catalogue["items"] = np.union1d(columns[0].item.ids, columns[1].item.ids)
    train, test = (
        source.rate(part, **options, **catalogue, notes=(f"official split {split}: {side}",))
        for part, side in zip(columns, ("train", "test"), strict=True)
    )
    both = duplicated(
        np.append(train.user, test.user), np.append(train.item, test.item), train.num_items
    )
    if len(both.rows):
        what = f"{len(both.rows):,} ratings are in both files of the split {split}"
        raise DataError(
            what, where=str(source.paths[0].parent), fix="fetch the official files again"
        )
    return train, test


def generated(
    match: re.Match[str], weight_column: str | None = None, time_column: str | bool | None = None
) -> Ratings:
    """The ratings that a name of the form `SYNTHETIC` asks for. Raises: UsageError for a column."""
    for what, column in (("weight", weight_column), ("time", time_column)):
        if column:
            raise UsageError(
                f"generated ratings have no {what}s",
                where=f"--{what}-column",
                fix="leave it out, or name a file",
            )
    family, _, users, items, number, _, seed = match.groups()
    sizes = {"num_users": users, "num_items": items, "num_ratings": number, "seed": seed}
    given: dict[str, Any] = {name: int(value) for name, value in sizes.items() if value}
    return lifelike.generate(**given) if family == "lifelike" else synthetic.generate(**given)


def generated_features(name: str) -> np.ndarray:
    """`lifelike.item_features` of the items of a name of the form `SYNTHETIC`.

    Raises: UsageError for another name.
    """
    match = SYNTHETIC.fullmatch(name)
    if match is None or match[1] != "lifelike":
        raise UsageError(
            f"no features are generated for the items of {name}",
            where="--item-features lifelike",
            fix="give --item-features a file",
        )
    sizes = {"num_items": match[4], "seed": match[7]}
    return lifelike.item_features(**{key: int(value) for key, value in sizes.items() if value})
