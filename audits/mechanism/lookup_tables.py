"""Tables of what a sampler can make of given statistics, and how often they hold a number.

`COUNTING` is a generator that counts in place of drawing: with its keys a sampler is given every
word in turn, so that a table of numbers that take one word each is complete.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

WORDS = 1 << 23  # that jax.random makes a float32 of
LOW_BITS = 16  # of whole numbers, which come twice where the numbers themselves do not
LOW = f"lowest {LOW_BITS} bits"


def _counted_bits(data: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    """The same word all over a row: the key's number and the row's, in the bits that floats are
    made of.
    """
    rows = jax.lax.broadcasted_iota(jnp.uint32, shape, 0) if shape else jnp.uint32(0)
    return ((data[0] + rows) << 9).astype(f"uint{bit_width}")


def _counted_bits_of_entries(data: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    """Another word for every entry: the key's number and the entry's."""
    entries = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return ((data[0] + entries) << 9).astype(f"uint{bit_width}")


def _counted_split(data: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    numbers = data[0] + jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return jnp.stack([numbers, jnp.zeros_like(numbers)], axis=-1)


def _counted_fold(data: jax.Array, number: jax.Array) -> jax.Array:
    return jnp.stack([data[0] + jnp.asarray(number, jnp.uint32), jnp.uint32(0)])


def _counted_seed(seed: jax.Array) -> jax.Array:
    return jnp.stack([jnp.asarray(seed, jnp.uint32), jnp.uint32(0)])


# A generator that does not draw: a key is a number, and its words count on from there, row by row.
# Keys made of it count on from another number, so whatever a sampler does with its key, its rows
# see all words in turn.
COUNTING = define_prng_impl(
    key_shape=(2,),
    seed=_counted_seed,
    split=_counted_split,
    random_bits=_counted_bits,
    fold_in=_counted_fold,  # ty: ignore[invalid-argument-type]
    name="counting",
    tag="counting",
)
# The same, entry by entry: for large responses whose entries have noise of their own.
COUNTING_ENTRIES = define_prng_impl(
    key_shape=(2,),
    seed=_counted_seed,
    split=_counted_split,
    random_bits=_counted_bits_of_entries,
    fold_in=_counted_fold,  # ty: ignore[invalid-argument-type]
    name="counting entries",
    tag="counting_entries",
)


@partial(jax.jit, static_argnames=("leaf", "batch", "entries"))
def numbers(
    sample: Any,
    keys: jax.Array,
    statistics: Any,
    leaf: int,
    entry: jax.Array,
    batch: int,
    entries: bool = False,
) -> jax.Array:
    """What the sampler makes at one entry of the response, of `statistics` in which every row is
    that entry's row: for each key as many numbers as the leaf has rows. Where `entries`, every
    entry is that entry, and each is a number.
    """
    shape = jax.tree.leaves(jax.eval_shape(sample, keys[0], statistics))[leaf].shape
    if entries:
        shape = (math.prod(shape),)
        own = jax.tree.leaves(statistics)[leaf].reshape(-1)[entry]
        alike = jax.tree.map(lambda part: jnp.full_like(part, own), statistics)

        def every(key: jax.Array) -> jax.Array:
            return jax.tree.leaves(sample(key, alike))[leaf].reshape(shape)

        return jax.lax.map(every, keys, batch_size=batch).reshape(-1)
    rows, columns = (shape[0] if shape else 1), math.prod(shape[1:])

    def filled(part: jax.Array) -> jax.Array:
        alike = part.ndim and part.shape[0] == rows
        return jnp.broadcast_to(part[entry // columns], part.shape) if alike else part

    statistics = jax.tree.map(filled, statistics)

    def one(key: jax.Array) -> jax.Array:
        return jax.tree.leaves(sample(key, statistics))[leaf].reshape(rows, columns)[
            :, entry % columns
        ]

    return jax.lax.map(one, keys, batch_size=batch).reshape(-1)


def every_word(rows: int, *, entries: bool = False) -> jax.Array:
    """Keys with which a sampler of so many rows, or entries, is given every word."""
    starts = jnp.arange(0, WORDS, rows, dtype=jnp.uint32)
    impl = COUNTING_ENTRIES if entries else COUNTING
    return jax.random.wrap_key_data(jnp.stack([starts, jnp.zeros_like(starts)], axis=1), impl=impl)


def _bit_patterns(values: np.ndarray, view: str) -> np.ndarray:
    """Floats by their bits, 0 and -0 alike; whole numbers whole, or their lowest bits."""
    if values.dtype.kind == "f":
        return (values + values.dtype.type(0)).view(f"u{values.dtype.itemsize}")
    words = values.astype(np.int64)
    return words if view == "value" else words & (2**LOW_BITS - 1)


def counts(pieces: Iterable[np.ndarray], asked: np.ndarray, view: str) -> np.ndarray:
    """How often a table, in pieces, holds each of the numbers that are asked for."""
    words = _bit_patterns(asked, view)
    wanted = np.zeros(
        1 << 20, bool
    )  # by a hash, so that few of the table's words need to be sorted
    wanted[_hashed(words)] = True
    kept = [
        some[wanted[_hashed(some)]] for some in (_bit_patterns(piece, view) for piece in pieces)
    ]
    ordered = np.sort(np.concatenate(kept))
    return np.searchsorted(ordered, words, "right") - np.searchsorted(ordered, words, "left")


def _hashed(words: np.ndarray) -> np.ndarray:
    """20 bits of each word."""
    return (words.astype(np.uint32) * np.uint32(2654435769)) >> np.uint32(12)
