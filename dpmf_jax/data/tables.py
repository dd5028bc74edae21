"""Tables in memory to columns: Arrow, dataframes that speak its interface, mappings of arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpmf_jax.data.ids import Coded, Where, as_coded, count_rows, decode_dictionary
from dpmf_jax.errors import DataError


def table_columns(
    table: Any, names: tuple[str, ...], name: str, where: Where | None = None
) -> tuple[Any, ...]:
    """The user, item, rating and maybe weight columns of a table, for `Ratings.from_columns`.

    names: of the columns; two for a table without ratings, who is in which has seen the item: 1.
      A fourth is that of the weights.

    Raises: DataError, as `Ratings.from_table`.
    """
    if isinstance(table, Mapping):
        found = list(table)
    else:
        table = arrow_table(table, name)
        found = table.column_names
    for column in names:
        if found.count(column) != 1:
            many = f"{found.count(column)} columns" if column in found else "no column"
            fix = "name the columns: --user-column, --item-column, --rating-column"
            raise DataError(
                f"there is {many} {column!r}",
                where=f"{name}, which has {', '.join(map(repr, found))}",
                fix=fix,
            )
    user, item, *numbers = (table[column] for column in names)
    if isinstance(table, Mapping):
        return user, item, *(numbers or [np.ones(len(user), np.float32)])
    import pyarrow as pa
    import pyarrow.compute as pc

    where = where or count_rows(name)
    floats = [] if numbers else [np.ones(len(user), np.float32)]
    for column, number, held in zip(names[2:], numbers, ("ratings", "weights"), strict=False):
        try:
            floats.append(pc.cast(number, pa.float32(), safe=False).to_numpy())
        except pa.ArrowException as error:
            what = f"the column {column!r} is not numeric: {_line(error)}"
            fix = f"name the column that holds the {held}"
            raise DataError(what, where=name, fix=fix) from None
    ids = arrow_column(user, "user", name, where), arrow_column(item, "item", name, where)
    return *ids, *floats


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
        if not encoded or not pa.types.is_string(kind):
            column = pc.cast(column, pa.string()).dictionary_encode()
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
