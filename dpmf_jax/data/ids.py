"""Raw ids to indices: columns of integers or strings as codes, and the catalogue they index."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.errors import DataError

Where = Callable[[np.ndarray], Sequence[str]]  # rows, counted from 0, to words for an error

LONGEST_ID = 256  # characters; NumPy keeps every string of an array as wide as its longest


class Coded(NamedTuple):
    """A column of ids as codes: `ids[codes]` is the column.

    codes: int32[rows].
    ids: int64 or str, [distinct], in any order.
    """

    codes: np.ndarray  # int32[n]
    ids: np.ndarray  # int64 or str, [distinct]


def count_rows(name: str) -> Where:
    """A function that names rows of a table in memory."""
    return lambda rows: [f"{name}, row {row} (the first is row 0)" for row in rows]


def as_coded(column: Any, what: str, name: str, where: Where) -> Coded:
    """An id column as codes and distinct ids.

    A lookup table where integer ids are dense, sorting or hashing elsewhere.

    Raises: DataError for ids that are neither whole numbers below 2^63 nor strings of 1 to 256
      printable characters.
    """
    if isinstance(column, Coded):
        return column
    array = np.asarray(column)
    if array.ndim != 1:
        raise DataError(
            f"the {what} column has {array.ndim} dimensions", where=name, fix="give one id a row"
        )
    fix = "give ids as integers or strings"
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.floor(array)) & (np.abs(array) < 2.0**53)
        if not whole.all():
            row = np.flatnonzero(~whole)[:1]
            raise DataError(
                f"the {what} id {array[row[0]]} is not a whole number", where=where(row)[0], fix=fix
            )
        array = array.astype(np.int64)
    if array.dtype.kind == "u" and len(array) and array.max() > np.iinfo(np.int64).max:
        row = np.flatnonzero(array > np.iinfo(np.int64).max)[:1]
        raise DataError(
            f"the {what} id {array[row[0]]} needs more than 63 bits", where=where(row)[0], fix=fix
        )
    if array.dtype.kind in "iu":
        return _code_integers(array)
    if array.dtype.kind in "OUT":
        return _code_objects(array, what, where)
    raise DataError(f"the {what} ids are of type {array.dtype}", where=name, fix=fix)


def catalogue(
    column: Coded, declared: Any, what: str, where: Where
) -> tuple[np.ndarray, np.ndarray]:
    """(indices into the catalogue, int32[rows]; the catalogue).

    The catalogue is the declared ids as given, or the ids in use, sorted.
    """
    present = np.flatnonzero(np.bincount(column.codes, minlength=len(column.ids)))
    if declared is None:
        present = present[np.argsort(column.ids[present], kind="stable")]
        ids, position = column.ids[present], np.arange(len(present), dtype=np.int32)
    else:
        ids = np.asarray(declared)
        if ids.ndim != 1 or ids.dtype.kind not in "iuUTO" or not len(ids):
            fix = "give integers or strings"
            raise DataError(
                f"the declared {what}s are not a list of ids",
                where=f"the declared {what}s",
                fix=fix,
            )
        ids = ids.astype(np.int64 if ids.dtype.kind in "iu" else str)
        index = {str(entry): place for place, entry in enumerate(ids.tolist())}
        if len(index) != len(ids):
            raise DataError(
                f"the declared {what}s repeat an id",
                where=f"the declared {what}s",
                fix="name each once",
            )
        position = np.array(
            [index.get(str(entry), -1) for entry in column.ids[present].tolist()], np.int32
        )
        if len(unknown := present[position < 0]):
            rows = np.flatnonzero(np.isin(column.codes, unknown))
            described = (
                f"the {what} {column.ids[column.codes[rows[0]]]} is not among the declared {what}s"
            )
            more = f" ({len(rows):,} such rows)" if len(rows) > 1 else ""
            fix = f"add it to the declared {what}s or remove its ratings"
            raise DataError(described + more, where=where(rows[:1])[0], fix=fix)
    table = np.full(max(len(column.ids), 1), -1, np.int32)
    table[present] = position
    return table[column.codes], ids


def decode_dictionary(column: Any, what: str, where: Where) -> Coded:
    """A chunked Arrow dictionary of strings as codes and distinct ids.

    Blanks around an id are not part of it.
    """
    column = column.unify_dictionaries()
    if not len(column):
        return Coded(np.zeros(0, np.int32), np.zeros(0, np.int64))
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks]).astype(
        np.int32, copy=False
    )
    index: dict[str, int] = {}
    entries = next(chunk for chunk in column.chunks if len(chunk)).dictionary.to_pylist()
    table = np.array(
        [index.setdefault(entry.strip(" "), len(index)) for entry in entries], np.int32
    )
    if len(index) < len(entries):
        codes = table[codes]
    return _checked(codes, list(index), what, where)


def integers(column: Coded) -> Coded | None:
    """String ids as int64, if each is written as integers are (7, -7; not 07, +7, 7.0); else None.

    So nothing is lost.
    """
    if column.ids.dtype.kind != "U":
        return column
    try:
        numbers = column.ids.astype(np.int64)
    except (ValueError, OverflowError):
        return None
    return (
        column._replace(ids=numbers)
        if np.array_equal(numbers.astype(column.ids.dtype), column.ids)
        else None
    )


def _code_integers(array: np.ndarray) -> Coded:
    if not len(array):
        return Coded(np.zeros(0, np.int32), np.zeros(0, np.int64))
    low, high = int(array.min()), int(array.max())
    if high - low > max(4 * len(array), 1 << 20):
        ids, codes = np.unique(array.astype(np.int64, copy=False), return_inverse=True)
        return Coded(codes.astype(np.int32), ids)
    place = np.subtract(array, low, dtype=np.int64) if low else array
    seen = np.zeros(high - low + 1, bool)
    seen[place] = True
    ids = np.flatnonzero(seen)
    table = np.empty(high - low + 1, np.int32)
    table[ids] = np.arange(len(ids), dtype=np.int32)
    return Coded(table[place], ids + low)


def _code_objects(array: np.ndarray, what: str, where: Where) -> Coded:
    index: dict[str, int] = {}
    codes = np.empty(len(array), np.int32)
    number = True
    for row, entry in enumerate(array.tolist()):
        whole = isinstance(entry, int) and not isinstance(entry, bool)
        if not (whole or isinstance(entry, str)):
            message, fix = (
                f"the {what} id {entry!r} is not a string or an integer",
                "correct or remove the row",
            )
            raise DataError(message, where=where(np.array([row]))[0], fix=fix)
        number &= whole
        codes[row] = index.setdefault(str(entry), len(index))
    coded = _checked(codes, list(index), what, where)
    return (integers(coded) or coded) if number else coded


def _checked(codes: np.ndarray, ids: list[str], what: str, where: Where) -> Coded:
    for code, entry in enumerate(ids):
        if not entry:
            message = f"the {what} id is empty"
        elif len(entry) > LONGEST_ID:
            message = f"the {what} id {entry[:20]!r}... has {len(entry):,} characters"
        elif not entry.isprintable() and any(
            ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in entry
        ):
            message = f"the {what} id {entry[:40]!r} has a control character"
        else:
            continue
        if len(rows := np.flatnonzero(codes == code)[:1]):
            raise DataError(
                message, where=where(rows)[0], fix="give ids as integers or short printable strings"
            )
    return Coded(codes, np.array([entry[:LONGEST_ID] for entry in ids], dtype=str))
