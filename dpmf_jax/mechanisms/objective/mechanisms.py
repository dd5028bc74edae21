"""Objective perturbation with a trusted recommender (paper 003, section 4.1): four mechanisms.

V ≈ center + U Vᵀ, U the user factors, V the item factors. With U fixed, V minimises objective (6),

    Σ (r - center - u·v)² + Mμ Σ‖v_j‖² + Σ η_j·v_j,

so (Σuuᵀ + Mμ I) v_j = Σ(r - center)u - η_j/2. η_j is one noise vector per item (`perturbed`), and V
is released.

- `mechanism`     as published, claimed: U is fitted to the same ratings without noise.
- `public_users`  sound for a rating's value: U is public, of norm 1 at most; V is the minimiser.
- `statistics`    sound for a rating's presence: Gaussian noise on clipped (Σuuᵀ, Σ(r - center)u);
  V is solved from the noisy sums.
- `non_private`   the paper's baseline, equations (2) and (3). It protects nothing.

Each takes one step. A second step is a second release, and is priced so.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import accounting
from accounting import objective as prices
from accounting.guarantee import Guarantee
from dpmf_jax import protocol
from dpmf_jax.kernels.descent import shared_unit_rows, unit_rows
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims
from dpmf_jax.mechanisms.objective import (
    baseline,
    closed_form,
    noisy_statistics,
    perturbed,
    queries,
)
from dpmf_jax.mechanisms.objective.baseline import non_private as non_private
from dpmf_jax.mechanisms.objective.config import Config, Params, make_params
from dpmf_jax.mechanisms.objective.guarantee import (
    published_guarantee,
    real_closed_form_guarantee,
)
from dpmf_jax.mechanisms.objective.state import Private, Public
from dpmf_jax.protocol import Mechanism, Release, State

INSIDE = 1 - 1e-6  # the norm that public user factors are scaled to: in float32, too, never above 1


# --- as published: U fitted on the same ratings


def _published_init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    item_key, fit_key, train_key = jax.random.split(key, 3)
    unperturbed = baseline.of_params(params)
    state = unperturbed.init(fit_key, data, previous)
    fitted, _info = protocol.train(unperturbed, train_key, state, data, params.num_passes)
    items = unit_rows(item_key, data.num_items, params.rank)
    return State(
        Public(None, items, params.center),
        Private(fitted.private.user_factors, None, None),
        jnp.int32(0),
    )


def _update(state: State, response: jax.Array, data: Layout) -> State:
    del data  # post-processing of the response
    return state._replace(public=state.public._replace(item_factors=response))


def _release(state: State) -> Release:
    return Release(*state.public)


# --- sound: U is public


def _public_init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
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


# --- price


def _releases(guarantee: Guarantee, sensitivity: float, num_steps: int) -> Guarantee:
    """The price of so many releases; sensitivity: L2, of the statistics as `query` returns them."""
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
    one = real_closed_form_guarantee(
        noise=params.law,
        scale=float(params.scale),
        range_width=float(params.range_width),
        rank=params.rank,
        delta=float(params.delta),
    )
    return _releases(one, float(params.range_width), num_steps)


# --- the factories


def _scale(config: Config) -> float:
    """The smallest scale of η at which one release costs ε at most."""
    if (config.noise == "gaussian") != (config.delta > 0):
        raise ValueError(
            f"delta must be 0 for {config.noise} noise"
            if config.delta
            else "gaussian noise needs a delta"
        )
    return prices.value_change_scale(
        noise=config.noise,
        epsilon=config.epsilon,
        range_width=claims.width(config.rating_range),
        rank=config.rank,
        delta=config.delta or None,
    )


def _user_factors(config: Config, user_factors: Any) -> jax.Array | None:
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
    """Item factors from the perturbed objective, as published; U by (2) and (3) on raw ratings.

    `init` fits U in `num_passes` iterations and keeps it private, so releases at many ε may go on
    from one state. V is the exact minimiser of (6), or else `num_iterations` passes of (9) from
    random rows: steps per rating, then one for μ (without M, as printed) and η. Departs from the
    paper: it descends on η, against the sign that (9) has.

    Guarantee: pure ε for a rating's value; claimed, not proved. Theorem 1 takes U as given, but U
      follows the ratings.

    Raises: ValueError for Gaussian noise, which the paper does not have, or a delta.
    """
    if config.noise == "gaussian":
        raise ValueError(
            "noise must be l2_laplace or laplace, the paper's two; public_users has gaussian"
        )
    params = make_params(config, _scale(config))
    if config.num_iterations is None:
        query, law = queries.minimiser, perturbed.minimiser(params.law, params.scale, params.ridge)
    else:
        query = queries.passes
        law = perturbed.passes(
            params.law, params.scale, params.learning_rate, config.num_iterations
        )
    return Mechanism(
        init=Partial(_published_init, params),
        coins=Partial(claims.no_coins),
        query=Partial(query, params),
        noise=law,
        update=Partial(_update),
        release=Partial(_release),
        guarantee=Partial(_published_guarantee, params),
    )


def public_users(config: Config, user_factors: Any = None) -> Mechanism:
    """Item factors that minimise the perturbed objective exactly, for a public U; releases both.

    Args:
      user_factors: float[users, rank], computed from anything but these ratings. None takes those
        that an earlier phase made public, or else random unit rows that share a coordinate
        (`shared_unit_rows`): with these V learns hardly more than item means. Rows longer than 1
        are scaled to 1.

    Guarantee: ε (and δ for Gaussian noise) for a rating's value, relation "one rating's value
      differs"; proved. The noise hides Σ(r - center)u, which is whole numbers, as it is
      (`closed_form`); the rest is post-processing. A user's m ratings pay m times as much.
      l2_laplace beyond rank 1 is float32: its radius has no law in whole numbers here. It is proved
      for real-number noise.

    Raises: ValueError for Gaussian noise without a delta, another noise with one, or factors that
      do not fit.
    """
    params = make_params(config, _scale(config), user_factors=_user_factors(config, user_factors))
    if closed_form.is_whole(config):
        return closed_form.mechanism(config, Partial(_public_init, params))
    return Mechanism(
        init=Partial(_public_init, params),
        coins=Partial(claims.no_coins),
        query=Partial(queries.minimiser, params),
        noise=perturbed.minimiser(params.law, params.scale, params.ridge),
        update=Partial(_update),
        release=Partial(_release),
        guarantee=Partial(_public_guarantee, params),
    )


def statistics(config: Config, user_factors: Any = None) -> Mechanism:
    """Item factors solved from noisy (Σuuᵀ, Σ(r - center)u) of every item, for a public U.

    The noise is Gaussian. The rest is post-processing: Σuuᵀ is made symmetric; its eigenvalues are
    raised to σ√(2d), which noise alone would reach (`raise_eigenvalues`); Mμ is added. Releases V
    and U.

    Args:
      user_factors: as in `public_users`.

    Guarantee: (ε, δ) for a rating's presence, proved: sums and noise are whole numbers
      (`noisy_statistics`). A changed value costs up to four times ρ.

    Raises: ValueError without a delta in (0, 1), for a matrix_share near 0 or 1, or for factors
      that do not fit; PrivacyError for an ε so small that no table of noise is wide enough.
    """
    if not config.delta > 0:
        raise ValueError("statistics has Gaussian noise, which needs a delta")
    params = make_params(config, 1.0, user_factors=_user_factors(config, user_factors))
    init = Partial(_public_init, params)
    return noisy_statistics.mechanism(config, init, float(params.rating_bound))
