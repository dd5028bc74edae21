"""Folds over a row's ratings and sums of outer products: equal to a Python loop, on every layout
and on two devices.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from dpmf_jax import layout
from tests.cases.fold import LONG, descend, features, trees
from tests.cases.processes import python


@jax.jit
def by_item(data, carry_tree, row_tree, column_tree):
    return layout.fold_by_item(data, descend, carry_tree, row_tree, column_tree)


def loop(rows, columns, values, carry_tree, row_tree, column_tree):
    factors, count = (np.array(leaf, np.float64) for leaf in carry_tree)
    for at in np.lexsort((columns, rows)):
        row, column = rows[at], columns[at]
        error = (
            values[at]
            - row_tree[row]
            - column_tree[0][column]
            - factors[row] @ column_tree[1][column]
        )
        factors[row] += 0.1 * error * column_tree[1][column]
        count[row] += 1
    return factors, count


@pytest.mark.parametrize("kind", ["split", "dense"])
@pytest.mark.parametrize("by", ["user", "item"])
def test_a_fold_is_the_loop(kind, by):
    data = layout.make(LONG, kind=kind, num_devices=1)
    sizes, sides = (LONG.num_users, LONG.num_items), (LONG.user, LONG.item)
    if by == "item":
        sizes, sides = sizes[::-1], sides[::-1]
    arguments = trees(*sizes)
    fold = layout.fold_by_user if by == "user" else layout.fold_by_item
    made = jax.jit(lambda data, arguments: fold(data, descend, *arguments))(data, arguments)
    expected = loop(*sides, LONG.value, *arguments)
    np.testing.assert_allclose(made[0], expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(made[1], expected[1])  # each rating once, and nothing else
    assert np.max(expected[1]) > 130
    untouched = expected[1] == 0
    assert untouched.any()
    np.testing.assert_array_equal(made[0][untouched], arguments[0][0][untouched])


@pytest.mark.parametrize("kind", ["split", "dense"])
def test_the_order_of_the_ratings_and_holes_change_nothing(kind):
    """Rows are folded by column index; a removed rating is as if it had never been there, wherever
    its slot was.
    """
    order = np.random.default_rng(5).permutation(LONG.num_ratings)
    arguments = trees(LONG.num_items, LONG.num_users)
    data = layout.make(LONG, kind=kind, num_devices=1)
    made = by_item(data, *arguments)
    again = by_item(layout.make(LONG.take(order), kind=kind, num_devices=1), *arguments)
    jax.tree.map(np.testing.assert_array_equal, made, again)
    gone = np.flatnonzero((LONG.user % 3 == 0) & (LONG.item % 2 == 0))
    removed = layout.remove_rating(data, layout.locate(data, LONG.user[gone], LONG.item[gone]))
    rest = LONG.take(np.setdiff1d(np.arange(LONG.num_ratings), gone))
    expected = loop(rest.item, rest.user, rest.value, *arguments)
    holes = by_item(removed, *arguments)
    np.testing.assert_allclose(holes[0], expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(holes[1], expected[1])


def test_unrated_rows_change_nothing():
    """Rows that were added at the end, unrated, leave the others as they were, to the bit."""
    more = dataclasses.replace(LONG, items=np.arange(LONG.num_items + 40))
    (factors, count), centers, columns = trees(LONG.num_items + 40, LONG.num_users)
    wide = by_item(
        layout.make(more, kind="split", num_devices=1), (factors, count), centers, columns
    )
    n = LONG.num_items
    data = layout.make(LONG, kind="split", num_devices=1)
    made = by_item(data, (factors[:n], count[:n]), centers[:n], columns)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:n], b), wide, made)


@pytest.mark.seconds
def test_a_fold_runs_over_stacked_data_and_compiles_once():
    arguments = trees(LONG.num_items, LONG.num_users)
    data = layout.make(LONG, kind="split", num_devices=1)
    other = layout.replace_value(data, layout.locate(data, LONG.user[0], LONG.item[0]), 9.0)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), data, other)
    folded = jax.jit(jax.vmap(lambda data: by_item(data, *arguments)))(stacked)
    for place, world in enumerate((data, other)):
        alone = by_item(world, *arguments)
        jax.tree.map(
            lambda a, b, at=place: np.testing.assert_allclose(a[at], b, rtol=1e-5), folded, alone
        )


@pytest.mark.one_case
@pytest.mark.parametrize("kind", ["split", "dense"])
@pytest.mark.parametrize("rank", [2, 15, 20, 33])
def test_outer_products_are_those_of_a_loop(kind, rank):
    data = layout.make(LONG, kind=kind, num_devices=1)
    _, centers, (_, users) = trees(LONG.num_items, LONG.num_users, rank=rank)
    made = layout.outer_by_item(data, Partial(features, jnp.float32(3.0)), centers, users)
    expected = np.zeros((LONG.num_items, rank + 1, rank + 1))
    for user, item, value in zip(LONG.user, LONG.item, LONG.value, strict=True):
        z = np.append(users[user], value - centers[item] - 3.0)
        expected[item] += np.outer(z, z)
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.seconds
def test_two_devices_give_what_one_gives():
    python(
        """
        import jax, numpy as np
        from jax.tree_util import Partial
        from dpmf_jax import layout
        from tests.cases import fold as cases

        for kind in ("split", "dense"):
            data = [layout.make(cases.LONG, kind=kind, num_devices=n) for n in (1, 2)]
            folds = ((layout.fold_by_user, (160, 150)), (layout.fold_by_item, (150, 160)))
            for fold, sizes in folds:
                arguments = cases.trees(*sizes)
                run = jax.jit(lambda d: fold(d, cases.descend, *arguments))
                one, two = map(run, data)
                np.testing.assert_allclose(one[0], two[0], rtol=1e-5, atol=1e-5)
                np.testing.assert_array_equal(one[1], two[1])
            _, centers, (_, users) = cases.trees(150, 160, rank=20)
            features = Partial(cases.features, np.float32(3))
            run = jax.jit(lambda d: layout.outer_by_item(d, features, centers, users))
            one, two = map(run, data)
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)
        """,
        devices=2,
    )
