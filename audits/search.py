"""Looks for the worst neighbour from the worst one known: greedy over ratings, ascent over the new
value.

Which rating changes is discrete: those that share a user or an item with the worst so far are tried
next, since what makes a pair bad (a light user, a popular item, a long factor) is mostly shared.
The value that it changes to is not: the slope of a pair's score, measured through all steps, says
where to go.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audits.neighbours import Neighbour, Neighbours, changes, within
from dpmf_jax.data.ratings import Ratings

MOVES = (
    6  # of the ascent; the first is a quarter of the range, each is half as long as the one before
)

Measure = Callable[
    [Neighbour], tuple[np.ndarray, Any]
]  # stacked neighbours -> (scores, whatever else was measured)


def greedy(
    measure: Measure, ratings: Ratings, data: Any, tried: Neighbours, *, rounds: int
) -> tuple[Neighbours, Any]:
    """`tried` and what is near the worst of it, and what was measured of all, on the host.

    As often as `rounds`, while the worst gets worse, each time as many as were `tried`: one
    compiled program. Users have nothing in common, and of them no more are tried; nor where all
    ratings were.
    """
    found, (scores, measured) = tried, measure(tried.stacked)
    if tried.unit == "user":
        rounds = 0
    for _ in range(rounds):
        index = _near(ratings, found.index, int(found.index[np.argmax(scores)]), tried.num)
        if not len(index):
            break
        stacked = changes(ratings, data, np.resize(index, tried.num), tried.change)
        fresh = slice(len(index))
        stacked, (new_scores, new) = jax.tree.map(
            operator.itemgetter(fresh), (stacked, measure(stacked))
        )
        more = tried._replace(
            stacked=stacked, index=index, why=("near the worst so far",) * len(index)
        )
        found, measured = joined((found, measured), (more, new))
        scores, before = np.concatenate([scores, new_scores]), np.max(scores)
        if not np.max(new_scores) > before:
            break
    return found, measured


def ascend(
    measure: Measure, ratings: Ratings, found: Neighbours, worst: np.ndarray
) -> tuple[Neighbours, Any]:
    """The neighbours at the places `worst`, with values climbed to from half way between the old
    and the far ones.

    Half way, so that a score which is largest inside the declared range is seen; there the ascent
    stays. Central differences, so that the program that measures does. No value is further from the
    old one than the claim covers.
    """
    low, high = ratings.rating_range
    stacked = jax.tree.map(operator.itemgetter(worst), found.stacked)

    def at(value: np.ndarray) -> Neighbour:
        return stacked._replace(
            value=jnp.asarray(within(ratings, found.index[worst], value, found.change))
        )

    value = (np.asarray(stacked.value) + ratings.value[found.index[worst]]) / 2
    length, apart = (high - low) / 4, (high - low) / 128
    for _ in range(MOVES):
        above, below = (measure(at(value + side * apart))[0] for side in (1, -1))
        value = np.clip(value + length * (1.0 * (above > below) - (above < below)), low, high)
        length /= 2
    climbed = found._replace(
        stacked=at(value), index=found.index[worst], why=("climbed to",) * len(worst)
    )
    return climbed, measure(climbed.stacked)[1]


def _near(ratings: Ratings, known: np.ndarray, worst: int, num: int) -> np.ndarray:
    """Up to `num` ratings of the same user or item that are not known, the largest change first."""
    near = (ratings.user == ratings.user[worst]) | (ratings.item == ratings.item[worst])
    near[known] = False
    index = np.flatnonzero(near)
    low, high = ratings.rating_range
    change = np.maximum(ratings.value[index] - low, high - ratings.value[index])
    return index[np.argsort(-change, kind="stable")][:num]


def joined(first: tuple[Neighbours, Any], second: tuple[Neighbours, Any]) -> tuple[Neighbours, Any]:
    """Neighbours of one unit, and what was measured of them, one after the other."""
    (found, measured), (more, new) = first, second
    stacked = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), found.stacked, more.stacked)
    index = np.concatenate([found.index, more.index])
    measured = jax.tree.map(lambda a, b: np.concatenate([a, b]), measured, new)
    return found._replace(stacked=stacked, index=index, why=found.why + more.why), measured
