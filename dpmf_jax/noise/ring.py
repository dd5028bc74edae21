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

from dpmf_jax.noise import bits, rare
from dpmf_jax.noise.laws import Noise

PyTree = Any

# steps: the largest magnitude of one encoded number, so that one addition cannot wrap around
LIMIT = 2**30
DIGITS = 32
BITS = 2 + DIGITS  # of a draw: is it zero, is it negative, and its digits
ZERO, NEGATIVE, OPEN = 1, 2, 4  # marks of a draw: the two bits, and that a word tied
UNDECIDED = np.uint32(1 << 31)  # stands for a draw with a word that tied
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


def draw(law: Law, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """uint32[shape], independent: the noise itself. Spends `key`.

    A word for each bit of the law. Further ones are drawn only where a word equals the first of its
    threshold, once in 2^26 draws.
    """
    of = bits.source(key)
    drawn = _by_first_words(law.thresholds, *_words_of_bits(of, 0, shape))
    return rare.where_any(_undecided, _by_all_words, rare.first, drawn, law.thresholds, of)


def _words_of_bits(
    of: bits.Source, number: Any, shape: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    """The first word of every bit, or the one of this number; two arrays [17, *shape]."""
    return bits.random_halves(of, BITS // 2, shape, number)


def _by_first_words(table: jax.Array, *halves: jax.Array) -> jax.Array:
    """uint32[shape]: the numbers whose bits have these first words, two arrays [17, *shape].

    `UNDECIDED` where some word equals the first of its threshold: one pass over all words says
    which bits are 1, and whether any is open.
    """
    rows, *shape = halves[0].shape
    size = (-1, *(1,) * len(shape))
    digit = np.array([0, 0, *(1 << place for place in range(DIGITS))], np.uint32).reshape(size)
    mark = np.array([ZERO, NEGATIVE, *(0,) * DIGITS], np.uint32).reshape(size)
    limit = table[:, 0].reshape(size)

    def marks_of(words: jax.Array, of: slice) -> tuple[jax.Array, jax.Array]:
        below, nothing = words < limit[of], jnp.uint32(0)
        marked = jnp.where(below, mark[of], nothing)
        open_ = jnp.where(words == limit[of], jnp.uint32(OPEN), nothing)
        return jnp.where(below, digit[of], nothing), marked | open_

    both = marks_of(halves[0], slice(rows)), marks_of(halves[1], slice(rows, None))
    nothing = (np.uint32(0), np.uint32(0))
    digits, marks = jax.lax.reduce(jax.tree.map(jnp.bitwise_or, *both), nothing, _either, (0,))
    number = _number(marks & ZERO != 0, marks & NEGATIVE != 0, digits)
    return jnp.where(marks & OPEN != 0, UNDECIDED, number)


def _either(one: Any, other: Any) -> Any:
    return jax.tree.map(jnp.bitwise_or, one, other)


def _number(zero: jax.Array, negative: jax.Array, digits: jax.Array) -> jax.Array:
    """uint32: 0, or 1 more than the digits, with its sign."""
    magnitude = 1 + digits
    return jnp.where(zero, jnp.uint32(0), jnp.where(negative, -magnitude, magnitude))


def _undecided(drawn: jax.Array, *_: Any) -> jax.Array:
    """Where a word tied; and where the number is that very one, and is drawn again as it is."""
    return drawn == UNDECIDED


def _by_all_words(drawn: jax.Array, table: jax.Array, of: bits.Source) -> jax.Array:
    """uint32: the numbers of `_by_first_words`, those that were undecided too."""
    below = _below(
        table, lambda word: jnp.concatenate(_words_of_bits(of, word, drawn.shape)), drawn.shape
    )
    place = jnp.arange(DIGITS, dtype=jnp.uint32).reshape(-1, *(1,) * drawn.ndim)
    digits = jnp.sum(below[2:].astype(jnp.uint32) << place, axis=0, dtype=jnp.uint32)
    return _number(below[0], below[1], digits)


def _below(
    table: jax.Array, words: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]
) -> jax.Array:
    """bool[rows of the table, *shape]: whether a uniform number is below its threshold.

    words: their words, uint32[rows, *shape], the first of number 0. More are asked for while any
      are equal to their thresholds'.
    """
    size = (len(table), *shape)

    def undecided(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        word, _, tied = carry
        return (word < table.shape[1]) & jnp.any(tied)

    def next_word(
        carry: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        word, below, tied = carry
        drawn = words(word)
        limit = table[:, word].reshape(-1, *(1,) * len(shape))
        return word + 1, below | (tied & (drawn < limit)), tied & (drawn == limit)

    start = (jnp.int32(0), jnp.zeros(size, bool), jnp.ones(size, bool))
    return jax.lax.while_loop(undecided, next_word, start)[1]


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
