"""The planted bugs of `als`: what goes wrong where a user's whole message is clipped and priced."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from dpmf_jax import layout
from dpmf_jax.mechanisms.als import factor_passes, mean_passes, messages
from dpmf_jax.mechanisms.als import params as als_params
from dpmf_jax.mechanisms.als import phases as als
from dpmf_jax.mechanisms.als import state as states
from dpmf_jax.mechanisms.als.config import Config
from dpmf_jax.mechanisms.als.fold_in import PER_QUARTER

# Clips lie below what they bound, so that each Δ is reached.
SETTINGS = {
    "rating_range": (1.0, 5.0),
    "noise_multiplier": 0.8,
    "rank": 2,
    "num_passes": 3,
    "num_means": 3,
    "means_clip": 0.2,
    "factors_clip": 0.1,
    "gram_clip": 0.1,
}
WIDE = 0.4


def phase(place):
    """One phase of `als`, by itself: 0 counts, 1 means, 2 factors."""
    return als.phases(Config(**SETTINGS))[place][0]


def _with_query(mechanism, query, **more):
    return mechanism._replace(query=Partial(partial(query, **more), *mechanism.query.args))


def _raw_counts(data):
    """float32[items]: how many rated each item, without noise."""

    def count(row, columns, values, present):
        del row, columns, values
        return jnp.sum(present)

    return layout.sum_by_item(data, count, (), ()).astype(jnp.float32)


def _one_for_each_rating(params, state, data, coins):
    """Every rating counts 1, whoever has many; booked as if a user moved the counts by 1."""
    statistics, info = mean_passes.query_counts(params, state, data, coins)
    del statistics
    clip = jnp.floor(states.at_step(params.clip, state)[0])
    total = _raw_counts(data).astype(jnp.int32) * clip.astype(jnp.int32)
    return jax.lax.bitcast_convert_type(total, jnp.uint32), info


def counts_of_ratings(mechanism):
    return _with_query(mechanism, _one_for_each_rating)


def _factors_query(params, state, data, coins, *, sent_of):
    del coins
    private, items = state.private, state.public.items
    (clip, further), own = states.at_step(params.clip, state), states.user_bounds(params, state)
    unit = factor_passes.per_coefficient(items)
    kappa = clip / (params.message_clip * PER_QUARTER) * unit
    sent, info = states.sent(params, state, data, own, kappa, rank=params.rank)
    sent = sent_of(sent, private, kappa, data)
    sums = messages.item_sums(private.users, sent, items, params.grid, data, rank=params.rank)
    kappa = further / params.further_clip * unit**2
    gram = messages.gram(private.users, sent, private.count, further, kappa, rank=params.rank)
    return (sums, gram), info


def _by_rating(sent, private, kappa, data):
    """Each rating's part is as long as the whole message may be."""
    del kappa, data
    return sent._replace(scale=sent.scale * jnp.sqrt(jnp.maximum(private.count, 1)))


def clip_per_rating(mechanism):
    return _with_query(mechanism, _factors_query, sent_of=_by_rating)


def _unclipped(sent, private, kappa, data):
    """Residuals have their bound; what they are multiplied with has none."""
    del data
    return sent._replace(scale=kappa / jnp.sqrt(jnp.maximum(private.count, 1)))


def no_whole_clip(mechanism):
    return _with_query(mechanism, _factors_query, sent_of=_unclipped)


def _weighed_by_raw_counts(params, state, data, coins):
    """Who rates weighs more where there are more ratings, counted without noise.

    Nobody's message is longer than Δ, but all others' move with one user.
    """
    number = jnp.sum(_raw_counts(data)) / (data.num_users * data.num_items)
    weighed = dataclasses.replace(params, message_clip=params.message_clip / number)
    return factor_passes.query_factors(weighed, state, data, coins)


def weights_from_raw_counts(mechanism):
    """At a clip that leaves most messages as they are."""
    del mechanism
    wide = als.phases(Config(**SETTINGS | {"factors_clip": WIDE}))[2][0]
    return _with_query(wide, _weighed_by_raw_counts)


def _bare_last(sample, key, statistics):
    return (*sample(key, statistics)[:-1], statistics[-1])


def gram_without_noise(mechanism):
    noise = mechanism.noise
    return mechanism._replace(noise=noise._replace(sample=Partial(_bare_last, noise.sample)))


def _fitted_to_raw_counts(params, state, response, data):
    raw = state.public._replace(count=_raw_counts(data))
    state = mean_passes.update_means(params, state._replace(public=raw), response, data)
    return state._replace(public=state.public._replace(count=raw.count))


def prior_from_raw_counts(mechanism):
    return mechanism._replace(update=Partial(_fitted_to_raw_counts, *mechanism.update.args))


def _one_pass_less(guarantee, num_steps):
    return guarantee(num_steps - 1)


def last_pass_unpaid(mechanism):
    return mechanism._replace(guarantee=Partial(_one_pass_less, mechanism.guarantee))


def _with_users(release, state):
    return release(state)._replace(user_factors=state.private.user_factors)


def users_released(mechanism):
    return mechanism._replace(release=Partial(_with_users, mechanism.release))


def replaced_as_removed(mechanism):
    """The clips of a user who comes or goes, under a promise for one who is replaced."""
    params = mechanism.query.args[0]
    halved = dataclasses.replace(params, relation="user replaced", whole_clip=params.whole_clip / 2)
    return mechanism._replace(guarantee=Partial(als_params.guarantee, halved))
