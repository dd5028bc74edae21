"""Gradients in whole numbers: against Python's integers, in any order, and no further than they may
move.
"""

import dataclasses
import math
from fractions import Fraction
from functools import partial

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.kernels import whole_descent
from dpmf_jax.noise import ring
from tests.cases.ratings import share

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, RANK, RANGE = 40, 70, 5, (0.5, 5.0)


RATINGS = share(0.7, (USERS, ITEMS), rating_range=RANGE)
HALVES = RATINGS.value - (RATINGS.user % 2).astype(np.float32) / 2
RATINGS = dataclasses.replace(RATINGS, value=HALVES)
GRADIENTS = jax.jit(partial(whole_descent.gradients, of="both"))


def grid(shift: int = 7, **settings) -> whole_descent.Grid:
    numbers = {"middle": 2.75, "half": 72, "step": 1 / 32, "bound": 200, "clip_norm": 0.8}
    floats = {name: jnp.float32(value) for name, value in (numbers | settings).items()}
    return whole_descent.Grid(**floats, shift=jnp.int32(shift))


def factors(seed: int = 1, size: float = 1.0) -> tuple[jax.Array, jax.Array]:
    random = np.random.default_rng(seed)
    return tuple(
        jnp.asarray(size * random.normal(size=(rows, RANK)) / RANK**0.5, jnp.float32)
        for rows in (USERS, ITEMS)
    )


def sums_of(ratings, users, items, center, on, kind="split") -> list[np.ndarray]:
    data = layout.make(ratings, kind=kind, num_devices=1)
    both, _ = GRADIENTS(users, items, center, on, data)
    return [np.asarray(ring.signed(leaf)) for leaf in both]


def half_up(number: Fraction) -> int:
    return math.floor(number + Fraction(1, 2))


def expected(ratings, users, items, center, on) -> list[np.ndarray]:
    """In Python's integers, from the rows that `on_grid` makes."""
    rows = [whole_descent.on_grid(side, on.clip_norm) for side in (users, items)]
    units = [[[int(x) for x in row] for row in np.asarray(side.units)] for side in rows]
    to_fine = np.asarray(whole_descent._to_fine(on, rows[0].stretch))
    stretch = np.asarray(rows[1].stretch)
    fine = np.broadcast_to(np.asarray(whole_descent._fine_center(on, center)), (ITEMS,))
    sums = [np.zeros((size, RANK), dtype=object) for size in (USERS, ITEMS)]
    half, bound, shift = int(on.half), int(on.bound), int(on.shift)
    for u, i, value in zip(ratings.user, ratings.item, ratings.value, strict=True):
        product = np.float32(sum(a * b for a, b in zip(units[0][u], units[1][i], strict=True)))
        predicted = int(np.rint(product * (to_fine[u] * stretch[i]))) + int(fine[i])
        steps = int(np.clip(np.rint((value - on.middle) / on.step), -half, half))
        error = steps - half_up(Fraction(predicted, 2**whole_descent.FINE_BITS))
        error = max(-bound, min(bound, error))
        for k in range(RANK):
            sums[0][u, k] -= error * units[1][i][k]
            sums[1][i, k] -= error * units[0][u][k]
    return [
        np.array([[half_up(Fraction(x, 2**shift)) for x in row] for row in side], np.int64)
        for side in sums
    ]


@pytest.mark.parametrize("kind", ["split", "dense"])
@pytest.mark.parametrize("shift", [0, 7, 12, 13, 16])
@pytest.mark.parametrize("center", [2.5, "per item"])
def test_gradients_are_those_of_whole_numbers(kind, shift, center):
    users, items = factors(size=1.3)  # some rows are shrunk, and some are not
    center = jnp.linspace(1.0, 5.0, ITEMS) if center == "per item" else jnp.float32(center)
    on = grid(shift=shift)
    for mine, right in zip(
        sums_of(RATINGS, users, items, center, on, kind),
        expected(RATINGS, users, items, center, on),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, right)


def test_they_are_the_gradients_of_floats_up_to_the_grid():
    from dpmf_jax.kernels import descent

    users, items, on, center = *factors(), grid(), jnp.float32(2.5)
    data = layout.make(RATINGS, num_devices=1)
    floats = (
        descent.user_gradient(users, items, center, on.clip_norm, jnp.float32(6.25), data)[0],
        descent.item_gradient(users, items, center, on.clip_norm, jnp.float32(6.25), data),
    )
    unit = float(whole_descent.unit(on))
    for mine, right in zip(sums_of(RATINGS, users, items, center, on), floats, strict=True):
        assert np.max(np.abs(unit * mine - right)) < 0.02 * np.max(np.abs(right))


@given(
    hnp.arrays(np.float32, (4, RANK), elements=st.floats(width=32, allow_subnormal=False)),
    st.floats(2**-10, 2**10, width=32),
)
def test_no_row_is_longer_than_the_clip_whatever_it_was(rows, clip_norm):
    on = whole_descent.on_grid(jnp.asarray(rows), jnp.float32(clip_norm))
    units = [[int(x) for x in row] for row in np.asarray(on.units)]
    assert all(sum(x * x for x in row) <= 2048**2 for row in units)
    assert np.all(np.asarray(on.stretch) >= 1)


def test_a_shrunk_row_is_made_up_for():
    rows = factors(size=7.0)[0]
    on = whole_descent.on_grid(rows, jnp.float32(0.8))
    assert np.all(np.asarray(on.stretch) > 1)
    again = np.asarray(on.units) * np.asarray(on.stretch)[:, None] * 0.8 / 2048
    np.testing.assert_allclose(again, rows, atol=0.005)


@pytest.mark.seconds
@pytest.mark.parametrize("unit", ["value", "presence"])
def test_one_rating_moves_one_row_of_either_side_by_no_more_than_is_priced(unit):
    """All ratings of a user and an item, to either end of the range or away."""
    users, items, center, on = *factors(size=1.3), jnp.float32(2.5), grid(bound=30)
    here = sums_of(RATINGS, users, items, center, on)
    most, change = 0.0, 60 if unit == "value" else 30
    bound = 2048 * change / 2**7 + RANK**0.5
    for place in np.flatnonzero((RATINGS.user == 3) | (RATINGS.item == 5)):
        for end in RANGE:
            if unit == "value":
                value = RATINGS.value.copy()
                value[place] = end
                other = dataclasses.replace(RATINGS, value=value)
            else:
                other = RATINGS.take(np.arange(len(RATINGS)) != place)
            there = sums_of(other, users, items, center, on)
            for side, row in ((0, RATINGS.user[place]), (1, RATINGS.item[place])):
                moved = (here[side] - there[side]).astype(float)
                assert not np.delete(moved, row, axis=0).any()
                most = max(most, float(np.linalg.norm(moved)))
    assert 0.5 * bound < most <= bound


@pytest.mark.seconds
def test_a_row_of_very_many_ratings_does_not_wrap_around():
    """2^17 ratings of one item, each as far off as the clip lets it be."""
    many = 2**17
    columns = (np.arange(many, dtype=np.int32), np.zeros(many, np.int32))
    value = np.full(many, 5.0, np.float32)
    ratings = Ratings(*columns, value, np.arange(many), np.arange(2), RANGE)
    users = jnp.tile(jnp.float32([0.8, 0, 0, 0, 0]), (many, 1))
    on = grid(bound=256, half=256, step=2.0**-10)
    data = layout.make(ratings, num_devices=1)
    (_, items), _ = whole_descent.gradients(
        users, jnp.zeros((2, RANK), jnp.float32), jnp.float32(2.75), on, data, of="both"
    )
    assert int(ring.signed(items)[0, 0]) == -many * 256 * 2048 // 2**7


def test_factors_that_are_not_finite_move_nothing_further():
    users, items = factors()
    users = users.at[2].set(jnp.nan).at[4, 1].set(jnp.inf)
    here = sums_of(RATINGS, users, items, jnp.float32(2.5), grid())
    assert all(np.isfinite(side).all() for side in here)
    data = layout.make(RATINGS, num_devices=1)
    both, _ = GRADIENTS(users, items, jnp.float32(2.5), grid(), data)
    at = int(np.flatnonzero(RATINGS.user == 2)[0])
    other = layout.replace_value(data, layout.locate(data, RATINGS.user[at], RATINGS.item[at]), 0.5)
    there, _ = GRADIENTS(users, items, jnp.float32(2.5), grid(), other)
    bound = math.sqrt(2) * (2048 * 144 / 2**7 + RANK**0.5)
    assert float(protocol.l2_distance(both, both, there)) <= bound
