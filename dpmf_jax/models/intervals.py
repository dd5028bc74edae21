"""Intervals of errors and rankings over users: the ratings of one user stand or fall together.

The question is how much of a number is due to which users happened to be measured. The model is
held fixed. Unpriced, for the curator.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LEVEL = 0.95


class Interval(NamedTuple):
    """A number, and where it would lie with confidence `LEVEL` for other users like these.

    low, high: None for fewer than two users.
    """

    value: float
    low: float | None
    high: float | None


def of_mean(user: Any, values: Any) -> Interval:
    """The interval of the mean over rows, in which the rows of a user are one observation.

    The mean is a ratio of two sums over users, of values and of rows. Its interval follows from the
    linearised ratio, with the quantile of Student's t (Cochran, Sampling Techniques, chapter 6).

    Args:
      user: int[n], whose row it is. values: float[n].
    """
    from scipy import stats

    values = np.asarray(values, np.float64)
    value = float(values.mean())
    _, place = np.unique(np.asarray(user), return_inverse=True)
    num = int(place.max()) + 1
    if num < 2:
        return Interval(value, None, None)
    residual = np.bincount(place, weights=values - value, minlength=num)
    deviation = float(np.sqrt(num / (num - 1) * np.sum(residual**2))) / len(values)
    half = float(stats.t.ppf((1 + LEVEL) / 2, num - 1)) * deviation
    return Interval(value, value - half, value + half)


def root(interval: Interval) -> Interval:
    """The interval of the square root, of what is never negative."""
    low, high = (
        None if bound is None else float(np.sqrt(max(0.0, bound)))
        for bound in (interval.low, interval.high)
    )
    return Interval(float(np.sqrt(interval.value)), low, high)
