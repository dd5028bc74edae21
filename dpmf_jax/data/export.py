"""Ratings as a file that any program reads: csv, tsv or parquet."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax.data.datasets import load
from dpmf_jax.data.parquet import RANGE_KEY
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, UsageError

CHUNK = 1 << 20  # ratings that are written at once


def convert(
    name_or_path: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    **options: Any,
) -> Ratings:
    """Writes the ratings of `load(name_or_path, **options)` as .csv, .tsv or .parquet.

    The columns are user, item, rating, and weight and timestamp where the ratings have them. The
    file appears whole or not at all. A parquet file also declares the rating range, so `load` need
    not be told.

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


def _write(ratings: Ratings, file: Any, suffix: str) -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    more = {"weight": (pa.float32(), ratings.weight), "timestamp": (pa.float64(), ratings.time)}
    kept = {name: (kind, column) for name, (kind, column) in more.items() if column is not None}
    schema = pa.schema(
        [
            ("user", pa.int64() if ratings.users.dtype.kind == "i" else pa.string()),
            ("item", pa.int64() if ratings.items.dtype.kind == "i" else pa.string()),
            ("rating", pa.float32()),
            *((name, kind) for name, (kind, _) in kept.items()),
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
                *(column[rows] for _, column in kept.values()),
            ]
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_table(pa.table(arrays, schema=schema))
