"""Local mechanisms on trial: the table of a report is exact, sound ones are consistent, planted
bugs are found.
"""

import functools
import io
import json
import math

import jax
import jax.numpy as jnp
import pytest
from jax.tree_util import Partial
from rich.console import Console

import audits
from accounting.guarantee import no_guarantee
from audits import transcript
from audits.mechanism import enumeration
from dpmf_jax import layout, parts, protocol
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.noise import keys
from dpmf_jax.noise import laws as noise
from experiments.audit import console as audit_console
from tests.cases.audits import SPARSE as RATINGS
from tests.cases.audits import STRUCTURAL

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, RANK, Q = RATINGS.num_users, 3, 4
RATIO, REPORTS, OTHERS, COORDINATES, SAMPLER = enumeration.NAMES


def local_mechanism(**settings) -> protocol.Mechanism:
    defaults = {"epsilon": 2.0, "num_rounds": 3, "rank": RANK, "learning_rate": 0.3, "center": 3.0}
    config = local.Config(**(defaults | settings))
    return local.gd(config) if config.num_projected is None else local.gd_dr(config)


SOUND = {
    "gd": {},
    "gd-dr": {"num_projected": Q},
    "sign": {"num_projected": Q, "law": "sign"},
    "transpose": {"num_projected": Q, "lift": "transpose", "fresh_projection": True},
    "partition": {"num_projected": Q, "schedule": "partition", "clip": 0.5},
}


@pytest.fixture(scope="module")
def data():
    return layout.make(RATINGS, kind="dense", num_devices=1)


def run(mechanism, data, *, num_steps=3, seed=0, ratings=RATINGS):
    return enumeration.audit(
        parts.as_pytree(mechanism), ratings, data, key=keys.from_seed(seed), num_steps=num_steps
    )


def violated(findings) -> set[str]:
    return {finding.audit for finding in findings if finding.verdict == "violated"}


def by_name(findings, name):
    return next(finding for finding in findings if finding.audit == name)


# --- what holds is not called violated


SLOW = {"sign", "transpose", "gd-dr", "partition"}


@pytest.mark.seconds
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in SOUND]
)
def test_sound_local_mechanisms_are_consistent_in_every_audit(name):
    """Over 7 rounds of 3, so that a partition comes round again, with a user and an item without
    ratings.
    """
    findings = audits.audit(
        local_mechanism(**SOUND[name]),
        RATINGS,
        key=keys.from_seed(0),
        num_steps=7,
        only=STRUCTURAL,
        quick=True,
        num_neighbours=4,
    )
    told = {finding.audit: finding for finding in findings}
    for audit, finding in told.items():
        silent = audit.startswith(("noise:", "sensitivity:"))
        assert finding.verdict == ("not applicable" if silent else "consistent"), str(finding)
        json.dumps(finding.to_dict(), allow_nan=False)
    assert "states no sensitivity" in told["sensitivity: largest step"].details["why"]
    assert "promises no Gaussian noise" in told["noise: scale"].details["why"]
    for audit in enumeration.NAMES:
        assert told[audit].details["power"]
        assert told[audit].details["replay"]["key"]
    ratio, reports = told[RATIO], told[REPORTS]
    each = 2.0 if name == "partition" else 2.0 / 3
    assert ratio.claimed == pytest.approx(each, rel=1e-15)
    assert ratio.measured == pytest.approx(
        each, rel=1e-12
    )  # reached: a smaller price would be found out
    assert ratio.details["sum_error"] < 1e-12
    assert ratio.details["expectation_error"] < 2**-22
    assert ratio.details["worlds"] > 4 * enumeration.TARGETS - 4
    assert reports.measured == reports.claimed == (3 if name == "partition" else 7)


@pytest.mark.seconds
def test_a_split_layout_and_another_key_change_no_verdict():
    findings = run(
        local_mechanism(num_projected=Q), layout.make(RATINGS, kind="split", num_devices=1), seed=1
    )
    assert {finding.verdict for finding in findings} == {"consistent"}, list(map(str, findings))


def test_what_is_no_report_is_not_applicable_by_name():
    mechanism = gaussian.joint_noise(
        gaussian.Config(rating_range=(1.0, 5.0), noise_multiplier=2.0, rank=RANK)
    )
    findings = run(mechanism, layout.make(RATINGS, kind="dense", num_devices=1))
    assert [finding.audit for finding in findings] == list(enumeration.NAMES)
    assert {finding.verdict for finding in findings} == {"not applicable"}
    assert "gaussian-joint-noise" in findings[0].details["why"]


# --- planted bugs: each is found by the finding that is named for it


def _rated_items_only(report, data):
    present = layout.stored_values(data)[1][:USERS]
    return report._replace(row=jnp.argmax(present, axis=1).astype(jnp.int32))


def _only_who_rated(report, data):
    return report._replace(sent=layout.stored_values(data)[1][:USERS].any(axis=1))


def _leaks_the_mean(report, data):
    return report._replace(
        value=jnp.clip(report.value + 1e-6 * jnp.sum(layout.stored_values(data)[0]), -1, 1)
    )


def _everybody_always(report, data):
    del data
    return report._replace(sent=jnp.ones_like(report.sent))


def _first_row_spared(report, data):
    del data
    return report._replace(row=jnp.where(report.row == 0, 1, report.row))


def _one_row_for_all(report, data):
    del data
    return report._replace(row=jnp.full_like(report.row, report.row[0]))


def _certain(said, asked):
    del asked
    return said._replace(value=said.value.at[5].set(1.0))


def _one_coin_for_pairs(said, asked):
    del asked
    return said._replace(value=jnp.repeat(said.value[::2], 2))


def _speaks_out_of_turn(said, asked):
    return said._replace(value=jnp.where(asked.sent, said.value, 1.0))


def _thrice(said, asked):
    del asked
    return said._replace(value=3 * said.value)


ASKING = (
    _rated_items_only,
    _only_who_rated,
    _leaks_the_mean,
    _everybody_always,
    _first_row_spared,
    _one_row_for_all,
)
SAYING = (_certain, _one_coin_for_pairs, _speaks_out_of_turn, _thrice)


# Which bug it is is a number that the program takes, so that all of them are one program.
def _query(query, bug, state, data, coins):
    report, info = query(state, data, coins)
    return jax.lax.switch(bug, [lambda r, _: r, *ASKING], report, data), info


def _sample(sample, bug, key, statistics):
    return jax.lax.switch(bug, [lambda r, _: r, *SAYING], sample(key, statistics), statistics)


def planted(bug, **settings):
    mechanism = local_mechanism(**settings)
    asks, says = (1 + bugs.index(bug) if bug in bugs else 0 for bugs in (ASKING, SAYING))
    sample = Partial(_sample, mechanism.noise.sample, jnp.int32(says))
    return mechanism._replace(
        query=Partial(_query, mechanism.query, jnp.int32(asks)),
        noise=mechanism.noise._replace(sample=sample),
    )


# The published Bernoulli, of entries clipped to [-limit, limit] in place of [-1, 1].
def _one(half, limit, statistics):
    return 0.5 + half * jnp.clip(
        jnp.nan_to_num(statistics.value, nan=0.0, posinf=jnp.inf), -limit, limit
    )


def _linear_sample(half, limit, key, statistics):
    ones = jax.random.uniform(key, statistics.value.shape) < _one(half, limit, statistics)
    return statistics._replace(value=jnp.where(statistics.sent, jnp.where(ones, 1.0, -1.0), 0.0))


def _linear_log_prob(half, limit, response, statistics):
    p = _one(half, limit, statistics)
    chance = jnp.where(response.value == 1, p, jnp.where(response.value == -1, 1 - p, 0.0))
    return jnp.sum(jnp.log(jnp.where(statistics.sent, chance, response.value == 0)))


def linear(epsilon: float, limit: float) -> protocol.Mechanism:
    numbers = math.tanh(epsilon / 2) / 2, limit
    mechanism = local_mechanism()
    sample, log_prob = Partial(_linear_sample, *numbers), Partial(_linear_log_prob, *numbers)
    return mechanism._replace(noise=mechanism.noise._replace(sample=sample, log_prob=log_prob))


def noisy(**parts):
    mechanism = local_mechanism()
    return mechanism._replace(noise=mechanism.noise._replace(**parts))


def _short_log_prob(log_prob, response, statistics):
    return log_prob(response, statistics) - 0.1


EACH = 2.0 / 3
PLANTED = {
    "a report at twice its price": (lambda: noisy(**noise.one_bit(2 * EACH)._asdict()), {RATIO}),
    "one millionth too much": (
        lambda: noisy(**noise.one_bit(EACH * (1 + 1e-6))._asdict()),
        {RATIO},
    ),
    "sampled at a tenth more": (lambda: noisy(sample=noise.one_bit(1.1 * EACH).sample), {SAMPLER}),
    "probabilities do not sum to 1": (
        lambda: noisy(log_prob=Partial(_short_log_prob, local_mechanism().noise.log_prob)),
        {RATIO, SAMPLER},
    ),
    "entries clipped too late": (lambda: linear(EACH, 1.05), {RATIO}),
    "entries not clipped": (lambda: linear(EACH, math.inf), {RATIO}),
    "rated items only": (lambda: planted(_rated_items_only), {RATIO, COORDINATES}),
    "silent without ratings": (lambda: planted(_only_who_rated), {RATIO, COORDINATES}),
    "another user's rating": (lambda: planted(_leaks_the_mean), {OTHERS}),
    "one row is spared": (lambda: planted(_first_row_spared), {COORDINATES}),
    "one row for all": (lambda: planted(_one_row_for_all), {COORDINATES}),
    "one user's bit is certain": (lambda: planted(_certain), {SAMPLER}),
    "one coin for two users": (lambda: planted(_one_coin_for_pairs), {OTHERS, SAMPLER}),
    "says another number": (lambda: planted(_thrice), {SAMPLER}),
    "twice in a partition": (lambda: planted(_everybody_always, schedule="partition"), {REPORTS}),
    "speaks out of turn": (
        lambda: planted(_speaks_out_of_turn, schedule="partition"),
        {REPORTS, SAMPLER},
    ),
}


@pytest.fixture(scope="module")
def findings_of(data):
    """The findings of a planted bug, by name."""
    return functools.cache(lambda bug: run(PLANTED[bug][0](), data))


@pytest.mark.seconds
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug, findings_of):
    expected, findings = PLANTED[bug][1], findings_of(bug)
    assert violated(findings) == expected, list(map(str, findings))
    for name in expected:
        assert by_name(findings, name).details["replay"]["key"]
    assert len(rendered(findings)) == len(expected)


def rendered(findings) -> list[str]:
    """The lines of `dpmf audit` that say what is violated."""
    told = [
        {"mechanism": "local", **json.loads(json.dumps(finding.to_dict()))} for finding in findings
    ]
    trial = {"mechanism": "local", "data": "tiny", "steps": 3, "guarantee": {"status": "proved"}}
    trial["verdict"] = "violated"
    result = {"trials": [trial], "findings": told, "public": False, "written": ()}
    console = Console(width=400, file=io.StringIO())
    console.print(audit_console.render(result))
    return [line for line in console.file.getvalue().splitlines() if line.startswith("violated:")]


@pytest.mark.seconds
def test_no_bug_is_found_where_none_is_planted(data):
    """So it is not the planting that is found; and no audit changes the ratings."""
    before = RATINGS.sha256()
    for mechanism in (planted(None), linear(EACH, 1.0)):
        assert not violated(run(mechanism, data))
    assert RATINGS.sha256() == before


def test_a_bug_names_the_user_and_the_entry(findings_of):
    certain = findings_of("one user's bit is certain")
    assert by_name(certain, SAMPLER).details["where"]["whose"] == 105
    findings = findings_of("another user's rating")
    assert "all ratings of all others" in rendered(findings)[0]
    leak = by_name(findings, OTHERS).details["replay"]
    assert leak["pair"]["change"].startswith("all ratings of all others")
    assert leak["leaf"] == ".asked.value"
    late = by_name(findings_of("entries clipped too late"), RATIO)
    high = math.tanh(EACH / 2) * 1.05
    assert late.measured == pytest.approx(math.log((1 + high) / (1 - high)), rel=1e-6)
    assert max(abs(late.details["replay"][name]) for name in ("entry", "other_entry")) > 1.05


def _promise(rounds, num_steps):
    """Of so many rounds, however many are run; of none, no promise."""
    if rounds:
        return local_mechanism().guarantee(rounds)
    return no_guarantee(mechanism="unpriced", num_steps=num_steps, released=(), unit="user")


@pytest.mark.seconds
def test_a_third_round_is_one_too_many_for_a_price_of_two(data):
    findings = run(local_mechanism()._replace(guarantee=Partial(_promise, 2)), data)
    assert violated(findings) == {REPORTS}
    assert (findings[1].measured, findings[1].claimed) == (3, 2)
    assert findings[1].details["epsilon_of_that_many"] == pytest.approx(3 * EACH)


def test_without_a_pure_price_there_is_nothing_to_hold_a_report_against(data):
    findings = run(local_mechanism()._replace(guarantee=Partial(_promise, 0)), data)
    assert [finding.verdict for finding in findings] == ["not applicable"] * 2 + ["consistent"] * 3
    assert "unpriced" in findings[0].details["why"]


@pytest.mark.seconds
def test_reports_are_counted_beyond_what_is_written_down(data, monkeypatch):
    monkeypatch.setattr(transcript, "STEPS", 3)
    findings = run(local_mechanism(schedule="partition", num_rounds=2), data, num_steps=5)
    assert not violated(findings)
    assert (findings[1].measured, findings[1].details["fewest"], findings[0].details["steps"]) == (
        3,
        2,
        3,
    )
