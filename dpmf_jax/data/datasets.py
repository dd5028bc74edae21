"""Ratings by name or path: load, list, check, convert. Nothing is downloaded."""

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any, overload

import numpy as np

from dpmf_jax.data import splits, synthetic
from dpmf_jax.data import text as readers
from dpmf_jax.data.catalogue import DATASETS
from dpmf_jax.data.ids import Coded, count_rows
from dpmf_jax.data.lines import opened
from dpmf_jax.data.parquet import RANGE_KEY
from dpmf_jax.data.ratings import (
    Duplicates,
    OutOfRange,
    Problem,
    Ratings,
    duplicated,
    not_finite,
    out_of,
)
from dpmf_jax.data.sources import Source, data_folder, existing, find
from dpmf_jax.data.text import Columns
from dpmf_jax.devices import hosts
from dpmf_jax.errors import DataError, UsageError

CHUNK = 1 << 20  # ratings that are written at once
SYNTHETIC = re.compile(r"synthetic(-(\d+)x(\d+)x(\d+))?(-seed(\d+))?")


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
) -> Ratings | tuple[Ratings, Ratings]:
    """Checked ratings of a named data set, of generated ones, or of a csv, tsv or parquet file;
    nothing is downloaded.

    Args:
      name_or_path: a name in `DATASETS`; "synthetic-USERSxITEMSxRATINGS-seedN", with either part
        left out or both; a file (text or gzip or parquet); the folder of a named data set or of the
        Netflix Prize.
      data_dir: the folder of named data sets, or the folder of this one; None takes the variable
        DPMF_DATA.
      split: an official split ("u1"); then (train, test) with one catalogue is returned.
      rating_range: the declared range; needed for a file, since it is never computed from ratings.
      user_column, item_column, rating_column: of a file, by name, or by position ("1" is the first;
        digits are always a position); None finds usual names. delimiter: of a file; None finds it.
      no_header: the file's first line holds ratings; columns without a position are user, item,
        rating in this order.
      duplicates, out_of_range, users, items: as in `Ratings.from_columns`.
      slice: "paper001" is `splits.paper001_slice`.
      shared: of several processes (`hosts`), that all call this: only the ratings of this one's
        users, over the catalogue of all. Of text no others are kept while reading; other files are
        read whole first.

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
        ratings = _generate(match)
        if shared:
            ratings = ratings.take(hosts.owned(ratings.users.tolist())[ratings.user])
        return splits.paper001_slice(ratings) if slice else ratings
    flags = {
        "user_column": user_column,
        "item_column": item_column,
        "rating_column": rating_column,
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
        return _share(name_or_path, data_dir, flags, rating_range, options, catalogue)
    source = find(name_or_path, data_dir, flags, rating_range)
    if split is None:
        ratings = source.rate(source.read(), **options, **catalogue)
        return splits.paper001_slice(ratings) if slice else ratings
    return _official(source, split, options, catalogue)


def list_datasets(data_dir: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Every known data set: name, title, size, rating_range, splits, path (None where it is
    absent), how to get it.
    """
    rows = [
        {
            "name": "synthetic",
            "title": "generated ratings, of any size: synthetic-USERSxITEMSxRATINGS-seedN",
            "size": "100,000 ratings, 943 users, 1,682 items",
            "rating_range": (1.0, 5.0),
            "splits": [],
            "path": None,
            "how_to_get": "it is generated, nothing is needed",
        }
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


def check(
    name_or_path: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    rating_range: tuple[float, float] | None = None,
    user_column: str | None = None,
    item_column: str | None = None,
    rating_column: str | None = None,
    delimiter: str | None = None,
    no_header: bool = False,
    limit: int = 1000,
) -> dict[str, Any]:
    """A report on a data set, for its curator: everything that `load` would refuse, and all of it
    by row.

    Returns: ok, name, rating_range, files ({path, bytes, sha256, known}); where the file parses,
      rows, users, items, histogram ({value: rows}), not_rated, duplicates; num_problems, problems
      (the first `limit`: {where, what}); where there are none, triples_sha256 and triples_known.
      `known` is None where no hash is known, else the comparison.
    Raises: DataError for a missing file or one that is no table at all; UsageError as `load`.
    """
    if match := SYNTHETIC.fullmatch(str(name_or_path)):
        ratings = _generate(match)
        user, item = Coded(ratings.user, ratings.users), Coded(ratings.item, ratings.items)
        columns = Columns(user, item, ratings.value, count_rows(ratings.name))
        source = Source(
            name=ratings.name,
            paths=(),
            layout=None,
            rating_range=ratings.rating_range,
            columns=columns,
        )
    else:
        flags = {
            "user_column": user_column,
            "item_column": item_column,
            "rating_column": rating_column,
        }
        source = find(
            name_or_path,
            data_dir,
            flags | {"delimiter": delimiter, "no_header": no_header},
            rating_range,
        )
    report: dict[str, Any] = {
        "ok": False,
        "name": source.name,
        "files": [],
        "rating_range": source.rating_range,
    }
    for path in source.paths:
        digest = _file_hash(path)
        known = None if source.sha256 is None else digest == source.sha256
        report["files"].append(
            {"path": str(path), "bytes": path.stat().st_size, "sha256": digest, "known": known}
        )
    try:
        columns = source.read()
    except DataError as error:
        faults = (
            []
            if source.layout is None
            else list(
                readers.problems(
                    source.paths[0], source.layout, source.rating_range, source.not_rated
                )
            )
        )
        found = [
            {"where": f"{source.paths[0]}, line {line}", "what": what} for line, what in faults
        ]
        found = found or [{"where": error.where, "what": error.what}]
        return report | {"num_problems": len(found), "problems": found[:limit]}
    report |= _counts(columns, source)
    rated = np.arange(len(columns.value))
    if source.not_rated is not None:
        rated = np.flatnonzero(columns.value != np.float32(source.not_rated))
    value, user, item = columns.value[rated], columns.user.codes[rated], columns.item.codes[rated]
    repeated = duplicated(user, item, len(columns.item.ids))
    problems = [*not_finite(value), out_of(value, source.rating_range), repeated]
    problems = [problem._replace(rows=rated[problem.rows]) for problem in problems]
    report |= {
        "duplicates": len(repeated.rows),
        "num_problems": sum(len(problem.rows) for problem in problems),
    }
    report["problems"] = _faults_by_row(problems, columns, source, limit)
    if report["num_problems"]:
        return report
    try:
        digest = source.rate(columns).sha256()
    except DataError as error:  # too few users or items, or no rating
        return report | {
            "num_problems": 1,
            "problems": [{"where": error.where, "what": error.what}],
        }
    known = None if source.triples is None else digest == source.triples
    return report | {"ok": True, "triples_sha256": digest, "triples_known": known}


def convert(
    name_or_path: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    **options: Any,
) -> Ratings:
    """Writes the ratings of `load(name_or_path, **options)` as .csv, .tsv or .parquet with columns
    user, item, rating.

    The file appears whole or not at all. A parquet file also declares the rating range, so `load`
    need not be told.
    Raises: as `load`; UsageError for another ending, a split, or a destination that exists.
    """
    destination = Path(destination)
    if destination.suffix not in (".csv", ".tsv", ".parquet"):
        raise UsageError(
            f"{destination.name} ends in {destination.suffix!r}",
            fix="name it .csv, .tsv or .parquet",
        )
    if destination.exists() and not overwrite:
        raise UsageError(f"{destination} exists", fix="name a new file")
    if options.get("split"):
        raise UsageError("a split is two files", fix="convert the whole, and split when loading")
    ratings = load(name_or_path, **options)
    assert isinstance(ratings, Ratings)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                _write(ratings, file, destination.suffix)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, destination)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        what = f"the file cannot be written: {error.strerror or error}"
        raise DataError(
            what, where=str(destination), fix="name a folder that can be written"
        ) from None
    return ratings


def _share(
    name_or_path: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None,
    flags: dict[str, Any],
    rating_range: tuple[float, float] | None,
    options: dict[str, Any],
    catalogue: dict[str, Any],
) -> Ratings:
    """What this process holds; blocks in which one process may fail alone stand in
    `hosts.together`.
    """
    source, columns = None, None
    with hosts.together():
        source = find(name_or_path, data_dir, flags, rating_range)
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
            )
        else:
            ratings = source.rate(columns, **options, **catalogue)
    assert ratings is not None
    return ratings


def _official(
    source: Source, split: str, options: dict[str, Any], catalogue: dict[str, Any]
) -> tuple[Ratings, Ratings]:
    """(train, test) of an official split over the union of their ids; a rating that is in both is
    an error.
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
        columns.append(readers.read_text(path, source.layout))
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


def _generate(match: re.Match[str]) -> Ratings:
    _, users, items, number, _, seed = match.groups()
    if not users:
        return synthetic.generate(seed=int(seed or 0))
    return synthetic.generate(
        num_users=int(users), num_items=int(items), num_ratings=int(number), seed=int(seed or 0)
    )


# --- reports and files


def _faults_by_row(
    found: list[Problem], columns: Columns, source: Source, limit: int
) -> list[dict[str, str]]:
    faults: list[dict[str, str]] = []
    for what, rows, _ in found:
        rows = rows[: limit - len(faults)]
        outside = [out_of(columns.value[[row]], source.rating_range) for row in rows]
        words = [
            problem.what if len(problem.rows) and np.isfinite(columns.value[row]) else what
            for problem, row in zip(outside, rows, strict=True)
        ]
        faults += [
            {"where": where, "what": word}
            for where, word in zip(columns.where(rows), words, strict=True)
        ]
    return faults


def _counts(columns: Columns, source: Source) -> dict[str, Any]:
    """Sizes and histogram of raw columns."""
    rated = (
        columns.value
        if source.not_rated is None
        else columns.value[columns.value != np.float32(source.not_rated)]
    )
    values, rows = np.unique(rated, return_counts=True)
    return {
        "rows": len(columns.value),
        "users": len(columns.user.ids),
        "items": len(columns.item.ids),
        "histogram": {f"{value:g}": int(count) for value, count in zip(values, rows, strict=True)},
        "not_rated": len(columns.value) - len(rated),
    }


def _file_hash(path: Path) -> str:
    with opened(path, unpack=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(ratings: Ratings, file: Any, suffix: str) -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    schema = pa.schema(
        [
            ("user", pa.int64() if ratings.users.dtype.kind == "i" else pa.string()),
            ("item", pa.int64() if ratings.items.dtype.kind == "i" else pa.string()),
            ("rating", pa.float32()),
        ],
        metadata={RANGE_KEY: f"{ratings.rating_range[0]!r} {ratings.rating_range[1]!r}"},
    )
    if suffix == ".parquet":
        writer = pyarrow.parquet.ParquetWriter(file, schema)
    else:
        options = pyarrow.csv.WriteOptions(
            delimiter="\t" if suffix == ".tsv" else ",", quoting_style="needed"
        )
        writer = pyarrow.csv.CSVWriter(file, schema, write_options=options)
    with writer:
        for start in range(0, len(ratings), CHUNK):
            rows = np.s_[start : start + CHUNK]
            columns = [
                ratings.users[ratings.user[rows]],
                ratings.items[ratings.item[rows]],
                ratings.value[rows],
            ]
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_table(pa.table(arrays, schema=schema))
