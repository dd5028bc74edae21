"""Local mechanisms on trial: the table of a report is exact, sound ones are consistent, planted
bugs are found.
"""

import dataclasses
import decimal
import io
import json
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.tree_util import Partial
from rich.console import Console

import audits
from accounting.guarantee import no_guarantee
from audits import neighbours, transcript
from audits.finding import ALPHA
from audits.mechanism import density, enumeration, enumeration_draws
from dpmf_jax import layout, parts, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.devices import keys
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.noise import laws as noise
from dpmf_jax.noise.laws import Report
from experiments.audit import console as audit_console
from tests.cases.audits import STRUCTURAL

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, RANK, Q = 14, 6, 3, 4
RATIO, REPORTS, OTHERS, COORDINATES, SAMPLER = enumeration.NAMES


def tiny() -> Ratings:
    """50 ratings; the last user and the last item have none."""
    random = np.random.default_rng(0)
    pairs = random.choice((USERS - 1) * (ITEMS - 1), size=50, replace=False)
    user, item = pairs // (ITEMS - 1), pairs % (ITEMS - 1)
    columns = (
        user.astype(np.int32),
        item.astype(np.int32),
        random.integers(1, 6, 50).astype(np.float32),
    )
    return Ratings(*columns, 100 + np.arange(USERS), np.arange(ITEMS), (1.0, 5.0))


RATINGS = tiny()


def made(**settings) -> protocol.Mechanism:
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


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in SOUND]
)
def test_sound_local_mechanisms_are_consistent_in_every_audit(name):
    """Over 7 rounds of 3, so that a partition comes round again, with a user and an item without
    ratings.
    """
    findings = audits.audit(
        made(**SOUND[name]),
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


def test_a_split_layout_and_another_key_change_no_verdict():
    findings = run(made(num_projected=Q), layout.make(RATINGS, kind="split", num_devices=1), seed=1)
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
    mechanism = made(**settings)
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
    mechanism = made()
    sample, log_prob = Partial(_linear_sample, *numbers), Partial(_linear_log_prob, *numbers)
    return mechanism._replace(noise=mechanism.noise._replace(sample=sample, log_prob=log_prob))


def noisy(**parts):
    mechanism = made()
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
        lambda: noisy(log_prob=Partial(_short_log_prob, made().noise.log_prob)),
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


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug, data):
    plant, expected = PLANTED[bug]
    findings = run(plant(), data)
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
    result = {"trials": [trial], "findings": told, "public": False, "written": ()}
    console = Console(width=400, file=io.StringIO())
    console.print(audit_console.render(result))
    return [line for line in console.file.getvalue().splitlines() if line.startswith("violated:")]


def test_no_bug_is_found_where_none_is_planted(data):
    """So it is not the planting that is found."""
    for mechanism in (planted(None), linear(EACH, 1.0)):
        assert not violated(run(mechanism, data))


def test_a_bug_names_the_user_and_the_entry(data):
    assert by_name(run(planted(_certain), data), SAMPLER).details["where"]["whose"] == 105
    findings = run(planted(_leaks_the_mean), data)
    assert "all ratings of all others" in rendered(findings)[0]
    leak = by_name(findings, OTHERS).details["replay"]
    assert leak["pair"]["change"].startswith("all ratings of all others")
    assert leak["leaf"] == ".asked.value"
    late = by_name(run(linear(EACH, 1.05), data), RATIO)
    high = math.tanh(EACH / 2) * 1.05
    assert late.measured == pytest.approx(math.log((1 + high) / (1 - high)), rel=1e-6)
    assert max(abs(late.details["replay"][name]) for name in ("entry", "other_entry")) > 1.05


def _promise(rounds, num_steps):
    """Of so many rounds, however many are run; of none, no promise."""
    if rounds:
        return made().guarantee(rounds)
    return no_guarantee(mechanism="unpriced", num_steps=num_steps, released=(), unit="user")


def test_a_fourth_round_is_one_too_many(data):
    findings = run(made()._replace(guarantee=Partial(_promise, 3)), data, num_steps=4)
    assert violated(findings) == {REPORTS}
    assert (findings[1].measured, findings[1].claimed) == (4, 3)
    assert findings[1].details["epsilon_of_that_many"] == pytest.approx(4 * EACH)


def test_without_a_pure_price_there_is_nothing_to_hold_a_report_against(data):
    findings = run(made()._replace(guarantee=Partial(_promise, 0)), data, num_steps=4)
    assert [finding.verdict for finding in findings] == ["not applicable"] * 2 + ["consistent"] * 3
    assert "unpriced" in findings[0].details["why"]


def test_reports_are_counted_beyond_what_is_written_down(data, monkeypatch):
    monkeypatch.setattr(transcript, "STEPS", 3)
    findings = run(made(schedule="partition", num_rounds=2), data, num_steps=5)
    assert not violated(findings)
    assert (findings[1].measured, findings[1].details["fewest"], findings[0].details["steps"]) == (
        3,
        2,
        3,
    )


# --- the parts


def report_of(num: int) -> Report:
    zeros = np.zeros(num, np.int32)
    return Report(zeros, zeros, np.zeros(num, np.float32), np.ones(num, bool))


@pytest.mark.parametrize("epsilon", [1e-3, 0.05, 0.7, 5.0, 20.0])
def test_the_table_is_the_law_in_whole_numbers(epsilon):
    """Against integers out of 2^64 and 50 digits: to 1e-12 of the price at the extremes.

    In between, programs differ in how they round one float32.
    """
    entries = np.concatenate([np.array(enumeration.EXTREMES), np.linspace(-1.5, 1.5, 101)]).astype(
        np.float32
    )
    made = noise.one_bit(epsilon)
    found = enumeration.table(made, report_of(3), 1, entries)
    law = [Fraction(p, 2**64) for p in noise.one_bit_law(epsilon, jnp.asarray(entries))]
    with decimal.localcontext(prec=50):
        for entry, p, (minus, nothing, one) in zip(entries, law, found.log, strict=True):
            logs = [float((decimal.Decimal(x.numerator) / x.denominator).ln()) for x in (1 - p, p)]
            extreme = not 0 < abs(entry) < 1
            np.testing.assert_allclose(
                [minus, one], logs, rtol=0, atol=1e-12 * epsilon if extreme else 2**-22
            )
            assert nothing == -math.inf
    assert enumeration.largest_ratio(found)[0] == pytest.approx(epsilon, rel=1e-12)
    assert (
        made.log_prob(
            report_of(3)._replace(value=jnp.ones(3)), report_of(3)._replace(value=jnp.zeros(3))
        ).dtype
        == jnp.float32
    )


def test_a_table_that_is_no_law_has_no_largest_ratio():
    log = np.log([[0.5, 0.5], [0.5, 0.5]])
    assert (
        enumeration.largest_ratio(
            enumeration.Table(np.zeros(2), np.insert(log, 1, -np.inf, axis=1))
        )[0]
        == 0
    )
    broken = np.insert(log, 1, [-np.inf, np.nan], axis=1)
    assert math.isnan(enumeration.largest_ratio(enumeration.Table(np.zeros(2), broken))[0])
    certain = np.array([[0.0, -np.inf, -np.inf], [-1.0, -np.inf, -0.5]])
    assert enumeration.largest_ratio(enumeration.Table(np.zeros(2), certain))[0] == math.inf


@pytest.mark.parametrize(("num", "p"), [(20, 0.5), (300, 0.03), (7, 0.0), (7, 1.0)])
def test_the_binomial_test_keeps_its_level_exactly(num, p):
    counts = np.arange(num + 1)
    p_values, chance = (
        enumeration_draws.binomial_p_value(counts, num, p),
        scipy.stats.binom.pmf(counts, num, p),
    )
    for alpha in (1e-4, 0.05, 0.5):
        assert chance[p_values <= alpha].sum() <= alpha
    assert p_values[round(num * p)] > 0.5


def test_what_is_said_to_be_visible_is_seen_and_null_draws_are_not():
    random, num, cells = np.random.default_rng(0), 20_000, 12
    off = enumeration_draws.visible_share(num, ALPHA)
    seen = (
        enumeration_draws.binomial_p_value(random.binomial(num, 0.5 + off, 200), num, 0.5) <= ALPHA
    )
    assert 0.88 < seen.mean() < 1
    often = enumeration_draws._visible_cell(num, cells) / cells
    law = np.full(cells, (1 - often) / (cells - 1))
    law[3] = often
    p_values = [
        [
            enumeration_draws._chi_square(random.choice(cells, num, p=p), cells)[0]
            for _ in range(200)
        ]
        for p in (law, np.full(cells, 1 / cells))
    ]
    assert 0.88 < np.mean(np.array(p_values[0]) <= ALPHA / enumeration_draws.TESTS) < 1
    assert np.sum(np.array(p_values[1]) <= ALPHA) == 0
    assert (
        enumeration_draws._chi_square(random.choice(10**6, num), 10**6)[1]
        == num // enumeration_draws.EXPECTED
    )


def test_coordinates_are_uniform_in_every_sense():
    """At 6,000 places and 20,000 draws, where a cell is 15 places, beside what no such cell
    shows.
    """
    random = np.random.default_rng(0)
    row, column = random.integers(0, 400, (1000, 20)), random.integers(0, 15, (1000, 20))
    found = enumeration_draws.uniform(row, column)
    assert found.p_value > 0.01
    assert (found.rows, found.columns, found.cells, found.draws) == (400, 15, 400, 20_000)
    half = np.where(random.random(row.shape) < 0.1, row // 2, row)
    twins = row.copy()
    twins[:100, 1::2] = twins[:100, ::2]
    for wrong in ((half, column), (row, np.maximum(column, 1)), (twins, column), (row - 1, column)):
        assert enumeration_draws.uniform(*wrong).p_value < ALPHA


def test_what_a_users_worlds_had_is_enumerated_too():
    had = np.float32([0.123, -0.456, 0.789])
    report = Report(
        np.zeros(3, np.int32), np.zeros(3, np.int32), had, np.array([True, True, False])
    )
    worlds = [
        enumeration.World(
            user, enumeration.Seen(report, report), enumeration.Seen(report, report), had > 9, {}
        )
        for user in (0, 1)
    ]
    entries = enumeration._entries(np.random.default_rng(0), 1, worlds)
    assert set(had[:2]) <= set(entries)
    assert had[2] not in entries
    assert np.isnan(entries).any()
    assert np.isinf(entries).sum() >= 2
    assert np.sum((np.abs(entries) > 0) & (np.abs(entries) < 1)) > 40


@pytest.mark.parametrize("kind", ["dense", "split"])
@pytest.mark.parametrize("user", [0, USERS - 1])
def test_anything_of_one_user_changes_and_nothing_else(user, kind):
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    random = np.random.default_rng(1)
    own = RATINGS.user == user
    address = layout.locate(data, RATINGS.user, RATINGS.item)
    changes = neighbours.any_change(random, RATINGS, data, address, user)
    assert len(changes) == (5 if own.any() else 1)
    before = matrix(data)
    for change, other in changes.items():
        after = matrix(other)
        np.testing.assert_array_equal(np.delete(after, user, 0), np.delete(before, user, 0))
        assert other.num_ratings == data.num_ratings
        rated = np.flatnonzero(after[user])
        assert ((after[user][rated] >= 1) & (after[user][rated] <= 5)).all()
        if "removed" in change:
            assert not len(rated)
        elif "other items" in change:
            assert len(rated)
            assert not set(rated) & set(RATINGS.item[own])
        else:
            assert set(rated) == set(RATINGS.item[own])
            assert not np.array_equal(after[user], before[user])
    for change, other in neighbours.change_of_others(RATINGS, data, address, user).items():
        after = matrix(other)
        np.testing.assert_array_equal(after[user], before[user])
        rest = np.delete(before, user, 0) != 0
        assert (np.delete(after, user, 0) != np.delete(before, user, 0))[rest].all()
        assert ("removed" in change) == (not np.delete(after, user, 0).any())


def matrix(data) -> np.ndarray:
    """Values at [users, items], 0 where there is none."""
    eye = jnp.eye(ITEMS)
    return np.asarray(
        layout.sum_by_user(
            data, lambda row, columns, values, present: values @ columns, jnp.zeros(USERS), eye
        )
    )


def test_users_on_trial_are_heavy_light_and_without_ratings():
    count = np.bincount(RATINGS.user, minlength=USERS)
    users = neighbours.some_users(np.random.default_rng(0), RATINGS, 4)
    assert len(set(users)) == 4
    assert [count[user] for user in users[:3]] == [count.max(), count[count > 0].min(), 0]
    assert len(neighbours.some_users(np.random.default_rng(0), RATINGS, 99)) == USERS


def test_stretched_reports_stay_in_range_and_keep_their_coordinates():
    statistics = report_of(3)._replace(value=np.float32([0.1, -0.2, 0.9]), row=np.int32([4, 5, 6]))
    other = statistics._replace(value=np.float32([0.2, -0.2, 0.8]))
    moved = density.stretch(statistics, other, 50.0)
    np.testing.assert_allclose(moved.value, [1, -0.2, -1], rtol=1e-6)
    assert moved.value.dtype == np.float32
    assert moved.row is other.row
    assert moved.sent.dtype == bool
    plain = density.stretch(statistics.value, other.value, 50.0)
    assert np.abs(plain).max() > 4


def test_the_density_of_reports_is_held_to_their_sampler(data):
    """A sampler at five times the price beside the old density."""
    mechanism = made(clip=0.05)
    wrong = mechanism._replace(
        noise=mechanism.noise._replace(sample=noise.one_bit(5 * EACH).sample)
    )
    for made_so, verdict in ((mechanism, "consistent"), (wrong, "violated")):
        findings = density.audit(made_so, RATINGS, data, key=keys.from_seed(3), num_steps=2)
        assert [finding.verdict for finding in findings] == ["consistent", verdict], list(
            map(str, findings)
        )


def test_local_ratings_are_never_changed_by_the_audit(data):
    before = dataclasses.replace(RATINGS, value=RATINGS.value.copy(), item=RATINGS.item.copy())
    run(made(), data)
    assert RATINGS.sha256() == before.sha256()
