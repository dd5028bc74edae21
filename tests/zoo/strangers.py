"""Sound mechanisms that somebody else might write: other words, other parts, plain functions."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

import accounting
from accounting.loss import Gaussian, SubsampledGaussian
from dpmf_jax import layout
from dpmf_jax.mechanisms.sampled import langevin
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Mechanism, Poisson, Release, State
from tests.zoo.sound import RATINGS, SAMPLED

LOW, HIGH = RATINGS.rating_range
STEPS, RATE = 4, 0.25
PAGE = Path(__file__).parents[2] / "docs" / "your_mechanism.md"


def dpsgd(**change):
    return langevin.dpsgd(
        langevin.Config(**(SAMPLED | {"num_steps": STEPS, "clip_norm": 0.2} | change))
    )


def _behind(inner, *arguments):
    return inner(*arguments)


def behind(made):
    """The very same functions, behind other Partials."""
    wrapped = {
        name: Partial(_behind, getattr(made, name))
        for name in ("init", "coins", "query", "update", "release")
    }
    return made._replace(**wrapped)


def sums(coins, query, *, sigma=6.0, unit="rating presence", sampled=True, **change):
    """A stranger's: sums of the items' ratings, of a sample, with plain functions."""
    multiplier = sigma / HIGH
    price = SubsampledGaussian(noise_multiplier=multiplier, sampling_rate=RATE, num_steps=STEPS)

    def guarantee(num_steps):
        assert num_steps == STEPS
        return accounting.priced(
            **{
                "mechanism": "sums of items",
                "losses": (
                    (
                        price
                        if sampled
                        else Gaussian(noise_multiplier=multiplier, num_steps=num_steps)
                    ),
                ),
                "delta": 1e-5,
                "sensitivity": HIGH,
                "unit": unit,
                "relation": "one rating is added or removed",
                "released": ("item sums",),
                "trust_model": "one curator",
                "status": "proved",
            }
            | change
        )

    def init(key, data, previous):
        del key, previous
        return State(jnp.zeros(data.num_items), (), jnp.int32(0))

    return Mechanism(
        init=init,
        coins=coins,
        query=query,
        noise=noise.gaussian(sigma),
        update=lambda state, response, data: state._replace(public=response),
        release=lambda state: Release(center=state.public),
        guarantee=guarantee,
    )


def drawn(coins, shape):
    return jax.random.uniform(coins.key, shape) < coins.rate


def of_dense(state, data, coins):
    values, present = layout.stored_values(data)
    total = jnp.sum(
        jnp.where(present & drawn(coins, present.shape), jnp.clip(values, LOW, HIGH), 0.0), 0
    )
    return total, Info(jnp.float32(0), jnp.float32(0))


def by_map(state, data, coins):
    """In the layout's own order, whatever it is, and through `map_ratings`."""
    clipped, item = layout.map_ratings(
        data,
        lambda row, column, values, present: (
            jnp.clip(values, LOW, HIGH) * present,
            column.astype(jnp.float32),
        ),
        jnp.zeros(data.num_users),
        jnp.arange(data.num_items),
    )
    part = jnp.where(drawn(coins, clipped.shape), clipped, 0.0)
    total = jnp.zeros(data.num_items).at[item.astype(jnp.int32).reshape(-1)].add(part.reshape(-1))
    return total, Info(jnp.float32(0), jnp.float32(0))


def open_coins(key):
    return Poisson(key, jnp.float32(RATE))


def nudged(state, data, coins):
    values, present = layout.stored_values(data)
    return jnp.sum(jnp.where(present, values, 0.0), 0), Info(jnp.float32(0), jnp.float32(0))


def small(sensitivity=1.0, sigma=2.0):
    """One rating changes by 1 at most, of a range of 4: Δ = 1 without any clip."""
    return sums(
        lambda key: None,
        nudged,
        sampled=False,
        sigma=sigma,
        unit="rating value",
        losses=(Gaussian(noise_multiplier=sigma / sensitivity, num_steps=STEPS),),
        sensitivity=sensitivity,
        largest_change=1.0,
        relation="one rating changes by at most 1; who rated what is public",
    )


def of_the_page():
    """The mechanism of docs/your_mechanism.md."""
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    names: dict = {}
    exec(code[1], names)
    return names["item_means"](RATINGS.num_items, RATINGS.rating_range)


# name -> (mechanism, steps)
STRANGERS = {
    "a stranger's sums of a sample": lambda: (sums(open_coins, of_dense), STEPS),
    "a stranger's sums, for small changes": lambda: (small(), STEPS),
    "a stranger's DP-SGD, behind other Partials": lambda: (behind(dpsgd()), STEPS),
    "the item means of docs/your_mechanism.md": lambda: (of_the_page(), 1),
}
