"""Ratings like public ones: of the promised size, and with the published statistics that they were
fitted to.
"""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from dpmf_jax.data import datasets, lifelike, splits
from dpmf_jax.errors import UsageError


@pytest.fixture(scope="module")
def like_100k():
    return lifelike.generate(seed=1)


@hypothesis.given(
    data=st.data(),
    num_users=st.integers(2, 20),
    num_items=st.integers(2, 7),
    seed=st.integers(0, 2**40),
)
def test_any_size_has_distinct_pairs_in_range_and_in_order(data, num_users, num_items, seed):
    num_ratings = data.draw(st.integers(1, num_users * num_items // 2))
    ratings = lifelike.generate(
        num_users=num_users,
        num_items=num_items,
        num_ratings=num_ratings,
        seed=seed,
        rating_range=(0.5, 5),
        rating_step=0.5,
    )
    assert (ratings.num_users, ratings.num_items, len(ratings)) == (
        num_users,
        num_items,
        num_ratings,
    )
    assert np.all(np.diff(ratings.user.astype(int) * num_items + ratings.item) > 0)
    assert 0 <= ratings.user.min() <= ratings.user.max() < num_users
    assert 0 <= ratings.item.min() <= ratings.item.max() < num_items
    assert set(ratings.value.tolist()) <= {0.5 * half for half in range(1, 11)}


def test_a_seed_decides_and_its_high_bits_count():
    def hash_of(seed):
        return lifelike.generate(num_users=20, num_items=7, num_ratings=60, seed=seed).sha256()

    once, again, other = hash_of(3), hash_of(3), hash_of(3 + 2**40)
    assert once == again != other


def test_blocks_of_users_keep_what_was_promised(monkeypatch):
    monkeypatch.setattr(lifelike, "BLOCK", 16)
    ratings = lifelike.generate(num_users=20, num_items=7, num_ratings=60)
    assert len(ratings) == 60
    assert np.all(np.diff(ratings.user.astype(int) * 7 + ratings.item) > 0)


def test_activity_and_popularity_are_those_of_movielens_100k(like_100k):
    """README and published summaries: 20 ratings a user at least, median 64.5, most 737; items have
    quartiles 6, 27 and 80, most 583, Gini 0.629.
    """
    of_user = np.bincount(like_100k.user, minlength=943)
    of_item = np.sort(np.bincount(like_100k.item, minlength=1682))
    assert of_user.min() >= 20
    assert 55 < np.median(of_user) < 75
    assert 500 < of_user.max() < 1100
    first, median, third = np.quantile(of_item, [0.25, 0.5, 0.75])
    assert 4 <= first <= 10
    assert 22 <= median <= 34
    assert 70 <= third <= 90
    assert 450 < of_item[-1] < 850
    assert 0.58 < 1 - 2 * np.mean(np.cumsum(of_item) / of_item.sum()) < 0.67


def test_catalogues_that_are_larger_are_more_uneven():
    """Gini 0.805 at MovieLens-10M's 10,677 items."""
    ratings = lifelike.generate(num_users=700, num_items=10_677, num_ratings=100_000)
    count = np.sort(np.bincount(ratings.item, minlength=10_677))
    assert 0.76 < 1 - 2 * np.mean(np.cumsum(count) / count.sum()) < 0.88


def test_few_ratings_a_user_lower_the_least_activity():
    ratings = lifelike.generate(num_users=200, num_items=300, num_ratings=2_000)
    assert np.bincount(ratings.user, minlength=200).min() >= 2


def test_ratings_and_controls_are_those_of_movielens_100k(like_100k):
    """Published: mean 3.53, deviation 1.126, item means 1.02, user means 1.04, biases 0.944; 6% are
    ones, 21% fives.
    """
    assert 3.45 < like_100k.value.mean() < 3.65
    assert 1.09 < like_100k.value.std() < 1.16
    shares = np.bincount(like_100k.value.astype(int), minlength=6)[1:] / len(like_100k)
    np.testing.assert_allclose(shares, [0.061, 0.114, 0.271, 0.342, 0.212], atol=0.03)
    train, test = splits.random(like_100k, fraction=0.1, seed=0)
    mean, size = train.value.mean(), {"user": 943, "item": 1682}

    def offsets(left, side, weight):
        rows, num = getattr(train, side), size[side]
        return np.bincount(rows, left, num) / (np.bincount(rows, minlength=num) + weight)

    def rmse(predicted):
        return np.sqrt(np.mean((test.value - mean - predicted) ** 2))

    assert 1.0 < rmse(offsets(train.value - mean, "item", 1)[test.item]) < 1.05
    assert 1.02 < rmse(offsets(train.value - mean, "user", 1)[test.user]) < 1.08
    user = np.zeros(943)
    for _ in range(5):
        item = offsets(train.value - mean - user[train.user], "item", 3)
        user = offsets(train.value - mean - item[train.item], "user", 4)
    assert 0.915 < rmse(user[test.user] + item[test.item]) < 0.95


def test_the_spectrum_decays_and_features_explain_a_part_of_it():
    items = lifelike._catalogue(np.random.default_rng(0), 4_000)
    squared = np.mean(items.factors**2, axis=0)
    assert np.all(squared[:4] > 1.3 * squared[1:5])
    assert 0.9 * lifelike.TASTE**2 < squared.sum() < 1.1 * lifelike.TASTE**2
    design = np.column_stack([np.ones(4_000), items.features])
    left = items.factors - design @ np.linalg.lstsq(design, items.factors, rcond=None)[0]
    explained = 1 - left.var(axis=0) / items.factors.var(axis=0)
    assert 0.25 < explained.mean() < 0.45


def test_the_first_factors_go_with_popularity_and_quality():
    items = lifelike._catalogue(np.random.default_rng(0), 4_000)
    with_popularity = np.corrcoef(items.popularity, items.factors[:, 0])[0, 1]
    with_quality = np.corrcoef(items.quality, items.factors[:, 1])[0, 1]
    assert 0.2 < with_popularity < 0.4
    assert 0.2 < with_quality < 0.4


def test_what_is_popular_is_liked_better(like_100k):
    of_item = np.bincount(like_100k.item, minlength=1682)
    sums = np.bincount(like_100k.item, like_100k.value, 1682)
    rated = of_item >= 20
    correlation = np.corrcoef(np.log(of_item[rated]), sums[rated] / of_item[rated])[0, 1]
    assert 0.2 < correlation < 0.7


def test_it_says_that_it_is_generated_and_loads_by_name():
    ratings = datasets.load("lifelike-20x7x60-seed5")
    own = lifelike.generate(num_users=20, num_items=7, num_ratings=60, seed=5)
    assert ratings.sha256() == own.sha256()
    assert ratings.name == "lifelike-20x7x60-seed5"
    assert "generated" in ratings.notes[0]
    assert datasets.load("lifelike-seed1").num_users == 943


def test_features_belong_to_a_name():
    found = datasets.generated_features("lifelike-20x40x60-seed5")
    np.testing.assert_array_equal(found, lifelike.item_features(num_items=40, seed=5))
    assert found.shape[0] == 40
    assert np.abs(found.mean(axis=0)).max() < 0.2
    with pytest.raises(UsageError, match="no features"):
        datasets.generated_features("synthetic-20x40x60")


@pytest.mark.parametrize(
    "bad", [{"num_users": 1}, {"num_ratings": 10**6}, {"rating_step": 0}, {"rating_range": (5, 1)}]
)
def test_impossible_sizes_are_refused(bad):
    with pytest.raises(UsageError):
        lifelike.generate(**bad)
