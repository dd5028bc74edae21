"""`dpmf bench --gpu`: what only an accelerator can say, in one call of under eight minutes.

- `rows`: the private step of paper 001 (noise and Info through the protocol) at each size and rank
  in each layout that fits: its floor, whether `layout.choose` takes the fastest, and whether the
  same key gives the same bits again. Unordered additions (scatters) may give others.
  XLA_FLAGS=--xla_gpu_deterministic_ops=true orders them, at a price, which another call shows.
- `products`: full float32 against TF32, time and error, and whether a step changes where jax's
  default is TF32. It must not: every product of ours states its precision.
- `sweep`: sixteen configurations at once (`lax.map`, `vmap`) against separate runs.
- `draws`, `steps`: noise in whole numbers beside float32 noise (`dpmf bench noise`).
- `bits`: which mechanisms give a second process, the other layout and a CPU the same bits.
- `curves`: all MovieLens-1M curves of paper 001, trained from the ratings, where they are there.

What no longer fits the time is left out and named.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax.errors import DpmfError, PrivacyError, UsageError
from experiments.bench import bits, generated, measure, noise, roofline
from experiments.cli import console, devices, provenance

LIMIT = 450.0  # seconds, after which nothing new is begun
SIZES = ("ml-100k", "ml-1m", "ml-20m")
RANKS = {"ml-100k": (20,), "ml-1m": (20, 64, 512), "ml-20m": (20, 64)}
FIGURES = ("001/fig1", "001/fig4", "001/fig7", "001/fig10", "001/fig19", "001/fig22")
MOST_CELLS = 1 << 30  # of a dense layout
STEPS = 50  # consecutive, in one program
SIDE = 4_096  # of the matrices whose products are compared
DRAWS = 1 << 24


def run(
    repeats: int = 7,
    *,
    sizes: Sequence[str] = SIZES,
    ranks: Mapping[str, Sequence[int]] = RANKS,
    side: int = SIDE,
    num_draws: int = DRAWS,
    labels: str = "",
    any_backend: bool = False,
    limit: float = LIMIT,
) -> dict[str, Any]:
    """Times on one device; see the module for the parts of the result, a JSON-able object.

    Args:
      repeats: interleaved rounds, whose median counts. sizes: of `generated.SIZES`. side: of the
        products' matrices.
      any_backend: also without an accelerator, to try the program out.
      limit: seconds, after which nothing new is begun.

    Raises: PrivacyError (a missing precondition) where there is no accelerator; UsageError for no
      repeats.
    """
    import jax

    if repeats < 1:
        raise UsageError("repeats must be at least 1", fix="dpmf bench --gpu")
    devices.use(1)
    if jax.default_backend() == "cpu" and not any_backend:
        raise PrivacyError(
            "there is no accelerator",
            where="jax sees CPUs only",
            fix="make cuda on a machine that has one",
        )
    start = time.perf_counter()
    others = measure.watch()
    machine = roofline.machine()
    left_out: list[str] = []

    def in_time(what: str, make: Callable[[], Any]) -> Any:
        if time.perf_counter() - start > limit:
            left_out.append(what)
            return None
        console.say(f"bench --gpu: {what}, {time.perf_counter() - start:.0f} s")
        return make()

    compared = in_time("bits", lambda: bits.rows(sizes[0], labels=labels))
    draws = in_time("draws", lambda: noise.draws(repeats, num_draws))
    steps = []
    for size, rank in dict.fromkeys(case[:2] for case in cases(sizes, ranks)):
        found = in_time(f"steps, rank {rank}, {size}", partial(_steps, size, rank, repeats))
        steps += found or []
    rows = []
    for size, rank, kind in cases(sizes, ranks):
        row = in_time(
            f"{kind}, rank {rank}, {size}", partial(_row, size, rank, kind, repeats, machine)
        )
        rows += [row] if row else []
    for row in rows:
        same = [
            other["ms"]
            for other in rows
            if (other["size"], other["rank"]) == (row["size"], row["rank"])
        ]
        row["fastest"] = row["ms"] == min(same)
    products = in_time("products", lambda: _products(side, repeats))
    swept = in_time("sweep", lambda: _sweep(sizes[0], repeats))
    curves = in_time("curves of paper 001", _curves)
    return {
        "benchmark": "gpu",
        "command": "dpmf bench --gpu",
        "data": "generated; curves on MovieLens-1M",
        "repeats": repeats,
        "consecutive_steps": STEPS,
        "rows": rows,
        "draws": draws or [],
        "steps": steps,
        "bits": compared or [],
        "products": products or [],
        "sweep": swept or [],
        "curves": curves or [],
        "machine": machine,
        "left_out": left_out,
        "seconds": time.perf_counter() - start,
        "flags": _flags(),
        "others": others(),
        "commit": provenance.commit(),
        **measure.machine(1),
    }


def _flags() -> str:
    import os

    return os.environ.get("XLA_FLAGS", "")


def cases(sizes: Sequence[str], ranks: Mapping[str, Sequence[int]]) -> list[tuple[str, int, str]]:
    """(size, rank, layout) of each row: every layout that fits."""
    every = [
        (size, rank, kind) for size in sizes for rank in ranks[size] for kind in ("split", "dense")
    ]
    return [
        (size, rank, kind)
        for size, rank, kind in every
        if kind == "split" or num_cells(size) <= MOST_CELLS
    ]


def num_cells(size: str) -> int:
    users, items, _ = generated.SIZES[size]
    return users * items


def _summary(once: Callable[[], Any], repeats: int, units: int) -> dict[str, float]:
    """`measure.summary` of one unit of a call that has run before."""
    return measure.interleaved({"": partial(measure.timed, once, units)}, repeats).summary[""]


def problem(size: str, rank: int, kind: str) -> tuple[Any, Any, Any, Any]:
    """(mechanism, key, state, data) of paper 001 as published, on one device."""
    import jax

    from dpmf_jax import layout, protocol
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian

    ratings = generated.ratings(size)
    config = gaussian.Config(
        rating_range=ratings.rating_range, rank=rank, noise_multiplier=20.0, center="item"
    )
    data = layout.make(ratings, kind=kind, num_devices=1)
    mechanism = gaussian.mechanism(config)
    init_key, key = jax.random.split(jax.random.key(0))
    return mechanism, key, protocol.begin(mechanism, init_key, data), data


def _row(
    size: str, rank: int, kind: str, repeats: int, machine: dict[str, float]
) -> dict[str, Any]:
    import jax

    from dpmf_jax import layout, protocol

    mechanism, key, state, data = problem(size, rank, kind)

    def once() -> Any:
        return jax.block_until_ready(protocol.train(mechanism, key, state, data, num_steps=STEPS))

    compile_ms = 1e3 * measure.compiling(once)
    first, again = (jax.device_get(once()) for _ in range(2))
    found = _summary(once, repeats, STEPS)
    users, items, num_ratings = generated.SIZES[size]
    stored = sum(leaf.nbytes for leaf in jax.tree.leaves(data))
    counted = roofline.step(
        users, items, num_ratings if kind == "split" else num_cells(size), rank, stored
    )
    floor = roofline.floor(kind, counted, machine, found["ms"])
    memory = jax.devices()[0].memory_stats() or {}
    return {
        "size": size,
        "rank": rank,
        "layout": kind,
        **found,
        "floor_ms": floor["floor_ms"],
        "bound_by": floor["bound_by"],
        "fraction": floor["fraction"],
        "chosen": layout.choose(users, items, num_ratings, backend=jax.default_backend()) == kind,
        "same_bits": all(map(np.array_equal, *map(jax.tree.leaves, (first, again)))),
        "layout_mb": stored / 2**20,
        "most_mb_so_far": (
            memory["peak_bytes_in_use"] / 2**20 if "peak_bytes_in_use" in memory else None
        ),
        "compile_ms": compile_ms,
    }


def _steps(size: str, rank: int, repeats: int) -> list[dict[str, Any]]:
    generators = ("threefry", "chacha20")  # an experiment's, and a release's
    rows, _, _ = noise.private_steps(rank, generated.ratings(size), repeats, 1, generators)
    return [{"size": size, **row} for row in rows]


def _products(side: int, repeats: int) -> list[dict[str, Any]]:
    """A row of each precision: {precision, gflop_s, error, step_changes}.

    error: the largest, relative to the largest entry.
    """
    import jax
    import jax.numpy as jnp

    from dpmf_jax import protocol

    one, other = (
        np.random.default_rng(k).standard_normal((side, side), np.float32) for k in (0, 1)
    )
    exact = (one[:64].astype(np.float64) @ other).astype(np.float64)
    a, b = jnp.asarray(one), jnp.asarray(other)
    mechanism, key, state, data = problem("ml-100k", 20, "dense")
    rows, steps = [], []
    for name in ("float32", "tensorfloat32"):
        with jax.default_matmul_precision(name):
            product = jax.jit(lambda a, b: a @ b)
            found = np.asarray(product(a, b))[:64]
            ms = _summary(
                partial(lambda product: jax.block_until_ready(product(a, b)), product), repeats, 1
            )["ms"]
            steps.append(jax.device_get(protocol.train(mechanism, key, state, data, num_steps=3)))
        rows.append(
            {
                "precision": name,
                "gflop_s": 2 * side**3 / ms / 1e6,
                "error": float(np.abs(found - exact).max() / np.abs(exact).max()),
                "step_changes": not all(
                    map(np.array_equal, *map(jax.tree.leaves, (steps[0], steps[-1])))
                ),
            }
        )
    return rows


def _sweep(size: str, repeats: int) -> list[dict[str, Any]]:
    from experiments.bench import sweep

    return sweep.run(16, 20, size, repeats, num_devices=1)["rows"]


def _curves() -> list[dict[str, Any]]:
    """{figures, seconds, result}; empty without the ratings."""
    from experiments.reproduce import command as reproduce_command

    with tempfile.TemporaryDirectory() as folder:
        command = reproduce_command.Command(
            figures=FIGURES, beside="none", out=Path(folder), devices=1
        )
        start = time.perf_counter()
        try:
            result = reproduce_command.reproduce(command)
        except DpmfError as error:
            console.say(f"bench --gpu: no curves: {error.what}")
            return []
        seconds = time.perf_counter() - start
    return [{"figures": len(FIGURES), "seconds": seconds, "result": result["result"]}]
