"""Per row, the sum of outer products of one feature vector per rating: normal equations, fast.

`layout.sum_by_item` would make every piece's matrix before it adds them up: 190 MB at a million
ratings and 50 factors. Here a block of pieces at a time is multiplied, and added to the rows'
matrices in place.

Where the vectors are whole numbers, `exact` sums are: a product of at most 256 slots is below 2^24,
where float32 holds every whole number. It is cut into an upper and a lower part, and these add up
in int32.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpmf_jax.devices import spread
from dpmf_jax.layout import split
from dpmf_jax.layout.stored import Layout, in_memory

BLOCK_PIECES = 72  # at most so many are multiplied at a time: their matrices stay in cache
# a product is fast where its columns are a multiple of the vector registers', else half as fast
TILE = 16
EXACT_SLOTS = 256  # of a product of whole numbers up to 2^8
LOW_BITS = 12  # of its lower part


def _summands(product: jax.Array, exact: bool) -> jax.Array:
    """A product as it is, or int32[..., 2]: its upper and lower part."""
    if not exact:
        return product
    units = product.astype(jnp.int32)
    return jnp.stack([units >> LOW_BITS, units & (2**LOW_BITS - 1)], axis=-1)


def sum_outer(data: Layout, fn: Any, item_tree: Any, user_tree: Any, *, exact: bool) -> jax.Array:
    """See `layout.outer_by_item`, and `layout.exact_outer_by_item` for [items, k, k, 2]."""
    item_tree, user_tree = jax.tree.map(jnp.asarray, (item_tree, user_tree))
    num_items, cut = data.num_items, () if data.users_each is None else (1,)

    def body(stored: Any, item_tree: Any, user_tree: Any) -> jax.Array:
        first = spread.first_row(data.users_each)
        with jax.default_matmul_precision("float32"):  # an accelerator would take fewer bits
            out = _pieces(
                stored.by_item, fn, item_tree, user_tree, num_items, data.num_users, first, exact
            )
        if data.num_devices == 1:
            return out
        # each device adds up and keeps a share of the rows: half the traffic, and what follows by
        # row is shared, too
        more = [(0, -num_items % data.num_devices)] + [(0, 0)] * (out.ndim - 1)
        out = jnp.pad(out, more)
        return jax.lax.psum_scatter(out, spread.AXIS, tiled=True)

    stored = in_memory(data)
    if data.kind == "dense":
        whole = spread.gathered(data.num_devices, stored)
        cells = [leaf[: data.num_users].T for leaf in (whole.value, whole.present)]
        return _dense(*cells, fn, item_tree, user_tree, exact)
    return spread.over(
        data.num_devices, body, stored, item_tree, user_tree, cut=cut, gives_cut=True
    )[:num_items]


def _dense(
    value: Any, present: Any, fn: Any, row_tree: Any, column_tree: Any, exact: bool
) -> jax.Array:
    def one(at: Any) -> jax.Array:
        row, values, here = at
        present = here.astype(jnp.float32)
        columns = jax.tree.map(
            lambda leaf: jnp.where(here.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0), column_tree
        )
        features = fn(row, columns, values, present)
        if not exact:
            return jnp.matmul(features.T, features, precision="highest")
        more = ((0, -len(features) % EXACT_SLOTS), (0, 0))
        parts = jnp.pad(features, more).reshape(-1, EXACT_SLOTS, features.shape[1])
        with jax.default_matmul_precision("float32"):
            products = _product(parts, parts)
        return jnp.sum(_summands(products, exact), axis=0)

    return jax.lax.map(one, (row_tree, value, present), batch_size=16)


def _pieces(
    side: split.Side,
    fn: Any,
    row_tree: Any,
    column_tree: Any,
    num_rows: int,
    num_columns: int,
    first: Any,
    exact: bool,
) -> jax.Array:
    pieces, slots = side.column.shape
    if exact and slots > EXACT_SLOTS:
        raise ValueError(f"pieces of {slots} slots: at most {EXACT_SLOTS} add up exactly")
    blocks = split.num_blocks(pieces, spread.block(BLOCK_PIECES))
    table = split.with_zero_row(column_tree)

    def features(part: split.Side) -> jax.Array:
        rows = jax.tree.map(
            lambda leaf: leaf.at[part.row].get(mode="clip", indices_are_sorted=True), row_tree
        )
        columns = jax.tree.map(
            lambda leaf: leaf.at[split.local_columns(part.column, first, table)].get(
                mode="promise_in_bounds"
            ),
            table,
        )
        columns = jax.lax.optimization_barrier(columns)  # or each use repeats the gather
        present = (part.column != num_columns).astype(jnp.float32)
        return jax.lax.optimization_barrier(jax.vmap(fn)(rows, columns, part.value, present))

    def add(
        sums: tuple[jax.Array, jax.Array], part: split.Side
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        z = features(part)
        tail = z[:, :, wide:]
        new = (_product(z, z[:, :, :wide]), _product(tail, tail))
        added = [
            total.at[part.row].add(
                _summands(leaf, exact), indices_are_sorted=True, mode="promise_in_bounds"
            )
            for total, leaf in zip(sums, new, strict=True)
        ]
        return (added[0], added[1]), None

    parts = jax.tree.map(lambda leaf: leaf.reshape(blocks, pieces // blocks, *leaf.shape[1:]), side)
    shape = jax.eval_shape(features, jax.tree.map(lambda leaf: leaf[0], parts))
    k, wide = shape.shape[2], shape.shape[2] // TILE * TILE
    # one row more, of the pieces that belong to nobody
    nothing = [
        jnp.zeros((num_rows + 1, *size), shape.dtype) for size in ((k, wide), (k - wide, k - wide))
    ]
    zeros = (_summands(nothing[0], exact), _summands(nothing[1], exact))
    (most, corner), _ = jax.lax.scan(add, zeros, parts)
    side_by_side = jnp.concatenate([jnp.swapaxes(most[:-1, wide:], 1, 2), corner[:-1]], axis=1)
    return jnp.concatenate([most[:-1], side_by_side], axis=2)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(jnp.swapaxes(a, 1, 2), b)
