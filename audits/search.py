"""A search for the worst neighbour: greedy over ratings, and ascent over the new value.

Which rating changes is discrete. Those that share a user or an item with the worst so far are tried
next, since what makes a pair bad (a light user, a popular item, a long factor) is mostly shared.
The new value is continuous: the slope of a pair's score, measured through all steps, says where to
go.
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
from dpmf_jax.layout import Layout

# Moves of the ascent. The first is a quarter of the range, each half as long as the one before.
MOVES = 6

# Stacked neighbours -> (scores, all that was measured).
Measure = Callable[[Neighbour], tuple[np.ndarray, Any]]


def greedy(
    measure: Measure, ratings: Ratings, data: Layout, tried: Neighbours, *, rounds: int
) -> tuple[Neighbours, Any]:
    """(`tried` and neighbours that share a user or item with the worst, what was measured of all).

    There are at most `rounds` rounds, as long as the worst gets worse. Each tries as many as were
    `tried`, so that one compiled program does. Users have nothing in common, so of them no more are
    tried; nor where all ratings were.
    """
    found, (scores, measured) = tried, measure(tried.stacked)
    if tried.unit == "user":
        rounds = 0
    for _ in range(rounds):
        index = related_ratings(
            ratings, found.index, int(found.index[np.argmax(scores)]), tried.num
        )
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
        found, measured = concatenate((found, measured), (more, new))
        scores, before = np.concatenate([scores, new_scores]), np.max(scores)
        if not np.max(new_scores) > before:
            break
    return found, measured


def ascend(
    measure: Measure, ratings: Ratings, found: Neighbours, worst: np.ndarray
) -> tuple[Neighbours, Any]:
    """(the neighbours at the places `worst` with better values, what was measured of them).

    The ascent starts half way between the old value and the far one, so that it finds a score which
    is largest inside the declared range, and it stays inside. Slopes are central differences, so
    that the measuring program suffices. No value is further from the old one than the claim covers.
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


def related_ratings(ratings: Ratings, known: np.ndarray, worst: int, num: int) -> np.ndarray:
    """Up to `num` ratings of the worst's user or item, not yet known; the largest change first."""
    related = (ratings.user == ratings.user[worst]) | (ratings.item == ratings.item[worst])
    related[known] = False
    index = np.flatnonzero(related)
    low, high = ratings.rating_range
    change = np.maximum(ratings.value[index] - low, high - ratings.value[index])
    return index[np.argsort(-change, kind="stable")][:num]


def concatenate(
    first: tuple[Neighbours, Any], second: tuple[Neighbours, Any]
) -> tuple[Neighbours, Any]:
    """Two lots of neighbours of one unit, with what was measured of them, as one."""
    (found, measured), (more, new) = first, second
    stacked = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), found.stacked, more.stacked)
    index = np.concatenate([found.index, more.index])
    measured = jax.tree.map(lambda a, b: np.concatenate([a, b]), measured, new)
    return found._replace(stacked=stacked, index=index, why=found.why + more.why), measured
