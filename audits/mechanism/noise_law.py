"""What the noise of one response has in common, and what float32 makes of it.

Its scale is for `sampler`. Here: entries that depend on each other, as where devices or items share
a key or a variance; values that repeat, as on a coarse grid; and how far float32 normals are from
real ones.
"""

from __future__ import annotations

import math
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

NAMES = ("noise: entries apart", "noise: repeated values", "noise: support")
CLAIMS = (
    "the noise of one entry says nothing about another's, neither its sign nor its size",
    "values of the noise repeat no more often than 2^23 equally likely ones do",
    "the noise reaches as far from 0 as so many normal draws do",
)
DRAWS, MOST = 512, 1 << 22  # responses drawn; numbers drawn, at most
GRID = 2**23
CLOSER = 1.25  # erf^-1 and the product with σ round a few values together


def audit(
    mechanism: Mechanism, ratings: Ratings, data: Layout, *, key: jax.Array, num_steps: int
) -> list[Finding]:
    """Three findings on additive noise: entries apart, repeated values, support.

    entries apart: Friedman's chi square, of signs and of sizes.
    repeated values: against a Poisson law.
    support: the largest draw against the law of the largest of so many real normals; noise that is
      cut off early is `violated`. The details say what float32 normals cannot reach, over all draws
      of the run, beside δ; no verdict rests on that.

    False alarms at `finding.ALPHA` in the first two.
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
        noise = np.concatenate([signed(leaf).reshape(num, -1) for leaf in drawn], axis=1)
        # What is never noisy is public, or for another audit.
        noise = noise[:, np.any(noise != noise[:1], axis=0)]
        if noise.shape[1]:
            break
    replay = {"key": np.asarray(jax.random.key_data(key)).tolist()}
    if noise.shape[1] == 0:
        return [_not_applicable(name, "no response has noise") for name in NAMES]
    whole = any(np.issubdtype(leaf.dtype, np.integer) for leaf in drawn)
    sigma = guarantee.noise_scale
    return [
        _apart(noise, replay),
        _not_applicable(NAMES[1], "the noise is of whole numbers")
        if whole
        else _repeated(noise, replay),
        (
            _not_applicable(NAMES[2], "no Gaussian noise of one scale is promised")
            if sigma is None
            else _support(noise / sigma, guarantee, num_steps * entries, replay)
        ),
    ]


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
    these sums is known where columns are independent.
    """
    from scipy.stats import chi2, rankdata

    rows, num = columns.shape
    sums = rankdata(columns, axis=0).sum(axis=1)
    statistic = 12 * float(np.sum((sums - num * (rows + 1) / 2) ** 2)) / (num * rows * (rows + 1))
    return statistic / (rows - 1), float(chi2.sf(statistic, rows - 1))


def _apart(noise: np.ndarray, replay: dict[str, Any]) -> Finding:
    from scipy.stats import chi2

    if noise.shape[1] < 2:
        return _not_applicable(NAMES[0], "a single entry")
    tests = {"signs": friedman(noise), "sizes": friedman(np.abs(noise))}
    worst = min(tests, key=lambda name: tests[name][1])
    p_value = min(1.0, 2 * tests[worst][1])
    rows = len(noise)
    seen = chi2.isf(ALPHA / 2, rows - 1) / chi2.isf(0.95, rows - 1)
    verdict: Verdict = "violated" if p_value <= ALPHA else "consistent"
    return Finding(
        audit=NAMES[0],
        claim=CLAIMS[0],
        measured=tests[worst][0],
        claimed=1.0,
        verdict=verdict,
        details={
            "draws": rows,
            "entries": noise.shape[1],
            "p_value": p_value,
            "alpha": ALPHA,
            "worst": worst,
            "unit_of_measurement": (
                "variance of a response's mean rank, in that of independent entries"
            ),
            "power": (
                f"a variance of {seen:.2f} times that would be seen with probability 0.95; entries"
                " that come in equal pairs have 2"
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
