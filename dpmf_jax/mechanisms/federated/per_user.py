"""Paper 003's protocol made sound: each user's whole message is clipped and priced, in integers.

`per_user`: T noisy sums of clipped gradients, before an untrusted recommender (S2, S3). In one
round: see `statistics`.

A message is over all items. It is scaled so that the sum of its absolute values is at most C,
rounded toward zero to whole steps h, and added up mod 2^32. Every item of the catalogue, rated or
not, gets discrete Laplace noise on the same grid. So one user moves a sum by at most ⌊C/h⌋ steps in
L1, in integers. The bound is made in `whole_message`, and nothing after it can undo it. Of the data
the recommender sees these sums alone: no count, no norm, no denominator.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from accounting.guarantee import Guarantee
from accounting.iterations import Change, iterations_scale
from dpmf_jax import layout
from dpmf_jax.errors import PrivacyError
from dpmf_jax.kernels.descent import shared_unit_rows
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims
from dpmf_jax.mechanisms.federated import crowd
from dpmf_jax.mechanisms.federated.config import Config, grid
from dpmf_jax.mechanisms.federated.crowd import Sums
from dpmf_jax.mechanisms.federated.devices import (
    Private,
    Public,
    attendance,
    gather,
    own_steps,
    shared_coins,
)
from dpmf_jax.mechanisms.federated.guarantee import iterations_guarantee
from dpmf_jax.noise import ring
from dpmf_jax.protocol import Info, Mechanism, Release, State


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """What the parts share.

    step: h.
    clip_steps: ⌊C/h⌋.
    at_least: participants that an iteration needs.
    clip_norm, scale: C and b, read on the host.
    """

    step: jax.Array
    clip_steps: jax.Array
    at_least: jax.Array
    learning_rate: jax.Array
    item_learning_rate: jax.Array
    user_regularization: jax.Array
    center: jax.Array
    ridge: jax.Array  # Mμ
    spread: jax.Array  # standard deviation of the noise, in units of the messages
    rates: crowd.Rates | None
    clip_norm: float | jax.Array
    scale: float | jax.Array
    rank: int = dataclasses.field(metadata={"static": True})
    honest_shares: int | None = dataclasses.field(metadata={"static": True})
    change: Change = dataclasses.field(metadata={"static": True})


def per_user(config: Config) -> Mechanism:
    """Item factors in T iterations, in each of which users send a clipped gradient over items.

    The gradient is over all of a user's own items. Releases the item factors.

    Guarantee: epsilon, in all of `config.num_iterations` iterations, per user, pure, proved; a
      removed or replaced user as `config.change` says. It needs `honest_shares` honest users beside
      the protected one, who stay.
    Departs from the paper: the clip over the whole message; noise on every item; V moves by the
    noisy sum over the
      number of participants, which is public, and not by anything that depends on who rated what.

    Raises: PrivacyError without num_iterations; ValueError where the clip does not fit the grid.
    """
    if config.num_iterations is None:
        raise PrivacyError(
            "the number of iterations must be fixed beforehand",
            where="the noise is made for all of them together",
            fix="set num_iterations",
        )
    params, noise = make_params(config, config.num_iterations)
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(shared_coins),
        query=Partial(_query, params),
        noise=crowd.noisy_sums(noise, params.at_least),
        update=Partial(_update, params),
        release=Partial(release),
        guarantee=Partial(_guarantee, params),
    )


def make_params(config: Config, num_iterations: int) -> tuple[Params, Any]:
    """One set of numbers for the clip, the noise and the price."""
    scale = iterations_scale(
        noise="laplace",
        epsilon=config.epsilon,
        clip_norm=config.clip_norm,
        num_iterations=num_iterations,
        change=config.change,
    )
    fixed_point = grid(config, scale)
    honest = config.honest_shares
    if honest is None and config.population is not None:
        honest = max(1, config.population.at_most - 1)
    if honest is not None and config.population is not None and honest >= config.population.at_most:
        raise ValueError(
            f"honest_shares must be below at_most, or nothing is ever released; got {honest} of "
            f"{config.population.at_most}"
        )
    f32 = jnp.float32
    params = Params(
        step=f32(fixed_point.step),
        clip_steps=claims.float32_down(fixed_point.clip_steps),
        at_least=jnp.int32(1 if honest is None else honest + 1),
        learning_rate=f32(config.learning_rate),
        item_learning_rate=f32(config.item_learning_rate),
        user_regularization=f32(config.user_regularization),
        center=f32(config.center),
        ridge=f32(config.prior_count * config.regularization),
        spread=f32(np.sqrt(2) * scale),
        rates=crowd.rates(config.population),
        clip_norm=float(config.clip_norm),
        scale=float(scale),
        rank=config.rank,
        honest_shares=honest,
        change=config.change,
    )
    return params, ring.discrete_laplace(fixed_point.scale_steps)


# --- the clip: one number per user


class _Sender(NamedTuple):
    """One user in the pass that measures messages.

    factors: float32[rank].
    center: float32[].
    reach: float32[], ‖u‖₁·max|v|, which no prediction exceeds.
    """

    factors: jax.Array
    center: jax.Array
    reach: jax.Array


def _magnitude(
    sender: _Sender, items: jax.Array, values: jax.Array, present: jax.Array
) -> jax.Array:
    """[Σ_j |e_j|, Σ e², how many] of one user.

    The first is a little more, so that another order of summation cannot exceed it.
    """
    rank = items.shape[1]
    centred = values - sender.center
    residual = present * (centred - items @ sender.factors)
    slack = (rank + 8) * 2.0**-22 * (jnp.abs(centred) + sender.reach)
    return jnp.stack([present @ (jnp.abs(residual) + slack), residual @ residual, jnp.sum(present)])


def whole_message(
    params: Params, length: jax.Array, num_items: int, num_products: int
) -> jax.Array:
    """float32[users]: what makes a message one of whole steps, at most `clip_steps` in L1.

    The message is multiplied by it.

    length: float32[users], the message's own L1 norm, summed in floats: at most num_items sums of
    num_products terms, each off by 2^-24 of itself a few times. The clip is a hair inside C by that
    much, so that the sum of the integers, rounded toward zero, is at most ⌊C/h⌋ in every case. A
    length that is not a number makes a message of zeros.
    """
    inside = 1 + (num_items + num_products + 32) * 2.0**-22
    return (
        params.clip_steps
        / jnp.maximum(params.clip_steps, inside * length / params.step)
        / params.step
    )


def l1(rows: jax.Array) -> jax.Array:
    return jnp.sum(jnp.abs(rows), axis=1)


# --- T iterations


def _init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    # rows that share a coordinate: from rows that point anywhere, messages cancel until users' few
    # ratings turn them
    users = shared_unit_rows(key, data.num_users, params.rank)
    items = jnp.zeros((data.num_items, params.rank), jnp.float32)
    center = params.center if previous is None else previous.center
    present = None if params.rates is None else crowd.nobody(data.num_users)
    return State(Public(items, center, present), Private(users), jnp.int32(0))


class _Item(NamedTuple):
    factors: jax.Array
    center: jax.Array


class Rater(NamedTuple):
    """scale: of the user's whole message, 0 for who does not take part."""

    factors: jax.Array
    scale: jax.Array


def _item_sum(item: _Item, raters: Rater, values: jax.Array, present: jax.Array) -> jax.Array:
    """uint32[rank]: Σ over raters of -2·e·u, each scaled and in whole steps before it is added."""
    residual = values - item.center - raters.factors @ item.factors
    weight = -2 * residual * (raters.scale * present)
    return jnp.sum(ring.encode(weight[:, None] * raters.factors, 1.0), axis=0, dtype=jnp.uint32)


def _query(params: Params, state: State, data: Layout, coins: jax.Array) -> tuple[Sums, Info]:
    public, items = state.public, state.public.item_factors
    now = attendance(params.rates, public, coins)
    group = gather(params.rates, now, state.private.user_factors, data)
    users, num_users = group.factors, group.factors.shape[0]
    wide, wide_items = layout.pad_rank(users), layout.pad_rank(items)
    reach = l1(users) * jnp.max(jnp.abs(items))
    sender = _Sender(wide, jnp.broadcast_to(public.center, (num_users,)), reach)
    measured = layout.sum_by_user(group.ratings, _magnitude, sender, wide_items)
    length = 2 * l1(users) * measured[:, 0]
    scale = whole_message(params, length, data.num_items, params.rank)
    item = _Item(wide_items, jnp.broadcast_to(public.center, (data.num_items,)))
    total = layout.sum_by_item(group.ratings, _item_sum, item, Rater(wide, scale))
    _, squared, count = jnp.sum(measured, axis=0)
    clipped = jnp.sum(length > params.clip_steps * params.step) / jnp.maximum(
        jnp.sum(measured[:, 2] > 0), 1
    )
    return Sums(total[:, : params.rank], None, now), Info(squared / jnp.maximum(count, 1), clipped)


def _update(params: Params, state: State, response: Sums, data: Layout) -> State:
    public = state.public
    released = crowd.enough(response.crowd, params.at_least)
    num = data.num_users if response.crowd is None else jnp.sum(response.crowd == crowd.TAKES_PART)
    gradient = ring.decode(response.secret, params.step) + 2 * params.ridge * public.item_factors
    step = params.item_learning_rate * gradient / jnp.maximum(num, 1)
    users = own_steps(
        params.rates,
        response.crowd,
        state.private.user_factors,
        public,
        params.learning_rate,
        params.user_regularization,
        data,
    )
    items = public.item_factors - jnp.where(released, step, 0.0)
    return State(
        public._replace(item_factors=items, crowd=response.crowd), Private(users), state.step
    )


def release(state: State) -> Release:
    return Release(item_factors=state.public.item_factors, center=state.public.center)


# --- price


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    name = "federated-user" if params.rates is None else "federated-user-dynamic"
    return priced(params, num_steps, name)


def priced(params: Params, num_steps: int, mechanism: str) -> Guarantee:
    return iterations_guarantee(
        noise="laplace",
        clip_norm=float(params.clip_norm),
        scale=float(params.scale),
        num_iterations=num_steps,
        honest_shares=params.honest_shares,
        change=params.change,
        mechanism=mechanism,
    )
