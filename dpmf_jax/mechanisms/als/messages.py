"""What a user sends in a pass: whole numbers, and all of them together no longer than a clip.

With E the residuals in steps (where ratings have weights, times their weights), q the units of the
user's own factors (`local_ridge`; of those that are learned, not slopes nor weights of public
features), m the number of her ratings and w = 1/√m, the message of a pass for factors is, for every
item that she rated,

    ⌊s·E_i·q⌉,   s = min(κ·w, (Δ - √(m·d)/2)/(‖E‖·‖q‖)),

and that of a pass for means is ⌊s·E_i⌉, with d = 1 and ‖q‖ = 1 (where factors do not pay, a pass
for factors sends just that, with q = (1, 0, ...): `factor_passes`). Rounding moves each of its m·d
entries by at most a half, so the norm of the whole message is at most

    s·‖E‖·‖q‖ + √(m·d)/2 ≤ Δ.

s is computed in float32, in fewer than 16 operations, each off by 2^-24 of its result; the clip is
2^-18 shorter than Δ for that. E, q and m are whole numbers (weighted E are eighths), and functions
of her own ratings and of what is public, the same to the bit in any company. So is the message.
Without her it is missing, and nobody else's moves: Δ is the L2 sensitivity for a user added or
removed, and 2Δ for one who is replaced. Rounding the product in floats first would not do: (s·E)·q
depends on the compiler.

One more number says how large s is on average: ⌊Δ'·s/(κ·w)⌋, between 0 and Δ'. To the Gram matrix
a user adds p·pᵀ, with p = ⌊q·√g⌉ and g such that ‖p‖² ≤ Δ': that is its Frobenius norm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from dpmf_jax import layout
from dpmf_jax.kernels import local_ridge, steady, whole_descent
from dpmf_jax.kernels.local_ridge import Grid, Items, Users
from dpmf_jax.mechanisms.als.config import ROOM

# Of everybody, or of each user: who has a smaller budget has smaller ones (`budgets`).
Bound = Float[Array, ""] | Float[Array, " users"]


class Sent(NamedTuple):
    """What goes into the messages of a pass.

    scale: float32[users], s.
    fraction: float32[users], s/(κ·w): 1 where nothing is clipped.
    squared: float32[users], ‖E‖², for the curator's eyes.
    """

    scale: jax.Array
    fraction: jax.Array
    squared: jax.Array


def scales(
    users: Users,
    count: Float[Array, " users"],
    norms: tuple[jax.Array, jax.Array],
    clip: Bound,
    kappa: Bound,
    *,
    rank: int,
    unit: float = 1.0,
) -> Sent:
    """How much of her residuals each user sends.

    Args:
      users: the answers. count: m. norms: of the residuals, `local_ridge.residual_norms`.
      clip: Δ in units; of users with budgets of their own, Δ_g of each. kappa: κ, units of a
        residual of one step (times one unit of q), before w; likewise.
      rank: of the factors that are learned, the first columns of q, which residuals are multiplied
        by; 0 for means.
      unit: the steps in which `norms` count, a power of two.
    """
    zero = steady.hidden_zero(count.astype(jnp.int32))
    upper = steady.apart(zero, norms[0].astype(jnp.float32) * 2.0**local_ridge.LOW_BITS)
    squared = (upper + norms[1].astype(jnp.float32)) * unit**2
    length, entries = jnp.sqrt(squared), count
    if rank:
        own = jnp.sqrt(whole_descent.squared_norm(users.units[:, :rank].astype(jnp.int32)))
        length, entries = length * own, count * rank
    weight = steady.apart(zero, kappa / steady.apart(zero, jnp.sqrt(jnp.maximum(count, 1.0))))
    rounding = steady.apart(zero, jnp.sqrt(entries) / 2)
    room = _room(zero, clip, rounding)
    scale = jnp.minimum(weight, room / jnp.maximum(length, 1.0))
    return Sent(scale, scale / weight, squared)


def _room(zero: jax.Array, clip: Bound, rounding: jax.Array | float) -> jax.Array:
    """What a clip leaves beside what rounding may move: the product is rounded by itself."""
    return jnp.maximum(steady.apart(zero, clip * (1 - ROOM)) - rounding, 0.0)


def _of_item(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> jax.Array:
    """int32[d], or int32[1] for means: the sum of what the raters of one item send about it."""
    center, item_units, (grid,) = row
    (level, units), scale = columns
    found = present * local_ridge.residuals(
        local_ridge.rating_steps(grid, values) - center, level, units @ item_units, grid.bound
    )
    # A whole number below 2^24, then one product, and one rounding: no two programs differ.
    return jnp.sum(jnp.round(scale * found).astype(jnp.int32), axis=0, keepdims=True)


@functools.cache
def _of_item_by_factor(rank: int) -> Callable[..., jax.Array]:
    def sums(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> jax.Array:
        center, item_units, (grid,) = row
        (level, units), scale = columns
        found = present * local_ridge.residuals(
            local_ridge.rating_steps(grid, values) - center, level, units @ item_units, grid.bound
        )
        sent = jnp.round(scale[:, None] * (found[:, None] * units[:, :rank]))
        return jnp.sum(sent.astype(jnp.int32), axis=0)

    return sums


def item_sums(
    users: Users, sent: Sent, items: Items, grid: Grid, data: layout.Layout, *, rank: int
) -> UInt32[Array, "items d"]:
    """Σ of the messages, mod 2^32: uint32[items, rank], or uint32[items, 1] of residuals alone."""
    rows = items.center, items.units, (local_ridge.each(grid, data.num_items),)
    fn = _of_item_by_factor(rank) if rank else _of_item
    sums = layout.sum_by_item(data, fn, rows, (users, sent.scale), weighted=True)
    return jax.lax.bitcast_convert_type(sums, jnp.uint32)


def mean_scale(sent: Sent, count: Float[Array, " users"], clip: Bound) -> UInt32[Array, ""]:
    """Σ over users of ⌊Δ'·s/(κ·w)⌋, each at most Δ'; nothing of who has no ratings."""
    part = jnp.floor(jnp.clip(sent.fraction, 0, 1) * clip).astype(jnp.int32)
    return jax.lax.bitcast_convert_type(jnp.sum(jnp.where(count > 0, part, 0)), jnp.uint32)


def gram_room(clip: Bound, rank: int) -> Bound:
    """The longest p of whole numbers for which p·pᵀ may be sent: float32, whole."""
    zero = steady.hidden_zero(clip.astype(jnp.int32))
    return jnp.floor(_room(zero, jnp.sqrt(clip), rank**0.5 / 2))


def gram(
    users: Users,
    sent: Sent,
    count: Float[Array, " users"],
    clip: Bound,
    kappa: Bound,
    *,
    rank: int,
) -> UInt32[Array, "d d"]:
    """Σ over users of p·pᵀ; kappa: what a squared unit of q becomes, before the clip."""
    learned = users.units[:, :rank]
    own = jnp.sqrt(whole_descent.squared_norm(learned.astype(jnp.int32)))
    zero = steady.hidden_zero(count.astype(jnp.int32))
    room = _room(zero, jnp.sqrt(clip), rank**0.5 / 2)
    root = jnp.minimum(jnp.sqrt(kappa * sent.fraction), room / jnp.maximum(own, 1.0))
    parts = jnp.round(root[:, None] * learned).astype(jnp.int32)
    parts = jnp.where((count > 0)[:, None], parts, 0)
    total = jnp.einsum(
        "ua,ub->ab", parts, parts, precision="highest", preferred_element_type=jnp.int32
    )
    return jax.lax.bitcast_convert_type(total, jnp.uint32)
