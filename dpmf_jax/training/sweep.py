"""Many runs of one shape at once: a configuration axis over devices, one compiled program.

Mechanisms whose Configs differ in real numbers only (ε_i, learning rate, λ, clip, seed) are pytrees
of equal structure. `train_many` stacks them; on a CPU each device follows its own configurations
one after the other (`lax.map`), with a trip count of its own, so nothing is communicated and a run
that is done costs nothing. The ratings are on every device; or, where they are laid out over
several, each run has so many devices: configurations and users are two axes of a mesh.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpmf_jax.devices import spread
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Info, Mechanism, State, train

AXIS = "configuration"


class Job(NamedTuple):
    """One run.

    mechanism: as it is.
    key: of its steps.
    state: where it stands.
    num_steps: that it is to reach.
    """

    mechanism: Mechanism
    key: jax.Array
    state: State
    num_steps: int


class Chunk(NamedTuple):
    """What one run did since the last look.

    job: its position in `jobs`.
    state: after it.
    info: Info, one entry a step.
    """

    job: int
    state: State
    info: Info


@partial(jax.jit, static_argnames=("num_steps", "num_devices"))
def train_many(
    mechanisms: Mechanism,
    keys: jax.Array,
    states: State,
    limits: jax.Array,
    data: Layout,
    *,
    num_steps: int,
    num_devices: int,
) -> tuple[State, Info]:
    """`protocol.train` for stacked runs: up to `num_steps` steps of each, none from `limits[i]` on.

    Args:
      mechanisms, keys, states, limits: leading axis = number of runs, a multiple of the devices
        over those of the data.
      data: ratings in a layout, of one device or of as many as each run is to have; a divisor of
        `num_devices`.

    Returns: stacked (State, Info); Info has axes (runs, num_steps), 0 for steps not taken.
    """

    def local(mechanisms, keys, states, limits, data):
        def one(run):
            mechanism, key, state, limit = run
            return train(mechanism, key, state, data, num_steps, limit)

        return jax.lax.map(one, (mechanisms, keys, states, limits))

    if num_devices == 1:
        return local(mechanisms, keys, states, limits, data)
    runs = PartitionSpec(AXIS)
    on_all = jax.shard_map(
        local,
        mesh=_mesh(num_devices, data),
        in_specs=(runs, runs, runs, runs, _cut(data)),
        out_specs=runs,
        check_vma=False,
    )
    return on_all(mechanisms, keys, states, limits, data)


def _mesh(num_devices: int, data: Layout) -> jax.sharding.Mesh:
    """Runs side by side along one axis, the devices of each along the other."""
    shape = (num_devices // data.num_devices, data.num_devices)
    devices = spread.devices()[:num_devices]
    return jax.make_mesh(
        shape, (AXIS, spread.AXIS), axis_types=(AxisType.Auto,) * 2, devices=devices
    )


def _cut(data: Layout) -> PartitionSpec:
    return spread.WHOLE if data.num_devices == 1 else spread.CUT


def run(
    jobs: Sequence[Job],
    data: Layout,
    *,
    chunk_steps: int = 50,
    num_devices: int | None = None,
    finished: Container[int] = frozenset(),
) -> Iterator[Chunk]:
    """All jobs to their ends, longest first.

    As one device is done with a run, the next waiting run takes its place.

    Jobs of equal structure and shapes share one compiled program; others wait for their own. A
    run's steps do not depend on the other runs, on chunking or on the number of devices.

    Args:
      data: ratings in a layout, of one device or of as many as each run is to have.
      chunk_steps: steps between two looks of the host; a job that ends within a chunk takes none
        beyond its end.
      num_devices: over the first so many of `jax.devices()`, or a few less where runs cannot share
        them evenly; None is all of them.
      finished: positions of jobs that end early; the caller may add one when it has seen enough of
        its chunks.

    Yields: a `Chunk` for each run and look. States and Info are NumPy arrays.

    Raises: UsageError for ratings laid out over more devices than `num_devices`.
    """
    each, available = data.num_devices, min(num_devices or jax.device_count(), jax.device_count())
    if each > available:
        raise UsageError(
            f"the ratings lie on {each} devices, of which a sweep may use {available}",
            fix="lay the ratings out on fewer devices, or allow more",
        )
    devices = each * min(available // each, max(len(jobs), 1))
    queues: dict[Any, list[int]] = {}
    for index, job in enumerate(jobs):
        queues.setdefault(_shape(job), []).append(index)
    if devices > 1:  # once, and not again at every look
        data = jax.device_put(data, NamedSharding(_mesh(devices, data), _cut(data)))
    for queue in queues.values():
        yield from _run_equal(
            jobs,
            sorted(queue, key=lambda index: -_left(jobs[index])),
            data,
            chunk_steps,
            devices,
            finished,
        )


def _run_equal(
    jobs: Sequence[Job],
    waiting: list[int],
    data: Layout,
    chunk_steps: int,
    devices: int,
    finished: Container[int],
) -> Iterator[Chunk]:
    states = {index: jobs[index].state for index in waiting}
    waiting = [index for index in waiting if _left(jobs[index]) > 0]
    active: list[int] = []
    places = devices // data.num_devices
    while waiting or active:
        while waiting and len(active) < places:
            active.append(waiting.pop(0))
        slots = (active * places)[
            :places
        ]  # a device without a run of its own repeats one for no step
        limits = [
            jobs[index].num_steps if slot < len(active) else 0 for slot, index in enumerate(slots)
        ]
        before = [int(states[index].step) for index in slots]
        after, info = jax.device_get(
            train_many(
                _stacked([jobs[index].mechanism for index in slots]),
                jnp.stack([jobs[index].key for index in slots]),
                _stacked([states[index] for index in slots]),
                np.asarray(limits, np.int32),
                data,
                num_steps=chunk_steps,
                num_devices=devices,
            )
        )
        for slot, index in enumerate(list(active)):
            states[index] = jax.tree.map(lambda leaf, slot=slot: leaf[slot], after)
            done = int(states[index].step) - before[slot]
            yield Chunk(
                index,
                states[index],
                jax.tree.map(lambda leaf, n=done, slot=slot: leaf[slot, :n], info),
            )
            if index in finished or int(states[index].step) >= jobs[index].num_steps:
                active.remove(index)


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(
        lambda *leaves: jnp.asarray(np.stack([np.asarray(leaf) for leaf in leaves])), *trees
    )


def _left(job: Job) -> int:
    return job.num_steps - int(job.state.step)


def _shape(job: Job) -> Any:
    leaves, structure = jax.tree.flatten((job.mechanism, job.state))
    known = (
        leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in leaves
    )  # nothing leaves the device
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in known)
