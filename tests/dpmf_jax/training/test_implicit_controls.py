"""The controls of a model of seen items: alternating least squares without privacy, popularity."""

import numpy as np
import pytest

from dpmf_jax.training import implicit_controls as controls
from tests.cases.ratings import ratings, share

SHAPE = (30, 12)
TRAIN = share(0.4, SHAPE)


def seen(of):
    found = np.zeros((of.num_users, of.num_items))
    found[of.user, of.item] = 1
    return found


def side(rated, other, weight):
    gram = other.T @ other
    ridge = controls.RIDGE * np.trace(gram) * np.eye(len(gram))
    left = [row[:, None] * other for row in rated]
    return np.stack(
        [
            np.linalg.solve(part.T @ other + weight * gram + ridge, row @ other)
            for part, row in zip(left, rated, strict=True)
        ]
    )


def test_alternating_least_squares_is_that_of_numpy(quick_compilation):
    """Each user and each item with a Gram matrix of its own, for users who were not there too."""
    shown = ratings([0, 0, 1], [1, 2, 7], [1, 1, 1], (2, SHAPE[1]))
    model = controls.implicit_als(TRAIN, shown, rank=2, unseen_weight=0.3, seed=1)
    items = 0.1 * np.random.default_rng(1).standard_normal((SHAPE[1], 2), np.float32)
    for _ in range(controls.PASSES):
        users = side(seen(TRAIN), items, 0.3)
        items = side(seen(TRAIN).T, users, 0.3)
    expected = side(seen(shown), items, 0.3) @ items.T
    np.testing.assert_allclose(model.user_factors @ model.item_factors.T, expected, atol=2e-4)
    assert expected.max() == pytest.approx(expected.max(), abs=1)
    assert np.ptp(expected) > 0.1
