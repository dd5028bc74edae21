"""Floors: what a program must compute and move, counted, over the machine's measured speeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SIDE = 2_048  # of the square matrices whose product is timed
MEGABYTES = 256  # of the array that is copied: beyond any cache
REPEATS = 5


def machine() -> dict[str, float]:
    """{gemm_gflop_s, copy_gb_s} of one device with all its threads.

    The best of a few float32 products, and of a few passes that read and write memory.
    """
    import jax
    import jax.numpy as jnp

    square = jnp.ones((SIDE, SIDE), jnp.float32)
    long = jnp.ones(MEGABYTES << 18, jnp.float32)
    with jax.default_matmul_precision("float32"):
        product = _best(jax.jit(lambda a: a @ a / SIDE), square)
    size = long.nbytes
    copy = _best(
        jax.jit(lambda a: -a, donate_argnums=0), long
    )  # in place: new memory would cost page faults
    return {"gemm_gflop_s": 2 * SIDE**3 / product / 1e9, "copy_gb_s": 2 * size / copy / 1e9}


def _best(function: Callable[[Any], Any], argument: Any) -> float:
    import jax

    argument = jax.block_until_ready(function(argument))
    spent = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        argument = jax.block_until_ready(function(argument))
        spent.append(time.perf_counter() - start)
    return min(spent)


def step(
    num_users: int, num_items: int, num_ratings: int, rank: int, stored_bytes: int
) -> dict[str, float]:
    """{flops, bytes} of both gradients and updates without noise.

    flops: two products of 2k a rating in each orientation. bytes: the stored ratings once, both
    orientations, and the factors read and written; gathered rows, which are to come out of a cache,
    are not counted.
    """
    factors = 4 * rank * (num_users + num_items)
    return {"flops": 8.0 * rank * num_ratings, "bytes": float(stored_bytes + 2 * factors)}


def floor(
    of: str, counted: dict[str, float], measured: dict[str, float], ms: float
) -> dict[str, Any]:
    """{of, floor_ms, fraction, bound_by}, with the counted work and the machine's speeds.

    floor_ms: the larger of both floors. fraction: its share of the `ms` that `of` took.
    """
    compute = counted["flops"] / measured["gemm_gflop_s"] / 1e6
    memory = counted["bytes"] / measured["copy_gb_s"] / 1e6
    least = max(compute, memory)
    bound_by = "arithmetic" if compute >= memory else "memory"
    return (
        {"of": of, "floor_ms": least, "fraction": least / ms, "bound_by": bound_by}
        | counted
        | measured
    )
