"""What local reports promise, by themselves and once a trusted shuffler has mixed them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import loss, pure, shuffle
from dpmf_jax.mechanisms.local.guarantee import local_guarantee, shuffled_guarantee

deltas = st.floats(-12, -1).map(lambda power: 10.0**power)


def test_local_guarantee_is_pure_per_user_and_names_its_conditions():
    g = local_guarantee(0.1, 50)
    assert (g.epsilon, g.delta, g.unit, g.status, g.steps) == (0.1, 0, "user", "proved", 50)
    assert g.losses == (loss.Pure(epsilon=0.1, num_rounds=50),)
    assert g.user_price is None
    text = " ".join(str(g).split())
    for part in (
        "any change to all of one user's ratings",
        "nobody but the user sees",
        "exactly 50 times (k rounds, not the printed loop's k + 1)",
        "drawn uniformly and without looking at data",
        "the bit's probability is a float",
        "who sends reports is visible",
    ):
        assert part in text
    assert "once" in " ".join(local_guarantee(0.1, 1).assumptions)


@given(st.floats(1e-3, 20), st.integers(1, 200))
def test_local_guarantee_costs_epsilon_whatever_the_number_of_rounds(epsilon, num_rounds):
    g = local_guarantee(epsilon, num_rounds)
    assert epsilon <= g.epsilon <= epsilon + 1.0001e-4
    assert g.accountants == {"basic": epsilon}


def test_local_guarantee_at_a_delta_is_the_optimal_composition():
    g = local_guarantee(1.0, 50, delta=1e-5)
    assert g.accountants["basic"] == 1
    assert g.accountants["optimal"] == pytest.approx(
        pure.epsilon_optimal(0.02, 50, 1e-5), rel=1e-12
    )
    assert g.accountants["optimal"] <= g.epsilon <= g.accountants["optimal"] + 1e-4


def test_guarantee_is_labelled_central_and_adds_the_rounds_up():
    g = shuffled_guarantee(1.0, 5, num_reports=100_000, delta=1e-6)
    each = shuffle.epsilon_numerical(0.2, 100_000, 2e-7)
    assert g.mechanism.endswith("central, after shuffling")
    assert (g.unit, g.status, g.delta, g.steps) == ("user", "proved", 1e-6, 5)
    assert 5 * each <= g.epsilon <= 5 * each * (1 + 1e-7) + 1e-4
    assert g.accountants["basic"] == pytest.approx(5 * each, rel=1e-7)
    assert "trusted shuffler" in g.trust_model
    assert "only the local ε holds" in g.trust_model
    text = " ".join(str(g).split())
    for condition in (
        "100000 honest users",
        "same randomiser",
        "anonymous message",
        "No time".lower(),
        "upper bound",
    ):
        assert condition in text


@given(st.floats(0.01, 5), st.integers(1, 30), st.integers(1, 10**6), deltas)
def test_guarantee_never_exceeds_the_local_one_nor_its_delta(
    epsilon, num_rounds, num_reports, delta
):
    g = shuffled_guarantee(epsilon, num_rounds, num_reports=num_reports, delta=delta)
    assert g.epsilon <= epsilon * (1 + 1e-12) + 1.0001e-4
    (loss,) = g.losses
    assert loss.num_steps * loss.delta <= delta * (1 + 1e-15)


def test_groups_that_report_once_are_cheaper_shuffled_than_rounds_of_everybody():
    rounds = shuffled_guarantee(1.0, 10, num_reports=100_000, delta=1e-6)
    groups = shuffled_guarantee(1.0, 1, num_reports=10_000, delta=1e-6)
    assert groups.steps == 1
    assert groups.losses[0].epsilon == shuffle.epsilon_numerical(
        math.nextafter(1.0, 2), 10_000, 1e-6
    )
    assert rounds.losses[0].num_steps == 10


def test_price_of_all_rounds_is_the_one_that_is_stated():
    g = shuffled_guarantee(3.0, 7, num_reports=5000, delta=1e-5)
    assert g.accountants["basic"] == shuffle.epsilon_shuffled(3.0, 7, num_reports=5000, delta=1e-5)


@pytest.mark.parametrize(
    "bad",
    [
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"num_rounds": 0},
        {"num_rounds": True},
        {"delta": 1.0},
        {"delta": -1e-5},
        {"num_reports": 0},
        {"num_reports": 10**13},
    ],
)
def test_numbers_out_of_range_are_refused(bad):
    fine = {"epsilon": 1.0, "num_rounds": 2, "delta": 1e-5}
    if "num_reports" not in bad:
        with pytest.raises(ValueError, match="must be"):
            local_guarantee(**{**fine, **bad})
    with pytest.raises(ValueError, match="must be"):
        shuffled_guarantee(**{**fine, "num_reports": 10_000, **bad})
