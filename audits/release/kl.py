"""The divergence (19) of paper 002 between errors on trained-on ratings and on held-out ones.

It bounds nothing. It compares two Gaussians that are fitted to the errors, and errors are not
Gaussian: the divergence of the fit may lie above or below the true one. Either says what all
ratings give away on average, not what one rating may. A small value is no privacy, and no ε follows
from any value.

Errors are prediction minus rating, of anything that predicts. As published, the test side alone
leaves out users and items with few ratings, which makes the divergence positive even where nothing
was learnt. `paper_rows` has that filter, `same_rows` has one for both sides.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from accounting import guards
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.data.splits import rare


class Rows(NamedTuple):
    """Which rows are compared: bool[train], bool[test]."""

    train: np.ndarray
    test: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """A divergence in nats, and the ends of a percentile interval of its bootstrap.

    The interval is about the errors as a sample of such errors, for this one fitted model. It says
    nothing about privacy.
    """

    value: float
    lower: float
    upper: float
    confidence: float


def gaussian_kl(train_errors: np.ndarray, test_errors: np.ndarray) -> float:
    """KL(N(m_tr, s²_tr) ‖ N(m_te, s²_te)) in nats (19), of means and (biased) variances of errors.

    It bounds nothing: no ε, no attack's success (see above). Shifting or scaling both sides alike
    changes nothing; exchanging them does. It is ∞ where the test errors are all equal and the
    training errors are not.

    Raises: ValueError for fewer than two errors on a side, or errors that are not finite.
    """
    sides = [np.asarray(errors, np.float64).ravel() for errors in (train_errors, test_errors)]
    for name, errors in zip(("train_errors", "test_errors"), sides, strict=True):
        if not (len(errors) >= 2 and np.isfinite(errors).all()):
            raise ValueError(f"{name} must be at least two finite numbers; got {len(errors)}")
    (train_mean, train_variance), (test_mean, test_variance) = (
        (np.mean(e), np.var(e)) for e in sides
    )
    return float(_divergence(train_mean, train_variance, test_mean, test_variance))


def _divergence(train_mean, train_variance, test_mean, test_variance):
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = train_variance / test_variance - 1
        value = (excess - np.log1p(excess) + (train_mean - test_mean) ** 2 / test_variance) / 2
    same = (train_mean == test_mean) & (train_variance == test_variance)
    return np.where(same, 0.0, np.where(np.isnan(value), np.inf, value))


def bootstrap(
    train_errors: np.ndarray,
    test_errors: np.ndarray,
    *,
    seed: int,
    confidence: float = 0.95,
    draws: int = 1000,
    train_users: np.ndarray | None = None,
    test_users: np.ndarray | None = None,
) -> Interval:
    """`gaussian_kl` with a percentile interval, from `draws` bootstraps of either side's errors.

    With the users of the errors (indices, for both sides or for neither) whole users are drawn with
    all of their errors on both sides, since a user's errors go together. The divergence is never
    negative, so where it is 0 in truth the interval lies above: its coverage holds away from 0.

    Raises: as `gaussian_kl`; ValueError for a confidence outside 0 to 1, no draws, users of one
      side alone or of another length than the errors.
    """
    value = gaussian_kl(train_errors, test_errors)
    guards.probability("confidence", confidence)
    guards.count("draws", draws)
    if (train_users is None) != (test_users is None):
        raise ValueError("train_users and test_users must be given both or neither")
    sides = [np.asarray(errors, np.float64).ravel() for errors in (train_errors, test_errors)]
    owners = [np.arange(len(errors)) for errors in sides]
    if train_users is not None and test_users is not None:
        owners = [np.asarray(users).ravel() for users in (train_users, test_users)]
        if any(len(users) != len(errors) for users, errors in zip(owners, sides, strict=True)):
            raise ValueError("train_users and test_users must be as many as the errors")
    random = np.random.default_rng(seed)
    centre = float(np.mean(sides[1]))  # subtracted, so that squares do not swallow small variances
    if train_users is None:
        moments = [
            _draw(random, _sums(e - centre, users), draws)
            for e, users in zip(sides, owners, strict=True)
        ]
    else:
        num = 1 + max(int(users.max()) for users in owners)
        per_user = np.concatenate(
            [_sums(e - centre, u, num) for e, u in zip(sides, owners, strict=True)], axis=1
        )
        per_user = per_user[per_user[:, 0] + per_user[:, 3] > 0]
        drawn = _draw(random, per_user, draws)
        moments = [drawn[:, :3], drawn[:, 3:]]
    found = _divergence(*(part for sums in moments for part in _mean_and_variance(sums)))
    ends = np.quantile(
        found, [(1 - confidence) / 2, (1 + confidence) / 2], method="inverted_cdf"
    )  # may be infinite
    return Interval(value=value, lower=float(ends[0]), upper=float(ends[1]), confidence=confidence)


def _sums(errors: np.ndarray, owners: np.ndarray, num: int | None = None) -> np.ndarray:
    """For each owner how many errors, their sum, the sum of their squares; [owners, 3]."""
    num = len(owners) if num is None else num
    return np.stack(
        [np.bincount(owners, weights, num) for weights in (None, errors, errors**2)], axis=1
    )


def _draw(random: np.random.Generator, each: np.ndarray, draws: int) -> np.ndarray:
    """Sums over as many rows as there are, drawn with replacement; [draws, columns]."""
    return np.stack([each[random.integers(0, len(each), len(each))].sum(0) for _ in range(draws)])


def _mean_and_variance(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    count = np.maximum(sums[:, 0], 1)
    mean = sums[:, 1] / count
    return mean, np.maximum(sums[:, 2] / count - mean**2, 0)


def paper_rows(train: Ratings, test: Ratings, fewer_than: int = 10) -> Rows:
    """The paper's filter, on the test side alone: rows of users and items with enough ratings."""
    return Rows(np.ones(len(train), bool), ~rare(test, train, fewer_than))


def same_rows(train: Ratings, test: Ratings, fewer_than: int = 10) -> Rows:
    """One filter for both sides: rows of users and items with enough training ratings."""
    return Rows(~rare(train, train, fewer_than), ~rare(test, train, fewer_than))


def of_users(train: Ratings, test: Ratings, users: np.ndarray) -> Rows:
    """The rows of these users (indices).

    To join them with a filter's: `Rows(*map(np.logical_and, a, b))`.
    """
    return Rows(np.isin(train.user, users), np.isin(test.user, users))


def top_users(train: Ratings, num: int) -> np.ndarray:
    """Indices of the `num` users with most training ratings, most first; of equals the lower index.

    Raises: ValueError for fewer than one user or more than there are.
    """
    if not 1 <= num <= train.num_users:
        raise ValueError(f"num must be from 1 to the number of users, {train.num_users}; got {num}")
    return np.argsort(-np.bincount(train.user, minlength=train.num_users), kind="stable")[:num]
