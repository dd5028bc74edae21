"""What a phase of als is made with, and what it promises."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import accounting
from accounting import relation
from accounting.guarantee import Guarantee
from accounting.loss import Gaussian
from dpmf_jax.kernels.local_ridge import Grid
from dpmf_jax.mechanisms.als import budgets, fold_in, trust
from dpmf_jax.mechanisms.als.config import Config, length, scales, units


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """Of one phase.

    clip: float32[steps, 2], of each step, in units: of what goes to items, and of the one more sum.
    whole_clip: float32[steps], of both together. noise_scale: of the noise in a response, in units.
    priced_scale, distance: σ that the price relies on, and how far a step's noise is from it
      (`config.Scales`). count_deviation: of a noisy count.
    priors: float32[1 + columns], `fold_in.public_priors`.
    message_clip, further_clip: of both sums, in quarters of the width, times factors.
    means_clip: of messages for means.
    few: `Config.few`, or rank where that is less. signals: float32[2], from which on so many
      factors are learned, and from which on all.
    non_negative: how many factors, the first ones, are at least 0: all that are learned, or none.
    slope_scale: of the columns for slopes; None where there are none.
    features: float32[items, p], public, scaled (`scaled_features`).
    honest_shares: None where a curator adds the noise.
    groups: users with budgets of their own; None where all have the same.
    """

    clip: jax.Array
    whole_clip: jax.Array
    noise_scale: jax.Array
    count_deviation: jax.Array
    grid: Grid
    priors: jax.Array
    message_clip: jax.Array
    further_clip: jax.Array
    means_clip: jax.Array
    signals: jax.Array
    settings: tuple[jax.Array, ...]
    slope_scale: jax.Array | None
    features: jax.Array | None
    groups: budgets.Groups | None
    delta: float | jax.Array  # read on the host alone, so a float, like the two below
    priced_scale: float | jax.Array
    distance: float | jax.Array
    honest_shares: int | None = dataclasses.field(metadata={"static": True})
    rank: int = dataclasses.field(metadata={"static": True})
    few: int = dataclasses.field(metadata={"static": True})
    non_negative: int = dataclasses.field(metadata={"static": True})
    relation: str = dataclasses.field(metadata={"static": True})
    released: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    name: str = dataclasses.field(metadata={"static": True})


class Given(NamedTuple):
    """What is declared beside the settings.

    features: `scaled_features`. group: int[users], of `Config.budgets`; None without any.
    """

    features: jax.Array | None
    group: Any


def scaled_features(config: Config, features: np.ndarray | None) -> jax.Array | None:
    """Features over whose items the mean squared length is feature_signal·λ_u."""
    if features is None:
        return None
    squared = float(np.mean(np.sum(np.square(features, dtype=np.float64), axis=1)))
    scale = np.sqrt(config.feature_signal * config.regularization / max(squared, 1e-12))
    return jnp.asarray(features * scale, jnp.float32)


def make_params(
    config: Config,
    given: Given,
    ratios: tuple[float, ...],
    part: float,
    *,
    name: str,
    **own: Any,
) -> Params:
    scale, of_counts = scales(config, max(ratios)), scales(config, config.clips()[0])
    wholes = [units(ratio, scale.priced) for ratio in ratios]
    clips = [length(part, one) for one in wholes]
    family = "als" if config.honest_shares is None else "als-federated"
    groups = None
    if config.budgets:
        shares = budgets.shares(config.budgets)
        each = [[units(ratio * share, scale.priced) for share in shares] for ratio in ratios]
        lengths = [[length(part, one) for one in row] for row in each]
        groups = budgets.make_groups(config.budgets, given.group, lengths, each)
    return Params(
        clip=jnp.asarray(clips, jnp.float32),
        whole_clip=jnp.asarray(wholes, jnp.float32),
        noise_scale=jnp.float32(scale.drawn),
        priced_scale=scale.priced,
        distance=scale.distance,
        count_deviation=jnp.float32(of_counts.drawn / units(config.clips()[0], of_counts.priced)),
        grid=fold_in.public_grid(config),
        priors=fold_in.public_priors(config),
        settings=tuple(
            jnp.float32(value)
            for value in (
                *(config.noise_variance, config.regularization),
                *(config.signal, config.evenness),
            )
        ),
        slope_scale=(
            jnp.float32(np.sqrt(config.slope_signal * config.regularization))
            if config.slopes
            else None
        ),
        means_clip=jnp.float32(config.means_clip),
        signals=jnp.asarray((config.least_signal, config.much_signal), jnp.float32),
        few=min(config.few, config.rank),
        features=given.features,
        groups=groups,
        delta=config.delta,
        rank=config.rank,
        non_negative=config.num_non_negative,
        relation=config.relation,
        honest_shares=config.honest_shares,
        name=f"{family}-{name}",
        **own,
    )


def guarantee(params: Params, num_steps: int) -> Guarantee:
    times = 2.0 if params.relation == "user replaced" else 1.0
    clips = [times * float(clip) for clip in params.whole_clip]
    clips += clips[-1:] * (num_steps - len(clips))  # further steps are as the last
    whom = trust.trust(
        params.honest_shares,
        features=params.features is not None,
        budgets=params.groups is not None,
    )
    return accounting.priced(
        mechanism=params.name,
        losses=tuple(
            Gaussian(
                noise_multiplier=float(params.priced_scale) / clip,
                num_steps=1,
                distance=float(params.distance),
            )
            for clip in clips[:num_steps]
        ),
        delta=float(params.delta),
        sensitivity=max(clips[:num_steps], default=None),
        unit="user",
        relation=relation.USER_REPLACED if times == 2 else relation.USER_ADDED_OR_REMOVED,
        released=(*params.released, *whom.released),
        status="proved",
        trust_model=whom.model,
        assumptions=whom.assumptions,
        against=whom.against,
        not_covered=whom.not_covered,
        rounds_are_seen=params.honest_shares is not None,
        surplus_noise=max(1.0, float(params.noise_scale) / float(params.priced_scale)),
        groups=(
            ()
            if params.groups is None
            else budgets.losses(
                params.groups,
                float(params.priced_scale),
                times,
                num_steps,
                distance=float(params.distance),
            )
        ),
    )
