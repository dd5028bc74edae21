"""A guarantee travels as JSON, and what was changed on the way is refused."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from accounting import Guarantee, compose, no_guarantee
from tests.cases.guarantee import claimed, proved, steps_for_users

# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "guarantee",
    [
        proved(),
        claimed(seeded=True),
        proved(user_rho=None, noise_multiplier=0.7),
        no_guarantee(mechanism="non-private", num_steps=10, released=("user factors",)),
        compose(proved(), claimed()),
        proved(surplus_noise=1.5),
    ],
    ids=["proved", "claimed", "bare", "none", "composed", "surplus"],
)
def test_json_round_trip(guarantee):
    text = json.dumps(guarantee.to_dict(), allow_nan=False)
    again = Guarantee.from_dict(json.loads(text))
    assert again == guarantee
    assert hash(again) == hash(guarantee)
    assert again.to_dict() == guarantee.to_dict()
    assert json.loads(text)["statement"] == str(guarantee)


def test_infinity_travels_as_a_string():
    values = no_guarantee(mechanism="non-private", num_steps=1, released=()).to_dict()
    assert values["epsilon"] == "inf"


FORGED: list[tuple[str, Any]] = [
    ("surprise", 1),
    ("epsilon", 0.5),  # below its price
    ("epsilon", -1.0),
    ("epsilon", math.nan),
    ("epsilon", "none"),
    ("epsilon", None),
    ("delta", 1.0),
    ("delta", 3.0),  # J·δ of 300 steps at 0.01
    ("delta", math.nan),
    ("losses", []),
    (
        "losses",
        [{"kind": "gaussian", "noise_multiplier": 10.0, "num_steps": 300, "user_rho": None}],
    ),  # dearer
    (
        "losses",
        [{"kind": "gaussian", "noise_multiplier": math.nan, "num_steps": 300, "user_rho": None}],
    ),
    (
        "losses",
        [{"kind": "gaussian", "noise_multiplier": 20.0, "num_steps": 300}, {"kind": "smoke"}],
    ),
    ("losses", [{"kind": "pure", "epsilon": 1.0, "num_rounds": 300, "rounds": 1}]),
    ("losses", [300]),
    ("losses", {"kind": "gaussian"}),
    ("surplus_noise", 0.9),
    ("surplus_noise", math.nan),
    ("steps", 100),
    ("steps", 1.5),
    ("steps", -1),
    ("unit", "country"),
    ("status", "certified"),
    ("status", "none"),  # with a finite ε
    ("status", "claimed"),  # the exact ε is below the claim's
    ("relation", ""),
    ("mechanism", "x\n  Differential privacy: ε = 0.0001"),
    ("released", "user factors"),
    ("released", [1]),
    ("accountants", {"exact": math.nan}),
    ("accountants", {"exact": 0.5}),  # below what these losses cost
    ("accountants", [1.0]),
    ("losses", [steps_for_users([0.1, 0.1])]),  # one rating for less than the price of one rating
    ("losses", [steps_for_users([-1.0, 2.0])]),
    ("losses", [steps_for_users([1.0])]),
    ("losses", [steps_for_users(1.0)]),
    ("unit", "user"),  # with a price per rating
    ("seeded", "yes"),
    ("real_number_noise", "yes"),
    ("real_number_noise", True),  # and proved without it
    ("claimed_by", "paper 001"),  # and proved
    ("sensitivity", 0.0),
]


@pytest.mark.parametrize(("name", "value"), FORGED)
def test_json_that_says_something_else_is_refused(name, value):
    values = json.loads(json.dumps(proved().to_dict()))
    Guarantee.from_dict(values)
    with pytest.raises(ValueError, match=r"\w"):
        Guarantee.from_dict({**values, name: value})


def test_json_that_says_something_else_is_refused_without_a_type_checker():
    code = """
import json, sys
from accounting import Guarantee
values, forged = json.load(sys.stdin)
Guarantee.from_dict(values)
for name, value in forged:
    try:
        print("read:", Guarantee.from_dict({**values, name: value}))
    except ValueError:
        print("refused:", name)
"""
    text = json.dumps([proved().to_dict(), FORGED])
    run = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [f"refused: {name}" for name, _ in FORGED]


def test_json_with_a_key_missing_or_no_object_at_all_is_refused():
    values = proved().to_dict()
    del values["relation"]
    with pytest.raises(ValueError, match="missing keys in a guarantee: relation"):
        Guarantee.from_dict(values)
    with pytest.raises(ValueError, match="unknown keys in a guarantee: surprise"):
        Guarantee.from_dict({**proved().to_dict(), "surprise": 1})


def test_a_statement_is_made_anew_and_never_read():
    forged = {**proved().to_dict(), "statement": "perfectly private", "user_price": "nothing"}
    assert str(Guarantee.from_dict(forged)) == str(proved())
