"""An exact test of (ε, δ) by guesses about coins, and a lower bound on ε.

After Steinke, Nasr & Jagielski 2023. m canaries toss fair coins, each is in or out; a mechanism
runs; an attacker names r of them, each "in" or "out". If (ε, δ) hides each canary's coin, the v
guesses that are right are hardly more than a binomial of r trials at e^ε/(e^ε + 1) (their theorem
5.2). Canaries may disturb each other: only their coins need be independent.

Runs one after the other, with fresh coins, are one mechanism on the canaries of all of them, each
of which touches its own run alone. So guesses of many runs are counted together, exactly. Guesses
see releases, never a coin.

With r fixed beforehand this is the test of TPR ≤ e^ε·FPR + δ for guesses "in", and of the mirrored
one for "out".
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from accounting import price
from accounting.guarantee import Guarantee
from audits.finding import ALPHA, Finding

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


def least_right(num: int, made: int, epsilon: float, delta: float, alpha: float) -> int | None:
    """The fewest right guesses that refute the claim; None where not even all of them would."""
    if p_value(Guesses(num, made, made), epsilon, delta) > alpha:
        return None
    low, high = -1, made  # at high it is refuted
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if p_value(Guesses(num, made, middle), epsilon, delta) <= alpha
            else (middle, high)
        )
    return high


def epsilon_seen(
    num: int, made: int, epsilon: float, delta: float, alpha: float, power: float = 0.95
) -> float:
    """The smallest ε whose best guesses refute the claim with this power; infinite if none."""
    from scipy.optimize import brentq

    least = least_right(num, made, epsilon, delta, alpha)
    if least is None:
        return math.inf

    def missing(at: float) -> float:
        return float(_tail(least, made, _rate(at))) - power

    return float(brentq(missing, 0.0, MOST)) if missing(MOST) > 0 > missing(0.0) else math.inf


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


class Tried(NamedTuple):
    """Two sets of guesses of one attack, fixed beforehand: for the bound, and for the verdict."""

    widest: Guesses
    sharpest: Guesses


def claim_at(guarantee: Guarantee, num: int) -> tuple[float, float]:
    """The (ε, δ) that a guarantee's losses cost, at a δ that does not blunt the test of m canaries.

    The theorem lets i guesses be right by chance with probability 2mδ/i. There is one δ, 1e-9, for
    up to 2,500 canaries, since some prices take seconds. A pure guarantee has its own (ε, δ).
    """
    if guarantee.delta == 0:
        return guarantee.epsilon, 0.0
    delta = min(guarantee.delta, ALPHA / (40 * max(num, 2500)))
    try:
        return price.epsilon(guarantee.losses, delta, unit=guarantee.unit), delta
    except ValueError:  # of some losses no more than their δ is known
        return guarantee.epsilon, guarantee.delta


def judge(
    name: str,
    claim: str,
    tests: dict[str, Tried],
    *,
    epsilon: float,
    delta: float,
    details: dict[str, Any],
    replay: dict[str, Any],
    weak: str | None = None,
) -> Finding:
    """The finding of some tests of one claim, which share α.

    measured: a lower bound on ε at δ, right with 95%.

    Args:
      weak: why a claim that is not refuted stays open; None where nothing speaks against the
        attack.
    """
    alpha = ALPHA / len(tests)
    p_values = {what: p_value(test.sharpest, epsilon, delta) for what, test in tests.items()}
    bounds = [epsilon_bound(test.widest, delta, 0.05 / len(tests)) for test in tests.values()]
    seen = min(
        epsilon_seen(t.sharpest.canaries, t.sharpest.made, epsilon, delta, alpha)
        for t in tests.values()
    )
    broken = min(p_values.values()) <= alpha
    details = details | {
        "alpha": ALPHA,
        "guesses": {
            what: {kind: g._asdict() for kind, g in test._asdict().items()}
            for what, test in tests.items()
        },
        "p_values": p_values,
        "power": (
            f"guesses that are right as often as ε = {seen:.4g} allows would be seen with"
            " probability 0.95; how far this attack is from the best is not known"
            if math.isfinite(seen)
            else "none: were all guesses right, the claim would still stand"
        ),
        "replay": replay,
    }
    if not math.isfinite(seen):
        made = max(test.sharpest.made for test in tests.values())
        weak = weak or f"{made} guesses are too few to refute ε = {epsilon:.4g} at δ = {delta:g}"
    return Finding(
        audit=name,
        claim=claim,
        measured=max(bounds),
        claimed=epsilon,
        lower=max(bounds),
        confidence=0.95,
        verdict="violated" if broken else "consistent" if weak is None else "inconclusive",
        details=details if weak is None or broken else {"why": weak} | details,
    )
