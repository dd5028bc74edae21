"""The zoo: every planted bug is called violated by the audit that is named for it, and its sound
original is not.
"""

import jax
import pytest

from audits.finding import Finding
from audits.mechanism import coins, lookup, post_processing, privacy_loss, sensitivity
from dpmf_jax.mechanisms import table
from experiments.audit import suite
from tests.zoo import planted
from tests.zoo import table as zoo
from tests.zoo.sound import OWN, PUBLISHED, SOUND

pytestmark = pytest.mark.usefixtures("quick_compilation")

SEED = 0


def marked(entries):
    return [
        pytest.param(name, marks=pytest.mark.slow if bug.slow else ())
        for name, bug in entries.items()
    ]


@pytest.mark.seconds
@pytest.mark.parametrize("name", marked(planted.entries()))
def test_a_planted_bug_is_caught_by_the_audit_named_for_it(name):
    bug = planted.entries()[name]
    found = zoo.findings(bug, jax.random.key(SEED))
    violated = {finding.audit: finding for finding in found if finding.verdict == "violated"}
    assert bug.named in violated, [str(finding) for finding in found]
    assert violated[bug.named].details["replay"]["key"]
    assert violated[bug.named].to_dict()


# Sound mechanisms are not called violated by these: test_lookup.py, test_coins.py.
ELSEWHERE = (lookup.audit, coins.audit)
UNPLANTED = (sensitivity.audit, post_processing.audit)


def of_the_sound():
    """(mechanism, audit) of all bugs that are planted in a mechanism, but for audits that have
    such a test `ELSEWHERE`; not slow: the first of each. What has no bug is tried by `UNPLANTED`.
    """
    named = {
        (bug.mechanism, audit): None
        for bug in planted.entries().values()
        if bug.kind == "mechanism" and (audit := zoo.named_audit(bug.named)) not in ELSEWHERE
    }
    first = {audit: mechanism for mechanism, audit in reversed(named)}
    for mechanism, audit in named:
        slow = first[audit] != mechanism or audit == privacy_loss.audit
        where = audit.__module__.removeprefix("audits.")
        yield pytest.param(
            mechanism, audit, id=f"{mechanism}, {where}", marks=pytest.mark.slow if slow else ()
        )

    tried = {mechanism for mechanism, _ in named}
    for mechanism in SOUND:
        for audit in UNPLANTED if mechanism not in tried else ():
            where = audit.__module__.removeprefix("audits.")
            yield pytest.param(mechanism, audit, id=f"{mechanism}, {where}")


@pytest.mark.seconds
@pytest.mark.parametrize(("mechanism", "audit"), list(of_the_sound()))
def test_the_sound_original_is_not_called_violated_by_the_same_audit(mechanism, audit):
    options = zoo.ALONE.get(audit, {})
    found = zoo.run(audit, zoo.sound(mechanism), mechanism, jax.random.key(SEED), **options)
    assert [finding for finding in found if finding.verdict == "violated"] == []


@pytest.mark.parametrize("kind", ["run", pytest.param("fit", marks=pytest.mark.slow)])
def test_the_sound_program_is_not_called_violated_by_the_same_audit(kind):
    bug = next(bug for bug in planted.entries().values() if bug.kind == kind)
    found = zoo.findings(bug, jax.random.key(SEED), planted=False)
    assert {finding.verdict for finding in found} == {"consistent"}


@pytest.mark.slow
@pytest.mark.parametrize("name", planted.UNSEEN)
def test_what_is_said_to_be_unseen_is(name):
    """Should an audit see it one day, it belongs among the others."""
    found = zoo.fit_audit.audit_program(
        planted.UNSEEN[name][0], zoo.RATINGS, key=jax.random.key(SEED)
    )
    assert {finding.verdict for finding in found} == {"consistent"}


def test_the_zoo_has_what_it_promises():
    """27 kinds of bugs and more, noise bugs twice; every mechanism has a bug that is not slow."""
    assert len({*planted.NOISE, *planted.OTHERS}) == 27
    for asked in (*planted.NOISE, *planted.OTHERS):
        of_it = [
            bug for name, bugs in planted.ALL.items() if name.startswith(asked) for bug in bugs
        ]
        assert of_it, asked
        places = {bug.words for bug in of_it}
        assert asked not in planted.NOISE or ("in sample" in places and len(places) == 2), asked
    assert {bug.mechanism for bug in planted.entries().values() if not bug.slow} >= set(OWN)
    assert len(planted.entries()) == sum(map(len, planted.ALL.values()))


def test_every_mechanism_of_the_table_is_on_trial():
    """By `dpmf audit --all`, and what is sound in the zoo too; nothing is tried that releases
    nothing.
    """
    for name, spec in table().items():
        labels = [entry.label for entry in suite.ENTRIES if entry.mechanism == name]
        assert labels or name == "non-private"
        assert labels == [trial.label for trial in spec.trials]
        if any(PUBLISHED not in label for label in labels):
            assert any(f"{one}-".startswith(f"{name}-") for one in SOUND), name


@pytest.mark.parametrize(
    ("caught", "cells"),
    [
        ("violated", "init | init; noise: keys | release"),
        ("consistent", "init: **no** | noise: keys | init; release"),
    ],
)
def test_a_row_says_whether_the_named_audit_caught_the_bug(caught, cells, monkeypatch):
    verdicts = {
        "init": caught,
        "noise: keys": "violated",
        "release": "consistent",
        "density": "inconclusive",
    }
    found = [
        Finding(audit=name, claim="", measured=0.0, claimed=None, verdict=verdict)
        for name, verdict in verdicts.items()
    ]
    monkeypatch.setattr(zoo, "findings", lambda bug, key, whole: found)
    row = zoo._row(SEED, ("centring by private means", 0))
    assert (
        row == f"| centring by private means | gaussian-joint-noise | in the mechanism | {cells} |"
    )
