"""`dpmf epsilon local`: one-bit reports, for the server and behind a trusted shuffler."""

import pytest


def test_local_reports_without_a_delta_or_beyond_the_sum(priced):
    for words in (["--rounds", "3", "--delta", "0"], ["--rounds", "2000000000", "--delta", "1e-5"]):
        found = priced("local", "--epsilon", "1", *words)
        assert (found["basic"], found["optimal"], found["delta"]) == (1.0, None, 0.0)
        assert found["kinds"].keys() == {"basic"}
    assert priced("local", "--epsilon", "1", "--rounds", "3", "--delta", "1e-5")[
        "kinds"
    ].keys() == {"basic", "optimal"}


@pytest.mark.seconds
@pytest.mark.parametrize("schedule", ["rounds", "partition"])
def test_a_shuffled_target_is_met(dpmf, priced, schedule):
    flags = {"--rounds": "2", "--epsilon": "3", "--reports": "20000", "--delta": "1e-5"}
    words = ["local", "--schedule", schedule]
    for unknown in ("reports", "epsilon", "delta"):
        given = [
            word for name, text in flags.items() if name != f"--{unknown}" for word in (name, text)
        ]
        asked = [*words, *given, "--solve", unknown, "--shuffled-epsilon", "0.2"]
        found = priced(*asked)
        assert 0.1999 < found["shuffled"]["epsilon"] <= 0.2
        code, out, _ = dpmf(*asked)
        assert code == 0
        flag, answer = (
            next(line for line in out.splitlines() if line.startswith("solved: "))
            .split(",")[0]
            .split()[1:]
        )
        assert flag == f"--{unknown}"
        assert float(answer) == (found["optimal_delta"] if unknown == "delta" else found[unknown])
        assert 0.1999 < priced(*words, *given, flag, answer)["shuffled"]["epsilon"] <= 0.2
        if unknown == "reports":
            fewer = found["reports"] - (2 if schedule == "partition" else 1)
            assert priced(*words, *given, flag, fewer)["shuffled"]["epsilon"] > 0.2


def test_local_reports_cost_what_the_user_was_told(priced, dpmf):
    found = priced("local", "--epsilon", "1", "--rounds", "10")
    assert (found["basic"], found["epsilon_round"], found["delta"], found["unit"]) == (
        1.0,
        0.1,
        0.0,
        "user",
    )
    assert found["shuffled"] is None
    assert "11 rounds, which would cost ε = 1.1" in found["notes"][0]
    split = priced("local", "--epsilon", "1", "--rounds", "10", "--schedule", "partition")
    assert (split["reports_of_a_user"], split["epsilon_round"], split["basic"]) == (1, 1.0, 1.0)
    assert split["notes"] == []
    code, out, _ = dpmf("local", "--epsilon", "1", "--rounds", "10", "--reports", "100000")
    assert code == 0
    assert out.count("PRIVACY STATEMENT") == 2
    assert "central, behind a trusted shuffler" in out


def test_the_shuffled_price_stands_beside_the_local_one(priced):
    found = priced(
        "local", "--epsilon", "4", "--rounds", "1", "--reports", "100000", "--delta", "1e-6"
    )
    assert found["basic"] == 4
    assert 0.1675 < found["shuffled"]["epsilon"] < 0.1728
    assert found["shuffled"]["epsilon"] < found["shuffled"]["closed_form"] < 4
    assert "trusted shuffler" in found["shuffled"]["trust_model"]
    assert "trusted shuffler" not in found["trust_model"]
    groups = priced(
        "local", "--epsilon", "4", "--rounds", "10", "--reports", "1000", "--schedule", "partition"
    )
    assert groups["shuffled"]["reports"] == 100
    assert groups["shuffled"]["closed_form"] is None
    assert "the closed form says nothing" in groups["notes"][0]


def test_the_rounds_of_a_shuffled_target(dpmf, priced):
    """At one ε in all, weaker reports hide one another better: the least k. Of groups that report
    once, the most.
    """
    words = ["local", "--epsilon", "3", "--reports", "20000"]
    for schedule, target, beyond in (("rounds", "0.116", -1), ("partition", "0.5", 1)):
        asked = [*words, "--schedule", schedule, "--solve", "rounds", "--shuffled-epsilon", target]
        found = priced(*asked)
        assert found["rounds"] > 1
        assert found["shuffled"]["epsilon"] <= float(target)
        code, out, _ = dpmf(*asked)
        assert code == 0
        assert f"solved: --rounds {found['rounds']}, for ε = {target} behind the shuffler" in out
        other = priced(*words, "--schedule", schedule, "--rounds", found["rounds"] + beyond)
        assert other["shuffled"]["epsilon"] > float(target)


def test_the_epsilon_of_a_report_is_shown_rounded_up(dpmf):
    _, out, _ = dpmf("local", "--epsilon", "0.1234567812", "--rounds", "1")
    assert "each at ε = 0.12345679" in out


_UNKNOWN_ROUNDS = ["--solve", "rounds", "--epsilon", "1"]
_UNKNOWN_DELTA = ["--solve", "delta", "--rounds", "3", "--epsilon", "1", "--reports", "900"]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["local", "--epsilon", "1"], "--rounds"),
        (["local", "--rounds", "3", "--epsilon", "inf"], "--epsilon must be positive and finite"),
        (
            ["local", "--rounds", "-3", "--epsilon", "1"],
            "--rounds must be an integer of at least 1",
        ),
        (
            ["local", "--rounds", "3", "--epsilon", "1", "--delta", "0", "--reports", "9"],
            "--delta must be between 0",
        ),
        (
            ["local", "--rounds", "3", "--epsilon", "1", "--shuffled-epsilon", "1"],
            "too many --shuffled-epsilon",
        ),
        (
            ["local", "--rounds", "3", "--epsilon", "1", "--solve", "reports"],
            "missing --shuffled-epsilon",
        ),
        (
            ["local", "--rounds", "3", "--solve", "rounds", "--epsilon", "1"],
            "too many --rounds (solved for)",
        ),
        (
            [
                "local",
                *_UNKNOWN_ROUNDS,
                "--schedule",
                "partition",
                "--reports",
                "9",
                "--shuffled-epsilon",
                "0.01",
            ],
            "9 reports in one shuffle cost more",
        ),
        (["local", *_UNKNOWN_DELTA, "--shuffled-epsilon", "2"], "any δ will do: the local ε = 1"),
        (
            ["local", *_UNKNOWN_DELTA, "--shuffled-epsilon", "0.1", "--delta", "0.1"],
            "too many --delta (solved for)",
        ),
        (
            [
                "local",
                "--rounds",
                "3",
                "--epsilon",
                "1",
                "--reports",
                "2",
                "--schedule",
                "partition",
            ],
            "2 users cannot be split into 3 groups",
        ),
    ],
)
def test_what_local_reports_refuse(refused, words, told):
    assert told in refused(*words)
