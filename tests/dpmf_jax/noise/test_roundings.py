"""What is rounded is rounded to the safe side and no further: exact arithmetic holds laws and
scales on both sides.
"""

import dataclasses
import functools
import math
from fractions import Fraction

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpmf_jax.mechanisms import claims
from dpmf_jax.mechanisms.federated import config as federated_config
from dpmf_jax.mechanisms.federated import per_user as federated_user
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.gaussian import noisy_means
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.local import laplace as local_laplace
from dpmf_jax.mechanisms.sampled import sampled
from dpmf_jax.noise import laws as noise
from dpmf_jax.noise import ring
from tests.cases.roundings import MULTIPLIERS, above, below, exact

RANDOM = np.random.default_rng(0)
RANGES = [(1.0, 5.0), (0.1, 0.7), (0.0, 10 / 3)]
DOUBLE = Fraction(1, 2**53)  # what one product or quotient of floats is off by, of itself


# -------------------------------------------------------------------------------------------------


NOISES = {  # whose σ = zΔ is a float32
    "joint noise": lambda settings: gaussian.joint_noise(
        gaussian.Config(**settings, rank=2, residual_clip=0.3)
    ),
    "published": lambda settings: gaussian.mechanism(gaussian.Config(**settings, rank=2)),
    "public items": lambda settings: gaussian.public_items(
        gaussian.Config(**settings, rank=2, residual_clip=0.3), np.ones((3, 2), np.float32) / 2
    ),
    "noisy means": lambda settings: noisy_means.mechanism(noisy_means.Config(**settings)),
}


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("which", "rating_range"),
    [
        *(("joint noise", each) for each in RANGES),
        *((which, RANGES[1]) for which in NOISES if which != "joint noise"),
    ],
)
def test_sigma_is_the_least_float32_that_pays_for_z(which, rating_range):
    """σ and Δ as the sampler and the price read them; one float32 less of either would be less than
    was asked for.
    """
    for z in MULTIPLIERS:
        made = NOISES[which]({"rating_range": rating_range, "noise_multiplier": z})
        spent = made.guarantee(1)
        law = made.noise.sample.args[0]
        sigma, bound = getattr(law, "scale", law), np.float32(spent.sensitivity)
        assert np.asarray(sigma).dtype == np.float32
        product = exact(bound) * Fraction(z)
        assert exact(sigma) >= product * (1 - DOUBLE)
        assert below(sigma) < product * (1 + DOUBLE)
        assert exact(sigma) >= float(bound) * z  # the very product, where it is no float32
        assert exact(bound) == exact(spent.sensitivity)
        # what is priced is what is drawn
        (loss,) = spent.losses
        assert (
            abs(Fraction(loss.noise_multiplier) - exact(sigma) / exact(bound))
            <= exact(sigma) / exact(bound) * DOUBLE
        )
        assert loss.noise_multiplier >= z * (1 - 2.0**-53)


@pytest.mark.parametrize("x", [0.1, 1 / 3, 0.25, 1 + 2.0**-24, 2.0**-24 + 1 + 2.0**-52, 1e-30, 7.0])
def test_float32_up_and_down_are_the_nearest_on_their_side(x):
    up, down = claims.float32_up(x), claims.float32_down(x)
    assert below(up) < Fraction(x) <= exact(up)
    assert exact(down) <= Fraction(x) < above(down)


def test_a_clip_in_steps_is_the_largest_float32_below_it():
    for steps in (1, 2**24 - 1, 2**24 + 1, 2**24 + 3, 2**29 + 33, 2**30 - 1, 2**30):
        single = claims.float32_down(steps)
        assert exact(single) <= steps < above(single)


def sampled_config(**settings):
    asked = {
        "rating_range": (1.0, 5.0),
        "rank": 2,
        "num_steps": 3,
        "sampling_rate": 0.1,
        "clip_norm": 0.3,
    }
    return sampled.Config(**(asked | {"delta": 1e-6, "unit": "rating value"} | settings))


def test_a_sample_is_never_larger_nor_its_noise_less_than_is_priced():
    for z in MULTIPLIERS:
        rate, clip = float(RANDOM.uniform(0.01, 1)), float(RANDOM.uniform(0.1, 3))
        made = sampled.dpsgd_params(
            sampled_config(noise_multiplier=z, sampling_rate=rate, clip_norm=clip)
        )
        assert exact(made.rate) <= Fraction(rate) < above(made.rate)
        assert rate <= made.highest_rate <= min(1.0, rate * 2**0.2501)
        units = Fraction(sampled.units(made))
        assert below(made.noise_scale) < units * Fraction(z)
        assert exact(made.noise_scale) >= units * Fraction(z) * (1 - DOUBLE)
        (loss,) = sampled.phases(made, 3)
        assert loss.sampling_rate == float(made.rate)
        assert loss.noise_multiplier == pytest.approx(exact(made.noise_scale) / units, rel=1e-15)


def test_the_laplace_scale_of_a_local_message_is_the_least_float32_that_pays():
    for epsilon in MULTIPLIERS:
        config = local_laplace.Config(num_items=7, epsilon=epsilon, num_rounds=3, rank=5, clip=0.3)
        scale = local_laplace.scale(config)
        needed = 2 * exact(np.float32(0.3)) * 5 * 3 * 7 / Fraction(epsilon)
        assert below(scale) < needed <= exact(scale)


def test_a_grid_holds_the_clip_from_below_and_the_scale_from_above():
    for clip, step in zip(RANDOM.uniform(0.5, 3, 40), RANDOM.uniform(2e-7, 1e-6, 40), strict=True):
        config = federated_config.Config(
            epsilon=1.0, rating_range=(1.0, 5.0), clip_norm=float(clip), rounding_step=float(step)
        )
        found = federated_config.grid(config, float(7 * clip))
        assert (
            found.clip_steps <= Fraction(float(clip)) / Fraction(float(step)) < found.clip_steps + 1
        )
        needed = Fraction(float(7 * clip)) / Fraction(float(step))
        assert (
            Fraction(math.nextafter(found.scale_steps, 0)) < needed <= Fraction(found.scale_steps)
        )


# ------------------------------------------------------------------------------------------- what i


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 2.0, 1 / 3, 5.0])
def test_a_report_has_the_largest_float_whose_rounds_are_paid_for(epsilon):
    for times in (3, 6, 7, 10, 49, 100):
        config = local.Config(epsilon=epsilon, num_rounds=times, rank=2)
        each = config.epsilon_report
        assert (
            Fraction(each) * times <= Fraction(epsilon) < Fraction(math.nextafter(each, 9)) * times
        )
        matrices = local_laplace.Config(num_items=9, epsilon=epsilon, num_rounds=times, rank=2)
        for made in (local.gd(config), local_laplace.mechanism(matrices)):
            for steps in (1, 2, times):
                (loss,) = made.guarantee(steps).losses
                spent = Fraction(epsilon) * steps / times
                assert Fraction(math.nextafter(loss.epsilon, 0)) < spent <= Fraction(loss.epsilon)


# --------------------------------------------------------------------------------------------------


def test_the_least_probability_of_a_report_is_the_least_that_is_paid_for():
    """The smallest whole p with (2^64 - p)/p ≤ e^ε: e^ε is irrational, so p is not that of any
    other rounding.
    """
    with mpmath.workprec(400):
        for epsilon in [
            1e-12,
            1e-3,
            0.1,
            1.0,
            math.log(3),
            5.0,
            20.0,
            *RANDOM.uniform(0, 20, 60).tolist(),
        ]:
            least, most = noise.one_bit_low(epsilon), mpmath.exp(mpmath.mpf(epsilon))
            assert mpmath.mpf(2**64 - least) <= most * least
            assert mpmath.mpf(2**64 - (least - 1)) > most * (least - 1)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 20.0])
def test_the_law_of_a_report_keeps_the_ratio_and_uses_it_up(epsilon):
    """Of what the sampler compares with: over all entries, the largest probability of a bit over
    the smallest.
    """
    entries = jnp.asarray([-1.0, 1.0, 0.0, 0.5, -0.999999, math.nan, math.inf, -7.0], jnp.float32)
    law = noise.one_bit_law(epsilon, entries)
    least = noise.one_bit_low(epsilon)
    assert min(law) == least
    assert max(law) == 2**64 - least
    with mpmath.workprec(400):
        ratio = mpmath.mpf(max(law)) / min(law)
        assert (
            mpmath.exp(mpmath.mpf(epsilon)) * (1 - mpmath.mpf(2) / least)
            < ratio
            <= mpmath.exp(mpmath.mpf(epsilon))
        )


# ---------------------------------------------------------------------------------------------- cli


PARAMS = functools.partial(
    dataclasses.replace,
    federated_user.per_user(
        federated_config.Config(epsilon=1.0, rating_range=(1.0, 5.0), rank=2, num_iterations=2)
    ).query.args[0],
)


def messages(random, num_items, num_products, count=300):
    """float32[count, num_items·num_products]: entries of one size, or of many."""
    shape = (count, num_items * num_products)
    spread = random.choice([0.0, 0.5, 2.0], (count, 1))
    return (
        random.choice([-1.0, 1.0], shape) * 10.0 ** (spread * random.uniform(-1, 1, shape) + 1)
    ).astype(np.float32)


@pytest.mark.parametrize("clip_steps", [2**24 - 1, 2**28, 2**30])
@pytest.mark.parametrize(("num_items", "num_products"), [(1, 1), (1, 4), (5, 3), (40, 8)])
def test_a_clipped_message_is_at_most_c_in_whole_steps_and_a_hair_less(
    clip_steps, num_items, num_products
):
    """With so many steps, rounding toward zero does not hide what floats add: here the hair alone
    keeps the clip.
    """
    params = PARAMS(clip_steps=claims.float32_down(clip_steps), step=jnp.float32(2.0**-26))
    rows = messages(np.random.default_rng(clip_steps + num_items), num_items, num_products)
    length = federated_user.l1(jnp.asarray(rows))
    scale = federated_user.whole_message(params, length, num_items, num_products)
    whole = np.abs(
        np.asarray(ring.signed(ring.encode(jnp.asarray(rows) * scale[:, None], 1.0)), np.int64)
    ).sum(axis=1)
    hair = (num_items + num_products + 32) * 2.0**-22
    assert np.all(whole <= clip_steps)
    clipped = np.abs(rows.astype(np.float64)).sum(axis=1) >= clip_steps * 2.0**-26
    assert clipped.any()
    assert np.all(whole[clipped] >= clip_steps * (1 - 2 * hair) - num_items * num_products)


def test_a_message_within_the_clip_is_left_as_it_is():
    params = PARAMS(clip_steps=jnp.float32(2**20), step=jnp.float32(2.0**-10))
    length = jnp.asarray([0.0, 1.0, 1000.0, 1023.0], jnp.float32)
    assert np.all(np.asarray(federated_user.whole_message(params, length, 3, 2)) == 2.0**10)
    assert (
        np.asarray(federated_user.whole_message(params, jnp.asarray([1025.0]), 3, 2))[0] < 2.0**10
    )


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1 / 16, 0.7, 1.0, 3.3, 1000.0, 2.0**20 + 0.5, 2.0**28])
def test_neighbours_of_the_discrete_laplace_law_are_paid_for_and_the_price_is_used_up(scale):
    """From the thresholds, exactly: a step costs at most 1/b, whichever digits of the number
    change.
    """
    table = ring.thresholds(scale).astype(object)
    words = table.shape[1]
    with mpmath.workprec(32 * words + 200):
        numbers = [
            sum(int(word) << (32 * (words - 1 - w)) for w, word in enumerate(row)) for row in table
        ]
        chance = [mpmath.mpf(number) / mpmath.mpf(2) ** (32 * words) for number in numbers]
        zero, sign, digits = chance[0], chance[1], chance[2:]
        assert sign == mpmath.mpf(0.5)
        odds = [mpmath.log((1 - p) / p) for p in digits if p > 0]
        price = 1 / mpmath.mpf(scale)
        # |η| - 1 goes from 2^i - 1 to 2^i: digit i is set, and all below it are cleared
        steps = [odds[i] - sum(odds[:i]) for i in range(len(odds))]
        for step in steps:
            assert price * (1 - mpmath.mpf(2) ** -39) <= step <= price
        # 2^32 wraps around to 0, and 2^32 - 1 from either side to one from the other
        rest, none = mpmath.fprod(digits[1:]), mpmath.fprod(1 - p for p in digits)
        nothing, one = (
            zero + (1 - zero) * digits[0] * rest,
            (1 - zero) / 2 * (none + (1 - digits[0]) * rest),
        )
        at_zero = mpmath.log(nothing / one)
        assert price * (1 - mpmath.mpf(2) ** (-39 if scale < 2**21 else -20)) <= at_zero <= price


def test_what_is_asked_beyond_float32_is_refused():
    with pytest.raises(ValueError, match="must be a normal float32"):
        sampled.langevin_params(sampled_config(temperature=1e80), clip=False)
