"""How many factors `als` learns, as noisy counts decide, and the means that it learns instead."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import layout, protocol
from dpmf_jax.data import splits, synthetic
from dpmf_jax.mechanisms.als import estimates
from dpmf_jax.mechanisms.als import phases as als
from dpmf_jax.models import metrics
from dpmf_jax.noise import keys
from tests.cases.als_messages import config

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS = 3_000, 60
SETTINGS = tuple(jnp.float32(value) for value in (0.8, 0.8, 0.15))
NEVER = 1e9  # a signal that no counts have


def said(users, items, ratings, deviation=0.0, *, rank=3):
    """The signal of users of so many ratings each, and of items that are all as popular."""
    count = jnp.full(items, users * ratings**0.5 / items, jnp.float32)
    return float(estimates.signal(count, users, jnp.float32(deviation), SETTINGS, rank))


def test_the_signal_is_that_of_a_factor_among_ratings():
    """√(a user's ratings · an item's) times a factor's variance over a rating's."""
    assert said(20_000, 500, 16) == pytest.approx((16 * 640) ** 0.5 * 0.05 / 0.8, rel=1e-5)
    assert said(20_000, 500, 16, rank=5) == pytest.approx(0.6 * said(20_000, 500, 16), rel=1e-5)
    assert said(20_000, 500, 2.9) == 0  # fewer than there are factors
    assert said(20_000, 500, 3.1) > 0
    noisy = [said(20_000, 500, 16, deviation) for deviation in (0.0, 1.0, 2.0, 8.0)]
    assert noisy == sorted(noisy, reverse=True)
    assert noisy[-1] < noisy[0] / 2
    # ratings of few items are many to each
    even = jnp.full(500, 160.0)
    head = jnp.where(jnp.arange(500) < 50, 910.0, 76.67)
    found = [estimates.signal(one, 20_000, jnp.float32(0), SETTINGS, 3) for one in (even, head)]
    assert found[1] > 1.5 * found[0]


def trained(settings, num_phases=None):
    """(state, mechanism, error on ratings held out) of a run, or of its first phases."""
    of = synthetic.generate(num_users=USERS, num_items=ITEMS, num_ratings=36_000, rank=2, seed=3)
    train, test = splits.random(of, fraction=0.1, seed=0)
    data = layout.make(train, kind="dense", num_devices=1)
    *earlier, (mechanism, num_steps) = als.phases(settings)[:num_phases]
    key = keys.from_seed(0)
    state = protocol.begin(mechanism, key, data, earlier)
    state, _ = protocol.train(mechanism, jax.random.fold_in(key, 1), state, data, num_steps)
    return state, mechanism, metrics.rmse(jax.device_get(protocol.factors(state)), test)


@pytest.mark.parametrize("non_negative", [False, pytest.param(True, marks=pytest.mark.seconds)])
def test_as_many_factors_are_learned_as_counts_say_and_the_others_stay_0(non_negative):
    """Two of four are learned as well as by a program of two."""
    change = {"noise_multiplier": 0.05, "num_passes": 3, "non_negative": non_negative}
    few, mechanism, error = trained(config(rank=4, few=2, much_signal=NEVER, **change))
    every, _, _ = trained(config(rank=4, few=2, least_signal=0.1, much_signal=0.2, **change))
    two, _, expected = trained(config(rank=2, **change))
    assert [int(state.public.num_learned) for state in (few, every, two)] == [2, 4, 2]
    assert np.asarray(every.public.item_factors).any(axis=0).all()
    release = mechanism.release(few)
    columns = np.asarray(release.item_factors)[:, 1:]
    assert not columns[:, :2].any()
    assert columns[:, 2:].any(axis=0).all()
    assert not np.asarray(release.factor_variance)[:, :2].any()
    assert not np.asarray(few.private.user_factors)[:, 1:3].any()
    assert error < 1.01 * expected


def test_means_in_place_of_factors_are_as_good_as_means_of_the_same_price():
    change = {"noise_multiplier": 0.3}
    instead, mechanism, error = trained(config(least_signal=NEVER, **change))
    shares = {"counts_share": 0.18, "means_share": 0.82, "factors_share": 0.0}
    _, _, expected = trained(config(**change, **shares, rank=0, num_passes=0, num_means=4))
    assert not np.asarray(mechanism.release(instead).item_factors)[:, 1:].any()
    assert not np.asarray(mechanism.release(instead).factor_variance).any()
    assert error == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("means_clip", [0.2, 0.8])
def test_a_pass_for_factors_says_of_means_what_one_for_means_says(means_clip):
    """Also where most messages are clipped; their mean scale is in the Gram matrix then."""
    change = {"noise_multiplier": 0.02, "means_clip": means_clip, "num_means": 1}
    one = config(**change, num_passes=1, counts_share=0.2, means_share=0.2, factors_share=0.6)
    factors, _, _ = trained(dataclasses.replace(one, least_signal=NEVER), num_phases=2)
    shares = {"counts_share": 0.2, "means_share": 0.8, "factors_share": 0.0}
    means, _, _ = trained(config(**change, **shares, rank=0, num_passes=0))
    found, expected = (np.asarray(state.public.center) - 3.0 for state in (factors, means))
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


def test_they_cost_what_factors_cost():
    prices = [
        [mechanism.guarantee(steps) for mechanism, steps in als.phases(config(least_signal=least))]
        for least in (0.0, NEVER)
    ]
    assert prices[0] == prices[1]
