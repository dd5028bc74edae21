"""Rules that end a run."""

import numpy as np
import pytest

from dpmf_jax.training import fit as fitting
from experiments.reproduce.paper001 import stopping


@pytest.mark.parametrize("seed", range(5))
def test_patience_is_that_of_fit(seed):
    rmse = np.random.default_rng(seed).normal(size=40).cumsum() * 0.1 - 0.05 * np.arange(40)
    for length in range(41):
        assert stopping.no_new_minimum(rmse[:length]) == fitting.stopping_step(
            rmse[:length].tolist(), 5
        )
    flat = np.array([3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])  # an equal value is no new minimum
    assert stopping.no_new_minimum(flat) == 6
    assert stopping.no_new_minimum(flat[:6]) is None


def test_the_first_small_fall_counts():
    least = stopping.LEAST_FALL
    assert stopping.small_fall(np.array([1.0, 0.9, 0.9 - 1.1 * least, 0.9 - 2 * least, 0.5])) == 3
    assert stopping.small_fall(np.array([1.0, 1.1, 0.9])) == 1  # a rise is no fall
    assert stopping.small_fall(np.array([1.0, 0.9])) is None
    assert stopping.small_fall(np.array([1.0])) is None
    assert stopping.small_fall(np.array([])) is None
