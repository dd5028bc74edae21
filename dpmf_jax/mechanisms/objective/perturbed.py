"""Objective perturbation as noise: item factors from statistics of ratings, and their density.

Paper 003.

With U fixed, objective (6), times M, is one quadratic per item, and its noise η enters linearly:

    v ↦ vᵀ(A + ridge·I)v - 2bᵀv + ηᵀv,    A = Σ u uᵀ,    b = Σ (r - center)·u

The sums go over the item's raters.

- `minimiser`: v = (A + ridge·I)⁻¹(b - η/2), so η = 2(b - (A + ridge·I)v), and
  log p(v) = log p_η(η) + log det 2(A + ridge·I).
- `passes`: T times v ↦ Pv + c - γη, what a pass of stochastic gradient descent over the item's
  ratings makes of v. v = P^T·start + S(c - γη), S = I + P + … + P^(T-1), so η = (c - S⁻¹(v -
  P^T·start))/γ, and log p(v) = log p_η(η) - log|det γS|.

One vector η per item, by one of three laws: "l2_laplace", of density ∝ exp(-‖η‖₂/scale) (Theorem
1), "laplace" in every coordinate (Lemma 1), or "gaussian".
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from dpmf_jax.kernels import positive_systems
from dpmf_jax.noise import laws as noise
from dpmf_jax.noise.laws import Noise

Law = Literal["l2_laplace", "laplace", "gaussian"]


class Quadratic(NamedTuple):
    """The quadratic of every item.

    matrix: float32[items, d, d], A.
    vector: float32[items, d], b, in rating units.
    """

    matrix: jax.Array
    vector: jax.Array


class Passes(NamedTuple):
    """One pass over every item as an affine map.

    matrix: float32[items, d, d], P.
    vector: float32[items, d], c.
    start: float32[items, d].
    """

    matrix: jax.Array
    vector: jax.Array
    start: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class MinimiserParams:
    """scale: of η. ridge: Mμ. float32[]."""

    law: Law = dataclasses.field(metadata={"static": True})
    scale: jax.Array
    ridge: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PassesParams:
    """scale: of η. learning_rate: γ, float32[]. num_passes: T, int32[]."""

    law: Law = dataclasses.field(metadata={"static": True})
    scale: jax.Array
    learning_rate: jax.Array
    num_passes: jax.Array


def minimiser(law: Law, scale: jax.Array | float, ridge: jax.Array | float) -> Noise:
    """`Quadratic` -> float32[items, d], the exact minimiser of the perturbed objective.

    Args:
      scale: b of the Laplace laws, σ of the Gaussian, in units of η, which are those of 2Σur. 0 is
        no noise.
      ridge: Mμ > 0.

    What it costs: `accounting.objective.value_change_loss`. float32 draws, see `draw`.

    Raises: ValueError for another law.
    """
    params = MinimiserParams(
        law=_known(law),
        scale=jnp.asarray(scale, jnp.float32),
        ridge=jnp.asarray(ridge, jnp.float32),
    )
    return Noise(
        sample=Partial(_minimiser_sample, params),
        log_prob=Partial(_minimiser_log_prob, params),
        log_ratio=Partial(_minimiser_log_ratio, params),
    )


def passes(
    law: Law,
    scale: jax.Array | float,
    learning_rate: jax.Array | float,
    num_passes: jax.Array | int,
) -> Noise:
    """`Passes` -> float32[items, d]: item factors after num_passes passes.

    Each pass is followed by -learning_rate·η.

    Args:
      scale: as in `minimiser`. learning_rate: γ. num_passes: T >= 1; can be traced.

    Raises: ValueError for another law.
    """
    params = PassesParams(
        law=_known(law),
        scale=jnp.asarray(scale, jnp.float32),
        learning_rate=jnp.asarray(learning_rate, jnp.float32),
        num_passes=jnp.asarray(num_passes, jnp.int32),
    )
    return Noise(
        sample=Partial(_passes_sample, params),
        log_prob=Partial(_passes_log_prob, params),
        log_ratio=Partial(_passes_log_ratio, params),
    )


def _known(law: Law) -> Law:
    if law not in get_args(Law):
        raise ValueError(f"noise must be one of {', '.join(get_args(Law))}; got {law!r}")
    return law


# --- the three laws of η


def draw(key: jax.Array, law: Law, scale: jax.Array | float, shape: tuple[int, ...]) -> jax.Array:
    """η, float32[..., d], one vector per leading index. Spends `key`.

    l2_laplace: a radius that is Gamma(d) (a sum of d exponentials) times a uniform direction.
      float32 throughout: at most 2^23 values of each uniform that is drawn, no coordinate of a
      Laplace beyond 16 scales.
    """
    scale = jnp.asarray(scale, jnp.float32)
    if law == "gaussian":
        return scale * jax.random.normal(key, shape, jnp.float32)
    if law == "laplace":
        return scale * jax.random.laplace(key, shape, jnp.float32)
    radius_key, direction_key = jax.random.split(key)
    radius = jnp.sum(jax.random.exponential(radius_key, shape, jnp.float32), axis=-1, keepdims=True)
    direction = jax.random.normal(direction_key, shape, jnp.float32)
    return scale * radius * direction / jnp.linalg.norm(direction, axis=-1, keepdims=True)


def _log_density(law: Law, scale: jax.Array, eta: jax.Array) -> jax.Array:
    """Of all items together."""
    if law == "l2_laplace":
        d = eta.shape[-1]
        sphere = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
        constant = sphere + math.lgamma(d) + d * jnp.log(scale)
        return jnp.sum(-jnp.linalg.norm(eta, axis=-1) / scale - constant)
    same_law = noise.laplace if law == "laplace" else noise.gaussian
    return same_law(scale).log_prob(eta, jnp.zeros_like(eta))


def _log_density_ratio(
    law: Law, scale: jax.Array, at: jax.Array, here: jax.Array, there: jax.Array
) -> jax.Array:
    """log p_η(here - at) - log p_η(there - at).

    It is at most what |here - there| allows, however far `at` is.
    """
    if law == "l2_laplace":
        near, far = here - at, there - at
        lengths = jnp.linalg.norm(near, axis=-1) + jnp.linalg.norm(far, axis=-1)
        apart = jnp.sum((there - here) * (near + far), axis=-1)
        return (
            jnp.sum(jnp.where(lengths > 0, apart / jnp.where(lengths > 0, lengths, 1), 0)) / scale
        )
    same_law = noise.laplace if law == "laplace" else noise.gaussian
    return same_law(scale).log_ratio(at, here, there)


# --- the exact minimiser


def minimise(
    statistics: Quadratic, ridge: jax.Array | float, eta: jax.Array | None = None
) -> jax.Array:
    """(A + ridge·I)⁻¹(b - η/2) of every item, float32[items, d], by Cholesky.

    A is symmetric, and A + ridge·I positive.
    """
    target = statistics.vector if eta is None else statistics.vector - eta / 2
    return positive_systems.solve(statistics.matrix, target, ridge).solved


def _ridged(matrix: jax.Array, ridge: jax.Array | float) -> jax.Array:
    return matrix + ridge * jnp.eye(matrix.shape[-1], dtype=matrix.dtype)


def _minimiser_sample(params: MinimiserParams, key: jax.Array, statistics: Quadratic) -> jax.Array:
    return minimise(
        statistics, params.ridge, draw(key, params.law, params.scale, statistics.vector.shape)
    )


def _minimiser_log_prob(
    params: MinimiserParams, response: jax.Array, statistics: Quadratic
) -> jax.Array:
    system = _ridged(statistics.matrix, params.ridge)
    eta = 2 * (statistics.vector - _apply(system, response))
    return _log_density(params.law, params.scale, eta) + jnp.sum(_log_det(2 * system))


def _minimiser_log_ratio(
    params: MinimiserParams, response: jax.Array, statistics: Quadratic, other: Quadratic
) -> jax.Array:
    # What the two worlds have in common is subtracted from both alike: with equal matrices, 2b -
    # 2b' is all there is.
    systems = [_ridged(world.matrix, params.ridge) for world in (statistics, other)]
    moved = _apply(other.matrix - statistics.matrix, response)
    ratio = _log_density_ratio(
        params.law,
        params.scale,
        2 * _apply(systems[0], response),
        2 * statistics.vector,
        2 * (other.vector - moved),
    )
    return ratio + _log_det_ratio(
        statistics.matrix, other.matrix, *(2 * system for system in systems)
    )


# --- passes


def run_passes(
    statistics: Passes,
    num_passes: jax.Array | int,
    learning_rate: jax.Array | float,
    eta: jax.Array | None = None,
) -> jax.Array:
    """v after num_passes times v ← Pv + c - learning_rate·η, float32[items, d]."""
    push = statistics.vector if eta is None else statistics.vector - learning_rate * eta
    return jax.lax.fori_loop(
        0, num_passes, lambda _, v: _apply(statistics.matrix, v) + push, statistics.start
    )


def _passes_sample(params: PassesParams, key: jax.Array, statistics: Passes) -> jax.Array:
    eta = draw(key, params.law, params.scale, statistics.vector.shape)
    return run_passes(statistics, params.num_passes, params.learning_rate, eta)


def _powers(matrix: jax.Array, num: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(P^T, I + P + … + P^(T-1)), by squaring."""
    identity = jnp.broadcast_to(jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix.shape)

    def square(carry):
        left, power, total, step, step_total = carry
        odd = left % 2 == 1
        total = jnp.where(odd, total + _times(power, step_total), total)
        power = jnp.where(odd, _times(power, step), power)
        return left // 2, power, total, _times(step, step), step_total + _times(step, step_total)

    start = (num, identity, jnp.zeros_like(matrix), matrix, identity)
    _, power, total, _, _ = jax.lax.while_loop(lambda carry: carry[0] > 0, square, start)
    return power, total


def _unpass(
    params: PassesParams, response: jax.Array, statistics: Passes
) -> tuple[jax.Array, jax.Array]:
    """S⁻¹(v - P^T·start)/γ, where η = c/γ minus that, and log|det γS| of every item.

    By normal equations, refined once: S is no symmetric matrix, and LAPACK is not to be called
    (`positive_systems`).
    """
    power, total = _powers(statistics.matrix, params.num_passes)
    moved = response - _apply(power, statistics.start)
    turned = jnp.swapaxes(total, 1, 2)
    square = _times(turned, total)
    first = positive_systems.solve(square, _apply(turned, moved))
    error = moved - _apply(total, first.solved)
    solved = first.solved + positive_systems.solve(square, _apply(turned, error)).solved
    log_det = first.log_det / 2 + response.shape[1] * jnp.log(params.learning_rate)
    return solved / params.learning_rate, log_det


def _passes_log_prob(params: PassesParams, response: jax.Array, statistics: Passes) -> jax.Array:
    at, log_det = _unpass(params, response, statistics)
    eta = statistics.vector / params.learning_rate - at
    return _log_density(params.law, params.scale, eta) - jnp.sum(log_det)


def _passes_log_ratio(
    params: PassesParams, response: jax.Array, statistics: Passes, other: Passes
) -> jax.Array:
    # As above: with equal maps, c/γ - c'/γ is all there is.
    at, log_det = _unpass(params, response, statistics)
    at_, log_det_ = _unpass(params, response, other)
    same = _same_rows(statistics.matrix, other.matrix) & _same_rows(statistics.start, other.start)
    here, there = (world.vector / params.learning_rate for world in (statistics, other))
    there = there - jnp.where(same[:, None], 0, at_ - at)
    ratio = _log_density_ratio(params.law, params.scale, at, here, there)
    return ratio - jnp.sum(
        jnp.where(_same_rows(statistics.matrix, other.matrix), 0, log_det - log_det_)
    )


# --- small matrices, one per item


def _same_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.all((a == b).reshape(a.shape[0], -1), axis=1)


def _apply(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    return jnp.einsum("jab,jb->ja", matrix, vector, precision="highest")


def _times(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision="highest")


def _log_det_ratio(
    matrix: jax.Array, other: jax.Array, system: jax.Array, system_: jax.Array
) -> jax.Array:
    return jnp.sum(jnp.where(_same_rows(matrix, other), 0, _log_det(system) - _log_det(system_)))


def _log_det(system: jax.Array) -> jax.Array:
    return positive_systems.solve(system, jnp.zeros(system.shape[:2], system.dtype)).log_det
