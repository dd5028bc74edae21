"""Mechanisms beside each other: every rating is held out once, and all see the same folds."""

import numpy as np
import pytest

import dpmf_jax
from dpmf_jax.data import splits, synthetic
from dpmf_jax.errors import UsageError
from dpmf_jax.models import evaluation, metrics
from dpmf_jax.training import controls

pytestmark = pytest.mark.usefixtures("quick_compilation")

RATINGS = synthetic.generate(num_users=30, num_items=20, num_ratings=240, seed=3)


@pytest.fixture(scope="module")
def comparison():
    return dpmf_jax.cross_validate(
        RATINGS,
        {"means": {}, "at 20": {"mechanism": "user-means", "epsilon": 20.0}},
        folds=3,
        k=4,
        seed=5,
    )


def rows(comparison):
    return {row["label"]: row for row in comparison["rows"]}


def test_a_row_has_the_errors_of_the_models_that_the_folds_give(comparison):
    squares, ndcg, users = [], [], []
    for at, (train, test) in enumerate(splits.folds(RATINGS, k=3, seed=5)):
        model = dpmf_jax.fit(train, "means", seed=5 + at, test_fraction=0.0, controls="none")
        predicted = model.predict(RATINGS.users[test.user], RATINGS.items[test.item])
        squares += ((predicted - test.value) ** 2).tolist()
        ranked = metrics.ranking(model.all_factors(), train, test, k=4)
        ndcg.append(ranked.ndcg * ranked.users_evaluated)
        users.append(ranked.users_evaluated)
    row = rows(comparison)["means"]
    assert len(squares) == len(RATINGS)
    assert row["rmse"] == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-5)
    assert row["ndcg_at_k"] == pytest.approx(sum(ndcg) / sum(users))
    assert row["rmse_low"] < row["rmse"] < row["rmse_high"]


def test_what_is_promised_stands_in_the_row_and_controls_promise_nothing(comparison):
    told = rows(comparison)
    assert (told["means"]["unit"], told["means"]["private"]) == ("user", True)
    assert (told["at 20"]["mechanism"], told["at 20"]["epsilon"]) == (
        "user-means",
        pytest.approx(20.0, rel=1e-3),
    )
    assert (told["item_means"]["mechanism"], told["item_means"]["private"]) == (None, False)
    assert "not priced" in comparison["note"]


def test_popularity_stands_beside_and_gains_nothing_over_itself(comparison):
    told = rows(comparison)
    assert told["popularity"]["rmse"] is None
    assert told["popularity"]["ndcg_at_k"] == told["means"]["popularity_ndcg_at_k"]
    assert told["popularity"]["ndcg_at_k_gain"] == 0
    assert told["means"]["ndcg_at_k_gain"] == pytest.approx(
        told["means"]["ndcg_at_k"] - told["popularity"]["ndcg_at_k"]
    )
    assert told["global_mean"]["ndcg_at_k"] is None  # it has no order


def test_rankings_of_users_are_those_that_the_means_are_of():
    train, test = splits.random(RATINGS, fraction=0.3, seed=0)
    factors = controls.item_means(train)
    each = metrics.ranked_users(factors, train, test, k=3)
    whole = metrics.ranking(factors, train, test, k=3)
    assert whole == (each.ndcg.mean(), each.recall.mean(), len(each.user), 30 - len(each.user))
    one = each.user[0]
    alone = metrics.ranking(factors, train, test.take(test.user == one), k=3)
    assert (alone.ndcg, alone.recall) == (each.ndcg[0], each.recall[0])
    found = evaluation.numbers(evaluation.measured(factors, train, test, k=3))
    assert found["ndcg_at_k"] == pytest.approx(whole.ndcg)
    assert found["rmse"] == pytest.approx(metrics.rmse(factors, test))
    assert found["mae"] == pytest.approx(metrics.mae(factors, test))


@pytest.mark.parametrize(
    ("mechanisms", "options", "words"),
    [
        (["als-implicit"], {}, "predicts no ratings"),
        (["alz"], {}, "no mechanism 'alz'"),
        ([], {}, "no mechanism is named"),
        (["means"], {"folds": 1}, "1 folds of 240 ratings"),
        (["means"], {"holdout": "first"}, "holdout is 'first'"),
        (["means"], {"holdout": "last"}, "nobody knows when"),
        (["means"], {"beside": "popularty"}, "popularty"),
        (["means"], {"rank": 3}, "no setting 'rank'"),
    ],
)
def test_what_cannot_be_compared_is_refused(mechanisms, options, words):
    with pytest.raises(UsageError, match=words):
        dpmf_jax.cross_validate(RATINGS, mechanisms, **options)
