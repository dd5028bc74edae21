"""A Poisson sample of the ratings: each is in independently, in memory of a fixed size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpmf_jax.devices import spread
from dpmf_jax.errors import UsageError
from dpmf_jax.layout.operations import stored_values
from dpmf_jax.layout.stored import Dense, Layout, in_memory
from dpmf_jax.noise import bits, chacha

OVERFLOW = 1e-15  # the chance that a Poisson sample has more members than `capacity_for` says


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

    Whether a rating is in depends on the key, its user and its item alone. So it is in or out in
    all neighbours alike, in either layout and on any devices; its place in the sample is another.
    The probability is at most `rate`, and less by at most 2⁻²² of it and 2⁻³²; a rate of 1 takes
    all. Members beyond `capacity` are left out: take `capacity_for(num_slots(data), rate)`. On one
    device each slot may have a rate of its own, in the shape of `stored_values`.

    The key is threefry's or ChaCha20's (`noise.chacha`, for releases); one of another generator is
    spent for two words, which serve as threefry's. Several devices find their own members, and pass
    on these alone.
    """
    rate = jnp.asarray(rate, jnp.float32)
    if rate.ndim and data.num_devices > 1:
        raise UsageError(
            "a rate for each slot, over several devices", fix="one rate for all, or one device"
        )
    rate = rate.reshape(-1) if rate.ndim else rate
    below = threshold(rate)
    words = jax.random.key_data(key)
    if words.shape not in ((2,), (chacha.KEY_WORDS,)):
        words = jnp.stack(bits.public_words(key))

    def members(stored: Any, words: jax.Array, below: jax.Array, everybody: jax.Array) -> Sample:
        slots = _device_slots(data, stored)
        chosen = slots.present & ((slots.draw(words) < below) | everybody)
        at, there = _first_true(chosen, capacity)
        user, item = slots.pair(at)
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
    pair: (user, item) at some of them.
    draw: a key's data -> uint32[slots], independent and uniform: of its user and item.
    """

    value: jax.Array
    present: jax.Array
    pair: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    draw: Callable[[jax.Array], jax.Array]


def _device_slots(data: Layout, stored: Any) -> _DeviceSlots:
    if isinstance(stored, Dense):
        value, present = stored.value.reshape(-1), stored.present.reshape(-1)
        rows = stored.value.shape[0]
        first = jnp.int32(0)
        if data.num_devices > 1:
            first = jax.lax.axis_index(spread.AXIS).astype(jnp.int32) * rows

        def pair(at: jax.Array) -> tuple[jax.Array, jax.Array]:
            return first + at // data.num_items, at % data.num_items

        def draw_rows(key: jax.Array) -> jax.Array:
            user = (first + jnp.arange(rows, dtype=jnp.int32)).astype(jnp.uint32)
            return _row_words(key, user, data.num_items).reshape(-1)

        return _DeviceSlots(value, present, pair, draw_rows)
    side = stored.by_user
    width, column = side.column.shape[1], side.column.reshape(-1)

    def pair_of_piece(at: jax.Array) -> tuple[jax.Array, jax.Array]:
        return side.row.at[at // width].get(mode="clip"), column.at[at].get(mode="clip")

    def draw_pieces(key: jax.Array) -> jax.Array:
        user = jnp.broadcast_to(side.row[:, None], side.column.shape)
        return _pair_words(key, *(part.astype(jnp.uint32).reshape(-1) for part in (user, column)))

    return _DeviceSlots(
        side.value.reshape(-1), column != data.num_items, pair_of_piece, draw_pieces
    )


def _pair_words(key: jax.Array, user: jax.Array, item: jax.Array) -> jax.Array:
    """uint32[n]: one word for each user and item, uint32[n]. key: the data of a key."""
    if len(key) == chacha.KEY_WORDS:
        return chacha.pair_words(key, user, item)
    first, second = bits.threefry(bits.Words(*key), user, item)
    return first ^ second


def _row_words(key: jax.Array, user: jax.Array, num_items: int) -> jax.Array:
    """uint32[n, items]: `_pair_words` of each user and every item."""
    if len(key) == chacha.KEY_WORDS:
        return chacha.row_words(key, user, num_items)
    item = jnp.arange(num_items, dtype=jnp.uint32)
    return _pair_words(key, *jnp.broadcast_arrays(user[:, None], item))


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
