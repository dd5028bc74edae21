"""The clipped gradients of `descent` in whole numbers: exact in any order, on any device.

    ∇Θ_u = -Σ_i e_ui x_i        ∇X_i = -Σ_u e_ui θ_u        over the observed ratings

- Factors: x_i is row i of X in units of C/2048, rounded, and shrunk where its norm exceeds 2048.
  So ‖x_i‖ ≤ 2048, in whole numbers. θ_u likewise. A shrunk row keeps its `stretch`, ≥ 1, by which
  predictions make up for it: the clip acts where a factor multiplies a residual, as in the paper.
- Residuals: e_ui is the rating less its prediction in whole steps, each rounded, and clipped to
  ±E, E ≤ 256.

What a rating contributes is thus a vector of whole numbers, a function of that rating, of public
factors and of nothing else. Two data sets that differ in one rating, of change at most D in e, have
sums that differ in row u by at most 2048·D, in norm, and in row i by as much. No float is summed
where its rounding could tell: products of up to 32 slots stay within 32·256·2048 = 2^24, where
float32 holds every whole number, and pieces add up in int32.

Sums are then halved k times, rounded: a row whose sum moved by Δ moves by at most Δ/2^k + √rank.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from dpmf_jax import layout
from dpmf_jax.protocol import Info

RADIUS = 2048.0  # units in the clip norm C
FARTHEST = 2.0**15  # units of one entry of a factor, before it is shrunk
MOST_STEPS = 256  # of a residual
FINE_BITS = 6  # predictions are added up in 2^-6 of a step
FINE = 2.0**-FINE_BITS
LOW_BITS = 12  # of a piece's sum, which are added up apart from the rest
MOST_SHIFT = 16  # halvings of a sum
EXACT_SLOTS = 32  # of which the products add up exactly in float32


class Grid(NamedTuple):
    """Public numbers, float32[] but for the shift.

    middle: of the declared range, in rating units.
    half: half the range in steps, rounded up; a whole number.
    step: of a residual, in rating units; a power of two.
    bound: E, in steps; a whole number.
    clip_norm: C.
    shift: int32[], k.
    """

    middle: jax.Array
    half: jax.Array
    step: jax.Array
    bound: jax.Array
    clip_norm: jax.Array
    shift: jax.Array


class Rows(NamedTuple):
    """Factors of one side on the grid.

    units: float32[rows, rank], whole numbers, of norm at most `RADIUS`.
    stretch: float32[rows], 1 or more: what was shrunk, times this is what it was.
    """

    units: jax.Array
    stretch: jax.Array


def on_grid(
    factors: Float[Array, "rows rank"],
    clip_norm: Float[Array, ""],
    radius: float | jax.Array = RADIUS,
) -> Rows:
    """The rows in units of C/2048, each shrunk to a norm of at most 2048 units.

    The bound holds for any input: a row that is not finite is 0. radius: units in C, in place of
    2048, at most 2^15; beyond 2^12 the bound is met within 2^-24 of it.
    """
    units = jnp.clip(jnp.round(factors * (radius / clip_norm)), -FARTHEST, FARTHEST)
    units = jnp.nan_to_num(units, nan=0.0)
    squared = squared_norm(units.astype(jnp.int32))
    length = jnp.sqrt(squared)
    # Rounding a shrunk row adds at most √rank/2 to its norm.
    inside = radius - (factors.shape[1] ** 0.5 / 2 + 1)
    outside = squared > radius**2
    shrunk = jnp.round(units * (inside / jnp.maximum(length, 1.0))[:, None])
    units = jnp.where(outside[:, None], shrunk, units)
    held = squared_norm(units.astype(jnp.int32)) <= radius**2
    units = jnp.where(held[:, None], units, 0.0)
    return Rows(units, jnp.where(outside, length / inside, 1.0))


def squared_norm(units: jax.Array) -> jax.Array:
    """float32[rows]: exact up to 2^24, whatever the order; rounded once beyond."""
    squares = units * units  # at most 2^30
    high, low = jnp.sum(squares >> 15, axis=1), jnp.sum(squares & (2**15 - 1), axis=1)
    return high.astype(jnp.float32) * 2.0**15 + low.astype(jnp.float32)


def _row_gradient(
    row: Any, columns: Any, values: jax.Array, present: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For one row: -Σ e x in units, as (upper, lower) parts, and Σ e² of unrounded residuals, in
    steps.
    """
    (factor, stretch, row_center, grid), (factors, column_stretch, column_center) = row, columns
    middle, half, per_step, bound = grid
    # A whole number below 2^22; then one product, and one rounding: no two programs differ.
    predicted = jnp.round((factors @ factor) * (stretch * column_stretch))
    predicted = (predicted + (row_center if column_center is None else column_center)) * FINE
    rating = (values - middle) * per_step
    steps = jnp.clip(jnp.round(rating), -half, half) - jnp.floor(predicted + 0.5)
    apart = present * (rating - predicted)
    return *_parts(-present * jnp.clip(steps, -bound, bound), factors), apart @ apart


def _parts(errors: jax.Array, factors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int32[rank] each: Σ errors·factors is upper·2^12 + lower."""
    slots = len(errors)
    if slots > EXACT_SLOTS:
        more = -slots % EXACT_SLOTS
        errors = jnp.pad(errors, (0, more)).reshape(-1, EXACT_SLOTS)
        factors = jnp.pad(factors, ((0, more), (0, 0))).reshape(-1, EXACT_SLOTS, factors.shape[1])
        total = jnp.einsum("pw,pwr->pr", errors, factors).astype(jnp.int32)
        upper, lower = total >> LOW_BITS, total & (2**LOW_BITS - 1)
        return jnp.sum(upper, axis=0), jnp.sum(lower, axis=0)
    total = (errors @ factors).astype(jnp.int32)
    return total >> LOW_BITS, total & (2**LOW_BITS - 1)


def _shared(grid: Grid, num_rows: int) -> tuple[jax.Array, ...]:
    numbers = (grid.middle, grid.half, 1 / grid.step, grid.bound)
    return tuple(jnp.broadcast_to(number, (num_rows,)) for number in numbers)


def _fine_center(grid: Grid, center: jax.Array) -> jax.Array:
    """c less the middle of the range, in whole 2^-6 of a step."""
    fine = jnp.round((center - grid.middle) / (grid.step * 2.0**-FINE_BITS))
    return jnp.clip(jnp.nan_to_num(fine, nan=0.0), -(2.0**22), 2.0**22)


def _to_fine(grid: Grid, stretch: jax.Array) -> jax.Array:
    """stretch, times what a product of two rows' units is in 2^-6 of a step."""
    return stretch * ((grid.clip_norm / RADIUS) ** 2 / (grid.step * 2.0**-FINE_BITS))


def halved(shift: jax.Array, upper: jax.Array, lower: jax.Array) -> UInt32[Array, ...]:
    """(upper·2^12 + lower)/2^k, rounded half up, mod 2^32; k, the shift, ≤ `MOST_SHIFT`."""
    less, more = jnp.minimum(shift, LOW_BITS), jnp.maximum(shift - LOW_BITS, 0)
    near = (upper << (LOW_BITS - less)) + (lower + ((1 << less) >> 1) >> less)
    # Beyond 12, what is left of the lower part is less than a unit of the upper one.
    far = upper + (lower >> LOW_BITS) + ((1 << more) >> 1) >> more
    return jax.lax.bitcast_convert_type(jnp.where(more > 0, far, near), jnp.uint32)


def gradients(
    users: Float[Array, "users rank"],
    items: Float[Array, "items rank"],
    center: jax.Array,
    grid: Grid,
    data: layout.Layout,
    *,
    of: Literal["users", "items", "both"],
) -> tuple[Any, Info]:
    """((∇Θ, ∇X), Info) without λ, in units: uint32[users, rank] and uint32[items, rank], mod 2^32.

    Args:
      users, items, center: of the model, public; center float32[] or float32[items].
      grid: see `Grid`.
      data: the ratings.
      of: one side alone comes without a tuple; that of the items needs one center for all.
    """
    user_rows, item_rows = on_grid(users, grid.clip_norm), on_grid(items, grid.clip_norm)
    fine = _fine_center(grid, center)
    rank = users.shape[1]
    wide_users, wide_items = map(layout.pad_rank, (user_rows.units, item_rows.units))
    user_stretch, per_item = _to_fine(grid, user_rows.stretch), center.ndim > 0

    def rounded(sums: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, Info]:
        upper, lower, squared = sums
        mean = grid.step**2 * jnp.sum(squared) / data.num_ratings
        info = Info(mean, jnp.mean(item_rows.stretch > 1))
        return halved(grid.shift, upper[:, :rank], lower[:, :rank]), info

    def of_users() -> tuple[jax.Array, Info]:
        own = None if per_item else jnp.broadcast_to(fine, (users.shape[0],))
        rows = wide_users, user_stretch, own, _shared(grid, users.shape[0])
        columns = wide_items, item_rows.stretch, fine if per_item else None
        return rounded(layout.sum_by_user(data, _row_gradient, rows, columns))

    def of_items() -> tuple[jax.Array, Info]:
        own = jnp.broadcast_to(fine, (items.shape[0],))
        rows = wide_items, item_rows.stretch, own, _shared(grid, items.shape[0])
        columns = wide_users, user_stretch, None
        return rounded(layout.sum_by_item(data, _row_gradient, rows, columns))

    if of == "users":
        return of_users()
    if of == "items":
        return of_items()
    (first, info), (second, _) = of_users(), of_items()
    return (first, second), info


def unit(grid: Grid) -> jax.Array:
    """What a unit of a gradient is, in rating units times those of a factor."""
    return grid.step * (grid.clip_norm / RADIUS) * (1 << grid.shift).astype(jnp.float32)
