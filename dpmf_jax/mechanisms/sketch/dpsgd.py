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
from dpmf_jax.kernels import count_sketch, whole_descent
from dpmf_jax.kernels.count_sketch import ITEMS, USERS, Hashes
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.sampled import sampled
from dpmf_jax.mechanisms.sampled.guarantee import sampled_guarantee
from dpmf_jax.mechanisms.sampled.sampled import Config as Config
from dpmf_jax.mechanisms.sampled.sampled import Params
from dpmf_jax.noise import whole
from dpmf_jax.protocol import Info, Mechanism, Poisson, Release, State

BLOCK = 512  # ratings whose entries are compared at once
MOST_UNITS = 2.0**15  # of one cell, where it is read; sums over rows are exact


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
      proved: what a rating contributes is whole numbers, and the noise is the rounded normal
      (`sampled`); unit `config.unit`: a rating added or removed (Δ = C), or another value (Δ = 2C).
    Departs from the paper in everything but the sketch and its width (20); λ is a fixed prior on
      cells, not part of each rating's update.

    Raises: PrivacyError without a noise multiplier, or for one so large that the grid would be too
      coarse.
    """
    params = sampled.dpsgd_params(config)
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(sampled.coins, params.rate),
        query=Partial(_query, params),
        noise=whole.rounded_normal(float(params.noise_scale)),
        update=Partial(_update, params),
        release=Partial(_release),
        guarantee=Partial(_guarantee, params),
    )


def scattered_norms(
    addresses: jax.Array, signs: jax.Array, rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The L2 norms of the tables that each makes of an empty one: float32[many], both.

    Of its rows, and of ones without signs. Entries that share a cell add up before they are
    squared. All pairs of entries are compared, in blocks that stay in a core's cache, and summed in
    int32: within 2^-22 of the truth, and the same in any order.

    addresses: int32[many, depth, entries], cells.
    signs: float32[many, depth, entries], ±1.
    rows: float32[many, entries], whole, of norm at most √2·`sampled.ROW`.
    """
    many, depth, entries = addresses.shape
    block = min(spread.block(BLOCK), max(many, 1))
    values = (signs * rows[:, None, :]).astype(jnp.int32)

    def blocks(part: jax.Array) -> jax.Array:
        part = jnp.pad(part, ((0, -many % block), (0, 0), (0, 0)))
        return part.reshape(-1, block, depth, entries).transpose(0, 3, 1, 2)

    norms = jax.lax.map(lambda part: _block_norms(*part), (blocks(addresses), blocks(values)))
    of_rows, of_ones = (part.reshape(-1)[:many] for part in norms)
    return of_rows, of_ones


def _block_norms(addresses: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int32[entries, block, depth] both -> float32[block] both.

    The squares of a cell are each of its entries times its total.
    """
    entries = len(addresses)
    twice = jnp.concatenate([addresses, addresses]), jnp.concatenate([values, values])

    def compare(turn: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        address, value = (jax.lax.dynamic_slice_in_dim(part, turn, entries) for part in twice)
        same, (total, shared) = address == addresses, sums
        return total + jnp.where(same, value, 0), shared + same

    start = values, jnp.ones_like(values)
    total, shared = jax.lax.fori_loop(1, entries, compare, start)
    squares = values * total  # below 2^31, of at most 2^12 times √(2·rank)·2^12.5
    high, low = (jnp.sum(part, (0, 2)) for part in (squares >> 12, squares & (2**12 - 1)))
    of_rows = high.astype(jnp.float32) * 2.0**12 + low.astype(jnp.float32)
    return jnp.sqrt(of_rows), jnp.sqrt(jnp.sum(shared, (0, 2)).astype(jnp.float32))


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


def _on_grid(params: Params, public: Public, family: int, ids: jax.Array) -> jax.Array:
    """The vectors of ids, float32[many, rank], in whole units.

    Cells are whole before they are read, so sums of them are exact.
    """
    cells = jnp.round(public.table * (sampled.ROW / sampled.grid_of(params).longest))
    cells = jnp.clip(jnp.nan_to_num(cells, nan=0.0), -MOST_UNITS, MOST_UNITS)
    vectors = count_sketch.query(
        cells, public.hashes, family, ids, rank=public.rank, how=public.query
    )
    return whole_descent.on_grid(vectors, jnp.float32(sampled.ROW), sampled.ROW).units


def _query(params: Params, state: State, data: Layout, coins: Poisson) -> tuple[jax.Array, Info]:
    """-Σ of the gradients, each scattered and clipped, in units: uint32[depth, width]."""
    public = state.public
    depth, width = public.table.shape
    drawn = sampled.sample(params, data, coins)
    of_ids = ((USERS, drawn.user), (ITEMS, drawn.item))
    p, q = (_on_grid(params, public, *of_id) for of_id in of_ids)
    error = sampled.residuals(params, drawn, p, q, public.center)
    cells = [
        count_sketch.cells(public.hashes, *of_id, rank=public.rank, width=width) for of_id in of_ids
    ]
    addresses, signs = (jnp.concatenate(parts, -1) for parts in zip(*cells, strict=True))
    moved = jnp.concatenate([q, p], -1)
    lengths, corners = scattered_norms(addresses, signs, moved)
    multiplier, shrunk = sampled.clipped(params, state.step, error, lengths, corners)
    part = sampled.part(multiplier, moved)[:, None, :]
    part = jnp.where(signs < 0, -part, part)  # mod 2^32
    places = addresses + (jnp.arange(depth, dtype=jnp.int32) * width)[:, None]
    total = jnp.zeros(depth * width, jnp.uint32).at[places].add(part, mode="promise_in_bounds")
    return total.reshape(depth, width), sampled.info(params, drawn, error, shrunk)


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
        clip_norm=sampled.units(params),
        unit=params.unit,
        released=("sketch", "its hashes and the centre, which are public"),
    )
    return sampled.with_assumptions(made, params)
