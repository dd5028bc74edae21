"""One rating after the other over dense factors, at ranks around the width that rows are read and
written with.
"""

import functools

import jax
import numpy as np
import pytest

from dpmf_jax import layout
from dpmf_jax.kernels import epoch
from dpmf_jax.layout import ordered
from tests.cases.online import ITEMS, ORDER, RATINGS, USERS, split_data

RATE, STRENGTH = 0.05, 0.1
RULE = epoch.Rule(RATE, STRENGTH)
RANKS = (
    1,
    7,
    8,
    epoch.SHORTEST - 1,
    epoch.SHORTEST,
    epoch.SHORTEST + 1,
    33,
    48,
    70,
)


@functools.cache
def starts(rank: int):
    rng = np.random.default_rng(rank)
    return tuple(
        rng.normal(0, rank**-0.5, (rows, rank)).astype(np.float32) for rows in (USERS, ITEMS)
    )


def one_epoch(start, schedule, data=None, rule=RULE, offset=3.0):
    run = jax.jit(epoch.dense)
    return run(*start, schedule, split_data() if data is None else data, rule, offset)


def by_hand(start, order, largest=np.inf):
    """float64; (users, items, Σe², how many were learnt from)."""
    users, items = (part.astype(np.float64) for part in start)
    squared = learnt = 0
    for rating in order:
        u, i = RATINGS.user[rating], RATINGS.item[rating]
        p, q = users[u].copy(), items[i].copy()
        error = RATINGS.value[rating] - 3.0 - p @ q
        squared += error**2
        if error**2 <= largest:
            learnt += 1
            users[u] += RATE * (error * q - STRENGTH * p)
            items[i] += RATE * (error * p - STRENGTH * q)
    return users, items, squared, learnt


@pytest.mark.one_case
@pytest.mark.parametrize("rank", RANKS)
def test_an_epoch_is_the_loop_at_every_rank(rank):
    users, items, seen = one_epoch(
        starts(rank), ordered.schedule(RATINGS, ORDER, size=1, kind="split")
    )
    expected = by_hand(starts(rank), ORDER)
    np.testing.assert_allclose(users, expected[0], atol=1e-5)
    np.testing.assert_allclose(items, expected[1], atol=1e-5)
    assert float(seen.squared) == pytest.approx(expected[2], rel=1e-5)
    assert int(seen.learnt) == len(RATINGS)


@pytest.mark.parametrize("rank", RANKS)
def test_rows_that_nobody_rated_keep_every_bit(rank):
    """They lie beside rows that are read and written, as does the row behind a table, which is no
    rating's.
    """
    users, items, _seen = one_epoch(
        starts(rank), ordered.schedule(RATINGS, ORDER, size=1, kind="split")
    )
    for after, before, rated in (
        (users, starts(rank)[0], RATINGS.user),
        (items, starts(rank)[1], RATINGS.item),
    ):
        idle = np.setdiff1d(np.arange(len(before)), rated)
        assert len(idle) >= 1
        np.testing.assert_array_equal(np.asarray(after)[idle], before[idle])


def test_a_row_that_is_not_a_number_stays_alone():
    """A user's NaN reaches the items that the user rated and their raters, and no row for lying
    next to it.
    """
    users, items = (part.copy() for part in starts(3))
    users[4] = np.nan
    few = ORDER[:3]
    few = few[RATINGS.user[few] != 4]
    others = RATINGS.take(few)
    data = layout.make(others, kind="split", num_devices=1)
    schedule = ordered.schedule(others, np.arange(len(others)), size=1, kind="split")
    after, items, _seen = one_epoch((users, items), schedule, data)
    assert np.isnan(np.asarray(after)[4]).all()
    assert np.isfinite(np.delete(np.asarray(after), 4, axis=0)).all()
    assert np.isfinite(items).all()


@pytest.mark.parametrize("rank", [3, 60])
def test_a_threshold_skips_and_counts(rank):
    rule = RULE._replace(threshold=1.5)
    users, items, seen = one_epoch(
        starts(rank), ordered.schedule(RATINGS, ORDER, size=1, kind="split"), rule=rule
    )
    expected = by_hand(starts(rank), ORDER, 1.5)
    np.testing.assert_allclose(users, expected[0], atol=1e-5)
    np.testing.assert_allclose(items, expected[1], atol=1e-5)
    assert 0 < int(seen.learnt) == expected[3] < len(RATINGS)
