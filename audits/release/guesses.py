"""An exact test of (ε, δ) by guesses about coins, and a lower bound on ε.

After Steinke, Nasr & Jagielski 2023. m canaries toss fair coins, each is in or out; a mechanism
runs; an attacker names r of them, each "in" or "out". If (ε, δ) hides each canary's coin, the v
guesses that are right are hardly more than a binomial of r trials at e^ε/(e^ε + 1) (their theorem
5.2). Canaries may disturb each other: only their coins need be independent. `trade_off` has a bound
that follows a claim's whole curve, `judging` the verdict.

Runs one after the other, with fresh coins, are one mechanism on the canaries of all of them, each
of which touches its own run alone. So guesses of many runs are counted together, exactly. Guesses
see releases, never a coin. Where a guess sees its own run alone, the runs are independent, and
`judging.tails_of_runs` says more.

With r fixed beforehand this is the test of TPR ≤ e^ε·FPR + δ for guesses "in", and of the mirrored
one for "out".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)  # of canaries guessed "in", and "out"
MOST = 50.0  # ε beyond which a float's guess is never wrong


class Guesses(NamedTuple):
    """How many guesses were right.

    Attributes:
      canaries: m.
      made: r, how many were guessed.
      right: v, how many of these are right.
    """

    canaries: int
    made: int
    right: int


def _tail(right: Any, made: Any, rate: Any) -> Any:
    """P(Bin(made, rate) ≥ right); arrays are broadcast."""
    from scipy.special import bdtrc

    return np.where(
        np.less_equal(right, 0), 1.0, bdtrc(np.maximum(np.subtract(right, 1), 0), made, rate)
    )


def _rate(epsilon: Any) -> Any:
    """e^ε/(e^ε + 1)."""
    return 1 / (1 + np.exp(-np.asarray(epsilon, np.float64)))


def p_right(right: int, made: int, epsilon: float) -> float:
    """P(so many of the best guesses that ε allows are right)."""
    return float(_tail(right, made, _rate(epsilon)))


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """An upper bound on P(so many guesses are right) under (ε, δ), for r fixed before the run.

    P(Bin(r, q) ≥ v) + 2mδ·max over i of P(v > Bin(r, q) ≥ v - i)/i, with q = e^ε/(e^ε + 1) (theorem
    5.2).

    Raises: ValueError for more right guesses than were made, or more of these than canaries.
    """
    m, r, v = guesses
    if not 0 <= v <= r <= m:
        raise ValueError(
            "right guesses must be at most those made, and these at most the canaries; got"
            f" {guesses}"
        )
    tail = float(_tail(v, r, _rate(epsilon)))
    if delta == 0 or v == 0:
        return min(1.0, tail)
    fewer = np.arange(1, v + 1)
    steepest = float(np.max((_tail(v - fewer, r, _rate(epsilon)) - tail) / fewer))
    return min(1.0, tail + 2 * m * delta * max(0.0, steepest))


def epsilon_bound(guesses: Guesses, delta: float, alpha: float) -> float:
    """A lower bound on ε, right with 1 - α; 0 where nothing is refuted."""
    low, high = 0.0, 1.0
    if p_value(guesses, low, delta) > alpha:
        return 0.0
    while p_value(guesses, high, delta) <= alpha:
        low, high = high, 2 * high
        if low > MOST:
            return low
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(guesses, middle, delta) <= alpha else (low, middle)
    return low


def guess(scores: np.ndarray, inside: np.ndarray, shares: tuple[float, float]) -> Guesses:
    """Guesses of "in" at the highest share of the scores, of "out" at the lowest.

    How many are guessed depends on m alone, and equal scores are taken as they come. inside:
    bool[m], the coins.
    """
    scores, inside = scores.ravel(), inside.ravel()
    num = len(scores)
    top, bottom = (int(share * num) for share in shares)
    order = np.argsort(-scores, kind="stable")
    right = np.sum(inside[order[:top]]) + np.sum(~inside[order[num - bottom :]])
    return Guesses(num, top + bottom, int(right))


class Shares(NamedTuple):
    """Shares of all canaries, (guessed "in", guessed "out").

    Attributes:
      widest: where ε is bounded best.
      sharpest: where the claim is least likely.
    """

    widest: tuple[float, float]
    sharpest: tuple[float, float]


def choose_shares(scores: np.ndarray, inside: np.ndarray, epsilon: float) -> Shares:
    """How many to guess, chosen on other scores than are judged; all where these say nothing."""
    # All of them come first.
    pairs = [(top, bottom) for top in SHARES[::-1] for bottom in SHARES[::-1] if top + bottom > 0]
    guesses = [guess(scores, inside, pair) for pair in pairs]
    made, right = (np.array([getattr(g, name) for g in guesses]) for name in ("made", "right"))
    p_values = np.where(made > 0, _tail(right, np.maximum(made, 1), _rate(epsilon)), 1.0)
    low, high = np.zeros(len(pairs)), np.full(len(pairs), MOST)
    for _ in range(30):
        middle = (low + high) / 2
        refuted = (made > 0) & (_tail(right, np.maximum(made, 1), _rate(middle)) <= 0.05)
        low, high = np.where(refuted, middle, low), np.where(refuted, high, middle)
    sharpest = int(np.argmin(p_values)) if np.min(p_values) < 0.5 else 0
    return Shares(pairs[int(np.argmax(np.round(low, 6)))], pairs[sharpest])


class ByRun(NamedTuple):
    """Guesses about the canaries of each of several independent runs.

    Attributes:
      runs: how many.
      canaries: m, of each run.
      made: r, how many were guessed in each run.
      right: how many guesses were right, of runs·r.
    """

    runs: int
    canaries: int
    made: int
    right: int


def guess_by_run(scores: np.ndarray, inside: np.ndarray, threshold: float) -> ByRun:
    """Guesses of "in" at scores of at least the threshold, of "out" below; [runs, canaries]."""
    runs, canaries = inside.shape
    return ByRun(runs, canaries, canaries, int(np.sum((scores >= threshold) == inside)))


def guess_surest_of_runs(scores: np.ndarray, inside: np.ndarray, share: float) -> ByRun:
    """Guesses as `guess` makes them, of each run by itself; [runs, canaries]."""
    found = [guess(*run, (share, share)) for run in zip(scores, inside, strict=True)]
    return ByRun(*inside.shape, found[0].made, sum(one.right for one in found))


class Tried(NamedTuple):
    """Guesses of one attack, all fixed beforehand.

    Attributes:
      widest, sharpest: for the bound, and for the verdict.
      by_run: for the verdict too; None where there is but one run.
    """

    widest: Guesses
    sharpest: Guesses
    by_run: ByRun | None = None
