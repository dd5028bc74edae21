"""Item means beside everybody's own level and taste, for the value of one rating: a local ridge.

Who rated what is public: so are factors of the items made of that alone (`kernels.presence`). In
every pass a user with m ratings r, in whole units of a public grid, subtracts the public means c
and what a ridge of r - c on a constant and the factors of the items predicts (`public_ridge`), and
sends what is left. The sums of it over each item's raters get noise, and the means move on. Levels
and tastes stay private.

One changed rating moves all m residuals of its user, and still hardly further than itself: what a
ridge of a public design leaves is a contraction. With a change of at most τ units

    Δ = τ + `public_ridge.SLACK`·√(number of items),

where the second term bounds all roundings. It is 1.015 τ at MovieLens-1M's size. A user whose m
ratings all change moves them by √m·Δ at most, so pays m times the price of one.

The presence of a rating is not hidden: counts and factors are public here, and a rating more or
less changes them. The residuals alone would move by at most twice the bound, but counts would need
noise of their own, and no mechanism here has both.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import accounting
from accounting import guards, relation, words
from accounting.guarantee import Guarantee
from accounting.loss import Gaussian
from dpmf_jax import layout
from dpmf_jax.devices import spread
from dpmf_jax.errors import PrivacyError, UsageError
from dpmf_jax.kernels import local_ridge, presence, steady
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims, grid
from dpmf_jax.mechanisms.als import estimates, public_ridge
from dpmf_jax.mechanisms.als.config import SCALE
from dpmf_jax.noise import whole
from dpmf_jax.noise.ring import signed
from dpmf_jax.protocol import Info, Mechanism, Release, State

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings

LEAST_COUNT = 0.5  # ratings of an item that has none


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; host numbers, all public.

    rating_range: the declared smallest and largest rating; ratings are clipped to it.
    noise_multiplier: z = σ/Δ of each pass.
    num_items: of the catalogue, so the most ratings that a user can have.
    rank: k, factors of the items made of who rated what; 0 for levels alone. A user takes (1 + k)²
      numbers in a pass, some twelve times.
    least_ratings: of a user, on average: where there are fewer, all factors are 0.
    level_regularization: of a user's level, in ratings. regularization: of a user's factors, in
      ratings, as the strongest factor of the items is 1 in mean square over ratings.
    noise_variance: of a rating around its prediction, in quarters of the width squared.
    delta: of the guarantee.

    Raises: ValueError for a number out of range.
    """

    rating_range: tuple[float, float]
    noise_multiplier: float
    num_items: int
    rank: int = 0
    least_ratings: float = 0.0
    level_regularization: float = 4.0
    regularization: float = 30.0
    noise_variance: float = 0.8
    delta: float = 1e-5

    def __post_init__(self) -> None:
        claims.check(self.rating_range, None, "rating value", self.delta)
        guards.count("num_items", self.num_items, 1)
        guards.count("rank", self.rank, 0)
        guards.nonnegative("least_ratings", self.least_ratings)
        for name in (
            *("noise_multiplier", "level_regularization", "regularization", "noise_variance"),
        ):
            guards.positive(name, getattr(self, name))


class Public(NamedTuple):
    """A function of past responses, the public counts and constants.

    means: see `estimates`, in quarters of the width. units: float32[items], the means on the grid,
    less its middle. count: float32[items], ratings of each item.
    center: float32[items], in rating units. item_factors: float32[items, 1 + k], ones and factors.
    columns: float32[items, 1 + k], the same in whole units (`public_ridge.columns`).
    factor_unit: float32[], what a unit of a factor is.
    """

    means: estimates.Means
    units: jax.Array
    count: jax.Array
    center: jax.Array
    item_factors: jax.Array
    columns: jax.Array
    factor_unit: jax.Array


class Private(NamedTuple):
    """What never leaves the users, or the curator for them.

    user_factors: float32[users, 1 + k], in rating units. units: int32[users, 1 + k], the same as
      `public_ridge.Answers`.
    """

    user_factors: jax.Array
    units: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """noise_scale, sensitivity: σ and Δ, in units of the grid."""

    noise_scale: jax.Array
    sensitivity: jax.Array
    grid: grid.Values
    level_regularization: jax.Array
    regularization: jax.Array
    noise_variance: jax.Array
    least_ratings: jax.Array
    rank: int = dataclasses.field(metadata={"static": True})
    delta: float | jax.Array  # read on the host alone, so a float


def mechanism(config: Config) -> Mechanism:
    """Item means from residuals of everybody's own ridge; every step is a pass over the ratings.

    Releases the means, and item factors that who rated what decides. Users' factors are their own.

    Guarantee: zCDP with ρ = J/(2z²) for one rating's value, joint, proved: residuals are whole, a
      contraction of the ratings up to roundings that Δ counts (`public_ridge`), sums are exact, and
      the noise is the rounded normal (`noise.whole`).

    Raises: PrivacyError for a noise multiplier so large that the grid would be too coarse.
    """
    params = _params(config)
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(claims.no_coins),
        query=Partial(_query, params),
        noise=whole.rounded_normal(float(params.noise_scale)),
        update=Partial(_update, params),
        release=Partial(_release),
        guarantee=Partial(_guarantee, params),
    )


def _params(config: Config) -> Params:
    units, bound = _units(config)
    sensitivity = claims.float32_up(bound)
    return Params(
        noise_scale=claims.float32_up(float(sensitivity) * config.noise_multiplier),
        sensitivity=sensitivity,
        grid=grid.values(config.rating_range, units),
        level_regularization=jnp.float32(config.level_regularization),
        regularization=jnp.float32(config.regularization),
        least_ratings=jnp.float32(config.least_ratings),
        rank=config.rank,
        noise_variance=jnp.float32(config.noise_variance),
        delta=config.delta,
    )


def fold_in(config: Config, release: Release, ratings: Ratings) -> np.ndarray:
    """float32[users, 1 + k]: level and factors of users who need not be in the training data.

    Each follows from the release and from that user's ratings, to the bit as in training.

    Raises: UsageError for a release without means, or without the factors of the config.
    """
    if release.center is None or release.factor_unit is None or release.item_factors is None:
        raise UsageError("the model releases no item means", fix="fit again with `dpmf fit`")
    params, center = _params(config), np.asarray(release.center, np.float64)
    units = np.rint((center - float(params.grid.middle)) / float(params.grid.unit))
    factors = np.asarray(release.item_factors[:, 1:], np.float64)
    features = np.rint(factors / float(release.factor_unit))
    columns = public_ridge.columns(jnp.asarray(features, jnp.float32))
    data = layout.make(ratings, num_devices=1)
    given = columns, jnp.float32(release.factor_unit), jnp.asarray(units, jnp.float32)
    return np.asarray(_answered(params, *given, data).user_factors)


def _units(config: Config) -> tuple[int, float]:
    """(τ, Δ): units in the width of the range, and the sensitivity in units."""
    most = whole.LARGEST / config.noise_multiplier * (1 - 2.0**-20)
    room = most - public_ridge.bound(0, config.num_items)
    units = min(public_ridge.WIDEST, math.floor(room) // 2 * 2)
    if units < grid.COARSEST:
        raise PrivacyError(
            f"the noise multiplier {config.noise_multiplier:g} is too large",
            where=(
                "noise is drawn in whole numbers of a grid, and the declared range would have fewer"
                f" than {grid.COARSEST} of its units"
            ),
            fix="set a smaller noise multiplier, or a larger ε or δ",
        )
    return units, public_ridge.bound(units, config.num_items)


def _init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    del key, previous  # nothing is drawn, and nothing is built upon
    count = layout.sum_by_item(data, lambda row, columns, values, present: jnp.sum(present), (), ())
    nothing = jnp.zeros(data.num_items, jnp.float32)
    features, unit = jnp.zeros((data.num_items, 0), jnp.float32), jnp.float32(1)
    if params.rank:
        made = presence.features(data, params.rank)
        zero = steady.hidden_zero(jax.lax.bitcast_convert_type(made.unit, jnp.int32))
        features, unit = spread.by_each(data.num_devices, steady.alike(_by_strength), zero, made)
        number = jnp.sum(count.astype(jnp.int32)).astype(jnp.float32)
        features = jnp.where(number < params.least_ratings * data.num_users, 0.0, features)
    ones = jnp.ones((data.num_items, 1), jnp.float32)
    public = Public(
        means=estimates.Means(nothing, nothing, nothing),
        units=nothing,
        count=count,
        center=jnp.broadcast_to(params.grid.middle, nothing.shape),
        item_factors=jnp.concatenate([ones, unit * features], axis=1),
        columns=public_ridge.columns(features),
        factor_unit=unit,
    )
    return State(public, _private_answers(params, public, data), jnp.int32(0))


def _by_strength(made: presence.Features) -> tuple[jax.Array, jax.Array]:
    """(whole units in rows of `public_ridge.RADIUS` at most, the unit).

    A factor's mean square is its strength over that of the first: one λ then holds weaker ones,
    which tell less of the ratings, closer to 0.
    """
    ratio = local_ridge.ITEM_RADIUS / public_ridge.RADIUS  # a power of two
    shares = jnp.sqrt(made.strength / jnp.maximum(made.strength[0], 1e-6))
    return jnp.round(made.units * shares / ratio), made.unit * ratio


def _private_answers(params: Params, public: Public, data: Layout) -> Private:
    return _answered(params, public.columns, public.factor_unit, public.units, data)


def _answered(
    params: Params, columns: jax.Array, factor_unit: jax.Array, units: jax.Array, data: Layout
) -> Private:
    zero = steady.hidden_zero(jax.lax.bitcast_convert_type(factor_unit, jnp.int32))
    priors, coefficients = steady.alike(_per_unit)(zero, params, factor_unit)
    found = public_ridge.answers(columns, units, params.grid, priors, data)
    return Private(coefficients * found.units.astype(jnp.float32), found.units)


def _per_unit(params: Params, factor_unit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(Λ in squared units of the columns, what a unit of a user's factors is in ratings)."""
    level = jnp.float32(1 / public_ridge.LEVEL)[None]
    sizes = jnp.concatenate([level, jnp.broadcast_to(factor_unit, (params.rank,))])
    others = jnp.broadcast_to(params.regularization, (params.rank,))
    priors = jnp.concatenate([params.level_regularization[None], others])
    fine = params.grid.unit * 2.0**-public_ridge.FINE_BITS
    return priors / (sizes * sizes), fine / sizes


def _of_item(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> Any:
    """(uint32 Σ of residuals, mod 2^32; Σ of their squares, for the curator's eyes)."""
    residual = public_ridge.residuals(row, columns, values)
    shown = present * residual.astype(jnp.float32)
    return grid.total(residual, present), shown @ shown


def _query(params: Params, state: State, data: Layout, coins: None) -> tuple[jax.Array, Info]:
    del coins
    public = state.public
    rows = public.columns, public.units, public_ridge.each(params.grid, data.num_items)
    sums, squared = layout.sum_by_item(data, _of_item, rows, state.private.units)
    loss = params.grid.unit**2 * jnp.sum(squared) / data.num_ratings
    return sums, Info(loss, jnp.float32(0))


def _update(params: Params, state: State, response: jax.Array, data: Layout) -> State:
    make, zero = steady.alike(_next), steady.hidden_zero(state.step)
    public = spread.by_each(data.num_devices, make, zero, (params, state.public, response))
    return state._replace(public=public, private=_private_answers(params, public, data))


def _next(given: tuple[Params, Public, jax.Array]) -> Public:
    """The means after one more pass: post-processing."""
    params, public, response = given
    on, per_unit = params.grid, SCALE / (2 * params.grid.half)
    count = jnp.maximum(public.count, LEAST_COUNT)
    said = public.units * per_unit + per_unit * signed(response).astype(jnp.float32) / count
    variance = (per_unit * params.noise_scale / count) ** 2 + params.noise_variance / count
    means = estimates.means(public.means, said, variance, count)
    units = jnp.clip(jnp.round(means.center * (2 * on.half / SCALE)), -on.half, on.half)
    units = jnp.nan_to_num(units)
    return public._replace(means=means, units=units, center=on.middle + on.unit * units)


def _release(state: State) -> Release:
    public = state.public
    return Release(
        item_factors=public.item_factors, center=public.center, factor_unit=public.factor_unit
    )


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    loss = Gaussian(
        noise_multiplier=float(params.noise_scale) / float(params.sensitivity),
        num_steps=num_steps,
        user_rho=(0.0, 1.0),
        distance=grid.STEP_DISTANCE,
    )
    return accounting.priced(
        mechanism="ridge",
        losses=(loss,),
        delta=float(params.delta),
        sensitivity=float(params.sensitivity),
        unit="rating value",
        relation=relation.value(claims.width((float(params.grid.low), float(params.grid.high)))),
        released=(
            ("item means", "item factors, which who rated what decides")
            if params.rank
            else ("item means", "item factors, which are constants")
        ),
        trust_model=words.CURATOR,
        status="proved",
        assumptions=(words.MASK, *claims.WHOLE),
        against=words.JOINTLY,
        not_covered=(
            claims.not_covered("rating value"),
            words.OWN_LIST,
        ),
    )
