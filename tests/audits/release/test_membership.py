"""Membership inference on trial: its rates by hand, its worlds and predictions, null and planted
mechanisms.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from audits.release import attack_scores, canaries, membership, roc, shadows
from dpmf_jax import layout, protocol
from dpmf_jax.devices import keys
from dpmf_jax.kernels import count_sketch
from dpmf_jax.mechanisms.federated import published as federated
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.objective import mechanisms as objective
from dpmf_jax.mechanisms.sampled import langevin
from dpmf_jax.mechanisms.silent import silent
from dpmf_jax.mechanisms.sketch import dpsgd as sketch_dpsgd
from tests.cases.membership import (
    DATA,
    ITEMS,
    RATINGS,
    STEPS,
    USERS,
    VALUE,
    blind,
    loud,
    one_sided,
    sound,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

SHADOWS = 24


# --- rates


def test_auc_is_the_chance_that_a_member_scores_higher():
    random = np.random.default_rng(0)
    scores, member = random.integers(0, 6, 60).astype(float), random.random(60) < 0.4
    pairs = scores[member][:, None] - scores[~member]
    assert roc.auc(scores, member) == pytest.approx(np.mean((pairs > 0) + (pairs == 0) / 2))


def test_the_curve_has_the_rates_of_every_threshold():
    random = np.random.default_rng(1)
    scores, member = random.integers(0, 5, 40).astype(float), random.random(40) < 0.5
    found = roc.curve(scores, member)
    assert list(found.threshold) == [np.inf, *sorted(set(scores), reverse=True)]
    for false, true, threshold in zip(*found, strict=True):
        assert false == np.mean(scores[~member] >= threshold)
        assert true == np.mean(scores[member] >= threshold)
    areas = (
        np.diff(found.false_positive_rate)
        * (found.true_positive_rate[1:] + found.true_positive_rate[:-1])
        / 2
    )
    assert roc.auc(scores, member) == pytest.approx(np.sum(areas))


def test_thresholds_keep_to_their_rate():
    random = np.random.default_rng(2)
    member = random.random(500) < 0.5
    scores = random.normal(size=500) + member
    for rate in (0.0, 0.01, 0.1, 1.0):
        threshold = roc.threshold_at(scores, member, rate)
        assert np.mean(scores[~member] >= threshold) <= rate
        lower = np.max(scores[scores < threshold], initial=-np.inf)
        assert np.mean(scores[~member] >= lower) > rate or np.isneginf(lower)
    best = roc.rates(scores, member, roc.best_threshold(scores, member))
    everywhere = [roc.rates(scores, member, at).advantage for at in scores]
    assert best.advantage == pytest.approx(max(everywhere))


def test_intervals_are_clopper_and_pearson_s():
    for hits, trials in ((0, 10), (3, 10), (10, 10), (7, 400)):
        expected = stats.binomtest(hits, trials).proportion_ci(0.95, method="exact")
        assert roc.clopper_pearson(hits, trials) == pytest.approx((expected.low, expected.high))
    assert roc.auc_interval(0.5, 30, 20)[0] < 0.5 < roc.auc_interval(0.5, 30, 20)[1]


def test_the_bound_of_the_advantage_is_reached_by_randomised_response():
    for epsilon, delta in ((0.1, 0.0), (1.0, 1e-3), (3.0, 0.1)):
        told = delta + (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
        wrong = (1 - delta) / (1 + math.exp(epsilon))
        assert roc.advantage_bound(epsilon, delta) == pytest.approx(told - wrong)
        by_hand = (math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1)
        assert roc.advantage_bound(epsilon, delta) == pytest.approx(by_hand)
    assert roc.advantage_bound(0.0, 0.0) == 0
    assert roc.advantage_bound(1000.0, 1e-5) == 1


def test_scores_of_one_kind_are_refused():
    with pytest.raises(ValueError, match="members"):
        roc.auc(np.zeros(3), np.ones(3, bool))
    with pytest.raises(ValueError, match="not a number"):
        roc.auc(np.array([0.0, np.nan]), np.array([True, False]))


def test_likelihood_ratios_of_shadows_leave_their_own_out():
    random = np.random.default_rng(3)
    inside = random.permuted(np.arange(12)[:, None] % 2 == np.zeros(5), axis=0)
    own, attacked = random.normal(size=(12, 5)) + 2 * inside, random.normal(size=(4, 5))
    found = attack_scores.likelihood_ratios(own, inside, attacked)
    assert found.shadows.shape == (12, 5)
    prior = attack_scores.PRIOR
    typical = {
        way: (
            sum(
                np.sum((x := own[inside[:, c] == way, c]) ** 2) - len(x) * np.mean(x) ** 2
                for c in range(5)
            )
            / (5 * 5)
        )
        for way in (True, False)
    }

    def by_hand(x, kept, c):
        logs = []
        for way in (True, False):
            values = own[kept & (inside[:, c] == way), c]
            squares = np.sum((values - values.mean()) ** 2) + prior * typical[way]
            spread = math.sqrt(squares / (len(values) - 1 + prior) + 1e-12)
            logs.append(stats.norm.logpdf(x, values.mean(), spread))
        return logs[0] - logs[1]

    for c in range(5):
        for run in range(12):
            assert found.shadows[run, c] == pytest.approx(
                by_hand(own[run, c], np.arange(12) != run, c)
            )
        for run in range(4):
            assert found.trials[run, c] == pytest.approx(
                by_hand(attacked[run, c], np.ones(12, bool), c)
            )


# --- worlds and predictions


def make_plan(side=None, presence=True, seed=0, **settings):
    return canaries.plan(
        np.random.default_rng(seed), RATINGS, DATA, presence=presence, side=side, **settings
    )


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
    return shadows.observe(
        mechanism,
        RATINGS,
        DATA,
        plan,
        coins=coins,
        keys=jax.random.split(keys.from_seed(seed), runs),
        starts=jnp.repeat(keys.from_seed(99)[None], runs),
        stranger=np.full(runs, stranger),
        num_steps=STEPS,
    )


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


def test_predictions_are_the_release_s(run):
    plan, coins, release = run
    user, item = (np.asarray(part) for part in (plan.probes.user, plan.probes.item))
    expected = release.center + np.sum(
        np.asarray(release.user_factors)[user] * np.asarray(release.item_factors)[item], 1
    )
    np.testing.assert_allclose(observe(sound(), plan, coins)[0, 0], expected, rtol=1e-4, atol=1e-4)


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


def test_an_outsider_s_shadows_do_not_know_who_said_what():
    """Insiders' runs follow the ratings; strangers' see their values dealt out anew, run by run."""
    plan, quiet = make_plan(), silent(sound())
    coins = np.ones((4, plan.num), bool)
    own, dealt = (
        observe(quiet, plan, coins, stranger=stranger)[:, 0] for stranger in (False, True)
    )
    assert np.all(np.ptp(own, axis=0) == 0)
    assert np.all(np.ptp(dealt, axis=0) > 0)


def test_the_control_has_no_noise_in_what_it_releases():
    made = [
        sound(),
        objective.public_users(
            objective.Config(rating_range=(1.0, 5.0), epsilon=1.0, prior_count=20, rank=3)
        ),
    ]
    for mechanism in made:
        quiet = silent(mechanism)
        states = [mechanism.init(keys.from_seed(1), DATA, None)] * 2
        released = [
            quiet.release(protocol.train(quiet, keys.from_seed(seed), state, DATA, 1)[0])
            for seed, state in enumerate(states)
        ]
        for one, two in zip(
            jax.tree.leaves(released[0]), jax.tree.leaves(released[1]), strict=True
        ):
            np.testing.assert_array_equal(one, two)
        noisy = mechanism.release(
            protocol.train(mechanism, keys.from_seed(0), states[0], DATA, 1)[0]
        )
        assert not np.array_equal(noisy.item_factors, released[0].item_factors)


@pytest.mark.parametrize("make", [federated.per_user, federated.statistics])
def test_the_control_of_a_crowd_has_no_noise_whatever_its_law(make):
    """Of whole numbers mod 2^32 too, whose law has no scale to set to 0: two keys, one response."""
    mechanism = make(
        federated.Config(epsilon=1.0, rating_range=(1.0, 5.0), rank=3, center=3.0, num_iterations=4)
    )
    state = mechanism.init(keys.from_seed(0), DATA, None)
    statistics = mechanism.query(state, DATA, mechanism.coins(keys.from_seed(1)))[0]

    def said(made, seed):
        return jax.tree.leaves(made.noise.sample(keys.from_seed(seed), statistics))

    def same(made):
        return all(np.array_equal(a, b) for a, b in zip(said(made, 2), said(made, 3), strict=True))

    assert same(silent(mechanism))
    assert not same(mechanism)


def test_the_control_is_the_same_program_on_other_numbers():
    """So nothing is compiled for it: the same functions, shapes and types."""
    settings = {"rating_range": (1.0, 5.0), "rank": 3}
    made = [
        sound(),
        objective.public_users(objective.Config(epsilon=1.0, prior_count=20, **settings)),
        federated.mechanism(federated.Config(epsilon=1.0, **settings)),
    ]
    for mechanism in made:
        quiet = silent(mechanism)
        assert jax.tree.structure(quiet) == jax.tree.structure(mechanism)
        leaves = list(zip(jax.tree.leaves(quiet), jax.tree.leaves(mechanism), strict=True))
        assert all(jax.typeof(jnp.asarray(a)) == jax.typeof(jnp.asarray(b)) for a, b in leaves)
        assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in leaves)


# --- the audit


def audit(mechanism, seed=0, **settings):
    settings = {"num_shadows": SHADOWS} | settings
    found = membership.audit(
        mechanism, RATINGS, DATA, key=keys.from_seed(seed), num_steps=STEPS, **settings
    )
    return {finding.audit.removeprefix("membership: "): finding for finding in found}


def rows(finding, which):
    return {row["attack"]: row for row in finding.details["attacks"] if row["mechanism"] == which}


def test_who_never_looks_is_never_called_violated():
    """Two seeds, four findings each, no chance above 1e-4; and every AUC's interval, at that level,
    holds a half.
    """
    for seed in (0, 1):
        for finding in audit(blind(), seed).values():
            assert finding.verdict != "violated"
            for row in rows(finding, "private").values():
                low, high = roc.auc_interval(row["auc"], row["members"], row["others"], 1 - 1e-4)
                assert low < 0.5 < high
    assert finding.measured <= finding.claimed


@pytest.mark.slow
def test_who_never_looks_is_bounded_above_nothing_no_more_often_than_is_said():
    found = [audit(blind(), seed) for seed in range(200)]
    for name in found[0]:
        assert "violated" not in {one[name].verdict for one in found}
        assert np.mean([one[name].measured > 0 for one in found]) <= 0.05 + 3 * math.sqrt(
            0.05 * 0.95 / 200
        )


@pytest.fixture(scope="module")
def findings():
    return audit(sound()), audit(loud())


def test_little_noise_is_seen_and_what_is_priced_is_not(findings):
    honest, broken = findings
    assert broken["rating, insider"].verdict == "violated"
    assert broken["user, insider"].measured > 1
    assert "violated" not in {finding.verdict for finding in honest.values()}
    replay = broken["rating, insider"].details["replay"]
    assert replay["pair"]["change"].startswith("the rating there")
    assert replay["key"] == np.asarray(jax.random.key_data(keys.from_seed(0))).tolist()


def test_without_noise_outliers_and_users_are_told_apart(findings):
    for level in ("rating, insider", "user, insider", "user, outsider"):
        finding = findings[0][level]
        assert finding.details["control_auc"] >= 0.9
        assert finding.verdict == "consistent" or finding.details["power"].startswith("none")
        assert max(row["auc"] for row in rows(finding, "private").values()) < 0.8


def test_a_weak_control_leaves_the_claim_open():
    for finding in audit(sound(), control=lambda private: blind()).values():
        assert finding.verdict == "inconclusive"
        assert "without noise the attack's AUC is" in finding.details["why"]


def test_what_is_asked_follows_the_unit():
    presence, value = audit(sound()), audit(sound(VALUE))
    assert "whether a rating was there" in presence["rating, insider"].claim
    assert "whether a rating was 1 or 5" in value["rating, outsider"].claim
    assert "whether all ratings of a user were 1 or 5" in value["user, insider"].claim
    most = max(np.bincount(RATINGS.user))
    price = sound(VALUE).guarantee(STEPS).for_user(int(most)).epsilon
    assert value["user, insider"].details["attacks"][0]["advantage_bound"] == pytest.approx(
        roc.advantage_bound(price, 1e-5)
    )
    assert (
        value["user, insider"].claimed > price > value["rating, insider"].claimed
    )  # at a smaller δ


def test_nothing_released_and_nothing_claimed():
    control = gaussian.non_private(dataclasses.replace(VALUE, noise_multiplier=None))
    assert {finding.verdict for finding in audit(control).values()} == {"not applicable"}
    config = langevin.Config(
        rating_range=(1.0, 5.0), num_steps=STEPS, sampling_rate=0.2, rank=3, learning_rate=0.01
    )
    for finding in audit(langevin.mechanism(config)).values():
        assert finding.verdict == "not applicable"
        assert finding.details["why"].endswith("states no price")
        assert {row["mechanism"] for row in finding.details["attacks"]} == {"private"}


@pytest.mark.parametrize("side", [pytest.param("user", marks=pytest.mark.slow), "item"])
def test_one_side_of_a_model_is_enough_for_an_insider(side):
    found = audit(one_sided(loud(), side))
    assert max(row["auc"] for row in rows(found["rating, insider"], "private").values()) > 0.75
    assert (
        found["user, insider"].details["control_auc"]
        > found["user, insider"].details["attacks"][0]["auc"] - 0.2
    )


def test_another_noise_or_seed_compiles_nothing(findings):
    before = shadows.predictions._cache_size()
    audit(loud(share=0.5), seed=5)
    assert shadows.predictions._cache_size() == before


def test_the_same_key_says_the_same(findings):
    again = audit(sound())
    assert [finding.to_dict() for finding in again.values()] == [
        finding.to_dict() for finding in findings[0].values()
    ]


def test_coins_that_fell_alike_leave_the_claim_open():
    plan, runs = make_plan(), 6
    role = np.repeat([0, 1, 2], 2)
    predictions = np.random.default_rng(0).normal(size=(runs, 1, len(plan.owner)))
    seen = {"private": membership.Seen(predictions, np.ones((runs, plan.num), bool), role)}
    found = membership._finding(
        "one", "rating", "insider", sound().guarantee(STEPS), RATINGS, plan, seen, {}, {}
    )
    assert found.verdict == "inconclusive"
    assert "alike" in found.details["why"]


@pytest.mark.slow
@pytest.mark.data
def test_on_movielens_it_takes_a_minute_and_a_half(data_dir):
    import dpmf_jax

    ratings = dpmf_jax.load("ml-100k", data_dir=data_dir)
    config = gaussian.Config(
        rating_range=(1.0, 5.0), noise_multiplier=20.0, rank=20, learning_rate=1e-3
    )
    data = layout.make(ratings, num_devices=1)
    found = membership.audit(
        gaussian.joint_noise(config), ratings, data, key=keys.from_seed(0), num_steps=100
    )
    assert "violated" not in {finding.verdict for finding in found}
    assert found[0].details["control_auc"] >= 0.9
