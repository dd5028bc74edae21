"""Who is in a sample, found out from the statistics alone: they move with the ratings of its
members and no others'.

By removing a rating, in one world and in a neighbouring one; or for all ratings at once by one
derivative, taken at ratings close to what the state predicts, where no clip holds a gradient back.
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
from dpmf_jax.protocol import Mechanism, State

ROUNDING = 2.0**-20  # of the largest entry
BATCH_BYTES = 1 << 26  # how much memory the data sets that run side by side may take


def near(
    state: State, user: np.ndarray, item: np.ndarray, away: float, middle: float = 0.0
) -> jax.Array:
    """Values, float32[ratings], that lie `away` from what the state predicts, or from the middle
    where it does not.
    """
    factors = protocol.factors(state)
    if factors.user_factors is None or factors.item_factors is None:
        return jnp.full(len(user), middle + away, jnp.float32)
    center = jnp.float32(0) if factors.center is None else jnp.asarray(factors.center)
    predicted = jnp.sum(
        jnp.asarray(factors.user_factors)[user] * jnp.asarray(factors.item_factors)[item], axis=1
    )
    return predicted + (center if center.ndim == 0 else center[item]) + away


@partial(jax.jit, static_argnames="num_steps")
def members(
    mechanism: Mechanism,
    state: State,
    data: Any,
    address: layout.Address,
    values: Any,
    keys: jax.Array,
    num_steps: int,
) -> jax.Array:
    """bool[runs, steps, ratings]: whether the statistics move with each rating, under the coins of
    every step.
    """

    def one(place: tuple[jax.Array, jax.Array]) -> jax.Array:
        key, step = place
        coins_key, direction_key = jax.random.split(jax.random.fold_in(key, step))
        coins = mechanism.coins(coins_key)

        def statistics(values: jax.Array) -> Any:
            changed = layout.replace_value(data, address, values)
            return mechanism.query(state._replace(step=step), changed, coins)[0]

        drawn, pull = jax.vjp(statistics, values)
        leaves, structure = jax.tree.flatten(drawn)
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
    data: Any,
    key: jax.Array,
    neighbour: neighbours.Neighbour,
    others: layout.Address,
    *,
    unit: Unit,
    num: int,
) -> tuple[jax.Array, jax.Array]:
    """(bool[num, others] in how far the two worlds' samples differ, bool[num, 2] where the record's
    own part is seen).

    In a world where the record's rating is just what is predicted, its part is never seen; nor is
    the part of a record that is not there.
    """
    worlds = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), data, neighbours.apply(unit, data, neighbour)
    )
    own = neighbour.address
    # The last is left alone: what the others are held against comes out of the same program, and
    # rounds alike.
    addresses = jax.tree.map(
        lambda some, one: jnp.concatenate([some, jnp.stack([one, one])]), others, own
    )
    alone = jnp.arange(len(addresses.user)) == len(addresses.user) - 1

    size = 4 * sum(leaf.size for leaf in jax.tree.leaves(worlds))
    beside = max(1, BATCH_BYTES // size)  # pairs of data sets at a time

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        coins = mechanism.coins(key)

        def ask(world: Any, place: tuple[layout.Address, jax.Array]) -> Any:
            address, alone = place
            removed = layout.remove_rating(world, address)
            return mechanism.query(
                state, jax.tree.map(partial(jnp.where, alone), world, removed), coins
            )[0]

        def asked(world: Any) -> Any:
            return jax.lax.map(
                partial(ask, world), (addresses, alone), batch_size=min(beside, len(alone))
            )

        said = jax.vmap(asked)(worlds)
        members = jax.tree.reduce(jnp.logical_or, jax.tree.map(_moved, said))
        return (members[0] != members[1])[:-2], members[:, -2]

    return jax.lax.map(
        one, jax.random.split(key, num), batch_size=max(1, min(8, beside // len(alone)))
    )


def _moved(leaf: jax.Array) -> jax.Array:
    """bool[worlds, removed]: where this leaf is not what it is with nothing removed, by more than
    sums round.
    """
    flat = leaf.reshape(*leaf.shape[:2], -1)
    return jnp.any(
        jnp.abs(flat - flat[:, -1:]) > ROUNDING * jnp.max(jnp.abs(flat), axis=-1, keepdims=True),
        axis=-1,
    )
