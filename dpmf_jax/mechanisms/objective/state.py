"""What a run of objective perturbation carries from step to step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax


class Public(NamedTuple):
    """What was released, and the public centre.

    user_factors: float32[users, rank]; None where they are private.
    item_factors: float32[items, rank], released last; at first random (`mechanism`) or zero.
    center: float32[], subtracted from the ratings.
    """

    user_factors: jax.Array | None
    item_factors: Any
    center: jax.Array


class Private(NamedTuple):
    """What follows the raw ratings; None where the public state has it.

    user_factors: float32[users, rank].
    item_factors: float32[items, rank].
    order: an `ordered.Schedule` of the ratings, the same in each iteration; None where no step goes
      through them one by one.
    """

    user_factors: jax.Array
    item_factors: Any
    order: Any
