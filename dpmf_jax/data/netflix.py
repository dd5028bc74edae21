"""The Netflix Prize layout to columns: a line "movie:", then lines "user,rating,date".

A file has one movie or many.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dpmf_jax.data import ids
from dpmf_jax.data.columns import Columns, Keep, Sieve
from dpmf_jax.data.lines import lines, opened
from dpmf_jax.data.text import BLOCK
from dpmf_jax.errors import DataError

CHUNK = 4 * BLOCK  # bytes that are in memory at once
HEADER = re.compile(r"\s*\d{1,18}:\s*")
ROW = re.compile(r"\s*\d{1,18}\s*,\s*-?\d+(\.\d+)?\s*,[^,]*")


def read_netflix(paths: Sequence[Path], keep: Keep | None = None) -> Columns:
    """The columns of `combined_data_*.txt` or `mv_*.txt`, in the order of `paths`.

    With `keep`, the rows of the users that it wants, and a few blocks of the others at a time.

    Raises: DataError, with the line, for anything that is not such a file.
    """
    sieve = None if keep is None else Sieve(keep)
    parts, sources, counts = [], [], []
    for path in paths:
        for part in _parts(path):
            sources.append(path)
            counts.append(len(part[0]))
            if sieve is not None:
                users, codes = np.unique(part[0], return_inverse=True)
                rows = sieve.rows(users.tolist(), codes)
                part = tuple(column[rows] for column in part)
            parts.append(part)
    if not sum(counts):
        raise DataError(
            "there is no rating", where=str(paths[0]), fix="give the files of the Netflix Prize"
        )
    ends = np.cumsum(counts)

    def where(rows: np.ndarray) -> list[str]:
        words = []
        for row in rows if sieve is None else sieve.places()[rows]:
            path = sources[int(np.searchsorted(ends, row, side="right"))]
            first = sources.index(path)
            place = int(row) - (int(ends[first - 1]) if first else 0)
            ratings = (number for number, line in lines(path) if not HEADER.fullmatch(line))
            words.append(f"{path}, line {next(itertools.islice(ratings, place, None), 0)}")
        return words

    user, movie, value = (np.concatenate(column) for column in zip(*parts, strict=True))
    del parts
    name = "the Netflix files"
    return Columns(
        ids.as_coded(user, "user", name, where),
        ids.as_coded(movie, "item", name, where),
        value,
        where,
    )


def _parts(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    movie, rest = -1, b""
    with opened(path) as file:
        while block := file.read(CHUNK):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            movie, part = _parse(path, movie, whole + newline)
            yield part
    yield _parse(path, movie, rest)[1]


def _parse(
    path: Path, movie: int, data: bytes
) -> tuple[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The last movie of some whole lines, and their user, movie and rating columns.

    `movie` is the one before them.
    """
    import pyarrow as pa
    import pyarrow.csv

    movies, pieces, start = [movie], [], 0
    while (colon := data.find(b":", start)) >= 0:
        line = data.rfind(b"\n", start, colon) + 1 or start
        end = data.find(b"\n", colon) + 1 or len(data)
        if not HEADER.fullmatch(data[line:end].decode("utf-8", "replace").lstrip("\ufeff")):
            _explain(path, ValueError("a stray colon"))
        pieces.append(data[start:line])
        movies.append(int(data[line:colon].removeprefix(b"\xef\xbb\xbf")))
        start = end
    pieces.append(data[start:])
    if movies[0] < 0 and pieces[0].strip():
        _explain(path, ValueError('ratings before the first line "movie:"'))
    text = b"".join(pieces)
    if not text.strip():
        return movies[-1], (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
    try:
        table = pyarrow.csv.read_csv(
            _of_arrow(text),
            pyarrow.csv.ReadOptions(column_names=["user", "rating", "date"], block_size=BLOCK),
            pyarrow.csv.ParseOptions(quote_char=False),
            pyarrow.csv.ConvertOptions(
                include_columns=["user", "rating"],
                column_types={"user": pa.int64(), "rating": pa.float32()},
                null_values=[],
            ),
        )
    except (pa.ArrowException, ValueError) as error:
        _explain(path, error)
    counts = [piece.count(b"\n") + (not piece.endswith(b"\n") and piece != b"") for piece in pieces]
    if sum(counts) != len(table):  # blank lines
        counts = [sum(bool(line) for line in piece.splitlines()) for piece in pieces]
    user = table["user"].to_numpy()
    user = user.astype(np.int32) if user.min() >= 0 and user.max() < 2**31 else user
    movie_of = np.array(movies) if max(movies) >= 2**31 else np.array(movies, np.int32)
    return movies[-1], (user, np.repeat(movie_of, counts), table["rating"].to_numpy())


def _of_arrow(text: bytes) -> Any:
    """The text in Arrow's own memory.

    Else Arrow's threads would need Python to give bytes back, when the program may be ending.
    """
    import pyarrow as pa

    copy = pa.BufferOutputStream()
    copy.write(text)
    return pa.BufferReader(copy.getvalue())


def _explain(path: Path, error: Exception) -> NoReturn:
    fix = 'give lines "movie:" and, below each, lines "user,rating,date"'
    headed = False
    for number, line in lines(path):
        headed |= HEADER.fullmatch(line) is not None
        if not headed or not (HEADER.fullmatch(line) or ROW.fullmatch(line)):
            what = (
                f"{line[:60]!r} is neither a rating nor a movie"
                if headed
                else f"{line[:60]!r} comes before any movie"
            )
            raise DataError(what, where=f"{path}, line {number}", fix=fix)
    reason = (str(error).splitlines() or [""])[0][:200]
    raise DataError(f"the file cannot be read: {reason}", where=str(path), fix=fix)
