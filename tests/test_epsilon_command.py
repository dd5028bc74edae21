"""`dpmf epsilon` as a reader meets it: numbers, one unknown, statements, curves, clear errors; no data and no jax."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from accounting import gaussian
from dpmf_jax.errors import UsageError
from experiments import cli, epsilon_report

STEPS = ["gaussian", "--epsilon-step", "0.4", "--delta-step", "0.01", "--steps", "300", "--delta", "1e-5"]


@pytest.fixture
def dpmf(capsys):
    """Runs `dpmf epsilon ...`: (exit code, stdout, stderr)."""

    def run(*words) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = cli.main(["epsilon", *map(str, words)])
        except SystemExit as ended:
            code = ended.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def priced(dpmf):
    """The JSON of a command line that must succeed."""

    def run(*words) -> dict:
        code, out, err = dpmf(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


@pytest.fixture
def refused(dpmf):
    """What is said of a command line that must be refused: three lines at most, nothing on stdout, no traceback."""

    def run(*words, code: int = 2) -> str:
        found, out, err = dpmf(*words)
        assert (found, out) == (code, ""), (out, err)
        assert "Traceback" not in err
        assert {line.partition(":")[0] for line in err.splitlines()} <= {"error", "where", "fix"}
        assert err.startswith("error: ")
        assert "\nfix: " in err
        return err

    return run


def rows_of(text: str) -> dict[str, float]:
    """The printed table: ε by accountant."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    return {name: float(value) for name, value, _ in cells}


# ---- gaussian -----------------------------------------------------------------------------------------------------


def test_the_numbers_of_paper_001(priced):
    found = priced(*STEPS)
    assert found["closed_form"] == pytest.approx(13.18366, abs=5e-6)
    assert found["alpha_star"] == pytest.approx(3.15, abs=5e-3)
    assert found["rdp"] <= 12.2578
    assert found["pld"] == pytest.approx(11.43799, abs=1e-5)
    assert found["exact"] == pytest.approx(11.43799, abs=5e-6)
    assert found["rho"] == pytest.approx(2.485, abs=5e-4)
    assert found["exact"] <= found["pld"] + 1e-9 <= found["rdp"] <= found["closed_form"] <= found["basic"]
    assert (found["unit"], found["status"]) == ("rating value", "claimed")
    assert "one rating's value differs" in found["relation"]
    assert (found["steps"], found["epsilon_step"], found["delta_step"], found["delta"]) == (300, 0.4, 0.01, 1e-5)
    assert found["kinds"].keys() == {"basic", "closed_form", "rdp", "pld", "exact"}
    assert found["kinds"]["exact"].startswith("exact")
    assert all(found["kinds"][name].startswith("upper bound") for name in ("basic", "closed_form", "rdp", "pld"))
    assert found["statement"].startswith("PRIVACY STATEMENT: gaussian, 300 steps")


def test_the_table_is_rounded_up_and_the_statement_is_whole(dpmf, priced):
    code, out, _ = dpmf(*STEPS)
    assert code == 0
    found, shown = priced(*STEPS), rows_of(out)
    assert shown.keys() == {"basic", "closed_form", "rdp", "pld", "exact"}
    assert all(found[name] <= value <= found[name] + 1e-6 for name, value in shown.items())
    for line in (
        "status       claimed",
        "unit         one rating value",
        "trust model",
        "not covered",
        "ρ = 2.48534, α* = 3.15",
    ):
        assert line in out
    assert "add up to δ = 3, which is 1 or more" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--epsilon-step", "1"], ["ε_i = 1 is 1 or more"]),
        (["--epsilon-step", "0.999"], []),
        (["--epsilon-step", "0.1", "--steps", "100"], ["add up to δ = 1,"]),
        (["--epsilon-step", "0.1", "--steps", "99"], []),
        (["--noise-multiplier", "0.5", "--steps", "200"], []),  # nobody spoke of (ε_i, δ_i)
        (["--noise-multiplier", "0.005"], ["pld is left out"]),
    ],
)
def test_what_a_step_written_as_epsilon_and_delta_does_not_say(priced, words, told):
    steps = [] if "--steps" in words else ["--steps", "1"]
    found = priced("gaussian", *words, *steps)
    assert [told_part in note for told_part, note in zip(told, found["notes"], strict=True)] == [True] * len(told)
    assert (found["pld"] is None) == (told == ["pld is left out"])


def test_three_ways_to_write_the_noise(priced):
    z = gaussian.noise_multiplier_from_step(0.4, 0.01)
    prices = [
        priced("gaussian", "--steps", 7, *noise)
        for noise in (
            ["--epsilon-step", "0.4"],
            ["--noise-multiplier", repr(z)],
            ["--sigma", repr(5 * z), "--sensitivity", "5"],
        )
    ]
    assert len({round(found["exact"], 10) for found in prices}) == 1
    assert prices[2]["sigma"] == 5 * z
    assert all(found["noise_multiplier"] == pytest.approx(z, rel=1e-14) for found in prices)


@pytest.mark.parametrize(
    ("mechanism", "status", "weight"),
    [
        ("gaussian", "claimed", 400),
        ("gaussian-joint-noise", "proved", (400 + 20) / 2),
        ("gaussian-public-items", "proved", 400),
    ],
)
def test_the_mechanism_decides_status_relation_and_what_a_user_pays(priced, mechanism, status, weight):
    found = priced("gaussian", "--noise-multiplier", 50, "--steps", 10, "--mechanism", mechanism, "--user-ratings", 20)
    assert found["status"] == status
    assert found["stated_epsilon"] == gaussian.round_up(found["closed_form" if status == "claimed" else "exact"])
    assert found["user"]["rho"] == pytest.approx(weight * found["rho"])
    assert found["user"]["epsilon"] > found["stated_epsilon"]
    assert f"PRIVACY STATEMENT: {mechanism}, 10 steps" in found["statement"]


def test_presence_is_priced_where_the_residual_is_clipped(priced, refused):
    words = ("gaussian", "--noise-multiplier", 50, "--steps", 10, "--relation", "rating-presence")
    found = priced(*words, "--mechanism", "gaussian-joint-noise")
    assert (found["unit"], found["status"]) == ("rating presence", "proved")
    assert "one of which has one rating more" in found["relation"]
    told = refused(*words, code=4)
    assert "no finite sensitivity" in told
    assert "gaussian-joint-noise" in told


SOLVED = {
    "epsilon-step": ["--steps", "500", "--delta-step", "0.01"],
    "noise-multiplier": ["--steps", "500"],
    "sigma": ["--steps", "500", "--sensitivity", "5"],
    "steps": ["--noise-multiplier", "44.6"],
    "delta": ["--steps", "500", "--noise-multiplier", "44.6"],
}


@pytest.mark.parametrize(
    ("unknown", "accountant"),
    [
        *((unknown, accountant) for unknown in SOLVED for accountant in ("exact", "closed_form", "rdp")),
        ("epsilon-step", "pld"),
        ("delta", "pld"),
    ],
)
def test_the_answer_costs_no_more_than_was_asked(priced, dpmf, unknown, accountant):
    delta = [] if unknown == "delta" else ["--delta", "1e-5"]
    words = ["gaussian", "--solve", unknown, "--epsilon", "2", *SOLVED[unknown], *delta, "--accountant", accountant]
    found = priced(*words)
    assert found["target"] == 2
    assert found["epsilon"] == found[accountant] <= 2
    if unknown != "steps":
        assert found["epsilon"] > 2 - 1e-6
    # the answer as it is printed, priced again
    code, out, _ = dpmf(*words)
    assert code == 0
    assert rows_of(out)[accountant] <= 2
    solved = next(line for line in out.splitlines() if line.startswith("solved: "))
    flag, answer = solved.removeprefix("solved: ").split(",")[0].split()
    assert flag == f"--{unknown}"
    rest = [*SOLVED[unknown], *delta]
    for answered in (answer, repr(found[unknown.replace("-", "_")])):
        back = priced("gaussian", flag, answered, *rest)
        assert 2 - 1e-5 < back[accountant] <= 2 or (unknown == "steps" and back[accountant] <= 2)
    if unknown == "steps":
        more = priced("gaussian", "--steps", int(answer) + 1, *rest)
        assert more[accountant] > 2


def test_a_claim_is_solved_in_its_own_price_unless_told_otherwise(priced):
    words = ("gaussian", "--solve", "noise-multiplier", "--epsilon", "2", "--steps", "500")
    claimed = priced(*words)
    assert claimed["closed_form"] <= 2
    assert claimed["stated_epsilon"] <= 2
    proved = priced(*words, "--mechanism", "gaussian-public-items")
    assert proved["exact"] <= 2 < proved["closed_form"]
    assert proved["stated_epsilon"] <= 2
    told = priced(*words, "--accountant", "exact")
    assert any("the target is stated in exact, the statement's ε in closed_form" in note for note in told["notes"])
    assert not any("the target is stated" in note for note in [*claimed["notes"], *proved["notes"]])


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], ["missing --epsilon-step or --noise-multiplier or --sigma, --steps"]),
        (["--steps", "3"], ["missing --epsilon-step or"]),
        (["--noise-multiplier", "3"], ["missing --steps"]),
        (["--steps", "3", "--sigma", "3", "--epsilon", "1"], ["too many --epsilon (solved for)", "--solve"]),
        (
            ["--steps", "3", "--sigma", "3", "--epsilon-step", "1"],
            ["too many --epsilon-step or --sigma (they say the same)"],
        ),
        (
            ["--solve", "steps", "--steps", "3"],
            ["missing --epsilon-step", "--epsilon;", "too many --steps (solved for)"],
        ),
        (
            ["--solve", "sigma", "--noise-multiplier", "3", "--epsilon", "1", "--steps", "3"],
            ["too many --noise-multiplier (solved for, as --sigma)"],
        ),
        (
            ["--solve", "delta", "--delta", "1e-5", "--sigma", "3", "--epsilon", "1", "--steps", "3"],
            ["too many --delta (solved for)"],
        ),
        (["--solve", "steps", "--sigma", "0.1", "--epsilon", "0.1"], ["not one step"]),
        (
            ["--solve", "delta", "--sigma", "0.1", "--epsilon", "0.1", "--steps", "9", "--accountant", "closed_form"],
            ["no δ below 1"],
        ),
        (["--solve", "beta"], ["--solve"]),
        (["--mechanism", "gausian"], ["--mechanism"]),
    ],
)
def test_a_command_line_that_leaves_not_one_number_open(refused, words, told):
    said = refused("gaussian", *words)
    assert all(part in said for part in told), said


FULL = {"--steps": "3", "--sigma": "3", "--delta": "1e-5"}
BAD_NUMBERS = ("nan", "inf", "-inf", "0", "-1", "-0.0")


@pytest.mark.parametrize("value", [*BAD_NUMBERS, "x", ""])
@pytest.mark.parametrize("flag", ["--sigma", "--sensitivity", "--delta", "--delta-step", "--steps", "--user-ratings"])
def test_a_number_that_is_none_is_refused_by_its_flag(refused, flag, value):
    words = [f"{name}={text}" for name, text in (FULL | {flag: value}).items()]
    assert flag in refused("gaussian", *words)


@pytest.mark.parametrize("value", BAD_NUMBERS)
@pytest.mark.parametrize("flag", ["--epsilon-step", "--noise-multiplier"])
def test_a_noise_that_is_none_is_refused_by_its_flag(refused, flag, value):
    assert flag in refused("gaussian", "--steps=3", f"{flag}={value}")


@pytest.mark.parametrize("value", BAD_NUMBERS)
def test_a_target_that_is_none_is_refused_by_its_flag(refused, value):
    assert "--epsilon must be positive and finite" in refused(
        "gaussian", "--solve=sigma", "--steps=3", f"--epsilon={value}"
    )


@pytest.mark.parametrize("delta", ["1", "1.5", "1e-400"])
def test_a_delta_that_says_nothing_is_refused(refused, delta):
    assert "--delta must be between 0 and 1" in refused("gaussian", "--steps=3", "--sigma=3", "--delta", delta)


@pytest.mark.parametrize("steps", ["2.5", "1e3", "10000000000000", "9" * 400])
def test_steps_are_whole_and_countable(refused, steps):
    assert "--steps" in refused("gaussian", "--sigma=3", "--steps", steps)


@pytest.mark.parametrize(
    "words",
    [
        ["--sigma", "1e-300"],
        ["--sigma", "1e300"],
        ["--sigma", "1e300", "--sensitivity", "1e-300"],
        ["--sigma", "1e-300", "--sensitivity", "1e300"],
        ["--epsilon-step", "1e-300"],
        ["--epsilon-step", "1e300"],
        ["--solve", "sigma", "--epsilon", "1e-300"],
        ["--solve", "sigma", "--epsilon", "1e300"],
        ["--solve", "sigma", "--epsilon", "1", "--sensitivity", "1e308"],
    ],
)
def test_no_number_underflows_to_a_free_release(refused, words):
    assert "out of range" in (said := refused("gaussian", "--steps", "1", *words)) or "too small" in said


@hypothesis.given(
    value=st.floats(width=64).filter(lambda x: not 0 < x < math.inf),
    flag=st.sampled_from(["epsilon", "noise_multiplier", "sigma", "sensitivity"]),
)
def test_no_float_that_is_no_positive_number_passes(value, flag):
    from experiments.epsilon_command import Command

    with pytest.raises(UsageError, match="must be positive and finite"):
        epsilon_report.check_flags(Command(**{flag: value}))


@pytest.mark.parametrize("error", [OverflowError("math range error"), ZeroDivisionError("by zero"), ValueError("no")])
def test_what_no_float_can_hold_is_a_usage_error(error):
    with pytest.raises(UsageError) as caught, epsilon_report.pricing("dpmf epsilon sampled"):
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
    pure = priced("pure", "--solve", "rounds", "--epsilon-round", "1e-12", "--epsilon", "100", "--accountant", "basic")
    assert (pure["rounds"], pure["epsilon"]) == (10**12, 1.0)
    assert "more rounds than" in pure["notes"][0]


def test_a_target_beyond_the_distribution_names_the_accountant_to_take(refused):
    words = ["gaussian", "--epsilon", "30000", "--accountant", "pld"]
    assert "fix: --accountant exact" in refused(*words, "--solve", "noise-multiplier", "--steps", "1")
    assert "--accountant pld" in refused(*words, "--solve", "epsilon-step", "--steps", "1")


def test_too_few_settings_to_verify_are_refused_by_the_flag(refused):
    told = refused("verify", "--num-settings", "10")
    assert "--num-settings must be at least 40" in told
    assert "got 10" in told


ODD = "1.2345612e-5"  # in six digits nearest 1.23456e-05, a smaller δ than is priced


@pytest.mark.parametrize(
    "words",
    [
        ["gaussian", "--steps", "1", "--sigma", "3"],
        ["pure", "--rounds", "3", "--epsilon-round", "1"],
        ["local", "--rounds", "3", "--epsilon", "1", "--reports", "1000"],
        ["objective", "--mechanism", "objective-statistics", "--rating-bound", "2", "--epsilon", "1"],
        ["federated", "--iterations", "3", "--clip-norm", "1", "--honest-shares", "2", "--scale", "9"],
    ],
)
def test_no_page_shows_a_smaller_delta_than_is_priced(dpmf, words):
    code, out, _ = dpmf(*words, "--delta", ODD)
    assert code == 0
    assert "δ = 1.23457e-05" in out
    assert "1.23456e-05" not in out
    assert "1 steps" not in out


def test_no_curve_shows_a_smaller_delta_than_is_priced(priced, tmp_path):
    priced("gaussian", "--steps", "1", "--sigma", "3", "--delta", ODD, "--curves", tmp_path)
    text = (tmp_path / "epsilon-steps.svg").read_text()
    assert "δ = 1.23457e-05" in text
    assert "1.23456e-05" not in text
    assert "δ of 1 step," in (tmp_path / "delta-epsilon.svg").read_text()


def test_an_epsilon_of_0_is_said_not_to_be_free(priced):
    found = priced("gaussian", "--noise-multiplier", "100", "--steps", "1", "--delta", "0.5")
    assert found["exact"] == 0.0  # the total variation is below δ
    assert "ε = 0 by" in found["notes"][-1]
    assert "is not free" in found["notes"][-1]
    assert not any("is not free" in note for note in priced(*STEPS)["notes"])


# ---- numbers as they are shown ------------------------------------------------------------------------------------


@hypothesis.given(st.floats(min_value=1e-300, max_value=1e300), st.integers(1, 15))
def test_shown_numbers_are_on_their_side_and_close(value, digits):
    up, down = float(epsilon_report.at_least(value, digits)), float(epsilon_report.at_most(value, digits))
    assert down <= value <= up
    assert up - down <= 10 ** (1 - digits) * up * (1 + 1e-9)
    assert float(epsilon_report.at_least(up, digits)) == up


# ---- curves -------------------------------------------------------------------------------------------------------


def curve(path: Path) -> dict[str, list[float]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}


def test_curves_are_monotone_labelled_and_the_same_twice(priced, tmp_path):
    found = priced(*STEPS, "--curves", tmp_path / "a" / "b")
    assert sorted(found["curves"]) == sorted(map(str, (tmp_path / "a" / "b").iterdir()))
    names = {"epsilon-steps.svg", "epsilon-steps.csv", "delta-epsilon.svg", "delta-epsilon.csv"}
    assert {Path(path).name for path in found["curves"]} == names
    priced(*STEPS, "--curves", tmp_path / "c")
    for name in names:
        assert (tmp_path / "a" / "b" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()
    accountants = {"basic", "closed_form", "rdp", "pld", "exact"}
    by_steps, by_delta = curve(tmp_path / "c" / "epsilon-steps.csv"), curve(tmp_path / "c" / "delta-epsilon.csv")
    assert by_steps.keys() == {"steps", *accountants}
    assert by_delta.keys() == {"delta", *accountants}
    for name in by_steps:
        assert all(a < b for a, b in zip(by_steps[name], by_steps[name][1:], strict=False)), name
    for name in accountants:
        assert all(a > b for a, b in zip(by_delta[name], by_delta[name][1:], strict=False)), name
        here = by_steps[name][by_steps["steps"].index(300)]
        assert here == by_delta[name][by_delta["delta"].index(1e-5)] == found[name]
    for name, labels in (("epsilon-steps.svg", ["number of steps J", ">ε<"]), ("delta-epsilon.svg", [">ε<", ">δ<"])):
        text = (tmp_path / "c" / name).read_text()
        for label in [*labels, "claimed", found["relation"], *accountants]:
            assert label in text, (name, label)


def test_a_folder_that_cannot_be_made_is_a_clear_error(refused, tmp_path):
    (tmp_path / "file").write_text("")
    told = refused("gaussian", "--steps", "3", "--sigma", "3", "--curves", tmp_path / "file" / "x")
    assert "cannot make the folder" in told


# ---- sampled and langevin -----------------------------------------------------------------------------------------

SAMPLED = ["sampled", "--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "100"]
LANGEVIN = ["langevin", "--sampling-rate", "0.01", "--learning-rate", "1e-4", "--clip-norm", "1", "--steps", "20"]


def test_a_secret_sample_costs_less_than_all_of_the_data(priced):
    found = priced(*SAMPLED, "--delta", "1e-6", "--user-ratings", "20")
    whole = priced("gaussian", "--noise-multiplier", "1", "--steps", "100", "--delta", "1e-6")
    assert found["pld"] <= found["rdp"] < whole["exact"]
    assert found["epsilon"] == found["pld"]
    assert found["user"]["epsilon"] == pytest.approx(21.7, abs=0.05)  # a mixture; m² in ρ would say 15.5
    assert (found["unit"], found["status"]) == ("rating presence", "proved")
    assert found["statement"].startswith("PRIVACY STATEMENT: sketch-dpsgd, 100 steps")
    value = priced(*SAMPLED, "--delta", "1e-6", "--unit", "rating-value")
    assert value["rdp"] is None
    assert value["pld"] > found["pld"]
    assert "rdp is left out" in value["notes"][0]


SLOW = pytest.mark.slow  # ten distributions each


@pytest.mark.parametrize(
    ("unknown", "accountant"),
    [
        *((unknown, "rdp") for unknown in ("noise-multiplier", "sampling-rate", "steps", "delta")),
        *(pytest.param(unknown, "pld", marks=SLOW) for unknown in ("noise-multiplier", "sampling-rate", "steps")),
        ("delta", "pld"),
    ],
)
def test_a_sampled_answer_costs_no_more_than_was_asked(dpmf, priced, unknown, accountant):
    flags = {"--noise-multiplier": "1", "--sampling-rate": "0.01", "--steps": "100", "--delta": "1e-5"}
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


def test_langevin_steps_are_priced_by_their_temperature(dpmf, priced):
    found = priced(*LANGEVIN, "--temperature", "1")
    assert found["noise_multiplier"] == pytest.approx(0.01 * math.sqrt(2 / 1e-4))
    same = priced(
        *SAMPLED[:1], "--sampling-rate", "0.01", "--steps", 20, "--noise-multiplier", found["noise_multiplier"]
    )
    assert found["pld"] == pytest.approx(same["pld"], rel=1e-9)
    assert found["statement"].startswith("PRIVACY STATEMENT: langevin, 20 steps")
    slower = priced(*LANGEVIN, "--temperature", "1", "--decay", "9", "--steps", "5")  # later steps are smaller
    assert slower["phases"] == 5
    assert slower["pld"] < priced(*LANGEVIN, "--temperature", "1", "--steps", "5")["pld"]
    assert slower["noise_multiplier"] == pytest.approx(found["noise_multiplier"])
    assert slower["largest_noise_multiplier"] > 2 * found["noise_multiplier"]
    words = [*LANGEVIN, "--solve", "temperature", "--epsilon", "0.5", "--accountant", "rdp"]
    code, out, _ = dpmf(*words)
    assert code == 0
    assert 0.49 < rows_of(out)["rdp"] <= 0.5
    answer = next(line for line in out.splitlines() if line.startswith("solved: ")).split(",")[0].split()[-1]
    assert 0.49 < priced(*LANGEVIN, "--temperature", answer)["rdp"] <= 0.5
    delta = priced(*LANGEVIN, "--solve", "delta", "--temperature", "1", "--epsilon", "0.5")
    assert 0.499 < delta["pld"] <= 0.5


@pytest.mark.parametrize("unknown", ["temperature", "learning-rate", "clip-norm", "steps"])
def test_every_unknown_of_langevin_costs_no_more_than_was_asked(dpmf, priced, unknown):
    flags = {"--temperature": "1", "--learning-rate": "1e-4", "--clip-norm": "1", "--steps": "20"}
    given = [word for name, text in flags.items() if name != f"--{unknown}" for word in (name, text)]
    words = ["langevin", "--sampling-rate", "0.01", *given, "--accountant", "rdp"]
    code, out, _ = dpmf(*words, "--solve", unknown, "--epsilon", "0.45")
    assert code == 0
    assert 0.44 < rows_of(out)["rdp"] <= 0.45
    flag, answer = next(line for line in out.splitlines() if line.startswith("solved: ")).split(",")[0].split()[1:]
    assert flag == f"--{unknown}"
    assert 0.44 < priced(*words, flag, answer)["rdp"] <= 0.45
    if unknown == "steps":
        assert priced(*words, flag, int(answer) + 1)["rdp"] > 0.45


def test_an_unknown_of_langevin_that_nothing_affords_is_refused(refused, priced, monkeypatch):
    from experiments import epsilon_sampled

    monkeypatch.setattr(epsilon_sampled, "MAX_STEPS", 64)  # the real limit takes minutes to reach
    words = ["langevin", "--sampling-rate", "0.01", "--learning-rate", "1e-4", "--clip-norm", "1", "--solve", "steps"]
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
        ([*SAMPLED[:-2]], "missing --steps"),
        ([*SAMPLED, "--epsilon", "1"], "too many --epsilon (solved for)"),
        ([*SAMPLED, "--sampling-rate", "1.5"], "--sampling-rate must be above 0 and at most 1"),
        ([*SAMPLED, "--sampling-rate", "nan"], "--sampling-rate must be above 0 and at most 1"),
        ([*SAMPLED, "--sampling-rate", "0"], "--sampling-rate must be above 0 and at most 1"),
        ([*SAMPLED, "--unit", "rating-value", "--accountant", "rdp"], "--accountant rdp does not price"),
        ([*SAMPLED, "--unit", "rating-value", "--user-ratings", "3"], "no price per user is known"),
        ([*SAMPLED, "--unit", "rating-value", "--user-ratings", "3"], "--unit rating-presence"),
        ([*SAMPLED, "--unit", "user", "--user-ratings", "3"], "ε is the user's price already"),
        ([*SAMPLED, "--user-ratings", "10001"], "--user-ratings must be at most 10,000"),
        ([*SAMPLED[:-1], "10000001"], "fix: --steps 10000000"),
        ([*SAMPLED[:-1], "999999999999"], "--steps must be at most 10,000,000"),
        ([*SAMPLED, "--noise-multiplier", "1e-5"], "error: --noise-multiplier"),
        ([*LANGEVIN, "--temperature", "1e-18"], "error: --temperature"),
        ([*SAMPLED, "--clip-norm", "inf"], "--clip-norm must be positive and finite"),
        (["sampled", "--solve", "steps", *SAMPLED[1:5], "--epsilon", "1e-3", "--accountant", "rdp"], "not one step"),
        (LANGEVIN, "missing --temperature"),
        ([*LANGEVIN, "--temperature", "0"], "--temperature must be positive and finite"),
        ([*LANGEVIN, "--temperature", "1", "--decay", "-1"], "--decay must be at least 0 and finite"),
        ([*LANGEVIN, "--temperature", "1", "--learning-rate", "nan"], "--learning-rate must be positive and finite"),
        ([*LANGEVIN, "--temperature", "1", "--steps", "1000001"], "--steps must be at most 1,000,000"),
        (["langevin", "--temperature", "1"], "--sampling-rate"),
    ],
)
def test_what_sampled_steps_refuse(refused, words, told):
    assert told in refused(*words)


# ---- pure and local -----------------------------------------------------------------------------------------------


def test_pure_rounds_cost_k_times_as_much_or_less_at_a_delta(priced):
    found = priced("pure", "--epsilon-round", "0.002", "--rounds", "50")
    assert found["basic"] == 0.1  # in decimals
    assert found["optimal"] < found["basic"]
    assert found["unit"] == "rating value"
    assert found["statement"].startswith("PRIVACY STATEMENT: rounds of pure differential privacy, 50 steps")
    assert priced("pure", "--epsilon-round", "1", "--rounds", "1", "--unit", "user")["unit"] == "user"


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
    answer = next(line for line in out.splitlines() if line.startswith("solved: ")).split(",")[0].split()[-1]
    if unknown == "delta" and accountant == "basic":
        assert float(answer) == found["delta"] == 0.0  # the pure price
        return
    assert target * 0.9 < priced("pure", *given, f"--{unknown}", answer)[accountant] <= target


@pytest.mark.parametrize("accountant", ["basic", "optimal"])
@pytest.mark.parametrize("words", [["--rounds", "2000000000"], ["--rounds", "20", "--delta", "0"]])
def test_without_a_delta_or_beyond_the_sum_the_basic_price_stands_alone(dpmf, priced, words, accountant):
    words = ["pure", "--epsilon-round", "1e-6", *words, "--accountant", accountant]
    found = priced(*words)
    assert found["basic"] == found["epsilon"] == pytest.approx(1e-6 * float(words[4]), rel=1e-15)
    assert (found["accountant"], found["optimal"], found["delta"]) == ("basic", None, 0.0)
    assert found["kinds"].keys() == {"basic"}
    assert any("optimal is left out" in note for note in found["notes"]) == ("2000000000" in words)
    code, out, _ = dpmf(*words)
    assert code == 0
    assert rows_of(out).keys() == {"basic"}


def test_local_reports_without_a_delta_or_beyond_the_sum(priced):
    for words in (["--rounds", "3", "--delta", "0"], ["--rounds", "2000000000", "--delta", "1e-5"]):
        found = priced("local", "--epsilon", "1", *words)
        assert (found["basic"], found["optimal"], found["delta"]) == (1.0, None, 0.0)
        assert found["kinds"].keys() == {"basic"}
    assert priced("local", "--epsilon", "1", "--rounds", "3", "--delta", "1e-5")["kinds"].keys() == {"basic", "optimal"}


@pytest.mark.parametrize("schedule", ["rounds", "partition"])
def test_a_shuffled_target_is_met(dpmf, priced, schedule):
    words = ["local", "--rounds", "2", "--schedule", schedule]
    for unknown, given in (("reports", ["--epsilon", "3"]), ("epsilon", ["--reports", "20000"])):
        asked = [*words, *given, "--solve", unknown, "--shuffled-epsilon", "0.2"]
        found = priced(*asked)
        assert 0.1999 < found["shuffled"]["epsilon"] <= 0.2
        code, out, _ = dpmf(*asked)
        assert code == 0
        flag, answer = next(line for line in out.splitlines() if line.startswith("solved: ")).split(",")[0].split()[1:]
        assert flag == f"--{unknown}"
        assert float(answer) == found[unknown]
        assert 0.1999 < priced(*words, *given, flag, answer)["shuffled"]["epsilon"] <= 0.2
        if unknown == "reports":
            fewer = found["reports"] - (2 if schedule == "partition" else 1)
            assert priced(*words, *given, flag, fewer)["shuffled"]["epsilon"] > 0.2


def test_local_reports_cost_what_the_user_was_told(priced, dpmf):
    found = priced("local", "--epsilon", "1", "--rounds", "10")
    assert (found["basic"], found["epsilon_round"], found["delta"], found["unit"]) == (1.0, 0.1, 0.0, "user")
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
    found = priced("local", "--epsilon", "4", "--rounds", "1", "--reports", "100000", "--delta", "1e-6")
    assert found["basic"] == 4
    assert 0.1675 < found["shuffled"]["epsilon"] < 0.1728
    assert found["shuffled"]["epsilon"] < found["shuffled"]["closed_form"] < 4
    assert "trusted shuffler" in found["shuffled"]["trust_model"]
    assert "trusted shuffler" not in found["trust_model"]
    groups = priced("local", "--epsilon", "4", "--rounds", "10", "--reports", "1000", "--schedule", "partition")
    assert groups["shuffled"]["reports"] == 100
    assert groups["shuffled"]["closed_form"] is None
    assert "the closed form says nothing" in groups["notes"][0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pure", "--rounds", "3"], "missing --epsilon-round"),
        (["pure", "--rounds", "0", "--epsilon-round", "1"], "--rounds must be a whole number"),
        (["pure", "--rounds", "3", "--epsilon-round", "nan"], "--epsilon-round must be positive and finite"),
        (["pure", "--rounds", "3", "--epsilon-round", "1", "--delta", "1"], "--delta must be at least 0 and below 1"),
        (["pure", "--solve", "rounds", "--epsilon-round", "1", "--epsilon", "0.5"], "not one round"),
        (["pure", "--rounds", "3", "--epsilon-round", "1", "--delta=-0.0"], "--delta must be at least 0 and below 1"),
        (["pure", "--solve", "epsilon-round", "--rounds", "2000000000", "--epsilon", "1"], "fix: --accountant basic"),
        (["pure", "--solve", "rounds", "--epsilon-round", "1e-12", "--epsilon", "1"], "fix: --accountant basic"),
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
        (["local", "--epsilon", "1"], "--rounds"),
        (["local", "--rounds", "3", "--epsilon", "inf"], "--epsilon must be positive and finite"),
        (["local", "--rounds", "-3", "--epsilon", "1"], "--rounds must be a whole number"),
        (["local", "--rounds", "3", "--epsilon", "1", "--delta", "0", "--reports", "9"], "--delta must be between 0"),
        (["local", "--rounds", "3", "--epsilon", "1", "--shuffled-epsilon", "1"], "too many --shuffled-epsilon"),
        (["local", "--rounds", "3", "--epsilon", "1", "--solve", "reports"], "missing --shuffled-epsilon"),
        (
            ["local", "--rounds", "3", "--epsilon", "1", "--reports", "2", "--schedule", "partition"],
            "2 users cannot be split into 3 groups",
        ),
    ],
)
def test_what_pure_rounds_refuse(refused, words, told):
    assert told in refused(*words)


# ---- objective and federated --------------------------------------------------------------------------------------

SHAPE = ["--range-width", "4", "--rank", "50"]


def test_the_perturbed_objective_costs_its_scale(priced):
    found = priced("objective", "--scale", "80", *SHAPE, "--user-ratings", "20")
    assert (found["basic"], found["delta"], found["unit"], found["status"]) == (0.1, 0.0, "rating value", "claimed")
    assert found["user"]["epsilon"] == 2.0
    sound = priced("objective", "--mechanism", "objective-public-users", "--scale", "80", *SHAPE)
    assert (sound["basic"], sound["status"]) == (0.1, "proved")
    wasteful = priced("objective", "--noise", "laplace", "--epsilon", "0.1", *SHAPE)
    tight = priced("objective", "--noise", "l2-laplace", "--epsilon", "0.1", *SHAPE)
    assert tight["squared_noise_per_item"] / wasteful["squared_noise_per_item"] == pytest.approx(0.51)


@pytest.mark.parametrize(
    "words",
    [
        [*SHAPE],
        [*SHAPE, "--noise", "laplace"],
        [*SHAPE, "--mechanism", "objective-public-users", "--noise", "gaussian"],
        ["--mechanism", "objective-statistics", "--rating-bound", "2"],
    ],
)
def test_the_scale_that_a_budget_buys(dpmf, priced, words):
    found = priced("objective", *words, "--epsilon", "0.7")
    assert 0.7 - 1e-9 < found["epsilon"] <= 0.7
    code, out, _ = dpmf("objective", *words, "--epsilon", "0.7")
    assert code == 0
    solved = next(line for line in out.splitlines() if line.startswith("solved: ")).partition(",")[0]
    assert 0.7 - 1e-6 < priced("objective", *words, *solved.split()[1:])["epsilon"] <= 0.7


def test_presence_has_no_finite_price_unless_both_sums_are_noisy(priced, refused):
    for mechanism in ("objective", "objective-public-users"):
        words = ["objective", "--mechanism", mechanism, "--unit", "rating-presence", "--scale", "80", *SHAPE]
        assert "no finite ε for a rating's presence" in refused(*words, code=4)
    words = ["objective", "--mechanism", "objective-statistics", "--rating-bound", "2", "--epsilon", "1"]
    found = priced(*words, "--unit", "rating-presence")
    assert (found["unit"], found["status"]) == ("rating presence", "proved")
    assert "rating's presence" in refused(*words, "--unit", "rating-value", code=4)


def test_federated_iterations_add_up(priced):
    found = priced("federated", "--epsilon", "0.1", "--iterations", "100")
    assert (found["paper"], found["basic"], found["status"]) == (0.1, 10.0, "claimed")
    assert found["epsilon"] == 10.0
    words = ["federated", "--clip-norm", "1", "--honest-shares", "10", "--iterations", "100"]
    gaussians = priced(*words, "--epsilon", "1")
    assert 1 - 1e-9 < gaussians["exact"] <= 1
    assert (gaussians["unit"], gaussians["status"], gaussians["delta"]) == ("user", "proved", 1e-5)
    pure = priced(*words, "--noise", "l2-laplace", "--scale", "100")
    assert (pure["basic"], pure["delta"]) == (2.0, 0.0)
    assert priced(*words, "--noise", "l2-laplace", "--scale", "100", "--change", "remove")["basic"] == 1.0
    assert priced(*words, "--noise", "l2-laplace", "--scale", "100", "--delta", "1e-5")["optimal"] < 2


CLIPPED = ["--clip-norm", "1", "--honest-shares", "10"]
STATISTICS = ["--mechanism", "objective-statistics", "--rating-bound", "2"]
PUBLIC_USERS = ["--mechanism", "objective-public-users", "--noise", "gaussian", *SHAPE]


@pytest.mark.parametrize(
    ("words", "unknown", "at_least"),
    [
        (["federated", *CLIPPED, "--noise", "laplace", "--delta", "1e-5", "--iterations", "100"], "scale", 0.999),
        (["federated", *CLIPPED, "--noise", "laplace", "--delta", "1e-5", "--scale", "70"], "iterations", 0.98),
        (["federated", *CLIPPED, "--noise", "l2-laplace", "--scale", "70"], "iterations", 0.96),
        (["federated", *CLIPPED, "--scale", "70"], "iterations", 0.99),
        (["federated", *CLIPPED, "--iterations", "100"], "scale", 0.999),
        (["federated", *CLIPPED, "--scale", "70", "--iterations", "100"], "delta", 0.999),
        (["federated", *CLIPPED, "--scale", "70", "--iterations", "100", "--noise", "laplace"], "delta", 0.999),
        (["objective", *STATISTICS, "--matrix-scale", "8", "--vector-scale", "16"], "delta", 0.999),
        (["objective", *STATISTICS], "scale", 0.999),
        (["objective", *PUBLIC_USERS, "--scale", "8"], "delta", 0.999),
        (["objective", *PUBLIC_USERS], "scale", 0.999),
    ],
)
def test_what_paper_003_solves_is_stated_at_the_target(dpmf, priced, words, unknown, at_least):
    asked = [*words, "--solve", unknown, "--epsilon", "1"]
    found = priced(*asked)
    assert found["solved"] == unknown
    assert at_least < found["epsilon"] <= 1
    assert found["stated_epsilon"] <= 1
    code, out, _ = dpmf(*asked)
    assert code == 0
    solved = next(line for line in out.splitlines() if line.startswith("solved: ")).partition(",")[0]
    assert at_least < (back := priced(*words, *solved.split()[1:]))["epsilon"] <= 1
    assert back["solved"] == "epsilon"
    if unknown == "iterations":
        more = [*words, "--iterations", found["iterations"] + 1]
        assert priced(*more)["epsilon"] > 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["objective", "--scale", "1"], "missing --range-width, --rank"),
        (["objective", *SHAPE], "exactly one way to write the noise is needed (missing)"),
        (["objective", *SHAPE, "--scale", "1", "--epsilon", "1"], "(they say the same)"),
        (["objective", *SHAPE, "--scale", "1", "--rating-bound", "1"], "--rating-bound means nothing here"),
        (["objective", *SHAPE, "--scale", "1", "--delta", "1e-5"], "--delta means nothing for pure noise"),
        (["objective", *SHAPE, "--scale", "1", "--noise", "gaussian"], "laplace or l2-laplace"),
        (["objective", *SHAPE, "--scale", "nan"], "--scale must be positive and finite"),
        (["objective", "--range-width", "4", "--rank", "0", "--scale", "1"], "--rank must be a whole number"),
        (["objective", "--mechanism", "objective-statistics", "--epsilon", "1"], "missing --rating-bound"),
        (
            ["objective", "--mechanism", "objective-statistics", "--rating-bound", "1", "--matrix-scale", "1"],
            "(incomplete)",
        ),
        (["federated", "--iterations", "3"], "missing --epsilon"),
        (["federated", "--iterations", "0", "--epsilon", "1"], "--iterations must be a whole number"),
        (["federated", "--iterations", "3", "--epsilon", "-1"], "--epsilon must be positive and finite"),
        (["federated", "--iterations", "3", "--epsilon", "1", "--scale", "2"], "--scale means nothing here"),
        (["federated", "--iterations", "3", "--clip-norm", "1", "--scale", "2"], "missing --honest-shares"),
        (["federated", "--iterations", "3", "--clip-norm", "1", "--honest-shares", "2"], "(missing)"),
        (["federated", "--iterations", "3", "--epsilon", "1", "--solve", "scale"], "--solve means nothing here"),
        (["federated", *CLIPPED, "--scale", "1", "--epsilon", "1", "--solve", "scale", "--iterations", "3"], "--scale"),
        (["federated", *CLIPPED, "--scale", "1", "--epsilon", "1", "--solve", "iterations"], "not one iteration"),
        (["federated", *CLIPPED, "--scale", "1", "--solve", "iterations"], "missing --epsilon"),
        (["federated", *CLIPPED, "--scale", "1", "--iterations", "3", "--delta", "0"], "--delta must be between 0"),
        (["objective", *SHAPE, "--scale", "1", "--epsilon", "1", "--solve", "delta"], "same at every δ"),
    ],
)
def test_what_paper_003_refuses(refused, words, told):
    assert told in refused(*words)


# ---- a saved model ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """Folders as `Model.save` writes them: one with a proved guarantee, one without any."""
    import numpy as np

    from accounting import loss, no_guarantee, priced
    from dpmf_jax.model import Model
    from dpmf_jax.protocol import Release

    proved = priced(
        mechanism="gaussian-public-items",
        losses=(loss.Gaussian(noise_multiplier=10.0, num_steps=20, user_rho=(1.0, 0.0)),),
        delta=1e-5,
        unit="rating value",
        relation="one rating's value differs",
        released=("user factors",),
        trust_model="a curator",
        status="proved",
    )
    pure = priced(
        mechanism="federated-ldp",
        losses=(loss.Pure(epsilon=0.5, num_rounds=5),),
        delta=float(ODD),
        unit="user",
        relation="any change to one user's ratings",
        released=("item factors",),
        trust_model="local",
        status="proved",
    )
    folder = tmp_path_factory.mktemp("models")
    for name, guarantee in (
        ("proved", proved),
        ("pure", pure),
        ("none", no_guarantee(mechanism="non-private", num_steps=3, released=())),
    ):
        factors = np.ones((2, 1), np.float32)
        Model(
            release=Release(user_factors=factors) if name != "none" else Release(),
            guarantee=guarantee,
            users=np.array(["a", "b"]),
            items=np.array([1, 2]),
            rating_range=(1.0, 5.0),
            settings={},
        ).save(folder / name)
    return {name: folder / name for name in ("proved", "pure", "none")}


def test_a_saved_model_is_priced_again(models, priced, dpmf):
    found = priced("model", models["proved"], "--user-ratings", "3")
    for name, value in gaussian.accountants(10.0, 20, 1e-5).items():
        assert found[name] == pytest.approx(value, rel=1e-12)
    assert found["rho"] == pytest.approx(0.1)
    assert found["user"]["rho"] == pytest.approx(0.9)
    assert found["notes"] == []
    code, out, _ = dpmf("model", models["proved"])
    assert code == 0
    assert "PRIVACY STATEMENT: gaussian-public-items, 20 steps" in out
    assert rows_of(out).keys() == {"basic", "closed_form", "rdp", "pld", "exact"}


def test_a_saved_model_at_another_delta(models, priced):
    found, saved = priced("model", models["proved"], "--delta", "1e-8"), priced("model", models["proved"])
    assert found["exact"] == pytest.approx(gaussian.epsilon_exact(0.1, 1e-8))
    assert found["epsilon"] == gaussian.round_up(found["exact"]) > saved["epsilon"] == found["saved_epsilon"]
    assert "δ = 1e-08" in found["statement"]


def test_a_pure_model_has_a_price_without_a_delta(models, priced, dpmf, refused):
    found = priced("model", models["pure"], "--delta", "0")
    assert (found["basic"], found["epsilon"], found["delta"]) == (0.5, 0.5, 0.0)
    assert "δ = 0" in found["statement"]
    code, out, _ = dpmf("model", models["pure"], "--delta", "0")
    assert code == 0
    saved = next(line for line in out.splitlines() if line.startswith("saved with"))
    assert saved.endswith(" at δ = 1.23457e-05")
    assert "no finite ε at δ = 0" in refused("model", models["proved"], "--delta", "0")


def test_a_model_without_a_guarantee_has_no_price(models, priced, dpmf):
    found = priced("model", models["none"], "--delta", "1e-3", "--user-ratings", "3")
    assert (found["epsilon"], found["status"], found["accountants"], found["user"]) == ("inf", "none", {}, None)
    code, out, _ = dpmf("model", models["none"])
    assert code == 0
    assert "NO PRIVACY GUARANTEE" in out


def damaged(folder: Path, damage: str) -> None:
    path = folder / "model.json"
    content = json.loads(path.read_text())
    match damage:
        case "no model.json":
            path.unlink()
        case "torn":
            path.write_text(path.read_text()[:-20])
        case "edited":
            path.write_text(path.read_text().replace('"num_steps": 20', '"num_steps": 2'))
        case "another program's":
            path.write_text('{"model": "resnet"}')
        case "a list":
            path.write_text("[]")
        case "unfinished":
            path.unlink()
            (folder / "private").mkdir()
            (folder / "private" / "run.json").write_text("{}")
        case "release gone":
            (folder / "release.safetensors").unlink()
        case "release torn":
            (folder / "release.safetensors").write_bytes((folder / "release.safetensors").read_bytes()[:-1])
        case _:
            import hashlib

            content.pop("sha256")
            content.update({"a newer format": {"format": 99}, "no guarantee": {"guarantee": {}}}[damage])
            digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
            path.write_text(json.dumps({**content, "sha256": digest}))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("no model.json", "model.json is missing"),
        ("torn", "model.json cannot be read"),
        ("edited", "changed after it was saved"),
        ("another program's", "changed after it was saved"),
        ("a list", "not a JSON object"),
        ("unfinished", "not finished"),
        ("release gone", "release.safetensors cannot be read"),
        ("release torn", "not the file that was saved"),
        ("a newer format", "has format 99"),
        ("no guarantee", "does not describe a model: missing keys"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused(models, refused, tmp_path, damage, told):
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(models["proved"], folder)
    damaged(folder, damage)
    assert told in refused("model", folder, code=3)


def test_no_folder_and_wrong_numbers_are_refused(models, refused):
    assert "no such model folder" in refused("model", "nowhere", code=3)
    assert "no such model folder" in refused("model", models["proved"] / "model.json", code=3)
    for value in (*BAD_NUMBERS, "1"):
        assert "--delta" in refused("model", models["proved"], f"--delta={value}")
    assert "--user-ratings" in refused("model", models["proved"], "--user-ratings=0")


# ---- all of them --------------------------------------------------------------------------------------------------

EVERY = {
    "gaussian": STEPS,
    "sampled": SAMPLED,
    "langevin": [*LANGEVIN, "--temperature", "1"],
    "local": ["local", "--epsilon", "1", "--rounds", "2", "--reports", "1000"],
    "objective": ["objective", "--scale", "80", *SHAPE],
    "federated": ["federated", "--epsilon", "0.1", "--iterations", "100"],
    "pure": ["pure", "--epsilon-round", "0.1", "--rounds", "5"],
}


@pytest.mark.parametrize("words", EVERY.values(), ids=EVERY)
def test_every_result_says_unit_relation_status_and_the_whole_statement(dpmf, priced, words):
    found = priced(*words)
    assert found["relation"]
    assert found["trust_model"]
    assert found["status"] in ("proved", "claimed")
    assert found["kinds"]
    assert found["epsilon"] > 0
    code, out, _ = dpmf(*words)
    assert code == 0
    flat = " ".join(out.split())
    for part in (found["relation"], found["trust_model"], f"unit one {found['unit']}", f"status {found['status']}"):
        assert part in flat
    for part in ("assumptions", "not covered", "choosing the best of several runs"):
        assert part in flat
    assert max(map(len, out.splitlines())) <= 120


# ---- nothing heavy ------------------------------------------------------------------------------------------------


def test_a_price_needs_no_jax(models):
    code = f"""
import sys
from experiments import cli
for words in {[*EVERY.values(), ["model", str(models["proved"])]]!r}:
    assert cli.main(["epsilon", *words, "--json"]) == 0
print(sorted({{"jax", "jaxlib", "optax", "matplotlib"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_imports_nothing_that_prices(dpmf):
    code = """
import sys
from experiments import cli
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
