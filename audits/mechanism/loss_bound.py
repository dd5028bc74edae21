"""From privacy losses of many transcripts to an exact test of δ(ε), and an exact lower bound on ε.

δ(ε) = E[(1 - e^(ε-L))₊], L the loss of a transcript of the data set against its neighbour. A
transcript drawn from another law, with w the ratio of the densities, has x(ε) = min(w(1 -
e^(ε-L))₊, B)/B in [0, 1] for a B fixed beforehand, and E[x(ε)] ≤ δ(ε)/B. With U uniform, {U < x(ε)}
is a coin of that probability; it shows heads exactly where ε is below a score, L + log(1 - U·B/w).
So all ε are tested by the same scores: how many lie above ε is at most Bin(n, δ(ε)/B), and an order
statistic bounds ε at a given δ. No grid, no union, nothing asymptotic.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Losses(NamedTuple):
    """Of n transcripts, float64[n]: L, and log w (0 where they were drawn from the data set's own
    law).
    """

    loss: np.ndarray
    log_weight: np.ndarray


def terms(losses: Losses, epsilon: float) -> np.ndarray:
    """w(1 - e^(ε-L))₊, float64[n]; their mean estimates δ(ε)."""
    with np.errstate(over="ignore"):
        return np.exp(losses.log_weight) * -np.expm1(np.minimum(epsilon - losses.loss, 0.0))


def estimate(losses: Losses, delta: float) -> float:
    """ε at which the mean of `terms` is δ: a guess, never a bound; -inf where it is below δ for all
    ε ≥ -100.
    """
    from scipy.optimize import brentq

    def excess(epsilon: float) -> float:
        return float(np.mean(terms(losses, epsilon))) - delta

    high = float(np.max(losses.loss, initial=0.0))
    if not excess(-100.0) > 0:
        return -math.inf
    return float(brentq(excess, -100.0, max(high, 0.0) + 1, xtol=1e-9))


def scores(losses: Losses, uniform: np.ndarray, largest: float) -> np.ndarray:
    """L + log(1 - U·B/w), float64[n], -inf where U·B ≥ w; largest: B, fixed before these were
    drawn.
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        inside = uniform * largest * np.exp(-losses.log_weight)
        return np.where(inside < 1, losses.loss + np.log1p(-np.minimum(inside, 1.0)), -np.inf)


def p_value(scored: np.ndarray, epsilon: float, delta: float, largest: float) -> float:
    """Of the claim δ(ε) ≤ δ: P(Bin(n, δ/B) ≥ the number of scores above ε), exact."""
    from scipy.stats import binom

    return float(binom.sf(np.sum(scored > epsilon) - 1, len(scored), min(1.0, delta / largest)))


def least_count(num: int, delta: float, largest: float, alpha: float) -> int | None:
    """The least k with P(Bin(num, δ/B) ≥ k) ≤ α; None where not even k = num is that rare."""
    from scipy.stats import binom

    share = min(1.0, delta / largest)
    count = int(binom.isf(alpha, num, share)) + 1
    return count if count <= num and binom.sf(count - 1, num, share) <= alpha else None


def epsilon_bound(scored: np.ndarray, delta: float, largest: float, alpha: float) -> float:
    """ε such that δ(ε) ≥ δ but with a chance of α: the k-th largest score; never below 0, which
    always holds.
    """
    count = least_count(len(scored), delta, largest, alpha)
    return 0.0 if count is None else max(0.0, float(np.sort(scored)[-count]))


def delta_seen(num: int, delta: float, largest: float, alpha: float, power: float = 0.95) -> float:
    """The smallest δ at the tested ε that would be called a violation with this power; inf where
    none would.
    """
    from scipy.optimize import brentq
    from scipy.stats import binom

    count = least_count(num, delta, largest, alpha)
    if count is None:
        return math.inf
    return largest * float(
        brentq(lambda share: binom.sf(count - 1, num, share) - power, 0.0, 1.0, xtol=1e-15)
    )
