"""Paper 002 at a size of seconds, for the tests of its runs and figures."""

import pytest

from experiments.reproduce.paper002 import report, runs, table
from tests.cases import reproduce as cases


@pytest.fixture(scope="module")
def small():
    """Everything at a size of seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cases.SKETCH.items():
            patch.setattr(table, name, value)
        patch.setattr(report, "RANKS", cases.RANKS)
        patch.setattr(report, "GAINS", cases.GAINS)
        yield


@pytest.fixture(scope="module")
def data(small):
    return runs.Data(cases.some("ml-1m"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")
