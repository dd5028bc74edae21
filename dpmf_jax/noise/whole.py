"""Normal noise in whole numbers: q + ⌊Z⌉ for whole q and Z ~ N(0, σ²), drawn from tables.

Statistics are whole numbers, in units of a public grid, as elements of Z_2^32 (`ring`): sums are
exact in any order, and what leaves the range wraps around. σ is in these units. For a whole q

    q + ⌊Z⌉ = ⌊q + Z⌉,

so the response is a function of q + Z, which is what the Gaussian mechanism releases with real
numbers. Its exact price holds as it is, step by step, and for whatever is computed of the response.
No float is between the statistics and the response.

**Two tables.** Up to σ = 528 one table has the law of ⌊Z⌉. Beyond, Z is the sum of a fine and a
coarse part: Z₁ ~ N(0, σ₁²), and B·Y, where P(Y = y) ∝ exp(-y²/(2s²)) and σ₁² + B²s² = σ². At t the
density of Z₁ + B·Y is proportional to

    exp(-t²/(2σ²)) · Σ_y exp(-(y - m)²/(2s₀²)),   m = B·s²·t/σ²,   s₀ = σ₁·s/σ.

By Poisson's summation formula the sum is s₀√(2π)·(1 + 2Σ_{j≥1} cos(2πjm)·exp(-2π²s₀²j²)): the same
for every t, but for a share of less than 2.1·exp(-2π²s₀²). Here s₀ > 2.49, so it is below 2^-175.
As B·Y is whole, ⌊Z₁ + B·Y⌉ = ⌊Z₁⌉ + B·Y: one draw from each table.

**What is left.** A draw is not exactly ⌊Z⌉: tables are cut and rounded (`tables`), and the sum
above is not quite constant. `DISTANCE` bounds the total variation of a draw. Over n draws, however
adaptive, the whole transcript is within n·DISTANCE of one with exact draws (replace one draw after
the other). If that one is (ε, δ) private, this one is (ε, δ + (1 + e^ε)·n·DISTANCE): an event has
probability at most p′ + n·DISTANCE in the one world, p′ ≤ e^ε·q′ + δ, and q′ ≤ q + n·DISTANCE in
the other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from dpmf_jax.noise import bits, rare, ring, tables
from dpmf_jax.noise.laws import Noise
from dpmf_jax.noise.ring import signed
from dpmf_jax.noise.tables import CELL_BITS

PyTree = Any

WIDEST = 528.0  # σ of one table: 31·σ cells of 2^14
FINE = Fraction(5, 2)  # σ₁/B
LARGEST = 111_000.0  # σ that two tables hold
# of a draw: both tables, and 2.1·exp(-2π²s₀²) < 2^-175 on either side
DISTANCE = 2 * tables.DISTANCE + 2.0**-174


class Law(NamedTuple):
    """The law of one draw.

    scale: float32[], σ.
    stride: int32[], B; 0 where one table holds the law.
    threshold: uint32[2, 5, 2^14], of the coarse table and the fine one: `tables.Table`.
    alias: int32[2, 2^14], of both.
    first: int32[2], of both.
    """

    scale: jax.Array
    stride: jax.Array
    threshold: jax.Array
    alias: jax.Array
    first: jax.Array


def rounded_normal(scale: float) -> Noise:
    """uint32 statistics -> uint32 response: ⌊q + N(0, scale²)⌉ in every entry, mod 2^32.

    scale: σ in units of the statistics, a number that float32 has, from 2^-20 to 111,000.

    Guarantee: that of the Gaussian mechanism of real numbers with σ = scale, see the module; each
      draw is within `DISTANCE` of its law. Wrapping around is post-processing.

    Raises: ValueError for a scale outside the range, or one that float32 does not have.
    """
    law = Law(*map(jnp.asarray, numbers(float(scale))))
    return Noise(
        sample=Partial(_sample, law),
        log_prob=Partial(_log_prob, law.scale),
        log_ratio=Partial(_log_ratio, law.scale),
    )


def silenced(sample: Any) -> Any:
    """The same sampler without noise: the same program on other numbers.

    What is no sampler of `rounded_normal` comes back as it is.
    """
    if not (isinstance(sample, Partial) and sample.func is _sample):
        return sample
    constant = tables.constant()
    both = (np.stack([part, part]) for part in constant)
    return Partial(_sample, Law(jnp.float32(0), jnp.int32(0), *map(jnp.asarray, both)))


@functools.lru_cache(maxsize=64)
def numbers(scale: float) -> tuple[Any, ...]:
    """The fields of a `Law`, on the host."""
    if not (2.0**-20 <= scale <= LARGEST and float(np.float32(scale)) == scale):
        raise ValueError(
            f"scale must be a float32 number from 2^-20 to {LARGEST:g} units, got {scale!r}"
        )
    variance, stride = Fraction(scale) ** 2, 0
    coarse, fine = tables.constant(), variance
    if scale > WIDEST:
        stride, coarse_variance = _cut(variance)
        coarse, fine = tables.discrete_normal(coarse_variance), (FINE * stride) ** 2
    both = (coarse, tables.rounded_normal(fine))
    stacked = (np.stack(parts) for parts in zip(*both, strict=True))
    return np.float32(scale), np.int32(stride), *stacked


def _cut(variance: Fraction) -> tuple[int, Fraction]:
    """(B, s²): the smallest stride whose coarse table is no wider than one may be."""
    stride = math.isqrt(math.floor(variance / (Fraction(WIDEST) ** 2 + FINE**2))) + 1
    return stride, (variance - (FINE * stride) ** 2) / stride**2


# --- drawing


@functools.partial(jax.jit, static_argnames="shape")
def draw(law: Law, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """uint32[shape], independent: the noise itself, mod 2^32. Spends `key`.

    Three words a draw: the cells of both tables, and the first word of each threshold. The other
    words are drawn only where some draw cannot be told by its first, once in 2^31.
    """
    first_key, further_key = jax.random.split(key)
    drawn = _by_first_words(law, bits.random_words(first_key, 3, shape))
    decided = rare.where_any(_undecided, _by_all_words, rare.first, drawn, law, further_key)
    return jax.lax.bitcast_convert_type(decided, jnp.uint32)


def _by_first_words(law: Law, words: list[jax.Array]) -> jax.Array:
    """int32: each number; where a word equals its threshold, what is known of the draw so far.

    That is one number, so that the whole is one loop over the draws: bit 31 is set; bits 28 to 30
    are 0 where the coarse word ties and 1 where the fine one does, with the other cell's own number
    taken; 2 and 3 likewise with its alias; 4 where both tie. Below are both cells. A number's own
    upper bits are all alike.
    """
    cells = _cells(words[2] >> (32 - 2 * CELL_BITS))
    own = [word < _at(law.threshold[side, 0], cells[side]) for side, word in enumerate(words[:2])]
    tied = [word == _at(law.threshold[side, 0], cells[side]) for side, word in enumerate(words[:2])]
    state = jnp.where(
        tied[0] & tied[1],
        4,
        jnp.where(tied[0], jnp.where(own[1], 0, 2), jnp.where(own[0], 1, 3)),
    )
    packed = jnp.uint32(1 << 31) | state.astype(jnp.uint32) << 28 | words[2] >> (32 - 2 * CELL_BITS)
    return jnp.where(
        tied[0] | tied[1],
        jax.lax.bitcast_convert_type(packed, jnp.int32),
        _number(law, cells, own),
    )


def _undecided(drawn: jax.Array, *_: Any) -> jax.Array:
    return drawn < -(1 << 29)


def _by_all_words(drawn: jax.Array, law: Law, key: jax.Array) -> jax.Array:
    """int32: the numbers of `_by_first_words`, those decided by further words that were not."""
    packed = jax.lax.bitcast_convert_type(drawn, jnp.uint32)
    cells, state = _cells(packed & (2 ** (2 * CELL_BITS) - 1)), packed >> 28 & 7
    lower = _lower(law, key, cells)
    own = [
        jnp.where(
            (state == 4) | (state == side) | (state == side + 2), lower[side], state == 1 - side
        )
        for side in (0, 1)
    ]
    return jnp.where(_undecided(drawn), _number(law, cells, own), drawn)


def _cells(both: jax.Array) -> list[jax.Array]:
    """The cells of the coarse table and the fine one, int32."""
    return [(both >> CELL_BITS).astype(jnp.int32), (both & (2**CELL_BITS - 1)).astype(jnp.int32)]


def _number(law: Law, cells: list[jax.Array], own: list[jax.Array]) -> jax.Array:
    coarse, fine = (
        law.first[side] + jnp.where(own[side], cells[side], _at(law.alias[side], cells[side]))
        for side in (0, 1)
    )
    return law.stride * coarse + fine


def _at(table: jax.Array, cells: jax.Array) -> jax.Array:
    return table.at[cells].get(mode="promise_in_bounds")


def _lower(law: Law, key: jax.Array, cells: list[jax.Array]) -> list[jax.Array]:
    """For either table, whether 128 further bits are below the rest of the threshold."""
    drawn, found = bits.random_halves(bits.source(key), 4, cells[0].shape), []
    for side in (0, 1):
        below = jnp.zeros(cells[side].shape, bool)
        for place in (4, 3, 2, 1):
            threshold = _at(law.threshold[side, place], cells[side])
            word = drawn[side][place - 1]
            below = (word < threshold) | ((word == threshold) & below)
        found.append(below)
    return found


def _sample(law: Law, key: jax.Array, statistics: PyTree) -> PyTree:
    return ring.with_noise(functools.partial(draw, law), key, statistics)


# --- its density


WIDE = 16.0  # σ from which a cell's mass has a short series


def _by_scale(total: Callable[..., jax.Array], scale: jax.Array, *numbers: jax.Array) -> jax.Array:
    """`total(log_inner, scale, *numbers)`, by the quickest `log_inner` that serves these numbers.

    log_inner(scale, k) is log ∫ exp(-(k·t + t²/2)/σ²) dt over a cell, t from -1/2 to 1/2: what the
    mass of k's cell is beyond its middle's density.

    numbers: uint32, of the same shape; a k is the difference of the first and another.
    """
    wide, near, by_quadrature = (
        partial(total, inner)
        for inner in (_log_inner_of_wide, _log_inner_of_near, _log_inner_of_any)
    )
    return jax.lax.cond(
        scale >= WIDE, partial(rare.where_any, _far, wide, near), by_quadrature, scale, *numbers
    )


def _far(scale: jax.Array, number: jax.Array, *others: jax.Array) -> jax.Array:
    """Whether a k is σ² or more, which is 16σ at least: as good as never."""
    return jnp.stack([jnp.abs(signed(number - other)) >= scale**2 for other in others])


def _log_inner_of_near(scale: jax.Array, number: jax.Array) -> jax.Array:
    """`_log_inner_of_wide` up to σ² from 0."""
    near = (number / scale**2) ** 2
    log = near * (1 / 24 - near * (1 / 2880 - near / 181440))
    square = 1 / 12 + near * (1 / 360 - near * (1 / 4320 - 1 / 6048))
    return log - square / (2 * scale**2)


def _log_inner_of_wide(scale: jax.Array, number: jax.Array) -> jax.Array:
    """Within 1e-7: log ∫ exp(-a·t) dt less E[t²]/(2σ²), a = |k|/σ², E under exp(-a·t)."""
    distance, end = jnp.abs(number), scale**2
    near = _log_inner_of_near(scale, jnp.minimum(distance, end))
    far = jnp.maximum(distance / end, 1.0)
    log = far / 2 + jnp.log1p(-jnp.exp(-far)) - jnp.log(far)
    square = 1 / 4 - 1 / (far * jnp.tanh(far / 2)) + 2 / far**2
    return jnp.where(distance < end, near, log - square / (2 * scale**2))


def _log_inner_of_any(scale: jax.Array, number: jax.Array) -> jax.Array:
    """By Gauss's quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    values = [
        -(number * (node / 2) + node**2 / 8) / scale**2 + math.log(weight / 2)
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True)
    ]
    return jax.scipy.special.logsumexp(jnp.stack(values), axis=0)


def _log_prob(scale: jax.Array, response: PyTree, statistics: PyTree) -> jax.Array:
    def log_mass(inner: Any, scale: jax.Array, r: jax.Array, q: jax.Array) -> jax.Array:
        number = signed(r - q).astype(float)
        constant = jnp.log(scale) + 0.5 * jnp.log(2 * jnp.pi)
        return jnp.sum(-((number / scale) ** 2) / 2 - constant + inner(scale, number))

    each = partial(_by_scale, log_mass, scale)
    return jax.tree.reduce(jnp.add, jax.tree.map(each, response, statistics))


def _log_ratio(scale: jax.Array, response: PyTree, statistics: PyTree, other: PyTree) -> jax.Array:
    # (k′² - k²)/(2σ²) with k = r - q, k′ = r - q′: differences are taken of whole numbers
    def ratio(inner: Any, scale: jax.Array, r: jax.Array, q: jax.Array, q_: jax.Array) -> jax.Array:
        here, there, apart = (signed(d).astype(float) for d in (r - q, r - q_, q - q_))
        middle = apart * ((here + there) / 2) / scale**2
        return jnp.sum(middle + inner(scale, here) - inner(scale, there))

    each = partial(_by_scale, ratio, scale)
    return jax.tree.reduce(jnp.add, jax.tree.map(each, response, statistics, other))
