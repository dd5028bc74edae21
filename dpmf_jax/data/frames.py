"""Tables in memory, by what they can do: whose columns they name, and how a result becomes one.

pandas and polars are not needed here, and not imported: whoever gives a DataFrame has its library.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Kind = Literal["pandas", "polars"]


def is_table(data: Any) -> bool:
    """Whether it has named columns: a mapping, Arrow, or something of the dataframe interface."""
    return isinstance(data, Mapping) or any(
        hasattr(data, name) for name in ("__arrow_c_stream__", "__dataframe__", "column_names")
    )


def column_names(table: Any) -> list[Any]:
    """The names of its columns, in their order, as the table has them.

    Raises: DataError for an object that is no table after all.
    """
    if isinstance(table, Mapping):
        return list(table)
    names = getattr(table, "column_names", None)
    if names is None:
        names = getattr(table, "columns", None)
    if names is None:
        names = _arrow(table).column_names
    return list(names)


def of_columns(table: Any, names: Sequence[Any]) -> Any:
    """The table with these columns alone: others may hold what Arrow cannot."""
    if isinstance(table, Mapping):
        return {str(name): table[name] for name in names}
    if kind_of(table) is None:
        return table
    return table[list(dict.fromkeys(names))]


def kind_of(data: Any) -> Kind | None:
    """The library of a DataFrame or a Series, if it is one of those that results can be made of."""
    library = type(data).__module__.partition(".")[0]
    return library if library in ("pandas", "polars") else None


def as_kind(table: Any, kind: Kind | None) -> Any:
    """An Arrow table as a DataFrame of that library; as it is without one."""
    if kind == "pandas":
        return table.to_pandas()
    return importlib.import_module(kind).from_arrow(table) if kind else table


def _arrow(table: Any) -> Any:
    from dpmf_jax.data.tables import arrow_table

    return arrow_table(table, "data")
