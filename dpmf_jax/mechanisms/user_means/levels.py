"""Noisy user levels in one step: how far each user's ratings lie from a public centre.

The statistics are Σ(r - c) of every user, c a public centre and r clipped to the declared range.
One changed rating moves one of them by at most the width of the range, so Δ is that width. Who
rated what is public, and so are the counts. All that follows is post-processing: a user's noisy
mean is shrunk by the user's public count. The model predicts c and the user's level, for every item
alike.
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
from accounting.status import REAL_NUMBERS
from dpmf_jax import layout
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims
from dpmf_jax.noise import laws
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
    total: float32[users], the responses so far, added up.
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
    noise_scale: jax.Array
    sensitivity: jax.Array
    low: jax.Array
    high: jax.Array
    center: jax.Array
    delta: float | jax.Array  # read on the host alone, so a float


def mechanism(config: Config) -> Mechanism:
    """Noisy user levels in one step; further steps ask again, and the mean of all answers is used.

    Releases the levels, the centre, and item factors that are all 1.

    Guarantee: zCDP with ρ = J/(2z²) for one rating's value, proved for real-number noise. A user's
      m ratings lie in one sum and pay m²·ρ.
    """
    sensitivity = claims.float32_up(
        claims.width(config.rating_range)
    )  # the price divides σ by this very number
    params = Params(
        noise_scale=claims.float32_up(float(sensitivity) * config.noise_multiplier),
        sensitivity=sensitivity,
        low=jnp.float32(config.rating_range[0]),
        high=jnp.float32(config.rating_range[1]),
        center=jnp.float32(config.center),
        delta=config.delta,
    )
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(claims.no_coins),
        query=Partial(_query, params),
        noise=laws.gaussian(params.noise_scale),
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
    """(Σ(r - c), number of ratings, Σ(r - c - level)²) of one user; in the first, r is clipped."""
    del columns
    low, high, center, level = row
    bounded = jnp.clip(values, low, high) - center
    return bounded @ present, jnp.sum(present), present @ (values - center - level) ** 2


def _sums(
    params: Params, levels: jax.Array, data: Layout
) -> tuple[jax.Array, jax.Array, jax.Array]:
    same = (jnp.broadcast_to(one, levels.shape) for one in (params.low, params.high, params.center))
    return layout.sum_by_user(data, _row, (*same, levels), ())


def _query(params: Params, state: State, data: Layout, coins: None) -> tuple[jax.Array, Info]:
    del coins
    total, _, squared = _sums(params, state.public.user_factors[:, 0], data)
    return total, Info(jnp.sum(squared) / data.num_ratings, jnp.float32(0))


def _update(params: Params, state: State, response: jax.Array, data: Layout) -> State:
    del data  # post-processing of the response
    public, done = state.public, jnp.float32(state.step + 1)
    total, width = public.total + response, params.high - params.low
    signal = (USER_SPREAD * width * public.count) ** 2
    from_noise = params.noise_scale**2 / done
    weight = signal / (signal + (RATING_SPREAD * width) ** 2 * public.count + from_noise)
    own = jnp.clip(total / done / jnp.maximum(public.count, 1.0), -width, width)
    return state._replace(public=public._replace(user_factors=(weight * own)[:, None], total=total))


def _release(state: State) -> Release:
    return Release(state.public.user_factors, state.public.item_factors, state.public.center)


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    z = float(params.noise_scale) / float(params.sensitivity)
    return accounting.priced(
        mechanism="user-means",
        losses=(Gaussian(noise_multiplier=z, num_steps=num_steps, user_rho=(1.0, 0.0)),),
        delta=float(params.delta),
        sensitivity=float(params.sensitivity),
        unit="rating value",
        relation=relation.value(claims.width((float(params.low), float(params.high)))),
        released=("user levels", "item factors and a centre, which are constants"),
        trust_model=words.CURATOR,
        status=REAL_NUMBERS,
        assumptions=(words.MASK, *claims.ALWAYS),
        not_covered=(claims.not_covered("rating value"),),
    )
