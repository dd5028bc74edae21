"""Per row, a fold over its ratings, one after the other; rows run side by side.

Stochastic gradient descent by the rating needs it: each rating sees what the one before it left,
which sums cannot say. Within a row the order is that of column indices, in every layout, on any
number of devices.

Split layout: pieces are put in order of their place within their row (the first pieces of all rows,
then the second ones, …), and within a place by how full they are. A loop goes through blocks of
pieces of one place, and through the slots of each block. So work is bounded by the longest row, not
by rows times the longest row. How many blocks there are depends on the ratings; shapes do not.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpmf_jax.devices import hosts, spread
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import split
from dpmf_jax.layout.stored import Layout, in_memory

Tree = Any
BLOCK_BYTES = 256 << 10  # of carries that are worked on at a time, about
MOST_PIECES = 1024


def fold_rows(
    data: Layout, fn: Any, carry_tree: Tree, row_tree: Tree, column_tree: Tree, *, orientation: int
) -> Tree:
    """See `layout.fold_by_user` (orientation 0) and `layout.fold_by_item` (1)."""
    if hosts.count() > 1:
        raise UsageError(
            "a row's ratings cannot be gone through in order over several processes",
            fix="use one process",
        )
    carry_tree, row_tree, column_tree = jax.tree.map(
        jnp.asarray, (carry_tree, row_tree, column_tree)
    )
    num_rows, num_columns = (data.num_users, data.num_items)[:: 1 - 2 * orientation]

    def body(stored: Any, carry_tree: Tree, row_tree: Tree, column_tree: Tree) -> Tree:
        share = (
            (jax.lax.axis_index(spread.AXIS), data.num_devices) if data.num_devices > 1 else (0, 1)
        )
        mine = jnp.arange(num_rows) % share[1] == share[0]
        with jax.default_matmul_precision("float32"):  # an accelerator would take fewer bits
            if data.kind == "split":
                side = stored[orientation]
                side = side if data.users_each is None else split.as_one(side, side)
                out = _pieces(side, fn, carry_tree, row_tree, column_tree, mine, num_columns)
            else:
                cells = [leaf[: data.num_users] for leaf in (stored.value, stored.present)]
                if orientation == 1:
                    cells = [leaf.T for leaf in cells]
                out = _dense(*cells, fn, carry_tree, row_tree, column_tree)
        if data.num_devices == 1:
            return out
        own = jax.tree.map(
            lambda leaf: jnp.where(_wide(mine, leaf), leaf, jnp.zeros_like(leaf)), out
        )
        return jax.lax.psum(own, spread.AXIS)

    return spread.over(
        data.num_devices, body, in_memory(data), carry_tree, row_tree, column_tree, whole=True
    )


def _wide(mask: jax.Array, leaf: jax.Array) -> jax.Array:
    return mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim))


def _keep(present: jax.Array, after: Tree, before: Tree) -> Tree:
    return jax.tree.map(lambda new, old: jnp.where(_wide(present, old), new, old), after, before)


def _dense(
    value: Any, present: Any, fn: Any, carry_tree: Tree, row_tree: Tree, column_tree: Tree
) -> Tree:
    """All rows at once, one column after the other; [rows, columns]."""

    def step(carry: Tree, at: Any) -> tuple[Tree, None]:
        column, values, there = at
        after = jax.vmap(fn, (0, 0, None, 0, 0))(
            carry, row_tree, column, values, there.astype(jnp.float32)
        )
        return _keep(there, after, carry), None

    return jax.lax.scan(step, carry_tree, (column_tree, value.T, present.T))[0]


def _pieces(
    side: split.Side,
    fn: Any,
    carry_tree: Tree,
    row_tree: Tree,
    column_tree: Tree,
    mine: jax.Array,
    num_columns: int,
) -> Tree:
    pieces, width = side.column.shape
    num_rows = mine.shape[0]
    row_bytes = (
        sum(leaf[0].size * leaf.dtype.itemsize for leaf in jax.tree.leaves(carry_tree))
        if num_rows
        else 1
    )
    fit = max(16, spread.block(BLOCK_BYTES) // max(row_bytes, 1))
    block = max(1, min(pieces, num_rows, spread.block(MOST_PIECES), fit))

    # A row of dummies at the end: pieces of nobody, and of other devices, read and write there.
    longer = lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:1])])  # noqa: E731
    carry_tree, row_tree, column_tree = jax.tree.map(longer, (carry_tree, row_tree, column_tree))

    used = jnp.max(jnp.where(side.column != num_columns, jnp.arange(1, width + 1), 0), axis=1)
    first = jnp.searchsorted(side.row, side.row, side="left")
    place = jnp.arange(pieces) - first
    idle = (used == 0) | ~longer(mine)[side.row]
    place = jnp.where(idle, pieces, place)
    order = jnp.lexsort((-used, place))
    place, used, row = place[order], used[order], side.row[order]
    ends = jnp.searchsorted(place, place, side="right")  # of the run of pieces of one place
    total = jnp.sum(~idle)
    pad = lambda leaf, fill: jnp.pad(leaf, (0, block), constant_values=fill)  # noqa: E731
    order, row, used = pad(order, 0), pad(row, num_rows), pad(used, 0)

    def one_block(at: tuple[jax.Array, Tree]) -> tuple[jax.Array, Tree]:
        start, carry_tree = at
        end = jnp.minimum(ends[start], start + block)
        which, rows, filled = (
            jax.lax.dynamic_slice(leaf, (start,), (block,)) for leaf in (order, row, used)
        )
        inside = start + jnp.arange(block) < end
        rows = jnp.where(inside, rows, num_rows)
        column, value = side.column[which].T, side.value[which].T
        column = jnp.where(inside, column, num_columns)
        own = jax.tree.map(lambda leaf: leaf[rows], row_tree)

        def one_slot(slot: jax.Array, carry: Tree) -> Tree:
            at = column[slot]
            there = at != num_columns
            columns = jax.tree.map(lambda leaf: leaf[at], column_tree)
            after = jax.vmap(fn)(carry, own, columns, value[slot], there.astype(jnp.float32))
            return _keep(there, after, carry)

        most = jnp.max(jnp.where(inside, filled, 0))
        carry = jax.lax.fori_loop(
            0, most, one_slot, jax.tree.map(lambda leaf: leaf[rows], carry_tree)
        )
        # dummies may collide, and are dropped
        carry_tree = jax.tree.map(lambda leaf, new: leaf.at[rows].set(new), carry_tree, carry)
        return end, carry_tree

    _, carry_tree = jax.lax.while_loop(
        lambda at: at[0] < total, one_block, (jnp.zeros((), total.dtype), carry_tree)
    )
    return jax.tree.map(lambda leaf: leaf[:-1], carry_tree)
