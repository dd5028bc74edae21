"""Other ways to compute the step: numba, torch, scipy. Each is optional, and named if skipped."""

from __future__ import annotations

import functools
import importlib.util
import time
import warnings
from collections.abc import Callable

import numpy as np

from experiments.bench.problem import (
    CLIP_NORM,
    LEARNING_RATE,
    REFERENCE,
    REGULARIZATION,
    Contender,
    Problem,
    consecutive,
)
from experiments.cli import devices

DENSE_CELLS = 1 << 26  # beyond that the dense contender is left out


def installed(problem: Problem) -> dict[str, bool]:
    """Whether each peer can take part; dense torch cannot where its matrix is too large."""
    torch, numba = (importlib.util.find_spec(name) is not None for name in ("torch", "numba"))
    cells = problem.ratings.num_users * problem.ratings.num_items
    return {
        "numba": numba,
        REFERENCE: torch,
        "scipy": True,
        "dense torch": torch and cells <= DENSE_CELLS,
    }


def makers(problem: Problem) -> list[Callable[[Problem, int], Contender]]:
    """The makers of the installed peers, each called with (problem, num_devices)."""
    known = {"numba": _numba, REFERENCE: _torch_csr, "scipy": _scipy, "dense torch": _torch_dense}
    return [known[name] for name, there in installed(problem).items() if there]


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
    return (1 / np.maximum(1, np.linalg.norm(factors, axis=1, keepdims=True) / CLIP_NORM)).astype(
        np.float32
    )


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
    return Contender("numba", consecutive(step), _held(matrix), 1e3 * (time.perf_counter() - start))


def _torch_csr(problem: Problem, num_devices: int) -> Contender:
    """Residuals by sampled_addmm, gradients by sparse times dense (MKL); the transpose is a second
    CSR.
    """
    import torch

    del num_devices
    torch.set_num_threads(devices.cores())
    warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)  # "beta state"
    by_user = _centred(problem)
    by_item = by_user.T.tocsr()
    sides = [
        torch.sparse_csr_tensor(
            *(torch.from_numpy(part) for part in (m.indptr, m.indices, m.data)), size=m.shape
        )
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

    return Contender(REFERENCE, consecutive(step), _held(by_user) + _held(by_item))


def _scipy(problem: Problem, num_devices: int) -> Contender:
    import scipy.sparse

    del num_devices
    matrix = _centred(problem)
    row = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
    users, items = problem.users, problem.items

    def step():
        nonlocal users, items
        residual = matrix.data - np.einsum("nk,nk->n", users[row], items[matrix.indices])
        residuals = scipy.sparse.csr_array(
            (residual, matrix.indices, matrix.indptr), shape=matrix.shape
        )
        of_users = -(residuals @ (_host_scale(items) * items))
        of_items = -(residuals.T @ (_host_scale(users) * users))
        users, items = _host_descend(users, of_users), _host_descend(items, of_items)
        return users, items

    return Contender("scipy", consecutive(step), _held(matrix) + row.nbytes)


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

    return Contender("dense torch", consecutive(step), 2 * values.numel() * 4)
