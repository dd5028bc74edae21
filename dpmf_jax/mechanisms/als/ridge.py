"""Item means beside everybody's own level, for the value of one rating: local ridge regression.

Who rated what is public. In every pass a user with m ratings r, in whole units of a public grid,
subtracts the public means c and then an own level B = ⌊Σ(r - c)/(m + λ)⌉, and sends what is left.
The sums of it over each item's raters get noise, and the means move on. The level stays private.

One changed rating moves all m residuals of its user, and still no further than itself. With H the
ridge's hat matrix, 11ᵀ/(m + λ), the residuals before rounding are (I - H)(r - c), and I - H has
eigenvalues between λ/(m + λ) and 1: it is a contraction. Let a rating change by τ units at most.
Then the residuals change by

    τ(I - H)e - ξ1,    |ξ| ≤ ROUNDED,

where ξ is what rounding B adds: at most 1, and 2^-22 of B for the float32 division, B below 2^15.
(I - H)e is no longer than 1, and its sum is λ/(m + λ) ≤ 1. So the squared length is at most

    Δ² = τ² + 2·ROUNDED·τ + ROUNDED²·m,

with the number of items for m: a user rates each once. That is 1.0001 τ at MovieLens' size. A user
whose m ratings all change moves them by τ√m + ROUNDED·√m, so pays m times the price of one.

The presence of a rating is not hidden: counts are public here, and a rating more or less changes
them. The residuals alone would move by at most twice the bound (|r - c - B| ≤ 2τ), but counts would
need noise of their own, and no mechanism here has both.
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
from dpmf_jax.kernels import steady
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims, grid
from dpmf_jax.mechanisms.als import estimates
from dpmf_jax.mechanisms.als.config import SCALE
from dpmf_jax.noise import whole
from dpmf_jax.noise.ring import signed
from dpmf_jax.protocol import Info, Mechanism, Release, State

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings

FINEST = 1 << 14  # units in the width of the declared range
ROUNDED = 1.01  # units by which a rounded level may move further than one that is not
LEAST_COUNT = 0.5  # ratings of an item that has none


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; host numbers, all public.

    rating_range: the declared smallest and largest rating; ratings are clipped to it.
    noise_multiplier: z = σ/Δ of each pass.
    num_items: of the catalogue, so the most ratings that a user can have.
    level_regularization: λ, in ratings.
    noise_variance: of a rating around its prediction, in quarters of the width squared.
    delta: of the guarantee.

    Raises: ValueError for a number out of range.
    """

    rating_range: tuple[float, float]
    noise_multiplier: float
    num_items: int
    level_regularization: float = 4.0
    noise_variance: float = 0.8
    delta: float = 1e-5

    def __post_init__(self) -> None:
        claims.check(self.rating_range, None, "rating value", self.delta)
        guards.count("num_items", self.num_items, 1)
        for name in ("noise_multiplier", "level_regularization", "noise_variance"):
            guards.positive(name, getattr(self, name))


class Public(NamedTuple):
    """A function of past responses, the public counts and constants.

    means: see `estimates`, in quarters of the width. units: float32[items], the means on the grid,
    less its middle. count: float32[items], ratings of each item.
    center: float32[items], in rating units. item_factors: float32[items, 1], ones.
    """

    means: estimates.Means
    units: jax.Array
    count: jax.Array
    center: jax.Array
    item_factors: jax.Array


class Private(NamedTuple):
    """What never leaves the users, or the curator for them.

    user_factors: float32[users, 1], levels in rating units. level: float32[users], in units.
    """

    user_factors: jax.Array
    level: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """noise_scale, sensitivity: σ and Δ, in units of the grid."""

    noise_scale: jax.Array
    sensitivity: jax.Array
    grid: grid.Values
    regularization: jax.Array
    noise_variance: jax.Array
    delta: float | jax.Array  # read on the host alone, so a float


def mechanism(config: Config) -> Mechanism:
    """Item means from residuals of everybody's own level; every step is a pass over the ratings.

    Releases the means, and item factors that are all 1. Levels are the users' own.

    Guarantee: zCDP with ρ = J/(2z²) for one rating's value, joint, proved: residuals are whole, a
      contraction of the ratings up to a rounding that Δ counts (above), sums are exact, and the
      noise is the rounded normal (`noise.whole`).

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
        regularization=jnp.float32(config.level_regularization),
        noise_variance=jnp.float32(config.noise_variance),
        delta=config.delta,
    )


def fold_in(config: Config, release: Release, ratings: Ratings) -> np.ndarray:
    """float32[users, 1]: levels of users who need not be in the training data.

    Each follows from the released means and from that user's ratings, to the bit as in training.

    Raises: UsageError for a release without means.
    """
    if release.center is None:
        raise UsageError("the model releases no item means", fix="fit again with `dpmf fit`")
    params, center = _params(config), np.asarray(release.center, np.float64)
    units = np.rint((center - float(params.grid.middle)) / float(params.grid.unit))
    data = layout.make(ratings, num_devices=1)
    return np.asarray(_levels(params, jnp.asarray(units, jnp.float32), data).user_factors)


def _units(config: Config) -> tuple[int, float]:
    """(τ, Δ): units in the width of the range, and the sensitivity in units."""
    finest = min(FINEST, (1 << 30) // config.num_items)  # a user's sum of residuals fits in int32
    most = whole.LARGEST / config.noise_multiplier * (1 - 2.0**-20)
    spare = ROUNDED**2 * config.num_items
    room = math.sqrt(max(most**2 - spare, 0)) - ROUNDED  # so that τ² + 2ρτ + ρ²m is at most `most`²
    units = min(finest, math.floor(room) // 2 * 2)
    if units < grid.COARSEST:
        raise PrivacyError(
            f"the noise multiplier {config.noise_multiplier:g} is too large",
            where=(
                "noise is drawn in whole numbers of a grid, and the declared range would have fewer"
                f" than {grid.COARSEST} of its units"
            ),
            fix="set a smaller noise multiplier, or a larger ε or δ",
        )
    return units, math.sqrt(units**2 + 2 * ROUNDED * units + spare)


def _init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    del key, previous  # nothing is drawn, and nothing is built upon
    count = layout.sum_by_item(data, lambda row, columns, values, present: jnp.sum(present), (), ())
    nothing = jnp.zeros(data.num_items, jnp.float32)
    public = _published(params, estimates.Means(nothing, nothing, nothing), count)
    return State(public, _levels(params, public.units, data), jnp.int32(0))


def _published(params: Params, means: estimates.Means, count: jax.Array) -> Public:
    on = params.grid
    units = jnp.clip(jnp.round(means.center * (2 * on.half / SCALE)), -on.half, on.half)
    return Public(
        means=means,
        units=jnp.nan_to_num(units),
        count=count,
        center=on.middle + on.unit * units,
        item_factors=jnp.ones((len(count), 1), jnp.float32),
    )


def _each(params: Params, num: int) -> grid.Values:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num,)), params.grid)


def _of_user(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> Any:
    """(int32 Σ(r - c), number of ratings) of one user."""
    (on,) = row
    units = grid.on_grid(on, values) - columns.astype(jnp.int32)
    return jnp.sum(jnp.where(present > 0, units, 0)), jnp.sum(present)


def _levels(params: Params, centers: jax.Array, data: Layout) -> Private:
    total, count = layout.sum_by_user(data, _of_user, (_each(params, data.num_users),), centers)
    level = jnp.round(total.astype(jnp.float32) / (count + params.regularization))
    return Private((params.grid.unit * level)[:, None], level)


def _of_item(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> Any:
    """(uint32 Σ of residuals, mod 2^32; Σ of their squares, for the curator's eyes)."""
    center, on = row
    residual = grid.on_grid(on, values) - center.astype(jnp.int32) - columns.astype(jnp.int32)
    shown = present * residual.astype(jnp.float32)
    return grid.total(residual, present), shown @ shown


def _query(params: Params, state: State, data: Layout, coins: None) -> tuple[jax.Array, Info]:
    del coins
    rows = state.public.units, _each(params, data.num_items)
    sums, squared = layout.sum_by_item(data, _of_item, rows, state.private.level)
    loss = params.grid.unit**2 * jnp.sum(squared) / data.num_ratings
    return sums, Info(loss, jnp.float32(0))


def _update(params: Params, state: State, response: jax.Array, data: Layout) -> State:
    make, zero = steady.alike(_next), steady.hidden_zero(state.step)
    public = spread.by_each(data.num_devices, make, zero, (params, state.public, response))
    return state._replace(public=public, private=_levels(params, public.units, data))


def _next(given: tuple[Params, Public, jax.Array]) -> Public:
    """The means after one more pass: post-processing."""
    params, public, response = given
    per_unit = SCALE / (2 * params.grid.half)
    count = jnp.maximum(public.count, LEAST_COUNT)
    said = public.units * per_unit + per_unit * signed(response).astype(jnp.float32) / count
    variance = (per_unit * params.noise_scale / count) ** 2 + params.noise_variance / count
    return _published(params, estimates.means(public.means, said, variance, count), public.count)


def _release(state: State) -> Release:
    return Release(item_factors=state.public.item_factors, center=state.public.center)


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
        released=("item means", "item factors, which are constants"),
        trust_model=words.CURATOR,
        status="proved",
        assumptions=(words.MASK, *claims.WHOLE),
        against=words.JOINTLY,
        not_covered=(
            claims.not_covered("rating value"),
            words.OWN_LIST,
        ),
    )
