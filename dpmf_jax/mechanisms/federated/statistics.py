"""Paper 003's protocol in one round: V from noisy clipped statistics of every item, per user.

With U public, (Σ u uᵀ, Σ (r - center)·u) of an item's raters says all about its factors that T
gradients would, so one sum at the whole ε takes the place of T sums at ε/T. The clip, the grid and
the noise are those of `per_user`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from accounting.guarantee import Guarantee
from dpmf_jax import layout
from dpmf_jax.kernels.descent import shared_unit_rows
from dpmf_jax.kernels.positive_systems import raise_eigenvalues
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.federated import crowd
from dpmf_jax.mechanisms.federated.config import Config
from dpmf_jax.mechanisms.federated.crowd import Sums
from dpmf_jax.mechanisms.federated.devices import Private, shared_coins
from dpmf_jax.mechanisms.federated.per_user import (
    Params,
    Rater,
    l1,
    make_params,
    priced,
    release,
    whole_message,
)
from dpmf_jax.mechanisms.objective import perturbed
from dpmf_jax.mechanisms.objective.perturbed import Quadratic
from dpmf_jax.noise import ring
from dpmf_jax.protocol import Info, Mechanism, State


def statistics(config: Config) -> Mechanism:
    """Item factors in one round of noisy statistics of every user's items, for a public U.

    A user sends (the upper triangle of u uᵀ, (r - center)·u) of the own items.

    A user's messages are scaled together, so that the sum of their absolute values is at most C. U
    is random, with rows of norm 1 (`shared_unit_rows`). From the noisy sums A is made symmetric,
    and positive by `raise_eigenvalues`, and (A + Mμ I) v = b is solved. Then each user fits an own
    factor, near the public one, to the own ratings and V; it stays private.

    Guarantee: epsilon per user, pure, proved, as `per_user` with T = 1; each further step is a
      release of its own.

    Raises: ValueError for a population: all users take part in the one round.
    """
    if config.population is not None:
        raise ValueError(
            "population goes with per_user: in one round of statistics everybody takes part"
        )
    params, noise = make_params(config, 1)
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(shared_coins),
        query=Partial(_query, params),
        noise=crowd.noisy_sums(noise, params.at_least),
        update=Partial(_update, params),
        release=Partial(release),
        guarantee=Partial(_guarantee, params),
    )


class Known(NamedTuple):
    """The public state of `statistics`.

    item_factors: float32[items, rank].
    center: float32[].
    directions: float32[users, rank], the public U of the round; predictions use the factors that
      users fit for themselves.
    """

    item_factors: jax.Array
    center: jax.Array
    directions: jax.Array


def _init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    directions = shared_unit_rows(key, data.num_users, params.rank)
    center = params.center if previous is None else previous.center
    items = jnp.zeros((data.num_items, params.rank), jnp.float32)
    users = jnp.zeros((data.num_users, params.rank), jnp.float32)
    return State(Known(items, center, directions), Private(users), jnp.int32(0))


def _triangle(rank: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(rank)


def _sizes(center: jax.Array, columns: Any, values: jax.Array, present: jax.Array) -> jax.Array:
    """[3] of one user: how many ratings, Σ |r - center|, Σ (r - center)²."""
    del columns
    centred = present * (values - center)
    return jnp.stack([jnp.sum(present), jnp.sum(jnp.abs(centred)), centred @ centred])


def _item_statistics(
    rank: int, center: jax.Array, raters: Rater, values: jax.Array, present: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(Σ u uᵀ, Σ (r - center)·u) of one item, scaled, in whole steps.

    uint32[d(d+1)/2] and uint32[d].
    """
    first, second = _triangle(rank)
    mine = (raters.scale * present)[:, None] * raters.factors
    products = ring.encode(mine[:, first] * raters.factors[:, second], 1.0)
    vectors = ring.encode((values - center)[:, None] * mine, 1.0)
    return jnp.sum(products, axis=0, dtype=jnp.uint32), jnp.sum(vectors, axis=0, dtype=jnp.uint32)


def _query(params: Params, state: State, data: Layout, coins: jax.Array) -> tuple[Sums, Info]:
    del coins  # everybody takes part
    public = state.public
    sizes = layout.sum_by_user(data, _sizes, jnp.broadcast_to(public.center, (data.num_users,)), ())
    lengths = l1(public.directions)
    of_matrix = (lengths**2 + jnp.sum(public.directions**2, axis=1)) / 2
    length = sizes[:, 0] * of_matrix + sizes[:, 1] * lengths
    scale = whole_message(params, length, data.num_items, params.rank**2)
    matrix, vector = layout.sum_by_item(
        data,
        Partial(_item_statistics, params.rank),
        jnp.broadcast_to(public.center, (data.num_items,)),
        Rater(public.directions, scale),
    )
    clipped = jnp.mean(length > params.clip_steps * params.step)
    return Sums((matrix, vector), None, None), Info(
        jnp.sum(sizes[:, 2]) / data.num_ratings, clipped
    )


def _update(params: Params, state: State, response: Sums, data: Layout) -> State:
    public, rank = state.public, params.rank
    upper, vector = (ring.decode(part, params.step) for part in response.secret)
    first, second = _triangle(rank)
    matrix = jnp.zeros((data.num_items, rank, rank), jnp.float32)
    matrix = matrix.at[:, first, second].set(upper).at[:, second, first].set(upper)
    floor = params.spread * np.sqrt(rank)  # about what noise alone makes of a symmetric matrix
    solved = perturbed.minimise(Quadratic(raise_eigenvalues(matrix, floor), vector), params.ridge)
    users = _own_fit(params, solved, public, data)
    return State(public._replace(item_factors=solved), Private(users), state.step)


class _Fit(NamedTuple):
    """Of one user: the direction that is asked, or none and the ratings themselves."""

    direction: jax.Array
    center: jax.Array


def _own_target(fit: _Fit, items: jax.Array, values: jax.Array, present: jax.Array) -> jax.Array:
    return (present * (values - fit.center)) @ items


def _own_product(fit: _Fit, items: jax.Array, values: jax.Array, present: jax.Array) -> jax.Array:
    del values
    return (present * (items @ fit.direction)) @ items


def _own_fit(params: Params, items: jax.Array, public: Known, data: Layout) -> jax.Array:
    """Each user's argmin over u of Σ(r - center - u·v)² + λ|u - direction|²: float32[users, rank].

    It is found on the users' devices.

    V was solved for the directions, so a user of few ratings is best off there. Conjugate gradients
    from there, one pass over the ratings a step, as many as there are factors.
    """
    wide, known = layout.pad_rank(items), layout.pad_rank(public.directions)
    centers = jnp.broadcast_to(public.center, (data.num_users,))
    ridge = jnp.maximum(params.user_regularization, 1e-6)
    target = layout.sum_by_user(data, _own_target, _Fit(known, centers), wide)
    target -= layout.sum_by_user(
        data, _own_product, _Fit(known, centers), wide
    )  # what the direction leaves over
    nothing = jnp.zeros_like(known)

    def step(_: Any, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        users, residual, direction, squared = carry
        product = (
            layout.sum_by_user(data, _own_product, _Fit(direction, centers), wide)
            + ridge * direction
        )
        curvature = jnp.sum(direction * product, axis=1)
        length = jnp.where(curvature > 0, squared / jnp.where(curvature > 0, curvature, 1), 0.0)[
            :, None
        ]
        users, residual = users + length * direction, residual - length * product
        after = jnp.sum(residual**2, axis=1)
        turn = jnp.where(squared > 0, after / jnp.where(squared > 0, squared, 1), 0.0)[:, None]
        return users, residual, residual + turn * direction, after

    start = (nothing, target, target, jnp.sum(target**2, axis=1))
    return public.directions + jax.lax.fori_loop(0, params.rank, step, start)[0][:, : params.rank]


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    return priced(params, num_steps, "federated-statistics")
