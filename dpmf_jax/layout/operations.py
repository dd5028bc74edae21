"""What a mechanism may ask of the ratings: sums, maps and folds over rows, in both orientations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from dpmf_jax.devices import spread
from dpmf_jax.layout import few, fold, outer, split, stream
from dpmf_jax.layout.stored import (
    Dense,
    Layout,
    Stream,
    gathered_stored,
    in_memory,
    unweighted,
)

Tree = Any
INDEX = split.Index()  # among columns: the index of each, with no table to look it up in
RowFunction = Callable[[Tree, Tree, jax.Array, jax.Array], Tree]
FoldFunction = Callable[[Tree, Tree, Tree, jax.Array, jax.Array], Tree]


def pad_rank(factors: jax.Array) -> jax.Array:
    """Factors [rows, rank] with zero columns up to a multiple of 8 on a CPU, unchanged elsewhere.

    Products of gathered columns then run on whole vector registers: 0.79 of the time at rank 20.
    Cut sums back to the rank.
    """
    missing = -factors.shape[-1] % 8 if spread.backend() == "cpu" else 0
    return jnp.pad(factors, [(0, 0)] * (factors.ndim - 1) + [(0, missing)]) if missing else factors


def sum_by_user(
    data: Layout,
    fn: RowFunction,
    user_tree: Tree,
    item_tree: Tree,
    then: Callable[[Tree], Tree] | None = None,
    weighted: bool = False,
) -> Tree:
    """Per user, sums of `fn` over the user's ratings; leaves have a leading axis `num_users`.

    Args:
      data: the ratings.
      fn: `fn(row, columns, values, present)` for one user. `row`: `user_tree` without its leading
        axis; `columns`: `item_tree` at some items, leading axis `width`; `values` float32[width],
        raw ratings; `present` float32[width], 1 for a rating, else 0. Returns a pytree of *sums*
        over the slots. It sees a user's ratings in parts, and its results are added; slots that are
        not `present` must contribute 0.
      user_tree: arrays with leading axis `num_users`.
      item_tree: arrays with leading axis `num_items`, or `INDEX` for the items' own indices.
      then: what to return in place of the sums: a function of the sums of any number of users, row
        by row. It is called for a few at a time, so that large sums of all of them need no room.
      weighted: whether `present` is a rating's weight, where ratings have weights: a multiple of
        1/`WEIGHT_STEPS`, at most 1. Without it weights count for nothing.

    The fastest `fn` measured on a CPU uses matrix products, never multiply and sum (1.7 times as
    long), with factors padded by `pad_rank`; a clip enters as one scalar per column, folded into
    the residual:

        def gradient(row, columns, values, present):  # -Σ e s x and Σ e²
            residual = present * (values - columns.center - columns.factors @ row)
            return -(residual * columns.scale) @ columns.factors, residual @ residual

        columns = Columns(pad_rank(items), center, scale)
        sums, squared = sum_by_user(data, gradient, pad_rank(users), columns)
        sums = sums[:, : users.shape[1]]
    """
    return _sum_by(data, fn, user_tree, item_tree, orientation=0, then=then, weighted=weighted)


def sum_by_item(
    data: Layout, fn: RowFunction, item_tree: Tree, user_tree: Tree, *, weighted: bool = False
) -> Tree:
    """Per item, sums of `fn` over the item's raters; leaves have a leading axis `num_items`.

    As `sum_by_user` with roles exchanged: `fn` is for one item, and `columns` are users.
    """
    return _sum_by(data, fn, item_tree, user_tree, orientation=1, weighted=weighted)


def map_ratings(data: Layout, fn: RowFunction, user_tree: Tree, item_tree: Tree) -> Tree:
    """Per rating, the result of `fn`, which is as in `sum_by_user` but returns arrays [width].

    Returns: float32 arrays in the layout's own order, which is that of `stored_values`; 0 where
      there is no rating.

    Raises: UsageError for streamed ratings, as everything but the two sums.
    """
    in_memory(data)

    def body(stored, user_tree, item_tree):
        stored = unweighted(stored)
        if isinstance(stored, Dense):
            out, mask = _dense(stored, fn, user_tree, item_tree, orientation=0), stored.present
        else:
            out, mask = split.map_pieces(
                _local_rows(data, stored.by_user), fn, user_tree, item_tree, data.num_items
            )
        return jax.tree.map(lambda leaf: jnp.where(mask, leaf, 0), out)

    out = _on_all(data, body, user_tree, item_tree, cut=_users_at(data, 0), gives_cut=True)
    if isinstance(data.stored, Dense):
        return jax.tree.map(lambda leaf: leaf[: data.num_users], out)
    return (
        out
        if data.users_each is None
        else split.as_one(spread.gathered(data.num_devices, data.stored).by_user, out)
    )


def fold_by_user(
    data: Layout, fn: FoldFunction, carry_tree: Tree, user_tree: Tree, item_tree: Tree
) -> Tree:
    """Per user, a fold of `fn` over the user's ratings, one after the other, by item index.

    Args:
      data: the ratings.
      fn: `fn(carry, row, column, value, present)` for one rating -> carry.
        carry, row: `carry_tree` and `user_tree` without their leading axis.
        column: `item_tree` at the item.
        value: float32[], raw.
        present: float32[], 1 where the result counts. `fn` is also called where there is no rating;
          the carry then stays what it was.
      carry_tree, user_tree: arrays with leading axis `num_users`.
      item_tree: arrays with leading axis `num_items`.

    Returns: every leaf as in `carry_tree`.

    Rows run side by side, so time goes with the longest row; several devices share the rows.

    Raises: UsageError over several processes, where a row's ratings may be anywhere.
    """
    return fold.fold_rows(data, fn, carry_tree, user_tree, item_tree, orientation=0)


def fold_by_item(
    data: Layout, fn: FoldFunction, carry_tree: Tree, item_tree: Tree, user_tree: Tree
) -> Tree:
    """Per item, a fold over its raters by user index: `fold_by_user` with roles exchanged."""
    return fold.fold_rows(data, fn, carry_tree, item_tree, user_tree, orientation=1)


def outer_by_item(
    data: Layout, fn: RowFunction, item_tree: Tree, user_tree: Tree
) -> Float[Array, "items k k"]:
    """Per item, Σ z zᵀ over its ratings; faster than by `sum_by_item`.

    These are the matrices of normal equations.

    Args:
      fn: as in `sum_by_item`, but it returns the vectors z, float32[width, k], 0 where not
        `present`. `columns` are 0 there already, so only what is made of values must be masked.
    """
    return outer.sum_outer(data, fn, item_tree, user_tree, exact=False)


def exact_outer_by_item(
    data: Layout, fn: RowFunction, item_tree: Tree, user_tree: Tree
) -> tuple[Int32[Array, "items k k"], Int32[Array, "items k k"]]:
    """`outer_by_item` of whole z, of entries of 256 at most: (upper, lower), exact in any order.

    The sum is upper·2^12 + lower. No float sum is of more than 256 products.
    """
    both = outer.sum_outer(data, fn, item_tree, user_tree, exact=True)
    return both[..., 0], both[..., 1]


def stored_values(data: Layout) -> tuple[jax.Array, jax.Array]:
    """(values, present) in the order and shape of `map_ratings`; present is bool."""
    stored = gathered_stored(data)
    if isinstance(stored, Dense):
        return stored.value, stored.present
    side = stored.by_user
    return side.value, side.column != data.num_items


def _sum_by(
    data: Layout,
    fn: RowFunction,
    row_tree: Tree,
    column_tree: Tree,
    *,
    orientation: int,
    then: Callable[[Tree], Tree] | None = None,
    weighted: bool = False,
) -> Tree:
    num_rows, num_columns = (data.num_users, data.num_items)[:: 1 - 2 * orientation]
    if isinstance(data.stored, Stream):
        row_tree, column_tree = jax.tree.map(jnp.asarray, (row_tree, column_tree))
        sums = stream.sum_rows(
            data.stored,
            fn,
            row_tree,
            column_tree,
            num_rows,
            num_columns,
            orientation=orientation,
            weighted=weighted,
        )
        return few.after(then, sums)

    by_user = orientation == 0

    def body(stored, row_tree, column_tree):
        first = spread.first_row(data.users_each)
        done = data.num_devices == 1 or (by_user and data.users_each is not None)
        stored = stored if weighted else unweighted(stored)
        if isinstance(stored, Dense):
            out = _dense(stored, fn, row_tree, column_tree, orientation=orientation, first=first)
        elif by_user:
            rows, side = data.users_each or num_rows, _local_rows(data, stored.by_user)
            if done:
                return split.sum_rows(side, fn, row_tree, column_tree, rows, num_columns, then=then)
            out = split.sum_rows(side, fn, row_tree, column_tree, rows, num_columns)
        else:
            out = split.sum_rows(
                stored.by_item, fn, row_tree, column_tree, num_rows, num_columns, first=first
            )
        return few.after(then, out if done else jax.lax.psum(out, spread.AXIS))

    cut = _users_at(data, orientation)
    out = _on_all(data, body, row_tree, column_tree, cut=cut, gives_cut=by_user and bool(cut))
    return jax.tree.map(lambda leaf: leaf[:num_rows], out)


def _users_at(data: Layout, place: int) -> tuple[int, ...]:
    """For `spread.over`: which tree is cut as users are, if they are; it is at this place."""
    return () if data.users_each is None else (place,)


def _local_rows(data: Layout, side: split.Side) -> split.Side:
    """This device's pieces of users, its own users counted from 0."""
    if data.users_each is None:
        return side
    return side._replace(
        row=jnp.clip(side.row - spread.first_row(data.users_each), 0, data.users_each)
    )


def _dense(
    stored: Dense,
    fn: RowFunction,
    row_tree: Tree,
    column_tree: Tree,
    *,
    orientation: int,
    first: jax.Array | None = None,
) -> Tree:
    index = jnp.arange(stored.value.shape[1 - orientation])
    if orientation == 1 and first is not None:
        index += first
    column_tree = split.with_index(column_tree, index)
    with jax.default_matmul_precision("float32"):  # an accelerator would take fewer bits
        by_row = jax.vmap(fn, in_axes=(0, None, orientation, orientation))
        return by_row(row_tree, column_tree, stored.value, stored.shown)


def _on_all(data: Layout, body: Callable[..., Tree], *trees: Tree, **how: Any) -> Tree:
    return spread.over(
        data.num_devices, body, data.stored, *jax.tree.map(jnp.asarray, trees), **how
    )
