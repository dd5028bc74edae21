"""How a text file holds ratings: the format as declared, or as its first line shows it."""

import csv
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpmf_jax.data.columns import (
    ITEM_NAMES,
    NUMBER,
    RATING_NAMES,
    USER_NAMES,
    name_columns,
    plain,
    position,
)
from dpmf_jax.data.lines import SEPARATOR, first_line
from dpmf_jax.errors import DataError, UsageError

MARKS = ("::", "\t", ",", ";", "|", " ")  # that can separate columns, the likelier first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """How a text file holds ratings.

    Attributes:
      user, item, rating: names in the header, or positions from 0 where there is no header. user is
        None where all ratings are one user's. rating is None where none are read: a row says that
        the user has seen the item.
      weight, time: likewise, of a column of weights, and of times; None where none are read.
      delimiter: one character, or several ("::").
      header: whether the first line names the columns.
      num_columns: in every row; None takes the number in the first line.
      integer_ids: whether an id that is no integer is an error (the official layouts) or a string.
    """

    user: str | int | None = 0
    item: str | int = 1
    rating: str | int | None = 2
    weight: str | int | None = None
    time: str | int | None = None
    delimiter: str = ","
    header: bool = False
    num_columns: int | None = None
    integer_ids: bool = False


def sniff(
    path: Path,
    *,
    user_column: str | None = None,
    item_column: str | None = None,
    rating_column: str | None = None,
    weight_column: str | None = None,
    time_column: str | bool | None = None,
    delimiter: str | None = None,
    no_header: bool = False,
    lone_user: bool = False,
    implicit: bool = False,
) -> Format:
    """The format of a text file, from its first line and from what is told of its columns.

    With `implicit` no ratings are read, and a column of them may be there or not. With `lone_user`
    a file of two columns (and one of weights), or one without a column of users whose two other
    columns are told, holds one user's ratings.

    Columns are told by name, or by position ("1" is the first; digits are always a position).
    Columns that are not told are found by the usual names in the header (`userId`, `movie_id`,
    `rating`, ...), or, with `no_header`, are the first three: user, item, rating. A first line with
    a number in it is a header only where a column is named; three positions read it as ratings.

    Raises: DataError where the delimiter or a column cannot be told, or is 0; UsageError for what
      cannot be a delimiter, and for a column name where `no_header` says that there are none.
    """
    wanted = {"user": user_column, "item": item_column, "rating": rating_column}
    if implicit:
        del wanted["rating"]
    if weight_column is not None:
        wanted["weight"] = weight_column
    if time_column:
        wanted["time"] = None if time_column is True else time_column
    named = [
        column for column in wanted.values() if column is not None and position(column) is None
    ]
    if no_header and named:
        flags = " ".join(f"--{name}-column {place}" for place, name in enumerate(wanted, 1))
        fix = f"give positions: {flags}, or leave out --no-header"
        raise UsageError(
            f"a file without a header has no column {named[0]!r}", where="--no-header", fix=fix
        )
    number, line = first_line(path)
    where = f"{path}, line {number}"
    if delimiter is not None:
        delimiter = "\t" if delimiter in ("\\t", "tab") else delimiter
        if not delimiter or set(delimiter) & set('"\r\n\0' + SEPARATOR):
            raise UsageError(
                f"{delimiter!r} is no delimiter", fix="name it: --delimiter ',' (or tab, ';', '::')"
            )
    else:
        delimiter = _delimiter(line)
        if delimiter is None and implicit and lone_user:
            header = not no_header and (plain(line) in ITEM_NAMES or line.strip() == item_column)
            return Format(user=None, item=0, rating=None, header=header)
        if delimiter is None:
            what, fix = (
                f"no delimiter is seen in {line[:60]!r}",
                "name it: --delimiter ',' (or tab, ';', '::')",
            )
            raise DataError(what, where=where, fix=fix)
    fields = [field.strip() for field in split_line(line, delimiter)]
    numbers = any(NUMBER.fullmatch(field) for field in fields)
    if implicit and lone_user and user_column is None:
        if not numbers and not any(plain(field) in USER_NAMES for field in fields):
            del wanted["user"]
    elif lone_user and user_column is None:
        unnamed = not (numbers or no_header or any(plain(field) in USER_NAMES for field in fields))
        more = ("weight" in wanted) + ("time" in wanted)
        if len(fields) - more == 2 or (item_column and rating_column and unnamed):
            del wanted["user"]
    if len(fields) == 2 and {"user", "rating"} <= wanted.keys():
        what = "there are two columns and no ratings: who has seen what"
        fix = (
            "dpmf fit takes it for who has seen what; or give a third column, the ratings, or the"
            " right --delimiter"
        )
        raise DataError(what, where=where, fix=fix)
    if delimiter == " " and "" in fields:
        fix = "put exactly one space, comma or tab between columns"
        raise DataError("the columns are separated by runs of spaces", where=where, fix=fix)
    places = [position(column) if column is not None else None for column in wanted.values()]
    usual = any(
        plain(field) in names
        for field in fields
        for names in (USER_NAMES, ITEM_NAMES, RATING_NAMES)
    )
    if no_header or (None not in places and (numbers or not usual)):
        found = (usual if place is None else place for usual, place in enumerate(places))
        return Format(**_by_name(wanted, found), delimiter=delimiter)
    if (
        numbers
        and not named
        and not all(any(plain(f) in n for f in fields) for n in (USER_NAMES, ITEM_NAMES))
    ):
        flags = (f"--{name}-column {place}" for place, name in enumerate(wanted, 1))
        fix = (
            f"add --no-header if the columns are {', '.join(wanted)} in this order; "
            f"else {' '.join(flags)} with their positions"
        )
        what = (
            "the first line holds numbers, so it is no header, and nothing says which column is"
            " which"
        )
        raise DataError(what, where=where, fix=fix)
    found = name_columns(fields, wanted, where)
    return Format(**_by_name(wanted, found), delimiter=delimiter, header=True)


def has_no_ratings(path: Path, delimiter: str | None = None) -> bool:
    """Whether a text file has two columns: who has seen what. Reads its first line."""
    if not path.is_file() or path.suffix in (".parquet", ".pq"):
        return False
    _, line = first_line(path)
    mark = ("\t" if delimiter in ("\\t", "tab") else delimiter) or _delimiter(line)
    return bool(mark) and len(split_line(line.strip(" "), mark)) == 2


def _by_name(wanted: Iterable[str], places: Iterable[int]) -> dict[str, Any]:
    return {"user": None, "rating": None, **dict(zip(wanted, places, strict=True))}


def _delimiter(line: str) -> str | None:
    """What separates the columns of a line; a space only where nothing else can."""
    line = line.strip(" ")
    several = [mark for mark in MARKS[:-1] if line.count(mark) >= 2]
    return next(iter([*several, *(mark for mark in MARKS if mark in line)]), None)


def find_columns(path: Path, layout: Format, first: str) -> tuple[int, dict[str, int]]:
    """How many columns there are, and which of them are user, item, rating, weight and time.

    All but the item may be missing.
    """
    fields = [field.strip() for field in split_line(first, layout.delimiter)]
    columns = {
        "user": layout.user,
        "item": layout.item,
        "rating": layout.rating,
        "weight": layout.weight,
        "time": layout.time,
    }
    columns = {what: name for what, name in columns.items() if name is not None}
    names = tuple(columns.values())
    places: list[int] = []
    for name in names:
        if isinstance(name, int):
            places.append(name)
        elif fields.count(name) == 1:
            places.append(fields.index(name))
        else:
            shown = ", ".join(repr(field[:40]) for field in fields[:20])
            numbers = sum(NUMBER.fullmatch(field) is not None for field in fields) * 2 > len(fields)
            what = (
                f"there is no header with a column {name!r}"
                if numbers
                else f"there is no column {name!r}"
            )
            fix = f"the first line must name the columns {', '.join(map(str, names))}"
            raise DataError(what, where=f"{path}, line 1, which has {shown}", fix=fix)
    width = layout.num_columns or len(fields)
    if not 0 <= min(places) <= max(places) < width or len(set(places)) < len(places):
        asked = ", ".join(str(place + 1) for place in places)
        what = f"columns {asked} are asked of a file with {width}"
        fix = "name different columns, and the right --delimiter"
        raise DataError(what, where=f"{path}, line 1", fix=fix)
    return width, dict(zip(columns, places, strict=True))


def split_line(line: str, delimiter: str) -> list[str]:
    if len(delimiter) > 1 or '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter), [""])
    except csv.Error:
        return line.split(delimiter)
