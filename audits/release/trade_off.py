"""How unlikely right guesses are under a whole trade-off curve, and not at one (ε, δ) of it.

The setting of `guesses`: m canaries toss fair coins, an attacker names r of them, and K guesses are
right. A claim is a curve g: whatever has probability p with a canary's coin one way has at most
g(p) with it the other way, all other coins as they are. g is concave; for f-DP it is 1 - f.

Fix a canary, its coin v, the other coins, and c. Let E be the releases that name this canary, guess
v, and have at least c - 1 right guesses among the others. Under v that is a right guess with K ≥ c,
under the other coin a wrong one with K ≥ c - 1. So P_v(E) ≤ g(P_other(E)), and as g is concave the
same holds for averages over coins and canaries. Σ over canaries of the right guesses is K, of the
wrong ones r - K, hence for p_k = P(K = k)

    (1/m)·Σ_{k ≥ c} k·p_k  ≤  g( (1/m)·Σ_{k ≥ c - 1} (r - k)·p_k ).

Let S_c = P(K ≥ c). Abel summation and h, the inverse of g, turn that into

    (r - c + 1)·S_{c-1}  ≥  Σ_{k ≥ c} S_k + m·h( (c·S_c + Σ_{k > c} S_k)/m ).

The right side grows with every S_k. So where P(K ≥ v) = τ, S_{v-1}, S_{v-2}, ..., S_0 are at least
what equality gives in this order, with S_k = 0 beyond v. S_0 = 1, so a τ that gives more is
impossible. This is the bound of Mahloujifar, Melis and Chaudhuri 2024 ("Auditing f-differential
privacy in one run"), whose recursion it is in other variables; the proof above is ours.

A curve is kept as lines: (ε, δ) says g(p) ≤ e^ε·p + δ, hence h(p) ≥ e^-ε·(p - δ), and of what is
left without the event h(p) ≥ 1 - δ - e^ε·(1 - p). Any line is a valid bound, more are sharper.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from accounting import composition, gaussian, price
from accounting import loss as losses_of
from accounting.loss import Approximate, Loss, Unit
from audits.release.guesses import Guesses

LINES = 96
LEAST = 1e-12  # δ where a curve of lines begins
FARTHEST = 700.0  # ε whose e^ε a float holds


class Curve(NamedTuple):
    """h as the largest of some lines, by their slopes, from the flattest.

    Attributes:
      slopes, offsets: the lines are slope·p - offset.
      breaks: from which probability on the next line is the better one.
    """

    slopes: tuple[float, ...]
    offsets: tuple[float, ...]
    breaks: tuple[float, ...]

    def least(self, probability: float) -> float:
        """h: how likely at least what has this probability is in the other world."""
        at = bisect.bisect_right(self.breaks, probability)
        return max(0.0, self.slopes[at] * probability - self.offsets[at])


def lines(points: Sequence[tuple[float, float]]) -> Curve:
    """The curve of points (ε, δ), for an event and for what is left without it.

    Beyond ε = 700 a point says nothing that a float could hold.
    """
    points = [(epsilon, delta) for epsilon, delta in points if epsilon <= FARTHEST]
    found = [(math.exp(-epsilon), math.exp(-epsilon) * delta) for epsilon, delta in points]
    found += [(math.exp(epsilon), math.exp(epsilon) - 1 + delta) for epsilon, delta in points]
    best: dict[float, float] = {}
    for slope, offset in sorted([(0.0, 0.0), *found]):
        best[slope] = min(offset, best.get(slope, math.inf))
    breaks: list[float] = []
    for (slope, offset), (steeper, further) in itertools.pairwise(best.items()):
        at = (further - offset) / (steeper - slope)
        breaks.append(max(at, *breaks[-1:], 0.0))
    return Curve(tuple(best), tuple(best.values()), tuple(breaks))


def of_losses(losses: Sequence[Loss], delta: float, *, unit: Unit) -> Curve:
    """The curve that a guarantee's losses allow.

    delta: of the guarantee. Where no more is known than an ε at that δ, it is one line.
    """
    rho = price.rho(losses)
    if any(isinstance(loss, Approximate) for loss in losses) or delta == 0:
        return lines([(price.epsilon(losses, delta, unit=unit), delta)])
    if rho is not None:
        most, delta_of = (
            gaussian.epsilon_exact(rho, LEAST),
            lambda epsilon: gaussian.delta_exact(rho, epsilon),
        )
    else:
        priced = composition.pld(losses, unit=unit)
        most, delta_of = priced.epsilon(LEAST), priced.delta
    if not math.isfinite(most):
        return lines([(price.epsilon(losses, delta, unit=unit), delta)])
    away = losses_of.distance(losses)
    grid = [min(most, FARTHEST) * place / (LINES - 1) for place in range(LINES)]
    return lines([(at, delta_of(at) + (1 + math.exp(at)) * away) for at in grid])


def of_gaussian(mu: float) -> Curve:
    """Of two normal distributions of unit variance, μ apart."""
    rho = mu * mu / 2
    most = gaussian.epsilon_exact(rho, LEAST)
    grid = [most * place / (LINES - 1) for place in range(LINES)]
    return lines([(at, gaussian.delta_exact(rho, at)) for at in grid])


def possible(guesses: Guesses, curve: Curve, tau: float) -> bool:
    """Whether so many guesses may be right with probability τ."""
    m, r, v = guesses
    here, beyond = tau, 0.0  # S_c, and Σ of those above
    for c in range(v, 0, -1):
        needed = here + beyond + m * curve.least((c * here + beyond) / m)
        beyond, here = beyond + here, max(here, needed / (r - c + 1))
        if here > 1:
            return False
    return here <= 1


def p_value(guesses: Guesses, curve: Curve) -> float:
    """An upper bound on P(so many are right) under the curve, for r fixed before the run."""
    if guesses.right == 0 or possible(guesses, curve, 1.0):
        return 1.0
    low, high = -700.0, 0.0  # of log τ; the upper end is impossible
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if possible(guesses, curve, math.exp(middle)) else (low, middle)
    return math.exp(high)


def mu_bound(guesses: Guesses, alpha: float, *, most: float = 20.0) -> float:
    """The largest μ for which no μ-GDP mechanism lets so many be right, with 1 - α; 0 for none."""

    def refuted(mu: float) -> bool:
        return not possible(guesses, of_gaussian(mu), alpha)

    low, high = 1e-3, most
    if not refuted(low):
        return 0.0
    if refuted(high):
        return high
    while high - low > 1e-4 * high:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
