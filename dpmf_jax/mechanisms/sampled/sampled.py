"""What mechanisms on secret Poisson samples share: settings, the sampler, the clip and the price.

At step t each stored rating is in the sample with probability q, by itself. Its gradient, a vector
of all that it moves, is clipped to C and added up, and everything gets N(0, σ²). One set of numbers
serves noise, sampler and price.

σ is one number while the noise of a step may change. So a step's gradients are multiplied by a
public weight w_t ≤ 1 after the clip, and the response is divided by it: the step costs what
z_t = σ/(C·w_t) costs. DP-SGD has w_t = 1; Langevin dynamics has w_t = √(η_t/η), η the largest step.

**In whole numbers.** Rows of factors, residuals and what a rating contributes are whole numbers of
public grids (`Grid`): a function of that rating and of public numbers, of norm at most B_t units of
C/K, B_t = ⌊w_t·K⌋. So sums are exact, in any order and on any devices; one rating moves them by
B_t, whatever floats made of it before; and z_t = σ/B_t, σ in units. Noise is `noise.whole`.

Who is in the sample follows from the step's coins, a key and a rate. `query` reads them; nothing
public ever does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from accounting import guards, words
from accounting.guarantee import Guarantee
from accounting.langevin import decaying_rates, langevin_phases
from accounting.loss import SubsampledGaussian
from dpmf_jax.errors import PrivacyError
from dpmf_jax.kernels import steady, whole_descent
from dpmf_jax.layout import Layout, poisson
from dpmf_jax.mechanisms import claims, grid
from dpmf_jax.protocol import Info, Poisson

SampledUnit = Literal["rating presence", "rating value"]
FINEST = 4094  # units in the clip norm: K, at most
ROW = 4096.0  # units in the longest row; products of two rows are at most 2^24
LONGEST = 4  # of a row, in halves of the declared range, or in ones where that is less than 1
STEPS = 4096  # of a residual, in half the declared range
FARTHEST = 2.0**20  # steps
CAPACITY = (
    "no Poisson sample is larger than the memory set aside for it; one is with a probability of at"
    f" most {poisson.OVERFLOW:g} a step, and then its last members are left out"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; host numbers, all public, none chosen by looking at the ratings.

    rating_range: the declared smallest and largest rating.
    center: subtracted from ratings; None is the middle of the range.
    num_steps: J, fixed beforehand. Step sizes fall until then, and stay in steps beyond.
    sampling_rate: q, the probability with which each rating is in a step's sample.
    clip_norm: C, of one rating's gradient.
    noise_multiplier: z = σ/C of a step (DP-SGD only).
    temperature: T (Langevin only); 1 is that of the posterior.
    learning_rate: η, of the gradient of the sum over all ratings, which is estimated by 1/q times
      the sample's; or an optax schedule, a function of an array of steps.
    decay: b in η/(1 + b·t/J); 0 with a schedule.
    regularization: λ, on every row or cell at every step.
    rank: [d].
    depth: [k], rows of the sketch (sketch only).
    gain: [γ], how many times smaller the sketch is than all vectors (sketch only).
    query: how the sketch is read (sketch only).
    initial_scale: standard deviation of a coordinate at the start (sketch only).
    unit: whose change is hidden.
    delta: of the guarantee.
    """

    rating_range: tuple[float, float]
    num_steps: int
    sampling_rate: float
    clip_norm: float = 1.0
    noise_multiplier: float | None = None
    temperature: float = 1.0
    learning_rate: float | Callable[..., Any] = 1e-3
    decay: float = 0.0
    regularization: float = 0.1
    rank: int = 16
    center: float | None = None
    depth: int = 4
    gain: float = 1.0
    query: Literal["mean", "median"] = "mean"
    initial_scale: float = 0.1
    unit: SampledUnit = "rating presence"
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if self.unit not in get_args(SampledUnit):
            raise ValueError(
                f"unit must be one of {', '.join(get_args(SampledUnit))}; got {self.unit!r}"
            )
        claims.check(self.rating_range, None, self.unit, self.delta)
        guards.fields(self, guards.count, "num_steps", "rank", "depth")
        if not 2.0**-30 <= self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate must be from 2^-30 to 1; got {self.sampling_rate}")
        guards.fields(
            self,
            guards.positive,
            "clip_norm",
            "temperature",
            "gain",
            "initial_scale",
            optional=("noise_multiplier",),
        )
        guards.fields(self, guards.nonnegative, "decay", "regularization")
        guards.fields(self, guards.finite, optional=("center",))
        if callable(self.learning_rate) and self.decay:
            raise ValueError(f"decay must be 0 where learning_rate is a schedule; got {self.decay}")
        if self.query not in ("mean", "median"):
            raise ValueError(f"query must be 'mean' or 'median'; got {self.query!r}")
        rates = self.learning_rates
        if not np.all((rates > 0) & (rates < np.inf)):
            raise ValueError(
                "learning_rate must be positive and finite at every step, in float32 too"
            )

    @property
    def learning_rates(self) -> np.ndarray:
        """η_t, float32[num_steps]."""
        if callable(self.learning_rate):
            rates = np.asarray(self.learning_rate(np.arange(self.num_steps)))
            return np.array(np.broadcast_to(rates, self.num_steps), np.float32)
        guards.positive("learning_rate", self.learning_rate)
        return np.array(decaying_rates(self.learning_rate, self.decay, self.num_steps), np.float32)


class Grid(NamedTuple):
    """Public numbers, float32[] but for the bounds: what is whole in a sound mechanism, and where.

    ratings: the declared range, in `2·STEPS` steps; a residual is a number of steps.
    longest: of a row of factors; it has `ROW` units.
    unit: of a gradient, C/K.
    bounds: float32[num_steps], B_t = ⌊w_t·K⌋: the largest norm of one rating's part, in units.
    """

    ratings: grid.Values
    longest: jax.Array
    unit: jax.Array
    bounds: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """What noise, sampler, query, update and price read.

    Real settings are leaves, so that a sweep compiles once; the rest is static.

    noise_scale: σ, in units of `grid`; in those of a gradient where there is none.
    grid: None for Langevin dynamics as published.
    rate: q.
    weights: float32[num_steps], w_t.
    learning_rates: float32[num_steps], η_t.
    highest_rate: of a coarse grid, at least q; the sample's memory is made for it.
    """

    noise_scale: jax.Array
    grid: Grid | None
    rate: jax.Array
    weights: jax.Array
    learning_rates: jax.Array
    regularization: jax.Array
    center: jax.Array
    initial_scale: jax.Array
    delta: float | jax.Array  # read on the host alone, so a float
    highest_rate: float = dataclasses.field(metadata={"static": True})
    rank: int = dataclasses.field(metadata={"static": True})
    depth: int = dataclasses.field(metadata={"static": True})
    gain: float = dataclasses.field(metadata={"static": True})
    query: Literal["mean", "median"] = dataclasses.field(metadata={"static": True})
    unit: SampledUnit = dataclasses.field(metadata={"static": True})


def dpsgd_params(config: Config) -> Params:
    """The parameters of DP-SGD: σ = z·C, the same at every step.

    Raises: PrivacyError without a noise multiplier, or for one that no grid does for.
    """
    if config.noise_multiplier is None:
        raise PrivacyError(
            "no noise multiplier is set, so there is nothing to price",
            fix=(
                "set noise_multiplier: accounting.calibration.solve_noise_multiplier gives that of"
                " an epsilon"
            ),
        )
    return _whole_params(config, config.noise_multiplier, np.ones(config.num_steps, np.float32))


def langevin_params(config: Config, *, clip: bool) -> Params:
    """The parameters of Langevin dynamics: σ = q√(2T/η), η the largest step size.

    So a step of size η_t moves every entry by √(2η_tT) times a normal.

    Raises: PrivacyError for a noise, or for step sizes, that no grid does for.
    """
    rates = config.learning_rates.astype(np.float64)
    largest = float(rates.max())
    scale = float(claims.float32_down(config.sampling_rate)) * math.sqrt(
        2 * config.temperature / largest
    )
    weights = np.sqrt(rates / largest).astype(np.float32)
    if clip:
        return _whole_params(config, scale / config.clip_norm, weights)
    if not (
        scale < float(np.finfo(np.float32).max) and float(claims.float32_up(scale)) > 2.0**-126
    ):
        raise ValueError(f"the noise's scale must be a normal float32; got {scale:g}")
    return _params(config, None, claims.float32_up(scale), weights)


def _whole_params(config: Config, noise_multiplier: float, weights: np.ndarray) -> Params:
    """The parameters of a sound mechanism of this z = σ/C at the largest step size."""
    units = grid.width(1.0, noise_multiplier, what="the clip norm", finest=FINEST)
    bounds = np.floor(weights.astype(np.float64) * units)
    if bounds.min() < grid.COARSEST:
        raise PrivacyError(
            f"the learning rate falls to {float(weights.min()) ** 2:.3g} of its largest",
            where=(
                "gradients are whole numbers of a grid, and the clip norm of that step would have"
                f" fewer than {grid.COARSEST} of its units"
            ),
            fix="let the learning rate fall less far",
        )
    half = (config.rating_range[1] - config.rating_range[0]) / 2
    made = Grid(
        ratings=grid.values(config.rating_range, 2 * STEPS),
        longest=jnp.float32(LONGEST * max(1.0, half)),
        unit=jnp.float32(config.clip_norm / units),
        bounds=jnp.asarray(bounds, jnp.float32),
    )
    return _params(config, made, claims.float32_up(units * noise_multiplier), weights)


def _params(
    config: Config, made: Grid | None, noise_scale: jax.Array, weights: np.ndarray
) -> Params:
    f32 = jnp.float32
    middle = sum(config.rating_range) / 2
    return Params(
        noise_scale=noise_scale,
        grid=made,
        rate=claims.float32_down(config.sampling_rate),
        weights=jnp.asarray(weights),
        learning_rates=jnp.asarray(config.learning_rates),
        regularization=f32(config.regularization),
        center=f32(middle if config.center is None else config.center),
        initial_scale=f32(config.initial_scale),
        delta=config.delta,
        highest_rate=min(1.0, 2.0 ** (math.ceil(4 * math.log2(config.sampling_rate)) / 4)),
        rank=config.rank,
        depth=config.depth,
        gain=config.gain,
        query=config.query,
        unit=config.unit,
    )


def grid_of(params: Params) -> Grid:
    """The grid of a sound mechanism."""
    assert params.grid is not None
    return params.grid


# --- one step


def coins(rate: jax.Array, key: jax.Array) -> Poisson:
    """The secret coins that say who is in the sample."""
    return Poisson(key, rate)


def sample(params: Params, data: Layout, coins: Poisson) -> poisson.Sample:
    """The step's ratings, in memory for `poisson.capacity_for` of them."""
    capacity = poisson.capacity_for(poisson.num_slots(data), params.highest_rate)
    return poisson.sample(data, coins.key, coins.rate, capacity)


def on_grid(params: Params, rows: jax.Array) -> jax.Array:
    """Rows of factors, float32[rows, rank], in whole units; a row that is too long is shrunk."""
    return whole_descent.on_grid(rows, grid_of(params).longest, ROW).units


def residuals(
    params: Params, drawn: poisson.Sample, users: jax.Array, items: jax.Array, center: jax.Array
) -> jax.Array:
    """e = r - c - p·q in whole steps, float32[capacity]; 0 where there is no rating.

    users, items: float32[capacity, rank], p and q of each sampled rating, in whole units. Their
      products add up to 2^24 at most, where float32 holds every whole number.
    """
    ratings, longest = grid_of(params).ratings, grid_of(params).longest
    per_step = (longest / ROW) ** 2 / ratings.unit
    offset = jnp.round((center - ratings.middle) / ratings.unit)
    offset = jnp.clip(jnp.nan_to_num(offset, nan=0.0), -FARTHEST, FARTHEST)
    if center.ndim:
        offset = offset.at[drawn.item].get(mode="clip")
    predicted = jnp.round(jnp.sum(users * items, axis=1) * per_step)
    rating = grid.on_grid(ratings, drawn.value).astype(jnp.float32)
    error = rating - jnp.clip(predicted, -FARTHEST, FARTHEST) - offset
    return jnp.where(drawn.present, error, 0.0)


def at_step(params: Params, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(w_t, η_t); beyond the last step, the last."""
    return params.weights.at[step].get(mode="clip"), params.learning_rates.at[step].get(mode="clip")


def clipped(
    params: Params, step: jax.Array, errors: jax.Array, lengths: jax.Array, corners: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    """(a, which were clipped): a rating's part is a·x, rounded in every entry, of norm at most B_t.

    Rounded entries move a part by at most half the norm of what ones make, so |a|·‖x‖ is kept below
    B_t less that, and less what float32 rounds on the way.

    Args:
      errors: float32[capacity], in steps.
      lengths: float32[capacity], ‖x‖: of all that a rating moves, for an error of 1, in units of
        factors.
      corners: the norm of the same with ones in place of factors.
    """
    made, weight = grid_of(params), at_step(params, step)[0]
    per_unit = jnp.minimum(made.ratings.unit * (made.longest / ROW) / made.unit, 2.0**60)
    bound = made.bounds.at[step].get(mode="clip")
    shorter = steady.apart(steady.hidden_zero(step), bound * (1 - 2.0**-18))
    most = jnp.maximum(shorter - 0.5 * corners, 0.0)
    most /= jnp.maximum(lengths, 1.0)  # 0 or more than 1, since x is whole
    full = errors * (weight * per_unit)
    return jnp.clip(full, -most, most), jnp.abs(full) > most


def part(multiplier: jax.Array, rows: jax.Array) -> jax.Array:
    """a·x in whole units, mod 2^32: uint32[capacity, rank]."""
    units = jnp.round(multiplier[:, None] * rows).astype(jnp.int32)
    return jax.lax.bitcast_convert_type(units, jnp.uint32)


def info(params: Params, drawn: poisson.Sample, errors: jax.Array, shrunk: jax.Array) -> Info:
    """The sample's mean squared error, and the share of its ratings that were clipped."""
    count = jnp.maximum(jnp.sum(drawn.present), 1)
    squared = jnp.sum((errors * grid_of(params).ratings.unit) ** 2)
    return Info(squared / count, jnp.sum(shrunk & drawn.present) / count)


def descend(params: Params, step: jax.Array, parameters: Any, response: Any) -> Any:
    """θ + η_t·(response/(q·w_t) - λ·θ) on every entry, read or not: post-processing."""
    weight, rate = at_step(params, step)
    zero = steady.hidden_zero(step)
    decay = steady.apart(zero, rate * params.regularization)
    keep, scale = 1 - decay, rate / (params.rate * weight)
    if params.grid is not None:
        keep, scale = steady.apart(zero, (keep, scale * params.grid.unit))
        response = jax.tree.map(grid.in_units, response)

    def moved(entry: jax.Array, noisy: jax.Array) -> jax.Array:
        kept, added = steady.apart(zero, (keep * entry, scale * noisy))
        return kept + added

    return jax.tree.map(moved, parameters, response)


# --- the price


def units(params: Params) -> float:
    """K: the clip norm in units, of the largest step size."""
    return float(np.asarray(grid_of(params).bounds).max())


def phases(params: Params, num_steps: int) -> tuple[SubsampledGaussian, ...]:
    """The losses of the first steps, each z_t = σ/B_t at rate q.

    They come from the arrays that noise, sampler and query read.
    """
    scale, rate = float(params.noise_scale), float(params.rate)
    bounds = np.asarray(grid_of(params).bounds, np.float64)
    bounds = bounds[np.minimum(np.arange(num_steps), len(bounds) - 1)]
    # In units in which C and the largest step size are 1: q√(2T/B²) = σ/B.
    return langevin_phases(
        sampling_rate=rate,
        temperature=(scale / rate) ** 2 / 2,
        clip_norm=1.0,
        learning_rates=(bounds**2).tolist(),
        distance=grid.STEP_DISTANCE,
    )


def with_assumptions(guarantee: Guarantee, params: Params) -> Guarantee:
    """The guarantee with what this code assumes in addition to the theorem."""
    relation = words.DECLARED if params.unit == "rating presence" else words.MASK
    return dataclasses.replace(
        guarantee, assumptions=(*guarantee.assumptions, CAPACITY, relation, *claims.WHOLE[1:])
    )
