"""Random words in any number, the same on any device: of a public key, and of a secret one.

Random projections, sketches' samples and the choice of coordinates share the hash of a public key.
What is drawn from that is known to everybody.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Words(NamedTuple):
    """A public key as two words, uint32[]."""

    high: jax.Array
    low: jax.Array


def public_words(key: jax.Array) -> Words:
    """The words of a key that is now public: all that is drawn from them is known. Spends `key`."""
    drawn = jax.random.bits(key, (2,), jnp.uint32)
    return Words(drawn[0], drawn[1])


@jax.jit
def threefry(key: Words, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both words of Threefry-2x32 with 20 rounds, as jax.random has it.

    Salmon, Moraes, Dror and Shaw 2011. Written out, so that the compiler fuses it with what uses
    it: jax's own goes through memory in loops on a CPU.
    """
    keys = (key.high, key.low, key.high ^ key.low ^ jnp.uint32(0x1BD11BDA))
    x, y = first + keys[0], second + keys[1]
    for group in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = x + y
            y = ((y << rotation) | (y >> (32 - rotation))) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def places(key: Words, count: int, bound: int) -> jax.Array:
    """int32[count], independent and uniform below `bound`, up to 2^-64.

    The upper half of 64 bits times the bound. jax.random.randint divides, and goes through memory:
    17 times as long on a CPU.
    """
    upper, lower = threefry(key, jnp.arange(count, dtype=jnp.uint32), jnp.uint32(0))
    product = upper * jnp.uint32(bound)
    carry = product + _upper_half(lower, bound) < product
    return (_upper_half(upper, bound) + carry).astype(jnp.int32)


def _upper_half(word: jax.Array, bound: int) -> jax.Array:
    """The upper 32 of the 64 bits of word · bound."""
    (a, b), (c, d) = (
        (word >> 16, word & 0xFFFF),
        (jnp.uint32(bound >> 16), jnp.uint32(bound & 0xFFFF)),
    )
    middle = a * d + (b * d >> 16)  # below 2^32: at most (2^16 - 1)² + 2^16 - 1
    return a * c + (middle >> 16) + ((middle & 0xFFFF) + b * c >> 16)


Source = Words | jax.Array


def source(key: jax.Array) -> Source:
    """What random words come from, of a secret key. Spends `key`.

    The words of a threefry key are hashed here, where the compiler fuses the hash with what uses
    it, and where each device hashes for its own part of an array; jax's own goes through memory.
    Keys of other generators stay, and draw as they do.
    """
    data = jax.random.key_data(key)
    return Words(*data) if data.shape == (2,) else key


def random_words(key: jax.Array, rows: int, shape: tuple[int, ...]) -> list[jax.Array]:
    """So many arrays uint32[shape], independent and uniform, of a secret key. Spends `key`."""
    of = source(key)
    if not isinstance(of, Words):
        return list(jax.random.bits(of, (rows, *shape), jnp.uint32))
    places, made = _places(shape), []
    for turn in range(-(-rows // 2)):
        made += threefry(of, places, jnp.uint32(turn))
    return made[:rows]


def random_halves(
    of: Source, rows: int, shape: tuple[int, ...], number: jax.Array | int = 0
) -> tuple[jax.Array, jax.Array]:
    """Two arrays uint32[rows, *shape], as `random_words`, and others for every number.

    Numbers count from 0, and number · rows is below 2^32. One hash makes all rows, where
    `random_words` has one for every two. It takes as long, and is compiled as fast for any number
    of rows.
    """
    if not isinstance(of, Words):
        own = jax.random.fold_in(of, number)
        first, second = jax.random.bits(own, (2, rows, *shape), jnp.uint32)
        return first, second
    turns = jax.lax.broadcasted_iota(jnp.uint32, (rows, *shape), 0)
    turns = turns + jnp.asarray(number, jnp.uint32) * jnp.uint32(rows)
    return threefry(of, _places(shape), turns)


def _places(shape: tuple[int, ...]) -> jax.Array:
    """uint32[shape]: 0, 1, 2, … in the order of an array's entries."""
    places = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        places = places * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return places
