"""Phases and kinds of losses add up to one guarantee."""

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

from accounting import Guarantee, compose, gaussian, no_guarantee, priced
from accounting.guarantee import SELECTION
from accounting.loss import Approximate, Gaussian, Pure, SubsampledGaussian
from tests.cases.guarantee import (
    COMMON,
    DELTA,
    claimed,
    plain,
    proved,
    proved_by_hand,
    steps_for_users,
)

# --------------------------------------------------------------------------------------------------


@pytest.mark.seconds
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
    first, second = (
        proved(user_rho=(0.5, 0.5)),
        proved(user_rho=(1.0, 0.0), noise_multiplier=7.0, num_steps=2),
    )
    total: Any = compose(first, second)
    for m in (1, 5, 50):
        assert total.for_user(m).rho == pytest.approx(
            first.for_user(m).rho + second.for_user(m).rho, rel=1e-12
        )
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
    total: Any = compose(
        proved(), proved(released=("item means",), assumptions=("bounded",), not_covered=("sizes",))
    )
    assert total.released == ("user factors", "item factors", "item means")
    assert total.assumptions == (*COMMON["assumptions"], "bounded")
    assert total.not_covered.count(SELECTION) == 1
    assert {"sizes", "the time that training took"} < set(total.not_covered)
    assert total.mechanism == "gaussian-joint-noise + gaussian-joint-noise"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"unit": "rating presence"}, "unit"),
        ({"relation": "one rating has another neighbour"}, "relation"),
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


# --------------------------------------------------------------------------------------------------


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
    assert (
        max(part.epsilon for part in parts)
        < total.epsilon
        < math.fsum(part.epsilon for part in parts)
    )
    assert compose(*reversed(parts)).epsilon == total.epsilon
    assert "by its own kind" in total.user_price
    assert total.rho is None
    assert Guarantee.from_dict(json.loads(json.dumps(total.to_dict()))) == total


def test_releases_known_only_as_epsilon_and_delta_add_up_and_a_vacuous_total_is_refused():
    step = Approximate(epsilon=0.4, delta=0.01, num_steps=99)
    assert (
        priced(**{**COMMON, "losses": (step,), "delta": 0.99, "sensitivity": None}).epsilon == 39.6
    )
    with pytest.raises(ValueError, match="says nothing"):
        dataclasses.replace(step, num_steps=300)  # J·δ = 3, paper 001's own numbers
    for losses, delta in (((step, step), 0.999), ((step,), 0.98)):
        with pytest.raises(ValueError, match=r"says nothing|must be at least"):
            priced(**{**COMMON, "losses": losses, "delta": delta, "sensitivity": None})
    one = Approximate(epsilon=0.4, delta=1e-6)
    both: Any = priced(
        **{**COMMON, "losses": (one, Gaussian(noise_multiplier=20.0, num_steps=300))}
    )
    assert both.epsilon == pytest.approx(0.4 + proved(delta=9e-6).epsilon, abs=2e-4)
    assert both.user_price is None


def test_what_has_no_finite_price_says_so():
    guarantee = priced(**{**LOCAL, "losses": (Pure(epsilon=math.inf),)})
    assert guarantee.epsilon == math.inf
    assert "NO FINITE EPSILON" in str(guarantee)
    assert (
        Guarantee.from_dict(json.loads(json.dumps(guarantee.to_dict(), allow_nan=False)))
        == guarantee
    )


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
        {
            "losses": [
                {
                    "kind": "gaussian",
                    "noise_multiplier": 10**400,
                    "num_steps": 300,
                    "user_rho": None,
                }
            ]
        },
        {"losses": [steps_for_users("12")]},
    ],
)
def test_numbers_that_no_float_can_hold_are_refused(changes):
    code = (
        "import json, sys; from accounting import Guarantee;"
        " Guarantee.from_dict(json.load(sys.stdin))"
    )
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
