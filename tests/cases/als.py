"""Models of `als` and `means` that nobody had to train: what tests of new users share."""

import jax
import jax.numpy as jnp
import numpy as np

import accounting
import dpmf_jax
from dpmf_jax import layout, protocol
from dpmf_jax.mechanisms.als import estimates
from dpmf_jax.mechanisms.als import state as states
from experiments.fit import mechanisms as fit_mechanisms
from tests.cases.ratings import share

USERS, ITEMS = 60, 40
RATINGS = share(0.25, (USERS, ITEMS))
EPSILON = 60.0  # little noise, so that users differ


def write_features(path):
    """A number and a category of every item but the last."""
    rows = [f"{item},{item % 7},{'xyz'[item % 3]}" for item in RATINGS.items[:-1].tolist()]
    path.write_text("\n".join(["item,number,kind", *rows]) + "\n")
    return path


def phases(name, public=None, **flags):
    """(phases, settings) of a mechanism. public: a file of item features."""
    flags = fit_mechanisms.flags(name, epsilon=EPSILON, **flags)
    return fit_mechanisms.phases_and_settings(name, flags, RATINGS, public)


def untrained(name, public=None, **flags):
    """A model whose items are drawn, and to which users have answered as they do in a pass."""
    made, settings = phases(name, public, **flags)
    *_, (mechanism, _) = made
    params, random = mechanism.query.args[0], np.random.default_rng(0)
    factors = jnp.asarray(random.normal(size=(ITEMS, params.rank)), jnp.float32)
    nothing = jnp.zeros(ITEMS)
    center = jnp.asarray(random.normal(size=ITEMS) / 2, jnp.float32)
    means = estimates.Means(nothing, nothing, center)
    public = states.published(
        params, means, nothing, (factors, 0.1 * factors[::-1] ** 2), jnp.int32(params.rank)
    )
    data = layout.make(RATINGS, kind="split", num_devices=1)
    private = jax.jit(states.solve)(params, public.items, data)
    state = protocol.State(public, private, jnp.int32(0))
    return dpmf_jax.Model(
        release=jax.device_get(mechanism.release(state)),
        guarantee=accounting.compose(*(one.guarantee(num) for one, num in made)),
        users=RATINGS.users,
        items=RATINGS.items,
        rating_range=RATINGS.rating_range,
        settings=settings,
        factors=jax.device_get(protocol.factors(state)),
        seen=(RATINGS.user, RATINGS.item),
    )
