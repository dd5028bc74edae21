"""The phase for item factors."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpmf_jax.kernels.local_ridge import USER_BITS, Items
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.als import estimates, mean_passes, messages
from dpmf_jax.mechanisms.als import state as states
from dpmf_jax.mechanisms.als.config import Config
from dpmf_jax.mechanisms.als.fold_in import PER_QUARTER
from dpmf_jax.mechanisms.als.params import Given, Params, make_params
from dpmf_jax.protocol import Info, Mechanism, State


def factors(config: Config, given: Given, ratios: tuple[float, ...]) -> Mechanism:
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
    return states.mechanism(params, first_state, query_factors, _update_factors)


def first_state(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    if previous is None:
        previous = mean_passes.first_state(params, key, data, None).public
    unit = jax.lax.bitcast_convert_type(previous.items.unit, jnp.int32)
    make = partial(_first_factors, num_users=data.num_users)
    public = states.alike(make, unit, (params, key, previous), data)
    return State(public, states.solve(params, public.items, data), jnp.int32(0))


def _first_factors(given: tuple[Any, ...], *, num_users: int) -> states.Public:
    params, key, before = given
    count = estimates.positive_counts(before.count, params.count_deviation)
    users, noise_variance = states.effective(params, num_users)
    found = estimates.signal(
        count,
        users,
        params.message_clip * params.noise_scale / jnp.sqrt(jnp.sum(params.clip[:, 0] ** 2)),
        (noise_variance, *params.settings[1:3]),
        params.few,
    )
    num_learned = jnp.where(found < params.signals[1], jnp.int32(params.few), params.rank)
    num_learned = jnp.where(found < params.signals[0], 0, num_learned)
    factors = estimates.first_factors(key, before.means.center, count, params.rank, num_learned)
    factors = factors * jnp.sqrt(params.settings[1])
    if params.non_negative:
        factors = jnp.maximum(factors, 0.0)
    return states.published(params, before.means, before.count, (factors, 0 * factors), num_learned)


def per_coefficient(items: Items) -> jax.Array:
    """What a unit of a user's factors is, for ratings in quarters of the width."""
    return 2.0**-USER_BITS / (PER_QUARTER * items.unit)


def query_factors(params: Params, state: State, data: Layout, coins: None) -> tuple[Any, Info]:
    """Messages about factors; where these do not pay, residuals alone, in the first column.

    Then every user's factors are taken to be (1, 0, ...), as those of the items are 0. So it is the
    same message, with the same bound, and its Gram matrix holds the mean scale.
    """
    del coins
    private, items = state.private, state.public.items
    (clip, further), own = states.at_step(params.clip, state), states.user_bounds(params, state)
    pay, coefficient = state.public.num_learned > 0, per_coefficient(items)
    one = jnp.zeros_like(private.users.units).at[:, 0].set(1.0)
    users = private.users._replace(units=jnp.where(pay, private.users.units, one))
    state = state._replace(private=private._replace(users=users))
    of_factors = clip / (params.message_clip * PER_QUARTER) * coefficient
    kappa = jnp.where(pay, of_factors, clip / (params.means_clip * PER_QUARTER))
    sent, info = states.sent(params, state, data, own, kappa, rank=params.rank)
    sums = messages.item_sums(users, sent, items, params.grid, data, rank=params.rank)
    of_factors = further / params.further_clip * coefficient**2
    kappa = jnp.where(pay, of_factors, messages.gram_room(further, params.rank) ** 2) * own.share
    gram = messages.gram(users, sent, private.count, own.further, kappa, rank=params.rank)
    return (sums, gram), info


def _update_factors(params: Params, state: State, response: Any, data: Layout) -> State:
    return states.next_state(
        params, state, partial(new_factors, num_users=data.num_users), response, data
    )


def new_factors(given: tuple[Any, ...], *, num_users: int) -> states.Public:
    params, public, step, (sums, gram) = given
    clip, further = params.clip[jnp.minimum(step, len(params.clip) - 1)]
    users, noise_variance = states.effective(params, num_users)
    factors = estimates.factors(
        states.learned(params, public.items),
        step == 0,
        params.message_clip / clip * states.real(sums),
        params.further_clip / further * states.real(gram),
        estimates.positive_counts(public.count, params.count_deviation),
        users,
        params.message_clip / clip * params.noise_scale,
        (noise_variance, *params.settings[1:]),
        public.num_learned,
        non_negative=params.non_negative > 0,
    )
    scale = states.real(gram)[0, 0] / messages.gram_room(further, params.rank) ** 2
    per_unit = params.means_clip / clip
    means = mean_passes.more_means(
        params, public, per_unit, states.real(sums)[:, 0], scale, num_users
    )
    means = jax.tree.map(partial(jnp.where, public.num_learned > 0), public.means, means)
    return states.published(params, means, public.count, factors, public.num_learned)
