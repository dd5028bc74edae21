"""A random matrix Φ, float32[q, items], that nobody stores: every entry is a function of a public key and its place.

Entries are independent with mean 0 and variance 1/q, so E[ΦᵀΦ] is the identity. A user looks at one row at the rated
items, the server runs through Φ in blocks of rows; both see the same entries, on any device and in any order.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jax.typing import ArrayLike

Law = Literal["gaussian", "sign"]
BLOCK_ENTRIES = 1 << 21  # of Φ that are there at a time, about


class Words(NamedTuple):
    """A public key as two words, uint32[]."""

    high: jax.Array
    low: jax.Array


def words(key: jax.Array) -> Words:
    """The words of a key, made public: what is drawn from them is known to everybody. Spends `key`."""
    bits = jax.random.bits(key, (2,), jnp.uint32)
    return Words(bits[0], bits[1])


def entries(key: Words, law: Law, rows: ArrayLike, columns: ArrayLike, num_rows: int) -> jax.Array:
    """Φ at (rows, columns), int32 arrays that are broadcast against each other; num_rows is q."""
    first = _threefry(key, jnp.uint32(rows), jnp.uint32(columns))
    scale = jnp.float32(num_rows) ** -0.5
    if law == "sign":
        return jnp.where(first >> 31, scale, -scale)
    # the middle of one of 2^23 intervals: never 0 or 1, symmetric, at most 5.4 standard deviations out
    uniform = ((first >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2**-22) - 1
    return scale * jnp.float32(2**0.5) * jax.lax.erf_inv(uniform)


def _threefry(key: Words, first: jax.Array, second: jax.Array) -> jax.Array:
    """The first word of Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw 2011), as jax.random has it.

    Written out, so that it is fused with what becomes of it: jax's own goes through memory in loops on a CPU.
    """
    keys = (key.high, key.low, key.high ^ key.low ^ jnp.uint32(0x1BD11BDA))
    x, y = first + keys[0], second + keys[1]
    for group in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = x + y
            y = ((y << rotation) | (y >> (32 - rotation))) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x


def apply_transpose(key: Words, law: Law, compressed: jax.Array, num_items: int) -> jax.Array:
    """Φᵀ·compressed, float32[items, d], from float32[q, d]: unbiased for V where compressed = ΦV."""
    q, columns = compressed.shape[0], jnp.arange(num_items)
    starts, size = _blocks(q, num_items)

    def add(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        rows = start + jnp.arange(size)
        phi = entries(key, law, rows[:, None], columns[None, :], q)
        part = compressed.at[rows].get(mode="fill", fill_value=0)  # the last block may stand over
        return total + jnp.matmul(phi.T, part, precision="highest"), None

    return jax.lax.scan(add, jnp.zeros((num_items, *compressed.shape[1:]), jnp.float32), starts)[0]


def apply(key: Words, law: Law, items: jax.Array, num_rows: int) -> jax.Array:
    """Φ·items, float32[q, d], from float32[items, d]."""
    columns = jnp.arange(items.shape[0])
    starts, size = _blocks(num_rows, items.shape[0])

    def rows(start: jax.Array) -> jax.Array:
        phi = entries(key, law, (start + jnp.arange(size))[:, None], columns[None, :], num_rows)
        return jnp.matmul(phi, items, precision="highest")

    return jax.lax.map(rows, starts).reshape(-1, *items.shape[1:])[:num_rows]


def gram(key: Words, law: Law, num_rows: int, num_items: int) -> jax.Array:
    """ΦΦᵀ, float32[q, q], in blocks of columns."""
    rows = jnp.arange(num_rows)
    starts, size = _blocks(num_items, num_rows)

    def add(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        columns = start + jnp.arange(size)
        phi = entries(key, law, rows[:, None], columns[None, :], num_rows) * (columns < num_items)
        return total + jnp.matmul(phi, phi.T, precision="highest"), None

    return jax.lax.scan(add, jnp.zeros((num_rows, num_rows), jnp.float32), starts)[0]


def apply_pseudo_inverse(key: Words, law: Law, factor: Any, compressed: jax.Array, num_items: int) -> jax.Array:
    """Φ†·compressed = Φᵀ(ΦΦᵀ)⁻¹·compressed; factor: the Cholesky factor of `gram`, see `cholesky`. Needs q ≤ items."""
    solved = jax.scipy.linalg.cho_solve((factor, True), compressed)
    return apply_transpose(key, law, solved, num_items)


def cholesky(key: Words, law: Law, num_rows: int, num_items: int) -> jax.Array:
    """The lower Cholesky factor of ΦΦᵀ, float32[q, q]."""
    return jnp.linalg.cholesky(gram(key, law, num_rows, num_items))


def _blocks(num_rows: int, width: int) -> tuple[jax.Array, int]:
    """(first rows of blocks, rows of a block)."""
    size = max(1, min(num_rows, BLOCK_ENTRIES // width))
    return jnp.arange(0, num_rows, size), size
