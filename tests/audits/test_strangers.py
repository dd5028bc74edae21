"""Sound mechanisms of strangers are not called violated, whatever their words and parts; their bugs
are.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import audits
from audits import neighbours, search, transcript
from audits.mechanism import coins, post_processing, privacy_loss, sensitivity
from audits.program import pairs
from dpmf_jax import layout, parts
from dpmf_jax.noise import keys
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Poisson
from tests.zoo import alarms as zoo_alarms
from tests.zoo.sound import DATA, RATINGS, joint
from tests.zoo.strangers import (
    HIGH,
    LOW,
    RATE,
    STEPS,
    behind,
    by_map,
    dpsgd,
    drawn,
    of_dense,
    open_coins,
    small,
    sums,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


def loss_of(made, data=DATA, **options):
    """The densities are tried where they are on trial: density_findings=None."""
    settings = {
        "num_neighbours": 4,
        "num_runs": 512,
        "deltas": (1e-2,),
        "density_findings": (),
        **options,
    }
    [finding] = privacy_loss.audit(
        parts.as_pytree(made), RATINGS, data, key=keys.from_seed(0), num_steps=STEPS, **settings
    )
    return finding


# --- samples


@pytest.mark.seconds
def test_the_same_function_behind_another_partial_says_the_same():
    own, other = (loss_of(made, num_runs=256) for made in (dpsgd(), behind(dpsgd())))
    assert own.verdict == other.verdict == "consistent"
    assert other.lower == own.lower > 0.5 * own.claimed


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("query", "kind"),
    [
        (of_dense, "dense"),
        pytest.param(by_map, "dense", marks=pytest.mark.slow),
        (by_map, "split"),
    ],
)
def test_a_strangers_own_samples_are_held_to_their_price(query, kind):
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    made = sums(open_coins, query)
    found = loss_of(made, data)
    assert found.verdict == "consistent"
    assert found.lower > 0.5 * found.claimed
    less = loss_of(made._replace(noise=noise.gaussian(3.0)), data)
    assert less.verdict == "violated"


@pytest.mark.seconds
def test_a_strangers_samples_pass_the_audit_of_coins():
    made = parts.as_pytree(sums(open_coins, of_dense))
    found = coins.audit(made, RATINGS, DATA, key=jax.random.key(0), num_steps=STEPS)
    assert {finding.verdict for finding in found} == {"consistent"}


def rate_of(query):
    made = parts.as_pytree(sums(open_coins, query))
    return coins.audit(made, RATINGS, DATA, key=jax.random.key(0), num_steps=STEPS)[1]


def _far_ones_twice(state, data, coins):
    """Who is far from the middle is in twice as often as is priced, and others hardly ever."""
    values, present = layout.stored_values(data)
    often = jnp.where(jnp.abs(values - (LOW + HIGH) / 2) > 0.4, 2.0, 0.1)
    kept = jax.random.uniform(coins.key, present.shape) < coins.rate * often
    total = jnp.sum(jnp.where(present & kept, values, 0.0), 0)
    return total, Info(jnp.float32(0), jnp.float32(0))


def _rounded(state, data, coins):
    values, present = layout.stored_values(data)
    kept = present & drawn(coins, present.shape)
    return jnp.sum(jnp.where(kept, jnp.round(values), 0.0), 0), Info(*[jnp.float32(0)] * 2)


@pytest.mark.seconds
def test_who_is_far_from_a_prediction_is_looked_for_in_samples_too():
    found = rate_of(_far_ones_twice)
    assert found.verdict == "violated"
    assert found.details["rate_of_the_worst"] > 1.5 * RATE


@pytest.mark.seconds
def test_samples_in_which_nobody_is_seen_have_no_consistent_rate():
    """A sum of rounded ratings does not move with a small change of one."""
    found = rate_of(_rounded)
    assert found.verdict == "inconclusive"
    assert "no record was seen" in found.details["why"]


@pytest.mark.seconds
def test_coins_beside_others_are_found():
    def query(state, data, coins):
        return of_dense(state, data, coins["who"])

    assert (
        loss_of(sums(lambda key: {"who": open_coins(key), "else": None}, query)).verdict
        == "consistent"
    )


def hidden(state, data, coins):
    return of_dense(state, data, open_coins(coins))


def deaf(state, data, coins):
    return of_dense(state, data, coins._replace(rate=RATE))


def drawn_anew(state, data, coins):
    """Another rate for one, and everybody's coin is another."""
    count = jnp.sum(jnp.broadcast_to(coins.rate, layout.stored_values(data)[0].shape) * 100).astype(
        jnp.int32
    )
    return of_dense(state, data, coins._replace(key=jax.random.fold_in(coins.key, count)))


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("coins", "query", "told"),
    [
        (lambda key: key, hidden, "the coins do not say who is in"),
        (open_coins, deaf, "does not follow the rate of its coins"),
        (open_coins, drawn_anew, "changes the sample otherwise too"),
    ],
)
def test_samples_that_nobody_can_set_are_inconclusive_and_say_what_to_return(coins, query, told):
    found = loss_of(sums(coins, query))
    assert found.verdict == "inconclusive"
    assert told in found.details["why"]
    assert "dpmf_jax.protocol.Poisson(key, rate)" in found.details["why"]


def everybody(state, data, coins):
    return of_dense(state, data, coins._replace(rate=1.0))


@pytest.mark.seconds
def test_everybody_taken_at_the_price_of_samples_is_no_consistent_claim():
    """The audit of coins calls it violated; the privacy loss may not say that all is well."""
    made = sums(open_coins, everybody)
    assert loss_of(made).verdict == "inconclusive"
    found = coins.audit(
        parts.as_pytree(made), RATINGS, DATA, key=jax.random.key(0), num_steps=STEPS
    )
    assert {finding.audit: finding.verdict for finding in found}["coins: rate"] == "violated"


# --- words


@pytest.mark.parametrize("assumptions", [(), ("noise is as normals are",)])
def test_no_verdict_hangs_on_the_words_of_an_assumption(assumptions):
    def known(state, data, coins):
        return of_dense(state, data, Poisson(jax.random.key(0), 1.0))

    made = sums(
        lambda key: None, known, sampled=False, sigma=40.0, assumptions=assumptions, delta=1e-12
    )
    found = audits.audit(
        made,
        RATINGS,
        key=keys.from_seed(0),
        num_steps=STEPS,
        only=["noise law"],
        layout_kind="dense",
    )
    assert {finding.audit: finding.verdict for finding in found}["noise: support"] == "consistent"


# --- a smaller largest change


@pytest.mark.seconds
def test_a_claim_of_small_changes_is_not_held_against_large_ones():
    only = ["sensitivity", "privacy loss", "membership", "one run"]
    options = {"privacy loss": {"num_neighbours": 8, "num_runs": 256, "deltas": (1e-2,)}}
    found = audits.audit(
        small(),
        RATINGS,
        key=keys.from_seed(0),
        num_steps=STEPS,
        only=only,
        options=options,
        quick=True,
        layout_kind="dense",
    )
    assert [str(finding) for finding in found if finding.verdict == "violated"] == []
    by_name = {finding.audit: finding for finding in found}
    assert by_name["sensitivity: largest step"].measured == pytest.approx(1.0, rel=1e-5)
    assert by_name["privacy loss: δ = 0.01"].verdict == "consistent"


def test_too_small_a_sensitivity_for_its_own_largest_change_is_seen():
    made = parts.as_pytree(small(sensitivity=0.9))
    found = sensitivity.audit(made, RATINGS, DATA, key=keys.from_seed(0), num_steps=STEPS)
    assert {finding.verdict for finding in found} == {"violated"}
    assert loss_of(small(sensitivity=0.4)).verdict == "violated"


@pytest.mark.parametrize("change", [0.1, 0.7, 1.0, 3.0, 8.0])
def test_no_neighbour_changes_a_value_by_more_than_is_claimed(change, key):
    """The first ones, those near the worst, those climbed to, and those of the program: in float32,
    not by an ulp.
    """
    tried = neighbours.choose(key, RATINGS, DATA, unit="rating value", num=6, change=change)
    measured = lambda stacked: (np.asarray(stacked.value), np.asarray(stacked.value))  # noqa: E731
    tried, _ = search.greedy(measured, RATINGS, DATA, tried, rounds=3)
    climbed, _ = search.ascend(measured, RATINGS, tried, np.arange(tried.num))
    for found in (tried, climbed):
        moved = np.abs(np.asarray(found.stacked.value, np.float64) - RATINGS.value[found.index])
        assert np.all(moved <= change)
        values = np.asarray(found.stacked.value)
        assert np.all((values >= LOW) & (values <= HIGH))
    moved = np.abs(np.asarray(tried.stacked.value, np.float64)[:6] - RATINGS.value[tried.index[:6]])
    far = np.maximum(RATINGS.value - LOW, HIGH - RATINGS.value)[tried.index[:6]]
    np.testing.assert_allclose(moved, np.minimum(far, change), rtol=1e-5)
    for pair in pairs.choose(np.random.default_rng(0), RATINGS, "rating value", 8, change=change):
        assert 0 < np.max(np.abs(pair.first.value.astype(np.float64) - pair.second.value)) <= change


# --- what was replayed


@pytest.mark.seconds
def test_the_findings_promise_no_more_updates_than_were_replayed(monkeypatch):
    monkeypatch.setattr(transcript, "LONGEST", 32)
    made = parts.as_pytree(joint())
    for num_steps, each, every in (
        (40, "each of the first 32 updates, of 40,", "the first 32 steps, of 40"),
        (32, "every update", "all steps"),
    ):
        by_name = {
            finding.audit: finding
            for finding in post_processing.audit(
                made, RATINGS, DATA, key=keys.from_seed(0), num_steps=num_steps, num_neighbours=1
            )
        }
        assert each in by_name["post-processing"].claim
        assert every in by_name["release"].claim
        for name in ("init", "post-processing", "release"):
            assert by_name[name].details["steps"] == 32


# --- densities


def _doubled(log_ratio, *arguments):
    return 2 * log_ratio(*arguments)


@pytest.mark.seconds
def test_a_wrong_density_does_not_make_a_right_price_violated():
    made = joint(noise_multiplier=4.0)
    wrong = made.noise._replace(
        log_prob=Partial(_doubled, made.noise.log_prob),
        log_ratio=Partial(_doubled, made.noise.log_ratio),
    )
    found = loss_of(made._replace(noise=wrong), density_findings=None)
    assert found.verdict == "inconclusive"
    assert found.details["why"].startswith("density: sampler is violated")
    assert loss_of(made, density_findings=None).verdict == "consistent"


@pytest.mark.seconds
def test_the_privacy_loss_says_the_same_alone_and_after_the_densities():
    made = joint(noise_multiplier=4.0)
    made = made._replace(
        noise=made.noise._replace(log_ratio=Partial(_doubled, made.noise.log_ratio))
    )
    options = {"privacy loss": {"num_neighbours": 2, "num_runs": 64, "deltas": (1e-2,)}}
    alone, among = (
        audits.audit(
            made,
            RATINGS,
            key=keys.from_seed(0),
            num_steps=2,
            only=only,
            options=options,
            layout_kind="dense",
        )
        for only in (["privacy loss"], ["density", "privacy loss"])
    )
    assert [finding.audit for finding in alone] == ["privacy loss: δ = 0.01"]
    assert alone[0].to_dict() == among[-1].to_dict()
    assert alone[0].verdict == "inconclusive"
    assert "density: log_ratio" in alone[0].details["why"]


def test_a_known_guarantee_is_left_as_it_is():
    assert dataclasses.asdict(behind(dpsgd()).guarantee(STEPS)) == dataclasses.asdict(
        dpsgd().guarantee(STEPS)
    )


# --- false alarms


@pytest.mark.parametrize(("sensitivity", "alarms"), [(1.0, 0), (0.9, 4)])
def test_a_false_alarm_is_counted_with_its_key(sensitivity, alarms, monkeypatch):
    monkeypatch.setattr(zoo_alarms, "FAMILIES", ["sensitivity"])
    monkeypatch.setitem(zoo_alarms.STRANGERS, "small", lambda: (small(sensitivity), STEPS))
    told = zoo_alarms.counts("small", range(2))
    assert told["violated"] == alarms
    assert told["consistent"] == 4 - alarms
    assert (told["sensitivity: largest step, key 1"] == 1) == bool(alarms)
