"""Ratings one after the other, exactly, many at a time; and a Poisson sample of the ratings.

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

from dpmf_jax.devices import bits, spread
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import build, split
from dpmf_jax.layout.operations import stored_values
from dpmf_jax.layout.stored import Dense, Layout, gathered_stored, in_memory

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings

Tree = Any
BatchFunction = Callable[[Tree, jax.Array, jax.Array, jax.Array, jax.Array], Tree]
Cells = Callable[[np.ndarray, np.ndarray], np.ndarray]

OVERFLOW = 1e-15  # the chance that a Poisson sample has more members than `capacity_for` says
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


class Sample(NamedTuple):
    """A Poisson sample of the ratings.

    Where not present, user and item are one past the end and value is 0.

    user, item: int32[capacity].
    value: float32[capacity].
    present: bool[capacity].
    """

    user: jax.Array
    item: jax.Array
    value: jax.Array
    present: jax.Array


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


def num_slots(data: Layout) -> int:
    """How many ratings the layout has room for: what a Poisson sample is drawn from."""
    return stored_values(data)[0].size


def capacity_for(num_slots: int, rate: float) -> int:
    """The smallest capacity which a Poisson sample exceeds with a chance of at most 1e-15.

    Raises: UsageError for a negative number of slots, or a rate outside 0 ≤ rate ≤ 1.
    """
    import scipy.stats

    if num_slots < 0 or not 0 <= rate <= 1:
        raise UsageError(
            f"rate {rate} of {num_slots} slots", fix="0 <= rate <= 1 and at least 0 slots"
        )
    if rate in (0, 1) or num_slots == 0:
        return num_slots if rate == 1 else 0
    law = scipy.stats.binom(num_slots, rate)
    low, high = -1, num_slots  # P(more than low) > OVERFLOW >= P(more than high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if law.sf(middle) <= OVERFLOW else (middle, high)
    return high


def threshold(rate: jax.Array) -> jax.Array:
    """uint32: how many of 2^32 draws a float32 rate takes.

    Inside the rate by a share of 2⁻²², which is more than it was rounded up by.
    """
    return jnp.floor(rate * ((1 - 2.0**-22) * 2.0**32)).astype(jnp.uint32)


def sample(data: Layout, key: jax.Array, rate: ArrayLike, capacity: int) -> Sample:
    """Each stored rating with probability `rate`, independently of all others: a Poisson sample.

    Whether a rating is in depends on the key and on its slot alone. So it is in or out in all
    neighbours alike, at the same place of the sample. The probability is at most `rate`, and less
    by at most 2⁻²² of it and 2⁻³²; a rate of 1 takes all. Members beyond `capacity` are left out:
    take `capacity_for(num_slots(data), rate)`. On one device each slot may have a rate of its own,
    in the shape of `stored_values`.

    Slots are counted as one device has them. Several devices find their own members, and pass on
    these alone.
    """
    rate = jnp.asarray(rate, jnp.float32)
    if rate.ndim and data.num_devices > 1:
        raise UsageError(
            "a rate for each slot, over several devices", fix="one rate for all, or one device"
        )
    rate = rate.reshape(-1) if rate.ndim else rate
    below = threshold(rate)
    words = jax.random.key_data(key)
    if words.shape != (2,):  # of another generator than this project's keys have
        words = jnp.stack(bits.public_words(key))

    def members(stored: Any, words: jax.Array, below: jax.Array, everybody: jax.Array) -> Sample:
        slots = _device_slots(data, stored)
        number = slots.first + jnp.arange(slots.value.size, dtype=jnp.int32)
        drawn = bits.threefry(bits.Words(*words), jnp.uint32(0), jnp.asarray(number, jnp.uint32))
        chosen = ((drawn[0] ^ drawn[1]) < below) | everybody  # as `jax.random.bits` has them
        if slots.counts is not None:
            chosen &= slots.counts
        at, found = _first_true(chosen, capacity)
        there = slots.present.at[at].get(mode="clip") & found
        user, item = slots.pair(at)
        # a float throughout: audits differentiate
        value = jnp.where(there, slots.value.at[at].get(mode="clip"), 0.0)
        parts = jnp.where(
            there, jnp.stack([user - data.num_users, item - data.num_items, there]), 0
        )
        if data.num_devices > 1:
            before = _sum_before(jnp.sum(chosen, dtype=jnp.int32))
            parts, value = jax.lax.psum(
                (_shifted(parts, before), _shifted(value[None], before)[0]), spread.AXIS
            )
        user, item, there = parts
        return Sample(user + data.num_users, item + data.num_items, value, there.astype(bool))

    return spread.over(data.num_devices, members, in_memory(data), words, below, rate >= 1)


class _DeviceSlots(NamedTuple):
    """The slots of one device.

    value, present: of each slot.
    first: the number of its first slot.
    counts: which of them are slots of one device at all; None where all are.
    pair: (user, item) at some of them.
    """

    value: jax.Array
    present: jax.Array
    first: ArrayLike
    counts: jax.Array | None
    pair: Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def _device_slots(data: Layout, stored: Any) -> _DeviceSlots:
    one_device = data.num_devices == 1
    if isinstance(stored, Dense):
        value, present = (part.reshape(-1) for part in stored)
        first = (
            jnp.int32(0)
            if one_device
            else jax.lax.axis_index(spread.AXIS).astype(jnp.int32) * value.size
        )
        counts = (
            None if one_device else first + jnp.arange(value.size) < data.num_users * data.num_items
        )

        def pair(at: jax.Array) -> tuple[jax.Array, jax.Array]:
            return (first + at) // data.num_items, (first + at) % data.num_items

        return _DeviceSlots(value, present, first, counts, pair)
    side = stored.by_user
    pieces, width = side.column.shape
    column, counts, before = side.column.reshape(-1), None, jnp.int32(0)
    if data.users_each is not None:  # pieces of nobody come last on one device
        used = side.row != data.num_users
        counts, before = jnp.repeat(used, width), _sum_before(jnp.sum(used, dtype=jnp.int32))
    elif not one_device:
        before = jax.lax.axis_index(spread.AXIS).astype(jnp.int32) * pieces

    def pair(at: jax.Array) -> tuple[jax.Array, jax.Array]:
        return side.row.at[at // width].get(mode="clip"), column.at[at].get(mode="clip")

    return _DeviceSlots(
        side.value.reshape(-1), column != data.num_items, before * width, counts, pair
    )


def _sum_before(count: jax.Array) -> jax.Array:
    """In a program mapped over devices: the sum of the counts of those before this one."""
    counts = jax.lax.all_gather(count, spread.AXIS)
    mine = jnp.arange(counts.size) < jax.lax.axis_index(spread.AXIS)
    return jnp.sum(jnp.where(mine, counts, 0))


def _shifted(parts: jax.Array, by: jax.Array) -> jax.Array:
    """Rows moved on by so many places, with zeros before them; what passes the end is dropped."""
    size = parts.shape[1]
    room = jnp.concatenate([jnp.zeros_like(parts), parts], axis=1)
    return jax.lax.dynamic_slice_in_dim(room, size - jnp.minimum(by, size), size, axis=1)


def pairs_at(data: Layout, slot: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(user, item) of the ratings at these slots."""
    stored = gathered_stored(data)
    if isinstance(stored, Dense):
        return slot // data.num_items, slot % data.num_items
    side = stored.by_user
    user = side.row.at[slot // side.column.shape[1]].get(mode="clip")
    return user, side.column.reshape(-1).at[slot].get(mode="clip")


def _first_true(chosen: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """(indices of the first `capacity` true entries, whether there are so many).

    Counts by words of 32, marks where each word's entries begin, and finds their places in a word
    by halving it.
    """
    padded = jnp.pad(chosen, (0, -chosen.size % 32)).reshape(-1, 32).astype(jnp.uint32)
    words = jnp.sum(padded << jnp.arange(32, dtype=jnp.uint32), 1, dtype=jnp.uint32)
    counts = jax.lax.population_count(words).astype(jnp.int32)
    ends = jnp.cumsum(counts)
    starts = ends - counts
    nth = jnp.arange(capacity, dtype=jnp.int32)
    marks = jnp.zeros(capacity, jnp.int32).at[starts].add(1, mode="drop", indices_are_sorted=True)
    word = jnp.cumsum(marks) - 1
    found = nth < ends[-1]
    rest, place, left = words[word], jnp.zeros(capacity, jnp.int32), nth - starts[word]
    for half in (16, 8, 4, 2, 1):
        low = rest & jnp.uint32((1 << half) - 1)
        below = jax.lax.population_count(low).astype(jnp.int32)
        beyond = left >= below
        rest, left = jnp.where(beyond, rest >> half, low), jnp.where(beyond, left - below, left)
        place += half * beyond
    return jnp.where(found, word * 32 + place, 0), found


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
