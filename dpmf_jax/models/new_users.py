"""Users who were never in the training data: their ratings, and their factors by the release alone.

Nothing here writes or keeps a rating.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.data.columns import ITEM_NAMES, LONE_USER, RATING_NAMES, USER_NAMES
from dpmf_jax.data.columns import plain as plain_name
from dpmf_jax.data.ids import Coded, as_coded, count_rows
from dpmf_jax.data.ratings import Ratings, as_values
from dpmf_jax.data.tables import table_columns
from dpmf_jax.errors import DataError, UsageError
from dpmf_jax.mechanisms import table
from dpmf_jax.models.catalogue import plain, positions
from dpmf_jax.protocol import Release

NAME = "ratings"  # what errors call them
SHOWN = 3  # unknown items that an error names


class NewUsers(NamedTuple):
    """Checked ratings, on the model's items.

    several: whether they were given with ids of users, of whom there may be one.
    """

    ratings: Ratings
    several: bool


class _Given(NamedTuple):
    """Columns as they were given, and the users' ids; `LONE_USER` where none were given."""

    user: np.ndarray
    item: Any
    value: Any
    users: np.ndarray
    several: bool
    weight: np.ndarray | None = None


def read(
    items: np.ndarray,
    rating_range: tuple[float, float],
    given: Any,
    values: Any = None,
    *,
    implicit: bool = False,
    ignore_unknown: bool = False,
    weight: Any = None,
    **options: Any,
) -> NewUsers:
    """The ratings as given to `Model.fold_in`, checked as a reader checks them.

    Args:
      items, rating_range: of the model.
      given, values: see `Model.fold_in`.
      implicit: whether an item that is given is seen, and ratings are not read.
      ignore_unknown: whether items that the model does not know are left out, else refused. Who
        has no others stays, without a rating.
      weight: of each rating, from 0 to 1, where they do not count alike.
      options: `duplicates`, `out_of_range`.

    Raises: DataError, as `Ratings.from_columns`, and for unknown items.
    """
    columns = _seen(given) if implicit else _columns(given, values)
    value, where = np.asarray(columns.value), count_rows(NAME)
    weight = columns.weight if weight is None else as_values(weight, NAME, "weight")
    if weight is not None and len(weight) != value.size:
        raise DataError(
            f"there are {value.size} ratings and {len(weight)} weights",
            where=NAME,
            fix="give one weight for each rating",
        )
    coded = as_coded(columns.item, "item", NAME, where)
    if len(coded.codes) != value.size:
        raise DataError(
            f"there are {len(coded.codes)} items and {value.size} ratings",
            where=NAME,
            fix="give one rating for each item",
        )
    place = positions(items, coded.ids)
    at = place[coded.codes]
    known = np.flatnonzero(at >= 0)
    unknown = len(at) - len(known)
    if unknown and not ignore_unknown:
        raise _unknown(items, coded.ids[place < 0], unknown, len(at))
    if unknown and not len(known):
        return NewUsers(_nothing(items, rating_range, columns.users), columns.several)
    checked = Ratings.from_columns(
        columns.user[known],
        Coded(at[known].astype(np.int32), items),
        value[known],
        rating_range=rating_range,
        users=columns.users,
        name=NAME,
        where=lambda rows: where(known[rows]),
        fewest=1,
        weight=None if weight is None else weight[known],
        **options,
    )
    item = positions(items, checked.items)[checked.item].astype(np.int32)
    return NewUsers(dataclasses.replace(checked, item=item, items=items), columns.several)


def _columns(given: Any, values: Any) -> _Given:
    if isinstance(given, Ratings):
        user, item = given.users[given.user], given.items[given.item]
        return _Given(user, item, given.value, given.users, several=True, weight=given.weight)
    if columns := _usual_names(given):
        return _of_table(given, columns["user"], columns["item"], columns["rating"])
    if values is not None:
        return _of_one(np.asarray(given), values)
    try:
        pairs = list(given.items() if isinstance(given, Mapping) else given)
        item, value = zip(*pairs, strict=True) if pairs else ((), ())
    except (TypeError, ValueError):
        raise UsageError(
            "these are no ratings of one user",
            where=NAME,
            fix="give a mapping of item to rating, or pairs of item and rating",
        ) from None
    return _of_one(np.asarray(item), value)


def _seen(given: Any) -> _Given:
    """Items that are seen; of one user, who is not named, or with a column of users."""
    if isinstance(given, Ratings):
        columns = _columns(given, None)
        return columns._replace(value=np.ones_like(given.value))
    if columns := _usual_names(given):
        return _of_table(given, columns["user"], columns["item"])
    items = np.asarray(list(given))
    if items.ndim != 1:
        raise UsageError(
            "these are no items of one user",
            where=NAME,
            fix="give a list of items, without ratings",
        )
    return _of_one(items, np.ones(len(items), np.float32))


def _usual_names(given: Any) -> dict[str, str]:
    """The columns of a table that hold users, items and ratings, by name; empty for no table.

    Where a table has no such column, the name is that which is missed: none of a user.
    """
    fields = getattr(given, "column_names", getattr(given, "columns", ()))
    if not len(fields):
        return {}
    usual = {"user": USER_NAMES, "item": ITEM_NAMES, "rating": RATING_NAMES}
    missed = {"user": "", "item": "item", "rating": "rating"}
    return {
        what: next((field for field in fields if plain_name(str(field)) in names), missed[what])
        for what, names in usual.items()
    }


def _of_table(given: Any, who: str, *others: str) -> _Given:
    """who: the column of users; empty for the ratings of one."""
    names = dict(zip(("user", "item", "rating"), (who or others[0], *others), strict=False))
    columns = table_columns(given, names, NAME)
    user, item, value = (columns[what] for what in ("user", "item", "rating"))
    if not who:
        return _of_one(item, value)
    return _Given(user.ids[user.codes], item, value, user.ids, several=True)


def _of_one(item: Any, value: Any) -> _Given:
    user = np.full(np.size(value), LONE_USER)
    return _Given(user, item, value, np.array([LONE_USER]), several=False)


def _nothing(items: np.ndarray, rating_range: tuple[float, float], users: Any) -> Ratings:
    index = np.empty(0, np.int32)
    return Ratings(index, index, np.empty(0, np.float32), np.asarray(users), items, rating_range)


def _unknown(items: np.ndarray, ids: np.ndarray, unknown: int, num: int) -> DataError:
    named = ", ".join(repr(plain(one)) for one in ids[:SHOWN])
    return DataError(
        f"{unknown:,} of {num:,} ratings are of items that the model does not know: {named}"
        + (f" and {len(ids) - SHOWN:,} more" if len(ids) > SHOWN else ""),
        where=f"the model knows {len(items):,} items, such as {plain(items[0])!r}",
        fix="give items of its catalogue (`items` in model.json), or leave them out:"
        " --ignore-unknown (ignore_unknown=True)",
    )


def user_factors(settings: Mapping[str, Any], release: Release, ratings: Ratings) -> np.ndarray:
    """float32[users, rank of the item factors], by the model's own mechanism.

    Raises: UsageError for a mechanism that does not serve new users, or a release of an earlier
      version.
    """
    name = settings.get("mechanism")
    spec = table().get(str(name))
    if spec is None or spec.fold_in is None:
        serving = " and ".join(one for one, spec in table().items() if spec.fold_in)
        of = f"of {name}" if name else "that does not say its mechanism"
        raise UsageError(
            f"a model {of} gives no factors to users who were not in its training data",
            where="`mechanism` of the settings in model.json",
            fix=f"fit one that does: {serving} (dpmf fit --mechanism)",
        )
    if ratings.weight is not None and not spec.weighted:
        raise UsageError(
            f"ratings have no weights for a model of {name}",
            where="--weight-column (weight=...)",
            fix="leave them out",
        )
    return spec.fold_in(settings, release, ratings)
