"""What users of `als` send: a few users of every kind, and the sums of their messages."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.als import config as settings
from dpmf_jax.mechanisms.als import state as states
from dpmf_jax.noise import keys

USERS, ITEMS = 14, 30
MEANS = {
    "rank": 0,
    "num_passes": 0,
    "num_means": 2,
    "counts_share": 0.35,
    "means_share": 0.65,
    "factors_share": 0.0,
}


def config(**change):
    usual = {"rating_range": (1.0, 5.0), "noise_multiplier": 0.8, "rank": 2, "num_passes": 2}
    return settings.Config(**(usual | change))


def ratings():
    """Users with none, one, a few and all items; one at the extremes, one always the same."""
    random = np.random.default_rng(0)
    rated = random.random((USERS, ITEMS)) < 0.4
    rated[0], rated[1], rated[2], rated[3] = False, False, True, True
    rated[1, 5] = True
    value = random.integers(1, 6, (USERS, ITEMS)).astype(np.float32)
    value[2] = np.where(np.arange(ITEMS) % 2, 1, 5)
    value[3] = 5
    user, item = np.nonzero(rated)
    return catalogue_ratings(user, item, value[user, item])


def catalogue_ratings(user, item, value):
    """Also of nobody, which no file of ratings may be."""
    return Ratings(
        user.astype(np.int32),
        item.astype(np.int32),
        value,
        np.arange(USERS),
        np.arange(ITEMS),
        (1.0, 5.0),
    )


def only(of, kept):
    return of.take(kept)


def public_states(phases, data):
    """(mechanism, the public state that its first step starts from) of each phase."""
    key, state = keys.from_seed(0), None
    for mechanism, num_steps in phases:
        key, init_key, train_key = jax.random.split(key, 3)
        public = None if state is None else state.public
        start = jax.jit(mechanism.init)(init_key, data, public)
        yield mechanism, start.public
        state, _ = protocol.train(mechanism, train_key, start, data, num_steps)


@jax.jit
def ask(mechanism, public, data):
    private = states.solve(mechanism.query.args[0], public.items, data)
    return mechanism.query(protocol.State(public, private, jnp.int32(0)), data, None)[0]


def statistics(mechanism, public, data):
    """What all users send about a public state; everybody answers to it first."""
    return jax.tree.leaves(jax.device_get(ask(mechanism, public, data)))


def signed(leaf):
    return leaf.astype(np.uint32).view(np.int32).astype(np.float64)


def lengths(mechanism, public, data, of):
    """‖message‖ of each user, which is missing from every sum where she is left out, mod 2^32."""
    everybody, found = statistics(mechanism, public, data), []
    for user in range(USERS):
        own, others = (
            statistics(mechanism, public, layout.make(only(of, kept), kind="dense", num_devices=1))
            for kept in (of.user == user, of.user != user)
        )
        for whole, mine, rest in zip(everybody, own, others, strict=True):
            np.testing.assert_array_equal(whole, mine + rest)
        found.append(math.sqrt(sum((signed(leaf) ** 2).sum() for leaf in own)))
    return np.array(found)
