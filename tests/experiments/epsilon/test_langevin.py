"""`dpmf epsilon langevin`: Langevin dynamics on secret samples."""

import math

import pytest

from experiments.epsilon import langevin as epsilon_langevin
from tests.cases.epsilon import LANGEVIN, SAMPLED, rows_of


@pytest.mark.seconds
def test_langevin_steps_are_priced_by_their_temperature(dpmf, priced):
    found = priced(*LANGEVIN, "--temperature", "1")
    assert found["noise_multiplier"] == pytest.approx(0.01 * math.sqrt(2 / 1e-4))
    same = priced(
        *SAMPLED[:1],
        "--sampling-rate",
        "0.01",
        "--steps",
        20,
        "--noise-multiplier",
        found["noise_multiplier"],
    )
    assert found["pld"] == pytest.approx(same["pld"], rel=1e-9)
    assert found["statement"].startswith("PRIVACY STATEMENT: langevin, 20 steps")
    slower = priced(
        *LANGEVIN, "--temperature", "1", "--decay", "9", "--steps", "5"
    )  # later steps are smaller
    assert slower["phases"] == 5
    assert slower["pld"] < priced(*LANGEVIN, "--temperature", "1", "--steps", "5")["pld"]
    assert slower["noise_multiplier"] == pytest.approx(found["noise_multiplier"])
    assert slower["largest_noise_multiplier"] > 2 * found["noise_multiplier"]
    words = [*LANGEVIN, "--solve", "temperature", "--epsilon", "0.5", "--accountant", "rdp"]
    code, out, _ = dpmf(*words)
    assert code == 0
    assert 0.49 < rows_of(out)["rdp"] <= 0.5
    answer = (
        next(line for line in out.splitlines() if line.startswith("solved: "))
        .split(",")[0]
        .split()[-1]
    )
    assert 0.49 < priced(*LANGEVIN, "--temperature", answer)["rdp"] <= 0.5
    delta = priced(*LANGEVIN, "--solve", "delta", "--temperature", "1", "--epsilon", "0.5")
    assert 0.499 < delta["pld"] <= 0.5


@pytest.mark.one_case
@pytest.mark.parametrize(
    "unknown", ["temperature", "learning-rate", "clip-norm", "steps", "decay", "sampling-rate"]
)
def test_every_unknown_of_langevin_costs_no_more_than_was_asked(dpmf, priced, unknown):
    flags = {
        "--temperature": "1",
        "--learning-rate": "1e-4",
        "--clip-norm": "1",
        "--steps": "3" if unknown == "decay" else "20",
    }
    given = [
        word for name, text in flags.items() if name != f"--{unknown}" for word in (name, text)
    ]
    rate = [] if unknown == "sampling-rate" else ["--sampling-rate", "0.01"]
    words = ["langevin", *rate, *given, "--accountant", "rdp"]
    target = 0.435 if unknown == "decay" else 0.45  # of few steps, which are as many phases
    code, out, _ = dpmf(*words, "--solve", unknown, "--epsilon", target)
    assert code == 0
    assert target - 0.01 < rows_of(out)["rdp"] <= target
    flag, answer = (
        next(line for line in out.splitlines() if line.startswith("solved: "))
        .split(",")[0]
        .split()[1:]
    )
    assert flag == f"--{unknown}"
    assert target - 0.01 < priced(*words, flag, answer)["rdp"] <= target
    if unknown == "decay":
        assert priced(*words, flag, float(answer) * 0.9)["rdp"] > target
    if unknown == "sampling-rate":  # the noise grows with it
        assert priced(*words, flag, float(answer) * 0.99)["rdp"] > target
    if unknown == "steps":
        assert priced(*words, flag, int(answer) + 1)["rdp"] > target


def test_an_unknown_of_langevin_that_nothing_affords_is_refused(refused, priced, monkeypatch):
    monkeypatch.setattr(epsilon_langevin, "MAX_STEPS", 64)  # the real limit takes minutes to reach
    words = [
        "langevin",
        "--sampling-rate",
        "0.01",
        "--learning-rate",
        "1e-4",
        "--clip-norm",
        "1",
        "--solve",
        "steps",
    ]
    rdp = [*words, "--accountant", "rdp"]
    assert "not one step" in refused(*rdp, "--temperature", "1", "--epsilon", "1e-6")
    found = priced(*rdp, "--temperature", "100", "--epsilon", "1")
    assert found["steps"] == 64
    assert "more steps than 64 are affordable" in found["notes"][0]


def test_a_delta_below_what_a_distribution_knows_is_rdps(priced):
    words = [*LANGEVIN, "--temperature", "1", "--solve", "delta", "--epsilon", "10"]
    found = priced(*words)
    assert found["delta"] < 20 * 9e-16
    assert found["accountant"] == "rdp"
    assert found["rdp"] <= 10
    assert found["pld"] == "inf"
    assert "its floor for so many steps; rdp says less" in found["notes"][0]
    assert "pld = inf is that accountant's floor" in found["notes"][1]
    value = priced(*words, "--unit", "rating-value", "--temperature", "4")
    assert value["accountant"] == "pld"
    assert "δ is at the floor of pld" in value["notes"][0]
    assert not any("floor" in note for note in priced(*LANGEVIN, "--temperature", "1")["notes"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*LANGEVIN, "--temperature", "1e-18"], "error: --temperature"),
        (LANGEVIN, "missing --temperature"),
        ([*LANGEVIN, "--temperature", "0"], "--temperature must be positive and finite"),
        (
            [*LANGEVIN, "--temperature", "1", "--decay", "-1"],
            "--decay must be at least 0 and finite",
        ),
        (
            [*LANGEVIN, "--temperature", "1", "--learning-rate", "nan"],
            "--learning-rate must be positive and finite",
        ),
        (
            [*LANGEVIN, "--temperature", "1", "--steps", "1000001"],
            "--steps must be at most 1,000,000",
        ),
        (["langevin", "--temperature", "1"], "--sampling-rate"),
    ],
)
def test_what_langevin_steps_refuse(refused, words, told):
    assert told in refused(*words)


@pytest.mark.slow  # forty distributions
def test_a_rate_is_the_smallest_going_down_from_all_of_the_data(priced):
    words = [
        "langevin",
        "--learning-rate",
        "1e-4",
        "--clip-norm",
        "1",
        "--steps",
        "5",
        "--temperature",
        "1",
    ]
    found = priced(*words, "--solve", "sampling-rate", "--epsilon", "0.5")
    assert 0.49 < found["pld"] <= 0.5
    less = priced(*words, "--sampling-rate", found["sampling_rate"] / 1.01)
    assert less["pld"] > 0.5  # the noise grows with the rate
    assert priced(*words, "--sampling-rate", "1")["pld"] < 0.5


@pytest.mark.seconds
def test_a_decay_that_is_not_needed_is_0(dpmf, priced):
    words = [*LANGEVIN, "--temperature", "1", "--solve", "decay", "--epsilon", "5"]
    assert priced(*words)["decay"] == 0.0
    assert "solved: --decay 0, for" in dpmf(*words)[1]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--solve", "sampling-rate", "--epsilon", "1e-4"], "too many --sampling-rate"),
        (["--solve", "decay", "--epsilon", "1e-4"], "which no decay makes cheaper"),
        (["--solve", "decay", "--decay", "3", "--epsilon", "1e-4"], "too many --decay"),
    ],
)
def test_an_unknown_of_langevin_is_not_given_as_well(refused, words, told):
    assert told in refused(*LANGEVIN, "--temperature", "1", *words)


def test_the_number_of_steps_is_looked_for_near_where_it_is(priced, monkeypatch):
    """Each price may take seconds: it is asked for few numbers of steps, and none of them is far
    beyond the answer.
    """
    asked = []
    gap = epsilon_langevin._gap
    monkeypatch.setattr(
        epsilon_langevin, "_gap", lambda command: asked.append(command.steps) or gap(command)
    )
    words = [
        "langevin",
        "--sampling-rate",
        "0.01",
        "--learning-rate",
        "1e-6",
        "--clip-norm",
        "1",
        "--temperature",
        "1",
    ]
    found = priced(*words, "--solve", "steps", "--epsilon", "0.45", "--accountant", "rdp")
    assert len(asked) <= 12
    assert max(asked) < 8 * found["steps"]


@pytest.mark.one_case
@pytest.mark.parametrize("unit", ["rating-value", "user"])
def test_what_is_affordable_is_so_for_the_unit(priced, unit):
    words = [
        "langevin",
        "--sampling-rate",
        "0.1",
        "--learning-rate",
        "1e-2",
        "--clip-norm",
        "1",
        "--steps",
        "2",
    ]
    found = priced(*words, "--solve", "temperature", "--epsilon", "0.5", "--unit", unit)
    assert 0.499 < found["pld"] <= 0.5
    assert found["unit"] == unit.replace("-", " ")
