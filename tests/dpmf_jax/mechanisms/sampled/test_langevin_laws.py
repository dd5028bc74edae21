"""What many steps of Langevin dynamics sample, against known distributions; and that with one step
size they are DP-SGD.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from audits.mechanism import sampler
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.sampled import langevin, sampled
from dpmf_jax.noise import keys
from tests.cases.langevin import MAKE, SMALL, begun, config, stacked
from tests.cases.sampled import EMPTY, silent

pytestmark = pytest.mark.usefixtures("quick_compilation")

FALSE_ALARM = 1e-5


# --- known distributions


@pytest.mark.seconds
@pytest.mark.parametrize("temperature", [0.5, 3.0])
@pytest.mark.parametrize("name", ["published", "dp"])
def test_without_ratings_the_chain_is_an_autoregression_of_known_variance(name, temperature):
    """U = ½λθ²: θ ← (1 - ηλ)θ + √(2ηT)N has variance T/(λ(1 - ηλ/2)), for any step size."""
    eta, penalty = 0.2, 1.5
    mechanism = MAKE[name](
        config(
            learning_rate=eta,
            regularization=penalty,
            temperature=temperature,
            sampling_rate=0.1,
            num_steps=1,
        )
    )
    data = layout.make(EMPTY, kind="dense", num_devices=1)
    state, _ = protocol.train(mechanism, keys.from_seed(1), begun(mechanism, data), data, 60)
    theta = stacked(state.public[:2]).ravel()
    variance = temperature / (penalty * (1 - eta * penalty / 2))
    chi = scipy.stats.chi2(theta.size)
    total = np.sum(theta**2) / variance
    assert 2 * min(chi.cdf(total), chi.sf(total)) > FALSE_ALARM
    assert sampler.kolmogorov_smirnov(theta, variance**0.5) < sampler.critical_distance(
        theta.size, FALSE_ALARM
    )


@pytest.mark.seconds
@pytest.mark.parametrize("temperature", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_with_ratings_the_chain_is_the_posterior(temperature):
    """Pairs with one rating each are copies of a posterior in two numbers, whose moments quadrature
    gives.

    exp(-U/T), U = ½(r - pq)² + ½λ(p² + q²); a small step is off by less than 2%, a wrong scale of
    gradient, prior or noise by a factor √2 by more than 10%.
    """
    many, value, penalty = 64, 2.0, 1.0
    pairs = Ratings(
        *[np.arange(many, dtype=np.int32)] * 2,
        np.full(many, value, np.float32),
        *[np.arange(many)] * 2,
        (0.5, 5.0),
    )
    made = config(
        rank=1,
        center=0.0,
        sampling_rate=1.0,
        learning_rate=0.02,
        regularization=penalty,
        temperature=temperature,
    )
    mechanism = langevin.mechanism(made)
    data = layout.make(pairs, kind="split", num_devices=1)
    state, looks = begun(mechanism, data), []
    for _ in range(44):  # every 100 steps; the first 400 forget the start
        state, _ = protocol.train(mechanism, keys.from_seed(2), state, data, 100)
        looks.append([np.asarray(rows, np.float64)[:, 0] for rows in state.public[:2]])
    p, q = np.array(looks[4:]).swapaxes(0, 1)  # [looks, pairs]
    grid = np.linspace(-7, 7, 1401)
    x, y = np.meshgrid(grid, grid)
    weight = np.exp(-((value - x * y) ** 2 + penalty * (x**2 + y**2)) / (2 * temperature))
    weight /= weight.sum()
    for found, exact in (
        (p * q, x * y),
        (p**2, x**2),
        (q**2, x**2),
        ((value - p * q) ** 2, (value - x * y) ** 2),
    ):
        mean = np.sum(weight * exact)
        assert abs(found.mean() - mean) < 5 * found.mean(0).std() / many**0.5 + 0.02 * mean


@pytest.mark.seconds
def test_a_step_size_that_falls_moves_rows_by_its_own_noise():
    made = config(temperature=2.0, decay=8.0, regularization=0.0, num_steps=10)
    data = layout.make(EMPTY, kind="dense", num_devices=1)
    mechanism = langevin.dp(made)
    for t in (0, 4, 9, 30):
        state = begun(mechanism, data)._replace(step=jnp.int32(t))
        after, _ = protocol.train(mechanism, keys.from_seed(t), state, data, 1)
        moved = stacked(after.public[:2]) - stacked(state.public[:2])
        expected = np.sqrt(2 * made.learning_rate / (1 + 8 * min(t, 9) / 10) * 2.0)
        distance = sampler.kolmogorov_smirnov(moved, float(expected))
        assert distance < sampler.critical_distance(moved.size, FALSE_ALARM) + 1e-4


# --- one algorithm under two names


def trained(mechanism, steps=4):
    data = layout.make(SMALL, kind="split", num_devices=1)
    state, info = protocol.train(mechanism, keys.from_seed(7), begun(mechanism, data), data, steps)
    return stacked(state.public[:2]), np.asarray(info.clipped_fraction)


@pytest.mark.seconds
def test_with_one_step_size_langevin_dynamics_are_dp_sgd():
    """z = q√(2T/η)/C: the same samples, clip, noise, rows after every step, and price; λ and
    clipping at work.
    """
    made = config(temperature=0.3)
    multiplier = (
        made.sampling_rate * np.sqrt(2 * made.temperature / made.learning_rate) / made.clip_norm
    )
    one, other = (
        langevin.dp(made),
        langevin.dpsgd(dataclasses.replace(made, noise_multiplier=float(multiplier))),
    )
    for steps in (1, 4):
        rows, clipped = trained(one, steps)
        again, _ = trained(other, steps)
        np.testing.assert_allclose(rows, again, rtol=1e-5, atol=1e-5)
        assert clipped.max() > 0
    assert one.guarantee(5).epsilon == pytest.approx(other.guarantee(5).epsilon, rel=1e-5)
    twice, _ = trained(
        langevin.dpsgd(dataclasses.replace(made, noise_multiplier=2 * float(multiplier)))
    )
    assert np.abs(trained(one)[0] - twice).max() > 0.1  # rows do tell one noise from another


def moved_by_noise(mechanism, t):
    """The standard deviation of an entry's noise in step t."""
    (params,) = mechanism.query.args
    one = jnp.uint32(1)  # unit of the response
    return float(sampled.descend(params, jnp.int32(t), jnp.float32(0), one)) * float(
        params.noise_scale
    )


def test_with_step_sizes_that_fall_they_are_two():
    """Every step is then one of DP-SGD with its own z_t = q√(2T/η_t)/C, which grows while step
    sizes fall; dpsgd's z does not.
    """
    made = config(temperature=0.3, decay=8.0)
    scale = made.sampling_rate * np.sqrt(
        2 * made.temperature / made.learning_rates.astype(np.float64)
    )
    data = layout.make(SMALL, kind="split", num_devices=1)
    dynamics = langevin.dp(made)
    for t in range(made.num_steps):
        multiplier = float(scale[t] / made.clip_norm)
        constant = langevin.dpsgd(dataclasses.replace(made, noise_multiplier=multiplier))
        after = []
        for mechanism in (dynamics, constant):
            state = begun(mechanism, data)._replace(step=jnp.int32(t))
            trained, _ = protocol.train(silent(mechanism), keys.from_seed(7), state, data, 1)
            after.append(stacked(trained.public[:2]))
        np.testing.assert_allclose(*after, atol=made.learning_rates[t] / 0.5 * 8 * 0.8 / 1000)
        assert np.abs(after[0] - stacked(state.public[:2])).max() > 0.01
        moved = moved_by_noise(dynamics, t), moved_by_noise(constant, t)
        assert moved[0] == pytest.approx(moved[1], rel=1e-5)
        assert moved[0] == pytest.approx((2 * made.learning_rates[t] * 0.3) ** 0.5, rel=1e-5)
    multipliers = [
        loss.noise_multiplier for loss in dynamics.guarantee(made.num_steps).losses
    ]  # a bound is rounded down to whole units, so a step may cost a little less
    expected = scale / made.clip_norm
    assert np.all(multipliers >= expected * (1 - 1e-6))
    assert multipliers == pytest.approx(list(expected), rel=1e-3)
    first = langevin.dpsgd(dataclasses.replace(made, noise_multiplier=float(expected[0])))
    last = made.num_steps - 1
    assert moved_by_noise(first, last) < 0.5 * moved_by_noise(dynamics, last)
