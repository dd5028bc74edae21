"""Fixed point in Z_2^32: real numbers as uint32 that wrap around, and noise that is exact there.

A sum of pads, contributions and noise shares mod 2^32 is exact, whatever the order, and a uniform
pad hides an element perfectly. Neither is so for floats. What is decoded is the sum, as a signed
number, if it lies within ±2^31 steps. Wrapping around is post-processing: nothing is ever refused
because of what the data are.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jax.typing import ArrayLike

from dpmf_jax.noise.laws import Noise

PyTree = Any

# steps: the largest magnitude of one encoded number, so that one addition cannot wrap around
LIMIT = 2**30
DIGITS = 32
MOST_WORDS = 128  # of a threshold; what they cannot hold has probability 2^-4096
GUARD_BITS = 128  # of a threshold beyond its leading one
# the law is that of a scale 1 + 2^-40 times as large, which is more than rounding thresholds takes
# back
MARGIN = 40


def encode(values: jax.Array, step: ArrayLike) -> jax.Array:
    """Values as whole multiples of `step`, toward zero, in uint32 of the same shape.

    Negative numbers are 2^32 minus theirs. Values are clipped to ±2^30 steps; not a number is 0.
    The quotient values / step is float32, so what lies within 2^-24 of a multiple, relatively, may
    become that multiple; for a step that is a power of two it is exact.
    """
    steps = jnp.trunc(
        jnp.nan_to_num(values.astype(jnp.float32) / step, nan=0.0, posinf=LIMIT, neginf=-LIMIT)
    )
    return jax.lax.bitcast_convert_type(
        jnp.clip(steps, -LIMIT, LIMIT).astype(jnp.int32), jnp.uint32
    )


def decode(elements: jax.Array, step: ArrayLike) -> jax.Array:
    """Elements as signed numbers, -2^31 to 2^31 - 1, times `step`: float32, exact below 2^24."""
    return signed(elements).astype(jnp.float32) * step


def signed(elements: jax.Array) -> jax.Array:
    """int32: the representative from -2^31 to 2^31 - 1."""
    return jax.lax.bitcast_convert_type(elements, jnp.int32)


class Law(NamedTuple):
    """The discrete Laplace law as probabilities of bits.

    The bits are: is it zero, is it negative, and the 32 binary digits of |η| - 1.

    scale: float32[], b in steps.
    thresholds: uint32[34, words], most significant word first: each is P(a bit is 1) as a whole
      number of 2^(32 words).
    """

    scale: jax.Array
    thresholds: jax.Array


def discrete_laplace(scale_in_steps: float) -> Noise:
    """Adds the law P(η) ∝ exp(-|η|/b) mod 2^32 to every entry of a pytree of uint32; b in steps.

    It is the law of K - K′ for two geometric variables, P(K = k) ∝ exp(-k/b), so that of the sum of
    Pólya shares. Drawn as a zero with probability tanh(1/2b), else a fair sign and 1 + G, G
    geometric too: the binary digits of a geometric variable are independent, digit i is 1 with
    probability 1/(1 + e^(2^i/b)).

    Guarantee: (s/b)-differential privacy of a pytree of which one party moves s steps in all (L1),
      pure, in integers, no float anywhere: digits come from comparing random words with thresholds
      worked out in decimals, further words being drawn for as long as they are equal. For b of 2^20
      and more that is so for every element of the ring; below, outside a set of probability
      2^-4000. It is as good as the random bits: those of jax's generator.

    Raises: ValueError for a scale that is not between 2^-4 and 2^28 steps: beyond, the ring is too
      small for it.
    """
    law = Law(jnp.float32(scale_in_steps), jnp.asarray(thresholds(scale_in_steps)))
    return Noise(
        sample=Partial(_sample, law),
        log_prob=Partial(_log_prob, law.scale),
        log_ratio=Partial(_log_ratio, law.scale),
    )


@functools.lru_cache(maxsize=64)
def thresholds(scale_in_steps: float) -> np.ndarray:
    """uint32[34, words]: see `Law`. Host, in decimals.

    Rounding moves the log-odds of a bit by 2^-120 at most, and those of 34 bits add up to less than
    one step is made cheaper by: (1/b)·2^-40. So the log-ratio of two neighbouring elements is at
    most 1/b.
    """
    if not 2**-4 <= scale_in_steps <= 2**28:
        raise ValueError(f"scale_in_steps must be between 1/16 and 2^28, got {scale_in_steps!r}")
    most_bits = int(2 ** (DIGITS - 1) / scale_in_steps * 1.4427) + GUARD_BITS
    words = min(-(-most_bits // 32), MOST_WORDS)
    whole = 2 ** (32 * words)
    with decimal.localcontext() as context:
        context.prec = int(32 * words * 0.30103) + 60
        inverse = (1 - decimal.Decimal(2) ** -MARGIN) / decimal.Decimal(scale_in_steps)
        zero = (1 - (-inverse).exp()) / (1 + (-inverse).exp())
        digits = []
        for i in range(DIGITS):
            exponent = inverse * 2**i
            # below this the digit is never 1, and its exponential needs no decimals
            digits.append(decimal.Decimal(0) if exponent > 23 * words else 1 / (1 + exponent.exp()))
        numbers = [
            int((p * whole).to_integral_value()) for p in (zero, decimal.Decimal("0.5"), *digits)
        ]
    table = [
        [(number >> (32 * (words - 1 - w))) & 0xFFFFFFFF for w in range(words)]
        for number in numbers
    ]
    result = np.array(table, np.uint32)
    result.flags.writeable = False  # it is shared
    return result


def _bits(table: jax.Array, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """bool[34, *shape], independent, each True with its threshold's probability.

    A bit is True where a uniform number is below its threshold.
    """
    size = (table.shape[0], *shape)

    def undecided(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        word, _, tied = carry
        return (word < table.shape[1]) & jnp.any(tied)

    def next_word(
        carry: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        word, below, tied = carry
        drawn = jax.random.bits(jax.random.fold_in(key, word), size, jnp.uint32)
        threshold = table[:, word].reshape(-1, *(1,) * len(shape))
        return word + 1, below | (tied & (drawn < threshold)), tied & (drawn == threshold)

    start = (jnp.int32(0), jnp.zeros(size, bool), jnp.ones(size, bool))
    return jax.lax.while_loop(undecided, next_word, start)[1]


def draw(law: Law, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """uint32[shape], independent: the noise itself. Spends `key`."""
    bits = _bits(law.thresholds, key, shape)
    places = (jnp.uint32(1) << jnp.arange(DIGITS, dtype=jnp.uint32)).reshape(-1, *(1,) * len(shape))
    magnitude = 1 + jnp.sum(jnp.where(bits[2:], places, jnp.uint32(0)), axis=0, dtype=jnp.uint32)
    return jnp.where(bits[0], jnp.uint32(0), jnp.where(bits[1], -magnitude, magnitude))


def with_noise(
    draw: Callable[[jax.Array, tuple[int, ...]], jax.Array], key: jax.Array, statistics: PyTree
) -> PyTree:
    """The statistics plus `draw(key, shape)` of each leaf, by a key of its own. Spends `key`."""
    leaves, structure = jax.tree.flatten(statistics)
    keys = jax.random.split(key, len(leaves))
    noisy = [leaf + draw(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, noisy)


def _sample(law: Law, key: jax.Array, statistics: PyTree) -> PyTree:
    return with_noise(functools.partial(draw, law), key, statistics)


def _distance(elements: jax.Array, others: jax.Array) -> jax.Array:
    """uint32 from 0 to 2^31: how far apart, the shorter way round."""
    there = elements - others
    return jnp.minimum(there, others - elements)


def _around(scale: jax.Array, distance: jax.Array) -> jax.Array:
    """log of what the longer way round adds: log(1 + exp(-(2^32 - 2|η|)/b))."""
    return jnp.log1p(jnp.exp(-(2.0**32 - 2 * distance.astype(float)) / scale))


def _log_prob(scale: jax.Array, response: PyTree, statistics: PyTree) -> jax.Array:
    def log_probability(r: jax.Array, q: jax.Array) -> jax.Array:
        far = _distance(r, q)
        constant = jnp.log(jnp.tanh(0.5 / scale)) - jnp.log1p(-jnp.exp(-(2.0**32) / scale))
        return jnp.sum(-far.astype(float) / scale + _around(scale, far) + constant)

    return jax.tree.reduce(jnp.add, jax.tree.map(log_probability, response, statistics))


def _log_ratio(scale: jax.Array, response: PyTree, statistics: PyTree, other: PyTree) -> jax.Array:
    # the distances are subtracted as integers: never beyond how far the two worlds are apart
    def ratio(r: jax.Array, q: jax.Array, q_: jax.Array) -> jax.Array:
        here, there = _distance(r, q), _distance(r, q_)
        further = signed(there - here).astype(float)
        return jnp.sum(further / scale + _around(scale, here) - _around(scale, there))

    return jax.tree.reduce(jnp.add, jax.tree.map(ratio, response, statistics, other))
