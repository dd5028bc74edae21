"""A user's ridge: what it computes, and that nobody else's ratings change a bit of it."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import nnls

from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.kernels import local_ridge
from tests.cases.ratings import share

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, RANK = 13, 40, 3
RATINGS = share(0.5, (USERS, ITEMS))
GRID = local_ridge.Grid(jnp.float32(3), jnp.float32(4 / 512), jnp.float32(384))
LEVEL, FACTORS, VARIANCE = 5.0, 0.8, 0.8


def items(rank=RANK, size=1.0):
    random = np.random.default_rng(0)
    center = 3 + 0.5 * random.normal(size=ITEMS)
    numbers = center, size * random.normal(size=(ITEMS, rank)), 0.1 * random.random((ITEMS, rank))
    return local_ridge.on_grid(*(jnp.asarray(part, jnp.float32) for part in numbers), GRID)


def priors(of):
    rank = of.units.shape[1]
    level = VARIANCE * LEVEL * local_ridge.LEVEL**2
    return jnp.concatenate([jnp.array([level]), jnp.full(rank, VARIANCE * FACTORS) / of.unit**2])


SOLVE = jax.jit(local_ridge.solve, static_argnames="non_negative")


def answers(ratings, of, kind="split", non_negative=0):
    data = layout.make(ratings, kind=kind, num_devices=1)
    users, count = SOLVE(of, GRID, priors(of), data, non_negative=non_negative)
    return np.asarray(users.level), np.asarray(users.units), np.asarray(count)


def only(ratings, rated):
    return Ratings(
        *(column[rated] for column in (ratings.user, ratings.item, ratings.value)),
        ratings.users,
        ratings.items,
        ratings.rating_range,
    )


def normal_equations(of, user):
    """(matrix, right side) of a user's ridge, in rating units, and how many ratings."""
    unit = float(of.unit)
    factors, variance = np.asarray(of.units) * unit, np.asarray(of.variance) * unit**2
    at = RATINGS.item[RATINGS.user == user]
    design = np.column_stack([np.ones(len(at)), factors[at]])
    target = RATINGS.value[RATINGS.user == user] - 3 - np.asarray(of.center)[at] * 4 / 512
    precision = np.diag([LEVEL, *(FACTORS + variance[at].sum(0) / VARIANCE)])
    return design.T @ design / VARIANCE + precision, design.T @ target / VARIANCE, len(at)


def in_rating_units(of, level, units):
    return np.append(level, units * 2.0**-11 / float(of.unit)) * 4 / 512


@pytest.mark.parametrize("kind", ["split", "dense"])
def test_the_answer_is_the_ridge(kind):
    of = items()
    level, units, count = answers(RATINGS, of, kind)
    for user in range(USERS):
        matrix, right, rated = normal_equations(of, user)
        found = in_rating_units(of, level[user], units[user])
        np.testing.assert_allclose(found, np.linalg.solve(matrix, right), atol=0.006)
        assert count[user] == rated


def non_negative_least_squares(matrix, right, columns):
    """scipy's minimiser of xᵀAx/2 - rᵀx with these columns of x at least 0, the others free."""
    free = [column for column in range(len(right)) if column not in columns]
    root = np.linalg.cholesky(matrix).T  # so that ‖root·x - target‖² is the problem
    target = np.linalg.solve(root.T, right)
    parts, _ = nnls(np.column_stack([root, -root[:, free]]), target)
    found = parts[: len(right)]
    found[free] -= parts[len(right) :]
    return found


@pytest.mark.parametrize(
    ("rank", "non_negative", "size"),
    [
        (3, 3, 1.0),
        (3, 1, 1.0),
        # more than are eliminated at once, and so small that no answer is cut to the largest length
        pytest.param(20, 18, 0.3, marks=pytest.mark.seconds),
        pytest.param(20, 2, 0.3, marks=pytest.mark.seconds),
    ],
)
def test_non_negative_factors_are_those_of_nnls(rank, non_negative, size):
    """The first ones; the level and the last have any sign.

    The tolerance is that of the ridge without a constraint: a level is rounded to steps of 1/128 of
    a rating, so it is off by 0.004, and a factor by much less. The descent is nearer than that (the
    next test), and the normal equations are the very ones that scipy gets.
    """
    of = items(rank, size)
    level, units, _ = answers(RATINGS, of, non_negative=non_negative)
    assert units[:, :non_negative].min() == 0
    assert units[:, :non_negative].max() > 0
    constrained, apart = range(1, 1 + non_negative), []
    for user in range(USERS):
        matrix, right, _ = normal_equations(of, user)
        expected = non_negative_least_squares(matrix, right, constrained)
        found = in_rating_units(of, level[user], units[user])
        np.testing.assert_allclose(found, expected, atol=0.006)
        clipped = np.linalg.solve(matrix, right)
        clipped[1 : 1 + non_negative] = np.maximum(clipped[1 : 1 + non_negative], 0)
        apart.append(np.abs(clipped - expected).max())
    assert max(apart) > 0.02  # so a ridge that is cut at 0 would be seen
    if non_negative < rank:
        assert units[:, non_negative:].min() < 0


def test_predictions_of_the_descent_are_within_a_fifth_of_a_step():
    """Of 300 ratings in quarters of the range, and of eight factors that are nearly one."""
    random = np.random.default_rng(0)
    systems, expected, designs = [], [], []
    for _ in range(30):
        design = 8 * random.random((300, 1)) + random.normal(size=(300, 8))
        design *= np.sqrt(0.2 / np.mean(np.sum(design**2, axis=1)))  # as long as als makes them
        matrix = design.T @ design + 0.64 * np.eye(8)
        own = 2 * np.maximum(random.normal(size=8), 0)
        right = design.T @ (design @ own + random.normal(size=300))
        systems.append(np.column_stack([matrix, right]))
        expected.append(non_negative_least_squares(matrix, right, range(8)))
        designs.append(design)
    assert 60 < max(np.linalg.cond(system[:, :8]) for system in systems) < 75
    found = local_ridge._non_negative(
        jnp.asarray(np.moveaxis(systems, 0, -1), jnp.float32), jnp.zeros(30, jnp.int32)
    )
    apart = np.einsum("nrd,nd->nr", designs, np.asarray(found).T - expected)
    assert np.sqrt(np.mean(apart**2, axis=1)).max() < 1 / 128 / 5
    assert (np.asarray(expected) == 0).any()


@pytest.mark.parametrize("non_negative", [0, 2])
@pytest.mark.parametrize("kind", ["split", "dense"])
def test_nobody_else_changes_a_bit_of_it(kind, non_negative):
    """Whoever is there, wherever a user stands, and in whatever order ratings come."""
    of = items()
    answer = partial(answers, kind=kind, non_negative=non_negative)
    level, units, _ = answer(RATINGS, of)
    order = np.random.default_rng(1).permutation(RATINGS.num_ratings)
    for user in range(USERS):
        mine = order[RATINGS.user[order] == user]
        for kept in (mine, order[RATINGS.user[order] <= user]):
            alone = answer(only(RATINGS, kept), of)
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


WEIGHTED = dataclasses.replace(
    RATINGS, weight=np.random.default_rng(3).integers(0, 9, RATINGS.num_ratings) / np.float32(8)
)


@pytest.mark.parametrize("kind", ["split", "dense"])
def test_weights_multiply_the_squares(kind):
    of = items()
    level, units, count = answers(WEIGHTED, of, kind)
    unit = float(of.unit)
    factors, variance = np.asarray(of.units) * unit, np.asarray(of.variance) * unit**2
    for user in range(USERS):
        rated = RATINGS.user == user
        at, weight = RATINGS.item[rated], WEIGHTED.weight[rated]
        design = np.column_stack([np.ones(len(at)), factors[at]])
        target = RATINGS.value[rated] - 3 - np.asarray(of.center)[at] * 4 / 512
        precision = np.diag([LEVEL, *(FACTORS + weight @ variance[at] / VARIANCE)])
        expected = np.linalg.solve(
            (design.T * weight) @ design / VARIANCE + precision,
            (design.T * weight) @ target / VARIANCE,
        )
        found = in_rating_units(of, level[user], units[user])
        np.testing.assert_allclose(found, expected, atol=0.006)
        assert count[user] == (weight > 0).sum()


def test_ratings_that_count_whole_give_the_bits_of_those_without_weights():
    of = items()
    whole = dataclasses.replace(RATINGS, weight=np.ones(RATINGS.num_ratings, np.float32))
    for ours, theirs in zip(answers(whole, of), answers(RATINGS, of), strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize(("ratings", "steps"), [(RATINGS, 1), (WEIGHTED, 8)])
def test_residuals_are_whole_and_their_squares_exact(ratings, steps):
    """Of weighted ratings they are eighths."""
    of = items()
    data = layout.make(ratings, kind="split", num_devices=1)
    users, _ = local_ridge.solve(of, GRID, priors(of), data)
    upper, lower = local_ridge.residual_norms(users, of, GRID, data)
    assert local_ridge.norm_unit(data) == 1 / steps
    level, units = np.asarray(users.level, int), np.asarray(users.units, int)
    item_units, center = np.asarray(of.units, int), np.asarray(of.center, int)
    for user in range(USERS):
        rated = RATINGS.user == user
        at = RATINGS.item[rated]
        values = np.round((RATINGS.value[rated] - 3) * 128).astype(int)
        predicted = np.round(item_units[at] @ units[user] / 2048).astype(int)
        found = np.clip(values - center[at] - level[user] - predicted, -384, 384)
        if ratings.weight is not None:
            found = found * (8 * ratings.weight[rated]).astype(int)
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
