"""Canaries: the ratings and users that coins hide or show, and what two attackers know about them.

The curator chooses them, who knows the ratings: an audit may take the worst case. An outlier is a
rating at the far end of the range from what means predict, where it carries much of its user and
item. An outlying user rates so throughout.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from audits.release import shadows
from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout

PROBES = 32  # ratings of one user that are predicted
KNOWN = 64  # ratings that a vector is fitted to, at most
# The one knows all but the coins; the other knows the record, and how ratings are distributed.
ATTACKERS = ("insider", "outsider")


class Plan(NamedTuple):
    """The canaries of an audit.

    Attributes:
      toggles: the ratings that coins decide.
      probes: the pairs that are predicted.
      owner: of each probe, the canary's index.
      value_in, value_out: of each probe, its value with the canary in, and out.
      presence: whether a canary is there or not; else it has one value or another.
      num: how many canaries; the first `num_ratings` are single ratings, the rest users.
      num_ratings: how many are single ratings.
      largest: the most ratings of an attacked user.
      index: of each canary, the index of its (first) rating.
    """

    toggles: shadows.Toggles
    probes: shadows.Probes
    owner: np.ndarray
    value_in: np.ndarray
    value_out: np.ndarray
    presence: bool
    num: int
    num_ratings: int
    largest: int
    index: np.ndarray


def plan(
    random: np.random.Generator,
    ratings: Ratings,
    data: Layout,
    *,
    presence: bool,
    side: str | None,
    change: float | None = None,
    num_ratings: int = 16,
    num_users: int = 8,
    num_watchers: int = 0,
    natural: bool = False,
) -> Plan:
    """A plan of up to so many single ratings and users.

    Args:
      presence: whether a canary is removed where it is out; else its ratings are low where it is
        out, and higher by `change` where it is in.
      side: the one that is released alone, see `shadows.one_sided`.
      change: None: the width of the declared range.
      num_watchers: users, none of them with a canary, whose lists are seen.
      natural: whether to take single ratings at random as they are, no outliers.
    """
    low, high = ratings.rating_range
    far = _further_end(ratings)
    users = _users(random, ratings, min(num_users, ratings.num_users // 4))
    of_users = [np.flatnonzero(ratings.user == user) for user in users]
    free = np.flatnonzero(~np.isin(ratings.user, users))
    chosen = (
        random.permutation(free)[: min(num_ratings, len(free) // 4)]
        if natural
        else _outliers(random, ratings, far, free, num_ratings)
    )
    groups = [np.array([at]) for at in chosen] + of_users
    rows = np.concatenate(groups) if groups else np.zeros(0, np.int64)
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    if presence:
        value_in = ratings.value if natural else far
        value_out = value_in
    else:
        top = min(high, low + (high - low if change is None else change))
        value_in, value_out = (np.full(len(ratings), end, np.float32) for end in (top, low))
    probed = np.concatenate([random.permutation(group)[:PROBES] for group in groups] or [rows])
    probe_owner = owner[np.argsort(rows, kind="stable")][np.searchsorted(np.sort(rows), probed)]
    toggles = shadows.Toggles(
        layout.locate(data, ratings.user[rows], ratings.item[rows]),
        jnp.asarray(owner, jnp.int32),
        jnp.asarray(value_in[rows], jnp.float32),
        jnp.asarray(value_out[rows], jnp.float32),
    )
    believed = np.array(ratings.value)
    believed[rows] = value_in[rows]
    known: tuple[shadows.Known, ...] = ()
    if side is not None:
        single = probe_owner < len(chosen)
        known = tuple(
            _known(random, ratings, believed, probed, single, side, who) for who in ATTACKERS
        )
    probes = shadows.Probes(
        jnp.asarray(ratings.user[probed], jnp.int32),
        jnp.asarray(ratings.item[probed], jnp.int32),
        known,
        jnp.float32((low + high) / 2),
        _watchers(random, ratings, np.unique(ratings.user[rows]), num_watchers),
    )
    first = np.array([group[0] for group in groups], np.int64)
    largest = max((len(group) for group in of_users), default=0)
    return Plan(
        toggles,
        probes,
        probe_owner,
        np.asarray(value_in[probed], np.float64),
        np.asarray(value_out[probed], np.float64),
        presence,
        len(groups),
        len(chosen),
        largest,
        first,
    )


def _further_end(ratings: Ratings) -> np.ndarray:
    """The end of the range further from what user and item means predict; float32[ratings]."""
    low, high = ratings.rating_range
    return np.where(_expected(ratings) > (low + high) / 2, low, high).astype(np.float32)


def _expected(ratings: Ratings) -> np.ndarray:
    """What the means of user and item predict of each rating."""
    means = []
    overall = float(np.mean(ratings.value))
    for index, num in ((ratings.user, ratings.num_users), (ratings.item, ratings.num_items)):
        total, count = np.bincount(index, ratings.value, num), np.bincount(index, minlength=num)
        # As if each had three ratings more, at the mean.
        means.append(((total + 3 * overall) / (count + 3))[index])
    return means[0] + means[1] - overall


def _outliers(
    random: np.random.Generator, ratings: Ratings, far: np.ndarray, free: np.ndarray, num: int
) -> np.ndarray:
    """Up to `num` of the ratings `free`, by how far their far end is from what is expected.

    That distance is weighted by the share of its user and item that a rating carries. Ratings of
    users and items not yet taken come first.
    """
    share = sum(1 / np.bincount(index)[index] for index in (ratings.user, ratings.item))
    weight = np.abs(far - _expected(ratings)) * share
    order = free[np.lexsort((random.permutation(len(free)), -weight[free]))]
    users, items = ratings.user[order], ratings.item[order]
    first = np.zeros(len(order), bool)
    taken: set[tuple[str, int]] = set()
    for place, pair in enumerate(
        zip((("user", int(u)) for u in users), (("item", int(i)) for i in items), strict=True)
    ):
        if not taken & set(pair):
            first[place] = True
            taken.update(pair)
    return np.concatenate([order[first], order[~first]])[: min(num, max(1, len(free) // 4))]


def _users(random: np.random.Generator, ratings: Ratings, num: int) -> np.ndarray:
    """The users with most ratings, ties at random: they move the items furthest."""
    count = np.bincount(ratings.user, minlength=ratings.num_users)
    order = np.lexsort((random.permutation(len(count)), -count))
    return order[:num][count[order[:num]] > 0]


def _known(
    random: np.random.Generator,
    ratings: Ratings,
    believed: np.ndarray,
    probed: np.ndarray,
    single: np.ndarray,
    side: str,
    who: str,
) -> shadows.Known:
    """What vectors of the side that is not released are fitted to.

    Both attackers know the ratings of an attacked user, as they would be with the canary in. The
    insider also knows all ratings of others, and of a single rating's user or item all but that
    rating. The outsider knows the attacked record alone.
    """
    by, other = (ratings.item, ratings.user) if side == "user" else (ratings.user, ratings.item)
    order = np.argsort(by, kind="stable")
    starts = np.searchsorted(by[order], np.arange(by.max() + 2))
    parts = []
    for at, alone in zip(probed, single, strict=True):
        row = order[starts[by[at]] : starts[by[at] + 1]]
        if side == "item" and not alone:
            pass  # the attacked user's own ratings
        elif who == "insider":
            row = row[row != at]
        else:
            row = np.array([at])
        parts.append(random.permutation(row)[:KNOWN])
    return _padded(other, believed, parts)


def _padded(other: np.ndarray, values: np.ndarray, parts: list[np.ndarray]) -> shadows.Known:
    """The ratings at these places, in arrays as wide as the longest list."""
    most = max(1, max(len(part) for part in parts))
    padded = [
        np.concatenate([part, np.zeros(most - len(part), np.int64)]).astype(np.int64)
        for part in parts
    ]
    weight = np.array([np.arange(most) < len(part) for part in parts], np.float32)
    at = np.array(padded)
    return shadows.Known(
        jnp.asarray(other[at], jnp.int32),
        jnp.asarray(values[at] * weight, jnp.float32),
        jnp.asarray(weight),
    )


def _watchers(
    random: np.random.Generator, ratings: Ratings, attacked: np.ndarray, num: int
) -> shadows.Watchers | None:
    """So many users at random who are not attacked, at most; None for nobody."""
    free = np.setdiff1d(ratings.user, attacked)
    chosen = random.permutation(free)[:num]
    if not len(chosen):
        return None
    parts = [random.permutation(np.flatnonzero(ratings.user == user)) for user in chosen]
    known = _padded(ratings.item, ratings.value, parts)
    return shadows.Watchers(jnp.asarray(chosen, jnp.int32), known)


def describe(ratings: Ratings, plan: Plan, canary: int = 0) -> dict[str, Any]:
    """One canary in words that replay it: raw ids, and what is there with it in, and out."""
    at, place = plan.index[canary], int(np.argmax(plan.owner == canary))
    words: dict[str, Any] = {"user": ratings.users[ratings.user[at]].item(), "canaries": plan.num}
    if canary < plan.num_ratings:
        words["item"] = ratings.items[ratings.item[at]].item()
    what = "the rating" if canary < plan.num_ratings else "all ratings of the user"
    if plan.presence:
        end = (
            f"{plan.value_in[place]:g}"
            if canary < plan.num_ratings
            else "the further end of the range"
        )
        return words | {"change": f"{what} there, as {end}, or not"}
    return words | {"change": f"{what} {plan.value_in[place]:g} or {plan.value_out[place]:g}"}
