"""A run that ends in finite numbers may have diverged: it is said, and nothing that was paid for is
lost.
"""

import json
import math
from pathlib import Path

import pytest

import dpmf_jax
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.training import fit as fitting
from dpmf_jax.training import measure
from experiments.fit.report import utility
from tests.cases.fit import CATALOGUE, FIT, run
from tests.cases.training import CONFIG, RATINGS

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")

WILD = ["--mechanism", "local", "--rounds", "2", "--rank", "3", "--learning-rate", "10"]
JOINT = ["--steps", "3", "--rank", "3", "--learning-rate", "30", "--center", "3"]


@pytest.mark.seconds
@pytest.mark.parametrize("words", [WILD, JOINT])
def test_a_fit_that_diverged_says_so_and_does_not_end_in_0(capsys, words):
    code, out, err = run(capsys, *FIT, *words, "--seed", "0", "--json", "--out", "wild")
    found = json.loads(out)
    assert 4 < found["rmse_train"] < math.inf
    assert found["diverged"] is True
    assert code == fitting.Diverged.exit_code
    what, where, fix = err.splitlines()[-3:]
    assert what.startswith("error: the training diverged: its RMSE is ")
    assert "any constant from 1 to 5 errs by at most 4" in what
    assert where == "where: wild"
    assert "--learning-rate" in fix
    assert "Traceback" not in err


@pytest.mark.seconds
def test_a_release_that_diverged_is_kept_since_it_is_paid_for(capsys):
    code, out, err = run(capsys, *FIT, *WILD, *CATALOGUE, "--out", "wild")
    assert code == fitting.Diverged.exit_code
    assert "utility: DIVERGED" in out
    assert "its ε is spent" in err
    model = dpmf_jax.load_model("wild")
    assert model.guarantee.epsilon == 1.6
    assert Path("wild/PRIVACY.md").is_file()
    assert len(Path("ledger.json").read_text().splitlines()) == 1
    assert (
        "diverged" not in Path("wild/model.json").read_text().lower()
    )  # unpriced: it stays in private/


@pytest.mark.parametrize(
    ("rmse", "expected"), [(4.0, False), (math.nextafter(4.0, 5), True), (1.0, False)]
)
def test_it_diverged_where_every_constant_of_the_range_is_better(rmse, expected):
    """A constant of the range errs by at most its width on every rating; 4 is what the worst one
    may have.
    """
    assert measure.diverged(rmse, (1.0, 5.0)) is expected


def test_python_is_told_as_well():
    assert (
        dpmf_jax.fit(RATINGS, gaussian.mechanism(CONFIG), num_steps=3, seed=0).metrics["diverged"]
        is False
    )
    wild = local.gd(local.Config(epsilon=1.0, num_rounds=2, rank=3, learning_rate=10.0, center=3.0))
    assert dpmf_jax.fit(RATINGS, wild, num_steps=2, seed=0).metrics["diverged"] is True


def test_a_model_that_diverged_is_of_no_use_whatever_the_held_out_side_says():
    """Predictions are clipped on that side, so the error there is bounded."""
    controls = {
        name: {"rmse_train": 1.1, "rmse_test": 1.1} for name in ("global_mean", "item_means")
    }
    told = {"rmse_train": 1e9, "rmse_test": 1.0, "diverged": True, "controls": controls}
    assert utility(told).startswith("DIVERGED")
