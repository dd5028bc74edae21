"""Recall and NDCG on users held out whole, by hand."""

import math

import numpy as np
import pytest

from dpmf_jax.models import strong_generalisation as strong
from dpmf_jax.protocol import Factors
from tests.cases.ratings import ratings

ITEMS = 6


def of(pairs, users=3):
    user, item = zip(*pairs, strict=True)
    return ratings(user, item, np.ones(len(user)), (users, ITEMS), (0.0, 1.0))


def by_item(*scores):
    """A model that scores items alike for all users."""
    return Factors(
        np.zeros((3, 0), np.float32),
        np.zeros((ITEMS, 0), np.float32),
        np.array(scores, np.float32),
    )


def test_recall_and_ndcg_at_2_by_hand():
    """Items are ranked 0, 1, 2, ...; user 0 was shown item 0."""
    shown = of([(0, 0), (1, 5), (2, 5)])
    hidden = of([(0, 1), (0, 3), (0, 4), (1, 1), (2, 4)])
    found = strong.scores(by_item(6, 5, 4, 3, 2, 1), strong.HeldOut(shown, hidden), k=2)
    # 0 gets 1 and 2: one of min(2, 3); 1 gets 0 and 1: the second; 2 gets 0 and 1: none.
    second = 1 / math.log2(3)
    assert found.recall == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert found.ndcg == pytest.approx((1 / (1 + second) + second + 0) / 3)
    assert found.users_evaluated == 3


def test_every_item_that_is_hidden_is_found_in_a_list_that_is_long_enough():
    """Also where fewer items are left than the list is long; who has nothing hidden is left out."""
    users = strong.HeldOut(of([(0, 0), (1, 1)]), of([(0, 5), (0, 4)]))
    found = strong.scores(by_item(6, 5, 4, 3, 2, 1), users)
    assert found.recall == 1
    assert found.users_evaluated == 1
    best = strong.scores(by_item(0, 0, 0, 0, 1, 2), users)
    assert (best.recall, best.ndcg) == (1, 1)
    nobody = strong.HeldOut(of([(0, 0)]), of([(0, 5)]).take(np.zeros(0, int)))
    assert math.isnan(strong.scores(by_item(*range(ITEMS)), nobody).recall)


def test_a_fifth_of_each_users_items_is_hidden():
    random = np.random.default_rng(0)
    seen = random.random((12, 40)) < np.linspace(0, 0.9, 12)[:, None]
    seen[0], seen[1] = False, np.arange(40) < 4
    user, item = np.nonzero(seen)
    whole = ratings(user, item, np.ones(len(user)), seen.shape, (0.0, 1.0))
    shown, hidden = strong.held_out(whole, seed=1)
    there = np.flatnonzero(seen.any(axis=1))
    np.testing.assert_array_equal(shown.users, there)  # of users with ratings alone
    number = seen[there].sum(axis=1)
    np.testing.assert_array_equal(np.bincount(hidden.user, minlength=len(there)), number // 5)
    pairs = [part.users[part.user] * 40 + part.item for part in (shown, hidden)]
    np.testing.assert_array_equal(np.sort(np.concatenate(pairs)), np.sort(user * 40 + item))
    again, other = (strong.held_out(whole, seed=seed).hidden for seed in (1, 2))
    np.testing.assert_array_equal(again.item, hidden.item)
    assert not np.array_equal(other.item, hidden.item)
