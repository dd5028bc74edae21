"""The one protocol: a training step, cut where trust changes hands, so that the cut can be audited.

The curator computes statistics of the ratings (`query`). Noise turns them into a response
(`noise.sample`). Everything after that looks at responses and public constants only (the public
part of `update`). A mechanism that keeps to this cut is as private as its responses; the audits
check that it does.
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
from dpmf_jax.noise.ring import signed

PyTree = Any
Key = jax.Array
Data = (
    PyTree  # the ratings on the device, a `layout.Layout`; the protocol looks at its devices alone
)
Array = jax.Array | np.ndarray  # on the device while training, on the host in a model


class State(NamedTuple):
    """What training carries from step to step.

    public: a function of past responses and public constants, so what an adversary could know.
    private: what never leaves the curator, or the user's device.
    step: int32[], the number of updates done.
    """

    public: PyTree
    private: PyTree
    step: jax.Array


class Info(NamedTuple):
    """What a step's pass over the ratings also shows: unpriced, for the curator's eyes.

    loss: float32[], mean squared error over the ratings, in rating units squared, at the state
      *before* the update.
    clipped_fraction: float32[], share of the factor rows whose norm exceeded the clip in this step.
    """

    loss: jax.Array
    clipped_fraction: jax.Array


class Factors(NamedTuple):
    """A bilinear model, which predicts center[i] + ⟨user_factors[u], item_factors[i]⟩.

    That is the rating of item i by user u.

    user_factors: float32[users, rank]; None where absent.
    item_factors: float32[items, rank]; None where absent.
    center: float32[] or float32[items], in rating units; None where absent.
    """

    user_factors: Array | None = None
    item_factors: Array | None = None
    center: Array | None = None


class Release(NamedTuple):
    """What the world may see, and nothing else; a part that is not released is None.

    A sketch holds the first columns of all vectors. Released user_factors and item_factors are then
    further columns (`count_sketch.factors`).

    user_factors, item_factors, center: as in `Factors`.
    factor_variance: float32[items, d], posterior variances of the last d columns of the item
      factors. With them a new user's factors follow from the release (`Spec.fold_in`).
    factor_unit: float32[], of which these d columns are whole multiples, and the variances of its
      square.
    sketch: float32[depth, width], the table in which a count sketch keeps all vectors.
    hashes: the words of the sketch's hash functions.
    rank: int32[], of the vectors in the sketch.
    median: bool[], whether the vectors are median queries; else they are means.
    """

    user_factors: Array | None = None
    item_factors: Array | None = None
    center: Array | None = None
    factor_variance: Array | None = None
    factor_unit: Array | None = None
    sketch: Array | None = None
    hashes: Array | None = None
    rank: Array | None = None
    median: Array | None = None


class Poisson(NamedTuple):
    """The coins of a step on a secret Poisson sample: each rating is in independently, at `rate`.

    key: of all draws. What it says of one rating does not change with another's rate.
    rate: float32[], or one rate for each slot, in the shape of `layout.stored_values`. `coins`
      returns the scalar. `query` takes a slot of rate 1 surely and one of rate 0 never: so audits
      put the record on trial into a sample, or keep it out.
    """

    key: jax.Array
    rate: Array


class Mechanism(NamedTuple):
    """A private training algorithm, as seven functions.

    Every field is a `jax.tree_util.Partial` of a module-level function. So a Mechanism is a pytree:
    jit takes it as an argument, vmap runs over stacked ones, and `_replace` exchanges any part.

    init: (key, data, previous) -> State. `previous` is the public state of an earlier phase, or
      None.
    coins: (key) -> randomness that does not depend on the data, drawn before looking; None for
      most. A `Poisson` in it, or as it, keeps secret who takes part. All else counts as known to
      whom the claim is made against.
    query: (state, data, coins) -> (statistics, Info). The raw statistics of this step, with no
      randomness of its own.
    noise: how statistics become a response.
    update: (state, response, data) -> State. Its public part may depend on (state.public, response)
      only.
    release: (state) -> Release.
    guarantee: (num_steps) -> accounting.Guarantee, from the same numbers that query and noise use.
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
    """The curator's whole model: each part from the public state, else from the private one.

    Nothing here is safe to publish: that is what `Mechanism.release` is for.
    """

    def find(name: str) -> jax.Array | None:
        public = getattr(state.public, name, None)
        return getattr(state.private, name, None) if public is None else public

    return Factors(*(find(name) for name in Factors._fields))


@jax.jit
def _called(part: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    return part(*arguments)


def traced_once(part: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same part of a mechanism, traced once for arguments of the same shapes.

    The check of its shapes, training, and every audit call it. XLA inlines the call.
    """
    return partial(_called, part)


def in_each(fn: Callable[..., PyTree], worlds: Sequence[tuple[PyTree, ...]]) -> list[PyTree]:
    """`fn` of each world's arguments, which are of the same shapes; compiled once for all."""
    if len(worlds) == 1:
        return [fn(*worlds[0])]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *worlds)
    found = jax.lax.map(lambda arguments: fn(*arguments), stacked)
    return [jax.tree.map(lambda leaf, at=at: leaf[at], found) for at in range(len(worlds))]


def step(mechanism: Mechanism, key: Key, state: State, data: Data) -> tuple[State, Info]:
    """One step in one world: coins, query, noise, update. Spends `key`."""
    coins_key, noise_key = jax.random.split(key)
    statistics, info = traced_once(mechanism.query)(state, data, mechanism.coins(coins_key))
    num_devices = _num_devices(data) if draws(mechanism.noise) else 1
    rows = None if getattr(data, "users_each", None) is None else data.num_users
    response = spread.divided(
        num_devices, partial(traced_once(mechanism.noise.sample), noise_key), statistics, rows=rows
    )
    return traced_once(mechanism.update)(state, response, data)._replace(step=state.step + 1), info


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
    same bytes as 5. A GPU adds numbers in no fixed order. There chunks agree up to rounding, and to
    the byte with XLA_FLAGS=--xla_gpu_deterministic_ops=true.

    Args:
      limit: int32[], the step from which on nothing is done, at no cost. Runs of unequal length
        share one compiled program so, see `sweep`. None: all `num_steps` are done.

    Returns: (State, Info). The state is whole on every device. Each leaf of Info has a leading axis
      of num_steps, with 0 for the steps not done.
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
    # a state that is cut over devices would make the next steps another program
    return spread.replicated(_num_devices(data), state), info


Phase = tuple[Mechanism, int]  # and its number of steps


def _init_after(
    init: Callable[..., State], public: PyTree, key: Key, data: Data, previous: None
) -> State:
    del previous
    return init(key, data, public)


def after(mechanism: Mechanism, public: PyTree) -> Mechanism:
    """`mechanism` after an earlier phase, whose public state its `init` gets as `previous`."""
    return mechanism._replace(init=Partial(_init_after, mechanism.init, public))


@jax.jit
def _init(init: Callable[..., State], key: Key, data: Data) -> State:
    return traced_once(init)(key, data, None)


def link(phases: Sequence[Phase], key: Key, data: Data) -> list[Mechanism]:
    """Each phase's mechanism as it goes on from the phase before it. Spends `key`.

    All phases but the last are run for that. A phase sees what the one before it made public, and
    nothing else of it. Prices add up: `accounting.compose`.
    """
    linked = [mechanism for mechanism, _ in phases[:1]]
    keys = jax.random.split(key, max(len(phases) - 1, 1))
    for phase_key, (own, num_steps), (following, _) in zip(keys, phases, phases[1:], strict=False):
        init_key, train_key = jax.random.split(phase_key)
        # `own` has no state within: phases of one kind then share one compiled program
        state, _info = train(
            own, train_key, _init(linked[-1].init, init_key, data), data, num_steps=num_steps
        )
        linked.append(after(following, state.public))
    return linked


def begin(mechanism: Mechanism, key: Key, data: Data, earlier: Sequence[Phase] = ()) -> State:
    """The state that `mechanism` starts from, after the `earlier` phases. Spends `key`.

    All run on the same data.
    """
    if earlier:
        key, earlier_key = jax.random.split(key)
        mechanism = link((*earlier, (mechanism, 0)), earlier_key, data)[-1]
    return _init(mechanism.init, key, data)


def begin_each(mechanism: Mechanism, key: Key, worlds: Sequence[Data]) -> tuple[State, State]:
    """What each of two worlds starts from, by the same key."""
    init = traced_once(mechanism.init)
    first, second = in_each(lambda world: init(key, world, None), [(world,) for world in worlds])
    return first, second


def _apart(a: jax.Array, b: jax.Array) -> jax.Array:
    return signed(a - b).astype(float) if a.dtype == jnp.uint32 else a - b


def l2_distance(response: PyTree, statistics: PyTree, other: PyTree) -> jax.Array:
    """The L2 distance of two worlds' statistics: a step's sensitivity along this transcript.

    Sums mod 2^32 are as far apart as the shorter way round.
    """
    del response
    squares = jax.tree.map(lambda a, b: jnp.sum(_apart(a, b) ** 2), statistics, other)
    return jnp.sqrt(jax.tree.reduce(jnp.add, squares))


@partial(jax.jit, static_argnames=("num_steps", "observe"))
def train_coupled(
    mechanism: Mechanism,
    key: Key,
    states: tuple[State, ...],
    datas: tuple[Data, ...],
    num_steps: int,
    observe: Callable[..., PyTree] = l2_distance,
) -> tuple[tuple[State, ...], PyTree, Info]:
    """Worlds follow one transcript: the first world's responses (and coins) drive all, usually two.

    That is all that an audit of adaptive steps needs. With the transcript fixed, a step's
    sensitivity is the distance between two worlds' statistics, and the privacy loss is the sum
    of `noise.log_ratio(response, statistics, other)`.

    Args:
      states: the worlds' states, from `init` with one key in all. Shapes are equal, as are those of
        `datas`.
      observe: module-level function (response, statistics of each world) -> pytree, evaluated at
        every step.

    Returns: (states, observations, the first world's Info); each leaf of the observations and of
      Info has a leading axis of num_steps.
    """

    def body(states: tuple[State, ...], _: None) -> tuple[tuple[State, ...], tuple[PyTree, Info]]:
        coins_key, noise_key = jax.random.split(jax.random.fold_in(key, states[0].step))
        coins = mechanism.coins(coins_key)

        def query(state: State, data: Data) -> tuple[PyTree, Info]:
            return traced_once(mechanism.query)(state, data, coins)

        def next_state(state: State, data: Data) -> State:
            after = traced_once(mechanism.update)(state, response, data)
            return after._replace(step=state.step + 1)

        worlds = list(zip(states, datas, strict=True))
        answers = in_each(query, worlds)
        statistics = [answer for answer, _ in answers]
        response = traced_once(mechanism.noise.sample)(noise_key, statistics[0])
        return tuple(in_each(next_state, worlds)), (observe(response, *statistics), answers[0][1])

    states, (observed, info) = jax.lax.scan(body, states, length=num_steps)
    return states, observed, info
