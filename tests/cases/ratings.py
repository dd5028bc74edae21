"""A few generated ratings, of which the tests of many mechanisms are."""

import numpy as np

from dpmf_jax.data.ratings import Ratings


def tiny(num: int = 50, seed: int = 0, *, users: int = 14, items: int = 6) -> Ratings:
    """`num` ratings from 1 to 5; the last user and the last item have none."""
    random = np.random.default_rng(seed)
    pairs = random.choice((users - 1) * (items - 1), size=num, replace=False)
    columns = (
        (pairs // (items - 1)).astype(np.int32),
        (pairs % (items - 1)).astype(np.int32),
        random.integers(1, 6, num).astype(np.float32),
    )
    return Ratings(*columns, np.arange(users), np.arange(items), (1.0, 5.0))


def many() -> Ratings:
    """30 users with 0 to 150 ratings, so with several pieces each."""
    random = np.random.default_rng(3)
    user, item = np.nonzero(random.random((30, 150)) < (np.arange(30) / 29)[:, None])
    value = random.integers(1, 6, len(user)).astype(np.float32)
    columns = (user.astype(np.int32), item.astype(np.int32), value)
    return Ratings(*columns, np.arange(30), np.arange(150), (1.0, 5.0))
