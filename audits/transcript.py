"""One run of a mechanism, written down: the statistics and the response of every step."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from accounting.guarantee import Unit
from audits import neighbours
from dpmf_jax import protocol
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism, State

STEPS = 32  # at most so many are written down
ENTRIES = 1 << 24  # and at most so many numbers


class Transcript(NamedTuple):
    """A recorded run.

    Attributes:
      start: the state before the first step.
      responses, statistics: of each step, leading axis of steps.
    """

    start: State
    responses: Any
    statistics: Any


def _pair(response: Any, statistics: Any) -> tuple[Any, Any]:
    return response, statistics


@partial(jax.jit, static_argnames="num_steps")
def _record(mechanism: Mechanism, key: jax.Array, data: Layout, num_steps: int) -> Transcript:
    init_key, train_key = jax.random.split(key)
    start = mechanism.init(init_key, data, None)
    _, (responses, statistics), _ = protocol.train_coupled(
        mechanism, train_key, (start,), (data,), num_steps, _pair
    )
    return Transcript(start, responses, statistics)


def record(mechanism: Mechanism, key: jax.Array, data: Layout, num_steps: int) -> Transcript:
    """The first steps of a run: `num_steps`, at most `STEPS`, and no more than `ENTRIES` numbers.

    Two steps at least. The key makes the initial state and the noise. A second call with the same
    key and other data is the other world's own run.
    """
    shapes = jax.eval_shape(lambda m, k, d: _record(m, k, d, 1).statistics, mechanism, key, data)
    entries = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    return _record(mechanism, key, data, min(num_steps, STEPS, max(2, ENTRIES // max(entries, 1))))


@jax.jit
def step_statistics(mechanism: Mechanism, state: State, data: Layout, coins_key: jax.Array) -> Any:
    """The statistics of one step from a state, under the coins that the key draws."""
    return mechanism.query(state, data, mechanism.coins(coins_key))[0]


@partial(jax.jit, static_argnames="unit")
def neighbour_at(
    data: Layout, stacked: neighbours.Neighbour, position: int | jax.Array, *, unit: Unit
) -> Layout:
    """The neighbouring data set at one position of the stack."""
    return neighbours.apply(unit, data, jax.tree.map(lambda leaf: leaf[position], stacked))


def first_step(transcript: Transcript) -> Any:
    """The statistics of the first step, float32 arrays on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[0]), transcript.statistics)
