"""Paper 003's protocol with an untrusted recommender, as published: T noisy sums of gradients.

In S2 everybody takes part in each iteration; in S3 users come and go.

V is public; each user keeps the own row of U. In every iteration the recommender learns, per item,
the sum over the raters of g_ij + η_j + ρ_j(t), with g_ij = -2u_i(r_ij - u_i·v_j), and moves V by
it. Messages, masks and shares show this sum and no more; they are in `messages`, `roles` and
`noise.shares`. Here is the law of what they add up to.

- `mechanism`    as published: the price of one iteration is claimed, T·ε in all; neither is proved.
- `non_private`  the same descent without noise. It protects nothing.
- `per_user`, `statistics`  sound, unit user, each in a module of that name.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from accounting.guarantee import Guarantee, no_guarantee
from dpmf_jax import layout
from dpmf_jax.kernels.descent import unit_rows
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims
from dpmf_jax.mechanisms.federated import crowd
from dpmf_jax.mechanisms.federated.config import Config as Config
from dpmf_jax.mechanisms.federated.crowd import Population as Population
from dpmf_jax.mechanisms.federated.crowd import Sums
from dpmf_jax.mechanisms.federated.devices import (
    Private,
    Public,
    attendance,
    gather,
    own_steps,
    shared_coins,
)
from dpmf_jax.mechanisms.federated.guarantee import published_iterations_guarantee
from dpmf_jax.mechanisms.federated.per_user import per_user as per_user
from dpmf_jax.mechanisms.federated.statistics import statistics as statistics
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Mechanism, Release, State


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    scale: jax.Array  # b, of η and of each iteration's noise; 0 without noise
    learning_rate: jax.Array
    regularization: jax.Array  # Mμ
    user_regularization: jax.Array
    center: jax.Array
    rates: crowd.Rates | None
    epsilon: float | jax.Array  # this and range_width are read on the host alone, so floats
    range_width: float | jax.Array
    rank: int = dataclasses.field(metadata={"static": True})


def mechanism(config: Config) -> Mechanism:
    """Item factors by noisy sums of users' gradients, as published.

    Everybody takes part in every iteration (S2), or a crowd does (S3, `config.population`).
    Releases the item factors.

    Noise by Lemma 1, Laplace of scale b = 2Δ√d/ε in every coordinate: η once, before the first
    iteration, kept by the users; ρ fresh in every iteration. It is drawn as the sum of the shares
    (12), whose law it is.

    Guarantee: claimed, unit rating value; epsilon is that of one iteration, the price of T of them
      is T·ε, and the paper's own number, ε for the whole run, stands beside it. Why not even that
      is proved: see the statement.
    Departs from the paper: the gain of item j is γ/(1 + 2γ(n_j + Mμ)), n_j the ratings summed in
    this iteration, public
      by the paper's relation. γ itself on the summed gradients of (5) diverges; this is γ for an
      item with few raters. Of users' steps: `devices.own_steps`. V descends; (9) is
      printed with the other sign. U(t) and V(t) both come from U(t - 1), V(t - 1). An item that no
      participant rated stays as it is. With (9)'s μ, M = 1, nothing holds V against η, and an item
      with few raters drifts to -η_j/2μ; `prior_count` is M, as (6) has it.
    """
    params = _params(config, config.published_scale)
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(shared_coins),
        query=Partial(_query, params),
        noise=crowd.noisy_sums(noise.laplace(params.scale), jnp.int32(1)),
        update=Partial(_update, params),
        release=Partial(_release),
        guarantee=Partial(_guarantee, params),
    )


def non_private(config: Config) -> Mechanism:
    """`mechanism` without η and without ρ: gradient descent on (1); epsilon is not read.

    Guarantee: none. The recommender sees the sum of the gradients of each item's raters.
    """
    params = _params(config, 0.0)
    return mechanism(config)._replace(
        init=Partial(_init, params),
        noise=noise.none(),
        guarantee=Partial(_no_guarantee),
    )


def _params(config: Config, scale: float) -> Params:
    f32 = jnp.float32
    return Params(
        scale=claims.float32_up(scale),
        learning_rate=f32(config.learning_rate),
        regularization=f32(config.prior_count * config.regularization),
        user_regularization=f32(config.user_regularization),
        center=f32(config.center),
        rates=crowd.rates(config.population),
        epsilon=float(config.epsilon),
        range_width=float(config.range_width),
        rank=config.rank,
    )


def _init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    user_key, item_key, noise_key = jax.random.split(key, 3)
    users, items = (
        unit_rows(k, rows, params.rank)
        for k, rows in ((user_key, data.num_users), (item_key, data.num_items))
    )
    eta = params.scale * jax.random.laplace(noise_key, items.shape, jnp.float32)
    center = params.center if previous is None else previous.center
    present = None if params.rates is None else crowd.nobody(data.num_users)
    return State(Public(items, center, present), Private(users, eta), jnp.int32(0))


class _Item(NamedTuple):
    factors: jax.Array
    center: jax.Array


def _item_sum(
    item: _Item, raters: jax.Array, values: jax.Array, present: jax.Array
) -> tuple[jax.Array, ...]:
    """Equation (5) for one item: -2 Σ e u; how many raters; Σ e², for `Info`."""
    residual = present * (values - item.center - raters @ item.factors)
    return -2 * (residual @ raters), jnp.sum(present), residual @ residual


def _query(params: Params, state: State, data: Layout, coins: jax.Array) -> tuple[Sums, Info]:
    public, private = state.public, state.private
    now = attendance(params.rates, public, coins)
    group = gather(params.rates, now, private.user_factors, data)
    gradient, count, squared = layout.sum_by_item(
        group.ratings,
        _item_sum,
        _Item(
            layout.pad_rank(public.item_factors), jnp.broadcast_to(public.center, (data.num_items,))
        ),
        layout.pad_rank(group.factors),
    )
    secret = gradient[:, : params.rank] + private.perturbation
    loss = jnp.sum(squared) / jnp.maximum(jnp.sum(count), 1)
    return Sums(secret, count, now), Info(loss, jnp.float32(0))


def _update(params: Params, state: State, response: Sums, data: Layout) -> State:
    public, private, count = state.public, state.private, response.count
    assert count is not None
    steepness = 1 + 2 * params.learning_rate * (count + params.regularization)
    gain = jnp.where(count > 0, params.learning_rate / steepness, 0.0)
    step = response.secret + 2 * params.regularization * public.item_factors
    users = own_steps(
        params.rates,
        response.crowd,
        private.user_factors,
        public,
        params.learning_rate,
        params.user_regularization,
        data,
    )
    return State(
        public._replace(
            item_factors=public.item_factors - gain[:, None] * step, crowd=response.crowd
        ),
        private._replace(user_factors=users),
        state.step,
    )


def _release(state: State) -> Release:
    return Release(item_factors=state.public.item_factors, center=state.public.center)


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    return published_iterations_guarantee(
        epsilon=float(params.epsilon),
        num_iterations=num_steps,
        range_width=float(params.range_width),
        mechanism="federated" if params.rates is None else "federated-dynamic",
    )


def _no_guarantee(num_steps: int) -> Guarantee:
    return no_guarantee(
        mechanism="federated-non-private", num_steps=num_steps, released=("item factors",)
    )
