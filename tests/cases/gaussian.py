"""Tiny ratings and settings of the Gaussian mechanisms, and their runs compared to the bit."""

import dataclasses

import jax
import numpy as np

from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from tests.cases.ratings import tiny

USERS, ITEMS, RANK, RANGE = 11, 7, 3, (1.0, 5.0)
CONFIG = gaussian.Config(
    rating_range=RANGE, noise_multiplier=2.0, rank=RANK, learning_rate=0.02, regularization=0.3
)
FACTORIES = {
    "published": gaussian.mechanism,
    "joint": gaussian.joint_noise,
    "public items": gaussian.public_items,
}


RATINGS = tiny(40, users=USERS, items=ITEMS, unrated=(0, 0))


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
