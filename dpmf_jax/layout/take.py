"""The ratings of a few users, as a dense layout of their own.

An iteration of a changing crowd looks at these alone. The users are chosen inside a jitted program,
so shapes depend on how many there are, never on who they are or what they rated. A split layout is
searched, not read through: its pieces are sorted by user.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpmf_jax.devices import spread
from dpmf_jax.layout import split
from dpmf_jax.layout.stored import Dense, Layout, in_memory


def take_users(data: Layout, chosen: jax.Array) -> Layout:
    """A dense layout whose user k is `chosen[k]`: on one device, float32 and bool [chosen, items].

    Args:
      chosen: int32[chosen], different indices of users. One that is not of this data, such as
        `num_users`, gives an empty row.

    Returns: a Layout that all operations of `layout` take. Its `num_ratings` is that of all the
      data.
    """

    def body(stored: Any, chosen: jax.Array) -> Dense:
        if isinstance(stored, Dense):
            found = _rows(stored, chosen, data)
        else:
            found = _pieces(stored.by_user, chosen, data.num_users, data.num_items)
        return jax.lax.psum(found, spread.AXIS) if data.num_devices > 1 else found

    found = spread.over(data.num_devices, body, in_memory(data), chosen)
    return Layout(
        stored=found._replace(present=found.present > 0),
        num_users=chosen.shape[0],
        num_items=data.num_items,
        num_ratings=data.num_ratings,
        num_devices=1,
    )


def _rows(stored: Dense, chosen: jax.Array, data: Layout) -> Dense:
    """From a dense layout, whose device s has the users from s times their number on."""
    here = stored.value.shape[0]
    first = jax.lax.axis_index(spread.AXIS) * here if data.num_devices > 1 else 0
    at = jnp.where(chosen < data.num_users, chosen - first, here)
    at = jnp.where(at < 0, here, at)  # a negative index would count from the end
    value = stored.value.at[at].get(mode="fill", fill_value=0)
    return Dense(
        value, stored.present.at[at].get(mode="fill", fill_value=False).astype(jnp.float32)
    )


def _pieces(side: split.Side, chosen: jax.Array, num_users: int, num_items: int) -> Dense:
    """From a split layout: first pieces of all chosen users, then their second ones, and so on."""
    pieces, width = side.column.shape
    first = jnp.searchsorted(side.row, chosen).astype(jnp.int32)
    rows = jnp.broadcast_to(jnp.arange(chosen.shape[0])[:, None], (chosen.shape[0], width))

    def there(place: jax.Array) -> jax.Array:
        return (side.row.at[first + place].get(mode="fill", fill_value=-1) == chosen) & (
            chosen < num_users
        )

    def some(carry: tuple[jax.Array, Dense]) -> jax.Array:
        return jnp.any(there(carry[0]))

    def add(carry: tuple[jax.Array, Dense]) -> tuple[jax.Array, Dense]:
        place, found = carry
        at = jnp.where(there(place), first + place, pieces)
        columns = side.column.at[at].get(mode="fill", fill_value=num_items)
        values = side.value.at[at].get(mode="fill", fill_value=0)
        # what has no rating has the column num_items, which is outside and dropped
        value = found.value.at[rows, columns].set(values, mode="drop")
        return place + 1, Dense(value, found.present.at[rows, columns].set(1.0, mode="drop"))

    shape = (chosen.shape[0], num_items)
    nothing = Dense(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))
    return jax.lax.while_loop(some, add, (jnp.int32(0), nothing))[1]
