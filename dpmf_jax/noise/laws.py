"""How statistics become a response: each sampler beside its density, for audits to compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

PyTree = Any


class Noise(NamedTuple):
    """A law of noise: its sampler, its density, and the ratio of densities in two worlds.

    sample: (key, statistics) -> response, a pytree shaped like the statistics.
    log_prob: (response, statistics) -> float32[], the log-density of the response.
    log_ratio: (response, statistics, other) -> float32[], log_prob(response, statistics) -
      log_prob(response, other). Computed without the cancellation that drowns the difference of two
      large log-densities in float32.
    """

    sample: Callable[..., PyTree]
    log_prob: Callable[..., jax.Array]
    log_ratio: Callable[..., jax.Array]


def _total(tree: PyTree) -> jax.Array:
    return jax.tree.reduce(jnp.add, jax.tree.map(jnp.sum, tree))


def _gaussian_sample(scale: jax.Array, key: jax.Array, statistics: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(statistics)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        leaf + scale * jax.random.normal(k, leaf.shape, leaf.dtype)
        for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


def _gaussian_log_prob(scale: jax.Array, response: PyTree, statistics: PyTree) -> jax.Array:
    def log_density(r: jax.Array, q: jax.Array) -> jax.Array:
        return -0.5 * ((r - q) / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi)

    return _total(jax.tree.map(log_density, response, statistics))


def _gaussian_log_ratio(
    scale: jax.Array, response: PyTree, statistics: PyTree, other: PyTree
) -> jax.Array:
    # ⟨q - q′, r - (q + q′)/2⟩ / σ²: exact zeros wherever the two worlds agree.
    def ratio(r: jax.Array, q: jax.Array, q_: jax.Array) -> jax.Array:
        return ((q - q_) / scale) * ((r - (q + q_) / 2) / scale)

    return _total(jax.tree.map(ratio, response, statistics, other))


def gaussian(scale: jax.Array | float) -> Noise:
    """Independent N(0, scale²) on every entry, every declared row included.

    scale: σ, in the units of the statistics.

    float32 normals (jax.random.normal) have at most 2^23 distinct values a draw, none beyond 5.42σ.
    The guarantee's assumptions name this.
    """
    scale = jnp.asarray(scale, jnp.float32)
    return Noise(
        sample=Partial(_gaussian_sample, scale),
        log_prob=Partial(_gaussian_log_prob, scale),
        log_ratio=Partial(_gaussian_log_ratio, scale),
    )


def silenced(sample: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same sampler at scale 0: the same program on other numbers.

    It silences `gaussian` and `laplace`, alone or inside another sampler. Anything else comes back
    as it is.
    """
    if not isinstance(sample, Partial):
        return sample
    if sample.func in (_gaussian_sample, _laplace_sample):
        return Partial(sample.func, jnp.zeros_like(sample.args[0]), *sample.args[1:])
    still = {
        place: silenced(arg.sample)
        for place, arg in enumerate(sample.args)
        if isinstance(arg, Noise)
    }
    if not any(inner is not sample.args[place].sample for place, inner in still.items()):
        return sample
    args = [
        arg._replace(sample=still[at]) if at in still else arg for at, arg in enumerate(sample.args)
    ]
    return Partial(sample.func, *args, **sample.keywords)


def _none_sample(key: jax.Array, statistics: PyTree) -> PyTree:
    del key  # there is no noise
    return statistics


def _none_log_prob(response: PyTree, statistics: PyTree) -> jax.Array:
    same = jax.tree.map(lambda r, q: jnp.all(r == q), response, statistics)
    return jnp.where(jax.tree.reduce(jnp.logical_and, same), 0.0, -jnp.inf)


def _none_log_ratio(response: PyTree, statistics: PyTree, other: PyTree) -> jax.Array:
    here, there = _none_log_prob(response, statistics), _none_log_prob(response, other)
    return jnp.where(here == there, 0.0, here - there)


def none() -> Noise:
    """No noise: the response is the statistics, and nothing is private.

    log_ratio is ±∞ as soon as two worlds differ.
    """
    return Noise(
        sample=Partial(_none_sample),
        log_prob=Partial(_none_log_prob),
        log_ratio=Partial(_none_log_ratio),
    )


def draws(noise: Noise) -> bool:
    """Whether a noise draws anything: False for `none` alone."""
    return not (isinstance(noise.sample, Partial) and noise.sample.func is _none_sample)


class Report(NamedTuple):
    """What one user says of one entry, randomised or not; many users have a leading axis.

    row, column: int32, the place of the entry.
    value: float32 in [-1, 1] before it is randomised; after it the bit as -1 or 1, or 0 where
      nothing is reported.
    sent: bool, whether this user reports at all; public.
    """

    row: jax.Array
    column: jax.Array
    value: jax.Array
    sent: jax.Array


class OneBit(NamedTuple):
    """The least probability of either bit.

    upper, lower: uint32, its two words as a whole number of 2^64.
    share: the same as float32.
    """

    upper: jax.Array
    lower: jax.Array
    share: jax.Array


def one_bit(epsilon: float) -> Noise:
    """Paper 004's report: an entry x in [-1, 1] becomes one bit, with P(1 | x) linear in x.

    P(1 | x) lies between 1/(1 + e^ε) and its rest.

    Guarantee: ε-differential privacy of each report, pure and exact: probabilities are whole
      numbers of 2^64, drawn by comparing 64 random bits with an integer, and the largest over the
      smallest is at most e^ε. Entries are clipped to [-1, 1]; one that is not a number counts as 0.
      A report that is not sent is 0 in every world.

    Raises: ValueError for an ε outside (0, 20], beyond which float32 entries are too coarse.
    """
    params = _one_bit_params(epsilon)
    return Noise(
        sample=Partial(_one_bit_sample, params),
        log_prob=Partial(_one_bit_log_prob, params),
        log_ratio=Partial(_one_bit_log_ratio, params),
    )


def _one_bit_params(epsilon: float) -> OneBit:
    if not 0 < epsilon <= 20:
        raise ValueError(f"the epsilon of one report must be above 0 and at most 20; got {epsilon}")
    low = one_bit_low(epsilon)
    return OneBit(*map(jnp.uint32, divmod(low, 2**32)), jnp.float32(low / 2**64))


def one_bit_low(epsilon: float) -> int:
    """The smallest probability of a report, 1/(1 + e^ε), in whole numbers of 2^64.

    Rounded up, so that ε is not exceeded.
    """
    import decimal

    with decimal.localcontext() as exact:
        exact.prec, exact.rounding = 60, decimal.ROUND_CEILING
        shares = 1 + decimal.Decimal(epsilon).exp()
        return int((2**64 / shares).to_integral_value(decimal.ROUND_FLOOR)) + 1


def one_bit_gain(epsilon: float) -> float:
    """E[bit as -1 or 1] over the entry, tanh(ε/2): what reports are divided by."""
    return (2**64 - 2 * one_bit_low(epsilon)) / 2**64


def one_bit_law(epsilon: float, entries: jax.Array) -> list[int]:
    """P(the bit is 1) of each entry, float32[n], in whole numbers of 2^64, as it is sampled."""
    upper, lower = _unlikely(_one_bit_params(epsilon), entries)
    unlikely = [int(u) * 2**32 + int(w) for u, w in zip(upper, lower, strict=True)]
    return [p if entry < 0 else 2**64 - p for p, entry in zip(unlikely, entries, strict=True)]


def _unlikely(params: OneBit, value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The probability of the bit that contradicts the entry's sign: two words of 2^64, uint32.

    It lies between the least and a half for any float, and is exactly the least at -1 and 1 and
    beyond. Always in float32, so that the law is the sampler's own wherever it is asked for.
    """
    far = jnp.clip(jnp.nan_to_num(jnp.abs(value.astype(jnp.float32)), nan=0.0), 0.0, 1.0)
    share = jnp.minimum(params.share + (1 - far) * (0.5 - params.share), 0.5) * jnp.float32(2**32)
    upper = share.astype(jnp.uint32)
    lower = ((share - upper.astype(jnp.float32)) * jnp.float32(2**32)).astype(jnp.uint32)
    below = (upper < params.upper) | ((upper == params.upper) & (lower < params.lower)) | (far == 1)
    return jnp.where(below, params.upper, upper), jnp.where(below, params.lower, lower)


def _one_bit_sample(params: OneBit, key: jax.Array, statistics: Report) -> Report:
    drawn = jax.random.bits(key, (2, *statistics.value.shape), jnp.uint32)
    upper, lower = _unlikely(params, statistics.value)
    contradicts = (drawn[0] < upper) | ((drawn[0] == upper) & (drawn[1] < lower))
    bit = jnp.where(contradicts ^ (statistics.value < 0), jnp.float32(-1), jnp.float32(1))
    return statistics._replace(value=jnp.where(statistics.sent, bit, jnp.float32(0)))


def _one_bit_logs(params: OneBit, response: Report, statistics: Report) -> jax.Array:
    """The log-probability of every user's report.

    In float64 under `jax.enable_x64`, whatever the entries are.
    """
    upper, lower = _unlikely(params, statistics.value)
    share = upper.astype(float) * 2.0**-32 + lower.astype(float) * 2.0**-64
    contradicts = (response.value < 0) ^ (statistics.value < 0)
    said = jnp.where(contradicts, jnp.log(share), jnp.log1p(-share))
    said = jnp.where(jnp.abs(response.value) == 1, said, -jnp.inf)
    silent = jnp.where(response.value == 0, 0.0, -jnp.inf)
    possible = (response.row == statistics.row) & (response.column == statistics.column)
    possible &= response.sent == statistics.sent
    return jnp.where(possible, jnp.where(statistics.sent, said, silent), -jnp.inf)


def _one_bit_log_prob(params: OneBit, response: Report, statistics: Report) -> jax.Array:
    return jnp.sum(_one_bit_logs(params, response, statistics))


def _one_bit_log_ratio(
    params: OneBit, response: Report, statistics: Report, other: Report
) -> jax.Array:
    here, there = (_one_bit_logs(params, response, world) for world in (statistics, other))
    return jnp.sum(jnp.where(here == there, 0.0, here - there))


def _laplace_sample(scale: jax.Array, key: jax.Array, statistics: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(statistics)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        leaf + scale * jax.random.laplace(k, leaf.shape, leaf.dtype)
        for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


def _laplace_log_prob(scale: jax.Array, response: PyTree, statistics: PyTree) -> jax.Array:
    def log_density(r: jax.Array, q: jax.Array) -> jax.Array:
        return -jnp.abs(r - q) / scale - jnp.log(2 * scale)

    return _total(jax.tree.map(log_density, response, statistics))


def _laplace_log_ratio(
    scale: jax.Array, response: PyTree, statistics: PyTree, other: PyTree
) -> jax.Array:
    # |r - q′| - |r - q| by where r lies between the two: never beyond ±|q - q′|, also where r is
    # far from both.
    def ratio(r: jax.Array, q: jax.Array, q_: jax.Array) -> jax.Array:
        low, high = jnp.minimum(q, q_), jnp.maximum(q, q_)
        between = jnp.clip(r, low, high)
        return jnp.sign(q - q_) * ((between - low) - (high - between)) / scale

    return _total(jax.tree.map(ratio, response, statistics, other))


def laplace(scale: jax.Array | float) -> Noise:
    """Independent Laplace noise, density ∝ exp(-|η|/scale), on every entry.

    scale: b, in the units of the statistics.

    float32 draws (jax.random.laplace) have at most 2^24 distinct values, none beyond 16b. The
    guarantee's assumptions name this.
    """
    scale = jnp.asarray(scale, jnp.float32)
    return Noise(
        sample=Partial(_laplace_sample, scale),
        log_prob=Partial(_laplace_log_prob, scale),
        log_ratio=Partial(_laplace_log_ratio, scale),
    )
