"""How good a model's predictions and rankings are, and lists of items to recommend.

Everything here reads the exact ratings: unpriced, for the curator's eyes. `DEFINITIONS` says in
words what each number is. Users are taken in blocks, so nothing of size users × items is ever held.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.devices import hosts
from dpmf_jax.errors import DataError, UsageError
from dpmf_jax.protocol import Factors

DEFINITIONS = {
    "rmse": (
        "root mean squared error over the ratings given (of evaluate: those that the model was not"
        " fitted with), predictions clipped to the declared range if clip"
    ),
    "mae": "mean absolute error over the same ratings, predictions clipped likewise",
    "rmse_seen, mae_seen": "of evaluate: the same over the ratings that the model was fitted with",
    "ndcg_at_k": (
        "per user, DCG of the k best-scored unseen items over the best possible DCG at k; gain 1"
        " for a relevant item, discount 1/log2(1 + position); mean over users who have a relevant"
        " item"
    ),
    "recall_at_k": (
        "per user, relevant items among the k best-scored unseen items, over all of the user's"
        " relevant items; mean over users who have a relevant item"
    ),
    "candidates": (
        "all items of the catalogue but those that the user rated in training; scores are not"
        " clipped; of equal scores the lower item index comes first"
    ),
    "relevant": (
        "the user's held-out items, with threshold only those rated at least threshold; items that"
        " the user also rated in training are not candidates and are left out"
    ),
    "users_evaluated": "users who have a relevant item, over whom the means are taken",
    "users_left_out": "users of the catalogue without one",
}

SCORE_BYTES = 32 << 20  # of one block of scores
SCORES = 1 << 28  # that a fit ranks at most, for the model and for each control
ALIKE = 2.0**-20  # of the largest score: below it, what users differ in moves no item


class Ranking(NamedTuple):
    """ndcg and recall: means over `users_evaluated` users, NaN if there are none."""

    ndcg: float
    recall: float
    users_evaluated: int
    users_left_out: int


class RankedUsers(NamedTuple):
    """The ranking of each user who has a relevant item.

    user: int64[n], indices in rising order. ndcg, recall: float64[n].
    """

    user: np.ndarray
    ndcg: np.ndarray
    recall: np.ndarray


class Recommended(NamedTuple):
    """Items to recommend.

    items: int32[users, k], best first, -1 where a user has fewer than k unseen items.
    scores: float32[users, k], NaN there.
    """

    items: np.ndarray
    scores: np.ndarray


def predict(
    factors: Factors,
    user: np.ndarray,
    item: np.ndarray,
    *,
    rating_range: tuple[float, float] | None = None,
):
    """float32[n]: center[item] + ⟨user_factors[user], item_factors[item]⟩, clipped if asked.

    Computed on the host in float32, in blocks; indices into the catalogue.
    """
    users, items, center = _on_host(factors)
    out = np.empty(len(user), np.float32)
    block = max(1, SCORE_BYTES // (8 * max(1, users.shape[1])))
    for start in range(0, len(user), block):
        rows = slice(start, start + block)
        out[rows] = np.einsum("nk,nk->n", users[user[rows]], items[item[rows]]) + center[item[rows]]
    return out if rating_range is None else np.clip(out, *rating_range)


def rmse(factors: Factors, ratings: Ratings, *, clip: bool = True) -> float:
    """Root mean squared error, in rating units; predictions are clipped to the range if `clip`.

    Of several processes (`hosts`), over the ratings of all.

    Raises:
      DataError: no ratings.
    """
    num_ratings = int(hosts.total(len(ratings)))
    here = len(ratings) or not num_ratings
    found = errors(factors, ratings, clip=clip) if here else np.zeros(0)
    return math.sqrt(hosts.total(np.sum(found**2)) / num_ratings)


def mae(factors: Factors, ratings: Ratings, *, clip: bool = True) -> float:
    """Mean absolute error; as `rmse`."""
    return float(np.mean(np.abs(errors(factors, ratings, clip=clip))))


def ranking(
    factors: Factors, train: Ratings, test: Ratings, *, k: int = 10, threshold: float | None = None
) -> Ranking:
    """NDCG and recall at k over all unseen items of each user, as `DEFINITIONS` has them.

    Of several processes (`hosts`), over the users of all.

    Args:
      train, test: on the same catalogue. threshold: held-out ratings below it are not relevant;
        None: all are.

    Raises:
      UsageError: k below 1. DataError: train and test have different catalogues.
    """
    each = ranked_users(factors, train, test, k=k, threshold=threshold)
    num_users = int(hosts.total(len(each.user)))
    left_out = train.num_users - num_users
    if not num_users:
        return Ranking(float("nan"), float("nan"), 0, left_out)
    ndcg, recall = (float(hosts.total(part.sum())) for part in (each.ndcg, each.recall))
    return Ranking(ndcg / num_users, recall / num_users, num_users, left_out)


def ranked_users(
    factors: Factors, train: Ratings, test: Ratings, *, k: int = 10, threshold: float | None = None
) -> RankedUsers:
    """What `ranking` takes the means of, of this process's users who have a relevant item."""
    _check(factors, train, test, k)
    num_items = train.num_items
    relevant = np.ones(len(test), bool) if threshold is None else test.value >= threshold
    wanted = np.setdiff1d(
        _pair_keys(test)[relevant], _pair_keys(train)
    )  # user · num_items + item, sorted, distinct
    users, count = np.unique(wanted // num_items, return_counts=True)
    discount = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discount)
    ndcg, recall = np.zeros(len(users)), np.zeros(len(users))
    for first, items, _ in _ranked_blocks(factors, users, train, k):
        rows = slice(first, first + len(items))
        hit = (items >= 0) & _contains(wanted, users[rows, None] * num_items + items)
        ndcg[rows] = (hit * discount[: items.shape[1]]).sum(1) / ideal[
            np.minimum(count[rows], k) - 1
        ]
        recall[rows] = hit.sum(1) / count[rows]
    return RankedUsers(users, ndcg, recall)


def popularity(train: Ratings) -> Factors:
    """Scores of items by the number of their training ratings: one order for all users.

    These are no predictions. Not private, but free where who rated what is public: it reads no
    value of a rating.
    """
    count = hosts.total(np.bincount(train.item, minlength=train.num_items))
    return constant(train, count)


def constant(train: Ratings, score: ArrayLike) -> Factors:
    """The same score of an item for all users. score: of each item, or one of all."""
    scores = jnp.broadcast_to(jnp.asarray(score, jnp.float32), train.num_items)
    return Factors(jnp.zeros((train.num_users, 0)), jnp.zeros((train.num_items, 0)), scores)


def to_rank(train: Ratings, test: Ratings) -> tuple[Ratings, Ratings]:
    """(train, test) of all users with held-out ratings, or of a sample that `SCORES` allows.

    The sample is always the same.

    A ranking scores every item for every user, so on many of both all users would take longer than
    the fit.
    """
    users = np.unique(test.user)
    most = max(1, SCORES // max(1, train.num_items) // hosts.count())
    if len(users) > most:
        users = np.random.default_rng(0).choice(users, most, replace=False)
    chosen = np.zeros(train.num_users, bool)
    chosen[users] = True
    return train.take(chosen[train.user]), test.take(chosen[test.user])


def ranks_alike(factors: Factors) -> bool:
    """Whether the model has one order of items for all users.

    Then what users differ in moves all items alike.

    Scores are a number of the user, one of the item, and an interaction, ⟨u - mean u, v - mean v⟩.
    Without the last (its root sum of squares is below float32 rounding of the largest score) users
    differ only in what they have seen.
    """
    users, items, center = _on_host(factors)
    users, items = (np.asarray(part, np.float64) for part in (users, items))
    largest = np.max(np.abs(center), initial=0.0)
    if users.size and items.size:
        largest += np.max(np.linalg.norm(users, axis=1)) * np.max(np.linalg.norm(items, axis=1))
    squares = [
        (part - part.mean(0)).T @ (part - part.mean(0)) if part.size else part.T @ part
        for part in (users, items)
    ]
    return bool(math.sqrt(max(0.0, float(np.sum(squares[0] * squares[1])))) <= ALIKE * largest)


def ndcg_at_k(
    factors: Factors, train: Ratings, test: Ratings, *, k: int = 10, threshold: float | None = None
) -> float:
    """The ndcg of `ranking`."""
    return ranking(factors, train, test, k=k, threshold=threshold).ndcg


def recall_at_k(
    factors: Factors, train: Ratings, test: Ratings, *, k: int = 10, threshold: float | None = None
) -> float:
    """The recall of `ranking`."""
    return ranking(factors, train, test, k=k, threshold=threshold).recall


def evaluate(
    factors: Factors,
    train: Ratings,
    test: Ratings | None,
    *,
    k: int = 10,
    threshold: float | None = None,
    clip: bool = True,
) -> dict[str, float | int | bool | None]:
    """Every metric of `DEFINITIONS` at once; for the curator's eyes.

    Returns: {rmse_train, mae_train, rmse_test, mae_test, ndcg_at_k, recall_at_k, users_evaluated,
      users_left_out, k, threshold, clip}; what needs held-out ratings is None where `test` is None
      or empty, and ndcg and recall where no user has a relevant item.

    Raises:
      UsageError: k below 1, or a part of the model is missing. DataError: no training ratings,
        other catalogues, or factors that are not finite.
    """
    held_out = test if test is not None and len(test) else None
    _check(factors, train, train if held_out is None else held_out, k)
    result: dict[str, float | int | bool | None] = {
        "rmse_train": rmse(factors, train, clip=clip),
        "mae_train": mae(factors, train, clip=clip),
        **dict.fromkeys(
            (
                "rmse_test",
                "mae_test",
                "ndcg_at_k",
                "recall_at_k",
                "users_evaluated",
                "users_left_out",
            )
        ),
        "k": k,
        "threshold": threshold,
        "clip": clip,
    }
    if held_out is not None:
        ranked = ranking(factors, train, held_out, k=k, threshold=threshold)
        result |= {
            "rmse_test": rmse(factors, held_out, clip=clip),
            "mae_test": mae(factors, held_out, clip=clip),
        }
        result |= {
            "users_evaluated": ranked.users_evaluated,
            "users_left_out": ranked.users_left_out,
        }
        if ranked.users_evaluated:
            result |= {"ndcg_at_k": ranked.ndcg, "recall_at_k": ranked.recall}
    return result


def top_k(factors: Factors, users: np.ndarray, seen: Ratings, k: int) -> Recommended:
    """The k best-scored items that each user has not rated in `seen`.

    Of equal scores the lower item index comes first.

    Args:
      users: int[n], user indices, in any order, repeated or not. seen: ratings on the model's
        catalogue.

    Returns: items and scores [n, k]; scores as they are, not clipped to the rating range.

    Raises:
      UsageError: k below 1, a user index outside the catalogue, or a part of the model is missing.
      DataError: factors that are not finite, or another catalogue.
    """
    _check(factors, seen, seen, k)
    users = np.asarray(users, np.int64).reshape(-1)
    if len(users) and not (users.min() >= 0 and users.max() < seen.num_users):
        raise UsageError(f"user indices must lie in 0 to {seen.num_users - 1}")
    items = np.full((len(users), k), -1, np.int32)
    scores = np.full((len(users), k), np.nan, np.float32)
    for first, index, score in _ranked_blocks(factors, users, seen, k):
        rows, width = slice(first, first + len(index)), index.shape[1]
        items[rows, :width] = index
        scores[rows, :width] = np.where(index >= 0, score, np.nan)
    return Recommended(items, scores)


def _ranked_blocks(factors: Factors, users: np.ndarray, seen: Ratings, k: int):
    """Yields (first, items int32[block, ≤ k], scores): positions in `users`, their best unseen
    items, -1 where there are fewer. All blocks share one compiled program.
    """
    user_factors, item_factors, center = _on_host(factors)
    num_items = seen.num_items
    size = int(np.clip(SCORE_BYTES // (4 * num_items), 1, max(1, len(users))))
    order = np.argsort(seen.user, kind="stable")
    columns = seen.item[order]
    starts = np.searchsorted(seen.user[order], np.arange(seen.num_users + 1))
    counts = np.diff(starts)[users]
    pairs = max(
        (int(counts[first : first + size].sum()) for first in range(0, len(users), size)), default=0
    )
    on_device = jnp.asarray(item_factors), jnp.asarray(center)
    for first in range(0, len(users), size):
        block, count = users[first : first + size], counts[first : first + size]
        row = np.full(pairs, size, np.int32)  # padding lies outside the block and is dropped
        column = np.zeros(pairs, np.int32)
        row[: count.sum()] = np.repeat(np.arange(len(block)), count)
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        column[: count.sum()] = columns[np.repeat(starts[block], count) + offset]
        padded = np.zeros((size, user_factors.shape[1]), np.float32)
        padded[: len(block)] = user_factors[block]
        index, score = _best(padded, *on_device, row, column, k=min(k, num_items))
        yield first, np.asarray(index)[: len(block)], np.asarray(score)[: len(block)]


@partial(jax.jit, static_argnames="k")
def _best(users, items, center, seen_row, seen_column, *, k: int):
    scores = jnp.matmul(users, items.T, precision=jax.lax.Precision.HIGHEST) + center
    scores = jnp.where(scores == 0, 0.0, scores)  # -0.0 and 0.0 are a tie
    scores = scores.at[seen_row, seen_column].set(-jnp.inf, mode="drop")
    score, index = jax.lax.top_k(scores, k)
    return jnp.where(score > -jnp.inf, index, -1), score


def errors(factors: Factors, ratings: Ratings, *, clip: bool = True) -> np.ndarray:
    """float64[n]: predicted less given, predictions clipped to the range if `clip`.

    Raises:
      DataError: no ratings.
    """
    if not len(ratings):
        raise DataError("no ratings to measure an error on", where=ratings.name)
    limits = ratings.rating_range if clip else None
    predicted = predict(factors, ratings.user, ratings.item, rating_range=limits)
    return predicted.astype(np.float64) - ratings.value


def _contains(ordered: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return ordered[np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)] == wanted


def _pair_keys(ratings: Ratings) -> np.ndarray:
    return ratings.user.astype(np.int64) * ratings.num_items + ratings.item


def _on_host(factors: Factors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """user_factors, item_factors and center [items], as float32 NumPy arrays."""
    missing = [name for name, part in zip(Factors._fields, factors, strict=True) if part is None]
    if missing:
        raise UsageError(
            f"the model has no {missing[0]}",
            fix="the private part of the model is needed for predictions",
        )
    users, items, center = (np.asarray(part, np.float32) for part in factors)
    return users, items, np.broadcast_to(center, items.shape[:1])


def _check(factors: Factors, first: Ratings, second: Ratings, k: int) -> None:
    if not k >= 1:
        raise UsageError(f"k must be at least 1; got {k}")
    users, items, center = _on_host(factors)
    sizes = (len(users), len(items))
    for ratings in (first, second):
        if (ratings.num_users, ratings.num_items) != sizes:
            raise DataError(
                f"the model knows {sizes[0]} users and {sizes[1]} items, the ratings"
                f" {ratings.num_users} and {ratings.num_items}",
                where=ratings.name,
                fix="use ratings on the model's catalogue",
            )
    if not all(np.isfinite(part).all() for part in (users, items, center)):
        raise DataError(
            "the model's factors are not finite", fix="train again with a lower learning rate"
        )
