"""A few generated ratings, of which the tests of many mechanisms are."""

import numpy as np

from dpmf_jax.data.ratings import Ratings

RANGE = (1.0, 5.0)


def ratings(user, item, value, shape, rating_range=RANGE) -> Ratings:
    """These ratings, with a catalogue of `shape`: numbers of users and of items, some unrated."""
    users, items = map(np.arange, shape)
    return Ratings.from_columns(
        user,
        item,
        np.asarray(value, np.float32),
        rating_range=rating_range,
        users=users,
        items=items,
        name="tiny",
    )


def share(of: float, shape, seed: int = 0, rating_range=RANGE) -> Ratings:
    """Each pair with this probability, rated in whole numbers from 1 to 5."""
    random = np.random.default_rng(seed)
    user, item = np.nonzero(random.random(shape) < of)
    return ratings(user, item, random.integers(1, 6, len(user)), shape, rating_range)


def tiny(
    num: int = 50,
    seed: int = 0,
    *,
    users: int = 14,
    items: int = 6,
    unrated: tuple[int, int] = (1, 1),
) -> Ratings:
    """`num` ratings in whole numbers from 1 to 5.

    unrated: so many of the last users and of the last items have none.
    """
    random = np.random.default_rng(seed)
    rated = items - unrated[1]
    pairs = random.choice((users - unrated[0]) * rated, size=num, replace=False)
    value = random.integers(1, 6, num)
    return ratings(pairs // rated, pairs % rated, value, (users, items))


def many() -> Ratings:
    """30 users with 0 to 150 ratings, so with several pieces each."""
    random = np.random.default_rng(3)
    user, item = np.nonzero(random.random((30, 150)) < (np.arange(30) / 29)[:, None])
    value = random.integers(1, 6, len(user)).astype(np.float32)
    columns = (user.astype(np.int32), item.astype(np.int32), value)
    return Ratings(*columns, np.arange(30), np.arange(150), (1.0, 5.0))
