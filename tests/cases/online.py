"""Ratings, settings and the plain loop that the tests of online factorisation share."""

import jax
import numpy as np

from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import ordered
from dpmf_jax.mechanisms.sketch import online
from dpmf_jax.noise import keys
from tests.cases.ratings import tiny

USERS, ITEMS, RANK = 20, 15, 3


def sized(num: int = 120, seed: int = 0) -> Ratings:
    return tiny(num, seed, users=USERS, items=ITEMS)


RATINGS = sized()
ORDER = np.random.default_rng(1).permutation(len(RATINGS))


def config(**settings) -> online.Config:
    defaults = {
        "rank": RANK,
        "learning_rate": 0.05,
        "num_epochs": 4,
        "regularization": 0.1,
        "initial_scale": 0.5,
    }
    return online.Config(**(defaults | {"gain": 0.5} | settings))


def split_data(ratings: Ratings = RATINGS):
    return layout.make(ratings, kind="split", num_devices=1)


def schedule(size: int = 1, kind: str = "split") -> ordered.Schedule:
    return ordered.schedule(RATINGS, ORDER, size=size, kind=kind)


def begun(mechanism, data=None):
    return protocol.begin(mechanism, keys.from_seed(0), split_data() if data is None else data)


def trained(mechanism, num_steps: int, data=None, state=None):
    """(state, info)"""
    data = split_data() if data is None else data
    return protocol.train(
        mechanism,
        keys.from_seed(1),
        begun(mechanism, data) if state is None else state,
        data,
        num_steps,
    )


def means_oracle(ratings: Ratings):
    """(overall, user, item): each the mean of what the ones before left; 0 where there is no
    rating.
    """
    value = ratings.value.astype(np.float64)
    overall = value.mean()
    out = []
    left = value - overall
    for index, num in ((ratings.user, ratings.num_users), (ratings.item, ratings.num_items)):
        mean = np.bincount(index, left, num) / np.maximum(np.bincount(index, minlength=num), 1)
        left = left - mean[index]
        out.append(mean)
    return overall, *out


def sgd_oracle(
    start,
    settings: online.Config,
    num_epochs: int,
    *,
    ratings=RATINGS,
    order=ORDER,
    size=1,
    largest=np.inf,
):
    """(users, items, losses, skipped shares) by plain SGD in float64; e² above `largest` is
    skipped.
    """
    users, items = (np.array(part, np.float64) for part in start)
    overall, user, item = means_oracle(ratings)
    left = ratings.value - overall - user[ratings.user] - item[ratings.item]
    if not settings.preprocess:
        left = ratings.value.astype(np.float64) - settings.center
    losses, skipped = [], []
    for epoch in range(num_epochs):
        rate = settings.learning_rate / (1 + settings.decay * epoch / settings.num_epochs)
        squared = []
        for first in range(0, len(order), size):
            before = users.copy(), items.copy()
            for rating in order[first : first + size]:
                u, i = ratings.user[rating], ratings.item[rating]
                p, q = before[0][u], before[1][i]
                error = left[rating] - p @ q
                squared.append(error**2)
                if error**2 <= largest:
                    users[u] += rate * (error * q - settings.regularization * p)
                    items[i] += rate * (error * p - settings.regularization * q)
        losses.append(np.mean(squared))
        skipped.append(np.mean(np.array(squared) > largest))
    return users, items, np.array(losses), np.array(skipped)


def leaves_equal(tree, other) -> bool:
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    )
