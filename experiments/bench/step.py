"""One Gaussian step, ours against what else a user could pick, interleaved in one process.

The step, for rank k and n ratings: e_ui = v_ui - c_i - ⟨θ_u, x_i⟩ at the ratings, both clipped gradients
(-Σ_i e s_i x_i per user, -Σ_u e t_u θ_u per item, s and t one over the clipped norms), and both updates with λ.
No noise and no RMSE, except in the row "jax private step". The peers get values that are centred beforehand, which
ours does in the step.

What it must cost, counted at MovieLens-1M size and rank 20:

- flops: 3 products of 2k a rating make 120 MFlop, 4 (each orientation makes its own residuals) 160 MFlop, under 2 ms on
  two cores with AVX-512.
- bytes: each orientation reads 8 bytes a rating (9 MB with padding); then a factor row of 96 bytes (rank 20 padded to
  24) is read from the table in the second-level cache, written to a block and read twice by the two products: 107 MB
  written and 321 MB read per orientation, all of it in cache. At 32 bytes a cycle that is 3.6 ms on one core.
- measured on one core (Zen 4): 8.8 ms for the users, 10.2 for the items, so 2.6 times that floor. The gather alone is
  4.7 ms (XLA copies a row of 96 bytes in 13 moves, where 3 would do), the products 3.5. Two devices take 21 ms of CPU
  time in all, 11.5 ms of wall time on two idle cores; the numba kernel takes 14 and 7.2.

What was tried, in CPU time of the users' orientation against 8.2 ms for gather and products alone: multiply and sum in
place of matrix products 13.7; rank not padded 10.8, padded to 32 11.9 (the table outgrows half the cache); no barrier
after the gather 13.9; slices summed one by one over the width 8.1, but 0.2 s more to compile; widths of 16 to 64 within
8%, 128 a quarter more (padding); int16 columns 0.2 more; item gradients scattered from the users' pass 11.5 more where
the items' own pass costs 10.2; residuals handed from one pass to the other save the second product and cost as much.
What paid: blocks of 128 KB in place of 2 MB (0.8 ms), once XLA was kept from handing halves of small gathers to other
threads (5 ms an orientation; see `layout_split`).
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax import synthetic
from dpmf_jax.errors import UsageError
from dpmf_jax.ratings import Ratings
from experiments import devices

SIZES = {
    "ml-100k": (943, 1_682, 100_000),
    "ml-1m": (6_040, 3_706, 1_000_209),
    "ml-20m": (138_493, 26_744, 20_000_263),
}
LEARNING_RATE, REGULARIZATION, CLIP_NORM = 1e-4, 0.01, 1.0
DENSE_CELLS = 1 << 26  # beyond that the dense contender is left out
REFERENCE = "torch CSR"
PAUSE = 0.01  # seconds between contenders: thread pools of the one before stop spinning


class Contender(NamedTuple):
    """step: () -> (users, items), the next ones; held: bytes of the stored ratings; compile_ms: before the first."""

    name: str
    step: Callable[[], tuple[Any, Any]]
    held: int
    compile_ms: float | None = None


class Problem(NamedTuple):
    ratings: Ratings
    center: np.ndarray  # float32[items]
    users: np.ndarray  # float32[users, rank]
    items: np.ndarray


def run(rank: int = 20, size: str = "ml-1m", repeats: int = 9, *, num_devices: int | None = None) -> dict[str, Any]:
    """Times the step at a data set's size on generated ratings; peers that are not installed are left out and named.

    Args:
      rank: number of factors.
      size: one of `SIZES`.
      repeats: interleaved rounds, whose median counts; every contender is warm before the first.
      num_devices: of ours; None takes one device per core, or every accelerator.

    Returns: a JSON-able object; `rows` is a list of {contender, ms, ratio, peak_mb, compile_ms, fastest_ms, cpu_ms}: ms
      is the median, ratio is to torch CSR (None where torch is absent), peak_mb the stored ratings plus the growth of
      the process in the first step (compilation apart; device memory of an accelerator is not seen), cpu_ms the least
      CPU time of a step, all threads. `others` is the share of the machine that other processes used while timing:
      above about 0.1 the ratios mean little, since peers with thread barriers lose most.

    Raises: UsageError for an unknown size, a rank or number of repeats below 1.
    """
    if size not in SIZES:
        raise UsageError(f"unknown size {size!r}", where="--size", fix=f"one of {', '.join(SIZES)}")
    if rank < 1 or repeats < 1:
        raise UsageError("rank and repeats must be at least 1", where=f"rank {rank}, repeats {repeats}")
    count = devices.use(num_devices)
    problem = _problem(rank, size)
    made = [_warm(maker(problem, count)) for maker in _makers(problem)]
    differences = _differences(made)
    times, others = _interleave([warm.contender for warm in made], repeats)
    medians = {name: statistics.median(wall for wall, _ in spent) for name, spent in times.items()}
    rows = [
        {
            "contender": contender.name,
            "ms": 1e3 * medians[contender.name],
            "ratio": medians[contender.name] / medians[REFERENCE] if REFERENCE in medians else None,
            "peak_mb": (contender.held + growth) / 2**20,
            "compile_ms": contender.compile_ms,
            "fastest_ms": 1e3 * min(wall for wall, _ in times[contender.name]),
            "cpu_ms": 1e3 * min(cpu for _, cpu in times[contender.name]),
        }
        for contender, growth, _first in made
    ]
    return {
        "benchmark": "step",
        "data": f"generated, {problem.ratings.num_ratings:,} ratings, {SIZES[size][0]:,} x {SIZES[size][1]:,}",
        "rank": rank,
        "repeats": repeats,
        "goal": {"ratio": 1.1 if rank <= 32 else 1.5, "contender": "jax"},
        "rows": rows,
        "left_out": [name for name, there in _peers(problem).items() if not there],
        "largest_difference": differences,
        "others": others,
        "device": _device(count),
        "cores": devices.cores(),
        "versions": _versions(),
    }


def _problem(rank: int, size: str) -> Problem:
    num_users, num_items, num_ratings = SIZES[size]
    ratings = synthetic.generate(num_users=num_users, num_items=num_items, num_ratings=num_ratings)
    rng = np.random.default_rng(0)
    users, items = (rng.standard_normal((n, rank), np.float32) for n in (num_users, num_items))
    users /= np.linalg.norm(users, axis=1, keepdims=True)
    items *= 1.2 / np.linalg.norm(items, axis=1, keepdims=True)  # so that clipping has something to do
    total = np.bincount(ratings.item, ratings.value, num_items)
    center = total / np.maximum(np.bincount(ratings.item, minlength=num_items), 1)
    return Problem(ratings, center.astype(np.float32), users, items)


def _peers(problem: Problem) -> dict[str, bool]:
    torch, numba = (importlib.util.find_spec(name) is not None for name in ("torch", "numba"))
    cells = problem.ratings.num_users * problem.ratings.num_items
    return {"numba": numba, REFERENCE: torch, "scipy": True, "dense torch": torch and cells <= DENSE_CELLS}


def _makers(problem: Problem) -> Iterator[Callable[[Problem, int], Contender]]:
    yield from (_jax, _jax_private)
    makers = {"numba": _numba, REFERENCE: _torch_csr, "scipy": _scipy, "dense torch": _torch_dense}
    yield from (makers[name] for name, there in _peers(problem).items() if there)


# --- ours


def _row_sums(row, columns, values, present):
    """For one row: -Σ e s x. Centre on the side that has it; the other is 0."""
    (factors, row_center), (others, column_center, scale) = row, columns
    residual = present * (values - row_center - column_center - others @ factors)
    return -((residual * scale) @ others)


def _jax_step(data, center, state):
    import jax.numpy as jnp

    from dpmf_jax import layout

    users, items = state
    rank = users.shape[1]

    def descend(factors, sums):
        return factors - LEARNING_RATE * (sums[:, :rank] + REGULARIZATION * factors)

    def scale(factors):
        return 1 / jnp.maximum(1, jnp.linalg.norm(factors, axis=1) / CLIP_NORM)

    wide_users, wide_items = layout.pad_rank(users), layout.pad_rank(items)
    zero = jnp.zeros(len(users))
    of_users = layout.sum_by_user(data, _row_sums, (wide_users, zero), (wide_items, center, scale(items)))
    of_items = layout.sum_by_item(data, _row_sums, (wide_items, center), (wide_users, zero, scale(users)))
    return descend(users, of_users), descend(items, of_items)


def _jax(problem: Problem, num_devices: int) -> Contender:
    import jax

    from dpmf_jax import layout

    data = layout.make(problem.ratings, num_devices=num_devices)
    center, state = layout.replicate(data, (problem.center, (problem.users, problem.items)))
    start = time.perf_counter()
    compiled = jax.jit(_jax_step).lower(data, center, state).compile()
    seconds = time.perf_counter() - start

    def step():
        nonlocal state
        state = jax.block_until_ready(compiled(data, center, state))
        return state

    return Contender("jax", step, sum(leaf.nbytes for leaf in jax.tree.leaves(data)), 1e3 * seconds)


def _jax_private(problem: Problem, num_devices: int) -> Contender:
    """As published in paper 001, with noise and Info, through the protocol."""
    import jax

    from dpmf_jax import gaussian, layout, protocol

    data = layout.make(problem.ratings, num_devices=num_devices)
    config = gaussian.Config(
        rating_range=problem.ratings.rating_range, rank=problem.users.shape[1], noise_multiplier=20.0, center="item"
    )
    mechanism = gaussian.mechanism(config)
    key, init_key = jax.random.split(jax.random.key(0))
    state = layout.replicate(data, mechanism.init(init_key, data, None))
    start = time.perf_counter()
    compiled = jax.jit(protocol.step).lower(mechanism, key, state, data).compile()
    seconds = time.perf_counter() - start

    def step():
        nonlocal key, state
        key, now = jax.random.split(key)
        state, info = jax.block_until_ready(compiled(mechanism, now, state, data))
        return None, info  # no figures to compare: its start and its noise are its own

    return Contender("jax private step", step, sum(leaf.nbytes for leaf in jax.tree.leaves(data)), 1e3 * seconds)


# --- peers


def _centred(problem: Problem):
    """scipy CSR of the centred values, users by items."""
    import scipy.sparse

    ratings = problem.ratings
    value = ratings.value - problem.center[ratings.item]
    shape = (ratings.num_users, ratings.num_items)
    return scipy.sparse.coo_array((value, (ratings.user, ratings.item)), shape=shape).tocsr()


def _held(matrix) -> int:
    return matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes


def _host_scale(factors):
    return (1 / np.maximum(1, np.linalg.norm(factors, axis=1, keepdims=True) / CLIP_NORM)).astype(np.float32)


def _host_descend(factors, gradient):
    return factors - np.float32(LEARNING_RATE) * (gradient + np.float32(REGULARIZATION) * factors)


@functools.cache
def _numba_kernel():
    import numba

    @numba.njit(parallel=True, fastmath=True)
    def kernel(starts, columns, values, users, items, s, t, of_users, of_items):
        num_users, rank = users.shape
        threads = of_items.shape[0]
        for thread in numba.prange(threads):
            own = of_items[thread]
            own[:] = 0.0
            for u in range(num_users * thread // threads, num_users * (thread + 1) // threads):
                for f in range(rank):
                    of_users[u, f] = 0.0
                for p in range(starts[u], starts[u + 1]):
                    i = columns[p]
                    product = np.float32(0.0)
                    for f in range(rank):
                        product += users[u, f] * items[i, f]
                    residual = values[p] - product
                    a, b = residual * s[i, 0], residual * t[u, 0]
                    for f in range(rank):
                        of_users[u, f] -= a * items[i, f]
                        own[i, f] -= b * users[u, f]

    return kernel


def _numba(problem: Problem, num_devices: int) -> Contender:
    """One pass over the users in parallel; every thread has its own item gradient."""
    import numba

    del num_devices
    threads = min(devices.cores(), numba.config.NUMBA_NUM_THREADS)
    numba.set_num_threads(threads)
    matrix, kernel = _centred(problem), _numba_kernel()
    users, items = problem.users, problem.items
    of_users, of_items = np.zeros_like(users), np.zeros((threads, *items.shape), np.float32)

    def step():
        nonlocal users, items
        sides = (_host_scale(items), _host_scale(users), of_users, of_items)
        kernel(matrix.indptr, matrix.indices, matrix.data, users, items, *sides)
        users, items = _host_descend(users, of_users), _host_descend(items, of_items.sum(0))
        return users, items

    start = time.perf_counter()
    few = np.zeros(2, matrix.indptr.dtype)
    sides = (_host_scale(items), _host_scale(users), of_users, of_items)
    kernel(few, matrix.indices, matrix.data, users[:1], items, *sides)
    return Contender("numba", step, _held(matrix), 1e3 * (time.perf_counter() - start))


def _torch_csr(problem: Problem, num_devices: int) -> Contender:
    """Residuals by sampled_addmm, gradients by sparse times dense (MKL); the transpose is a second CSR."""
    import torch

    del num_devices
    torch.set_num_threads(devices.cores())
    warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)  # "beta state"
    by_user = _centred(problem)
    by_item = by_user.T.tocsr()
    sides = [
        torch.sparse_csr_tensor(*(torch.from_numpy(part) for part in (m.indptr, m.indices, m.data)), size=m.shape)
        for m in (by_user, by_item)
    ]
    users, items = torch.from_numpy(problem.users), torch.from_numpy(problem.items)

    def sums(side, rows, columns):
        residual = torch.sparse.sampled_addmm(side, rows, columns.T, beta=1.0, alpha=-1.0)
        return residual @ (columns / (columns.norm(dim=1, keepdim=True) / CLIP_NORM).clamp(min=1.0))

    def step():
        nonlocal users, items
        of_users, of_items = sums(sides[0], users, items), sums(sides[1], items, users)
        users = users + LEARNING_RATE * (of_users - REGULARIZATION * users)
        items = items + LEARNING_RATE * (of_items - REGULARIZATION * items)
        return users, items

    return Contender(REFERENCE, step, _held(by_user) + _held(by_item))


def _scipy(problem: Problem, num_devices: int) -> Contender:
    import scipy.sparse

    del num_devices
    matrix = _centred(problem)
    row = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
    users, items = problem.users, problem.items

    def step():
        nonlocal users, items
        residual = matrix.data - np.einsum("nk,nk->n", users[row], items[matrix.indices])
        residuals = scipy.sparse.csr_array((residual, matrix.indices, matrix.indptr), shape=matrix.shape)
        of_users = -(residuals @ (_host_scale(items) * items))
        of_items = -(residuals.T @ (_host_scale(users) * users))
        users, items = _host_descend(users, of_users), _host_descend(items, of_items)
        return users, items

    return Contender("scipy", step, _held(matrix) + row.nbytes)


def _torch_dense(problem: Problem, num_devices: int) -> Contender:
    """All cells and a mask, as the public re-implementations do."""
    import torch

    del num_devices
    torch.set_num_threads(devices.cores())
    matrix = _centred(problem)
    values = torch.from_numpy(matrix.toarray())
    mask = torch.zeros_like(values)
    mask[problem.ratings.user, problem.ratings.item] = 1.0
    users, items = torch.from_numpy(problem.users), torch.from_numpy(problem.items)

    def scaled(factors):
        return factors / (factors.norm(dim=1, keepdim=True) / CLIP_NORM).clamp(min=1.0)

    def step():
        nonlocal users, items
        residual = mask * (values - users @ items.T)
        of_users, of_items = residual @ scaled(items), residual.T @ scaled(users)
        users = users + LEARNING_RATE * (of_users - REGULARIZATION * users)
        items = items + LEARNING_RATE * (of_items - REGULARIZATION * items)
        return users, items

    return Contender("dense torch", step, 2 * values.numel() * 4)


# --- measuring


class Warm(NamedTuple):
    contender: Contender
    growth: int  # bytes by which the first step raised the peak of the process
    first: tuple[Any, Any]  # what it returned, on the host


def _warm(contender: Contender) -> Warm:
    before = _reset_peak()
    users, items = contender.step()
    growth = max(0, _memory("VmHWM") - before)
    first = (None, None) if users is None else (np.array(users), np.array(items))
    contender.step()
    return Warm(contender, growth, first)


def _differences(made: list[Warm]) -> float:
    """Largest difference of any contender's first step from ours; the contenders must compute the same."""
    ours, *rest = (warm.first for warm in made if warm.first[0] is not None)
    largest = max((float(np.abs(a - b).max()) for other in rest for a, b in zip(ours, other, strict=True)), default=0.0)
    if not largest < 1e-4:
        raise FloatingPointError(f"the contenders differ by {largest}: they do not compute the same step")
    return largest


def _interleave(contenders: list[Contender], repeats: int) -> tuple[dict[str, list[tuple[float, float]]], float | None]:
    """(wall, CPU) seconds of every step, and the share of the machine that other processes took meanwhile."""
    times: dict[str, list[tuple[float, float]]] = {contender.name: [] for contender in contenders}
    before = _busy()
    for turn in range(repeats):
        first = turn % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            time.sleep(PAUSE)
            start, start_cpu = time.perf_counter(), time.process_time()
            contender.step()
            times[contender.name].append((time.perf_counter() - start, time.process_time() - start_cpu))
    after = _busy()
    if before is None or after is None or after[1] <= before[1]:
        return times, None
    return times, max(0.0, (after[0] - before[0]) / (after[1] - before[1]))


def _busy() -> tuple[float, float] | None:
    """(seconds of all cores spent on others, seconds of all cores) since the machine started; Linux only."""
    try:
        ticks = [int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, idle, waiting, *interrupts = (tick / os.sysconf("SC_CLK_TCK") for tick in ticks)
    own = os.times()
    busy = user + nice + system + sum(interrupts)
    return busy - own.user - own.system, busy + idle + waiting


def _memory(field: str) -> int:
    """Bytes of a field of /proc/self/status; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), 0)


def _reset_peak() -> int:
    """Resident bytes now, from which VmHWM counts again; where it cannot be reset, the peak so far."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _memory("VmHWM")
    return _memory("VmRSS")


def _device(count: int) -> str:
    import jax

    return f"{count} x {jax.devices()[0].device_kind} ({jax.default_backend()})"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("jax", "jaxlib", "numpy", "scipy", "torch", "numba"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
