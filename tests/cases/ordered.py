"""Ratings in orders that are hard to cut into batches."""

import numpy as np

from dpmf_jax.data.ratings import Ratings


def make(pairs, shape, seed: int = 0) -> Ratings:
    user, item = np.asarray(pairs, np.int32).reshape(-1, 2).T
    value = np.random.default_rng(seed).integers(1, 11, len(user)).astype(np.float32) / 2
    return Ratings(user, item, value, np.arange(shape[0]), np.arange(shape[1]), (0.5, 5.0))


def random_pairs(users: int, items: int, share: float, seed: int = 3):
    rng = np.random.default_rng(seed)
    return rng.permutation(np.argwhere(rng.random((users, items)) < share))


def heavy_user():
    rest = random_pairs(30, 90, 0.1)
    return np.random.default_rng(1).permutation(
        np.concatenate([rest[rest[:, 0] > 0], [(0, j) for j in range(90)]])
    )


CASES = {
    "one heavy user": (heavy_user(), (30, 90)),
    "bursts": (np.argwhere(np.random.default_rng(2).random((40, 50)) < 0.3), (40, 50)),
    "all conflicts": (np.array([(0, j) for j in range(70)]), (2, 70)),
    "all different": (np.array([(j, j) for j in range(80)]), (80, 80)),
    "random": (random_pairs(50, 40, 0.4), (50, 40)),
    "none": (np.zeros((0, 2)), (3, 2)),
}
