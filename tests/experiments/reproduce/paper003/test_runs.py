"""What a run of paper 003 is: the paper's settings, a fifth held out, errors by hand."""

import math

import numpy as np
import pytest

from dpmf_jax import protocol
from dpmf_jax.data import synthetic
from dpmf_jax.mechanisms.federated import published as federated
from experiments.reproduce.paper003 import runs, table
from experiments.reproduce.paper003.runs import Run
from tests.cases import reproduce as cases

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_a_fifth_of_the_pairs_is_held_out():
    whole = synthetic.generate(num_users=200, num_items=40, num_ratings=2000, seed=0)
    found = runs.Data(whole)
    train, test = found.split
    assert 300 < test.num_ratings < 500
    assert train.num_ratings + test.num_ratings == 2000
    assert found.layout("held-out").num_ratings == train.num_ratings
    assert found.layout("all").num_ratings == 2000


def test_settings_are_the_papers():
    found = runs.Data(cases.some("netflix-52"))
    for run in (Run("S1", 0.15, 0, "all", (100,)), Run("S2", 0.15, 0, "all", (100,))):
        made = runs.published(run, found)
        assert (made.learning_rate, made.regularization, made.user_regularization) == (
            2**-5,
            0.001,
            0.001,
        )
        assert (made.center, made.epsilon) == (0.0, 0.15)
    assert runs.published(Run("S1-exact", 0.15, 0, "all", (1,)), found).prior_count == 380
    assert runs.published(Run("S1-exact", 0.15, 0, "all", (1,)), found).num_iterations is None
    crowd = runs.published(Run("S3", 0.8, 0, "all", (100,)), found).population
    assert crowd == federated.Population(join=0.005, leave=0.01, at_most=1000)
    crowd = runs.published(Run("S3", 0.8, 0, "all", (100,), 0.02, 0.03), found).population
    assert (crowd.join, crowd.leave) == (0.02, 0.03)


def test_errors_by_hand_and_of_what_diverged():
    one = cases.some("ml-100k")
    model = protocol.Factors(np.zeros((40, 1)), np.zeros((20, 1)), np.float32(2.0))
    off = np.abs(2.0 - one.value)
    found = runs.errors(model, one)
    assert (found.mean, found.rmse) == (
        pytest.approx(off.mean()),
        pytest.approx(np.sqrt((off**2).mean())),
    )
    assert found.cdf == tuple(pytest.approx(np.mean(off <= t)) for t in table.THRESHOLDS)
    high = model._replace(center=np.float32(9.0))
    assert runs.errors(high, one).mean == pytest.approx(np.mean(9 - one.value))
    assert runs.errors(high, one, clip=True).mean == pytest.approx(np.mean(5 - one.value))
    gone = model._replace(center=np.float32(np.nan))
    assert runs.errors(gone, one) == (math.inf, math.inf, (0.0,) * 30)
