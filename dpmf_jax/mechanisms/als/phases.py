"""Alternating least squares with noisy item statistics, in phases that run one after the other.

    counts -> means -> factors, T passes -> means

In every pass each user solves for her own level and factors, given what is public of the items
(`kernels.local_ridge`), and sends one message about the items that she rated (`messages`). Noise is
added to the sum of all messages; what is made of it (`estimates`) is public, and is what the next
pass starts from. The rating model is c_i + b_u + ⟨u, v_i⟩.

After Jain, Thakurta, Tewari and Chien et al. ("Private alternating least squares", 2021), Krichene
et al. (2023). It departs from them: a user's whole message is clipped, in one norm; the Gram matrix
of an item is its noisy count times one matrix for all; means and factors have passes of their own.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from dpmf_jax import layout
from dpmf_jax.devices import spread
from dpmf_jax.kernels import local_ridge, steady
from dpmf_jax.kernels.local_ridge import USER_BITS, Items, Users
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims
from dpmf_jax.mechanisms.als import budgets, estimates, fold_in, messages
from dpmf_jax.mechanisms.als.config import Config
from dpmf_jax.mechanisms.als.fold_in import PER_QUARTER
from dpmf_jax.mechanisms.als.params import (
    Given,
    Params,
    guarantee,
    make_params,
    scaled_features,
)
from dpmf_jax.mechanisms.silent import silent
from dpmf_jax.noise import whole
from dpmf_jax.noise.ring import signed
from dpmf_jax.protocol import Info, Mechanism, Phase, Release, State

WIDER = 4.0  # clips of messages where nothing is hidden


class Public(NamedTuple):
    """A function of past responses and public constants.

    items: what users answer to, on grids. means: see `estimates`. count: float32[items], noisy Σ w.
    item_factors: float32[items, 1 + d], ones and `items.units` in their unit.
    center: float32[items].
    """

    items: Items
    means: estimates.Means
    count: jax.Array
    item_factors: jax.Array
    center: jax.Array


class Private(NamedTuple):
    """What never leaves the users, or the curator for them.

    user_factors: float32[users, 1 + d], level and factors. users: the same in whole numbers.
    count: float32[users], ratings.
    """

    user_factors: jax.Array
    users: Users
    count: jax.Array


def phases(
    config: Config, features: np.ndarray | None = None, group: np.ndarray | None = None
) -> tuple[Phase, ...]:
    """All phases, in order; they cost what one step with `config.noise_multiplier` costs.

    Releases item factors (the first is 1, for the level; the last are the features), their
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
    found: list[Phase] = [(_counts(config, own, counts), 1)]
    if before:
        found.append((_means(config, own, of_means[:before]), before))
    if config.num_passes:
        found.append((_factors(config, own, of_factors), config.num_passes))
        found.append((_means(config, own, of_means[before:]), config.num_means - before))
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


def _mechanism(params: Params, init: Any, query: Any, update: Any) -> Mechanism:
    return Mechanism(
        init=Partial(init, params),
        coins=Partial(claims.no_coins),
        query=Partial(query, params),
        noise=whole.rounded_normal(float(params.noise_scale)),
        update=Partial(update, params),
        release=Partial(_release),
        guarantee=Partial(guarantee, params),
    )


def _release(state: State) -> Release:
    public, items = state.public, state.public.items
    release = Release(item_factors=public.item_factors, center=public.center)
    if not items.units.shape[1]:
        return release
    variance = items.unit**2 * items.variance
    return release._replace(factor_variance=variance, factor_unit=items.unit)


# --- what all phases share


def _solve(params: Params, items: Items, data: Layout) -> Private:
    found = fold_in.solve(items, params.grid, params.priors, data, non_negative=params.non_negative)
    return Private(*found)


def _published(
    params: Params,
    means: estimates.Means,
    count: jax.Array,
    factors: tuple[jax.Array, jax.Array],
) -> Public:
    on = params.grid
    center = on.middle + on.step * PER_QUARTER * means.center
    if params.features is not None:
        learned, variance = factors
        known = jnp.zeros_like(params.features)  # exactly
        factors = _joined(learned, params.features), _joined(variance, known)
    items = local_ridge.on_grid(center, *factors, on)
    ones = jnp.ones((len(center), 1), jnp.float32)
    return Public(
        items=items,
        means=means,
        count=count,
        item_factors=jnp.concatenate([ones, items.unit * items.units], axis=1),
        center=on.middle + on.step * items.center,
    )


def _joined(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.concatenate([left, right], axis=1)


def _learned(params: Params, items: Items) -> tuple[jax.Array, jax.Array]:
    """(item factors, their variances), without the public features."""
    units, variance = items.units[:, : params.rank], items.variance[:, : params.rank]
    return items.unit * units, items.unit**2 * variance


def _sent(
    params: Params, state: State, data: Layout, own: budgets.Own, kappa: jax.Array, *, rank: int
) -> tuple[messages.Sent, Info]:
    private, items = state.private, state.public.items
    norms = local_ridge.residual_norms(private.users, items, params.grid, data)
    kappa = kappa * own.share
    sent = messages.scales(private.users, private.count, norms, own.clip, kappa, rank=rank)
    loss = params.grid.step**2 * jnp.sum(sent.squared) / data.num_ratings
    return sent, Info(loss, jnp.mean(sent.fraction < 1))


def _at(per_step: jax.Array, state: State) -> jax.Array:
    return per_step[jnp.minimum(state.step, len(per_step) - 1)]


def _user_bounds(params: Params, state: State) -> budgets.Own:
    """What this step allows each user."""
    at = jnp.minimum(state.step, len(params.clip) - 1)
    return budgets.user_bounds(params.groups, params.clip[at], at)


def _effective(params: Params, num_users: int) -> tuple[Any, jax.Array]:
    """(users, each counted by her share of the largest budget; variance of a rating).

    Sums are of messages that are as long as budgets are. So counts and mean scales are weighted
    by budgets, and unbiased as they are without. What ratings vary by adds up in squares: Σ share²
    for Σ share, of which the variance takes the quotient.
    """
    variance = params.settings[0]
    if params.groups is None:
        return num_users, variance
    return params.groups.total, params.groups.square * variance


def _real(response: jax.Array) -> jax.Array:
    return signed(response).astype(jnp.float32)


def _next(params: Params, state: State, make: Any, response: Any, data: Layout) -> State:
    """The public state of `make`; then everybody's own answer to it."""
    public = _alike(make, state.step, (params, state.public, state.step, response), data)
    return state._replace(public=public, private=_solve(params, public.items, data))


def _alike(make: Any, number: jax.Array, given: tuple[Any, ...], data: Layout) -> Public:
    """`make(given)`, on every device, of the same bits however many there are.

    number: int32[], any that is at least 0 and that the compiler does not know.
    """
    return spread.by_each(data.num_devices, steady.alike(make), steady.hidden_zero(number), given)


# --- counts


def _counts(config: Config, given: Given, ratio: float) -> Mechanism:
    params = make_params(
        config,
        given,
        (ratio,),
        0.0,
        message_clip=jnp.float32(1),
        further_clip=jnp.float32(0),
        released=("noisy counts",),
        name="counts",
    )
    return _mechanism(params, _init_counts, _query_counts, _update_counts)


def _init_counts(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    del key, previous
    budgets.check_users(params.groups, data)
    nothing = jnp.zeros(data.num_items, jnp.float32)
    empty = jnp.zeros((data.num_items, params.rank), jnp.float32)
    means = estimates.Means(nothing, nothing, nothing)
    public = _published(params, means, nothing, (empty, empty))
    return State(public, _solve(params, public.items, data), jnp.int32(0))


def _weights(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> jax.Array:
    del row, values
    return jnp.sum((present * columns).astype(jnp.int32))


def _query_counts(
    params: Params, state: State, data: Layout, coins: None
) -> tuple[jax.Array, Info]:
    del coins
    own = _user_bounds(params, state)
    weight = jnp.floor(own.clip * (1 - 2.0**-20) / jnp.sqrt(jnp.maximum(state.private.count, 1.0)))
    total = layout.sum_by_item(data, _weights, (), weight)
    _, info = _sent(params, state, data, own, jnp.float32(1), rank=0)
    return jax.lax.bitcast_convert_type(total, jnp.uint32), info


def _update_counts(params: Params, state: State, response: jax.Array, data: Layout) -> State:
    del data
    count = _real(response) / _at(params.clip, state)[0]
    return state._replace(public=state.public._replace(count=count))


# --- means


def _means(config: Config, given: Given, ratios: tuple[float, ...]) -> Mechanism:
    params = make_params(
        config,
        given,
        ratios,
        config.scale_share,
        message_clip=jnp.float32(config.means_clip),
        further_clip=jnp.float32(1),
        released=("item means",),
        name="means",
    )
    return _mechanism(params, _init_after, _query_means, _update_means)


def _init_after(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    if previous is None:
        return _init_counts(params, key, data, None)
    return State(previous, _solve(params, previous.items, data), jnp.int32(0))


def _query_means(params: Params, state: State, data: Layout, coins: None) -> tuple[Any, Info]:
    del coins
    private, own = state.private, _user_bounds(params, state)
    kappa = _at(params.clip, state)[0] / (params.message_clip * PER_QUARTER)
    sent, info = _sent(params, state, data, own, kappa, rank=0)
    sums = messages.item_sums(private.users, sent, state.public.items, params.grid, data, rank=0)
    return (sums, messages.mean_scale(sent, private.count, own.further)), info


def _update_means(params: Params, state: State, response: Any, data: Layout) -> State:
    return _next(params, state, partial(_new_means, num_users=data.num_users), response, data)


def _new_means(given: tuple[Any, ...], *, num_users: int) -> Public:
    params, public, step, (sums, scale) = given
    clip, further = params.clip[jnp.minimum(step, len(params.clip) - 1)]
    per_unit = params.message_clip / clip
    count = estimates.positive_counts(public.count, params.count_deviation)
    users, noise_variance = _effective(params, num_users)
    said, variance = estimates.from_messages(
        public.means.center,
        per_unit * _real(sums)[:, 0],
        _real(scale) / (further * users),
        count,
        users,
        per_unit * params.noise_scale,
        noise_variance,
    )
    means = estimates.means(public.means, said, variance, count)
    return _published(params, means, public.count, _learned(params, public.items))


# --- factors


def _factors(config: Config, given: Given, ratios: tuple[float, ...]) -> Mechanism:
    params = make_params(
        config,
        given,
        ratios,
        config.gram_share,
        message_clip=jnp.float32(config.factors_clip),
        further_clip=jnp.float32(config.gram_clip),
        released=("item factors", "their posterior variances", "a Gram matrix"),
        name="factors",
    )
    return _mechanism(params, _init_factors, _query_factors, _update_factors)


def _init_factors(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    if previous is None:
        previous = _init_counts(params, key, data, None).public
    unit = jax.lax.bitcast_convert_type(previous.items.unit, jnp.int32)
    public = _alike(_first_factors, unit, (params, key, previous), data)
    return State(public, _solve(params, public.items, data), jnp.int32(0))


def _first_factors(given: tuple[Any, ...]) -> Public:
    params, key, before = given
    count = estimates.positive_counts(before.count, params.count_deviation)
    factors = estimates.first_factors(key, before.means.center, count, params.rank)
    factors = factors * jnp.sqrt(params.settings[1])
    if params.non_negative:
        factors = jnp.maximum(factors, 0.0)
    return _published(params, before.means, before.count, (factors, 0 * factors))


def _per_coefficient(items: Items) -> jax.Array:
    """What a unit of a user's factors is, for ratings in quarters of the width."""
    return 2.0**-USER_BITS / (PER_QUARTER * items.unit)


def _query_factors(params: Params, state: State, data: Layout, coins: None) -> tuple[Any, Info]:
    del coins
    private, items = state.private, state.public.items
    (clip, further), own = _at(params.clip, state), _user_bounds(params, state)
    kappa = clip / (params.message_clip * PER_QUARTER) * _per_coefficient(items)
    sent, info = _sent(params, state, data, own, kappa, rank=params.rank)
    sums = messages.item_sums(private.users, sent, items, params.grid, data, rank=params.rank)
    kappa = further / params.further_clip * _per_coefficient(items) ** 2 * own.share
    gram = messages.gram(private.users, sent, private.count, own.further, kappa, rank=params.rank)
    return (sums, gram), info


def _update_factors(params: Params, state: State, response: Any, data: Layout) -> State:
    return _next(params, state, partial(_new_factors, num_users=data.num_users), response, data)


def _new_factors(given: tuple[Any, ...], *, num_users: int) -> Public:
    params, public, step, (sums, gram) = given
    clip, further = params.clip[jnp.minimum(step, len(params.clip) - 1)]
    users, noise_variance = _effective(params, num_users)
    factors = estimates.factors(
        _learned(params, public.items),
        step == 0,
        params.message_clip / clip * _real(sums),
        params.further_clip / further * _real(gram),
        estimates.positive_counts(public.count, params.count_deviation),
        users,
        params.message_clip / clip * params.noise_scale,
        (noise_variance, *params.settings[1:]),
        non_negative=params.non_negative > 0,
    )
    return _published(params, public.means, public.count, factors)
