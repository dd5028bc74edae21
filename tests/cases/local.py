"""A few ratings, every variant of local DP on them, and the gradient of paper 004 as it is
printed.
"""

import numpy as np

from dpmf_jax import protocol
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.noise import keys
from tests.cases.ratings import tiny

USERS, ITEMS, RANK, Q = 14, 6, 3, 4


RATINGS = tiny()


def config(**settings) -> local.Config:
    defaults = {"epsilon": 1.0, "num_rounds": 4, "rank": RANK, "learning_rate": 0.3, "center": 3.0}
    return local.Config(**(defaults | settings))


def gd(**settings):
    return local.gd(config(**settings))


def gd_dr(**settings):
    return local.gd_dr(config(**({"num_projected": Q} | settings)))


MAKERS = {
    "gd": gd,
    "gd-dr": gd_dr,
    "sign": lambda **s: gd_dr(law="sign", **s),
    "transpose": lambda **s: gd_dr(lift="transpose", fresh_projection=True, **s),
    "partition": lambda **s: gd_dr(schedule="partition", clip=0.5, **s),
}


def begun(made, data, seed=0):
    return protocol.begin(made, keys.from_seed(seed), data)


def gradient_of(user: int, users, items) -> np.ndarray:
    """∇V of one user by the printed formula, [items, rank]."""
    out = np.zeros((ITEMS, RANK))
    for row in np.flatnonzero(RATINGS.user == user):
        j = RATINGS.item[row]
        out[j] = -2 * users[user] * (RATINGS.value[row] - 3.0 - users[user] @ items[j])
    return out
