"""What chance draws for a report: the coordinate, and the bit against its enumerated law.

The tests are exact binomial tests and chi square, at `finding.ALPHA`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audits.finding import ALPHA, Finding, inconclusive
from audits.transcript import step_statistics
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.noise.laws import Noise, Report
from dpmf_jax.protocol import Mechanism, State

ENTRIES = (-1.0, -0.4, 0.0, 0.7, 1.0)  # that the sampler is tried on
DRAWS = 1 << 18  # bits at each of them, and coordinates in all; at least
DRAWS_EACH = 64  # bits of every user, at least
TESTS = 3  # of coordinates
EXPECTED = 50  # coordinates in a cell of the chi square, at least


# --- coordinates


class Uniform(NamedTuple):
    """Three tests of uniform coordinates.

    Attributes:
      p_value: of the three together.
      rows, columns: the ranges that were drawn.
      cells: of the finest test.
      draws: in all.
      visible: a cell drawn so many times as often as it should be is found with probability 0.95.
    """

    p_value: float
    rows: int
    columns: int
    cells: int
    draws: int
    visible: float


def coordinates(
    mechanism: Mechanism, key: jax.Array, state: State, data: Layout
) -> tuple[np.ndarray, np.ndarray]:
    """(row, column), int32[draws, users], that users are asked for in a state. Spends `key`."""
    row, column = _coordinates(mechanism, key, state, data, -(-DRAWS // data.num_users))
    return np.asarray(row), np.asarray(column)


def uniform(row: np.ndarray, column: np.ndarray) -> Uniform:
    """Tests whether coordinates int32[draws, users] are uniform, and each user's its own.

    Over (row, column), neighbouring ones taken together; over columns; and over pairs of users with
    the same row. The range is what was drawn: a last row that is never asked for tells nobody
    anything.
    """
    low, rows, columns = min(row.min(), column.min()), int(row.max()) + 1, int(column.max()) + 1
    if low < 0:
        return Uniform(0.0, rows, columns, 0, row.size, math.inf)  # no coordinate at all
    fine, cells = _chi_square((row.astype(np.int64) * columns + column).ravel(), rows * columns)
    coarse, _ = _chi_square(column.ravel(), columns)
    pairs = row[:, : row.shape[1] // 2 * 2].reshape(-1, 2)
    apart = float(binomial_p_value(np.sum(pairs[:, 0] == pairs[:, 1]), len(pairs), 1 / rows))
    p_value = min(1.0, TESTS * min(fine, coarse, apart))
    return Uniform(p_value, rows, columns, cells, row.size, _visible_cell(row.size, cells))


@partial(jax.jit, static_argnames="num")
def _coordinates(
    mechanism: Mechanism, key: jax.Array, state: State, data: Layout, num: int
) -> tuple[jax.Array, jax.Array]:
    """(row, column) of every user, int32[num, users]; entries are not used, so not computed."""

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        report = step_statistics(mechanism, state, data, key)
        return report.row, report.column

    return jax.lax.map(one, jax.random.split(key, num))


def _chi_square(place: np.ndarray, places: int) -> tuple[float, int]:
    """(p-value, number of cells) of `place`, int[draws], uniform in range(places).

    Places are put into cells that are hit `EXPECTED` times or more.
    """
    from scipy.stats import chisquare

    cells = min(places, max(1, len(place) // EXPECTED))
    sizes = np.bincount(np.arange(places) * cells // places, minlength=cells)
    counts = np.bincount(place * cells // places, minlength=cells)
    return (
        float(chisquare(counts, sizes * (len(place) / places)).pvalue) if cells > 1 else 1.0
    ), cells


def _visible_cell(num: int, cells: int) -> float:
    from scipy.optimize import brentq
    from scipy.stats import chi2, ncx2

    if cells < 2:
        return math.inf
    critical = chi2.isf(ALPHA / TESTS, cells - 1)
    need = float(brentq(lambda away: ncx2.sf(critical, cells - 1, away) - 0.95, 1e-9, 1e6))
    return 1 + math.sqrt(need * (1 - 1 / cells) * cells / num)


# --- bits


class Drawn(NamedTuple):
    """What users say at one entry, over all draws.

    Attributes:
      ones, minus: int32[users], how often each says 1, and -1.
      alike: pairs of users that say the same.
      misplaced: reports of another coordinate than asked for, or of a user who was to be silent.
    """

    ones: jax.Array
    minus: jax.Array
    alike: jax.Array
    misplaced: jax.Array


class Share(NamedTuple):
    """The test of one share: its p-value, what was observed and expected, and where."""

    p_value: float
    observed: float
    expected: float
    where: dict[str, Any]


@partial(jax.jit, static_argnames="num")
def _draw(noise: Noise, key: jax.Array, like: Report, entry: jax.Array, num: int) -> Drawn:
    everybody = jnp.ones_like(like.sent)
    asked = like._replace(value=jnp.full_like(like.value, entry), sent=everybody)
    silent = asked._replace(sent=~everybody)

    def one(key: jax.Array) -> Drawn:
        said, nothing = noise.sample(key, asked), noise.sample(key, silent)
        pairs = said.value[: said.value.shape[0] // 2 * 2].reshape(-1, 2)
        misplaced = jnp.sum((said.row != like.row) | (said.column != like.column)) + jnp.sum(
            nothing.value != 0
        )
        return Drawn(
            said.value == 1, said.value == -1, jnp.sum(pairs[:, 0] == pairs[:, 1]), misplaced
        )

    batch = max(1, min(num, (1 << 16) // len(like.value)))
    drawn = jax.lax.map(one, jax.random.split(key, num), batch_size=batch)
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=jnp.int32), drawn)


def sampler(
    name: str,
    noise: Noise,
    key: jax.Array,
    like: Report,
    laws: list[np.ndarray],
    ratings: Ratings,
    replay: dict[str, Any],
) -> Finding:
    """Bits of all users at `ENTRIES` against the law: all together, the worst user, pairs of users.

    Args:
      like: reports of all users; their coordinates are asked for.
      laws: P(1) at `ENTRIES`, of the first user and of the last.
    """
    claim = "each user's bit is drawn as the enumerated law says, apart from all others"
    if not np.allclose(*laws, rtol=1e-9, atol=0) or not np.all((laws[0] >= 0) & (laws[0] <= 1)):
        return inconclusive(name, claim, "users have laws of their own, or none", replay=replay)
    users = len(like.value)
    num = max(DRAWS_EACH, -(-DRAWS // users))
    misplaced, tests = 0, []
    for entry, p, draw_key in zip(
        ENTRIES, laws[0].tolist(), jax.random.split(key, len(ENTRIES)), strict=True
    ):
        drawn = jax.device_get(_draw(noise, draw_key, like, np.float32(entry), num))
        ones, minus, pairs = int(drawn.ones.sum()), int(drawn.minus.sum()), num * (users // 2)
        misplaced += int(drawn.misplaced) + users * num - ones - minus
        apart = binomial_p_value(drawn.ones, num, p)
        worst, same = int(np.argmin(apart)), p**2 + (1 - p) ** 2
        who = {"entry": entry, "whose": ratings.users[worst].item()}
        everybody, pair = (
            {"entry": entry, "whose": "all"},
            {"entry": entry, "whose": "pairs that say the same"},
        )
        tests += [
            Share(min(1.0, users * float(apart[worst])), float(drawn.ones[worst]) / num, p, who),
            Share(
                float(binomial_p_value(ones, users * num, p)), ones / (users * num), p, everybody
            ),
            Share(
                float(binomial_p_value(int(drawn.alike), pairs, same)),
                int(drawn.alike) / max(pairs, 1),
                same,
                pair,
            ),
        ]
    worst = min(tests, key=lambda test: test.p_value)
    alpha = ALPHA / len(tests)
    return Finding(
        audit=name,
        claim=claim,
        measured=worst.observed,
        claimed=worst.expected,
        verdict="violated" if misplaced or not worst.p_value > alpha else "consistent",
        details={
            "p_value": min(1.0, worst.p_value * len(tests)),
            "alpha": ALPHA,
            "draws": users * num * len(ENTRIES),
            "neither_bit_or_misplaced": misplaced,
            "where": worst.where,
            "unit_of_measurement": "share of ones, or of equal bits, where it fits worst",
            "power": (
                f"a probability off by {visible_share(users * num, alpha):.4f} for everybody, or by"
                f" {visible_share(num, alpha / users):.3f} for one user, would be seen with"
                " probability 0.95"
            ),
            "replay": replay,
        },
    )


def binomial_p_value(count: Any, num: int, probability: float) -> np.ndarray:
    """Twice the smaller tail; it is at most alpha with a chance of at most alpha, exactly."""
    from scipy.stats import binom

    below, above = (
        binom.cdf(count, num, probability),
        binom.sf(np.asarray(count) - 1, num, probability),
    )
    return np.asarray(np.minimum(1.0, 2 * np.minimum(below, above)))


def visible_share(num: int, alpha: float) -> float:
    """How far a share of `num` draws must be off to be found with probability 0.95, about."""
    from scipy.special import ndtri

    return min(1.0, float(-ndtri(alpha / 2) - ndtri(0.05)) / (2 * math.sqrt(num)))
