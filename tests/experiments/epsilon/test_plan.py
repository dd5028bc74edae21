"""`dpmf epsilon plan`: what one-bit reports can be expected to give, on a page and as JSON."""

import math

import pytest

from dpmf_jax.mechanisms.local import plan as local_plan
from dpmf_jax.mechanisms.local.forecast import Assumptions

ISSUE = ["plan", "--epsilon", "1.6", "--users", "6040", "--items", "3706", "--rank", "15"]
SMALL = [
    "plan",
    "--epsilon",
    "4",
    "--users",
    "10000000",
    "--items",
    "50",
    "--rank",
    "10",
    "--ratings-per-user",
    "25",
]
SMALL += ["--gain", "0.3"]
FEW = ["--rounds", "3", "50", "--projections", "10", "50"]


def test_the_answer_is_that_of_the_planner(priced):
    found = priced(*SMALL, *FEW)
    expected = local_plan.plans(
        epsilon=4.0,
        num_users=10_000_000,
        num_items=50,
        rank=10,
        assumptions=Assumptions(ratings_per_user=25.0, gain=0.3),
        rounds=(3, 50),
        num_projected=(10, 50),
    )
    assert len(found["plans"]) == len(expected) == 6
    for row, plan in zip(found["plans"], expected, strict=True):
        config = plan.config
        assert (row["rounds"], row["projected"], row["schedule"]) == (
            config.num_rounds,
            config.num_projected,
            config.schedule,
        )
        assert (row["clip"], row["learning_rate"]) == (config.clip, config.learning_rate)
        assert (row["noise"], row["rmse"], row["users_needed"] or math.inf) == (
            plan.noise,
            plan.rmse,
            plan.users_needed,
        )
        assert row["lift"] == (config.lift if config.num_projected else None)
        assert row["mechanism"] == ("local-gd-dr" if config.num_projected else "local-gd")
    assert found["sentence"] == expected[0].sentence
    assert found["useful"] is True
    assert found["users_needed"] == expected[0].users_needed < 10_000_000


def test_the_page_says_what_the_json_says(dpmf, priced):
    found = priced(*SMALL, *FEW)
    code, out, err = dpmf(*SMALL, *FEW)
    assert (code, err) == (0, "")
    flat = " ".join(out.split())
    assert found["sentence"] in flat
    assert f"predicting the mean: RMSE {found['mean_rmse']:.3f}" in flat
    for row in found["plans"]:
        assert f"{row['rmse']:.3f}" in out
        assert f"{row['noise']:.3g}" in out
        assert local_plan.count(row["users_needed"] or math.inf) in out
    for note in found["notes"]:
        assert " ".join(note.split()) in flat
    assert "PRIVACY STATEMENT" in out
    assert max(map(len, out.splitlines())) <= 120


def test_a_plan_states_the_guarantee_of_its_reports(priced):
    """Of one report in a partition, of k where everybody reports in each round."""
    sparse = ["plan", "--epsilon", "4", "--users", "10000000", "--items", "50", "--rank", "3"]
    sparse += ["--ratings-per-user", "20", "--rounds", "3", "--projections", "10"]
    for words, schedule, said in (
        ([*SMALL, *FEW], "partition", "1 step"),
        (sparse, "every-round", "3 steps"),
    ):
        found = priced(*words)
        assert (found["unit"], found["status"], found["stated_epsilon"]) == ("user", "proved", 4.0)
        assert found["plans"][0]["schedule"] == schedule
        assert said in found["statement"].splitlines()[0]


@pytest.mark.seconds
def test_movielens_1m_has_far_too_few_users_and_the_page_says_so(priced):
    found = priced(*ISSUE)
    assert found["useful"] is False
    assert found["plans"][0]["rmse"] > found["mean_rmse"] == 1.1
    assert found["sentence"].startswith(
        "Not useful: with 6,040 users at ε = 1.6, 3,706 items and rank 15"
    )
    assert found["users_for_noise"] > 6040
    assert f"about {local_plan.count(found['users_for_noise'])} users" in found["sentence"]


def test_assumptions_are_flags_and_are_shown(priced):
    usual = priced(*ISSUE, *FEW)["assumptions"]
    assert usual == {
        "ratings_per_user": 100.0,
        "deviation": 1.1,
        "gain": 0.2,
        "directions": 4,
        "popularity": 3.0,
        "evenness": 0.5,
        "largest_rate": None,
    }
    flags = {
        "ratings-per-user": 165,
        "deviation": 1.2,
        "gain": 0.3,
        "popularity": 4,
        "largest-learning-rate": 2,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    given = priced(*ISSUE, *FEW, *words)
    changed = {
        "ratings_per_user": 165,
        "deviation": 1.2,
        "gain": 0.3,
        "popularity": 4,
        "largest_rate": 2,
    }
    assert given["assumptions"] == usual | changed
    assert given["mean_rmse"] == 1.2
    assert max(row["learning_rate"] for row in given["plans"]) <= 2
    assert "165 ratings of a user, of a standard deviation of 1.2" in given["notes"][0]
    assert (
        priced(*SMALL[:9], *FEW)["assumptions"]["ratings_per_user"] == 12.5
    )  # a quarter of 50 items


def test_what_nobody_reaches_is_null_in_json_and_inf_on_the_page(dpmf, priced):
    words = [*SMALL, *FEW, "--largest-learning-rate", "1e-9"]
    assert priced(*words)["users_needed"] is None
    code, out, _ = dpmf(*words)
    assert code == 0
    assert " inf │" in out


def small_at(epsilon):
    at = SMALL.index("--epsilon") + 1
    return [*SMALL[:at], epsilon, *SMALL[at + 1 :]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plan", "--users", "9", "--items", "9"], "--epsilon"),
        (small_at("nan"), "--epsilon must be positive and finite"),
        ([*SMALL, "--users", "0"], "--users must be an integer of at least 1"),
        ([*SMALL, "--gain", "1.5"], "gain must be between 0 and 1"),
        ([*SMALL, "--ratings-per-user", "51"], "ratings_per_user must be at most 50"),
        ([*SMALL, "--rounds", "0"], "rounds must be whole numbers of at least 1"),
        ([*SMALL, "--projections", "-3"], "num_projected must be whole numbers of at least 1"),
        ([*small_at("99"), "--rounds", "1"], "no plan is left"),
    ],
)
def test_what_a_plan_refuses(refused, words, told):
    assert told in refused(*words)
