"""Tiny ratings and settings of the Gaussian mechanisms, and their runs compared to the bit."""

import dataclasses

import jax
import numpy as np

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian

USERS, ITEMS, RANK, RANGE = 11, 7, 3, (1.0, 5.0)
CONFIG = gaussian.Config(
    rating_range=RANGE, noise_multiplier=2.0, rank=RANK, learning_rate=0.02, regularization=0.3
)
FACTORIES = {
    "published": gaussian.mechanism,
    "joint": gaussian.joint_noise,
    "public items": gaussian.public_items,
}


def make_ratings(seed: int = 0, num: int = 40) -> Ratings:
    random = np.random.default_rng(seed)
    pairs = random.choice(USERS * ITEMS, num, replace=False)
    value = random.integers(1, 6, num).astype(np.float32)
    catalogue = {"users": np.arange(USERS), "items": np.arange(ITEMS)}
    return Ratings.from_columns(
        pairs // ITEMS, pairs % ITEMS, value, rating_range=RANGE, name="tiny", **catalogue
    )


RATINGS = make_ratings()


def start(mechanism, data, key):
    return mechanism.init(key, data, None)


def same(a, b) -> bool:
    """The same bits in every leaf; also tells not-a-numbers and zeros of either sign apart."""
    leaves, others = jax.tree.leaves(a), jax.tree.leaves(b)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(leaves, others, strict=True)
    )


SWEEP = [
    CONFIG,
    dataclasses.replace(CONFIG, noise_multiplier=7.0),
    dataclasses.replace(CONFIG, learning_rate=0.001),
    dataclasses.replace(CONFIG, regularization=0.0),
    dataclasses.replace(CONFIG, clip_norm=0.3),
    dataclasses.replace(CONFIG, tau=5.0),
    dataclasses.replace(CONFIG, center=2.0),
    dataclasses.replace(CONFIG, delta=1e-3),
]
