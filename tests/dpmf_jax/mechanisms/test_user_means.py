"""Noisy user levels: what one rating moves, what is released, what it costs."""

import math

import numpy as np
import pytest

import audits
from accounting import gaussian
from dpmf_jax import layout, parts
from dpmf_jax.mechanisms.user_means import levels
from dpmf_jax.noise import keys
from tests.cases.ratings import share

RANGE = (1.0, 5.0)
CONFIG = levels.Config(rating_range=RANGE, noise_multiplier=1.5, center=3.0)


@pytest.fixture(scope="module")
def ratings():
    return share(0.6, (12, 7))


def statistics(ratings, config=CONFIG):
    mechanism, data = levels.mechanism(config), layout.make(ratings, num_devices=1)
    state = mechanism.init(keys.from_seed(0), data, None)
    return mechanism, data, state, mechanism.query(state, data, None)[0]


def test_the_statistics_are_sums_in_whole_units_and_the_levels_their_shrunk_means(ratings):
    mechanism, data, state, sums = statistics(ratings)
    count = np.bincount(ratings.user, minlength=12)
    expected = np.bincount(ratings.user, ratings.value - 3.0, minlength=12)
    # 4096 units in the width of 4
    np.testing.assert_array_equal(np.asarray(sums).view(np.int32), 1024 * expected)
    released = mechanism.release(mechanism.update(state, sums, data))
    signal, scale = (4 / 8 * count) ** 2, 4 * 1.5
    weight = signal / (signal + (4 / 4) ** 2 * count + scale**2)
    np.testing.assert_allclose(
        released.user_factors[:, 0], weight * expected / np.maximum(count, 1), rtol=1e-5
    )
    assert (np.asarray(released.item_factors) == 1).all()
    assert float(released.center) == 3.0


@pytest.mark.parametrize("value", [1.0, 5.0, 1e6])
def test_one_rating_moves_one_sum_by_the_width_of_the_range_at_most(ratings, value):
    """A rating beyond the range, which nothing that reads files lets in, is clipped where it
    enters.
    """
    mechanism, data, state, _ = statistics(ratings)
    low = layout.replace_value(data, layout.locate(data, ratings.user[0], ratings.item[0]), 1.0)
    other = layout.replace_value(data, layout.locate(data, ratings.user[0], ratings.item[0]), value)
    moved = np.asarray(mechanism.query(state, other, None)[0]) - np.asarray(
        mechanism.query(state, low, None)[0]
    )
    assert np.count_nonzero(moved) == (value > 1.0)
    assert (
        np.linalg.norm(moved)
        == 1024 * (min(value, 5.0) - 1.0)
        <= mechanism.guarantee(1).sensitivity
    )


def test_the_price_is_that_of_its_noise_and_a_user_pays_for_all_ratings_in_one_sum():
    guarantee = levels.mechanism(CONFIG).guarantee(2)
    rho = 2 / (2 * 1.5**2)
    assert guarantee.rho == pytest.approx(rho)
    assert guarantee.epsilon >= gaussian.epsilon_exact(rho, 1e-5)
    assert guarantee.largest_change == 4.0
    assert guarantee.for_user(5).rho == pytest.approx(25 * rho)


@pytest.mark.seconds
def test_it_keeps_to_the_protocol_and_its_claims_survive(ratings):
    mechanism = levels.mechanism(CONFIG)
    parts.check([(mechanism, 1)], layout.make(ratings, num_devices=1))
    found = audits.audit(
        mechanism,
        ratings,
        key=keys.from_seed(0),
        num_steps=1,
        quick=True,
        only=["sensitivity", "post-processing", "noise", "density", "privacy loss"],
    )
    verdicts = {finding.audit: finding.verdict for finding in found}
    assert set(verdicts.values()) <= {"consistent", "not applicable"}, verdicts
    assert verdicts["sensitivity: largest step"] == "consistent"


def test_more_noise_draws_levels_to_the_centre(ratings):
    sizes = []
    for multiplier in (0.1, 1.0, 100.0):
        config = levels.Config(rating_range=RANGE, noise_multiplier=multiplier, center=3.0)
        mechanism, data, state, sums = statistics(ratings, config)
        released = mechanism.release(mechanism.update(state, sums, data))
        sizes.append(float(np.abs(released.user_factors).sum()))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.01 * sizes[0]


@pytest.mark.parametrize(
    "change", [{"noise_multiplier": 0.0}, {"center": math.nan}, {"delta": 1.0}]
)
def test_what_has_no_guarantee_is_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        levels.Config(**({"rating_range": RANGE, "noise_multiplier": 1.0, "center": 3.0} | change))
