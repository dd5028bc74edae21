"""The trade-off of one Gaussian of mean shift μ = √(2ρ), exactly: everything that ρ says, and
nothing rounded away.

Whoever guesses from a release which of two neighbours it came from raises false alarms at a rate α
and misses at a rate β; no guess does better than β = Φ(Φ⁻¹(1 − α) − μ) (Dong, Roth & Su 2019). δ(ε)
is the same curve (Balle & Wang 2018, theorem 8), and J Gaussian steps have it with ρ the sum over
the steps. `accounting.gaussian` has these names as well.
"""

import functools
import math
from collections.abc import Callable

from accounting import guards


def mu_from_rho(rho: float) -> float:
    """μ = √(2ρ), the mean shift of the one Gaussian that has this ρ (μ-GDP).

    Raises:
      ValueError: ρ is negative, infinite or NaN.
    """
    return math.sqrt(2 * guards.nonnegative("rho", rho))


def rho_from_mu(mu: float) -> float:
    """ρ = μ²/2, the inverse of `mu_from_rho`.

    Raises:
      ValueError: μ is negative, infinite or NaN, or ρ would be 0 without μ being 0, or infinite.
    """
    mu = guards.nonnegative("mu", mu)
    rho = mu * mu / 2
    if mu > 0 and not 0 < rho < math.inf:
        raise ValueError(f"mu must be 0 or have a ρ that a float can hold, got {mu!r}")
    return rho


def trade_off(rho: float, false_alarm_rate: float) -> float:
    """β = Φ(Φ⁻¹(1 − α) − μ): the rate at which the best guess with false-alarm rate α misses; 1 − α
    at ρ = 0.

    Raises:
      ValueError: ρ is out of range, or α is not in [0, 1].
    """
    mu = mu_from_rho(rho)
    alpha = guards.share("false_alarm_rate", false_alarm_rate)
    from scipy.special import ndtr, ndtri

    return float(ndtr(-ndtri(alpha) - mu))


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
    """The ε of ρ at δ by the Gaussian trade-off: the root of `delta_exact`, 0 where δ is at least
    the total variation.

    An upper bound: `delta_exact(rho, epsilon_exact(rho, delta)) <= delta` holds in floats. Within
    1e-10 relative (or 1e-11·√ρ where that is more) of the true value for ρ in [1e-8, 1e4] and δ in
    [1e-15, 0.1], increasing in ρ, decreasing in δ.
    """
    r, delta = guards.nonnegative("rho", rho), guards.probability("delta", delta)
    if delta_exact(r, 0.0) <= delta:
        return 0.0
    above = r + 2 * math.sqrt(
        r * -math.log(delta)
    )  # equation (9) of paper 001, `gaussian.epsilon_closed_form`
    if not delta_exact(r, above) <= delta:
        # the larger one by theory; ρ is so large, or δ so small, that rounding swamps the
        # difference
        return above
    return bisect(lambda epsilon: delta_exact(r, epsilon) <= delta, 0.0, above)[1]


def bisect(passes: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Neighbouring floats (low, high) with `passes` false at low and true at high, given that it is
    so at the start.
    """
    floor = 1e-18 * high
    while high > floor:
        middle = low + (high - low) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if passes(middle) else (middle, high)
    return low, high


# --------------------------------------------------------------------------------------------------


def _log_delta(mu: float, epsilon: float) -> float:
    """An upper bound of ln δ(ε) of the trade-off with mean shift μ > 0, a few 1e-12 above it;
    decreasing in ε.
    """
    t = epsilon / mu - mu / 2
    if t > 1e6:
        return -t * t / 2  # δ < φ(t); the difference below would drown
    slack = 1e-12 + 1e-15 * (epsilon / mu + mu) * (1 + abs(t))  # of erfcx, and of rounding in t
    if (
        mu <= 1
    ):  # R(t) − R(t + μ) = ∫ 1 − sR(s) ds over [t, t + μ], where the difference itself would cancel
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
    """1 − sR(s) for an array s; from s = 5 on, where it would cancel, by R = 1/(s + 1/(s + 2/(s +
    3/(s + …)))).
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
