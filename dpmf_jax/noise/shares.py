"""Shares of noise: each user draws one, in secret, and k' of them add up to a sum's noise.

Paper 003, 4.2:

| law                | whose sum of k' shares is                    | what a user must be told     |
|--------------------|----------------------------------------------|------------------------------|
| `published`        | Laplace per coordinate, over a random H      | H and k', by the recommender |
| `laplace`          | Laplace per coordinate (Lemma 1)             | the public k' alone          |
| `l2_laplace`       | density ∝ exp(−‖η‖₂/b) (Theorem 1)           | the public k' alone          |
| `discrete_laplace` | P(z) ∝ exp(−|z|/b) on the integers, mod 2^32 | the public k' alone          |

Rounded normals, whose sum is a function of one normal, are in `normal_shares`.

`published` goes with `messages.published`. Whoever knows H, and the recommender drew it, sees
Gaussian noise of a variance that it chose, which has no pure ε. The three others share nothing.
`discrete_laplace` is what `messages.per_user` adds, since its sum stays on the grid of the ring:
real shares that are rounded afterwards have a law that no proof here covers.

k' counts the shares that can be relied on: those of honest users who stay, not of all who take
part. With fewer, the sum has a sharper peak than promised, and the guarantee of k' fails; more only
add independent noise. Real shares are float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

_DIGITS = 32  # of a number of the ring


def published(
    key: jax.Array,
    factor: jax.Array,
    scale: ArrayLike,
    num_shares: ArrayLike,
    shape: tuple[int, ...],
) -> jax.Array:
    """Paper 003, equation (12): b·√(2H)·N(0, 1/k), float32 of `shape`. Spends `key`.

    Guarantee: none against who knows H. Over a random H ~ Exponential(1), the same for all k users,
      the sum is Laplace of scale b in every coordinate (Theorem 2), which is not the law (10) that
      the paper says it follows.

    Args:
      factor: H, float32, broadcast to `shape`; the recommender's numbers.
      scale: b = 2Δ√d/ε.
      num_shares: k, broadcast to `shape`.

    Raises: ValueError for a known scale that is not positive, or a known number of shares below 1.
    """
    check(scale, num_shares)
    deviation = jnp.float32(scale) * jnp.sqrt(2 * factor / num_shares)
    return deviation * jax.random.normal(key, shape, jnp.float32)


def l2_laplace(key: jax.Array, scale: ArrayLike, num_shares: ArrayLike, rank: int) -> jax.Array:
    """√(2G)·b·N(0, I_d) with G ~ Gamma((d + 1)/(2k')), float32[rank]. Spends `key`.

    k' of them sum to the noise of Theorem 1. Given all G the sum is N(0, 2b²·ΣG), with ΣG ~
    Gamma((d + 1)/2). Its characteristic function is (1 + b²‖t‖²)^(−(d + 1)/2), which is that of
    density ∝ exp(−‖η‖₂/b).

    Args:
      scale: b = 2Δ/ε.
      num_shares: k'.
      rank: d.

    Raises: as `published`.
    """
    check(scale, num_shares)
    gamma_key, normal_key = jax.random.split(key)
    gamma = jax.random.gamma(gamma_key, (rank + 1) / (2 * jnp.float32(num_shares)), (), jnp.float32)
    return (
        jnp.float32(scale)
        * jnp.sqrt(2 * gamma)
        * jax.random.normal(normal_key, (rank,), jnp.float32)
    )


def laplace(
    key: jax.Array, scale: ArrayLike, num_shares: ArrayLike, shape: tuple[int, ...]
) -> jax.Array:
    """b·(Gamma(1/k') − Gamma(1/k')), float32 of `shape`. Spends `key`.

    k' of them sum to Laplace noise of scale b.

    Args:
      scale: b; Lemma 1 has 2Δ√d/ε.
      num_shares: k'.

    Raises: as `published`.
    """
    check(scale, num_shares)
    gammas = jax.random.gamma(key, 1 / jnp.float32(num_shares), (2, *shape), jnp.float32)
    return jnp.float32(scale) * (gammas[0] - gammas[1])


def discrete_laplace(
    key: jax.Array, scale_in_steps: ArrayLike, num_shares: ArrayLike, shape: tuple[int, ...]
) -> jax.Array:
    """Pólya(1/k') − Pólya(1/k') in Z_2^32, uint32 of `shape`. Spends `key`.

    k' of them sum to P(z) ∝ exp(−|z|/b).

    A Pólya number (negative binomial of shape 1/k', p = exp(−1/b)) is a sum of Poisson many
    logarithmic-series numbers, the mean being −ln(1 − p)/k'; each of those is 1 plus a geometric
    number of parameter 1 − (1 − p)^U, U uniform (Kemp 1981). The binary digits of a geometric
    number are independent, so its lowest 32 are drawn one by one: every number of the ring can
    occur however large b is, where floats would leave gaps, and the wrap-around is exact. Each
    digit's probability is right to float32, about 1e-7 relative.

    Args:
      scale_in_steps: b over the step of the grid.
      num_shares: k'.

    Raises: as `published`.
    """
    check(scale_in_steps, num_shares)
    rate = -_log_1m_exp(1 / jnp.float32(scale_in_steps))
    count_key, term_key = jax.random.split(key)
    counts = jax.random.poisson(count_key, rate / num_shares, (2, *shape))

    def add_term(index: jax.Array, total: jax.Array) -> jax.Array:
        term = _logarithmic_series(jax.random.fold_in(term_key, index), rate, (2, *shape))
        return total + jnp.where(index < counts, term, jnp.uint32(0))

    plus, minus = jax.lax.fori_loop(
        0, jnp.max(counts, initial=0), add_term, jnp.zeros((2, *shape), jnp.uint32)
    )
    return plus - minus


def _logarithmic_series(key: jax.Array, rate: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """1 + geometric numbers of parameter q = 1 − exp(−rate·U), mod 2^32.

    Digit i is 1 in 1 of 1 + q^(−2^i) draws.
    """
    mix_key, digit_key = jax.random.split(key)
    uniform = jax.random.uniform(mix_key, shape, jnp.float32)
    log_parameter = _log_1m_exp(rate * uniform)

    def add_digit(index: jax.Array, total: jax.Array) -> jax.Array:
        chance = jax.nn.sigmoid(log_parameter * jnp.exp2(index.astype(jnp.float32)))
        drawn = jax.random.bits(jax.random.fold_in(digit_key, index), shape, jnp.uint32)
        # chance <= 1/2, so what it is of 2^32 is a uint32
        digit = drawn < (chance * jnp.float32(2**32)).astype(jnp.uint32)
        return total + (digit.astype(jnp.uint32) << index.astype(jnp.uint32))

    return jax.lax.fori_loop(0, _DIGITS, add_digit, jnp.ones(shape, jnp.uint32))


def _log_1m_exp(x: jax.Array) -> jax.Array:
    """ln(1 − exp(−x)) for x >= 0, to float32 relative, where it is small and where it is large."""
    return jnp.where(x < 0.69, jnp.log(-jnp.expm1(-x)), jnp.log1p(-jnp.exp(-x)))


def check(scale: ArrayLike, num_shares: ArrayLike) -> None:
    """Refuses a scale or a number of shares that is known before tracing and out of range.

    Raises: ValueError.
    """
    if not isinstance(scale, Tracer) and not np.all((np.asarray(scale) > 0) & np.isfinite(scale)):
        raise ValueError(f"the scale of noise shares must be positive and finite, got {scale}")
    if not isinstance(num_shares, Tracer) and not np.all(np.asarray(num_shares) >= 1):
        raise ValueError(f"the number of shares must be at least 1, got {num_shares}")
