"""What the benchmark measures of a model on held-out ratings. Unpriced, for the curator."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.models import metrics
from dpmf_jax.protocol import Factors
from experiments.benchmark.protocol import GROUPS, LIST, LONG_LIST

DEFINITIONS = {
    "rmse": "root mean squared error on held-out ratings, predictions clipped to the range",
    "mae": "mean absolute error likewise",
    "ndcg_at_10": metrics.DEFINITIONS["ndcg_at_k"] + ", k = 10",
    "recall_at_20": metrics.DEFINITIONS["recall_at_k"] + ", k = 20",
    "coverage_at_10": "share of the catalogue that stands in the 10 best of anybody",
    "popularity_at_10": (
        "mean place of what stands in lists of 10 among all items by their number of training"
        " ratings (of users who are held out: of those that are shown), from 0 (the fewest) to 1"
        " (the most)"
    ),
    "seconds": "of the fit, compilation included where it is the first of its program; the median",
    "memory_mib": (
        "how much more memory the process held at most during the fit than before, in MiB; the"
        " largest; programs that were compiled before count for nothing"
    ),
    "rmse_by_activity": (
        f"the error of each of {GROUPS} groups of users of about equal size, from those with the"
        " fewest training ratings (of users who are held out: shown ones) to those with the most"
    ),
}
NUMBERS = (
    *("rmse", "mae", "ndcg_at_10", "recall_at_20"),
    *("coverage_at_10", "popularity_at_10"),
)


def scores(
    factors: Factors, train: Ratings, test: Ratings, *, errors: bool = True, order: bool = True
) -> dict[str, Any]:
    """The numbers of `DEFINITIONS`; None for what there is not.

    Args:
      factors: of the users of `test`.
      train: what those users have rated, which is not recommended, and what is popular.
      errors: whether the scores predict ratings. order: whether they order items.
    """
    found: dict[str, Any] = dict.fromkeys((*NUMBERS, "rmse_by_activity"))
    if errors:
        missed = metrics.errors(factors, test)
        found["rmse"] = float(np.sqrt(np.mean(missed**2)))
        found["mae"] = float(np.mean(np.abs(missed)))
        group = activity(train)[test.user]
        found["rmse_by_activity"] = [
            float(np.sqrt(np.mean(missed[group == one] ** 2))) if (group == one).any() else None
            for one in range(GROUPS)
        ]
    if order:
        found |= list_scores(factors, *metrics.to_rank(train, test), of_all=train)
    return found


def activity(train: Ratings) -> np.ndarray:
    """int[users]: the group of each user, by the number of training ratings.

    Users with as many stand in the same group.
    """
    count = np.bincount(train.user, minlength=train.num_users)
    below = np.searchsorted(np.sort(count), count)  # how many have fewer
    return below * GROUPS // max(1, train.num_users)


def list_scores(
    factors: Factors, train: Ratings, test: Ratings, *, of_all: Ratings
) -> dict[str, float]:
    width = train.num_items
    wanted = np.setdiff1d(_pairs(test), _pairs(train))
    users, count = np.unique(wanted // width, return_counts=True)
    if not len(users):
        return {}
    items = metrics.top_k(factors, users, train, LONG_LIST).items
    hit = (items >= 0) & np.isin(users[:, None] * width + items, wanted)
    discount = 1 / np.log2(np.arange(2, LIST + 2))
    gain = (hit[:, :LIST] * discount).sum(axis=1)
    listed = items[:, :LIST][items[:, :LIST] >= 0]
    rated = np.bincount(of_all.item, minlength=width)
    place = np.searchsorted(np.sort(rated), rated) / max(1, width - 1)
    return {
        "ndcg_at_10": float(np.mean(gain / np.cumsum(discount)[np.minimum(count, LIST) - 1])),
        "recall_at_20": float(np.mean(hit.sum(axis=1) / count)),
        "coverage_at_10": len(np.unique(listed)) / width,
        "popularity_at_10": float(place[listed].mean()),
    }


def _pairs(ratings: Ratings) -> np.ndarray:
    return ratings.user.astype(np.int64) * ratings.num_items + ratings.item
