"""What the tests of several audits share: tiny ratings, a mechanism, and how to run an audit."""

import dataclasses

import numpy as np

from dpmf_jax import parts
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.noise.laws import Report

# Audits that cost little, for the tests of a mechanism; the others have tests of their own.
STRUCTURAL = ("sensitivity", "post-processing", "noise", "density", "enumeration")

RANGE = (1.0, 5.0)
# The clip lies below the norms of all initial factors, so that Δ is reached.
CONFIG = gaussian.Config(
    rating_range=RANGE, noise_multiplier=2.0, rank=3, learning_rate=0.01, clip_norm=0.5
)
STEPS = 6


def anywhere(users: int, items: int, num: int, seed: int = 0) -> Ratings:
    """Uniform ratings at random places: nothing to learn but the place itself."""
    random = np.random.default_rng(seed)
    value = random.integers(1, 6, (users, items)).astype(np.float32)
    pairs = random.permutation(users * items)[:num]
    user, item = pairs // items, pairs % items
    return Ratings.from_columns(
        user,
        item,
        value[user, item],
        rating_range=RANGE,
        users=np.arange(users),
        items=np.arange(items),
        name="tiny",
    )


RATINGS = anywhere(16, 7, 56)


def sparse_ratings(users: int = 14, items: int = 6) -> Ratings:
    """50 ratings; the last user and the last item have none."""
    random = np.random.default_rng(0)
    pairs = random.choice((users - 1) * (items - 1), size=50, replace=False)
    user, item = pairs // (items - 1), pairs % (items - 1)
    columns = (
        user.astype(np.int32),
        item.astype(np.int32),
        random.integers(1, 6, 50).astype(np.float32),
    )
    return Ratings(*columns, 100 + np.arange(users), np.arange(items), (1.0, 5.0))


SPARSE = sparse_ratings()


def verdicts(findings) -> dict[str, str]:
    return {finding.audit: finding.verdict for finding in findings}


def violated(findings) -> set[str]:
    return {finding.audit for finding in findings if finding.verdict == "violated"}


def run(audit, mechanism, data, key, **options):
    return audit(parts.as_pytree(mechanism), RATINGS, data, key=key, num_steps=STEPS, **options)


def joint(**change):
    """By default Δe = min(τ, 2c) = τ."""
    return gaussian.joint_noise(dataclasses.replace(CONFIG, **({"residual_clip": 2.0} | change)))


def report_of(num: int) -> Report:
    """Reports of so many users, of entries that are 0."""
    zeros = np.zeros(num, np.int32)
    return Report(zeros, zeros, np.zeros(num, np.float32), np.ones(num, bool))
