"""Newcomers in a count sketch: the table stays, the store grows, and what is learnt of newcomers
shows.
"""

import functools

import numpy as np
import pytest

from experiments.cli import stream

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def result():
    return stream.stream(stream.Command(users=600, items=120))


@pytest.mark.seconds
def test_the_table_stays_and_the_store_grows(result):
    rows = result["rows"]
    assert len(rows) == stream.WAVES - 1
    assert len({row["table_cells"] for row in rows}) == 1
    stored = [row["stored_cells"] for row in rows]
    assert stored == sorted(set(stored))
    assert stored[-1] == (600 + 120) * stream.RANK > 2 * rows[0]["table_cells"]
    assert rows[-1]["users"] == 600


def test_newcomers_are_predicted_better_the_more_they_have_rated(result):
    """A mean over the waves, of both stores; and in the end better than no model."""
    for store in ("sketch", "stored"):
        errors = [np.mean([row[f"{store}_{k}"] for row in result["rows"]]) for k in stream.AFTER]
        assert errors[-1] < errors[0] - 0.005
        assert errors[-1] < result["centre_alone"]


@pytest.mark.seconds
def test_one_rating_moves_both_stores_by_the_same_rule():
    """From equal vectors: what the sketch answers after it is what the store has."""
    import jax
    import jax.numpy as jnp

    from dpmf_jax.kernels import count_sketch

    hashes = count_sketch.hashes(jax.random.key(0), stream.DEPTH)
    table = count_sketch.random_table(jax.random.key(1), stream.DEPTH, 4_096, 0.3)
    ids = jnp.array([5, 7], jnp.int32)

    @functools.partial(jax.jit, static_argnums=1)
    def query(table, family):
        return count_sketch.query(table, hashes, family, jnp.append(ids, 0), rank=stream.RANK)

    stores = stream.Stores(table, *(query(table, family) for family in (0, 1)))
    batch = stream.Batch(
        ids[:1], ids[1:], np.array([0]), np.array([1]), np.array([1.5], np.float32)
    )
    learn, squared_errors = stream._programs()
    before = squared_errors(stores, hashes, batch)
    after = learn(stores, hashes, batch, np.array([0], np.int32), 1)
    np.testing.assert_allclose(before[0], before[1], rtol=1e-5)
    for part, family, moved in ((after.users, 0, [0, 2]), (after.items, 1, [1, 2])):
        np.testing.assert_allclose(
            query(after.table, family)[np.array(moved)], part[np.array(moved)], atol=1e-5
        )
    assert np.all(np.abs(after.users[0] - stores.users[0]) > 0)
    np.testing.assert_array_equal(after.users[1], stores.users[1])
    shared = np.asarray(after.users[2] - stores.users[2])
    p, q = (
        np.asarray(part[place] + part[2]) for part, place in ((stores.users, 0), (stores.items, 1))
    )
    expected = stream.LEARNING_RATE * ((1.5 - p @ q) * q - stream.REGULARIZATION * p)
    np.testing.assert_allclose(shared, expected, rtol=1e-4)
