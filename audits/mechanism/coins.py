"""Who is sampled, against the price: each record by itself, at the priced rate, anew in every step.

A price for secret Poisson samples trusts three things about the coins, which nobody may see. They
depend on no rating. No record takes part more often than it pays for. One record's part says
nothing about another's, or about another step's. Samples of a fixed size, or taken from a shuffled
list, have the right rate and fail the last.

The audit uses the mechanism's `query` alone: who is in a sample shows in the statistics
(`coins_drawn`). Where these are whole numbers, it follows `REMOVED` ratings; else it follows all.
Its tests are exact, at `finding.ALPHA`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.loss import SubsampledGaussian
from audits import neighbours
from audits.finding import ALPHA, Finding, Verdict, inconclusive, not_applicable
from audits.mechanism import coins_drawn
from audits.mechanism.enumeration_draws import binomial_p_value, visible_share
from audits.mechanism.sampler import critical_distance
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout, poisson
from dpmf_jax.protocol import Mechanism, State

NAMES = ("coins: both worlds", "coins: rate", "coins: independence", "coins: steps")
CLAIMS = (
    "who is in a sample does not depend on the ratings, a record's own among them",
    "no record is in a sample more often than is priced",
    "who is in a sample is drawn for each record by itself",
    "who is in a sample is drawn anew in every step",
)
SAMPLES, RECORDS = 2048, 1 << 26  # samples drawn; (sample, record) pairs, at most
STEPS = 16  # of a run, at most
COINS = 64  # coins tried in both worlds
NEAR = 1e-3  # of Δ: how far ratings lie from their prediction, where there is a derivative
# where there is none: ratings that are removed, queries, and slots that these read, at most
REMOVED, QUERIES, READ = 64, 1 << 15, 1 << 30


class Coins(NamedTuple):
    """The samples that were drawn.

    Attributes:
      in_sample: bool[runs, steps, records], records in the order of (user, item).
      by_item: the order of the records by item.
    """

    in_sample: np.ndarray
    by_item: np.ndarray


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    num_neighbours: int = 6,
    num_samples: int = SAMPLES,
) -> list[Finding]:
    """Four findings where samples are priced: both worlds, rate, independence of records, of steps.

    The first compares, exactly, the samples that each of `COINS` coins draws from the data set and
    from its neighbours. The others draw `num_samples` samples at the first state. A rate below the
    priced one costs nobody privacy and is no violation; the laws of independence are then unknown,
    and the last two findings inconclusive.
    """
    guarantee = mechanism.guarantee(num_steps)
    rates = {
        loss.sampling_rate for loss in guarantee.losses if isinstance(loss, SubsampledGaussian)
    }
    if not rates:
        why = f"{guarantee.mechanism} (status {guarantee.status}) is priced for no samples"
        return [not_applicable(name, claim, why) for name, claim in zip(NAMES, CLAIMS, strict=True)]
    if len(rates) > 1:
        why = "steps have several sampling rates"
        return [inconclusive(name, claim, why) for name, claim in zip(NAMES, CLAIMS, strict=True)]
    (rate,) = rates
    choose_key, init_key, world_key, draw_key, some_key = jax.random.split(key, 5)
    replay = {"key": np.asarray(jax.random.key_data(key)).tolist(), "data_sha256": ratings.sha256()}
    state = protocol.begin(mechanism, init_key, data)
    tried = neighbours.choose(
        choose_key,
        ratings,
        data,
        unit=guarantee.unit,
        num=num_neighbours,
        change=guarantee.largest_change,
    )
    first = _both_worlds(mechanism, state, data, ratings, tried, world_key, replay)
    whole = coins_drawn.are_whole(mechanism, state, data)
    order = np.lexsort((ratings.item, ratings.user))
    low, high = ratings.rating_range
    if whole:
        order = _some(np.random.default_rng(np.asarray(jax.random.bits(some_key, (4,)))), ratings)
        away = (high - low) / 4
        most = min(QUERIES, READ // max(1, poisson.num_slots(data))) // max(1, len(order))
    else:
        away, most = NEAR * min(1.0, guarantee.sensitivity or 1.0), RECORDS // max(1, len(order))
    user, item = ratings.user[order], ratings.item[order]
    address = layout.locate(data, user, item)
    values = coins_drawn.values_near_prediction(state, user, item, away, (low + high) / 2)
    if whole:  # a rating that is what is predicted would never be seen
        own = ratings.value[order]
        values = jnp.where(jnp.abs(own - (values - away)) < away / 2, values, own)
    steps = min(num_steps, STEPS)
    runs = max(2, min(num_samples, most) // steps)
    # Where there is a derivative, ratings lie near their prediction, so that they move what they
    # are in; a rate may look at how far they are from it, so the ratings themselves come next.
    drawn = [
        Coins(
            np.asarray(
                coins_drawn.members(
                    mechanism,
                    state,
                    data,
                    address,
                    given,
                    jax.random.split(draw_key, runs),
                    steps,
                    whole=whole,
                )
            ),
            np.lexsort((user, item)),
        )
        for given in ((values,) if whole else (values, jnp.asarray(ratings.value[order])))
    ]
    coins = drawn[0]
    rates_seen = [_rate(one, rate, replay, tests=len(drawn)) for one in drawn]
    second = max(rates_seen, key=lambda finding: finding.verdict == "violated")
    seen, num = int(coins.in_sample.sum()), coins.in_sample.size
    rarely = seen < rate * num and binomial_p_value(seen, num, rate) <= ALPHA
    if not seen and rarely and second.verdict == "consistent":
        why = "no record was seen in any sample: the statistics do not move with these ratings"
        second = inconclusive(NAMES[1], second.claim, why)
    if rarely and second.verdict != "violated":
        why = f"records are in samples, or seen to be, less often than is priced: {seen / num:.4g}"
        rest = [
            inconclusive(name, claim, why)
            for name, claim in zip(NAMES[2:], CLAIMS[2:], strict=True)
        ]
    else:
        rest = [_independence(coins, rate, replay), _steps(coins, rate, replay)]
    return [first, second, *rest]


def _some(random: np.random.Generator, ratings: Ratings) -> np.ndarray:
    """Places of at most `REMOVED` ratings, in the order of (user, item): half follow each other by
    user, and half by item.
    """
    orders = [
        np.lexsort((ratings.item, ratings.user)),
        np.lexsort((ratings.user, ratings.item)),
    ]
    if ratings.num_ratings <= REMOVED:
        return orders[0]
    chosen = [np.roll(order, random.integers(len(order)))[: REMOVED // 2] for order in orders]
    places = np.unique(np.concatenate(chosen))
    return places[np.lexsort((ratings.item[places], ratings.user[places]))]


# --- findings


def _both_worlds(
    mechanism: Mechanism,
    state: State,
    data: Layout,
    ratings: Ratings,
    tried: neighbours.Neighbours,
    key: jax.Array,
    replay: dict[str, Any],
) -> Finding:
    broken: list[tuple[int, int, bool]] = []
    random = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
    num = int(np.clip((1 << 22) // max(1, ratings.num_ratings), 32, COINS))
    for position, pair_key in enumerate(jax.random.split(key, tried.num)):
        at = tried.index[position]
        rest = (
            ratings.user != ratings.user[at]
            if tried.unit == "user"
            else np.arange(ratings.num_ratings) != at
        )
        chosen = np.resize(random.permutation(np.flatnonzero(rest)), 6)
        others = layout.locate(data, ratings.user[chosen], ratings.item[chosen])
        neighbour = jax.tree.map(lambda leaf, p=position: leaf[p], tried.stacked)
        moved, own = coins_drawn.both_worlds(
            mechanism, state, data, pair_key, neighbour, others, unit=tried.unit, num=num
        )
        moved = np.asarray(moved).any(axis=1)
        broken += [(position, int(coin), False) for coin in np.flatnonzero(moved)]
        here, there = np.asarray(own).T
        if here.any() and there.any():  # else one of the worlds cannot show it
            broken += [(position, int(coin), True) for coin in np.flatnonzero(here != there)]
    if broken:
        position, coin, own = broken[0]
        what = "its own part" if own else "the part of another record"
        replay = replay | {
            "pair": neighbours.describe(ratings, tried, position),
            "coin": coin,
            "what_moved": what,
        }
    return Finding(
        audit=NAMES[0],
        claim=CLAIMS[0],
        measured=float(len(broken)),
        claimed=0.0,
        lower=float(len(broken)),
        verdict="violated" if broken else "consistent",
        details={
            "pairs": tried.num,
            "coins": num,
            "unit_of_measurement": (
                "coins under which another sample is drawn from the neighbour, over all pairs"
            ),
            "power": (
                "exact for these pairs and coins, and six other records each: a single member more"
                " or less would be seen"
            ),
            "replay": replay,
        },
    )


def _rate(coins: Coins, rate: float, replay: dict[str, Any], *, tests: int = 1) -> Finding:
    """tests: how many such findings are made, of which the worst one counts."""
    from scipy.stats import binom

    *samples, records = coins.in_sample.shape
    num, counts = math.prod(samples), coins.in_sample.sum(axis=(0, 1))
    worst = int(np.argmax(counts))
    everybody = float(binom.sf(counts.sum() - 1, num * records, rate))
    one = min(1.0, records * float(binom.sf(counts[worst] - 1, num, rate)))
    p_value, seen = min(1.0, 2 * tests * min(everybody, one)), counts.sum() / (num * records)
    return _by_p_value(
        NAMES[1],
        f"{CLAIMS[1]}: with probability {rate:.6g}",
        p_value,
        measured=float(seen),
        claimed=rate,
        details={
            "worst_record": worst,
            "rate_of_the_worst": float(counts[worst] / num),
            "samples": num,
            "records": records,
            "unit_of_measurement": "share of records in a sample",
            "power": (
                f"a rate above by {visible_share(num * records, ALPHA):.4f} for all, or by"
                f" {visible_share(num, ALPHA / records):.3f} for one record, would be seen with"
                " probability 0.95"
            ),
            "replay": replay,
        },
    )


def _independence(coins: Coins, rate: float, replay: dict[str, Any]) -> Finding:
    """Sizes of samples, and how often pairs by user and by item are drawn, by the binomial law."""
    flat = coins.in_sample.reshape(-1, coins.in_sample.shape[-1])
    num, records = flat.shape
    sizes = flat.sum(axis=1)
    by_size = _from_binomial(sizes, records, rate)
    pairs = [_pairs_p_value(flat[:, order], rate) for order in (np.arange(records), coins.by_item)]
    variance = float(np.var(sizes) / (records * rate * (1 - rate))) if rate < 1 else 1.0
    return _by_p_value(
        NAMES[2],
        CLAIMS[2],
        min(1.0, 3 * min(by_size, *pairs)),
        measured=variance,
        claimed=1.0,
        details={
            "samples": num,
            "records": records,
            "p_values": {
                "sizes": by_size,
                "pairs_of_a_user": pairs[0],
                "pairs_of_an_item": pairs[1],
            },
            "unit_of_measurement": (
                "variance of the size of a sample, in that of independent records"
            ),
            "power": (
                f"a law of sizes that is off by {_visible_distance(num, ALPHA / 3):.3f} anywhere"
                " would be seen with probability 0.95; samples of one fixed size are off by at"
                " least 0.5"
            ),
            "replay": replay,
        },
    )


def _steps(coins: Coins, rate: float, replay: dict[str, Any]) -> Finding:
    """How often a record takes part in a run against the binomial law, and pairs of steps."""
    runs, steps, _ = coins.in_sample.shape
    if steps < 2:
        return not_applicable(NAMES[3], CLAIMS[3], "there is a single step")
    counts = coins.in_sample.sum(axis=1).ravel()
    by_count = _from_binomial(counts, steps, rate)
    by_step = np.swapaxes(coins.in_sample, 1, 2).reshape(-1, steps)
    apart = np.arange(steps // 2 * 2).reshape(2, -1).T.ravel()  # 0, half, 1, half + 1, ...
    pairs = [_pairs_p_value(by_step[:, order], rate) for order in (np.arange(steps), apart)]
    expected = steps * rate * (1 - rate)
    return _by_p_value(
        NAMES[3],
        CLAIMS[3],
        min(1.0, 3 * min(by_count, *pairs)),
        measured=float(np.var(counts) / expected) if rate < 1 else 1.0,
        claimed=1.0,
        details={
            "runs": runs,
            "steps": steps,
            "p_values": {"counts": by_count, "next_step": pairs[0], "later_step": pairs[1]},
            "unit_of_measurement": (
                "variance of how often a record takes part in a run, in that of independent steps"
            ),
            "power": (
                "a law of these numbers that is off by"
                f" {_visible_distance(len(counts), ALPHA / 3):.4f} anywhere would be seen with"
                " probability 0.95"
            ),
            "replay": replay,
        },
    )


def _from_binomial(counts: np.ndarray, num: int, rate: float) -> float:
    """p-value of sup |F_n - F| against Bin(num, rate).

    By the bound of Dvoretzky, Kiefer, Wolfowitz and Massart.
    """
    from scipy.stats import binom

    observed = np.cumsum(np.bincount(counts, minlength=num + 1)) / len(counts)
    distance = float(np.max(np.abs(observed - binom.cdf(np.arange(num + 1), num, rate))))
    return min(1.0, 2 * math.exp(-2 * len(counts) * distance**2))


def _pairs_p_value(columns: np.ndarray, rate: float) -> float:
    """p-value of how often disjoint pairs of columns (0 and 1, 2 and 3, ...) are both true."""
    even = columns[:, : columns.shape[1] // 2 * 2].reshape(len(columns), -1, 2)
    return float(binomial_p_value(np.sum(even.all(axis=2)), even.shape[0] * even.shape[1], rate**2))


def _visible_distance(num: int, alpha: float) -> float:
    """How far a law must be off, anywhere, to be found with probability 0.95."""
    return critical_distance(num, alpha) + critical_distance(num, 2 * 0.05)


def _by_p_value(
    name: str,
    claim: str,
    p_value: float,
    *,
    measured: float,
    claimed: float,
    details: dict[str, Any],
) -> Finding:
    """A finding that rests on a p-value."""
    verdict: Verdict = "violated" if p_value <= ALPHA else "consistent"
    return Finding(
        audit=name,
        claim=claim,
        measured=measured,
        claimed=claimed,
        verdict=verdict,
        details={"p_value": p_value, "alpha": ALPHA, **details},
    )
