"""One program on several devices: which arguments they share out, and which each has whole.

Ratings are cut along the mesh axis `AXIS`, and so is what there is of their users while a program
runs (`layout`). Everything else is on every device. A program that is already mapped over that axis
(`sweep`, whose runs each have several devices) is handed its share of the ratings, and runs as it
is.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

AXIS = "shard"
CUT, WHOLE = PartitionSpec(AXIS), PartitionSpec()
DIVIDED = 1 << 15  # numbers, some 0.3 ms of drawing normals; not tuned
LARGER = 256  # times a CPU's block, on an accelerator; not tuned

_ELSEWHERE: ContextVar[tuple[Any, ...]] = ContextVar("devices that are not here", default=())


@contextmanager
def compiling_for(devices: Sequence[Any]) -> Generator[None]:
    """A block in which programs are compiled for these devices, which need not be here.

    For a look at what a machine would be given. jax takes programs that it knows for those of any
    backend, so it forgets all of them at both ends.

    Args:
      devices: of one kind, such as those of `jax.experimental.topologies.get_topology_desc`.
    """
    jax.clear_caches()
    before = _ELSEWHERE.set(tuple(devices))
    try:
        yield
    finally:
        _ELSEWHERE.reset(before)
        jax.clear_caches()


def devices() -> Sequence[Any]:
    """The devices that programs are compiled for."""
    return _ELSEWHERE.get() or jax.devices()


def backend() -> str:
    """The kind of the devices that programs are compiled for: "cpu", or any accelerator's name."""
    elsewhere = _ELSEWHERE.get()
    return elsewhere[0].platform if elsewhere else jax.default_backend()


def block(on_a_cpu: int) -> int:
    """How much to work on at a time: what a CPU's caches hold, and more on an accelerator.

    There each block is kernels to start.
    """
    return on_a_cpu if backend() == "cpu" else LARGER * on_a_cpu


def mesh(num_devices: int) -> jax.sharding.Mesh:
    """The first so many devices, along the axis that ratings are cut along."""
    return jax.make_mesh(
        (num_devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=devices()[:num_devices]
    )


def inside() -> bool:
    """Whether this is traced within a map over `AXIS`."""
    try:
        jax.lax.axis_size(AXIS)
    except NameError:
        return False
    return True


def over(
    num_devices: int,
    fn: Callable[..., Any],
    stored: Any,
    *trees: Any,
    cut: Container[int] = (),
    whole: bool = False,
    gives_cut: bool = False,
) -> Any:
    """`fn(stored, *trees)` on every device.

    Args:
      fn: may use collectives along `AXIS` where there are several devices.
      stored: arrays that are cut over the devices.
      trees: arrays that are whole on every device, except at `cut`.
      cut: positions of trees of which each device gets a share. Shares are equally large: leading
        axes are filled up with zeros.
      whole: each device gets all of `stored`.
      gives_cut: the result is the devices' shares, one after the other; else all devices have the
        same result.
    """
    if num_devices == 1:
        return fn(stored, *trees)
    trees = tuple(_filled(num_devices, tree) if k in cut else tree for k, tree in enumerate(trees))
    if inside():
        given = (_local_share(tree) if k in cut else tree for k, tree in enumerate(trees))
        out = fn(gathered(num_devices, stored) if whole else stored, *given)
        return gathered(num_devices, out) if gives_cut else out
    specs = (CUT if k in cut else WHOLE for k in range(len(trees)))
    return jax.shard_map(
        fn,
        mesh=mesh(num_devices),
        in_specs=(WHOLE if whole else CUT, *specs),
        out_specs=CUT if gives_cut else WHOLE,
        check_vma=False,
    )(stored, *trees)


def by_each(num_devices: int, fn: Callable[..., Any], *trees: Any) -> Any:
    """`fn(*trees)`, by every device for itself: of the same bits, however many devices there are.

    Left to itself the compiler cuts a program over the devices, and rounds a part of it otherwise
    than the whole. Devices save no time here.
    """
    return over(num_devices, lambda nothing, *whole: fn(*whole), (), *trees)


def divided(
    num_devices: int, fn: Callable[[Any], Any], tree: Any, *, rows: int | None = None
) -> Any:
    """`fn(tree)`, of whose leading axes each device makes a part; values are as without it.

    For what costs more to make than to pass on: noise, of which every device would else draw all.
    It is made of floats, or of whole numbers mod 2^32: other arrays stay where they are. Fewer than
    `DIVIDED` numbers are made by each device.

    rows: arrays of so many rows are cut already, as `over` gave them, and stay so. Of the others
      all devices have the whole result.
    """
    if (
        num_devices == 1
        or inside()
        or sum(leaf.size for leaf in jax.tree.leaves(tree) if _numbers(leaf)) < DIVIDED
    ):
        return fn(tree)

    def whole(leaf: jax.Array) -> jax.Array:
        return leaf if leaf.ndim and leaf.shape[0] == rows else _placed(num_devices, leaf, WHOLE)

    def cut(leaf: jax.Array) -> jax.Array:
        return _placed(num_devices, leaf, CUT) if leaf.ndim else leaf

    def numbers(place: Callable[[jax.Array], jax.Array], tree: Any) -> Any:
        return jax.tree.map(lambda leaf: place(leaf) if _numbers(leaf) else leaf, tree)

    # Whole before and after: or what the tree was made of, such as the state of a loop, would be
    # cut as well.
    return numbers(whole, numbers(cut, fn(numbers(cut, numbers(whole, tree)))))


def replicated(num_devices: int, tree: Any) -> Any:
    """The arrays, replicated: every device has all of each, whatever a program made of them."""
    if num_devices == 1 or inside():
        return tree
    return jax.tree.map(lambda leaf: _placed(num_devices, leaf, WHOLE), tree)


def _placed(num_devices: int, leaf: jax.Array, spec: PartitionSpec) -> jax.Array:
    return jax.lax.with_sharding_constraint(leaf, jax.NamedSharding(mesh(num_devices), spec))


def _numbers(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype == jnp.uint32


def gathered(num_devices: int, tree: Any) -> Any:
    """The whole arrays, from the shares in a program mapped over `AXIS`; elsewhere unchanged."""
    if num_devices == 1 or not inside():
        return tree
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS, tiled=True), tree)


def _filled(num_devices: int, tree: Any) -> Any:
    """The arrays with rows of zeros at the end, so that all devices' shares are equally long."""

    def fill(leaf: jax.Array) -> jax.Array:
        missing = -leaf.shape[0] % num_devices
        return jnp.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1)) if missing else leaf

    return jax.tree.map(fill, tree)


def first_row(each: int | None) -> jax.Array | None:
    """In a program mapped over `AXIS`: the first row of a device's share of `each` rows."""
    return None if each is None else jax.lax.axis_index(AXIS) * each


def _local_share(tree: Any) -> Any:
    """In a program mapped over `AXIS`: this device's rows of arrays that it has whole."""

    def rows(leaf: jax.Array) -> jax.Array:
        size = leaf.shape[0] // jax.lax.axis_size(AXIS)
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(AXIS) * size, size)

    return jax.tree.map(rows, tree)
