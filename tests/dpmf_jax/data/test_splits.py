"""Splits: a partition of the rows with one catalogue, seeded, recorded; and the slice of paper
001.
"""

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from dpmf_jax.data import datasets, splits, synthetic
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, UsageError
from tests.cases.online import sized

SPLITS = [splits.random, splits.within_users, splits.whole_users]


@pytest.fixture(scope="module")
def ratings():
    return synthetic.generate(num_users=20, num_items=7, num_ratings=60, rank=2, seed=1)


def triples(ratings):
    return list(
        zip(ratings.user.tolist(), ratings.item.tolist(), ratings.value.tolist(), strict=True)
    )


@pytest.mark.parametrize("split", SPLITS)
@hypothesis.given(fraction=st.floats(0, 0.99), seed=st.integers(0, 2**70))
def test_train_and_test_are_a_partition_with_the_same_catalogue(ratings, split, fraction, seed):
    train, test = split(ratings, fraction=fraction, seed=seed)
    assert sorted(triples(train) + triples(test)) == sorted(triples(ratings))
    for side in (train, test):
        assert side.users is ratings.users
        assert side.items is ratings.items
        assert side.rating_range == ratings.rating_range
        assert f"{fraction:g}" in side.notes[-1]
        assert str(seed) in side.notes[-1]
    assert train.notes != test.notes


@pytest.mark.parametrize("split", SPLITS)
def test_a_seed_decides_and_its_high_bits_count(ratings, split):
    once, again, other = (
        triples(split(ratings, fraction=0.5, seed=seed)[1]) for seed in (3, 3, 3 + 2**40)
    )
    assert once == again
    assert once != other


def test_the_test_has_the_promised_size(ratings):
    assert len(splits.random(ratings, fraction=0.25, seed=0)[1]) == 15
    assert len(splits.random(ratings, fraction=0, seed=0)[1]) == 0
    _, test = splits.within_users(ratings, fraction=0.5, seed=0)
    counts = np.bincount(ratings.user, minlength=20)
    assert np.bincount(test.user, minlength=20).tolist() == (counts // 2).tolist()
    train, test = splits.whole_users(ratings, fraction=0.25, seed=0)
    assert set(test.user.tolist()).isdisjoint(train.user.tolist())
    assert len(set(range(20)) - set(train.user.tolist())) >= 5


def test_each_rating_is_in_one_fold(ratings):
    parts = list(splits.folds(ratings, k=7, seed=0))
    assert sorted(itertools.chain(*(triples(test) for _, test in parts))) == sorted(
        triples(ratings)
    )
    assert {len(test) for _, test in parts} == {8, 9}
    for train, test in parts:
        assert sorted(triples(train) + triples(test)) == sorted(triples(ratings))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("fraction", [-0.1, 1, 2, float("nan")])
def test_a_fraction_outside_is_refused(ratings, split, fraction):
    with pytest.raises(UsageError, match="fraction"):
        split(ratings, fraction=fraction, seed=0)


@pytest.mark.parametrize("k", [1, 61])
def test_too_few_or_many_folds_are_refused(ratings, k):
    with pytest.raises(UsageError, match="folds"):
        splits.folds(ratings, k=k, seed=0)


def ratings_by(counts, num_items):
    """Users with so many ratings each, of the first items."""
    user = np.repeat(np.arange(len(counts)), counts)
    item = np.concatenate([np.arange(count) for count in counts])
    catalogue = np.arange(len(counts)) * 10, np.arange(num_items)
    return Ratings(
        user.astype(np.int32),
        item.astype(np.int32),
        np.ones(len(user), np.float32),
        *catalogue,
        (1.0, 5.0),
    )


def test_the_slice_of_paper_001_takes_users_first_and_items_once():
    # of 2,600 items: 1 user with 2,500 (out), 1 with 2,499, 101 with 201, 50 with 200 (out)
    ratings = ratings_by([2500, 2499, *[201] * 100, *[200] * 50], 2600)
    left = splits.paper001_slice(ratings)
    assert left.num_users == 101
    assert left.num_items == 201  # items 0 to 200 have 101 raters; all later ones 1
    assert left.users[0] == 10
    # the user with 2,499 is now one with 201: applied once, still there
    assert len(left) == 101 * 201
    assert np.bincount(left.item).tolist() == [101] * 201
    assert "no guarantee covers" in left.notes[-1]


def test_a_slice_that_leaves_nothing_is_an_error(ratings):
    with pytest.raises(DataError, match="leaves 0 users"):
        splits.paper001_slice(ratings)


@pytest.mark.parametrize("split", ["u1", "u2", "u3", "u4", "u5", "ua", "ub"])
def test_official_splits_of_the_real_data_are_a_partition(data_dir, split):
    whole = datasets.load("ml-100k", data_dir=data_dir)
    train, test = datasets.load("ml-100k", data_dir=data_dir, split=split)
    assert sorted(triples(train) + triples(test)) == sorted(triples(whole))
    np.testing.assert_array_equal(train.users, whole.users)
    np.testing.assert_array_equal(test.items, whole.items)
    assert len(test) == (20_000 if split[1].isdigit() else 9_430)


def test_by_pair_a_rating_more_moves_no_other():
    ratings = synthetic.generate(num_users=60, num_items=40, num_ratings=900, seed=1)
    train, test = splits.by_pair(ratings, fraction=0.25, seed=3)
    assert len(train) + len(test) == len(ratings)
    assert abs(len(test) / len(ratings) - 0.25) < 5 * (0.25 * 0.75 / 900) ** 0.5
    held_out = set(zip(test.user.tolist(), test.item.tolist(), strict=True))
    for row in (0, 400, 899):
        fewer = ratings.take(np.arange(len(ratings)) != row)
        again = splits.by_pair(fewer, fraction=0.25, seed=3)[1]
        gone = {(int(ratings.user[row]), int(ratings.item[row]))}
        assert set(zip(again.user.tolist(), again.item.tolist(), strict=True)) == held_out - gone
    other = splits.by_pair(ratings, fraction=0.25, seed=4)[1]
    assert set(zip(other.user.tolist(), other.item.tolist(), strict=True)) != held_out
    assert len(splits.by_pair(ratings, fraction=0, seed=3)[1]) == 0


def test_rare_rows_are_those_with_few_training_ratings():
    train, test = sized(150, seed=3), sized(60, seed=4)
    for fewer_than in (1, 8, 10, 1000):
        few = [
            (np.sum(train.user == u) < fewer_than) or (np.sum(train.item == i) < fewer_than)
            for u, i in zip(test.user, test.item, strict=True)
        ]
        np.testing.assert_array_equal(splits.rare(test, train, fewer_than), few)
    kept = test.take(~splits.rare(test, train))
    assert 0 < len(kept) < len(test)
