"""Who is in a sample, from the statistics alone: they move with its members' ratings only.

Either ratings are removed, one after the other. Or, where statistics are floats, one derivative
answers for all ratings at once; it is taken at ratings close to what the state predicts, where no
clip holds a gradient back.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accounting.guarantee import Unit
from audits import neighbours
from dpmf_jax import layout, protocol
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism, State

ROUNDING = 2.0**-20  # of the largest entry
BATCH_BYTES = 1 << 26  # how much memory the data sets that run side by side may take


def values_near_prediction(
    state: State, user: np.ndarray, item: np.ndarray, away: float, middle: float = 0.0
) -> jax.Array:
    """Values, float32[ratings], that lie `away` above what the state predicts.

    Where the state predicts nothing, they lie `away` above the middle.
    """
    factors = protocol.factors(state)
    if factors.user_factors is None or factors.item_factors is None:
        return jnp.full(len(user), middle + away, jnp.float32)
    center = jnp.float32(0) if factors.center is None else jnp.asarray(factors.center)
    predicted = jnp.sum(
        jnp.asarray(factors.user_factors)[user] * jnp.asarray(factors.item_factors)[item], axis=1
    )
    return predicted + (center if center.ndim == 0 else center[item]) + away


def are_whole(mechanism: Mechanism, state: State, data: Layout) -> bool:
    """Whether no statistic is a float: then there is no derivative."""

    def statistics(key: jax.Array) -> Any:
        return mechanism.query(state, data, mechanism.coins(key))[0]

    leaves = jax.tree.leaves(jax.eval_shape(statistics, jax.random.key(0)))
    return not any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves)


@partial(jax.jit, static_argnames=("num_steps", "whole"))
def members(
    mechanism: Mechanism,
    state: State,
    data: Layout,
    address: layout.Address,
    values: Any,
    keys: jax.Array,
    num_steps: int,
    *,
    whole: bool = False,
) -> jax.Array:
    """Whether the statistics of each step move with each rating, bool[runs, steps, ratings].

    values: float32[ratings], which these ratings are given.
    whole: ratings are removed; else there is a derivative.
    """

    def one(place: tuple[jax.Array, jax.Array]) -> jax.Array:
        key, step = place
        coins_key, direction_key = jax.random.split(jax.random.fold_in(key, step))
        coins = mechanism.coins(coins_key)

        def of(world: Layout) -> Any:
            return mechanism.query(state._replace(step=step), world, coins)[0]

        def statistics(values: jax.Array) -> Any:
            return of(layout.replace_value(data, address, values))

        if whole:
            world = layout.replace_value(data, address, values)
            own = of(world)

            def moves(one: layout.Address) -> jax.Array:
                without = of(layout.remove_rating(world, one))
                differ = jax.tree.map(lambda a, b: jnp.any(a != b), own, without)
                return jax.tree.reduce(jnp.logical_or, differ)

            return jax.lax.map(moves, address, batch_size=min(8, len(values)))
        own, pull = jax.vjp(statistics, values)
        leaves, structure = jax.tree.flatten(own)
        keys = jax.random.split(direction_key, len(leaves))
        direction = [
            jax.random.normal(k, leaf.shape, leaf.dtype)
            for k, leaf in zip(keys, leaves, strict=True)
        ]
        (moved,) = pull(jax.tree.unflatten(structure, direction))
        return moved != 0

    places = (
        jnp.repeat(keys, num_steps),
        jnp.tile(jnp.arange(num_steps, dtype=jnp.int32), len(keys)),
    )
    batch = max(1, min(64, (1 << 16) // max(1, len(values))))
    return jax.lax.map(one, places, batch_size=batch).reshape(len(keys), num_steps, -1)


@partial(jax.jit, static_argnames=("unit", "num"))
def both_worlds(
    mechanism: Mechanism,
    state: State,
    data: Layout,
    key: jax.Array,
    neighbour: neighbours.Neighbour,
    others: layout.Address,
    *,
    unit: Unit,
    num: int,
) -> tuple[jax.Array, jax.Array]:
    """Whether two worlds draw the same sample, under each of `num` coins.

    Returns: (bool[num, others], whose part in the sample differs between the worlds; bool[num, 2],
      whether each world's statistics show the record's own part). They never show the part of a
      record whose rating is just what is predicted, or that is not there.
    """
    worlds = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), data, neighbours.apply(unit, data, neighbour)
    )
    own = neighbour.address
    # Nothing is removed at the last address: what the others are compared with comes out of the
    # same program, and rounds alike.
    addresses = jax.tree.map(
        lambda some, one: jnp.concatenate([some, jnp.stack([one, one])]), others, own
    )
    unchanged = jnp.arange(len(addresses.user)) == len(addresses.user) - 1

    size = 4 * sum(leaf.size for leaf in jax.tree.leaves(worlds))
    at_once = max(1, BATCH_BYTES // size)  # pairs of data sets

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        coins = mechanism.coins(key)

        def one_removed(world: Layout, place: tuple[layout.Address, jax.Array]) -> Any:
            address, unchanged = place
            removed = layout.remove_rating(world, address)
            return mechanism.query(
                state, jax.tree.map(partial(jnp.where, unchanged), world, removed), coins
            )[0]

        def each_removed(world: Layout) -> Any:
            return jax.lax.map(
                partial(one_removed, world),
                (addresses, unchanged),
                batch_size=min(at_once, len(unchanged)),
            )

        statistics = jax.vmap(each_removed)(worlds)
        members = jax.tree.reduce(jnp.logical_or, jax.tree.map(_moved, statistics))
        return (members[0] != members[1])[:-2], members[:, -2]

    return jax.lax.map(
        one, jax.random.split(key, num), batch_size=max(1, min(8, at_once // len(unchanged)))
    )


def _moved(leaf: jax.Array) -> jax.Array:
    """Where a leaf moves with what is removed, beyond rounding; bool[worlds, removed]."""
    flat = leaf.reshape(*leaf.shape[:2], -1)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.any(flat != flat[:, -1:], axis=-1)
    return jnp.any(
        jnp.abs(flat - flat[:, -1:]) > ROUNDING * jnp.max(jnp.abs(flat), axis=-1, keepdims=True),
        axis=-1,
    )
