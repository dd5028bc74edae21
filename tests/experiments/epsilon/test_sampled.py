"""`dpmf epsilon sampled`: Gaussian steps on secret samples."""

import pytest

from accounting import composition, digits, loss
from tests.cases.epsilon import SAMPLED, rows_of


def test_a_secret_sample_costs_less_than_all_of_the_data(priced):
    found = priced(*SAMPLED, "--delta", "1e-6", "--user-ratings", "20")
    whole = priced("gaussian", "--noise-multiplier", "1", "--steps", "100", "--delta", "1e-6")
    assert found["pld"] <= found["rdp"] < whole["exact"]
    assert found["epsilon"] == found["pld"]
    assert found["user"]["epsilon"] == pytest.approx(
        21.7, abs=0.05
    )  # a mixture; m² in ρ would say 15.5
    assert (found["unit"], found["status"]) == ("rating presence", "proved for real-number noise")
    assert found["statement"].startswith("PRIVACY STATEMENT: sketch-dpsgd, 100 steps")
    value = priced(*SAMPLED, "--delta", "1e-6", "--unit", "rating-value")
    assert value["rdp"] is None
    assert value["pld"] > found["pld"]
    assert "rdp is left out" in value["notes"][0]


SLOW = pytest.mark.slow  # ten distributions each


@pytest.mark.seconds
@pytest.mark.one_case
@pytest.mark.parametrize(
    ("unknown", "accountant"),
    [
        *((unknown, "rdp") for unknown in ("noise-multiplier", "sampling-rate", "steps", "delta")),
        *(
            pytest.param(unknown, "pld", marks=SLOW)
            for unknown in ("noise-multiplier", "sampling-rate", "steps")
        ),
        ("delta", "pld"),
    ],
)
def test_a_sampled_answer_costs_no_more_than_was_asked(dpmf, priced, unknown, accountant):
    flags = {
        "--noise-multiplier": "1",
        "--sampling-rate": "0.01",
        "--steps": "100",
        "--delta": "1e-5",
    }
    target = "1.2"
    del flags[f"--{unknown}"]
    given = [word for pair in flags.items() for word in pair]
    words = ["sampled", "--solve", unknown, "--epsilon", target, *given, "--accountant", accountant]
    found = priced(*words)
    assert 1.19 < found[accountant] <= 1.2
    code, out, _ = dpmf(*words)
    assert code == 0
    assert rows_of(out)[accountant] <= 1.2
    solved = next(line for line in out.splitlines() if line.startswith("solved: "))
    flag, answer = solved.removeprefix("solved: ").split(",")[0].split()
    assert flag == f"--{unknown}"
    assert 1.19 < priced("sampled", *given, flag, answer)[accountant] <= 1.2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*SAMPLED[:-2]], "missing --steps"),
        ([*SAMPLED, "--epsilon", "1"], "too many --epsilon (solved for)"),
        ([*SAMPLED, "--sampling-rate", "1.5"], "--sampling-rate must be above 0 and at most 1"),
        ([*SAMPLED, "--sampling-rate", "nan"], "--sampling-rate must be above 0 and at most 1"),
        ([*SAMPLED, "--sampling-rate", "0"], "--sampling-rate must be above 0 and at most 1"),
        (
            [*SAMPLED, "--unit", "rating-value", "--accountant", "rdp"],
            "--accountant rdp does not price",
        ),
        ([*SAMPLED, "--unit", "rating-value", "--user-ratings", "3"], "no price per user is known"),
        ([*SAMPLED, "--unit", "rating-value", "--user-ratings", "3"], "--unit rating-presence"),
        ([*SAMPLED, "--unit", "user", "--user-ratings", "3"], "ε is the user's price already"),
        ([*SAMPLED, "--user-ratings", "10001"], "--user-ratings must be at most 10,000"),
        ([*SAMPLED[:-1], "10000001"], "fix: --steps 10000000"),
        ([*SAMPLED[:-1], "999999999999"], "--steps must be at most 10,000,000"),
        ([*SAMPLED, "--noise-multiplier", "1e-5"], "error: --noise-multiplier"),
        ([*SAMPLED, "--clip-norm", "inf"], "--clip-norm must be positive and finite"),
        (
            [
                "sampled",
                "--solve",
                "steps",
                *SAMPLED[1:5],
                "--epsilon",
                "1e-3",
                "--accountant",
                "rdp",
            ],
            "not one step",
        ),
    ],
)
def test_what_sampled_steps_refuse(refused, words, told):
    assert told in refused(*words)


@pytest.mark.parametrize("unit", ["rating-presence", "user"])
def test_steps_that_take_a_distribution_minutes_are_priced_by_rdp(dpmf, priced, refused, unit):
    words = ["sampled", "--noise-multiplier", "100", "--sampling-rate", "1e-4", "--unit", unit]
    rdp = [*words, "--accountant", "rdp"]
    found = priced(*rdp, "--steps", 10**9)
    phase = loss.SubsampledGaussian(noise_multiplier=100.0, sampling_rate=1e-4, num_steps=10**9)
    expected = composition.rdp((phase,), unit=unit.replace("-", " ")).epsilon(1e-5)
    assert found["epsilon"] == found["rdp"] == expected
    assert (found["pld"], found["steps"], found["kinds"].keys()) == (None, 10**9, {"rdp"})
    assert found["stated_epsilon"] == digits.round_up(expected)
    assert "pld is left out" in found["notes"][0]
    assert f"ε = {found['stated_epsilon']:.4f} (rounded up)" in found["statement"]
    assert ("per user" in found["statement"]) is False
    assert ("is not priced over so many steps" in " ".join(found["statement"].split())) == (
        unit != "user"
    )
    assert "1000000000 steps" in found["statement"]
    code, out, _ = dpmf(*rdp, "--steps", 10**9)
    assert code == 0
    assert rows_of(out).keys() == {"rdp"}
    said = refused(*words, "--steps", 10**9)
    assert "--steps must be at most 10,000,000" in said
    assert "--accountant rdp" in said
    if unit != "user":
        assert "--user-ratings" in refused(*rdp, "--steps", 10**9, "--user-ratings", "3")


def test_more_steps_than_a_distribution_takes_are_rdps(priced, refused):
    words = [
        "sampled",
        "--noise-multiplier",
        "100",
        "--sampling-rate",
        "1e-4",
        "--epsilon",
        "1",
        "--solve",
        "steps",
    ]
    assert "10000000 steps or more are affordable" in (said := refused(*words))
    assert "--accountant rdp" in said
    found = priced(*words, "--accountant", "rdp")
    assert found["steps"] > 10**7
    assert found["pld"] is None
    assert 1 - 1e-6 < found["rdp"] <= 1


def test_many_steps_are_solved_for_by_rdp(priced):
    words = [
        "sampled",
        "--sampling-rate",
        "1e-4",
        "--unit",
        "user",
        "--accountant",
        "rdp",
        "--epsilon",
        "1",
    ]
    found = priced(*words, "--solve", "noise-multiplier", "--steps", 10**9)
    assert 0.99 < found["rdp"] <= 1
    back = priced(
        *words,
        "--solve",
        "delta",
        "--steps",
        10**9,
        "--noise-multiplier",
        found["noise_multiplier"],
    )
    assert back["delta"] == pytest.approx(1e-5, rel=1e-3)
