"""The phases for noisy counts and for item means."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpmf_jax import layout
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.als import budgets, estimates, messages
from dpmf_jax.mechanisms.als import state as states
from dpmf_jax.mechanisms.als.config import Config
from dpmf_jax.mechanisms.als.fold_in import PER_QUARTER
from dpmf_jax.mechanisms.als.params import Given, Params, make_params
from dpmf_jax.protocol import Info, Mechanism, State


def counts(config: Config, given: Given, ratio: float) -> Mechanism:
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
    return states.mechanism(params, first_state, query_counts, _update_counts)


def first_state(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    del key, previous
    budgets.check_users(params.groups, data)
    nothing = jnp.zeros(data.num_items, jnp.float32)
    empty = jnp.zeros((data.num_items, params.rank), jnp.float32)
    means = estimates.Means(nothing, nothing, nothing)
    public = states.published(params, means, nothing, (empty, empty), jnp.int32(params.rank))
    return State(public, states.solve(params, public.items, data), jnp.int32(0))


def _weights(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> jax.Array:
    del row, values
    return jnp.sum(jnp.round(present * columns).astype(jnp.int32))


def query_counts(params: Params, state: State, data: Layout, coins: None) -> tuple[jax.Array, Info]:
    del coins
    own = states.user_bounds(params, state)
    weight = jnp.floor(own.clip * (1 - 2.0**-20) / jnp.sqrt(jnp.maximum(state.private.count, 1.0)))
    total = layout.sum_by_item(data, _weights, (), weight, weighted=True)
    _, info = states.sent(params, state, data, own, jnp.float32(1), rank=0)
    return jax.lax.bitcast_convert_type(total, jnp.uint32), info


def _update_counts(params: Params, state: State, response: jax.Array, data: Layout) -> State:
    del data
    count = states.real(response) / states.at_step(params.clip, state)[0]
    return state._replace(public=state.public._replace(count=count))


def means(config: Config, given: Given, ratios: tuple[float, ...]) -> Mechanism:
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
    return states.mechanism(params, _init_after, _query_means, update_means)


def _init_after(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    if previous is None:
        return first_state(params, key, data, None)
    return State(previous, states.solve(params, previous.items, data), jnp.int32(0))


def _query_means(params: Params, state: State, data: Layout, coins: None) -> tuple[Any, Info]:
    del coins
    private, own = state.private, states.user_bounds(params, state)
    kappa = states.at_step(params.clip, state)[0] / (params.message_clip * PER_QUARTER)
    sent, info = states.sent(params, state, data, own, kappa, rank=0)
    sums = messages.item_sums(private.users, sent, state.public.items, params.grid, data, rank=0)
    return (sums, messages.mean_scale(sent, private.count, own.further)), info


def update_means(params: Params, state: State, response: Any, data: Layout) -> State:
    return states.next_state(
        params, state, partial(_new_means, num_users=data.num_users), response, data
    )


def _new_means(given: tuple[Any, ...], *, num_users: int) -> states.Public:
    params, public, step, (sums, scale) = given
    clip, further = params.clip[jnp.minimum(step, len(params.clip) - 1)]
    per_unit = params.message_clip / clip
    means = more_means(
        params, public, per_unit, states.real(sums)[:, 0], states.real(scale) / further, num_users
    )
    factors = states.learned(params, public.items)
    return states.published(params, means, public.count, factors, public.num_learned)


def more_means(
    params: Params,
    public: states.Public,
    per_unit: jax.Array,
    sums: jax.Array,
    scale: jax.Array,
    num_users: int,
) -> estimates.Means:
    """The means after one more pass.

    per_unit: what a unit of `sums` is, in quarters of the width. scale: Σ of the users' scales.
    """
    count = estimates.positive_counts(public.count, params.count_deviation)
    users, noise_variance = states.effective(params, num_users)
    said, variance = estimates.from_messages(
        public.means.center,
        per_unit * sums,
        scale / users,
        count,
        users,
        per_unit * params.noise_scale,
        noise_variance,
    )
    return estimates.means(public.means, said, variance, count)
