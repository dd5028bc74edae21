"""Item factors from Σuuᵀ and Σ(r - c)u of every item, both noisy and in whole numbers.

u is public, in units of 2^-g, of norm 2^g at most, g ≤ 8; r - c is clipped to the bound, which has
E ≤ 256 steps. So a rating adds uuᵀ, of Frobenius norm 2^2g at most, and (r - c)u, of norm E·2^g: in
all √(2^4g + E²·2^2g) units. One law of noise serves both, and E is chosen for the share of the
price that each takes: σ_b/σ_A = c·2^g/E in their own units. Sums are halved k times, each of d² + d
numbers rounded, so they move by that over 2^k and √(d² + d) more.

Products of whole numbers are summed exactly (`layout.exact_outer_by_item`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

import accounting
from accounting import gaussian
from accounting.guarantee import Guarantee
from accounting.loss import Gaussian
from dpmf_jax import layout
from dpmf_jax.devices import spread
from dpmf_jax.errors import PrivacyError
from dpmf_jax.kernels import whole_descent
from dpmf_jax.kernels.positive_systems import raise_eigenvalues
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims, grid
from dpmf_jax.mechanisms.objective import perturbed
from dpmf_jax.mechanisms.objective.config import Config
from dpmf_jax.mechanisms.objective.guarantee import statistics_guarantee
from dpmf_jax.mechanisms.objective.perturbed import Quadratic
from dpmf_jax.noise import whole
from dpmf_jax.protocol import Info, Mechanism, Release, State

MOST = 256  # E, and units in a user's norm
LEAST_STEPS, LEAST_UNITS = 16, 32
LEAST_SHIFT = 4  # sums of half a million ratings of an item do not wrap around


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """What the parts share: real settings as leaves, the rest static; floats are for the host.

    user_units: 2^g.
    steps: E. bound: c, in rating units.
    shift: int32[], k.
    ridge: Mμ.
    noise_scale, sensitivity: σ and Δ, in units of the halved sums.
    """

    user_units: jax.Array
    steps: jax.Array
    bound: jax.Array
    low: jax.Array
    high: jax.Array
    shift: jax.Array
    ridge: jax.Array
    noise_scale: jax.Array
    sensitivity: float | jax.Array
    delta: float | jax.Array
    rating_bound: float | jax.Array
    rank: int = dataclasses.field(metadata={"static": True})


def mechanism(config: Config, init: Any, bound: float) -> Mechanism:
    """See `mechanisms.statistics`; init: of its users and centre. bound: c."""
    params = _params(config, bound)
    return Mechanism(
        init=Partial(_init, params, init),
        coins=Partial(claims.no_coins),
        query=Partial(_query, params),
        noise=whole.rounded_normal(float(params.noise_scale)),
        update=Partial(_update, params),
        release=Partial(_release),
        guarantee=Partial(_guarantee, params),
    )


def _params(config: Config, bound: float) -> Params:
    """Raises: ValueError for a share that no grid has; PrivacyError for an ε that no table has."""
    ratio = math.sqrt((1 - config.matrix_share) / config.matrix_share)
    units = MOST // 2 ** max(0, math.ceil(math.log2(ratio)))
    steps = round(units * ratio)
    if units < LEAST_UNITS or steps < LEAST_STEPS:
        raise ValueError(
            f"matrix_share must be from 0.016 to 0.996 in whole numbers; got {config.matrix_share}"
        )
    z = gaussian.solve_noise_multiplier(config.epsilon, config.delta, 1)
    for shift in range(LEAST_SHIFT, whole_descent.MOST_SHIFT + 1):
        sensitivity = moved(units, steps, shift, config.rank)
        if z * sensitivity * (1 + 2.0**-20) <= whole.LARGEST:
            break
    else:
        raise PrivacyError(
            f"epsilon {config.epsilon:g} is too small",
            where="noise is drawn in whole numbers, and no table holds so wide a law",
            fix="set a larger epsilon or delta",
        )
    low, high = config.rating_range
    f32 = jnp.float32
    return Params(
        user_units=f32(units),
        steps=f32(steps),
        bound=f32(bound),
        low=f32(low),
        high=f32(high),
        shift=jnp.int32(shift),
        ridge=f32(config.ridge),
        noise_scale=claims.float32_up(z * sensitivity),
        sensitivity=sensitivity,
        delta=config.delta,
        rating_bound=bound,
        rank=config.rank,
    )


def moved(units: int, steps: int, shift: int, rank: int) -> float:
    """How far a rating more or less moves the halved sums, in units: L2."""
    return math.hypot(units**2, steps * units) / 2**shift + math.sqrt(rank**2 + rank)


def _init(params: Params, init: Any, key: jax.Array, data: Layout, previous: Any) -> State:
    state = init(key, data, previous)
    return state._replace(
        public=state.public._replace(
            user_factors=_on_grid(params, state.public.user_factors) / params.user_units
        )
    )


def _on_grid(params: Params, users: jax.Array) -> jax.Array:
    """Rows in whole units, of norm 2^g at most: float32[users, rank]."""
    return whole_descent.on_grid(users, jnp.float32(1.0), params.user_units).units


def _features(
    params: Params, center: jax.Array, users: jax.Array, values: jax.Array, present: jax.Array
) -> jax.Array:
    """(u, r - center in steps) of each rater of one item, whole; not a number is the centre."""
    centred = jnp.clip(values, params.low, params.high) - center
    steps = jnp.round(centred * (params.steps / params.bound))
    steps = jnp.clip(jnp.nan_to_num(steps, nan=0.0), -params.steps, params.steps)
    return jnp.concatenate([users, (present * steps)[:, None]], axis=1)


def _query(params: Params, state: State, data: Layout, coins: None) -> tuple[Quadratic, Info]:
    """Σuuᵀ and Σ(r - c)u of every item, halved: uint32, mod 2^32; the loss of clipped ratings."""
    del coins
    users, items, center = state.public
    by_item = jnp.broadcast_to(center, (data.num_items,))
    upper, lower = layout.exact_outer_by_item(
        data, Partial(_features, params), by_item, _on_grid(params, users)
    )
    sums = whole_descent.halved(params.shift, upper, lower)
    rank = params.rank
    # Σ(r - center - u·v)², of the same products
    unit = jnp.broadcast_to(params.bound / params.steps, (len(items), 1))
    away = jnp.concatenate([-items / params.user_units, unit], axis=1)
    products = upper.astype(jnp.float32) * 2.0**12 + lower.astype(jnp.float32)
    squared = jnp.einsum("ja,jab,jb->", away, products, away, precision="highest")
    loss = jnp.maximum(squared, 0) / data.num_ratings
    return Quadratic(sums[:, :rank, :rank], sums[:, rank, :rank]), Info(loss, jnp.float32(0))


def _update(params: Params, state: State, response: Quadratic, data: Layout) -> State:
    items = spread.by_each(data.num_devices, _minimiser, params, response)
    return state._replace(public=state.public._replace(item_factors=items))


def _minimiser(params: Params, response: Quadratic) -> jax.Array:
    """V, post-processing of the response: float32[items, rank].

    The noisy sums are made symmetric; no eigenvalue stays below what the noise alone makes.
    """
    halvings = (1 << params.shift).astype(jnp.float32)
    of_matrix = halvings / params.user_units**2
    of_vector = halvings * params.bound / (params.steps * params.user_units)
    matrix, vector = (grid.in_units(leaf) for leaf in response)
    matrix = of_matrix * (matrix + jnp.swapaxes(matrix, -1, -2)) / 2
    floor = of_matrix * params.noise_scale * math.sqrt(2 * params.rank)
    sums = Quadratic(raise_eigenvalues(matrix, floor), of_vector * vector)
    return perturbed.minimise(sums, params.ridge)


def _release(state: State) -> Release:
    return Release(*state.public)


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    sensitivity = float(params.sensitivity)
    loss = Gaussian(
        noise_multiplier=float(params.noise_scale) / sensitivity,
        num_steps=1,
        user_rho=(0.0, 1.0),
        distance=grid.STEP_DISTANCE,
    )
    one = statistics_guarantee(
        loss, rating_bound=float(params.rating_bound), delta=float(params.delta)
    )
    one = dataclasses.replace(one, sensitivity=sensitivity)
    return accounting.compose(*[one] * num_steps)
