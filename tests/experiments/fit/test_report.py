"""What a fit says of its usefulness."""

import pytest

from experiments.fit.report import utility


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        (0.9, "beats the global mean and item means on held-out"),
        (1.05, "NOT USEFUL: does not beat predicting item means"),
        (1.2, "NOT USEFUL: does not beat predicting the global mean or item means"),
    ],
)
def test_utility_says_whether_the_controls_are_beaten(ours, told):
    controls = {
        "global_mean": {"rmse_train": 1.1, "rmse_test": 1.1},
        "item_means": {"rmse_train": 1.0, "rmse_test": 1.0},
    }
    assert utility({"rmse_train": 0.1, "rmse_test": ours, "controls": controls}).startswith(told)


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        (0.9, "beats what needs no release and means alone for the same price on held-out"),
        (1.05, "NOT USEFUL: does not beat predicting means alone for the same price"),
        (1.2, "NOT USEFUL: does not beat predicting what needs no release or means alone"),
    ],
)
def test_utility_says_whether_factors_are_worth_their_price(ours, told):
    controls = {
        "nothing_released": {"rmse_train": 1.1, "rmse_test": 1.1},
        "means_same_price": {"rmse_train": 1.0, "rmse_test": 1.0},
        "als_without_noise": {"rmse_train": 0.8, "rmse_test": 0.8},
    }
    assert utility({"rmse_train": 0.1, "rmse_test": ours, "controls": controls}).startswith(told)


@pytest.mark.parametrize(
    ("ours", "public", "told"),
    [
        (0.30, True, "ranks better than popularity (0.3000 against 0.2000 in NDCG@10)"),
        (
            0.20,
            True,
            (
                "ranks no better than popularity (0.2000 against 0.2000 in NDCG@10), which is free"
                " here"
            ),
        ),
        (
            0.10,
            False,
            (
                "ranks no better than popularity (0.1000 against 0.2000 in NDCG@10), which is not"
                " private"
            ),
        ),
    ],
)
def test_utility_says_whether_the_order_is_better_than_popularity(ours, public, told):
    popular = {"rmse_train": None, "rmse_test": None, "ndcg_at_10": 0.2}
    metrics = {
        "rmse_train": 0.1,
        "rmse_test": 0.9,
        "ndcg_at_10": ours,
        "controls": {"popularity": popular},
    }
    assert told in utility(metrics, presence_is_public=public)
    assert "alike" not in utility(metrics)
    assert "ranks items alike for all users" in utility(metrics | {"ranks_alike": True})
