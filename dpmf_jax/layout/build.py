"""From checked ratings to a `Layout`: which kind, over which devices, and in words for people."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from dpmf_jax.devices import hosts, spread
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import split, stream
from dpmf_jax.layout.stored import Dense, Layout, Split

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings

Tree = Any


def make(ratings: Ratings, *, kind: str = "auto", num_devices: int | None = None) -> Layout:
    """The ratings, laid out on the device.

    Args:
      ratings: checked ratings; every (user, item) at most once. Each of several processes gives
        those of its own users.
      kind: "split", "dense", "stream", or "auto", which is one of the first two.
      num_devices: the ratings are spread over the first so many of `jax.devices()`. None means all
        of them, where there are enough ratings. Several processes always use all devices, streamed
        ratings always one.

    Raises:
      UsageError: an unknown kind; more devices than there are; streamed ratings over several
        devices; another kind than split in several processes.
      DataError: no room for the files of streamed ratings.
    """
    if hosts.count() > 1:
        return _make_together(ratings, kind)
    sizes = (ratings.num_users, ratings.num_items, ratings.num_ratings)
    layout = partial(Layout, num_users=sizes[0], num_items=sizes[1], num_ratings=sizes[2])
    if kind == "stream":
        if num_devices not in (None, 1):
            raise UsageError(
                f"streamed ratings over {num_devices} devices",
                fix="use one device, or another layout",
            )
        return layout(stored=stream.Stream(ratings, stream.BLOCK_BYTES), num_devices=1)
    devices = _num_devices(sizes, num_devices)
    each, put = None, jnp.asarray
    if devices > 1:
        each = -(-sizes[0] // devices)
        put = partial(jax.device_put, device=NamedSharding(spread.mesh(devices), spread.CUT))
    if kind == "auto":
        kind = choose(*sizes, backend=spread.backend())
    if kind == "dense":
        users = ratings.num_users if each is None else each * devices
        value = np.zeros((users, ratings.num_items), np.float32)
        present = np.zeros((users, ratings.num_items), bool)
        value[ratings.user, ratings.item] = ratings.value
        present[ratings.user, ratings.item] = True
        stored: Split | Dense = Dense(put(value), put(present))
        if ratings.weight is not None:
            weight = np.zeros_like(value)
            weight[ratings.user, ratings.item] = split.on_grid(ratings.weight)
            stored = stored._replace(weight=put(weight))
    elif kind == "split":
        sides = split.make(ratings, num_shards=devices, users_each=each)
        stored = Split(*jax.tree.map(put, sides))
    else:
        raise UsageError(f"unknown layout {kind!r}", fix='use "auto", "split", "dense" or "stream"')
    return layout(stored=stored, num_devices=devices, users_each=each)


def _make_together(ratings: Ratings, kind: str) -> Layout:
    """Shards of equal size, as many as all processes have devices; each process gives its own."""
    if kind not in ("auto", "split"):
        raise UsageError(
            f"several processes cannot share a {kind} layout", fix='use "auto" or "split"'
        )
    devices, num_ratings = jax.device_count(), int(hosts.total(ratings.num_ratings))
    shards = jax.local_device_count()
    stored = Split(
        *split.make(ratings, num_shards=shards, num_ratings=num_ratings, agreed=hosts.largest)
    )
    cut = NamedSharding(spread.mesh(devices), spread.CUT)
    stored = jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(cut, leaf), stored)
    return Layout(
        stored=stored,
        num_users=ratings.num_users,
        num_items=ratings.num_items,
        num_ratings=num_ratings,
        num_devices=devices,
    )


def choose(num_users: int, num_items: int, num_ratings: int, *, backend: str) -> str:
    """The layout that `make(kind="auto")` takes, from public sizes and the backend alone.

    On a CPU a dense cell costs 0.9 of a split rating (17 against 19 ns of one core at rank 20, both
    orientations; the items' is slow, since it reads across rows), so dense is for data with hardly
    a gap, or so small that compiling and dispatch are all there is. The figures for accelerators
    are a guess, nothing was measured there.
    """
    cells = num_users * num_items
    if backend == "cpu":
        return "dense" if cells <= 1 << 14 or 10 * num_ratings > 9 * cells else "split"
    return (
        "dense" if cells <= 1 << 22 or (16 * num_ratings > cells and cells <= 1 << 30) else "split"
    )


def describe(data: Layout) -> str:
    """One line for people: the kind, the sizes, the memory and the devices."""
    line = (
        f"{data.kind} layout, {data.num_ratings:,} ratings, {data.num_users:,} users x"
        f" {data.num_items:,} items, {data.nbytes / 1e6:.1f} MB"
    )
    if data.kind == "stream":
        line += " at a time"
    if isinstance(data.stored, Split):
        slots = data.stored.by_user.value.size + data.stored.by_item.value.size
        line += f", {100 * (1 - 2 * data.num_ratings / slots):.0f}% padding"
    line += f", {data.num_devices} {jax.default_backend()} device{'s' * (data.num_devices > 1)}"
    return line if hosts.count() == 1 else f"{line} of {hosts.count()} processes"


def replicate(data: Layout, tree: Tree) -> Tree:
    """The arrays of a tree on every device of the layout, where the results of a step will be too.

    Without it a sharded program is compiled twice: for its first arguments, and for its own
    results.
    """
    if data.num_devices == 1:
        return jax.tree.map(jnp.asarray, tree)
    everywhere = NamedSharding(spread.mesh(data.num_devices), spread.WHOLE)
    if hosts.count() == 1:
        return jax.device_put(tree, everywhere)
    return jax.tree.map(lambda leaf: _everywhere(leaf, everywhere), tree)


def _everywhere(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """An array that every process has, as one array of all of them."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raw = _everywhere(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(raw, impl=jax.random.key_impl(leaf))
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _num_devices(sizes: tuple[int, int, int], num_devices: int | None) -> int:
    available = len(jax.devices())
    if num_devices is None:
        return available if sizes[2] >= 1 << 15 else 1
    if not 1 <= num_devices <= available:
        raise UsageError(
            f"{num_devices} devices asked for, {available} there",
            fix="fewer devices, or set jax_num_cpu_devices before jax starts",
        )
    return num_devices
