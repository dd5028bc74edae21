"""Parquet files to columns, and the rating range that files of our own declare."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax.data.columns import NUMBER, Columns, Keep, Sieve, name_columns
from dpmf_jax.data.ids import count_rows
from dpmf_jax.data.tables import arrow_column, table_columns
from dpmf_jax.errors import DataError

RANGE_KEY = b"dpmf.rating_range"  # in the metadata of files of our own
BLOCK = 1 << 17  # rows that are in memory at once, where only some are kept


def declared_range(path: Path, **columns: Any) -> tuple[float, float] | None:
    """The rating range that a file declares, if `export.convert` wrote it; else None.

    Nothing but the file's schema is read.

    Raises: DataError for what is no parquet file, or one without the columns that `read_parquet`
      would be asked for.
    """
    with _opened(path) as file:
        _names(file, path, **columns)
        words = (
            (file.schema_arrow.metadata or {})
            .get(RANGE_KEY, b"")
            .decode("utf-8", "replace")
            .split()
        )
    if len(words) != 2 or not all(map(NUMBER.fullmatch, words)):
        return None
    return float(words[0]), float(words[1])


def _names(
    file: Any,
    path: Path,
    *,
    user_column: str | None = None,
    item_column: str | None = None,
    rating_column: str | None = None,
    weight_column: str | None = None,
    time_column: str | bool | None = None,
    implicit: bool = False,
) -> dict[str, str]:
    """The names of the columns that are wanted, by what they hold."""
    wanted = {"user": user_column, "item": item_column, "rating": rating_column}
    if implicit:
        del wanted["rating"]
    if weight_column is not None:
        wanted["weight"] = weight_column
    if time_column:
        wanted["time"] = None if time_column is True else time_column
    names = file.schema_arrow.names
    places = name_columns(names, wanted, str(path))
    return dict(zip(wanted, (names[place] for place in places), strict=True))


def read_parquet(path: Path, *, keep: Keep | None = None, **columns: Any) -> Columns:
    """The columns of a file: `user_column`, `item_column`, `rating_column`, `weight_column` and
    `time_column`.

    Each is given by name, or found by the usual names, but for weights, which are read only where
    they are named. Times are read where they are named, or asked for by True. With `implicit` no
    ratings are read: who is in the file has seen the item. With `keep`, the rows of the users that
    it wants are in memory, and a block of the others at a time.

    Raises: DataError for anything that is not such a file.
    """
    where, sieve = count_rows(str(path)), None
    with _opened(path) as file:
        names = _names(file, path, **columns)
        if keep is None:
            table = file.read(columns=list(names.values()))
        else:
            sieve = Sieve(keep)
            table = _some_rows(file, names, sieve, str(path))

    def among_all(rows: np.ndarray) -> Any:
        return where(rows if sieve is None else sieve.places()[rows])

    columns = table_columns(table, names, str(path), among_all)
    return Columns(value=columns.pop("rating"), where=among_all, **columns)


def _some_rows(file: Any, names: Mapping[str, str], sieve: Sieve, name: str) -> Any:
    """The rows of the users that are wanted, as a table without the others' ids."""
    import pyarrow as pa

    some = []
    wanted = list(names.values())
    for block in file.iter_batches(BLOCK, columns=wanted):
        first = sieve.seen
        user = arrow_column(
            block.column(names["user"]),
            "user",
            name,
            lambda rows, first=first: count_rows(name)(rows + first),
        )
        taken = pa.Table.from_batches(
            [block.take(pa.array(sieve.rows(user.ids.tolist(), user.codes)))]
        )
        for place, column in enumerate(taken.columns):
            if pa.types.is_dictionary(column.type):
                taken = taken.set_column(
                    place, taken.column_names[place], column.cast(column.type.value_type)
                )
        some.append(taken)
    return pa.concat_tables(some) if some else file.schema_arrow.empty_table().select(wanted)


@contextmanager
def _opened(path: Path) -> Generator[Any, None, None]:
    """An open parquet file. Raises: DataError where it is no parquet, or cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pa.OSFile(
            str(path)
        ) as file:  # no file of Python's, which Arrow's threads would need to give back
            yield pyarrow.parquet.ParquetFile(file)
    except OSError as error:
        what, fix = (
            f"the file cannot be read: {error.strerror or error}",
            "name a parquet file that is whole",
        )
        raise DataError(what, where=str(path), fix=fix) from None
    except (pa.ArrowException, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        fix = "give a parquet file that is whole"
        raise DataError(f"the file is no parquet: {reason}", where=str(path), fix=fix) from None
