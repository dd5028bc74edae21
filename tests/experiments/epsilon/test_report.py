"""What all `dpmf epsilon` commands keep: numbers on their safe side, whole statements, clear
errors, no jax.
"""

import math
import subprocess
import sys
from decimal import Decimal

import hypothesis
import hypothesis.strategies as st
import pytest

from dpmf_jax.errors import UsageError
from experiments.epsilon import flags as epsilon_flags
from experiments.epsilon import report as epsilon_report
from tests.cases.epsilon import EVERY, ODD


@pytest.mark.parametrize(
    "error", [OverflowError("math range error"), ZeroDivisionError("by zero"), ValueError("no")]
)
def test_what_no_float_can_hold_is_a_usage_error(error):
    with pytest.raises(UsageError) as caught, epsilon_flags.pricing("dpmf epsilon sampled"):
        raise error
    assert (caught.value.where, str(error) in caught.value.what) == ("dpmf epsilon sampled", True)
    assert caught.value.fix


@pytest.mark.parametrize("price", [math.nextafter(2.0, 3.0), math.inf, math.nan])
def test_an_answer_that_costs_more_than_was_asked_is_refused(price):
    with pytest.raises(ValueError, match="no sampling-rate was found"):
        epsilon_report.check_answer(price, 2.0, "sampling_rate")
    epsilon_report.check_answer(2.0, 2.0, "sampling_rate")
    epsilon_report.check_answer(price, None, "epsilon")


def test_more_steps_than_are_countable_are_cut_with_a_note(priced):
    words = ("gaussian", "--noise-multiplier", "1e9", "--epsilon", "1")
    found = priced(*words, "--solve", "steps")
    assert found["steps"] == 10**12
    assert "more steps than 1,000,000,000,000 are affordable" in found["notes"][0]
    pure = priced(
        "pure",
        "--solve",
        "rounds",
        "--epsilon-round",
        "1e-12",
        "--epsilon",
        "100",
        "--accountant",
        "basic",
    )
    assert (pure["rounds"], pure["epsilon"]) == (10**12, 1.0)
    assert "more rounds than" in pure["notes"][0]


def test_too_few_settings_to_verify_are_refused_by_the_flag(refused):
    told = refused("verify", "--num-settings", "10")
    assert "--num-settings must be at least 40" in told
    assert "got 10" in told


@pytest.mark.parametrize(
    "words",
    [
        ["gaussian", "--steps", "1", "--sigma", "3"],
        ["pure", "--rounds", "3", "--epsilon-round", "1"],
        ["local", "--rounds", "3", "--epsilon", "1", "--reports", "1000"],
        [
            "objective",
            "--mechanism",
            "objective-statistics",
            "--rating-bound",
            "2",
            "--epsilon",
            "1",
        ],
        [
            "federated",
            "--iterations",
            "3",
            "--clip-norm",
            "1",
            "--honest-shares",
            "2",
            "--scale",
            "9",
        ],
    ],
)
def test_no_page_shows_a_smaller_delta_than_is_priced(dpmf, words):
    code, out, _ = dpmf(*words, "--delta", ODD)
    assert code == 0
    assert "δ = 1.23457e-05" in out
    assert "1.23456e-05" not in out
    assert "1 steps" not in out


@hypothesis.given(st.floats(min_value=1e-300, max_value=1e300), st.integers(1, 15))
def test_shown_numbers_are_on_their_side_and_close(value, digits):
    up, down = (
        Decimal(epsilon_report.at_least(value, digits)),
        Decimal(epsilon_report.at_most(value, digits)),
    )
    assert float(down) <= value <= float(up)
    assert up - down <= Decimal(10) ** (1 - digits) * up  # one of the last digit at most
    assert Decimal(epsilon_report.at_least(float(up), digits)) == up


@pytest.mark.parametrize("words", EVERY.values(), ids=EVERY)
def test_every_result_says_unit_relation_status_and_the_whole_statement(dpmf, priced, words):
    found = priced(*words)
    assert found["relation"]
    assert found["trust_model"]
    assert found["status"] in ("proved", "proved for real-number noise", "claimed")
    assert found["kinds"]
    assert found["epsilon"] > 0
    code, out, _ = dpmf(*words)
    assert code == 0
    flat = " ".join(out.split())
    for part in (
        found["relation"],
        found["trust_model"],
        f"unit one {found['unit']}",
        f"status {found['status']}",
    ):
        assert part in flat
    for part in ("assumptions", "not covered", "choosing the best of several runs"):
        assert part in flat
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.seconds
def test_a_price_needs_no_jax(models):
    code = f"""
import sys
from decimal import Decimal
from experiments.cli import main as cli
for words in {[*EVERY.values(), ["model", str(models["proved"])]]!r}:
    assert cli.main(["epsilon", *words, "--json"]) == 0
print(sorted({{"jax", "jaxlib", "optax", "matplotlib"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_imports_nothing_that_prices(dpmf):
    code = """
import sys
from decimal import Decimal
from experiments.cli import main as cli
try:
    cli.main(["epsilon", "gaussian", "--help"])
finally:
    print(sorted({"jax", "numpy", "scipy", "dp_accounting", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for name in EVERY:
        code, out, _ = dpmf(name, "--help")
        assert code == 0
        assert f"usage: dpmf epsilon {name}" in out
