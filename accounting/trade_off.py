"""ρ of Gaussian steps, and their exact δ(ε): the trade-off of one Gaussian of mean shift μ = √(2ρ).

Somebody guesses from a release which of two neighbours it came from, raises false alarms at a rate
α and misses at a rate β. No guess does better than β = Φ(Φ⁻¹(1 − α) − μ) (Dong, Roth & Su 2019).
δ(ε) is the same curve (Balle & Wang 2018, theorem 8). J Gaussian steps have it, with ρ the sum over
the steps. `accounting.gaussian` has these names as well.
"""

import functools
import math
from collections.abc import Callable

from accounting import guards


def rho(noise_multiplier: float, num_steps: int) -> float:
    """ρ = J/(2z²) of J Gaussian steps at noise multiplier z = σ/Δ; 0 steps cost 0.

    Raises:
      ValueError: z is not positive and finite, J is not an integer of at least 0, or ρ is outside
        [1e-200, 1e200].
    """
    num_steps = guards.count("num_steps", num_steps, 0)
    z = guards.positive("noise_multiplier", noise_multiplier)
    if num_steps == 0:
        return 0.0
    total = num_steps / z / z / 2
    if not 1e-200 <= total <= 1e200:  # no underflow may look like a release that costs nothing
        raise ValueError(
            f"noise_multiplier {z!r} prices {num_steps} steps at ρ = {total!r}, which is out of"
            " range"
        )
    return total


def delta_exact(rho: float, epsilon: float) -> float:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ = √(2ρ): no smaller δ holds at this ε.

    Computed as φ(t)(R(t) − R(t + μ)) with t = ε/μ − μ/2 and R = (1 − Φ)/φ, which neither overflows
    nor cancels. An upper bound, at most 1e-11 relative above the true value for ρ in [1e-8, 1e4];
    at ρ > 0 never 0.
    """
    r, epsilon = guards.nonnegative("rho", rho), guards.from_zero("epsilon", epsilon)
    if r == 0:
        return 0.0
    # one float up: below 1e-308 the slack is less than a digit, and 0 would claim a pure guarantee
    return math.nextafter(math.exp(min(0.0, _log_delta(math.sqrt(2 * r), epsilon))), 1.0)


def epsilon_exact(rho: float, delta: float) -> float:
    """The exact ε of ρ at δ: the root of `delta_exact`, or 0 where δ reaches the total variation.

    An upper bound: `delta_exact(rho, epsilon_exact(rho, delta)) <= delta` holds in floats. Within
    1e-10 relative (or 1e-11·√ρ where that is more) of the true value for ρ in [1e-8, 1e4] and δ in
    [1e-15, 0.1]. It grows with ρ and falls with δ.
    """
    r, delta = guards.nonnegative("rho", rho), guards.probability("delta", delta)
    if delta_exact(r, 0.0) <= delta:
        return 0.0
    # Equation (9) of paper 001, `gaussian.epsilon_closed_form`.
    above = r + 2 * math.sqrt(r * -math.log(delta))
    if not delta_exact(r, above) <= delta:
        # By theory `above` is larger: here ρ is so large, or δ so small, that rounding hides it.
        return above
    return bisect(lambda epsilon: delta_exact(r, epsilon) <= delta, 0.0, above)[1]


def bisect(passes: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Neighbouring floats (low, high) with `passes` false at low, true at high, as at the start."""
    floor = 1e-18 * high
    while high > floor:
        middle = low + (high - low) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if passes(middle) else (middle, high)
    return low, high


# --------------------------------------------------------------------------------------------------


def _log_delta(mu: float, epsilon: float) -> float:
    """ln δ(ε) of the trade-off with mean shift μ > 0, or a few 1e-12 more; it falls with ε."""
    t = epsilon / mu - mu / 2
    if t > 1e6:
        return -t * t / 2  # δ < φ(t); the difference below would drown
    slack = 1e-12 + 1e-15 * (epsilon / mu + mu) * (1 + abs(t))  # of erfcx, and of rounding in t
    if mu <= 1:
        # R(t) − R(t + μ) = ∫ 1 − sR(s) ds over [t, t + μ]: the difference itself would cancel.
        nodes, weights = _quadrature()
        integral = float(weights @ _one_minus_s_mills(t + mu * nodes))
        return -t * t / 2 - math.log(2 * math.pi) / 2 + math.log(mu) + math.log(integral) + slack
    # R(t) is infinite from t = −37 down, and so is this bound: δ is 1 there to the last digit
    return -t * t / 2 - math.log(2 * math.pi) / 2 + math.log(_mills(t) - _mills(t + mu)) + slack


def _mills(x: float) -> float:
    """R(x) = (1 − Φ(x))/φ(x)."""
    from scipy.special import erfcx

    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))


def _one_minus_s_mills(s):
    """1 − sR(s) for an array s.

    From s = 5 on it would cancel, and R = 1/(s + 1/(s + 2/(s + 3/(s + …)))) is used instead.
    """
    import numpy as np
    from scipy.special import erfcx

    near = s < 5
    if near.all():
        return 1 - s * math.sqrt(math.pi / 2) * erfcx(s / math.sqrt(2))
    far = np.maximum(s, 5.0)
    tail = far
    for k in range(40, 1, -1):
        tail = far + k / tail
    tail = 1 / tail
    s = np.minimum(s, 5.0)
    return np.where(
        near, 1 - s * math.sqrt(math.pi / 2) * erfcx(s / math.sqrt(2)), tail / (far + tail)
    )


@functools.cache
def _quadrature():
    """Ten Gauss–Legendre nodes and weights on [0, 1]."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(10)
    return (nodes + 1) / 2, weights / 2
