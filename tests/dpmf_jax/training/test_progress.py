"""Progress: a bar where somebody looks, silence in a pipe; logs hold nothing that is not public."""

import io
import logging
import re

import pytest
from rich.console import Console

import dpmf_jax
from dpmf_jax.training.progress import bar
from tests.cases.als import RATINGS

pytestmark = pytest.mark.usefixtures("quick_compilation")

JOINT = {"epsilon": 3.0, "rank": 2, "steps": 4, "controls": "none", "num_devices": 1}


@pytest.mark.parametrize(
    ("terminal", "notebook", "shown", "there"),
    [
        (True, False, None, True),
        (False, False, None, False),
        (True, False, False, False),
        (False, True, None, False),  # rich needs ipywidgets there, which the tests do not have
        (False, False, True, True),
    ],
)
def test_a_bar_is_shown_where_somebody_looks(terminal, notebook, shown, there):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, force_jupyter=notebook, width=100)
    with bar("fit", 4, shown=shown, console=console) as report:
        report(2, epsilon=1.25)
        report(4, epsilon=3.0)
    assert ("4/4" in text.getvalue()) == there
    assert ("epsilon 3" in text.getvalue()) == there


def test_a_fit_in_a_pipe_is_silent_and_logs_steps_and_their_price(capfd, caplog):
    steps = []
    with caplog.at_level(logging.INFO, "dpmf_jax"):
        dpmf_jax.fit(
            RATINGS, "gaussian-joint-noise", seed=0, report=lambda now: steps.append(now), **JOINT
        )
    assert capfd.readouterr() == ("", "")
    assert [now.step for now in steps] == [1, 2, 3, 4]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    for line in lines:  # no error on the ratings
        assert re.fullmatch(r"fit: \d of 4 steps, epsilon [\d.]+", line)


def test_a_bar_can_be_asked_for(capfd):
    dpmf_jax.fit(RATINGS, "gaussian-joint-noise", seed=0, progress=True, **JOINT)
    out, err = capfd.readouterr()
    assert out == ""
    assert f"fit {RATINGS.name}" in err
    assert "4/4" in err
