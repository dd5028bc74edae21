"""Noisy item means: the sums, their sensitivity and noise, averaging, the price, and a run that is
centred by them.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.tree_util import Partial

import accounting
import audits
import dpmf_jax
from accounting import digits
from accounting import gaussian as price
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import PrivacyError
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.gaussian import noisy_means
from dpmf_jax.noise import keys, ring
from tests.cases import ratings as cases
from tests.cases.audits import STRUCTURAL

pytestmark = pytest.mark.usefixtures("quick_compilation")

RELATIONS = ("rating value", "rating presence")
LOW, HIGH = 1.0, 5.0


def config(**settings) -> noisy_means.Config:
    return noisy_means.Config(**({"rating_range": (LOW, HIGH), "noise_multiplier": 3.0} | settings))


def some() -> Ratings:
    return cases.tiny(users=12, items=7, unrated=(0, 1))


def trained(made, ratings, num_steps=1, seed=0):
    data = layout.make(ratings, num_devices=1)
    init_key, train_key = jax.random.split(keys.from_seed(seed))
    return protocol.train(made, train_key, protocol.begin(made, init_key, data), data, num_steps)


def statistics(made, ratings):
    data = layout.make(ratings, num_devices=1)
    state = protocol.begin(made, keys.from_seed(0), data)
    return made.query(state, data, None)[0]


@pytest.mark.parametrize("kind", ["split", "dense"])
def test_the_statistics_are_the_sums(kind):
    ratings = some()
    data = layout.make(ratings, kind=kind, num_devices=1)
    made = noisy_means.mechanism(config(relation="rating presence"))
    (sums, counts), info = made.query(protocol.begin(made, keys.from_seed(0), data), data, None)
    unit = float(made.query.args[0].grid.unit)
    assert unit == 4 / 4096
    expected = np.bincount(ratings.item, ratings.value - 3.0, 7)
    np.testing.assert_array_equal(unit * ring.signed(sums), expected)
    np.testing.assert_array_equal(
        unit * ring.signed(counts), 2 * np.bincount(ratings.item, minlength=7)
    )
    assert float(info.loss) == pytest.approx(np.mean((ratings.value - 3.0) ** 2), rel=1e-6)


@pytest.mark.parametrize(
    ("relation", "rating_range"),
    [
        ("rating value", (0.1, 0.7)),
        ("rating presence", (1.0, 5.0)),
        ("rating value", (-3.0, 10.0)),
        ("rating presence", (-3.0, 10.0)),
    ],
)
def test_the_worst_neighbour_moves_the_statistics_by_the_sensitivity(relation, rating_range):
    low, high = rating_range
    made = noisy_means.mechanism(config(relation=relation, rating_range=rating_range))
    claimed = float(made.guarantee(1).sensitivity)
    ratings = some()
    ratings = dataclasses.replace(
        ratings, rating_range=rating_range, value=np.full_like(ratings.value, low)
    )
    most = 0.0
    for row in range(len(ratings)):
        if relation == "rating value":
            value = ratings.value.copy()
            value[row] = high
            other = dataclasses.replace(ratings, value=value)
        else:
            other = ratings.take(np.arange(len(ratings)) != row)
        here, there = (statistics(made, world) for world in (ratings, other))
        most = max(most, float(protocol.l2_distance(here, here, there)))
    assert most <= claimed * (1 + 1e-5)
    assert most == pytest.approx(claimed, rel=1e-4)  # and no more noise than that needs


def test_a_value_outside_the_range_moves_no_sum_further():
    made = noisy_means.mechanism(config())
    wild = dataclasses.replace(some(), value=np.full(50, 1e6, np.float32))
    top = dataclasses.replace(some(), value=np.full(50, HIGH, np.float32))
    np.testing.assert_array_equal(statistics(made, wild)[0], statistics(made, top)[0])


@pytest.mark.parametrize("relation", RELATIONS)
def test_noise_and_price_are_one_number(relation):
    """On no ratings the response is the noise: the promised scale passes a test of fit, 2/3 and 3/2
    of it do not.
    """
    nothing = (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
    empty = Ratings(*nothing, np.arange(2), np.arange(5000), (LOW, HIGH))
    made = noisy_means.mechanism(config(relation=relation))
    guarantee = made.guarantee(1)
    state, _ = trained(made, empty)
    promised = guarantee.noise_multiplier * guarantee.sensitivity
    assert len(state.public.total) == (1 if relation == "rating value" else 2)
    for leaf in state.public.total:
        p = [
            scipy.stats.kstest(np.asarray(leaf, np.float64) / (promised * f), "norm").pvalue
            for f in (1, 2 / 3, 1.5)
        ]
        assert p[0] > 1e-4  # false alarms: 1e-4 a leaf, and the key is fixed
        assert max(p[1:]) < 1e-6


@pytest.mark.parametrize("relation", RELATIONS)
def test_more_steps_average(relation):
    """Four steps at z tell as much as one at z/2, which costs the same: the same estimate from the
    same mean answer.
    """
    ratings = some()
    state, _ = trained(
        noisy_means.mechanism(config(relation=relation, noise_multiplier=4.0)), ratings, 4
    )
    total = [np.asarray(leaf) / 4 for leaf in state.public.total]
    one = noisy_means.mechanism(config(relation=relation, noise_multiplier=2.0))
    data = layout.make(ratings, num_devices=1)
    response = tuple(jnp.asarray(np.rint(leaf).astype(np.int32)).view(jnp.uint32) for leaf in total)
    after = one.update(protocol.begin(one, keys.from_seed(0), data), response, data)
    np.testing.assert_allclose(after.public.center, state.public.center, rtol=1e-4)
    assert one.guarantee(1).rho == pytest.approx(
        noisy_means.mechanism(config(noise_multiplier=4.0)).guarantee(4).rho
    )


def test_a_user_pays_for_every_rating_once():
    guarantee = noisy_means.mechanism(config()).guarantee(1)
    assert guarantee.for_user(9).rho == pytest.approx(9 * guarantee.rho)


@pytest.mark.seconds
@pytest.mark.parametrize("relation", RELATIONS)
def test_every_audit_finds_it_consistent(relation):
    made = noisy_means.mechanism(config(relation=relation))
    found = audits.audit(
        made,
        some(),
        key=keys.from_seed(0),
        num_steps=2,
        only=STRUCTURAL,
        quick=True,
        num_neighbours=16,
    )
    assert {finding.verdict for finding in found} <= {
        "consistent",
        "not applicable",
        "inconclusive",
    }
    assert sum(finding.verdict == "consistent" for finding in found) >= 6


@pytest.mark.seconds
def test_halved_noise_is_caught():
    made = noisy_means.mechanism(config())
    quiet = made._replace(noise=noisy_means.mechanism(config(noise_multiplier=1.5)).noise)
    found = audits.audit(
        quiet,
        some(),
        key=keys.from_seed(0),
        num_steps=2,
        only=STRUCTURAL,
        quick=True,
        num_neighbours=4,
    )
    assert "noise: scale" in [finding.audit for finding in found if finding.verdict == "violated"]


# --------------------------------------------------------------------------------------------------


def sound(**settings) -> gaussian.Config:
    return gaussian.Config(
        **({"rating_range": (LOW, HIGH), "noise_multiplier": 5.0, "rank": 2} | settings)
    )


def test_the_shares_cost_what_the_whole_does():
    first, rest = noisy_means.split(7.0, 40, 0.1)
    assert 0.5 / first**2 + 40 / 2 / rest**2 == pytest.approx(40 / 2 / 7.0**2, rel=1e-12)
    assert 0.5 / first**2 == pytest.approx(0.1 * 40 / 2 / 7.0**2, rel=1e-12)
    for share in (0.0, 1.0, -0.5, math.nan):
        with pytest.raises(PrivacyError, match="share"):
            noisy_means.split(7.0, 40, share)


@pytest.mark.seconds
@pytest.mark.parametrize("make", [gaussian.joint_noise, gaussian.public_items])
def test_a_run_starts_from_the_noisy_means_and_both_are_priced(make):
    ratings, made = some(), make(sound())
    first = noisy_means.mechanism(config())
    model = dpmf_jax.fit(ratings, made, num_steps=3, seed=0, earlier=((first, 1),), chunk_steps=2)
    assert model.guarantee.mechanism == f"noisy-item-means + {made.guarantee(1).mechanism}"
    assert model.guarantee.status == "proved"
    rho = 0.5 / 9 + 3 / 2 / 25
    assert model.guarantee.rho == pytest.approx(rho, rel=1e-6)
    assert model.guarantee.epsilon == digits.round_up(
        price.epsilon_exact(model.guarantee.rho, 1e-5)
    )
    assert "item means" in model.guarantee.released
    center = np.asarray(model.release.center)
    assert center.shape == (7,)
    assert len(set(center.tolist())) > 1

    data = layout.make(ratings)
    init_key, _ = jax.random.split(keys.from_seed(0))
    begun = protocol.begin(made, init_key, data, ((first, 1),))
    np.testing.assert_array_equal(begun.public.center, center)


def test_without_earlier_phases_a_run_begins_with_init():
    made, data = gaussian.joint_noise(sound()), layout.make(some(), num_devices=1)
    begun, direct = (
        protocol.begin(made, keys.from_seed(3), data),
        made.init(keys.from_seed(3), data, None),
    )
    jax.tree.map(np.testing.assert_array_equal, begun, direct)


@pytest.mark.seconds
def test_a_key_is_split_or_drawn_from_once(monkeypatch):
    """Of everything before the first training step: what is split is not drawn from, and nothing is
    used twice.
    """
    used = []

    def once(real):
        def call(key, *rest, **options):
            words = jax.random.key_data(key)
            if not isinstance(words, jax.core.Tracer):  # of a branch that is not taken
                used.append(np.asarray(words).tobytes())
            return real(key, *rest, **options)

        return call

    for name in ("split", "normal"):
        monkeypatch.setattr(jax.random, name, once(getattr(jax.random, name)))
    with jax.disable_jit():
        first = noisy_means.mechanism(config())
        protocol.begin(
            gaussian.joint_noise(sound()),
            keys.from_seed(0),
            layout.make(some(), num_devices=1),
            ((first, 2),),
        )
    assert len(used) == len(set(used)) > 8


@pytest.mark.seconds
def test_the_phases_draw_from_different_keys():
    """A run's key is spent once: means, initial factors and steps see none of each other's
    coins.
    """
    drawn = []

    def listening(noise):
        def sample(key, value):
            jax.debug.callback(
                lambda words: drawn.append(words.tobytes()), jax.random.key_data(key)
            )
            return noise.sample(key, value)

        return noise._replace(sample=Partial(sample))

    first = noisy_means.mechanism(config())
    first = first._replace(noise=listening(first.noise))
    made = gaussian.joint_noise(sound())
    made = made._replace(noise=listening(made.noise))
    data = layout.make(some(), num_devices=1)
    init_key, train_key = jax.random.split(keys.from_seed(0))
    state = protocol.begin(made, init_key, data, ((first, 2),))
    protocol.train(made, train_key, state, data, 3)
    jax.effects_barrier()
    assert len(drawn) == len(set(drawn)) == 5


@pytest.mark.seconds
def test_resume_ends_in_the_same_bytes(tmp_path):
    from dpmf_jax.training.fit import Interrupted

    made, first = gaussian.joint_noise(sound()), noisy_means.mechanism(config())
    options = {
        "num_steps": 6,
        "seed": 0,
        "earlier": ((first, 1),),
        "chunk_steps": 2,
        "checkpoint_seconds": 0.0,
    }
    whole = dpmf_jax.fit(some(), made, out=tmp_path / "whole", **options)

    def stop(progress):
        if progress.step >= 4:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        dpmf_jax.fit(some(), made, out=tmp_path / "cut", report=stop, **options)
    other = ((noisy_means.mechanism(config(noise_multiplier=4.0)), 1),)
    with pytest.raises(PrivacyError, match="another"):
        dpmf_jax.fit(
            some(), made, out=tmp_path / "cut", resume=True, **(options | {"earlier": other})
        )
    resumed = dpmf_jax.fit(some(), made, out=tmp_path / "cut", resume=True, **options)
    for a, b in zip(whole.factors, resumed.factors, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.seconds
def test_the_price_on_the_way_ends_at_the_whole_price():
    spent = []
    made, first = gaussian.joint_noise(sound()), noisy_means.mechanism(config())
    model = dpmf_jax.fit(
        some(),
        made,
        num_steps=4,
        seed=0,
        earlier=((first, 1),),
        chunk_steps=1,
        report=lambda now: spent.append(now),
    )
    assert [now.step for now in spent] == [1, 2, 3, 4]
    epsilons = [now.epsilon for now in spent]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] == pytest.approx(price.epsilon_exact(0.5 / 9 + 0.5 / 25, 1e-5), rel=1e-5)
    assert epsilons[-1] <= model.guarantee.epsilon <= epsilons[-1] + 1.01e-4


@pytest.mark.seconds
def test_each_phase_is_audited_for_its_own_steps():
    made, first = gaussian.joint_noise(sound(residual_clip=1.0)), noisy_means.mechanism(config())
    options = {
        "key": keys.from_seed(0),
        "num_steps": 3,
        "only": STRUCTURAL,
        "quick": True,
        "num_neighbours": 4,
    }
    found = audits.audit(made, some(), earlier=((first, 1),), **options)
    assert {finding.details["phase"] for finding in found} == {0, 1}
    assert not [finding for finding in found if finding.verdict == "violated"]
    quiet = first._replace(noise=noisy_means.mechanism(config(noise_multiplier=1.5)).noise)
    broken = [
        f
        for f in audits.audit(made, some(), earlier=((quiet, 1),), **options)
        if f.verdict == "violated"
    ]
    assert "noise: scale" in [finding.audit for finding in broken]
    assert {finding.details["phase"] for finding in broken} == {0}


def test_phases_of_different_relations_are_not_added_up():
    made = gaussian.joint_noise(sound())
    other = noisy_means.mechanism(config(relation="rating presence"))
    with pytest.raises(ValueError, match="differ in unit"):
        dpmf_jax.fit(some(), made, num_steps=3, seed=0, earlier=((other, 1),))
    wide = noisy_means.mechanism(config(tau=5.0)).guarantee(1)
    assert (
        accounting.compose(wide, gaussian.joint_noise(sound(tau=5.0)).guarantee(2)).largest_change
        == 5
    )


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"rating_range": (5.0, 1.0)}, "rating_range"),
        ({"tau": 3.0}, "below the width"),
        ({"delta": 0.0}, "delta"),
    ],
)
def test_refusals(bad, told):
    with pytest.raises((ValueError, PrivacyError), match=told):
        config(**bad)
