"""Tests of draws keep their level, and see what they say that they see."""

import numpy as np
import pytest
import scipy.stats

from audits.finding import ALPHA
from audits.mechanism import enumeration_draws


@pytest.mark.parametrize(("num", "p"), [(20, 0.5), (300, 0.03), (7, 0.0), (7, 1.0)])
def test_the_binomial_test_keeps_its_level_exactly(num, p):
    counts = np.arange(num + 1)
    p_values, chance = (
        enumeration_draws.binomial_p_value(counts, num, p),
        scipy.stats.binom.pmf(counts, num, p),
    )
    for alpha in (1e-4, 0.05, 0.5):
        assert chance[p_values <= alpha].sum() <= alpha
    assert p_values[round(num * p)] > 0.5


def test_what_is_said_to_be_visible_is_seen_and_null_draws_are_not():
    random, num, cells = np.random.default_rng(0), 20_000, 12
    off = enumeration_draws.visible_share(num, ALPHA)
    seen = (
        enumeration_draws.binomial_p_value(random.binomial(num, 0.5 + off, 200), num, 0.5) <= ALPHA
    )
    assert 0.88 < seen.mean() < 1
    often = enumeration_draws._visible_cell(num, cells) / cells
    law = np.full(cells, (1 - often) / (cells - 1))
    law[3] = often
    p_values = [
        [
            enumeration_draws._chi_square(random.choice(cells, num, p=p), cells)[0]
            for _ in range(200)
        ]
        for p in (law, np.full(cells, 1 / cells))
    ]
    assert 0.88 < np.mean(np.array(p_values[0]) <= ALPHA / enumeration_draws.TESTS) < 1
    assert np.sum(np.array(p_values[1]) <= ALPHA) == 0
    assert (
        enumeration_draws._chi_square(random.choice(10**6, num), 10**6)[1]
        == num // enumeration_draws.EXPECTED
    )


def test_coordinates_are_uniform_in_every_sense():
    """At 6,000 places and 20,000 draws, where a cell is 15 places, beside what no such cell
    shows.
    """
    random = np.random.default_rng(0)
    row, column = random.integers(0, 400, (1000, 20)), random.integers(0, 15, (1000, 20))
    found = enumeration_draws.uniform(row, column)
    assert found.p_value > 0.01
    assert (found.rows, found.columns, found.cells, found.draws) == (400, 15, 400, 20_000)
    half = np.where(random.random(row.shape) < 0.1, row // 2, row)
    twins = row.copy()
    twins[:100, 1::2] = twins[:100, ::2]
    for wrong in ((half, column), (row, np.maximum(column, 1)), (twins, column), (row - 1, column)):
        assert enumeration_draws.uniform(*wrong).p_value < ALPHA
