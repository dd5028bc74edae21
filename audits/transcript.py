"""One run of a mechanism, written down: the statistics and the response of every step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from accounting.guarantee import Unit
from audits import neighbours
from dpmf_jax import protocol
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism, State

STEPS = 32  # of which a block has at most so many
ENTRIES = 1 << 24  # and at most so many numbers
LONGEST = 1 << 11  # steps of a run that are followed


class Transcript(NamedTuple):
    """A recorded run, or a block of its steps.

    Attributes:
      start, end: the states before the first step and after the last one.
      responses, statistics: of each step, leading axis of steps.
    """

    start: State
    responses: Any
    statistics: Any
    end: State


def _pair(response: Any, statistics: Any) -> tuple[Any, Any]:
    return response, statistics


@partial(jax.jit, static_argnames="num_steps")
def _block(
    mechanism: Mechanism, key: jax.Array, start: State, data: Layout, num_steps: int
) -> Transcript:
    (end,), (responses, statistics), _ = protocol.train_coupled(
        mechanism, key, (start,), (data,), num_steps, _pair
    )
    return Transcript(start, responses, statistics, end)


def record(mechanism: Mechanism, key: jax.Array, data: Layout, num_steps: int) -> Transcript:
    """The first steps of a run: `num_steps`, at most `STEPS`, and no more than `ENTRIES` numbers.

    Two steps at least. The key makes the initial state and the noise. A second call with the same
    key and other data is the other world's own run.
    """
    return next(blocks(mechanism, key, data, num_steps))


def blocks(
    mechanism: Mechanism, key: jax.Array, data: Layout, num_steps: int
) -> Iterator[Transcript]:
    """The steps of one run, block by block, up to `LONGEST` steps; `record` has the first block."""
    init_key, train_key = jax.random.split(key)
    state = protocol.begin(mechanism, init_key, data)
    shapes = jax.eval_shape(step_statistics, mechanism, state, data, train_key)
    entries = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    most = min(num_steps, STEPS, max(2, ENTRIES // max(entries, 1)))
    followed = min(num_steps, LONGEST)
    # blocks of one length are one program
    length = next((size for size in range(most, most // 2, -1) if followed % size == 0), most)
    for first in range(0, followed, length):
        block = _block(mechanism, train_key, state, data, min(length, followed - first))
        state = block.end
        yield block


@jax.jit
def step_statistics(mechanism: Mechanism, state: State, data: Layout, coins_key: jax.Array) -> Any:
    """The statistics of one step from a state, under the coins that the key draws."""
    return protocol.traced_once(mechanism.query)(state, data, mechanism.coins(coins_key))[0]


@partial(jax.jit, static_argnames="unit")
def neighbour_at(
    data: Layout, stacked: neighbours.Neighbour, position: int | jax.Array, *, unit: Unit
) -> Layout:
    """The neighbouring data set at one position of the stack."""
    return neighbours.apply(unit, data, jax.tree.map(lambda leaf: leaf[position], stacked))


def first_step(transcript: Transcript) -> Any:
    """The statistics of the first step, float32 arrays on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[0]), transcript.statistics)
