"""What mechanisms on secret Poisson samples share: settings, the sampler, the clip and the price.

At step t each stored rating is in the sample with probability q, by itself. Its gradient, a vector
of all that it moves, is clipped to C and added up, and everything gets N(0, σ²). One set of numbers
serves noise, sampler and price.

σ is one number while the noise of a step may change. So a step's gradients are multiplied by a
public weight w_t ≤ 1 after the clip, and the response is divided by it: the step costs what
z_t = σ/(C·w_t) costs. DP-SGD has w_t = 1; Langevin dynamics has w_t = √(η_t/η), η the largest step.

Who is in the sample follows from the step's coins, a key and a rate. `query` reads them; nothing
public ever does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from accounting import guards, words
from accounting.guarantee import Guarantee
from accounting.langevin import decaying_rates, langevin_phases
from accounting.loss import SubsampledGaussian
from dpmf_jax.errors import PrivacyError
from dpmf_jax.layout import Layout, poisson
from dpmf_jax.mechanisms import claims
from dpmf_jax.protocol import Info, Poisson

SampledUnit = Literal["rating presence", "rating value"]
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """What noise, sampler, query, update and price read.

    Real settings are leaves, so that a sweep compiles once; the rest is static.

    noise_scale: σ.
    clip_norm: C.
    rate: q.
    weights: float32[num_steps], w_t.
    learning_rates: float32[num_steps], η_t.
    highest_rate: of a coarse grid, at least q; the sample's memory is made for it.
    """

    noise_scale: jax.Array
    clip_norm: jax.Array
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

    Raises: PrivacyError without a noise multiplier.
    """
    if config.noise_multiplier is None:
        raise PrivacyError(
            "no noise multiplier is set, so there is nothing to price",
            fix=(
                "set noise_multiplier: accounting.calibration.solve_noise_multiplier gives that of"
                " an epsilon"
            ),
        )
    bound = claims.float32_up(config.clip_norm)
    return _params(
        config, bound, float(bound) * config.noise_multiplier, np.ones(config.num_steps, np.float32)
    )


def langevin_params(config: Config, *, clip: bool) -> Params:
    """The parameters of Langevin dynamics: σ = q√(2T/η).

    So a step of size η_t moves every entry by √(2η_tT) times a normal.
    """
    rates = config.learning_rates.astype(np.float64)
    largest = float(rates.max())
    scale = float(claims.float32_down(config.sampling_rate)) * math.sqrt(
        2 * config.temperature / largest
    )
    bound = claims.float32_up(config.clip_norm) if clip else jnp.float32(jnp.inf)
    return _params(config, bound, scale, np.sqrt(rates / largest).astype(np.float32))


def _params(
    config: Config, clip_norm: jax.Array, noise_scale: float, weights: np.ndarray
) -> Params:
    f32 = jnp.float32
    middle = sum(config.rating_range) / 2
    if not (
        noise_scale < float(np.finfo(np.float32).max)
        and float(claims.float32_up(noise_scale)) > 2.0**-126
    ):
        raise ValueError(f"the noise's scale must be a normal float32; got {noise_scale:g}")
    return Params(
        noise_scale=claims.float32_up(noise_scale),
        clip_norm=clip_norm,
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


# --- one step


def coins(rate: jax.Array, key: jax.Array) -> Poisson:
    """The secret coins that say who is in the sample."""
    return Poisson(key, rate)


def sample(params: Params, data: Layout, coins: Poisson) -> poisson.Sample:
    """The step's ratings, in memory for `poisson.capacity_for` of them."""
    capacity = poisson.capacity_for(poisson.num_slots(data), params.highest_rate)
    return poisson.sample(data, coins.key, coins.rate, capacity)


def residuals(
    drawn: poisson.Sample, users: jax.Array, items: jax.Array, center: jax.Array
) -> jax.Array:
    """e = r - c - p·q, float32[capacity]; 0 where there is no rating.

    users, items: float32[capacity, rank], p and q of each sampled rating.
    """
    offset = center if center.ndim == 0 else center.at[drawn.item].get(mode="clip")
    return jnp.where(drawn.present, drawn.value - offset - jnp.sum(users * items, 1), 0.0)


def at_step(params: Params, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(w_t, η_t); beyond the last step, the last."""
    return params.weights.at[step].get(mode="clip"), params.learning_rates.at[step].get(mode="clip")


def clip_scale(params: Params, ratio: jax.Array, weight: jax.Array, num_terms: int) -> jax.Array:
    """What a gradient is multiplied by: w_t·min(1, C/norm), or 0 for one that has no finite norm.

    ratio: norm over C, made of num_terms float32 squares. The clip is a hair inside C, by what
      rounding may add.
    """
    inside = 1 - (num_terms + 16) * 2.0**-23
    return jnp.where(ratio < jnp.inf, weight * jnp.minimum(1.0, inside / ratio), 0.0)


def info(drawn: poisson.Sample, error: jax.Array, ratio: jax.Array) -> Info:
    """The sample's mean squared error, and the share of its ratings that were clipped."""
    count = jnp.maximum(jnp.sum(drawn.present), 1)
    return Info(jnp.sum(error**2) / count, jnp.sum((ratio > 1) & drawn.present) / count)


def descend(params: Params, step: jax.Array, parameters: Any, response: Any) -> Any:
    """θ + η_t·(response/(q·w_t) - λ·θ) on every entry, read or not: post-processing."""
    weight, rate = at_step(params, step)
    keep, scale = 1 - rate * params.regularization, rate / (params.rate * weight)
    return jax.tree.map(lambda entry, noisy: keep * entry + scale * noisy, parameters, response)


# --- the price


def phases(params: Params, num_steps: int) -> tuple[SubsampledGaussian, ...]:
    """The losses of the first steps, each z_t = σ/(C·w_t) at rate q.

    They come from the arrays that noise, sampler and query read.
    """
    scale, clip_norm, rate = float(params.noise_scale), float(params.clip_norm), float(params.rate)
    weights = np.asarray(params.weights, np.float64)
    weights = weights[np.minimum(np.arange(num_steps), len(weights) - 1)]
    if np.all(weights == 1):
        return (
            SubsampledGaussian(
                noise_multiplier=scale / clip_norm, sampling_rate=rate, num_steps=num_steps
            ),
        )
    # In units in which the largest step size is 1: q√(2T/w_t²)/C = σ/(C·w_t).
    temperature = (scale / rate) ** 2 / 2
    rates = (weights**2).tolist()
    return langevin_phases(
        sampling_rate=rate, temperature=temperature, clip_norm=clip_norm, learning_rates=rates
    )


def with_assumptions(guarantee: Guarantee, params: Params) -> Guarantee:
    """The guarantee with what this code assumes in addition to the theorem."""
    relation = words.DECLARED if params.unit == "rating presence" else words.MASK
    return dataclasses.replace(
        guarantee, assumptions=(*guarantee.assumptions, CAPACITY, relation, *claims.ALWAYS[1:])
    )
