"""Is the density that comes with a sampler the sampler's density?

Prices and attacks by likelihood ratios trust `log_prob` and `log_ratio`. Both are claims too: that
the ratio is the difference of the log-densities, and that e^(-L) has mean 1 under the sampler, for
L = log_ratio(response, statistics, other).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audits import neighbours, side_by_side, transcript
from audits.finding import ALPHA, Finding, inconclusive, not_applicable
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.noise.laws import Noise, Report
from dpmf_jax.protocol import Mechanism

DRAWS, LEAST = 1 << 14, 512  # responses drawn, usually and at least
CHUNK = 256  # responses of a call, and of the pilot
ENTRIES = 1 << 31  # of all responses together, at most, as long as there are `LEAST`
SIDE_BY_SIDE = 1 << 22  # entries of those that are drawn at once
SPREAD = 0.7  # standard deviation of L that the two statistics are stretched to, with all `DRAWS`
TOLERANCE = 1e-5
NAMES = ("density: log_ratio", "density: sampler")
CLAIMS = (
    "log_ratio is the difference of two log_prob",
    "log_ratio is that of the sampler: the mean of exp(-L) is 1",
)


@partial(jax.jit, static_argnames="batch")
def _losses(noise: Noise, keys: jax.Array, statistics: Any, other: Any, *, batch: int) -> jax.Array:
    """L = log_ratio(response, statistics, other) of responses to `statistics`, float32[keys]."""
    return jax.lax.map(
        lambda k: noise.log_ratio(noise.sample(k, statistics), statistics, other),
        keys,
        batch_size=batch,
    )


def losses(noise: Noise, key: jax.Array, statistics: Any, other: Any, num: int) -> np.ndarray:
    """L of `num` responses, a multiple of `CHUNK`; on the host, in float64."""
    entries = max(1, sum(leaf.size for leaf in jax.tree.leaves(statistics)))
    batch = int(np.clip(SIDE_BY_SIDE // entries, 1, 64))

    def drawn(keys: jax.Array) -> np.ndarray:
        return np.asarray(_losses(noise, keys, statistics, other, batch=batch), np.float64)

    return np.concatenate(
        side_by_side.calls(drawn, list(jax.random.split(key, num).reshape(-1, CHUNK)))
    )


def stretch(statistics: Any, other: Any, factor: float) -> Any:
    """statistics + factor · (other - statistics).

    Reports stay within [-1, 1], sums mod 2^32 move in whole steps, and what is neither a float nor
    mod 2^32 is `other`'s.
    """

    def apart(a: Any, b: Any) -> Any:
        if jnp.issubdtype(a.dtype, jnp.floating):
            return (a + factor * (b - a)).astype(a.dtype)
        if a.dtype != np.uint32:
            return b
        steps = np.rint(factor * (np.asarray(b) - np.asarray(a)).view(np.int32).astype(np.float64))
        return np.asarray(a) + np.clip(steps, -(2.0**30), 2.0**30).astype(np.int64).astype(
            np.uint32
        )

    moved = jax.tree.map(apart, statistics, other)
    return moved._replace(value=np.clip(moved.value, -1, 1)) if isinstance(moved, Report) else moved


def _wide(leaf: Any) -> np.ndarray:
    return (
        np.asarray(leaf, np.float64)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
        else np.asarray(leaf)
    )


@jax.jit
def _densities(
    noise: Noise, response: Any, statistics: Any, other: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    log_prob = noise.log_prob
    return (
        noise.log_ratio(response, statistics, other),
        log_prob(response, statistics),
        log_prob(response, other),
    )


def log_ratio_error(noise: Noise, response: Any, statistics: Any, other: Any) -> float:
    """|log_ratio - (log_prob - log_prob′)| relative to 1 + |log_ratio|, in float64."""
    with jax.enable_x64(True):
        wide = (jax.tree.map(_wide, tree) for tree in (response, statistics, other))
        ratio, here, there = map(float, _densities(noise, *wide))
    difference = here - there
    if math.isinf(ratio) or math.isinf(difference):
        return 0.0 if ratio == difference else math.inf
    return abs(ratio - difference) / (1 + abs(ratio))


def audit(
    mechanism: Mechanism, ratings: Ratings, data: Layout, *, key: jax.Array, num_steps: int
) -> list[Finding]:
    """Two findings: log_ratio, which is exact in float64, and sampler.

    On the first step's statistics of the data set and of a neighbour, the first of eight in which
    they differ; for the sampler they are stretched apart until L varies.

    The sampler's false alarms are at `finding.ALPHA` by the central limit theorem, over 16,384
    responses. Of large statistics there are fewer, stretched less, so that it holds too.
    """
    noise, guarantee = mechanism.noise, mechanism.guarantee(num_steps)
    unit = guarantee.unit
    choose_key, run_key, pilot_key, draw_key = jax.random.split(key, 4)
    tried = neighbours.choose(
        choose_key, ratings, data, unit=unit, num=8, change=guarantee.largest_change
    )
    run = transcript.record(mechanism, run_key, data, num_steps)
    statistics = other = transcript.first_step(run)
    position = 0
    for position in range(tried.num):
        other_data = transcript.neighbour_at(data, tried.stacked, position, unit=unit)
        other = transcript.first_step(transcript.record(mechanism, run_key, other_data, num_steps))
        if not all(jax.tree.leaves(jax.tree.map(np.array_equal, statistics, other))):
            break
    response = jax.tree.map(lambda leaf: np.asarray(leaf[0]), run.responses)
    replay = {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "pair": neighbours.describe(ratings, tried, position),
    }
    error = log_ratio_error(noise, response, statistics, other)
    ratio = Finding(
        audit=NAMES[0],
        claim=CLAIMS[0],
        measured=error,
        claimed=0.0,
        verdict="violated" if not error <= TOLERANCE else "consistent",
        details={
            "limit": TOLERANCE,
            "unit_of_measurement": "error relative to 1 + |log_ratio|",
            "power": "exact for this response and pair, in float64",
            "replay": replay,
        },
    )
    pilot = losses(noise, pilot_key, statistics, other, CHUNK)
    spread = float(np.std(pilot)) if np.all(np.isfinite(pilot)) else 0.0
    if not spread > 0:
        why = (
            "log_ratio is infinite or constant: the response has no density, or the two worlds do"
            " not differ"
        )
        return [ratio, not_applicable(NAMES[1], CLAIMS[1], why)]
    entries = sum(leaf.size for leaf in jax.tree.leaves(statistics))
    num = int(np.clip(ENTRIES // entries, LEAST, DRAWS)) // CHUNK * CHUNK
    apart = stretch(statistics, other, SPREAD * math.sqrt(num / DRAWS) / spread)
    return [ratio, _sampler(losses(noise, draw_key, statistics, apart, num), replay)]


def _sampler(drawn: np.ndarray, replay: dict[str, Any]) -> Finding:
    from scipy.special import ndtri

    if not np.isfinite(drawn).all():
        return inconclusive(NAMES[1], CLAIMS[1], "log_ratio is not finite", replay=replay)
    weights = np.exp(-drawn)
    mean, error = float(np.mean(weights)), float(np.std(weights) / math.sqrt(len(weights)))
    z = float(-ndtri(ALPHA / 2))
    return Finding(
        audit=NAMES[1],
        claim=CLAIMS[1],
        measured=mean,
        claimed=1.0,
        lower=mean - 1.96 * error,
        upper=mean + 1.96 * error,
        confidence=0.95,
        verdict="violated" if not abs(mean - 1) <= z * error else "consistent",
        details={
            "draws": len(weights),
            "standard_deviation_of_L": float(np.std(drawn)),
            "alpha": ALPHA,
            "power": (
                f"a mean that is off by {(z + 1.65) * error:.4f} would be seen with probability"
                " 0.95"
            ),
            "replay": replay,
        },
    )
