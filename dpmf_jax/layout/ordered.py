"""Ratings one after the other, exactly, many at a time.

An online method reads ratings in a fixed order, and each update sees all updates before it. Two
updates that touch different rows commute. So a `Schedule` cuts the order into batches without
conflict: a rating goes to the first batch with room after every batch that touched its user or its
item (or, in a sketch, one of its cells). The batches run one after the other, each all at once.
That gives what one rating at a time gives, up to float32 sums.

The schedule is made on the host once and used in every epoch. It names slots of a layout, not
values. So neighbours of a data set (a replaced value, a removed rating, a removed user) have the
same schedule, and a rating that is gone is skipped. Who rated what decides its shape, so like the
layout it stays with the curator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpmf_jax.devices import spread
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import build, split
from dpmf_jax.layout.operations import stored_values
from dpmf_jax.layout.stored import Dense, Layout, gathered_stored

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings

Tree = Any
BatchFunction = Callable[[Tree, jax.Array, jax.Array, jax.Array, jax.Array], Tree]
Cells = Callable[[np.ndarray, np.ndarray], np.ndarray]

CHUNK = 1 << 14  # ratings whose cells are held at once


class Schedule(NamedTuple):
    """Batches of ratings: which slots of the layout come when.

    Padding is not `used`. Its user and item are one past the end, so that a scatter drops it, and
    its slot is 0.

    user, item: int32[batches, size].
    slot: int32[batches, size], where the layout stores the value (split: in `by_user`, flattened;
      dense: user · items + item).
    used: bool[batches, size].
    """

    user: Any
    item: Any
    slot: Any
    used: Any


def schedule(
    ratings: Ratings,
    order: np.ndarray,
    *,
    size: int = 256,
    cells: Cells | None = None,
    kind: str = "auto",
) -> Schedule:
    """Conflict-free batches, equivalent to the ratings one by one in `order`; on the host.

    Args:
      ratings: what `layout.make` was given.
      order: integers[ratings], a permutation: which rating comes when. Shuffle it: the ratings of
        one user in a row cannot share a batch, so time goes with the longest such row.
      size: most ratings in a batch; 1 keeps the order as it is.
      cells: in place of users and items, what a rating touches: `cells(user[n], item[n])` gives
        integers ≥ 0 [n, any].
      kind: the layout's kind; "auto" decides as `layout.make` does.

    Raises:
      UsageError: `order` is no permutation, size < 1, an unknown kind, or more slots than an int32
        holds.
    """
    num = ratings.num_ratings
    order = np.asarray(order)
    if order.shape != (num,) or not np.array_equal(
        np.bincount(order.clip(0, num), minlength=num), np.ones(num, int)
    ):
        raise UsageError(
            f"order is no permutation of {num:,} ratings",
            fix="each of 0 to ratings - 1 exactly once",
        )
    if size < 1:
        raise UsageError(f"batches of {size} ratings", fix="size must be at least 1")
    user, item = ratings.user[order], ratings.item[order]
    if size == 1:
        batch, place = np.arange(num), np.zeros(num, np.int64)
    elif cells is None:
        batch, place = _by_rows(user, item, size)
    else:
        batch, place = _by_cells(user, item, size, cells)
    shape = (max(int(batch.max(initial=-1)) + 1, 1), size)
    out = Schedule(
        user=np.full(shape, ratings.num_users, np.int32),
        item=np.full(shape, ratings.num_items, np.int32),
        slot=np.zeros(shape, np.int32),
        used=np.zeros(shape, bool),
    )
    for part, values in zip(out, (user, item, _slots(ratings, kind)[order], True), strict=True):
        part[batch, place] = values
    return out


def values_at(
    data: Layout, user: ArrayLike, item: ArrayLike, slot: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    """(value float32, present bool) of a schedule's ratings, as the layout has them now.

    The value is 0 where a rating is not present.
    """
    user, item, slot = (jnp.asarray(part) for part in (user, item, slot))
    values, present = stored_values(data)
    present = (
        present.reshape(-1).at[slot].get(mode="clip")
        & (user < data.num_users)
        & (item < data.num_items)
    )
    return jnp.where(present, values.reshape(-1).at[slot].get(mode="clip"), 0.0), present


def epoch(fn: BatchFunction, carry: Tree, schedule: Schedule, data: Layout) -> Tree:
    """`carry = fn(carry, user, item, value, present)` for each batch, one after the other.

    The four arrays are of shape [size]. Where a rating is not `present`, `fn` must leave the carry
    alone. Users (items) of one batch are distinct but for padding, which is one past the end.
    Arrays of the carry are updated in place, given a `.at[...]` of theirs.
    """
    value, present = values_at(data, *schedule[:3])
    present &= schedule.used

    def body(carry: Tree, batch: tuple[jax.Array, ...]) -> tuple[Tree, None]:
        return fn(carry, *batch), None

    return jax.lax.scan(body, carry, (schedule.user, schedule.item, value, present))[0]


def shuffled(data: Layout, key: jax.Array) -> Schedule:
    """All ratings one by one, in batches of one, in an order that the key draws. Spends `key`.

    It is made on the device, so inside a program. A neighbour without a rating has the same order
    without it, and padding at the end.
    """
    present = stored_values(data)[1].reshape(-1)
    tickets = jax.random.bits(key, present.shape, jnp.uint32) >> 1
    slot = jnp.argsort(jnp.where(present, tickets, jnp.uint32(2**32 - 1)))[
        : data.num_ratings
    ].astype(jnp.int32)
    used = present[slot]
    user, item = pairs_at(data, slot)
    user, item = jnp.where(used, user, data.num_users), jnp.where(used, item, data.num_items)
    columns = user.astype(jnp.int32), item.astype(jnp.int32), jnp.where(used, slot, 0), used
    return Schedule(*(column[:, None] for column in columns))


def pairs_at(data: Layout, slot: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(user, item) of the ratings at these slots."""
    stored = gathered_stored(data)
    if isinstance(stored, Dense):
        return slot // data.num_items, slot % data.num_items
    side = stored.by_user
    user = side.row.at[slot // side.column.shape[1]].get(mode="clip")
    return user, side.column.reshape(-1).at[slot].get(mode="clip")


def _by_rows(user: np.ndarray, item: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(batch, place in it) of each rating: the first with room after its user's and item's."""
    last_user = [-1] * (int(user.max(initial=-1)) + 1)
    last_item = [-1] * (int(item.max(initial=-1)) + 1)
    room = _Room(len(user), size)
    batch, place = [0] * len(user), [0] * len(user)
    for rating, (row, column) in enumerate(zip(user.tolist(), item.tolist(), strict=True)):
        batch[rating], place[rating] = room.take(1 + max(last_user[row], last_item[column]))
        last_user[row] = last_item[column] = batch[rating]
    return np.array(batch, np.int64), np.array(place, np.int64)


def _by_cells(
    user: np.ndarray, item: np.ndarray, size: int, cells: Cells
) -> tuple[np.ndarray, np.ndarray]:
    """As `_by_rows`, after the batches of all cells."""
    last = np.full(1, -1, np.int64)
    room = _Room(len(user), size)
    batch, place = np.zeros(len(user), np.int64), np.zeros(len(user), np.int64)
    for start in range(0, len(user), CHUNK):
        touched = np.asarray(cells(user[start : start + CHUNK], item[start : start + CHUNK]))
        missing = int(touched.max(initial=-1)) + 1 - len(last)
        if missing > 0:
            last = np.append(last, np.full(missing, -1, np.int64))
        for rating, mine in enumerate(touched, start):
            batch[rating], place[rating] = room.take(1 + int(last[mine].max(initial=-1)))
            last[mine] = batch[rating]
    return batch, place


class _Room:
    """Batches with room: `take(first)` takes a place in the first one from there on."""

    def __init__(self, num_ratings: int, size: int):
        self.size = size
        self.filled = [0] * (num_ratings + 1)
        self.onward = list(range(num_ratings + 1))  # itself where there is room, else a later batch

    def take(self, first: int) -> tuple[int, int]:
        onward, batch = self.onward, first
        while onward[batch] != batch:
            batch = onward[batch]
        while onward[first] != batch:
            onward[first], first = batch, onward[first]
        place = self.filled[batch]
        self.filled[batch] = place + 1
        if place + 1 == self.size:
            onward[batch] = batch + 1
        return batch, place


def _slots(ratings: Ratings, kind: str) -> np.ndarray:
    """Of each rating, its place among the layout's stored values."""
    sizes = (ratings.num_users, ratings.num_items, ratings.num_ratings)
    if kind == "auto":
        kind = build.choose(*sizes, backend=spread.backend())
    user, item = ratings.user.astype(np.int64), ratings.item.astype(np.int64)
    if kind == "dense":
        slot = user * ratings.num_items + item
    elif kind == "split":
        counts = np.bincount(user, minlength=ratings.num_users)
        width = split.width(sizes[0], sizes[2])
        pieces = -(-counts // width)
        first = (np.cumsum(pieces) - pieces) * width - (np.cumsum(counts) - counts)
        by_row = np.argsort(user * ratings.num_items + item, kind="stable")
        slot = np.empty(len(user), np.int64)
        slot[by_row] = first[user[by_row]] + np.arange(len(user))
    else:
        raise UsageError(f"unknown layout {kind!r}", fix='use "auto", "split" or "dense"')
    if slot.max(initial=0) >= 2**31:
        raise UsageError(
            f"{slot.max() + 1:,} slots", fix="use the split layout, and at most 2^31 slots"
        )
    return slot.astype(np.int32)
