"""The central (ε, δ) of local reports that a trusted shuffler has mixed, beside the local price.

Feldman, McMillan & Talwar, "Hiding among the clones" (FOCS 2021, arXiv 2012.12803). n users send
one report each through the same ε₀-differentially private randomiser, and only the multiset of
reports is seen. Two data sets that differ in what one user has (replaced, not removed: n is public)
are then no easier to tell apart than

    P = (A + B, C − A + 1 − B) and Q = (A + 1 − B, C − A + B),
    C ~ Bin(n − 1, e^−ε₀), A ~ Bin(C, ½), B ~ Bernoulli(e^ε₀/(e^ε₀ + 1)):

each other report is, with probability e^−ε₀, a clone: one of the two reports in question, by a fair
coin. (The user's two laws are mixtures of two others with weights e^ε₀ : 1 and 1 : e^ε₀, and every
other law is at least e^−ε₀ times either.) These are upper bounds for every randomiser; for one in
particular less may hold. The tighter C of their later paper (arXiv 2208.04591) has an erratum and
is not used.

What must hold, and is no part of the computation:

- all of a report, with the coordinate that was drawn, is in the anonymous message and nowhere else;
- every user has the same randomiser, with the same ε₀;
- no time, size or address tells reports apart;
- n counts the honest reporters, because what a colluding one sent hides nobody.

Where users are split into k groups that report once, each shuffle has n/k users, and each user is
in one of them.
"""

import functools
import math

from accounting import guards
from accounting.loss import Approximate, times
from accounting.pure import share

REPORTS_LIMIT = 10**12
ROUNDS_TRIED = 2**16  # by the solver; the price there is within 1e-4 of its limit
BUCKETS = 4096  # values of C that each have a bound of their own; more of them share one


def epsilon_closed_form(epsilon_local: float, num_reports: int, delta: float) -> float:
    """ε = ln(1 + (e^ε₀ − 1)/(e^ε₀ + 1)·(8√(e^ε₀ ln(4/δ)/n) + 8e^ε₀/n)), theorem 3.1.

    An upper bound, and at most ε₀.

    Args:
      epsilon_local: ε₀ of one report.
      num_reports: n, honest users with one report each.
      delta: of the shuffled reports.

    Raises:
      ValueError: ε₀ is above ln(n/(16 ln(2/δ))), where the theorem says nothing; or as
        `epsilon_numerical`.
    """
    local = guards.positive("epsilon_local", epsilon_local)
    n = guards.count("num_reports", num_reports, 1, REPORTS_LIMIT)
    delta = guards.probability("delta", delta)
    if not local <= (limit := math.log(n / (16 * math.log(2 / delta)))):
        raise ValueError(
            f"epsilon_local must be at most ln(n/(16 ln(2/δ))) = {limit:.4g} "
            f"at n = {n} and δ = {delta!r} for the closed form, got {local!r}"
        )
    root = math.sqrt(math.exp(local) / n)  # no overflow: e^ε₀ < n
    amplified = math.tanh(local / 2) * (8 * root * math.sqrt(math.log(4 / delta)) + 8 * root * root)
    return min(local, math.log1p(amplified) * (1 + 1e-15))


def epsilon_numerical(epsilon_local: float, num_reports: int, delta: float) -> float:
    """The smallest ε (to 1e-9 relative) with `delta_numerical` at most δ.

    An upper bound, and never above ε₀.

    For large ε₀ or small n it is ε₀ or nearly so. 10 ms to 1 s (3 s at n = 1e12), the more clones
    the longer.

    Raises:
      ValueError: ε₀ is not positive and finite, n is not an integer of at least 1, or δ is not in
        (0, 1).
    """
    local = guards.positive("epsilon_local", epsilon_local)
    n = guards.count("num_reports", num_reports, 1, REPORTS_LIMIT)
    delta = guards.probability("delta", delta)
    if delta_numerical(local, n, 0.0) <= delta:
        return 0.0
    from scipy.optimize import brentq

    @functools.cache
    def excess(epsilon: float) -> float:
        return math.log(delta_numerical(local, n, epsilon) / delta)

    below = math.nextafter(local, 0)
    if excess(below) > 0:
        return local
    root = float(brentq(excess, 0.0, below, xtol=1e-300, rtol=1e-10, maxiter=500))
    while root < local and excess(root) > 0:
        root *= 1 + 1e-10
    return min(root, local)


def delta_numerical(epsilon_local: float, num_reports: int, epsilon: float) -> float:
    """δ of the shuffled reports at ε, the upper end of `delta_bounds`; 0 exactly from ε₀ on.

    Raises:
      ValueError: as `epsilon_numerical`, or ε is negative or NaN.
    """
    return delta_bounds(epsilon_local, num_reports, epsilon)[1]


def delta_bounds(epsilon_local: float, num_reports: int, epsilon: float) -> tuple[float, float]:
    """(lower, upper) bounds of the divergence δ(ε) between this module's P and Q, either way round.

    Given C = c the likelihood ratio grows with the first count, and the best event is "more than m
    of c + 1", with m = ⌊½(c + 1)(1 + tanh(ε/2)/tanh(ε₀/2))⌋ and

        δ_c = (e^ε₀ − e^ε)/(e^ε₀ + 1)·P(Bin(c, ½) = m) − (e^ε − 1)·P(Bin(c, ½) > m).

    δ_c falls with c, since a clone more is a fair coin more. So c that is cut off below counts with
    δ_0, above with the last δ_c, and values of c that share a bucket with the first (upper) or the
    last (lower) of them. The lower bound is one of P against Q, not of what a given randomiser
    leaks.

    Raises:
      ValueError: as `delta_numerical`.
    """
    local = guards.positive("epsilon_local", epsilon_local)
    n = guards.count("num_reports", num_reports, 1, REPORTS_LIMIT)
    epsilon = guards.from_zero("epsilon", epsilon)
    if epsilon >= local:
        return 0.0, 0.0
    firsts, lasts, masses = _clones(local, n)
    slack = 1e-12 + 4e-15 * math.sqrt(n)  # of the binomials, and of a sum: 4e-13 measured at 1e6
    upper = float(masses @ _delta_given(firsts, epsilon, local, slack)) * (1 + slack)
    lower = float(masses @ _delta_given(lasts, epsilon, local, -slack)) * (1 - slack)
    return max(0.0, lower), math.nextafter(
        min(1.0, upper), 1.0
    )  # one float up: 0 would claim a pure guarantee


def epsilon_shuffled(epsilon: float, num_rounds: int, *, num_reports: int, delta: float) -> float:
    """k·ε_r: the central ε at δ of k rounds of local reports at ε/k each.

    `shuffled_guarantee` states it.

    Each round is (ε_r, δ/k), ε_r = `epsilon_numerical(ε/k, n, δ/k)`; adaptive rounds add up by
    basic composition. Once a report has others to hide among, ε/k ≤ ln n, the price falls in k
    towards a positive limit (tested from 200 reports on): weaker reports hide one another better.
    Before that, sharing δ may cost a little more: at δ = 0.1 two rounds of ε = 17 cost 16.8952
    among 200 reports, and one costs 16.8946. The price is never above ε, but for a rounding.

    Args:
      epsilon: the local ε of all rounds of one user together.
      num_rounds: k, reports of one user; 1 where users are split into groups that report once,
        which is parallel.
      num_reports: n, the least number of honest reports in each shuffle; for k groups that report
        once, users/k.
      delta: of all rounds together, in (0, 1).

    Raises:
      ValueError: an argument is out of range.
    """
    return times(shuffled_loss(epsilon, num_rounds, num_reports, delta).epsilon, num_rounds)


def solve_shuffled_rounds(
    epsilon: float, delta: float, *, epsilon_local: float, num_reports: int
) -> int:
    """The smallest k at which k shuffled rounds of reports at ε₀/k each cost at most ε at δ.

    The price of the answer, by `epsilon_shuffled`, is at most ε, and that of one round fewer is
    above it. Where the price falls in k, as it does from ε₀/k ≤ ln n on, no smaller number will do.

    Args:
      epsilon, delta: the central target; ε > 0, 0 < δ < 1.
      epsilon_local: ε₀, of all rounds of one user together.
      num_reports: n, honest reports in each shuffle.

    Raises:
      ValueError: a number is out of range, or `ROUNDS_TRIED` rounds cost more; beyond, the price
        hardly falls.
    """
    target = guards.positive("epsilon", epsilon)

    def price(num_rounds: int) -> float:
        return epsilon_shuffled(epsilon_local, num_rounds, num_reports=num_reports, delta=delta)

    few, enough = 0, 1
    while (least := price(enough)) > target:
        if enough == ROUNDS_TRIED:
            raise ValueError(
                f"epsilon must be larger: {ROUNDS_TRIED} rounds still cost {least:.6g}, and more"
                f" hardly less, got {epsilon!r}"
            )
        few, enough = enough, min(2 * enough, ROUNDS_TRIED)
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if price(middle) <= target else (middle, enough)
    return enough


def solve_shuffled_delta(
    epsilon: float, *, epsilon_local: float, num_rounds: int, num_reports: int
) -> float:
    """The smallest δ (to 1e-6 relative) at which k shuffled rounds at ε₀/k each cost at most ε.

    The price of the answer, by `epsilon_shuffled`, is at most ε. It is 0 where ε is at least ε₀,
    since there the local price says as much without any δ; else at least k·1e-300, since less is
    nothing that floats can share.

    Raises:
      ValueError: a number is out of range, or no δ below 1 will do.
    """
    target, local = (
        guards.positive("epsilon", epsilon),
        guards.positive("epsilon_local", epsilon_local),
    )
    k, n = (
        guards.count("num_rounds", num_rounds, 1),
        guards.count("num_reports", num_reports, 1, REPORTS_LIMIT),
    )
    if target >= local:
        return 0.0
    each = max(
        delta_numerical(math.nextafter(local / k, math.inf), n, target / k), 1e-300
    )  # less is hard to share
    delta, more = times(each, k), 1e-12
    while (
        delta < 1 and epsilon_shuffled(local, k, num_reports=n, delta=delta) > target
    ):  # by roundings of the search
        delta, more = math.nextafter(delta * (1 + more), 1.0), 2 * more
    if not delta < 1:
        raise ValueError(f"epsilon must be larger: no δ below 1 will do, got {epsilon!r}")
    return delta


# --------------------------------------------------------------------------------------------------


def shuffled_loss(epsilon: float, num_rounds: int, num_reports: int, delta: float) -> Approximate:
    """What k shuffled rounds spend, each at ε/k and δ/k."""
    total, each = (
        guards.positive("epsilon", epsilon),
        share(guards.probability("delta", delta), num_rounds),
    )
    amplified = epsilon_numerical(math.nextafter(total / num_rounds, math.inf), num_reports, each)
    return Approximate(epsilon=amplified, delta=each, num_steps=num_rounds)


@functools.lru_cache(maxsize=32)
def _clones(local: float, n: int):
    """Buckets of C ~ Bin(n − 1, e^−ε₀): their first and last values and their masses."""
    import numpy as np
    from scipy.stats import binom

    share = math.exp(-local)
    mean = (n - 1) * share
    reach = 14 * math.sqrt(mean) + 100  # Chernoff: less than 3e-43 is below
    low, high = max(0, math.floor(mean - reach)), min(n - 1, math.ceil(mean + reach))
    inner = low + np.arange(BUCKETS + 1) * (high - low) // BUCKETS
    edges = np.unique(np.concatenate(([0], inner, [n])))
    firsts, lasts = edges[:-1].astype(float), edges[1:].astype(float) - 1
    return firsts, lasts, binom.cdf(lasts, n - 1, share) - binom.cdf(firsts - 1, n - 1, share)


def _delta_given(clones, epsilon: float, local: float, slack: float):
    """δ_c for an array of c: a slack above it, or below it where the slack is negative."""
    import numpy as np
    from scipy.stats import binom

    # 1 − ½(1 + tanh(ε/2)/tanh(ε₀/2)) without its cancellation at large ε
    rest = (
        math.exp(-epsilon)
        * math.expm1(epsilon - local)
        / math.expm1(-local)
        / (1 + math.exp(-epsilon))
    )
    cut = clones + 1 - np.maximum(np.ceil((clones + 1) * rest), 1)
    at = -math.expm1(epsilon - local) / (1 + math.exp(-local)) * binom.pmf(cut, clones, 0.5)
    beyond = math.expm1(min(epsilon, 700.0)) * binom.sf(cut, clones, 0.5)
    return np.maximum(at * (1 + slack) - beyond * (1 - slack), 0.0)
