"""The ratings on the device: the type `Layout`, and the three ways in which it stores them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dpmf_jax.devices import spread
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import split
from dpmf_jax.layout.stream import Stream


class Dense(NamedTuple):
    """A cell for every pair of a user and an item; padded with users up to equal shards.

    value: the raw rating, 0 where there is none.
    present: whether there is a rating.
    weight: its weight, where ratings have weights; 0 where there is none.
    """

    value: Float[Array, "users items"]
    present: Bool[Array, "users items"]
    weight: Float[Array, "users items"] | None = None

    @property
    def shown(self) -> Float[Array, "users items"]:
        """What sums by weight have in place of `present`."""
        present = self.present.astype(jnp.float32)
        return present if self.weight is None else present * self.weight


class Split(NamedTuple):
    """The same ratings twice, each row cut into pieces: rows are users, and rows are items."""

    by_user: split.Side
    by_item: split.Side


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["stored"],
    meta_fields=["num_users", "num_items", "num_ratings", "num_devices", "users_each"],
)
@dataclass(frozen=True, kw_only=True)
class Layout:
    """The ratings on the device: the argument `data` of every mechanism, audit and training loop.

    A pytree. Its arrays may be traced; its numbers are static and public to the program. `make`
    builds one from checked `Ratings`. A neighbour (`remove_rating`, `replace_value`, …) and
    streamed ratings are of this type too. Only the functions of this package read `stored`.

    stored: the ratings, in one of three ways.
    num_users: rows of whatever there is per user.
    num_items: rows of whatever there is per item.
    num_ratings: how many there were at `make`. Neighbours keep it, since it is static.
    num_devices: over how many devices the ratings are spread.
    users_each: each device has the ratings of so many users, in their order, and nobody else's.
      None on one device, and where any rating may be on any device.
    """

    stored: Split | Dense | Stream
    num_users: int
    num_items: int
    num_ratings: int
    num_devices: int
    users_each: int | None = None

    @property
    def kind(self) -> str:
        """The name that `make` knows it by: "split", "dense" or "stream"."""
        return {Dense: "dense", Stream: "stream"}.get(type(self.stored), "split")

    @property
    def weighted(self) -> bool:
        """Whether ratings have weights."""
        if isinstance(self.stored, Stream):
            return self.stored.weighted
        first = self.stored if isinstance(self.stored, Dense) else self.stored.by_user
        return first.weight is not None

    @property
    def nbytes(self) -> int:
        """Bytes on the device; of streamed ratings, those that are there at a time."""
        if isinstance(self.stored, Stream):
            return self.stored.nbytes
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.stored))


def in_memory(data: Layout) -> Split | Dense:
    """What is stored, if it is on the device. Raises: UsageError for streamed ratings."""
    if isinstance(data.stored, Stream):
        raise UsageError(
            "streamed ratings can be summed per user and per item, nothing else", fix='kind="split"'
        )
    return data.stored


def gathered_stored(data: Layout) -> Split | Dense:
    """What is stored, in the order of one device; also in a program that is mapped over devices.

    Raises: UsageError for streamed ratings.
    """
    gathered = spread.gathered(data.num_devices, in_memory(data))
    return in_memory(on_one_device(data, gathered))


def unweighted(stored: Split | Dense) -> Split | Dense:
    """What is stored, without weights."""
    if isinstance(stored, Dense):
        return stored._replace(weight=None)
    return Split(*(side._replace(weight=None) for side in stored))


def on_one_device(data: Layout, stored: Split | Dense) -> Layout:
    """The layout of one device, from what all devices store: the same order, padding at the end."""
    if isinstance(stored, Dense):
        stored = jax.tree.map(lambda leaf: leaf[: data.num_users], stored)
    elif data.users_each is not None:
        stored = Split(*(split.as_one(side, side) for side in stored))
    return replace(data, stored=stored, num_devices=1, users_each=None)
