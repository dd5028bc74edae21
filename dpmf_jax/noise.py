"""How statistics become a response: samplers beside their densities, so that audits can hold one to the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

PyTree = Any


class Noise(NamedTuple):
    """sample: (key, statistics) -> response, a pytree shaped like the statistics.
    log_prob: (response, statistics) -> float32 scalar, the log-density of the response.
    log_ratio: (response, statistics, other) -> float32 scalar, log_prob(response, statistics) - log_prob(response,
      other), computed without the cancellation that drowns the difference of two large log-densities in float32.
    """

    sample: Callable[..., PyTree]
    log_prob: Callable[..., jax.Array]
    log_ratio: Callable[..., jax.Array]


def _total(tree: PyTree) -> jax.Array:
    return jax.tree.reduce(jnp.add, jax.tree.map(jnp.sum, tree))


def _gaussian_sample(scale: jax.Array, key: jax.Array, statistics: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(statistics)
    keys = jax.random.split(key, len(leaves))
    noisy = [leaf + scale * jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, noisy)


def _gaussian_log_prob(scale: jax.Array, response: PyTree, statistics: PyTree) -> jax.Array:
    def log_density(r: jax.Array, q: jax.Array) -> jax.Array:
        return -0.5 * ((r - q) / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi)

    return _total(jax.tree.map(log_density, response, statistics))


def _gaussian_log_ratio(scale: jax.Array, response: PyTree, statistics: PyTree, other: PyTree) -> jax.Array:
    # ⟨q - q′, r - (q + q′)/2⟩ / σ²: exact zeros wherever the two worlds agree.
    def ratio(r: jax.Array, q: jax.Array, q_: jax.Array) -> jax.Array:
        return ((q - q_) / scale) * ((r - (q + q_) / 2) / scale)

    return _total(jax.tree.map(ratio, response, statistics, other))


def gaussian(scale: jax.Array | float) -> Noise:
    """Independent N(0, scale²) on every entry, every declared row included; scale is σ, in the units of the
    statistics.

    float32 normals: at most 2^23 distinct values a draw, none beyond 5.42σ (jax.random.normal); the guarantee's
      assumptions name this.
    """
    scale = jnp.asarray(scale, jnp.float32)
    return Noise(
        sample=Partial(_gaussian_sample, scale),
        log_prob=Partial(_gaussian_log_prob, scale),
        log_ratio=Partial(_gaussian_log_ratio, scale),
    )


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
    """No noise: the response is the statistics, nothing is private, log_ratio is ±∞ as soon as two worlds differ."""
    return Noise(sample=Partial(_none_sample), log_prob=Partial(_none_log_prob), log_ratio=Partial(_none_log_ratio))
