"""Whether a user took part, told from the release of a whole run of `als`; the attack by hand."""

import numpy as np
import pytest

from audits.release import attack_scores, membership, roc
from dpmf_jax import layout
from dpmf_jax.data import synthetic
from dpmf_jax.mechanisms import table
from dpmf_jax.noise import keys
from experiments.fit import mechanisms as fit_mechanisms

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_a_matched_filter_finds_what_moves_many_numbers_a_little():
    """Each coin moves each of 400 numbers by 0.15 of its noise: one by one they say nothing."""
    random = np.random.default_rng(0)
    effects = 0.15 * random.normal(size=(5, 400))

    def runs(num):
        coins = random.random((num, 5)) < 0.5
        return coins @ effects + random.normal(size=(num, 400)), coins

    (own, inside), (seen, truth) = runs(200), runs(200)
    scores = attack_scores.matched_filter(own, inside, seen)
    whole = roc.auc(scores.trials, truth)
    most = np.argmax(np.abs(effects), axis=1)
    signed = np.sign(effects[np.arange(5), most]) * seen[:, most]
    one = max(roc.auc(signed[:, coin], truth[:, coin]) for coin in range(5))
    assert whole > 0.93
    assert one < 0.75
    # A shadow is not scored by what was fitted to it.
    blind = attack_scores.matched_filter(random.normal(size=own.shape), inside, seen)
    told = roc.auc(blind.shadows, inside)
    low, high = roc.auc_interval(told, int(inside.sum()), int((~inside).sum()))
    assert low < 0.5 < high


def test_a_matched_filter_estimates_all_coins_together():
    """Two users who move the same numbers are told apart by what one of them moves alone."""
    random = np.random.default_rng(1)
    effects = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    coins = random.random((400, 2)) < 0.5
    own = coins @ effects + 0.05 * random.normal(size=(400, 3))
    scores = attack_scores.matched_filter(own, coins, own)
    np.testing.assert_array_equal(scores.trials > 0, coins)


def audit(epsilon, mend=lambda mechanism: mechanism):
    """The findings on users. mend: what is done to every phase."""
    ratings = synthetic.generate(num_users=120, num_items=30, num_ratings=1_200, rank=2)
    flags = fit_mechanisms.flags("als", epsilon=epsilon, rank=2, steps=2)
    phases, _ = fit_mechanisms.phases_and_settings("als", flags, ratings)
    *earlier, (mechanism, steps) = ((mend(made), num) for made, num in phases)
    found = membership.audit(
        mechanism,
        ratings,
        layout.make(ratings, kind="dense", num_devices=1),
        key=keys.from_seed(0),
        num_steps=steps,
        earlier=earlier,
        num_shadows=128,
        num_targets=6,
        num_users=2,  # each moves the data of the other
        control=table()["als"].control,
    )
    return {finding.audit.removeprefix("membership: "): finding for finding in found}


@pytest.mark.slow
def test_a_release_of_als_does_not_tell_who_took_part_and_one_without_noise_does():
    sound = audit(1.0)["user"]
    assert sound.verdict == "consistent"
    assert sound.details["control_auc"] >= membership.STRONG
    planted = audit(1.0, table()["als"].control)["user"]
    assert planted.verdict == "violated"
    assert planted.measured > planted.claimed
    assert planted.claimed == pytest.approx(sound.claimed)
