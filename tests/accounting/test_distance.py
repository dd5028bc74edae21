"""Noise that is not quite normal costs δ: (1 + e^ε) times its distance in total variation."""

import json
import math
import re

import pytest

from accounting import loss, price
from accounting.loss import Gaussian, Pure, SubsampledGaussian
from tests.cases.guarantee import plain, proved

STEPS = {"noise_multiplier": 4.0, "num_steps": 20}
DELTA = 1e-5


def prices(distance: float, delta: float = DELTA) -> dict[str, float]:
    return price.accountants((Gaussian(**STEPS, distance=distance),), delta, unit="rating value")


@pytest.mark.parametrize("distance", [1e-40, 1e-20, 1e-12, 1e-9])
def test_every_price_has_room_for_the_distance(distance):
    normal, total = prices(0.0), 20 * distance
    found = prices(distance)
    assert math.isfinite(found["exact"])
    for name, epsilon in found.items():
        assert normal[name] <= epsilon
        if epsilon == math.inf:  # basic composition's ε, at which nothing is left of δ
            assert (1 + math.exp(prices(0.0, DELTA / 2)[name])) * total > DELTA / 2
            continue
        left = DELTA - (1 + math.exp(epsilon)) * total
        assert left > 0
        # ε is no less than that of normal noise at what is left of δ, and not by far
        assert prices(0.0, left)[name] <= epsilon * (1 + 1e-12)
        assert epsilon <= prices(0.0, left / 2 - 1e-30)[name]


def test_a_distance_that_leaves_nothing_of_delta_has_no_price():
    assert set(prices(1e-7).values()) == {math.inf}


def test_distances_add_up_over_steps_and_phases():
    one = Gaussian(noise_multiplier=3.0, num_steps=4, distance=1e-15)
    other = Gaussian(noise_multiplier=3.0, num_steps=6, distance=1e-15)
    assert loss.distance([one, other, Pure(epsilon=1.0)]) == pytest.approx(1e-14)
    (merged,) = loss.merged([one, other])
    assert (merged.num_steps, loss.distance([merged])) == (10, pytest.approx(1e-14))
    exact = Gaussian(noise_multiplier=3.0, num_steps=1)
    assert len(loss.merged([one, exact])) == 2  # not the same noise


def test_a_users_ratings_are_as_far_apart_as_one():
    from accounting import user

    spent = Gaussian(**STEPS, user_rho=(1.0, 0.0), distance=1e-15)
    (own,) = user.losses([spent], 7)
    assert own.distance == spent.distance


@pytest.mark.parametrize(("num_ratings", "apart"), [(1, 1e-9), (3, 1e-11)])
def test_steps_on_samples_have_room_for_it_too(num_ratings, apart):
    """For one rating and for a user's, which are priced as a mixture."""
    from accounting import user

    def epsilon(distance, delta):
        spent = SubsampledGaussian(
            noise_multiplier=1.5, sampling_rate=0.1, num_steps=20, distance=distance
        )
        if num_ratings == 1:
            return price.epsilon((spent,), delta, unit="rating presence")
        return user.epsilon((spent,), delta, num_ratings=num_ratings, unit="rating presence")

    assert epsilon(1e-30, DELTA) == pytest.approx(epsilon(0.0, DELTA), rel=1e-6)
    found = epsilon(apart, DELTA)
    left = DELTA - (1 + math.exp(found)) * 20 * apart
    assert left > 0
    assert found >= epsilon(0.0, left) > epsilon(0.0, DELTA)
    assert epsilon(1e-6, DELTA) == math.inf


def test_the_distance_is_saved_and_older_files_have_none():
    spent = Gaussian(**STEPS, distance=2.0**-123)
    values = json.loads(json.dumps(loss.to_dict(spent)))
    assert loss.from_dict(values) == spent
    del values["distance"]
    assert loss.from_dict(values) == Gaussian(**STEPS)
    with pytest.raises(ValueError, match="distance"):
        Gaussian(**STEPS, distance=1.0)


def test_the_statement_says_what_the_tables_take_of_delta():
    spent = (Gaussian(**STEPS, distance=2.0**-123),)
    text = plain(str(proved(losses=spent)))
    share = 20 * 2.0**-123 * (1 + math.exp(price.epsilon(spent, 1e-5, unit="rating value")))
    found = re.search(r"at most (\S+) of δ for drawing it from tables of whole numbers", text)
    assert found is not None
    assert share <= float(found[1]) < 1.001 * share
    assert "tables of whole numbers" not in plain(str(proved()))
