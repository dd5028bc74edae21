"""Where a response is looked up: the entries that tell two worlds apart under the same noise."""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.guarantee import Unit
from audits import neighbours, transcript
from dpmf_jax import protocol
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism, State

COINS, NOISES = 32, 4  # coins and draws of noise among which an entry is looked for
USUAL = 8  # statistics of each world that a table is made of, where coins decide which they are
MOST_ENTRIES = 256  # of a response that are compared


class Place(NamedTuple):
    """One entry of the response to one pair of neighbours.

    Attributes:
      pair: the pair's position among the neighbours tried.
      leaf: which leaf of the response.
      entry: which entry of the leaf, in flat order.
      coins: for each world, keys of the coins that give its usual statistics there.
    """

    pair: int
    leaf: int
    entry: int
    coins: tuple[jax.Array, ...]


def _nothing(response: Any, statistics: Any, other: Any) -> None:
    del response, statistics, other


def states(
    mechanism: Mechanism,
    key: jax.Array,
    data: Layout,
    stacked: neighbours.Neighbour,
    unit: Unit,
    step: int,
) -> tuple[State, State]:
    """Both worlds' states after `step` steps driven by the first one's responses; axis of pairs."""
    init_key, train_key = jax.random.split(key)
    first = protocol.begin(mechanism, init_key, data)
    found = []
    for position in range(len(stacked.value)):
        other = transcript.neighbour_at(data, stacked, position, unit=unit)
        pair = (first, protocol.begin(mechanism, init_key, other))
        if step:
            pair, _, _ = protocol.train_coupled(
                mechanism, train_key, pair, (data, other), step, _nothing
            )
        found.append(pair)
    return jax.tree.map(lambda *pairs: jnp.stack(pairs), *found)


@partial(jax.jit, static_argnames=("unit",))
def _responses(
    mechanism: Mechanism,
    coins_keys: jax.Array,
    noise_keys: jax.Array,
    states: tuple[State, State],
    data: Layout,
    stacked: neighbours.Neighbour,
    unit: Unit,
) -> tuple[Any, Any]:
    """Both worlds' responses to the same coins and noise, axes [pairs, coins, noises, ...]."""

    def pair(at: tuple[Any, neighbours.Neighbour]) -> Any:
        both, neighbour = at
        datas = (data, neighbours.apply(unit, data, neighbour))

        def responses(coins_key: jax.Array) -> Any:
            coins = mechanism.coins(coins_key)

            def world_responses(state: State, world: Layout) -> Any:
                asked, _info = protocol.traced_once(mechanism.query)(state, world, coins)
                sample = protocol.traced_once(mechanism.noise.sample)
                return jax.lax.map(lambda key: sample(key, asked), noise_keys)

            return tuple(protocol.in_each(world_responses, list(zip(both, datas, strict=True))))

        return jax.lax.map(responses, coins_keys)

    return jax.lax.map(pair, (states, stacked))


def has_coins(mechanism: Mechanism) -> bool:
    """Whether a step draws coins at all."""
    return bool(jax.tree.leaves(jax.eval_shape(mechanism.coins, jax.random.key(0))))


def places(
    mechanism: Mechanism,
    key: jax.Array,
    states: Any,
    data: Layout,
    tried: neighbours.Neighbours,
    *,
    most: int,
) -> list[Place]:
    """At most so many entries that differ between the worlds under the same noise, the most telling
    first.

    Most telling is the entry whose value comes up most often over the coins, so that a table knows
    it. Of equals it is the one with the smallest responses, where floating-point numbers lie
    closest.
    """
    coins_keys = jax.random.split(key, COINS if has_coins(mechanism) else 1)
    noise_keys = jax.random.split(jax.random.fold_in(key, 1), NOISES)
    both = _responses(mechanism, coins_keys, noise_keys, states, data, tried.stacked, tried.unit)
    ranked: list[tuple[Any, ...]] = []
    for leaf, worlds in enumerate(zip(*map(jax.tree.leaves, both), strict=True)):
        own, other = (np.asarray(world).reshape(*world.shape[:3], -1) for world in worlds)
        for pair in range(len(own)):
            apart = np.any(own[pair] != other[pair], axis=1)
            entries = np.flatnonzero(apart.any(axis=0))
            size = np.abs(own[pair][:, :, entries].astype(np.float64)).mean(axis=(0, 1))
            for at in np.argsort(size, kind="stable")[:MOST_ENTRIES]:
                entry = int(entries[at])
                usual, counts = zip(
                    *(_usual(world[pair, :, 0, entry]) for world in (own, other)), strict=True
                )
                telling = float(np.max(counts[0] * apart[usual[0], entry]))
                ranked.append((-telling, float(size[at]), pair, leaf, entry, usual))
    return [
        Place(pair, leaf, entry, tuple(coins_keys[at] for at in usual))
        for _, _, pair, leaf, entry, usual in sorted(ranked, key=itemgetter(0, 1))[:most]
    ]


def _usual(responses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(where the most frequent values stand, at most `USUAL` of them; how often each comes up)."""
    _, first, counts = np.unique(responses, return_index=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:USUAL]
    return first[order], counts[order]
