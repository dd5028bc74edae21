"""Membership inference on trial: its rates by hand, its worlds and predictions, null and planted
mechanisms.
"""

import dataclasses
import math

import jax
import numpy as np
import pytest

from audits.release import membership, roc, shadows
from dpmf_jax import layout
from dpmf_jax.data import synthetic
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.sampled import langevin
from dpmf_jax.noise import keys
from tests.cases.membership import (
    DATA,
    RATINGS,
    STEPS,
    VALUE,
    blind,
    loud,
    make_plan,
    one_sided,
    sound,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

SHADOWS = 24
NO_LISTS = np.zeros((40, 0, 10), int)


def audit(mechanism, seed=0, **settings):
    settings = {"num_shadows": SHADOWS} | settings
    found = membership.audit(
        mechanism, RATINGS, DATA, key=keys.from_seed(seed), num_steps=STEPS, **settings
    )
    return {finding.audit.removeprefix("membership: "): finding for finding in found}


def rows(finding, which):
    return {row["attack"]: row for row in finding.details["attacks"] if row["mechanism"] == which}


@pytest.mark.seconds
def test_who_never_looks_is_never_called_violated():
    """Two seeds, two findings each, no chance above 1e-4; and every AUC's interval, at that level,
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
    never = blind()
    found = [audit(never, seed) for seed in range(200)]
    for name in found[0]:
        assert "violated" not in {one[name].verdict for one in found}
        assert np.mean([one[name].measured > 0 for one in found]) <= 0.05 + 3 * math.sqrt(
            0.05 * 0.95 / 200
        )


@pytest.fixture(scope="module")
def findings():
    return audit(sound()), audit(loud())


@pytest.mark.seconds
def test_little_noise_is_seen_and_what_is_priced_is_not(findings):
    honest, broken = findings
    assert broken["rating"].verdict == "violated"
    assert broken["user"].measured > 1
    assert "violated" not in {finding.verdict for finding in honest.values()}
    replay = broken["rating"].details["replay"]
    assert replay["pair"]["change"].startswith("the rating there")
    assert replay["key"] == np.asarray(jax.random.key_data(keys.from_seed(0))).tolist()


def test_without_noise_outliers_and_users_are_told_apart(findings):
    for finding in findings[0].values():
        assert finding.details["control_auc"] >= 0.9
        assert finding.verdict == "consistent" or finding.details["power"].startswith("none")
        assert max(row["auc"] for row in rows(finding, "private").values()) < 0.8


def test_a_weak_control_leaves_the_claim_open():
    for finding in audit(sound(), control=lambda private: blind()).values():
        assert finding.verdict == "inconclusive"
        assert "the attack's AUC is" in finding.details["why"]


@pytest.mark.seconds
def test_what_is_recommended_to_others_is_attacked_too():
    """Without noise it tells who took part; without watchers nobody looks."""
    ratings = synthetic.generate(num_users=80, num_items=60, num_ratings=1_600, rank=2)
    data = layout.make(ratings, kind="dense", num_devices=1)
    config = dataclasses.replace(VALUE, relation="rating presence", noise_multiplier=100.0)
    options = {"key": keys.from_seed(0), "num_steps": STEPS, "num_shadows": 64}
    found = membership.audit(gaussian.joint_noise(config), ratings, data, **options)
    for finding in found:
        assert "lists, insider" in finding.details["p_values"]
        assert finding.verdict == "consistent"
    assert rows(found[1], "control")["lists, insider"]["auc"] > 0.9
    alone = audit(sound(), num_watchers=0)["user"]
    assert not [what for what in alone.details["p_values"] if what.startswith("lists")]


@pytest.mark.seconds
def test_the_control_leaves_nothing_to_chance():
    """Samples of a tenth hide a rating without noise too; an attack that knows them tells it."""
    config = langevin.Config(
        rating_range=(1.0, 5.0),
        noise_multiplier=4.0,
        rank=3,
        learning_rate=0.01,
        sampling_rate=0.1,
        clip_norm=2.0,
        num_steps=STEPS,
    )
    found = audit(langevin.dpsgd(config))
    assert found["rating"].details["control_auc"] >= 0.9
    assert found["rating"].verdict == "consistent"


def test_only_those_who_are_attacked_toss_coins(monkeypatch):
    """Users that come and go would hide a single rating."""
    tossed, observe = [], shadows.observe

    def noted(*given, coins, **options):
        fixed = np.all(coins == coins[0], axis=0)
        tossed.append(np.flatnonzero(~fixed))
        return observe(*given, coins=coins, **options)

    monkeypatch.setattr(shadows, "observe", noted)
    plan = make_plan(num_ratings=8, num_users=4)
    audit(sound(), num_targets=4, num_users=2)
    singles = [bool(np.all(who < plan.num_ratings)) for who in tossed]
    whole = [bool(np.all(who >= plan.num_ratings)) for who in tossed]
    assert [len(who) for who in tossed] == [8, 4, 4, 4, 2, 2]
    assert (singles, whole) == ([True] * 3 + [False] * 3, [False] * 3 + [True] * 3)


@pytest.mark.seconds
def test_what_is_asked_follows_the_unit():
    presence, value = audit(sound()), audit(sound(VALUE))
    assert "whether a rating was there" in presence["rating"].claim
    assert "whether a rating was 1 or 5" in value["rating"].claim
    assert "whether all ratings of a user were 1 or 5" in value["user"].claim
    most = max(np.bincount(RATINGS.user))
    price = sound(VALUE).guarantee(STEPS).for_user(int(most)).epsilon
    assert value["user"].details["attacks"][0]["advantage_bound"] == pytest.approx(
        roc.advantage_bound(price, 1e-5)
    )
    assert value["user"].claimed > price > value["rating"].claimed  # at a smaller δ


@pytest.mark.seconds
def test_a_price_that_lets_every_user_be_told_is_no_claim_about_users():
    """That of one rating, for all of a user's: refuting it takes more guesses than can be made."""
    cheap = dataclasses.replace(VALUE, noise_multiplier=3.0)
    found = audit(sound(cheap))
    assert found["user"].verdict == "not applicable"
    assert "all of a user's, the price is" in found["user"].details["why"]
    assert found["rating"].verdict != "not applicable"


def test_canaries_are_those_that_runs_without_noise_tell_best():
    plan, runs = make_plan(num_ratings=8), 40
    random = np.random.default_rng(0)
    coins = random.random((runs, plan.num)) < 0.5
    told = np.isin(np.arange(plan.num), (1, 4, 6))
    clear = np.where(coins & told, plan_values(plan), 0.0)
    predictions = (clear + 0.3 * random.normal(size=coins.shape))[:, plan.owner][:, None]
    seen = predictions, predictions[:, 0], NO_LISTS
    search = membership.Seen(*seen, coins, np.zeros(runs, int))
    candidates = np.arange(plan.num) < plan.num_ratings
    chosen = membership._most_telling(search, plan, candidates, 3)
    np.testing.assert_array_equal(np.flatnonzero(chosen), [1, 4, 6])
    first = membership._most_telling(None, plan, candidates, 3)
    np.testing.assert_array_equal(np.flatnonzero(first), [0, 1, 2])


def plan_values(plan):
    """The value that each canary has where it is in."""
    return np.array([plan.value_in[plan.owner == at][0] for at in range(plan.num)])


@pytest.mark.seconds
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


@pytest.mark.seconds
@pytest.mark.parametrize("side", [pytest.param("user", marks=pytest.mark.slow), "item"])
def test_one_side_of_a_model_is_enough_for_an_insider(side):
    found = audit(one_sided(loud(), side))
    assert max(row["auc"] for row in rows(found["rating"], "private").values()) > 0.75
    assert found["user"].details["control_auc"] > found["user"].details["attacks"][0]["auc"] - 0.2


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
    seen = {
        "private": membership.Seen(
            predictions, predictions[:, 0], NO_LISTS, np.ones((runs, plan.num), bool), role
        )
    }
    found = membership._finding(
        "one",
        "rating",
        np.arange(plan.num) < plan.num_ratings,
        seen,
        sound().guarantee(STEPS),
        RATINGS,
        plan,
        {},
        {},
    )
    assert found.verdict == "inconclusive"
    assert "alike" in found.details["why"]


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("optimized")
def test_on_movielens_the_sound_mechanism_is_not_called_violated(data_dir):
    import dpmf_jax

    ratings = dpmf_jax.load("ml-100k", data_dir=data_dir)
    config = gaussian.Config(
        rating_range=(1.0, 5.0), noise_multiplier=20.0, rank=20, learning_rate=5e-3
    )
    data = layout.make(ratings, num_devices=1)
    options = {"key": keys.from_seed(0), "num_steps": 20, "num_shadows": 16}
    found = membership.audit(gaussian.joint_noise(config), ratings, data, **options)
    assert "violated" not in {finding.verdict for finding in found}
    assert found[0].details["control_auc"] >= 0.9
