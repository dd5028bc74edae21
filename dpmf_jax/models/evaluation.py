"""Errors and rankings of models on held-out ratings, with intervals over users, beside popularity.

Unpriced, for the curator: everything here is computed from the ratings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.data import given
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError
from dpmf_jax.models import intervals, metrics
from dpmf_jax.models.catalogue import in_catalogue
from dpmf_jax.models.intervals import Interval
from dpmf_jax.models.metrics import RankedUsers
from dpmf_jax.protocol import Factors

NUMBERS = ("rmse", "mae", "ndcg_at_k", "recall_at_k")  # each with its _low and _high
GAIN = "ndcg_at_k_gain"  # over popularity, among the same users
DEFINITIONS = metrics.DEFINITIONS | {
    "_low, _high": (
        "where the number would lie, with confidence 0.95, for other users like these and the same"
        " model; all ratings of a user are one observation"
    ),
    GAIN: "ndcg_at_k less that of popularity, among the same users",
}


class Measured(NamedTuple):
    """What factors say of held-out ratings, row by row.

    user: int[n], and error: float64[n], of each rating that the model was not fitted with; of
      scores that are no ratings there are none.
    ranked, popular: the rankings of the model and of popularity, of the same users in the same
      order; None where nobody can tell what a user has seen.
    """

    user: np.ndarray
    error: np.ndarray
    ranked: RankedUsers | None
    popular: RankedUsers | None


def measured(
    factors: Factors,
    train: Ratings | None,
    test: Ratings,
    *,
    k: int,
    unseen: Ratings | None = None,
    errors: bool = True,
) -> Measured:
    """Errors on `unseen` (None: on `test`), rankings of `test` among what is not in `train`.

    errors: whether the scores are predictions of ratings.
    """
    held_out = test if unseen is None else unseen
    some = errors and len(held_out) > 0
    ranked = popular = None
    if train is not None:
        ranked = metrics.ranked_users(factors, train, test, k=k)
        popular = metrics.ranked_users(metrics.popularity(train), train, test, k=k)
    return Measured(
        held_out.user if some else np.zeros(0, np.int32),
        metrics.errors(factors, held_out) if some else np.zeros(0),
        ranked,
        popular,
    )


def pooled(parts: Sequence[Measured]) -> Measured:
    """The rows of several splits of the same ratings, as one."""

    def joined(rankings: Sequence[RankedUsers | None]) -> RankedUsers | None:
        there = [one for one in rankings if one is not None]
        if len(there) < len(rankings):
            return None
        return RankedUsers(*(np.concatenate(columns) for columns in zip(*there, strict=True)))

    return Measured(
        np.concatenate([part.user for part in parts]),
        np.concatenate([part.error for part in parts]),
        joined([part.ranked for part in parts]),
        joined([part.popular for part in parts]),
    )


def numbers(found: Measured) -> dict[str, float | int | None]:
    """Of each of `NUMBERS` and of `GAIN`: the value, and its interval over users as _low and _high.

    None for what there is not: errors without ratings, rankings without users who have a relevant
    item, intervals of fewer than two users.
    """
    told: dict[str, Interval | None] = dict.fromkeys((*NUMBERS, GAIN))
    if len(found.error):
        told["rmse"] = intervals.root(intervals.of_mean(found.user, found.error**2))
        told["mae"] = intervals.of_mean(found.user, np.abs(found.error))
    popularity: dict[str, float | None] = {"ndcg_at_k": None, "recall_at_k": None}
    if found.ranked is not None and found.popular is not None and len(found.ranked.user):
        user, ndcg, recall = found.ranked
        told["ndcg_at_k"] = intervals.of_mean(user, ndcg)
        told["recall_at_k"] = intervals.of_mean(user, recall)
        told[GAIN] = intervals.of_mean(user, ndcg - found.popular.ndcg)
        popularity = {
            "ndcg_at_k": float(found.popular.ndcg.mean()),
            "recall_at_k": float(found.popular.recall.mean()),
        }
    flat: dict[str, float | int | None] = {}
    for name, one in told.items():
        value, low, high = (None, None, None) if one is None else one
        flat |= {name: value, f"{name}_low": low, f"{name}_high": high}
    users = None if found.ranked is None else len(np.unique(found.ranked.user))
    return {
        **flat,
        **{f"popularity_{name}": value for name, value in popularity.items()},
        "users_evaluated": users,
    }


def evaluated(model: Any, ratings: Any, k: int, **options: Any) -> dict[str, Any]:
    """See `models.model.Model.evaluate`."""
    if model.implicit:
        options |= {"implicit": True}
    elif not isinstance(ratings, Ratings):
        options = {"rating_range": model.rating_range} | options
    ratings = given.read_whole(ratings, **options)
    held_out, unknown = in_catalogue(ratings, model.users, model.items)
    if not held_out.num_ratings:
        raise DataError(
            "no rating is of a user and an item of this model's catalogue",
            where=ratings.name,
            fix="evaluate on ratings with the ids that the model was fitted with",
        )
    whole = model.all_factors()
    unseen, again, train = held_out, held_out.take(np.empty(0, np.int64)), None
    if model.seen is not None:
        width = len(model.items)
        trained = np.isin(
            held_out.user.astype(np.int64) * width + held_out.item,
            model.seen[0].astype(np.int64) * width + model.seen[1],
        )
        unseen, again = held_out.take(~trained), held_out.take(trained)
        train = model.seen_pairs()
    errors = not model.implicit
    found = numbers(measured(whole, train, held_out, k=k, unseen=unseen, errors=errors))
    users = found["users_evaluated"]
    return {
        **found,
        "rmse_seen": metrics.rmse(whole, again) if errors and len(again) else None,
        "mae_seen": metrics.mae(whole, again) if errors and len(again) else None,
        "k": k,
        "ratings": held_out.num_ratings,
        "unseen": None if train is None else len(unseen),
        "seen": None if train is None else len(again),
        "users_left_out": None if users is None else len(model.users) - int(users),
        "unknown": unknown,
    }
