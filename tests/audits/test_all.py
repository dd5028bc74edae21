"""All audits together: which run, what they are asked for, and that a stranger's mechanism will
do.
"""

import importlib
import inspect
import json

import jax.numpy as jnp
import numpy as np
import pytest

import accounting
import audits
from accounting.loss import Gaussian
from dpmf_jax.data import synthetic
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.noise import keys
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Mechanism, Release, State
from experiments.fit import mechanisms as fit_mechanisms
from tests.cases.audits import STRUCTURAL

pytestmark = pytest.mark.usefixtures("quick_compilation")

RATINGS = synthetic.generate(num_users=20, num_items=12, num_ratings=90, rank=2)
LOW, HIGH = RATINGS.rating_range


def sound():
    return gaussian.joint_noise(
        gaussian.Config(rating_range=(LOW, HIGH), noise_multiplier=4.0, rank=2, learning_rate=0.001)
    )


def audit(made=None, **settings):
    defaults = {"key": keys.from_seed(0), "num_steps": 3, "quick": True}
    return audits.audit(made or sound(), RATINGS, **(defaults | settings))


def test_every_family_is_a_function_of_the_same_arguments():
    for module in audits.FAMILIES.values():
        parameters = list(
            inspect.signature(importlib.import_module(f"audits.{module}").audit).parameters
        )
        assert parameters[:5] == ["mechanism", "ratings", "data", "key", "num_steps"], module
    assert set(audits.QUICK) <= set(audits.FAMILIES)


@pytest.mark.seconds
def test_what_is_asked_for_runs_and_its_randomness_is_its_own():
    alone, among = (
        audit(only=only) for only in (["density"], ["sensitivity", "post-processing", "density"])
    )
    names = [finding.audit for finding in alone]
    assert {name.split(":")[0] for name in names} == {"density"}
    assert [f.to_dict() for f in alone] == [f.to_dict() for f in among if f.audit in names]


@pytest.mark.seconds
def test_delta_and_the_number_of_runs_reach_the_privacy_loss():
    [finding] = audit(only=["privacy loss"], delta=1e-3, num_runs=40, num_neighbours=2)
    assert finding.audit == "privacy loss: δ = 0.001"
    assert finding.details["runs"] == 40


@pytest.mark.seconds
def test_options_reach_the_family_that_they_name_and_give_way_to_arguments():
    few = {"num_neighbours": 3, "num_rounds": 0, "climb": False, "beyond": False}
    options = {"sensitivity": few, "density": {}}
    for num_neighbours, pairs in ((None, 3), (5, 5)):
        findings = audit(only=["sensitivity"], options=options, num_neighbours=num_neighbours)
        assert {finding.details["pairs"] for finding in findings} == {pairs}


@pytest.mark.parametrize("family", audits.ONCE)
def test_what_is_tried_once_is_given_all_phases(monkeypatch, family):
    flags = fit_mechanisms.flags("gaussian-joint-noise", epsilon=3.0, rank=2, steps=2)
    phases, _ = fit_mechanisms.phases_and_settings("gaussian-joint-noise", flags, RATINGS)
    *earlier, (mechanism, steps) = phases
    assert len(earlier) == 1
    before = []
    module = importlib.import_module(f"audits.{audits.FAMILIES[family]}")
    monkeypatch.setattr(
        module, "audit", lambda *given, earlier=(), **of: before.append(earlier) or []
    )
    audit(mechanism, num_steps=steps, earlier=earlier, only=[family])
    assert [len(phases) for phases in before] == [1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"only": ["nonsense"]}, "audits are sensitivity, .*; got nonsense"),
        ({"options": {"nonsense": {}}}, "audits are sensitivity, .*; got nonsense"),
        ({"delta": 1.0}, "delta must be between"),
        ({"num_steps": 0}, "num_steps must be an integer of at least 1"),
        ({"num_runs": 0}, "num_runs must be an integer of at least 1"),
        ({"num_neighbours": 0}, "num_neighbours must be an integer of at least 1"),
    ],
)
def test_what_cannot_be_asked_is_refused(change, told):
    with pytest.raises(ValueError, match=told):
        audit(**change)


# --- a mechanism of somebody else's: means of the items, with plain functions and no Partial


def strangers(sigma: float = 40.0) -> Mechanism:
    def init(key, data, previous):
        del key, previous
        return State(jnp.zeros(data.num_items), (), jnp.int32(0))

    def query(state, data, coins):
        del coins
        values, present = data.stored.value[: data.num_users], data.stored.present[: data.num_users]
        sums = jnp.sum(jnp.where(present, jnp.clip(values, LOW, HIGH), 0.0), 0)
        return sums, Info(jnp.mean((sums - state.public) ** 2), jnp.float32(0))

    def update(state, response, data):
        del data
        return state._replace(public=response)

    def guarantee(num_steps):
        return accounting.priced(
            mechanism="sums of items",
            losses=(Gaussian(noise_multiplier=sigma / (HIGH - LOW), num_steps=num_steps),),
            delta=1e-5,
            sensitivity=HIGH - LOW,
            unit="rating value",
            relation=(
                "one rating takes another value of the declared range; who rated what is public"
            ),
            largest_change=HIGH - LOW,
            released=("item means",),
            trust_model="one curator",
            status="proved",
            assumptions=(
                (
                    "noise of jax.random.normal in float32: 2^23 values, none beyond 5.42 standard"
                    " deviations"
                ),
            ),
            not_covered=("who rated what",),
        )

    return Mechanism(
        init=init,
        coins=lambda key: None,
        query=query,
        noise=noise.gaussian(sigma),
        update=update,
        release=lambda state: Release(center=state.public),
        guarantee=guarantee,
    )


@pytest.mark.seconds
@pytest.mark.parametrize("only", [STRUCTURAL, pytest.param(None, marks=pytest.mark.slow)])
def test_a_stranger_may_hand_in_a_mechanism_of_plain_functions(only):
    found = audit(strangers(), only=only, layout_kind="dense")
    broken = [finding.audit for finding in found if finding.verdict == "violated"]
    assert broken == ([] if only else ["noise: lookup"])  # the stranger's noise is float32
    assert sum(finding.verdict == "consistent" for finding in found) >= 8
    json.dumps([finding.to_dict() for finding in found], allow_nan=False)
    assert np.isfinite(found[0].measured)


@pytest.mark.seconds
def test_a_strangers_bug_is_seen():
    made = strangers()
    found = audit(
        made._replace(noise=noise.gaussian(10.0)),
        only=["noise", "privacy loss"],
        layout_kind="dense",
    )
    broken = {finding.audit for finding in found if finding.verdict == "violated"}
    assert {"noise: scale", "privacy loss: δ = 0.01"} <= broken
