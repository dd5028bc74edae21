"""What a run has cost so far, step by step."""

import pytest

import accounting
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.gaussian import noisy_means
from dpmf_jax.training import price


@pytest.mark.parametrize("done", [0, 1, 4])
def test_steps_so_far_cost_what_the_earlier_phase_and_they_cost(done):
    means = noisy_means.mechanism(noisy_means.Config(rating_range=(1.0, 5.0), noise_multiplier=3.0))
    config = gaussian.Config(rating_range=(1.0, 5.0), noise_multiplier=8.0, rank=2)
    phases = ((means, 2), (gaussian.joint_noise(config), 4))
    whole = price.guarantee(phases, seeded=False, patience=None)
    so_far = accounting.compose(means.guarantee(2), gaussian.joint_noise(config).guarantee(done))
    found = price.epsilon_spent(phases, whole, done)
    assert found == pytest.approx(so_far.accountants["exact"], rel=1e-6)
    assert (found < 0.999 * whole.accountants["exact"]) == (done < 4)
