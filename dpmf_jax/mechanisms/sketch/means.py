"""The means that paper 002 subtracts from ratings beforehand (5.1.1).

They are those of the training ratings, without noise: a mechanism that subtracts them has no
guarantee.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax import layout
from dpmf_jax.layout import Layout


class Means(NamedTuple):
    """What is subtracted, in rating units.

    overall: float32[].
    user: float32[users], or None.
    item: float32[items], or None.
    """

    overall: jax.Array
    user: jax.Array | None = None
    item: jax.Array | None = None

    def at(self, user: jax.Array, item: jax.Array) -> jax.Array:
        """overall + user + item at these indices; past the end (padding) it is anything."""
        if self.user is None or self.item is None:
            return self.overall
        return (
            self.overall + self.user.at[user].get(mode="clip") + self.item.at[item].get(mode="clip")
        )

    @property
    def center(self) -> jax.Array:
        """The centre of a bilinear model: overall + item, float32[items], or overall alone."""
        return self.overall if self.item is None else self.overall + self.item

    def with_users(self, factors: jax.Array) -> jax.Array:
        """User factors with a further column, the users' means, if there are any."""
        return (
            factors if self.user is None else jnp.concatenate([factors, self.user[:, None]], axis=1)
        )

    def with_items(self, factors: jax.Array) -> jax.Array:
        """Item factors with a column of ones, for the users' means of `with_users`."""
        return (
            factors
            if self.item is None
            else jnp.concatenate([factors, jnp.ones((len(self.item), 1))], axis=1)
        )


def means(data: Layout) -> Means:
    """The mean of all ratings; of each user, the mean of the rest; of each item, of what is left.

    They are taken in this order, so that what is left has mean 0 for every item (paper 002 names
    the three, and no order). A user or an item without ratings gets 0. Unpriced. Can be jitted.
    """
    nothing = jnp.zeros(data.num_users), jnp.zeros(data.num_items)
    total, count = layout.sum_by_user(data, _total, *nothing)
    overall = jnp.sum(total) / jnp.maximum(jnp.sum(count), 1)
    # A second time without the overall mean: small numbers add up with small errors.
    total, _ = layout.sum_by_user(data, _total, jnp.full(data.num_users, overall), nothing[1])
    missed = jnp.sum(total) / jnp.maximum(jnp.sum(count), 1)
    user = (total - count * missed) / jnp.maximum(count, 1)
    overall = overall + missed
    left, raters = layout.sum_by_item(data, _total, jnp.full(data.num_items, overall), user)
    return Means(overall, user, left / jnp.maximum(raters, 1))


def _total(
    own: Any, others: Any, values: jax.Array, present: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return (present * (values - own - others)) @ jnp.ones_like(values), jnp.sum(present)
