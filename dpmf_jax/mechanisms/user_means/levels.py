"""Noisy user levels in one step: how far each user's ratings lie from a public centre.

The statistics are Σ(r - m) of every user, m the middle of the declared range and r clipped to it,
each in whole units of a public grid (`grid`). One changed rating moves one of them by at most the
width of the range, so Δ is the number of units in it. Who rated what is public, and so are the
counts. All that follows is post-processing: a user's noisy mean is shrunk by the user's public
count. The model predicts a public centre c and the user's level, for every item alike.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

import accounting
from accounting import guards, relation, words
from accounting.guarantee import Guarantee
from accounting.loss import Gaussian
from dpmf_jax import layout
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims, grid
from dpmf_jax.noise import whole
from dpmf_jax.protocol import Info, Mechanism, Release, State

# Public guesses, in widths of the declared range: how far user means lie apart, and a user's
# ratings from their mean.
USER_SPREAD, RATING_SPREAD = 1 / 8, 1 / 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; host numbers, all public.

    rating_range: the declared smallest and largest rating; ratings are clipped to it where they
      enter a sum.
    noise_multiplier: z = σ/Δ of a step.
    center: c, a public constant.
    delta: of the guarantee.

    Raises: ValueError for a number out of range.
    """

    rating_range: tuple[float, float]
    noise_multiplier: float
    center: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        claims.check(self.rating_range, None, "rating value", self.delta)
        guards.positive("noise_multiplier", self.noise_multiplier)
        guards.finite("center", self.center)


class Public(NamedTuple):
    """A function of past responses, the public counts and constants.

    user_factors: float32[users, 1], the levels.
    item_factors: float32[items, 1], ones.
    center: float32[].
    total: float32[users], the responses so far in units of the grid, added up.
    count: float32[users], ratings of each user.
    """

    user_factors: jax.Array
    item_factors: jax.Array
    center: jax.Array
    total: jax.Array
    count: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """noise_scale, sensitivity: σ and Δ, in units of the grid."""

    noise_scale: jax.Array
    sensitivity: jax.Array
    grid: grid.Values
    center: jax.Array
    delta: float | jax.Array  # read on the host alone, so a float


def mechanism(config: Config) -> Mechanism:
    """Noisy user levels in one step; further steps ask again, and the mean of all answers is used.

    Releases the levels, the centre, and item factors that are all 1.

    Guarantee: zCDP with ρ = J/(2z²) for one rating's value, proved: a rating is bounded on the
      grid, sums are exact, and the noise is the rounded normal (`noise.whole`). A user's m ratings
      lie in one sum and pay m²·ρ.

    Raises: PrivacyError for a noise multiplier so large that the grid would be too coarse.
    """
    units = grid.width(1.0, config.noise_multiplier)
    params = Params(
        noise_scale=claims.float32_up(units * config.noise_multiplier),
        sensitivity=jnp.float32(units),
        grid=grid.values(config.rating_range, units),
        center=jnp.float32(config.center),
        delta=config.delta,
    )
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(claims.no_coins),
        query=Partial(_query, params),
        noise=whole.rounded_normal(float(params.noise_scale)),
        update=Partial(_update, params),
        release=Partial(_release),
        guarantee=Partial(_guarantee, params),
    )


def _init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    del key, previous  # nothing is drawn, and nothing is built upon
    nothing = jnp.zeros(data.num_users, jnp.float32)
    _, count, _ = _sums(params, nothing, data)
    items = jnp.ones((data.num_items, 1), jnp.float32)
    return State(Public(nothing[:, None], items, params.center, nothing, count), None, jnp.int32(0))


def _row(
    row: Any, columns: Any, values: jax.Array, present: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(Σ(r - m) in units, number of ratings, Σ(r - c - level)²) of one user."""
    del columns
    level, values_grid = row
    units = grid.on_grid(values_grid, values)
    return grid.total(units, present), jnp.sum(present), present @ (values - level) ** 2


def _sums(
    params: Params, levels: jax.Array, data: Layout
) -> tuple[jax.Array, jax.Array, jax.Array]:
    shared = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, levels.shape), params.grid)
    return layout.sum_by_user(data, _row, (params.center + levels, shared), ())


def _query(params: Params, state: State, data: Layout, coins: None) -> tuple[jax.Array, Info]:
    del coins
    total, _, squared = _sums(params, state.public.user_factors[:, 0], data)
    return total, Info(jnp.sum(squared) / data.num_ratings, jnp.float32(0))


def _update(params: Params, state: State, response: jax.Array, data: Layout) -> State:
    del data  # post-processing of the response
    public, done, on = state.public, jnp.float32(state.step + 1), params.grid
    total = public.total + grid.in_units(response)
    width = 2 * on.half
    signal = (USER_SPREAD * width * public.count) ** 2
    from_noise = params.noise_scale**2 / done
    weight = signal / (signal + (RATING_SPREAD * width) ** 2 * public.count + from_noise)
    mean = on.unit * (total / done / jnp.maximum(public.count, 1.0)) + on.middle - params.center
    own = jnp.clip(mean, on.low - on.high, on.high - on.low)
    return state._replace(public=public._replace(user_factors=(weight * own)[:, None], total=total))


def _release(state: State) -> Release:
    return Release(state.public.user_factors, state.public.item_factors, state.public.center)


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    z = float(params.noise_scale) / float(params.sensitivity)
    loss = Gaussian(
        noise_multiplier=z,
        num_steps=num_steps,
        user_rho=(1.0, 0.0),
        distance=grid.STEP_DISTANCE,
    )
    return accounting.priced(
        mechanism="user-means",
        losses=(loss,),
        delta=float(params.delta),
        sensitivity=float(params.sensitivity),
        unit="rating value",
        relation=relation.value(claims.width((float(params.grid.low), float(params.grid.high)))),
        released=("user levels", "item factors and a centre, which are constants"),
        trust_model=words.CURATOR,
        status="proved",
        assumptions=(words.MASK, *claims.WHOLE),
        not_covered=(claims.not_covered("rating value"),),
    )
