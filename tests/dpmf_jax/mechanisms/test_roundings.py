"""Scales and thresholds of mechanisms are rounded to the safe side, and no further than needed."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from accounting import gaussian as gaussian_price
from dpmf_jax.layout import poisson
from dpmf_jax.mechanisms.federated import config as federated_config
from dpmf_jax.mechanisms.federated import per_user as federated_user
from dpmf_jax.mechanisms.federated import published as federated
from dpmf_jax.mechanisms.objective import mechanisms as objective
from tests.cases.roundings import MULTIPLIERS, below, exact

RANDOM = np.random.default_rng(1)


# -------------------------------------------------------------------------------------------------


def test_the_noise_of_the_published_crowd_is_the_least_float32_of_its_lemma():
    """b = 2Δ√d/ε, in η and in what the guarantee is made of."""
    for epsilon in MULTIPLIERS:
        config = federated_config.Config(epsilon=epsilon, rating_range=(1.0, 5.0), rank=3)
        scale = federated.mechanism(config).query.args[0].scale
        assert below(scale) < Fraction(config.published_scale) <= exact(scale)


@pytest.mark.seconds
def test_noise_of_statistics_is_the_least_float32_that_pays():
    """σ = zΔ in units; Δ is no less than a rating moves; the share is met as E rounds it."""
    for epsilon in np.clip(MULTIPLIERS, 0.1, 20).tolist():
        share = float(RANDOM.uniform(0.1, 0.9))
        config = objective.Config(
            rating_range=(1.0, 5.0),
            epsilon=epsilon,
            delta=1e-6,
            rank=1,
            noise="gaussian",
            matrix_share=share,
            prior_count=1,
        )
        made = objective.statistics(config).query.args[0]
        asked = Fraction(gaussian_price.solve_noise_multiplier(epsilon, 1e-6, 1))
        needed = asked * Fraction(made.sensitivity)
        assert below(made.noise_scale) < needed
        assert exact(made.noise_scale) >= needed * (1 - Fraction(1, 2**52))
        units, steps = Fraction(float(made.user_units)), Fraction(float(made.steps))
        squared = (units**4 + (steps * units) ** 2) / 4 ** int(made.shift)
        assert Fraction(made.sensitivity - 2**0.5) ** 2 >= squared * (1 - Fraction(1, 2**40))
        assert abs(float(steps / units) ** 2 - (1 - share) / share) < 0.03 * (1 - share) / share


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_the_length_of_a_message_is_not_below_that_of_any_order_of_its_sum(rank):
    """Σ|e_j| in exact numbers, and no more above it than the slack that is promised."""
    random = np.random.default_rng(rank)
    short = 0
    for _ in range(200):
        num = 24
        items, user = (
            random.normal(size=shape).astype(np.float32) for shape in ((num, rank), rank)
        )
        center = random.uniform(1, 5, num).astype(np.float32)
        values = random.uniform(1, 5, num).astype(np.float32)
        reach = np.float32(np.abs(user).sum() * np.abs(items).max())
        sender = federated_user._Sender(jnp.asarray(user), jnp.asarray(center), jnp.asarray(reach))
        found, _, count = jax.device_get(
            federated_user._magnitude(
                sender, jnp.asarray(items), jnp.asarray(values), jnp.ones(num, jnp.float32)
            )
        )
        total = sum(
            abs(
                exact(v)
                - exact(c)
                - sum(exact(a) * exact(b) for a, b in zip(row, user, strict=True))
            )
            for v, c, row in zip(values, center, items, strict=True)
        )
        plain = np.sum(np.abs((values - center) - items @ user), dtype=np.float32)
        short += exact(plain) < total
        slack = Fraction(rank + 8, 2**22) * sum(
            abs(exact(v) - exact(c)) + exact(reach) for v, c in zip(values, center, strict=True)
        )
        assert count == num
        assert total <= exact(found) <= total + 2 * slack
    assert short > 50  # without the slack, floats are below as often as not


# --------------------------------------------------------------------------------------------------


def test_a_rate_is_never_drawn_more_often_than_it_says():
    """Of 2^32 draws; also where float32 has the rate a little larger than its user."""
    for rate in [0.1, 1 / 3, 1e-6, 1 - 2.0**-24, *RANDOM.uniform(0, 1, 300).tolist()]:
        chance = Fraction(int(poisson.threshold(jnp.float32(rate))), 2**32)
        assert chance <= Fraction(rate)
        assert chance >= Fraction(rate) * (1 - Fraction(1, 2**21)) - Fraction(1, 2**32)
