"""Item factors from Σ(r - c)u of every item, noisy and in whole numbers, for public users.

With U public and who rated what public too, objective (6) of paper 003 meets the ratings in
b_j = Σ(r - c)u alone. Its minimiser (A_j + Mμ I)⁻¹(b_j - η_j/2), A_j = Σuuᵀ, is a function of a
noisy b_j, and of what everybody knows.

b is made of whole numbers: u in units of 1/2048, of norm 2048 at most, r - c in steps (see
`kernels.whole_descent`, of whose gradients it is one with V = 0). A changed rating moves r - c by D
steps at most, so b by 2048·D/2^k + √d units in L2 and √d·2048·D/2^k + d in L1: sums are halved k
times, and each of d numbers is rounded. Noise is the rounded normal, or the discrete Laplace law,
which is exact: no share of δ is spent on it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

import accounting
from accounting.additive_noise import loss_of_rounds, scale_for
from accounting.guarantee import Guarantee
from accounting.loss import Gaussian
from dpmf_jax import layout
from dpmf_jax.devices import spread
from dpmf_jax.errors import PrivacyError
from dpmf_jax.kernels import whole_descent
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims, grid
from dpmf_jax.mechanisms.objective import perturbed
from dpmf_jax.mechanisms.objective.config import Config
from dpmf_jax.mechanisms.objective.guarantee import closed_form_guarantee
from dpmf_jax.noise import ring, whole
from dpmf_jax.noise.laws import Noise
from dpmf_jax.protocol import Info, Mechanism, Release, State

DIGIT = 64.0  # of a unit of a user factor, which is one high digit and one low
LEAST_SHIFT = 7  # sums of half a million ratings of an item do not wrap around


class Public(NamedTuple):
    """What was released, and what is public besides.

    user_factors: float32[users, rank], whole in units of 1/2048.
    item_factors: float32[items, rank].
    center: float32[], subtracted from ratings.
    matrix: float32[items, rank, rank], Σuuᵀ: a function of U and of who rated what.
    """

    user_factors: jax.Array
    item_factors: jax.Array
    center: jax.Array
    matrix: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """What the parts share: real settings as leaves, the rest static; floats are for the host.

    grid: of ratings, users and sums.
    ridge: Mμ.
    sensitivity: in units, L2.
    noise_sensitivity: in units, in the norm of the noise.
    noise_scale: σ, or b of the discrete Laplace law, in units.
    """

    grid: whole_descent.Grid
    ridge: jax.Array
    sensitivity: float | jax.Array
    noise_sensitivity: float | jax.Array
    noise_scale: float | jax.Array
    range_width: float | jax.Array
    delta: float | jax.Array
    gaussian: bool = dataclasses.field(metadata={"static": True})


def is_whole(config: Config) -> bool:
    """Whether this law of η is there in whole numbers: l2_laplace is at rank 1, as laplace."""
    return config.noise != "l2_laplace" or config.rank == 1


def mechanism(config: Config, init: Any) -> Mechanism:
    """See `mechanisms.public_users`; init: of its users and centre."""
    params, law = _with_noise(config)
    return Mechanism(
        init=Partial(_init, params, init),
        coins=Partial(claims.no_coins),
        query=Partial(_query, params),
        noise=law,
        update=Partial(_update, params),
        release=Partial(_release),
        guarantee=Partial(_guarantee, params),
    )


def _with_noise(config: Config) -> tuple[Params, Noise]:
    """A residual has 256 steps at most; k is the smallest for which the noise has a table.

    Raises: PrivacyError for an ε so small that no k does.
    """
    low, high = config.rating_range
    farthest = max(abs(low - config.center), abs(high - config.center))
    step = 2.0 ** math.ceil(math.log2(farthest / whole_descent.MOST_STEPS))
    half = math.ceil(claims.width(config.rating_range) / (2 * step))
    normal = config.noise == "gaussian"
    law, most = ("gaussian", whole.LARGEST * (1 - 2.0**-20)) if normal else ("laplace", 2.0**28)
    for shift in range(LEAST_SHIFT, whole_descent.MOST_SHIFT + 1):
        l2, l1 = moved(half, shift, config.rank)
        delta = config.delta if normal else None
        scale = scale_for(law, config.epsilon, delta, l2 if normal else l1, 1)
        if scale <= most:
            break
    else:
        raise PrivacyError(
            f"epsilon {config.epsilon:g} is too small",
            where="noise is drawn in whole numbers, and no table holds so wide a law",
            fix="set a larger epsilon",
        )
    f32 = jnp.float32
    scale = float(claims.float32_up(max(scale, 2.0**-4)))
    params = Params(
        grid=whole_descent.Grid(
            middle=f32((low + high) / 2),
            half=f32(half),
            step=f32(step),
            bound=f32(whole_descent.MOST_STEPS),
            clip_norm=f32(1.0),
            shift=jnp.int32(shift),
        ),
        ridge=f32(config.ridge),
        sensitivity=l2,
        noise_sensitivity=l2 if normal else l1,
        noise_scale=scale,
        range_width=claims.width(config.rating_range),
        delta=config.delta,
        gaussian=normal,
    )
    return params, whole.rounded_normal(scale) if normal else ring.discrete_laplace(scale)


def moved(half: int, shift: int, rank: int) -> tuple[float, float]:
    """How far a changed rating moves the halved sums, in units: (L2, L1)."""
    row = whole_descent.RADIUS * 2 * half / 2**shift
    return row + math.sqrt(rank), math.sqrt(rank) * row + rank


def _users_alone(row: Any, users: jax.Array, values: jax.Array, present: jax.Array) -> jax.Array:
    del row, values, present
    return users


def _squares(data: Layout, units: jax.Array) -> jax.Array:
    """float32[items, rank, rank]: Σuuᵀ, the same whatever the order; units: of users, 1/2048.

    Units are 64·h + l, with h and l of 32 at most, whose products add up exactly.
    """
    high = jnp.round(units / DIGIT)
    digits = jnp.concatenate([high, units - DIGIT * high], axis=1)
    upper, lower = layout.exact_outer_by_item(data, _users_alone, jnp.zeros(data.num_items), digits)
    sums = upper.astype(jnp.float32) * 2.0**12 + lower.astype(jnp.float32)
    rank = units.shape[1]
    mixed = sums[:, :rank, rank:]
    whole = DIGIT**2 * sums[:, :rank, :rank] + DIGIT * (mixed + jnp.swapaxes(mixed, 1, 2))
    return (whole + sums[:, rank:, rank:]) / whole_descent.RADIUS**2


def _init(params: Params, init: Any, key: jax.Array, data: Layout, previous: Any) -> State:
    state = init(key, data, previous)
    users, items, center = state.public
    rows = whole_descent.on_grid(users, params.grid.clip_norm)
    users = rows.units / whole_descent.RADIUS
    matrix = _squares(data, rows.units)
    return state._replace(public=Public(users, items, center, matrix))


def _query(params: Params, state: State, data: Layout, coins: None) -> tuple[jax.Array, Info]:
    """-b of every item in units, uint32[items, rank], mod 2^32; the loss is that of V = 0."""
    del coins
    users, items, center, _ = state.public
    nothing = jnp.zeros_like(items)
    return whole_descent.gradients(users, nothing, center, params.grid, data, of="items")


def _update(params: Params, state: State, response: jax.Array, data: Layout) -> State:
    items = spread.by_each(data.num_devices, _minimiser, params, state.public.matrix, response)
    return state._replace(public=state.public._replace(item_factors=items))


def _minimiser(params: Params, matrix: jax.Array, response: jax.Array) -> jax.Array:
    """V, post-processing of the response: float32[items, rank]."""
    vector = -whole_descent.unit(params.grid) * grid.in_units(response)
    return perturbed.minimise(perturbed.Quadratic(matrix, vector), params.ridge)


def _release(state: State) -> Release:
    users, items, center, _ = state.public
    return Release(users, items, center)


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    loss = loss_of_rounds(
        "gaussian" if params.gaussian else "laplace",
        float(params.noise_scale),
        float(params.noise_sensitivity),
        1,
        user_rho=(0.0, 1.0),
    )
    if isinstance(loss, Gaussian):
        loss = dataclasses.replace(loss, distance=grid.STEP_DISTANCE)
    one = closed_form_guarantee(
        loss,
        range_width=float(params.range_width),
        sensitivity=float(params.sensitivity),
        delta=float(params.delta),
    )
    return accounting.compose(*[one] * num_steps)
