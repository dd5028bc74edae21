"""`dpmf epsilon objective`: the noise of one fit of paper 003."""

import pytest

from tests.cases.epsilon import SHAPE


def test_the_perturbed_objective_costs_its_scale(priced):
    found = priced("objective", "--scale", "80", *SHAPE, "--user-ratings", "20")
    assert (found["basic"], found["delta"], found["unit"], found["status"]) == (
        0.1,
        0.0,
        "rating value",
        "claimed",
    )
    assert found["user"]["epsilon"] == 2.0
    sound = priced("objective", "--mechanism", "objective-public-users", "--scale", "80", *SHAPE)
    assert (sound["basic"], sound["status"]) == (0.1, "proved for real-number noise")
    wasteful = priced("objective", "--noise", "laplace", "--epsilon", "0.1", *SHAPE)
    tight = priced("objective", "--noise", "l2-laplace", "--epsilon", "0.1", *SHAPE)
    assert tight["squared_noise_per_item"] / wasteful["squared_noise_per_item"] == pytest.approx(
        0.51
    )


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
    solved = next(line for line in out.splitlines() if line.startswith("solved: ")).partition(",")[
        0
    ]
    assert 0.7 - 1e-6 < priced("objective", *words, *solved.split()[1:])["epsilon"] <= 0.7


def test_presence_has_no_finite_price_unless_both_sums_are_noisy(priced, refused):
    for mechanism in ("objective", "objective-public-users"):
        words = [
            "objective",
            "--mechanism",
            mechanism,
            "--unit",
            "rating-presence",
            "--scale",
            "80",
            *SHAPE,
        ]
        assert "no finite ε for a rating's presence" in refused(*words, code=4)
    words = [
        "objective",
        "--mechanism",
        "objective-statistics",
        "--rating-bound",
        "2",
        "--epsilon",
        "1",
    ]
    found = priced(*words, "--unit", "rating-presence")
    assert (found["unit"], found["status"]) == ("rating presence", "proved for real-number noise")
    assert "rating's presence" in refused(*words, "--unit", "rating-value", code=4)


STATISTICS = ["--mechanism", "objective-statistics", "--rating-bound", "2"]


PUBLIC_USERS = ["--mechanism", "objective-public-users", "--noise", "gaussian", *SHAPE]


@pytest.mark.parametrize(
    ("words", "unknown", "at_least"),
    [
        (["objective", *STATISTICS, "--matrix-scale", "8", "--vector-scale", "16"], "delta", 0.999),
        (["objective", *STATISTICS], "scale", 0.999),
        (["objective", *PUBLIC_USERS, "--scale", "8"], "delta", 0.999),
        (["objective", *PUBLIC_USERS], "scale", 0.999),
    ],
)
def test_what_objective_solves_is_stated_at_the_target(dpmf, priced, words, unknown, at_least):
    asked = [*words, "--solve", unknown, "--epsilon", "1"]
    found = priced(*asked)
    assert found["solved"] == unknown
    assert at_least < found["epsilon"] <= 1
    assert found["stated_epsilon"] <= 1
    code, out, _ = dpmf(*asked)
    assert code == 0
    solved = next(line for line in out.splitlines() if line.startswith("solved: ")).partition(",")[
        0
    ]
    assert at_least < (back := priced(*words, *solved.split()[1:]))["epsilon"] <= 1
    assert back["solved"] == "epsilon"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["objective", "--scale", "1"], "missing --range-width, --rank"),
        (["objective", *SHAPE], "exactly one way to write the noise is needed (missing)"),
        (["objective", *SHAPE, "--scale", "1", "--epsilon", "1"], "(they say the same)"),
        (
            ["objective", *SHAPE, "--scale", "1", "--rating-bound", "1"],
            "--rating-bound means nothing here",
        ),
        (
            ["objective", *SHAPE, "--scale", "1", "--delta", "1e-5"],
            "--delta means nothing for pure noise",
        ),
        (["objective", *SHAPE, "--scale", "1", "--noise", "gaussian"], "laplace or l2-laplace"),
        (["objective", *SHAPE, "--scale", "nan"], "--scale must be positive and finite"),
        (
            ["objective", "--range-width", "4", "--rank", "0", "--scale", "1"],
            "--rank must be an integer of at least 1",
        ),
        (
            ["objective", "--mechanism", "objective-statistics", "--epsilon", "1"],
            "missing --rating-bound",
        ),
        (
            [
                "objective",
                "--mechanism",
                "objective-statistics",
                "--rating-bound",
                "1",
                "--matrix-scale",
                "1",
            ],
            "(incomplete)",
        ),
        (
            ["objective", *SHAPE, "--scale", "1", "--epsilon", "1", "--solve", "delta"],
            "same at every δ",
        ),
    ],
)
def test_what_objective_refuses(refused, words, told):
    assert told in refused(*words)
