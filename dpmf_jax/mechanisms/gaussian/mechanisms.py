"""Gaussian noise on the gradients of a regularised factorisation (paper 001): four mechanisms.

V ≈ center + Θ Xᵀ, Θ the user factors, X the item factors; the gradients are in `kernels.descent`.

- `mechanism`     as published, claimed: noise on ∇Θ, raw ∇X; Θ is released. Its Theorem 2 holds X
  fixed, but X follows the raw ratings.
- `joint_noise`   sound: noise on both gradients. Everything is a function of the responses; Θ and X
  are released.
- `public_items`  sound: X is public and fixed; noise on ∇Θ.
- `non_private`   the control: the same descent without noise. It protects nothing.

λ, learning rate, the optimizer and the clip shape what is done with a response, or bound what
enters it. Centring by item or global mean (`mechanism` and `non_private` only) reads the ratings
without paying for it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from dpmf_jax.errors import PrivacyError
from dpmf_jax.kernels import steady, whole_descent
from dpmf_jax.kernels.descent import (
    bias_rows,
    item_gradient,
    item_means,
    shared_unit_rows,
    unit_rows,
    user_gradient,
)
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims, grid
from dpmf_jax.mechanisms.gaussian import guarantee
from dpmf_jax.mechanisms.gaussian.config import Config, Params, make_params, whole_params
from dpmf_jax.noise import laws as noise
from dpmf_jax.noise import whole
from dpmf_jax.protocol import Info, Mechanism, Release, State


class Public(NamedTuple):
    """A function of past responses and public constants.

    user_factors: float32[users, rank].
    item_factors: float32[items, rank]; None where they are private.
    center: float32[] or float32[items]; None where it is private.
    optimizer_state: of the public factors.
    """

    user_factors: jax.Array
    item_factors: jax.Array | None
    center: jax.Array | None
    optimizer_state: Any


class Private(NamedTuple):
    """What follows the raw ratings; a part is None where the public state has it."""

    item_factors: jax.Array | None
    center: jax.Array | None
    optimizer_state: Any


# --- the descent


def _center(params: Params, data: Layout) -> jax.Array:
    """c: the public constant, or the unpriced mean that the paper's figures subtract."""
    if params.centering == "constant":
        return params.center
    by_item, overall = item_means(data)
    return by_item if params.centering == "item" else overall


def _optimizer(params: Params) -> optax.GradientTransformation:
    return optax.sgd(params.learning_rate) if params.optimizer is None else params.optimizer


def _descend(params: Params, factors: Any, gradient: Any, optimizer_state: Any) -> tuple[Any, Any]:
    """(factors, optimizer state) after a step along the gradient and λ: post-processing of it."""
    full = jax.tree.map(lambda g, f: g + params.regularization * f, gradient, factors)
    updates, optimizer_state = _optimizer(params).update(full, optimizer_state, factors)
    return optax.apply_updates(factors, updates), optimizer_state


# --- as published: noise on ∇Θ, raw ∇X


def _published_init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    del previous  # the paper has one phase
    user_key, item_key = jax.random.split(key)
    users = unit_rows(user_key, data.num_users, params.rank)
    items = unit_rows(item_key, data.num_items, params.rank)
    optimizer = _optimizer(params)
    constant = params.center if params.centering == "constant" else None
    public = Public(users, None, constant, optimizer.init(users))
    private = Private(
        items, None if constant is not None else _center(params, data), optimizer.init(items)
    )
    return State(public, private, jnp.int32(0))


def _published_center(state: State) -> jax.Array:
    return state.private.center if state.public.center is None else state.public.center


def _published_query(
    params: Params, state: State, data: Layout, coins: None
) -> tuple[jax.Array, Info]:
    del coins
    return user_gradient(
        state.public.user_factors,
        state.private.item_factors,
        _published_center(state),
        params.clip_norm,
        params.residual_clip,
        data,
    )


def _published_update(params: Params, state: State, response: jax.Array, data: Layout) -> State:
    public, private = state.public, state.private
    gradient = item_gradient(
        public.user_factors,
        private.item_factors,
        _published_center(state),
        params.clip_norm,
        params.residual_clip,
        data,
    )
    users, user_optimizer = _descend(params, public.user_factors, response, public.optimizer_state)
    items, item_optimizer = _descend(
        params, private.item_factors, gradient, private.optimizer_state
    )
    return State(
        public._replace(user_factors=users, optimizer_state=user_optimizer),
        private._replace(item_factors=items, optimizer_state=item_optimizer),
        state.step,
    )


def _published_release(state: State) -> Release:
    return Release(user_factors=state.public.user_factors)


def _nothing_release(state: State) -> Release:
    del state
    return Release()


# --- sound: noise on both gradients


def _grid(params: Params) -> whole_descent.Grid:
    assert params.grid is not None  # the sound variants have one
    return params.grid


def _descend_alike(
    params: Params, step: jax.Array, factors: Any, response: Any, optimizer_state: Any
) -> Any:
    """`_descend` along a response in units, with every product rounded by itself (`steady.apart`).

    So the model has the same bits on any number of devices, with the default optimizer; another's
    own sums are its own affair.
    """
    unit = whole_descent.unit(_grid(params))
    zero = steady.hidden_zero(step)
    gradient = steady.apart(zero, jax.tree.map(lambda leaf: unit * grid.in_units(leaf), response))
    prior = steady.apart(zero, jax.tree.map(lambda f: params.regularization * f, factors))
    full = jax.tree.map(jnp.add, gradient, prior)
    updates, optimizer_state = _optimizer(params).update(full, optimizer_state, factors)
    return optax.apply_updates(factors, steady.apart(zero, updates)), optimizer_state


def _joint_init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    users, items = bias_rows(key, data.num_users, data.num_items, params.rank)
    center = params.center if previous is None else previous.center
    return State(
        Public(users, items, center, _optimizer(params).init((users, items))), None, jnp.int32(0)
    )


def _joint_query(
    params: Params, state: State, data: Layout, coins: None
) -> tuple[tuple[jax.Array, jax.Array], Info]:
    del coins
    users, items, center, _ = state.public
    return whole_descent.gradients(users, items, center, _grid(params), data, of="both")


def _joint_update(
    params: Params, state: State, response: tuple[jax.Array, jax.Array], data: Layout
) -> State:
    del data  # post-processing of the response
    users, items, center, optimizer_state = state.public
    (users, items), optimizer_state = _descend_alike(
        params, state.step, (users, items), response, optimizer_state
    )
    return state._replace(public=Public(users, items, center, optimizer_state))


def _everything_release(state: State) -> Release:
    return Release(state.public.user_factors, state.public.item_factors, state.public.center)


# --- sound: public items


def _public_items_init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    known = params.item_factors is not None
    items = params.item_factors if known else shared_unit_rows(key, data.num_items, params.rank)
    users = jnp.zeros((data.num_users, params.rank), jnp.float32)
    center = params.center if previous is None else previous.center
    return State(Public(users, items, center, _optimizer(params).init(users)), None, jnp.int32(0))


def _public_items_query(
    params: Params, state: State, data: Layout, coins: None
) -> tuple[jax.Array, Info]:
    del coins
    users, items, center, _ = state.public
    return whole_descent.gradients(users, items, center, _grid(params), data, of="users")


def _public_items_update(params: Params, state: State, response: jax.Array, data: Layout) -> State:
    del data  # post-processing of the response
    users, optimizer_state = _descend_alike(
        params, state.step, state.public.user_factors, response, state.public.optimizer_state
    )
    return state._replace(
        public=state.public._replace(user_factors=users, optimizer_state=optimizer_state)
    )


def _check_presence(config: Config) -> None:
    if config.relation == "rating presence" and config.residual_clip is None:
        raise PrivacyError(
            "the relation 'rating presence' needs a residual clip",
            where=(
                "a rating added or removed moves the gradient by its residual, which has no"
                " bound of its own"
            ),
            fix=(
                "set residual_clip (a public constant; about one rating step), or use relation"
                " 'rating value'"
            ),
        )


# --- the factories


def _priced(config: Config, default_center: float | str) -> Config:
    if config.noise_multiplier is None:
        raise PrivacyError(
            "no noise multiplier is set, so there is nothing to price",
            fix=(
                "set noise_multiplier (or --epsilon-step, or --epsilon with --delta and --steps); "
                "for a run without privacy name it: mechanism non-private"
            ),
        )
    return (
        config if config.center is not None else dataclasses.replace(config, center=default_center)
    )


def _publicly_centred(config: Config) -> Config:
    config = _priced(config, sum(config.rating_range) / 2)
    if isinstance(config.center, str):
        raise PrivacyError(
            f"centring by the {config.center} mean reads the ratings without paying for it",
            where="a proved guarantee covers everything that is computed from the ratings",
            fix="give a public constant, such as the middle of the rating range (--center 3)",
        )
    _check_presence(config)
    if config.residual_clip is None:
        return dataclasses.replace(config, residual_clip=2 * config.span)
    return config


def mechanism(config: Config, optimizer: optax.GradientTransformation | None = None) -> Mechanism:
    """User factors by Algorithm 1 of paper 001: noise N(0, (zτC)²) on ∇Θ, raw ∇X.

    Both gradients are of the same (X, Θ). Releases the user factors.

    Guarantee: (ε_opt, δ_r) by eq. (9) for a rating's value, relation "one rating's value differs";
      claimed, not proved. Theorem 2 holds X fixed, but X is updated with the raw ratings and enters
      the next gradient; so do mean centres.
    Departs from the paper: J is fixed, since stopping on the training RMSE is not covered by any
      price. Reads it so: V̂ uses the unclipped factors (line 3); the clip acts where a factor
      multiplies a residual (4, 5).

    Raises: PrivacyError without a noise multiplier, for the relation "rating presence", or for a
      residual clip.
    """
    config = _priced(config, "item")
    if config.relation != "rating value" or config.residual_clip is not None:
        raise PrivacyError(
            "mechanism gaussian is the paper's: relation 'rating value', no residual clip",
            fix="use gaussian-joint-noise or gaussian-public-items for the presence of a rating",
        )
    params = make_params(config, optimizer, sensitivity=config.span * config.clip_norm)
    return Mechanism(
        init=Partial(_published_init, params),
        coins=Partial(claims.no_coins),
        query=Partial(_published_query, params),
        noise=noise.gaussian(params.noise_scale),
        update=Partial(_published_update, params),
        release=Partial(_published_release),
        guarantee=Partial(guarantee.published, params),
    )


def joint_noise(config: Config, optimizer: optax.GradientTransformation | None = None) -> Mechanism:
    """User and item factors by descent with noise on both gradients, which form one query.

    One rating's residual moves row u of ∇Θ by Δe·x and row i of ∇X by Δe·θ, each of norm at most
    |Δe|·C, so Δ = √2·|Δe|·C, and a little for rounding sums: all in whole units
    (`kernels.whole_descent`, `whole_params`). Initial factors, λ, the optimizer and the centre are
    public or post-processing. The factors start as `bias_rows`, not as the paper's: a few noisy
    steps find biases before anything else. Releases both factors and the public centre.

    Guarantee: zCDP with ρ = J/(2z²) for `config.relation`, proved. A user's m
      ratings pay (m² + m)/2 times ρ.

    Raises: PrivacyError without a noise multiplier, for a centre that is not a constant, or for
      "rating presence" without a residual clip.
    """
    config = _publicly_centred(config)
    params = whole_params(config, optimizer, rows_moved=2)
    return Mechanism(
        init=Partial(_joint_init, params),
        coins=Partial(claims.no_coins),
        query=Partial(_joint_query, params),
        noise=whole.rounded_normal(float(params.noise_scale)),
        update=Partial(_joint_update, params),
        release=Partial(_everything_release),
        guarantee=Partial(guarantee.joint_noise, params),
    )


def public_items(
    config: Config, items: Any = None, optimizer: optax.GradientTransformation | None = None
) -> Mechanism:
    """User factors by noisy descent on ∇Θ, for item factors that are public and fixed.

    It is one ridge regression per user, Δ = |Δe|·C, in whole units as `joint_noise`. Releases the
    user factors, and the item factors and centre, which were public.

    Args:
      items: float[items, rank], public item factors. None draws random unit rows that share a
        coordinate (`shared_unit_rows`). They know nothing of the items, so no more than a user's
        mean can be learned.

    Guarantee: zCDP with ρ = J/(2z²) for `config.relation`, proved. A user's m
      ratings pay m² times ρ. The ratings that `items` may have been computed from are not covered.

    Raises: as `joint_noise`; ValueError where `items` is not a finite matrix of config.rank
      columns.
    """
    config = _publicly_centred(config)
    if items is not None:
        items = np.asarray(items, np.float32)
        if items.ndim != 2 or items.shape[1] != config.rank or not np.isfinite(items).all():
            raise ValueError(
                f"items must be a finite matrix with {config.rank} columns (the rank); got shape"
                f" {items.shape}"
            )
        items = jnp.asarray(items)
    params = whole_params(config, optimizer, rows_moved=1, item_factors=items)
    return Mechanism(
        init=Partial(_public_items_init, params),
        coins=Partial(claims.no_coins),
        query=Partial(_public_items_query, params),
        noise=whole.rounded_normal(float(params.noise_scale)),
        update=Partial(_public_items_update, params),
        release=Partial(_everything_release),
        guarantee=Partial(guarantee.public_items, params),
    )


def non_private(config: Config, optimizer: optax.GradientTransformation | None = None) -> Mechanism:
    """The control: factors by Algorithm 1 without its noise, for the curator's eyes.

    Guarantee: none; releases nothing.

    Raises: PrivacyError where the config asks for noise.
    """
    if config.noise_multiplier is not None:
        raise PrivacyError(
            "mechanism non-private adds no noise",
            fix="leave out the noise multiplier and ε, or choose a private mechanism",
        )
    config = config if config.center is not None else dataclasses.replace(config, center="item")
    params = make_params(config, optimizer, sensitivity=config.span * config.clip_norm)
    return Mechanism(
        init=Partial(_published_init, params),
        coins=Partial(claims.no_coins),
        query=Partial(_published_query, params),
        noise=noise.none(),
        update=Partial(_published_update, params),
        release=Partial(_nothing_release),
        guarantee=Partial(guarantee.nothing),
    )
