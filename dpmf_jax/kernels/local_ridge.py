"""A user's own ridge on public item factors: the same bits wherever, and beside whomever, it runs.

    minimise over (b, u):  Σ_i (y_i - b - ⟨u, v_i⟩)²/s² + tr-term + λ_b·b² + λ_u·‖u‖²
    y_i = r_i - c_i, over the user's own ratings; the tr-term is uᵀ(Σ_i S_i)u/s², with S_i the
    diagonal variance of what is known of v_i (Krichene et al. 2023 have it as a posterior's)

What a user then sends must be a function of the user's own ratings and of what is public, and of
nothing else: not of how many other users there are, nor of where in an array this one stands. So
nothing here is rounded in an order that others could change:

- Ratings, centres and item factors are whole numbers on public grids, `Items`. The sums of normal
  equations are sums of whole numbers: exact in any order.
- They are solved element by element, without a sum over anything: each number is one float
  operation of two, and products pass through `steady.apart`, so that no compiler rounds a product
  and a sum at once in one program and not in another.
- The answer is rounded to whole numbers, `Users`, and predictions and residuals are whole again.

Where factors are to be non-negative (the first columns after the level), the level and the other
columns, which may have any sign, are eliminated as above. What is left is a problem in these
factors alone, S positive definite:

    minimise over x ≥ 0:  xᵀS·x/2 - rᵀx

It is solved by `SWEEPS` sweeps of projected coordinate descent from 0, one coordinate after the
other: x_j ← max(x_j + (r - S·x)_j/S_jj, 0). Their number is fixed, so an answer is again a function
of a user's own numbers, operation by operation, and it is non-negative after any number of them.

Where ratings have weights, multiples of 1/8, row functions are given them as `present`. A term of a
sum is then a rating's whole number times its weight. In `_weighted_equations` the weights go bit by
bit, so that sums stay those of whole numbers as they are without. A residual within 2^9 steps times
a weight is a multiple of 1/8, and that times a unit of the user's one below 2^21: exact in float32.

A row that overflows (a user with more than 2^13 ratings of items that all have factors of the
largest norm) gets an answer of no use, and still of its own ratings only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, Num

from dpmf_jax import layout
from dpmf_jax.kernels import steady, whole_descent

STEPS = 512  # of a rating, in the width of the declared range
ITEM_RADIUS = 512.0  # units that a row of item factors is long, at most
LEVEL = 256.0  # what stands beside these units for the level
USER_BITS = 11  # a user's coefficient is in units of 2^-11
USER_RADIUS = 4096.0  # units that a row of user factors is long, at most
EXACT_SLOTS = 32  # of which products of whole numbers below 2^19 add up exactly in float32
PIVOTS = 16  # of elimination, after which what is left is cut out
# Of coordinate descent. Where factors are not alike (condition numbers below 10) 16 reach a unit of
# the answer. Where eight are (70) so many leave predictions within a fifth of a step.
SWEEPS = 128
LOW_BITS = 12  # of a squared residual, which are added up apart from the rest
MOST_ITEMS = 1 << 19  # of which the lower parts of squares add up in int32


class Grid(NamedTuple):
    """Public numbers, float32[].

    middle: of the declared range, in rating units.
    step: of a rating, in rating units.
    bound: of a residual, in steps; a whole number.
    """

    middle: jax.Array
    step: jax.Array
    bound: jax.Array


class Items(NamedTuple):
    """What is public of the items, in whole numbers.

    center: float32[items], in steps.
    units: float32[items, d], rows no longer than `ITEM_RADIUS`.
    variance: float32[items, d], in units²; at most `ITEM_RADIUS`².
    unit: float32[], what a unit is in factors.
    """

    center: jax.Array
    units: jax.Array
    variance: jax.Array
    unit: jax.Array


class Users(NamedTuple):
    """What is private: each user's answer, in whole numbers.

    level: float32[users], in steps.
    units: float32[users, d], rows no longer than `USER_RADIUS`: coefficients in 2^-11 of a step
      for a unit of the item's.
    """

    level: jax.Array
    units: jax.Array


def on_grid(
    center: Float[Array, " items"],
    factors: Float[Array, "items d"],
    variance: Float[Array, "items d"],
    grid: Grid,
) -> Items:
    """What is public, rounded: the longest row of the factors is `ITEM_RADIUS` units long.

    Any numbers will do: what is not finite is 0.
    """
    units, unit = factors_on_grid(factors)
    steps = jnp.clip(jnp.round((center - grid.middle) / grid.step), -STEPS / 2, STEPS / 2)
    squares = jnp.clip(jnp.round(variance / unit**2), 0, ITEM_RADIUS**2)
    return Items(jnp.nan_to_num(steps), units, jnp.nan_to_num(squares), unit)


def factors_on_grid(factors: Float[Array, "items d"]) -> tuple[jax.Array, jax.Array]:
    """(units, unit), as of `Items`, of any numbers."""
    factors = jnp.nan_to_num(factors, nan=0.0, posinf=0.0, neginf=0.0)
    longest = jnp.max(jnp.sqrt(jnp.sum(factors**2, axis=1)), initial=0.0)
    unit = jnp.maximum(longest, 2.0**-20) / (ITEM_RADIUS - 2 - factors.shape[1] ** 0.5 / 2)
    units = whole_descent.on_grid(factors, unit * ITEM_RADIUS, ITEM_RADIUS).units
    return units, unit


def rating_steps(grid: Grid, values: jax.Array) -> jax.Array:
    """float32: ratings less the middle, in whole steps, no further than the declared range."""
    steps = jnp.round((values - grid.middle) / grid.step)
    return jnp.clip(jnp.nan_to_num(steps, nan=0.0), -STEPS / 2, STEPS / 2)


def exact_products(left: jax.Array, right: jax.Array) -> jax.Array:
    """int32[p, q]: Σ over slots of left[slot, p]·right[slot, q], whole numbers below 2^19."""
    slots = len(left)
    if slots <= EXACT_SLOTS:
        # turned before it is multiplied: XLA's product of small matrices takes rows faster
        return (jax.lax.optimization_barrier(left.T) @ right).astype(jnp.int32)
    parts = -(-slots // EXACT_SLOTS)  # also of no columns
    left, right = (
        jnp.pad(part, ((0, -slots % EXACT_SLOTS), (0, 0))).reshape(
            parts, EXACT_SLOTS, part.shape[1]
        )
        for part in (left, right)
    )
    return jnp.sum(jnp.einsum("wsp,wsq->wpq", left, right).astype(jnp.int32), axis=0)


def _normal_equations(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> Any:
    """int32: (Gram matrix [d + 1, d + 1], right side [d + 1], variances [d]), and the count."""
    (grid,) = row
    center, units, variance = columns
    level = jnp.full_like(present, LEVEL)[:, None]
    target = (rating_steps(grid, values) - center)[:, None]
    rated = present[:, None]  # on one side of a product alone
    products = exact_products(
        rated * jnp.concatenate([level, units], axis=1),
        jnp.concatenate([level, units, target], axis=1),
    )
    spread = exact_products(rated, variance)[0]
    return products[:, :-1], products[:, -1], spread, jnp.sum(present)


def _weighted_equations(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> Any:
    """`_normal_equations` for each bit of the weights, 1/8 first, and the number of ratings that
    count.
    """
    eighths = (present * layout.WEIGHT_STEPS).astype(jnp.int32)
    planes = [
        _normal_equations(row, columns, values, ((eighths >> bit) & 1).astype(jnp.float32))[:3]
        for bit in range(layout.WEIGHT_STEPS.bit_length())
    ]
    return planes, jnp.sum((present > 0).astype(jnp.float32))


def _of_planes(planes: Sequence[jax.Array]) -> jax.Array:
    """float32: Σ 2^bit·plane/8; products with powers of two are exact, so no program differs."""
    total = planes[0].astype(jnp.float32) / layout.WEIGHT_STEPS
    for bit, plane in enumerate(planes[1:], start=1):
        total = total + plane.astype(jnp.float32) * (2.0**bit / layout.WEIGHT_STEPS)
    return total


def each(tree: Any, num: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num,)), tree)


def solve(
    items: Items,
    grid: Grid,
    priors: Float[Array, " columns"],
    data: layout.Layout,
    *,
    non_negative: int = 0,
) -> tuple[Users, Float[Array, " users"]]:
    """(each user's ridge, in whole numbers; number of ratings of each that count).

    Args:
      items, grid: public.
      priors: s²·λ of the level and of each factor, per squared unit of its column (`LEVEL`,
        `items.unit`); positive.
      data: the ratings. Their weights, if they have any, multiply the squares.
      non_negative: how many factors, the first ones, are at least 0; the level and the other
        columns have any sign.
    """
    columns = (items.center, items.units, items.variance)

    def solved(sums: Any) -> tuple[jax.Array, jax.Array]:
        if data.weighted:
            planes, count = sums
            gram, right, spread = map(_of_planes, zip(*planes, strict=True))
        else:
            gram, right, spread, count = sums
        zero = steady.hidden_zero(count.astype(jnp.int32))
        found = _solved(gram, right, spread, priors, zero, non_negative=non_negative)
        return found, count

    rows = (each(grid, data.num_users),)
    equations = _weighted_equations if data.weighted else _normal_equations
    found, count = layout.sum_by_user(data, equations, rows, columns, then=solved, weighted=True)
    level = jnp.clip(jnp.round(found[:, 0] * LEVEL), -2 * STEPS, 2 * STEPS)
    units = whole_descent.on_grid(
        found[:, 1:], jnp.float32(USER_RADIUS / 2**USER_BITS), USER_RADIUS
    ).units
    return Users(jnp.nan_to_num(level), units), count


def _solved(
    gram: Num[Array, "users k k"],
    right: Num[Array, "users k"],
    spread: Num[Array, "users d"],
    priors: Float[Array, " k"],
    zero: Int32[Array, " users"],
    *,
    non_negative: int = 0,
) -> Float[Array, "users k"]:
    """(gram + diag(0, spread) + diag(priors))⁻¹ right.

    Factors that are to be non-negative are found by `_non_negative`.
    """
    size = right.shape[1]
    spread = jnp.pad(spread, ((0, 0), (1, 0))).astype(jnp.float32)
    if non_negative:
        gram = _turned(_turned(gram, non_negative, 1), non_negative, 2)
        right, spread = (_turned(part, non_negative, 1) for part in (right, spread))
        priors = _turned(priors, non_negative, 0)
    diagonal = (spread + priors).T
    left = jnp.moveaxis(gram, 0, -1).astype(jnp.float32)  # users last: they fill the vectors
    left = left + jnp.eye(size)[:, :, None] * diagonal
    found = _of_system(left, right, zero, non_negative=non_negative)
    return _turned(found, size - 1 - non_negative, 0).T if non_negative else found.T


def _of_system(
    left: Float[Array, "k k users"],
    right: Num[Array, "users k"],
    zero: Int32[Array, " users"],
    *,
    non_negative: int = 0,
) -> Float[Array, "k users"]:
    """left⁻¹ right, by elimination, element by element; the last so many at least 0.

    Pivots are taken `PIVOTS` at a time: then the rows that are done leave, and their columns. Those
    of factors that are to be non-negative stay: `_non_negative` finds them.
    """
    left = jnp.concatenate([left, right.T.astype(jnp.float32)[:, None]], axis=1)
    triangle = []
    while len(left) > non_negative:
        number = min(PIVOTS, len(left) - non_negative)
        left = _eliminated(left, number, zero)
        triangle.append(left[:number])
        left = left[number:, number:]
    found = jnp.zeros((0, len(zero)), jnp.float32)
    if non_negative:
        found = _non_negative(left, zero)
    for rows in reversed(triangle):
        found = _substituted(rows, found, zero)
    return found


def _turned(array: jax.Array, number: int, axis: int) -> jax.Array:
    """Along an axis, after the first entry, the next so many are moved to the end.

    By slices: within a map over devices jax does not gather from what the map closes over.
    """
    ends = (0, 1), (1 + number, array.shape[axis]), (1, 1 + number)
    parts = [jax.lax.slice_in_dim(array, *both, axis=axis) for both in ends]
    return jnp.concatenate(parts, axis=axis)


def _non_negative(system: jax.Array, zero: jax.Array) -> jax.Array:
    """float32[rows, users], at least 0: `SWEEPS` of coordinate descent, element by element.

    system: float32[rows, rows + 1, users], S and r.
    """
    size = len(system)
    matrix, right = system[:, :size], system[:, size]
    at_once = jnp.arange(size)
    inverse = steady.apart(zero, 1 / matrix[at_once, at_once])

    def descend(turn: jax.Array, given: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
        found, left = given  # left: r - S·x
        at = turn % size
        moved = steady.apart(zero, left[at] * inverse[at])
        now = steady.apart(zero, jnp.maximum(found[at] + moved, 0.0))
        change = steady.apart(zero, now - found[at])
        left = left - steady.apart(zero, matrix[:, at] * change)
        return found.at[at].set(now), left

    nothing = jnp.zeros_like(right)
    return jax.lax.fori_loop(0, SWEEPS * size, descend, (nothing, right))[0]


def _seen(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> Any:
    """int32: (Σ x·xᵀ [d, d], Σ x [d], Σ variances [d]) of the items that are seen, and how many."""
    del row, values
    units, variance = columns
    seen = present[:, None]  # on one side of a product alone
    gram = exact_products(seen * units, units)
    right, spread = (exact_products(seen, part)[0] for part in (units, variance))
    return gram, right, spread, jnp.sum(present)


def solve_seen(
    units: Float[Array, "items d"],
    variance: Float[Array, "items d"],
    matrix: Float[Array, "d d"],
    data: layout.Layout,
) -> tuple[Float[Array, "users d"], Float[Array, " users"]]:
    """(each user's answer to what the user has seen, number of items seen).

    It solves (Σ x_i x_iᵀ + diag(Σ S_i) + matrix) p = Σ x_i, over the items that the user has seen;
    values of ratings play no part.

    Args:
      units, variance: x and S, as of `Items`.
      matrix: public and positive definite: what all items weigh, and a ridge.
      data: who has seen what.
    """

    def solved(sums: Any) -> tuple[jax.Array, jax.Array]:
        gram, right, spread, count = sums
        left = jnp.moveaxis(gram, 0, -1).astype(jnp.float32) + matrix[:, :, None]
        left = left + jnp.eye(len(left))[:, :, None] * spread.T.astype(jnp.float32)
        zero = steady.hidden_zero(count.astype(jnp.int32))
        return _of_system(left, right, zero).T, count

    return layout.sum_by_user(data, _seen, (), (units, variance), then=solved)


def _eliminated(system: jax.Array, number: int, zero: jax.Array) -> jax.Array:
    """float32[rows, rows + 1, users], after the first so many pivots; what is below them is void.

    The next pivot's row and ratios are carried beside the system. So they are made once, where each
    element would make its own, and the system is updated in place.
    """
    places = jnp.arange(len(system))[:, None]

    def of_pivot(at: jax.Array | int, system: jax.Array) -> tuple[jax.Array, jax.Array]:
        inverse = steady.apart(zero, 1 / system[at, at])
        ratios = steady.apart(zero, jnp.where(places > at, system[:, at] * inverse, 0.0))
        return ratios, system[at]

    def eliminate(at: jax.Array, given: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        system, ratios, row = given
        system = system - steady.apart(zero, ratios[:, None] * row)
        # whole before it is read, or each number that is read would be made again
        system = jax.lax.optimization_barrier(system)
        return system, *of_pivot(at + 1, system)

    return jax.lax.fori_loop(0, number, eliminate, (system, *of_pivot(0, system)))[0]


def _substituted(rows: jax.Array, below: jax.Array, zero: jax.Array) -> jax.Array:
    """The unknowns from these rows of the triangle on; below: those that are known."""
    number = len(rows)
    places = jnp.arange(number)[:, None]

    def subtract(back: jax.Array, vector: jax.Array) -> jax.Array:
        at = len(below) - 1 - back
        return vector - steady.apart(zero, rows[:, number + at] * below[at])

    def substitute(back: jax.Array, vector: jax.Array) -> jax.Array:
        at = number - 1 - back
        found = vector[at] / rows[at, at]
        left = vector - steady.apart(zero, rows[:, at] * found)
        return jnp.where(places < at, left, vector).at[at].set(found)

    vector = rows[:, -1]
    if len(below):
        vector = jax.lax.fori_loop(0, len(below), subtract, vector)
    return jnp.concatenate([jax.lax.fori_loop(0, number, substitute, vector), below])


def residuals(
    target: jax.Array, level: jax.Array, products: jax.Array, bound: jax.Array
) -> jax.Array:
    """Whole steps: what the prediction misses, within ±bound.

    target: rating less centre, in steps. products: ⟨units, units⟩ of user and item.
    """
    predicted = level + jnp.round(products * 2.0**-USER_BITS)
    return jnp.clip(target - predicted, -bound, bound)


def _squared(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> Any:
    """For one user: int32 Σ (E/unit)² as (upper, lower), of residuals within the bound."""
    (level, units), (grid, per_step) = row
    center, item_units = columns
    found = residuals(rating_steps(grid, values) - center, level, item_units @ units, grid.bound)
    squares = ((per_step * present * found) ** 2).astype(jnp.int32)
    return jnp.sum(squares >> LOW_BITS), jnp.sum(squares & (2**LOW_BITS - 1))


def norm_unit(data: layout.Layout) -> float:
    """The steps in which `residual_norms` counts."""
    return 1 / layout.WEIGHT_STEPS if data.weighted else 1.0


def residual_norms(
    users: Users, items: Items, grid: Grid, data: layout.Layout
) -> tuple[Int32[Array, " users"], Int32[Array, " users"]]:
    """(upper, lower): Σ E² of each user is upper·2^12 + lower; E in steps, within the bound.

    Of weighted ratings E is a residual times its weight, in eighths of a step: see `norm_unit`.
    """
    rows = users, each((grid, jnp.float32(1 / norm_unit(data))), data.num_users)
    return layout.sum_by_user(data, _squared, rows, (items.center, items.units), weighted=True)
