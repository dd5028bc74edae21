"""Neighbouring relations as data: one sentence a kind, and what adds up with what."""

import hashlib
import json
import math
from typing import Any

import pytest

from accounting import Guarantee, compose, no_guarantee
from accounting.guarantee import priced
from accounting.ledger import Entry, budgets
from accounting.loss import Gaussian, Pure, SubsampledGaussian
from accounting.relation import (
    NONE,
    PRESENCE,
    USER_ADDED_OR_REMOVED,
    USER_REPLACED,
    Relation,
    common,
    of_sentence,
    stated,
    value,
)
from dpmf_jax.mechanisms.federated.guarantee import iterations_guarantee
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.gaussian import noisy_means
from dpmf_jax.mechanisms.gaussian.config import Config
from dpmf_jax.mechanisms.local.guarantee import local_guarantee, shuffled_guarantee
from dpmf_jax.mechanisms.objective.guarantee import (
    real_closed_form_guarantee,
    real_statistics_guarantee,
)
from dpmf_jax.mechanisms.sampled.guarantee import sampled_guarantee
from experiments.audit import suite as audit_suite
from experiments.cli import budget_report
from experiments.fit import mechanisms as fit_mechanisms
from tests.cases.guarantee import plain, proved

OWN = stated("one rating changes its value within the declared range; who rated what is public")
EVERY = (value(4.0), value(4.5), value(), PRESENCE, USER_REPLACED, USER_ADDED_OR_REMOVED, NONE, OWN)


def of(relation: Relation, **change: Any) -> Guarantee:
    return proved(
        **{
            "relation": relation,
            "unit": relation.unit or "rating value",
            "user_rho": None,
            **change,
        }
    )


def presence_flags(mechanism: str, **more: Any) -> Any:
    ratings = audit_suite.generated()
    asked = fit_mechanisms.flags(mechanism, relation="rating-presence", steps=3, **more)
    phases, _ = fit_mechanisms.phases_and_settings(mechanism, asked, ratings)
    return phases[-1][0].guarantee(phases[-1][1])


# --------------------------------------------------------------------------------------------------


def test_each_kind_has_one_sentence_of_its_own():
    assert len({str(one) for one in EVERY}) == len(EVERY)
    assert (
        str(value(4.0))
        == "two data sets with the same rated pairs, one rating's value differs, by at most 4"
    )
    assert str(value(4.5)).endswith("by at most 4.5")
    assert str(value()).endswith("one rating's value differs, by any amount")
    assert "one of which has one rating more than the other" in str(PRESENCE)
    assert str(OWN) == OWN.stated


def test_a_unit_goes_with_its_kinds():
    assert [one.unit for one in EVERY] == [
        *["rating value"] * 3,
        "rating presence",
        "user",
        "user",
        None,
        None,
    ]
    for relation in (value(4.0), PRESENCE, USER_REPLACED):
        for unit in ("rating value", "rating presence", "user"):
            if unit != relation.unit:
                with pytest.raises(ValueError, match="unit"):
                    of(relation, unit=unit)
    assert of(OWN, unit="user").unit == "user"


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "value", "largest_change": 0.0},
        {"kind": "value", "largest_change": math.inf},
        {"kind": "value", "largest_change": math.nan},
        {"kind": "presence", "largest_change": 4.0},
        {"kind": "presence", "stated": "one rating more"},
        {"kind": "stated"},
        {"kind": "stated", "stated": " "},
        {"kind": "stated", "stated": "two\nlines"},
    ],
)
def test_no_relation_contradicts_itself(change):
    with pytest.raises(ValueError, match=r"\w"):
        Relation(**change)


@pytest.mark.parametrize("relation", EVERY, ids=str)
def test_sentences_of_ours_are_read_back_and_others_stay_as_they_are(relation):
    assert of_sentence(str(relation)) == relation


OLD = {  # as version 0.1 worded them
    "two data sets, one of which has one rating more than the other": PRESENCE,
    "one rating is added or removed, by any user, of any item, with any value": PRESENCE,
    "two data sets with the same rated pairs, one rating's value differs, by at most 4": value(4.0),
    "two data sets with the same rated pairs, one rating's value differs, by at most 0.1": value(
        0.1
    ),
    "two data sets with the same rated pairs, one rating's value differs": value(),
    "one rating has another value, any other; who rated what is the same": value(),
    "any change to all of one user's ratings, and to which items were rated; "
    "taking part is not hidden": USER_REPLACED,
    "any change to all of one user's ratings": USER_REPLACED,
    "two data sets that differ in all data of one user, who takes part in the same iterations": (
        USER_REPLACED
    ),
    "two data sets, one of which has all data of one user and the other has none of that user": (
        USER_ADDED_OR_REMOVED
    ),
    "one user with all ratings is added or removed": USER_ADDED_OR_REMOVED,
    "none: no two data sets are hidden from each other": NONE,
    "one rating more": stated("one rating more"),
}


@pytest.mark.parametrize("sentence", OLD)
def test_the_sentences_of_older_versions_are_still_read(sentence):
    relation = OLD[sentence]
    assert of_sentence(sentence) == relation
    if relation is not NONE:
        told = json.loads(json.dumps(of(relation).to_dict()))
        del told["relation_kind"]
        assert Guarantee.from_dict({**told, "relation": sentence}).relation == relation


def test_a_value_that_a_sentence_and_a_number_say_differently_is_refused():
    sentence = str(value(4.0))
    assert of_sentence(sentence, 4.0) == value(4.0)
    assert of_sentence("a sentence", 4.0) == stated("a sentence", 4.0)
    with pytest.raises(ValueError, match="largest_change"):
        of_sentence(sentence, 3.0)
    with pytest.raises(ValueError, match="largest_change"):
        of(value(4.0), largest_change=3.0)
    assert of(stated("a sentence", 4.0)).largest_change == 4.0
    assert priced(
        mechanism="own",
        losses=(Pure(epsilon=1.0),),
        delta=0.0,
        unit="rating value",
        relation="a sentence",
        largest_change=4.0,
        released=("sums",),
        trust_model="a curator",
        status="proved",
    ).relation == stated("a sentence", 4.0)


@pytest.mark.parametrize("relation", [one for one in EVERY if one != NONE], ids=str)
def test_json_has_the_sentence_and_the_kind_and_comes_back(relation):
    guarantee = of(relation)
    told = json.loads(json.dumps(guarantee.to_dict(), allow_nan=False))
    assert (told["relation"], told["relation_kind"]) == (str(relation), relation.kind)
    assert told["largest_change"] == relation.largest_change
    assert Guarantee.from_dict(told) == guarantee
    assert f"relation {relation}" in plain(str(guarantee))


@pytest.mark.parametrize(
    "change",
    [
        {"relation_kind": "country"},
        {"relation_kind": "presence"},  # of a value's unit
        {"relation_kind": "value", "largest_change": -1.0},
        {"relation_kind": "value", "largest_change": "4"},
        {"relation_kind": 1},
        {"relation_kind": "none"},  # beside a price
    ],
)
def test_a_relation_that_says_something_else_is_refused(change):
    told = json.loads(json.dumps(of(value(4.0)).to_dict()))
    with pytest.raises(ValueError, match=r"\w"):
        Guarantee.from_dict({**told, **change})


# --------------------------------------------------------------------------------------------------


def test_what_is_a_neighbour_for_all_is_what_a_sum_protects():
    assert common([value(4.0), value(5.0)]) == value(4.0)
    assert common([value(), value(5.0)]) == value(5.0)
    assert common([value(), value()]) == value()
    for relation in EVERY:
        assert common([relation, relation]) == relation
        for other in EVERY:
            if relation.kin != other.kin:
                with pytest.raises(ValueError, match="differ in relation"):
                    common([relation, other])
    assert common([stated("s", 4.0), stated("s")]) == stated("s", 4.0)


def test_a_user_replaced_is_not_a_user_removed():
    """A message of norm C moves by 2C where it is replaced, and by C where it is removed."""
    sent: Any = {
        "noise": "laplace",
        "clip_norm": 1.0,
        "scale": 20.0,
        "num_iterations": 1,
        "honest_shares": 5,
    }
    replaced = iterations_guarantee(**sent)
    removed = iterations_guarantee(**sent, change="remove")
    assert (replaced.relation, removed.relation) == (USER_REPLACED, USER_ADDED_OR_REMOVED)
    assert replaced.epsilon == pytest.approx(2 * removed.epsilon, abs=1e-4)
    with pytest.raises(ValueError, match="differ in relation"):
        compose(replaced, removed)
    with pytest.raises(ValueError, match="differ in relation"):
        compose(local_guarantee(1.0, 3), removed)


def test_users_reports_and_users_sums_add_up():
    sent: Any = {
        "noise": "laplace",
        "clip_norm": 1.0,
        "scale": 20.0,
        "num_iterations": 2,
        "honest_shares": 5,
    }
    replaced = iterations_guarantee(**sent)
    total = compose(local_guarantee(1.0, 3), replaced)
    assert total.epsilon == pytest.approx(1.0 + replaced.epsilon, abs=1e-4)
    central = shuffled_guarantee(1.0, 1, num_reports=1000, delta=1e-5)
    assert central.relation == total.relation == USER_REPLACED


@pytest.mark.seconds
def test_joint_noise_and_dpsgd_add_up_where_both_hide_a_ratings_presence():
    joint = presence_flags("gaussian-joint-noise", residual_clip=1.0)
    sampled = presence_flags("dpsgd").at_delta(joint.delta)
    total = compose(joint, sampled)
    assert (total.unit, total.relation) == ("rating presence", PRESENCE)
    assert (
        max(joint.epsilon, sampled.epsilon) < total.epsilon < joint.epsilon + sampled.epsilon + 1e-3
    )
    means = noisy_means.mechanism(
        noisy_means.Config(
            rating_range=(1.0, 5.0), noise_multiplier=9.0, relation="rating presence"
        )
    )
    statistics = real_statistics_guarantee(
        matrix_scale=9.0, vector_scale=9.0, rating_bound=2.0, delta=1e-5
    )
    assert compose(total, means.guarantee(1), statistics).relation == PRESENCE


def test_values_of_sampled_and_of_whole_steps_add_up_to_the_smaller_change():
    joint = gaussian.joint_noise(
        Config(
            rating_range=(1.0, 5.0),
            noise_multiplier=9.0,
            rank=2,
            learning_rate=0.1,
            regularization=0.1,
        )
    ).guarantee(3)
    steps = (SubsampledGaussian(noise_multiplier=2.0, sampling_rate=0.1, num_steps=3),)
    sampled = sampled_guarantee(steps, delta=1e-5, clip_norm=1.0, unit="rating value")
    assert (joint.relation, sampled.relation) == (value(4.0), value())
    total = compose(sampled, joint)
    assert (total.relation, total.largest_change) == (value(4.0), 4.0)
    wider = real_closed_form_guarantee(
        noise="gaussian", scale=80.0, range_width=5.0, rank=2, delta=1e-5
    )
    assert compose(wider, joint).largest_change == 4.0


def test_nothing_adds_up_to_nothing():
    nothing = no_guarantee(mechanism="x", num_steps=1, released=())
    assert compose(of(PRESENCE), nothing).relation == NONE


# --------------------------------------------------------------------------------------------------


def entry(number: int, guarantee: Guarantee) -> Entry:
    return Entry(
        id=hashlib.sha256(f"release {number}".encode()).hexdigest(),
        time="2025-01-01T00:00:00+00:00",
        data_set="mine",
        data_hash=None,
        guarantee=guarantee,
        model=f"runs/{number}",
    )


@pytest.mark.seconds
def test_a_ledger_adds_up_joint_noise_and_dpsgd():
    joint, sampled = (
        presence_flags("gaussian-joint-noise", residual_clip=1.0),
        presence_flags("dpsgd"),
    )
    (budget,) = budgets([entry(0, joint), entry(1, sampled), entry(2, joint)])
    (total,) = budget.totals
    assert budget.epsilon == total.epsilon < math.inf
    assert total.steps == 2 * joint.steps + sampled.steps
    told = budget_report.budget_values(budget)
    assert [one["releases"] for one in told["totals"]] == [3]
    assert "these protect different things" not in budget_report.render_show(
        {"data_sets": [told], "overlaps": [], "covers": [], "ledger": "ledger"}
    )
    json.dumps(told, allow_nan=False)


def test_a_ledger_adds_up_changes_of_a_value_at_the_smaller_one():
    (budget,) = budgets(
        [entry(0, of(value(4.0))), entry(1, of(value(5.0))), entry(2, of(PRESENCE))]
    )
    assert [(total.unit, total.largest_change) for total in budget.totals] == [
        ("rating value", 4.0),
        ("rating presence", None),
    ]
    assert [one["releases"] for one in budget_report.budget_values(budget)["totals"]] == [2, 1]


def test_old_ledgers_add_up_too():
    told = []
    for number, (sentence, losses) in enumerate(
        (
            (
                "two data sets, one of which has one rating more than the other",
                (Gaussian(noise_multiplier=20.0, num_steps=3),),
            ),
            (
                "one rating is added or removed, by any user, of any item, with any value",
                (Gaussian(noise_multiplier=30.0, num_steps=3),),
            ),
        )
    ):
        guarantee = priced(
            mechanism="m",
            losses=losses,
            delta=1e-5,
            unit="rating presence",
            relation=sentence,
            released=("x",),
            trust_model="a curator",
            status="proved",
        )
        told.append(entry(number, guarantee))
    assert len(budgets(told)[0].totals) == 1
