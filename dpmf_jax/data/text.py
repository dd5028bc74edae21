"""Files to columns: delimited text, plain or gzip, parsed in blocks; every fault names its line."""

import collections
import itertools
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dpmf_jax.data import ids
from dpmf_jax.data.columns import LONE_USER, NUMBER, Columns, Keep, Sieve
from dpmf_jax.data.formats import MARKS, Format, find_columns, split_line
from dpmf_jax.data.lines import SEPARATOR, first_line, lines, opened, parsed
from dpmf_jax.data.ratings import no_weight, not_finite, out_of
from dpmf_jax.data.tables import times
from dpmf_jax.errors import DataError

BLOCK = 8 << 20  # bytes that are parsed at once
NUMBERS = ("rating", "weight")  # the columns that hold numbers
LONGEST_TEXT = 100  # lines that a quoted text may go over where a row is looked for by its line

INTEGER = re.compile(r"0|-?[1-9]\d*")


def read_text(path: Path, layout: Format, keep: Keep | None = None) -> Columns:
    """The columns of a delimited text file, all of one user where the format names none.

    Gzip, a byte order mark, CRLF, quotes and blank lines are no problem. Ids become int64 where all
    of them are written as integers are, else strings (so "007" is not 7). Memory is about 12 bytes
    a row and a few blocks; with `keep`, 12 bytes a row of the users that it wants.

    Raises: DataError, with the line, for anything that is not such a file.
    """
    import pyarrow as pa
    import pyarrow.csv

    wanted = np.zeros(0, np.int64)  # rows of the file, where only some are kept

    def where(rows: np.ndarray) -> list[str]:
        rows = rows if keep is None else wanted[rows]
        return [f"{path}, line {line}" for line in _line_numbers(path, layout, rows)]

    start, first = first_line(path)
    width, places = find_columns(path, layout, first)
    names = [f"column {place}" for place in range(width)]
    columns = {what: names[place] for what, place in places.items()}
    text = pa.dictionary(pa.int32(), pa.string())
    simple = len(layout.delimiter.encode()) == 1
    read = pyarrow.csv.ReadOptions(
        column_names=names, block_size=BLOCK, skip_rows=start if layout.header else 0
    )
    parse = pyarrow.csv.ParseOptions(
        delimiter=layout.delimiter if simple else SEPARATOR, quote_char='"' if simple else False
    )
    long_values = pyarrow.csv.ParseOptions(delimiter=parse.delimiter, newlines_in_values=True)
    convert = pyarrow.csv.ConvertOptions(
        include_columns=list(columns.values()),
        column_types={
            name: pa.float32() if what in NUMBERS else pa.string() if what == "time" else text
            for what, name in columns.items()
        },
        null_values=[],
    )

    def rows(options: Any, stream: Any) -> tuple[Any, np.ndarray]:
        if keep is None:
            return pyarrow.csv.read_csv(stream, read, options, convert), np.zeros(0, np.int64)
        blocks = pyarrow.csv.open_csv(stream, read, options, convert)
        return _some_rows(blocks, columns["user"], keep)

    def whole(options: Any) -> tuple[Any, np.ndarray]:
        with opened(path) as file:
            return parsed(file, path, layout.delimiter, partial(rows, options))

    try:
        try:
            table, wanted = whole(parse)
        except pa.ArrowInvalid:
            if not simple:
                raise
            table, wanted = whole(long_values)  # a quoted text may go over several lines
    except (pa.ArrowException, ValueError) as error:
        _explain(path, layout, error)
    numbers = {what: table[columns.pop(what)].to_numpy() for what in NUMBERS if what in columns}
    time = times(table[columns.pop("time")], str(path)) if "time" in columns else None
    # without ratings, who is in the file has seen it
    value = numbers.get("rating", np.ones(len(table), np.float32))
    coded = {
        what: ids.decode_dictionary(table[name], what, where) for what, name in columns.items()
    }
    coded.setdefault("user", ids.Coded(np.zeros(len(value), np.int32), np.array([LONE_USER])))
    for what, column in coded.items():
        if layout.integer_ids and ids.integers(column) is None:
            _explain(path, layout, ValueError(f"a {what} id is no integer"))
    user, item = (ids.integers(coded[what]) or coded[what] for what in ("user", "item"))
    return Columns(user, item, value, where, numbers.get("weight"), time)


def _some_rows(blocks: Any, user: str, keep: Keep) -> tuple[Any, np.ndarray]:
    """The rows of the users that are wanted, block by block, and their places in the file."""
    import pyarrow as pa

    sieve, some = Sieve(keep), []
    for block in blocks:
        column = block.column(user)
        entries = [entry.strip(" ") for entry in column.dictionary.to_pylist()]
        taken = block.take(pa.array(sieve.rows(entries, column.indices.to_numpy())))
        # without the others' ids
        users = taken.column(user).dictionary_decode().dictionary_encode()
        some.append(taken.set_column(taken.schema.get_field_index(user), user, users))
    schema = some[0].schema if some else blocks.schema
    return pa.Table.from_batches(some, schema), sieve.places()


def problems(
    path: Path,
    layout: Format,
    rating_range: tuple[float, float] | None = None,
    not_rated: float | None = None,
) -> Iterator[tuple[int, str]]:
    """Every bad line as (line number, what is wrong).

    A slow pass in Python, for files that `read_text` refuses. Without a rating range it looks only
    for what does not parse; with one, also at values and repeated pairs.
    """
    _, first = first_line(path)
    width, places = find_columns(path, layout, first)
    places.pop("time", None)  # `times` reads a whole column of them
    numbers = {what: places.pop(what) for what in NUMBERS if what in places}
    rating = numbers.get("rating")
    seen: set[tuple[str, ...]] = set()
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
        entries = [fields[place].strip(" ") for place in places.values()]
        wrong = [what for what, at in numbers.items() if not NUMBER.fullmatch(fields[at])]
        if wrong:
            header = line == 1 and not layout.header and not any(map(str.isdigit, "".join(fields)))
            hint = "; the line looks like a header, where none is expected" if header else ""
            entry = fields[numbers[wrong[0]]][:40]
            yield line, f"the {wrong[0]} {entry!r} is not a number{hint}"
            continue
        for entry, what in zip(entries, places, strict=True):
            if not entry:
                yield line, f"the {what} id is empty"
            elif any("\udc80" <= letter <= "\udcff" for letter in entry):
                yield line, f"the {what} id {entry[:40]!r} is not UTF-8 text"
            elif layout.integer_ids and not (
                INTEGER.fullmatch(entry) and abs(int(entry[:20])) < 2**63
            ):
                yield line, f"the {what} id {entry[:40]!r} is not an integer"
        if rating is not None and rating_range is not None and float(fields[rating]) != not_rated:
            held = {
                what: np.array([fields[at]], np.float64).astype(np.float32)
                for what, at in numbers.items()
            }
            found = [*not_finite(held["rating"]), out_of(held["rating"], rating_range)]
            found += [no_weight(held["weight"])] if "weight" in held else []
            yield from ((line, problem.what()) for problem in found if len(problem.rows))
            if tuple(entries) in seen:
                yield line, "a user rates an item more than once"
            seen.add(tuple(entries))


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


def _rows(path: Path, layout: Format) -> Iterator[tuple[int, list[str]]]:
    """Rows of data with the numbers of their first lines; slow."""
    numbered = itertools.islice(lines(path), int(layout.header), None)
    for line, text in _whole_rows(numbered, simple=len(layout.delimiter) == 1):
        yield line, split_line(text, layout.delimiter)


def _whole_rows(numbered: Iterator[tuple[int, str]], *, simple: bool) -> Iterator[tuple[int, str]]:
    """The lines, of which those that a quoted text holds together are one row.

    A quote that is not closed within `LONGEST_TEXT` lines holds nothing together.
    """
    waiting: collections.deque[tuple[int, str]] = collections.deque()
    for line, text in _first_of(waiting, numbered):
        row, taken = [text], list[tuple[int, str]]()
        quotes = text.count('"')
        while simple and quotes % 2 and len(taken) < LONGEST_TEXT:
            more = next(_first_of(waiting, numbered), None)
            if more is None:
                break
            taken.append(more)
            row.append(more[1])
            quotes += more[1].count('"')
        if quotes % 2:
            waiting.extendleft(reversed(taken))
            yield line, text
        else:
            yield line, "\n".join(row)


def _first_of(
    waiting: collections.deque[tuple[int, str]], others: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, str]]:
    """What waits, then the others."""
    while True:
        if waiting:
            yield waiting.popleft()
        elif (one := next(others, None)) is not None:
            yield one
        else:
            return


def _line_numbers(path: Path, layout: Format, rows: np.ndarray) -> list[int]:
    wanted = {int(row): 0 for row in rows}
    last = max(wanted, default=-1)
    for row, (line, _) in enumerate(_rows(path, layout)):
        if row in wanted:
            wanted[row] = line
        if row >= last:
            break
    return [wanted[int(row)] for row in rows]
