"""How ratings meet the hardware: operations over the observed pairs, in both orientations.

Mechanisms write a function for *one* row (one user with the items rated, or one item with its
raters); this module alone knows how rows are stored, blocked and spread over devices.

Three layouts behind the same operations:

- `split` (`layout_split`): each row is cut into pieces of fixed width, padded; work grows with the
  number of ratings.
- `dense`: values `[users, items]` and a mask; work grows with users times items, as matrix
  products.
- `stream` (`layout_stream`): split, in files that are read while a program runs, for ratings larger
  than the device; sums alone, on one device. Only where it is asked for.

`make(kind="auto")` chooses from public sizes and the backend, never from who rated what. Shapes of
the split layout do depend on how many ratings each row has: they stay with the curator, like the
ratings. Everything on the device is float32, int32 or bool, products are full float32. All
operations can be jitted, scanned, and vmapped over trees and over data of equal shape.

Over several devices each has an equal number of users, in their order: their ratings, and in a
program their rows of what there is per user. Sums per item are added up over the devices, so
results are equal to those of one device up to float32 summation. On a CPU that is how further cores
are used: each device runs its blocks on one thread. Whether blocks are used is decided by the
backend when a program is traced. Of several processes (`hosts`) each lays out the ratings that it
holds, in pieces spread evenly over its own devices, and all run the program together; whose ratings
a process holds is not a matter of order, so there what is per user is whole on every device, and
added up as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.typing import ArrayLike

from dpmf_jax.devices import hosts, spread
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import fold as layout_fold
from dpmf_jax.layout import outer as layout_outer
from dpmf_jax.layout import split
from dpmf_jax.layout import stream as layout_stream

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings

Tree = Any
INDEX = split.Index()  # among columns: the index of each, with no table to look it up in
RowFunction = Callable[[Tree, Tree, jax.Array, jax.Array], Tree]
FoldFunction = Callable[[Tree, Tree, Tree, jax.Array, jax.Array], Tree]


class Dense(NamedTuple):
    """value float32[users, items], 0 where absent; present bool[users, items]; users filled up to
    equal shards.
    """

    value: Any
    present: Any


class Split(NamedTuple):
    """The same ratings twice: rows are users, and rows are items."""

    by_user: split.Side
    by_item: split.Side


class Address(NamedTuple):
    """Where one rating is stored: indices, and (piece, slot) in both orientations of a split layout
    (0 if dense).
    """

    user: jax.Array
    item: jax.Array
    user_piece: jax.Array
    user_slot: jax.Array
    item_piece: jax.Array
    item_slot: jax.Array


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["stored"],
    meta_fields=["num_users", "num_items", "num_ratings", "num_devices", "users_each"],
)
@dataclass(frozen=True, kw_only=True)
class Layout:
    """Ratings on the device. `num_ratings` is the number at `make`; neighbours keep it, since it is
    static.

    users_each: each device has the ratings of so many users, in their order, and nobody else's;
    None where it is one device, or any rating may be on any.
    """

    stored: Any  # Split | Dense | Stream
    num_users: int
    num_items: int
    num_ratings: int
    num_devices: int
    users_each: int | None = None

    @property
    def kind(self) -> str:
        kinds = {Dense: "dense", layout_stream.Stream: "stream"}
        return kinds.get(type(self.stored), "split")


def resident(data: Layout) -> Layout:
    """The data. Raises: UsageError for streamed ratings, of which there are sums only."""
    if isinstance(data.stored, layout_stream.Stream):
        raise UsageError(
            "streamed ratings can be summed per user and per item, nothing else", fix='kind="split"'
        )
    return data


def whole(data: Layout) -> Split | Dense:
    """All that is stored, as one device has it; also in a program that is mapped over devices.

    Raises: UsageError for streamed ratings.
    """
    return alone(data, spread.gathered(data.num_devices, resident(data).stored)).stored


def alone(data: Layout, stored: Split | Dense) -> Layout:
    """The layout of one device, given all that the devices have stored: the same order, and padding
    at the end.
    """
    if isinstance(stored, Dense):
        stored = Dense(*(leaf[: data.num_users] for leaf in stored))
    elif data.users_each is not None:
        stored = Split(*(split.as_one(side, side) for side in stored))
    return replace(data, stored=stored, num_devices=1, users_each=None)


def make(ratings: Ratings, *, kind: str = "auto", num_devices: int | None = None) -> Layout:
    """Ratings, laid out on the device.

    Args:
      ratings: checked ratings; every (user, item) at most once. Of several processes: those of its
        own users.
      kind: "split", "dense", "stream", or "auto", which is one of the first two.
      num_devices: spread over the first so many of `jax.devices()`; None means all where there are
        enough ratings. Several processes always use all, streamed ratings one.

    Raises:
      UsageError: unknown kind, or more devices than there are; of several processes, another kind
        than split; streamed ratings over several devices. DataError: no room for the files of
        streamed ratings.
    """
    if hosts.count() > 1:
        return _make_together(ratings, kind)
    sizes = (ratings.num_users, ratings.num_items, ratings.num_ratings)
    if kind == "stream":
        if num_devices not in (None, 1):
            raise UsageError(
                f"streamed ratings over {num_devices} devices",
                fix="use one device, or another layout",
            )
        stream = layout_stream.Stream(ratings, layout_stream.BLOCK_BYTES)
        return Layout(
            stored=stream,
            num_users=sizes[0],
            num_items=sizes[1],
            num_ratings=sizes[2],
            num_devices=1,
        )
    devices = _num_devices(sizes, num_devices)
    each = -(-sizes[0] // devices) if devices > 1 else None
    if kind == "auto":
        kind = choose(*sizes, backend=spread.backend())
    if kind == "dense":
        users = ratings.num_users if each is None else each * devices
        value = np.zeros((users, ratings.num_items), np.float32)
        present = np.zeros((users, ratings.num_items), bool)
        value[ratings.user, ratings.item] = ratings.value
        present[ratings.user, ratings.item] = True
        stored: Split | Dense = Dense(value, present)
    elif kind == "split":
        stored = Split(*split.make(ratings, num_shards=devices, users_each=each))
    else:
        raise UsageError(f"unknown layout {kind!r}", fix='use "auto", "split", "dense" or "stream"')
    if devices > 1:
        stored = jax.device_put(stored, NamedSharding(spread.mesh(devices), spread.CUT))
    else:
        stored = jax.tree.map(jnp.asarray, stored)
    return Layout(
        stored=stored,
        num_users=sizes[0],
        num_items=sizes[1],
        num_ratings=sizes[2],
        num_devices=devices,
        users_each=each,
    )


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
    own = NamedSharding(spread.mesh(devices), spread.CUT)
    stored = jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(own, leaf), stored)
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
    streamed = data.kind == "stream"
    size = (
        data.stored.nbytes
        if streamed
        else sum(leaf.nbytes for leaf in jax.tree.leaves(data.stored))
    ) / 1e6
    what = (
        f"{data.kind} layout, {data.num_ratings:,} ratings, {data.num_users:,} users x"
        f" {data.num_items:,} items"
    )
    what += f", {size:.1f} MB{' at a time' if streamed else ''}"
    if isinstance(data.stored, Split):
        slots = data.stored.by_user.value.size + data.stored.by_item.value.size
        what += f", {100 * (1 - 2 * data.num_ratings / slots):.0f}% padding"
    what += f", {data.num_devices} {jax.default_backend()} device{'s' * (data.num_devices > 1)}"
    return what if hosts.count() == 1 else f"{what} of {hosts.count()} processes"


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


def pad_rank(factors: jax.Array) -> jax.Array:
    """Factors [rows, rank] with zero columns up to a multiple of 8 on a CPU, as they are elsewhere;
    cut sums back.

    Products of gathered columns run on whole vector registers then: 0.79 of the time at rank 20.
    """
    missing = -factors.shape[-1] % 8 if spread.backend() == "cpu" else 0
    return jnp.pad(factors, [(0, 0)] * (factors.ndim - 1) + [(0, missing)]) if missing else factors


def sum_by_user(data: Layout, fn: RowFunction, user_tree: Tree, item_tree: Tree) -> Tree:
    """Per user, the sums that `fn` makes over the user's ratings: every leaf with a leading axis
    `num_users`.

    Args:
      data: the ratings.
      fn: `fn(row, columns, values, present)` for one user. `row`: `user_tree` without its leading
        axis; `columns`: `item_tree` at some items, leading axis `width`; `values` float32[width],
        raw ratings; `present` float32[width], 1 for a rating, else 0. Returns a pytree of *sums*
        over the slots. It sees a user's ratings in parts, and its results are added; slots that are
        not `present` must contribute 0.
      user_tree: arrays with leading axis `num_users`.
      item_tree: arrays with leading axis `num_items`, or `INDEX` for the items' own indices.

    The fastest `fn` measured on a CPU uses matrix products, never multiply and sum (1.7 times as
    long), with factors padded by `pad_rank`; a clip enters as one scalar per column, folded into
    the residual:

        def gradient(row, columns, values, present):  # -Σ e s x and Σ e²
            residual = present * (values - columns.center - columns.factors @ row)
            return -(residual * columns.scale) @ columns.factors, residual @ residual

        sums, squared = sum_by_user(data, gradient, pad_rank(users), Columns(pad_rank(items),
        center, scale)) sums = sums[:, : users.shape[1]]
    """
    return _sum_by(data, fn, user_tree, item_tree, orientation=0)


def sum_by_item(data: Layout, fn: RowFunction, item_tree: Tree, user_tree: Tree) -> Tree:
    """As `sum_by_user` with roles exchanged: `fn` is for one item, `columns` are users; leading
    axis `num_items`.
    """
    return _sum_by(data, fn, item_tree, user_tree, orientation=1)


def map_ratings(data: Layout, fn: RowFunction, user_tree: Tree, item_tree: Tree) -> Tree:
    """Per rating, what `fn` makes of it: as in `sum_by_user`, but `fn` returns arrays [width] in
    place of sums.

    Returns: float32 arrays in the layout's own order, which is that of `stored_values`; 0 where
      there is no rating.

    Raises: UsageError for streamed ratings, as everything but the two sums.
    """
    resident(data)

    def body(stored, user_tree, item_tree):
        if isinstance(stored, Dense):
            out, mask = _dense(stored, fn, user_tree, item_tree, orientation=0), stored.present
        else:
            out, mask = split.map_pieces(
                _own(data, stored.by_user), fn, user_tree, item_tree, data.num_items
            )
        return jax.tree.map(lambda leaf: jnp.where(mask, leaf, 0), out)

    out = _on_all(data, body, user_tree, item_tree, cut=_users_at(data, 0), gives_cut=True)
    if isinstance(data.stored, Dense):
        return jax.tree.map(lambda leaf: leaf[: data.num_users], out)
    return (
        out
        if data.users_each is None
        else split.as_one(spread.gathered(data.num_devices, data.stored).by_user, out)
    )


def fold_by_user(
    data: Layout, fn: FoldFunction, carry_tree: Tree, user_tree: Tree, item_tree: Tree
) -> Tree:
    """Per user, `fn` over the user's ratings one after the other, by item index: every leaf as in
    `carry_tree`.

    Args:
      data: the ratings.
      fn: `fn(carry, row, column, value, present)` for one rating -> carry. `carry`, `row`:
        `carry_tree` and `user_tree` without their leading axis; `column`: `item_tree` at the item;
        `value` float32[], raw; `present` float32[], 1 where the result counts (it is also called
        where there is no rating; the carry stays what it was there).
      carry_tree, user_tree: arrays with leading axis `num_users`. item_tree: with `num_items`.

    Rows run side by side, so time goes with the longest row; several devices share the rows. See
    `layout_fold`.

    Raises: UsageError over several processes, where a row's ratings may be anywhere.
    """
    return layout_fold.fold(resident(data), fn, carry_tree, user_tree, item_tree, orientation=0)


def fold_by_item(
    data: Layout, fn: FoldFunction, carry_tree: Tree, item_tree: Tree, user_tree: Tree
) -> Tree:
    """As `fold_by_user` with roles exchanged: per item, over its raters by user index."""
    return layout_fold.fold(resident(data), fn, carry_tree, item_tree, user_tree, orientation=1)


def outer_by_item(data: Layout, fn: RowFunction, item_tree: Tree, user_tree: Tree) -> jax.Array:
    """Per item, Σ z zᵀ over its ratings, float32[items, k, k]: normal equations, faster than by
    `sum_by_item`.

    Args:
      fn: as in `sum_by_item`, but it returns the vectors z, float32[width, k], 0 where not
        `present`. `columns` are 0 there already, so that only what is made of values must be
        masked.
    """
    return layout_outer.outer(resident(data), fn, item_tree, user_tree)


def stored_values(data: Layout) -> tuple[jax.Array, jax.Array]:
    """(values, present) in the order and shape of `map_ratings`; present is bool."""
    stored = whole(data)
    if isinstance(stored, Dense):
        return stored.value, stored.present
    side = stored.by_user
    return side.value, side.column != data.num_items


def locate(data: Layout, user: Any, item: Any) -> Address:
    """Where ratings are stored (host, data not traced): scalars give one address, arrays a stack of
    them.

    Raises:
      UsageError: a pair that has no rating.
    """
    resident(data)
    users, items = np.broadcast_arrays(np.asarray(user, np.int32), np.asarray(item, np.int32))
    if isinstance(data.stored, Dense):
        inside = (users >= 0) & (users < data.num_users) & (items >= 0) & (items < data.num_items)
        found = (
            inside
            & np.asarray(data.stored.present)[
                np.where(inside, users, 0), np.where(inside, items, 0)
            ]
        )
        places = (np.zeros_like(users),) * 4
    else:
        by_user, found = split.locate(data.stored.by_user, users, items, data.num_items)
        by_item, _ = split.locate(data.stored.by_item, items, users, data.num_users)
        places = (*by_user, *by_item)
    if not found.all():
        where = np.flatnonzero(~found.ravel())[0]
        pair = f"user index {users.ravel()[where]}, item index {items.ravel()[where]}"
        raise UsageError("no such rating", where=pair, fix="choose a pair that has a rating")
    return Address(*(jnp.asarray(part, jnp.int32) for part in (users, items, *places)))


def replace_value(data: Layout, address: Address, value: ArrayLike) -> Layout:
    """The neighbour in which one rating has another raw value: same shapes, same compiled
    programs.
    """
    stored = resident(data).stored
    if isinstance(stored, Dense):
        return replace(
            data,
            stored=stored._replace(value=stored.value.at[address.user, address.item].set(value)),
        )
    by_user = split.replace_value(stored.by_user, address.user_piece, address.user_slot, value)
    by_item = split.replace_value(stored.by_item, address.item_piece, address.item_slot, value)
    return replace(data, stored=Split(by_user, by_item))


def remove_rating(data: Layout, address: Address) -> Layout:
    """The neighbour without one rating: its slot becomes padding; same shapes, and the same static
    `num_ratings`.
    """
    stored = resident(data).stored
    if isinstance(stored, Dense):
        at = (address.user, address.item)
        return replace(
            data, stored=Dense(stored.value.at[at].set(0.0), stored.present.at[at].set(False))
        )
    by_user = split.remove_slot(
        stored.by_user, address.user_piece, address.user_slot, data.num_items
    )
    by_item = split.remove_slot(
        stored.by_item, address.item_piece, address.item_slot, data.num_users
    )
    return replace(data, stored=Split(by_user, by_item))


def remove_user(data: Layout, user: ArrayLike) -> Layout:
    """The neighbour without one user's ratings; the user stays in the catalogue, shapes and
    `num_ratings` stay too.
    """
    stored = resident(data).stored
    if isinstance(stored, Dense):
        return replace(
            data, stored=Dense(stored.value.at[user].set(0.0), stored.present.at[user].set(False))
        )
    by_user = split.remove_where(
        stored.by_user, (stored.by_user.row == user)[:, None], data.num_items
    )
    by_item = split.remove_where(stored.by_item, stored.by_item.column == user, data.num_users)
    return replace(data, stored=Split(by_user, by_item))


def _sum_by(
    data: Layout, fn: RowFunction, row_tree: Tree, column_tree: Tree, *, orientation: int
) -> Tree:
    num_rows, num_columns = (data.num_users, data.num_items)[:: 1 - 2 * orientation]
    if isinstance(data.stored, layout_stream.Stream):
        row_tree, column_tree = jax.tree.map(jnp.asarray, (row_tree, column_tree))
        return layout_stream.sum_rows(
            data.stored, fn, row_tree, column_tree, num_rows, num_columns, orientation=orientation
        )

    by_user = orientation == 0

    def body(stored, row_tree, column_tree):
        first = spread.first(data.users_each)
        if isinstance(stored, Dense):
            out = _dense(stored, fn, row_tree, column_tree, orientation=orientation, first=first)
        elif by_user:
            rows = data.users_each or num_rows
            out = split.sum_rows(
                _own(data, stored.by_user), fn, row_tree, column_tree, rows, num_columns
            )
        else:
            out = split.sum_rows(
                stored.by_item, fn, row_tree, column_tree, num_rows, num_columns, first=first
            )
        done = data.num_devices == 1 or (by_user and data.users_each is not None)
        return out if done else jax.lax.psum(out, spread.AXIS)

    cut = _users_at(data, orientation)
    out = _on_all(data, body, row_tree, column_tree, cut=cut, gives_cut=by_user and bool(cut))
    return jax.tree.map(lambda leaf: leaf[:num_rows], out)


def _users_at(data: Layout, place: int) -> tuple[int, ...]:
    """For `spread.over`: which tree is cut as users are, if they are; it is at this place."""
    return () if data.users_each is None else (place,)


def _own(data: Layout, side: split.Side) -> split.Side:
    """This device's pieces of users, its own users counted from 0."""
    if data.users_each is None:
        return side
    return side._replace(row=jnp.clip(side.row - spread.first(data.users_each), 0, data.users_each))


def _dense(
    stored: Dense,
    fn: RowFunction,
    row_tree: Tree,
    column_tree: Tree,
    *,
    orientation: int,
    first: jax.Array | None = None,
) -> Tree:
    present = stored.present.astype(jnp.float32)
    index = jnp.arange(stored.value.shape[1 - orientation])
    if orientation == 1 and first is not None:
        index += first
    column_tree = split.with_index(column_tree, index)
    with jax.default_matmul_precision("float32"):  # an accelerator would take fewer bits
        by_row = jax.vmap(fn, in_axes=(0, None, orientation, orientation))
        return by_row(row_tree, column_tree, stored.value, present)


def _on_all(data: Layout, body: Callable[..., Tree], *trees: Tree, **how: Any) -> Tree:
    return spread.over(
        data.num_devices, body, data.stored, *jax.tree.map(jnp.asarray, trees), **how
    )


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
