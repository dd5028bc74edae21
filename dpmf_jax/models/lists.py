"""Ranked lists of a model: the best items for users, items like an item, why an item is there."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.data.frames import as_kind, kind_of
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, PrivacyError, UsageError
from dpmf_jax.models import new_users
from dpmf_jax.models.catalogue import lookup, plain
from dpmf_jax.protocol import Factors

NOTHING = np.empty(0, np.int32)

Served = Any  # a `models.model.Model`, which imports this module


def recommended(
    model: Served,
    user: Any,
    k: int,
    *,
    ratings: Any,
    candidates: Any,
    exclude: Any,
    include_seen: bool,
    **options: Any,
) -> Any:
    """See `Model.recommend`."""
    _check_number(k)
    if (user is None) == (ratings is None):
        raise UsageError(
            "recommendations are for users of the training data, or for new ones",
            where="user and ratings",
            fix="give one of them",
        )
    kept = _kept(model, candidates, exclude)
    if ratings is not None:
        options |= {"implicit": model.implicit}
        own = new_users.read(model.items, model.rating_range, ratings, **options)
        factors = new_users.user_factors(model.settings, model.release, own.ratings)
        whole = model.released_factors._replace(user_factors=factors)
        seen = own.ratings.take(NOTHING) if include_seen else own.ratings
        found = _best(model, whole, np.arange(seen.num_users), seen, kept, k)
        return _as_asked(model, found, table=own.several, like=ratings)
    if options:
        raise UsageError(f"{', '.join(options)} without ratings", fix="leave it out")
    rows = lookup(model.users, np.atleast_1d(np.asarray(user)), "user")
    seen = model.pairs(NOTHING, NOTHING) if include_seen else model.seen_pairs()
    found = _best(model, model.all_factors(), rows, seen, kept, k)
    return _as_asked(model, found, table=np.ndim(user) > 0, like=user)


def _kept(model: Served, candidates: Any, exclude: Any) -> np.ndarray | None:
    """The places of the items that a list may hold; None where it may hold all."""
    if candidates is None and exclude is None:
        return None
    kept = np.ones(len(model.items), bool)
    if candidates is not None:
        kept[:] = False
        kept[lookup(model.items, np.atleast_1d(np.asarray(candidates)), "item")] = True
    if exclude is not None:
        kept[lookup(model.items, np.atleast_1d(np.asarray(exclude)), "item")] = False
    if not kept.any():
        raise UsageError(
            "no item is left to recommend", where="candidates and exclude", fix="leave some"
        )
    return np.flatnonzero(kept)


def _best(
    model: Served, whole: Factors, rows: np.ndarray, seen: Ratings, kept: np.ndarray | None, k: int
) -> dict[str, np.ndarray]:
    """Columns user, item and score of the best items of the users at `rows` of the factors."""
    from dpmf_jax.models import metrics

    items = model.items
    if kept is not None:
        whole, seen, items = _of_items(whole, seen, kept), _among(seen, kept), items[kept]
    places, scores = metrics.top_k(whole, rows, seen, k)
    there = places >= 0
    score = scores[there]
    if not model.implicit:
        score = np.clip(score, *model.rating_range)
    of = rows[np.nonzero(there)[0]]
    name = "score" if model.implicit else "predicted_rating"
    return {"user": seen.users[of], "item": items[places[there]], name: score}


def _of_items(whole: Factors, seen: Ratings, kept: np.ndarray) -> Factors:
    assert whole.item_factors is not None
    center = np.asarray(whole.center)
    return whole._replace(
        item_factors=np.asarray(whole.item_factors)[kept],
        center=center[kept] if center.ndim else center,
    )


def _among(seen: Ratings, kept: np.ndarray) -> Ratings:
    """The ratings of these items alone, over the catalogue of them alone."""
    place = np.full(seen.num_items, -1, np.int32)
    place[kept] = np.arange(len(kept))
    rows = np.flatnonzero(place[seen.item] >= 0)
    return Ratings(
        seen.user[rows],
        place[seen.item[rows]],
        seen.value[rows],
        seen.users,
        seen.items[kept],
        seen.rating_range,
    )


class Vectors(NamedTuple):
    """See `models.model.Model.to_numpy`.

    items: float32[items, d + 1], in the order of `item_ids`.
    users: float32[users, d + 1], in the order of `user_ids`; None where there are none.
    """

    item_ids: np.ndarray
    items: np.ndarray
    user_ids: np.ndarray
    users: np.ndarray | None


def vectors(model: Served) -> Vectors:
    """See `models.model.Model.to_numpy`."""
    released = model.released_factors
    if released.item_factors is None or released.center is None:
        raise UsageError(
            "the model releases no item factors",
            where=f"mechanism {model.settings.get('mechanism')}",
            fix="fit one that does",
        )
    factors = np.asarray(released.item_factors, np.float32)
    center = np.broadcast_to(np.asarray(released.center, np.float32), len(factors))
    users = released.user_factors
    if users is not None:
        users = np.c_[np.asarray(users, np.float32), np.ones(len(users), np.float32)]
    return Vectors(model.items, np.c_[factors, center], model.users, users)


def similar_items(model: Served, item: Any, k: int) -> Any:
    """See `Model.similar_items`."""
    factors = model.release.item_factors
    apart = np.zeros((len(model.items), 0)) if factors is None else np.asarray(factors)
    apart = apart[:, np.ptp(apart, axis=0) > 0]  # a column of ones, for levels, is in all items
    if not apart.shape[1]:
        raise UsageError(
            "the model releases no item factors, so it cannot say which items are alike",
            where=f"mechanism {model.settings.get('mechanism')}",
            fix="fit one that does, with a rank of 1 or more",
        )
    return _nearest(model, apart, model.items, item, k, "item")


def similar_users(model: Served, user: Any, k: int) -> Any:
    """See `Model.similar_users`."""
    factors = model.release.user_factors
    if factors is None:
        raise PrivacyError(
            "who is like whom would tell one user of another: this model releases no user factors",
            where=f"mechanism {model.settings.get('mechanism')}",
            fix="ask for similar_items; or fit a mechanism whose guarantee covers released user"
            " factors, such as gaussian-joint-noise",
        )
    return _nearest(model, np.asarray(factors), model.users, user, k, "user")


def _check_number(k: Any) -> None:
    if not isinstance(k, int | np.integer) or k < 1:
        raise UsageError(
            f"k must be a whole number, at least 1; got {k!r}", fix="set k (--top) to 10"
        )


def _nearest(
    model: Served, factors: np.ndarray, ids: np.ndarray, one: Any, k: int, what: str
) -> Any:
    """The k rows of largest cosine with that of `one`, best first; itself left out."""
    _check_number(k)
    (place,) = lookup(ids, np.atleast_1d(np.asarray(one)), what)
    length = np.linalg.norm(factors, axis=1)
    cosine = (
        factors @ factors[place] / np.maximum(length * length[place], np.finfo(np.float32).tiny)
    )
    cosine[place] = -np.inf
    best = np.argsort(-cosine, kind="stable")[: min(k, len(ids) - 1)]
    columns = {what: ids[best], "similarity": cosine[best].astype(np.float32)}
    return _as_asked(model, columns, table=False, like=None)


def explained(model: Served, item: Any, ratings: Any, k: int, **options: Any) -> Any:
    """See `Model.explain`."""
    options |= {"implicit": model.implicit}
    own = new_users.read(model.items, model.rating_range, ratings, **options)
    if own.several:
        raise UsageError(
            "an item is explained to one user",
            where="ratings",
            fix="give the ratings of one, without a column of users",
        )
    (place,) = lookup(model.items, np.atleast_1d(np.asarray(item)), "item")
    rated, number = own.ratings, len(own.ratings)
    factors = np.asarray(model.release.item_factors)
    scores = (
        new_users.user_factors(model.settings, model.release, _each_left_out(rated))
        @ factors[place]
    )
    effect = scores[number] - scores[:number]
    largest = np.argsort(-np.abs(effect), kind="stable")[:k]
    columns = {
        "item": model.items[rated.item[largest]],
        "rating": rated.value[largest],
        "effect": effect[largest].astype(np.float32),
    }
    if model.implicit:
        del columns["rating"]
    return _as_asked(model, columns, table=True, like=ratings)


def _each_left_out(rated: Ratings) -> Ratings:
    """One user's n ratings as those of n + 1 users, the k-th without the k-th rating."""
    number = len(rated)
    if not number:
        raise DataError(
            "there is no rating to explain an item by", where="ratings", fix="give one at least"
        )
    user, row = np.divmod(np.arange((number + 1) * number), number)
    kept = user != row
    user, row = user[kept].astype(np.int32), row[kept]
    return Ratings(
        user,
        rated.item[row],
        rated.value[row],
        np.arange(number + 1),
        rated.items,
        rated.rating_range,
        weight=None if rated.weight is None else rated.weight[row],
    )


def _as_asked(model: Served, columns: dict[str, np.ndarray], *, table: bool, like: Any) -> Any:
    """Pairs of one list; of several lists a table, of the library that the question was of."""
    if not table:
        *_, ids, numbers = columns.values()
        return [(plain(one), float(number)) for one, number in zip(ids, numbers, strict=True)]
    import pyarrow

    return as_kind(pyarrow.table(columns), kind_of(like) or model.frames)
