"""An epoch of paper 002 as plain loops for numba: what `bench.online` times ours against."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

PRIME = np.uint64(2**31 - 1)


@functools.cache
def kernels() -> dict[str, Callable[..., None]]:
    """The loops, compiled at their first call: they move the parameters in place."""
    import numba

    def compiled(loop: Callable[..., None]) -> Any:
        return numba.njit(fastmath=True)(
            inspect.unwrap(loop)
        )  # without a wrapper that checks types in tests

    @compiled
    def dense(users, items, user, item, left, rate, decay):
        rank = users.shape[1]
        for t in range(len(user)):
            u, i = user[t], item[t]
            product = np.float32(0.0)
            for f in range(rank):
                product += users[u, f] * items[i, f]
            error = left[t] - product
            for f in range(rank):
                p, q = users[u, f], items[i, f]
                users[u, f] = p + rate * (error * q - decay * p)
                items[i, f] = q + rate * (error * p - decay * q)

    @compiled
    def plain(words, number, rank, values):
        for f in range(rank):
            values[f] = ((words[0] + words[1] * np.uint64(f)) % PRIME * number + words[2]) % PRIME

    @compiled
    def at_once(words, number, rank, values):
        value, move = (words[0] * number + words[2]) % PRIME, words[1] * number % PRIME
        for f in range(rank):
            values[f] = value
            value += move
            value -= PRIME if value >= PRIME else np.uint64(0)

    def sketch(hashed):
        @compiled
        def loop(table, words, user, item, left, rate, decay, rank):
            depth, width = table.shape
            values = np.empty((2, rank), np.uint64)
            places, signs = (
                np.empty((2, depth, rank), np.int64),
                np.empty((2, depth, rank), np.float32),
            )
            both = np.empty((2, rank), np.float32)
            for t in range(len(user)):
                for family in range(2):
                    number = np.uint64((item[t] if family else user[t]) + 1)
                    for f in range(rank):
                        both[family, f] = 0.0
                    for k in range(depth):
                        hashed(words[family, 0, k], number, rank, values[0])
                        hashed(words[family, 1, k], number, rank, values[1])
                        for f in range(rank):
                            place = np.int64(values[0, f] * np.uint64(width) // PRIME)
                            sign = np.float32(1) - np.float32(2) * np.float32(
                                values[1, f] & np.uint64(1)
                            )
                            places[family, k, f], signs[family, k, f] = place, sign
                            both[family, f] += sign * table[k, place]
                    for f in range(rank):
                        both[family, f] /= np.float32(depth)
                product = np.float32(0.0)
                for f in range(rank):
                    product += both[0, f] * both[1, f]
                error = left[t] - product
                for family in range(2):
                    for k in range(depth):
                        for f in range(rank):
                            change = rate * (error * both[1 - family, f] - decay * both[family, f])
                            table[k, places[family, k, f]] += signs[family, k, f] * change

        return loop

    return {"dense": dense, "sketch": sketch(plain), "sketch, hashes at once": sketch(at_once)}
