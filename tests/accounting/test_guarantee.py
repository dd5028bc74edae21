"""The claim that goes with a release: its ε by the rule, its words, and that it cannot be
edited.
"""

import dataclasses
import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import Guarantee, compose, digits, gaussian, no_guarantee, priced
from accounting.loss import Pure
from tests.cases.guarantee import DELTA, claimed, plain, proved, proved_by_hand

# --------------------------------------------------------------------------------------------------


def test_a_proved_epsilon_is_the_exact_one_and_a_claimed_one_is_the_papers():
    rho = gaussian.rho(20.0, 300)
    exact, closed = gaussian.epsilon_exact(rho, DELTA), gaussian.epsilon_closed_form(rho, DELTA)
    for guarantee, price in ((proved(), exact), (claimed(), closed)):
        assert price <= guarantee.epsilon < price + 1e-4
        assert guarantee.rho == rho
        assert dict(guarantee.accountants) == pytest.approx(
            gaussian.accountants(20.0, 300, DELTA), rel=1e-12
        )
    assert proved().epsilon < claimed().epsilon


@settings(max_examples=10)
@given(st.floats(0.05, 20), st.integers(1, 2000))
def test_a_solved_epsilon_is_stated_as_asked(epsilon, num_steps):
    asked = digits.round_up(epsilon)
    assert (
        proved(
            noise_multiplier=gaussian.solve_noise_multiplier(asked, DELTA, num_steps),
            num_steps=num_steps,
        ).epsilon
        == asked
    )


@settings(max_examples=10)
@given(st.integers(1, 300), st.sampled_from([(0.5, 0.5), (1.0, 0.0)]))
def test_a_user_pays_by_the_polynomial(num_ratings, weights):
    guarantee = proved(user_rho=weights)
    price = guarantee.for_user(num_ratings)
    factor = {(0.5, 0.5): num_ratings * (num_ratings + 1) / 2, (1.0, 0.0): num_ratings**2}[weights]
    assert price.rho == pytest.approx(guarantee.rho * factor, rel=1e-12)
    assert price.epsilon >= gaussian.epsilon_exact(price.rho, DELTA)
    assert price.epsilon >= guarantee.epsilon
    assert price.status == "proved"


def test_a_user_of_a_claim_gets_the_claims_formula_and_status():
    price = claimed().for_user(10)
    assert price.epsilon >= gaussian.epsilon_closed_form(100 * claimed().rho, DELTA)
    assert price.status == "claimed"
    assert "not proved" in claimed().user_price
    assert "not proved" not in proved().user_price


def test_no_user_price_is_made_up():
    for guarantee in (
        proved(user_rho=None),
        proved(unit="user", user_rho=None),
        no_guarantee(mechanism="x", num_steps=1, released=()),
    ):
        assert guarantee.user_price is None
        with pytest.raises(ValueError, match="no price per user"):
            guarantee.for_user(3)
    for num_ratings in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            proved().for_user(num_ratings)


def test_the_event_costs_what_the_guarantee_says():
    import dp_accounting

    for guarantee in (proved(), compose(proved(), proved(noise_multiplier=5.0, num_steps=3))):
        priced = dp_accounting.rdp.RdpAccountant().compose(guarantee.dp_event()).get_epsilon(DELTA)
        assert priced == pytest.approx(
            guarantee.accountants["rdp"], rel=1e-3
        )  # default orders against ours
    nothing = no_guarantee(mechanism="non-private", num_steps=3, released=("factors",)).dp_event()
    assert dp_accounting.rdp.RdpAccountant().compose(nothing).get_epsilon(DELTA) == math.inf


# --------------------------------------------------------------------------------------------------


def test_statement_names_everything_a_reader_must_know():
    guarantee = proved()
    text = plain(str(guarantee))
    for needle in (
        "gaussian-joint-noise, 300 steps",
        f"ε = {guarantee.epsilon:.4f} (rounded up), δ = 1e-05",
        "proved, under the assumptions below",
        "one rating value",
        str(guarantee.relation),
        guarantee.trust_model,
        "user factors, item factors",
        "z = σ/Δ = 20 in each step",
        "Δ = 2.5",
        guarantee.user_price,
        *guarantee.assumptions,
        *guarantee.not_covered,
        "best of several runs",
        "hyperparameter search",
    ):
        assert needle in text, needle
    assert not text.startswith("EXPERIMENT")
    assert max(map(len, str(guarantee).splitlines())) <= 110


def test_statement_prints_every_accountant_with_its_kind_and_rounded_up():
    guarantee = proved()
    for name, kind in (
        ("closed_form", "upper bound"),
        ("rdp", "upper bound"),
        ("pld", "upper bound"),
        ("exact", "exact"),
    ):
        (line,) = [line for line in str(guarantee).splitlines() if line.split()[0] == name]
        assert float(line.split()[1]) >= guarantee.accountants[name]
        assert f"({kind}," in line


def test_statement_of_a_claim_says_that_it_is_none_of_ours():
    text = plain(str(claimed()))
    assert "Claimed differential privacy: ε" in text
    assert "NOT proved" in text
    assert "if the claim holds" in text
    assert "NOT proved" not in str(proved())


def test_statement_of_a_seeded_run_starts_with_the_warning():
    for guarantee in (
        proved(seeded=True),
        proved().with_seed(True),
        no_guarantee(mechanism="x", num_steps=1, released=()).with_seed(True),
    ):
        assert str(guarantee).splitlines()[0] == "EXPERIMENT: seeded, do not release"
        assert not str(guarantee.with_seed(False)).startswith("EXPERIMENT")
    assert proved().with_seed(True) != proved()


def test_statement_without_a_guarantee_shows_no_epsilon():
    guarantee = no_guarantee(mechanism="non-private", num_steps=10, released=("user factors",))
    text = plain(str(guarantee))
    assert "NO PRIVACY GUARANTEE" in text
    assert "no noise" in text
    assert "user factors" in text
    assert "ε" not in text
    assert "δ" not in text
    assert guarantee.epsilon == math.inf


def test_numbers_of_a_statement_are_never_below_what_they_stand_for():
    for epsilon in (0.1, 0.00001, 999_999.99991, 1e6, 1234567.1, 1e300, 3.00000000001):
        assert float(digits.printed(epsilon)) >= epsilon
        assert len(digits.printed(epsilon)) <= 12
    for delta in (1e-5, 1.0000004e-5, 0.1, 1 / 3, 3e-300):
        assert float(digits.printed_delta(delta)) >= delta
        assert float(digits.printed_delta(delta)) <= delta * 1.00001
        assert (
            digits.printed_down(delta) != digits.printed_up(delta) or float(f"{delta:g}") == delta
        )
        assert float(digits.printed_down(delta)) <= delta == float(digits.printed_whole(delta))
    assert digits.printed_delta(1e-5) == "1e-05"
    assert [digits.printed_whole(x) for x in (4.0, 4, 0.12345651)] == ["4", "4", "0.12345651"]
    assert digits.printed(math.inf) == "inf"


def test_an_infinite_epsilon_is_not_printed_as_a_number():
    text = str(proved_by_hand(epsilon=math.inf, delta=0.0))
    assert "NO FINITE EPSILON" in text
    assert "ε = inf" not in text


def test_statement_names_an_accountant_that_was_skipped():
    assert re.search(r"pld +skipped", str(proved(noise_multiplier=0.005, num_steps=1)))
    assert "skipped" not in str(proved())


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, math.inf, math.nan])
def test_no_noise_is_never_priced(noise_multiplier):
    with pytest.raises(ValueError, match="noise_multiplier"):
        proved(noise_multiplier=noise_multiplier)


def test_an_epsilon_by_hand_must_cover_its_rho():
    price = gaussian.epsilon_exact(proved().rho, DELTA)
    assert proved_by_hand(epsilon=price).epsilon == price
    with pytest.raises(ValueError, match="below"):
        proved_by_hand(epsilon=price * (1 - 1e-6))
    with pytest.raises(ValueError, match="below"):
        proved_by_hand(delta=0.0)  # no Gaussian is pure
    with pytest.raises(ValueError, match="infinite"):
        proved_by_hand(status="none")


def test_a_guarantee_cannot_be_edited():
    guarantee = proved()
    with pytest.raises(dataclasses.FrozenInstanceError):
        guarantee.epsilon = 0.0
    mine = {"exact": 20.0}
    kept = proved_by_hand(accountants=mine, epsilon=20.0)
    mine["exact"] = 0.0
    assert kept.accountants["exact"] == 20.0


def test_the_headline_holds_what_the_statement_is_about():
    guarantee = proved()
    for part in (
        guarantee.status,
        f"{guarantee.delta:g}",
        guarantee.unit,
        str(guarantee.steps),
        *guarantee.released,
    ):
        assert part in guarantee.headline
    assert "\n" not in guarantee.headline
    assert guarantee.with_seed().headline.startswith("experiment, do not release")


TABLE = (
    ("public V", "ε"),
    ("recommender", "nothing: it holds the ratings " + "and more " * 20 + "at last"),
)


def with_table(**changes):
    return priced(
        **{
            "mechanism": "m",
            "losses": (Pure(epsilon=1.0),),
            "delta": 0.0,
            "unit": "user",
            "relation": "r",
            "released": ("V",),
            "trust_model": "t",
            "status": "proved",
            "against": TABLE,
        }
        | changes
    )


def test_whom_it_holds_against_is_a_table_of_the_statement_and_travels():
    guarantee = with_table()
    lines = guarantee.statement.splitlines()
    at = lines.index("  against whom it holds")
    assert lines[at + 1 : at + 3] == ["    public V     ε", lines[at + 2]]
    assert lines[at + 2].startswith("    recommender  nothing: it holds the ratings and more")
    assert lines[at + 3].startswith(" " * 17 + "and more") or lines[at + 3].startswith(
        " " * 17 + "more"
    )
    assert max(map(len, lines)) <= 110
    values = json.loads(json.dumps(guarantee.to_dict()))
    assert values["against"] == [list(row) for row in TABLE]
    assert Guarantee.from_dict(values) == guarantee


def test_a_guarantee_without_a_table_has_no_such_line_and_older_ones_are_read():
    guarantee = with_table(against=())
    assert "against whom it holds\n" not in guarantee.statement
    values = guarantee.to_dict()
    del values["against"]
    assert Guarantee.from_dict(values) == guarantee


@pytest.mark.parametrize(
    "table", [(("a",),), (("a", "b", "c"),), (("a", ""),), (("a", "b\nc"),), ("ab",), ((1, "b"),)]
)
def test_a_table_that_is_none_is_refused(table):
    values = with_table().to_dict() | {"against": json.loads(json.dumps(table))}
    with pytest.raises(ValueError, match="against"):
        Guarantee.from_dict(values)


def test_phases_keep_their_rows():
    other = with_table(against=(TABLE[0], ("third party", "sees nothing")))
    assert compose(with_table(), other).against == (*TABLE, ("third party", "sees nothing"))


def test_noise_that_nobody_relies_on_is_drawn_and_not_priced():
    usual, more = proved(), proved(surplus_noise=1.5)
    assert more.accountants == usual.accountants
    assert more.noise_multiplier == usual.noise_multiplier
    assert more.noise_scale == pytest.approx(1.5 * usual.noise_scale)
    assert "σ is what is relied on: a response has at least 1.5 times as much" in plain(str(more))
    assert "relied on" not in str(usual)
    assert compose(more, more).noise_scale == more.noise_scale
    both = compose(usual, more)
    assert (both.surplus_noise, both.noise_scale) == (1.0, None)  # of no one scale
    values = usual.to_dict()
    del values["surplus_noise"]  # an older version
    assert Guarantee.from_dict(values) == usual
