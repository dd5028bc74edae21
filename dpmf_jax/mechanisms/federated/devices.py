"""The users' side of paper 003's protocol: what runs on their devices, and the state of a run.

A user holds the own ratings and the own row of U, is sent the public V and the masks, and answers
with a message over the items that the user rated. What others see is sums of these messages; see
`published` and `per_user`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax import layout
from dpmf_jax.mechanisms.federated import crowd


class Public(NamedTuple):
    """What everybody knows.

    item_factors: float32[items, rank].
    center: float32[].
    crowd: int32[users], who takes part (`crowd.advance`); None where everybody does.
    """

    item_factors: jax.Array
    center: jax.Array
    crowd: jax.Array | None


class Private(NamedTuple):
    """What no one role knows.

    user_factors: float32[users, rank], row u on the device of user u.
    perturbation: float32[items, rank], η, the sum of shares; None where there is none.
    """

    user_factors: jax.Array | None
    perturbation: jax.Array | None = None


def shared_coins(key: jax.Array) -> jax.Array:
    """The coins of an iteration: the key that decides who is online and who takes part.

    It is drawn before anybody looks at data.
    """
    return key


def attendance(rates: crowd.Rates | None, public: Public, coins: jax.Array) -> jax.Array | None:
    """int32[users] of this iteration; None where everybody takes part."""
    if rates is None or public.crowd is None:
        return None
    return crowd.advance(rates, coins, public.crowd)


class Group(NamedTuple):
    """Who takes part in an iteration, and their ratings.

    ratings: theirs.
    index: int32[group], of the users; those beyond the last user are empty places. None where
      everybody takes part.
    factors: float32[group, rank].
    """

    ratings: layout.Layout
    index: jax.Array | None
    factors: jax.Array


def gather(
    rates: crowd.Rates | None, now: jax.Array | None, users: jax.Array, data: layout.Layout
) -> Group:
    """The group of this iteration; of a crowd `at_most` users are looked at."""
    if rates is None or now is None:
        return Group(data, None, users)
    index = crowd.members(now, rates.at_most)
    return Group(
        layout.take_users(data, index), index, users.at[index].get(mode="fill", fill_value=0)
    )


def _put_back(group: Group, users: jax.Array, moved: jax.Array) -> jax.Array:
    return moved if group.index is None else users.at[group.index].set(moved, mode="drop")


class Own(NamedTuple):
    """One user's part in a pass.

    factors: float32[rank].
    center: float32[], public, the same for all.
    """

    factors: jax.Array
    center: jax.Array


class Items(NamedTuple):
    """What every user knows of the items.

    factors: float32[items, rank].
    steepness: float32[items], max(1, ‖v_j‖²).
    """

    factors: jax.Array
    steepness: jax.Array


def _own_gradient(
    own: Own, items: Items, values: jax.Array, present: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Equation (4) for one user: -2 Σ_j e_j v_j; and Σ_j max(1, ‖v_j‖²)."""
    residual = present * (values - own.center - items.factors @ own.factors)
    return -2 * (residual @ items.factors), present @ items.steepness


def per_user(value: jax.Array, num_users: int) -> jax.Array:
    """A public number, once for every user."""
    return jnp.broadcast_to(value, (num_users,))


def own_steps(
    rates: crowd.Rates | None,
    now: jax.Array | None,
    users: jax.Array,
    public: Public,
    learning_rate: jax.Array,
    regularization: jax.Array,
    data: layout.Layout,
) -> jax.Array:
    """User factors after equation (2), float32[users, rank], at public item factors.

    Each who takes part descends on the own ratings.

    The gain is γ/(1 + 2γ Σ_j max(1, ‖v_j‖²)): γ on few ratings of short items, and never a step
    that overshoots, where the paper's γ on a sum over many ratings makes the descent diverge. It is
    the user's own affair: no other sees it.
    """
    group, items = gather(rates, now, users, data), public.item_factors
    own = Own(layout.pad_rank(group.factors), per_user(public.center, group.factors.shape[0]))
    known = Items(layout.pad_rank(items), jnp.maximum(1.0, jnp.sum(items**2, axis=1)))
    gradient, weight = layout.sum_by_user(group.ratings, _own_gradient, own, known)
    gain = learning_rate / (1 + 2 * learning_rate * weight)
    step = gradient[:, : users.shape[1]] + 2 * regularization * group.factors
    return _put_back(group, users, group.factors - gain[:, None] * step)
