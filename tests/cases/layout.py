"""Ratings in awkward shapes, what is summed over them, and what a dense reference says of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings

KINDS = ("split", "dense")


def make_ratings(mask: np.ndarray, seed: int = 0) -> Ratings:
    """Ratings where `mask` [users, items] says, in random order."""
    rng = np.random.default_rng(seed)
    user, item = (part.astype(np.int32) for part in rng.permutation(np.argwhere(mask)).T)
    value = rng.integers(1, 11, len(user)).astype(np.float32) / 2
    return Ratings(
        user, item, value, np.arange(mask.shape[0]), np.arange(mask.shape[1]), (0.5, 5.0)
    )


def ragged() -> np.ndarray:
    """Rows of several pieces in both orientations; a user and an item without ratings, and one of
    each with all.
    """
    mask = np.random.default_rng(5).random((70, 40)) < 0.3
    mask[0], mask[:, 1] = True, True
    mask[3], mask[:, 2] = False, False
    return mask


def lone() -> np.ndarray:
    mask = np.zeros((5, 3), bool)
    mask[4, 1] = True
    return mask


MASKS = {
    "ragged": ragged,
    "lone": lone,
    "full": lambda: np.ones((20, 7), bool),
    "none": lambda: np.zeros((4, 3), bool),
}


def factors(ratings: Ratings, rank: int = 3) -> tuple:
    rng = np.random.default_rng(7)
    shapes = ((ratings.num_users, rank), (ratings.num_items, rank), (ratings.num_items,))
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def by_user(row, columns, values, present):
    residual = present * (values - columns["center"] - columns["factors"] @ row)
    return {
        "gradient": -residual @ columns["factors"],
        "squared": residual @ residual,
        "count": jnp.sum(present),
    }


def by_item(row, columns, values, present):
    residual = present * (values - row[1] - columns @ row[0])
    return -residual @ columns, jnp.sum(residual)


def residuals(row, columns, values, present):
    return values - columns["center"] - columns["factors"] @ row + 7 * (1 - present)


TRACES = []


@jax.jit
def all_sums(data, users, items, center):
    TRACES.append(None)  # only Python's pass over the program sees this line
    columns = {"factors": items, "center": center}
    return layout.sum_by_user(data, by_user, users, columns), layout.sum_by_item(
        data, by_item, (items, center), users
    )


def reference(ratings: Ratings, users, items, center):
    value = np.zeros((ratings.num_users, ratings.num_items))
    mask = np.zeros_like(value)
    value[ratings.user, ratings.item] = ratings.value
    mask[ratings.user, ratings.item] = 1
    e = mask * (value - center - users.astype(float) @ items.T.astype(float))
    of_users = {"gradient": -e @ items, "squared": (e**2).sum(1), "count": mask.sum(1)}
    return of_users, (-e.T @ users, e.sum(0))


def assert_close(actual, expected, tolerance=2e-5):
    def check(a, b):
        assert a.shape == b.shape
        assert np.abs(np.asarray(a) - b).max(initial=0) <= tolerance * (
            1 + np.abs(b).max(initial=0)
        )

    jax.tree.map(check, actual, expected)


def edits(ratings: Ratings):
    """(name, the edit on a layout, the ratings after the edit)."""
    spot = len(ratings) // 2
    user, item = ratings.user[spot], ratings.item[spot]
    keep = np.arange(len(ratings)) != spot
    changed = ratings.value.copy()
    changed[spot] = 0.5
    replaced = dataclasses.replace(ratings, value=changed)
    yield (
        "value",
        lambda data: layout.replace_value(data, layout.locate(data, user, item), 0.5),
        replaced,
    )
    yield (
        "rating",
        lambda data: layout.remove_rating(data, layout.locate(data, user, item)),
        ratings.take(keep),
    )
    yield "user", lambda data: layout.remove_user(data, user), ratings.take(ratings.user != user)
    turned = np.where(ratings.user == user, 6 - ratings.value, ratings.value)
    yield (
        "user turned round",
        lambda data: layout.reflect_user(data, user, 6.0),
        dataclasses.replace(ratings, value=turned.astype(np.float32)),
    )


@jax.jit
def mapped(data, users, items, center):
    return layout.map_ratings(data, residuals, users, {"factors": items, "center": center})


@jax.jit
def folded(data, users, items):
    """Sums in which the order of a row's ratings counts."""

    def met(carry, row, column, value, present):
        return 0.7 * carry + present * value * column[0]

    nothing = [jnp.zeros(len(rows)) for rows in (users, items)]
    return (
        layout.fold_by_user(data, met, nothing[0], users, items),
        layout.fold_by_item(data, met, nothing[1], items, users),
    )
