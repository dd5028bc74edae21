"""The privacy loss of a step on a secret Poisson sample: everybody else's coins are known, the record's own is not.

Against known others, a response to the data set is N(out + g, σ²) with probability q and N(out, σ²) else, g what the
record adds; of a neighbour without it, N(out, σ²); of one where it has another value, the same with another g.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from dpmf_jax import layout, ordered
from dpmf_jax.layout import Layout
from dpmf_jax.layout_split import Side
from dpmf_jax.protocol import Mechanism
from dpmf_jax.sampled import Params


def parameters(mechanism: Mechanism) -> Params | None:
    """Of a mechanism on secret Poisson samples; None of any other."""
    args = getattr(mechanism.query, "args", ())
    return args[0] if args and isinstance(args[0], Params) else None


def rate(mechanism: Mechanism) -> Any:
    """q, or 1 where nobody is sampled."""
    params = parameters(mechanism)
    return 1.0 if params is None else params.rate


def tilts(mechanism: Mechanism, make: Callable[[float, float], Any]) -> list[Any]:
    """Laws that put the record into the sample more often than it is, for a pilot to choose from."""
    priced = float(rate(mechanism))
    return [
        make(shift, min(1.0, factor * priced)) for shift, factor in ((1.0, 2.0), (1.0, 4.0), (1.5, 2.0), (1.5, 4.0))
    ]


def step(
    mechanism: Mechanism,
    key: jax.Array,
    coins: Any,
    states: tuple[Any, Any],
    worlds: tuple[Any, Any],
    shift: Any,
    tilted_rate: Any,
) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
    """(response, L, log w, loss of the response without noise) of one step of the first world.

    The record is what the two worlds differ in.
    """
    params = parameters(mechanism)
    assert params is not None
    asked: Any = mechanism.query
    certain = Partial(asked.func, dataclasses.replace(params, rate=jnp.float32(1), highest_rate=1.0), *asked.args[1:])
    shared, *records = _parted(*worlds)
    out = mechanism.query(states[0], shared, coins)[0]
    gains = [certain(state, record, coins)[0] for state, record in zip(states, records, strict=True)]
    log_ratio, q = mechanism.noise.log_ratio, params.rate
    choose_key, noise_key = jax.random.split(key)
    present = jax.random.uniform(choose_key) < tilted_rate
    centre = jax.tree.map(lambda o, g: o + shift * g, out, gains[0])
    around = jax.tree.map(lambda c, o: jnp.where(present, c, o), centre, out)
    response = mechanism.noise.sample(noise_key, around)

    def against_out(response: Any, gain: Any) -> jax.Array:
        """log of the density with the record's coin mixed, over that without the record."""
        included = log_ratio(response, jax.tree.map(jnp.add, out, gain), out)
        return jnp.logaddexp(jnp.log1p(-q), jnp.log(q) + included)

    def loss(response: Any) -> jax.Array:
        return against_out(response, gains[0]) - against_out(response, gains[1])

    proposed = jnp.logaddexp(jnp.log1p(-tilted_rate), jnp.log(tilted_rate) + log_ratio(response, centre, out))
    return (
        response,
        loss(response),
        against_out(response, gains[0]) - proposed,
        loss(jax.tree.map(jnp.add, out, gains[0])),
    )


def _parted(one: Layout, other: Layout) -> tuple[Layout, Layout, Layout]:
    """(what both worlds have alike, the record that only the first has, that of the second), as samples see them."""
    (value, present), (other_value, other_present) = map(layout.stored_values, (one, other))
    alike = present & other_present & (value == other_value)
    return _kept(one, alike), _record(one, present & ~alike), _record(other, other_present & ~alike)


def _kept(data: Layout, mask: jax.Array) -> Layout:
    """The ratings at a mask, in the orientation that samples are drawn from."""
    stored = data.stored
    if isinstance(stored, layout.Dense):
        return dataclasses.replace(data, stored=layout.Dense(jnp.where(mask, stored.value, 0.0), mask))
    side = stored.by_user
    side = side._replace(column=jnp.where(mask, side.column, data.num_items), value=jnp.where(mask, side.value, 0.0))
    return dataclasses.replace(data, stored=stored._replace(by_user=side))


def _record(data: Layout, mask: jax.Array) -> Layout:
    """The first rating at a mask, or none, in a layout of one slot."""
    slot = jnp.argmax(mask.reshape(-1))[None]
    there = jnp.any(mask)
    user, item = ordered.places(data, slot)
    value = jnp.where(there, layout.stored_values(data)[0].reshape(-1)[slot], 0.0)
    sides = (
        Side(row.astype(jnp.int32), jnp.where(there, column, none).astype(jnp.int32)[:, None], value[:, None])
        for row, column, none in ((user, item, data.num_items), (item, user, data.num_users))
    )
    return dataclasses.replace(data, stored=layout.Split(*sides))
