"""The whole law of one report: the probability of every output, for every entry tried."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audits.mechanism.enumeration_worlds import World
from dpmf_jax.noise.laws import Noise, Report

OUTPUTS = (-1.0, 0.0, 1.0)  # 0 is what is not sent
LEAST = float(np.finfo(np.float32).tiny)
EXTREMES = (
    *(-1.0, 1.0, 0.0, -0.0, 0.5, -0.5, 2.0, -2.0, 1e30, -1e30, math.inf, -math.inf, math.nan),
    *(
        LEAST,
        -LEAST,
        1e-45,
        -1e-45,
        2.0**-24,
        1 - 2.0**-24,
        2.0**-24 - 1,
        1 + 2.0**-23,
        -1 - 2.0**-23,
    ),
)
ENTRIES = 128  # of those that a user's worlds had, at most


class Table(NamedTuple):
    """The law of one user's report.

    Attributes:
      entry: float32[entries].
      log: float64[entries, outputs], the log-probabilities of `OUTPUTS`.
    """

    entry: np.ndarray
    log: np.ndarray


def table(noise: Noise, like: Report, user: int, entries: np.ndarray) -> Table:
    """The law of one user's report for each entry, in float64, where nobody else sends one.

    like: reports of all users; their coordinates are those of the law.
    """
    with jax.enable_x64(True):
        log = _log_probs(noise.log_prob, like, user, entries.astype(np.float64), np.array(OUTPUTS))
    return Table(entries, np.asarray(log))


@jax.jit
def _log_probs(
    log_prob: Any, like: Report, user: Any, entries: jax.Array, outputs: jax.Array
) -> jax.Array:
    own = jnp.arange(like.value.shape[0]) == user

    def one(entry: jax.Array) -> jax.Array:
        asked = like._replace(value=jnp.where(own, entry, 0), sent=own)
        return jax.vmap(
            lambda output: log_prob(asked._replace(value=jnp.where(own, output, 0)), asked)
        )(outputs)

    return jax.lax.map(one, entries, batch_size=max(1, min(len(entries), (1 << 20) // len(own))))


def entries(random: np.random.Generator, user: int, worlds: list[World]) -> np.ndarray:
    """Entries to try: extreme floats, random ones, and those of the user's worlds.

    The random ones lie within and around [-1, 1], or are of any size.
    """
    asked = [
        seen.asked for world in worlds if world.user == user for seen in (world.seen, world.before)
    ]
    had = np.unique(np.concatenate([report.value[report.sent] for report in asked]))
    had = np.concatenate([had[:1], had[-1:], random.permutation(had)])[:ENTRIES]
    bits = random.integers(0, 1 << 32, 32, dtype=np.uint32).view(np.float32)
    bits = np.where(np.isnan(bits), np.float32(np.nan), bits)  # the quiet one
    return np.concatenate(
        [
            np.array(EXTREMES, np.float32),
            random.uniform(-1.2, 1.2, 64).astype(np.float32),
            bits,
            had,
        ]
    )


def largest_ratio(law: Table) -> tuple[float, dict[str, Any]]:
    """(largest log-ratio of one output's probabilities under two entries, where it is).

    NaN where a log-probability is.
    """
    low, high = np.argmin(law.log, axis=0), np.argmax(law.log, axis=0)
    least, most = (law.log[at, np.arange(len(OUTPUTS))] for at in (low, high))
    with np.errstate(invalid="ignore"):
        ratio = np.where(least == most, 0.0, most - least)
    at = int(np.argmax(ratio))
    entry, other = (float(law.entry[place[at]]) for place in (high, low))
    return float(ratio[at]), {"output": OUTPUTS[at], "entry": entry, "other_entry": other}
