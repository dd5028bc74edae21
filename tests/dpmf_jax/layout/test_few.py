"""What is made of a few users' sums at a time is what is made of all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import layout
from dpmf_jax.data import synthetic
from dpmf_jax.layout import few, split

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS = 150, 40
RATINGS = synthetic.generate(num_users=USERS, num_items=ITEMS, num_ratings=3_000)


def summed(row, columns, values, present):
    """Whole numbers, so that sums are the same in any order."""
    (number,) = row
    return jnp.sum(present * values * columns), number * jnp.sum(present)


def of_sums(sums):
    """Another number of columns, and another order of magnitude."""
    first, second = sums
    return jnp.stack([first, second, first * second], axis=1)


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["split", "dense", "stream"])
@pytest.mark.parametrize("rows", [1, 16, 64, 1_000])
def test_it_is_as_of_all_at_once(kind, rows, monkeypatch):
    """Also where users' pieces begin and end within blocks, and for the last, shorter one."""
    monkeypatch.setattr(split, "BLOCK_BYTES", 1)
    monkeypatch.setattr(few, "LEAST_ROWS", rows)
    monkeypatch.setattr(few, "MOST_ROWS", rows)
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    trees = (jnp.arange(USERS, dtype=jnp.float32),), jnp.arange(ITEMS, dtype=jnp.float32)
    sums = layout.sum_by_user(data, summed, *trees)
    found = jax.jit(lambda: layout.sum_by_user(data, summed, *trees, then=of_sums))()
    np.testing.assert_array_equal(found, of_sums(sums))
    expected = np.bincount(RATINGS.user, RATINGS.value * RATINGS.item, USERS)
    np.testing.assert_array_equal(found[:, 0], expected)


def test_a_few_are_as_many_as_stay_in_cache():
    def rows_of(numbers):
        return few.number(jnp.zeros((1, numbers)))

    assert rows_of(65 * 66) == few.LEAST_ROWS
    assert rows_of(17 * 18) == rows_of(0) == few.MOST_ROWS
    assert rows_of(1 << 11) == 64
