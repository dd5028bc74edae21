"""A claim held to guesses: its verdict, a lower bound on ε, and what would have been seen.

Two bounds say how unlikely right guesses are: the theorem of `guesses`, of one (ε, δ), and that of
`trade_off`, of the claim's whole curve. Both bound the same probability, so the smaller one counts.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from accounting import gaussian, price
from accounting.guarantee import Guarantee
from accounting.loss import Approximate
from audits.finding import ALPHA, Finding
from audits.release import guesses, trade_off
from audits.release.guesses import Guesses, Tried
from audits.release.trade_off import Curve


class Claim(NamedTuple):
    """What is claimed of every canary.

    Attributes:
      epsilon, delta: at a δ that does not blunt the theorem.
      curve: all that the losses allow; None where no more is known than one (ε, δ).
      gaussian: whether the losses are those of Gaussian noise alone.
    """

    epsilon: float
    delta: float
    curve: Curve | None = None
    gaussian: bool = False


def claim_at(guarantee: Guarantee, num: int) -> Claim:
    """The claim of a guarantee, for m canaries.

    The theorem lets i guesses be right by chance with probability 2mδ/i. There is one δ, 1e-9, for
    up to 2,500 canaries, since some prices take seconds. A pure guarantee has its own (ε, δ).
    """
    losses, unit = guarantee.losses, guarantee.unit
    if guarantee.delta == 0:
        return Claim(guarantee.epsilon, 0.0)
    delta = min(guarantee.delta, ALPHA / (40 * max(num, 2500)))
    if any(isinstance(loss, Approximate) for loss in losses):
        try:
            return Claim(price.epsilon(losses, delta, unit=unit), delta)
        except ValueError:  # of some losses no more than their δ is known
            return Claim(guarantee.epsilon, guarantee.delta)
    return Claim(
        price.epsilon(losses, delta, unit=unit),
        delta,
        trade_off.of_losses(losses, guarantee.delta, unit=unit),
        price.rho(losses) is not None,
    )


def p_value(guesses_made: Guesses, claim: Claim) -> float:
    """An upper bound on P(so many are right) under the claim, for r fixed before the run."""
    found = guesses.p_value(guesses_made, claim.epsilon, claim.delta)
    if claim.curve is None:
        return found
    return min(found, trade_off.p_value(guesses_made, claim.curve))


def tails_of_runs(runs: int, canaries: int, made: int, claim: Claim) -> np.ndarray:
    """Upper bounds on P(at least v guesses are right) over independent runs, at v = 0, 1, ...

    In every run so many canaries are guessed about, of m. At least k are told rightly with
    probability at most t_k, by `p_value`. So the sum over the runs is no more likely to be large
    than that of independent numbers with these tails.

    Returns: float64[runs·made + 1].
    """
    tails = [p_value(Guesses(canaries, made, right), claim) for right in range(made + 1)]
    each = -np.diff(np.minimum.accumulate([1.0, *tails[1:], 0.0]))
    total = np.ones(1)
    for _ in range(runs):
        total = np.convolve(total, each)
    return np.minimum(1.0, np.cumsum(total[::-1])[::-1])


def least_right(num: int, made: int, claim: Claim, alpha: float) -> int | None:
    """The fewest right guesses that refute the claim; None where not even all of them would."""

    def refuted(right: int) -> bool:
        found = Guesses(num, made, right)
        if guesses.p_value(found, claim.epsilon, claim.delta) <= alpha:
            return True
        return claim.curve is not None and not trade_off.possible(found, claim.curve, alpha)

    if not refuted(made):
        return None
    low, high = -1, made  # at high it is refuted
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high


def best_share(num: int, claim: Claim, alpha: float, *, runs: int = 1) -> float:
    """The share of m canaries to guess "in", and as large a one "out", whatever is seen of them.

    Where scores are normal, of unit variance, μ apart: the share that lets the smallest μ refute
    the claim, as often as not. Without a curve all are guessed: randomised response tells every
    coin as well as any other.

    Args:
      runs: independent ones, each of so many canaries, that are counted run by run.
    """
    if claim.curve is None:
        return 0.5
    shares = [share for share in guesses.SHARES if int(share * num) > 0]

    def least_distance(share: float) -> float:
        made = 2 * int(share * num)
        least = (
            least_right(num, made, claim, alpha)
            if runs == 1
            else _least_right_of_runs(tails_of_runs(runs, num, made, claim), alpha)
        )
        return math.inf if least is None else _distance(share, (least + 0.5) / (runs * made))

    return min(shares, key=lambda share: (least_distance(share), -share), default=0.5)


def _least_right_of_runs(tails: np.ndarray, alpha: float) -> int | None:
    """The fewest right guesses that refute a claim with these `tails_of_runs`; None for none."""
    return int(np.argmax(tails <= alpha)) if tails[-1] <= alpha else None


def _distance(share: float, right: float) -> float:
    """How far apart scores must be for this share of the surest guesses to be right."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    def missing(mu: float) -> float:
        def seen(at: float) -> float:
            return (norm.sf(at - mu) + norm.sf(at)) / 2

        at = brentq(lambda at: seen(at) - share, -40.0, mu + 40.0)
        return float(norm.sf(at - mu) / 2 / share) - right

    most = 30.0
    return float(brentq(missing, 0.0, most)) if missing(most) > 0 else math.inf


def epsilon_seen(num: int, made: int, claim: Claim, alpha: float, power: float = 0.95) -> float:
    """The smallest ε whose best guesses refute the claim with this power; infinite if none."""
    from scipy.optimize import brentq

    least = least_right(num, made, claim, alpha)
    if least is None:
        return math.inf

    def missing(at: float) -> float:
        return guesses.p_right(least, made, at) - power

    most = guesses.MOST
    return float(brentq(missing, 0.0, most)) if missing(most) > 0 > missing(0.0) else math.inf


def _epsilon_seen_by_run(tails: np.ndarray, alpha: float, power: float = 0.95) -> float:
    """As `epsilon_seen`, of guesses run by run with these `tails_of_runs`."""
    from scipy.optimize import brentq

    least, made = _least_right_of_runs(tails, alpha), len(tails) - 1
    if least is None:
        return math.inf

    def missing(at: float) -> float:
        return guesses.p_right(least, made, at) - power

    return float(brentq(missing, 0.0, guesses.MOST)) if missing(guesses.MOST) > 0 else math.inf


def epsilon_bound(found: Guesses, claim: Claim, alpha: float) -> float:
    """A lower bound on ε at the claim's δ, right with 1 - α; 0 where nothing is refuted.

    Of a Gaussian claim: no Gaussian noise with a smaller ε there lets so many be right.
    """
    bound = guesses.epsilon_bound(found, claim.delta, alpha)
    if claim.gaussian and (mu := trade_off.mu_bound(found, alpha)) > 0:
        bound = max(bound, gaussian.epsilon_exact(mu * mu / 2, claim.delta))
    return bound


def judge(
    name: str,
    words: str,
    tests: dict[str, Tried],
    claim: Claim,
    *,
    details: dict[str, Any],
    replay: dict[str, Any],
    weak: str | None = None,
) -> Finding:
    """The finding of some tests of one claim, which share α.

    measured: the largest `epsilon_bound`, right with 95%.

    Args:
      words: the claim, for a reader.
      weak: why a claim that is not refuted stays open; None where nothing speaks against the
        attack.
    """
    shares = len(tests) + sum(test.by_run is not None for test in tests.values())
    alpha = ALPHA / shares
    p_values = {what: p_value(test.sharpest, claim) for what, test in tests.items()}
    seen = [
        epsilon_seen(t.sharpest.canaries, t.sharpest.made, claim, alpha) for t in tests.values()
    ]
    tails: dict[tuple[int, ...], np.ndarray] = {}
    for what, test in tests.items():
        if test.by_run is not None:
            *sizes, right = test.by_run
            if (these := tuple(sizes)) not in tails:
                tails[these] = tails_of_runs(*these, claim)
                seen.append(_epsilon_seen_by_run(tails[these], alpha))
            p_values[f"{what}, run by run"] = float(tails[these][right])
    bounds = [epsilon_bound(test.widest, claim, 0.05 / len(tests)) for test in tests.values()]
    broken = min(p_values.values()) <= alpha
    details = details | {
        "alpha": ALPHA,
        "guesses": {
            what: {kind: g._asdict() for kind, g in test._asdict().items() if g is not None}
            for what, test in tests.items()
        },
        "p_values": p_values,
        "power": (
            f"guesses that are right as often as ε = {min(seen):.4g} allows would be seen with"
            " probability 0.95; how far this attack is from the best is not known"
            if math.isfinite(min(seen))
            else "none: were all guesses right, the claim would still stand"
        ),
        "replay": replay,
    }
    if not math.isfinite(min(seen)):
        made = max(test.sharpest.made for test in tests.values())
        weak = weak or (
            f"{made} guesses are too few to refute ε = {claim.epsilon:.4g} at δ = {claim.delta:g}"
        )
    return Finding(
        audit=name,
        claim=words,
        measured=max(bounds),
        claimed=claim.epsilon,
        lower=max(bounds),
        confidence=0.95,
        verdict="violated" if broken else "consistent" if weak is None else "inconclusive",
        details=details if weak is None or broken else {"why": weak} | details,
    )
