"""Many small symmetric systems at once, by matrix products and element-wise steps alone.

On a CPU, XLA hands a batch of factorisations to LAPACK on the threads of its own pool and waits for
them: two such calls at a time, as on two CPU devices, may wait for ever. So this is Cholesky's
elimination by blocks without LAPACK: the diagonal block is inverted (symmetric sweeps), the rest is
updated by products. Stable without pivots, as Cholesky.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

WIDTH = 10  # of a diagonal block, at most
BATCH_ENTRIES = 1 << 18  # of the matrices that are worked on at a time, about: they stay in cache

# of the projection's iteration: eigenvalues within 1.5^-30 of the largest stay where they are
SIGN_STEPS = 30


class Solution(NamedTuple):
    """Solved systems, and the log det of their matrices."""

    solved: Float[Array, "n d"]
    log_det: Float[Array, " n"]


@jax.jit
def solve(
    matrix: Float[Array, "n d d"], target: Float[Array, "n d"], ridge: jax.Array | float = 0.0
) -> Solution:
    """x with (matrix + ridge·I)x = target, and the log det of matrix + ridge·I.

    Each matrix + ridge·I must be symmetric and positive definite: entries are not a number where
    one is not.
    """
    n, d = target.shape
    size = max(1, min(n, BATCH_ENTRIES // (d * d)))
    batches = -(-n // size)
    missing = batches * size - n
    if missing:
        matrix = jnp.concatenate(
            [matrix, jnp.broadcast_to(jnp.eye(d, dtype=matrix.dtype), (missing, d, d))]
        )
        target = jnp.concatenate([target, jnp.zeros((missing, d), target.dtype)])
    # Every batch takes a few of every stretch: of rows that are spread over devices each then has
    # its share of a batch.
    parts = [
        jnp.swapaxes(leaf.reshape(size, batches, *leaf.shape[1:]), 0, 1)
        for leaf in (matrix, target)
    ]
    raised = ridge * jnp.eye(d, dtype=matrix.dtype)
    out = jax.lax.map(lambda part: _eliminate(part[0] + raised, part[1]), parts)
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:])[:n], out)


def _eliminate(matrix: jax.Array, target: jax.Array) -> Solution:
    d = target.shape[1]
    blocks = -(-d // WIDTH)
    widths = [d // blocks + (place < d % blocks) for place in range(blocks)]
    # the right-hand side is one more column
    rest = jnp.concatenate([matrix, target[:, :, None]], axis=2)
    log_det, rows = jnp.zeros(target.shape[0], target.dtype), []
    for width in widths:
        inverse, log_block = _invert(rest[:, :width, :width])
        log_det = log_det + log_block
        row = rest[:, :width, width:]
        solved = _times(inverse, row)
        rows.append(solved)
        across = jnp.swapaxes(row[:, :, : row.shape[2] - 1], 1, 2)
        rest = rest[:, width:, width:] - _times(across, solved)
    solution = rows[-1][:, :, -1]
    for row in rows[-2::-1]:
        known = row[:, :, -1] - _times(row[:, :, :-1], solution[:, :, None])[:, :, 0]
        solution = jnp.concatenate([known, solution], axis=1)
    return Solution(solution, log_det)


def _invert(block: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(inverse, log det) of symmetric positive float[n, w, w], by a symmetric sweep on each pivot;
    n last meanwhile.
    """
    width = block.shape[1]
    place = jnp.arange(width)[:, None]

    def sweep(k: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        swept, log_det = carry
        row = jax.lax.dynamic_index_in_dim(swept, k, 0, keepdims=False)
        pivot = jax.lax.dynamic_index_in_dim(row, k, 0, keepdims=False)
        share = row / pivot
        row, ends = jax.lax.optimization_barrier((row, jnp.where(place == k, -1 / pivot, share)))
        inner = swept - row[:, None] * ends[None]
        own = (place == k)[:, :, None], (place == k)[None]
        return jnp.where(
            own[0], ends[None], jnp.where(own[1], ends[:, None], inner)
        ), log_det + jnp.log(pivot)

    start = jnp.moveaxis(block, 0, -1), jnp.zeros(block.shape[0], block.dtype)
    swept, log_det = jax.lax.fori_loop(0, width, sweep, start)
    return jnp.moveaxis(-swept, -1, 0), log_det


def _times(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision="highest")


def raise_eigenvalues(
    matrix: Float[Array, "items d d"], floor: jax.Array
) -> Float[Array, "items d d"]:
    """Symmetric matrices with the eigenvalues below `floor` raised to it.

    floor + the positive part of X = matrix - floor, which is (X + |X|)/2, |X| = X·sign(X), the sign
    by Newton's and Schulz's iteration S ← S(3I - S²)/2: matrix products only. An eigenvalue comes
    out between max(its own, floor) and less than that by at most 3e-6 of ‖X‖.
    """
    eye = jnp.eye(matrix.shape[-1], dtype=matrix.dtype)
    above = matrix - floor * eye
    length = jnp.sqrt(jnp.sum(above**2, axis=(-2, -1), keepdims=True))

    def step(_: Any, sign: jax.Array) -> jax.Array:
        squared = _times(sign, sign)
        return _times(sign, 1.5 * eye - 0.5 * squared)

    sign = jax.lax.fori_loop(0, SIGN_STEPS, step, above / jnp.maximum(length, 1e-30))
    positive = (above + _times(above, sign)) / 2
    return floor * eye + (positive + jnp.swapaxes(positive, -1, -2)) / 2
