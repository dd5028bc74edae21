"""ChaCha20 (RFC 8439) as a generator of jax: keys of 256 bits, for releases.

    key = jax.random.wrap_key_data(words, impl=IMPL)     words: uint32[8]

Everything of `jax.random` then works on such a key. Each use has a nonce of its own, so no block of
the cipher serves two of them; a child's key is half a block of its parent. If ChaCha20 is a
pseudo-random function and the first key is secret and uniform, all that is drawn is as good as
uniform bits, as long as no key is spent twice (`audits.mechanism.keys`).

Written in operations on uint32, so that it is the same on every device.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

from dpmf_jax.devices import spread

CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
DOUBLE_ROUNDS = 10
KEY_WORDS = 8
# the third word of the nonce; the first two are free
BITS, SPLIT, FOLD, SEED, PAIRS = range(5)
CHUNK = 4096  # blocks that a CPU works on at a time: they stay in a core's cache


def blocks(key: jax.Array, counter: jax.Array, nonce: tuple[Any, Any, Any]) -> jax.Array:
    """uint32[16, n]: the block function at every counter (RFC 8439, section 2.3).

    key: uint32[8]. counter: uint32[n]. nonce: its three words, uint32[] or uint32[n].
    """
    many = counter.shape
    rows = [
        jnp.broadcast_to(jnp.asarray(words, jnp.uint32)[:, None], (4, *many))
        for words in (CONSTANTS, key[:4], key[4:])
    ]
    last = [counter, *(jnp.broadcast_to(jnp.asarray(word, jnp.uint32), many) for word in nonce)]
    start = (*rows, jnp.stack(last))
    end = jax.lax.fori_loop(0, 2 * DOUBLE_ROUNDS, _round, start)
    return jnp.concatenate([a + b for a, b in zip(end, start, strict=True)])


def _round(number: jax.Array, rows: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """A round on the columns of the 4 x 4 state, turned so that the next one's are columns too: an
    even round is followed by one on the diagonals.

    Where a row begins is a number, so both kinds of round are one program.
    """
    a, b, c, d = _quarter_rounds(*rows)
    by = jnp.where(number % 2 == 0, 1, 3)
    places = jnp.arange(4)
    return a, b[(places + by) % 4], c[(places + 2) % 4], d[(places - by) % 4]


def _quarter_rounds(
    a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array
) -> tuple[jax.Array, ...]:
    for first, second in ((16, 12), (8, 7)):
        a = a + b
        d = _rotated(d ^ a, first)
        c = c + d
        b = _rotated(b ^ c, second)
    return a, b, c, d


def _rotated(words: jax.Array, by: int) -> jax.Array:
    return (words << by) | (words >> (32 - by))


def stream(key: jax.Array, count: int, nonce: tuple[int, int, int]) -> jax.Array:
    """uint32[count]: the words of blocks 0, 1, …, of 4096 blocks at a time the first words first.

    Fewer than 4096 are one such group.
    """
    number = -(-count // 16)
    each = min(number, CHUNK)
    counters = jnp.arange(-(-number // each) * each, dtype=jnp.uint32).reshape(-1, each)
    at_once = spread.block(1)
    words = jax.lax.map(
        lambda counter: blocks(key, counter, nonce),
        counters,
        batch_size=at_once if at_once > 1 else None,
    )
    return words.reshape(-1)[:count]


def pair_words(key: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """uint32[n]: a word for each pair of words, uint32[n].

    It is word j mod 16 of the block at counter ⌊j/16⌋ with nonce (i, 0, PAIRS), for a pair (i, j):
    a block for each pair, of which one word is used. `row_words` uses all.
    """

    def of_pairs(pairs: tuple[jax.Array, jax.Array]) -> jax.Array:
        first, second = pairs
        made = blocks(key, second // 16, (first, 0, PAIRS))
        places = (second % 16).astype(jnp.int32)[None]
        return jnp.take_along_axis(made, places, axis=0)[0]

    count = len(first)
    each = max(1, min(count, spread.block(CHUNK)))
    pairs = tuple(jnp.pad(part, (0, -count % each)).reshape(-1, each) for part in (first, second))
    return jax.lax.map(of_pairs, pairs).reshape(-1)[:count]


def row_words(key: jax.Array, first: jax.Array, count: int) -> jax.Array:
    """uint32[n, count]: `pair_words` of each of `first`, uint32[n], and 0, …, count - 1."""
    groups = -(-count // 16)
    counters = jnp.arange(groups, dtype=jnp.uint32)

    def of_row(row: jax.Array) -> jax.Array:
        return blocks(key, counters, (row, 0, PAIRS)).T.reshape(-1)[:count]

    return jax.lax.map(of_row, first, batch_size=max(1, spread.block(CHUNK) // max(groups, 1)))


# --- what jax asks of a generator


def _children(key: jax.Array, counter: jax.Array, use: int) -> jax.Array:
    """uint32[n, 8]: half a block for each counter."""
    return blocks(key, counter, (0, 0, use))[:8].T


def _seed(seed: jax.Array) -> jax.Array:
    """A key of an experiment, from the 32 bits that jax hands over."""
    return _children(jnp.zeros(8, jnp.uint32), jnp.asarray(seed, jnp.uint32)[None], SEED)[0]


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    count = 1
    for size in shape:
        count *= size
    return _children(key, jnp.arange(count, dtype=jnp.uint32), SPLIT).reshape(*shape, 8)


def _fold_in(key: jax.Array, data: jax.Array | int) -> jax.Array:
    return _children(key, jnp.asarray(data, jnp.uint32)[None], FOLD)[0]


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    size = 1
    for part in shape:
        size *= part
    if bit_width == 64:
        words = stream(key, 2 * size, (0, 64, BITS)).astype(jnp.uint64)
        return (words[:size] << 32 | words[size:]).reshape(shape)
    each = 32 // bit_width
    words = stream(key, -(-size // each), (0, bit_width, BITS))
    if each > 1:
        parts = jnp.arange(each, dtype=jnp.uint32) * bit_width
        words = (words[:, None] >> parts).reshape(-1)[:size]
    return words.astype(jnp.dtype(f"uint{bit_width}")).reshape(shape)


IMPL = define_prng_impl(
    key_shape=(8,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha20",
    tag="cc20",
)
