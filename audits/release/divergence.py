"""How far errors on trained-on ratings are from those on held-out ones: two divergences.

Every run tosses a coin for each of many random ratings: in, and trained on, or out, and held out.
Paper 002's (19) compares all errors of one run as if they were Gaussian (`kl`). It bounds nothing.

The other is a bound. A rating's error is post-processing of the release. So the divergence of its
law given that it was in, from that given that it was out, is at most that of the releases. A claim
that covers presence has a ceiling for it: Σ ρ of Gaussian steps, Σ ε tanh(ε/2) of pure rounds, each
round's own, since divergences of steps add up. The lower bound holds. Each run gives one error, so
trials are independent. Errors are put into two bins, chosen on other runs, which can only bring
laws closer. Exact intervals of both chances bound what is left.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.guarantee import Guarantee
from accounting.loss import Gaussian, Loss, Pure
from audits.finding import ALPHA, Finding, inconclusive, not_applicable
from audits.release import canaries, kl, shadows
from audits.release.canaries import Plan
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism

NAMES = ("divergence: as paper 002 has it", "divergence: lower bound")
NUM_CANARIES = 256
NUM_RUNS, LEAST = 600, 48
WORK = 1 << 27  # `shadows.work` times runs, about what ten seconds can do
DRAWS = 200  # of the bootstrap
HEAVY = 0.1  # share of the users that are the heaviest


class Event(NamedTuple):
    """{error ≤ cut}; of the error's size where `size`, and the contrary where `above`."""

    size: bool
    cut: float
    above: bool

    def holds(self, errors: np.ndarray) -> np.ndarray:
        return ((np.abs(errors) if self.size else errors) <= self.cut) != self.above


def choose_event(inside: np.ndarray, outside: np.ndarray) -> Event:
    """The event that tells errors inside from those outside best, and is likelier inside.

    Of errors and of their size, at 19 cuts each.
    """
    best, most = Event(True, 0.0, False), -math.inf
    for size in (True, False):
        pooled = np.concatenate([np.abs(x) if size else x for x in (inside, outside)])
        for cut in np.quantile(pooled, np.arange(1, 20) / 20):
            for above in (False, True):
                event = Event(size, float(cut), above)
                p, q = ((np.sum(event.holds(x)) + 1) / (len(x) + 2) for x in (inside, outside))
                if p > q and (divergence := binary(p, q)) > most:
                    best, most = event, divergence
    return best


def binary(p: float, q: float) -> float:
    """KL of two coins, in nats."""
    from scipy.special import rel_entr

    return float(rel_entr(p, q) + rel_entr(1 - p, 1 - q))


def lower_bound(event: Event, inside: np.ndarray, outside: np.ndarray, alpha: float) -> float:
    """A lower bound on KL(inside ‖ outside), right with 1 - α for independent errors.

    event: from other errors. Half of α is for either chance (Clopper & Pearson).
    """
    from scipy.special import betaincinv

    hits, total = int(np.sum(event.holds(inside))), len(inside)
    others, rest = int(np.sum(event.holds(outside))), len(outside)
    least = float(betaincinv(hits, total - hits + 1, alpha / 2)) if hits else 0.0
    most = float(betaincinv(others + 1, rest - others, 1 - alpha / 2)) if others < rest else 1.0
    return binary(least, most) if least > most else 0.0


def ceiling(losses: Sequence[Loss]) -> float | None:
    """The largest KL between two neighbours' releases, in nats; None where it is not known."""
    total = 0.0
    for loss in losses:
        match loss:
            case Gaussian():
                total += loss.num_steps / (2 * loss.noise_multiplier**2)
            case Pure():
                total += loss.epsilon * math.tanh(loss.epsilon / (2 * loss.num_rounds))
            case _:
                return None
    return total


@functools.lru_cache(maxsize=256)
def visible_divergence(
    num: int, limit: float, alpha: float, power: float = 0.95, sims: int = 40
) -> float:
    """The smallest KL of two shifted Gaussians whose bound exceeds the limit with this power.

    Infinite where none does. Simulated.

    num: how many errors; a third of them choose the event, half of them are in.
    """
    random = np.random.default_rng(0)
    pilot, rest = max(2, num // 6), max(2, num // 3)

    def share_seen(shift: float) -> float:
        times = 0
        for _ in range(sims):
            inside, outside = (
                random.normal(size=pilot + rest),
                shift + random.normal(size=pilot + rest),
            )
            event = choose_event(inside[:pilot], outside[:pilot])
            times += lower_bound(event, inside[pilot:], outside[pilot:], alpha) > limit
        return times / sims

    low, high = 0.0, 8.0
    if share_seen(high) < power:
        return math.inf
    for _ in range(7):
        middle = (low + high) / 2
        low, high = (low, middle) if share_seen(middle) >= power else (middle, high)
    return high**2 / 2


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    num_runs: int | None = None,
    num_canaries: int = NUM_CANARIES,
) -> list[Finding]:
    """Two findings: paper 002's number, against which no claim stands, and the bound.

    Predictions come from the release; where one side alone is released, the other's vector is
    fitted to what an insider knows (`shadows`). The start is the same in all runs: it is public.

    violated: the bound at `finding.ALPHA` is above the claim's ceiling.
    measured: the bound that is right with 95%.

    Args:
      num_runs: None: 600, or what about ten seconds can do, at least 48; as many where no ceiling
        is claimed.
      num_canaries: ratings that are in or out, at most a quarter of all.
    """
    guarantee = mechanism.guarantee(num_steps)
    if shadows.nothing_released(shadows.released(mechanism, data)):
        return [
            not_applicable(name, "a release tells nothing", "nothing is released") for name in NAMES
        ]
    choose_key, coin_key, run_key, start_key = jax.random.split(key, 4)
    # Where no ceiling is claimed, a few runs say what comes of it.
    most = LEAST if _limit(guarantee)[0] is None else NUM_RUNS
    num = num_runs or int(np.clip(WORK // shadows.work(ratings, num_steps), LEAST, most))
    random = np.random.default_rng(np.asarray(jax.random.bits(choose_key, (4,))))
    plan = canaries.plan(
        random,
        ratings,
        data,
        presence=True,
        side=shadows.one_sided(shadows.released(mechanism, data)),
        num_ratings=num_canaries,
        num_users=0,
        natural=True,
    )
    coins = np.asarray(jax.random.bernoulli(coin_key, 0.5, (num, plan.num)))
    errors = (
        shadows.observe(
            ((mechanism, num_steps),),
            ratings,
            data,
            plan,
            coins=coins,
            keys=jax.random.split(run_key, num),
            starts=jnp.repeat(start_key[None], num),
            stranger=np.zeros(num, bool),
        ).predictions[:, 0]
        - plan.value_in
    )
    replay = {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "pair": canaries.describe(ratings, plan),
        "data_sha256": ratings.sha256(),
        "step": num_steps,
    }
    if not np.isfinite(errors).all():
        why = "the descent diverged; lower learning_rate"
        return [inconclusive(name, "errors are numbers", why, replay=replay) for name in NAMES]
    picked = random.integers(0, plan.num, num)
    runs = np.arange(num)
    return [
        _paper(ratings, plan, errors[0], coins[0]),
        _bound(guarantee, errors[runs, picked], coins[runs, picked], replay),
    ]


def _paper(ratings: Ratings, plan: Plan, errors: np.ndarray, inside: np.ndarray) -> Finding:
    owners = ratings.user[plan.index]
    heavy = np.isin(owners, kl.top_users(ratings, max(1, round(HEAVY * ratings.num_users))))
    intervals: dict[str, kl.Interval | None] = {}
    for who, rows in (("everyone", np.ones(len(errors), bool)), ("heaviest users", heavy)):
        parts = [rows & inside, rows & ~inside]
        enough = min(np.sum(part) for part in parts) >= 2
        sides, users = ([x[part] for part in parts] for x in (errors, owners))
        intervals[who] = (
            kl.bootstrap(*sides, seed=0, draws=DRAWS, train_users=users[0], test_users=users[1])
            if enough
            else None
        )
    everyone = intervals["everyone"]
    return Finding(
        audit=NAMES[0],
        claim="none: two Gaussians fitted to errors bound nothing",
        verdict="not applicable",
        measured=None if everyone is None else everyone.value,
        details={
            "why": (
                "the divergence of a fit may lie above or below the true one, and no ε follows"
                " from it"
            ),
            "ratings": len(errors),
            "divergence": {
                who: None if interval is None else [interval.value, interval.lower, interval.upper]
                for who, interval in intervals.items()
            },
            "confidence": "bootstrapped over users, 95%, for this one model",
        },
    )


def _bound(
    guarantee: Guarantee, errors: np.ndarray, inside: np.ndarray, replay: dict[str, Any]
) -> Finding:
    """The finding on independent errors, of which the first third chooses the event."""
    first = len(errors) // 3
    pilot, rest = ((errors[part], inside[part]) for part in (slice(first), slice(first, None)))
    claim = (
        "the errors of a rating that was in diverge from those of one that was out by no more than"
        " the price allows"
    )
    if min(np.sum(side) for part in (pilot, rest) for side in (part[1], ~part[1])) < 2:
        return inconclusive(NAMES[1], claim, f"{len(errors)} runs are too few", replay=replay)
    event = choose_event(pilot[0][pilot[1]], pilot[0][~pilot[1]])
    sides = rest[0][rest[1]], rest[0][~rest[1]]
    measured, strict = (lower_bound(event, *sides, alpha) for alpha in (0.05, ALPHA))
    limit, why = _limit(guarantee)
    details: dict[str, Any] = {
        "runs": len(errors),
        "event": event._asdict(),
        "unit_of_measurement": "nats",
        "replay": replay,
    }
    verdict = "not applicable"
    if limit is None:
        details["why"] = why
    else:
        claim = (
            "the errors of a rating that was in diverge from those of one that was out by at most"
            f" {limit:.6g} nats"
        )
        least = visible_divergence(len(errors), limit, ALPHA)
        verdict = (
            "violated"
            if strict > limit
            else "consistent"
            if math.isfinite(least)
            else "inconclusive"
        )
        details |= {
            "alpha": ALPHA,
            "power": (
                f"errors that are Gaussian and {least:.3g} nats apart would be seen with"
                " probability 0.95"
                if math.isfinite(least)
                else f"none: {len(errors)} runs cannot show more than {limit:.4g} nats"
            ),
        }
        if verdict == "inconclusive":
            details["why"] = f"{len(errors)} runs cannot show more than {limit:.4g} nats"
    return Finding(
        audit=NAMES[1],
        claim=claim,
        verdict=verdict,
        measured=measured,
        claimed=limit,
        lower=measured,
        confidence=0.95,
        details=details,
    )


def _limit(guarantee: Guarantee) -> tuple[float | None, str]:
    """(the claim's ceiling, or why there is none)."""
    if guarantee.status == "none":
        return None, f"{guarantee.mechanism} (status none) states no price"
    if guarantee.unit == "rating value":
        return None, "a rating's value is covered, not whether it is there"
    limit = ceiling(guarantee.losses)
    return limit, "no ceiling is known for steps on samples" if limit is None else ""
