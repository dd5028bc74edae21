"""What the passes of alternating least squares start from and leave: public, and of the users.

All phases share it (`phases`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from dpmf_jax.devices import spread
from dpmf_jax.kernels import local_ridge, steady
from dpmf_jax.kernels.local_ridge import Items, Users
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims
from dpmf_jax.mechanisms.als import budgets, estimates, fold_in, messages
from dpmf_jax.mechanisms.als.fold_in import PER_QUARTER
from dpmf_jax.mechanisms.als.params import Params, guarantee
from dpmf_jax.noise import whole
from dpmf_jax.noise.ring import signed
from dpmf_jax.protocol import Info, Mechanism, Release, State


class Public(NamedTuple):
    """A function of past responses and public constants.

    items: what users answer to, on grids. means: see `estimates`. count: float32[items], noisy Σ w.
    item_factors: float32[items, 1 + d], ones and `items.units` in their unit.
    center: float32[items].
    num_learned: int32[], columns of factors that are learned, as the noisy counts decide: the last
      of the config's rank. Where it is 0, passes for factors learn means.
    """

    items: Items
    means: estimates.Means
    count: jax.Array
    item_factors: jax.Array
    center: jax.Array
    num_learned: jax.Array


class Private(NamedTuple):
    """What never leaves the users, or the curator for them.

    user_factors: float32[users, 1 + d], level and factors. users: the same in whole numbers.
    count: float32[users], ratings.
    """

    user_factors: jax.Array
    users: Users
    count: jax.Array


def mechanism(params: Params, init: Any, query: Any, update: Any) -> Mechanism:
    return Mechanism(
        init=Partial(init, params),
        coins=Partial(claims.no_coins),
        query=Partial(query, params),
        noise=whole.rounded_normal(float(params.noise_scale)),
        update=Partial(update, params),
        release=Partial(_release),
        guarantee=Partial(guarantee, params),
    )


def _release(state: State) -> Release:
    public, items = state.public, state.public.items
    release = Release(item_factors=public.item_factors, center=public.center)
    if not items.units.shape[1]:
        return release
    variance = items.unit**2 * items.variance
    return release._replace(factor_variance=variance, factor_unit=items.unit)


def solve(params: Params, items: Items, data: Layout) -> Private:
    found = fold_in.solve(items, params.grid, params.priors, data, non_negative=params.non_negative)
    return Private(*found)


def published(
    params: Params,
    means: estimates.Means,
    count: jax.Array,
    factors: tuple[jax.Array, jax.Array],
    num_learned: jax.Array,
) -> Public:
    on = params.grid
    center = on.middle + on.step * PER_QUARTER * means.center
    if params.slope_scale is not None:
        positive = estimates.positive_counts(count, params.count_deviation)
        columns = estimates.mean_and_popularity(means.center, positive)
        factors = _with_known(factors, params.slope_scale * columns)
    if params.features is not None:
        factors = _with_known(factors, params.features)
    items = local_ridge.on_grid(center, *factors, on)
    ones = jnp.ones((len(center), 1), jnp.float32)
    return Public(
        items=items,
        means=means,
        count=count,
        item_factors=jnp.concatenate([ones, items.unit * items.units], axis=1),
        center=on.middle + on.step * items.center,
        num_learned=num_learned,
    )


def _with_known(
    factors: tuple[jax.Array, jax.Array], columns: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(item factors, their variances), with columns after them that are taken to be exact."""
    values, variances = factors
    return (
        jnp.concatenate([values, columns], axis=1),
        jnp.concatenate([variances, jnp.zeros_like(columns)], axis=1),
    )


def learned(params: Params, items: Items) -> tuple[jax.Array, jax.Array]:
    """(item factors, their variances), without the columns that nothing is sent about."""
    units, variance = items.units[:, : params.rank], items.variance[:, : params.rank]
    return items.unit * units, items.unit**2 * variance


def sent(
    params: Params, state: State, data: Layout, own: budgets.Own, kappa: jax.Array, *, rank: int
) -> tuple[messages.Sent, Info]:
    private, items = state.private, state.public.items
    norms = local_ridge.residual_norms(private.users, items, params.grid, data)
    kappa = kappa * own.share
    unit = local_ridge.norm_unit(data)
    sent = messages.scales(
        private.users, private.count, norms, own.clip, kappa, rank=rank, unit=unit
    )
    loss = params.grid.step**2 * jnp.sum(sent.squared) / data.num_ratings
    return sent, Info(loss, jnp.mean(sent.fraction < 1))


def at_step(per_step: jax.Array, state: State) -> jax.Array:
    return per_step[jnp.minimum(state.step, len(per_step) - 1)]


def user_bounds(params: Params, state: State) -> budgets.Own:
    """What this step allows each user."""
    at = jnp.minimum(state.step, len(params.clip) - 1)
    return budgets.user_bounds(params.groups, params.clip[at], at)


def effective(params: Params, num_users: int) -> tuple[Any, jax.Array]:
    """(users, each counted by her share of the largest budget; variance of a rating).

    Sums are of messages that are as long as budgets are. So counts and mean scales are weighted
    by budgets, and unbiased as they are without. What ratings vary by adds up in squares: Σ share²
    for Σ share, of which the variance takes the quotient.
    """
    variance = params.settings[0]
    if params.groups is None:
        return num_users, variance
    return params.groups.total, params.groups.square * variance


def real(response: jax.Array) -> jax.Array:
    return signed(response).astype(jnp.float32)


def next_state(params: Params, state: State, make: Any, response: Any, data: Layout) -> State:
    """The public state of `make`; then everybody's own answer to it."""
    public = alike(make, state.step, (params, state.public, state.step, response), data)
    return state._replace(public=public, private=solve(params, public.items, data))


def alike(make: Any, number: jax.Array, given: tuple[Any, ...], data: Layout) -> Public:
    """`make(given)`, on every device, of the same bits however many there are.

    number: int32[], any that is at least 0 and that the compiler does not know.
    """
    return spread.by_each(data.num_devices, steady.alike(make), steady.hidden_zero(number), given)
