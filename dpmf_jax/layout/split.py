"""One orientation of the split layout: rows cut into pieces of fixed width, padded with a sentinel.

A piece is part of one row: `width` slots, each with a column index and a raw value. A slot without
a rating has the column `num_columns`, which reads a row of zeros, and the value 0. Pieces are
sorted by row, and columns within a row, so the layout does not depend on the order of the ratings.
Pieces that fill up the last block belong to row `num_rows`, which is dropped.

Where devices have their own users, this holds of each device's pieces, which follow those of the
device before it. Rows and columns are numbered for all devices together; `local_columns` says where
a device's own tables have them.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.typing import ArrayLike

from dpmf_jax.devices import spread
from dpmf_jax.layout import few

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings

LEAST_WIDTH, MOST_WIDTH = 8, 32  # slots of a piece
WEIGHT_STEPS = 8  # a rating's weight is a multiple of 1/8, at most 1
LEAST_BLOCK, MOST_BLOCK = 16, 4096  # pieces of a block
# of gathered columns: half a core's smallest second-level cache, with the table beside it
BLOCK_BYTES = 128 << 10
# numbers of a row from which `take` helps
SHORT = 24 if platform.machine() in ("x86_64", "AMD64") else 32
UNROLLED = 320  # instructions of a loop that LLVM does not unroll whole
# bytes from which XLA's CPU backend would run a gather on two threads (512 KB with its result)
LARGE_TABLE = 384 << 10


class Side(NamedTuple):
    """The ratings by one orientation's rows.

    row: int32[pieces], sorted.
    column: int32[pieces, width].
    value: float32[pieces, width].
    weight: float32[pieces, width], where ratings have weights.
    """

    row: Any
    column: Any
    value: Any
    weight: Any = None


@jax.tree_util.register_static
class Index:
    """In a tree of columns, the index of each column, which is at hand without a gather."""


def with_index(tree: Any, index: Any) -> Any:
    return jax.tree.map(
        lambda leaf: index if isinstance(leaf, Index) else leaf, tree, is_leaf=_is_index
    )


def _is_index(leaf: Any) -> bool:
    return isinstance(leaf, Index)


def width(num_rows: int, num_ratings: int) -> int:
    """Slots of a piece: a mean row fills one, so that short rows are not mostly padding."""
    mean = -(-num_ratings // max(num_rows, 1))
    return min(MOST_WIDTH, max(LEAST_WIDTH, 1 << max(mean - 1, 0).bit_length()))


def make(
    ratings: Ratings,
    *,
    num_shards: int,
    users_each: int | None = None,
    num_ratings: int | None = None,
    agreed: Callable[[int], int] = lambda pieces: pieces,
) -> tuple[Side, Side]:
    """Both orientations, on the host.

    Every shard has equally many pieces, in numbers that blocks divide.

    Args:
      users_each: a shard holds the ratings of so many users, in their order, and nobody else's.
        None spreads pieces evenly.
      num_ratings: of all processes, where there are several.
      agreed: from the pieces that these ratings need to those that are made room for.
    """
    shape = (ratings.num_users, ratings.num_items)
    num_ratings = ratings.num_ratings if num_ratings is None else num_ratings
    pairs = (ratings.user, ratings.item)
    # the same places in each matrix: values, and weights if there are any
    columns = (
        [ratings.value] if ratings.weight is None else [ratings.value, on_grid(ratings.weight)]
    )
    whole = [scipy.sparse.coo_array((column, pairs), shape=shape).tocsr() for column in columns]
    parts = [whole]
    if users_each is not None:
        parts = [
            [_users(matrix, users_each * shard, users_each) for matrix in whole]
            for shard in range(num_shards)
        ]
        num_shards = 1  # of each part
    by_user = _join(parts, width(shape[0], num_ratings), num_shards, agreed)
    parts = [[matrix.tocsc() for matrix in part] for part in parts]
    return by_user, _join(parts, width(shape[1] * len(parts), num_ratings), num_shards, agreed)


def on_grid(weight: np.ndarray) -> np.ndarray:
    """Weights as the layouts have them: rounded to the nearest multiple of 1/`WEIGHT_STEPS`."""
    return np.round(weight * np.float32(WEIGHT_STEPS)) / np.float32(WEIGHT_STEPS)


def _users(matrix, first: int, number: int):
    """The ratings of these users alone, in a matrix of the same shape."""
    start, end = matrix.indptr[np.minimum([first, first + number], matrix.shape[0])]
    indptr = np.clip(matrix.indptr, start, end) - start
    return scipy.sparse.csr_array(
        (matrix.data[start:end], matrix.indices[start:end], indptr), shape=matrix.shape
    )


def _join(parts, width: int, num_shards: int, agreed: Callable[[int], int]) -> Side:
    """The pieces of each part, filled up to equal numbers, one part after the other."""
    needed = [-(-np.diff(part[0].indptr) // width) for part in parts]
    total = agreed(max(1, *(int(pieces.sum()) for pieces in needed)))
    sides = [
        _cut(matrices, pieces, total, width, num_shards)
        for matrices, pieces in zip(parts, needed, strict=True)
    ]
    if len(sides) == 1:
        return sides[0]
    return jax.tree.map(lambda *of_each: np.concatenate(of_each), *sides)


def _cut(matrices, pieces: np.ndarray, total: int, width: int, num_shards: int) -> Side:
    matrix = matrices[0]
    num_rows = len(matrix.indptr) - 1
    num_columns = matrix.shape[0] + matrix.shape[1] - num_rows
    starts = matrix.indptr[:-1].astype(np.int64)
    grain = num_shards * _grain(total // num_shards)
    padded = -(-total // grain) * grain
    row = np.full(padded, num_rows, np.int32)
    row[: int(pieces.sum())] = np.repeat(np.arange(num_rows, dtype=np.int32), pieces)
    first = np.concatenate([[0], np.cumsum(pieces)[:-1]]).astype(np.int64) * width
    counts = np.diff(matrix.indptr)
    slot = np.repeat(
        (first - starts).astype(np.int32 if padded * width < 2**31 else np.int64), counts
    )
    slot += np.arange(len(slot), dtype=slot.dtype)
    column = np.full(padded * width, num_columns, np.int32)
    column[slot] = matrix.indices
    of_slots = np.zeros((len(matrices), padded * width), np.float32)
    for given, of_matrix in zip(of_slots, matrices, strict=True):
        given[slot] = of_matrix.data
    return Side(row, column.reshape(padded, width), *of_slots.reshape(-1, padded, width))


def as_one(side: Side, tree: Any) -> Any:
    """Several devices' pieces, or what there is per piece, in the order of one device: by row.

    Pieces that belong to nobody come last.
    """
    order = jnp.argsort(side.row, stable=True)
    return jax.tree.map(lambda leaf: leaf[order], tree)


def _grain(pieces: int) -> int:
    """What the number of pieces is a multiple of, so that blocks of about any size divide it.

    Adds under 1/16 of the pieces.
    """
    return min(128, 4 << max(0, (pieces // 64).bit_length() - 1))


def num_blocks(pieces: int, most: int) -> int:
    """How many equal blocks of at most `most` pieces there are, each of at least `LEAST_BLOCK`."""
    if pieces <= most:
        return 1
    sizes = [
        size for size in range(LEAST_BLOCK, min(pieces, MOST_BLOCK) + 1) if pieces % size == 0
    ] or [pieces]
    return pieces // max([size for size in sizes if size <= most] or sizes[:1])


def take(table: jax.Array, index: jax.Array, zeros: jax.Array) -> jax.Array:
    """`table[index]`, of rows at indices that are in bounds; on a CPU faster than a plain gather.

    LLVM unrolls the copy of a row of fewer than 80 numbers whole, at 4 instructions a number, and
    so into scalars. That takes up to three times as long as a loop of vectors. Here bits also pass
    through instructions that leave them as they are, until there are too many to unroll; a
    processor does two or three of them at once. A million rows take 2.6 in place of 4.3 ms at rank
    24, 3.2 in place of 7.1 at 32, 5.8 in place of 18 at 64, and 7.0 at 80, where nothing is added.

    zeros: int32[4], of the data, so that the compiler does not know what they are.
    """
    rows = table.at[index].get(mode="promise_in_bounds")
    if not _times(table):
        return rows
    return _as_they_are(
        _times(table),
        rows,
        tuple(jax.lax.index_in_dim(zeros, at, keepdims=False) for at in range(4)),
    )


def _times(table: jax.Array) -> int:
    """How many more instructions the copy of a row needs."""
    numbers = table.size // max(table.shape[0], 1)
    if spread.backend() != "cpu" or table.dtype != jnp.float32 or numbers < SHORT:
        return 0
    return max(0, -(-UNROLLED // numbers) - 4)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _as_they_are(times: int, rows: jax.Array, zeros: tuple[jax.Array, ...]) -> jax.Array:
    bits = jax.lax.bitcast_convert_type(rows, jnp.int32)
    for turn in range(times):  # another zero each time, or LLVM would see that nothing changes
        zero = zeros[turn % len(zeros)]
        bits = bits ^ zero if turn % 3 == 0 else bits | zero if turn % 3 == 1 else bits & ~zero
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


@_as_they_are.defjvp
def _(times: int, at: Any, along: Any) -> tuple[jax.Array, jax.Array]:
    return _as_they_are(times, *at), along[0]


def with_zero_row(column_tree: Any) -> Any:
    """The tables in which `local_columns` finds columns: each with one more row, of zeros."""
    return jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:1])]), column_tree)


def local_columns(column: jax.Array, first: ArrayLike | None, table: Any) -> jax.Array:
    """Where a table `with_zero_row` has these columns; it holds the columns from `first` on.

    Each column is there, or is no column at all.
    """
    return (
        column
        if first is None
        else jnp.clip(column - first, 0, jax.tree.leaves(table)[0].shape[0] - 1)
    )


def sum_rows(
    side: Side,
    fn,
    row_tree: Any,
    column_tree: Any,
    num_rows: int,
    num_columns: int,
    sums: Any = None,
    first: ArrayLike | None = None,
    then: Any = None,
) -> Any:
    """Per row, Σ of `fn` over its pieces; every leaf has a leading axis `num_rows`.

    sums: what the sums are added to; None: zeros.
    first: what `column_tree` has at 0, where it is a share of the columns. All ratings are then of
      that share.
    then: see `layout.sum_by_user`; not with `sums`.
    """
    return _over_blocks(side, fn, row_tree, column_tree, num_columns, num_rows, sums, first, then)


def map_pieces(
    side: Side, fn, row_tree: Any, column_tree: Any, num_columns: int
) -> tuple[Any, jax.Array]:
    """`fn` at every piece, and where there is a rating: [pieces, width]."""
    return _over_blocks(side, fn, row_tree, column_tree, num_columns), side.column != num_columns


def _over_blocks(
    side: Side,
    fn,
    row_tree: Any,
    column_tree: Any,
    num_columns: int,
    num_rows: int | None = None,
    sums: Any = None,
    first: ArrayLike | None = None,
    then: Any = None,
) -> Any:
    """`fn` at every piece: in one go, or on a CPU in blocks whose gathered columns stay in cache.

    With `num_rows` it returns the sums over each row's pieces, added up block by block, and never
    holds what all pieces make. With `then`, it never holds what all rows make, either: it goes on
    with a few rows when their sums are there.

    An accelerator gathers columns again wherever they are used, from tables that its caches hold.
    Written down they would be more than all else (6.0 GB in place of 0.3, for 20 million ratings at
    rank 64). There what a piece makes is written before it is added up; else the compiler unrolls a
    loop over both, at rank 512 for a minute.
    """
    pieces, width = side.column.shape
    on_cpu = spread.backend() == "cpu"
    table = with_zero_row(column_tree)
    # zeros, since a column's index is not negative
    unknown = jnp.minimum(jax.lax.slice(side.column, (0, 0), (1, 4))[0], 0)

    def gather(part: Side) -> tuple[Any, Any]:
        rows = jax.tree.map(
            lambda leaf: leaf.at[part.row].get(mode="clip", indices_are_sorted=True), row_tree
        )
        columns = jax.tree.map(
            lambda leaf: take(leaf, local_columns(part.column, first, table), unknown), table
        )
        # the barrier, or each use repeats the gather
        return rows, jax.lax.optimization_barrier(columns) if on_cpu else columns

    def apply(gathered: tuple[Any, Any], part: Side) -> Any:
        rows, columns = gathered
        columns = with_index(columns, part.column)
        present = (part.column != num_columns).astype(jnp.float32)
        if part.weight is not None:
            present *= part.weight
        with jax.default_matmul_precision("float32"):  # an accelerator would take fewer bits
            return jax.vmap(fn)(rows, columns, part.value, present)

    blocks = 1
    if on_cpu:
        slot_bytes = sum(
            leaf.size // leaf.shape[0] * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(column_tree)
        )
        blocks = num_blocks(pieces, BLOCK_BYTES // max(width * slot_bytes, 1))

    def add_up(sums: Any, row: jax.Array, out: Any) -> Any:  # row `num_rows` is dropped
        return jax.tree.map(
            lambda sum, leaf: sum.at[row].add(leaf, mode="drop", indices_are_sorted=True), sums, out
        )

    def zeros(part: Side, num_rows: int) -> Any:
        out = jax.eval_shape(lambda part: apply(gather(part), part), part)
        return jax.tree.map(lambda leaf: jnp.zeros((num_rows, *leaf.shape[1:]), leaf.dtype), out)

    if blocks == 1:
        out = apply(gather(side), side)
        if not on_cpu:
            out = jax.tree.map(jax.lax.optimization_barrier, out)  # unused leaves go
        if num_rows is None:
            return out
        return few.after(
            then, add_up(zeros(side, num_rows) if sums is None else sums, side.row, out)
        )

    # What is gathered from a large table goes into a carried buffer that is one piece longer than
    # the block. XLA updates that in place, on the thread that runs the block; a plain gather from
    # such a table it would halve between two threads (its cost model counts the whole table, and
    # what `take` adds), and handing over a few microseconds' work costs more.
    tables, treedef = jax.tree.flatten((row_tree, table))
    large = [leaf.size * leaf.dtype.itemsize > LARGE_TABLE for leaf in tables]
    for at, leaf in enumerate(jax.tree.leaves(table), start=len(jax.tree.leaves(row_tree))):
        large[at] |= _times(leaf) > 0

    def longer(leaf: jax.Array) -> jax.Array:
        return jnp.pad(leaf, [(0, 1)] + [(0, 0)] * (leaf.ndim - 1))

    def body(carry: tuple[list[jax.Array], Any], part: Side, own: jax.Array | None = None):
        buffers, sums = carry
        gathered = [
            jax.lax.dynamic_update_slice(buffer, leaf, (0,) * leaf.ndim) if big else longer(leaf)
            for big, buffer, leaf in zip(large, buffers, jax.tree.leaves(gather(part)), strict=True)
        ]
        out = apply(
            jax.tree.unflatten(treedef, gathered),
            jax.tree.map(longer, part)._replace(row=part.row),
        )
        out = jax.tree.map(lambda leaf: leaf[:-1], out)
        buffers = [
            new if big else old for big, old, new in zip(large, buffers, gathered, strict=True)
        ]
        if num_rows is None:
            return (buffers, None), out
        return (buffers, add_up(sums, part.row if own is None else own, out)), None

    parts = jax.tree.map(lambda leaf: leaf.reshape(blocks, pieces // blocks, *leaf.shape[1:]), side)
    shapes = jax.tree.leaves(jax.eval_shape(gather, jax.tree.map(lambda leaf: leaf[0], parts)))
    buffers = [
        jnp.zeros((leaf.shape[0] + 1, *leaf.shape[1:]) if big else (), leaf.dtype)
        for big, leaf in zip(large, shapes, strict=True)
    ]
    one = jax.tree.map(lambda leaf: leaf[0], parts)
    if num_rows is not None and then is not None:
        each = few.number(jax.eval_shape(partial(zeros, num_rows=1), one))
        size = pieces // blocks

        def some_rows(buffers: list[jax.Array], start: jax.Array) -> tuple[list[jax.Array], Any]:
            """`then` of the rows from `start` on: of their pieces, a block's number at a time."""
            begin, end = jnp.searchsorted(side.row, start + jnp.array([0, each]))

            def add(turn: jax.Array, carry: tuple[list[jax.Array], Any]) -> Any:
                due = begin + turn * size
                at = jnp.minimum(due, pieces - size)
                part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, at, size), side)
                place = at + jnp.arange(size)
                counts = (place >= due) & (place < end)
                return body(carry, part, jnp.where(counts, part.row - start, each))[0]

            turns = (end - begin + size - 1) // size
            carry = jax.lax.fori_loop(0, turns, add, (buffers, zeros(one, each)))
            return carry[0], then(carry[1])

        starts = jnp.arange(0, num_rows, each, dtype=side.row.dtype)
        return few.joined(jax.lax.scan(some_rows, buffers, starts)[1], num_rows)
    if num_rows is not None and sums is None:
        sums = zeros(one, num_rows)
    (_, sums), out = jax.lax.scan(body, (buffers, sums), parts)
    return (
        jax.tree.map(lambda leaf: leaf.reshape(pieces, *leaf.shape[2:]), out)
        if num_rows is None
        else sums
    )
