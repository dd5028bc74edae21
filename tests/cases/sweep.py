"""Runs of one shape that differ in every real number: what the tests of sweeps share."""

import dataclasses

import jax

from dpmf_jax.data import synthetic
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.noise import keys
from dpmf_jax.training import sweep

RATINGS = synthetic.generate(num_users=12, num_items=7, num_ratings=40, seed=3)
CONFIG = gaussian.Config(
    rating_range=(1.0, 5.0),
    noise_multiplier=5.0,
    rank=3,
    learning_rate=0.01,
    regularization=0.1,
    clip_norm=1.0,
)
LENGTHS = (5, 23, 11, 8)


def job(data, position, num_steps, make=gaussian.mechanism):
    """Runs that differ in every real number: noise, learning rate, λ, clip and seed."""
    config = dataclasses.replace(
        CONFIG,
        noise_multiplier=None if make is gaussian.non_private else 5.0 + position,
        learning_rate=0.01 / (1 + position),
        regularization=0.1 * position,
        clip_norm=1.0 + position,
    )
    mechanism = make(config)
    init_key, train_key = jax.random.split(keys.from_seed(position))
    return sweep.Job(mechanism, train_key, mechanism.init(init_key, data, None), num_steps)


def finished(jobs, data, **how):
    """(final state, losses) of each job, and the steps that each look took."""
    states, losses, taken = (
        {},
        {index: [] for index in range(len(jobs))},
        {index: [] for index in range(len(jobs))},
    )
    for chunk in sweep.run(jobs, data, **how):
        states[chunk.job] = chunk.state
        losses[chunk.job] += chunk.info.loss.tolist()
        taken[chunk.job].append(len(chunk.info.loss))
    return states, losses, taken
