"""Paper 002 as published: online factorisation in a count sketch, without privacy.

One table keeps the vectors of all users and items. A rating is predicted from queried vectors, and
their changes are added to their cells (3.2), which others share. The paper's ε is a threshold of
the loss. No draw from a posterior is made: given hashes, initial table and order, nothing is
random. `sketch.dpsgd` is what can be proved.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from accounting.guarantee import Guarantee
from dpmf_jax.kernels import count_sketch, epoch
from dpmf_jax.kernels.count_sketch import ITEMS, USERS
from dpmf_jax.layout import Layout, ordered
from dpmf_jax.mechanisms.sketch import online
from dpmf_jax.mechanisms.sketch.guarantee import sketch_published_guarantee
from dpmf_jax.mechanisms.sketch.means import Means
from dpmf_jax.mechanisms.sketch.online import Config as Config
from dpmf_jax.mechanisms.sketch.online import Params
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Mechanism, Release, State


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Public:
    """All that is kept.

    table: float32[depth, width].
    hashes: of the table's rows.
    means: what is subtracted from ratings.
    user_factors, item_factors: read from the table for the curator's evaluation.
    """

    table: jax.Array
    hashes: count_sketch.Hashes
    means: Means
    num_users: int = dataclasses.field(metadata={"static": True})
    num_items: int = dataclasses.field(metadata={"static": True})
    rank: int = dataclasses.field(metadata={"static": True})
    query: online.Query = dataclasses.field(metadata={"static": True})

    @property
    def user_factors(self) -> jax.Array:
        return self.means.with_users(self._vectors(USERS, self.num_users))

    @property
    def item_factors(self) -> jax.Array:
        return self.means.with_items(self._vectors(ITEMS, self.num_items))

    @property
    def center(self) -> jax.Array:
        return self.means.center

    def _vectors(self, family: int, num: int) -> jax.Array:
        return count_sketch.vectors(
            self.table, self.hashes, family, num, rank=self.rank, how=self.query
        )


class Response(NamedTuple):
    """What an epoch leaves: the table and the means."""

    table: jax.Array
    means: Means


def mechanism(config: Config, schedule: ordered.Schedule | None = None) -> Mechanism:
    """A sketch of all vectors by sequential SGD, one rating after the other; a step is an epoch.

    The sketch has `config.depth` rows of the width of (20); a depth of 1 is feature hashing. Info
    is as in `online.regular`. Releases the table, the hashes and what was subtracted from ratings.

    Guarantee: none. ε is a threshold above which ratings are not learnt from.
    Departs from the paper: the sign of (5). The initial table, on which it is silent, is random.

    Args:
      schedule: for the layout's kind. Its ratings are learnt from one after the other, batch by
        batch: `size=1` keeps the order that it was made from. None: in an order that is drawn anew
        in each epoch (`ordered.shuffled`, the step's coins are the key). With median queries an
        epoch is slow.
    """
    return _mechanism(config, None if schedule is None else online.mini_batches(schedule, 1))


def mini_batch(config: Config, schedule: ordered.Schedule, *, size: int = 256) -> Mechanism:
    """A sketch as by `mechanism`, but in batches, whose ratings share the table from before.

    `size` ratings are a batch. Their changes are summed, so the result is another one.

    Raises: UsageError for a size below 1.
    """
    return _mechanism(config, online.mini_batches(schedule, size))


def _mechanism(config: Config, schedule: ordered.Schedule | None) -> Mechanism:
    params = online.make_params(config)
    return Mechanism(
        init=Partial(_init, params),
        coins=online.coins(schedule),
        query=Partial(_query, params, jax.tree.map(jnp.asarray, schedule)),
        noise=noise.none(),
        update=Partial(_update),
        release=Partial(_release),
        guarantee=Partial(_guarantee, params),
    )


def _init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    del previous  # nothing public is taken over: the means are of the ratings, or a constant
    hash_key, table_key = jax.random.split(key)
    width = count_sketch.width(
        data.num_users, data.num_items, params.rank, depth=params.depth, gain=params.gain
    )
    public = Public(
        table=count_sketch.random_table(table_key, params.depth, width, params.initial_scale),
        hashes=count_sketch.hashes(hash_key, params.depth),
        means=online.first_means(params, data),
        num_users=data.num_users,
        num_items=data.num_items,
        rank=params.rank,
        query=params.query,
    )
    return State(public, None, jnp.int32(0))


def _query(
    params: Params,
    schedule: ordered.Schedule | None,
    state: State,
    data: Layout,
    coins: jax.Array | None,
) -> tuple[Response, Info]:
    """A whole epoch: the statistics are the table after it."""
    public, means = state.public, online.means(params, state, data)
    schedule = online.in_order(schedule, data, coins)
    rule, offset = online.rule(params, state.step), means.at(schedule.user, schedule.item)
    if schedule.user.shape[1] == 1 and params.query == "mean":
        run = epoch.sketched
    else:
        run = Partial(epoch.sketched_batches, how=params.query)
    table, seen = run(public.table, public.hashes, schedule, data, rule, offset, rank=params.rank)
    return Response(table, means), online.info(seen)


def _update(state: State, response: Response, data: Layout) -> State:
    del data
    return state._replace(
        public=dataclasses.replace(state.public, table=response.table, means=response.means)
    )


def _release(state: State) -> Release:
    public = state.public
    means = public.means
    nothing = [jnp.zeros((num, 0), jnp.float32) for num in (public.num_users, public.num_items)]
    return Release(
        user_factors=None if means.user is None else means.with_users(nothing[0]),
        item_factors=None if means.item is None else means.with_items(nothing[1]),
        center=means.center,
        sketch=public.table,
        hashes=public.hashes.words,
        rank=jnp.int32(public.rank),
        median=jnp.bool_(public.query == "median"),
    )


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    threshold = float(params.threshold)
    made = sketch_published_guarantee(
        num_steps=num_steps, clip_threshold=threshold if math.isfinite(threshold) else None
    )
    more = "global, user and item means" if params.preprocess else "the centre, a constant"
    return dataclasses.replace(made, released=(*made.released, "its hashes", more))
