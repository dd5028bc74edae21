"""Neighbours of a data set: one rating changed, one removed, or all of a user's, on the device.

A neighbour has the same shapes as the data that it is made of, so one compiled program runs on
both, and audits `vmap` over many.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpmf_jax.errors import UsageError
from dpmf_jax.layout import split
from dpmf_jax.layout.stored import Dense, Layout, Split, in_memory


class Address(NamedTuple):
    """Where one rating is stored, or each of a stack of ratings; int32.

    user, item: its indices.
    user_piece, user_slot: its place among the users' pieces of a split layout; 0 in a dense one.
    item_piece, item_slot: its place among the items' pieces; 0 in a dense layout.
    """

    user: jax.Array
    item: jax.Array
    user_piece: jax.Array
    user_slot: jax.Array
    item_piece: jax.Array
    item_slot: jax.Array


def locate(data: Layout, user: ArrayLike, item: ArrayLike) -> Address:
    """Where the ratings of these pairs are stored. On the host: `data` must not be traced.

    Scalars give one address, arrays a stack of them.

    Raises: UsageError for a pair that has no rating, and for streamed ratings.
    """
    stored = in_memory(data)
    users, items = np.broadcast_arrays(np.asarray(user, np.int32), np.asarray(item, np.int32))
    if isinstance(stored, Dense):
        inside = (users >= 0) & (users < data.num_users) & (items >= 0) & (items < data.num_items)
        cells = np.where(inside, users, 0), np.where(inside, items, 0)
        found = inside & np.asarray(stored.present)[cells]
        places = (np.zeros_like(users),) * 4
    else:
        by_user, found = _places_of(stored.by_user, users, items, data.num_items)
        by_item, _ = _places_of(stored.by_item, items, users, data.num_users)
        places = (*by_user, *by_item)
    if not found.all():
        where = np.flatnonzero(~found.ravel())[0]
        pair = f"user index {users.ravel()[where]}, item index {items.ravel()[where]}"
        raise UsageError("no such rating", where=pair, fix="choose a pair that has a rating")
    return Address(*(jnp.asarray(part, jnp.int32) for part in (users, items, *places)))


def replace_value(data: Layout, address: Address, value: ArrayLike) -> Layout:
    """The neighbour in which one rating has another raw value."""
    stored = in_memory(data)
    if isinstance(stored, Dense):
        return replace(
            data,
            stored=stored._replace(value=stored.value.at[address.user, address.item].set(value)),
        )
    by_user = _with_value(stored.by_user, address.user_piece, address.user_slot, value)
    by_item = _with_value(stored.by_item, address.item_piece, address.item_slot, value)
    return replace(data, stored=Split(by_user, by_item))


def remove_rating(data: Layout, address: Address) -> Layout:
    """The neighbour without one rating: its slot becomes padding, `num_ratings` stays."""
    stored = in_memory(data)
    if isinstance(stored, Dense):
        at = (address.user, address.item)
        return replace(data, stored=_without(stored, at))
    by_user = _without_slot(stored.by_user, address.user_piece, address.user_slot, data.num_items)
    by_item = _without_slot(stored.by_item, address.item_piece, address.item_slot, data.num_users)
    return replace(data, stored=Split(by_user, by_item))


def _without(stored: Dense, at: Any) -> Dense:
    return stored._replace(
        value=stored.value.at[at].set(0.0), present=stored.present.at[at].set(False)
    )


def remove_user(data: Layout, user: ArrayLike) -> Layout:
    """The neighbour without one user's ratings; the user stays in the catalogue, as a row."""
    stored = in_memory(data)
    if isinstance(stored, Dense):
        return replace(data, stored=_without(stored, user))
    by_user = _without_where(stored.by_user, (stored.by_user.row == user)[:, None], data.num_items)
    by_item = _without_where(stored.by_item, stored.by_item.column == user, data.num_users)
    return replace(data, stored=Split(by_user, by_item))


def reflect_user(data: Layout, user: ArrayLike, total: ArrayLike) -> Layout:
    """The neighbour in which one user has rated the same items the other way round: r -> total - r.

    total: the lowest and the highest rating, added up.
    """
    stored = in_memory(data)
    if isinstance(stored, Dense):
        own = jnp.where(stored.present[user], total - stored.value[user], stored.value[user])
        return replace(data, stored=stored._replace(value=stored.value.at[user].set(own)))
    by_user, by_item = (
        side._replace(value=jnp.where(mask, total - side.value, side.value))
        for side, mask in (
            (
                stored.by_user,
                (stored.by_user.row == user)[:, None] & (stored.by_user.column < data.num_items),
            ),
            (stored.by_item, stored.by_item.column == user),
        )
    )
    return replace(data, stored=Split(by_user, by_item))


def _places_of(side: split.Side, rows: np.ndarray, columns: np.ndarray, num_columns: int):
    """((piece, slot), found) of (row, column) pairs, on the host."""
    row, column = np.asarray(side.row), np.asarray(side.column)
    pieces = np.flatnonzero(np.isin(row, rows))
    keys = row[pieces, None].astype(np.int64) * (num_columns + 1) + column[pieces]
    order = np.argsort(keys, axis=None)
    wanted = rows.astype(np.int64) * (num_columns + 1) + columns
    if not len(pieces):
        return (np.zeros_like(rows), np.zeros_like(rows)), np.zeros(rows.shape, bool)
    at = order[np.minimum(np.searchsorted(keys.ravel(), wanted, sorter=order), keys.size - 1)]
    found = (keys.ravel()[at] == wanted) & (columns >= 0) & (columns < num_columns)
    return (
        pieces[at // column.shape[1]].astype(np.int32),
        (at % column.shape[1]).astype(np.int32),
    ), found


def _with_value(
    side: split.Side, piece: jax.Array, slot: jax.Array, value: ArrayLike
) -> split.Side:
    return side._replace(value=side.value.at[piece, slot].set(value))


def _without_slot(
    side: split.Side, piece: jax.Array, slot: jax.Array, num_columns: int
) -> split.Side:
    return side._replace(
        column=side.column.at[piece, slot].set(num_columns),
        value=side.value.at[piece, slot].set(0.0),
    )


def _without_where(side: split.Side, mask: jax.Array, num_columns: int) -> split.Side:
    return side._replace(
        column=jnp.where(mask, num_columns, side.column).astype(side.column.dtype),
        value=jnp.where(mask, 0.0, side.value),
    )
