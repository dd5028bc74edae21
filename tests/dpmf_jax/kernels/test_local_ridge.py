"""A user's ridge: what it computes, and that nobody else's ratings change a bit of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.kernels import local_ridge
from tests.cases.ratings import share

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, RANK = 13, 40, 3
RATINGS = share(0.5, (USERS, ITEMS))
GRID = local_ridge.Grid(jnp.float32(3), jnp.float32(4 / 512), jnp.float32(384))
LEVEL, FACTORS, VARIANCE = 5.0, 0.8, 0.8


def items(rank=RANK):
    random = np.random.default_rng(0)
    center = 3 + 0.5 * random.normal(size=ITEMS)
    numbers = center, random.normal(size=(ITEMS, rank)), 0.1 * random.random((ITEMS, rank))
    return local_ridge.on_grid(*(jnp.asarray(part, jnp.float32) for part in numbers), GRID)


def priors(of):
    rank = of.units.shape[1]
    level = VARIANCE * LEVEL * local_ridge.LEVEL**2
    return jnp.concatenate([jnp.array([level]), jnp.full(rank, VARIANCE * FACTORS) / of.unit**2])


def answers(ratings, of, kind="split"):
    data = layout.make(ratings, kind=kind, num_devices=1)
    users, count = jax.jit(local_ridge.solve)(of, GRID, priors(of), data)
    return np.asarray(users.level), np.asarray(users.units), np.asarray(count)


def only(ratings, rated):
    return Ratings(
        *(column[rated] for column in (ratings.user, ratings.item, ratings.value)),
        ratings.users,
        ratings.items,
        ratings.rating_range,
    )


@pytest.mark.parametrize("kind", ["split", "dense"])
def test_the_answer_is_the_ridge(kind):
    of = items()
    level, units, count = answers(RATINGS, of, kind)
    unit = float(of.unit)
    factors, variance = np.asarray(of.units) * unit, np.asarray(of.variance) * unit**2
    for user in range(USERS):
        rated = RATINGS.user == user
        at = RATINGS.item[rated]
        design = np.column_stack([np.ones(len(at)), factors[at]])
        target = RATINGS.value[rated] - 3 - np.asarray(of.center)[at] * 4 / 512
        precision = np.diag([LEVEL, *(FACTORS + variance[at].sum(0) / VARIANCE)])
        expected = np.linalg.solve(
            design.T @ design / VARIANCE + precision, design.T @ target / VARIANCE
        )
        found = np.append(level[user], units[user] * 2.0**-11 / unit) * 4 / 512
        np.testing.assert_allclose(found, expected, atol=0.006)
        assert count[user] == len(at)


@pytest.mark.parametrize("kind", ["split", "dense"])
def test_nobody_else_changes_a_bit_of_it(kind):
    """Whoever is there, wherever a user stands, and in whatever order ratings come."""
    of = items()
    level, units, _ = answers(RATINGS, of, kind)
    order = np.random.default_rng(1).permutation(RATINGS.num_ratings)
    for user in range(USERS):
        mine = order[RATINGS.user[order] == user]
        for kept in (mine, order[RATINGS.user[order] <= user]):
            alone = answers(only(RATINGS, kept), of, kind)
            np.testing.assert_array_equal(alone[0][user], level[user])
            np.testing.assert_array_equal(alone[1][user], units[user])


@pytest.mark.parametrize("kind", ["split", "dense"])
def test_normal_equations_are_sums_of_whole_numbers(kind):
    """Of a user who rated everything: beyond 2^24, where float32 rounds."""
    random = np.random.default_rng(0)
    num = 700
    user = np.repeat(np.arange(2), num)
    ratings = Ratings(
        *(user.astype(np.int32), np.tile(np.arange(num), 2).astype(np.int32)),
        random.integers(1, 6, 2 * num).astype(np.float32),
        *(np.arange(2), np.arange(num), (1.0, 5.0)),
    )
    data = layout.make(ratings, kind=kind, num_devices=1)
    center = random.integers(-200, 200, num)
    units = random.integers(200, 290, (num, RANK))
    variance = random.integers(0, 2**18, (num, RANK))
    columns = tuple(jnp.asarray(part, jnp.float32) for part in (center, units, variance))
    rows = (local_ridge.each(GRID, 2),)
    found = layout.sum_by_user(data, local_ridge._normal_equations, rows, columns)
    design = np.column_stack([np.full(num, 256), units])
    for number in range(2):
        target = ((ratings.value[user == number] - 3) * 128).astype(int) - center
        expected = design.T @ design, design.T @ target, variance.sum(0), num
        for ours, theirs in zip(expected, found, strict=True):
            np.testing.assert_array_equal(ours, theirs[number])
    assert np.max(found[0]) > 2**25


def test_residuals_are_whole_and_their_squares_exact():
    of = items()
    data = layout.make(RATINGS, kind="split", num_devices=1)
    users, _ = local_ridge.solve(of, GRID, priors(of), data)
    upper, lower = local_ridge.residual_norms(users, of, GRID, data)
    level, units = np.asarray(users.level, int), np.asarray(users.units, int)
    item_units, center = np.asarray(of.units, int), np.asarray(of.center, int)
    for user in range(USERS):
        rated = RATINGS.user == user
        at = RATINGS.item[rated]
        steps = np.round((RATINGS.value[rated] - 3) * 128).astype(int)
        predicted = np.round(item_units[at] @ units[user] / 2048).astype(int)
        found = np.clip(steps - center[at] - level[user] - predicted, -384, 384)
        assert int(upper[user]) * 4096 + int(lower[user]) == int((found**2).sum())


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_public_numbers_of_any_kind_stay_within_the_grid(bad):
    center, factors = jnp.full(ITEMS, bad), jnp.full((ITEMS, RANK), bad).at[0].set(1.0)
    found = local_ridge.on_grid(center, factors, jnp.full((ITEMS, RANK), bad), GRID)
    for leaf in found[:3]:
        assert np.isfinite(leaf).all()
        assert (np.round(leaf) == leaf).all()
    assert np.linalg.norm(np.asarray(found.units, np.float64), axis=1).max() <= 512
    level, units, _ = answers(RATINGS, found)
    assert np.isfinite(level).all()
    assert np.linalg.norm(units.astype(np.float64), axis=1).max() <= 4096


@pytest.mark.parametrize("kind", ["split", "dense"])
def test_means_alone_have_no_factors(kind):
    level, units, _ = answers(RATINGS, items(0), kind)
    assert units.shape == (USERS, 0)
    assert np.ptp(level) > 0
