"""`dpmf epsilon gaussian`: numbers of paper 001, one unknown, phases, clear errors."""

import math

import hypothesis
import hypothesis.strategies as st
import pytest

from accounting import digits, gaussian
from dpmf_jax.errors import UsageError
from experiments.epsilon import flags as epsilon_flags
from tests.cases.epsilon import BAD_NUMBERS, STEPS, rows_of


def test_the_numbers_of_paper_001(priced):
    found = priced(*STEPS)
    assert found["closed_form"] == pytest.approx(13.18366, abs=5e-6)
    assert found["alpha_star"] == pytest.approx(3.15, abs=5e-3)
    assert found["rdp"] <= 12.2578
    assert found["pld"] == pytest.approx(11.43799, abs=1e-5)
    assert found["exact"] == pytest.approx(11.43799, abs=5e-6)
    assert found["rho"] == pytest.approx(2.485, abs=5e-4)
    assert (
        found["exact"]
        <= found["pld"] + 1e-9
        <= found["rdp"]
        <= found["closed_form"]
        <= found["basic"]
    )
    assert (found["unit"], found["status"]) == ("rating value", "claimed")
    assert "one rating's value differs" in found["relation"]
    assert (found["steps"], found["epsilon_step"], found["delta_step"], found["delta"]) == (
        300,
        0.4,
        0.01,
        1e-5,
    )
    assert found["kinds"].keys() == {"basic", "closed_form", "rdp", "pld", "exact"}
    assert found["kinds"]["exact"].startswith("exact")
    assert all(
        found["kinds"][name].startswith("upper bound")
        for name in ("basic", "closed_form", "rdp", "pld")
    )
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
    assert [told_part in note for told_part, note in zip(told, found["notes"], strict=True)] == [
        True
    ] * len(told)
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
def test_the_mechanism_decides_status_relation_and_what_a_user_pays(
    priced, mechanism, status, weight
):
    found = priced(
        "gaussian",
        "--noise-multiplier",
        50,
        "--steps",
        10,
        "--mechanism",
        mechanism,
        "--user-ratings",
        20,
    )
    assert found["status"] == status
    assert found["stated_epsilon"] == digits.round_up(
        found["closed_form" if status == "claimed" else "exact"]
    )
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
    "sensitivity": ["--steps", "500", "--sigma", "40"],
    "steps": ["--noise-multiplier", "44.6"],
    "delta": ["--steps", "500", "--noise-multiplier", "44.6"],
}


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("unknown", "accountant"),
    [
        *(
            (unknown, accountant)
            for unknown in SOLVED
            for accountant in ("exact", "closed_form", "rdp")
        ),
        ("epsilon-step", "pld"),
        ("delta", "pld"),
    ],
)
def test_the_answer_costs_no_more_than_was_asked(priced, dpmf, unknown, accountant):
    delta = [] if unknown == "delta" else ["--delta", "1e-5"]
    words = [
        "gaussian",
        "--solve",
        unknown,
        "--epsilon",
        "2",
        *SOLVED[unknown],
        *delta,
        "--accountant",
        accountant,
    ]
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
    assert any(
        "the target is stated in exact, the statement's ε in closed_form" in note
        for note in told["notes"]
    )
    assert not any("the target is stated" in note for note in [*claimed["notes"], *proved["notes"]])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], ["missing --epsilon-step or --noise-multiplier or --sigma, --steps"]),
        (["--steps", "3"], ["missing --epsilon-step or"]),
        (["--noise-multiplier", "3"], ["missing --steps"]),
        (
            ["--steps", "3", "--sigma", "3", "--epsilon", "1"],
            ["too many --epsilon (solved for)", "--solve"],
        ),
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
            [
                "--solve",
                "delta",
                "--delta",
                "1e-5",
                "--sigma",
                "3",
                "--epsilon",
                "1",
                "--steps",
                "3",
            ],
            ["too many --delta (solved for)"],
        ),
        (["--solve", "steps", "--sigma", "0.1", "--epsilon", "0.1"], ["not one step"]),
        (
            [
                "--solve",
                "delta",
                "--sigma",
                "0.1",
                "--epsilon",
                "0.1",
                "--steps",
                "9",
                "--accountant",
                "closed_form",
            ],
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


@pytest.mark.parametrize("value", [*BAD_NUMBERS, "x", ""])
@pytest.mark.parametrize(
    "flag", ["--sigma", "--sensitivity", "--delta", "--delta-step", "--steps", "--user-ratings"]
)
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
    assert "--delta must be between 0 and 1" in refused(
        "gaussian", "--steps=3", "--sigma=3", "--delta", delta
    )


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
    said = refused("gaussian", "--steps", "1", *words)
    assert any(part in said for part in ("out of range", "positive and finite", "too small"))


@hypothesis.given(
    value=st.floats(width=64).filter(lambda x: not 0 < x < math.inf),
    flag=st.sampled_from(["epsilon", "noise_multiplier", "sigma", "sensitivity"]),
)
def test_no_float_that_is_no_positive_number_passes(value, flag):
    from experiments.epsilon.gaussian import Command

    with pytest.raises(UsageError, match="must be positive and finite"):
        epsilon_flags.check_flags(Command(**{flag: value}))


def test_a_target_beyond_the_distribution_names_the_accountant_to_take(refused):
    words = ["gaussian", "--epsilon", "30000", "--accountant", "pld"]
    assert "fix: --accountant exact" in refused(
        *words, "--solve", "noise-multiplier", "--steps", "1"
    )
    assert "--accountant pld" in refused(*words, "--solve", "epsilon-step", "--steps", "1")


def test_an_epsilon_of_0_is_said_not_to_be_free(priced):
    found = priced("gaussian", "--noise-multiplier", "100", "--steps", "1", "--delta", "0.5")
    assert found["exact"] == 0.0  # the total variation is below δ
    assert "ε = 0 by" in found["notes"][-1]
    assert "is not free" in found["notes"][-1]
    assert not any("is not free" in note for note in priced(*STEPS)["notes"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--noise-multiplier", "3"], "missing --sigma; --noise-multiplier means nothing here"),
        (["--sigma", "3", "--sensitivity", "2"], "--sensitivity means nothing here"),
        (["--epsilon-step", "0.3", "--sigma", "3"], "--epsilon-step means nothing here"),
    ],
)
def test_a_sensitivity_is_solved_for_where_sigma_is_given(refused, words, told):
    assert told in refused(
        "gaussian", "--solve", "sensitivity", "--epsilon", "1", "--steps", "3", *words
    )
