"""The regularised factorisation V ≈ center + Θ Xᵀ and its clipped gradients (paper 001).

The mechanisms that descend on it share them.

    ∇Θ_u = -Σ_i e_ui x_i / max(1, ‖x_i‖/C)        ∇X_i = -Σ_u e_ui θ_u / max(1, ‖θ_u‖/C)
    paper 001, eqs. (4), (5), Algorithm 1

with e_ui = v_ui - c_i - ⟨θ_u, x_i⟩ over the observed ratings, Θ the user factors and X the item
factors. The λ terms are not here: they need no ratings. Along a fixed transcript one rating moves
row u of ∇Θ and row i of ∇X, each by at most |Δe|·C, and nothing else.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpmf_jax import layout
from dpmf_jax.protocol import Info

Center = Float[Array, ""] | Float[Array, "items"]  # what is subtracted, in rating units


def unit_rows(key: jax.Array, num_rows: int, rank: int) -> Float[Array, "rows rank"]:
    """Rows that are uniform on the sphere: the paper's initial factors. Spends `key`."""
    rows = jax.random.normal(key, (num_rows, rank), jnp.float32)
    return rows / jnp.linalg.norm(rows, axis=1, keepdims=True)


def bias_rows(
    key: jax.Array, num_users: int, num_items: int, rank: int
) -> tuple[Float[Array, "users rank"], Float[Array, "items rank"]]:
    """Initial factors from which a descent first finds the biases. Spends `key`.

    Column 0 is 1/√2 for every item and 0 for every user, so its user factor grows into a user bias.
    Column 1 is the reverse and grows into an item bias. The other columns are random and small. No
    row is longer than 1.
    """
    bias = jnp.sqrt(0.5).astype(jnp.float32)
    keys = jax.random.split(key)

    def rows(key: jax.Array, num_rows: int, constant: int) -> jax.Array:
        return (
            (0.1 * unit_rows(key, num_rows, rank))
            .at[:, :2]
            .set(0.0)
            .at[:, constant : constant + 1]
            .set(bias)
        )

    return rows(keys[0], num_users, 1), rows(keys[1], num_items, 0)


def shared_unit_rows(key: jax.Array, num_rows: int, rank: int) -> Float[Array, "rows rank"]:
    """Unit rows, random but for the first coordinate. Spends `key`.

    All rows share the same first coordinate, 1/√2.
    """
    rest = unit_rows(key, num_rows, rank - 1) if rank > 1 else jnp.zeros((num_rows, 0), jnp.float32)
    rows = jnp.concatenate([jnp.ones((num_rows, 1), jnp.float32), rest], axis=1)
    return rows / jnp.linalg.norm(rows, axis=1, keepdims=True)


def clip_scale(factors: Float[Array, "rows rank"], clip_norm: jax.Array) -> Float[Array, " rows"]:
    """1 / max(1, ‖row‖/C): multiplied onto a row it bounds its norm by C."""
    return jax.lax.rsqrt(jnp.maximum(1.0, jnp.sum(factors**2, axis=1) / clip_norm**2))


def _row_gradient(
    row: Any, columns: Any, values: jax.Array, present: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """For one row: (-Σ e s x, Σ e²), e clipped in the first sum where a residual clip is given."""
    (factor, row_center, residual_clip), (factors, column_center, scale) = row, columns
    residual = values - (factors @ factor)
    if row_center is not None:
        residual = residual - row_center
    if column_center is not None:
        residual = residual - column_center
    residual = present * residual
    bounded = (
        residual if residual_clip is None else jnp.clip(residual, -residual_clip, residual_clip)
    )
    return -((bounded * scale) @ factors), residual @ residual


def _per_row(value: jax.Array | None, factors: jax.Array) -> jax.Array | None:
    return None if value is None else jnp.broadcast_to(value, factors.shape[:1])


def user_gradient(
    users: Float[Array, "users rank"],
    items: Float[Array, "items rank"],
    center: Center,
    clip_norm: Float[Array, ""],
    residual_clip: Float[Array, ""] | None,
    data: layout.Layout,
) -> tuple[Float[Array, "users rank"], Info]:
    """∇Θ without its λ term, and the Info of the same pass.

    Args:
      users, items, center: of the model.
      clip_norm: C.
      residual_clip: c, or None for residuals as they are. Info's loss is never clipped.
      data: the ratings.
    """
    rank, scale = users.shape[1], clip_scale(items, clip_norm)
    wide_users, wide_items = layout.pad_rank(users), layout.pad_rank(items)
    row_center, column_center = (
        (_per_row(center, users), None) if center.ndim == 0 else (None, center)
    )
    if (
        column_center is not None and wide_items.shape[1] > rank
    ):  # a factor more is free there, a gather more is not
        wide_users, wide_items = (
            wide_users.at[:, rank].set(1.0),
            wide_items.at[:, rank].set(column_center),
        )
        column_center = None
    rows, columns = (
        (wide_users, row_center, _per_row(residual_clip, users)),
        (wide_items, column_center, scale),
    )
    gradient, squared = layout.sum_by_user(data, _row_gradient, rows, columns)
    return gradient[:, :rank], Info(jnp.sum(squared) / data.num_ratings, jnp.mean(scale < 1))


def item_gradient(
    users: Float[Array, "users rank"],
    items: Float[Array, "items rank"],
    center: Center,
    clip_norm: Float[Array, ""],
    residual_clip: Float[Array, ""] | None,
    data: layout.Layout,
) -> Float[Array, "items rank"]:
    """∇X without its λ term; arguments as in `user_gradient`."""
    rows = (layout.pad_rank(items), _per_row(center, items), _per_row(residual_clip, items))
    columns = (layout.pad_rank(users), None, clip_scale(users, clip_norm))
    gradient, _ = layout.sum_by_item(data, _row_gradient, rows, columns)
    return gradient[:, : items.shape[1]]


def mean_squared_error(
    users: Float[Array, "users rank"],
    items: Float[Array, "items rank"],
    center: Center,
    data: layout.Layout,
) -> Float[Array, ""]:
    """Mean of e² over the ratings; unpriced. One pass, as `user_gradient` makes it."""
    return user_gradient(users, items, center, jnp.float32(jnp.inf), None, data)[1].loss


def _row_total(
    row: Any, columns: Any, values: jax.Array, present: jax.Array
) -> tuple[jax.Array, jax.Array]:
    del row, columns
    return values @ present, jnp.sum(present)


def item_means(data: layout.Layout) -> tuple[Float[Array, " items"], Float[Array, ""]]:
    """Mean rating per item and overall; unpriced.

    Unrated items get the overall mean.
    """
    total, count = layout.sum_by_item(data, _row_total, (), ())
    overall = jnp.sum(total) / jnp.maximum(jnp.sum(count), 1)
    return jnp.where(count > 0, total / jnp.maximum(count, 1), overall), overall
