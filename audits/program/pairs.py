"""Pairs of neighbouring data sets on the host: random ones, and those that tempt a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from accounting.guarantee import Unit
from audits import neighbours
from dpmf_jax.data.ratings import Ratings

TEMPTING = ("value", "item", "user")


class Pair(NamedTuple):
    """Two neighbours, and in words what sets them apart."""

    first: Ratings
    second: Ratings
    words: dict[str, Any]


def choose(
    random: np.random.Generator,
    ratings: Ratings,
    unit: Unit,
    num: int,
    tempting: Collection[str] = TEMPTING,
    change: float | None = None,
) -> list[Pair]:
    """`num` random neighbours, and one of each kind of `tempting`.

    Fewer where the ratings do not allow for one.

    Args:
      tempting: "value": a single rating holds the largest value. "item", "user": the only rating of
        its item, of its user; none of these two where the unit is a rating's value, since that
        relation has who rated what public.
      change: how far a value may move, as in `audits.neighbours.choose`.
    """
    indices = np.arange(ratings.num_ratings)
    chosen = [
        _pair(ratings, int(at), unit, "random", change) for at in random.permutation(indices)[:num]
    ]
    high = ratings.value == ratings.value.max()
    low = float(np.min(ratings.value))
    if "value" in tempting and not high.all():
        at = int(random.choice(np.flatnonzero(high)))
        value = np.where(high & (indices != at), np.float32(low), ratings.value)
        single = dataclasses.replace(ratings, value=value)
        chosen.append(_pair(single, at, unit, "alone has the largest value", change))
    if unit == "rating value":
        return chosen
    for what, column in (("item", ratings.item), ("user", ratings.user)):
        counts = np.bincount(column)[column]
        # of those with the fewest ratings, so that few others have to go, or none
        at = int(random.choice(np.flatnonzero(counts == counts.min())))
        if what not in tempting:
            continue
        kept = (
            ratings if counts[at] == 1 else ratings.take((column != column[at]) | (indices == at))
        )
        if kept.num_ratings > 2:
            same = (kept.user == ratings.user[at]) & (kept.item == ratings.item[at])
            place = int(np.flatnonzero(same)[0])
            chosen.append(_pair(kept, place, unit, f"the only rating of its {what}"))
    return chosen


def _pair(ratings: Ratings, at: int, unit: Unit, why: str, change: float | None = None) -> Pair:
    """The ratings, and their neighbour that differs in the rating at an index, or in its user."""
    words = {
        "chosen": why,
        "user": ratings.users[ratings.user[at]].item(),
        "item": ratings.items[ratings.item[at]].item(),
        "value": float(ratings.value[at]),
    }
    if unit == "rating value":
        low, high = ratings.rating_range
        value = ratings.value.copy()
        further = np.array(low if value[at] > (low + high) / 2 else high)
        value[at] = neighbours.within(ratings, np.array(at), further, change)
        changed = dataclasses.replace(ratings, value=value)
        return Pair(ratings, changed, words | {"change": f"rating set to {value[at]:g}"})
    gone = (
        ratings.user == ratings.user[at] if unit == "user" else np.arange(ratings.num_ratings) == at
    )
    what = "all ratings of the user removed" if unit == "user" else "rating removed"
    return Pair(ratings, ratings.take(~gone), words | {"change": what})
