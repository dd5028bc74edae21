"""The one protocol: a training step cut where trust changes hands, so that the cut can be audited.

The curator computes statistics of the ratings (`query`), noise turns them into a response
(`noise.sample`), and everything that follows may look at responses and public constants only (the
public part of `update`). A mechanism that keeps to the cut is as private as its responses; the
audits check that it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from accounting.guarantee import Guarantee
from dpmf_jax.devices import spread
from dpmf_jax.noise.laws import Noise, draws

PyTree = Any
Key = jax.Array
Data = (
    PyTree  # the ratings on the device, a `layout.Layout`; the protocol looks at its devices alone
)
Array = jax.Array | np.ndarray  # on the device while training, on the host in a model


class State(NamedTuple):
    """What training carries from step to step.

    public: a function of past responses and public constants: what an adversary could know.
    private: never leaves the curator (or the user's device).
    step: int32 scalar, the number of updates done.
    """

    public: PyTree
    private: PyTree
    step: jax.Array


class Info(NamedTuple):
    """What a step's pass over the ratings also shows; unpriced, for the curator's eyes.

    loss: mean squared error over the ratings, in rating units squared, at the state *before* the
      update.
    clipped_fraction: share of the factor rows whose norm exceeded the clip in this step.
    """

    loss: jax.Array
    clipped_fraction: jax.Array


class Factors(NamedTuple):
    """A bilinear model: the rating of item i by user u is predicted as center[i] +
    ⟨user_factors[u], item_factors[i]⟩.

    user_factors: float32[users, rank]; item_factors: float32[items, rank]; center: float32[] or
    float32[items]. A part that is absent is None.
    """

    user_factors: Array | None = None
    item_factors: Array | None = None
    center: Array | None = None


class Release(NamedTuple):
    """What the world may see, and nothing else; a part that is not released is None. The first
    fields as in `Factors`.

    sketch: float32[depth, width], a table in which a count sketch keeps all vectors; hashes: its
    words; rank: int32[], of the vectors; median: bool[], whether they are median queries, not
    means. Where there is a sketch, its vectors are the first columns, and user_factors and
    item_factors, if released, further ones (`count_sketch.factors`).
    """

    user_factors: Array | None = None
    item_factors: Array | None = None
    center: Array | None = None
    sketch: Array | None = None
    hashes: Array | None = None
    rank: Array | None = None
    median: Array | None = None


class Poisson(NamedTuple):
    """Coins of a step on a secret Poisson sample: each rating takes part with probability `rate`,
    by itself.

    key: of all draws; what it says of one rating does not change with another's rate. rate:
    float32[], or one for each slot, in the shape of `layout.stored_values`: `query` takes whom this
    says, at 1 surely and at 0 never. `coins` returns the scalar; audits put the record on trial
    into a sample, or keep it out.
    """

    key: jax.Array
    rate: Array


class Mechanism(NamedTuple):
    """A private training algorithm. Every field is a `jax.tree_util.Partial` of a module-level
    function, so a Mechanism is a pytree: jit takes it as an argument, vmap runs over stacked ones,
    and any part can be replaced with `_replace`.

    init: (key, data, previous) -> State; previous is the public state of an earlier phase, or None.
    coins: (key) -> randomness that does not depend on the data, drawn before looking; None for
      most. Who takes part stays secret where it is, or holds, a `Poisson`; all else counts as known
      to whom the claim is made against.
    query: (state, data, coins) -> (statistics, Info): the raw statistics of this step, no
      randomness of its own.
    noise: how statistics become a response.
    update: (state, response, data) -> State; its public part may depend on (state.public, response)
      only.
    release: (state) -> Release.
    guarantee: (num_steps) -> accounting.Guarantee; reads the same numbers that query and noise use.
      Host only.
    """

    init: Callable[..., State]
    coins: Callable[..., PyTree]
    query: Callable[..., tuple[PyTree, Info]]
    noise: Noise
    update: Callable[..., State]
    release: Callable[..., Release]
    guarantee: Callable[..., Guarantee]


def factors(state: State) -> Factors:
    """The curator's whole model: each part of `Factors` from the public state, or else from the
    private one.

    Nothing here is safe to publish: that is what `Mechanism.release` is for.
    """

    def find(name: str) -> jax.Array | None:
        public = getattr(state.public, name, None)
        return getattr(state.private, name, None) if public is None else public

    return Factors(*(find(name) for name in Factors._fields))


def step(mechanism: Mechanism, key: Key, state: State, data: Data) -> tuple[State, Info]:
    """One step in one world: coins, query, noise, update. Spends `key`."""
    coins_key, noise_key = jax.random.split(key)
    statistics, info = mechanism.query(state, data, mechanism.coins(coins_key))
    num_devices = _num_devices(data) if draws(mechanism.noise) else 1
    rows = None if getattr(data, "users_each", None) is None else data.num_users
    response = spread.divided(
        num_devices, partial(mechanism.noise.sample, noise_key), statistics, rows=rows
    )
    return mechanism.update(state, response, data)._replace(step=state.step + 1), info


def _num_devices(data: Data) -> int:
    return getattr(data, "num_devices", 1)


@partial(jax.jit, static_argnames="num_steps")
def train(
    mechanism: Mechanism,
    key: Key,
    state: State,
    data: Data,
    num_steps: int,
    limit: jax.Array | None = None,
) -> tuple[State, Info]:
    """`num_steps` steps from `state`; the project's only loop over steps.

    The key of a step is fold_in(key, state.step), so chunks equal the whole: 2 + 3 steps give the
    same bytes as 5. On a GPU, which adds numbers up as they come, only
    XLA_FLAGS=--xla_gpu_deterministic_ops=true makes them so; without it they are equal but for
    rounding.

    Args:
      limit: int32 scalar; the step from which on nothing is done any more, at no cost. Runs of
        unequal length can so share one compiled program, see `sweep`. None: all `num_steps` are
        done.

    Returns: (State, Info), the state whole on every device; each leaf of Info with a leading axis
      of num_steps, 0 for the steps not done.
    """

    def body(state: State, _: None) -> tuple[State, Info]:
        return step(mechanism, jax.random.fold_in(key, state.step), state, data)

    def body_or_nothing(state: State, _: None) -> tuple[State, Info]:
        assert limit is not None
        info = jax.eval_shape(lambda state: body(state, None)[1], state)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
        return jax.lax.cond(
            state.step < limit,
            lambda state: body(state, None),
            lambda state: (state, nothing),
            state,
        )

    state, info = jax.lax.scan(body if limit is None else body_or_nothing, state, length=num_steps)
    return (
        spread.whole(_num_devices(data), state),
        info,
    )  # or the next steps would be another program


Phase = tuple[Mechanism, int]  # and its number of steps


def _init_after(
    init: Callable[..., State], public: PyTree, key: Key, data: Data, previous: None
) -> State:
    del previous
    return init(key, data, public)


def after(mechanism: Mechanism, public: PyTree) -> Mechanism:
    """`mechanism` as it goes on from the public state of an earlier phase, which its `init` gets as
    `previous`.
    """
    return mechanism._replace(init=Partial(_init_after, mechanism.init, public))


@jax.jit
def _init(init: Callable[..., State], key: Key, data: Data) -> State:
    return init(key, data, None)


def link(phases: Sequence[Phase], key: Key, data: Data) -> list[Mechanism]:
    """Each phase's mechanism as it goes on from the one before it; all but the last are run for
    that. Spends `key`.

    A phase sees what the one before it made public, and nothing else of it. Prices add up:
    `accounting.compose`.
    """
    linked = [mechanism for mechanism, _ in phases[:1]]
    keys = jax.random.split(key, max(len(phases) - 1, 1))
    for phase_key, (_, num_steps), (following, _) in zip(keys, phases, phases[1:], strict=False):
        init_key, train_key = jax.random.split(phase_key)
        state, _info = train(
            linked[-1], train_key, _init(linked[-1].init, init_key, data), data, num_steps
        )
        linked.append(after(following, state.public))
    return linked


def begin(mechanism: Mechanism, key: Key, data: Data, earlier: Sequence[Phase] = ()) -> State:
    """The state that `mechanism` starts from, after the `earlier` phases ran on the same data.
    Spends `key`.
    """
    if earlier:
        key, earlier_key = jax.random.split(key)
        mechanism = link((*earlier, (mechanism, 0)), earlier_key, data)[-1]
    return _init(mechanism.init, key, data)


def l2_distance(response: PyTree, statistics: PyTree, other: PyTree) -> jax.Array:
    """The L2 distance between the two worlds' statistics: a step's sensitivity along this
    transcript.
    """
    del response
    squares = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), statistics, other)
    return jnp.sqrt(jax.tree.reduce(jnp.add, squares))


@partial(jax.jit, static_argnames=("num_steps", "observe"))
def train_coupled(
    mechanism: Mechanism,
    key: Key,
    states: tuple[State, State],
    datas: tuple[Data, Data],
    num_steps: int,
    observe: Callable[[PyTree, PyTree, PyTree], PyTree] = l2_distance,
) -> tuple[tuple[State, State], PyTree]:
    """Two worlds follow one transcript: the first world's responses (and coins) drive both.

    Everything an audit of adaptive steps needs: with the transcript fixed, a step's sensitivity is
    the distance
      between the two worlds' statistics, and the privacy loss is the sum of
      `noise.log_ratio(response, statistics, other)`.

    Args:
      states: the two worlds' states; `init` with one key in both. Equal shapes, as are `datas`.
      observe: module-level function (response, statistics, other) -> pytree, evaluated at every
        step.

    Returns: (states, observations), each leaf of the observations with a leading axis of num_steps.
    """

    def body(states: tuple[State, State], _: None) -> tuple[tuple[State, State], PyTree]:
        first, second = states
        coins_key, noise_key = jax.random.split(jax.random.fold_in(key, first.step))
        coins = mechanism.coins(coins_key)
        statistics, _info = mechanism.query(first, datas[0], coins)
        other, _info = mechanism.query(second, datas[1], coins)
        response = mechanism.noise.sample(noise_key, statistics)
        first, second = (
            mechanism.update(state, response, data)._replace(step=state.step + 1)
            for state, data in zip((first, second), datas, strict=True)
        )
        return (first, second), observe(response, statistics, other)

    return jax.lax.scan(body, states, length=num_steps)
