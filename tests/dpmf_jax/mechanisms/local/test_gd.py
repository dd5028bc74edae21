"""Local DP: what the server sees, unbiased sums, the printed order, both schedules."""

import dataclasses
import inspect
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import audits
from dpmf_jax import layout, protocol
from dpmf_jax.kernels import projection
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.local import server
from dpmf_jax.mechanisms.local.device import Message
from dpmf_jax.noise import bits, keys
from tests.cases.audits import STRUCTURAL
from tests.cases.local import (
    ITEMS,
    MAKERS,
    RANK,
    RATINGS,
    USERS,
    Q,
    begun,
    config,
    gd,
    gd_dr,
    gradient_of,
)
from tests.cases.processes import python

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def data():
    return layout.make(RATINGS, num_devices=1)


# -------------------------------------------------------------------------------------------------


# -------------------------------------------------------------------------------------------------


@pytest.mark.seconds
@pytest.mark.parametrize("name", MAKERS)
def test_every_entry_is_that_of_the_users_own_gradient(name, data):
    made = MAKERS[name](num_rounds=2)
    state = begun(made, data)
    reports, info = made.query(state, data, keys.from_seed(5))
    users, items = np.asarray(state.private.user_factors), np.asarray(state.public.item_factors)
    phi = np.eye(ITEMS)
    if name != "gd":
        kind = "sign" if name == "sign" else "gaussian"
        phi = np.asarray(
            projection.entries(
                state.public.words, kind, np.arange(Q)[:, None], np.arange(ITEMS)[None], Q
            )
        )
    clip = 0.5 if name == "partition" else 1.0
    for user in range(USERS):
        whole = phi @ gradient_of(user, users, items)
        expected = np.clip(whole[reports.row[user], reports.column[user]] / clip, -1, 1)
        assert float(reports.value[user]) == pytest.approx(
            expected if reports.sent[user] else 0.0, abs=1e-5
        )
    residual = [
        v - 3.0 - users[u] @ items[i]
        for u, i, v in zip(RATINGS.user, RATINGS.item, RATINGS.value, strict=True)
    ]
    assert float(info.loss) == pytest.approx(np.mean(np.square(residual)), rel=1e-5)


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["gd", "gd-dr"])
def test_a_users_report_does_not_depend_on_the_others(name, data):
    made = MAKERS[name]()
    state = begun(made, data)
    reports, _ = made.query(state, data, keys.from_seed(5))
    others = dataclasses.replace(
        RATINGS, value=np.where(RATINGS.user == 3, RATINGS.value, 6 - RATINGS.value)
    )
    changed, _ = made.query(state, layout.make(others, num_devices=1), keys.from_seed(5))
    assert float(changed.value[3]) == float(reports.value[3])
    assert not np.array_equal(changed.value, reports.value)


@pytest.mark.parametrize("name", ["gd", "gd-dr"])
def test_the_program_of_a_report_reads_nobody_elses_ratings(name):
    """All derivatives of a user's entry by other users' ratings are exactly 0, and not by the own
    ones.
    """
    made = MAKERS[name](clip=1e3)
    dense = layout.make(RATINGS, kind="dense", num_devices=1)
    state = begun(made, dense)

    def entries(value):
        stored = dense.stored._replace(value=value)
        return made.query(state, dataclasses.replace(dense, stored=stored), keys.from_seed(5))[
            0
        ].value

    slopes = np.abs(np.asarray(jax.jacrev(entries)(dense.stored.value))).sum(axis=2)
    assert np.all(slopes[~np.eye(USERS, dtype=bool)] == 0)
    assert np.diag(slopes).max() > 0


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["gd", "gd-dr", "partition"])
def test_neither_the_order_of_ratings_nor_padding_changes_anything(name):
    """Rows shuffled, another layout with its padding: three rounds end in the same place, up to
    summation.
    """
    made, order = MAKERS[name](), np.random.default_rng(1).permutation(RATINGS.num_ratings)
    shuffled = dataclasses.replace(
        RATINGS, user=RATINGS.user[order], item=RATINGS.item[order], value=RATINGS.value[order]
    )
    ends = []
    for ratings, kind in ((RATINGS, "dense"), (shuffled, "dense"), (shuffled, "split")):
        laid = layout.make(ratings, kind=kind, num_devices=1)
        ends.append(protocol.train(made, keys.from_seed(2), begun(made, laid), laid, 3)[0])
    for end in ends[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ends[0], end)


def test_a_user_without_ratings_reports_a_fair_coin(data):
    made = gd()
    state = begun(made, data)
    reports, _ = made.query(state, data, keys.from_seed(5))
    assert float(reports.value[USERS - 1]) == 0  # of which the report is a fair coin


@pytest.mark.seconds
def test_users_are_asked_for_every_entry_alike(data):
    made = gd_dr()
    state = begun(made, data)
    asked = jax.vmap(lambda key: made.query(state, data, key)[0])(
        jax.random.split(keys.from_seed(1), 2000)
    )
    cells = np.bincount(
        (np.asarray(asked.row) * RANK + np.asarray(asked.column)).ravel(), minlength=Q * RANK
    )
    assert scipy.stats.chisquare(cells).pvalue > 1e-4


# -------------------------------------------------------------------------------------------------


def test_the_server_is_given_messages_and_nothing_else():
    assert list(inspect.signature(server.update).parameters) == [
        "params",
        "public",
        "messages",
        "step",
        "num_devices",
    ]
    assert Message._fields == ("coordinate", "bit")


@pytest.mark.parametrize(("name", "clip"), [("gd", 8.0), ("transpose", 16.0)])
def test_the_mean_of_reports_is_an_unbiased_gradient(name, clip, data):
    """Over 4,000 rounds from one state: the mean step is that of the mean gradient (entries stay
    within the clip).
    """
    made = MAKERS[name](
        epsilon=20.0, num_rounds=1, regularization=0.0, clip=clip, learning_rate=1.0
    )
    state = begun(made, data)

    def one(key, words):
        public = state.public if words is None else state.public._replace(words=words)
        at = state._replace(public=public)
        coins_key, noise_key = jax.random.split(key)
        drawn = made.noise.sample(noise_key, made.query(at, data, coins_key)[0])
        return made.update(at, drawn, data).public.item_factors

    draws = jax.random.split(keys.from_seed(3), 4000)
    words = (
        None
        if name == "gd"
        else jax.vmap(bits.public_words)(jax.random.split(keys.from_seed(4), 4000))
    )
    steps = np.asarray(state.public.item_factors) - np.asarray(
        jax.jit(jax.vmap(one, (0, None if words is None else 0)))(draws, words)
    )
    users, items = np.asarray(state.private.user_factors), np.asarray(state.public.item_factors)
    expected = np.mean([gradient_of(user, users, items) for user in range(USERS)], axis=0)
    error = steps.mean(0) - expected
    spread = steps.std(0) / math.sqrt(len(steps))
    assert scipy.stats.chi2.sf(float(np.sum((error / spread) ** 2)), error.size) > 1e-4
    assert np.abs(expected).max() > 5 * spread.max()


def test_the_pseudo_inverse_shrinks_by_the_share_of_dimensions():
    """Over draws of Φ, E[Φ†Φ] = (q/m)·I: the published lift is a projection, and loses the rest."""
    drawn = jax.vmap(bits.public_words)(jax.random.split(keys.from_seed(0), 400))
    items = jnp.eye(ITEMS)

    def through(words):
        compressed = projection.apply(words, "gaussian", items, Q)
        inverse = projection.gram_inverse(words, "gaussian", Q, ITEMS)
        return projection.apply_pseudo_inverse(words, "gaussian", inverse, compressed, ITEMS)

    mean = np.asarray(jax.jit(jax.vmap(through))(drawn)).mean(0)
    np.testing.assert_allclose(np.diag(mean), Q / ITEMS, atol=0.06)
    np.testing.assert_allclose(mean - np.diag(np.diag(mean)), 0, atol=0.06)


@pytest.mark.seconds
def test_algorithm_1_moves_users_after_the_items_and_algorithm_2_before(data):
    for made, first in ((gd(), "items"), (gd_dr(), "users")):
        state = begun(made, data)
        reports = made.noise.sample(
            keys.from_seed(1), made.query(state, data, keys.from_seed(2))[0]
        )
        after = made.update(state, reports, data)
        seen = after.public.item_factors if first == "items" else state.public.item_factors
        users, items = (
            np.asarray(state.private.user_factors, np.float64),
            np.asarray(seen, np.float64),
        )
        expected = users.copy()
        for user in range(USERS - 1):
            own = np.flatnonzero(RATINGS.user == user)
            if len(own):
                error = RATINGS.value[own] - 3.0 - items[RATINGS.item[own]] @ users[user]
                expected[user] -= 0.3 * (
                    -2 * error @ items[RATINGS.item[own]] / len(own) + 2e-8 * users[user]
                )
        np.testing.assert_allclose(after.private.user_factors, expected, atol=1e-5)


# -------------------------------------------------------------------------------------------------


def sent_in(made, data, rounds):
    state, total = begun(made, data), np.zeros(USERS, int)
    for number in range(rounds):
        reports, _ = made.query(state, data, keys.from_seed(number))
        total += np.asarray(reports.sent)
        state = made.update(
            state, made.noise.sample(keys.from_seed(99 + number), reports), data
        )._replace(step=state.step + 1)
    return total


@pytest.mark.seconds
def test_everybody_reports_exactly_k_times(data):
    """Not k + 1 times, as the printed loop would."""
    for name in ("gd", "gd-dr"):
        made = MAKERS[name](num_rounds=5)
        assert set(sent_in(made, data, 5)) == {5}
        guarantee = made.guarantee(5)
        assert (guarantee.epsilon, guarantee.delta, guarantee.unit, guarantee.status) == (
            1.0,
            0,
            "user",
            "proved",
        )
        assert guarantee.steps == 5
        assert made.guarantee(6).epsilon > 1.0


def test_in_a_partition_everybody_reports_once_with_all_of_epsilon(data):
    made = MAKERS["partition"](num_rounds=4)
    assert set(sent_in(made, data, 4)) == {1}
    sizes = np.bincount(np.asarray(begun(made, data).public.group), minlength=4)
    assert sizes.max() - sizes.min() <= 1
    assert (made.guarantee(4).epsilon, made.guarantee(4).steps) == (1.0, 1)
    assert made.guarantee(5).epsilon == 2.0


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 1.6])
@pytest.mark.parametrize("num_rounds", [1, 3, 7, 20, 50])
def test_the_reports_of_a_user_cost_no_more_than_epsilon(epsilon, num_rounds):
    each = config(epsilon=epsilon, num_rounds=num_rounds).epsilon_report
    assert Fraction(each) * num_rounds <= Fraction(epsilon)
    assert each == pytest.approx(epsilon / num_rounds, rel=1e-15)
    assert gd(epsilon=epsilon, num_rounds=num_rounds).guarantee(num_rounds).epsilon == epsilon


SLOW = {"sign", "transpose"}


@pytest.mark.seconds
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in MAKERS]
)
def test_training_runs_in_one_program_and_chunks_equal_the_whole(name, data):
    made = MAKERS[name]()
    state, key = begun(made, data), keys.from_seed(2)
    whole, info = protocol.train(made, key, state, data, 4)
    first, _ = protocol.train(made, key, state, data, 1)
    second, _ = protocol.train(made, key, first, data, 3)
    jax.tree.map(np.testing.assert_array_equal, whole, second)
    assert np.isfinite(info.loss).all()


@pytest.mark.parametrize("name", MAKERS)
def test_the_public_state_follows_the_reports_alone(name, data):
    """Another user's ratings, all of them: same reports, same public state, same release."""
    other = dataclasses.replace(
        RATINGS, value=np.where(RATINGS.user == 2, 6 - RATINGS.value, RATINGS.value)
    )
    other = other.take(~((other.user == 2) & (other.item == other.item[other.user == 2][0])))
    moved = dataclasses.replace(layout.make(other, num_devices=1), num_ratings=data.num_ratings)
    made = MAKERS[name]()
    state = begun(made, data)
    again = begun(made, moved)
    jax.tree.map(np.testing.assert_array_equal, state.public, again.public)
    reports = made.noise.sample(keys.from_seed(1), made.query(state, data, keys.from_seed(2))[0])
    here, there = made.update(state, reports, data), made.update(again, reports, moved)
    jax.tree.map(np.testing.assert_array_equal, here.public, there.public)
    released = {name for name, part in made.release(here)._asdict().items() if part is not None}
    assert released == {"item_factors", "center"}
    assert made.release(here).user_factors is None


def test_users_can_have_a_rate_of_their_own(data):
    """The paper has one: with the same number for both nothing changes, and V's step does not see
    the other.
    """
    ends = []
    for settings in ({}, {"user_learning_rate": 0.3}, {"user_learning_rate": 0.1}):
        made = gd_dr(**settings)
        ends.append(protocol.train(made, keys.from_seed(2), begun(made, data), data, 1)[0])
    same, equal, other = ends
    jax.tree.map(np.testing.assert_array_equal, same, equal)
    assert np.array_equal(same.public.item_factors, other.public.item_factors)
    start = begun(gd_dr(), data).private.user_factors
    moved, less = (np.asarray(end.private.user_factors - start) for end in (same, other))
    np.testing.assert_allclose(less, moved / 3, atol=1e-6)
    assert np.abs(moved).max() > 1e-2


def test_a_sweep_over_epsilon_compiles_once(data):
    key = keys.from_seed(0)
    protocol.train(gd(epsilon=1.0), key, begun(gd(), data), data, 2)
    before = protocol.train._cache_size()
    protocol.train(gd(epsilon=0.3, learning_rate=0.1, clip=2.0), key, begun(gd(), data), data, 2)
    assert protocol.train._cache_size() == before


@pytest.mark.seconds
def test_the_structural_audits_find_nothing():
    found = audits.audit(
        gd(),
        RATINGS,
        key=keys.from_seed(0),
        num_steps=2,
        only=STRUCTURAL,
        quick=True,
        num_neighbours=4,
    )
    by_name = {finding.audit: finding.verdict for finding in found}
    assert by_name["release"] == by_name["post-processing"] == "consistent", by_name
    assert "violated" not in by_name.values(), by_name


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"num_rounds": 0}, "num_rounds"),
        ({"rank": 0}, "rank"),
        ({"clip": -1.0}, "clip"),
        ({"user_learning_rate": 0.0}, "user_learning_rate"),
        ({"user_learning_rate": math.nan}, "user_learning_rate"),
        ({"regularization": -1.0}, "regularization"),
        ({"center": math.inf}, "center"),
        ({"num_projected": 0}, "num_projected"),
        ({"fresh_projection": True}, "transpose"),
    ],
)
def test_refusals(bad, told):
    with pytest.raises(ValueError, match=told):
        config(**bad)


def test_the_two_algorithms_are_not_mixed_up():
    with pytest.raises(ValueError, match="gd_dr"):
        local.gd(config(num_projected=3))
    with pytest.raises(ValueError, match="needs num_projected"):
        local.gd_dr(config())


ON_TWO_DEVICES = """
import jax, numpy as np
from tests.cases.local import MAKERS
from dpmf_jax.noise import keys
from dpmf_jax import layout
from dpmf_jax import protocol
from dpmf_jax.data import synthetic

many = synthetic.generate(num_users=1000, num_items=150, num_ratings=40000)
one, two = (layout.make(many, kind="split", num_devices=n) for n in (1, 2))
for name in ("gd", "gd-dr", "transpose"):
    made = MAKERS[name]()
    ends = []
    for data in (one, two):
        state = layout.replicate(data, protocol.begin(made, keys.from_seed(0), data))
        ends.append(protocol.train(made, keys.from_seed(2), state, data, 3)[0])
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    text = protocol.train.lower(made, keys.from_seed(2), state, two, 3).compile().as_text()
    print(name, sum("shard_map/while" in line and " while(" in line for line in text.splitlines()))
"""


@pytest.mark.slow
def test_two_devices_give_the_same_and_go_through_the_ratings_once():
    """Loops over blocks of a device's ratings in a compiled round: one for GD-DR, two for GD, whose
    passes differ.
    """
    said = python(ON_TWO_DEVICES, devices=2).stdout
    loops = dict(line.split() for line in said.splitlines())
    assert loops == {"gd": "2", "gd-dr": "1", "transpose": "1"}
