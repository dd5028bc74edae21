"""Ratings from what people have: a table, a sparse matrix, arrays, a path or a name."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from dpmf_jax.data import datasets, frames
from dpmf_jax.data.columns import name_columns
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.data.sources import RANGE_FIX, SEEN
from dpmf_jax.errors import DataError, UsageError

_LOG = logging.getLogger("dpmf_jax")
NAME = "data"  # what errors and settings call what has no name
OF_FILES = ("data_dir", "delimiter", "no_header", "split", "slice", "shared")  # of `datasets.load`
FORMS = (
    "give a DataFrame, an Arrow table, a mapping of columns, a scipy.sparse matrix, a tuple of"
    " (user, item, rating) columns, rows of them, a path, or the name of a data set"
)


def read(data: Any, **options: Any) -> Ratings | tuple[Ratings, Ratings]:
    """Checked ratings of what `data` holds.

    Args:
      data: one of

        - `Ratings`, taken as they are;
        - a name or a path, as in `datasets.load`, with all of its options;
        - a table: a pandas or polars DataFrame, an Arrow table, anything that speaks Arrow's or the
          dataframe interface, a mapping of columns. Columns are found by their usual names;
        - a `scipy.sparse` matrix or array, users by items. What is stored is a rating, zeros too.
          Its shape is the declared catalogue; `users` and `items` name its rows and columns, or
          else they are 0, 1, ...;
        - a tuple of columns: user, item, rating, and maybe weight;
        - an array or a list of rows of them.
      options: of `datasets.load`; of these a table takes `rating_range`, `user_column`,
        `item_column`, `rating_column`, `weight_column`, `time_column`, `users`, `items`,
        `duplicates`, `out_of_range` and `implicit`. The range is required unless `implicit`.

    Returns: the ratings; (train, test) where `split` names an official split.

    Raises: UsageError for options that mean nothing to these data, and where no range is declared;
      DataError for data of another form, and for whatever is wrong inside.
    """
    if isinstance(data, str | os.PathLike):
        return datasets.load(data, **options)
    given = {
        name: value
        for name, value in options.items()
        if not (value is None or (isinstance(value, bool | str) and value in (False, "refuse")))
    }
    if isinstance(data, Ratings):
        implicit = given.pop("implicit", False)
        if given:
            _refuse(given, "ratings that are checked already")
        return datasets.as_seen(data) if implicit else data
    if wrong := {name: given[name] for name in OF_FILES if name in given}:
        _refuse(wrong, f"a {type(data).__name__}")
    timed = given.pop("time_column", None)
    implicit = given.pop("implicit", False)
    if implicit and "weight_column" in given:
        _refuse({"weight_column": True}, "rows of which none is a rating")
    rating_range = given.pop("rating_range", None)
    if rating_range is None and not implicit:
        raise UsageError("the rating range must be declared", where=NAME, fix=RANGE_FIX)
    names = {
        what: given.pop(f"{what}_column", None) for what in ("user", "item", "rating", "weight")
    }
    shared = {"name": NAME, "rating_range": SEEN if implicit else rating_range, **given}
    if frames.is_table(data):
        return _of_table(data, names, timed, implicit, shared)
    if timed:
        _refuse({"time_column": timed}, f"a {type(data).__name__}, whose columns have no names")
    if named := {f"{what}_column": name for what, name in names.items() if name is not None}:
        _refuse(named, f"a {type(data).__name__}, whose columns have no names")
    if callable(getattr(data, "tocoo", None)):
        return _of_sparse(data, implicit, shared)
    return _of_columns(_columns(data), implicit, shared)


def read_whole(data: Any, **options: Any) -> Ratings:
    """`read` without an official split.

    Raises: UsageError for `split`; what `read` raises.
    """
    loaded = read(data, **options)
    if not isinstance(loaded, Ratings):
        _refuse({"split": True}, "ratings that are wanted whole")
    return loaded


def has_catalogue(data: Any) -> bool:
    """Whether the data say who may rate what, beside who does."""
    generated = isinstance(data, str) and datasets.SYNTHETIC.fullmatch(data) is not None
    return generated or isinstance(data, Ratings) or callable(getattr(data, "tocoo", None))


def _refuse(options: Mapping[str, Any], what: str) -> NoReturn:
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in options)
    raise UsageError(f"{flags}: this means nothing to {what}", where=NAME, fix="leave it out")


def _of_table(
    data: Any,
    names: Mapping[str, str | None],
    timed: str | bool | None,
    implicit: bool,
    options: dict[str, Any],
) -> Ratings:
    fields = frames.column_names(data)
    wanted = {
        what: name
        for what, name in names.items()
        if (what != "weight" or name is not None) and not (what == "rating" and implicit)
    }
    if timed:
        wanted["time"] = None if timed is True else timed
    places = name_columns([str(field) for field in fields], wanted, NAME)
    picked = dict(zip(wanted, (fields[place] for place in places), strict=True))
    more: dict[str, Any] = {
        what: str(picked[what]) for what in ("weight", "time") if what in picked
    }
    return Ratings.from_table(
        frames.of_columns(data, list(picked.values())),
        user=str(picked["user"]),
        item=str(picked["item"]),
        rating=None if implicit else str(picked["rating"]),
        **more,
        **options,
    )


def _of_sparse(data: Any, implicit: bool, options: dict[str, Any]) -> Ratings:
    entries = data.tocoo()
    if len(entries.shape) != 2:
        raise DataError(
            f"a sparse array of {len(entries.shape)} dimensions",
            where=NAME,
            fix="give a matrix of users by items",
        )
    columns = []
    for what, index, size in zip(
        ("user", "item"), (entries.row, entries.col), entries.shape, strict=True
    ):
        ids = options.get(f"{what}s")
        if ids is None:
            _LOG.warning(
                "the matrix has %s %ss: that is taken for your declaration of how many there are;"
                " a shape that was read off the ratings would tell who has one (catalogue_%ss)",
                f"{size:,}",
                what,
                what,
            )
        ids = np.arange(size) if ids is None else np.asarray(ids)
        if len(ids) != size:
            raise DataError(
                f"the matrix has {size:,} {what}s and {len(ids):,} ids of them",
                where=NAME,
                fix=f"give one id for each, or leave out --catalogue-{what}s",
            )
        options |= {f"{what}s": ids}
        columns.append(ids[index])
    return _of_columns([*columns, entries.data], implicit, options)


def _of_columns(columns: Sequence[Any], implicit: bool, options: dict[str, Any]) -> Ratings:
    user, item, *numbers = columns
    if not implicit and not numbers:
        raise DataError(
            "there are users and items, and no ratings",
            where=NAME,
            fix="give a third column, the ratings, or say --implicit",
        )
    value, *weight = [np.ones(len(user), np.float32), *numbers[1:]] if implicit else numbers
    return Ratings.from_columns(user, item, value, weight=weight[0] if weight else None, **options)


def _columns(data: Any) -> list[Any]:
    """The columns of a tuple of them, or of rows in an array or a list."""
    try:
        if isinstance(data, tuple):
            columns = [np.asarray(column) for column in data]
        elif isinstance(data, np.ndarray):
            columns = list(data.T) if data.ndim == 2 else []
        elif isinstance(data, list):
            columns = [np.asarray(column) for column in zip(*data, strict=True)]
        else:
            columns = []
    except (TypeError, ValueError):
        columns = []
    if not 2 <= len(columns) <= 4 or any(column.ndim != 1 for column in columns):
        shape = f" of shape {data.shape}" if isinstance(data, np.ndarray) else ""
        lazy = callable(getattr(data, "collect", None))
        raise DataError(
            f"a {type(data).__name__}{shape} is no table of ratings",
            where=NAME,
            fix=f"give what its collect() returns; or {FORMS}" if lazy else FORMS,
        )
    return columns
