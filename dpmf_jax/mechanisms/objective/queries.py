"""What the mechanisms of the perturbed objective ask of the ratings: sums per item."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from dpmf_jax import layout
from dpmf_jax.kernels.descent import mean_squared_error
from dpmf_jax.mechanisms.objective.config import Params
from dpmf_jax.mechanisms.objective.perturbed import Passes, Quadratic
from dpmf_jax.mechanisms.objective.state import Public
from dpmf_jax.protocol import Info, State


def _features(
    bounds: Any, center: jax.Array, users: jax.Array, values: jax.Array, present: jax.Array
) -> jax.Array:
    """(u, r - center with r kept in the declared range, r - center) of each rater of one item."""
    low, high = bounds
    centred = values - center
    kept = jnp.clip(values, low, high) - center
    return jnp.concatenate([users, present[:, None] * jnp.stack([kept, centred], axis=1)], axis=1)


def _sums(
    bounds: Any, users: jax.Array, public: Public, data: layout.Layout
) -> tuple[Quadratic, jax.Array]:
    """(Σuuᵀ and Σ(r - center)u of every item, mean squared error at the public item factors)."""
    items, rank = public.item_factors, users.shape[1]
    by_item = jnp.broadcast_to(public.center, (data.num_items,))
    outer = layout.outer_by_item(data, Partial(_features, bounds), by_item, users)
    # Σ(r - center - u·v)², of the same products
    away = jnp.concatenate(
        [-items, jnp.zeros((data.num_items, 1)), jnp.ones((data.num_items, 1))], axis=1
    )
    squared = jnp.einsum("ja,jab,jb->", away, outer, away, precision="highest")
    loss = jnp.maximum(squared, 0) / data.num_ratings
    return Quadratic(outer[:, :rank, :rank], outer[:, rank, :rank]), loss


def _share_too_long(users: jax.Array) -> jax.Array:
    """The share of rows that are longer than 1, which no price allows for."""
    return jnp.mean(jnp.sum(users**2, axis=1) > 1 + 1e-5)


def minimiser(
    params: Params, state: State, data: layout.Layout, coins: None
) -> tuple[Quadratic, Info]:
    del coins
    users = (
        state.private.user_factors
        if state.public.user_factors is None
        else state.public.user_factors
    )
    sums, loss = _sums((params.low, params.high), users, state.public, data)
    return sums, Info(loss, _share_too_long(users))


def _affine_step(
    rate: jax.Array, carry: Any, center: jax.Array, user: jax.Array, value: Any, present: Any
) -> Any:
    """v ← v + 2γ(r - center - u·v)u at one rating, as it acts on v ↦ Pv + c, for all v at once."""
    del present
    matrix, vector = carry
    pull = 2 * rate * user
    matrix = matrix - pull[:, None] * jnp.sum(user[:, None] * matrix, axis=0)
    return matrix, vector + pull * (value - center - jnp.sum(user * vector))


def passes(params: Params, state: State, data: layout.Layout, coins: None) -> tuple[Passes, Info]:
    """Of every item the affine map that one pass over its raters is, and where V starts."""
    del coins
    users, public = state.private.user_factors, state.public
    start = public.item_factors
    identity = jnp.broadcast_to(jnp.eye(params.rank), (data.num_items, params.rank, params.rank))
    by_item = jnp.broadcast_to(public.center, start.shape[:1])
    step = Partial(_affine_step, params.learning_rate)
    matrix, vector = layout.fold_by_item(
        data, step, (identity, jnp.zeros_like(start)), by_item, users
    )
    shrink = 1 - 2 * params.learning_rate * params.regularization
    info = Info(mean_squared_error(users, start, public.center, data), _share_too_long(users))
    return Passes(shrink * matrix, shrink * vector, start), info
