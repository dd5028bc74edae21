"""Features of who rated what: what they are, and that nothing else changes a bit of them."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import layout
from dpmf_jax.kernels import local_ridge, presence
from tests.cases.processes import python
from tests.cases.ratings import ratings

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, GROUPS = 240, 80, 5
UNRATED = (7, 3)  # the last users and items have no ratings
RANK = GROUPS - 1


def by_groups(seed=0):
    """Users and items of groups, which prefer each other; items differ in popularity."""
    random = np.random.default_rng(seed)
    user, item = np.arange(USERS)[:, None], np.arange(ITEMS)
    popular = random.uniform(0.2, 1.0, ITEMS)
    # groups of the users are of different sizes, so that no two vectors are equally strong
    likes = (np.sqrt(user / USERS) * GROUPS).astype(int) == item % GROUPS
    odds = np.where(likes, 0.8, 0.15) * popular
    rated = random.random((USERS, ITEMS)) < odds
    rated[USERS - UNRATED[0] :] = False
    rated[:, ITEMS - UNRATED[1] :] = False
    user, item = np.nonzero(rated)
    return ratings(user, item, random.integers(1, 6, len(user)), (USERS, ITEMS))


RATINGS = by_groups()


def features_of(of, rank=RANK, kind="split", **options):
    data = layout.make(of, kind=kind, num_devices=1)
    return jax.device_get(jax.jit(partial(presence.features, rank=rank, **options))(data))


def expected(of, rank, smoothing):
    """(features, squared singular values) by NumPy."""
    rated = np.zeros((of.num_users, of.num_items))
    rated[of.user, of.item] = 1
    by_user, by_item = rated.sum(1), rated.sum(0)
    weight = np.where(by_item > 0, by_item + smoothing, 0)
    root = np.sqrt(weight)
    matrix = rated / np.sqrt(np.maximum(by_user, 1))[:, None] / np.maximum(root, 1)
    constant = root / np.linalg.norm(root)
    matrix -= np.outer(matrix @ constant, constant)
    _, singular, right = np.linalg.svd(matrix)
    made = right[:rank].T / np.maximum(root, 1)[:, None]
    share = by_item / by_item.sum()
    made = np.where(share[:, None] > 0, made - share @ made, 0)
    made /= np.sqrt(share @ made**2)
    return made * np.where(share @ made**3 < 0, -1, 1), singular[:rank] ** 2


@pytest.mark.seconds
@pytest.mark.parametrize("smoothing", [0.0, 20.0])
def test_features_are_singular_vectors_of_who_rated_what(smoothing):
    features = features_of(RATINGS, smoothing=smoothing, rounds=40)
    made, strength = expected(RATINGS, RANK, smoothing)
    assert np.linalg.norm(made, axis=1).max() < presence.LONGEST * RANK**0.5  # no row is shrunk
    np.testing.assert_allclose(features.units * features.unit, made, atol=0.02)
    np.testing.assert_allclose(features.strength, strength, rtol=1e-3)
    assert (strength[:-1] > 1.02 * strength[1:]).all()  # so that vectors are defined
    assert not features.units[ITEMS - UNRATED[1] :].any()


@pytest.mark.seconds
def test_values_of_ratings_do_not_move_a_bit():
    random = np.random.default_rng(1)
    others = ratings(
        RATINGS.user, RATINGS.item, random.uniform(1, 5, RATINGS.num_ratings), (USERS, ITEMS)
    )
    assert same(features_of(RATINGS), features_of(others))


@pytest.mark.seconds
def test_one_rating_moves_them():
    """Or that they do not move would say nothing."""
    fewer = ratings(RATINGS.user[1:], RATINGS.item[1:], RATINGS.value[1:], (USERS, ITEMS))
    assert not same(features_of(RATINGS), features_of(fewer))


def same(one, other):
    pairs = zip(one, other, strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


PROGRAM = """
    import json
    from functools import partial

    import jax
    import numpy as np

    from dpmf_jax import layout
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.kernels import presence
    from dpmf_jax.layout import stream

    stream.BLOCK_BYTES = 1 << 14
    USERS, ITEMS = 1_501, 300
    random = np.random.default_rng(0)
    pairs = random.choice(USERS * ITEMS, 30_000, replace=False)
    straight, renamed = np.arange(USERS), random.permutation(USERS)

    def features(order, names, kind, devices):
        p = pairs[order]
        columns = names[p // ITEMS].astype(np.int32), (p % ITEMS).astype(np.int32)
        values = np.ones(len(p), np.float32)
        ratings = Ratings(*columns, values, np.arange(USERS), np.arange(ITEMS), (0.5, 5.0))
        data = layout.make(ratings, kind=kind, num_devices=devices)
        made = jax.jit(partial(presence.features, rank=5, rounds=4))(data)
        return [leaf.tobytes() for leaf in jax.device_get(made)]

    every = np.arange(len(pairs))
    first = features(every, straight, "split", 1)
    others = {
        "dense": (every, straight, "dense", 1),
        "streamed": (every, straight, "stream", 1),
        "another order": (random.permutation(len(pairs)), renamed, "split", 2),
        "dense, 3 devices": (every, straight, "dense", 3),
    }
    same = {name: features(*given) == first for name, given in others.items()}
    with jax.disable_jit():  # one by one, no operation is rounded together with another
        same["no program"] = features(every, straight, "dense", 1) == first
    print(json.dumps(same))
"""


@pytest.mark.seconds
def test_layouts_devices_orders_and_programs_do_not_move_a_bit():
    same = json.loads(python(PROGRAM, devices=3).stdout)
    assert len(same) == 5
    assert all(same.values()), same


@pytest.mark.seconds
def test_where_there_are_fewer_vectors_the_last_columns_are_zeros():
    """Three groups that share no item have two vectors, of the strength of the constant.

    Items are fewer than the iteration has columns.
    """
    user, item = np.nonzero(np.arange(30)[:, None] % 3 == np.arange(6) % 3)
    features = features_of(
        ratings(user, item, np.full(len(user), 3), (31, 7)), rank=4, smoothing=0.0
    )
    np.testing.assert_allclose(features.strength, [1, 1, 0, 0], atol=1e-5)
    assert not features.units[:, 2:].any()
    assert features.units[:6, :2].any(axis=1).all()
    assert not features.units[6].any()
    assert np.isfinite(features.unit)


@pytest.mark.seconds
def test_items_that_hardly_anybody_rated_have_rows_of_bounded_length():
    """Two users and an item of their own: the strongest vector, unless degrees are smoothed."""
    user, item = np.append(RATINGS.user, [238, 239]), np.append(RATINGS.item, [78, 78])
    lone = ratings(user, item, np.full(len(user), 3), (USERS, ITEMS))
    features = features_of(lone, smoothing=0.0)
    lengths = np.linalg.norm(features.units, axis=1)
    assert lengths.argmax() == 78
    assert 500 < lengths.max() <= local_ridge.ITEM_RADIUS
    assert lengths.max() * features.unit == pytest.approx(presence.LONGEST * RANK**0.5, rel=0.01)
    assert features.strength[0] == pytest.approx(1, abs=1e-5)
    smooth, without = features_of(lone), features_of(RATINGS)
    np.testing.assert_allclose(smooth.strength, without.strength, rtol=0.01)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_parts_are_bounded_and_make_up_the_numbers(scale):
    random = np.random.default_rng(0)
    numbers = (scale * random.normal(size=(1000, 3)) ** 5).astype(np.float32)
    numbers[:, 2] = 0
    table = presence._table(jnp.asarray(numbers))
    high, low = np.split(np.asarray(table.parts, np.float64), 2, axis=1)
    assert np.abs(high).max() == 2**10
    assert np.abs(low).max() <= 2**9
    assert (high == np.round(high)).all()
    assert (low == np.round(low)).all()
    unit = np.asarray(table.unit, np.float64)
    np.testing.assert_allclose((2**10 * high + low) * unit, numbers, atol=0.6 * unit.max())


@pytest.mark.parametrize("largest", [True, False])
def test_sums_of_a_million_ratings_are_exact(largest):
    """In one row of a table: of 2^20 parts of the largest size, and of as many different ones."""
    slots, random = 1 << 20, np.random.default_rng(0)
    parts = np.full((slots, 2), 2**10) if largest else random.integers(300, 2**10, (slots, 2))
    parts[:, 1] *= -1
    sums = presence._summed((), jnp.asarray(parts, jnp.float32), jnp.zeros(slots), jnp.ones(slots))
    assert sums.dtype == jnp.int32
    assert np.asarray(sums).tolist() == parts.sum(axis=0).tolist()


@pytest.mark.seconds
def test_sums_of_a_million_ratings_are_exact_in_pieces():
    users = 1 << 20
    user = np.arange(users)
    data = layout.make(ratings(user, 0 * user, np.full(users, 3), (users, 2)), kind="split")
    parts = jnp.asarray(np.full((users, 2), [2**10, -(2**10)]), jnp.float32)
    sums = layout.sum_by_item(data, presence._summed, (), parts)
    assert np.asarray(sums).tolist() == [[2**30, -(2**30)], [0, 0]]
