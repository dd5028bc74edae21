"""Budgets of one's own: users declare their ε, and everybody's messages are as long as that allows.

Users of one ε are a group g. With μ_g = 1/z_g its exact Gaussian parameter at the run's δ
(`accounting.gaussian.solve_noise_multiplier`), μ the largest of them, and Δ the clip of a step by
the largest, a message of a user of g is no longer than

    Δ_g = ⌊Δ·μ_g/μ⌋   units of the noise's grid,

in place of Δ, in every step. Where nothing is clipped it is μ_g/μ times as long.

Why that is a user's own guarantee. Fix a user of group g, and two data sets that are neighbours in
her: she takes part in one and not in the other, or with other ratings. Who is in which group is
declared, so it is the same in both. Given what is public, everybody sends whole numbers that are a
function of their own ratings and group, the same to the bit in any company (`messages`). So the
sums of a step differ by her message alone, or by two of them, whose bounds hold for whole numbers,
with all roundings in them: the L2 distance is at most Δ_g, or 2Δ_g for a user replaced, whose two
messages are both of group g. Noise of σ hides it as a Gaussian step of z = σ/Δ_g. Steps are
adaptive, each given the responses before it, and those are the same in both worlds. So exact
Gaussian composition holds for her with Σ (Δ_g/σ)² ≤ μ_g², or a quarter of it twice as far, at no
more than her ε and δ. What others declared does not enter: their messages cancel.

Nothing here looks at a rating. Budgets must not be made of ratings, either: what a user declares,
and the table of groups, count as public, as the catalogue does. Nobody's group is released.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from accounting import gaussian, guards
from accounting.loss import Gaussian
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import Layout


class Budget(NamedTuple):
    """A group of users, as it is declared.

    epsilon: of each of them. num_users: how many declared it, whether they take part or not.
    noise_multiplier: z, which costs epsilon at the run's δ.
    """

    epsilon: float
    num_users: int
    noise_multiplier: float


class Groups(NamedTuple):
    """What a phase knows of the groups.

    of_user: int32[users], whose group is which.
    num_users: int32[groups], declared. share: float32[groups], μ_g/μ.
    clip: float32[steps, groups, 2], whole_clip: float32[steps, groups], as in `Params`, of each.
    total: float32[], Σ over users of their shares. square: float32[], Σ of their squares, over it.
    """

    of_user: jax.Array
    num_users: jax.Array
    share: jax.Array
    clip: jax.Array
    whole_clip: jax.Array
    total: jax.Array
    square: jax.Array


class Own(NamedTuple):
    """What a step allows each user: float32[users], or float32[] where all have the same.

    clip, further: bounds of what goes to items and of the one more sum, in units.
    share: μ_g/μ, of how long messages are.
    """

    clip: jax.Array
    further: jax.Array
    share: jax.Array | float


def declared(
    epsilons: Float[np.ndarray, " users"], delta: float
) -> tuple[tuple[Budget, ...], Int[np.ndarray, " users"]]:
    """(groups of equal ε, the smallest first; the group of each user).

    Args:
      epsilons: what every user of the catalogue declared, in its order; not made of ratings.

    Raises: ValueError for an ε that is not positive, or of no user.
    """
    if not len(epsilons):
        raise ValueError("budgets are those of users, and there is none")
    found, group, number = np.unique(epsilons, return_inverse=True, return_counts=True)
    table = tuple(
        Budget(
            guards.positive("epsilon", float(epsilon)),
            int(users),
            gaussian.solve_noise_multiplier(float(epsilon), delta, 1, price="exact"),
        )
        for epsilon, users in zip(found, number, strict=True)
    )
    return table, group.astype(np.int32)


def check(table: tuple[Budget, ...], noise_multiplier: float) -> None:
    """Raises: ValueError for numbers out of range, or another multiplier than the smallest."""
    for one in table:
        guards.positive("epsilon", one.epsilon)
        guards.positive("noise_multiplier", one.noise_multiplier)
        guards.count("num_users", one.num_users, 1)
    least = min((one.noise_multiplier for one in table), default=noise_multiplier)
    if least != noise_multiplier:
        raise ValueError(
            f"noise_multiplier must be that of the largest budget, {least}, got {noise_multiplier}"
        )


def shares(table: tuple[Budget, ...]) -> list[float]:
    """μ_g/μ of each group."""
    least = min(one.noise_multiplier for one in table)
    return [least / one.noise_multiplier for one in table]


def make_groups(
    table: tuple[Budget, ...],
    of_user: Any,
    clips: list[list[tuple[int, int]]],
    wholes: list[list[int]],
) -> Groups:
    """The groups of a phase.

    Args:
      of_user: int[users], indices of the table.
      clips: of each step and group (to items, further). wholes: of both together.

    Raises: ValueError for groups that are not those of the table.
    """
    of_user = np.asarray(of_user)
    number = [one.num_users for one in table]
    known = of_user.ndim == 1 and of_user.dtype.kind in "iu" and not np.any(of_user < 0)
    if not known or np.bincount(of_user, minlength=len(table)).tolist() != number:
        raise ValueError(f"every user's group must be one of {len(table)}, of {number} users")
    share = np.array(shares(table), np.float32).astype(np.float64)
    total = float(share @ number)
    return Groups(
        of_user=jnp.asarray(of_user, jnp.int32),
        num_users=jnp.asarray(number, jnp.int32),
        share=jnp.asarray(share, jnp.float32),
        clip=jnp.asarray(clips, jnp.float32),
        whole_clip=jnp.asarray(wholes, jnp.float32),
        total=jnp.float32(total),
        square=jnp.float32(float(share**2 @ number) / total),
    )


def user_bounds(groups: Groups | None, clip: jax.Array, at: jax.Array) -> Own:
    """What step `at` allows each user; clip: float32[2], of that step, by the largest budget."""
    if groups is None:
        return Own(clip[0], clip[1], 1.0)
    each = groups.clip[at][groups.of_user]
    return Own(each[:, 0], each[:, 1], groups.share[groups.of_user])


def check_users(groups: Groups | None, data: Layout) -> None:
    """Raises: UsageError where the groups are not of these users."""
    if groups is not None and len(groups.of_user) != data.num_users:
        raise UsageError(
            f"there are budgets of {len(groups.of_user):,} users, and {data.num_users:,} users",
            where="the group of each user",
            fix="give a group for every user of the catalogue, in its order",
        )


def losses(groups: Groups, scale: float, times: float, num_steps: int, *, distance: float) -> Any:
    """(number of users, losses) of each group; further steps are as the last.

    Args:
      scale: σ in units. times: clips that a neighbour is apart, 1 or 2.
      distance: of a step's noise from what is priced, in total variation.
    """
    clips = np.asarray(groups.whole_clip, np.float64)
    at = np.minimum(np.arange(num_steps), len(clips) - 1)
    return [
        (
            int(number),
            [
                Gaussian(
                    noise_multiplier=scale / (times * clip),
                    num_steps=1,
                    distance=distance,
                )
                for clip in own[at]
            ],
        )
        for number, own in zip(np.asarray(groups.num_users), clips.T, strict=True)
    ]
