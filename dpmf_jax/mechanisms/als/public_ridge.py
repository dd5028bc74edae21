"""A ridge whose design is public: what it leaves of ratings is a contraction, whatever floats do.

Who rated what is public here, and so is X, the columns of the items that a user rated: a constant
for the level, then features. The user's ratings, less public means, are y, whole numbers. With A
near (XᵀX + Λ)⁻¹, a matrix that depends on what is public alone, the answer is q = A·Xᵀy, and what
is left is

    E = y - X·q = (I - X·A·Xᵀ)·y,

linear in y. Where A is symmetric and the eigenvalues of A·(XᵀX + Λ) are within 1/2 of 1, A is
positive and at most 3/2 of (XᵀX + Λ)⁻¹. So X·A·Xᵀ has eigenvalues between 0 and 3/2, and
I - X·A·Xᵀ makes no vector longer: a rating that changes by τ moves E by at most τ. A need not be
exact for that. It is computed in float32. For every user the program checks, with room for the
rounding of the check itself, that all rows of |A·(XᵀX + Λ) - I| add up to at most 1/2.

What else floats do to E is bounded from what is public, too:

- Xᵀy is a sum of whole numbers, exact: y = 2^7·h + l, and the sums of either part keep within 32
  bits for a user of up to `MOST` ratings. q is a sum of d products, whose entries are off by
  (d + 5)·2^-24 of Q = |A|·τ·Σ|x| at most; then it is rounded, by up to half a unit, 2^-`FINE_BITS`.
- X·q is a sum of whole numbers again, which the program holds to 31 bits, and E is rounded to whole
  units once.

So two sets of values that differ in one rating, by τ, have E apart by at most

    τ + 2·Σ_j ‖x_j‖·((d + 5)·2^-24·Q_j + 2^-FINE_BITS/2) + √m

in norm. The check holds that to τ + `SLACK`·√(number of items), which is `bound`.

A user for whom a check fails gets a level alone, A = 1/(‖x_0‖² + λ_0), for which all of this holds;
one with more than `MOST` ratings gets A = 0, so E is y. Who that is follows from who rated what: it
says nothing of values. If all of a user's m ratings change, E moves by at most √m times the bound.

Bits are those of `local_ridge`: sums are whole, and floats go operation by operation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from dpmf_jax import layout
from dpmf_jax.kernels import local_ridge, steady
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import grid

LEVEL = 64.0  # what stands beside the features for the level
RADIUS = 128.0  # units that a row of features is long, at most, but for its rounding
FINE_BITS = 7  # a coefficient is in units of 2^-7
LOW_BITS = 7  # of y, which are summed apart
MOST = 1 << 17  # ratings of a user who gets an answer
MOST_OF_FEATURES = 1 << 15  # ratings of a user whose XᵀX keeps within 32 bits
WIDEST = 1 << 14  # of τ
SLACK = 4.0  # units a √item by which roundings may move what is left of a user's ratings
NEAR = 0.499  # of A·(XᵀX + Λ) to I
UNIT = 2.0**-24  # a rounding of float32, relative
ROOM = 1.01  # for the floats of a bound


class Answers(NamedTuple):
    """units: int32[users, d], q in units of 2^-`FINE_BITS`. count: float32[users], ratings."""

    units: jax.Array
    count: jax.Array


def bound(width: float, num_items: int) -> float:
    """How far one rating that changes by so many units moves what is left, in norm."""
    return width + SLACK * num_items**0.5


def columns(units: Float[Array, "items k"]) -> Float[Array, "items d"]:
    """X of all items: whole numbers, `LEVEL` and the features."""
    level = jnp.full((len(units), 1), LEVEL, jnp.float32)
    return jnp.concatenate([level, units], axis=1)


def answers(
    x: Float[Array, "items d"],
    centers: Float[Array, " items"],
    on: grid.Values,
    priors: Float[Array, " d"],
    data: Layout,
) -> Answers:
    """Everybody's q, to ratings less the centres.

    Args:
      x: `columns`. centers: public means, whole units, no further than `on.half` from 0.
      on: the grid of the ratings, at most `WIDEST` units wide.
      priors: Λ, in squared units of the columns; positive.
    """
    slack = jnp.float32(SLACK * len(centers) ** 0.5)

    def solved(sums: Any) -> tuple[jax.Array, jax.Array]:
        gram, high, low, size, count = sums
        zero = steady.hidden_zero(count.astype(jnp.int32))
        matrix = _matrices(gram, size, count, priors, 2 * on.half, slack, zero)
        right = (high.astype(jnp.float32) * 2.0**LOW_BITS + low.astype(jnp.float32)).T
        found = _product(matrix, right[:, None], zero)[:, 0]
        units = jnp.round(found * 2.0**FINE_BITS)
        return jnp.nan_to_num(units).astype(jnp.int32).T, count

    rows = (each(on, data.num_users),)
    return Answers(*layout.sum_by_user(data, _sums, rows, (x, centers), then=solved))


def residuals(
    row: tuple[Any, ...], answers: Int32[Array, "width d"], values: jax.Array
) -> Int32[Array, " width"]:
    """E of the raters of one item, in whole units. row: (x, centre, grid) of the item."""
    x, center, on = row
    own = grid.on_grid(on, values) - center.astype(jnp.int32)
    predicted = jnp.sum(answers * x.astype(jnp.int32), axis=1)
    return ((own << FINE_BITS) - predicted + (1 << (FINE_BITS - 1))) >> FINE_BITS


def each(on: grid.Values, num: int) -> grid.Values:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num,)), on)


def _sums(row: Any, given: Any, values: jax.Array, present: jax.Array) -> Any:
    """int32 (XᵀX, Xᵀh, Xᵀl, Σ|x|) of a user, and the number of ratings."""
    (on,), (x, center) = row, given
    own = grid.on_grid(on, values) - center.astype(jnp.int32)
    parts = own >> LOW_BITS, own & ((1 << LOW_BITS) - 1)
    rated = present[:, None]  # on one side of a product alone
    products = local_ridge.exact_products(
        rated * x, jnp.concatenate([x, *(part.astype(jnp.float32)[:, None] for part in parts)], 1)
    )
    size = local_ridge.exact_products(rated, jnp.abs(x))[0]
    return products[:, :-2], products[:, -2], products[:, -1], size, jnp.sum(present)


def _matrices(
    gram: Int32[Array, "users d d"],
    size: Int32[Array, "users d"],
    count: Float[Array, " users"],
    priors: Float[Array, " d"],
    width: Float[Array, ""],
    slack: Float[Array, ""],
    zero: Int32[Array, " users"],
) -> Float[Array, "d d users"]:
    """A of each user: near the inverse where the checks hold, else of the level, else 0."""
    num, unit = len(priors), jnp.eye(len(priors), dtype=jnp.float32)[:, :, None]
    system = jnp.moveaxis(gram, 0, -1).astype(jnp.float32)
    lengths = jnp.stack([jnp.sqrt(system[place, place]) for place in range(num)])
    system = system + unit * priors[:, None]
    full = _inverse(system, zero)
    reach = _product(jnp.abs(full), width * size.T.astype(jnp.float32)[:, None], zero)[:, 0]
    reach = ROOM * reach
    off, all_of_it = (
        jnp.max(_total(part, zero), axis=0)
        for part in (
            jnp.abs(_product(system, full, zero) - unit),
            _product(jnp.abs(system), jnp.abs(full), zero),
        )
    )
    rounded = steady.apart(zero, (num + 5) * UNIT * reach) + 2.0**-FINE_BITS / 2
    moved = _total(steady.apart(zero, lengths * rounded)[None], zero)[0]
    moved = ROOM * (2 * moved + jnp.sqrt(count))
    predicted = ROOM * _total(reach[None] * 2.0**FINE_BITS + 1, zero)[0] * (RADIUS + num)
    off = off + steady.apart(zero, (num + 4) * 2 * UNIT * all_of_it)
    holds = (off <= NEAR) & (moved <= slack)
    holds &= (predicted <= 2.0**30) & (count <= MOST_OF_FEATURES)
    level = 1 / (LEVEL**2 * count + priors[0])
    level = jnp.where(count <= MOST, steady.apart(zero, level), 0.0)
    corner = jnp.zeros((num, num, 1), jnp.float32).at[0, 0].set(1.0)
    return jnp.where(holds, full, corner * level)


def _inverse(
    system: Float[Array, "d d users"], zero: Int32[Array, " users"]
) -> Float[Array, "d d users"]:
    """Near the inverse, and symmetric to the bit. Not a number where elimination breaks down."""
    num = len(system)
    unit = jnp.broadcast_to(jnp.eye(num, dtype=jnp.float32)[:, :, None], system.shape)

    def eliminate(place: jax.Array, both: jax.Array) -> jax.Array:
        row = steady.apart(zero, both[place] * steady.apart(zero, 1 / both[place, place]))
        # whole before it is read, or each number that is read would be made again
        row = jax.lax.optimization_barrier(row)
        return (both - steady.apart(zero, both[:, place, None] * row)).at[place].set(row)

    both = jax.lax.fori_loop(0, num, eliminate, jnp.concatenate([system, unit], axis=1))
    found = both[:, num:]
    return (found + jnp.swapaxes(found, 0, 1)) / 2


def _product(
    left: Float[Array, "p q users"], right: Float[Array, "q r users"], zero: Int32[Array, " users"]
) -> Float[Array, "p r users"]:
    def add(place: jax.Array, found: jax.Array) -> jax.Array:
        return found + steady.apart(zero, left[:, place, None] * right[place])

    nothing = jnp.zeros((len(left), right.shape[1], left.shape[2]), jnp.float32)
    return jax.lax.fori_loop(0, len(right), add, nothing)


def _total(
    rows: Float[Array, "p q users"], zero: Int32[Array, " users"]
) -> Float[Array, "p users"]:
    """Each row added up, in order."""

    def add(place: jax.Array, found: jax.Array) -> jax.Array:
        return found + steady.apart(zero, rows[:, place])

    return jax.lax.fori_loop(1, rows.shape[1], add, rows[:, 0])
