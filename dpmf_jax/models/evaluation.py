"""Errors and rankings of a model on ratings that may be of any form."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpmf_jax.data import given
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError
from dpmf_jax.models.catalogue import in_catalogue


def evaluated(model: Any, ratings: Any, k: int, **options: Any) -> dict[str, Any]:
    """See `models.model.Model.evaluate`."""
    from dpmf_jax.models import metrics

    if not isinstance(ratings, Ratings):
        ratings = given.read_whole(ratings, rating_range=model.rating_range, **options)
    held_out, unknown = in_catalogue(ratings, model.users, model.items)
    if not held_out.num_ratings:
        raise DataError(
            "no rating is of a user and an item of this model's catalogue",
            where=ratings.name,
            fix="evaluate on ratings with the ids that the model was fitted with",
        )
    whole = model.all_factors()
    unseen, again, ranked = held_out, held_out.take(np.empty(0, np.int64)), None
    if model.seen is not None:
        width = len(model.items)
        trained = np.isin(
            held_out.user.astype(np.int64) * width + held_out.item,
            model.seen[0].astype(np.int64) * width + model.seen[1],
        )
        unseen, again = held_out.take(~trained), held_out.take(trained)
        ranked = metrics.ranking(whole, model.seen_pairs(), held_out, k=k)
    relevant = ranked is not None and ranked.users_evaluated > 0
    return {
        "rmse": metrics.rmse(whole, unseen) if len(unseen) else None,
        "mae": metrics.mae(whole, unseen) if len(unseen) else None,
        "rmse_seen": metrics.rmse(whole, again) if len(again) else None,
        "mae_seen": metrics.mae(whole, again) if len(again) else None,
        "ndcg_at_k": ranked.ndcg if ranked is not None and relevant else None,
        "recall_at_k": ranked.recall if ranked is not None and relevant else None,
        "k": k,
        "ratings": held_out.num_ratings,
        "unseen": None if ranked is None else len(unseen),
        "seen": None if ranked is None else len(again),
        "users_evaluated": None if ranked is None else ranked.users_evaluated,
        "users_left_out": None if ranked is None else ranked.users_left_out,
        "unknown": unknown,
    }
