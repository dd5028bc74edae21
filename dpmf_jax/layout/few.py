"""A few rows at a time: what is made of their sums, before those of the next rows are there."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpmf_jax.devices import spread

# Of the sums of a few rows: half a second-level cache. No fewer rows than make long loops of
# vectors.
ROWS_BYTES, LEAST_ROWS, MOST_ROWS = 512 << 10, 32, 128


def number(sums: Any) -> int:
    """How many rows with such sums are a few."""
    leaves = jax.tree.leaves(sums)
    row = sum(leaf.size // leaf.shape[0] * leaf.dtype.itemsize for leaf in leaves)
    most = max(1, ROWS_BYTES // max(row, 1))
    return min(MOST_ROWS, max(LEAST_ROWS, 1 << most.bit_length() - 1))


def joined(parts: Any, num_rows: int) -> Any:
    """[blocks, rows of each, ...] as [num_rows, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:num_rows], parts)


def after(then: Any, sums: Any) -> Any:
    """`then` of all rows' sums, on a CPU a few at a time; None: the sums."""
    if then is None:
        return sums
    if spread.backend() != "cpu":
        return then(sums)
    num_rows, each = jax.tree.leaves(sums)[0].shape[0], number(sums)
    blocks = -(-num_rows // each)

    def cut(leaf: jax.Array) -> jax.Array:
        spare = [(0, blocks * each - num_rows)] + [(0, 0)] * (leaf.ndim - 1)
        return jnp.pad(leaf, spare).reshape(blocks, each, *leaf.shape[1:])

    return joined(jax.lax.map(then, jax.tree.map(cut, sums)), num_rows)
