"""The audits of noise beside its scale: keys, entries, repeated values, support, faults,
devices.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from audits.mechanism import density, faults, noise_law
from audits.mechanism import keys as keys_used
from dpmf_jax import protocol
from dpmf_jax.mechanisms.federated import crowd
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.noise import laws as noise
from dpmf_jax.noise import ring
from tests.cases.processes import python
from tests.zoo import noise as zoo_noise
from tests.zoo.sound import DATA, RATINGS, SOUND, sound, steps

pytestmark = pytest.mark.usefixtures("quick_compilation")


def run(audit, mechanism, name, **options):
    return audit(mechanism, RATINGS, DATA, key=jax.random.key(0), num_steps=steps(name), **options)


QUICK = ("gaussian-joint-noise", "objective-public-users")


@pytest.mark.seconds
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SOUND]
)
def test_sound_noise_is_consistent(name):
    found = [
        finding
        for audit in (keys_used.audit, noise_law.audit, faults.audit)
        for finding in run(audit, sound(name), name)
    ]
    assert {finding.verdict for finding in found} <= {"consistent", "not applicable"}, list(
        map(str, found)
    )
    by_name = {finding.audit: finding for finding in found}
    assert by_name["noise: keys"].verdict == "consistent"
    assert by_name["noise: keys"].details["keys"] > 0
    assert (by_name["noise: faults"].verdict == "consistent") == (not name.startswith("local"))
    additive = not name.startswith("local")
    assert (by_name["noise: entries apart"].verdict == "consistent") == additive
    for finding in found:
        assert finding.to_dict()


# --- keys


def spent(fn, *args):
    return np.asarray(keys_used.recorded(fn)(*args)[1])


def data_of(keys):
    return np.asarray(jax.random.key_data(keys)).reshape(-1, 2)


def test_every_key_that_draws_is_recorded_in_order(key):
    def draws(key):
        a, b, c = jax.random.split(key, 3)
        x = jax.random.normal(a, (3,))
        y = jax.jit(lambda k: jax.random.uniform(k))(b)
        z = jax.vmap(lambda k: jax.random.laplace(k))(jax.random.split(c, 2))
        return x.sum() + y + z.sum()

    a, b, c = jax.random.split(key, 3)
    expected = np.concatenate([data_of(a), data_of(b), data_of(jax.random.split(c, 2))])
    np.testing.assert_array_equal(spent(draws, key), expected)
    result, _ = keys_used.recorded(draws)(key)
    assert float(result) == pytest.approx(float(draws(key)), rel=1e-5)


def test_keys_inside_loops_are_recorded(key):
    def loop(key):
        def body(total, step):
            return total + jax.random.normal(jax.random.fold_in(key, step)), step

        return jax.lax.scan(body, 0.0, jnp.arange(4))[0]

    expected = np.concatenate([data_of(jax.random.fold_in(key, step)) for step in range(4)])
    np.testing.assert_array_equal(spent(loop, key), expected)

    def until(key):  # how often is not known beforehand: the key that goes in is what is kept
        def body(carry):
            return carry[0] + 1, jax.random.uniform(jax.random.fold_in(key, carry[0]))

        return jax.lax.while_loop(lambda carry: carry[1] < 0.9, body, (0, 0.0))

    np.testing.assert_array_equal(spent(until, key), data_of(key))

    def either(key):
        return jax.lax.cond(True, lambda k: jax.random.uniform(k), lambda k: 0.0, key)

    np.testing.assert_array_equal(spent(either, key), data_of(key))


@pytest.mark.seconds
def test_what_is_followed_is_the_training_itself(key):
    """The same bits as without, and as many keys as steps have leaves."""
    made = sound("gaussian-joint-noise")
    state = protocol.begin(made, key, DATA)
    followed, keys = keys_used.recorded(lambda *args: protocol.train(*args, num_steps=4)[0])(
        made, key, state, DATA
    )
    plain, _ = protocol.train(made, key, state, DATA, 4)
    for a, b in zip(jax.tree.leaves(followed), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    expected = []
    for step in range(4):
        _, noise_key = jax.random.split(jax.random.fold_in(key, step))
        # of each leaf one key for its words, and one for the words beyond them
        leaves = jax.random.split(noise_key, 2)
        expected += [data_of(k) for leaf in leaves for k in jax.random.split(leaf)]
    np.testing.assert_array_equal(
        np.unique(keys, axis=0), np.unique(np.concatenate(expected), axis=0)
    )
    assert len(keys) == 4 * 2 * 2


def _twice(inner, key, statistics):
    first = inner(key, statistics)
    return jax.tree.map(lambda a, b, q: a + b - q, first, inner(key, statistics), statistics)


@pytest.mark.seconds
def test_a_key_spent_twice_in_one_step_is_found():
    made = sound("gaussian-public-items")
    planted = made._replace(noise=made.noise._replace(sample=Partial(_twice, made.noise.sample)))
    finding, _ = run(keys_used.audit, planted, "gaussian-public-items")
    assert finding.verdict == "violated"
    assert finding.measured == 2 * 6  # both keys of the leaf, in every step
    assert len(finding.details["replay"]["places"]) == 2


def _always(coins, key):
    del key
    return coins(jax.random.key(7))


@pytest.mark.seconds
def test_a_sample_that_is_the_same_in_every_step_is_found():
    """Its words are drawn by the sampler's own threefry, which the audit does not know."""
    sound_run, _ = run(keys_used.audit, sound("dpsgd"), "dpsgd")
    made = sound("dpsgd")
    finding, _ = run(keys_used.audit, made._replace(coins=Partial(_always, made.coins)), "dpsgd")
    assert (sound_run.verdict, finding.verdict) == ("consistent", "violated")
    assert finding.measured == steps("dpsgd") - 1


@pytest.mark.seconds
def test_a_key_that_is_fixed_is_found_in_a_run_and_over_runs():
    made = sound("gaussian-public-items")
    found = run(
        keys_used.audit, made._replace(noise=zoo_noise.one_key(made)), "gaussian-public-items"
    )
    assert [finding.verdict for finding in found] == ["violated", "violated"]
    # a leaf spends two keys: one for its words, and one for the words beyond them
    assert found[0].measured == 2 * (steps("gaussian-public-items") - 1)
    assert found[1].measured == 2 * (found[1].details["runs"] - 1)


@pytest.mark.seconds
def test_too_little_noise_in_whole_numbers_is_seen():
    """3 quarters of a discrete Laplace scale, in the sampler alone: sums mod 2^32 are stretched
    apart as well.
    """
    made = sound("federated-user")
    drawn, at_least = made.noise.sample.args
    less = crowd.noisy_sums(
        ring.discrete_laplace(0.75 * float(drawn.sample.args[0].scale)), at_least
    )
    for mechanism, verdict in (
        (made, "consistent"),
        (made._replace(noise=made.noise._replace(sample=less.sample)), "violated"),
    ):
        assert run(density.audit, mechanism, "federated-user")[1].verdict == verdict


# --- faults


def _quiet_on_zeros(inner, key, statistics):
    nothing = jax.tree.reduce(jnp.logical_and, jax.tree.map(lambda q: jnp.all(q == 0), statistics))
    return jax.tree.map(lambda r, q: jnp.where(nothing, q, r), inner(key, statistics), statistics)


def _quiet_when_large(inner, key, statistics):
    """Where a sum of ratings is further than 8 from the middle, in units of 4/4096."""
    return jax.tree.map(
        lambda r, q: jnp.where(jnp.abs(ring.signed(q)) > 8 * 1024, q, r),
        inner(key, statistics),
        statistics,
    )


def _quiet_at_infinity(inner, key, statistics):
    endless = jax.tree.reduce(
        jnp.logical_or, jax.tree.map(lambda q: jnp.any(jnp.isinf(q)), statistics)
    )
    return jax.tree.map(lambda r, q: jnp.where(endless, q, r), inner(key, statistics), statistics)


WAYS_ROUND = [
    ("noisy-item-means", _quiet_on_zeros, "no ratings"),
    ("noisy-item-means", _quiet_when_large, "all ratings at the top"),
    (
        "gaussian, published",  # of floats
        _quiet_at_infinity,
        "an entry of the statistics that is infinite",
    ),
]


@pytest.mark.seconds
@pytest.mark.one_case
@pytest.mark.parametrize(("name", "quiet", "world"), WAYS_ROUND)
def test_a_way_round_the_noise_is_found_at_an_extreme(name, quiet, world):
    made = sound(name)
    planted = made._replace(noise=made.noise._replace(sample=Partial(quiet, made.noise.sample)))
    found = run(faults.audit, planted, name)[0]
    assert found.verdict == "violated"
    assert world in found.details["without_noise"]
    assert "the ratings as they are" not in found.details["without_noise"]


def test_without_any_noise_there_is_nothing_to_go_round():
    made = sound("gaussian-public-items")._replace(noise=noise.none())
    assert run(faults.audit, made, "gaussian-public-items")[0].verdict == "not applicable"


# --- devices

ON_TWO = """
import sys
import jax
from tests.zoo.sound import DATA, RATINGS, sound
from audits.mechanism import faults
assert jax.device_count() == 2
for name in sys.argv[1:]:
    finding = faults.audit(sound(name), RATINGS, DATA, key=jax.random.key(0), num_steps=2)[1]
    print(finding.audit, finding.verdict, finding.details.get("why", ""))
"""


@pytest.mark.slow
def test_two_devices_draw_what_one_draws():
    names = ["gaussian-joint-noise", "federated-user"]
    done = python(ON_TWO, *names, devices=2, quick=True)
    assert [line.strip() for line in done.stdout.splitlines()] == [
        "noise: devices consistent"
    ] * len(names)


def test_where_there_are_several_devices_reports_of_bits_are_left_to_the_enumeration(monkeypatch):
    """They are no statistics with noise added, though they look alike."""
    monkeypatch.setattr(jax, "local_device_count", lambda: 2)
    made = local.gd(local.Config(epsilon=1.0, num_rounds=2, rank=2, center=3.0))
    finding = faults._devices(made, RATINGS, jax.random.key(0), 1)
    assert finding.verdict == "not applicable"
    assert "bits" in finding.details["why"]
