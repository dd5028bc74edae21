"""What noise is drawn: entry by entry, value by value, and how far from 0.

Its scale is for `sampler`. Here: entries that depend on each other (`noise_entries`); values that
come too often (`noise_values`); tails that are not a normal's; and how far float32 normals are from
real ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audits import transcript
from audits.finding import ALPHA, Finding, Verdict, not_applicable
from audits.mechanism import noise_entries, noise_values
from audits.mechanism.faults import signed
from audits.mechanism.noise_values import GRID
from audits.mechanism.sampler import SUPPORT
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.noise.laws import Report
from dpmf_jax.protocol import Mechanism

NAMES = (noise_entries.NAME, noise_values.NAME, "noise: support", "noise: tails")
CLAIMS = (
    noise_entries.CLAIM,
    noise_values.CLAIM,
    "the noise reaches as far from 0 as so many normal draws do",
    "as many draws lie beyond 3, 4 and 4.5 standard deviations, on either side, as normal ones do",
)
DRAWS, MANY, MOST = 512, 2048, 1 << 22  # responses drawn, of small ones, and numbers, at most
FEW = 1 << 20  # numbers of a small response, at most
BEYOND = (3.0, 4.0, 4.5)  # standard deviations
TAIL_NUMBERS = 1 << 22  # drawn for the tails and for whole numbers, at least


def audit(
    mechanism: Mechanism, ratings: Ratings, data: Layout, *, key: jax.Array, num_steps: int
) -> list[Finding]:
    """Four findings on additive noise: entries apart, repeated values, support, tails.

    entries apart: see `noise_entries`.
    repeated values: see `noise_values`.
    support: the largest draw against the law of the largest of so many real normals; noise that is
      cut off early is `violated`. The details say what float32 normals cannot reach, over all draws
      of the run, beside δ; no verdict rests on that.
    tails: how many draws lie beyond 3, 4 and 4.5 standard deviations on either side, exact
      binomial.

    False alarms at `finding.ALPHA` in each.
    """
    guarantee = mechanism.guarantee(num_steps)
    run_key, draw_key = jax.random.split(key)
    run = transcript.record(mechanism, run_key, data, num_steps)
    if jax.tree.structure(run.responses) != jax.tree.structure(run.statistics):
        return [
            _not_applicable(name, "the response is not the statistics and noise") for name in NAMES
        ]
    if isinstance(run.statistics, Report):
        return [
            _not_applicable(name, "the response is of bits; see the enumeration") for name in NAMES
        ]
    first = transcript.first_step(run)
    entries = sum(leaf.size for leaf in jax.tree.leaves(first))
    usual = int(np.clip(MOST // max(entries, 1), 64, DRAWS))
    num = int(np.clip(FEW // max(entries, 1), usual, MANY))
    for statistics in (
        jax.tree.map(np.zeros_like, first),
        jax.tree.map(lambda leaf: np.asarray(leaf[-1]), run.statistics),
    ):
        # Where nobody takes part there is no response to zeros; then the last step is drawn.
        drawn = jax.device_get(_draws(mechanism.noise.sample, draw_key, statistics, num))
        leaves = [signed(leaf) for leaf in drawn]
        # What is never noisy is public, or for another audit.
        noisy = [np.asarray(np.any(leaf != leaf[:1], axis=0)) for leaf in leaves]
        noise = np.concatenate(_noisy(leaves, noisy), axis=1)
        if noise.shape[1]:
            break
    replay = {"key": np.asarray(jax.random.key_data(key)).tolist()}
    if noise.shape[1] == 0:
        return [_not_applicable(name, "no response has noise") for name in NAMES]
    whole = any(np.issubdtype(leaf.dtype, np.integer) for leaf in drawn)
    sigma = guarantee.noise_scale
    tails = None if sigma is None else Tails(sigma, whole=whole)
    values = None
    if whole:
        deviation = sigma or float(np.min(np.std(noise, axis=0)))
        values = noise_values.Whole(deviation, normal=sigma is not None)
    if tails or values:
        for again in _further(mechanism, draw_key, statistics, noisy, num):
            if tails:
                tails.add(np.concatenate(again, axis=1))
            if values:
                values.add([leaf.astype(np.int64) for leaf in again])
    unpromised = "no Gaussian noise of one scale is promised"
    return [
        noise_entries.finding(leaves, noisy, replay),
        values.finding([leaf.astype(np.int64) for leaf in _noisy(leaves, noisy)], replay)
        if values
        else noise_values.of_floats(noise, replay),
        (
            _not_applicable(NAMES[2], unpromised)
            if sigma is None
            else _support(noise / sigma, guarantee, num_steps * entries, replay, tails)
        ),
        tails.finding(replay) if tails else _not_applicable(NAMES[3], unpromised),
    ]


def _noisy(leaves: list[np.ndarray], noisy: list[np.ndarray]) -> list[np.ndarray]:
    """float64[draws, entries] of each leaf, of entries that are noisy."""
    return [leaf[:, kept] for leaf, kept in zip(leaves, noisy, strict=True)]


def _further(
    mechanism: Mechanism, key: jax.Array, statistics: Any, noisy: list[np.ndarray], num: int
) -> Iterator[list[np.ndarray]]:
    """Further draws, as of `_noisy`, until there are `TAIL_NUMBERS` numbers."""
    each = num * sum(int(kept.sum()) for kept in noisy)
    for turn in range(1, 1 + -(-TAIL_NUMBERS // each)):
        again = jax.random.fold_in(key, turn)
        drawn = jax.device_get(_draws(mechanism.noise.sample, again, statistics, num))
        yield _noisy([signed(leaf) for leaf in drawn], noisy)


def _not_applicable(name: str, why: str) -> Finding:
    return not_applicable(name, CLAIMS[NAMES.index(name)], why)


@partial(jax.jit, static_argnames="num")
def _draws(sample: Any, key: jax.Array, statistics: Any, num: int) -> list[jax.Array]:
    """Response minus statistics, by leaf; leading axis of draws."""

    def one(key: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(jax.tree.map(jnp.subtract, sample(key, statistics), statistics))

    return jax.lax.map(one, jax.random.split(key, num), batch_size=16)


# --- how far it reaches


def _support(
    noise: np.ndarray,
    guarantee: Any,
    total: int,
    replay: dict[str, Any],
    tails: Tails | None = None,
) -> Finding:
    """noise, and what `tails` has seen, in standard deviations."""
    from scipy.special import ndtr, ndtri

    largest, numbers = float(np.max(np.abs(noise))), noise.size
    if tails:
        largest, numbers = max(largest, tails.largest), numbers + tails.total
    p_value = float(
        np.exp(numbers * np.log1p(-min(1.0, 2 * float(ndtr(-largest)))))
    )  # all as small as that
    least, usual = (
        float(-ndtri(-np.expm1(np.log(chance) / numbers) / 2)) for chance in (ALPHA, 0.05)
    )
    verdict: Verdict = "violated" if p_value <= ALPHA else "consistent"
    return Finding(
        audit=NAMES[2],
        claim=CLAIMS[2],
        measured=largest,
        claimed=least,
        verdict=verdict,
        details={
            "p_value": p_value,
            "alpha": ALPHA,
            "numbers_of_the_run": total,
            "beyond_float32": min(1.0, total * 2 * float(ndtr(-SUPPORT))),
            "delta": guarantee.delta,
            "support": SUPPORT,
            "distinct_values": GRID,
            "distinct_seen": len(np.unique(noise)),
            "numbers_seen": numbers,
            "exact_zeros": int(np.sum(noise == 0)),
            "unit_of_measurement": (
                "the largest draw, in standard deviations; claimed is what the largest of so many "
                f"normals exceeds but with a chance of {ALPHA:g}"
            ),
            "power": (
                f"noise that is cut off below {least:.3g} standard deviations would be seen; so"
                f" many normals reach {usual:.3g} with probability 0.95. Not tested, and not there"
                f" in float32 normals: values beyond {SUPPORT} (beyond_float32 is the chance that a"
                " run of real ones has any, beside δ), and more than 2^23 different ones a draw"
            ),
            "replay": replay,
        },
    )


def _seen_beyond(t: float, total: int, chance: float, level: float) -> str:
    """How many times as many draws, fewer or more, are called violated with probability 0.95."""
    from scipy.special import betaincinv
    from scipy.stats import binom

    fewest = int(binom.isf(level, total, chance)) + 1  # the least count with P(X ≥ count) ≤ level
    most = int(binom.ppf(level, total, chance))
    most -= binom.cdf(most, total, chance) > level  # the largest with P(X ≤ count) ≤ level
    high = math.ceil(100 * float(betaincinv(fewest, total - fewest + 1, 0.95)) / chance) / 100
    if most < 0:
        return f"{high:.2f} times as many beyond {t:g}"
    low = math.floor(100 * float(betaincinv(most + 1, total - most, 0.05)) / chance) / 100
    return f"{low:.2f} or {high:.2f} times as many beyond {t:g}"


class Tails:
    """Counts beyond σ's multiples, on either side; whole numbers are normals that were rounded."""

    def __init__(self, sigma: float, *, whole: bool) -> None:
        from scipy.special import ndtr

        # a whole number lies beyond where the normal before it was at least half a unit further
        self.edges = [math.floor(t * sigma) + 0.5 if whole else t * sigma for t in BEYOND]
        self.chances = [float(ndtr(-edge / sigma)) for edge in self.edges]
        self.total, self.counts = 0, np.zeros((len(BEYOND), 2), int)
        self.sigma, self.largest = sigma, 0.0  # the largest number, in σ

    def add(self, noise: np.ndarray) -> None:
        self.total += noise.size
        far = noise[np.abs(noise) > min(self.edges)]
        self.largest = max(self.largest, float(np.max(np.abs(far), initial=0.0)) / self.sigma)
        self.counts += [[np.sum(far > edge), np.sum(far < -edge)] for edge in self.edges]

    def finding(self, replay: dict[str, Any]) -> Finding:
        from scipy.stats import binom

        total, each = self.total, {}
        for t, chance, sides in zip(BEYOND, self.chances, self.counts, strict=True):
            for side, count in zip(("above", "below"), map(int, sides), strict=True):
                chances = binom.sf(count - 1, total, chance), binom.cdf(count, total, chance)
                each[f"{side} {t:g}"] = 2 * float(min(chances)), count / (total * chance)
        worst = min(each, key=lambda where: each[where][0])
        p_value = min(1.0, len(each) * each[worst][0])
        verdict: Verdict = "violated" if p_value <= ALPHA else "consistent"
        level = ALPHA / (2 * len(each))
        seen = [
            _seen_beyond(t, total, chance, level)
            for t, chance in zip(BEYOND, self.chances, strict=True)
        ]
        return Finding(
            audit=NAMES[3],
            claim=CLAIMS[3],
            measured=each[worst][1],
            claimed=1.0,
            verdict=verdict,
            details={
                "numbers": total,
                "beyond": {
                    f"{t:g}": list(map(int, sides))
                    for t, sides in zip(BEYOND, self.counts, strict=True)
                },
                "expected": {
                    f"{t:g}": total * chance for t, chance in zip(BEYOND, self.chances, strict=True)
                },
                "p_value": p_value,
                "alpha": ALPHA,
                "unit_of_measurement": f"draws {worst}σ, in what is expected",
                "power": (f"{'; '.join(seen)} on either side would be seen with probability 0.95"),
                "replay": replay,
            },
        )
