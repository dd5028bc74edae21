"""Intervals over users: how often they hold the truth, and what they take for one observation."""

import numpy as np
import pytest
from scipy import stats

from dpmf_jax.models import intervals


def drawn(random, num_users=60):
    """Errors of users who have few ratings or many, and err alike on all of theirs."""
    counts = random.integers(1, 30, num_users)
    user = np.repeat(np.arange(num_users), counts)
    own = random.normal(size=num_users) ** 2
    return user, own[user] * random.uniform(0.5, 1.5, len(user))


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """The truth is 1, the mean of a squared normal; ratings of one user are alike, so that they are
    worth far less than as many of different users.
    """
    random, held, naive = np.random.default_rng(0), 0, 0
    for _ in range(1_000):
        user, error = drawn(random)
        value, low, high = intervals.of_mean(user, error)
        assert value == pytest.approx(error.mean())
        held += low <= 1 <= high
        spread = 1.96 * error.std(ddof=1) / np.sqrt(len(error))
        naive += abs(error.mean() - 1) <= spread
    assert 0.89 <= held / 1_000 <= 0.97  # few users, skewed errors: a little below 0.95
    assert naive / 1_000 < 0.6


def test_a_mean_over_users_with_a_row_each_has_the_interval_of_student():
    random = np.random.default_rng(1)
    values = random.normal(size=25)
    found = intervals.of_mean(np.arange(25), values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found[1:] == pytest.approx((expected.low, expected.high))


def test_rows_of_a_user_in_any_order_are_one_observation():
    random = np.random.default_rng(2)
    user, error = drawn(random)
    order = random.permutation(len(user))
    found = intervals.of_mean(user[order], error[order])
    assert found == pytest.approx(intervals.of_mean(user, error))
    means = error.mean() - np.bincount(user, weights=error) / np.bincount(user)
    shares = np.bincount(user) / np.mean(np.bincount(user))
    spread = np.sqrt(np.sum((shares * means) ** 2) / (len(means) * (len(means) - 1)))
    assert found.high - found.value == pytest.approx(stats.t.ppf(0.975, len(means) - 1) * spread)


def test_one_user_has_no_interval_and_a_root_is_never_negative():
    assert intervals.of_mean([7, 7], [1.0, 3.0]) == (2.0, None, None)
    assert intervals.root(intervals.of_mean([7, 7], [1.0, 7.0])) == (2.0, None, None)
    assert intervals.root(intervals.Interval(4.0, -1.0, 9.0)) == (2.0, 0.0, 3.0)
