"""Ratings on the host: three columns, the raw ids, a declared range.

Every check happens here, once, vectorised.
"""

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

from dpmf_jax.data import ids
from dpmf_jax.data.ids import Where, count_rows
from dpmf_jax.data.tables import table_columns
from dpmf_jax.errors import DataError, UsageError

Duplicates = Literal["refuse", "first", "last", "mean"]
OutOfRange = Literal["refuse", "drop", "clip"]


@dataclasses.dataclass(frozen=True, eq=False)
class Ratings:
    """Who rated what with which value.

    `Ratings.from_columns` builds and checks; the plain constructor checks nothing.

    Attributes:
      user: int32[n], index into `users`.
      item: int32[n], index into `items`.
      value: float32[n], within `rating_range`.
      users, items: the raw ids (1-d int64 or str, distinct): the catalogue, which is public.
      rating_range: the declared (lowest, highest) possible rating, public; never computed from the
        ratings.
      name: of the data set.
      notes: what was dropped, clipped, merged or split off; for the curator only.
      weight: float32[n], between 0 and 1: how much each rating counts. None: all count alike. A
        rating of weight 0 is there, and counts nothing.
      time: float64[n], when each rating was given, in any unit; for splits (`splits.last`), and for
        no mechanism. None: nobody knows.

    Guarantee of `from_columns`: each (user, item) occurs once, values are finite and in range, rows
    keep their order.
    """

    user: np.ndarray
    item: np.ndarray
    value: np.ndarray
    users: np.ndarray
    items: np.ndarray
    rating_range: tuple[float, float]
    name: str = "ratings"
    notes: tuple[str, ...] = ()
    weight: np.ndarray | None = None
    time: np.ndarray | None = None

    @property
    def num_users(self) -> int:
        return len(self.users)

    @property
    def num_items(self) -> int:
        return len(self.items)

    @property
    def num_ratings(self) -> int:
        return len(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        size = (
            f"{self.num_ratings:,} ratings of {self.num_items:,} items by {self.num_users:,} users"
        )
        return f"Ratings({self.name}: {size}, range {_span(self.rating_range)})"

    def take(self, rows: np.ndarray, note: str | None = None) -> "Ratings":
        """The ratings at `rows` (a mask or indices), with the same catalogue and range.

        `note` joins the notes.
        """
        return dataclasses.replace(
            self,
            user=self.user[rows],
            item=self.item[rows],
            value=self.value[rows],
            weight=None if self.weight is None else self.weight[rows],
            time=None if self.time is None else self.time[rows],
            notes=self.notes if note is None else (*self.notes, note),
        )

    def sha256(self) -> str:
        """Hash of the (user id, item id, value) triples, with weights if there are any.

        The order of rows and unrated ids do not matter. It is the SHA-256 of the lines `user TAB
        item TAB value LF` in byte order, with values in their shortest decimal form: for MovieLens
        100K, `cut -f1-3 u.data | LC_ALL=C sort | sha256sum` prints the same.
        """
        user_text, user_rank = _byte_order(self.users)
        item_text, item_rank = _byte_order(self.items)
        order = np.argsort(
            user_rank[self.user] * self.num_items + item_rank[self.item], kind="stable"
        )
        value_text, value_code = _texts(self.value, "\n" if self.weight is None else "\t")
        if self.weight is not None:
            weight_text, weight_code = _texts(self.weight, "\n")
            value_text = np.add.outer(value_text, weight_text).ravel()
            value_code = value_code * len(weight_text) + weight_code
        digest = hashlib.sha256()
        for start in range(0, len(order), 1 << 18):
            rows = order[start : start + (1 << 18)]
            digest.update(
                b"".join(
                    user_text[self.user[rows]]
                    + item_text[self.item[rows]]
                    + value_text[value_code[rows]]
                )
            )
        return digest.hexdigest()

    @classmethod
    def from_columns(
        cls,
        user: Any,
        item: Any,
        value: Any,
        *,
        rating_range: tuple[float, float],
        users: Any = None,
        items: Any = None,
        name: str = "ratings",
        duplicates: Duplicates = "refuse",
        out_of_range: OutOfRange = "refuse",
        not_rated: float | None = None,
        where: Where | None = None,
        origin: str = "",
        notes: tuple[str, ...] = (),
        fewest: int = 2,
        weight: Any = None,
        time: Any = None,
    ) -> "Ratings":
        """Checked ratings from three columns of equal length.

        Costs O(n) for ids, and one sort of n int64 keys for duplicates.

        Args:
          user, item: raw ids (integers or strings), or `ids.Coded`.
          value: ratings, anything that casts to float32.
          rating_range: the declared (lowest, highest) possible rating.
          users, items: the declared catalogue, kept in this order, an id outside it is an error;
            None takes the ids of all rows (dropped ones too), sorted.
          duplicates: of a (user, item): refuse; keep the first or the last row; their mean, in the
            first one's place.
          out_of_range: refuse; drop the row; clip the value to `rating_range`.
          not_rated: a value that means "no rating" (anime: -1); such rows are dropped and counted
            in the notes.
          where: names rows for an error ("ratings.csv, line 7"); by default "origin, row 6 (the
            first is row 0)".
          origin: names the data for an error, by default as `name`.
          notes: what happened to the columns before.
          fewest: users and items that there must be; 1 for new users of a model.
          weight: of each rating, between 0 and 1, anything that casts to float32. Of duplicates it
            is kept, or averaged, as the value is.
          time: of each rating, finite numbers; of duplicates likewise.

        Raises:
          DataError: a value that is not a number, infinite or out of range; a weight that is not
            between 0 and 1; a time that is no number; a duplicate; an id that is empty, unknown or
            of no usable type; columns of unequal length; no rating; fewer than `fewest` users or
            items.
          UsageError: a range that is not two finite numbers in order; an unknown option.
        """
        rating_range = check_range(rating_range)
        _check_option("duplicates", duplicates, ("refuse", "first", "last", "mean"))
        _check_option("out_of_range", out_of_range, ("refuse", "drop", "clip"))
        origin = origin or name
        locate = where or count_rows(origin)
        value = as_values(value, origin)
        user, item = (
            ids.as_coded(user, "user", origin, locate),
            ids.as_coded(item, "item", origin, locate),
        )
        more = {} if weight is None else {"weight": as_values(weight, origin, "weight")}
        if time is not None:
            more["time"] = np.asarray(time, np.float64)
        if not len(user.codes) == len(item.codes) == len(value):
            lengths = f"{len(user.codes)}, {len(item.codes)} and {len(value)}"
            fix = "give columns of equal length"
            raise DataError(f"user, item and rating have {lengths} rows", where=origin, fix=fix)
        for name_of, column in more.items():
            if len(column) != len(value):
                lengths = f"{len(value)} ratings have {len(column)} {name_of}s"
                raise DataError(lengths, where=origin, fix="give columns of equal length")
            _refuse([(no_weight if name_of == "weight" else no_time)(column)], locate)
        if not len(value):
            raise _no_rating(origin, fewest)
        # the catalogue comes before rows are dropped, so that it does not depend on rating values
        user_index, users = ids.catalogue(user, users, "user", locate)
        item_index, items = ids.catalogue(item, items, "item", locate)
        for what, catalogue in (("user", users), ("item", items)):
            if len(catalogue) < fewest:
                fix = f"give ratings of at least two {what}s"
                raise DataError(f"there is only one {what}, {catalogue[0]}", where=origin, fix=fix)

        def keep(mask: np.ndarray) -> None:
            nonlocal user_index, item_index, value, more, locate
            user_index, item_index, value = user_index[mask], item_index[mask], value[mask]
            more = {name_of: column[mask] for name_of, column in more.items()}
            before, left = locate, np.flatnonzero(mask)
            locate = lambda rows: before(left[rows])  # noqa: E731  (a row is named by its place in the input)

        if not_rated is not None and (unrated := np.count_nonzero(value == np.float32(not_rated))):
            keep(value != np.float32(not_rated))
            notes += (f"{unrated:,} rows with rating {not_rated:g} (not rated) dropped",)
        _refuse(not_finite(value), locate)
        outside = out_of(value, rating_range)
        if len(outside.rows):
            if out_of_range == "refuse":
                _refuse([outside], locate)
            elif out_of_range == "drop":
                keep(~np.isin(np.arange(len(value)), outside.rows))
            else:
                value = np.clip(value, np.float32(rating_range[0]), np.float32(rating_range[1]))
            notes += (
                f"{len(outside.rows):,} ratings outside {_span(rating_range)}: {out_of_range}",
            )
        if not len(value):
            raise _no_rating(origin, fewest)

        repeated = duplicated(user_index, item_index, len(items))
        if len(repeated.rows):
            if duplicates == "refuse":
                row = repeated.rows[0]
                pair = (
                    f"user {users[user_index[row]]} rates item {items[item_index[row]]} more than"
                    " once"
                )
                _refuse([repeated._replace(words=pair)], locate)
            merged = f"{len(repeated.rows):,} duplicate ratings merged: {duplicates}"
            user_index, item_index, value, *merged_more = _merge(
                user_index, item_index, [value, *more.values()], len(items), duplicates
            )
            more = dict(zip(more, merged_more, strict=True))
            notes += (merged,)
        return cls(user_index, item_index, value, users, items, rating_range, name, notes, **more)

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        rating_range: tuple[float, float],
        user: str = "user",
        item: str = "item",
        rating: str | None = "rating",
        weight: str | None = None,
        time: str | None = None,
        **options: Any,
    ) -> "Ratings":
        """Checked ratings from a table, whose columns `user`, `item`, `rating`, `weight` and
        `time` name. Without a name for ratings, every row is a 1.

        The table is Arrow (anything with `__arrow_c_stream__`: pandas 2.2, polars, duckdb too), an
        older dataframe, or a mapping of arrays. `options` are those of `from_columns`.

        Raises: as `from_columns`, and DataError for a missing column, a null, or an object that is
          no table.
        """
        origin = options.get("origin") or options.get("name", "table")
        named = {"user": user, "item": item, "rating": rating, "weight": weight, "time": time}
        named = {what: name for what, name in named.items() if name is not None}
        columns = table_columns(table, named, origin, options.get("where"))
        user_ids, item_ids, value = (columns.pop(what) for what in ("user", "item", "rating"))
        return cls.from_columns(
            user_ids, item_ids, value, rating_range=rating_range, **options, **columns
        )


# Each check returns the rows that fail: `from_columns` stops at the first, `report.check` lists
# them all.


class Problem(NamedTuple):
    """What is wrong with some rows, which count from 0; no rows, no problem."""

    words: str  # {:g} is for the row's own number, where rows have numbers
    rows: np.ndarray
    fix: str
    numbers: np.ndarray | None = None

    def what(self, place: int = 0) -> str:
        """What is wrong with one of the rows."""
        return self.words if self.numbers is None else self.words.format(self.numbers[place])


def not_finite(value: np.ndarray) -> list[Problem]:
    """The rows that are not a number, and those that are infinite."""
    fix = "correct or remove the row; a missing rating is not guessed"
    return [
        Problem("the rating is not a number", np.flatnonzero(np.isnan(value)), fix),
        Problem("the rating is infinite", np.flatnonzero(np.isinf(value)), fix),
    ]


def no_weight(weight: np.ndarray) -> Problem:
    """The rows whose weight is no number between 0 and 1."""
    rows = np.flatnonzero(~((weight >= 0) & (weight <= 1)))
    fix = "divide weights by the largest that a rating may have, a declared number"
    return Problem("the weight {:g} is not between 0 and 1", rows, fix, weight[rows])


def no_time(time: np.ndarray) -> Problem:
    """The rows whose time is no number."""
    fix = "correct or remove the row, or leave out --time-column"
    return Problem("the time is not a number", np.flatnonzero(~np.isfinite(time)), fix)


def out_of(value: np.ndarray, rating_range: tuple[float, float]) -> Problem:
    """The finite rows beyond the range.

    Its bounds become float32 as the values did: a bound is inside.
    """
    rows = np.flatnonzero(
        np.isfinite(value)
        & ((value < np.float32(rating_range[0])) | (value > np.float32(rating_range[1])))
    )
    fix = (
        "declare the right range (--rating-range LOW HIGH of dpmf fit), or allow --out-of-range"
        " drop or clip"
    )
    words = "rating {:g} is outside the declared range " + _span(rating_range)
    return Problem(words, rows, fix, value[rows])


def duplicated(user: np.ndarray, item: np.ndarray, num_items: int) -> Problem:
    """The rows whose (user, item) came before.

    One sort of int64 keys, and a second only if there are any.
    """
    key = user.astype(np.int64)
    key *= num_items
    key += item
    key.sort()
    repeated = key[1:] == key[:-1]
    rows = np.zeros(0, np.int64)
    if repeated.any():
        order = np.argsort(user.astype(np.int64) * num_items + item, kind="stable")
        rows = np.sort(order[1:][repeated])
    fix = "remove the repeats, or allow --duplicates first, last or mean"
    return Problem("a user rates an item more than once", rows, fix)


def check_range(rating_range: Any) -> tuple[float, float]:
    """The declared range as two floats; UsageError unless they are finite and in order."""
    try:
        low, high = (float(bound) for bound in rating_range)
    except (TypeError, ValueError):
        low = high = np.nan
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        fix = "declare the lowest and the highest possible rating, for example --rating-range 1 5"
        raise UsageError(
            f"the rating range {rating_range!r} is not two finite numbers in order", fix=fix
        )
    return low, high


def as_values(value: Any, name: str, what: str = "rating") -> np.ndarray:
    """A column of ratings, or of weights, as float32[n].

    A null becomes not-a-number, for `not_finite` to find.
    """
    try:
        array = (
            value.filled(np.nan)
            if np.ma.isMaskedArray(value) and value.dtype.kind == "f"
            else np.asarray(value)
        )
        if array.dtype.kind in "cmM":
            raise TypeError(f"its type is {array.dtype}")
        with np.errstate(over="ignore", invalid="ignore"):
            array = array.astype(np.float32, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        fix = f"name the column that holds the {what}s"
        raise DataError(f"the {what} column is not numeric: {error}", where=name, fix=fix) from None
    if array.ndim != 1:
        raise DataError(
            f"the {what} column has {array.ndim} dimensions",
            where=name,
            fix=f"give one {what} a row",
        )
    return array


def _no_rating(origin: str, fewest: int) -> DataError:
    fix = "give ratings of at least two users and two items" if fewest > 1 else "give one at least"
    return DataError("there is no rating", where=origin, fix=fix)


def _refuse(problems: Iterable[Problem], where: Where) -> None:
    for problem in problems:
        if number := len(problem.rows):
            more = f" ({number:,} such rows)" if number > 1 else ""
            place = where(problem.rows[:1])[0]
            raise DataError(problem.what() + more, where=place, fix=problem.fix)


def _merge(
    user: np.ndarray, item: np.ndarray, numbers: list[np.ndarray], num_items: int, how: Duplicates
) -> tuple[np.ndarray, ...]:
    """The user, the item and the numbers of each pair that is left."""
    key = user.astype(np.int64) * num_items + item
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    ends = np.append(starts[1:], len(order))
    kept = order[ends - 1] if how == "last" else order[starts]
    if how == "mean":
        numbers = [column.copy() for column in numbers]
        for column in numbers:
            total = np.add.reduceat(column[order], starts, dtype=np.float64)
            column[kept] = total / (ends - starts)
    kept = np.sort(kept)
    return user[kept], item[kept], *(column[kept] for column in numbers)


def _byte_order(catalogue: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each id as the bytes "id TAB", and the rank of each among them."""
    text = np.empty(len(catalogue), dtype=object)
    text[:] = [f"{entry}\t".encode("utf-8", "surrogatepass") for entry in catalogue.tolist()]
    rank = np.empty(len(catalogue), np.int64)
    rank[sorted(range(len(catalogue)), key=text.__getitem__)] = np.arange(len(catalogue))
    return text, rank


def _texts(numbers: np.ndarray, end: str) -> tuple[np.ndarray, np.ndarray]:
    """(different numbers in their shortest decimal form, each with an `end`; the code of each)."""
    different, codes = np.unique(numbers, return_inverse=True)
    texts = [f"{np.format_float_positional(one, trim='-')}{end}".encode() for one in different]
    return np.array(texts, dtype=object), codes


def _span(rating_range: tuple[float, float]) -> str:
    return f"{rating_range[0]:g} to {rating_range[1]:g}"


def _check_option(flag: str, given: Any, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise UsageError(f"{flag} is {given!r}", fix=f"choose one of {', '.join(allowed)}")
