"""Metrics: laws, a slow reference, and what must never be recommended."""

import dataclasses

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, UsageError
from dpmf_jax.models import metrics
from dpmf_jax.protocol import Factors

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, RANK = 12, 7, 3


def ratings_of(user, item, value, users=USERS, items=ITEMS):
    columns = (
        np.asarray(user, np.int32),
        np.asarray(item, np.int32),
        np.asarray(value, np.float32),
    )
    return Ratings(*columns, np.arange(users), np.arange(items), (1.0, 5.0))


def world(seed):
    """Factors of small integers (so that scores tie), and a random split of random ratings."""
    rng = np.random.default_rng(seed)
    factors = Factors(
        rng.integers(-1, 2, (USERS, RANK)).astype(np.float32),
        rng.integers(-1, 2, (ITEMS, RANK)).astype(np.float32),
        rng.integers(2, 5, ITEMS).astype(np.float32),
    )
    pairs = rng.permutation(USERS * ITEMS)[: int(rng.integers(10, 60))]
    full = ratings_of(pairs // ITEMS, pairs % ITEMS, rng.integers(1, 6, len(pairs)))
    cut = rng.random(len(pairs)) < 0.6
    cut[0], cut[1] = True, False
    return factors, full.take(cut), full.take(~cut)


def slow_ranking(factors, train, test, k, threshold):
    scores = factors.user_factors @ factors.item_factors.T + factors.center
    ndcg, recall = [], []
    for user in range(train.num_users):
        seen = set(train.item[train.user == user].tolist())
        rows = (test.user == user) & (True if threshold is None else test.value >= threshold)
        relevant = set(test.item[rows].tolist()) - seen
        if not relevant:
            continue
        ranked = sorted(
            (i for i in range(train.num_items) if i not in seen),
            key=lambda i: (-scores[user, i], i),
        )[:k]
        gain = sum(1 / np.log2(place + 2) for place, i in enumerate(ranked) if i in relevant)
        ndcg.append(gain / sum(1 / np.log2(place + 2) for place in range(min(k, len(relevant)))))
        recall.append(len(relevant & set(ranked)) / len(relevant))
    return ndcg, recall


@given(
    st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0]), min_size=1, max_size=20), st.floats(1, 5)
)
def test_rmse_of_a_constant_is_the_spread_about_it(values, constant):
    count = len(values)
    ratings = ratings_of(np.arange(count), np.zeros(count), values, users=20)
    factors = Factors(np.zeros((20, 0)), np.zeros((ITEMS, 0)), np.float32(constant))
    assert metrics.rmse(factors, ratings) ** 2 == pytest.approx(
        np.var(values) + (np.mean(values) - constant) ** 2, abs=1e-5
    )
    assert metrics.mae(factors, ratings) == pytest.approx(
        np.mean(np.abs(np.array(values) - constant)), abs=1e-6
    )


def test_perfect_factors():
    rng = np.random.default_rng(0)
    truth = rng.integers(1, 5, (USERS, ITEMS)).astype(np.float32)
    liked = rng.integers(0, ITEMS, USERS)
    truth[np.arange(USERS), liked] = 5
    factors = Factors(truth, np.eye(ITEMS, dtype=np.float32), np.float32(0))
    train = ratings_of(
        np.arange(USERS), (liked + 1) % ITEMS, truth[np.arange(USERS), (liked + 1) % ITEMS]
    )
    test = ratings_of(np.arange(USERS), liked, np.full(USERS, 5))
    result = metrics.evaluate(factors, train, test, k=3)
    assert (result["rmse_train"], result["rmse_test"], result["mae_test"]) == (0, 0, 0)
    assert (result["ndcg_at_k"], result["recall_at_k"]) == (1, 1)
    assert (result["users_evaluated"], result["users_left_out"]) == (USERS, 0)
    # Broken on purpose: the worst model ranks the liked item last.
    worst = metrics.ranking(factors._replace(user_factors=-truth), train, test, k=3)
    assert (worst.ndcg, worst.recall) == (0, 0)


def test_clipping_is_to_the_declared_range():
    factors = Factors(np.zeros((USERS, 0)), np.zeros((ITEMS, 0)), np.float32(9))
    ratings = ratings_of([0, 1], [0, 1], [5, 5])
    assert metrics.rmse(factors, ratings) == 0
    assert metrics.rmse(factors, ratings, clip=False) == 4
    assert metrics.mae(factors, ratings, clip=False) == 4


@pytest.mark.parametrize("threshold", [None, 4.0])
@pytest.mark.parametrize("k", [10, 1, 3])
def test_ranking_equals_the_slow_reference(k, threshold, monkeypatch):
    monkeypatch.setattr(metrics, "SCORE_BYTES", 4 * ITEMS * 5)  # blocks of five users
    for seed in range(6):
        factors, train, test = world(seed)
        ndcg, recall = slow_ranking(factors, train, test, k, threshold)
        got = metrics.ranking(factors, train, test, k=k, threshold=threshold)
        assert (got.users_evaluated, got.users_left_out) == (len(ndcg), USERS - len(ndcg))
        if ndcg:
            np.testing.assert_allclose(
                [got.ndcg, got.recall], [np.mean(ndcg), np.mean(recall)], rtol=1e-12
            )
            assert metrics.ndcg_at_k(factors, train, test, k=k, threshold=threshold) == got.ndcg
            assert metrics.recall_at_k(factors, train, test, k=k, threshold=threshold) == got.recall


def test_relabelling_users_and_items_changes_nothing():
    factors, train, test = world(3)
    rng = np.random.default_rng(1)
    factors = factors._replace(
        user_factors=rng.normal(size=(USERS, RANK)).astype(np.float32)
    )  # no ties
    factors = factors._replace(item_factors=rng.normal(size=(ITEMS, RANK)).astype(np.float32))
    user_at, item_at = rng.permutation(USERS), rng.permutation(ITEMS)
    moved = Factors(
        factors.user_factors[np.argsort(user_at)],
        factors.item_factors[np.argsort(item_at)],
        factors.center[np.argsort(item_at)],
    )

    def move(ratings):
        return dataclasses.replace(
            ratings,
            user=user_at[ratings.user].astype(np.int32),
            item=item_at[ratings.item].astype(np.int32),
        )

    before, after = (
        metrics.evaluate(factors, train, test, k=3),
        metrics.evaluate(moved, move(train), move(test), k=3),
    )
    assert before.pop("threshold") is after.pop("threshold") is None
    assert before == pytest.approx(after, rel=1e-6)


def test_top_k_never_shows_seen_items_and_breaks_ties_by_index(monkeypatch):
    for block_users in (1, 5, 100):
        monkeypatch.setattr(metrics, "SCORE_BYTES", 4 * ITEMS * block_users)
        for seed in range(4):
            factors, train, _ = world(seed)
            scores = factors.user_factors @ factors.item_factors.T + factors.center
            users = np.array([3, 0, 3, USERS - 1])
            got = metrics.top_k(factors, users, train, 4)
            assert got.items.shape == got.scores.shape == (4, 4)
            for row, user in enumerate(users):
                seen = set(train.item[train.user == user].tolist())
                unseen = [i for i in range(ITEMS) if i not in seen]
                ranked = sorted(unseen, key=lambda i: (-scores[user, i], i))[:4]
                padding = 4 - len(ranked)
                assert got.items[row].tolist() == ranked + [-1] * padding
                np.testing.assert_array_equal(
                    got.scores[row], [*scores[user, ranked], *[np.nan] * padding]
                )


def test_fewer_than_k_unseen_items():
    factors, _, _ = world(0)
    everything = ratings_of(np.repeat(0, ITEMS), np.arange(ITEMS), np.full(ITEMS, 3))
    got = metrics.top_k(factors, np.array([0, 1]), everything, ITEMS + 2)
    assert (got.items[0] == -1).all()
    assert np.isnan(got.scores[0]).all()
    assert sorted(got.items[1].tolist()) == [-1, -1, *range(ITEMS)]
    assert metrics.top_k(factors, np.array([], int), everything, 3).items.shape == (0, 3)


def test_minus_zero_ties_with_zero():
    factors = Factors(np.array([[-1.0]]), np.array([[0.0], [0.0]]), np.array([-0.0, 0.0]))
    none_seen = ratings_of([], [], [], users=1, items=2)
    assert metrics.top_k(factors, np.array([0]), none_seen, 2).items.tolist() == [[0, 1]]


def test_held_out_items_that_were_trained_on_are_not_counted():
    factors, _, _ = world(0)
    train = ratings_of([0], [1], [3])
    got = metrics.ranking(factors, train, ratings_of([0], [1], [3]), k=3)
    assert np.isnan(got.ndcg)
    assert (got.users_evaluated, got.users_left_out) == (0, USERS)


def test_no_score_block_exceeds_its_budget(monkeypatch):
    factors, train, _ = world(1)
    monkeypatch.setattr(metrics, "SCORE_BYTES", 4 * ITEMS * 3)
    sizes = []
    best = metrics._best

    def spy(users, *rest, **options):
        sizes.append(len(users) * ITEMS * 4)
        return best(users, *rest, **options)

    monkeypatch.setattr(metrics, "_best", spy)
    metrics.top_k(factors, np.arange(USERS), train, 2)
    assert sizes == [metrics.SCORE_BYTES] * 4


def test_without_held_out_ratings():
    factors, train, test = world(2)
    for nothing in (None, test.take(np.zeros(len(test), bool))):
        result = metrics.evaluate(factors, train, nothing)
        assert result["rmse_test"] is None
        assert result["ndcg_at_k"] is None
        assert isinstance(result["rmse_train"], float)


def test_definitions_cover_what_evaluate_returns():
    factors, train, test = world(2)
    result = metrics.evaluate(factors, train, test)
    measured = {name.removesuffix("_train").removesuffix("_test") for name in result} - {
        "k",
        "threshold",
        "clip",
    }
    assert measured <= set(metrics.DEFINITIONS)


def test_refusals():
    factors, train, test = world(0)
    with pytest.raises(UsageError, match="k must be"):
        metrics.ranking(factors, train, test, k=0)
    with pytest.raises(UsageError, match="no user_factors"):
        metrics.top_k(factors._replace(user_factors=None), np.array([0]), train, 1)
    with pytest.raises(DataError, match="the model knows"):
        metrics.evaluate(factors, ratings_of([0], [0], [3], users=USERS + 1), None)
    with pytest.raises(DataError, match="not finite"):
        metrics.top_k(factors._replace(center=np.float32(np.nan)), np.array([0]), train, 1)
    with pytest.raises(UsageError, match="user indices"):
        metrics.top_k(factors, np.array([USERS]), train, 1)
    with pytest.raises(DataError, match="no ratings"):
        metrics.rmse(factors, train.take(np.zeros(len(train), bool)))


# --- beside a fit


def test_at_most_so_many_scores_are_ranked_of_users_chosen_alike(monkeypatch):
    factors, train, test = world(3)
    assert len(metrics.to_rank(train, test)[1]) == len(test)
    whole = metrics.ranking(factors, train, test)
    assert metrics.ranking(factors, *metrics.to_rank(train, test)).ndcg == whole.ndcg
    monkeypatch.setattr(metrics, "SCORES", 3 * ITEMS)
    (first, held), (_, again) = (metrics.to_rank(train, test) for _ in range(2))
    assert len(np.unique(held.user)) == 3 < len(np.unique(test.user))
    np.testing.assert_array_equal(held.user, again.user)
    for user in np.unique(held.user):  # all that is theirs
        assert np.sum(held.user == user) == np.sum(test.user == user)
        assert np.sum(first.user == user) == np.sum(train.user == user)
    assert not set(first.user.tolist()) - set(held.user.tolist())


def test_a_model_ranks_alike_where_users_move_all_items_alike():
    rng = np.random.default_rng(0)
    users, items, center = (
        rng.normal(size=(USERS, 2)),
        rng.normal(size=(ITEMS, 2)),
        rng.normal(size=ITEMS),
    )
    ones = np.ones
    alike = {
        "no factors": (np.zeros((USERS, 0)), np.zeros((ITEMS, 0))),
        "a level of each user": (users[:, :1], ones((ITEMS, 1))),
        "one row for all": (np.tile(users[:1], (USERS, 1)), items),
        "two biases": (
            np.stack([users[:, 0], ones(USERS)], 1),
            np.stack([ones(ITEMS), items[:, 0]], 1),
        ),
    }
    for name, (user_factors, item_factors) in alike.items():
        factors = Factors(
            user_factors.astype(np.float32),
            item_factors.astype(np.float32),
            center.astype(np.float32),
        )
        assert metrics.ranks_alike(factors), name
        if user_factors.shape[1]:
            moved = user_factors.astype(np.float32) + np.float32(0.01) * rng.normal(
                size=user_factors.shape
            )
            other = item_factors.astype(np.float32) + np.float32(0.01) * rng.normal(
                size=item_factors.shape
            )
            assert not metrics.ranks_alike(Factors(moved, other, factors.center)), name
    # Alike: whoever is asked, the same order of what all have not seen.
    nobody = ratings_of([], [], [])
    user_factors, item_factors = alike["two biases"]
    lists = metrics.top_k(
        Factors(user_factors, item_factors, center), np.arange(USERS), nobody, ITEMS
    ).items
    assert (lists == lists[0]).all()
