"""Objective perturbation with a trusted recommender (paper 003, section 4.1), as published and
sound.

V ≈ center + U Vᵀ, U the user factors, V the item factors. With U fixed, V minimises objective (6),

    Σ (r - center - u·v)² + Mμ Σ‖v_j‖² + Σ η_j·v_j,    so    (Σuuᵀ + Mμ I) v_j = Σ(r - center)u -
    η_j/2,

with one noise vector η_j per item (`perturbed`), and V is released.

- `mechanism`     as published: U comes from a factorisation of the same ratings, without noise:
  `claimed`.
- `public_users`  sound: U is public, of norm 1 at most; V is the exact minimiser. A rating's value.
- `statistics`    sound for a rating's presence: Gaussian noise on clipped (Σuuᵀ, Σ(r - center)u), V
  solved from it.
- `non_private`   the paper's baseline, equations (2) and (3). It protects nothing.

Each is of one step: a second one is a second release, and is priced so.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import accounting
from accounting import objective as prices
from accounting.guarantee import Guarantee
from dpmf_jax import layout, protocol
from dpmf_jax.devices import spread
from dpmf_jax.kernels import epoch as online_epoch
from dpmf_jax.kernels.descent import mean_squared_error, shared_unit_rows, unit_rows
from dpmf_jax.kernels.positive_systems import raise_eigenvalues as raise_eigenvalues
from dpmf_jax.layout import ordered
from dpmf_jax.mechanisms import claims as curator
from dpmf_jax.mechanisms.objective import perturbed
from dpmf_jax.mechanisms.objective.config import Config, Params, make_params
from dpmf_jax.mechanisms.objective.guarantee import (
    closed_form_guarantee,
    published_guarantee,
    statistics_guarantee,
)
from dpmf_jax.mechanisms.objective.perturbed import Passes, Quadratic
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Mechanism, Release, State

INSIDE = 1 - 1e-6  # the norm that public user factors are scaled to: in float32, too, never above 1


class Public(NamedTuple):
    """item_factors: what was released last, at first random (`mechanism`) or zero. user_factors:
    None if private.
    """

    user_factors: jax.Array | None
    item_factors: Any
    center: jax.Array


class Private(NamedTuple):
    """Follows the raw ratings; None where the public state has it. order: of the ratings, the same
    in each iteration; None where nothing goes through them; an `ordered.Schedule`.
    """

    user_factors: jax.Array
    item_factors: Any
    order: Any


# --- the factorisation without noise, (2) and (3)


def _by_one(
    params: Params, private: Private, center: jax.Array, data: Any
) -> tuple[Private, jax.Array]:
    """One iteration: all ratings, one after the other, and then λ and μ; and the sum of the squared
    errors met.
    """
    rule = online_epoch.Rule(2 * params.learning_rate, 0.0)
    users, items, seen = online_epoch.dense(
        private.user_factors, private.item_factors, private.order, data, rule, center
    )
    users = (1 - 2 * params.learning_rate * params.user_regularization) * users
    items = (1 - 2 * params.learning_rate * params.regularization) * items
    return Private(users, items, private.order), seen.squared


def _on_each_device(fn: Any, data: Any, *arguments: Any) -> Any:
    """`fn(data, ...)` on all ratings, by each device of the layout for itself: what goes one by one
    is not shared.
    """

    def alone(stored: Any, *arguments: Any) -> Any:
        return fn(layout.on_one_device(data, stored), *arguments)

    return spread.over(data.num_devices, alone, data.stored, *arguments, whole=True)


def _non_private_init(params: Params, key: jax.Array, data: Any, previous: Any) -> State:
    del previous  # the paper has one phase
    user_key, item_key, order_key = jax.random.split(key, 3)
    users = unit_rows(user_key, data.num_users, params.rank)
    items = unit_rows(item_key, data.num_items, params.rank)
    order = _on_each_device(ordered.shuffled, data, order_key)
    return State(Public(None, None, params.center), Private(users, items, order), jnp.int32(0))


def _non_private_query(
    params: Params, state: State, data: Any, coins: None
) -> tuple[Private, Info]:
    del coins

    def iterate(
        data: Any, params: Params, private: Private, center: jax.Array
    ) -> tuple[Private, jax.Array]:
        return _by_one(params, private, center, data)

    (users, items, _), center = state.private, state.public.center
    info = Info(mean_squared_error(users, items, center, data), jnp.float32(0))
    moved, _squared = _on_each_device(iterate, data, params, state.private, center)
    return moved, info


def _non_private_update(state: State, response: Private, data: Any) -> State:
    del data
    return state._replace(private=response)


def _nothing_release(state: State) -> Release:
    del state
    return Release()


def _non_private_guarantee(num_steps: int) -> Guarantee:
    return accounting.no_guarantee(
        mechanism="objective-non-private", num_steps=num_steps, released=()
    )


def _non_private(params: Params) -> Mechanism:
    return Mechanism(
        init=Partial(_non_private_init, params),
        coins=Partial(curator.no_coins),
        query=Partial(_non_private_query, params),
        noise=noise.none(),
        update=Partial(_non_private_update),
        release=Partial(_nothing_release),
        guarantee=Partial(_non_private_guarantee),
    )


# --- what is asked of the ratings


def _features(
    bounds: Any, center: jax.Array, users: jax.Array, values: jax.Array, present: jax.Array
) -> jax.Array:
    """Of each rater of an item: u, r - center with r kept in the declared range and r - center in ±
    c, and without.
    """
    low, high, bound = bounds
    centred = values - center
    kept = jnp.clip(jnp.clip(values, low, high) - center, -bound, bound)
    return jnp.concatenate([users, present[:, None] * jnp.stack([kept, centred], axis=1)], axis=1)


def _sums(bounds: Any, users: jax.Array, public: Public, data: Any) -> tuple[Quadratic, jax.Array]:
    """(Σuuᵀ, Σ(r - center)u) of every item, and the mean squared error at the public item
    factors.
    """
    items, rank = public.item_factors, users.shape[1]
    by_item = jnp.broadcast_to(public.center, (data.num_items,))
    outer = layout.outer_by_item(data, Partial(_features, bounds), by_item, users)
    # Σ(r - center - u·v)², of the same products
    away = jnp.concatenate(
        [-items, jnp.zeros((data.num_items, 1)), jnp.ones((data.num_items, 1))], axis=1
    )
    squared = jnp.einsum("ja,jab,jb->", away, outer, away, precision="highest")
    loss = jnp.maximum(squared, 0) / data.num_ratings
    return Quadratic(outer[:, :rank, :rank], outer[:, rank, :rank]), loss


def _long(users: jax.Array) -> jax.Array:
    """Share of the rows that are longer than 1, which no price allows for."""
    return jnp.mean(jnp.sum(users**2, axis=1) > 1 + 1e-5)


def _minimiser_query(
    params: Params, state: State, data: Any, coins: None
) -> tuple[Quadratic, Info]:
    del coins
    users = (
        state.private.user_factors
        if state.public.user_factors is None
        else state.public.user_factors
    )
    bounds = (params.low, params.high, jnp.float32(jnp.inf))
    sums, loss = _sums(bounds, users, state.public, data)
    return sums, Info(loss, _long(users))


def _statistics_query(
    params: Params, state: State, data: Any, coins: None
) -> tuple[Quadratic, Info]:
    del coins
    users = state.public.user_factors
    sums, loss = _sums((params.low, params.high, params.rating_bound), users, state.public, data)
    return sums._replace(vector=params.vector_weight * sums.vector), Info(loss, _long(users))


def _affine_step(
    rate: jax.Array, carry: Any, center: jax.Array, user: jax.Array, value: Any, present: Any
) -> Any:
    """v ← v + 2γ(r - center - u·v)u at one rating, as it acts on v ↦ Pv + c, for all v at once."""
    del present
    matrix, vector = carry
    pull = 2 * rate * user
    matrix = matrix - pull[:, None] * jnp.sum(user[:, None] * matrix, axis=0)
    return matrix, vector + pull * (value - center - jnp.sum(user * vector))


def _passes_query(params: Params, state: State, data: Any, coins: None) -> tuple[Passes, Info]:
    del coins
    users, public = state.private.user_factors, state.public
    start = public.item_factors
    identity = jnp.broadcast_to(jnp.eye(params.rank), (data.num_items, params.rank, params.rank))
    by_item = jnp.broadcast_to(public.center, start.shape[:1])
    step = Partial(_affine_step, params.learning_rate)
    matrix, vector = layout.fold_by_item(
        data, step, (identity, jnp.zeros_like(start)), by_item, users
    )
    shrink = 1 - 2 * params.learning_rate * params.regularization
    info = Info(mean_squared_error(users, start, public.center, data), _long(users))
    return Passes(shrink * matrix, shrink * vector, start), info


# --- as published: U fitted on the same ratings


def _published_init(params: Params, key: jax.Array, data: Any, previous: Any) -> State:
    item_key, fit_key, train_key = jax.random.split(key, 3)
    baseline = _non_private(params)
    state = baseline.init(fit_key, data, previous)
    fitted, _info = protocol.train(baseline, train_key, state, data, params.num_passes)
    items = unit_rows(item_key, data.num_items, params.rank)
    return State(
        Public(None, items, params.center),
        Private(fitted.private.user_factors, None, None),
        jnp.int32(0),
    )


def _update(state: State, response: jax.Array, data: Any) -> State:
    del data  # post-processing of the response
    return state._replace(public=state.public._replace(item_factors=response))


def _release(state: State) -> Release:
    return Release(*state.public)


# --- sound: U public


def _public_init(params: Params, key: jax.Array, data: Any, previous: Any) -> State:
    users = params.user_factors
    if users is None:
        users = getattr(previous, "user_factors", None)
    if users is None:
        users = shared_unit_rows(key, data.num_users, params.rank)
    if users.shape != (data.num_users, params.rank):
        raise ValueError(
            f"user_factors must be of {data.num_users} users and rank {params.rank}; got shape"
            f" {users.shape}"
        )
    length = jnp.linalg.norm(users, axis=1, keepdims=True)
    users = users * jnp.minimum(1.0, INSIDE / jnp.maximum(length, 1e-30))
    center = params.center if previous is None else previous.center
    items = jnp.zeros((data.num_items, params.rank), jnp.float32)
    return State(Public(users, items, center), None, jnp.int32(0))


def _statistics_update(params: Params, state: State, response: Quadratic, data: Any) -> State:
    """V from noisy sums: A made symmetric, and no eigenvalue left below what the noise alone
    makes.
    """
    del data  # post-processing of the response
    floor = params.scale * math.sqrt(2 * params.rank)
    matrix = raise_eigenvalues((response.matrix + jnp.swapaxes(response.matrix, -1, -2)) / 2, floor)
    solved = perturbed.minimise(
        Quadratic(matrix, response.vector / params.vector_weight), params.ridge
    )
    return state._replace(public=state.public._replace(item_factors=solved))


# --- price


def _releases(guarantee: Guarantee, sensitivity: float, num_steps: int) -> Guarantee:
    """So many of them; sensitivity: L2, of the statistics as `query` returns them."""
    one = dataclasses.replace(guarantee, sensitivity=sensitivity)
    return accounting.compose(*[one] * num_steps)


def _published_guarantee(params: Params, num_steps: int) -> Guarantee:
    width = float(params.range_width)
    one = published_guarantee(
        noise=params.law, scale=float(params.scale), range_width=width, rank=params.rank
    )
    return _releases(
        one, (2 * float(params.learning_rate) if params.by_passes else 1) * width, num_steps
    )


def _public_guarantee(params: Params, num_steps: int) -> Guarantee:
    one = closed_form_guarantee(
        noise=params.law,
        scale=float(params.scale),
        range_width=float(params.range_width),
        rank=params.rank,
        delta=float(params.delta),
    )
    return _releases(one, float(params.range_width), num_steps)


def _statistics_guarantee(params: Params, num_steps: int) -> Guarantee:
    scale, weight, bound = (
        float(params.scale),
        float(params.vector_weight),
        float(params.rating_bound),
    )
    one = statistics_guarantee(
        matrix_scale=scale,
        vector_scale=scale / weight,
        rating_bound=bound,
        delta=float(params.delta),
    )
    return _releases(one, math.hypot(1, bound * weight), num_steps)


# --- the factories


def _scale(config: Config) -> float:
    """Of η: the smallest at which one release costs ε at most."""
    if (config.noise == "gaussian") != (config.delta > 0):
        raise ValueError(
            f"delta must be 0 for {config.noise} noise"
            if config.delta
            else "gaussian noise needs a delta"
        )
    return prices.value_change_scale(
        noise=config.noise,
        epsilon=config.epsilon,
        range_width=curator.width(config.rating_range),
        rank=config.rank,
        delta=config.delta or None,
    )


def _checked(config: Config, user_factors: Any) -> jax.Array | None:
    if user_factors is None:
        return None
    users = np.asarray(user_factors, np.float32)
    if users.ndim != 2 or users.shape[1] != config.rank or not np.isfinite(users).all():
        raise ValueError(
            f"user_factors must be a finite matrix with {config.rank} columns (the rank); got shape"
            f" {users.shape}"
        )
    return jnp.asarray(users)


def mechanism(config: Config) -> Mechanism:
    """Paper 003, section 4.1, as published: U by (2) and (3) on the raw ratings, then V from the
    perturbed objective.

    U is fitted in `init` (`num_passes` iterations, kept private), so releases at many ε may go on
    from one state. V is the exact minimiser of (6), or `num_iterations` passes of (9) from random
    rows: per rating, then one step for μ (without M, as printed) and η. Descends on η, against the
    sign that (9) has.

    Guarantee: ε, pure, unit rating value, claimed, not proved: Theorem 1 takes U as given, and U
      follows the ratings.

    Raises: ValueError for Gaussian noise, which the paper does not have, or a delta.
    """
    if config.noise == "gaussian":
        raise ValueError(
            "noise must be l2_laplace or laplace, the paper's two; public_users has gaussian"
        )
    params = make_params(config, _scale(config))
    if config.num_iterations is None:
        query, law = _minimiser_query, perturbed.minimiser(params.law, params.scale, params.ridge)
    else:
        query = _passes_query
        law = perturbed.passes(
            params.law, params.scale, params.learning_rate, config.num_iterations
        )
    return Mechanism(
        init=Partial(_published_init, params),
        coins=Partial(curator.no_coins),
        query=Partial(query, params),
        noise=law,
        update=Partial(_update),
        release=Partial(_release),
        guarantee=Partial(_published_guarantee, params),
    )


def public_users(config: Config, user_factors: Any = None) -> Mechanism:
    """The exact minimiser of the perturbed objective for a public U; releases V, and U with it.

    Args:
      user_factors: float[users, rank], computed from anything but these ratings; None takes those
        that an earlier phase made public, or else random unit rows that share a coordinate
        (`shared_unit_rows`), with which V can learn hardly more than item means. Rows longer than 1
        are scaled to 1.

    Guarantee: ε (and δ for Gaussian noise), unit rating value, relation "one rating's value
      differs", proved for real-number noise: Σ(r - center)u is what the noise hides, the rest is
      post-processing. A user's m ratings pay m times as much.

    Raises: ValueError for Gaussian noise without a delta, another noise with one, or factors that
      do not fit.
    """
    params = make_params(config, _scale(config), user_factors=_checked(config, user_factors))
    return Mechanism(
        init=Partial(_public_init, params),
        coins=Partial(curator.no_coins),
        query=Partial(_minimiser_query, params),
        noise=perturbed.minimiser(params.law, params.scale, params.ridge),
        update=Partial(_update),
        release=Partial(_release),
        guarantee=Partial(_public_guarantee, params),
    )


def statistics(config: Config, user_factors: Any = None) -> Mechanism:
    """Gaussian noise on (Σuuᵀ, Σ(r - center)u) of every item for a public U; V is solved from the
    noisy sums.

    What the sums become is post-processing: Σuuᵀ is made symmetric, its eigenvalues below σ√(2d),
    which noise alone would reach, are raised to that (`raise_eigenvalues`), and Mμ is added.

    Args:
      user_factors: as in `public_users`.

    Guarantee: (ε, δ), unit rating presence, proved for real-number noise; a changed value costs up
      to four times ρ.

    Raises: ValueError without a delta in (0, 1), or for factors that do not fit.
    """
    if not config.delta > 0:
        raise ValueError("statistics has Gaussian noise, which needs a delta")
    bound = float(make_params(config, 1.0).rating_bound)
    matrix_scale, vector_scale = prices.statistics_scales(
        epsilon=config.epsilon,
        delta=config.delta,
        rating_bound=bound,
        matrix_share=config.matrix_share,
    )
    # One scale for both: Σru is shrunk or stretched until its noise is that of Σuuᵀ. Rounded down,
    # so σ_b is no less.
    weight = np.nextafter(np.float32(matrix_scale / vector_scale), np.float32(0))
    params = make_params(
        config,
        matrix_scale,
        vector_weight=float(weight),
        user_factors=_checked(config, user_factors),
    )
    return Mechanism(
        init=Partial(_public_init, params),
        coins=Partial(curator.no_coins),
        query=Partial(_statistics_query, params),
        noise=noise.gaussian(params.scale),
        update=Partial(_statistics_update, params),
        release=Partial(_release),
        guarantee=Partial(_statistics_guarantee, params),
    )


def non_private(config: Config) -> Mechanism:
    """The paper's baseline: a step is one iteration of (2) and (3), from random unit rows. Its ε is
    not read.

    Stochastic gradient descent: all ratings, one after the other, in an order that is drawn once;
    at each, both rows move from where they are, u by 2γ·e·v and v by 2γ·e·u. Then one step for λ
    and one for μ. Departs from (2) and (3) as printed, whose steps are sums over all ratings of a
    row: these diverge at the paper's γ, and so do passes in which one side does not see the other
    move (a popular item against its many raters).

    Guarantee: none, and nothing is released; `protocol.factors` finds both sides for the curator.
    """
    return _non_private(make_params(config, 0.0))
