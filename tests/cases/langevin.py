"""Ratings, settings and states that the tests of Langevin dynamics and dense DP-SGD share."""

import jax.numpy as jnp
import numpy as np

from dpmf_jax import protocol
from dpmf_jax.mechanisms.sampled import langevin
from dpmf_jax.noise import keys
from tests.cases.sampled import in_reals, rated_at

ROW_UNIT = 4 * 2.25 / 4096  # of factors, for ratings from 0.5 to 5
MAKE = {"published": langevin.mechanism, "dp": langevin.dp, "dpsgd": langevin.dpsgd}
SOUND = ("dp", "dpsgd")


SMALL = rated_at(np.argwhere(np.random.default_rng(1).random((8, 6)) < 0.5), (8, 6))


def config(**settings):
    usual = {
        "rating_range": (0.5, 5.0),
        "num_steps": 5,
        "sampling_rate": 0.5,
        "noise_multiplier": 1.5,
        "rank": 4,
    }
    return langevin.Config(
        **usual | {"learning_rate": 0.05, "regularization": 0.3, "clip_norm": 0.8} | settings
    )


def begun(mechanism, data, scale=0.8, seed=3):
    """A state with large random factors, whole in units of the grid."""
    state = protocol.begin(mechanism, keys.from_seed(seed), data)
    rng = np.random.default_rng(seed)
    users, items, center = state.public
    users, items = (
        jnp.asarray(np.round(rng.normal(0, scale, rows.shape) / ROW_UNIT) * ROW_UNIT, jnp.float32)
        for rows in (users, items)
    )
    return state._replace(public=langevin.Public(users, items, center))


def gradients(public, user, item, value):
    """One row per rating, float64[ratings, users + items, rank]: minus the gradient of ½e²,
    unclipped.
    """
    users, items = (np.asarray(rows, np.float64) for rows in public[:2])
    out = np.zeros((len(user), len(users) + len(items), users.shape[1]))
    for place, (u, i, r) in enumerate(zip(user, item, value, strict=True)):
        error = r - float(public.center) - users[u] @ items[i]
        out[place, u], out[place, len(users) + i] = error * items[i], error * users[u]
    return out


def stacked(total):
    return np.concatenate([in_reals(part) for part in total])
