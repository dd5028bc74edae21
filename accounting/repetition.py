"""The best of a random number of runs, of which only the best is released: its price.

The number of runs K ≥ 1 has a truncated negative binomial law with a shape η ≥ 0 and a probability
γ in (0, 1] of stopping (Papernot & Steinke, "Hyperparameter tuning with Rényi differential
privacy", 2022, definition 1):

    P(K = k) ∝ (1 − γ)^k · Π_{0 < l < k} (l + η)/(l + 1).

η = 0 is the logarithmic law, η = 1 the geometric one. Each run draws its settings by itself, and
its score is a part of what it would release. Where a run has Rényi divergence αρ at every order
α > 1, as Gaussian steps have, the best one has, by theorem 2 there, at every order α and for every
λ ≥ 1,

    αρ + (1 + η)·((λ − 1)·ρ + ln(1/γ)/λ) + ln(E K)/(α − 1).

The number of runs stays secret.
"""

from __future__ import annotations

import math

from accounting import guards

LARGEST_MEAN = 1000.0  # runs on average; a search that needs more is none


def mean_runs(stop: float, shape: float) -> float:
    """E K, for stop = γ and shape = η."""
    stop, shape = guards.rate("stop", stop), guards.nonnegative("shape", shape)
    if stop == 1:
        return 1.0
    log = -math.log(stop)  # of 1/γ
    share = 1 / log if shape == 0 else shape / -math.expm1(-shape * log)
    return max(1.0, share * (1 / stop - 1))


def stop_for(mean: float, shape: float) -> float:
    """γ of a law with E K = mean.

    Raises: ValueError for a mean below 1 or above `LARGEST_MEAN`, or a shape below 0.
    """
    if not 1 <= guards.positive("mean", mean) <= LARGEST_MEAN:
        raise ValueError(f"mean must be from 1 to {LARGEST_MEAN:g} runs, got {mean!r}")
    shape = guards.nonnegative("shape", shape)
    if mean == 1:
        return 1.0
    from scipy.optimize import brentq

    at = brentq(lambda log: math.log(mean_runs(math.exp(log), shape) / mean), -50.0, -1e-12)
    return math.exp(float(at))


def probabilities(stop: float, shape: float, most: int) -> list[float]:
    """P(K = k) for k from 1 to `most`; the rest of 1 is beyond."""
    if guards.rate("stop", stop) == 1:
        return [1.0] + [0.0] * (most - 1)
    shape = guards.nonnegative("shape", shape)
    # P(K = 1), and from there each from the one before
    log = -math.log(stop)
    first = (1 - stop) / log if shape == 0 else (1 - stop) * shape / math.expm1(shape * log)
    found = [first]
    for k in range(1, most):
        found.append(found[-1] * (1 - stop) * (k + shape) / (k + 1))
    return found


def divergence(rho: float, stop: float, shape: float, order: float) -> float:
    """Of the best run, at a Rényi order above 1, at the best λ."""
    return order * rho + _choice(rho, stop, shape) + math.log(mean_runs(stop, shape)) / (order - 1)


def _choice(rho: float, stop: float, shape: float) -> float:
    """The part that no order changes: (1 + η)·((λ − 1)·ρ + ln(1/γ)/λ), least at λ² = ln(1/γ)/ρ."""
    log = -math.log(stop)
    if log == 0 or rho == 0:
        return 0.0
    at = max(1.0, math.sqrt(log / rho))
    return (1 + shape) * ((at - 1) * rho + log / at)
