"""Tables in memory to columns: Arrow, dataframes that speak its interface, mappings of arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpmf_jax.data.ids import Coded, Where, as_coded, count_rows, decode_dictionary
from dpmf_jax.errors import DataError


def table_columns(
    table: Any, names: Mapping[str, str], name: str, where: Where | None = None
) -> dict[str, Any]:
    """The columns user, item, rating, and maybe weight and time, for `Ratings.from_columns`.

    names: of each of them. Without one of ratings, who is in the table has seen the item: 1.

    Raises: DataError, as `Ratings.from_table`.
    """
    if isinstance(table, Mapping):
        found = list(table)
    else:
        table = arrow_table(table, name)
        found = table.column_names
    for column in names.values():
        if found.count(column) != 1:
            many = f"{found.count(column)} columns" if column in found else "no column"
            fix = "name the columns: --user-column, --item-column, --rating-column"
            raise DataError(
                f"there is {many} {column!r}",
                where=f"{name}, which has {', '.join(map(repr, found))}",
                fix=fix,
            )
    columns = {what: table[column] for what, column in names.items()}
    columns.setdefault("rating", np.ones(len(columns["user"]), np.float32))
    import pyarrow as pa
    import pyarrow.compute as pc

    if "time" in columns:
        columns["time"] = times(columns["time"], name)
    if isinstance(table, Mapping):
        return columns
    where = where or count_rows(name)
    for what in ("rating", "weight"):
        if what not in names:
            continue
        try:
            columns[what] = pc.cast(columns[what], pa.float32(), safe=False).to_numpy()
        except pa.ArrowException as error:
            told = f"the column {names[what]!r} is not numeric: {_line(error)}"
            fix = f"name the column that holds the {what}s"
            raise DataError(told, where=name, fix=fix) from None
    return columns | {
        what: arrow_column(columns[what], what, name, where) for what in ("user", "item")
    }


def times(column: Any, name: str) -> np.ndarray:
    """float64[n]: numbers as they are, dates and ISO 8601 text as microseconds since 1970.

    Raises: DataError for a column of anything else; what is missing is not-a-number.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        if not isinstance(column, pa.Array | pa.ChunkedArray):
            column = pa.array(column)
        if pa.types.is_dictionary(column.type):
            column = pc.cast(column, column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            try:
                return pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
            except pa.ArrowException:
                column = pc.cast(column, pa.timestamp("us"))
        if pa.types.is_temporal(column.type):
            column = pc.cast(pc.cast(column, pa.timestamp("us")), pa.int64())
        return pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowException, TypeError) as error:
        raise DataError(
            f"the times are neither numbers nor dates: {_line(error)}",
            where=name,
            fix="name the column that holds them; dates are written 2026-11-28 or with a time",
        ) from None


def arrow_column(column: Any, what: str, name: str, where: Where) -> Coded:
    """An Arrow array of ids, chunked or not, as codes and distinct ids.

    Ids are integers, strings, or a dictionary of strings.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    try:
        if column.null_count:
            row = np.flatnonzero(column.is_null().to_numpy())[:1]
            raise DataError(
                f"the {what} id is empty", where=where(row)[0], fix="correct or remove the row"
            )
        encoded = pa.types.is_dictionary(column.type)
        kind = column.type.value_type if encoded else column.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return as_coded(pc.cast(column, kind).to_numpy(), what, name, where)
        if not any(
            test(kind)
            for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        ):
            raise DataError(
                f"the {what} ids are of type {kind}",
                where=name,
                fix="give ids as integers or strings",
            )
        if not encoded:
            column = pc.cast(column, pa.string()).dictionary_encode()
        elif not pa.types.is_string(kind):  # such as a polars Categorical, which Arrow cannot cast
            parts = [
                pa.DictionaryArray.from_arrays(part.indices, pc.cast(part.dictionary, pa.string()))
                for part in column.chunks
            ]
            kind = pa.dictionary(column.type.index_type, pa.string())
            column = pa.chunked_array(parts, type=kind)
    except pa.ArrowException as error:
        fix = "give ids as integers or strings"
        raise DataError(
            f"the {what} ids cannot be read: {_line(error)}", where=name, fix=fix
        ) from None
    return decode_dictionary(column, what, where)


def arrow_table(table: Any, name: str) -> Any:
    import pyarrow as pa

    try:
        if isinstance(table, pa.RecordBatchReader):
            return table.read_all()
        if hasattr(table, "__arrow_c_stream__") or isinstance(table, pa.RecordBatch):
            return pa.table(table)
        if hasattr(table, "__dataframe__"):
            from pyarrow.interchange import from_dataframe

            return from_dataframe(table)
        problem = f"{type(table).__name__} is no Arrow table, dataframe or mapping of arrays"
    # The last is what a foreign table's own export may raise for a column type that it cannot hand
    # over.
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError) as error:
        problem = f"the table cannot be read: {_line(error)}"
    raise DataError(
        problem, where=name, fix="give an Arrow table, a dataframe or a mapping of arrays"
    )


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
