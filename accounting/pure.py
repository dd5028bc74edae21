"""What k adaptive rounds of pure differential privacy cost, and what a budget leaves for each.

k rounds at ε₀ add up to k·ε₀, and no smaller ε holds at δ = 0. At δ > 0 a smaller one does. The
least that holds for every choice of pure mechanisms is that of k randomised responses, and is known
exactly (Kairouz, Oh & Viswanath 2015, theorem 3.3; Murtagh & Vadhan 2016). Every price errs on the
upper side, every inverse on the safe one.
"""

import decimal
import functools
import math

from accounting import guards
from accounting.decimals import EXACT, float_down, float_up, named, quotient
from accounting.trade_off import bisect

ROUNDS_LIMIT = 10**9  # of the exact sum at δ > 0, which takes seconds and some 100 MB there


def epsilon_basic(epsilon_round: float, num_rounds: int) -> float:
    """k·ε₀ of k rounds, in decimals: 50 rounds at 0.002 cost 0.1. The exact price at δ = 0.

    The rounds may be adaptive, and differ, as long as each is ε₀-differentially private for the
    same relation.

    Args:
      epsilon_round: ε₀, at least 0; inf costs inf.
      num_rounds: k, at least 0.

    Raises:
      ValueError: ε₀ is negative or NaN, or k is not an integer of at least 0.
    """
    epsilon_round = guards.from_zero("epsilon_round", epsilon_round)
    num_rounds = guards.count("num_rounds", num_rounds, 0)
    if num_rounds == 0 or epsilon_round == 0:
        return 0.0
    if epsilon_round == math.inf:
        return math.inf
    with decimal.localcontext(EXACT):
        return float_up(named(epsilon_round) * num_rounds)


def delta_optimal(epsilon_round: float, num_rounds: int, epsilon: float) -> float:
    """δ(ε) = Σ_l C(k, l)(e^{(k − l)ε₀} − e^{ε + lε₀})₊/(1 + e^{ε₀})^k of k adaptive rounds.

    It holds for every real ε.

    It is attained by k randomised responses, so no smaller δ holds for all ε₀-private rounds.
    Kairouz, Oh & Viswanath 2015 state it at ε = (k − 2i)ε₀; Murtagh & Vadhan 2016 (theorem 1.5) for
    every ε. Evaluated as Σ_l Bin(l; k, 1/(1 + e^{ε₀}))·(1 − e^{ε − (k − 2l)ε₀})₊: no term is
    negative, nothing cancels. An upper bound, for ε up to 1,000 at most 1e-9 relative above the
    true value (2e-11 up to k = 1e6), or 1e-300.

    Args:
      epsilon_round, num_rounds: as `epsilon_basic`, k at most `ROUNDS_LIMIT`.
      epsilon: of all rounds together; 0 or less is allowed, δ(0) is the total variation.

    Raises:
      ValueError: as `epsilon_basic`, k is above the limit, or ε is NaN.
    """
    epsilon_round, num_rounds = (
        guards.from_zero("epsilon_round", epsilon_round),
        _rounds_of_sum(num_rounds),
    )
    if math.isnan(guards.number("epsilon", epsilon)):
        raise ValueError(f"epsilon must be a number, got {epsilon!r}")
    if epsilon >= epsilon_basic(epsilon_round, num_rounds):
        return 0.0
    if epsilon_round == math.inf:
        return 1.0
    return _delta_of_losses(float(epsilon), *_losses(epsilon_round, num_rounds))


def epsilon_optimal(epsilon_round: float, num_rounds: int, delta: float) -> float:
    """The smallest ε with `delta_optimal` at most δ; at most `epsilon_basic`, and that at δ = 0.

    `delta_optimal(epsilon_round, num_rounds, epsilon_optimal(epsilon_round, num_rounds, delta)) <=
    delta` in floats. For rounds of one ε₀; the exact price of unequal ones is #P-hard to compute
    (Murtagh & Vadhan 2016).

    Args:
      epsilon_round, num_rounds: as `delta_optimal`.
      delta: of all rounds together, in [0, 1).

    Raises:
      ValueError: as `delta_optimal`, or δ is out of range.
    """
    epsilon_round, delta = (
        guards.from_zero("epsilon_round", epsilon_round),
        guards.delta("delta", delta),
    )
    basic = epsilon_basic(epsilon_round, num_rounds)
    if delta == 0 or basic in (0.0, math.inf):
        return basic
    losses = _losses(epsilon_round, _rounds_of_sum(num_rounds))
    if _delta_of_losses(0.0, *losses) <= delta:
        return 0.0
    return bisect(lambda epsilon: _delta_of_losses(epsilon, *losses) <= delta, 0.0, basic)[1]


def share(total: float, count: int) -> float:
    """The largest float of which `count` make at most `total` in decimals: ε/k of a round, or δ/k.

    Raises:
      ValueError: the total is not positive and finite, the count is not an integer of at least 1,
        or nothing is left.
    """
    total, count = guards.positive("total", total), guards.count("count", count, 1)
    if not (each := float_down(quotient(total, count))) > 0:
        raise ValueError(f"{total!r} is too small to be shared among {count}")
    return each


def solve_epsilon_round(epsilon: float, num_rounds: int, delta: float = 0.0) -> float:
    """The largest ε₀ (to 1e-12 relative) at which k rounds cost at most ε at δ.

    At δ = 0 it is ε/k, by `epsilon_basic`.

    The price of the answer, by `epsilon_optimal`, is at most ε.

    Raises:
      ValueError: ε is not positive and finite, k is not an integer of at least 1 (up to
        `ROUNDS_LIMIT` at δ > 0), δ is not in [0, 1), or ε/k is below the smallest float.
    """
    target = guards.positive("epsilon", epsilon)
    num_rounds = guards.count("num_rounds", num_rounds, 1)
    delta = guards.delta("delta", delta)
    affordable = share(target, num_rounds)
    if delta == 0:
        return affordable
    beyond = 2 * affordable
    while delta_optimal(beyond, num_rounds, target) <= delta:
        affordable, beyond = beyond, 2 * beyond
    beyond = bisect(lambda e: delta_optimal(e, num_rounds, target) > delta, affordable, beyond)[1]
    answer = max(affordable, math.nextafter(beyond, 0))
    while (
        epsilon_optimal(answer, num_rounds, delta) > target
    ):  # the sum may round differently at a neighbour of ε
        answer *= 1 - 1e-13
    return answer


def solve_num_rounds(epsilon: float, epsilon_round: float, delta: float = 0.0) -> int:
    """The largest k at which k rounds at ε₀ cost at most ε at δ; 0 where one is too dear.

    At δ = 0 the price is `epsilon_basic`.

    Raises:
      ValueError: ε or ε₀ is not positive and finite, δ is not in [0, 1), or, at δ > 0, k is above
        `ROUNDS_LIMIT`.
    """
    target = guards.positive("epsilon", epsilon)
    each = guards.positive("epsilon_round", epsilon_round)
    delta = guards.delta("delta", delta)
    affordable = int(quotient(target, each))
    if delta == 0:
        return affordable

    def passes(num_rounds: int) -> bool:
        if num_rounds > ROUNDS_LIMIT:
            raise ValueError(
                f"epsilon_round must be larger: {target!r} affords more than {ROUNDS_LIMIT} rounds"
            )
        return epsilon_optimal(each, num_rounds, delta) <= target

    beyond = max(1, 2 * affordable)
    while passes(beyond):
        affordable, beyond = beyond, 2 * beyond
    while beyond - affordable > 1:
        middle = (affordable + beyond) // 2
        affordable, beyond = (middle, beyond) if passes(middle) else (affordable, middle)
    return affordable


# --------------------------------------------------------------------------------------------------


def _losses(epsilon_round: float, num_rounds: int):
    """Values and probabilities of k randomised responses' privacy loss, where not below 1e-320."""
    return (
        _cached_losses(epsilon_round, num_rounds)
        if num_rounds <= 10**5
        else _new_losses(epsilon_round, num_rounds)
    )


def _new_losses(epsilon_round: float, num_rounds: int):
    import numpy as np
    from scipy.stats import binom

    lie = math.exp(-epsilon_round) / (1 + math.exp(-epsilon_round))
    mean = num_rounds * lie
    reach = 39 * math.sqrt(mean) + 600  # Bernstein: what is beyond has less than 1e-310
    count = np.arange(
        max(0, math.floor(mean - reach)),
        min(num_rounds, math.ceil(mean + reach)) + 1,
        dtype=np.float64,
    )
    slack = 1e-12 + 1e-14 * math.sqrt(
        num_rounds
    )  # of the binomial: 2e-13 measured at k = 1e5, 3e-11 at 1e9
    losses = np.nextafter((num_rounds - 2 * count) * epsilon_round, math.inf)
    return losses, binom.pmf(count, num_rounds, lie) * (1 + slack)


_cached_losses = functools.lru_cache(maxsize=16)(_new_losses)


def _delta_of_losses(epsilon: float, losses, probabilities) -> float:
    import numpy as np

    share = -np.expm1(np.minimum(epsilon - losses, 0.0))
    # what the sum leaves out or rounds to 0 must not make a price free
    return min(1.0, float(probabilities @ share) + 1e-300)


def _rounds_of_sum(value: int) -> int:
    count = guards.count("num_rounds", value, 0)
    if not count <= ROUNDS_LIMIT:
        raise ValueError(
            f"num_rounds must be at most {ROUNDS_LIMIT} at a positive delta, got {count}"
        )
    return count


def divergence(epsilon: float, order: float) -> float:
    """ln(cosh((α − ½)ε)/cosh(ε/2))/(α − 1): Rényi's divergence of randomised response at order α.

    The answers have odds e^ε and e^−ε.
    """
    if order * epsilon > 1:  # ln(e^(αε) + e^((1−α)ε)) − ln(1 + e^ε), without overflow
        large = (
            epsilon * (order - 1)
            + math.log1p(math.exp((1 - 2 * order) * epsilon))
            - math.log1p(math.exp(-epsilon))
        )
        return min(epsilon, large / (order - 1))
    half = epsilon / 2
    return math.log1p(
        2 * math.sinh(order * half) * math.sinh((order - 1) * half) / math.cosh(half)
    ) / (order - 1)
