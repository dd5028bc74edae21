"""The three columns that every reader gives: whose rows are kept, and which columns they are."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.data.ids import Coded, Where
from dpmf_jax.errors import DataError

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
    "parentasin",
    "bookid",
    "isbn",
    "businessid",
    "recipeid",
    "artistid",
    "trackid",
    "songid",
)
RATING_NAMES = ("rating", "ratings", "score", "stars", "value", "bookrating", "overall")
TIME_NAMES = ("timestamp", "time", "date", "datetime", "ratingtimestamp", "unixreviewtime")
NUMBER = re.compile(
    r"\s*-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*|\s*[+-]?(nan|inf|infinity)\s*", re.IGNORECASE
)

LONE_USER = "new"  # whose ratings are in a file without a column of users

Keep = Callable[[Iterable[Any]], np.ndarray]  # of distinct user ids: bool, whose rows are wanted


class Columns(NamedTuple):
    """What a reader gives; `Ratings.from_columns(user, item, value, where=where, ...)` checks it.

    user, item: the ids, coded.
    value: float32[rows].
    where: from rows to the places in the file that messages name.
    weight: float32[rows], and time: float64[rows], if such a column was asked for.
    """

    user: Coded
    item: Coded
    value: np.ndarray
    where: Where
    weight: np.ndarray | None = None
    time: np.ndarray | None = None


class Sieve:
    """The rows of the users that `keep` wants, block by block, and their places in the file."""

    def __init__(self, keep: Keep):
        self._keep = keep
        self._wanted: dict[Any, bool] = {}
        self._places = [np.zeros(0, np.int64)]
        self.seen = 0

    def rows(self, users: Sequence[Any], codes: np.ndarray) -> np.ndarray:
        """int64[wanted], places in the next block, whose column of users is `users[codes]`."""
        new = [user for user in dict.fromkeys(users) if user not in self._wanted]
        self._wanted.update(zip(new, self._keep(new).tolist(), strict=True))
        rows = np.flatnonzero(np.array([self._wanted[user] for user in users], bool)[codes])
        self._places.append(rows + self.seen)
        self.seen += len(codes)
        return rows

    def places(self) -> np.ndarray:
        """int64[wanted], of all blocks: rows of the file."""
        return np.concatenate(self._places)


def name_columns(
    fields: Sequence[str], wanted: Mapping[str, str | None], where: str
) -> tuple[int, ...]:
    """The places (from 0) of the wanted columns among user, item, rating, weight and time.

    wanted: the name or position of each; None for the usual names.
    """
    found, usual_names = [], {"user": USER_NAMES, "item": ITEM_NAMES, "rating": RATING_NAMES}
    usual_names["time"] = TIME_NAMES
    # weights are never looked for: they have a name, or a position
    for what, name in wanted.items():
        place = None if name is None else position(name)
        if place is not None:
            matches = [place] if place < len(fields) else []
        else:
            matches = [
                at
                for at, field in enumerate(fields)
                if (plain(field) in usual_names[what] if name is None else field == name)
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
    return tuple(found)


def position(column: str) -> int | None:
    """The place from 0 that digits mean, None for a name. Raises: DataError for 0."""
    if not (column.isascii() and column.isdigit()):
        return None
    if int(column) == 0:
        raise DataError(
            "there is no column 0: columns count from 1", fix="give the first column as 1"
        )
    return int(column) - 1


def plain(field: str) -> str:
    """A column's name in letters and digits alone, without the type that RecBole writes behind."""
    return re.sub(r":(token|float)(_seq)?$|[^a-z0-9]", "", field.lower())
