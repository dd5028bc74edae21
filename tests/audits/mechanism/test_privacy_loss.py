"""Privacy loss on trial: sound mechanisms stay consistent, the bound nears the exact one, too
little noise is seen.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from accounting import gaussian as price
from audits.mechanism import loss_draws, privacy_loss, sampled_loss
from dpmf_jax import layout, protocol
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.objective import mechanisms as objective
from dpmf_jax.mechanisms.sampled import langevin
from dpmf_jax.mechanisms.sketch import dpsgd as sketch_dpsgd
from dpmf_jax.noise import keys
from tests.cases import noises
from tests.cases.ratings import share

pytestmark = pytest.mark.usefixtures("quick_compilation")

RANGE = (1.0, 5.0)
# below the norms of all factors, so that the sensitivity is reached
CONFIG = gaussian.Config(
    rating_range=RANGE, noise_multiplier=5.0, rank=3, learning_rate=0.001, clip_norm=0.25
)
STEPS, SAMPLED_STEPS = 8, 10


RATINGS = share(0.5, (10, 6))
DATA = layout.make(RATINGS, kind="dense", num_devices=1)


def audit(mechanism, num_steps=STEPS, *, seed=0, data=DATA, **settings):
    """Densities are on trial in `test_density`: here only where a test asks for it."""
    settings = {"density_findings": (), **settings}
    return privacy_loss.audit(
        mechanism, RATINGS, data, key=keys.from_seed(seed), num_steps=num_steps, **settings
    )


def sampled(**settings):
    defaults = {
        "rating_range": RANGE,
        "num_steps": SAMPLED_STEPS,
        "sampling_rate": 0.2,
        "noise_multiplier": 1.0,
        "rank": 3,
    }
    return langevin.Config(**(defaults | settings))


@pytest.mark.seconds
@pytest.mark.parametrize(
    "maker", [gaussian.joint_noise, pytest.param(gaussian.mechanism, marks=pytest.mark.slow)]
)
def test_the_bound_nears_what_the_pair_costs(maker):
    findings = audit(maker(CONFIG), num_runs=3_000)
    assert [finding.audit for finding in findings] == [
        "privacy loss: δ = 0.01",
        "privacy loss: δ = 1e-05",
    ]
    for finding in findings:
        assert finding.verdict == "consistent"
        assert finding.lower >= 0.96 * finding.details["epsilon_of_the_pair"]
        assert finding.lower <= finding.claimed


@pytest.mark.seconds
def test_too_few_runs_to_see_any_violation_may_not_say():
    for finding in audit(gaussian.joint_noise(CONFIG), num_runs=1):
        assert finding.verdict == "inconclusive"
        assert "would show no violation" in finding.details["why"]


@pytest.mark.seconds
@pytest.mark.parametrize("share", [0.9, pytest.param(0.95, marks=pytest.mark.slow)])
def test_less_noise_than_is_priced_is_found(share):
    """In the sampler and in its density, which agree: the density audit sees nothing."""
    made = gaussian.joint_noise(CONFIG)
    less = made._replace(noise=noises.share_of(made, share))
    findings = audit(less, num_runs=3_000, density_findings=None)
    assert {finding.verdict for finding in findings} == {"violated"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("maker", "unit", "kind"),
    [
        (langevin.dpsgd, "rating presence", "split"),
        (sketch_dpsgd.mechanism, "rating value", "dense"),
    ],
)
def test_on_secret_samples_the_record_s_own_coin_is_mixed(maker, unit, kind, request):
    if maker is sketch_dpsgd.mechanism:  # computes for longer than it compiles
        request.getfixturevalue("optimized")
    made = maker(sampled(unit=unit, clip_norm=0.2))
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    for finding in audit(made, SAMPLED_STEPS, num_runs=1_500, deltas=(1e-2,), data=data):
        assert finding.verdict == "consistent"
        assert 0.95 * finding.claimed < finding.lower <= finding.claimed


@pytest.mark.slow
def test_less_noise_on_secret_samples_is_found():
    made = langevin.dpsgd(sampled(unit="rating value", clip_norm=0.2))
    less = made._replace(noise=noises.share_of(made, 0.7))
    [found] = audit(less, SAMPLED_STEPS, num_runs=500, deltas=(1e-2,))
    assert found.verdict == "violated"


@pytest.mark.parametrize("kind", ["dense", "split"])
def test_the_slot_in_which_two_worlds_differ_is_the_records(kind):
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    address = layout.locate(data, RATINGS.user[5], RATINGS.item[5])
    values, _ = layout.stored_values(layout.replace_value(data, address, 7.0))
    for other in (layout.remove_rating(data, address), layout.replace_value(data, address, 7.0)):
        np.testing.assert_array_equal(
            sampled_loss.differing(data, other), np.asarray(values) == 7.0
        )
    assert not np.any(sampled_loss.differing(data, data))


@pytest.mark.parametrize("kind", ["dense", "split"])
def test_one_records_part_is_set_and_nobody_elses(kind):
    """By the rates of the slots, in the project's own sampler."""
    from dpmf_jax.layout import poisson

    data = layout.make(RATINGS, kind=kind, num_devices=1)
    address = layout.locate(data, RATINGS.user[5], RATINGS.item[5])
    record = sampled_loss.differing(data, layout.remove_rating(data, address))
    draw = jax.jit(lambda key, rate: poisson.sample(data, key, rate, poisson.num_slots(data)))
    for number in range(4):
        drawn = {}
        for what, rate in (
            ("plain", 0.2),
            ("in", jnp.where(record, 1, 0.2)),
            ("out", jnp.where(record, 0, 0.2)),
        ):
            sample = draw(jax.random.key(number), rate)
            there = np.asarray(sample.present)
            drawn[what] = set(
                zip(np.asarray(sample.user)[there], np.asarray(sample.item)[there], strict=True)
            )
        own = (RATINGS.user[5], RATINGS.item[5])
        assert drawn["in"] - drawn["out"] == {own}
        assert drawn["out"] <= drawn["plain"] <= drawn["in"]


@pytest.mark.seconds
@pytest.mark.parametrize("law", [pytest.param("laplace", marks=pytest.mark.slow), "l2_laplace"])
def test_a_pure_price_is_held_against_the_largest_loss(law):
    settings = {
        "rating_range": RANGE,
        "epsilon": 0.8,
        "noise": law,
        "rank": 3,
        "regularization": 0.1,
        "prior_count": 20,
    }
    config = objective.Config(**settings)
    found = {
        finding.audit: finding
        for finding in audit(objective.public_users(config), 1, num_runs=1_000)
    }
    largest = found["privacy loss: largest"]
    assert {finding.verdict for finding in found.values()} == {"consistent"}
    assert largest.claimed == pytest.approx(0.8)
    assert largest.measured > 0.1
    twice = objective.public_users(objective.Config(**(settings | {"epsilon": 8.0})))
    louder = twice._replace(guarantee=objective.public_users(config).guarantee)
    assert audit(louder, 1, num_runs=1_000)[-1].verdict == "violated"


def test_a_shift_goes_on_from_the_other_world_in_floats_and_in_the_ring():
    shift = jnp.float32(3)
    floats = sampled_loss.shifted(jnp.array([1.0, 2.0]), jnp.array([0.0, 2.0]), shift)
    np.testing.assert_allclose(floats, [3.0, 2.0])
    own, other = jnp.array([5, 1, 2**31], jnp.uint32), jnp.array([3, 2**32 - 1, 0], jnp.uint32)
    ring = np.asarray(sampled_loss.shifted(own, other, shift))
    assert ring[:2].tolist() == [9, 5]  # two steps further than two; across 0 too
    assert np.int64(ring[2]) - 2**31 == -(2**30)  # a quarter of the ring
    assert sampled_loss.shifted(own, other, jnp.float32(1)).tolist() == own.tolist()


def test_what_states_no_price_is_not_on_trial():
    made = gaussian.non_private(gaussian.Config(rating_range=RANGE, rank=3))
    assert {finding.verdict for finding in audit(made, 2)} == {"not applicable"}


@pytest.mark.slow
def test_the_same_key_says_the_same_and_the_pair_is_named():
    one, two = (audit(gaussian.joint_noise(CONFIG), 3, num_runs=200) for _ in range(2))
    assert [finding.to_dict() for finding in one] == [finding.to_dict() for finding in two]
    assert one[0].details["replay"]["pair"]["change"].startswith("rating set to")
    assert len(one[0].details["directions"]) == 2


@pytest.mark.slow
def test_another_pair_or_shift_compiles_nothing():
    audit(gaussian.joint_noise(CONFIG), 2, num_runs=200)
    before = loss_draws._draw._cache_size()
    audit(gaussian.joint_noise(CONFIG), 2, num_runs=200, seed=1)
    assert loss_draws._draw._cache_size() == before


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
def test_over_300_steps_the_bound_is_within_two_percent():
    """The exact ε of the audited pair, from its own μ."""
    config = gaussian.Config(
        rating_range=RANGE, noise_multiplier=20.0, rank=3, learning_rate=2e-4, clip_norm=0.25
    )
    [finding] = audit(gaussian.joint_noise(config), 300, num_runs=3_000, deltas=(1e-2,))
    assert finding.verdict == "consistent"
    exact = finding.details["epsilon_of_the_pair"]
    assert finding.lower >= 0.98 * exact
    assert exact <= price.epsilon_exact(300 / (2 * 20.0**2), 1e-2) * 1.0001


@pytest.mark.slow
def test_runs_do_not_share_their_noise():
    [finding] = audit(gaussian.joint_noise(CONFIG), 2, num_runs=300, deltas=(1e-2,))
    made = gaussian.joint_noise(CONFIG)
    start = protocol.begin(made, keys.from_seed(0), DATA)
    pair = loss_draws.Pair(made, (start, start), (DATA, DATA), 2, 100)
    losses, _ = pair.draw(jax.random.key(0), 50, loss_draws.Tilt(1.0, 1.0))
    assert np.all(losses.loss == 0)  # one world against itself
    assert finding.details["runs"] == 300
