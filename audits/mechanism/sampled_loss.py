"""The privacy loss of a step on a secret Poisson sample, where only the record's coin is unknown.

Everybody else's coins are known. So in either world a response is N(in, σ²) with probability q, and
N(out, σ²) else: around the statistics with the record's coin set to 1, and to 0. This asks one
thing of a mechanism, whoever wrote it: its coins hold a `protocol.Poisson` that its query obeys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accounting.guarantee import Guarantee
from accounting.loss import SubsampledGaussian
from dpmf_jax import layout, protocol
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism, Poisson, State

TRIED = 16  # coins under which a query is tried for whether it obeys its rate
ROUNDING = 2.0**-20  # of the largest entry
HOW = (
    "return a dpmf_jax.protocol.Poisson(key, rate) from coins, and let query take each rating with"
    " its rate, at 1 surely and at 0 never"
)


def _is_poisson(part: Any) -> bool:
    return isinstance(part, Poisson)


def poisson(coins: Any) -> Poisson | None:
    """The one `Poisson` among the coins of a step; None where there is none, or several."""
    samples = [part for part in jax.tree.leaves(coins, is_leaf=_is_poisson) if _is_poisson(part)]
    return samples[0] if len(samples) == 1 else None


def poisson_of(mechanism: Mechanism) -> Poisson | None:
    """`poisson` of some step."""
    return poisson(mechanism.coins(jax.random.key(0)))


def rate(mechanism: Mechanism) -> Any:
    """q, or 1 where nobody is sampled."""
    sample = poisson_of(mechanism)
    return 1.0 if sample is None else sample.rate


def tilts(mechanism: Mechanism, make: Callable[[float, float], Any]) -> list[Any]:
    """Laws that put the record into the sample more often, for a pilot to choose from."""
    priced = float(rate(mechanism))
    return [
        make(shift, min(1.0, factor * priced))
        for shift, factor in ((1.0, 2.0), (1.0, 4.0), (1.5, 2.0), (1.5, 4.0))
    ]


def differing(one: Layout, other: Layout) -> jax.Array:
    """The slots in which two data sets differ, bool, in the shape of `layout.stored_values`."""
    (value, present), (other_value, other_present) = map(layout.stored_values, (one, other))
    return (present != other_present) | (value != other_value)


def _out_and_in(
    mechanism: Mechanism, state: State, data: Layout, coins: Any, record: jax.Array
) -> tuple[Any, Any]:
    """The statistics with the record out of the sample, and with it inside.

    All others take part as their coins say.
    """

    def statistics(part: jax.Array) -> Any:
        def set_part(sample: Any) -> Any:
            return (
                sample._replace(rate=jnp.where(record, part, sample.rate))
                if _is_poisson(sample)
                else sample
            )

        own = jax.tree.map(set_part, coins, is_leaf=_is_poisson)
        return protocol.traced_once(mechanism.query)(state, data, own)[0]

    out, inside = protocol.in_each(statistics, [(jnp.float32(0),), (jnp.float32(1),)])
    return out, inside


def shifted(own: jax.Array, other: jax.Array, shift: jax.Array) -> jax.Array:
    """other + shift · (own - other).

    Sums mod 2^32 move in whole steps, by at most a quarter of the ring.
    """
    if jnp.issubdtype(own.dtype, jnp.floating):
        return jnp.where(shift == 1, own, own + (shift - 1) * (own - other))
    if own.dtype != jnp.uint32:
        return own
    apart = jax.lax.bitcast_convert_type(own - other, jnp.int32).astype(jnp.float32)
    steps = jnp.clip(jnp.rint((shift - 1) * apart), -(2.0**30), 2.0**30).astype(jnp.int32)
    return own + jax.lax.bitcast_convert_type(steps, jnp.uint32)


def step(
    mechanism: Mechanism,
    key: jax.Array,
    coins: Any,
    states: tuple[State, State],
    worlds: tuple[Layout, Layout],
    shift: Any,
    tilted_rate: Any,
) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
    """(response, L, log w, loss of the response without noise) of one step of the first world.

    The record is what the two worlds differ in.
    """
    sample = poisson(coins)
    assert sample is not None
    log_ratio, q, record = (
        protocol.traced_once(mechanism.noise.log_ratio),
        sample.rate,
        differing(*worlds),
    )
    (out, inside), (other_out, other_inside) = protocol.in_each(
        lambda state, world: _out_and_in(mechanism, state, world, coins, record),
        list(zip(states, worlds, strict=True)),
    )
    choose_key, noise_key = jax.random.split(key)
    present = jax.random.uniform(choose_key) < tilted_rate
    centre = jax.tree.map(lambda o, i: shifted(i, o, jnp.float32(shift)), out, inside)
    around = jax.tree.map(lambda c, o: jnp.where(present, c, o), centre, out)
    response = protocol.traced_once(mechanism.noise.sample)(noise_key, around)

    def log_mixed(response: Any) -> jax.Array:
        """log of the density with the record's coin mixed, over that with the record out."""
        return jnp.logaddexp(jnp.log1p(-q), jnp.log(q) + log_ratio(response, inside, out))

    def loss(response: Any) -> jax.Array:
        without, within = (log_ratio(response, there, out) for there in (other_out, other_inside))
        return log_mixed(response) - jnp.logaddexp(jnp.log1p(-q) + without, jnp.log(q) + within)

    proposed = jnp.logaddexp(
        jnp.log1p(-tilted_rate), jnp.log(tilted_rate) + log_ratio(response, centre, out)
    )
    return response, loss(response), log_mixed(response) - proposed, loss(inside)


# --- whether any of this may be said


def why_unknown(
    mechanism: Mechanism,
    guarantee: Guarantee,
    key: jax.Array,
    states: tuple[State, State],
    worlds: tuple[Layout, Layout],
) -> str | None:
    """Why the loss under a secret sample cannot be computed, and what would mend it; None: it can.

    Where no sample is priced, coins are known. Spends `key`: `TRIED` coins at the first state, in
    the first world that holds the record.
    """
    sample = poisson_of(mechanism)
    priced = any(isinstance(loss, SubsampledGaussian) for loss in guarantee.losses)
    if sample is None:
        return (
            f"the price is that of secret samples, and the coins do not say who is in one: {HOW}"
            if priced
            else None
        )
    if guarantee.unit == "user":
        return "one rating's part in a sample can be set, a user's cannot"
    if jnp.ndim(sample.rate):
        return (
            f"the rate of the coins is an array of shape {jnp.shape(sample.rate)}, not one number:"
            f" {HOW}"
        )
    followed, moved, apart = (
        np.asarray(part) for part in _obeys_rate(mechanism, key, states, worlds)
    )
    if not followed.all():
        return f"setting the part of one rating changes the sample otherwise too: {HOW}"
    if apart.any() and not moved.any():
        return f"the query does not follow the rate of its coins: {HOW}"
    return None


@jax.jit
def _obeys_rate(
    mechanism: Mechanism, key: jax.Array, states: tuple[State, State], worlds: tuple[Layout, Layout]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Whether the query obeys the rate of its coins; bool[TRIED] each, under `TRIED` coins.

    (the statistics are those with the record in or those with it out, these two differ, those of
    the two worlds differ).
    """
    record = differing(*worlds)

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        coins = mechanism.coins(key)
        plain, other = protocol.in_each(
            lambda state, world: protocol.traced_once(mechanism.query)(state, world, coins)[0],
            list(zip(states, worlds, strict=True)),
        )
        out, inside = _out_and_in(mechanism, states[0], worlds[0], coins, record)
        return (
            _close(plain, out) | _close(plain, inside),
            ~_close(out, inside),
            ~_close(plain, other),
        )

    return jax.lax.map(one, jax.random.split(key, TRIED))


def _close(tree: Any, other: Any) -> jax.Array:
    """Whether these are the same numbers up to how sums round; whole ones do not."""

    def same(a: jax.Array, b: jax.Array) -> jax.Array:
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return jnp.array_equal(a, b)
        largest = jnp.max(jnp.maximum(jnp.abs(a), jnp.abs(b)), initial=0.0)
        return jnp.max(jnp.abs(a - b), initial=0.0) <= ROUNDING * largest

    return jax.tree.reduce(jnp.logical_and, jax.tree.map(same, tree, other), jnp.bool(True))
