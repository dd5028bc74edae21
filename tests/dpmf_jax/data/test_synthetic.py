"""Generated ratings: of the promised size, distinct, in range, seeded, long-tailed, and about as
hard as MovieLens.
"""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from dpmf_jax.data import datasets, splits, synthetic
from dpmf_jax.errors import UsageError


@hypothesis.given(
    data=st.data(),
    num_users=st.integers(2, 20),
    num_items=st.integers(2, 7),
    seed=st.integers(0, 2**40),
)
def test_any_size_has_distinct_pairs_in_range(data, num_users, num_items, seed):
    num_ratings = data.draw(st.integers(1, num_users * num_items // 2))
    ratings = synthetic.generate(
        num_users=num_users,
        num_items=num_items,
        num_ratings=num_ratings,
        rank=3,
        seed=seed,
        rating_range=(0.5, 5),
        rating_step=0.5,
    )
    pairs = set(zip(ratings.user.tolist(), ratings.item.tolist(), strict=True))
    assert len(pairs) == len(ratings) == num_ratings
    assert (ratings.num_users, ratings.num_items) == (num_users, num_items)
    assert 0 <= ratings.user.min() <= ratings.user.max() < num_users
    assert 0 <= ratings.item.min() <= ratings.item.max() < num_items
    assert set(ratings.value.tolist()) <= {0.5 * half for half in range(1, 11)}
    assert (ratings.user.dtype, ratings.item.dtype, ratings.value.dtype) == (
        np.int32,
        np.int32,
        np.float32,
    )


def test_a_seed_decides_and_its_high_bits_count():
    def hash_of(seed):
        return synthetic.generate(num_users=20, num_items=7, num_ratings=60, seed=seed).sha256()

    once, again, other = hash_of(3), hash_of(3), hash_of(3 + 2**40)
    assert once == again != other


def test_blocks_of_users_do_not_break_the_promise(monkeypatch):
    monkeypatch.setattr(synthetic, "CHUNK", 16)
    ratings = synthetic.generate(num_users=20, num_items=7, num_ratings=60, rank=2)
    assert (
        len(set(zip(ratings.user.tolist(), ratings.item.tolist(), strict=True)))
        == len(ratings)
        == 60
    )
    assert np.all(np.diff(ratings.user.astype(int) * 7 + ratings.item) > 0)


def test_the_default_is_long_tailed_and_about_as_hard_as_movielens_100k():
    ratings = synthetic.generate()
    assert (ratings.num_users, ratings.num_items, len(ratings)) == (943, 1682, 100_000)
    per_user, per_item = np.bincount(ratings.user), np.bincount(ratings.item)
    assert per_user.max() > 5 * np.median(per_user)
    assert per_item.max() > 10 * np.median(per_item)
    train, test = splits.random(ratings, fraction=0.2, seed=0)
    mean = train.value.mean()
    count = np.bincount(train.item, minlength=1682)
    item_mean = (np.bincount(train.item, train.value, 1682) + 5 * mean) / (count + 5)
    assert 1.05 < np.sqrt(np.mean((test.value - mean) ** 2)) < 1.15  # MovieLens 100K: 1.126
    assert 0.97 < np.sqrt(np.mean((test.value - item_mean[test.item]) ** 2)) < 1.05  # 1.02


def test_it_says_that_it_is_generated_and_loads_by_name():
    ratings = datasets.load("synthetic-20x7x60-seed5")
    assert (
        ratings.sha256()
        == synthetic.generate(num_users=20, num_items=7, num_ratings=60, seed=5).sha256()
    )
    assert ratings.name == "synthetic-20x7x60-seed5"
    assert "generated" in ratings.notes[0]
    assert datasets.load("synthetic").sha256() == synthetic.generate().sha256()


@pytest.mark.parametrize(
    "bad",
    [
        {"num_users": 1},
        {"num_items": 1},
        {"num_ratings": 0},
        {"num_ratings": 10**6},
        {"rank": 0},
        {"rating_step": 0},
        {"rating_step": np.nan},
        {"rating_range": (5, 1)},
        {"rating_range": (1, np.inf)},
    ],
)
def test_impossible_sizes_are_refused(bad):
    with pytest.raises(UsageError):
        synthetic.generate(**bad)
