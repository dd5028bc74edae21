"""Scores of attacks by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from audits.release import attack_scores


def test_lists_count_as_what_each_watcher_is_shown():
    """Two watchers; what is shown in all shadows tells nothing, and what in none is unknown."""
    lists = np.array([[[4, 7], [4, 5]], [[7, 4], [5, 6]], [[4, 9], [6, 7]]])
    own = np.array([True, True, False])
    shown = attack_scores._shown(lists, own)
    # of the second watcher: 4 in the first run, 6 in the second and third
    np.testing.assert_array_equal(shown, [[1, 0], [0, 1], [0, 1]])
    assert attack_scores._shown(lists[:1], own[:1]).shape == (1, 0)


def test_likelihood_ratios_of_shadows_leave_their_own_out():
    random = np.random.default_rng(3)
    inside = random.permuted(np.arange(12)[:, None] % 2 == np.zeros(5), axis=0)
    own, attacked = random.normal(size=(12, 5)) + 2 * inside, random.normal(size=(4, 5))
    found = attack_scores.likelihood_ratios(own, inside, attacked)
    assert found.shadows.shape == (12, 5)
    prior = attack_scores.PRIOR
    typical = {
        way: (
            sum(
                np.sum((x := own[inside[:, c] == way, c]) ** 2) - len(x) * np.mean(x) ** 2
                for c in range(5)
            )
            / (5 * 5)
        )
        for way in (True, False)
    }

    def by_hand(x, kept, c):
        logs = []
        for way in (True, False):
            values = own[kept & (inside[:, c] == way), c]
            squares = np.sum((values - values.mean()) ** 2) + prior * typical[way]
            spread = math.sqrt(squares / (len(values) - 1 + prior) + 1e-12)
            logs.append(stats.norm.logpdf(x, values.mean(), spread))
        return logs[0] - logs[1]

    for c in range(5):
        for run in range(12):
            assert found.shadows[run, c] == pytest.approx(
                by_hand(own[run, c], np.arange(12) != run, c)
            )
        for run in range(4):
            assert found.trials[run, c] == pytest.approx(
                by_hand(attacked[run, c], np.ones(12, bool), c)
            )
