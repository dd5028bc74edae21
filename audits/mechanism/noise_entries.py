"""Does the noise of one entry say anything about another's?

Entries depend on each other where devices or items share a key or a variance, where noise is
centred and a total is kept, where two entries get one draw, or where any combination of them is
released as it is. Three things are tried, all on ranks within an entry, so for any law:

- whether many agree: Friedman's chi square, over all entries, and those of a leaf, a row, a column;
- whether two agree: correlations of neighbours, of two leaves, and of all pairs of some entries;
- whether some combination of a group has less noise, or more, than independent entries have: the
  singular values of its scores, which lie within √n ± (√p + t) for n draws of p entries, but with
  a chance of exp(-t²/2) on either side (Davidson and Szarek 2001, Theorem II.13).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from audits.finding import ALPHA, Finding, Verdict, not_applicable

NAME = "noise: entries apart"
CLAIM = "the noise of one entry says nothing about another's, neither its sign nor its size"
PAIRED = 512  # entries of which all pairs are compared, at most
SHARE = 4  # draws for every entry of a group
MARGIN = 0.5  # added to t: scores of ranks are nearly normal, not quite
COARSE = 0.2  # of an entry's draws that may be equal, or it has no scores


class Test(NamedTuple):
    """p_value: for all that were tried of a kind. ratio: what was measured. where: the worst."""

    p_value: float
    ratio: float
    where: str


def finding(leaves: list[np.ndarray], noisy: list[np.ndarray], replay: dict[str, Any]) -> Finding:
    """The finding on draws of some leaves, each float[draws, *shape].

    noisy: bool[shape] of each, which entries have noise.
    """
    from scipy.stats import chi2

    entries = sum(int(kept.sum()) for kept in noisy)
    if entries < 2:
        return not_applicable(NAME, CLAIM, "a single entry")
    agreeing, groups = _many(leaves, noisy)
    scores = [_scores(leaf, kept) for leaf, kept in zip(leaves, noisy, strict=True)]
    tests = [agreeing, *_two(scores), *_combined(scores)]
    worst = min(tests, key=lambda test: test.p_value)
    p_value = min(1.0, len(tests) * worst.p_value)
    verdict: Verdict = "violated" if p_value <= ALPHA else "consistent"
    rows = len(leaves[0])
    level, free = ALPHA / len(tests) / groups / 2, rows - 1
    high = chi2.isf(level / 2, free) / chi2.isf(0.95, free)
    low = chi2.ppf(level / 2, free) / chi2.isf(0.05, free)
    return Finding(
        audit=NAME,
        claim=CLAIM,
        measured=worst.ratio,
        claimed=1.0,
        verdict=verdict,
        details={
            "draws": rows,
            "entries": entries,
            "groups": groups,
            "p_value": p_value,
            "p_values": {test.where: test.p_value for test in tests},
            "alpha": ALPHA,
            "worst": worst.where,
            "unit_of_measurement": (
                "variance of a combination of entries, in that of independent ones"
            ),
            "power": (
                f"in any of {groups} groups a variance of {high:.2f} times that, or of"
                f" {low:.2f}, would be seen with probability 0.95; entries that come in equal pairs"
                " have 2, normal ones that keep a total less than 0.05;"
                f" two neighbours whose correlation is {_seen(rows, entries):.2f}, too, and a"
                f" combination of up to {rows // SHARE} entries of a group without any noise"
            ),
            "replay": replay,
        },
    )


def _seen(rows: int, entries: int) -> float:
    """About the correlation of two neighbours that is seen with probability 0.95."""
    from scipy.special import ndtri

    level = ALPHA / (6 * max(entries, 2))
    return min(1.0, float((-ndtri(level / 2) + 1.65) / math.sqrt(rows)))


# --- many


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


def _many(leaves: list[np.ndarray], noisy: list[np.ndarray]) -> tuple[Test, int]:
    """Friedman's chi square, of signs and of sizes; and the number of groups."""
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
    least, ratio, where = min(found)
    return Test(min(1.0, tests * least), ratio, where), tests // 2


# --- two


def _scores(leaf: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Normal scores of the ranks within an entry, of mean 0 and variance 1; [draws, *shape].

    0 where there is no noise, or where too many draws are equal.
    """
    from scipy.special import ndtri

    rows, flat = len(leaf), leaf.reshape(len(leaf), -1)
    scores = ndtri((_ranks(flat) + rows / 2) / rows)
    ordered = np.sort(flat, axis=0)
    apart = max(1, math.ceil(COARSE * rows))
    coarse = np.any(ordered[apart:] == ordered[:-apart], axis=0)
    deviation = scores.std(axis=0)
    good = kept.ravel() & ~coarse & (deviation > 0)
    scores = np.where(good, scores / np.where(good, deviation, 1.0), 0.0)
    return scores.reshape(leaf.shape)


def _two(scores: list[np.ndarray]) -> Iterator[Test]:
    rows = len(scores[0])
    flat = np.concatenate([leaf.reshape(rows, -1) for leaf in scores], axis=1)
    flat = flat[:, np.any(flat != 0, axis=0)]
    if flat.shape[1] < 2:
        return
    beside = [(leaf, axis) for leaf in scores for axis in range(1, leaf.ndim)]
    pairs = [
        (np.take(leaf, range(leaf.shape[axis] - 1), axis), np.delete(leaf, 0, axis))
        for leaf, axis in beside
        if leaf.shape[axis] > 1
    ]
    first, second = (
        np.concatenate([pair[side].reshape(rows, -1) for pair in pairs], axis=1) for side in (0, 1)
    )
    yield from _correlated(first, second, "neighbours")
    across = [
        (one.reshape(rows, -1), other.reshape(rows, -1))
        for place, one in enumerate(scores)
        for other in scores[:place]
    ]
    for one, other in across:
        size = min(one.shape[1], other.shape[1])
        yield from _correlated(one[:, :size], other[:, :size], "the same place of two leaves")
    some = np.unique(np.linspace(0, flat.shape[1] - 1, PAIRED).astype(int))
    cosines = np.triu(flat[:, some].T @ flat[:, some] / rows, 1)
    most = float(np.max(np.abs(cosines)))
    count = math.comb(len(some), 2)
    yield Test(min(1.0, count * _chance(most, rows)), 1 + most, f"all pairs of {len(some)} entries")


def _correlated(first: np.ndarray, second: np.ndarray, what: str) -> Iterator[Test]:
    """Each pair by itself, and all together."""
    from scipy.special import ndtr

    there = np.any(first != 0, axis=0) & np.any(second != 0, axis=0)
    if not there.any():
        return
    each = np.mean(first[:, there] * second[:, there], axis=0)
    most, rows = float(np.max(np.abs(each))), len(first)
    yield Test(min(1.0, len(each) * _chance(most, rows)), 1 + most, f"two of the {what}")
    mean = float(np.mean(each))
    chance = 2 * float(ndtr(-abs(mean) * math.sqrt(rows * len(each))))
    yield Test(chance, 1 + mean, f"all {what}")


def _chance(correlation: float, rows: int) -> float:
    """How often two independent normal columns have one as large, or its opposite."""
    from scipy.stats import beta

    return float(beta.sf(min(1.0, correlation**2), 0.5, (rows - 2) / 2))


# --- combinations


def _combined(scores: list[np.ndarray]) -> Iterator[Test]:
    """Singular values of the scores of groups: all the least, and all the largest."""
    rows, tried = len(scores[0]), 0
    least, largest = Test(1.0, 1.0, "a combination kept"), Test(1.0, 1.0, "a combination shared")
    for group in _parts(scores, max(2, (rows - 1) // SHARE)):
        present = np.any(group != 0, axis=0)
        columns = group[:, present]
        if columns.shape[1] < 2:
            continue
        tried += 1
        spectrum = np.linalg.eigvalsh(columns.T @ columns)
        ends, width = np.sqrt(np.maximum(spectrum[[0, -1]], 0)), math.sqrt(columns.shape[1])
        usual = math.sqrt(rows - 1)
        below, above = usual - width - ends[0], ends[1] - usual - width
        least = min(least, least._replace(p_value=_beyond(below), ratio=spectrum[0] / rows))
        largest = min(largest, largest._replace(p_value=_beyond(above), ratio=spectrum[-1] / rows))
    if tried:
        yield from (one._replace(p_value=min(1.0, tried * one.p_value)) for one in (least, largest))


def _beyond(distance: float) -> float:
    return math.exp(-(max(0.0, distance - MARGIN) ** 2) / 2)


def _parts(scores: list[np.ndarray], most: int) -> Iterator[np.ndarray]:
    """Groups of at most so many entries, [draws, entries]: leaves, their rows and columns, and all
    of them in two orders and in a random one.
    """
    rows = len(scores[0])
    flat = np.concatenate([leaf.reshape(rows, -1) for leaf in scores], axis=1)
    turned = np.concatenate(
        [np.moveaxis(leaf, min(1, leaf.ndim - 1), -1).reshape(rows, -1) for leaf in scores], axis=1
    )
    mixed = flat[:, np.random.default_rng(0).permutation(flat.shape[1])]
    for order in (flat, turned, mixed):
        for start in range(0, flat.shape[1], most):
            yield order[:, start : start + most]
    for leaf in scores:
        if leaf.ndim > 2:
            table = leaf.reshape(rows, leaf.shape[1], -1)
            for axis in (1, 2):
                if table.shape[3 - axis] <= most:
                    yield from (np.take(table, at, axis) for at in range(table.shape[axis]))
