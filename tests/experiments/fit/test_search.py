"""The search for defaults: what it compares, and with what."""

import pytest

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.als.config import Config
from experiments.fit import search

CASE = search.Case(60, 20, 600, 20.0)
pytestmark = pytest.mark.seconds


@pytest.fixture(scope="module")
def rows():
    same, other = {"means_clip": Config.means_clip}, {"means_clip": 0.01}
    return search.compare([same, other], [CASE], [1, 2])


def test_the_default_given_again_is_no_different(rows):
    usual, same, _ = rows
    assert usual["settings"] == {}
    assert same["rmse"] == usual["rmse"]
    assert (same["difference"], same["error"]) == (0, 0)


def test_a_setting_that_sends_next_to_nothing_is_worse_by_what_the_runs_differ(rows):
    usual, _, other = rows
    assert other["difference"] == pytest.approx(other["rmse"] - usual["rmse"])
    assert other["difference"] > 0
    assert other["error"] > 0
    assert "60" in search.render({"rows": rows}).columns[0]._cells[0]


def test_an_unknown_size_is_refused():
    with pytest.raises(UsageError, match="no such size"):
        search.run(search.Command(setting="growth", values=(1.0,), sizes=("huge",)))
