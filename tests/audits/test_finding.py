"""A finding that contradicts itself is refused."""

import math

import pytest

from audits.finding import Finding


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "fine"},
        {"verdict": "consistent", "measured": None},
        {"lower": 2.0},
        {"upper": 0.5},
        {"confidence": 0.0},
        {"confidence": math.nan},
    ],
)
def test_a_finding_that_contradicts_itself_is_refused(change):
    good = {
        "audit": "a",
        "claim": "b",
        "verdict": "violated",
        "measured": 1.0,
        "lower": 0.5,
        "upper": 2.0,
    }
    assert Finding(**good).measured == 1.0
    with pytest.raises((ValueError, TypeError)):
        Finding(**(good | change))
