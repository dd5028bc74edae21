"""What a phase of `als-implicit` is made with, and what it promises."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import accounting
from accounting import relation
from accounting.guarantee import Guarantee
from accounting.loss import Gaussian
from dpmf_jax.mechanisms import grid
from dpmf_jax.mechanisms.als import trust
from dpmf_jax.mechanisms.als.config import length, noise_scale, units
from dpmf_jax.mechanisms.als.implicit_config import Config
from dpmf_jax.mechanisms.als.implicit_estimates import Weights

LEAST_CLIP = 1024.0  # units
BESIDE = 12  # halvings of what popularity adds to a score where there are factors


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """Of one phase; what both phases of `als` have too is as in `params.Params`."""

    clip: jax.Array
    whole_clip: jax.Array
    noise_scale: jax.Array
    count_deviation: jax.Array
    weights: Weights
    delta: float | jax.Array  # read on the host alone, so a float
    rank: int = dataclasses.field(metadata={"static": True})
    halvings: int = dataclasses.field(metadata={"static": True})
    relation: str = dataclasses.field(metadata={"static": True})
    released: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    name: str = dataclasses.field(metadata={"static": True})


def make_params(config: Config, ratios: tuple[float, ...], part: float, **own: Any) -> Params:
    scale, of_counts = scale_of(config, max(ratios)), scale_of(config, config.clips()[0])
    wholes = [units(ratio, scale) for ratio in ratios]
    return Params(
        clip=jnp.asarray([length(part, one) for one in wholes], jnp.float32),
        whole_clip=jnp.asarray(wholes, jnp.float32),
        noise_scale=jnp.float32(scale),
        count_deviation=jnp.float32(of_counts / units(config.clips()[0], of_counts)),
        weights=weights(config),
        delta=config.delta,
        rank=config.rank,
        halvings=halvings(config),
        relation=config.relation,
        **own,
    )


def scale_of(config: Config, ratio: float) -> float:
    """σ in units: the largest that tables hold, if a sum of all users' whole messages fits in 32
    bits with it; else less, but a clip keeps `LEAST_CLIP` units.

    ratio: Δ/σ of the largest step.
    """
    room = max(2.0**30 / config.num_users, LEAST_CLIP) / ratio
    return float(np.float32(min(noise_scale(), room)))


def weights(config: Config) -> Weights:
    return Weights(
        *map(
            jnp.float32,
            (
                *(config.num_users, config.unseen_weight, config.regularization),
                *(config.factors_clip, config.gram_clip, config.sampling, config.evenness),
            ),
        )
    )


def halvings(config: Config) -> int:
    """Of a count, until the number of users is 1 or less; more where there are factors."""
    return (config.num_users - 1).bit_length() + BESIDE * (config.rank > 0)


def guarantee(params: Params, num_steps: int) -> Guarantee:
    times = 2.0 if params.relation == "user replaced" else 1.0
    clips = [times * float(clip) for clip in params.whole_clip]
    clips += clips[-1:] * (num_steps - len(clips))  # further steps are as the last
    whom = trust.trust(None, features=False, budgets=False)
    return accounting.priced(
        mechanism=params.name,
        losses=tuple(
            Gaussian(
                noise_multiplier=float(params.noise_scale) / clip,
                num_steps=1,
                distance=grid.STEP_DISTANCE,
            )
            for clip in clips[:num_steps]
        ),
        delta=float(params.delta),
        sensitivity=max(clips[:num_steps], default=None),
        unit="user",
        relation=relation.USER_REPLACED if times == 2 else relation.USER_ADDED_OR_REMOVED,
        released=params.released,
        status="proved",
        trust_model=whom.model,
        assumptions=whom.assumptions,
        against=whom.against,
        not_covered=whom.not_covered,
    )
