"""Paper 003's factorisation without noise, equations (2) and (3): it protects nothing.

It is the paper's baseline, and where the user factors of the published mechanism come from.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

import accounting
from accounting.guarantee import Guarantee
from dpmf_jax import layout
from dpmf_jax.devices import spread
from dpmf_jax.kernels import epoch
from dpmf_jax.kernels.descent import mean_squared_error, unit_rows
from dpmf_jax.layout import ordered
from dpmf_jax.mechanisms import claims
from dpmf_jax.mechanisms.objective.config import Config, Params, make_params
from dpmf_jax.mechanisms.objective.state import Private, Public
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Mechanism, Release, State


def _by_one(
    params: Params, private: Private, center: jax.Array, data: layout.Layout
) -> tuple[Private, jax.Array]:
    """(after one iteration: all ratings in order, then λ and μ; sum of the squared errors met)."""
    rule = epoch.Rule(2 * params.learning_rate, 0.0)
    users, items, seen = epoch.dense(
        private.user_factors, private.item_factors, private.order, data, rule, center
    )
    users = (1 - 2 * params.learning_rate * params.user_regularization) * users
    items = (1 - 2 * params.learning_rate * params.regularization) * items
    return Private(users, items, private.order), seen.squared


def _on_each_device(fn: Any, data: layout.Layout, *arguments: Any) -> Any:
    """`fn(data, ...)` on all ratings, by each device for itself: a sequence cannot be shared."""

    def on_all_ratings(stored: Any, *arguments: Any) -> Any:
        return fn(layout.on_one_device(data, stored), *arguments)

    return spread.over(data.num_devices, on_all_ratings, data.stored, *arguments, whole=True)


def _init(params: Params, key: jax.Array, data: layout.Layout, previous: Any) -> State:
    del previous  # the paper has one phase
    user_key, item_key, order_key = jax.random.split(key, 3)
    users = unit_rows(user_key, data.num_users, params.rank)
    items = unit_rows(item_key, data.num_items, params.rank)
    order = _on_each_device(ordered.shuffled, data, order_key)
    return State(Public(None, None, params.center), Private(users, items, order), jnp.int32(0))


def _query(params: Params, state: State, data: layout.Layout, coins: None) -> tuple[Private, Info]:
    del coins

    def iterate(
        data: layout.Layout, params: Params, private: Private, center: jax.Array
    ) -> tuple[Private, jax.Array]:
        return _by_one(params, private, center, data)

    (users, items, _), center = state.private, state.public.center
    info = Info(mean_squared_error(users, items, center, data), jnp.float32(0))
    moved, _squared = _on_each_device(iterate, data, params, state.private, center)
    return moved, info


def _update(state: State, response: Private, data: layout.Layout) -> State:
    del data
    return state._replace(private=response)


def _nothing_release(state: State) -> Release:
    del state
    return Release()


def _guarantee(num_steps: int) -> Guarantee:
    return accounting.no_guarantee(
        mechanism="objective-non-private", num_steps=num_steps, released=()
    )


def of_params(params: Params) -> Mechanism:
    """`non_private`, of settings that are checked."""
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(claims.no_coins),
        query=Partial(_query, params),
        noise=noise.none(),
        update=Partial(_update),
        release=Partial(_nothing_release),
        guarantee=Partial(_guarantee),
    )


def non_private(config: Config) -> Mechanism:
    """The paper's baseline: each step is one iteration of (2) and (3), from random unit rows.

    A step is stochastic gradient descent. It goes through all ratings in an order that is drawn
    once. At each rating both rows move from where they are, u by 2γ·e·v and v by 2γ·e·u; then
    comes one step for λ and one for μ. `config.epsilon` is not read.

    Departs from (2) and (3) as printed, whose steps are sums over all ratings of a row. These
    diverge at the paper's γ, and so do passes in which one side does not see the other move (a
    popular item against its many raters).

    Guarantee: none, and nothing is released; `protocol.factors` finds both sides for the curator.
    """
    return of_params(make_params(config, 0.0))
