"""Neighbouring data sets: which ones to try, and how to make one of a data set.

A neighbour has the shapes of the data set, so all of them run in one compiled program. Of ratings
five in twelve are chosen at random, of users half; the others on purpose. A bound is reached at the
extremes: on the heaviest and the lightest user and item, and on items and users of middling size,
where one rating is neither alone nor drowned.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.guarantee import Unit
from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout

MANY = 1 << 12  # changes that make a data set far away
ADDED = "the other way round"  # the reason of a pair whose first data set is the smaller one
REFLECTED = "the opposite of what was rated"  # of one whose user is replaced by their opposite


class Neighbour(NamedTuple):
    """One change; stacked ones have a leading axis.

    Attributes:
      address: of the rating.
      value: the new raw value; ignored where a rating or a user is removed.
    """

    address: layout.Address
    value: jax.Array


class Neighbours(NamedTuple):
    """Changes of one unit, and why each is tried.

    Attributes:
      unit: what changes.
      stacked: the changes, stacked.
      index: of each, the index of the rating.
      why: of each, the reason for its choice.
      change: how far a value may move, the claim's own `largest_change`; None: anywhere in the
        declared range.
    """

    unit: Unit
    stacked: Neighbour
    index: np.ndarray
    why: tuple[str, ...]
    change: float | None = None

    @property
    def num(self) -> int:
        return len(self.index)


def apply(unit: Unit, data: Layout, neighbour: Neighbour) -> Layout:
    """The neighbouring data set; can be jitted, and vmapped over `neighbour`.

    unit: "rating value": one rating takes another value. "rating presence": it is removed. "user":
      all ratings of the user at the address are removed.
    """
    if unit == "rating value":
        return layout.replace_value(data, neighbour.address, neighbour.value)
    if unit == "rating presence":
        return layout.remove_rating(data, neighbour.address)
    return layout.remove_user(data, neighbour.address.user)


def choose(
    key: jax.Array,
    ratings: Ratings,
    data: Layout,
    *,
    unit: Unit,
    num: int,
    change: float | None = None,
) -> Neighbours:
    """Up to `num` neighbours of `ratings` (laid out as `data`); all where there are no more.

    A changed rating moves towards the further end of the declared range, by `change` at most: a
    claim about smaller changes says nothing about larger ones. Spends `key`.
    """
    random = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
    index, why = _users(random, ratings, num) if unit == "user" else _ratings(random, ratings, num)
    return Neighbours(unit, changes(ratings, data, index, change), index, tuple(why), change)


def changes(
    ratings: Ratings, data: Layout, index: np.ndarray, change: float | None = None
) -> Neighbour:
    """Changes of the ratings at an index, stacked, as far as each may move to the further end."""
    low, high = ratings.rating_range
    value = within(
        ratings, index, np.where(ratings.value[index] > (low + high) / 2, low, high), change
    )
    return Neighbour(
        layout.locate(data, ratings.user[index], ratings.item[index]), jnp.asarray(value)
    )


def far(key: jax.Array, ratings: Ratings, data: Layout, unit: Unit) -> Iterator[tuple[str, Layout]]:
    """(what is changed, the data set) of data sets that many changes of the unit lead to.

    Up to `MANY` ratings take other values of the declared range; where the unit is a presence or a
    user, half of them are also gone. Shapes are those of `data`. Spends `key`.
    """
    random = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
    index = np.sort(random.permutation(ratings.num_ratings)[:MANY])
    low, high = ratings.rating_range
    value = ratings.value[index]
    address = layout.locate(data, ratings.user[index], ratings.item[index])
    some = "every rating" if len(index) == ratings.num_ratings else f"{len(index)} ratings"
    values = {
        f"{some} set to {high:g}": np.full(len(index), high),
        f"{some} set to {low:g}": np.full(len(index), low),
        f"the values of {some} dealt anew": random.permutation(value),
        f"{some} turned round in the range": low + high - value.astype(np.float64),
    }
    for words, changed in values.items():
        yield words, _changed(data, _moves(address, changed), unit="rating value")
    if unit == "rating value":
        return
    if unit == "user":
        rows = random.permutation(np.unique(ratings.user, return_index=True)[1])[:MANY]
        index = np.sort(rows[: len(rows) // 2])
        words = f"all ratings of {len(index)} users removed"
    else:
        index = np.sort(random.permutation(index)[: len(index) // 2])
        words = f"{len(index)} ratings removed"
    yield words, _changed(data, changes(ratings, data, index), unit=unit)


def values_between(low: float, high: float, most: int) -> np.ndarray:
    """float64: values of the declared range that a program may treat apart: whole ones, halves,
    quarters, tenths, as many kinds as fit into `most`; at least so many evenly spaced ones.
    """
    found = np.linspace(low, high, min(most, 5))
    for step in (1, 2, 4, 10):
        finer = np.arange(math.ceil(low * step), math.floor(high * step) + 1) / step
        together = np.unique(np.concatenate([found, finer]))
        if len(together) > most:
            break
        found = together
    return found


def extreme(ratings: Ratings, data: Layout) -> tuple[Ratings, Layout, np.ndarray] | None:
    """(ratings, laid out, index of the new ones) of people whom these ratings do not have.

    The two users with most ratings have rated every item: one with all sorts of values, one with
    the lowest and the highest in turn. And every user has rated the item with most ratings. Shapes
    and the number of ratings stay as in `data`, so that programs serve both; None where they
    cannot.
    """
    low, high = ratings.rating_range
    per_user, per_item = np.bincount(ratings.user), np.bincount(ratings.item)
    if min(len(per_user), len(per_item)) < 3:
        return None
    (first, second), item = np.argsort(-per_user, kind="stable")[:2], int(np.argmax(per_item))
    values, items = values_between(low, high, MANY), np.arange(ratings.num_items)
    others = np.setdiff1d(np.arange(ratings.num_users), (first, second))
    new = (
        np.concatenate([np.full(len(items), first), np.full(len(items), second), others]),
        np.concatenate([items, items, np.full(len(others), item)]),
        np.concatenate(
            [
                np.resize(values, len(items)),
                np.where(items % 2, low, high),
                np.resize(values, len(others)),
            ]
        ),
    )
    rest = ratings.take(~np.isin(ratings.user, (first, second)) & (ratings.item != item))
    size, kept = len(new[0]), rest.num_ratings
    changed = dataclasses.replace(
        ratings,
        user=np.concatenate([rest.user, new[0].astype(np.int32)]),
        item=np.concatenate([rest.item, new[1].astype(np.int32)]),
        value=np.concatenate([rest.value, new[2].astype(np.float32)]),
        weight=None
        if rest.weight is None
        else np.concatenate([rest.weight, np.ones(size, np.float32)]),
    )
    made = layout.make(changed, kind=data.kind, num_devices=data.num_devices)
    made = dataclasses.replace(made, num_ratings=data.num_ratings)
    shapes = [jax.tree.map(jnp.shape, one) for one in (made, data)]
    if shapes[0] != shapes[1] or jax.tree.structure(made) != jax.tree.structure(data):
        return None
    return changed, made, np.arange(kept, kept + size)


def with_values(ratings: Ratings, data: Layout, index: np.ndarray, value: float) -> Layout:
    """The data set in which the ratings at an index have one value."""
    address = layout.locate(data, ratings.user[index], ratings.item[index])
    return _changed(data, _moves(address, np.full(len(index), value)), unit="rating value")


def _moves(address: layout.Address, value: np.ndarray) -> Neighbour:
    return Neighbour(address, jnp.asarray(value, jnp.float32))


@partial(jax.jit, static_argnames="unit")
def _changed(data: Layout, stacked: Neighbour, *, unit: Unit) -> Layout:
    """The data set after all the changes."""
    return jax.lax.scan(lambda data, one: (apply(unit, data, one), None), data, stacked)[0]


def within(
    ratings: Ratings, index: np.ndarray, value: np.ndarray, change: float | None
) -> np.ndarray:
    """Values, float32, cut to the declared range and to `change` from the ratings at the index."""
    low, high = ratings.rating_range
    own, value = (
        ratings.value[index].astype(np.float64),
        np.clip(np.asarray(value, np.float64), low, high),
    )
    if change is None:
        return np.asarray(value, np.float32)
    single = np.clip(value, own - change, own + change).astype(np.float32)
    too_far = np.abs(single - own) > change  # float32 rounded it outwards
    return np.asarray(np.where(too_far, np.nextafter(single, own.astype(np.float32)), single))


def to_values(
    ratings: Ratings, data: Layout, index: Sequence[int], num: int, change: float | None
) -> Neighbours:
    """So many changes of a few ratings in turn, to values all over the declared range."""
    every, (low, high) = np.resize(index, num), ratings.rating_range
    each = -(-num // len(index))
    value = np.repeat(np.resize(values_between(low, high, each), each), len(index))[:num]
    value = within(ratings, every, value, change)
    address = layout.locate(data, ratings.user[every], ratings.item[every])
    why = ("of all sorts of values",) * num
    return Neighbours("rating value", Neighbour(address, jnp.asarray(value)), every, why, change)


def again(tried: Neighbours, places: np.ndarray, why: str) -> Neighbours:
    """Some of the removals in another way.

    why: `ADDED`, where the data set is the smaller one and its neighbour larger; `REFLECTED`, where
      the user takes part in both, and has rated the other way round in one.
    """
    stacked = jax.tree.map(operator.itemgetter(places), tried.stacked)
    return tried._replace(stacked=stacked, index=tried.index[places], why=(why,) * len(places))


def parts(stacked: Neighbour, size: int) -> list[Neighbour]:
    """The stack cut into pieces of one size; the last change repeats until the last is full."""
    num = len(stacked.value)
    places = np.minimum(np.arange(-(-num // size) * size), num - 1).reshape(-1, size)
    return [jax.tree.map(operator.itemgetter(some), stacked) for some in places]


def some_users(random: np.random.Generator, ratings: Ratings, num: int) -> list[int]:
    """Up to `num` users: with most ratings, with fewest, with none if there is one, at random."""
    count = np.bincount(ratings.user, minlength=ratings.num_users)
    rated = np.flatnonzero(count)
    chosen = [
        rated[np.argmax(count[rated])],
        rated[np.argmin(count[rated])],
        *np.flatnonzero(count == 0)[:1],
    ]
    return [int(user) for user in dict.fromkeys([*chosen, *random.permutation(ratings.num_users)])][
        :num
    ]


def any_change(
    random: np.random.Generator, ratings: Ratings, data: Layout, address: layout.Address, user: int
) -> dict[str, Layout]:
    """Data sets that differ from `data` in all of one user's ratings, by what was changed.

    They are removed, replaced, or moved to other items. Shapes are those of `data`, but with other
    items in a split layout they may differ. address: of all ratings.
    """
    (low, high), own = ratings.rating_range, ratings.user == user
    changed: dict[str, Layout] = {}
    if own.any():
        changed["all ratings of the user removed"] = _without(data, address, own)
        values = {
            f"set to {low:g}": low,
            f"set to {high:g}": high,
            "set at random": random.uniform(low, high, len(own)),
        }
        for what, value in values.items():
            replaced = np.where(own, value, ratings.value).astype(np.float32)
            changed[f"all ratings of the user {what}"] = layout.replace_value(
                data, address, replaced
            )
    elsewhere = np.setdiff1d(np.arange(ratings.num_items), ratings.item[own])
    if len(elsewhere):
        items = random.permutation(elsewhere)[: max(np.sum(own), 3)].astype(np.int32)
        rest = ratings.take(~own)
        moved = dataclasses.replace(
            ratings,
            user=np.concatenate([rest.user, np.full(len(items), user, np.int32)]),
            item=np.concatenate([rest.item, items]),
            value=np.concatenate(
                [rest.value, random.choice([low, high], len(items)).astype(np.float32)]
            ),
            weight=(
                None
                if rest.weight is None
                else np.concatenate([rest.weight, np.ones(len(items), np.float32)])
            ),
        )
        made = layout.make(moved, kind=data.kind, num_devices=data.num_devices)
        what = f"{len(items)} other items rated {low:g} or {high:g}"
        changed[what] = dataclasses.replace(made, num_ratings=data.num_ratings)
    return changed


def change_of_others(
    ratings: Ratings, data: Layout, address: layout.Address, user: int
) -> dict[str, Layout]:
    """Data sets of one shape that differ in all ratings of all other users, by what was changed."""
    (low, high), others = ratings.rating_range, ratings.user != user
    if not others.any():
        return {}
    further = np.where(ratings.value > (low + high) / 2, low, high)
    replaced = np.where(others, further, ratings.value).astype(np.float32)
    return {
        "all ratings of all others removed": _without(data, address, others),
        "all ratings of all others set to the further end": layout.replace_value(
            data, address, replaced
        ),
    }


def _without(data: Layout, address: layout.Address, removed: np.ndarray) -> Layout:
    """Without the ratings at a mask; addresses repeat, so that masks make one program."""
    index = np.resize(np.flatnonzero(removed), len(removed))
    return layout.remove_rating(data, jax.tree.map(lambda leaf: leaf[index], address))


def describe(ratings: Ratings, neighbours: Neighbours, position: int) -> dict[str, Any]:
    """A pair in words that replay it: raw ids, the old and the new value, why it was chosen."""
    at = neighbours.index[position]
    user, item = int(ratings.user[at]), int(ratings.item[at])
    words: dict[str, Any] = {"chosen": neighbours.why[position], "user": ratings.users[user].item()}
    what = {ADDED: "added", REFLECTED: "turned round in the range"}.get(
        neighbours.why[position], "removed"
    )
    if neighbours.unit == "user":
        return words | {
            "change": f"all ratings of the user {what}",
            "ratings": int(np.sum(ratings.user == user)),
        }
    value = float(neighbours.stacked.value[position])
    change = (
        f"rating {what}" if neighbours.unit == "rating presence" else f"rating set to {value:g}"
    )
    return words | {
        "item": ratings.items[item].item(),
        "value": float(ratings.value[at]),
        "change": change,
        "ratings_of_user": int(np.sum(ratings.user == user)),
        "ratings_of_item": int(np.sum(ratings.item == item)),
    }


def _ratings(
    random: np.random.Generator, ratings: Ratings, num: int
) -> tuple[np.ndarray, list[str]]:
    total = ratings.num_ratings
    if num >= total:
        return np.arange(total), ["exhaustive"] * total
    change = np.maximum(
        ratings.value - ratings.rating_range[0], ratings.rating_range[1] - ratings.value
    )
    per_user, per_item = np.bincount(ratings.user), np.bincount(ratings.item)
    user_weight, item_weight = per_user[ratings.user], per_item[ratings.item]
    tie = random.permutation(total)
    # Within each group: by its own weight first, then the largest change; groups take turns.
    orders = {
        "heaviest user": np.lexsort((tie, -change, -user_weight)),
        "lightest user": np.lexsort((tie, -change, user_weight)),
        "heaviest item": np.lexsort((tie, -change, -item_weight)),
        "lightest item": np.lexsort((tie, -change, item_weight)),
        "item of middling size": _middling(random, ratings.item, per_item, change),
        "largest change": np.lexsort((tie, -change)),
    }
    others = random.permutation(total)
    orders["user of middling size"] = _middling(random, ratings.user, per_user, change)
    return _take_turns(orders, others, num, share=num // 12)


def _middling(
    random: np.random.Generator, item: np.ndarray, per_item: np.ndarray, change: np.ndarray
) -> np.ndarray:
    """The rating of the largest change of each item, or user; they are spread over all sizes."""
    order = np.lexsort((random.permutation(len(item)), -change, item))
    starts = np.flatnonzero(np.diff(item[order], prepend=-1))
    first = order[starts]
    by_size = first[np.argsort(per_item[item[first]], kind="stable")]
    # Van der Corput, 1/2, 1/4, 3/4, ...: any beginning of the list is spread over all sizes.
    places = [int(f"{i:020b}"[::-1], 2) / 2**20 for i in range(1, len(by_size) + 1)]
    return by_size[(np.array(places) * len(by_size)).astype(np.int64)]


def _users(random: np.random.Generator, ratings: Ratings, num: int) -> tuple[np.ndarray, list[str]]:
    rated, first, count = np.unique(ratings.user, return_index=True, return_counts=True)
    if num >= len(rated):
        return first, ["exhaustive"] * len(rated)
    by_count = np.argsort(count, kind="stable")
    orders = {"heaviest user": first[by_count[::-1]], "lightest user": first[by_count]}
    return _take_turns(orders, random.permutation(first), num, share=num // 4)


def _take_turns(
    orders: Mapping[str, np.ndarray], others: np.ndarray, num: int, *, share: int
) -> tuple[np.ndarray, list[str]]:
    """So many of each order, which are on purpose; the rest are `others`, at random."""
    chosen: dict[int, str] = {}
    for why, order in orders.items():
        fresh = (int(i) for i in order if int(i) not in chosen)
        for _, i in zip(range(min(max(1, share), num - len(chosen))), fresh, strict=False):
            chosen[i] = why
    for i in others:
        if len(chosen) >= num:
            break
        chosen.setdefault(int(i), "random")
    return np.fromiter(chosen, np.int64), list(chosen.values())
