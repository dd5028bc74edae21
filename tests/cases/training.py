"""A tiny set of ratings, a mechanism for it, and runs of both: what the tests of training share."""

from pathlib import Path

import numpy as np

import dpmf_jax
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian

CONFIG = gaussian.Config(rating_range=(1, 5), noise_multiplier=20.0, rank=3, learning_rate=0.01)
STEPS = 7


def from_user_100(seed: int = 0) -> Ratings:
    """50 ratings of 12 users and 7 items."""
    random = np.random.default_rng(seed)
    pairs = random.choice(12 * 7, size=50, replace=False)
    return Ratings.from_columns(
        pairs // 7 + 100, pairs % 7, random.integers(1, 6, 50), rating_range=(1, 5), name="tiny"
    )


RATINGS = from_user_100()


def fit(mechanism=None, ratings=RATINGS, **options):
    """The model of a seeded run of `STEPS` steps; by default of the mechanism as published."""
    mechanism = gaussian.mechanism(CONFIG) if mechanism is None else mechanism
    return dpmf_jax.fit(
        ratings, mechanism, **({"num_steps": STEPS, "seed": 0, "chunk_steps": 2} | options)
    )


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file under a folder, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def same_model(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a.factors, b.factors, strict=True))


def stop_after(step: int):
    """A `report` that presses Ctrl-C once so many steps are done."""

    def report(progress):
        if progress.step >= step:
            raise KeyboardInterrupt

    return report
