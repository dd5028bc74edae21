"""Raw ids in a model's catalogue."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError

Ids = Sequence[Any] | np.ndarray


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def positions(catalogue: np.ndarray, wanted: Any) -> np.ndarray:
    """Index of each wanted id in the catalogue, -1 where it is not there.

    Ids compare as the catalogue's type.
    """
    wanted = np.asarray(wanted)
    if catalogue.dtype.kind in "iu" and wanted.dtype.kind not in "iu":
        as_text = np.char.strip(wanted.astype(str))
        numeric = np.array(
            [text.lstrip("+-").isdigit() and len(text) < 19 for text in as_text], bool
        )
        converted = np.full(len(as_text), -1, np.int64)
        converted[numeric] = as_text[numeric].astype(np.int64)
        found = positions(catalogue, converted)
        return np.where(numeric, found, -1)
    if catalogue.dtype.kind not in "iu":
        wanted = wanted.astype(str)
    order = np.argsort(catalogue, kind="stable")
    place = np.minimum(np.searchsorted(catalogue, wanted, sorter=order), len(catalogue) - 1)
    index = order[place]
    return np.where(catalogue[index] == wanted, index, -1)


def lookup(catalogue: np.ndarray, wanted: Ids, name: str) -> np.ndarray:
    """Index of each wanted id in the catalogue. Raises: DataError for an id that is not there."""
    index = positions(catalogue, wanted)
    if (index < 0).any():
        unknown = np.asarray(wanted)[index < 0]
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise DataError(
            f"unknown {name} {plain(unknown[0])!r}{more}",
            where=f"the model knows {len(catalogue):,} {name}s, such as {plain(catalogue[0])!r}",
            fix=f"use an id of the {name}s it was fitted with (they are listed in model.json)",
        )
    return index


def in_catalogue(ratings: Ratings, users: np.ndarray, items: np.ndarray) -> tuple[Ratings, int]:
    """The ratings with this catalogue's indices, and how many had a user or an item outside it."""
    user, item = (
        positions(users, ratings.users)[ratings.user],
        positions(items, ratings.items)[ratings.item],
    )
    known = (user >= 0) & (item >= 0)
    kept = dataclasses.replace(
        ratings,
        user=user[known].astype(np.int32),
        item=item[known].astype(np.int32),
        value=ratings.value[known],
        users=users,
        items=items,
    )
    return kept, int((~known).sum())
