"""What one key in ten thousand brings about is no accusation."""

import json

import pytest

from experiments.audit import trial
from experiments.cli import main as cli

OPEN, BROKEN = "inconclusive", "violated"


def finding(verdict, p_value=None, audit="noise: independence", **details):
    details |= {} if p_value is None else {"p_value": p_value}
    return {"mechanism": "m", "audit": audit, "verdict": verdict, "details": details}


@pytest.mark.parametrize(
    ("first", "second", "verdict", "asks"),
    [
        (finding("violated", 9e-5), finding("consistent", 0.3), "inconclusive", 1),
        (finding("violated", 9e-5), finding("violated", 2e-5), "violated", 1),
        (finding("violated", 1e-30), finding("consistent", 0.3), "violated", 0),
        (finding("violated"), finding("consistent"), "violated", 0),  # exact
        (finding("violated", p_values={"a": 2e-6, "b": 1.0}), finding("consistent"), OPEN, 1),
        (finding("violated", p_values={"a": 2e-6, "b": 1e-9}), finding("consistent"), BROKEN, 0),
        (finding("violated", directions=[{"p_value": 3e-5}]), finding("consistent"), OPEN, 1),
        (finding("consistent", 0.2), finding("violated", 1e-5), "consistent", 0),
    ],
)
def test_another_key_is_asked_where_chance_may_have_spoken(first, second, verdict, asks):
    asked = []

    def with_another_key():
        asked.append(second)
        return [second, finding("violated", audit="other")]

    found, exact = trial.confirmed([first, finding("violated", audit="other")], with_another_key)
    assert found["verdict"] == verdict
    assert ("why" in found["details"]) == (verdict == "inconclusive")
    assert exact["verdict"] == "violated"
    assert len(asked) == asks


@pytest.mark.seconds
def test_a_sound_mechanism_that_one_key_accuses_is_not_accused(capsys):
    """The one of `dpmf audit --all --quick`, with its usual seed: p = 8.6e-5."""
    words = "--mechanism objective-statistics --quick --only noise --json"
    code = cli.main(["audit", "synthetic-40x30x600-seed0", *words.split()])
    told = json.loads(capsys.readouterr().out)
    (found,) = [one for one in told["findings"] if one["audit"] == "noise: independence"]
    assert found["details"]["p_value"] < 1e-4
    assert found["verdict"] == "inconclusive"
    assert "another key" in found["details"]["why"]
    assert code == 0
