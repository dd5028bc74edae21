"""How near guesses about canaries come to ε: by one (ε, δ) of a claim, and by its whole curve.

Each of m canaries lies behind N(0, 1) noise of its own, so the price is exactly that of one
Gaussian step, and no attack is better than a look at each. How many are guessed is chosen on other
runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from audits.release.guesses import Guesses

DELTA, LEVEL = 1e-5, 0.05
EPSILONS, CANARIES = (1.0, 4.0, 10.0), (256, 1_000, 10_000)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5)  # guessed "in", and as many "out"


def rows(repeats: int = 20) -> Iterator[dict[str, Any]]:
    """Rows of {epsilon, canaries, method, share, bound, largest}, of bounds right with 95%.

    bound, largest: the median and the largest of `repeats` runs.
    """
    for epsilon in EPSILONS:
        for num in CANARIES:
            for method, bound in (("one (ε, δ)", of_point), ("the whole curve", of_curve)):
                yield {"epsilon": epsilon, "canaries": num, "method": method} | _row(
                    epsilon, num, bound, repeats
                )


def of_point(made: Guesses) -> float:
    """The bound of Steinke, Nasr & Jagielski (2023)."""
    from audits.release import guesses

    return guesses.epsilon_bound(made, DELTA, LEVEL)


def of_curve(made: Guesses) -> float:
    """The bound of `audits.release.trade_off`."""
    from accounting import gaussian
    from audits.release import trade_off

    mu = trade_off.mu_bound(made, LEVEL)
    return gaussian.epsilon_exact(mu * mu / 2, DELTA) if mu else 0.0


def _row(
    epsilon: float, num: int, bound: Callable[[Guesses], float], repeats: int
) -> dict[str, Any]:
    from accounting import gaussian

    mu = math.sqrt(2 * gaussian.solve_rho(epsilon, DELTA))
    random = np.random.default_rng(0)

    def bounds(share: float, runs: int) -> list[float]:
        return [bound(surest(random, num, mu, share)) for _ in range(runs)]

    share = max(SHARES, key=lambda share: float(np.mean(bounds(share, 5))))
    found = bounds(share, repeats)
    return {"share": share, "bound": float(np.median(found)), "largest": max(found)}


def surest(random: np.random.Generator, num: int, mu: float, share: float) -> Guesses:
    """Guesses of one run: the highest share "in", the lowest "out"."""
    from audits.release import guesses

    inside = random.random(num) < 0.5
    return guesses.guess(mu * inside + random.normal(size=num), inside, (share, share))
