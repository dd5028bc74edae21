"""DP-SGD on a count sketch: paper 002's store, with a guarantee.

A rating's gradient, 2d numbers, is written into the sketch depth times, and its entries collide
with each other there, so its norm in the sketch is another one. It is that norm which is clipped to
C: the norm of the table that this rating alone would make of an empty one. Every cell gets noise.
Hashes and a random initial table are public.

The noise in a queried coordinate is that of dense DP-SGD at every depth and gain: the clip is
√depth times as large, and a mean over depth rows undoes that. A small table changes collisions
alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from accounting.guarantee import Guarantee
from dpmf_jax.devices import spread
from dpmf_jax.kernels import count_sketch
from dpmf_jax.kernels.count_sketch import ITEMS, USERS, Hashes
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.sampled import sampled
from dpmf_jax.mechanisms.sampled.guarantee import sampled_guarantee
from dpmf_jax.mechanisms.sampled.sampled import Config as Config
from dpmf_jax.mechanisms.sampled.sampled import Params
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Mechanism, Poisson, Release, State

BLOCK = 512  # ratings whose entries are compared at once


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Public:
    """A function of past responses and public constants.

    table: float32[depth, width].
    hashes: of the table's rows.
    center: float32[], subtracted from the ratings.
    user_factors, item_factors: read from the table for the curator's evaluation; training never
      makes them.
    """

    table: jax.Array
    hashes: Hashes
    center: jax.Array
    num_users: int = dataclasses.field(metadata={"static": True})
    num_items: int = dataclasses.field(metadata={"static": True})
    rank: int = dataclasses.field(metadata={"static": True})
    query: Literal["mean", "median"] = dataclasses.field(metadata={"static": True})

    @property
    def user_factors(self) -> jax.Array:
        return self._vectors(USERS, self.num_users)

    @property
    def item_factors(self) -> jax.Array:
        return self._vectors(ITEMS, self.num_items)

    def _vectors(self, family: int, num: int) -> jax.Array:
        return count_sketch.vectors(
            self.table, self.hashes, family, num, rank=self.rank, how=self.query
        )


def mechanism(config: Config) -> Mechanism:
    """A sketch of all vectors by θ ← θ - η_t(λθ + noisy sum/q) on each of its cells θ.

    One rating's clipped part has L2 norm C in the table, over all of its cells. Prior and noise are
    on all cells at every step, also on those that no rating reaches. Releases the table, the hashes
    and the centre.

    Guarantee: Poisson-sampled Gaussian steps with z = `config.noise_multiplier` by dp_accounting,
      proved for real-number noise; unit `config.unit`: a rating added or removed (Δ = C), or
      another value (Δ = 2C).
    Departs from the paper in everything but the sketch and its width (20); λ is a fixed prior on
      cells, not part of each rating's update.

    Raises: PrivacyError without a noise multiplier.
    """
    params = sampled.dpsgd_params(config)
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(sampled.coins, params.rate),
        query=Partial(_query, params),
        noise=noise.gaussian(params.noise_scale),
        update=Partial(_update, params),
        release=Partial(_release),
        guarantee=Partial(_guarantee, params),
    )


def scattered_norm(addresses: jax.Array, values: jax.Array) -> jax.Array:
    """float32[many]: the L2 norm of the table that each makes of an empty one.

    Entries that share a cell add up before they are squared. The norm is never below the true one:
    where entries cancel, what rounding may have left is added. All pairs of entries are compared,
    in blocks that stay in a core's cache.

    addresses: int32[many, depth, entries], cells.
    values: float32[many, depth, entries].
    """
    many, depth, entries = addresses.shape
    block = min(spread.block(BLOCK), max(many, 1))

    def blocks(part: jax.Array) -> jax.Array:
        part = jnp.pad(part, ((0, -many % block), (0, 0), (0, 0)))
        return part.reshape(-1, block, depth, entries).transpose(0, 3, 1, 2)

    return jax.lax.map(
        lambda part: _block_norms(*part), (blocks(addresses), blocks(values))
    ).reshape(-1)[:many]


def _block_norms(addresses: jax.Array, values: jax.Array) -> jax.Array:
    """[entries, block, depth] -> [block]."""
    entries = len(addresses)
    twice = jnp.concatenate([addresses, addresses]), jnp.concatenate([values, values])

    def compare(turn: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        address, value = (jax.lax.dynamic_slice_in_dim(part, turn, entries) for part in twice)
        same, (total, around, shared) = address == addresses, sums
        value = jnp.where(same, value, 0.0)
        return total + value, around + jnp.abs(value), shared + same

    start = values, jnp.abs(values), jnp.ones_like(values)
    total, around, shared = jax.lax.fori_loop(
        1, entries, compare, start
    )  # each cell is counted by all of its entries
    reach = jnp.abs(total) + jnp.where(shared > 1, (entries + 4) * 2.0**-23 * around, 0.0)
    return jnp.sqrt(jnp.sum(reach**2 / shared, (0, 2)))


def _init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    hash_key, table_key = jax.random.split(key)
    width = count_sketch.width(
        data.num_users, data.num_items, params.rank, depth=params.depth, gain=params.gain
    )
    public = Public(
        table=count_sketch.random_table(table_key, params.depth, width, params.initial_scale),
        hashes=count_sketch.hashes(hash_key, params.depth),
        center=params.center if previous is None else previous.center,
        num_users=data.num_users,
        num_items=data.num_items,
        rank=params.rank,
        query=params.query,
    )
    return State(public, None, jnp.int32(0))


def _query(params: Params, state: State, data: Layout, coins: Poisson) -> tuple[jax.Array, Info]:
    """-Σ of the gradients, each scattered and clipped: float32[depth, width]."""
    public, rank = state.public, params.rank
    drawn = sampled.sample(params, data, coins)
    p, q = (
        count_sketch.query(public.table, public.hashes, family, ids, rank=rank, how=public.query)
        for family, ids in ((USERS, drawn.user), (ITEMS, drawn.item))
    )
    error = sampled.residuals(drawn, p, q, public.center)
    of_user, of_item = error[:, None] * q, error[:, None] * p
    places, parts = [], []
    for family, ids, change in ((USERS, drawn.user, of_user), (ITEMS, drawn.item, of_item)):
        addresses, signs = count_sketch.cells(
            public.hashes, family, ids, rank=rank, width=public.table.shape[1]
        )
        places.append(addresses)
        parts.append(signs * change[:, None, :] / params.clip_norm)
    ratio = scattered_norm(jnp.concatenate(places, -1), jnp.concatenate(parts, -1))
    weight = sampled.at_step(params, state.step)[0]
    scale = sampled.clip_scale(params, ratio, weight, 2 * rank * params.depth)[:, None]
    total = jnp.zeros_like(public.table)
    for family, ids, change in ((USERS, drawn.user, of_user), (ITEMS, drawn.item, of_item)):
        clipped = jnp.where(scale > 0, scale * change, 0.0)
        total = count_sketch.update(total, public.hashes, family, ids, clipped)
    return total, sampled.info(drawn, error, ratio)


def _update(params: Params, state: State, response: jax.Array, data: Layout) -> State:
    del data  # post-processing of the response
    table = sampled.descend(params, state.step, state.public.table, response)
    return state._replace(public=dataclasses.replace(state.public, table=table))


def _release(state: State) -> Release:
    public = state.public
    return Release(
        center=public.center,
        sketch=public.table,
        hashes=public.hashes.words,
        rank=jnp.int32(public.rank),
        median=jnp.bool_(public.query == "median"),
    )


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    made = sampled_guarantee(
        sampled.phases(params, num_steps),
        delta=float(params.delta),
        clip_norm=float(params.clip_norm),
        unit=params.unit,
        released=("sketch", "its hashes and the centre, which are public"),
    )
    return sampled.with_assumptions(made, params)
