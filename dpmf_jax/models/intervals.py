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


def of_ratio(user: Any, above: Any, below: Any = 1.0) -> Interval:
    """The interval of Σ above / Σ below, in which the rows of a user are one observation.

    By linearisation of the ratio, with the quantile of Student's t: Cochran, Sampling Techniques,
    §2.11 and §6. A mean over rows is the ratio with `below` 1.

    Args:
      user: int[n], whose row it is. above, below: float[n], below positive.
    """
    from scipy import stats

    user, above = np.asarray(user), np.asarray(above, np.float64)
    below = np.broadcast_to(np.asarray(below, np.float64), above.shape)
    total = float(below.sum())
    value = float(above.sum()) / total
    _, place = np.unique(user, return_inverse=True)
    num = int(place.max()) + 1 if len(place) else 0
    if num < 2:
        return Interval(value, None, None)
    residual = np.bincount(place, weights=above - value * below, minlength=num)
    deviation = float(np.sqrt(num / (num - 1) * np.sum(residual**2))) / total
    half = float(stats.t.ppf((1 + LEVEL) / 2, num - 1)) * deviation
    return Interval(value, value - half, value + half)


def root(interval: Interval) -> Interval:
    """The interval of the square root, of what is never negative."""
    low, high = (
        None if bound is None else float(np.sqrt(max(0.0, bound)))
        for bound in (interval.low, interval.high)
    )
    return Interval(float(np.sqrt(interval.value)), low, high)
