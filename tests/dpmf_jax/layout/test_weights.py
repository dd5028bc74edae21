"""Weights of ratings: sums that ask for them have them, in every layout, and no others."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import layout
from dpmf_jax.layout import stream
from tests.cases import layout as cases

pytestmark = pytest.mark.usefixtures("quick_compilation")


def weighted():
    ratings = cases.make_ratings(cases.ragged())
    weight = np.random.default_rng(2).random(ratings.num_ratings).astype(np.float32)
    weight[:3] = 0, 1, 0.4
    return dataclasses.replace(ratings, weight=weight)


def row(row, columns, values, present):
    del row
    return jnp.sum(present), jnp.sum(present * values * columns)


def sums(data, users, items, *, asked=True):
    by_user = layout.sum_by_user(data, row, (), items, weighted=asked)
    return by_user, layout.sum_by_item(data, row, (), users, weighted=asked)


def expected(ratings, users, items, weight):
    of_rows = []
    for number, at, columns, across in (
        (ratings.num_users, ratings.user, items, ratings.item),
        (ratings.num_items, ratings.item, users, ratings.user),
    ):
        products = weight * ratings.value * columns[across]
        of_rows.append(tuple(np.bincount(at, part, number) for part in (weight, products)))
    return of_rows


@pytest.mark.parametrize("kind", ["split", "dense", "stream"])
def test_sums_that_ask_have_weights_rounded_to_eighths_and_others_have_none(kind, monkeypatch):
    monkeypatch.setattr(stream, "BLOCK_BYTES", 1 << 10)
    ratings = weighted()
    users, items = (np.arange(number, dtype=np.float32) for number in (70, 40))
    data = layout.make(ratings, kind=kind, num_devices=1)
    assert data.weighted
    rounded = np.round(8 * ratings.weight) / 8
    assert rounded[2] == 0.375  # halfway is 0.4375
    for asked, weight in ((True, rounded), (False, np.ones_like(rounded))):
        found = jax.jit(sums, static_argnames="asked")(data, users, items, asked=asked)
        for ours, theirs in zip(found, expected(ratings, users, items, weight), strict=True):
            np.testing.assert_allclose(ours[0], theirs[0])
            np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)
    unweighted = layout.make(dataclasses.replace(ratings, weight=None), kind=kind, num_devices=1)
    assert not unweighted.weighted
    assert data.nbytes > unweighted.nbytes


@pytest.mark.parametrize("kind", cases.KINDS)
def test_a_rating_that_is_removed_takes_its_weight_along(kind):
    ratings = weighted()
    users, items = (np.arange(number, dtype=np.float32) for number in (70, 40))
    data = layout.make(ratings, kind=kind, num_devices=1)
    place = 1
    without = layout.remove_rating(
        data, layout.locate(data, ratings.user[place], ratings.item[place])
    )
    gone = layout.remove_user(data, ratings.user[place])
    for neighbour, left in (
        (without, np.arange(ratings.num_ratings) != place),
        (gone, ratings.user != ratings.user[place]),
    ):
        kept = layout.make(ratings.take(left), kind=kind, num_devices=1)
        for ours, theirs in zip(
            jax.tree.leaves(sums(neighbour, users, items)),
            jax.tree.leaves(sums(kept, users, items)),
            strict=True,
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_other_operations_leave_weights_alone():
    ratings = weighted()
    data = layout.make(ratings, kind="split", num_devices=1)
    shown = layout.map_ratings(data, lambda row, columns, values, present: present, (), ())
    assert set(np.unique(shown)) == {0, 1}
    assert float(jnp.sum(shown)) == ratings.num_ratings
