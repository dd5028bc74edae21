"""Alternating least squares with noisy item statistics, in phases that run one after the other.

    counts -> means -> factors, T passes -> means

In every pass each user solves for her own level and factors, given what is public of the items
(`kernels.local_ridge`), and sends one message about the items that she rated (`messages`). Noise is
added to the sum of all messages; what is made of it (`estimates`) is public, and is what the next
pass starts from. The rating model is c_i + b_u + ⟨u, v_i⟩,
where the last columns may be for slopes: the item's mean and its popularity (`Config.slopes`).

Noisy counts also say how many ratings users have. Where factors would cost more than they give
(`estimates.signal`), passes for factors send residuals in place of their products with factors, and
learn means. A message is as long either way, so the price is the same.

After Jain, Thakurta, Tewari and Chien et al. ("Private alternating least squares", 2021), Krichene
et al. (2023). It departs from them: a user's whole message is clipped, in one norm; the Gram matrix
of an item is its noisy count times one matrix for all; means and factors have passes of their own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from dpmf_jax.mechanisms.als import factor_passes, mean_passes
from dpmf_jax.mechanisms.als.config import Config
from dpmf_jax.mechanisms.als.params import Given, Params, scaled_features
from dpmf_jax.mechanisms.silent import silent
from dpmf_jax.protocol import Phase

WIDER = 4.0  # clips of messages where nothing is hidden


def phases(
    config: Config, features: np.ndarray | None = None, group: np.ndarray | None = None
) -> tuple[Phase, ...]:
    """All phases, in order; they cost what one step with `config.noise_multiplier` costs.

    Releases item factors (the first is 1, for the level; after those that are learned come the
    columns for slopes and the features), their
    posterior variances and unit, a centre, and nothing of a user.

    Args:
      features: float[items, config.num_features], public, about 0; they are scaled so that
        all weights together explain `config.feature_signal` by a user's prior. Weights are a user's
        own: they cost nothing.
      group: int[users], in the order of the catalogue: which of `config.budgets` is whose. Declared
        beforehand, as the budgets are, and not released. None without budgets.

    Guarantee: of all phases together, exact Gaussian composition over adaptive steps, joint, for a
      user (`config.relation`), proved: messages of whole numbers are bounded by construction
      (`messages`), and the noise is the rounded normal (`noise.whole`). With budgets of their own,
      for each user at her own ε (`budgets` has the proof).

    Raises: PrivacyError for a price for which the noise's grid would be too coarse; ValueError for
      features or groups that are not those of the config.
    """
    shape = None if features is None else features.shape[1]
    if (shape or 0) != config.num_features:
        raise ValueError(f"{shape} features, and num_features {config.num_features}")
    if (group is None) != (not config.budgets):
        raise ValueError("budgets and everybody's group go together")
    counts, of_means, of_factors = config.clips()
    own = Given(scaled_features(config, features), group)
    before = config.num_means - 1 if config.num_passes else config.num_means
    found: list[Phase] = [(mean_passes.counts(config, own, counts), 1)]
    if before:
        found.append((mean_passes.means(config, own, of_means[:before]), before))
    if config.num_passes:
        found.append((factor_passes.factors(config, own, of_factors), config.num_passes))
        found.append((mean_passes.means(config, own, of_means[before:]), config.num_means - before))
    return tuple(found)


def without_noise(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """The same phases without noise and with clips `WIDER` times as wide. They protect nothing.

    It is the same program on other numbers: estimates are told of a noise of one unit, which is
    what rounding leaves.
    """

    def quiet(params: Params) -> Params:
        counts = params.name.endswith("-counts")
        return dataclasses.replace(
            params,
            noise_scale=jnp.float32(1),
            count_deviation=params.count_deviation / params.noise_scale,
            message_clip=params.message_clip * (1 if counts else WIDER),
        )

    def part(given: Any) -> Partial:
        params, *rest = given.args
        return Partial(given.func, quiet(params), *rest, **given.keywords)

    return tuple(
        (
            silent(mechanism)._replace(
                init=part(mechanism.init),
                query=part(mechanism.query),
                update=part(mechanism.update),
            ),
            steps,
        )
        for mechanism, steps in phases
    )
