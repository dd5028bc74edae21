"""Which neighbours are tried: what they say, the extremes, both directions, in batches or not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from audits import neighbours
from audits.mechanism import sensitivity
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.noise import laws as noise
from tests.cases.audits import RATINGS, SPARSE, joint

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def data():
    return layout.make(RATINGS, kind="dense")


@pytest.mark.parametrize("unit", ["rating value", "rating presence", "user"])
@pytest.mark.parametrize("kind", ["dense", "split"])
def test_neighbours_are_what_they_say(unit, kind, key):
    """Against the same change made on the host, in the columns."""
    data = layout.make(RATINGS, kind=kind)
    tried = neighbours.choose(key, RATINGS, data, unit=unit, num=8)
    assert tried.num == 8 == len(set(tried.index.tolist()))
    assert len(set(tried.why)) > 2 - (unit == "user")
    for position, at in enumerate(tried.index):
        neighbour = jax.tree.map(lambda leaf, p=position: leaf[p], tried.stacked)
        found = neighbours.apply(unit, data, neighbour)
        keep, value = np.ones(RATINGS.num_ratings, bool), RATINGS.value.copy()
        if unit == "rating value":
            value[at] = 1 if value[at] > 3 else 5
        elif unit == "rating presence":
            keep[at] = False
        else:
            keep = RATINGS.user != RATINGS.user[at]
        expected = dataclasses.replace(
            RATINGS, user=RATINGS.user[keep], item=RATINGS.item[keep], value=value[keep]
        )
        stored, present = layout.stored_values(found)
        assert sorted(np.asarray(stored)[np.asarray(present)]) == sorted(expected.value)
        np.testing.assert_allclose(
            item_totals(found), item_totals(layout.make(expected, kind=kind)), rtol=1e-6
        )


def item_totals(data):
    return layout.sum_by_item(data, lambda row, columns, values, present: values @ present, (), ())


def test_few_ratings_are_tried_exhaustively_and_many_by_extremes(key, data):
    everything = neighbours.choose(key, RATINGS, data, unit="rating value", num=56)
    assert sorted(everything.index) == list(range(56))
    some = neighbours.choose(key, RATINGS, data, unit="rating value", num=24)
    per_user, per_item = np.bincount(RATINGS.user), np.bincount(RATINGS.item)
    for why, weight, extreme in (
        ("heaviest user", per_user[RATINGS.user], np.max),
        ("lightest user", per_user[RATINGS.user], np.min),
        ("heaviest item", per_item[RATINGS.item], np.max),
        ("lightest item", per_item[RATINGS.item], np.min),
    ):
        chosen = [
            index for index, reason in zip(some.index, some.why, strict=True) if reason == why
        ]
        assert weight[chosen[0]] == extreme(weight)
    middling = [
        index
        for index, reason in zip(some.index, some.why, strict=True)
        if reason == "item of middling size"
    ]
    assert len(set(RATINGS.item[middling].tolist())) == len(middling)
    assert some.why.count("random") >= 24 * 5 // 12
    of_users = [
        index
        for index, reason in zip(some.index, some.why, strict=True)
        if reason == "user of middling size"
    ]
    assert of_users
    assert len(set(RATINGS.user[of_users].tolist())) == len(of_users)


@pytest.mark.slow
def test_batches_do_not_change_the_distances(data, key):
    tried = neighbours.choose(key, RATINGS, data, unit="rating value", num=6)
    whole, parts = (
        sensitivity.distances(
            joint(), key, data, tried.stacked, unit="rating value", num_steps=3, batch=batch
        )
        for batch in (6, 2)
    )
    np.testing.assert_allclose(whole.largest, parts.largest, rtol=1e-5)
    assert sensitivity.batch_size(data, 100) == 100


FLAG = 1e6


def _flags_a_silent_user(update, state, response, data):
    """Post-processing, so allowed: a user whose row of the response is 0 has rated nothing."""
    after = update(state, response, data)
    silent = jnp.any(jnp.all(response[0] == 0, axis=1))
    flagged = after.public._replace(user_factors=jnp.where(silent, FLAG, after.public.user_factors))
    return after._replace(public=flagged)


def _louder_once_flagged(query, state, data, coins):
    statistics, info = query(state, data, coins)
    louder = jnp.where(state.public.user_factors[0, 0] == FLAG, jnp.uint32(10), jnp.uint32(1))
    return jax.tree.map(lambda leaf: louder * leaf, statistics), info


@pytest.mark.seconds
def test_what_only_the_smaller_world_shows_is_seen(key):
    """Every user has one rating; only a run in which somebody has none becomes ten times as
    sensitive.
    """
    each = np.arange(8)
    ratings = Ratings.from_columns(
        each, each % 4, 1.0 + each % 5, rating_range=(1.0, 5.0), name="one each"
    )
    data = layout.make(ratings, kind="dense")
    # no rating is what is predicted of it, so a user with a rating has a sum that is not 0
    mechanism = joint(relation="rating presence", residual_clip=1.0, center=2.7)
    silent = mechanism._replace(
        query=Partial(_louder_once_flagged, mechanism.query),
        noise=noise.none(),
        update=Partial(_flags_a_silent_user, mechanism.update),
    )
    largest, _ = sensitivity.audit(silent, ratings, data, key=key, num_steps=3)
    assert largest.verdict == "violated"
    assert largest.details["replay"]["pair"]["change"] == "rating added"
    of_extremes = 2 * 8  # as many as at first, removed and added
    assert largest.details["pairs"] == 8 + sensitivity.CLIMBED + of_extremes
    # no response comes before the first step: who follows whose makes no difference there
    largest, _ = sensitivity.audit(silent, ratings, data, key=key, num_steps=1)
    assert largest.details["pairs"] == 8 + of_extremes / 2


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("unit", "word"), [("rating presence", "rating"), ("user", "all ratings of the user")]
)
def test_an_addition_is_the_removal_seen_from_the_other_world(data, key, unit, word):
    tried = neighbours.choose(key, RATINGS, data, unit=unit, num=4)
    how = {"unit": unit, "num_steps": 3, "batch": 1}
    added = sensitivity.distances(joint(), key, data, tried.stacked, added=True, **how)
    for place in range(4):
        world = neighbours.apply(
            unit, data, jax.tree.map(lambda leaf, p=place: leaf[p], tried.stacked)
        )
        init_key, train_key = jax.random.split(key)
        starts = tuple(joint().init(init_key, one, None) for one in (world, data))
        _, distance, _ = protocol.train_coupled(joint(), train_key, starts, (world, data), 3)
        assert added.largest[place] == pytest.approx(float(distance.max()), rel=1e-5)
    both = neighbours.again(tried, np.array([2, 0]), neighbours.ADDED)
    assert neighbours.describe(RATINGS, both, 1)["change"] == f"{word} added"
    assert both.index.tolist() == tried.index[[2, 0]].tolist()


# --- all of one user, and all of the others


@pytest.mark.parametrize("kind", ["dense", "split"])
@pytest.mark.parametrize("user", [0, SPARSE.num_users - 1])
def test_anything_of_one_user_changes_and_nothing_else(user, kind):
    data = layout.make(SPARSE, kind=kind, num_devices=1)
    random = np.random.default_rng(1)
    own = SPARSE.user == user
    address = layout.locate(data, SPARSE.user, SPARSE.item)
    changes = neighbours.any_change(random, SPARSE, data, address, user)
    assert len(changes) == (5 if own.any() else 1)
    before = matrix(data)
    for change, other in changes.items():
        after = matrix(other)
        np.testing.assert_array_equal(np.delete(after, user, 0), np.delete(before, user, 0))
        assert other.num_ratings == data.num_ratings
        rated = np.flatnonzero(after[user])
        assert ((after[user][rated] >= 1) & (after[user][rated] <= 5)).all()
        if "removed" in change:
            assert not len(rated)
        elif "other items" in change:
            assert len(rated)
            assert not set(rated) & set(SPARSE.item[own])
        else:
            assert set(rated) == set(SPARSE.item[own])
            assert not np.array_equal(after[user], before[user])
    for change, other in neighbours.change_of_others(SPARSE, data, address, user).items():
        after = matrix(other)
        np.testing.assert_array_equal(after[user], before[user])
        rest = np.delete(before, user, 0) != 0
        assert (np.delete(after, user, 0) != np.delete(before, user, 0))[rest].all()
        assert ("removed" in change) == (not np.delete(after, user, 0).any())


def matrix(data) -> np.ndarray:
    """Values at [users, items], 0 where there is none."""
    eye = jnp.eye(SPARSE.num_items)
    return np.asarray(
        layout.sum_by_user(
            data,
            lambda row, columns, values, present: values @ columns,
            jnp.zeros(SPARSE.num_users),
            eye,
        )
    )


def test_users_on_trial_are_heavy_light_and_without_ratings():
    count = np.bincount(SPARSE.user, minlength=SPARSE.num_users)
    users = neighbours.some_users(np.random.default_rng(0), SPARSE, 4)
    assert len(set(users)) == 4
    assert [count[user] for user in users[:3]] == [count.max(), count[count > 0].min(), 0]
    assert len(neighbours.some_users(np.random.default_rng(0), SPARSE, 99)) == SPARSE.num_users


@pytest.mark.parametrize("unit", ["rating value", "rating presence", "user"])
@pytest.mark.parametrize("kind", ["dense", "split"])
def test_data_sets_far_away_differ_by_many_changes(unit, kind, key):
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    low, high = RATINGS.rating_range
    own, present = map(np.asarray, layout.stored_values(data))
    found = dict(neighbours.far(key, RATINGS, data, unit))
    shapes = jax.tree.map(jnp.shape, data)
    for other in found.values():
        assert jax.tree.map(jnp.shape, other) == shapes
    values = [np.asarray(layout.stored_values(other)[0])[present] for other in found.values()]
    assert set(values[0]) == {high}
    assert set(values[1]) == {low}
    np.testing.assert_array_equal(np.sort(values[2]), np.sort(own[present]))
    assert np.any(values[2] != own[present])
    np.testing.assert_allclose(values[3], low + high - own[present])
    left = [int(np.sum(layout.stored_values(other)[1])) for other in found.values()]
    assert left[:4] == [RATINGS.num_ratings] * 4
    assert len(left) == 4 + (unit != "rating value")
    if unit == "rating presence":
        assert left[4] == RATINGS.num_ratings - RATINGS.num_ratings // 2
    if unit == "user":
        gone = np.unique(RATINGS.user).size // 2
        assert f"{gone} users removed" in list(found)[4]
        assert 0 < left[4] < RATINGS.num_ratings


def test_users_without_ratings_are_no_change_of_a_data_set_far_away(key):
    """The last users have none here: nobody is looked for behind those who have."""
    data = layout.make(SPARSE, kind="dense", num_devices=1)
    *_, (words, other) = neighbours.far(key, SPARSE, data, "user")
    gone = np.unique(SPARSE.user).size // 2
    present = np.asarray(layout.stored_values(other)[1])
    assert words == f"all ratings of {gone} users removed"
    assert np.sum(present.any(axis=1)) == np.unique(SPARSE.user).size - gone


@pytest.mark.parametrize(
    ("low", "high", "most", "some"),
    [
        (1, 5, 64, (3.5, 2.25, 4.9)),
        (1, 5, 16, (3.5,)),
        (0.5, 5, 64, (0.5, 1.25)),
        (0, 1000, 16, ()),
    ],
)
def test_values_between_are_those_that_a_program_may_treat_apart(low, high, most, some):
    values = neighbours.values_between(low, high, most)
    assert len(values) <= most
    assert (values[0], values[-1]) == (low, high)
    assert np.all(np.diff(values) > 0)
    assert np.isclose(values[:, None], some).any(axis=0).all()


@pytest.mark.parametrize("unit", ["rating value", "rating presence", "user"])
def test_extremes_have_every_item_and_all_sorts_of_values_in_the_same_shapes(unit, data):
    changed, made, new = neighbours.extreme(RATINGS, data)
    count, low, high = np.bincount(changed.user), *RATINGS.rating_range
    assert np.sum(count == RATINGS.num_items) >= 2
    assert np.max(np.bincount(changed.item)) == RATINGS.num_users
    pairs = {*zip(changed.user.tolist(), changed.item.tolist(), strict=True)}
    assert len(pairs) == changed.num_ratings
    assert (changed.value.min(), changed.value.max()) == (low, high)
    assert np.any(changed.value % 0.5)
    assert jax.tree.structure(made) == jax.tree.structure(data)
    present = np.asarray(layout.stored_values(made)[1])
    assert int(present.sum()) == changed.num_ratings
    one = jax.tree.map(lambda leaf: leaf[0], neighbours.changes(changed, made, new[:1]))
    other = np.asarray(layout.stored_values(neighbours.apply(unit, made, one))[1])
    gone = {"rating value": 0, "rating presence": 1, "user": RATINGS.num_items}[unit]
    assert present.sum() - other.sum() == gone


def test_there_are_no_extremes_where_shapes_would_change():
    data = layout.make(SPARSE, kind="split", num_devices=1)
    made = neighbours.extreme(SPARSE, data)
    assert made is None or jax.tree.map(jnp.shape, made[1]) == jax.tree.map(jnp.shape, data)
