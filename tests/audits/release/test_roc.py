"""Rates of guesses by hand: curves, thresholds, intervals, and the bound of the advantage."""

import math

import numpy as np
import pytest
from scipy import stats

from audits.release import roc


def test_auc_is_the_chance_that_a_member_scores_higher():
    random = np.random.default_rng(0)
    scores, member = random.integers(0, 6, 60).astype(float), random.random(60) < 0.4
    pairs = scores[member][:, None] - scores[~member]
    assert roc.auc(scores, member) == pytest.approx(np.mean((pairs > 0) + (pairs == 0) / 2))


def test_the_curve_has_the_rates_of_every_threshold():
    random = np.random.default_rng(1)
    scores, member = random.integers(0, 5, 40).astype(float), random.random(40) < 0.5
    found = roc.curve(scores, member)
    assert list(found.threshold) == [np.inf, *sorted(set(scores), reverse=True)]
    for false, true, threshold in zip(*found, strict=True):
        assert false == np.mean(scores[~member] >= threshold)
        assert true == np.mean(scores[member] >= threshold)
    areas = (
        np.diff(found.false_positive_rate)
        * (found.true_positive_rate[1:] + found.true_positive_rate[:-1])
        / 2
    )
    assert roc.auc(scores, member) == pytest.approx(np.sum(areas))


def test_thresholds_keep_to_their_rate():
    random = np.random.default_rng(2)
    member = random.random(500) < 0.5
    scores = random.normal(size=500) + member
    for rate in (0.0, 0.01, 0.1, 1.0):
        threshold = roc.threshold_at(scores, member, rate)
        assert np.mean(scores[~member] >= threshold) <= rate
        lower = np.max(scores[scores < threshold], initial=-np.inf)
        assert np.mean(scores[~member] >= lower) > rate or np.isneginf(lower)
    best = roc.rates(scores, member, roc.best_threshold(scores, member))
    everywhere = [roc.rates(scores, member, at).advantage for at in scores]
    assert best.advantage == pytest.approx(max(everywhere))


def test_intervals_are_clopper_and_pearson_s():
    for hits, trials in ((0, 10), (3, 10), (10, 10), (7, 400)):
        expected = stats.binomtest(hits, trials).proportion_ci(0.95, method="exact")
        assert roc.clopper_pearson(hits, trials) == pytest.approx((expected.low, expected.high))
    assert roc.auc_interval(0.5, 30, 20)[0] < 0.5 < roc.auc_interval(0.5, 30, 20)[1]


def test_the_bound_of_the_advantage_is_reached_by_randomised_response():
    for epsilon, delta in ((0.1, 0.0), (1.0, 1e-3), (3.0, 0.1)):
        told = delta + (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
        wrong = (1 - delta) / (1 + math.exp(epsilon))
        assert roc.advantage_bound(epsilon, delta) == pytest.approx(told - wrong)
        by_hand = (math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1)
        assert roc.advantage_bound(epsilon, delta) == pytest.approx(by_hand)
    assert roc.advantage_bound(0.0, 0.0) == 0
    assert roc.advantage_bound(1000.0, 1e-5) == 1


def test_scores_of_one_kind_are_refused():
    with pytest.raises(ValueError, match="members"):
        roc.auc(np.zeros(3), np.ones(3, bool))
    with pytest.raises(ValueError, match="not a number"):
        roc.auc(np.array([0.0, np.nan]), np.array([True, False]))
