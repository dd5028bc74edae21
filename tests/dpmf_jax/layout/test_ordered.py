"""Laws of ordered batches: equal to one rating at a time, on any order; and of exact online
epochs.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import UsageError
from dpmf_jax.kernels import count_sketch, epoch
from dpmf_jax.layout import ordered
from tests.cases.layout import KINDS
from tests.cases.ordered import CASES, make

RATE, PENALTY, RANK = 0.1, 0.05, 5
# of a sketch: where cells are shared, rounding errors grow with the rate, as all else does
SLOW = 0.02


def start(ratings: Ratings):
    rng = np.random.default_rng(4)
    return tuple(
        jnp.asarray(rng.normal(0, 0.7, (n, RANK)), jnp.float32)
        for n in (ratings.num_users, ratings.num_items)
    )


def oracle(ratings: Ratings, order, threshold=np.inf, seen=None):
    """One rating after the other, in float64; `seen` is filled with (e², whether it is learnt
    from).
    """
    users, items = (np.array(part, float) for part in start(ratings))
    for rating in order:
        u, i, r = ratings.user[rating], ratings.item[rating], float(ratings.value[rating])
        p, q = users[u].copy(), items[i].copy()
        error = r - p @ q
        if seen is not None:
            seen.append((error**2, error**2 <= threshold))
        if error**2 <= threshold:
            users[u], items[i] = (
                p + RATE * (error * q - PENALTY * p),
                q + RATE * (error * p - PENALTY * q),
            )
    return users, items


def sgd(carry, user, item, value, present):
    users, items = carry
    p, q = users.at[user].get(mode="clip"), items.at[item].get(mode="clip")
    error = jnp.where(present, value - jnp.sum(p * q, 1), 0.0)[:, None]
    keep = RATE * PENALTY * present[:, None]
    return (
        users.at[user].set(p + RATE * error * q - keep * p, mode="drop"),
        items.at[item].set(q + RATE * error * p - keep * q, mode="drop"),
    )


run = jax.jit(lambda carry, schedule, data: ordered.epoch(sgd, carry, schedule, data))
RULE = epoch.Rule(RATE, PENALTY)
whole_dense_epoch = jax.jit(epoch.dense)
whole_sketched_epoch = jax.jit(epoch.sketched, static_argnames="rank")
batched_epoch = jax.jit(epoch.sketched_batches, static_argnames=("rank", "how"))


def dense_epoch(*arguments):
    return whole_dense_epoch(*arguments)[:2]


def sketched_epoch(*arguments, **sizes):
    return whole_sketched_epoch(*arguments, **sizes)[0]


def assert_close(actual, expected, tolerance=1e-5):
    for a, b in zip(actual, expected, strict=True):
        assert np.abs(np.asarray(a) - np.asarray(b)).max(initial=0) <= tolerance


@pytest.mark.one_case
@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_batches_equal_one_rating_after_the_other(case, kind, size):
    ratings = make(*CASES[case])
    order = np.arange(ratings.num_ratings)
    batches = ordered.schedule(ratings, order, size=size, kind=kind)
    data = layout.make(ratings, kind=kind, num_devices=1)
    expected = oracle(ratings, order)
    assert_close(run(start(ratings), batches, data), expected)
    assert_close(dense_epoch(*start(ratings), batches, data, RULE), expected)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1)])
def test_single_rows_columns_ranks_and_cells(key, shape):
    """Sizes at which XLA drops what need not be read."""
    ratings = make(np.argwhere(np.ones(shape)), shape)
    data = layout.make(ratings, kind="split", num_devices=1)
    batches = ordered.schedule(ratings, np.arange(ratings.num_ratings), size=1, kind="split")
    users, items = dense_epoch(
        *(0.5 * jnp.ones((n, 1)) for n in shape), batches, data, epoch.Rule(1.0, 0.0)
    )
    assert float(users[0, 0]) == 0.5 + 0.5 * (ratings.value[0] - 0.25) or shape[1] > 1
    assert users.shape == (shape[0], 1)
    assert items.shape == (shape[1], 1)
    hashes = count_sketch.hashes(key, 1)
    table = sketched_epoch(
        jnp.full((1, 1), 0.5), hashes, batches, data, epoch.Rule(0.01, 0.0), rank=1
    )
    assert np.isfinite(table).all()


def test_the_order_matters_and_is_obeyed():
    ratings = make(*CASES["random"])
    order = np.random.default_rng(9).permutation(ratings.num_ratings)
    data = layout.make(ratings, kind="split", num_devices=1)
    actual = run(start(ratings), ordered.schedule(ratings, order, size=16, kind="split"), data)
    assert_close(actual, oracle(ratings, order))
    assert np.abs(actual[0] - oracle(ratings, order[::-1])[0]).max() > 1e-2


def test_batches_are_filled_up():
    ratings = make(*CASES["all different"])
    assert ordered.schedule(ratings, np.arange(80), size=64, kind="split").used.sum(1).tolist() == [
        64,
        16,
    ]


@pytest.mark.seconds
def test_within_a_batch_the_order_and_padding_change_nothing():
    ratings = make(*CASES["random"])
    data = layout.make(ratings, kind="split", num_devices=1)
    batches = ordered.schedule(ratings, np.arange(ratings.num_ratings), size=32, kind="split")
    expected = run(start(ratings), batches, data)
    rng = np.random.default_rng(5)
    shuffle = np.argsort(rng.random(batches.user.shape), 1)
    assert not batches.used.all()  # padding takes part in the shuffle
    shuffled = ordered.Schedule(*(np.take_along_axis(part, shuffle, 1) for part in batches))
    for part, other in zip(expected, run(start(ratings), shuffled, data), strict=True):
        np.testing.assert_array_equal(part, other)
    idle = ordered.Schedule(
        *(np.full((4, 32), fill, p.dtype) for p, fill in zip(batches, (50, 40, 0, 0), strict=True))
    )
    padded = ordered.Schedule(*(np.concatenate([a, b]) for a, b in zip(batches, idle, strict=True)))
    for fn in (run, lambda carry, *rest: dense_epoch(*carry, *rest, RULE)):
        plain, more = fn(start(ratings), batches, data), fn(start(ratings), padded, data)
        for part, other in zip(plain, more, strict=True):
            np.testing.assert_array_equal(part, other)


@pytest.mark.seconds
@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_seen(kind, size):
    ratings = make(*CASES["random"])
    data = layout.make(ratings, kind=kind, num_devices=1)
    batches = ordered.schedule(ratings, np.arange(ratings.num_ratings), size=size, kind=kind)
    gone = 17
    user, item = int(ratings.user[gone]), int(ratings.item[gone])
    place = layout.locate(data, user, item)
    rest = np.delete(np.arange(ratings.num_ratings), gone)
    others = np.flatnonzero(ratings.user != user)
    changed = make(*CASES["random"])
    changed.value[gone] = 0.5
    worlds = (
        (layout.remove_rating(data, place), oracle(ratings, rest)),
        (layout.replace_value(data, place, 0.5), oracle(changed, range(ratings.num_ratings))),
        (layout.remove_user(data, user), oracle(ratings, others)),
    )
    for world, expected in worlds:
        assert_close(run(start(ratings), batches, world), expected)
        assert_close(dense_epoch(*start(ratings), batches, world, RULE), expected)
    skipped = batches._replace(
        used=batches.used & ~((batches.user == user) & (batches.item == item))
    )
    assert_close(run(start(ratings), skipped, data), worlds[0][1])
    assert_close(dense_epoch(*start(ratings), skipped, data, RULE), worlds[0][1])
    value, present = ordered.values_at(worlds[0][0], batches.user, batches.item, batches.slot)
    at_gone = (batches.user == user) & (batches.item == item)
    assert not present[at_gone]
    assert value[at_gone] == 0
    assert present.sum() == ratings.num_ratings - 1


@pytest.mark.parametrize("kind", KINDS)
def test_slots_name_the_values(kind):
    # a user with several pieces, and users without ratings
    ratings = make(*CASES["one heavy user"])
    data = layout.make(ratings, kind=kind, num_devices=1)
    order = np.random.default_rng(6).permutation(ratings.num_ratings)
    alone = ordered.schedule(ratings, order, size=1, kind=kind)
    value, present = ordered.values_at(data, alone.user, alone.item, alone.slot)
    assert present.all()
    np.testing.assert_array_equal(value[:, 0], ratings.value[order])


def by_brute_force(touched, size):
    """The first batch with room after the last one that touched any of the same."""
    batches = []
    for mine in touched:
        first = 1 + max(
            (n for n, batch in enumerate(batches) if any(mine & other for other in batch)),
            default=-1,
        )
        while first < len(batches) and len(batches[first]) == size:
            first += 1
        if first == len(batches):
            batches.append([])
        batches[first].append(mine)
        yield first


@given(st.data())
def test_schedules_keep_every_rating_once_and_in_order(data):
    users, items, size = (data.draw(st.integers(1, high)) for high in (8, 8, 6))
    pairs = data.draw(
        st.lists(st.tuples(st.integers(0, users - 1), st.integers(0, items - 1)), unique=True)
    )
    ratings = make(pairs, (users, items))
    order = np.array(data.draw(st.permutations(range(len(pairs)))), int)
    num_cells = data.draw(st.none() | st.integers(1, 30))
    if num_cells is None:
        cells = None
        touched = [{("u", u), ("i", i)} for u, i in np.array(pairs, int).reshape(-1, 2)[order]]
    else:
        table = np.random.default_rng(0).integers(0, num_cells, (users + items, 2))
        cells = lambda user, item: np.concatenate([table[user], table[users + item]], 1)  # noqa: E731
        touched = [set(row) for row in cells(ratings.user[order], ratings.item[order]).tolist()]
    batches = ordered.schedule(ratings, order, size=size, cells=cells, kind="dense")
    where = np.argwhere(batches.used)
    slots = batches.slot[batches.used]
    expected = ratings.user[order] * items + ratings.item[order]
    assert sorted(slots) == sorted(expected)
    assert batches.used.sum() == len(pairs)
    np.testing.assert_array_equal(
        batches.user[batches.used] * items + batches.item[batches.used], slots
    )
    assert (batches.user[~batches.used] == users).all()
    assert (batches.item[~batches.used] == items).all()
    batch_of = dict(zip(slots.tolist(), where[:, 0].tolist(), strict=True))
    found = [batch_of[slot] for slot in expected.tolist()]
    for later in range(len(found)):
        for earlier in range(later):
            if touched[earlier] & touched[later]:
                assert found[earlier] < found[later]
    assert found == (list(range(len(found))) if size == 1 else list(by_brute_force(touched, size)))


@pytest.mark.parametrize("threshold", [4.0, 8.0])
@pytest.mark.parametrize("size", [1, 16])
def test_large_errors_are_skipped(size, threshold):
    ratings = make(*CASES["random"])
    order = np.arange(ratings.num_ratings)
    data = layout.make(ratings, kind="split", num_devices=1)
    batches = ordered.schedule(ratings, order, size=size, kind="split")
    *actual, found = whole_dense_epoch(
        *start(ratings), batches, data, epoch.Rule(RATE, PENALTY, threshold)
    )
    seen = []
    assert_close(actual, oracle(ratings, order, threshold, seen))
    squared, learnt = np.array(seen).sum(0)
    assert 0 < learnt == found.learnt < ratings.num_ratings
    np.testing.assert_allclose(found.squared, squared, rtol=1e-5)
    assert np.abs(actual[0] - oracle(ratings, order)[0]).max() > 1e-2


def test_an_offset_is_subtracted():
    ratings = make(*CASES["random"])
    data = layout.make(ratings, kind="split", num_devices=1)
    batches = ordered.schedule(ratings, np.arange(ratings.num_ratings), size=16, kind="split")
    lower = make(*CASES["random"])
    offset = np.random.default_rng(1).normal(size=50).astype(np.float32)
    lower.value[:] -= offset[lower.user]
    actual = dense_epoch(
        *start(ratings), batches, data, RULE, jnp.append(offset, 0.0)[batches.user]
    )
    assert_close(actual, oracle(lower, range(ratings.num_ratings)))


def test_long_sums_of_squares_go_on():
    """As many ratings as a float32 that counts them by ones would stand still at; here 2^14 times
    as much each.
    """
    ratings = make(np.argwhere(np.ones((40, 50))), (40, 50))
    ratings.value[:] = 128.0 + np.arange(2000) % 7
    data = layout.make(ratings, kind="split", num_devices=1)
    batches = ordered.schedule(ratings, np.arange(2000), size=1, kind="split")
    # frozen: nothing is learnt
    again = ordered.Schedule(*(np.tile(part, (30, 1)) for part in batches))
    _, _, found = whole_dense_epoch(
        jnp.zeros((40, 2)), jnp.zeros((50, 2)), again, data, epoch.Rule(0.1, 0, 0)
    )
    squared = 30 * np.sum(ratings.value.astype(float) ** 2)
    assert np.sum(np.tile(ratings.value**2, 30).cumsum(dtype=np.float32)[-1:]) != np.float32(
        squared
    )
    np.testing.assert_allclose(found.squared, squared, rtol=1.2e-7)
    assert found.learnt == 0


def sketch_oracle(ratings, table, hashes, order, threshold=np.inf):
    depth, width = table.shape
    table = np.asarray(table, np.float64).copy()
    sides = [
        [
            np.asarray(part)
            for part in count_sketch.cells(hashes, family, jnp.arange(n), rank=RANK, width=width)
        ]
        for family, n in enumerate((ratings.num_users, ratings.num_items))
    ]
    rows, seen = np.arange(depth)[:, None], []
    for rating in order:
        (a, s), (b, t) = (
            (places[n], signs[n])
            for (places, signs), n in zip(
                sides, (ratings.user[rating], ratings.item[rating]), strict=True
            )
        )
        p, q = (s * table[rows, a]).mean(0), (t * table[rows, b]).mean(0)
        error = float(ratings.value[rating]) - p @ q
        if error**2 <= threshold:
            np.add.at(table, (rows, a), s * SLOW * (error * q - PENALTY * p))
            np.add.at(table, (rows, b), t * SLOW * (error * p - PENALTY * q))
        seen.append((error**2, error**2 <= threshold))
    return table, *np.array(seen).sum(0)


@pytest.mark.seconds
@pytest.mark.parametrize("gain", [0.5, 12])  # at 12 most cells are shared
@pytest.mark.parametrize("depth", [1, 4])
def test_sketched_epochs_equal_one_rating_after_the_other(key, depth, gain):
    ratings = make(*CASES["random"])  # more than one chunk, and the last is not full
    assert ratings.num_ratings > epoch.CHUNK
    assert ratings.num_ratings % epoch.CHUNK
    order = np.random.default_rng(8).permutation(ratings.num_ratings)
    width = count_sketch.width(50, 40, RANK, depth=depth, gain=gain)
    for_hashes, for_table = jax.random.split(key)
    hashes = count_sketch.hashes(for_hashes, depth)
    table = count_sketch.random_table(for_table, depth, width, 0.3)
    data = layout.make(ratings, kind="split", num_devices=1)
    batches = ordered.schedule(ratings, order, size=1, kind="split")
    for threshold in (np.inf, 6.0):
        expected, squared, learnt = sketch_oracle(ratings, table, hashes, order, threshold)
        for one_epoch in (whole_sketched_epoch, batched_epoch)[: 2 if depth == 4 else 1]:
            rule = epoch.Rule(SLOW, PENALTY, threshold)
            actual, found = one_epoch(table, hashes, batches, data, rule, rank=RANK)
            assert np.abs(actual - expected).max() <= 2e-5 * (1 + np.abs(expected).max())
            assert found.learnt == learnt
            np.testing.assert_allclose(found.squared, squared, rtol=1e-4)


@pytest.mark.parametrize("size", [1, 16])
def test_tables_are_updated_in_place(key, size):
    """A loop that copied a table would take time with its length: no copy of one, except before and
    after all loops.
    """
    ratings = make(*CASES["random"])
    data = layout.make(ratings, kind="split", num_devices=1)
    batches = ordered.schedule(ratings, np.arange(ratings.num_ratings), size=size, kind="split")
    compiled = (
        jax.jit(epoch.dense, donate_argnums=(0, 1))
        .lower(*start(ratings), batches, data, RULE)
        .compile()
    )
    shapes = ("50,5", "40,5", "91,5")
    inside = compiled.as_text().split("ENTRY")[0]
    copied = re.findall(r"= f32\[([0-9,]+)\]\S* copy\(", inside)
    assert not set(shapes) & set(copied)
    if size == 1:
        hashes, table = count_sketch.hashes(key, 4), jnp.zeros((4, 997))
        sketched = jax.jit(epoch.sketched, static_argnames="rank", donate_argnums=0)
        text = (
            sketched.lower(table, hashes, batches, data, RULE, rank=RANK)
            .compile()
            .as_text()
            .split("ENTRY")[0]
        )
        assert f"[{4 * 997}]" in text
        assert str(4 * 997) not in re.findall(r"= f32\[([0-9,]+)\]\S* copy\(", text)


@pytest.mark.seconds
def test_loops_can_be_mapped_over_worlds_rules_and_orders(key):
    ratings = make(*CASES["random"])
    data = layout.make(ratings, kind="split", num_devices=1)
    orders = np.stack([np.arange(ratings.num_ratings), np.arange(ratings.num_ratings)[::-1]])
    batches = [ordered.schedule(ratings, order, size=1, kind="split") for order in orders]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *batches)
    rates = jnp.array([0.1, 0.02])
    hashes, table = count_sketch.hashes(key, 2), 0.3 * jax.random.normal(jax.random.key(1), (2, 99))

    def both(schedule, rate):
        rule = epoch.Rule(rate, PENALTY)
        dense = epoch.dense(*start(ratings), schedule, data, rule)
        return dense[:2], epoch.sketched(table, hashes, schedule, data, rule, rank=RANK)[0]

    together = jax.jit(jax.vmap(both))(stacked, rates)
    for row in range(2):
        alone = jax.jit(both)(batches[row], rates[row])
        jax.tree.map(
            lambda a, b, row=row: np.testing.assert_allclose(a[row], b, atol=1e-6), together, alone
        )


def test_what_makes_no_sense_is_refused():
    ratings = make(*CASES["random"])
    order = np.arange(ratings.num_ratings)
    for bad in (order[:-1], np.append(order[:-1], 0), np.append(order[:-1], ratings.num_ratings)):
        with pytest.raises(UsageError, match="no permutation"):
            ordered.schedule(ratings, bad)
    with pytest.raises(UsageError, match="batches of 0"):
        ordered.schedule(ratings, order, size=0)
    with pytest.raises(UsageError, match="unknown layout"):
        ordered.schedule(ratings, order, kind="sparse")
