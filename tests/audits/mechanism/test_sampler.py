"""Noise that is not what is priced is caught; the tests keep their level."""

import jax
import numpy as np
import pytest
from jax.tree_util import Partial
from scipy import stats

from audits.mechanism import sampler
from dpmf_jax import layout
from tests.cases import noises
from tests.cases.audits import RATINGS, joint, run, violated

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def data():
    return layout.make(RATINGS, kind="dense")


def _same_key(sample, key, statistics):
    return sample(jax.random.key(7), statistics)


def noise_bugs():
    """Beside those of the zoo."""
    made = joint()
    sample = made.noise.sample
    return {
        "half the noise": (noises.share_of(made, 0.5), "noise: scale"),
        "two thirds": (noises.share_of(made, 2 / 3), "noise: scale"),
        "nine tenths": (noises.share_of(made, 0.9), "noise: scale"),
        "three halves": (noises.share_of(made, 1.5), "noise: scale"),
        "one key for all steps": (
            made.noise._replace(sample=Partial(_same_key, sample)),
            "noise: independence",
        ),
    }


@pytest.mark.seconds
@pytest.mark.parametrize("bug", noise_bugs())
def test_wrong_noise_is_caught(bug, data, key):
    planted, named = noise_bugs()[bug]
    findings = run(sampler.audit, joint()._replace(noise=planted), data, key)
    assert named in violated(findings)
    assert all(finding.details["replay"]["key"] for finding in findings)


def test_the_distance_limit_is_exact_at_its_level():
    """P(sup |F_n - F| > limit) for n = 50: Kolmogorov's exact law agrees that it is at most alpha,
    and not by far.
    """
    for alpha in (1e-4, 0.05):
        exact = stats.kstwo.sf(sampler.critical_distance(50, alpha), 50)
        assert 0.5 * alpha < exact <= alpha


def test_the_distance_is_scipys(key):
    values = np.asarray(jax.random.normal(key, (300,)), np.float64)
    expected = stats.kstest(values / 1.3, stats.norm.cdf).statistic
    assert sampler.kolmogorov_smirnov(values, 1.3) == pytest.approx(expected, rel=1e-9)


def test_a_scale_said_to_be_visible_is_seen():
    """19 of 20 times and more, as `power` promises; the bound is not wasteful either."""
    n, random = 20_000, np.random.default_rng(0)
    below, above = sampler.detectable_scales(n, 1e-4)
    assert 0.88 < below < 1 < above < 1.12
    for scale in (below, above):
        seen = [
            sampler.kolmogorov_smirnov(scale * random.normal(size=n), 1.0)
            > sampler.critical_distance(n, 1e-4)
            for _ in range(60)
        ]
        assert np.mean(seen) >= 0.9


def test_null_draws_are_not_called_violated():
    """400 scales and 400 pairs of independent vectors, true in every one.

    Alarms come at 1e-4 each, so two of 1,200 come with a chance below 1%.
    """
    random = np.random.default_rng(0)
    draws = [[random.normal(size=(40, 30)) * 1.7 for _ in range(3)] for _ in range(400)]
    alarms = [sampler._scale(values, 1.7, 1e-5, 1, {}).verdict for values in draws]
    worlds = sampler.Statistics(*(np.linspace(-at, 9.0, 30) for at in range(3)))
    alarms += [
        sampler._every_entry(values, worlds, 1.7, {}, whole=False).verdict for values in draws
    ]
    alarms += [
        sampler._independence(
            [random.normal(size=(5, 30)), random.normal(size=(5, 12))], 1.0, {}
        ).verdict
        for _ in range(400)
    ]
    assert alarms.count("violated") <= 1


@pytest.mark.parametrize("whole", [False, True])
def test_noise_that_is_less_where_sums_are_large_is_seen(whole):
    """By 4% for an eighth of the entries, of which none by itself says so."""
    random, statistics = np.random.default_rng(0), np.random.default_rng(1).normal(size=400)
    worlds = sampler.Statistics(0 * statistics, statistics, statistics)
    large = np.abs(statistics) >= np.sort(np.abs(statistics))[-50]
    for share, verdict in ((1.0, "consistent"), (0.96, "violated")):
        drawn = [12.0 * random.normal(size=(400, 400)) for _ in range(3)]
        drawn[1] *= np.where(large, share, 1.0)
        drawn = [np.round(values) if whole else values for values in drawn]
        found = sampler._every_entry(drawn, worlds, 12.0, {}, whole=whole)
        assert (found.verdict, found.details["entries_outside"]) == (verdict, 0)
    assert large[found.details["worst_entries"]].all()
