"""Ratings with long rows, and what is folded and multiplied over them."""

import jax.numpy as jnp
import numpy as np

from dpmf_jax.data.ratings import Ratings


def some(num_users: int, num_items: int, num_ratings: int, seed: int = 0) -> Ratings:
    """User 0 rates all items and item 0 is rated by all users, but for the last of each, which have
    no rating.
    """
    random = np.random.default_rng(seed)
    rated = np.zeros((num_users - 1, num_items - 1), bool)
    rated[0], rated[:, 0] = True, True
    free = np.flatnonzero(~rated)
    rated.ravel()[random.choice(free, num_ratings - rated.sum(), replace=False)] = True
    user, item = random.permutation(np.argwhere(rated)).T.astype(np.int32)
    value = random.integers(1, 6, num_ratings).astype(np.float32)
    return Ratings(user, item, value, np.arange(num_users), np.arange(num_items), (1.0, 5.0))


# Rows of up to 150 ratings: three pieces and more, and a place within a row that few rows reach.
LONG = some(160, 150, 700)


def descend(carry, row, column, value, present):
    """Depends on the order, on row, column and value, and counts calls that are no rating."""
    factor, count = carry
    error = value - row - column[0] - factor @ column[1]
    return factor + 0.1 * error * column[1], count + jnp.int32(1 + 1000 * (present == 0))


def trees(num_rows: int, num_columns: int, rank: int = 3, seed: int = 1):
    random = np.random.default_rng(seed)

    def normal(*shape):
        return random.standard_normal(shape).astype(np.float32)

    return (
        (normal(num_rows, rank), np.zeros(num_rows, np.int32)),
        normal(num_rows),
        (
            normal(num_columns),
            normal(num_columns, rank),
        ),
    )


def features(shift, row, columns, values, present):
    return jnp.concatenate([columns, (present * (values - row - shift))[:, None]], axis=1)
