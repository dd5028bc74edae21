"""Item features of who rated what: public where the presence of ratings is, and blind to values.

P is users by items, 1 where there is a rating; d_u and d_i are numbers of ratings. The features are
the right singular vectors of D_u^-1/2·P·D_i^-1/2 after the first, each over √d_i: correspondence
analysis (Benzécri 1973; Greenacre, "Theory and Applications of Correspondence Analysis", 1984).
They are the strongest eigenvectors, but for the constant, of M = D_i⁻¹·Pᵀ·D_u⁻¹·P, which takes
numbers of items to the mean, over an item's raters, of their means over the items that they rated.

A few items that hardly anybody rated can be a strong vector of their own, and tell nothing. So d_i
has `smoothing` added to it (Amini et al., "Pseudo-likelihood methods for community detection",
2013, do it to both degrees). The constant is no eigenvector then; M acts on what is orthogonal to
it, in the inner product of the smoothed d_i, in which M is symmetric.

`features` is a subspace iteration. Its bits are the same on any number of devices of one kind, in
any layout, whatever the order of ratings and of users:

- All that is summed over ratings is whole numbers. Each column is rounded to units of which its
  largest number has 2^20, and a number of units is cut in two, high·2^10 + low, with |high| ≤ 2^10
  and |low| ≤ 2^9. Parts are summed in float32 over 2^13 slots at a time, so up to 2^23, and then in
  int32. A row of 2^20 ratings has sums of 2^30 at most, wherever it is cut.
- All else is element by element, or on all items at once by every device for itself, through
  `steady.alike`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from dpmf_jax import layout
from dpmf_jax.devices import spread
from dpmf_jax.kernels import local_ridge, steady

UNITS = 2.0**20  # of a column's largest number
HALF = 2.0**10  # units of the high part
EXACT_SLOTS = 1 << 13  # of which a part adds up exactly in float32
SMOOTHING = 20.0  # ratings of an item
SPARE = 4  # columns beside those that are kept: they converge sooner
START_BITS = 10
LONGEST = 2.0  # a row of features, over √rank: items with few ratings have longer ones
TINY = 1e-20  # below any number that is divided by
VOID = 1e-5  # a squared singular value; what is less is rounding
NEARLY = 1e-4  # of what a direction would have if columns were independent


class Features(NamedTuple):
    """Public, a function of who rated what.

    units: float32[items, k], whole numbers; rows no longer than `local_ridge.ITEM_RADIUS`. The
      strongest column comes first. An item without ratings has zeros.
    unit: float32[], what a unit is in features. Over ratings, a column of features has mean 0 and
      mean square 1, but for rows that would be longer than `LONGEST`·√k and are shrunk to that.
    strength: float32[k], squared singular values, at most 1.
    """

    units: jax.Array
    unit: jax.Array
    strength: jax.Array


class _Table(NamedTuple):
    """Numbers of users or of items, for sums over ratings.

    parts: float32[rows, 2·columns], whole numbers: high parts, then low ones.
    unit: float32[columns].
    """

    parts: jax.Array
    unit: jax.Array


def features(
    data: layout.Layout, rank: int, rounds: int = 20, smoothing: float = SMOOTHING
) -> Features:
    """The features, `rank` columns of them; to be jitted.

    Time: 2 + 2·rounds passes over the ratings, of 2·(rank + 4) numbers each.

    Args:
      data: who rated what; values play no part. No user and no item has more than 2^20 ratings.
      rounds: of the iteration. Each multiplies what is left of other vectors in the k-th column by
        the ratio of the squares of singular values rank + 5 and k.
      smoothing: ratings that are added to those of each item that has any; at least 0.

    Where there are fewer than `rank` vectors (few items, or all users alike), the last columns are
    0.
    """
    by_user = layout.sum_by_user(data, _present, (), ())
    by_item = layout.sum_by_item(data, _present, (), ())
    zero = steady.hidden_zero(jnp.max(by_item))  # with `initial=0` it would not be hidden
    count = by_item.astype(jnp.float32)
    weight = jnp.where(count > 0, count + smoothing, 0.0)

    def on_items(make: Callable[..., Any], *given: Any) -> Any:
        return spread.by_each(data.num_devices, steady.alike(make), zero, *given)

    def iterate(_: jax.Array, given: tuple[Any, ...]) -> tuple[Any, ...]:
        vectors, _, table = given
        sums = layout.sum_by_user(data, _summed, (), table.parts)
        own = steady.alike(_of_users)(zero, sums, by_user.astype(jnp.float32), table.unit)
        sums = layout.sum_by_item(data, _summed, (), own.parts)
        return on_items(_of_items, vectors, sums, weight, own.unit)

    start = on_items(_start, _random(data.num_items, rank + SPARE), weight)
    vectors, strength, _ = jax.lax.fori_loop(0, rounds, iterate, start)
    return on_items(_kept, vectors[:, :rank], strength[:rank], count)


def _random(rows: int, columns: int) -> Float[Array, "rows columns"]:
    """Numbers of [-1, 1), the same for everybody."""
    key = jax.random.key(0, impl="threefry2x32")
    bits = jax.random.bits(key, (rows, columns), jnp.uint32) >> (32 - START_BITS)
    return bits.astype(jnp.float32) * 2.0 ** (1 - START_BITS) - 1.0  # exactly


def _present(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> jax.Array:
    del row, columns, values
    return jnp.sum(present.astype(jnp.int32))


def _summed(row: Any, columns: jax.Array, values: jax.Array, present: jax.Array) -> jax.Array:
    """int32[2·columns]: the sums of both parts over a row."""
    del row, values
    slots, numbers = columns.shape
    if slots <= EXACT_SLOTS:
        return (present @ columns).astype(jnp.int32)
    more = -slots % EXACT_SLOTS
    present = jnp.pad(present, (0, more)).reshape(-1, EXACT_SLOTS)
    columns = jnp.pad(columns, ((0, more), (0, 0))).reshape(-1, EXACT_SLOTS, numbers)
    return jnp.sum(jnp.einsum("ps,psc->pc", present, columns).astype(jnp.int32), axis=0)


# What follows runs within `steady.alike`.


def _table(numbers: Float[Array, "rows columns"]) -> _Table:
    largest = jnp.maximum(jnp.max(jnp.abs(numbers), axis=0, initial=0.0), TINY)
    units = jnp.clip(jnp.round(numbers * (UNITS / largest)), -UNITS, UNITS)
    high = jnp.round(units * (1 / HALF))
    return _Table(jnp.concatenate([high, units - HALF * high], axis=1), largest * (1 / UNITS))


def _means(
    sums: Int32[Array, "rows parts"], count: Float[Array, " rows"], unit: Float[Array, " columns"]
) -> Float[Array, "rows columns"]:
    """Of each row's ratings; 0 where there is none."""
    high, low = jnp.split(sums.astype(jnp.float32), 2, axis=1)
    return (HALF * high + low) * (1 / jnp.maximum(count, 1.0))[:, None] * unit


def _of_users(sums: jax.Array, count: jax.Array, unit: jax.Array) -> _Table:
    return _table(_means(sums, count, unit))


def _of_items(
    before: Float[Array, "items columns"],
    sums: Int32[Array, "items parts"],
    weight: Float[Array, " items"],
    unit: Float[Array, " columns"],
) -> tuple[jax.Array, jax.Array, _Table]:
    """(vectors, strength, table of the vectors): M times those before.

    They are turned so that the strongest comes first, and orthonormal again.
    """
    after = _means(sums, weight, unit)
    middle = _products(before, after, weight)
    strength, axes = jnp.linalg.eigh((middle + middle.T) / 2)
    vectors = _orthonormal(after @ jnp.flip(axes, axis=1), weight)
    return vectors, jnp.flip(strength), _table(vectors)


def _start(vectors: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array, _Table]:
    vectors = _orthonormal(vectors, weight)
    return vectors, jnp.zeros(vectors.shape[1]), _table(vectors)


def _share(weight: jax.Array) -> Float[Array, "items 1"]:
    return (weight / jnp.maximum(jnp.sum(weight), 1.0))[:, None]


def _products(left: jax.Array, right: jax.Array, weight: jax.Array) -> jax.Array:
    """Weighted means of columns' products."""
    return left.T @ (_share(weight) * right)


def _centred(
    vectors: Float[Array, "items columns"], weight: Float[Array, " items"]
) -> tuple[jax.Array, jax.Array]:
    """(columns of weighted mean 0, roots of their weighted mean squares)."""
    share = _share(weight)
    vectors = jnp.where(share > 0, vectors - jnp.sum(share * vectors, axis=0), 0.0)
    return vectors, jnp.sqrt(jnp.sum(share * vectors**2, axis=0))


def _orthonormal(
    vectors: Float[Array, "items columns"], weight: Float[Array, " items"]
) -> Float[Array, "items columns"]:
    """Of weighted mean 0, mean square 1 and uncorrelated; otherwise as near those given as such
    columns can be (Löwdin). Columns that are only rounding are 0.
    """
    vectors, length = _centred(vectors, weight)
    real = length > VOID  # of M times a column of length 1, it is the squared singular value
    vectors = jnp.where(real, vectors * (1 / jnp.maximum(length, TINY)), 0.0)
    gram = _products(vectors, vectors, weight)
    along, axes = jnp.linalg.eigh((gram + gram.T) / 2)
    # a direction that is only rounding stays short, and the next round finds that it is void
    root = jnp.sqrt(1 / jnp.maximum(along, NEARLY))
    return vectors @ ((axes * root) @ axes.T)


def _kept(
    vectors: Float[Array, "items rank"],
    strength: Float[Array, " rank"],
    count: Float[Array, " items"],
) -> Features:
    """On the grid, with the sign that makes the third moment over ratings positive."""
    vectors, length = _centred(vectors, count)
    vectors = vectors * (1 / jnp.maximum(length, TINY))
    skew = jnp.sum(_share(count) * vectors**3, axis=0)
    vectors = vectors * jnp.where(skew < 0, -1.0, 1.0)
    most = LONGEST * vectors.shape[1] ** 0.5
    row = jnp.sqrt(jnp.sum(vectors**2, axis=1))
    shrunk = vectors * jnp.minimum(1.0, most / jnp.maximum(row, TINY))[:, None]
    return Features(*local_ridge.factors_on_grid(shrunk), jnp.clip(strength, 0.0, 1.0))
