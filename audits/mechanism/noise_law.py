"""What the noise of one response has in common, and what float32 makes of it.

Its scale is for `sampler`. Here: entries that depend on each other, as where devices or items share
a key or a variance, or where noise is centred and a total is kept; values that repeat, as on a
coarse grid; tails that are not a normal's; and how far float32 normals are from real ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audits import transcript
from audits.finding import ALPHA, Finding, Verdict, not_applicable
from audits.mechanism.faults import signed
from audits.mechanism.sampler import SUPPORT
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.noise.laws import Report
from dpmf_jax.protocol import Mechanism

NAMES = ("noise: entries apart", "noise: repeated values", "noise: support", "noise: tails")
CLAIMS = (
    "the noise of one entry says nothing about another's, neither its sign nor its size",
    "values of the noise repeat no more often than 2^23 equally likely ones do",
    "the noise reaches as far from 0 as so many normal draws do",
    "as many draws lie beyond 3 and beyond 4 standard deviations as normal ones do",
)
DRAWS, MOST = 512, 1 << 22  # responses drawn; numbers drawn, at most
GRID = 2**23
CLOSER = 1.25  # erf^-1 and the product with σ round a few values together
BEYOND = (3.0, 4.0)  # standard deviations
TAIL_NUMBERS = 1 << 20  # drawn for the tails, at least


def audit(
    mechanism: Mechanism, ratings: Ratings, data: Layout, *, key: jax.Array, num_steps: int
) -> list[Finding]:
    """Four findings on additive noise: entries apart, repeated values, support, tails.

    entries apart: Friedman's chi square, of signs and of sizes, over all entries and over those of
      a leaf, of each of its rows and of each of its columns. Too much agreement is what entries
      have in common; too little is a total that is kept.
    repeated values: against a Poisson law.
    support: the largest draw against the law of the largest of so many real normals; noise that is
      cut off early is `violated`. The details say what float32 normals cannot reach, over all draws
      of the run, beside δ; no verdict rests on that.
    tails: how many draws lie beyond 3 and beyond 4 standard deviations, exact binomial.

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
    num = int(np.clip(MOST // max(entries, 1), 64, DRAWS))
    for statistics in (
        jax.tree.map(np.zeros_like, first),
        jax.tree.map(lambda leaf: np.asarray(leaf[-1]), run.statistics),
    ):
        # Where nobody takes part there is no response to zeros; then the last step is drawn.
        drawn = jax.device_get(_draws(mechanism.noise.sample, draw_key, statistics, num))
        leaves = [signed(leaf) for leaf in drawn]
        # What is never noisy is public, or for another audit.
        noisy = [np.any(leaf != leaf[:1], axis=0) for leaf in leaves]
        noise = _in_a_row(leaves, noisy)
        if noise.shape[1]:
            break
    replay = {"key": np.asarray(jax.random.key_data(key)).tolist()}
    if noise.shape[1] == 0:
        return [_not_applicable(name, "no response has noise") for name in NAMES]
    whole = any(np.issubdtype(leaf.dtype, np.integer) for leaf in drawn)
    sigma = guarantee.noise_scale
    return [
        _apart(leaves, noisy, replay),
        _not_applicable(NAMES[1], "the noise is of whole numbers")
        if whole
        else _repeated(noise, replay),
        (
            _not_applicable(NAMES[2], "no Gaussian noise of one scale is promised")
            if sigma is None
            else _support(noise / sigma, guarantee, num_steps * entries, replay)
        ),
        (
            _not_applicable(NAMES[3], "no Gaussian noise of one scale is promised")
            if sigma is None
            else _tails(_further(mechanism, draw_key, statistics, noisy, num), sigma, whole, replay)
        ),
    ]


def _in_a_row(leaves: list[np.ndarray], noisy: list[np.ndarray]) -> np.ndarray:
    """float64[draws, entries], of entries that are noisy."""
    return np.concatenate([leaf[:, kept] for leaf, kept in zip(leaves, noisy, strict=True)], axis=1)


def _further(
    mechanism: Mechanism, key: jax.Array, statistics: Any, noisy: list[np.ndarray], num: int
) -> Iterator[np.ndarray]:
    """Further draws, until there are `TAIL_NUMBERS` numbers."""
    each = num * sum(int(kept.sum()) for kept in noisy)
    for turn in range(1, 1 + -(-TAIL_NUMBERS // each)):
        again = jax.random.fold_in(key, turn)
        drawn = jax.device_get(_draws(mechanism.noise.sample, again, statistics, num))
        yield _in_a_row([signed(leaf) for leaf in drawn], noisy)


def _not_applicable(name: str, why: str) -> Finding:
    return not_applicable(name, CLAIMS[NAMES.index(name)], why)


@partial(jax.jit, static_argnames="num")
def _draws(sample: Any, key: jax.Array, statistics: Any, num: int) -> list[jax.Array]:
    """Response minus statistics, by leaf; leading axis of draws."""

    def one(key: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(jax.tree.map(jnp.subtract, sample(key, statistics), statistics))

    return jax.lax.map(one, jax.random.split(key, num), batch_size=16)


# --- entries


def friedman(columns: np.ndarray) -> tuple[float, float]:
    """(chi square over its mean, its p-value): do columns agree on which of the rows are large?

    columns: float[rows, columns]. Ranks within each column are added up over a row. The variance of
    these sums is known where columns are independent. The p-value has two sides: columns agree, or
    what one has the others make up for.
    """
    ratio, p_value = _agreement(_ranks(columns)[:, :, None])
    return float(ratio[0]), float(p_value[0])


def _ranks(columns: np.ndarray) -> np.ndarray:
    """Ranks within each column, less their mean; those of equal numbers are equal."""
    from scipy.stats import rankdata

    return rankdata(columns, axis=0) - (len(columns) + 1) / 2


def _agreement(ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`friedman` of ranks float[rows, columns, groups]; a column of zeros is none."""
    from scipy.stats import chi2

    free = len(ranks) - 1
    apart = np.sum(ranks**2, axis=(0, 1))  # what the squared sums add up to, on average
    ratio = np.sum(ranks.sum(axis=1) ** 2, axis=0) / np.maximum(apart, 1e-300)
    sides = chi2.sf(ratio * free, free), chi2.cdf(ratio * free, free)
    return ratio, np.minimum(1.0, 2 * np.minimum(*sides))


def _groups(ranks: list[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """(what they are, ranks float[rows, columns, groups]) of entries that may share a total."""
    rows = len(ranks[0])
    yield "all entries", np.concatenate([leaf.reshape(rows, -1, 1) for leaf in ranks], axis=1)
    for place, leaf in enumerate(ranks):
        if len(ranks) > 1:
            yield f"leaf {place}", leaf.reshape(rows, -1, 1)
        if leaf.ndim > 2:
            table = leaf.reshape(rows, leaf.shape[1], -1)
            yield f"a column of leaf {place}", table
            yield f"a row of leaf {place}", table.swapaxes(1, 2)


def _apart(leaves: list[np.ndarray], noisy: list[np.ndarray], replay: dict[str, Any]) -> Finding:
    from scipy.stats import chi2

    if sum(int(kept.sum()) for kept in noisy) < 2:
        return _not_applicable(NAMES[0], "a single entry")
    rows, tests, found = len(leaves[0]), 0, []
    for what, of in (("signs", lambda leaf: leaf), ("sizes", np.abs)):
        ranks = [
            np.where(kept, _ranks(of(leaf).reshape(rows, -1)).reshape(leaf.shape), 0.0)
            for leaf, kept in zip(leaves, noisy, strict=True)
        ]
        for where, group in _groups(ranks):
            several = np.sum(np.any(group != 0, axis=0), axis=0) > 1
            if not several.any():
                continue
            ratio, p_value = (part[several] for part in _agreement(group))
            worst = int(np.argmin(p_value))
            tests += len(ratio)
            found.append((float(p_value[worst]), float(ratio[worst]), f"{what}, {where}"))
    least, ratio, worst = min(found)
    p_value = min(1.0, tests * least)
    high = chi2.isf(ALPHA / tests / 2, rows - 1) / chi2.isf(0.95, rows - 1)
    low = chi2.ppf(ALPHA / tests / 2, rows - 1) / chi2.isf(0.05, rows - 1)
    verdict: Verdict = "violated" if p_value <= ALPHA else "consistent"
    return Finding(
        audit=NAMES[0],
        claim=CLAIMS[0],
        measured=ratio,
        claimed=1.0,
        verdict=verdict,
        details={
            "draws": rows,
            "entries": sum(int(kept.sum()) for kept in noisy),
            "groups": tests // 2,
            "p_value": p_value,
            "alpha": ALPHA,
            "worst": worst,
            "unit_of_measurement": (
                "variance of the mean rank in a group of entries, in that of independent ones"
            ),
            "power": (
                f"in any of {tests // 2} groups a variance of {high:.2f} times that, or of"
                f" {low:.2f}, would be seen with probability 0.95; entries that come in equal pairs"
                " have 2, normal ones that keep a total less than 0.05"
            ),
            "replay": replay,
        },
    )


# --- values


def _repeated(noise: np.ndarray, replay: dict[str, Any]) -> Finding:
    from scipy.stats import poisson

    values = np.abs(noise).ravel()[: 1 << 18]
    _, counts = np.unique(values, return_counts=True)
    repeats = float(np.sum(counts * (counts - 1.0) / 2))
    # Sizes, not signed values: the noise of a pair may have the opposite sign.
    expected = CLOSER * 2 * math.comb(len(values), 2) / GRID
    zeros, zeros_expected = int(np.sum(values == 0)), max(1e-3, 2 * len(values) / GRID)
    p_value = min(
        1.0,
        2 * float(min(poisson.sf(repeats - 1, expected), poisson.sf(zeros - 1, zeros_expected))),
    )
    verdict: Verdict = "violated" if p_value <= ALPHA else "consistent"
    return Finding(
        audit=NAMES[1],
        claim=CLAIMS[1],
        measured=repeats,
        claimed=expected,
        verdict=verdict,
        details={
            "numbers": len(values),
            "exact_zeros": zeros,
            "p_value": p_value,
            "alpha": ALPHA,
            "unit_of_measurement": "pairs of equal sizes; claimed is the most that is expected",
            "power": (
                f"{poisson.isf(ALPHA / 2, expected) + 1.65 * math.sqrt(expected):.0f} such pairs"
                " would be seen with probability 0.95"
            ),
            "replay": replay,
        },
    )


def _support(noise: np.ndarray, guarantee: Any, total: int, replay: dict[str, Any]) -> Finding:
    from scipy.special import ndtr, ndtri

    largest = float(np.max(np.abs(noise)))
    p_value = float(
        np.exp(noise.size * np.log1p(-min(1.0, 2 * float(ndtr(-largest)))))
    )  # all as small as that
    least, usual = (
        float(-ndtri(-np.expm1(np.log(chance) / noise.size) / 2)) for chance in (ALPHA, 0.05)
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
            "numbers_seen": noise.size,
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


def _tails(
    drawn: Iterable[np.ndarray], sigma: float, whole: bool, replay: dict[str, Any]
) -> Finding:
    """Counts beyond σ's multiples; whole numbers are normals that were rounded."""
    from scipy.special import ndtr
    from scipy.stats import binom

    # a whole number lies beyond where the normal before it was at least half a unit further
    edges = [math.floor(t * sigma) + 0.5 if whole else t * sigma for t in BEYOND]
    chances = [2 * float(ndtr(-edge / sigma)) for edge in edges]
    counts, total = [0] * len(edges), 0
    for noise in drawn:
        sizes = np.abs(noise)
        counts = [
            count + int(np.sum(sizes > edge)) for count, edge in zip(counts, edges, strict=True)
        ]
        total += noise.size
    each = [
        2 * min(float(binom.sf(count - 1, total, chance)), float(binom.cdf(count, total, chance)))
        for count, chance in zip(counts, chances, strict=True)
    ]
    worst = int(np.argmin(each))
    p_value = min(1.0, len(each) * each[worst])
    verdict: Verdict = "violated" if p_value <= ALPHA else "consistent"
    level = ALPHA / (2 * len(each))
    seen = [
        _seen_beyond(t, total, chance, level) for t, chance in zip(BEYOND, chances, strict=True)
    ]
    return Finding(
        audit=NAMES[3],
        claim=CLAIMS[3],
        measured=counts[worst] / (total * chances[worst]),
        claimed=1.0,
        verdict=verdict,
        details={
            "numbers": total,
            "beyond": dict(zip(map(str, BEYOND), counts, strict=True)),
            "expected": {str(t): total * chance for t, chance in zip(BEYOND, chances, strict=True)},
            "p_value": p_value,
            "alpha": ALPHA,
            "unit_of_measurement": f"draws beyond {BEYOND[worst]:g}σ, in what is expected",
            "power": f"{'; '.join(seen)} would be seen with probability 0.95",
            "replay": replay,
        },
    )
