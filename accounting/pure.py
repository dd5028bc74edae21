"""What pure differential privacy costs: Laplace noise, randomised response, the one-bit report, and
k rounds of them.

A pure price needs no δ: P(S) <= e^ε P′(S) for every event S. What rounds of them add up to is
`accounting.rounds`, with whose names these go together here. Every price errs on the upper side,
every inverse on the safe one.
"""

import decimal
import itertools
import math
from collections.abc import Iterable

from accounting import guards
from accounting.decimals import EXACT, named, quotient, up
from accounting.rounds import ROUNDS_LIMIT as ROUNDS_LIMIT
from accounting.rounds import delta_optimal as delta_optimal
from accounting.rounds import epsilon_basic as epsilon_basic
from accounting.rounds import epsilon_optimal as epsilon_optimal
from accounting.rounds import share as share
from accounting.rounds import solve_epsilon_round as solve_epsilon_round
from accounting.rounds import solve_num_rounds as solve_num_rounds

# -------------------------------------------------------------------------------------------------


def epsilon_laplace(scale: float, sensitivity: float) -> float:
    """ε = Δ₁/b of independent Laplace noise, density ∝ exp(−|η|/b), on every coordinate (Dwork et
    al. 2006).

    Args:
      scale: b, in the units of the query.
      sensitivity: Δ₁, the largest change of the query in the L1 norm, for the relation of the
        release; any dimension.

    Raises:
      ValueError: either is not positive and finite.
    """
    return up(
        quotient(guards.positive("sensitivity", sensitivity), guards.positive("scale", scale))
    )


def scale_laplace(epsilon: float, sensitivity: float) -> float:
    """b = Δ₁/ε, the smallest scale whose `epsilon_laplace` is at most ε.

    Raises:
      ValueError: ε or Δ₁ is not positive and finite, or b would exceed the largest float.
    """
    scale = up(
        quotient(guards.positive("sensitivity", sensitivity), guards.positive("epsilon", epsilon))
    )
    if not scale < math.inf:
        raise ValueError(
            f"epsilon {epsilon!r} is too small for a sensitivity of {sensitivity!r}: no scale is"
            " finite"
        )
    return scale


def epsilon_l2_laplace(scale: float, sensitivity: float) -> float:
    """ε = Δ₂/b of noise with density ∝ exp(−‖η‖₂/b): a radius drawn from Gamma(d, b), a uniform
    direction.

    The log-ratio of two shifted densities is (‖η′‖ − ‖η‖)/b, at most Δ₂/b by the triangle
    inequality. The dimension d decides how much noise that is, not its price.

    Args:
      scale: b.
      sensitivity: Δ₂, the largest change of the query in the L2 norm.

    Raises:
      ValueError: as `epsilon_laplace`.
    """
    return epsilon_laplace(scale, sensitivity)


def scale_l2_laplace(epsilon: float, sensitivity: float) -> float:
    """b = Δ₂/ε, the smallest scale whose `epsilon_l2_laplace` is at most ε; raises as
    `scale_laplace`.
    """
    return scale_laplace(epsilon, sensitivity)


# --------------------------------------------------------------------------------------------- rand


def epsilon_randomized_response(truth_probability: float, num_values: int = 2) -> float:
    """ε = |ln(p(k − 1)/(1 − p))|: the truth with probability p, else one of the other k − 1 values,
    each as likely.

    At p = 1/k the answer does not depend on the truth and costs 0; below it the answer avoids the
    truth, which tells as much. p = 0 and p = 1 have no finite price. dp_accounting's
    `RandomizedResponseDpEvent` writes λ, the probability of a uniform value among all k: p = 1 − λ
    + λ/k.

    Args:
      truth_probability: p, of reporting one's own value.
      num_values: k, at least 2.

    Raises:
      ValueError: p is not in [0, 1], or k is not an integer of at least 2.
    """
    num_values = guards.count("num_values", num_values, 2)
    guards.share("truth_probability", truth_probability)
    with decimal.localcontext(EXACT):
        truth = named(truth_probability)
        if truth in (0, 1):
            return math.inf
        odds = truth * (num_values - 1) / (1 - truth)
        return up(abs(odds.ln()))  # 50 digits: no cancellation near p = 1/k


def truth_probability(epsilon: float, num_values: int = 2) -> float:
    """p = e^ε/(e^ε + k − 1), the largest whose `epsilon_randomized_response` is at most ε; at least
    1/k.

    Raises:
      ValueError: ε is not positive and finite, k is not an integer of at least 2, or ε is so small
        that no float from 1/k on is affordable.
    """
    epsilon, num_values = (
        guards.positive("epsilon", epsilon),
        guards.count("num_values", num_values, 2),
    )
    probability = 1 / (1 + (num_values - 1) * math.exp(-epsilon))
    while epsilon_randomized_response(probability, num_values) > epsilon:
        probability = math.nextafter(probability, 0)
        if not probability >= 1 / num_values:
            raise ValueError(f"epsilon {epsilon!r} is too small for {num_values} values")
    while (above := math.nextafter(probability, 1)) < 1 and epsilon_randomized_response(
        above, num_values
    ) <= epsilon:
        probability = above  # the guess is rounded, by some last digits in either direction
    return probability


def one_bit_probability(value: float, epsilon: float) -> float:
    """The probability of a 1 in paper 004's report, (x(e^ε − 1) + e^ε + 1)/(2(e^ε + 1)), x clipped
    to [−1, 1].

    A 1 is reported as +B, a 0 as −B with B = (number of coordinates)·(e^ε + 1)/(e^ε − 1), which
    makes the report an unbiased estimate of the clipped gradient. Algorithms 1 (line 10) and 2
    (line 12), ε here being their ε/k. Computed as ½(1 + x)·s + ½(1 − x)·(1 − s), s = e^ε/(e^ε + 1),
    with both s and 1 − s to the last digits.

    Raises:
      ValueError: x is NaN, or ε is not in [0, 745]: beyond, the smaller probability is no float,
        and 0 has no price.
    """
    x, flip = _clipped(value), math.exp(-guards.nonnegative("epsilon", epsilon))
    if not flip > 0:
        raise ValueError(
            f"epsilon must be at most 745, where a report is not yet certain, got {epsilon!r}"
        )
    return ((1 + x) / 2 + (1 - x) / 2 * flip) / (1 + flip)


def one_bit_epsilon(epsilon: float, values: Iterable[float]) -> float:
    """The largest log-ratio over all (coordinate value, other value, bit): what one report with
    this ε really costs.

    Which coordinate is reported is drawn without looking at the data, so its probability cancels;
    every entry of every user's gradient is one of the values. Where they reach −1 and 1 this is ε,
    to 1e-12 relative; nowhere more. Paper 004, lemma 1, by enumeration instead of by bounds. Takes
    the square of the number of different values.

    Args:
      epsilon: of the report, at least 0 and finite.
      values: entries before they are clipped, at least one.

    Raises:
      ValueError: a value is NaN, there is none, or ε is out of range.
    """
    clipped = {_clipped(value) for value in values}
    if not clipped:
        raise ValueError("values must be at least one entry, got none")
    flip = math.exp(-guards.nonnegative("epsilon", epsilon))
    pairs = itertools.permutations(clipped, 2)
    ratios = (
        _log_ratio(sign * x, sign * other, epsilon, flip) for x, other in pairs for sign in (1, -1)
    )
    return max(ratios, default=0.0)


def _log_ratio(x: float, other: float, epsilon: float, flip: float) -> float:
    """ln P(1 given x)/P(1 given other) if it is positive, flip = e^−ε; P(0 given x) = P(1 given
    −x).
    """
    if x <= other:
        return 0.0  # or less, which is never the largest
    if (
        epsilon <= 700
    ):  # by the difference, which is exact at tiny ε where two logarithms would cancel
        return math.log1p(
            (x - other) / 2 * -math.expm1(-epsilon) / ((1 + other) / 2 + (1 - other) / 2 * flip)
        )
    own = math.log((1 + x) / 2)
    return (
        own + epsilon if other == -1 else own - math.log((1 + other) / 2)
    )  # e^−ε is no float, or nothing beside x


# --------------------------------------------------------------------------------------------------


def _clipped(value: float) -> float:
    if not -math.inf <= value <= math.inf:
        raise ValueError(f"value must be a number, got {value!r}")
    return max(-1.0, min(1.0, float(value)))
