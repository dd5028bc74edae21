"""The published sketch as a mechanism: plain loops over cells, feature hashing, memory, release,
what is promised.
"""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import audits
import dpmf_jax
from dpmf_jax import layout, load_model, protocol
from dpmf_jax.errors import DataError
from dpmf_jax.kernels import count_sketch
from dpmf_jax.kernels.count_sketch import ITEMS as ITEM_FAMILY
from dpmf_jax.kernels.count_sketch import USERS as USER_FAMILY
from dpmf_jax.layout import ordered
from dpmf_jax.mechanisms.sketch import published as sketch
from dpmf_jax.noise import keys
from dpmf_jax.protocol import Release
from tests.cases.audits import STRUCTURAL
from tests.cases.online import (
    ITEMS,
    ORDER,
    RANK,
    RATINGS,
    USERS,
    begun,
    config,
    leaves_equal,
    means_oracle,
    schedule,
    split_data,
    trained,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


def places(state):
    """Of every user and of every item: (rows and addresses, signs), each [ids, depth, rank]."""
    public = state.public
    for family, num in ((USER_FAMILY, USERS), (ITEM_FAMILY, ITEMS)):
        addresses, signs = count_sketch.cells(
            public.hashes, family, jnp.arange(num), rank=RANK, width=public.table.shape[1]
        )
        yield np.asarray(addresses), np.asarray(signs)


def oracle(start, settings, num_epochs, *, read=np.mean, size=1, largest=np.inf):
    """(table, losses) by a plain loop over ratings and cells, in float64."""
    table = np.array(start.public.table, np.float64)
    (user_cells, user_signs), (item_cells, item_signs) = places(start)
    rows = np.arange(len(table))[:, None]
    overall, user, item = means_oracle(RATINGS)
    left = RATINGS.value - overall - user[RATINGS.user] - item[RATINGS.item]
    losses = []
    for epoch in range(num_epochs):
        rate = settings.learning_rate / (1 + settings.decay * epoch / settings.num_epochs)
        squared = []
        for first in range(0, len(ORDER), size):
            before = table.copy()
            for rating in ORDER[first : first + size]:
                u, i = RATINGS.user[rating], RATINGS.item[rating]
                p = read(user_signs[u] * before[rows, user_cells[u]], axis=0)
                q = read(item_signs[i] * before[rows, item_cells[i]], axis=0)
                error = left[rating] - p @ q
                squared.append(error**2)
                if error**2 <= largest:
                    change = rate * (error * q - settings.regularization * p)
                    np.add.at(table, (rows, user_cells[u]), user_signs[u] * change)
                    change = rate * (error * p - settings.regularization * q)
                    np.add.at(table, (rows, item_cells[i]), item_signs[i] * change)
        losses.append(np.mean(squared))
    return table, np.array(losses)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("settings", "factory", "options", "oracle_options"),
    [
        ({"depth": 4, "decay": 2.0}, sketch.mechanism, {}, {}),
        ({"depth": 3, "gain": 3.0, "threshold": 2.0}, sketch.mechanism, {}, {"largest": 2.0}),
        ({"depth": 3, "query": "median"}, sketch.mechanism, {}, {"read": np.median}),
        (
            {"depth": 4, "query": "median"},
            sketch.mini_batch,
            {"size": 32},
            {"size": 32, "read": np.median},
        ),
    ],
)
def test_epochs_are_those_of_a_loop_over_cells(settings, factory, options, oracle_options):
    made = config(**settings)
    mechanism = factory(made, schedule(), **options)
    start = begun(mechanism)
    assert start.public.table.shape == (
        made.depth,
        count_sketch.width(USERS, ITEMS, RANK, depth=made.depth, gain=made.gain),
    )
    state, info = trained(mechanism, 3)
    table, losses = oracle(start, made, 3, **oracle_options)
    np.testing.assert_allclose(state.public.table, table, atol=1e-4)
    np.testing.assert_allclose(info.loss, losses, rtol=1e-4)
    assert (float(info.clipped_fraction.max()) > 0) == ("largest" in oracle_options)


@pytest.mark.seconds
def test_depth_1_is_feature_hashing():
    """Karatzoglou et al. (AISTATS 2010): one array of weights, read and written at h(entry) with a
    sign.
    """
    made = config(depth=1, gain=2.0)
    mechanism = sketch.mechanism(made, schedule())
    start = begun(mechanism)
    (user_cells, user_signs), (item_cells, item_signs) = (
        (a[:, 0], s[:, 0]) for a, s in places(start)
    )
    weights = np.array(start.public.table[0], np.float64)
    assert len(weights) < (USERS + ITEMS) * RANK
    overall, user, item = means_oracle(RATINGS)
    for rating in ORDER:
        u, i = RATINGS.user[rating], RATINGS.item[rating]
        p, q = user_signs[u] * weights[user_cells[u]], item_signs[i] * weights[item_cells[i]]
        error = RATINGS.value[rating] - overall - user[u] - item[i] - p @ q
        changes = 0.05 * (error * q - 0.1 * p), 0.05 * (error * p - 0.1 * q)
        for entry in range(RANK):
            weights[user_cells[u, entry]] += user_signs[u, entry] * changes[0][entry]
            weights[item_cells[i, entry]] += item_signs[i, entry] * changes[1][entry]
    np.testing.assert_allclose(trained(mechanism, 1)[0].public.table[0], weights, atol=1e-4)


def test_the_order_within_batches_of_a_schedule_is_kept_one_after_the_other():
    """A schedule without conflicts between users and items may have some between cells."""
    singles, batches = schedule(), schedule(8)
    again = ordered.Schedule(*(np.asarray(part)[batches.used][:, None] for part in batches))
    one, other = (trained(sketch.mechanism(config(), s), 2)[0] for s in (batches, again))
    assert leaves_equal(one.public.table, other.public.table)
    assert (
        np.abs(
            one.public.table - trained(sketch.mechanism(config(), singles), 2)[0].public.table
        ).max()
        > 0
    )


def test_a_threshold_of_zero_moves_nothing_and_an_infinite_one_is_none():
    frozen = sketch.mechanism(config(threshold=0.0), schedule())
    assert leaves_equal(trained(frozen, 2)[0].public.table, begun(frozen).public.table)
    without, infinite = (
        trained(sketch.mechanism(config(threshold=t), schedule()), 2)[0] for t in (None, np.inf)
    )
    assert leaves_equal(without, infinite)


def test_chunks_equal_the_whole():
    """The first has the means of the ratings, and none before it."""
    mechanism = sketch.mechanism(config(decay=2.0), schedule())
    first, _ = trained(mechanism, 1)
    assert leaves_equal(trained(mechanism, 2)[0], trained(mechanism, 1, state=first)[0])
    assert not any(np.any(part) for part in begun(mechanism).public.means)
    np.testing.assert_allclose(first.public.means.overall, means_oracle(RATINGS)[0], rtol=1e-6)


def test_neighbours_and_a_sweep_run_in_the_same_program():
    data = split_data()
    mechanism = sketch.mechanism(config(), schedule())
    trained(mechanism, 2, data)
    programs = protocol.train._cache_size()
    removed = layout.remove_rating(data, layout.locate(data, RATINGS.user[5], RATINGS.item[5]))
    skipped = mechanism._replace(
        query=sketch.mechanism(
            config(), ordered.schedule(RATINGS, ORDER, size=1, kind="split")
        ).query
    )
    state, _ = trained(mechanism, 2, removed)
    assert leaves_equal(state, trained(skipped, 2, removed)[0])
    assert not leaves_equal(state.public.table, trained(mechanism, 2, data)[0].public.table)
    trained(
        sketch.mechanism(config(learning_rate=0.01, threshold=3.0, regularization=0.0), schedule()),
        2,
    )
    assert protocol.train._cache_size() == programs


def sizes(jaxpr):
    """The sizes of all that a program computes, inside its parts too."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            if hasattr(inner := getattr(inner, "jaxpr", inner), "eqns"):
                yield from sizes(inner)


@pytest.mark.parametrize("factory", [sketch.mechanism, sketch.mini_batch])
def test_training_makes_the_table_and_nothing_of_the_size_of_all_vectors(factory):
    """20,000 users and 10,000 items; vectors of rank 64 would be 1.9 million numbers, the table has
    0.24 million.
    """
    users, items, rank, gain = 20_000, 10_000, 64, 8.0
    big = dataclasses.replace(RATINGS, users=np.arange(users), items=np.arange(items))
    data = split_data(big)
    batches = ordered.schedule(big, ORDER, size=1, kind="split")
    mechanism = factory(config(rank=rank, gain=gain), batches)
    state = begun(mechanism, data)
    found = max(
        sizes(
            jax.make_jaxpr(lambda s: protocol.train(mechanism, keys.from_seed(0), s, data, 1))(
                state
            ).jaxpr
        )
    )
    assert found == (users + items) * rank / gain
    assert max(leaf.size for leaf in jax.tree.leaves(state)) == found


@pytest.mark.seconds
def test_factors_are_queried_and_carry_the_means():
    for query, preprocess in (("mean", True), ("median", False)):
        state, _ = trained(
            sketch.mechanism(config(query=query, preprocess=preprocess, center=3.0), schedule()), 2
        )
        found = protocol.factors(state)
        (cells, signs), _ = places(state)
        each = signs * np.asarray(state.public.table)[np.arange(4)[:, None], cells]
        np.testing.assert_allclose(
            found.user_factors[:, :RANK], getattr(np, query)(each, axis=1), atol=1e-6
        )
        if preprocess:
            overall, user, item = means_oracle(RATINGS)
            np.testing.assert_allclose(found.user_factors[:, RANK], user, atol=1e-6)
            np.testing.assert_array_equal(found.item_factors[:, RANK], 1)
            np.testing.assert_allclose(found.center, overall + item, atol=1e-6)
        else:
            assert found.user_factors.shape == (USERS, RANK)
            assert float(found.center) == 3


def test_the_guarantee_says_none_in_plain_words():
    promised = sketch.mechanism(config(threshold=4.0), schedule()).guarantee(7)
    assert (promised.status, promised.mechanism, promised.steps, promised.sensitivity) == (
        "none",
        "sketch",
        7,
        None,
    )
    said = " ".join(str(promised).split())
    assert "clipping threshold of the log-likelihood (here 4), not a privacy parameter" in said
    assert promised.released == ("sketch", "its hashes", "global, user and item means")
    plain = sketch.mechanism(config(preprocess=False), schedule()).guarantee(7)
    assert "(here" not in str(plain)
    assert plain.released[-1] == "the centre, a constant"


@pytest.mark.seconds
@pytest.mark.parametrize("order", [schedule(), None])
def test_audits_of_it_behave(order):
    mechanism = sketch.mechanism(config(threshold=4.0), order)
    found = audits.audit(
        mechanism,
        RATINGS,
        key=keys.from_seed(0),
        num_steps=2,
        only=STRUCTURAL,
        quick=True,
        num_neighbours=4,
        layout_kind="split",
    )
    verdicts = {finding.audit: finding.verdict for finding in found}
    for name in ("init", "post-processing", "release", "density: log_ratio"):
        assert verdicts.pop(name) == "consistent"
    assert set(verdicts.values()) == {"not applicable"}


@pytest.mark.one_case
@pytest.mark.parametrize(("query", "preprocess"), [("mean", True), ("median", False)])
def test_a_released_sketch_predicts_where_the_private_part_is_absent(tmp_path, query, preprocess):
    mechanism = sketch.mechanism(config(query=query, preprocess=preprocess, center=3.0), schedule())
    fitted = dpmf_jax.fit(
        RATINGS, mechanism, num_steps=2, seed=0, layout_kind="split", out=tmp_path / "model"
    )
    whole = load_model(tmp_path / "model")
    assert whole.factors is not None
    shutil.rmtree(tmp_path / "model" / "private")
    public = load_model(tmp_path / "model")
    assert public.factors is None
    assert leaves_equal(public.release, fitted.release)
    users, items = (part.ravel() for part in np.indices((USERS, ITEMS)))
    np.testing.assert_array_equal(public.predict(users, items), whole.predict(users, items))
    assert public.recommend(3, 4, include_seen=True) == whole.recommend(3, 4, include_seen=True)
    with pytest.raises(DataError, match="seen"):
        public.recommend(3)


def test_a_release_that_does_not_say_its_rank_takes_the_settings(tmp_path):
    mechanism = sketch.mechanism(config(preprocess=False), schedule())
    fitted = dpmf_jax.fit(RATINGS, mechanism, num_steps=1, seed=0, layout_kind="split")
    silent = dataclasses.replace(
        fitted,
        release=fitted.release._replace(rank=None, median=None),
        factors=None,
        settings={"rank": RANK},
    )
    np.testing.assert_array_equal(silent.predict([0, 1], [2, 3]), fitted.predict([0, 1], [2, 3]))
    with pytest.raises(DataError, match="does not say the rank"):
        dataclasses.replace(silent, settings={}).predict([0], [0])
    with pytest.raises(DataError, match="this needs the center"):
        dataclasses.replace(
            fitted, release=fitted.release._replace(center=None), factors=None
        ).predict([0], [0])
    with pytest.raises(ValueError, match="must hold sketch, hashes and rank"):
        count_sketch.factors(Release(), 1, 1)


@pytest.mark.seconds
def test_vectors_of_all_ids_are_those_of_single_queries(key):
    table, hashes = jax.random.normal(key, (4, 500)), count_sketch.hashes(key, 4)
    num = count_sketch.BLOCK + 17
    for how in ("mean", "median"):
        found = count_sketch.vectors(table, hashes, USER_FAMILY, num, rank=5, how=how)
        expected = count_sketch.query(table, hashes, USER_FAMILY, jnp.arange(num), rank=5, how=how)
        np.testing.assert_allclose(found, expected, atol=1e-6)
