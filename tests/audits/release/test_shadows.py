"""The worlds that coins make, and what releases predict in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audits.release import canaries, shadows
from dpmf_jax import layout, protocol
from dpmf_jax.kernels import count_sketch
from dpmf_jax.mechanisms.sampled import langevin
from dpmf_jax.mechanisms.silent import silent
from dpmf_jax.mechanisms.sketch import dpsgd as sketch_dpsgd
from dpmf_jax.noise import keys
from tests.cases.membership import (
    DATA,
    ITEMS,
    RATINGS,
    STEPS,
    USERS,
    make_plan,
    sound,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


def table(data):
    """Values by user and item, not a number where there is none."""
    dense = np.full((USERS, ITEMS), np.nan)
    value, present = (np.asarray(leaf) for leaf in layout.stored_values(data))
    if data.kind == "dense":
        dense[present] = value[present]
    else:
        side = data.stored.by_user
        rows = np.broadcast_to(np.asarray(side.row)[:, None], value.shape)
        dense[rows[present], np.asarray(side.column)[present]] = value[present]
    return dense


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["dense", "split"])
@pytest.mark.parametrize("presence", [True, False])
def test_coins_make_the_worlds_that_they_say(kind, presence):
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    plan = canaries.plan(
        np.random.default_rng(1), RATINGS, data, presence=presence, side=None, num_ratings=10
    )
    coins = np.random.default_rng(2).random(plan.num) < 0.5
    expected, toggles = table(data), plan.toggles
    for user, item, owner, value_in, value_out in zip(
        toggles.address.user,
        toggles.address.item,
        toggles.owner,
        toggles.value_in,
        toggles.value_out,
        strict=True,
    ):
        out = np.nan if presence else value_out
        expected[user, item] = value_in if coins[owner] else out
    found = shadows.world(data, toggles, jnp.asarray(coins), presence=presence)
    np.testing.assert_array_equal(table(found), expected)
    by_item = layout.sum_by_item(
        found, lambda row, columns, values, present: jnp.sum(present), jnp.zeros(ITEMS), ()
    )
    np.testing.assert_array_equal(by_item, np.sum(~np.isnan(expected), axis=0))
    users = [
        int(user)
        for user in np.unique(np.asarray(toggles.address.user)[np.asarray(toggles.owner) >= 10])
    ]
    assert len(users) == plan.num - plan.num_ratings > 0
    singles = np.asarray(toggles.address.user)[np.asarray(toggles.owner) < 10]
    assert not set(singles.tolist()) & set(users)
    assert len(set(singles.tolist())) == 10


def test_a_value_s_canary_changes_by_what_the_price_covers():
    plan = make_plan(presence=False, change=2.5)
    assert set(plan.value_out) == {1.0}
    assert set(plan.value_in) == {3.5}
    wide = make_plan(presence=False)
    assert set(wide.value_in) == {5.0}


def observe(mechanism, plan, coins, *, seed=0, stranger=False):
    runs = len(coins)
    starts = jax.random.split(keys.from_seed(98), runs)  # what strangers see is dealt out by these
    return shadows.observe(
        ((mechanism, STEPS),),
        RATINGS,
        DATA,
        plan,
        coins=coins,
        keys=jax.random.split(keys.from_seed(seed), runs),
        starts=starts if stranger else jnp.repeat(keys.from_seed(99)[None], runs),
        stranger=np.full(runs, stranger),
    ).predictions


@pytest.fixture(scope="module")
def run():
    """One run's release, step by step, beside what the program predicts of it."""
    plan = make_plan()
    coins = np.arange(plan.num)[None] % 2 == 0
    own = shadows.world(DATA, plan.toggles, jnp.asarray(coins[0]), presence=True)
    made = sound()
    _, _, train_key = jax.random.split(jax.random.split(keys.from_seed(0), 1)[0], 3)
    state = made.init(keys.from_seed(99), own, None)
    state, _ = protocol.train(made, train_key, state, own, STEPS)
    return plan, coins, made.release(state)


@pytest.mark.seconds
def test_predictions_are_the_release_s(run):
    plan, coins, release = run
    user, item = (np.asarray(part) for part in (plan.probes.user, plan.probes.item))
    expected = release.center + np.sum(
        np.asarray(release.user_factors)[user] * np.asarray(release.item_factors)[item], 1
    )
    np.testing.assert_allclose(observe(sound(), plan, coins)[0, 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.seconds
@pytest.mark.parametrize("side", ["user", "item"])
def test_a_side_that_is_not_released_is_fitted_to_what_the_attacker_knows(run, side):
    release, plan = run[-1], make_plan(side)
    part = release._replace(**{"item_factors" if side == "user" else "user_factors": None})
    found = np.asarray(shadows.predicted(part, plan.probes, None))
    factors = np.asarray(part.user_factors if side == "user" else part.item_factors, np.float64)
    ids = np.asarray(plan.probes.user if side == "user" else plan.probes.item)
    center = float(release.center)
    for who, known in enumerate(plan.probes.known):
        other, value, weight = (np.asarray(leaf, np.float64) for leaf in known)
        rows = factors[other.astype(int)]
        ridge = np.sum(weight * np.sum(rows**2, -1)) / np.sum(weight) + 1e-6
        for probe in range(len(ids)):
            w = weight[probe][:, None]
            gram = (w * rows[probe]).T @ rows[probe] + ridge * np.eye(factors.shape[1])
            solved = np.linalg.solve(gram, (w * rows[probe]).T @ (value[probe] - center))
            assert found[who, probe] == pytest.approx(
                center + factors[ids[probe]] @ solved, rel=1e-3, abs=1e-3
            )


@pytest.mark.seconds
@pytest.mark.parametrize("side", [None, "item"])
def test_lists_are_the_best_of_what_a_watcher_has_not_rated(run, side):
    """By the released vectors of users; by fitted ones where items alone are released."""
    release, plan = run[-1], make_plan(side, num_ratings=4, num_users=2, num_watchers=5)
    users, items = (np.asarray(part, np.float64) for part in release[:2])
    watcher, known = plan.probes.watchers
    assert not set(np.asarray(watcher)) & set(np.asarray(plan.toggles.address.user))
    other, value, weight = (np.asarray(leaf, np.float64) for leaf in known)
    center, other = float(release.center), other.astype(int)
    vectors = users[np.asarray(watcher)]
    if side == "item":
        release = release._replace(user_factors=None)
        rows = items[other]
        ridge = np.sum(weight * np.sum(rows**2, -1)) / np.sum(weight) + 1e-6
        vectors = np.array(
            [
                np.linalg.solve(
                    (w[:, None] * row).T @ row + ridge * np.eye(items.shape[1]),
                    (w[:, None] * row).T @ (v - center),
                )
                for row, v, w in zip(rows, value, weight, strict=True)
            ]
        )
    found = np.asarray(shadows._lists(release, plan.probes, ITEMS, None))
    assert found.shape == (5, shadows.LISTED)
    for who, scores in enumerate(vectors @ items.T):
        rated = RATINGS.item[RATINGS.user == watcher[who]]
        assert set(rated) == set(other[who][weight[who] > 0])
        best = [item for item in np.argsort(-scores) if item not in rated][: shadows.LISTED]
        assert found[who, : len(best)].tolist() == best


def test_insiders_know_the_others_and_outsiders_the_record():
    """Of a single rating, its user's or item's other ratings against that rating alone; never the
    attacked one.
    """
    for side, by, other in (
        ("item", RATINGS.user, RATINGS.item),
        ("user", RATINGS.item, RATINGS.user),
    ):
        plan = make_plan(side)
        insider, outsider = plan.probes.known
        fitted = np.asarray(plan.probes.user if side == "item" else plan.probes.item)
        own = np.asarray(plan.probes.item if side == "item" else plan.probes.user)
        for probe in np.flatnonzero(plan.owner < plan.num_ratings):
            known = np.asarray(insider.other)[probe][np.asarray(insider.weight)[probe] > 0]
            assert set(known) == set(other[by == fitted[probe]]) - {own[probe]}
            assert (
                np.asarray(outsider.other)[probe][np.asarray(outsider.weight)[probe] > 0]
                == own[probe]
            )


@pytest.mark.seconds
def test_a_sketch_is_read_as_its_factors_are():
    config = langevin.Config(
        rating_range=(1.0, 5.0),
        num_steps=STEPS,
        sampling_rate=0.2,
        noise_multiplier=1.0,
        rank=3,
        clip_norm=0.5,
    )
    made, plan = sketch_dpsgd.mechanism(config), make_plan()
    release = made.release(made.init(keys.from_seed(0), DATA, None))
    reading = shadows.sketched(made, DATA)
    assert reading is not None
    found = shadows.predicted(release, plan.probes, reading)
    factors = count_sketch.factors(release, USERS, ITEMS)
    user, item = np.asarray(plan.probes.user), np.asarray(plan.probes.item)
    expected = factors.center + np.sum(
        np.asarray(factors.user_factors)[user] * np.asarray(factors.item_factors)[item], 1
    )
    np.testing.assert_allclose(np.asarray(found)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.seconds
def test_an_outsider_s_shadows_do_not_know_who_said_what():
    """Insiders' runs follow the ratings; strangers' see their values dealt out anew, run by run."""
    plan, quiet = make_plan(), silent(sound())
    coins = np.ones((4, plan.num), bool)
    own, dealt = (
        observe(quiet, plan, coins, stranger=stranger)[:, 0] for stranger in (False, True)
    )
    assert np.all(np.ptp(own, axis=0) == 0)
    assert np.all(np.ptp(dealt, axis=0) > 0)
