"""The claim that goes with a release: its ε by the rule, its words, its JSON, its sums."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import Guarantee, compose, gaussian, no_guarantee, priced, statement
from accounting.guarantee import SELECTION
from accounting.loss import Approximate, Gaussian, Pure, SubsampledGaussian

DELTA = 1e-5

COMMON: dict[str, Any] = {
    "mechanism": "gaussian-joint-noise",
    "delta": DELTA,
    "sensitivity": 2.5,
    "unit": "rating value",
    "relation": "one rating changes its value within the declared range; who rated what is public",
    "released": ("user factors", "item factors"),
    "trust_model": "the curator sees all ratings and is trusted",
    "status": "proved",
    "assumptions": ("the number of steps was fixed beforehand",),
    "not_covered": ("the time that training took",),
}


def proved(*, noise_multiplier=20.0, num_steps=300, user_rho: Any = (0.5, 0.5), **changes) -> Any:
    steps = Gaussian(noise_multiplier=noise_multiplier, num_steps=num_steps, user_rho=user_rho)
    return priced(**{**COMMON, "losses": (steps,), **changes})


def claimed(**changes) -> Any:
    return proved(**{"mechanism": "gaussian", "status": "claimed", "user_rho": (1.0, 0.0), **changes})


def proved_by_hand(**changes) -> Any:
    return dataclasses.replace(proved(user_rho=None), **{"accountants": {}, **changes})


def plain(text):
    """The text with its line breaks undone."""
    return re.sub(r"\s+", " ", text)


# ------------------------------------------------------------------------------------------------------------ the price


def test_a_proved_epsilon_is_the_exact_one_and_a_claimed_one_is_the_papers():
    rho = gaussian.rho(20.0, 300)
    exact, closed = gaussian.epsilon_exact(rho, DELTA), gaussian.epsilon_closed_form(rho, DELTA)
    for guarantee, price in ((proved(), exact), (claimed(), closed)):
        assert price <= guarantee.epsilon < price + 1e-4
        assert guarantee.rho == rho
        assert dict(guarantee.accountants) == pytest.approx(gaussian.accountants(20.0, 300, DELTA), rel=1e-12)
    assert proved().epsilon < claimed().epsilon


@settings(max_examples=10)
@given(st.floats(0.05, 20), st.integers(1, 2000))
def test_a_solved_epsilon_is_stated_as_asked(epsilon, num_steps):
    asked = gaussian.round_up(epsilon)
    assert (
        proved(noise_multiplier=gaussian.solve_noise_multiplier(asked, DELTA, num_steps), num_steps=num_steps).epsilon
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
        assert priced == pytest.approx(guarantee.accountants["rdp"], rel=1e-3)  # default orders against ours
    nothing = no_guarantee(mechanism="non-private", num_steps=3, released=("factors",)).dp_event()
    assert dp_accounting.rdp.RdpAccountant().compose(nothing).get_epsilon(DELTA) == math.inf


# -------------------------------------------------------------------------------------------------------- the statement


def test_statement_names_everything_a_reader_must_know():
    guarantee = proved()
    text = plain(str(guarantee))
    for needle in (
        "gaussian-joint-noise, 300 steps",
        f"ε = {guarantee.epsilon:.4f} (rounded up), δ = 1e-05",
        "proved, under the assumptions below",
        "one rating value",
        guarantee.relation,
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
        assert float(statement.printed(epsilon)) >= epsilon
        assert len(statement.printed(epsilon)) <= 12
    for delta in (1e-5, 1.0000004e-5, 0.1, 1 / 3, 3e-300):
        assert float(statement.printed_delta(delta)) >= delta
        assert float(statement.printed_delta(delta)) <= delta * 1.00001
        assert statement.printed_down(delta) != statement.printed_up(delta) or float(f"{delta:g}") == delta
        assert float(statement.printed_down(delta)) <= delta == float(statement.printed_whole(delta))
    assert statement.printed_delta(1e-5) == "1e-05"
    assert [statement.printed_whole(x) for x in (4.0, 4, 0.12345651)] == ["4", "4", "0.12345651"]
    assert statement.printed(math.inf) == "inf"


def test_an_infinite_epsilon_is_not_printed_as_a_number():
    text = str(proved_by_hand(epsilon=math.inf, delta=0.0))
    assert "NO FINITE EPSILON" in text
    assert "ε = inf" not in text


def test_statement_names_an_accountant_that_was_skipped():
    assert re.search(r"pld +skipped", str(proved(noise_multiplier=0.005, num_steps=1)))
    assert "skipped" not in str(proved())


# ----------------------------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "guarantee",
    [
        proved(),
        claimed(seeded=True),
        proved(user_rho=None, noise_multiplier=0.7),
        no_guarantee(mechanism="non-private", num_steps=10, released=("user factors",)),
        compose(proved(), claimed()),
    ],
    ids=["proved", "claimed", "bare", "none", "composed"],
)
def test_json_round_trip(guarantee):
    text = json.dumps(guarantee.to_dict(), allow_nan=False)
    again = Guarantee.from_dict(json.loads(text))
    assert again == guarantee
    assert hash(again) == hash(guarantee)
    assert again.to_dict() == guarantee.to_dict()
    assert json.loads(text)["statement"] == str(guarantee)


def test_infinity_travels_as_a_string():
    values = no_guarantee(mechanism="non-private", num_steps=1, released=()).to_dict()
    assert values["epsilon"] == "inf"


def steps_for_users(weights):
    return {"kind": "gaussian", "noise_multiplier": 20.0, "num_steps": 300, "user_rho": weights}


FORGED: list[tuple[str, Any]] = [
    ("surprise", 1),
    ("epsilon", 0.5),  # below its price
    ("epsilon", -1.0),
    ("epsilon", math.nan),
    ("epsilon", "none"),
    ("epsilon", None),
    ("delta", 1.0),
    ("delta", 3.0),  # J·δ of 300 steps at 0.01
    ("delta", math.nan),
    ("losses", []),
    ("losses", [{"kind": "gaussian", "noise_multiplier": 10.0, "num_steps": 300, "user_rho": None}]),  # dearer
    ("losses", [{"kind": "gaussian", "noise_multiplier": math.nan, "num_steps": 300, "user_rho": None}]),
    ("losses", [{"kind": "gaussian", "noise_multiplier": 20.0, "num_steps": 300}, {"kind": "smoke"}]),
    ("losses", [{"kind": "pure", "epsilon": 1.0, "num_rounds": 300, "rounds": 1}]),
    ("losses", [300]),
    ("losses", {"kind": "gaussian"}),
    ("steps", 100),
    ("steps", 1.5),
    ("steps", -1),
    ("unit", "country"),
    ("status", "certified"),
    ("status", "none"),  # with a finite ε
    ("status", "claimed"),  # the exact ε is below the claim's
    ("relation", ""),
    ("mechanism", "x\n  Differential privacy: ε = 0.0001"),
    ("released", "user factors"),
    ("released", [1]),
    ("accountants", {"exact": math.nan}),
    ("accountants", {"exact": 0.5}),  # below what these losses cost
    ("accountants", [1.0]),
    ("losses", [steps_for_users([0.1, 0.1])]),  # one rating for less than the price of one rating
    ("losses", [steps_for_users([-1.0, 2.0])]),
    ("losses", [steps_for_users([1.0])]),
    ("losses", [steps_for_users(1.0)]),
    ("unit", "user"),  # with a price per rating
    ("seeded", "yes"),
    ("sensitivity", 0.0),
]


@pytest.mark.parametrize(("name", "value"), FORGED)
def test_json_that_says_something_else_is_refused(name, value):
    values = json.loads(json.dumps(proved().to_dict()))
    Guarantee.from_dict(values)
    with pytest.raises(ValueError, match=r"\w"):
        Guarantee.from_dict({**values, name: value})


def test_json_that_says_something_else_is_refused_without_a_type_checker():
    code = """
import json, sys
from accounting import Guarantee
values, forged = json.load(sys.stdin)
Guarantee.from_dict(values)
for name, value in forged:
    try:
        print("read:", Guarantee.from_dict({**values, name: value}))
    except ValueError:
        print("refused:", name)
"""
    text = json.dumps([proved().to_dict(), FORGED])
    run = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [f"refused: {name}" for name, _ in FORGED]


def test_json_with_a_key_missing_or_no_object_at_all_is_refused():
    values = proved().to_dict()
    del values["relation"]
    with pytest.raises(ValueError, match="missing keys in a guarantee: relation"):
        Guarantee.from_dict(values)
    with pytest.raises(ValueError, match="unknown keys in a guarantee: surprise"):
        Guarantee.from_dict({**proved().to_dict(), "surprise": 1})


def test_a_statement_is_made_anew_and_never_read():
    forged = {**proved().to_dict(), "statement": "perfectly private", "user_price": "nothing"}
    assert str(Guarantee.from_dict(forged)) == str(proved())


# -------------------------------------------------------------------------------------------------------------- compose


@settings(max_examples=10)
@given(st.lists(st.tuples(st.floats(1, 100), st.integers(1, 500)), min_size=2, max_size=4))
def test_phases_add_up_in_rho_whatever_their_order(phases):
    guarantees = [proved(noise_multiplier=z, num_steps=steps) for z, steps in phases]
    total: Any = compose(*guarantees)
    assert total.rho == pytest.approx(math.fsum(g.rho for g in guarantees), rel=1e-12)
    assert total.epsilon >= gaussian.epsilon_exact(total.rho, DELTA)
    assert total.epsilon >= max(g.epsilon for g in guarantees)
    assert total.steps == sum(g.steps for g in guarantees)
    backwards: Any = compose(*reversed(guarantees))
    assert (total.rho, total.epsilon) == (backwards.rho, backwards.epsilon)


def test_a_phase_cut_in_two_costs_the_same():
    whole = proved(num_steps=300)
    halves: Any = compose(proved(num_steps=100), proved(num_steps=200))
    assert halves.rho == pytest.approx(whole.rho, rel=1e-12)
    assert halves.epsilon == whole.epsilon
    assert halves.noise_multiplier == 20.0
    assert compose(whole) is whole


def test_phases_of_different_noise_have_no_common_noise_multiplier():
    assert compose(proved(), proved(sensitivity=1.0)).sensitivity is None
    total: Any = compose(proved(), proved(noise_multiplier=5.0))
    assert total.noise_multiplier is None
    assert total.sensitivity is None
    assert "z = σ/Δ = 20 in 300 steps, z = σ/Δ = 5 in 300 steps" in plain(str(total))
    assert total.accountants["exact"] <= total.epsilon


def test_users_pay_each_phase_by_its_own_polynomial():
    first, second = proved(user_rho=(0.5, 0.5)), proved(user_rho=(1.0, 0.0), noise_multiplier=7.0, num_steps=2)
    total: Any = compose(first, second)
    for m in (1, 5, 50):
        assert total.for_user(m).rho == pytest.approx(first.for_user(m).rho + second.for_user(m).rho, rel=1e-12)
    assert compose(first, proved(user_rho=None)).user_price is None


def test_the_weakest_phase_decides():
    assert compose(proved(), proved()).status == "proved"
    mixed: Any = compose(proved(), claimed())
    assert mixed.status == "claimed"
    assert mixed.epsilon >= gaussian.epsilon_closed_form(mixed.rho, DELTA)
    bare = no_guarantee(mechanism="item means", num_steps=1, released=("item means",))
    for total in (compose(proved(), bare), compose(bare, claimed())):
        assert total.status == "none"
        assert total.epsilon == math.inf
        assert "item means" in str(total)
    assert compose(proved(), proved(seeded=True)).seeded


def test_compose_keeps_what_each_phase_says():
    total: Any = compose(proved(), proved(released=("item means",), assumptions=("bounded",), not_covered=("sizes",)))
    assert total.released == ("user factors", "item factors", "item means")
    assert total.assumptions == (*COMMON["assumptions"], "bounded")
    assert total.not_covered.count(SELECTION) == 1
    assert {"sizes", "the time that training took"} < set(total.not_covered)
    assert total.mechanism == "gaussian-joint-noise + gaussian-joint-noise"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"unit": "rating presence"}, "unit"),
        ({"relation": "one rating is added or removed"}, "relation"),
        ({"delta": 1e-6}, "delta"),
    ],
)
def test_phases_that_cannot_be_added_up_are_refused_by_name(change, named):
    with pytest.raises(ValueError, match=f"differ in {named}"):
        compose(proved(), proved(**change))


def test_an_epsilon_that_nothing_supports_is_refused():
    with pytest.raises(ValueError, match="nothing supports"):
        proved_by_hand(epsilon=1.0, losses=())
    with pytest.raises(ValueError, match="nothing"):
        compose()


# ------------------------------------------------------------------------------------------ other losses than Gaussian


LOCAL: dict[str, Any] = {
    "mechanism": "one-bit reports",
    "losses": (Pure(epsilon=0.3, num_rounds=3),),
    "delta": 0.0,
    "unit": "user",
    "relation": "any change to all that a user holds",
    "released": ("messages",),
    "trust_model": "nobody but the user sees what he holds",
    "status": "proved",
}
SAMPLED: dict[str, Any] = {
    **COMMON,
    "mechanism": "sampled",
    "losses": (SubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01, num_steps=100),),
    "unit": "rating presence",
    "sensitivity": None,
}


def test_pure_rounds_cost_their_decimal_sum_and_nothing_else():
    guarantee = priced(**LOCAL)
    assert (guarantee.epsilon, guarantee.delta, guarantee.steps) == (0.3, 0.0, 3)
    assert "ε = 0.3000 (rounded up), δ = 0" in str(guarantee)
    assert "ε/k = 0.1 in each of k = 3 rounds" in plain(str(guarantee))
    assert guarantee.user_price is None
    ten: Any = compose(*[priced(**{**LOCAL, "losses": (Pure(epsilon=0.1),)})] * 10)
    assert (ten.epsilon, ten.losses) == (1.0, (Pure(epsilon=1.0, num_rounds=10),))
    with pytest.raises(ValueError, match="below the price"):
        dataclasses.replace(guarantee, epsilon=0.2999)


def test_pure_rounds_cost_a_user_of_m_ratings_m_times_as_much():
    guarantee = priced(**{**LOCAL, "unit": "rating value", "losses": (Pure(epsilon=0.1),)})
    assert guarantee.for_user(7).epsilon == 0.7
    assert guarantee.for_user(7).rho is None
    assert "pays m times ε; m = 20: ε = 2.0000, m = 100: ε = 10.0000" in plain(str(guarantee))


def test_at_another_delta_pure_rounds_compose_better_and_gaussians_cannot_do_without_one():
    guarantee = priced(**{**LOCAL, "losses": (Pure(epsilon=10.0, num_rounds=100),)})
    better = guarantee.at_delta(1e-5)
    assert better.accountants["optimal"] < 0.6 * better.accountants["basic"] == 6.0
    assert better.epsilon < 6 < guarantee.epsilon == 10
    assert proved().at_delta(1e-9).epsilon > proved().epsilon
    assert proved().at_delta(0.0).epsilon == math.inf
    assert "NO FINITE EPSILON" in str(proved().at_delta(0.0))
    assert no_guarantee(mechanism="x", num_steps=1, released=()).at_delta(0.1).epsilon == math.inf


def test_sampled_steps_are_priced_by_dp_accounting_and_a_user_by_a_mixture():
    guarantee = priced(**SAMPLED)
    assert set(guarantee.accountants) == {"rdp", "pld"}
    assert guarantee.accountants["pld"] <= guarantee.epsilon < guarantee.accountants["rdp"]
    assert guarantee.at_delta(1e-6).for_user(20).epsilon == pytest.approx(21.7, abs=0.05)
    assert "mixture of Gaussians" in guarantee.user_price
    assert "q = 0.01 in each step" in plain(str(guarantee))
    changed = priced(**{**SAMPLED, "unit": "rating value"})
    assert set(changed.accountants) == {"pld"}
    assert changed.epsilon > guarantee.epsilon
    assert changed.user_price is None


def test_a_mix_of_kinds_costs_less_than_its_parts_and_more_than_each():
    parts = [priced(**SAMPLED), proved(unit="rating presence", noise_multiplier=30.0, num_steps=10)]
    parts.append(priced(**{**SAMPLED, "losses": (Pure(epsilon=0.1),)}))
    total: Any = compose(*parts)
    assert max(part.epsilon for part in parts) < total.epsilon < math.fsum(part.epsilon for part in parts)
    assert compose(*reversed(parts)).epsilon == total.epsilon
    assert "by its own kind" in total.user_price
    assert total.rho is None
    assert Guarantee.from_dict(json.loads(json.dumps(total.to_dict()))) == total


def test_releases_known_only_as_epsilon_and_delta_add_up_and_a_vacuous_total_is_refused():
    step = Approximate(epsilon=0.4, delta=0.01, num_steps=99)
    assert priced(**{**COMMON, "losses": (step,), "delta": 0.99, "sensitivity": None}).epsilon == 39.6
    with pytest.raises(ValueError, match="says nothing"):
        dataclasses.replace(step, num_steps=300)  # J·δ = 3, paper 001's own numbers
    for losses, delta in (((step, step), 0.999), ((step,), 0.98)):
        with pytest.raises(ValueError, match=r"says nothing|must be at least"):
            priced(**{**COMMON, "losses": losses, "delta": delta, "sensitivity": None})
    one = Approximate(epsilon=0.4, delta=1e-6)
    both: Any = priced(**{**COMMON, "losses": (one, Gaussian(noise_multiplier=20.0, num_steps=300))})
    assert both.epsilon == pytest.approx(0.4 + proved(delta=9e-6).epsilon, abs=2e-4)
    assert both.user_price is None


def test_what_has_no_finite_price_says_so():
    guarantee = priced(**{**LOCAL, "losses": (Pure(epsilon=math.inf),)})
    assert guarantee.epsilon == math.inf
    assert "NO FINITE EPSILON" in str(guarantee)
    assert Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict(), allow_nan=False))) == guarantee


def forged(guarantee, **changes):
    return Guarantee.from_dict({**json.loads(json.dumps(guarantee.to_dict())), **changes})


def test_no_kind_of_loss_is_read_with_less_than_it_costs():
    local = priced(**{**LOCAL, "losses": (Pure(epsilon=10.0, num_rounds=10),), "delta": 1e-5})
    unequal = priced(**{**LOCAL, "losses": (Pure(epsilon=1.0), Pure(epsilon=2.0)), "delta": 1e-5})
    known = priced(**{**LOCAL, "losses": (Approximate(epsilon=0.4, delta=1e-6),), "delta": 1e-6})
    sampled: Any = priced(**SAMPLED)
    mix: Any = compose(sampled, proved(unit="rating presence"))
    for guarantee in (priced(**LOCAL), local, unequal, known, sampled, mix):
        assert forged(guarantee) == guarantee
        for epsilon in (0.0, guarantee.epsilon * 0.99):
            with pytest.raises(ValueError, match="below"):
                forged(guarantee, epsilon=epsilon, accountants={})
    for guarantee in (priced(**LOCAL), local, known):
        with pytest.raises(ValueError, match="below"):
            forged(guarantee, accountants={"basic": 0.0})
    with pytest.raises(ValueError, match="at least 1e-06"):
        forged(known, delta=1e-12)
    with pytest.raises(ValueError, match="below"):
        forged(sampled, unit="rating value")  # priced for a rating's presence
    with pytest.raises(ValueError, match="nothing supports"):
        forged(proved(), losses=[], steps=0, epsilon=0.0, accountants={})


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 10**400},
        {"sensitivity": 10**400},
        {"losses": [{"kind": "gaussian", "noise_multiplier": 10**400, "num_steps": 300, "user_rho": None}]},
        {"losses": [steps_for_users("12")]},
    ],
)
def test_numbers_that_no_float_can_hold_are_refused(changes):
    code = "import json, sys; from accounting import Guarantee; Guarantee.from_dict(json.load(sys.stdin))"
    text = json.dumps({**proved().to_dict(), **changes})
    run = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True)
    assert "ValueError" in run.stderr.splitlines()[-1]


def test_the_papers_own_number_stands_beside_the_price_and_never_in_its_place():
    guarantee = priced(
        **{
            **LOCAL,
            "unit": "rating value",
            "status": "claimed",
            "losses": (Pure(epsilon=10.0, num_rounds=100),),
            "accountants": {"paper": 0.1},
        }
    )
    assert guarantee.epsilon == 10.0
    assert re.search(r"paper +0\.1000 \(the paper's own number", str(guarantee))


def test_a_path_without_a_guarantee_says_why():
    reason = "ε here is a clipping threshold, not a privacy parameter"
    bare = no_guarantee(mechanism="sketch", num_steps=3, released=("sketch",), reason=reason)
    assert reason in plain(str(bare))
    assert "no noise" not in str(bare)
    assert reason in plain(str(compose(bare, proved())))


# --------------------------------------------------------------------------------------------------------- construction


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
    for part in (guarantee.status, f"{guarantee.delta:g}", guarantee.unit, str(guarantee.steps), *guarantee.released):
        assert part in guarantee.headline
    assert "\n" not in guarantee.headline
    assert guarantee.with_seed().headline.startswith("experiment, do not release")


TABLE = (("public V", "ε"), ("recommender", "nothing: it holds the ratings " + "and more " * 20 + "at last"))


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
    assert lines[at + 3].startswith(" " * 17 + "and more") or lines[at + 3].startswith(" " * 17 + "more")
    assert max(map(len, lines)) <= 110
    values = json.loads(json.dumps(guarantee.to_dict()))
    assert values["against"] == [list(row) for row in TABLE]
    assert Guarantee.from_dict(values) == guarantee


def test_a_guarantee_without_a_table_has_no_such_line_and_older_ones_are_read():
    guarantee = with_table(against=())
    assert "against" not in guarantee.statement
    values = guarantee.to_dict()
    del values["against"]
    assert Guarantee.from_dict(values) == guarantee


@pytest.mark.parametrize("table", [(("a",),), (("a", "b", "c"),), (("a", ""),), (("a", "b\nc"),), ("ab",), ((1, "b"),)])
def test_a_table_that_is_none_is_refused(table):
    values = with_table().to_dict() | {"against": json.loads(json.dumps(table))}
    with pytest.raises(ValueError, match="against"):
        Guarantee.from_dict(values)


def test_phases_keep_their_rows():
    other = with_table(against=(TABLE[0], ("third party", "sees nothing")))
    assert compose(with_table(), other).against == (*TABLE, ("third party", "sees nothing"))
