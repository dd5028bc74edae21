"""Files to columns: delimited text, plain or gzip, parsed in blocks; every fault names its line."""

import csv
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from dpmf_jax.data import ids
from dpmf_jax.data.ids import Coded, Where
from dpmf_jax.data.lines import SEPARATOR, first_line, lines, opened, parsed
from dpmf_jax.data.ratings import not_finite, out_of
from dpmf_jax.errors import DataError, UsageError

MARKS = ("::", "\t", ",", ";", "|", " ")  # that can separate columns, the likelier first
BLOCK = 8 << 20  # bytes that are parsed at once

USER_NAMES = ("user", "userid", "uid", "customerid", "reviewerid", "memberid")
ITEM_NAMES = (
    "item",
    "itemid",
    "iid",
    "movie",
    "movieid",
    "anime",
    "animeid",
    "productid",
    "profileid",
    "asin",
    "bookid",
)
RATING_NAMES = ("rating", "ratings", "score", "stars", "value")
NUMBER = re.compile(
    r"\s*-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*|\s*[+-]?(nan|inf|infinity)\s*", re.IGNORECASE
)
INTEGER = re.compile(r"0|-?[1-9]\d*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """How a text file holds ratings.

    Attributes:
      user, item, rating: names in the header, or positions from 0 where there is no header.
      delimiter: one character, or several ("::").
      header: whether the first line names the columns.
      num_columns: in every row; None takes the number in the first line.
      integer_ids: whether an id that is no integer is an error (the official layouts) or a string.
    """

    user: str | int = 0
    item: str | int = 1
    rating: str | int = 2
    delimiter: str = ","
    header: bool = False
    num_columns: int | None = None
    integer_ids: bool = False


Keep = Callable[
    [Iterable[Any]], np.ndarray
]  # distinct user ids to whether their rows are wanted, bool


class Columns(NamedTuple):
    """What a reader gives: `Ratings.from_columns(user, item, value, where=where, ...)` checks
    it.
    """

    user: Coded
    item: Coded
    value: np.ndarray  # float32[n]
    where: Where


class Sieve:
    """Of rows that come block by block, those of the users that `keep` wants, and where in the file
    they stood.
    """

    def __init__(self, keep: Keep):
        self._keep = keep
        self._told: dict[Any, bool] = {}
        self._places = [np.zeros(0, np.int64)]
        self.seen = 0

    def rows(self, users: Sequence[Any], codes: np.ndarray) -> np.ndarray:
        """int64[wanted], places in the next block, whose column of users is `users[codes]`."""
        new = [user for user in dict.fromkeys(users) if user not in self._told]
        self._told.update(zip(new, self._keep(new).tolist(), strict=True))
        rows = np.flatnonzero(np.array([self._told[user] for user in users], bool)[codes])
        self._places.append(rows + self.seen)
        self.seen += len(codes)
        return rows

    def places(self) -> np.ndarray:
        """int64[wanted], of all blocks: rows of the file."""
        return np.concatenate(self._places)


# --- delimited text


def read_text(path: Path, layout: Format, keep: Keep | None = None) -> Columns:
    """The three columns of a delimited text file; gzip, byte order mark, CRLF, quotes and blank
    lines are no problem.

    Ids become int64 where all of them are written as integers are, else strings (so "007" is not
    7). Memory is about 12 bytes a row and a few blocks; with `keep`, of the rows whose users it
    wants.

    Raises: DataError, with the line, for anything that is not such a file.
    """
    import pyarrow as pa
    import pyarrow.csv

    wanted = np.zeros(0, np.int64)  # rows of the file, where only some are kept

    def where(rows: np.ndarray) -> list[str]:
        rows = rows if keep is None else wanted[rows]
        return [f"{path}, line {line}" for line in _line_numbers(path, layout, rows)]

    start, first = first_line(path)
    width, places = _places(path, layout, first)
    names = [f"column {place}" for place in range(width)]
    user, item, rating = (names[place] for place in places)
    text = pa.dictionary(pa.int32(), pa.string())
    simple = len(layout.delimiter.encode()) == 1
    read = pyarrow.csv.ReadOptions(
        column_names=names, block_size=BLOCK, skip_rows=start if layout.header else 0
    )
    parse = pyarrow.csv.ParseOptions(
        delimiter=layout.delimiter if simple else SEPARATOR, quote_char='"' if simple else False
    )
    convert = pyarrow.csv.ConvertOptions(
        include_columns=[user, item, rating],
        column_types={user: text, item: text, rating: pa.float32()},
        null_values=[],
    )

    def rows(stream: Any) -> tuple[Any, np.ndarray]:
        if keep is None:
            return pyarrow.csv.read_csv(stream, read, parse, convert), np.zeros(0, np.int64)
        return _some_rows(pyarrow.csv.open_csv(stream, read, parse, convert), user, keep)

    try:
        with opened(path) as file:
            table, wanted = parsed(file, path, layout.delimiter, rows)
    except (pa.ArrowException, ValueError) as error:
        _explain(path, layout, error)
    columns = [
        ids.decode_dictionary(table[name], what, where)
        for name, what in ((user, "user"), (item, "item"))
    ]
    value = table[rating].to_numpy()
    for column, what in zip(columns, ("user", "item"), strict=True):
        if layout.integer_ids and ids.integers(column) is None:
            _explain(path, layout, ValueError(f"a {what} id is no integer"))
    return Columns(*(ids.integers(column) or column for column in columns), value, where)


def _some_rows(blocks: Any, user: str, keep: Keep) -> tuple[Any, np.ndarray]:
    """The rows of the users that are wanted, block by block, and their places in the file."""
    import pyarrow as pa

    sieve, some = Sieve(keep), []
    for block in blocks:
        column = block.column(user)
        entries = [entry.strip(" ") for entry in column.dictionary.to_pylist()]
        taken = block.take(pa.array(sieve.rows(entries, column.indices.to_numpy())))
        users = (
            taken.column(user).dictionary_decode().dictionary_encode()
        )  # without the others' ids
        some.append(taken.set_column(taken.schema.get_field_index(user), user, users))
    schema = some[0].schema if some else blocks.schema
    return pa.Table.from_batches(some, schema), sieve.places()


def sniff(
    path: Path,
    *,
    user_column: str | None = None,
    item_column: str | None = None,
    rating_column: str | None = None,
    delimiter: str | None = None,
    no_header: bool = False,
) -> Format:
    """The format of a text file: columns by name, or by position ("1" is the first; digits are
    always a position).

    Columns that are not named are found by the usual names in the header (`userId`, `movie_id`,
    `rating`, ...), or, with `no_header`, are the first three: user, item, rating. A first line with
    a number in it is a header only where a column is named; three positions read it as ratings.

    Raises: DataError where the delimiter or a column cannot be told, or is 0; UsageError for what
      cannot be a delimiter, and for a column name where `no_header` says that there are none.
    """
    wanted = {"user": user_column, "item": item_column, "rating": rating_column}
    named = [
        column for column in wanted.values() if column is not None and _position(column) is None
    ]
    if no_header and named:
        fix = (
            "give positions: --user-column 1 --item-column 2 --rating-column 3, or leave out"
            " --no-header"
        )
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
        if delimiter is None:
            what, fix = (
                f"no delimiter is seen in {line[:60]!r}",
                "name it: --delimiter ',' (or tab, ';', '::')",
            )
            raise DataError(what, where=where, fix=fix)
    fields = [field.strip() for field in _split(line, delimiter)]
    if len(fields) == 2:
        what = (
            "there are two columns and no ratings; who took what without a rating (implicit"
            " feedback) is not read yet"
        )
        fix = "give a file with a third column, the ratings, or the right --delimiter"
        raise DataError(what, where=where, fix=fix)
    if delimiter == " " and "" in fields:
        fix = "put exactly one space, comma or tab between columns"
        raise DataError("the columns are separated by runs of spaces", where=where, fix=fix)
    numbers = any(NUMBER.fullmatch(field) for field in fields)
    places = [_position(column) if column is not None else None for column in wanted.values()]
    usual = any(
        _plain(field) in names
        for field in fields
        for names in (USER_NAMES, ITEM_NAMES, RATING_NAMES)
    )
    if no_header or (None not in places and (numbers or not usual)):
        user, item, rating = (
            usual if place is None else place for usual, place in enumerate(places)
        )
        return Format(user=user, item=item, rating=rating, delimiter=delimiter)
    if (
        numbers
        and not named
        and not all(any(_plain(f) in n for f in fields) for n in (USER_NAMES, ITEM_NAMES))
    ):
        fix = (
            "add --no-header if the columns are user, item, rating in this order; "
            "else --user-column 1 --item-column 2 --rating-column 3 with their positions"
        )
        what = (
            "the first line holds numbers, so it is no header, and nothing says which column is"
            " which"
        )
        raise DataError(what, where=where, fix=fix)
    user, item, rating = name_columns(fields, wanted, where)
    return Format(user=user, item=item, rating=rating, delimiter=delimiter, header=True)


def name_columns(
    fields: Sequence[str], wanted: dict[str, str | None], where: str
) -> tuple[int, int, int]:
    """The places (from 0) of the user, item and rating columns among `fields`: as wanted, else by
    the usual names.
    """
    found = []
    for (what, name), usual in zip(
        wanted.items(), (USER_NAMES, ITEM_NAMES, RATING_NAMES), strict=True
    ):
        place = None if name is None else _position(name)
        if place is not None:
            matches = [place] if place < len(fields) else []
        else:
            matches = [
                at
                for at, field in enumerate(fields)
                if (_plain(field) in usual if name is None else field == name)
            ]
        if len(matches) != 1:
            shown = ", ".join(repr(field[:40]) for field in fields[:20])
            many = "more than one" if matches else "no"
            fix = (
                f"give --{what}-column one of these names, or its position (--{what}-column 1 is"
                " the first)"
            )
            raise DataError(
                f"there is {many} {what} column {name or ''}".rstrip(),
                where=f"{where}, which has {shown}",
                fix=fix,
            )
        found.append(matches[0])
    user, item, rating = found
    return user, item, rating


def _position(column: str) -> int | None:
    """The place from 0 that digits mean, None for a name. Raises: DataError for 0."""
    if not (column.isascii() and column.isdigit()):
        return None
    if int(column) == 0:
        raise DataError(
            "there is no column 0: columns count from 1", fix="give the first column as 1"
        )
    return int(column) - 1


def _plain(field: str) -> str:
    return re.sub(r"[^a-z0-9]", "", field.lower())


def _delimiter(line: str) -> str | None:
    """What separates the columns of a line; a space only where nothing else can."""
    line = line.strip(" ")
    several = [mark for mark in MARKS[:-1] if line.count(mark) >= 2]
    return next(iter([*several, *(mark for mark in MARKS if mark in line)]), None)


def problems(
    path: Path,
    layout: Format,
    rating_range: tuple[float, float] | None = None,
    not_rated: float | None = None,
) -> Iterator[tuple[int, str]]:
    """Every bad line as (line number, what is wrong): a slow pass in Python, for files that
    `read_text` refuses.

    Without a rating range only what does not parse is looked for; with one, also values and
    repeated pairs.
    """
    _, first = first_line(path)
    width, (user, item, rating) = _places(path, layout, first)
    seen: set[tuple[str, str]] = set()
    for line, fields in _rows(path, layout):
        if len(fields) != width:
            marks = [mark for mark in MARKS if len(fields) == 1 and mark in fields[0].strip()]
            hint = (
                f"; the line looks delimited by {marks[0]!r}, not {layout.delimiter!r}"
                if marks
                else ""
            )
            hint = "; a quote is not closed" if marks and marks[0] == layout.delimiter else hint
            yield line, f"{len(fields)} columns where {width} are expected{hint}"
            continue
        entries = [fields[place].strip(" ") for place in (user, item)]
        if not NUMBER.fullmatch(fields[rating]):
            header = line == 1 and not layout.header and not any(map(str.isdigit, "".join(fields)))
            hint = "; the line looks like a header, where none is expected" if header else ""
            yield line, f"the rating {fields[rating][:40]!r} is not a number{hint}"
            continue
        for entry, what in zip(entries, ("user", "item"), strict=True):
            if not entry:
                yield line, f"the {what} id is empty"
            elif any("\udc80" <= letter <= "\udcff" for letter in entry):
                yield line, f"the {what} id {entry[:40]!r} is not UTF-8 text"
            elif layout.integer_ids and not (
                INTEGER.fullmatch(entry) and abs(int(entry[:20])) < 2**63
            ):
                yield line, f"the {what} id {entry[:40]!r} is not an integer"
        if rating_range is not None and float(fields[rating]) != not_rated:
            value = np.array([fields[rating]], np.float64).astype(np.float32)
            yield from (
                (line, found.what)
                for found in (*not_finite(value), out_of(value, rating_range))
                if len(found.rows)
            )
            if tuple(entries) in seen:
                yield line, "a user rates an item more than once"
            seen.add((entries[0], entries[1]))


def _explain(path: Path, layout: Format, error: Exception) -> NoReturn:
    """Says which line the parser could not read, and why."""
    found = list(itertools.islice(problems(path, layout), 2))
    if not found:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise DataError(
            f"the file cannot be read: {reason}",
            where=str(path),
            fix="give a delimited UTF-8 text file",
        )
    (line, what), more = found[0], " (and more lines)" if len(found) > 1 else ""
    flags = "--delimiter, --no-header, --user-column, --item-column, --rating-column"
    fix = f"correct the line, or name the file's own layout ({flags})"
    raise DataError(what + more, where=f"{path}, line {line}", fix=fix)


def _places(path: Path, layout: Format, first: str) -> tuple[int, tuple[int, int, int]]:
    """How many columns there are, and which of them are user, item and rating."""
    fields = [field.strip() for field in _split(first, layout.delimiter)]
    names = (layout.user, layout.item, layout.rating)
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
    user, item, rating = places
    if not 0 <= min(places) <= max(places) < width or len(set(places)) < 3:
        what = f"columns {user + 1}, {item + 1}, {rating + 1} are asked of a file with {width}"
        fix = "name three different columns, and the right --delimiter"
        raise DataError(what, where=f"{path}, line 1", fix=fix)
    return width, (user, item, rating)


def _split(line: str, delimiter: str) -> list[str]:
    if len(delimiter) > 1 or '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter), [""])
    except csv.Error:
        return line.split(delimiter)


def _rows(path: Path, layout: Format) -> Iterator[tuple[int, list[str]]]:
    """Rows of data with their line numbers; slow."""
    for line, text in itertools.islice(lines(path), int(layout.header), None):
        yield line, _split(text, layout.delimiter)


def _line_numbers(path: Path, layout: Format, rows: np.ndarray) -> list[int]:
    wanted = {int(row): 0 for row in rows}
    last = max(wanted, default=-1)
    for row, (line, _) in enumerate(_rows(path, layout)):
        if row in wanted:
            wanted[row] = line
        if row >= last:
            break
    return [wanted[int(row)] for row in rows]
