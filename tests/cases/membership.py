"""Ratings and mechanisms on which the attacks must succeed, or must not: shared by the tests of
three audits.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from audits.release import canaries
from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from tests.cases import noises
from tests.cases.ratings import ratings

RANGE = (1.0, 5.0)
USERS, ITEMS, STEPS = 24, 16, 10
CONFIG = gaussian.Config(
    rating_range=RANGE,
    noise_multiplier=30.0,
    rank=3,
    learning_rate=0.05,
    residual_clip=2.0,
    relation="rating presence",
)
VALUE = dataclasses.replace(CONFIG, relation="rating value")


def half_of_all(seed: int = 0) -> Ratings:
    """192 ratings of 3 and 4: nothing stands out."""
    random = np.random.default_rng(seed)
    user, item = np.nonzero(
        random.permuted(np.arange(USERS * ITEMS) % 2 == 0).reshape(USERS, ITEMS)
    )
    return ratings(user, item, random.integers(3, 5, len(user)), (USERS, ITEMS))


RATINGS = half_of_all()
DATA = layout.make(RATINGS, kind="dense", num_devices=1)


def sound(config=CONFIG):
    """ε = 0.46 at δ = 1e-5."""
    return gaussian.joint_noise(config)


def make_plan(side=None, presence=True, seed=0, **settings):
    """Canaries of `RATINGS`."""
    return canaries.plan(
        np.random.default_rng(seed), RATINGS, DATA, presence=presence, side=side, **settings
    )


def _nothing(query, state, data, coins):
    statistics, info = query(state, data, coins)
    return jax.tree.map(jnp.zeros_like, statistics), info


def blind(config=CONFIG):
    """Noise and nothing else: it never looks at the ratings."""
    made = sound(config)
    return made._replace(query=Partial(_nothing, made.query))


def loud(config=CONFIG, share=0.003):
    """A fraction of the noise that is priced."""
    made = sound(config)
    return made._replace(noise=noises.share_of(made, share))


def _users_alone(release, state):
    return release(state)._replace(item_factors=None)


def _items_alone(release, state):
    return release(state)._replace(user_factors=None)


def one_sided(made, side):
    """The same, with one side's factors released alone."""
    return made._replace(
        release=Partial(_users_alone if side == "user" else _items_alone, made.release)
    )
