"""Is the noise that is drawn the noise that is priced?

The promised scale is σ, read from the guarantee (`noise_scale`). The drawn noise is what the
sampler adds to empty ratings (zero statistics) and to the real statistics of both worlds. Four
things are tried: its scale, noise on every entry, the same noise in both worlds, and independence
over steps and leaves. False alarms: `finding.ALPHA` for each finding, by exact tests
(Dvoretzky-Kiefer-Wolfowitz-Massart, chi square, Beta).
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audits import neighbours, transcript
from audits.finding import ALPHA, Finding, inconclusive, not_applicable
from audits.mechanism.faults import signed
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism

DRAWS = 1 << 17  # numbers drawn for the scale, at least
MOST = 1 << 24  # numbers held at once, at most
GROUPS = 8  # of entries, by the size of their statistics
SUPPORT = 5.42  # jax.random.normal in float32 ends here


class Statistics(NamedTuple):
    """What is fed to the sampler: zeros, and the first step's statistics of both worlds."""

    empty: Any
    first: Any
    second: Any


@partial(jax.jit, static_argnames="num")
def _draws(sample: Any, key: jax.Array, statistics: Any, num: int) -> Any:
    """Response minus statistics for `num` keys, leading axis num."""
    draw = jax.vmap(lambda k: jax.tree.map(jnp.subtract, sample(k, statistics), statistics))
    return draw(jax.random.split(key, num))


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    num_neighbours: int = 8,
) -> list[Finding]:
    """Four findings on promised Gaussian noise: scale, every entry, both worlds, independence."""
    guarantee = mechanism.guarantee(num_steps)
    sigma = guarantee.noise_scale
    if sigma is None:
        why = (
            f"{guarantee.mechanism} (status {guarantee.status}) promises no Gaussian noise of one"
            " scale"
        )
        return [not_applicable(f"noise: {name}", "no scale is claimed", why) for name in NAMES]
    choose_key, run_key, draw_key, pair_key = jax.random.split(key, 4)
    tried = neighbours.choose(
        choose_key,
        ratings,
        data,
        unit=guarantee.unit,
        num=num_neighbours,
        change=guarantee.largest_change,
    )
    other = transcript.neighbour_at(data, tried.stacked, 0, unit=tried.unit)
    run = transcript.record(mechanism, run_key, data, num_steps)
    if jax.tree.structure(run.responses) != jax.tree.structure(run.statistics):
        why = "the response is not shaped like the statistics, so the noise is not additive"
        return [not_applicable(f"noise: {name}", "additive Gaussian noise", why) for name in NAMES]
    first = transcript.first_step(run)
    second = transcript.first_step(transcript.record(mechanism, run_key, other, num_steps))
    worlds = Statistics(jax.tree.map(np.zeros_like, first), first, second)
    entries = sum(leaf.size for leaf in jax.tree.leaves(first))
    num = int(np.clip(-(-DRAWS // entries), 32, max(32, MOST // entries)))
    keys = jax.random.split(draw_key, len(worlds))
    drawn = [
        _flat(_draws(mechanism.noise.sample, k, w, num)) for k, w in zip(keys, worlds, strict=True)
    ]
    replay = {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "pair": neighbours.describe(ratings, tried, 0),
    }
    along = [
        _difference(np.asarray(r), np.asarray(q)).reshape(len(r), -1)
        for r, q in zip(
            jax.tree.leaves(run.responses), jax.tree.leaves(run.statistics), strict=True
        )
    ]
    whole = not any(map(_is_float, jax.tree.leaves(first)))
    return [
        _scale(drawn, sigma, guarantee.delta, num_steps * entries, replay, whole=whole),
        _every_entry(drawn, worlds, sigma, replay, whole=whole),
        _both_worlds(mechanism, pair_key, worlds, sigma, num, replay),
        _independence(along, sigma, replay),
    ]


NAMES = ("scale", "every entry", "both worlds", "independence")


def _is_float(leaf: Any) -> bool:
    return np.issubdtype(leaf.dtype, np.floating)


def _difference(response: np.ndarray, statistics: np.ndarray) -> np.ndarray:
    """float64: the noise of a response; of sums mod 2^32 the signed one."""
    if _is_float(response):
        return response.astype(np.float64) - statistics.astype(np.float64)
    return signed(response - statistics)


def _flat(tree: Any) -> np.ndarray:
    """float64[draws, entries] of a tree of draws."""
    leaves = [signed(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _within_cells(values: np.ndarray) -> np.ndarray:
    """Whole numbers, each spread over its cell: rounded normals become normals, but for a share of
    1/(24σ²).
    """
    return values + np.random.default_rng(0).random(values.shape) - 0.5


def kolmogorov_smirnov(values: np.ndarray, sigma: float) -> float:
    """sup |F_n - F| of `values` against N(0, σ²)."""
    from scipy.special import ndtr

    expected = ndtr(np.sort(values.ravel()) / sigma)
    rank = np.arange(len(expected) + 1) / len(expected)
    return float(max(np.max(rank[1:] - expected), np.max(expected - rank[:-1])))


def critical_distance(num: int, alpha: float) -> float:
    """d with P(sup |F_n - F| > d) ≤ alpha, for every n and F (Massart 1990)."""
    return math.sqrt(math.log(2 / alpha) / (2 * num))


def detectable_scales(num: int, alpha: float) -> tuple[float, float]:
    """The scales nearest to 1, (below, above), that the test at `alpha` rejects.

    With probability of at least 0.95, by the bound of `critical_distance`.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    need = critical_distance(num, alpha) + critical_distance(num, 2 * 0.05)

    def distance(s: float) -> float:
        x = s * math.sqrt(2 * math.log(s) / (s**2 - 1))  # where the two densities cross
        return float(ndtr(x) - ndtr(x / s))

    if distance(1e6) <= need:
        return 0.0, math.inf
    above = float(brentq(lambda s: distance(s) - need, 1 + 1e-9, 1e6))
    return 1 / above, above  # the distance between scales depends on their ratio alone


def _scale(
    drawn: list[np.ndarray],
    sigma: float,
    delta: float,
    total: int,
    replay: dict[str, Any],
    *,
    whole: bool = False,
) -> Finding:
    from scipy.stats import chi2

    samples = [values.ravel()[: 1 << 20] for values in drawn]
    samples = list(map(_within_cells, samples)) if whole else samples
    alpha = ALPHA / len(samples)
    limits = [critical_distance(len(values), alpha) for values in samples]
    distance = [kolmogorov_smirnov(values, sigma) for values in samples]
    worst = int(np.argmax(np.array(distance) / limits))
    values = samples[worst]
    squares, n = float(np.sum(values**2)), len(values)
    low, high = detectable_scales(n, alpha)
    return Finding(
        audit="noise: scale",
        claim=f"the noise is N(0, σ²), σ = {sigma:.6g}, whatever the ratings",
        measured=math.sqrt(squares / n),
        claimed=sigma,
        lower=math.sqrt(squares / chi2.isf(0.025, n)),
        upper=math.sqrt(squares / chi2.isf(0.975, n)),
        confidence=0.95,
        verdict="violated" if distance[worst] > limits[worst] else "consistent",
        details={
            "ks_distance": distance[worst],
            "ks_limit": limits[worst],
            "alpha": ALPHA,
            "draws": n,
            "world": Statistics._fields[worst],
            "power": (
                f"a scale below {low:.4f}σ or above {high:.4f}σ would be seen with probability 0.95"
            ),
            **({} if whole else {"float32": _float32(delta, total)}),
            "replay": replay,
        },
    )


def _float32(delta: float, total: int) -> dict[str, Any]:
    """What float32 normals cannot reach, over so many draws."""
    from scipy.special import ndtr

    return {
        "distinct_values": 2**23,
        "support": SUPPORT,
        "mass_beyond_support_all_draws": min(1.0, float(2 * ndtr(-SUPPORT)) * total),
        "delta": delta,
        "note": (
            "float32 normals are not the real ones that the price is for; the guarantee assumes"
            " them to be"
        ),
    }


def _every_entry(
    drawn: list[np.ndarray],
    worlds: Statistics,
    sigma: float,
    replay: dict[str, Any],
    *,
    whole: bool,
) -> Finding:
    """Each entry by itself, and entries together whose statistics are about as large."""
    from scipy.stats import chi2

    variance = sigma**2 + (1 / 12 if whole else 0.0)  # of a rounded normal, but for e^(-2π²σ²)
    ratios = np.stack([np.mean(values**2, axis=0) / variance for values in drawn])
    num = len(drawn[0])
    groups = [
        (Statistics._fields[place], group, float(np.mean(ratios[place, group])))
        for place in (1, 2)  # of the empty world all statistics are as large
        for group in _by_size(worlds[place])
    ]
    alpha = ALPHA / (2 * (ratios.size + len(groups)))
    low, high = chi2.isf(1 - alpha, num) / num, chi2.isf(alpha, num) / num
    outside = (ratios < low) | (ratios > high)
    away = np.abs(np.log(np.maximum(ratios, 1e-300)))
    place, entry = np.unravel_index(int(np.argmax(away)), ratios.shape)
    measured, world = float(ratios[place, entry]), Statistics._fields[int(place)]
    uneven = [
        (world, group, ratio)
        for world, group, ratio in groups
        for free in (num * len(group),)
        if not chi2.isf(1 - alpha, free) <= ratio * free <= chi2.isf(alpha, free)
    ]
    where: dict[str, Any] = {"worst_entry": int(entry), "world": world}
    if uneven and not outside.any():
        world, group, measured = max(uneven, key=lambda one: abs(math.log(max(one[2], 1e-300))))
        where = {"worst_entries": [int(at) for at in group[:8]], "world": world}
    seen = math.sqrt(2 / (num * max(1, ratios.shape[1] // GROUPS)))
    return Finding(
        audit="noise: every entry",
        claim="every entry of every declared row gets noise of the same scale",
        measured=math.sqrt(measured),
        claimed=1.0,
        verdict="violated" if outside.any() or uneven else "consistent",
        details={
            "entries": int(ratios.shape[1]),
            "entries_outside": int(outside.any(axis=0).sum()),
            "groups_outside": len(uneven),
            **where,
            "alpha": ALPHA,
            "power": (
                f"an entry without noise, or with its scale below {math.sqrt(low):.2f}σ or above "
                f"{math.sqrt(high):.2f}σ over {num} draws; and a scale about {3.5 * seen:.2g} away"
                " of the entries whose statistics are about as large"
            ),
            "unit_of_measurement": "root mean square of the worst entry or entries, in σ",
            "replay": replay,
        },
    )


def _by_size(statistics: Any) -> list[np.ndarray]:
    """Indices of entries, in `GROUPS` groups from the smallest statistics to the largest."""
    sizes = np.abs(
        np.concatenate([signed(np.asarray(leaf)).ravel() for leaf in jax.tree.leaves(statistics)])
    )
    order = np.argsort(sizes, kind="stable")
    return np.array_split(order, GROUPS) if len(order) >= 2 * GROUPS else []


def _both_worlds(
    mechanism: Mechanism,
    key: jax.Array,
    worlds: Statistics,
    sigma: float,
    num: int,
    replay: dict[str, Any],
) -> Finding:
    from scipy.stats import ks_2samp

    claim = "the same key draws the same noise in both worlds, and on empty ratings"
    drawn = [_flat(_draws(mechanism.noise.sample, key, world, num)) for world in worlds]
    gap = max(
        float(np.max(np.abs(drawn[a] - drawn[b]))) for a, b in itertools.combinations(range(3), 2)
    )
    floats = [leaf for world in worlds for leaf in jax.tree.leaves(world) if _is_float(leaf)]
    # A sum rounds at the size of what the noise is added to; the subtraction shows that rounding.
    # Whole numbers are not rounded.
    largest = max((float(np.max(np.abs(leaf))) for leaf in floats), default=0.0)
    limit = 4 * 2.0**-23 * (largest + 6 * sigma) if floats else 0.0
    details = {
        "limit": limit / sigma,
        "unit_of_measurement": "largest difference, in σ",
        "replay": replay,
    }
    if gap <= limit:
        power = f"exact: any difference{' above float32 rounding' if floats else ''}"
        verdict: Any = "consistent"
    else:
        flat = [values.ravel()[: 1 << 20] for values in drawn]
        p = min(ks_2samp(flat[a], flat[b]).pvalue for a, b in itertools.combinations(range(3), 2))
        if p > ALPHA / 3:
            why = "the noise differs between worlds, its distribution was not seen to"
            return inconclusive("noise: both worlds", claim, why, p_value=float(p), **details)
        power, verdict = "exact", "violated"
        details |= {"p_value": float(p), "alpha": ALPHA}
    return Finding(
        audit="noise: both worlds",
        claim=claim,
        measured=gap / sigma,
        claimed=0.0,
        verdict=verdict,
        details=details | {"power": power},
    )


def _independence(leaves: list[np.ndarray], sigma: float, replay: dict[str, Any]) -> Finding:
    """Cosines between the noise of all pairs of steps and leaves.

    Of independent Gaussians in R^n, cos² is Beta(½, (n - 1)/2).
    """
    from scipy.stats import beta

    claim = (
        "the noise of different steps and of different leaves is independent: no key is used twice"
    )
    vectors = [
        (leaf, step, row / sigma)
        for leaf, rows in enumerate(leaves)
        for step, row in enumerate(rows)
    ]
    if len(vectors) < 2:
        return not_applicable("noise: independence", claim, "a single vector of noise")
    pairs = math.comb(len(vectors), 2)
    worst, measured, at = math.inf, 0.0, (0, 0)
    by_length = {
        n: np.stack([v[:n] for _, _, v in vectors if len(v) >= n])
        for n in {len(v) for _, _, v in vectors}
    }
    where = {n: [i for i, (_, _, v) in enumerate(vectors) if len(v) >= n] for n in by_length}
    for n, rows in by_length.items():
        norm = np.linalg.norm(rows, axis=1, keepdims=True)
        unit = rows / np.where(norm > 0, norm, 1)
        cosine = np.abs(np.triu(unit @ unit.T, 1))
        a, b = np.unravel_index(int(np.argmax(cosine)), cosine.shape)
        p = float(beta.sf(min(1.0, float(cosine[a, b]) ** 2), 0.5, (n - 1) / 2)) if n > 1 else 1.0
        if p < worst:
            worst, measured, at = p, float(cosine[a, b]), (where[n][a], where[n][b])
    alpha = ALPHA / (pairs * len(by_length))
    names = [{"leaf": vectors[i][0], "step": vectors[i][1]} for i in at]
    visible = math.sqrt(float(beta.isf(alpha, 0.5, max(min(by_length) - 1, 1) / 2)))
    return Finding(
        audit="noise: independence",
        claim=claim,
        measured=measured,
        claimed=0.0,
        verdict="violated" if worst <= alpha else "consistent",
        details={
            "pairs": pairs,
            "steps": len(leaves[0]),
            "p_value": worst,
            "alpha": ALPHA,
            "worst_pair": names,
            "power": f"a cosine of {visible:.2f} between two steps or leaves",
            "unit_of_measurement": "largest |cosine| between two vectors of noise",
            "replay": replay,
        },
    )
