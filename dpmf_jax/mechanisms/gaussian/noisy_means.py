"""Item means from noisy sums: a private control, and the first phase of a run that centres by them.

Every item of the declared catalogue gets noise. Ratings are clipped to the declared range and
counted in whole units of a public grid (`grid`); m is the middle of the range and h its half-width:

- "rating value": the statistics are Σ(r - m) of every item. One changed rating moves one of them by
  at most 2h, so Δ = 2h. Who rated what is public under this relation, and so are the counts.
- "rating presence": the statistics are (Σ(r - m), h·count). One rating more moves one pair by at
  most (h, h), so Δ = √2·h. Counts are used with their noise; exact ones are never divided by.

Each rating is bounded on the grid before sums are taken, and sums are exact, so Δ is the bound of
whole numbers, whatever the order or the number of devices. The noise is the rounded normal
(`noise.whole`).

What is done with noisy statistics is post-processing. An item's estimate shrinks to the noisy
global mean by the ratio of public guesses of the variances, so an item that has only noise gets the
global mean.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

import accounting
from accounting import guards, words
from accounting.guarantee import Guarantee
from accounting.loss import Gaussian
from dpmf_jax import layout
from dpmf_jax.devices import spread
from dpmf_jax.errors import PrivacyError
from dpmf_jax.kernels import steady
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims, grid
from dpmf_jax.mechanisms.claims import Relation
from dpmf_jax.noise import whole
from dpmf_jax.protocol import Info, Mechanism, Release, State

# Public guesses, in widths of the declared range: how far item means lie apart, and how far the
# ratings of one item lie from its mean. Half a star and one star on a scale of 1 to 5.
ITEM_SPREAD, RATING_SPREAD = 1 / 8, 1 / 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; host numbers, all public.

    rating_range: the declared smallest and largest rating; ratings are clipped to it where they
      enter a sum.
    noise_multiplier: z = σ/Δ of a step.
    tau: largest change of one rating that the statement speaks of; None is the width of
      rating_range. A sum moves by no more than that width, whatever tau is.
    relation: what a neighbouring data set may differ in.
    delta: of the guarantee.
    """

    rating_range: tuple[float, float]
    noise_multiplier: float
    tau: float | None = None
    relation: Relation = "rating value"
    delta: float = 1e-5

    def __post_init__(self) -> None:
        claims.check(self.rating_range, self.tau, self.relation, self.delta)
        guards.positive("noise_multiplier", self.noise_multiplier)

    @property
    def sensitivity_in_widths(self) -> float:
        """Δ over the width of the range: L2, of one step's statistics under the relation."""
        return 1.0 if self.relation == "rating value" else math.sqrt(0.5)

    @property
    def span(self) -> float:
        """τ, for the statement."""
        return claims.width(self.rating_range) if self.tau is None else self.tau


class Public(NamedTuple):
    """A function of past responses, constants, and counts where they are public.

    center: float32[items], the estimate.
    total: the responses so far in units of the grid, added up.
    count: float32[items], the number of ratings of each item; None where that is not public.
    """

    center: jax.Array
    total: Any
    count: jax.Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """noise_scale, sensitivity: σ and Δ, in units of the grid."""

    noise_scale: jax.Array
    sensitivity: jax.Array
    grid: grid.Values
    delta: float | jax.Array  # read on the host alone, so a float
    span: float | jax.Array  # likewise
    relation: Relation = dataclasses.field(metadata={"static": True})


def mechanism(config: Config) -> Mechanism:
    """Noisy item means in one step; further steps ask again, and the mean of all answers is used.

    Releases the centre, which is these means.

    Guarantee: zCDP with ρ = J/(2z²) for `config.relation`, proved. A user with m ratings pays m·ρ:
      each of them lies in another item.

    Raises: PrivacyError for a noise multiplier so large that the grid would be too coarse.
    """
    units = grid.width(config.sensitivity_in_widths, config.noise_multiplier)
    # the price divides σ by this very number
    sensitivity = claims.float32_up(units * config.sensitivity_in_widths)
    params = Params(
        noise_scale=claims.float32_up(float(sensitivity) * config.noise_multiplier),
        sensitivity=sensitivity,
        grid=grid.values(config.rating_range, units),
        delta=config.delta,
        span=config.span,
        relation=config.relation,
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
    center = jnp.full(data.num_items, params.grid.middle, jnp.float32)
    nothing = jnp.zeros(data.num_items, jnp.float32)
    if params.relation == "rating presence":
        return State(Public(center, (nothing, nothing), None), None, jnp.int32(0))
    _, count, _ = _sums(params, center, data)
    return State(Public(center, (nothing,), count), None, jnp.int32(0))


def _row(
    row: Any, columns: Any, values: jax.Array, present: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(Σ(r - m) in units, number of ratings, Σ(r - center)²) of one item."""
    del columns
    center, on = row
    units = grid.on_grid(on, values)
    return grid.total(units, present), jnp.sum(present), present @ (values - center) ** 2


def _sums(
    params: Params, center: jax.Array, data: Layout
) -> tuple[jax.Array, jax.Array, jax.Array]:
    shared = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, center.shape), params.grid)
    return layout.sum_by_item(data, _row, (center, shared), ())


def _query(
    params: Params, state: State, data: Layout, coins: None
) -> tuple[tuple[jax.Array, ...], Info]:
    del coins
    total, count, squared = _sums(params, state.public.center, data)
    info = Info(jnp.sum(squared) / data.num_ratings, jnp.float32(0))
    if params.relation == "rating value":
        return (total,), info
    return (total, (params.grid.half * count).astype(jnp.uint32)), info


def _update(params: Params, state: State, response: tuple[jax.Array, ...], data: Layout) -> State:
    zero, done = steady.hidden_zero(state.step), jnp.float32(state.step + 1)
    given = params, state.public, done, response
    public = spread.by_each(data.num_devices, steady.alike(_asked_again), zero, given)
    return state._replace(public=public)


def _asked_again(given: tuple[Params, Public, jax.Array, tuple[jax.Array, ...]]) -> Public:
    """What is public after one more response, the `done`-th: post-processing of it."""
    params, public, done, response = given
    total = jax.tree.map(jnp.add, public.total, jax.tree.map(grid.in_units, response))
    mean = jax.tree.map(lambda leaf: leaf / done, total)
    on = params.grid
    units = _estimate(mean, public.count, params.noise_scale / jnp.sqrt(done), on.half)
    return Public(on.middle + on.unit * units, total, public.count)


def _estimate(
    noisy: tuple[jax.Array, ...],
    public_count: jax.Array | None,
    scale: jax.Array,
    half: jax.Array,
) -> jax.Array:
    """Item means less the middle, float32[items], from noisy statistics; all in units of the grid.

    Counts are read only where they are public.
    """
    width = 2 * half
    sums = noisy[0]
    count = noisy[1] / half if public_count is None else public_count
    count_scale = scale / half if public_count is None else 0.0
    overall = jnp.clip(jnp.sum(sums) / jnp.maximum(jnp.sum(count), 1.0), -half, half)
    # Noise in the count moves the quotient by about the item's mean, here half of h, times its
    # relative error.
    from_noise = scale**2 + (count_scale * half / 2) ** 2
    count = jnp.maximum(count, 0.0)
    signal = (ITEM_SPREAD * width * count) ** 2
    weight = signal / (signal + (RATING_SPREAD * width) ** 2 * count + from_noise)
    own = jnp.clip(sums / jnp.maximum(count, 1.0), -half, half)
    return overall + weight * (own - overall)


def _release(state: State) -> Release:
    return Release(center=state.public.center)


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    presence = params.relation == "rating presence"
    z = float(params.noise_scale) / float(params.sensitivity)
    loss = Gaussian(
        noise_multiplier=z, num_steps=num_steps, user_rho=(0.0, 1.0), distance=grid.STEP_DISTANCE
    )
    return accounting.priced(
        mechanism="noisy-item-means",
        losses=(loss,),
        delta=float(params.delta),
        sensitivity=float(params.sensitivity),
        unit=params.relation,
        relation=claims.neighbours(params.relation, float(params.span)),
        released=("item means",),
        trust_model=words.CURATOR,
        status="proved",
        assumptions=(words.DECLARED if presence else words.MASK, *claims.WHOLE),
        not_covered=(claims.not_covered(params.relation),),
    )


def split(noise_multiplier: float, num_steps: int, share: float) -> tuple[float, float]:
    """(z of one step of noisy means, z of each of J training steps) at the price of J steps of z.

    In ρ the means take `share` of that price, the training the rest.

    Raises: PrivacyError for a share outside (0, 1).
    """
    if not 0 < share < 1:
        raise PrivacyError(
            "the share of the price that the noisy means take must lie between 0 and 1; got"
            f" {share:g}",
            fix="--center-share 0.5",
        )
    return noise_multiplier / math.sqrt(num_steps * share), noise_multiplier / math.sqrt(1 - share)
