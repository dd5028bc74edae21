"""A random matrix Φ, float32[q, items], that nobody stores.

Every entry is a function of a public key and its place. Entries are independent with mean 0 and
variance 1/q, so E[ΦᵀΦ] is the identity. A user looks at one row at the rated items, the server runs
through Φ in blocks. Both see the same entries, on any device and in any order.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpmf_jax.devices import spread
from dpmf_jax.noise import bits

Law = Literal["gaussian", "sign"]
BLOCK_ENTRIES = 1 << 21  # of Φ that are there at a time, about
LIFT_ENTRIES = 1 << 17  # of one block of a lift, about: 512 KB stay in a core's second-level cache
# Least largest relative error, by reweighted least squares: ln(1 + x)/x on [√½ - 1, √2 - 1]; the
# normal quantile over its uniform, by x = √(-ln(1 - uniform²)), on [0, 3.91].
LOG1P = (1.0000054836, -0.4999140501, 0.3324827552, -0.2535917759, 0.2216869146, -0.1466223300)
QUANTILE = (
    *(1.2533670664, -0.0015594072174, 0.33415177464, 0.0021726221312, -0.023333907127),
    *(0.069624736905, -0.056833744049, 0.019679730758, -0.0031775243115, 0.00019828039512),
)


def entries(
    key: bits.Words, law: Law, rows: ArrayLike, columns: ArrayLike, num_rows: int
) -> jax.Array:
    """Φ at (rows, columns), int32 arrays that are broadcast against each other.

    num_rows: q.
    """
    first, _second = bits.threefry(key, jnp.uint32(rows), jnp.uint32(columns))
    scale = jnp.float32(num_rows) ** -0.5
    if law == "sign":
        return jnp.where(first >> 31, scale, -scale)
    # the middle of one of 2^23 intervals: never 0 or 1, symmetric, at most 5.4 standard deviations
    # out
    uniform = ((first >> 9).astype(jnp.int32).astype(jnp.float32) + 0.5) * jnp.float32(2**-22) - 1
    return scale * _normal_quantile(uniform)


def _normal_quantile(uniform: jax.Array) -> jax.Array:
    """The normal quantile at (1 + uniform)/2 for uniform in (-1, 1), to 5e-5 relative.

    The value is uniform times a polynomial in √(-ln(1 - uniform²)), one for all of the range, with
    a logarithm that is as coarse. A lift is bound by what an entry costs, and this costs half of
    √2·erf_inv.
    """
    pattern = jax.lax.bitcast_convert_type((1 - uniform) * (1 + uniform), jnp.int32)
    exponent = (pattern - 0x3F3504F3) >> 23  # so that the rest lies within √½ and √2
    rest = jax.lax.bitcast_convert_type(pattern - (exponent << 23), jnp.float32) - 1
    log = exponent.astype(jnp.float32) * jnp.float32(0.6931472) + rest * _polynomial(LOG1P, rest)
    return uniform * _polynomial(QUANTILE, jnp.sqrt(jnp.maximum(-log, 0.0)))


def _polynomial(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    """Σ coefficients[k]·x^k."""
    total = jnp.float32(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + jnp.float32(coefficient)
    return total


def apply_transpose(
    key: bits.Words, law: Law, compressed: jax.Array, num_items: int, *, num_devices: int = 1
) -> jax.Array:
    """Φᵀ·compressed, float32[items, d], from float32[q, d]: unbiased for V where compressed = ΦV.

    num_devices: items are spread over the first so many of `jax.devices()`, in a program that runs
      on all of them; the result is on each.
    """
    q, d = compressed.shape
    size = max(1, min(-(-num_items // num_devices), spread.block(LIFT_ENTRIES) // q))
    blocks = -(-num_items // (size * num_devices)) * num_devices
    wide = _wide(compressed)

    def of_items(
        nothing: tuple[()], key: bits.Words, wide: jax.Array, starts: jax.Array
    ) -> jax.Array:
        del nothing

        def block(start: jax.Array) -> jax.Array:
            items = (start + jnp.arange(size))[:, None]  # the last ones may stand over
            return jnp.matmul(
                entries(key, law, jnp.arange(q)[None, :], items, q), wide, precision="highest"
            )

        lifted = jax.lax.map(block, starts).reshape(-1, wide.shape[1])
        return jax.lax.all_gather(lifted, spread.AXIS, tiled=True) if num_devices > 1 else lifted

    starts = jnp.arange(blocks) * size
    return spread.over(num_devices, of_items, (), key, wide, starts, cut=(2,))[:num_items, :d]


def _wide(compressed: jax.Array) -> jax.Array:
    """Zero columns up to whole vector registers: half the time of a lift at d = 15."""
    return jnp.pad(compressed, ((0, 0), (0, -compressed.shape[1] % 8)))


def apply(key: bits.Words, law: Law, items: jax.Array, num_rows: int) -> jax.Array:
    """Φ·items, float32[q, d], from float32[items, d]."""
    columns = jnp.arange(items.shape[0])
    starts, size = _blocks(num_rows, items.shape[0])

    def rows(start: jax.Array) -> jax.Array:
        phi = entries(key, law, (start + jnp.arange(size))[:, None], columns[None, :], num_rows)
        return jnp.matmul(phi, items, precision="highest")

    return jax.lax.map(rows, starts).reshape(-1, *items.shape[1:])[:num_rows]


def gram(key: bits.Words, law: Law, num_rows: int, num_items: int) -> jax.Array:
    """ΦΦᵀ, float32[q, q], in blocks of columns."""
    rows = jnp.arange(num_rows)
    starts, size = _blocks(num_items, num_rows)

    def add(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        columns = start + jnp.arange(size)
        phi = entries(key, law, rows[:, None], columns[None, :], num_rows) * (columns < num_items)
        return total + jnp.matmul(phi, phi.T, precision="highest"), None

    return jax.lax.scan(add, jnp.zeros((num_rows, num_rows), jnp.float32), starts)[0]


def apply_pseudo_inverse(
    key: bits.Words,
    law: Law,
    inverse: Any,
    compressed: jax.Array,
    num_items: int,
    *,
    num_devices: int = 1,
) -> jax.Array:
    """Φ†·compressed = Φᵀ(ΦΦᵀ)⁻¹·compressed; needs q ≤ items.

    inverse: of ΦΦᵀ, as `gram_inverse` gives it.

    A product with the inverse reads q² numbers once, where two triangular solves take four times as
    long; it is for q well below items, where ΦΦᵀ is near the identity's multiple (condition 4 at a
    tenth).
    """
    solved = jnp.matmul(inverse, _wide(compressed), precision="highest")[:, : compressed.shape[1]]
    return apply_transpose(key, law, solved, num_items, num_devices=num_devices)


def gram_inverse(key: bits.Words, law: Law, num_rows: int, num_items: int) -> jax.Array:
    """(ΦΦᵀ)⁻¹, float32[q, q], by its Cholesky factor."""
    lower = jnp.linalg.cholesky(gram(key, law, num_rows, num_items))
    half = jax.lax.linalg.triangular_solve(lower, jnp.eye(num_rows), left_side=True, lower=True)
    return jnp.matmul(half.T, half, precision="highest")


def _blocks(num_rows: int, width: int) -> tuple[jax.Array, int]:
    """(first rows of blocks, rows of a block)."""
    size = max(1, min(num_rows, BLOCK_ENTRIES // width))
    return jnp.arange(0, num_rows, size), size
