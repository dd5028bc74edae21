"""How well scores tell members from others: ROC, rates, advantage, and what (ε, δ) allows of it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

LOW_RATES = (0.001, 0.01)  # false positive rates at which a true positive rate is stated


class Curve(NamedTuple):
    """Rates at every threshold, float64[k], from none guessed to all."""

    false_positive_rate: np.ndarray
    true_positive_rate: np.ndarray
    threshold: np.ndarray


class Rates(NamedTuple):
    """How many others and members score at least a threshold, and how many there are."""

    false_positives: int
    true_positives: int
    others: int
    members: int

    @property
    def advantage(self) -> float:
        """True minus false positive rate."""
        return self.true_positives / self.members - self.false_positives / self.others


def curve(scores: np.ndarray, member: np.ndarray) -> Curve:
    """scores: float[n], high for members; member: bool[n].

    Raises: ValueError without a member or without another, or for a score that is not a number.
    """
    scores, member = _checked(scores, member)
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # equal scores share a threshold
    hits, misses = np.cumsum(member[order])[last], np.cumsum(~member[order])[last]
    return Curve(
        np.append(0.0, misses / np.sum(~member)),
        np.append(0.0, hits / np.sum(member)),
        np.append(np.inf, scores[order][last]),
    )


def rates(scores: np.ndarray, member: np.ndarray, threshold: float) -> Rates:
    """Of the guess "a member" at scores of at least the threshold. Raises: as `curve`."""
    scores, member = _checked(scores, member)
    said = scores >= threshold
    return Rates(
        int(np.sum(said & ~member)),
        int(np.sum(said & member)),
        int(np.sum(~member)),
        int(np.sum(member)),
    )


def auc(scores: np.ndarray, member: np.ndarray) -> float:
    """P(a member's score is above another's), ties by half. Raises: as `curve`."""
    from scipy.stats import rankdata

    scores, member = _checked(scores, member)
    members, others = int(np.sum(member)), int(np.sum(~member))
    return float(
        (np.sum(rankdata(scores)[member]) - members * (members + 1) / 2) / (members * others)
    )


def auc_interval(
    value: float, members: int, others: int, confidence: float = 0.95
) -> tuple[float, float]:
    """About an AUC, for independent scores: Clopper-Pearson's of a share of min(members, others)
    trials.

    No AUC varies more than that share does (Birnbaum & Klose 1957). An approximation, and a wide
    one.
    """
    trials = min(members, others)
    return _beta_interval(value * trials, trials, confidence)


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Of a rate, of which `hits` of `trials` independent trials were seen; holds with `confidence`
    or more.
    """
    return _beta_interval(hits, trials, confidence)


def _beta_interval(hits: float, trials: int, confidence: float) -> tuple[float, float]:
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = 0.0 if hits <= 0 else float(beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits >= trials else float(beta.ppf(1 - tail, hits + 1, trials - hits))
    return low, high


def best_threshold(scores: np.ndarray, member: np.ndarray) -> float:
    """The threshold of the largest advantage. Raises: as `curve`."""
    found = curve(scores, member)
    return float(found.threshold[np.argmax(found.true_positive_rate - found.false_positive_rate)])


def threshold_at(scores: np.ndarray, member: np.ndarray, rate: float) -> float:
    """The lowest threshold with a false positive rate of at most `rate`. Raises: as `curve`."""
    found = curve(scores, member)
    return float(found.threshold[np.flatnonzero(found.false_positive_rate <= rate)[-1]])


def advantage_bound(epsilon: float, delta: float) -> float:
    """The largest advantage that (ε, δ) allows: (e^ε - 1 + 2δ)/(e^ε + 1).

    From Kairouz, Oh & Viswanath 2015.
    """
    return min(1.0, math.tanh(epsilon / 2) + delta * (1 - math.tanh(epsilon / 2)))


def summary(scores: np.ndarray, member: np.ndarray) -> dict[str, Any]:
    """For JSON: AUC, true positive rates at low false ones, up to a hundred points of the curve.

    The intervals, at 95%, count all scores as independent; those of one run are not quite.
    """
    found, area = curve(scores, member), auc(scores, member)
    members, others = int(np.sum(member)), int(np.sum(~np.asarray(member)))
    at_low = {}
    for rate in LOW_RATES:
        hits = float(found.true_positive_rate[found.false_positive_rate <= rate][-1])
        interval = clopper_pearson(round(hits * members), members)
        at_low[f"{rate:g}"] = {
            "true_positive_rate": hits,
            "interval": interval,
            "resolved": others * rate >= 1,
        }
    shown = np.unique(np.linspace(0, len(found.threshold) - 1, 100).astype(int))
    return {
        "auc": area,
        "auc_interval": auc_interval(area, members, others),
        "at_false_positive_rate": at_low,
        "members": members,
        "others": others,
        "curve": [
            [float(found.false_positive_rate[i]), float(found.true_positive_rate[i])] for i in shown
        ],
    }


def _checked(scores: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores, member = np.asarray(scores, np.float64).ravel(), np.asarray(member, bool).ravel()
    if len(scores) != len(member) or not 0 < np.sum(member) < len(member):
        raise ValueError(
            f"scores of members and of others are needed; got {np.sum(member)} of {len(scores)}"
        )
    if np.isnan(scores).any():
        raise ValueError("a score is not a number")
    return scores, member
