"""A user's own factors, from what is public of the items: in every pass, and later for new users.

A pass and a fold-in run the same code on the same whole numbers, so a fold-in from the released
arrays alone gives a training user the bits that the curator has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpmf_jax import layout
from dpmf_jax.errors import UsageError
from dpmf_jax.kernels import local_ridge, steady
from dpmf_jax.kernels.local_ridge import LEVEL, STEPS, USER_BITS, Grid, Items, Users
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims
from dpmf_jax.mechanisms.als.config import Config, of_settings

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.protocol import Release

PER_QUARTER = STEPS / 4  # steps in a quarter of the width of the range


def public_grid(config: Config) -> Grid:
    low, high = config.rating_range
    return Grid(
        jnp.float32((low + high) / 2),
        claims.float32_up(config.step / PER_QUARTER),
        jnp.float32(round(config.residual_clip * PER_QUARTER)),
    )


def public_priors(config: Config) -> Float[Array, " columns"]:
    """λ_b·s²·`LEVEL`², and λ_u·s² for each factor, slope and public feature."""
    variance = config.noise_variance
    priors = [variance * config.level_regularization * LEVEL**2]
    priors += [variance * config.regularization] * config.num_columns
    return jnp.asarray(priors, jnp.float32)


def solve(
    items: Items,
    grid: Grid,
    priors: Float[Array, " columns"],
    data: Layout,
    *,
    non_negative: int = 0,
) -> tuple[Float[Array, "users columns"], Users, Float[Array, " users"]]:
    """(user factors: level and factors; the same in whole numbers; number of ratings of each).

    priors: as `public_priors`. non_negative: as `Config.num_non_negative`.
    """
    zero = steady.hidden_zero(jax.lax.bitcast_convert_type(items.unit, jnp.int32))
    priors, coefficient = steady.alike(_per_unit)(zero, priors, grid.step, items.unit)
    users, count = local_ridge.solve(items, grid, priors, data, non_negative=non_negative)
    level = (grid.step * users.level)[:, None]
    return jnp.concatenate([level, coefficient * users.units], axis=1), users, count


def _per_unit(priors: jax.Array, step: jax.Array, unit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(priors per squared unit of an item's factors, a unit of a user's factors)."""
    factors = priors[1:] / unit**2
    return jnp.concatenate([priors[:1], factors]), step * 2.0**-USER_BITS / unit


def fold_in(settings: Mapping[str, Any], release: Release, ratings: Ratings) -> np.ndarray:
    """float32[users, 1 + columns]: level, factors, slopes, weights of features; users old and new.

    Each user's row follows from the release and from that user's ratings; on the same kind of
    device it has the bits of the training. A user without ratings has zeros. Costs a pass over all
    items for each user.

    Args:
      settings: of the model; public.
      ratings: of new users, on the model's items. Their values are in the declared range.

    Raises: UsageError for settings of no such model, and for a release without what users answer
      to.
    """
    try:
        config = of_settings(settings)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the model's settings are not those of {settings.get('mechanism')}: {error}",
            where="settings in model.json",
            fix="fit again with `dpmf fit`, which keeps them",
        ) from None
    grid, priors = public_grid(config), public_priors(config)
    items = _released_items(release, grid, config.num_columns)
    rows = np.zeros((ratings.num_users, 1 + config.num_columns), np.float32)
    order = np.argsort(ratings.user, kind="stable")
    ends = np.cumsum(np.bincount(ratings.user, minlength=ratings.num_users))
    for user, mine in enumerate(np.split(order, ends[:-1])):
        own = ratings.take(mine)
        own = replace(own, user=np.zeros_like(own.user), users=ratings.users[user : user + 1])
        # One shape for all users, so one program.
        data = replace(layout.make(own, kind="dense", num_devices=1), num_ratings=0)
        rows[user] = _user_factors(items, grid, priors, data, config.num_non_negative)[0]
    return rows


@partial(jax.jit, static_argnums=4)
def _user_factors(
    items: Items, grid: Grid, priors: jax.Array, data: Layout, non_negative: int
) -> jax.Array:
    return solve(items, grid, priors, data, non_negative=non_negative)[0]


def _released_items(release: Release, grid: Grid, columns: int) -> Items:
    """What users answered to last, in the same whole numbers.

    Released numbers are these times a unit, rounded once or twice: dividing by the unit and
    rounding gives them back. For centres that needs a range whose ends are, from zero, less than
    2^13 times as far as the range is wide.
    """
    if release.item_factors is None or release.center is None:
        raise UsageError("the model releases no item factors", fix="fit again with `dpmf fit`")
    factors = np.asarray(release.item_factors, np.float64)[:, 1:]
    if factors.shape[1] != columns:
        raise UsageError(
            f"the model releases {factors.shape[1]} factors and its settings say {columns}",
            where="settings in model.json",
            fix="fit again with `dpmf fit`",
        )
    squares, unit = factors, 1.0  # of no columns
    if columns:
        if release.factor_variance is None or release.factor_unit is None:
            raise UsageError(
                "the model does not release how well its item factors are known: an earlier version"
                " made it",
                where="release.safetensors has no factor_variance",
                fix="fit again; for users of the training data, it serves as it is",
            )
        unit = float(release.factor_unit)
        squares = np.asarray(release.factor_variance, np.float64) / unit**2
    steps = (np.asarray(release.center, np.float64) - float(grid.middle)) / float(grid.step)
    return Items(
        *(jnp.asarray(np.rint(part), jnp.float32) for part in (steps, factors / unit, squares)),
        jnp.float32(unit),
    )
