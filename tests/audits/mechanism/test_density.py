"""A density that is not the sampler's is caught."""

import numpy as np
import pytest
from jax.tree_util import Partial

from audits.mechanism import density
from dpmf_jax import layout
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.noise import keys
from dpmf_jax.noise import laws as noise
from tests.cases import noises
from tests.cases.audits import RATINGS, joint, report_of, run, violated

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def data():
    return layout.make(RATINGS, kind="dense")


def replace_noise(mechanism, **parts):
    return mechanism._replace(noise=mechanism.noise._replace(**parts))


@pytest.mark.seconds
def test_a_stale_density_is_caught(data, key):
    """σ × 0.9 in `sample` alone: the density still tells the story of the old noise."""
    made = joint()
    weak = noises.share_of(made, 0.9)
    findings = run(density.audit, replace_noise(made, sample=weak.sample), data, key)
    assert violated(findings) == {"density: sampler"}


def _reversed_ratio(log_ratio, response, statistics, other):
    return log_ratio(response, other, statistics)


def test_a_ratio_that_is_not_that_of_the_densities_is_caught():
    made, (r, q, other) = noise.gaussian(2.0), np.random.default_rng(0).normal(size=(3, 16, 3))
    assert density.log_ratio_error(made, r, q, other) < density.TOLERANCE
    for wrong in (
        made._replace(log_ratio=Partial(_reversed_ratio, made.log_ratio)),
        made._replace(log_prob=noise.gaussian(2.01).log_prob),
        noise.none()._replace(log_ratio=made.log_ratio),
    ):
        assert (
            not density.log_ratio_error(wrong, r, q, other) <= density.TOLERANCE
        )  # not-a-number is no pass


def test_stretched_reports_stay_in_range_and_keep_their_coordinates():
    statistics = report_of(3)._replace(value=np.float32([0.1, -0.2, 0.9]), row=np.int32([4, 5, 6]))
    other = statistics._replace(value=np.float32([0.2, -0.2, 0.8]))
    moved = density.stretch(statistics, other, 50.0)
    np.testing.assert_allclose(moved.value, [1, -0.2, -1], rtol=1e-6)
    assert moved.value.dtype == np.float32
    assert moved.row is other.row
    assert moved.sent.dtype == bool
    plain = density.stretch(statistics.value, other.value, 50.0)
    assert np.abs(plain).max() > 4


@pytest.mark.seconds
def test_the_density_of_reports_is_held_to_their_sampler(data):
    """A sampler at five times the price beside the old density."""
    config = local.Config(
        epsilon=2.0, num_rounds=3, rank=3, learning_rate=0.3, center=3.0, clip=0.05
    )
    mechanism = local.gd(config)
    wrong = mechanism._replace(
        noise=mechanism.noise._replace(sample=noise.one_bit(5 * 2.0 / 3).sample)
    )
    for made, verdict in ((mechanism, "consistent"), (wrong, "violated")):
        findings = density.audit(made, RATINGS, data, key=keys.from_seed(3), num_steps=2)
        assert [finding.verdict for finding in findings] == ["consistent", verdict], list(
            map(str, findings)
        )


def test_null_losses_are_not_called_violated():
    """100 audits of normal losses, true in every one; the seed is fixed."""
    random = np.random.default_rng(0)
    losses = [0.7**2 / 2 + 0.7 * random.normal(size=density.DRAWS) for _ in range(100)]
    assert [density._sampler(values, {}).verdict for values in losses].count("violated") == 0
