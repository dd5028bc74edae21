"""How well a model recommends to people who were never in its data: strong generalisation.

Of each such user's items a part is shown to the model, the rest is to be found (Liang, Krishnan,
Hoffman & Jebara 2018). Everything here reads the exact items: unpriced, for the curator's eyes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmf_jax.data import splits
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.models import metrics
from dpmf_jax.protocol import Factors

K = 20
HIDDEN = 0.2  # of each user's items

DEFINITIONS = {
    "recall_at_20": (
        "of users whose ratings were not in training, and of whose items 80% are shown to the"
        " model: hidden items among the 20 best-scored ones that were not shown, over the smaller"
        " of 20 and the number hidden; mean over users with hidden items"
    ),
    "ndcg_at_20": (
        "of the same lists: DCG over the best possible DCG at 20; gain 1 for a hidden item,"
        " discount 1/log2(1 + position)"
    ),
    "users_evaluated": "users held out who have hidden items",
}


class HeldOut(NamedTuple):
    """Of users who are not in training, on the catalogue of items that the model has.

    shown, hidden: parts of the same users' ratings, in one catalogue of users.
    """

    shown: Ratings
    hidden: Ratings


class Found(NamedTuple):
    """recall, ndcg: at k, means over `users_evaluated` users; NaN if there are none."""

    recall: float
    ndcg: float
    users_evaluated: int


def held_out(ratings: Ratings, *, seed: int) -> HeldOut:
    """A fifth of each user's ratings, rounded down, is hidden at random; users without ratings go.

    Args:
      ratings: of users whom no model was trained on.
    """
    there, user = np.unique(ratings.user, return_inverse=True)
    own = Ratings(
        user.astype(np.int32),
        ratings.item,
        ratings.value,
        ratings.users[there],
        ratings.items,
        ratings.rating_range,
        ratings.name,
    )
    return HeldOut(*splits.within_users(own, fraction=HIDDEN, seed=seed))


def scores(factors: Factors, users: HeldOut, *, k: int = K) -> Found:
    """Recall and NDCG at k, as `DEFINITIONS` has them.

    Args:
      factors: user_factors of the users held out, made of what is shown; the model's item factors.

    Raises: UsageError, DataError: as `metrics.top_k`.
    """
    shown, hidden = users
    count = np.bincount(hidden.user, minlength=hidden.num_users)
    wanted = np.flatnonzero(count)
    if not len(wanted):
        return Found(math.nan, math.nan, 0)
    items = metrics.top_k(factors, wanted, shown, k).items
    is_hidden = np.zeros((hidden.num_users, hidden.num_items), bool)
    is_hidden[hidden.user, hidden.item] = True
    hit = (items >= 0) & np.take_along_axis(is_hidden[wanted], np.maximum(items, 0), axis=1)
    discount = 1 / np.log2(np.arange(2, k + 2))
    possible = np.minimum(count[wanted], k)
    recall = hit.sum(axis=1) / possible
    ndcg = (hit * discount).sum(axis=1) / np.cumsum(discount)[possible - 1]
    return Found(float(recall.mean()), float(ndcg.mean()), len(wanted))
