"""What the audits are put on trial with: small ratings, and a mechanism whose price is exact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpmf_jax.data.ratings import Ratings

RANGE = (1.0, 5.0)
DELTAS = (1e-2, 1e-5)


def small() -> Ratings:
    """30 × 20, half of all pairs rated."""
    random = np.random.default_rng(0)
    user, item = np.nonzero(random.random((30, 20)) < 0.5)
    value = random.integers(1, 6, len(user)).astype(np.float32)
    return Ratings.from_columns(
        user,
        item,
        value,
        rating_range=RANGE,
        users=np.arange(30),
        items=np.arange(20),
        name="30 x 20",
    )


def joint(num_steps: int, rank: int = 3, clip_norm: float = 0.25) -> Any:
    """Joint noise at μ = 1 for all steps, with C below the norms of all factors, so that Δ is
    reached.
    """
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian

    # as long a way in all, however many steps: factors stay long, and finite
    rate = 0.02 / (num_steps * rank)
    config = gaussian.Config(
        rating_range=RANGE,
        noise_multiplier=math.sqrt(num_steps),
        rank=rank,
        learning_rate=rate,
        clip_norm=clip_norm,
    )
    return gaussian.joint_noise(config)
