"""What the guarantees of paper 003's mechanisms say: what is proved, for whom and against whom."""

import json
import math

import pytest

from accounting import objective, words
from accounting.guarantee import Guarantee
from dpmf_jax.mechanisms.federated.guarantee import (
    iterations_guarantee,
    published_iterations_guarantee,
)
from dpmf_jax.mechanisms.objective.guarantee import (
    published_guarantee,
    real_closed_form_guarantee,
    real_statistics_guarantee,
)

GUARANTEES = {
    "published": lambda: published_guarantee(noise="laplace", scale=80.0, range_width=4.0, rank=50),
    "closed form": lambda: real_closed_form_guarantee(
        noise="l2_laplace", scale=80.0, range_width=4.0, rank=50
    ),
    "gaussian": lambda: real_closed_form_guarantee(
        noise="gaussian", scale=30.0, range_width=4.0, rank=50, delta=1e-5
    ),
    "statistics": lambda: real_statistics_guarantee(
        matrix_scale=6.0, vector_scale=12.0, rating_bound=2.0, delta=1e-5
    ),
    "published iterations": lambda: published_iterations_guarantee(
        epsilon=0.1, num_iterations=100, range_width=4.0
    ),
    "iterations": lambda: iterations_guarantee(
        noise="l2_laplace", clip_norm=1.0, scale=200.0, num_iterations=100, honest_shares=50
    ),
    "gaussian iterations": lambda: iterations_guarantee(
        noise="gaussian",
        clip_norm=1.0,
        scale=40.0,
        num_iterations=10,
        honest_shares=50,
        change="remove",
        delta=1e-5,
        seeded=True,
    ),
}


CLAIMED = {"published", "published iterations"}


@pytest.mark.parametrize("name", GUARANTEES)
def test_guarantees_say_what_is_proved_for_whom_and_come_back_from_json(name):
    guarantee = GUARANTEES[name]()
    assert guarantee.status == ("claimed" if name in CLAIMED else "proved for real-number noise")
    unit = "user" if "iterations" in name and name not in CLAIMED else "rating value"
    assert guarantee.unit == ("rating presence" if name == "statistics" else unit)
    assert 0 < guarantee.epsilon < math.inf
    assert Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict()))) == guarantee
    assert guarantee.seeded == (name == "gaussian iterations")
    assert max(map(len, guarantee.statement.splitlines())) <= 110


def test_published_iterations_state_the_total_with_the_papers_number_beside_it():
    guarantee = GUARANTEES["published iterations"]()
    assert guarantee.epsilon == 10.0
    assert guarantee.delta == 0
    assert guarantee.steps == 100
    assert list(guarantee.accountants.items()) == [("paper", 0.1), ("basic", 10.0)]
    assert "ε = 10.0000" in guarantee.statement


def test_published_objective_is_priced_by_its_noise_and_claimed():
    width, rank = 4.0, 50
    scale = objective.value_change_scale(
        noise="laplace", epsilon=0.15, range_width=width, rank=rank
    )
    guarantee = published_guarantee(noise="laplace", scale=scale, range_width=width, rank=rank)
    assert guarantee.epsilon == 0.15
    assert guarantee.for_user(20).epsilon == 3.0
    assert any("fitted on the same ratings" in text for text in guarantee.assumptions)


def test_sound_objective_is_proved_at_its_epsilon():
    assert GUARANTEES["closed form"]().epsilon == 0.1
    assert GUARANTEES["closed form"]().largest_change == 4
    assert GUARANTEES["gaussian"]().for_user(20).rho == pytest.approx(
        20 * GUARANTEES["gaussian"]().rho
    )
    assert any("norm 1" in text for text in GUARANTEES["closed form"]().assumptions)


def test_user_level_iterations_name_the_clip_and_the_shares_they_rest_on():
    guarantee = GUARANTEES["iterations"]()
    assert guarantee.epsilon == 1.0
    assert any(
        "at least 50 users other than the protected one" in text for text in guarantee.assumptions
    )
    assert any("L2 norms, to 1," in text for text in guarantee.assumptions)
    assert "who takes part at all" in guarantee.not_covered
    removed = GUARANTEES["gaussian iterations"]()
    assert removed.rho == pytest.approx(10 / (2 * 40.0**2))
    assert "who takes part at all" not in removed.not_covered


PARTIES = [
    "public V",
    "recommender",
    "third party",
    "other users",
    "recommender + third party",
    "colluding users",
]


@pytest.mark.parametrize("name", GUARANTEES)
def test_every_statement_says_whom_it_holds_against(name):
    guarantee = GUARANTEES[name]()
    table = dict(guarantee.against)
    assert list(table) == PARTIES
    assert all(f"    {party} " in guarantee.statement for party in PARTIES)
    assert table["recommender + third party"].startswith("nothing")
    trusted = "iterations" not in name
    assert ("trusted" in table["recommender"]) == trusted
    assert (table["third party"] == "there is none") == trusted
    if name == "published iterations":
        assert "not the claim" in table["recommender"]
    if name == "iterations":
        assert table["recommender"].startswith("ε")
        assert "at least 50 others" in table["colluding users"]


def test_all_shares_but_the_protected_users_own_may_be_needed():
    guarantee = iterations_guarantee(
        noise="laplace", clip_norm=1.0, scale=2.0, num_iterations=1, honest_shares=None
    )
    assert any(
        "every user other than the protected one adds" in text for text in guarantee.assumptions
    )
    assert (
        "as long as none of those who take part does" in dict(guarantee.against)["colluding users"]
    )


def test_gaussian_noise_says_where_its_float32_normals_end():
    """Real normals would go further, and the price is that of real ones."""
    settings = {"scale": 20.0, "range_width": 4.0, "rank": 3}
    gaussian_noise = [
        real_closed_form_guarantee(noise="gaussian", delta=1e-5, **settings),
        real_statistics_guarantee(matrix_scale=9.0, vector_scale=9.0, rating_bound=2.0, delta=1e-5),
    ]
    for guarantee in gaussian_noise:
        assert any("5.42" in assumption for assumption in guarantee.assumptions)
    laplace = real_closed_form_guarantee(noise="l2_laplace", **settings)
    assert not any("5.42" in assumption for assumption in laplace.assumptions)


def test_the_papers_claim_is_of_its_own_two_noises():
    with pytest.raises(ValueError, match="noise must be laplace or l2_laplace"):
        published_guarantee(noise="gaussian", scale=1, range_width=4, rank=2)


@pytest.mark.parametrize("change", ["replace", "remove"])
def test_a_removed_user_still_adds_a_share_of_noise(change):
    """Else the sum would have one share less, and its noise another law, in one of the worlds."""
    guarantee = iterations_guarantee(
        noise="laplace",
        clip_norm=1.0,
        scale=200.0,
        num_iterations=2,
        honest_shares=50,
        change=change,
    )
    assert (words.EMPTY_MESSAGES in guarantee.assumptions) == (change == "remove")
