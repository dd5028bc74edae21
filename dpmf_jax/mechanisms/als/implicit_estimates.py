"""What is made of the noisy sums of `als-implicit`: item factors, and what users answer to.

All of it is post-processing of responses, in operations of which `kernels.steady` keeps the bits.

A user in the average draws m̄ items, each with a chance in proportion to its noisy count. What such
a user would answer, and how far answers would scatter if all users were alike, are public numbers:
messages are deviations from the one, and their clip is a multiple of the other.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpmf_jax.kernels import whole_descent
from dpmf_jax.kernels.local_ridge import ITEM_RADIUS

LENGTH = 512.0  # units of a deviation that is as long as the clip
USER_RADIUS = 2.0**14  # units that a row of user factors is long, at most
LEAST = 0.2  # of the scatter of like users, what users vary at least in every direction
NEAR = 0.1  # variance beside which the noise of an item counts, where moments are taken
TINY = 1e-30


class Asked(NamedTuple):
    """What users answer to, all public.

    units: float32[items, d], whole, x: item factors in their unit; rows no longer than 512.
    variance: float32[items, d], whole, in units².
    unit: float32[], what a unit is in factors.
    matrix: float32[d, d], α₀(Σ x·xᵀ + diag(Σ variance)) + λI over all items.
    mean: float32[d], whole, what the average user answers, in units of users.
    per_unit: float32[], units of users that are a unit of x: ⟨user, item⟩ is q·x over this.
    """

    units: jax.Array
    variance: jax.Array
    unit: jax.Array
    matrix: jax.Array
    mean: jax.Array
    per_unit: jax.Array


class Weights(NamedTuple):
    """Public numbers, float32[].

    num_users: n. unseen: α₀. The others are as of the settings.
    """

    num_users: jax.Array
    unseen: jax.Array
    regularization: jax.Array
    clip: jax.Array
    gram_clip: jax.Array
    sampling: jax.Array
    evenness: jax.Array


def _unseen(count: Float[Array, " items"], weights: Weights) -> jax.Array:
    """α₀·Σ_u w_u, for users who all have as many items."""
    return weights.unseen * weights.num_users**2 / jnp.sum(count)


def _symmetric(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues, and eigenvectors in columns, of the symmetric part."""
    return jnp.linalg.eigh(jnp.nan_to_num((matrix + matrix.T) / 2))


def _average(
    factors: jax.Array, variance: jax.Array, count: jax.Array, weights: Weights
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(matrix of `Asked`, answer of the average user, covariance of like users' answers)."""
    share = count / jnp.sum(count)
    number = (jnp.sum(count) / weights.num_users) ** 2
    eye = jnp.eye(factors.shape[1], dtype=jnp.float32)
    of_all = factors.T @ factors + eye * jnp.sum(variance, axis=0)
    ridge = weights.regularization * jnp.sum(eye * of_all) / len(eye)
    matrix = weights.unseen * (of_all + eye * ridge)
    mean = jnp.sum(share[:, None] * factors, axis=0)
    second = (factors * share[:, None]).T @ factors
    spread = jnp.sum(share[:, None] * variance, axis=0)
    strength, axes = _symmetric(matrix + number * (second + eye * spread))
    inverse = (axes / jnp.maximum(strength, TINY)) @ axes.T
    scatter = number * (second - mean[:, None] * mean[None, :])
    return matrix, number * (inverse @ mean[:, None])[:, 0], inverse @ scatter @ inverse


def balanced(
    factors: jax.Array, variance: jax.Array, count: jax.Array, weights: Weights
) -> tuple[jax.Array, jax.Array]:
    """The same model along the axes in which like users' answers scatter, and these made more even.

    So a clip in one norm leaves room for tastes beside the strongest one.
    """
    largest = jnp.maximum(jnp.max(jnp.abs(factors)), TINY)
    factors, variance = factors / largest, variance / largest**2
    _, _, scatter = _average(factors, variance, count, weights)
    strength, axes = _symmetric(scatter)
    strength = jnp.maximum(strength / jnp.maximum(jnp.max(strength), TINY), 1e-6)
    turn = axes * strength ** (weights.evenness / 2)
    return factors @ turn, variance @ turn**2


def on_grid(
    factors: jax.Array, variance: jax.Array
) -> tuple[Float[Array, "items d"], Float[Array, "items d"], Float[Array, ""]]:
    """(units, variance, unit) of `Asked`; the longest row has 512 units. Any numbers will do."""
    factors = jnp.nan_to_num(factors, nan=0.0, posinf=0.0, neginf=0.0)
    longest = jnp.max(jnp.sqrt(jnp.sum(factors**2, axis=1)))
    unit = jnp.maximum(longest, 2.0**-40) / (ITEM_RADIUS - 2 - factors.shape[1] ** 0.5 / 2)
    units = whole_descent.on_grid(factors, unit * ITEM_RADIUS, ITEM_RADIUS).units
    squares = jnp.clip(jnp.round(variance / unit**2), 0, ITEM_RADIUS**2)
    return units, jnp.nan_to_num(squares), unit


def questions(
    units: jax.Array, variance: jax.Array, unit: jax.Array, count: jax.Array, weights: Weights
) -> Asked:
    """What follows from item factors on the grid, and from positive counts."""
    matrix, mean, scatter = _average(units, variance, count, weights)
    length = jnp.sqrt(jnp.maximum(jnp.sum(jnp.eye(len(scatter)) * scatter), TINY))
    per_unit = LENGTH / (weights.clip * length)
    mean = whole_descent.on_grid(mean[None], USER_RADIUS / per_unit, USER_RADIUS).units[0]
    return Asked(units, variance, unit, matrix, mean, per_unit)


def first_factors(
    random: Float[Array, "items d"], count: Float[Array, " items"], weights: Weights
) -> Float[Array, "items d"]:
    """Where the passes start: popularity, and random columns of more weight where it is high."""
    popular = count / (count + _unseen(count, weights))
    columns = random * count[:, None]
    columns = columns.at[:, 0].set(popular)
    return columns / jnp.sqrt(jnp.maximum(jnp.sum(columns**2, axis=0), TINY))


def factors(
    asked: Asked,
    sums: Float[Array, "items d"],
    gram: Float[Array, "d d"],
    count: Float[Array, " items"],
    deviation: Float[Array, ""],
    weights: Weights,
) -> tuple[Float[Array, "items d"], Float[Array, "items d"]]:
    """(item factors, their variances) from what users sent.

    An item's right side is b_i = Σ w·u = n_i·ū + D_i, with n_i its count, ū the average user and
    D_i the sum of deviations. Its Gram matrix is (n_i + α₀Σw)·M, with M = ū·ūᵀ + E[δ·δᵀ] the mean
    over users of u·uᵀ. Along an eigenvector of M, v_i is one number of known variance. It is
    weighed against what popularity says, n_i·ū alone; how far tastes take items from that is
    estimated by moments, and is nothing where only noise is.

    Args:
      asked: what users answered to.
      sums: D, noisy. gram: Σ over users of δ·δᵀ, noisy. Both in units of users.
      count: positive. deviation: of the noise in a sum.
    """
    users, rank = weights.num_users, len(gram)
    strength, axes = _symmetric(gram / users)
    least = LEAST * (LENGTH / weights.clip) ** 2 / rank
    apart = (axes * jnp.maximum(strength, least)) @ axes.T
    strength, axes = _symmetric(apart + asked.mean[:, None] * asked.mean[None, :])
    strength = jnp.maximum(strength, least)
    varies = jnp.sum(axes * (apart @ axes), axis=0)
    whole = count + _unseen(count, weights)
    seen = strength * whole[:, None]
    popular = count[:, None] * (asked.mean[None, :] @ axes) / seen
    off = (sums @ axes) / seen
    from_users = weights.sampling * count[:, None] * varies * users / jnp.sum(count)
    variance = (deviation**2 + from_users) / seen**2
    # What tastes add to v is in proportion to this.
    share = ((count / whole) ** 2)[:, None]
    near = NEAR * jnp.mean(share) * varies / strength**2
    weight = share / (variance + near) ** 2
    moved = jnp.sum(weight * (off**2 - variance), axis=0) / jnp.sum(weight * share, axis=0)
    prior = jnp.maximum(moved, 0.0) * share
    kept = prior / jnp.maximum(prior + variance, TINY)
    return (popular + kept * off) @ axes.T, ((1 - kept) * prior) @ (axes**2).T
