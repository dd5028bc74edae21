"""A round of paper 004's local DP as NumPy loops over users: what `bench.local` times ours against.

They do per user what a careful person would: rows by `take`, products by BLAS, coins, bits and the
sum at the server for all users at once. Φ is stored.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from dpmf_jax.data.ratings import Ratings

SETTINGS = {
    "epsilon": 1.6,
    "num_rounds": 20,
    "learning_rate": 0.01,
    "regularization": 1e-8,
    "center": 3.0,
}


class Loop(NamedTuple):
    """What the loops of one variant hold.

    ratings: in the order of users.
    starts: int[users + 1], where a user's ratings begin.
    users, items: float32[users, d] and float32[items, d], U and V.
    phi: float32[q, items], Φ; None in algorithm 1.
    factor: `factored` of Φ; None without Φ, or where the transpose lifts.
    fresh: whether each round has another Φ.
    """

    ratings: Ratings
    starts: np.ndarray
    users: np.ndarray
    items: np.ndarray
    phi: np.ndarray | None
    factor: tuple[np.ndarray, bool] | None
    fresh: bool


def user_entries(
    loop: Loop,
    who: np.ndarray,
    row: np.ndarray,
    column: np.ndarray,
    moved: np.ndarray | None = None,
) -> np.ndarray:
    """float32[len(who)]: the entries that these users are asked for, not clipped.

    With `moved`, float32[users, d], the users' rows of U after the round are written there.
    """
    value, item, center = loop.ratings.value, loop.ratings.item, np.float32(SETTINGS["center"])
    out = np.zeros(len(who), np.float32)
    for k, u in enumerate(who):
        first, last = loop.starts[u], loop.starts[u + 1]
        items, own = item[first:last], loop.users[u]
        if loop.phi is None:  # a row of ∇V is 0 but at the own ratings
            place = np.searchsorted(items, row[k])
            if place < len(items) and items[place] == row[k]:
                residual = value[first + place] - center - loop.items[row[k]] @ own
                out[k] = -2 * own[column[k]] * residual
            continue
        factors = loop.items.take(items, axis=0)
        residual = value[first:last] - center
        residual -= factors @ own
        out[k] = -2 * own[column[k]] * (loop.phi[row[k]].take(items) @ residual)
        if moved is not None:
            moved[u] = _moved_row(own, residual, factors)
    return out


def user_steps(loop: Loop, who: np.ndarray, moved: np.ndarray) -> None:
    """Steps of these users' rows of U at the item factors of the loop, into `moved`."""
    value, item, center = loop.ratings.value, loop.ratings.item, np.float32(SETTINGS["center"])
    for u in who:
        first, last = loop.starts[u], loop.starts[u + 1]
        factors, own = loop.items.take(item[first:last], axis=0), loop.users[u]
        residual = value[first:last] - center
        residual -= factors @ own
        moved[u] = _moved_row(own, residual, factors)


def _moved_row(own: np.ndarray, residual: np.ndarray, factors: np.ndarray) -> np.ndarray:
    gradient = (-2 / max(len(residual), 1)) * (residual @ factors)
    return own - np.float32(SETTINGS["learning_rate"]) * (
        gradient + 2 * SETTINGS["regularization"] * own
    )


def server_step(loop: Loop, row: np.ndarray, column: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The item factors after a round in which everybody reported."""
    import scipy.linalg

    rows = len(loop.items) if loop.phi is None else len(loop.phi)
    rank = loop.items.shape[1]
    gain = np.tanh(SETTINGS["epsilon"] / SETTINGS["num_rounds"] / 2)
    said = np.bincount(row.astype(np.int64) * rank + column, bits, rows * rank).reshape(rows, rank)
    mean = (said * (rows * rank / gain / len(bits))).astype(np.float32)
    if loop.factor is not None:
        mean = scipy.linalg.cho_solve(loop.factor, mean)
    if loop.phi is not None:
        mean = loop.phi.T @ mean
    return loop.items - np.float32(SETTINGS["learning_rate"]) * (
        mean + 2 * SETTINGS["regularization"] * loop.items
    )


def factored(phi: np.ndarray) -> tuple[np.ndarray, bool]:
    """The Cholesky factor of ΦΦᵀ, as scipy has it."""
    import scipy.linalg

    factor, lower = scipy.linalg.cho_factor(phi @ phi.T, lower=True)
    return factor, bool(lower)


def numpy_round(loop: Loop, who: np.ndarray, rng: np.random.Generator, *, one_pass: bool) -> float:
    """Seconds of a round of all users, scaled up from those of the users in `who`."""
    num_users, rank = loop.users.shape
    start = time.perf_counter()
    if loop.fresh:
        assert loop.phi is not None
        rng.standard_normal(dtype=np.float32, out=loop.phi)
        np.multiply(loop.phi, np.float32(len(loop.phi) ** -0.5), out=loop.phi)
    rows = len(loop.items) if loop.phi is None else len(loop.phi)
    row, column = rng.integers(rows, size=num_users), rng.integers(rank, size=num_users)
    moved = np.empty_like(loop.users)
    entries = np.zeros(num_users, np.float32)
    drawn_at = time.perf_counter()
    entries[who] = user_entries(loop, who, row[who], column[who], moved if one_pass else None)
    asked_at = time.perf_counter()
    gain = np.tanh(SETTINGS["epsilon"] / SETTINGS["num_rounds"] / 2)
    bits = np.where(rng.random(num_users) < 0.5 + 0.5 * gain * np.clip(entries, -1, 1), 1.0, -1.0)
    after = loop._replace(items=server_step(loop, row, column, bits))
    lifted_at = time.perf_counter()
    if not one_pass:  # algorithm 1 moves the users after V, algorithm 2 before it
        user_steps(after if loop.phi is None else loop, who, moved)
    done = time.perf_counter()
    per_user = (asked_at - drawn_at) + (done - lifted_at)
    return per_user * num_users / len(who) + (drawn_at - start) + (lifted_at - asked_at)
