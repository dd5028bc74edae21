"""What pure differential privacy costs: Laplace noise, randomised response, the one-bit report, and k rounds of them.

A pure price needs no δ: P(S) <= e^ε P′(S) for every event S. k rounds at ε₀ add up to k·ε₀, and no smaller ε holds at
δ = 0. At δ > 0 a smaller one does, and the least that holds for every choice of pure mechanisms is known exactly
(Kairouz, Oh & Viswanath 2015, theorem 3.3; Murtagh & Vadhan 2016): that of k randomised responses.

A float stands for the shortest decimal that names it: quotients and multiples are exact in decimals and rounded away
from what would look cheaper. Every price errs on the upper side, every inverse on the safe one.
"""

import decimal
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable
from decimal import Decimal

from accounting.guarantee import Guarantee, priced
from accounting.loss import Pure

ROUNDS_LIMIT = 10**9  # of the exact sum at δ > 0, which takes seconds and some 100 MB there

# ------------------------------------------------------------------------------------------------- additive noise


def epsilon_laplace(scale: float, sensitivity: float) -> float:
    """ε = Δ₁/b of independent Laplace noise, density ∝ exp(−|η|/b), on every coordinate (Dwork et al. 2006).

    Args:
      scale: b, in the units of the query.
      sensitivity: Δ₁, the largest change of the query in the L1 norm, for the relation of the release; any dimension.

    Raises:
      ValueError: either is not positive and finite.
    """
    return _up(_quotient(_positive("sensitivity", sensitivity), _positive("scale", scale)))


def scale_laplace(epsilon: float, sensitivity: float) -> float:
    """b = Δ₁/ε, the smallest scale whose `epsilon_laplace` is at most ε.

    Raises:
      ValueError: ε or Δ₁ is not positive and finite, or b would exceed the largest float.
    """
    scale = _up(_quotient(_positive("sensitivity", sensitivity), _positive("epsilon", epsilon)))
    if not scale < math.inf:
        raise ValueError(f"epsilon {epsilon!r} is too small for a sensitivity of {sensitivity!r}: no scale is finite")
    return scale


def epsilon_l2_laplace(scale: float, sensitivity: float) -> float:
    """ε = Δ₂/b of noise with density ∝ exp(−‖η‖₂/b): a radius drawn from Gamma(d, b), a uniform direction.

    The log-ratio of two shifted densities is (‖η′‖ − ‖η‖)/b, at most Δ₂/b by the triangle inequality. The dimension d
    decides how much noise that is, not its price.

    Args:
      scale: b.
      sensitivity: Δ₂, the largest change of the query in the L2 norm.

    Raises:
      ValueError: as `epsilon_laplace`.
    """
    return epsilon_laplace(scale, sensitivity)


def scale_l2_laplace(epsilon: float, sensitivity: float) -> float:
    """b = Δ₂/ε, the smallest scale whose `epsilon_l2_laplace` is at most ε; raises as `scale_laplace`."""
    return scale_laplace(epsilon, sensitivity)


# --------------------------------------------------------------------------------------------- randomised answers


def epsilon_randomized_response(truth_probability: float, num_values: int = 2) -> float:
    """ε = |ln(p(k − 1)/(1 − p))|: the truth with probability p, else one of the other k − 1 values, each as likely.

    At p = 1/k the answer does not depend on the truth and costs 0; below it the answer avoids the truth, which tells as
    much. p = 0 and p = 1 have no finite price. dp_accounting's `RandomizedResponseDpEvent` writes λ, the probability of
    a uniform value among all k: p = 1 − λ + λ/k.

    Args:
      truth_probability: p, of reporting one's own value.
      num_values: k, at least 2.

    Raises:
      ValueError: p is not in [0, 1], or k is not an integer of at least 2.
    """
    num_values = _count("num_values", num_values, 2)
    if not 0 <= truth_probability <= 1:
        raise ValueError(f"truth_probability must be between 0 and 1, got {truth_probability!r}")
    with decimal.localcontext(_EXACT):
        truth = _decimal(truth_probability)
        if truth in (0, 1):
            return math.inf
        odds = truth * (num_values - 1) / (1 - truth)
        return _up(abs(odds.ln()))  # 50 digits: no cancellation near p = 1/k


def truth_probability(epsilon: float, num_values: int = 2) -> float:
    """p = e^ε/(e^ε + k − 1), the largest whose `epsilon_randomized_response` is at most ε; at least 1/k.

    Raises:
      ValueError: ε is not positive and finite, k is not an integer of at least 2, or ε is so small that no float from
        1/k on is affordable.
    """
    epsilon, num_values = _positive("epsilon", epsilon), _count("num_values", num_values, 2)
    probability = 1 / (1 + (num_values - 1) * math.exp(-epsilon))
    while epsilon_randomized_response(probability, num_values) > epsilon:
        probability = math.nextafter(probability, 0)
        if not probability >= 1 / num_values:
            raise ValueError(f"epsilon {epsilon!r} is too small for {num_values} values")
    return probability


def one_bit_probability(value: float, epsilon: float) -> float:
    """The probability of a 1 in paper 004's report, (x(e^ε − 1) + e^ε + 1)/(2(e^ε + 1)), x clipped to [−1, 1].

    A 1 is reported as +B, a 0 as −B with B = (number of coordinates)·(e^ε + 1)/(e^ε − 1), which makes the report an
    unbiased estimate of the clipped gradient. Algorithms 1 (line 10) and 2 (line 12), ε here being their ε/k.
    Computed as ½(1 + x)·s + ½(1 − x)·(1 − s), s = e^ε/(e^ε + 1), with both s and 1 − s to the last digits.

    Raises:
      ValueError: x is NaN, or ε is not in [0, 745]: beyond, the smaller probability is no float, and 0 has no price.
    """
    x, flip = _clipped(value), _flip_odds(epsilon)
    if not flip > 0:
        raise ValueError(f"epsilon must be at most 745, where a report is not yet certain, got {epsilon!r}")
    return ((1 + x) / 2 + (1 - x) / 2 * flip) / (1 + flip)


def one_bit_epsilon(epsilon: float, values: Iterable[float]) -> float:
    """The largest log-ratio over all (coordinate value, other value, bit): what one report with this ε really costs.

    Which coordinate is reported is drawn without looking at the data, so its probability cancels; every entry of every
    user's gradient is one of the values. Where they reach −1 and 1 this is ε, to 1e-12 relative; nowhere more. Paper
    004, lemma 1, by enumeration instead of by bounds. Takes the square of the number of different values.

    Args:
      epsilon: of the report, at least 0 and finite.
      values: entries before they are clipped, at least one.

    Raises:
      ValueError: a value is NaN, there is none, or ε is out of range.
    """
    clipped = {_clipped(value) for value in values}
    if not clipped:
        raise ValueError("values must be at least one entry, got none")
    flip = _flip_odds(epsilon)
    pairs = itertools.permutations(clipped, 2)
    ratios = (_log_ratio(sign * x, sign * other, epsilon, flip) for x, other in pairs for sign in (1, -1))
    return max(ratios, default=0.0)


def _log_ratio(x: float, other: float, epsilon: float, flip: float) -> float:
    """ln P(1 given x)/P(1 given other) if it is positive, flip = e^−ε; P(0 given x) = P(1 given −x)."""
    if x <= other:
        return 0.0  # or less, which is never the largest
    if epsilon <= 700:  # by the difference, which is exact at tiny ε where two logarithms would cancel
        return math.log1p((x - other) / 2 * -math.expm1(-epsilon) / ((1 + other) / 2 + (1 - other) / 2 * flip))
    own = math.log((1 + x) / 2)
    return own + epsilon if other == -1 else own - math.log((1 + other) / 2)  # e^−ε is no float, or nothing beside x


# --------------------------------------------------------------------------------------------------- composition


def epsilon_basic(epsilon_round: float, num_rounds: int) -> float:
    """k·ε₀ of k rounds, in decimals: 50 rounds at 0.002 cost 0.1. The exact price at δ = 0.

    The rounds may be adaptive, and differ, as long as each is ε₀-differentially private for the same relation.

    Args:
      epsilon_round: ε₀, at least 0; inf costs inf.
      num_rounds: k, at least 0.

    Raises:
      ValueError: ε₀ is negative or NaN, or k is not an integer of at least 0.
    """
    epsilon_round, num_rounds = _epsilon_round(epsilon_round), _count("num_rounds", num_rounds, 0)
    if num_rounds == 0 or epsilon_round == 0:
        return 0.0
    if epsilon_round == math.inf:
        return math.inf
    with decimal.localcontext(_EXACT):
        return _up(_decimal(epsilon_round) * num_rounds)


def delta_optimal(epsilon_round: float, num_rounds: int, epsilon: float) -> float:
    """δ(ε) = Σ_l C(k, l)(e^{(k − l)ε₀} − e^{ε + lε₀})₊/(1 + e^{ε₀})^k of k adaptive rounds, for every real ε.

    It is attained by k randomised responses, so no smaller δ holds for all ε₀-private rounds. Kairouz, Oh &
    Viswanath 2015 state it at ε = (k − 2i)ε₀; Murtagh & Vadhan 2016 (theorem 1.5) for every ε. Evaluated as
    Σ_l Bin(l; k, 1/(1 + e^{ε₀}))·(1 − e^{ε − (k − 2l)ε₀})₊: no term is negative, nothing cancels. An upper bound, for
    ε up to 1,000 at most 1e-9 relative above the true value (2e-11 up to k = 1e6), or 1e-300.

    Args:
      epsilon_round, num_rounds: as `epsilon_basic`, k at most `ROUNDS_LIMIT`.
      epsilon: of all rounds together; 0 or less is allowed, δ(0) is the total variation.

    Raises:
      ValueError: as `epsilon_basic`, k is above the limit, or ε is NaN.
    """
    epsilon_round, num_rounds = _epsilon_round(epsilon_round), _rounds_of_sum(num_rounds)
    if not -math.inf <= epsilon <= math.inf:
        raise ValueError(f"epsilon must be a number, got {epsilon!r}")
    if epsilon >= epsilon_basic(epsilon_round, num_rounds):
        return 0.0
    if epsilon_round == math.inf:
        return 1.0
    return _delta_of_losses(float(epsilon), *_losses(epsilon_round, num_rounds))


def epsilon_optimal(epsilon_round: float, num_rounds: int, delta: float) -> float:
    """The smallest ε with `delta_optimal` at most δ; at most `epsilon_basic`, and that at δ = 0.

    `delta_optimal(epsilon_round, num_rounds, epsilon_optimal(epsilon_round, num_rounds, delta)) <= delta` in floats.
    For rounds of one ε₀; the exact price of unequal ones is #P-hard to compute (Murtagh & Vadhan 2016).

    Args:
      epsilon_round, num_rounds: as `delta_optimal`.
      delta: of all rounds together, in [0, 1).

    Raises:
      ValueError: as `delta_optimal`, or δ is out of range.
    """
    epsilon_round, delta = _epsilon_round(epsilon_round), _delta(delta)
    basic = epsilon_basic(epsilon_round, num_rounds)
    if delta == 0 or basic in (0.0, math.inf):
        return basic
    losses = _losses(epsilon_round, _rounds_of_sum(num_rounds))
    if _delta_of_losses(0.0, *losses) <= delta:
        return 0.0
    return _smallest(lambda epsilon: _delta_of_losses(epsilon, *losses) <= delta, 0.0, basic)


def share(total: float, count: int) -> float:
    """The largest float of which `count` make at most `total` in decimals: ε/k of a round, or δ/k.

    Raises:
      ValueError: the total is not positive and finite, the count is not an integer of at least 1, or nothing is left.
    """
    total, count = _positive("total", total), _count("count", count, 1)
    if not (each := _down(_quotient(total, count))) > 0:
        raise ValueError(f"{total!r} is too small to be shared among {count}")
    return each


def solve_epsilon_round(epsilon: float, num_rounds: int, delta: float = 0.0) -> float:
    """The largest ε₀ (to 1e-12 relative) at which k rounds cost at most ε at δ; at δ = 0 ε/k, by `epsilon_basic`.

    The price of the answer, by `epsilon_optimal`, is at most ε.

    Raises:
      ValueError: ε is not positive and finite, k is not an integer of at least 1 (up to `ROUNDS_LIMIT` at δ > 0), δ is
        not in [0, 1), or ε/k is below the smallest float.
    """
    target, num_rounds, delta = _positive("epsilon", epsilon), _count("num_rounds", num_rounds, 1), _delta(delta)
    affordable = share(target, num_rounds)
    if delta == 0:
        return affordable
    beyond = 2 * affordable
    while delta_optimal(beyond, num_rounds, target) <= delta:
        affordable, beyond = beyond, 2 * beyond
    beyond = _smallest(lambda e: delta_optimal(e, num_rounds, target) > delta, affordable, beyond)
    answer = max(affordable, math.nextafter(beyond, 0))
    while epsilon_optimal(answer, num_rounds, delta) > target:  # the sum may round differently at a neighbour of ε
        answer *= 1 - 1e-13
    return answer


def solve_num_rounds(epsilon: float, epsilon_round: float, delta: float = 0.0) -> int:
    """The largest k at which k rounds at ε₀ cost at most ε at δ; 0 where one is too dear. At δ = 0 by `epsilon_basic`.

    Raises:
      ValueError: ε or ε₀ is not positive and finite, δ is not in [0, 1), or, at δ > 0, k is above `ROUNDS_LIMIT`.
    """
    target, each, delta = _positive("epsilon", epsilon), _positive("epsilon_round", epsilon_round), _delta(delta)
    affordable = int(_quotient(target, each))
    if delta == 0:
        return affordable

    def passes(num_rounds: int) -> bool:
        if num_rounds > ROUNDS_LIMIT:
            raise ValueError(f"epsilon_round must be larger: {target!r} affords more than {ROUNDS_LIMIT} rounds")
        return epsilon_optimal(each, num_rounds, delta) <= target

    beyond = max(1, 2 * affordable)
    while passes(beyond):
        affordable, beyond = beyond, 2 * beyond
    while beyond - affordable > 1:
        middle = (affordable + beyond) // 2
        affordable, beyond = (middle, beyond) if passes(middle) else (affordable, middle)
    return affordable


# ------------------------------------------------------------------------------------------- paper 004's guarantee


def local_guarantee(
    epsilon: float,
    num_rounds: int,
    *,
    mechanism: str = "local DP, one-bit reports (paper 004)",
    delta: float = 0.0,
    released: tuple[str, ...] = ("item factors", "every report: a coordinate and a bit"),
    assumptions: tuple[str, ...] = (),
    not_covered: tuple[str, ...] = (),
    seeded: bool = False,
) -> Guarantee:
    """The guarantee of k one-bit reports of each user, each for ε/k: ε per user, pure, against the server itself.

    Proved: each report is ε/k-differentially private whatever the user's factors and the public state are (lemma 1),
    and k adaptive rounds add up (theorem 1). The loop of the printed algorithms runs k + 1 rounds; here it is k. The
    item factors, and their lift by a public projection, are post-processing of the reports.

    Args:
      epsilon: of all rounds of one user together.
      num_rounds: k, reports of one user: the number of rounds where everybody reports in each, 1 where users are split
        into groups without looking at data and each group reports once, with all of ε.
      delta: 0 for the pure price; above 0 the optimal composition of the k reports, which costs less.

    Raises:
      ValueError: ε is not positive and finite, k is not an integer of at least 1, δ is not in [0, 1).
    """
    loss = Pure(epsilon=_positive("epsilon", epsilon), num_rounds=num_rounds)
    return priced(
        mechanism=mechanism,
        losses=(loss,),
        delta=delta,
        unit="user",
        relation=USER_RELATION,
        released=released,
        trust_model=(
            "local: nobody but the user sees the user's ratings; "
            "the server, and whoever reads its traffic, sees every report and may be dishonest"
        ),
        status="proved",
        assumptions=(*_report_assumptions(loss.num_rounds), *assumptions),
        not_covered=("taking part, and how often: who sends reports is visible", *not_covered),
        seeded=seeded,
    )


USER_RELATION = "any change to all of one user's ratings, and to which items were rated; taking part is not hidden"


def _report_assumptions(num_rounds: int) -> tuple[str, ...]:
    times = "once" if num_rounds == 1 else f"exactly {num_rounds} times (k rounds, not the printed loop's k + 1)"
    return (
        f"each user reports {times}, whatever the data; a report that is sent again is the same report",
        "which coordinate is reported is drawn uniformly and without looking at data",
        "a user's factors never leave the device, except through the reports",
        "real randomness: the bit's probability is a float, the generator is secure and its seed secret",
    )


# ------------------------------------------------------------------------------------------------------- numerics


def _losses(epsilon_round: float, num_rounds: int):
    """The values and probabilities of the privacy loss of k randomised responses, where they are not below 1e-320."""
    return _cached_losses(epsilon_round, num_rounds) if num_rounds <= 10**5 else _new_losses(epsilon_round, num_rounds)


def _new_losses(epsilon_round: float, num_rounds: int):
    import numpy as np
    from scipy.stats import binom

    lie = math.exp(-epsilon_round) / (1 + math.exp(-epsilon_round))
    mean = num_rounds * lie
    reach = 39 * math.sqrt(mean) + 600  # Bernstein: what is beyond has less than 1e-310
    count = np.arange(max(0, math.floor(mean - reach)), min(num_rounds, math.ceil(mean + reach)) + 1, dtype=np.float64)
    slack = 1e-12 + 1e-14 * math.sqrt(num_rounds)  # of the binomial: 2e-13 measured at k = 1e5, 3e-11 at 1e9
    losses = np.nextafter((num_rounds - 2 * count) * epsilon_round, math.inf)
    return losses, binom.pmf(count, num_rounds, lie) * (1 + slack)


_cached_losses = functools.lru_cache(maxsize=16)(_new_losses)


def _delta_of_losses(epsilon: float, losses, probabilities) -> float:
    import numpy as np

    share = -np.expm1(np.minimum(epsilon - losses, 0.0))
    # what the sum leaves out or rounds to 0 must not make a price free
    return min(1.0, float(probabilities @ share) + 1e-300)


def _smallest(passes: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest float (or one within 1e-18 of `high`) that passes, where low does not and high does."""
    floor = 1e-18 * high
    while high > floor:
        middle = low + (high - low) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


_EXACT = decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


def _decimal(value: float) -> Decimal:
    return Decimal(repr(float(value)))


def _quotient(numerator: float, denominator: float) -> Decimal:
    with decimal.localcontext(_EXACT):
        return _decimal(numerator) / _decimal(denominator)


def _up(value: Decimal) -> float:
    """The smallest float whose name is not below a decimal."""
    nearest = float(value)
    return nearest if nearest == math.inf or _decimal(nearest) >= value else math.nextafter(nearest, math.inf)


def _down(value: Decimal) -> float:
    """The largest float whose name is not above a decimal."""
    nearest = float(value)
    return nearest if _decimal(nearest) <= value else math.nextafter(nearest, 0)


# --------------------------------------------------------------------------------------------------------- guards


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return float(value)


def _epsilon_round(value: float) -> float:
    if not value >= 0:
        raise ValueError(f"epsilon_round must be at least 0, got {value!r}")
    return float(value)


def _delta(value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f"delta must be at least 0 and below 1, where it would say nothing, got {value!r}")
    return float(value)


def _clipped(value: float) -> float:
    if not -math.inf <= value <= math.inf:
        raise ValueError(f"value must be a number, got {value!r}")
    return max(-1.0, min(1.0, float(value)))


def _flip_odds(epsilon: float) -> float:
    """e^−ε of a report."""
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be at least 0 and finite, got {epsilon!r}")
    return math.exp(-epsilon)


def _count(name: str, value: int, least: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool) or not count >= least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return count


def _rounds_of_sum(value: int) -> int:
    count = _count("num_rounds", value, 0)
    if not count <= ROUNDS_LIMIT:
        raise ValueError(f"num_rounds must be at most {ROUNDS_LIMIT} at a positive delta, got {count}")
    return count
