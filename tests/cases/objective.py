"""Ratings, settings and the plain loops that the tests of objective perturbation share."""

import math

import jax
import numpy as np

from dpmf_jax import layout, protocol
from dpmf_jax.mechanisms.objective import mechanisms as objective
from dpmf_jax.noise import keys
from tests.cases.ratings import tiny

USERS, ITEMS, RANK = 14, 6, 3
ALPHA = 1e-4
LAWS = ({"noise": "l2_laplace"}, {"noise": "laplace"}, {"noise": "gaussian", "delta": 1e-5})


RATINGS = tiny()


def config(**settings) -> objective.Config:
    defaults = {
        "epsilon": 1.0,
        "rating_range": (1.0, 5.0),
        "prior_count": 200,
        "rank": RANK,
        "num_passes": 4,
        "center": 3.0,
        "regularization": 0.01,
    }
    return objective.Config(**(defaults | settings))


@jax.jit
def query(mechanism, state, data):
    return mechanism.query(state, data, None)


@jax.jit
def sample(mechanism, key, statistics):
    return mechanism.noise.sample(key, statistics)


def begun(mechanism, data, seed: int = 0):
    return protocol.begin(mechanism, keys.from_seed(seed), data)


def changed(data, at: int):
    """The neighbour in which one rating is at the end of the range that is further away."""
    address = layout.locate(data, RATINGS.user[at], RATINGS.item[at])
    return layout.replace_value(data, address, 5.0 if RATINGS.value[at] < 3 else 1.0)


def sums(users, low=-math.inf, high=math.inf):
    """(Σuuᵀ, Σ(r - 3)u), one rating at a time."""
    matrix, vector = np.zeros((ITEMS, RANK, RANK)), np.zeros((ITEMS, RANK))
    for user, item, value in zip(RATINGS.user, RATINGS.item, RATINGS.value, strict=True):
        u = np.asarray(users[user], np.float64)
        matrix[item] += np.outer(u, u)
        vector[item] += np.clip(value - 3.0, low, high) * u
    return matrix, vector


def descend(users, items, rate, shrink, rows, columns):
    """One pass over every row's ratings, one after the other in the order of columns; the other
    side stays.
    """
    moved = np.array(items, np.float64)
    for at in np.lexsort((columns, rows)):
        row, u = rows[at], np.asarray(users[columns[at]], np.float64)
        moved[row] += 2 * rate * (RATINGS.value[at] - 3.0 - u @ moved[row]) * u
    return (1 - 2 * rate * shrink) * moved


def split_data():
    return layout.make(RATINGS, kind="split", num_devices=1)


def every(**settings):
    return {
        "published": objective.mechanism(config(**settings)),
        "passes": objective.mechanism(config(num_iterations=3, **settings)),
        "public users": objective.public_users(config(**settings)),
        "gaussian": objective.public_users(config(noise="gaussian", delta=1e-5, **settings)),
        "statistics": objective.statistics(config(delta=1e-5, **settings)),
        "non-private": objective.non_private(config(**settings)),
    }
