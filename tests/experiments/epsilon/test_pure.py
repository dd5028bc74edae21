"""`dpmf epsilon pure`: rounds of pure differential privacy."""

import pytest

from tests.cases.epsilon import rows_of


def test_pure_rounds_cost_k_times_as_much_or_less_at_a_delta(priced):
    found = priced("pure", "--epsilon-round", "0.002", "--rounds", "50")
    assert found["basic"] == 0.1  # in decimals
    assert found["optimal"] < found["basic"]
    assert found["unit"] == "rating value"
    assert found["statement"].startswith(
        "PRIVACY STATEMENT: rounds of pure differential privacy, 50 steps"
    )
    assert (
        priced("pure", "--epsilon-round", "1", "--rounds", "1", "--unit", "user")["unit"] == "user"
    )


@pytest.mark.parametrize("accountant", ["basic", "optimal"])
@pytest.mark.parametrize("unknown", ["epsilon-round", "rounds", "delta"])
def test_a_pure_answer_costs_no_more_than_was_asked(dpmf, priced, unknown, accountant):
    flags = {"--epsilon-round": "0.1", "--rounds": "20", "--delta": "1e-5"}
    del flags[f"--{unknown}"]
    given = [word for pair in flags.items() for word in pair]
    target = 2.0 if accountant == "basic" else 1.5
    words = ["pure", "--solve", unknown, "--epsilon", target, *given, "--accountant", accountant]
    found = priced(*words)
    assert target * 0.9 < found[accountant] <= target
    code, out, _ = dpmf(*words)
    assert code == 0
    assert rows_of(out)[accountant] <= target
    answer = (
        next(line for line in out.splitlines() if line.startswith("solved: "))
        .split(",")[0]
        .split()[-1]
    )
    if unknown == "delta" and accountant == "basic":
        assert float(answer) == found["delta"] == 0.0  # the pure price
        return
    assert target * 0.9 < priced("pure", *given, f"--{unknown}", answer)[accountant] <= target


@pytest.mark.parametrize("accountant", ["basic", "optimal"])
@pytest.mark.parametrize("words", [["--rounds", "2000000000"], ["--rounds", "20", "--delta", "0"]])
def test_without_a_delta_or_beyond_the_sum_the_basic_price_stands_alone(
    dpmf, priced, words, accountant
):
    words = ["pure", "--epsilon-round", "1e-6", *words, "--accountant", accountant]
    found = priced(*words)
    assert found["basic"] == found["epsilon"] == pytest.approx(1e-6 * float(words[4]), rel=1e-15)
    assert (found["accountant"], found["optimal"], found["delta"]) == ("basic", None, 0.0)
    assert found["kinds"].keys() == {"basic"}
    assert any("optimal is left out" in note for note in found["notes"]) == ("2000000000" in words)
    code, out, _ = dpmf(*words)
    assert code == 0
    assert rows_of(out).keys() == {"basic"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pure", "--rounds", "3"], "missing --epsilon-round"),
        (
            ["pure", "--rounds", "0", "--epsilon-round", "1"],
            "--rounds must be an integer of at least 1",
        ),
        (
            ["pure", "--rounds", "3", "--epsilon-round", "nan"],
            "--epsilon-round must be positive and finite",
        ),
        (
            ["pure", "--rounds", "3", "--epsilon-round", "1", "--delta", "1"],
            "--delta must be at least 0 and below 1",
        ),
        (
            ["pure", "--solve", "rounds", "--epsilon-round", "1", "--epsilon", "0.5"],
            "not one round",
        ),
        (
            ["pure", "--rounds", "3", "--epsilon-round", "1", "--delta=-0.0"],
            "--delta must be at least 0 and below 1",
        ),
        (
            ["pure", "--solve", "epsilon-round", "--rounds", "2000000000", "--epsilon", "1"],
            "fix: --accountant basic",
        ),
        (
            ["pure", "--solve", "rounds", "--epsilon-round", "1e-12", "--epsilon", "1"],
            "fix: --accountant basic",
        ),
        (
            [
                "pure",
                "--solve",
                "delta",
                "--rounds",
                "3",
                "--epsilon-round",
                "1",
                "--epsilon",
                "1",
                "--accountant",
                "basic",
            ],
            "no δ helps basic composition",
        ),
    ],
)
def test_what_pure_rounds_refuse(refused, words, told):
    assert told in refused(*words)


def test_the_epsilon_of_a_round_is_shown_rounded_up(dpmf):
    _, out, _ = dpmf("pure", "--epsilon-round", "0.1234567812", "--rounds", "2")
    assert "each at ε = 0.12345679" in out
