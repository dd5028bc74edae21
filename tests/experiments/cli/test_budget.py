"""The ledger of releases: what is entered comes back, adds up as `compose` does, and is never lost
or counted twice.
"""

import dataclasses
import hashlib
import json
import math
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import compose, no_guarantee
from accounting.digits import round_up
from accounting.ledger import budgets, common_delta, parse, to_line
from accounting.loss import Approximate, Gaussian, Pure
from dpmf_jax.models import ledger
from experiments.cli import main as cli
from tests.cases.ledger import LEDGER, VALUE, entry, guarantee, run, saved, shown

pytestmark = pytest.mark.usefixtures("books")

# --------------------------------------------------------------------------------------------------


def test_entries_come_back_from_their_lines():
    whole = [
        entry(0, data_hash="c0ffee"),
        entry(1, guarantee(Pure(epsilon=math.inf), delta=0.0)),
        entry(2, no_guarantee(mechanism="count sketch", num_steps=3, released=("item factors",))),
        entry(
            3,
            guarantee(Approximate(epsilon=0.5, delta=1e-6), delta=1e-6),
            data_set="ein Datensatz (größer)",
        ),
    ]
    lines = [to_line(one) for one in whole]
    assert all(line.count("\n") == 1 and line.endswith("\n") for line in lines)
    assert parse("".join(lines)) == tuple(whole)
    assert parse("\n".join(lines)) == tuple(whole)  # empty lines say nothing
    assert parse("") == ()


def test_the_total_of_a_data_set_is_what_compose_says():
    phases = [
        guarantee(),
        guarantee(Gaussian(noise_multiplier=20.0, num_steps=7)),
        guarantee(Pure(epsilon=0.1), delta=1e-5),
    ]
    (budget,) = budgets([entry(n, phase, day=n + 1) for n, phase in enumerate(phases)])
    assert budget.totals == (compose(*phases),)
    assert budget.epsilon == compose(*phases).epsilon > max(phase.epsilon for phase in phases)


def test_pure_releases_add_up_to_the_sum():
    (budget,) = budgets([entry(n, guarantee(Pure(epsilon=0.1), delta=0.0)) for n in range(3)])
    assert budget.epsilon == 0.3
    assert budget.totals[0].delta == 0


@given(order=st.permutations(range(6)))
def test_the_order_of_lines_does_not_matter(order):
    noise = (30.0, 50.0, 70.0)
    entries = [
        entry(
            n,
            guarantee(Gaussian(noise_multiplier=noise[n % 3], num_steps=3)),
            data_set=f"set {n % 2}",
            day=n // 2 + 1,
        )
        for n in range(6)
    ]
    assert budgets([entries[n] for n in order]) == budgets(entries)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 0, 3, 1)])
def test_a_name_or_a_hash_in_common_makes_one_data_set(order):
    entries = [
        entry(0, data_set="mine", data_hash="aa"),
        entry(1, data_set="other name", data_hash="bb"),
        entry(2, data_set="mine", data_hash="bb"),  # joins the first two
        entry(3, data_set="another", data_hash=None),
    ]
    found = budgets([entries[n] for n in order])
    assert [(budget.names, len(budget.entries)) for budget in found] == [
        (("another",), 1),
        (("mine", "other name"), 3),
    ]
    assert found[1].epsilon == compose(*(one.guarantee for one in entries[:3])).epsilon


def test_a_name_is_not_a_hash_and_unknown_hashes_are_not_equal():
    assert (
        len(
            budgets(
                [
                    entry(0, data_set="aa"),
                    entry(1, data_set="bb", data_hash="aa"),
                    entry(2, data_set="cc"),
                ]
            )
        )
        == 3
    )


def test_what_protects_different_things_is_not_added():
    presence = guarantee(unit="rating presence", relation="one rating more")
    (budget,) = budgets([entry(0, presence), entry(1), entry(2, day=2)])
    assert [(total.unit, total.epsilon) for total in budget.totals] == [
        ("rating value", compose(guarantee(), guarantee()).epsilon),
        ("rating presence", presence.epsilon),
    ]
    assert budget.epsilon == math.inf  # of all three together nothing is known
    wider = guarantee(relation=VALUE.replace("4", "5"))
    assert [total.largest_change for total in budgets([entry(0), entry(1, wider)])[0].totals] == [4]


def test_one_release_without_a_guarantee_leaves_none_and_one_claim_makes_a_claim():
    nothing = no_guarantee(mechanism="count sketch", num_steps=3, released=("item factors",))
    (budget,) = budgets(
        [entry(0), entry(1, nothing), entry(2, guarantee(unit="user", relation="one user"))]
    )
    assert budget.epsilon == math.inf
    assert [total.status for total in budget.totals] == ["none"]
    claim = guarantee(status="claimed")
    (budget,) = budgets([entry(0), entry(1, claim)])
    assert budget.totals[0].status == "claimed"
    assert budget.epsilon == round_up(budget.totals[0].accountants["closed_form"])


def test_deltas_are_made_equal_at_the_largest_or_as_asked():
    fine, coarse = guarantee(delta=1e-8), guarantee(delta=1e-5)
    (budget,) = budgets([entry(0, fine), entry(1, coarse)])
    assert budget.totals == (compose(fine.at_delta(1e-5), coarse),)
    (asked,) = budgets([entry(0, fine), entry(1, coarse)], delta=1e-7)
    assert asked.totals[0].delta == 1e-7
    assert asked.epsilon > budget.epsilon
    assert budgets([entry(0, fine)])[0].totals[0] == fine


def test_approximate_releases_are_added_at_the_sum_of_their_deltas():
    shuffled = guarantee(Approximate(epsilon=0.5, delta=1e-6), delta=1e-6)
    (budget,) = budgets([entry(0, shuffled), entry(1, shuffled)])
    assert (budget.totals[0].delta, budget.epsilon) == (2e-6, 1.0)
    assert common_delta([shuffled, guarantee()]) == pytest.approx(1.1e-5, rel=1e-12)
    with pytest.raises(ValueError, match="mine: delta must be at least"):
        budgets([entry(0, shuffled), entry(1, shuffled)], delta=1e-6)
    with pytest.raises(ValueError, match="delta must be at least 0 and below 1"):
        budgets([entry(0)], delta=math.nan)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"id": "abc"}, "id must be a SHA-256"),
        ({"time": "2025-01-01T00:00:00"}, "offset from UTC"),
        ({"time": "yesterday"}, "offset from UTC"),
        ({"data_set": "two\nlines"}, "data_set must be one line of text"),
        ({"data_set": " "}, "data_set must be one line of text"),
        ({"data_hash": ""}, "data_hash must be"),
        ({"guarantee": guarantee(seeded=True)}, "a seeded experiment is not a release"),
    ],
)
def test_an_entry_that_says_nothing_is_refused(change, told):
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(entry(0), **change)


GOOD = to_line(entry(0))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (to_line(entry(1))[:200], "line 2: not a whole JSON object"),
        ("user,item,rating", "line 2: not a whole JSON object"),
        ("[1, 2]", "line 2: not an entry"),
        ('{"user": 1}', "line 2: not an entry"),
        (
            to_line(entry(1)).replace('"format": 2', '"format": 3'),
            "line 2: an entry of format 3, this program reads 2",
        ),
        (
            to_line(entry(1)).replace('"model"', '"modell"'),
            "line 2: keys that are missing or unknown: model, modell",
        ),
        (
            to_line(entry(1)).replace('"steps": 100', '"steps": 3'),
            "line 2: steps must be those of the losses",
        ),
        (
            to_line(entry(1))
            .replace('"num_steps": 100', '"num_steps": 999')
            .replace('"steps": 100', '"steps": 999'),
            "below",
        ),
        (to_line(entry(0, data_set="again")), "line 2: the release of line 1 once more"),
    ],
)
def test_a_torn_or_foreign_line_is_named(line, told):
    with pytest.raises(ValueError, match=told):
        parse(GOOD + line)


# --------------------------------------------------------------------------------------------------


def test_a_release_is_entered_and_shown(capsys):
    code, out, err = run(capsys, "add", saved("one"))
    assert (code, err) == (0, "")
    assert out.startswith("mine: proved ε = ")
    result = shown(capsys)
    (found,) = result["data_sets"]
    assert found["names"] == ["mine"]
    assert found["data_hashes"] == ["c0ffee"]
    assert found["epsilon"] == guarantee().epsilon
    (only,) = found["entries"]
    assert only["model"] == str(Path("one").absolute())
    assert only["id"] == hashlib.sha256(Path("one/release.safetensors").read_bytes()).hexdigest()
    assert parse(LEDGER.read_text())[0].guarantee == guarantee()


def test_the_ledger_is_the_curators_alone(capsys):
    usual = os.umask(0)
    try:
        run(capsys, "add", saved("one"))
    finally:
        os.umask(usual)
    assert stat.S_IMODE(LEDGER.stat().st_mode) == 0o600
    assert stat.S_IMODE(LEDGER.parent.stat().st_mode) == 0o700
    LEDGER.chmod(0o644)
    run(capsys, "add", saved("two", number=1))
    assert stat.S_IMODE(LEDGER.stat().st_mode) == 0o600


def test_the_same_release_is_counted_once_wherever_its_folder_is(capsys):
    run(capsys, "add", saved("one"))
    Path("one").rename("moved")
    before = LEDGER.read_bytes()
    code, out, err = run(capsys, "add", "moved", "--data-set", "another name")
    assert (code, out) == (2, "")
    assert "error: this release is in the ledger already, since 2" in err
    assert LEDGER.read_bytes() == before


def test_show_adds_up_and_the_statement_says_what_is_covered(capsys):
    for number in range(3):
        run(capsys, "add", saved(f"model {number}", number=number))
    code, out, _ = run(capsys, "show")
    assert code == 0
    total = compose(*[guarantee()] * 3)
    assert (
        f"mine: 3 releases\n  total: ε = {total.epsilon:.4f} (rounded up) at δ = 1e-05, unit: one"
        " rating value" in out
    )
    assert "choosing the best of the releases listed is covered" in out
    assert "runs that are not in the ledger" in " ".join(out.split())
    assert all(
        len(line) <= 110
        for line in out.splitlines()
        if "ledger.jsonl" not in line and "/" not in line
    )
    assert shown(capsys)["data_sets"][0]["totals"][0]["accountants"] == total.accountants


def test_a_limit_is_kept_with_the_exit_code(capsys):
    epsilon = guarantee().epsilon
    run(capsys, "add", saved("one"))
    assert run(capsys, "show", "--limit", epsilon)[0] == 0
    code, out, err = run(capsys, "show", "--limit", epsilon - 1e-4, "--json")
    assert code == 4
    assert json.loads(out)["within_limit"] is False
    assert f"error: mine: the total epsilon is {epsilon:.4f}, the limit is" in err
    run(capsys, "add", saved("two", number=1))
    assert run(capsys, "show", "--limit", epsilon)[0] == 4
    for limit in ("nan", "-1", "inf"):
        assert run(capsys, "show", "--limit", limit)[0] == 2


def test_no_limit_holds_where_nothing_is_known_of_the_whole(capsys):
    run(capsys, "add", saved("one"))
    run(
        capsys,
        "add",
        saved("two", guarantee(unit="rating presence", relation="one rating more"), number=1),
    )
    code, out, err = run(capsys, "show", "--limit", "1000")
    assert code == 4
    assert "the releases protect different things" in err
    assert "no number covers all the releases together" in out
    assert shown(capsys)["data_sets"][0]["epsilon"] == "inf"
    nothing = no_guarantee(mechanism="count sketch", num_steps=3, released=("item factors",))
    run(capsys, "add", saved("three", nothing, data="sketched", data_hash="bad", number=2))
    code, out, err = run(capsys, "show", "sketched", "--limit", "1000")
    assert code == 4
    assert "NO GUARANTEE" in out
    assert "no finite epsilon holds" in err


def test_show_one_data_set_by_name_or_hash(capsys):
    run(capsys, "add", saved("one"))
    run(capsys, "add", saved("two", data="other", data_hash="beef", number=1))
    for wanted in ("other", "beef"):
        assert [found["names"] for found in shown(capsys, wanted)["data_sets"]] == [["other"]]
    code, out, err = run(capsys, "show", "othr", "--limit", "100")
    assert (code, out) == (3, "")
    assert "no release of othr is in the ledger" in err
    assert "fix: one of: mine, other" in err


def test_another_delta(capsys):
    run(capsys, "add", saved("one"))
    assert shown(capsys, "--delta", "1e-9")["data_sets"][0]["totals"][0]["delta"] == 1e-9
    code, _, err = run(capsys, "show", "--delta", "1")
    assert code == 2
    assert "delta must be at least 0 and below 1" in err


def test_seeded_experiments_and_models_that_release_nothing_are_refused(capsys):
    code, _, err = run(capsys, "add", saved("seeded", guarantee(seeded=True)))
    assert code == 4
    assert "a seeded experiment is not a release" in err
    nothing = no_guarantee(mechanism="non-private", num_steps=3, released=())
    code, _, err = run(capsys, "add", saved("kept", nothing, released=False))
    assert code == 2
    assert "this model releases nothing" in err
    code, _, err = run(capsys, "add", "no such folder")
    assert code == 3
    assert not LEDGER.exists()


def test_a_model_without_the_name_of_its_data_needs_one(capsys):
    saved("one", data=None, data_hash=None)
    code, _, err = run(capsys, "add", "one")
    assert code == 2
    assert "--data-set NAME" in err
    assert run(capsys, "add", "one", "--data-set", "mine")[0] == 0
    assert parse(LEDGER.read_text())[0].data_hash is None


def test_record_takes_the_hash_and_the_ledger_it_is_given():
    made = ledger.record(saved("one"), data_hash="f00d", ledger=Path("here.jsonl"))
    assert ledger.read(Path("here.jsonl")) == (made,)
    assert made.data_hash == "f00d"
    assert not LEDGER.exists()


def test_no_ledger_is_no_release_unless_it_was_named(capsys):
    code, out, _ = run(capsys, "show", "--limit", "0")
    assert code == 0
    assert out.startswith("no release is in the ledger")
    assert not LEDGER.parent.exists()
    code, _, err = run(capsys, "show", "--ledger", "lost.jsonl")
    assert code == 3
    assert "there is no such ledger" in err


@pytest.mark.seconds
def test_a_fitted_model_can_be_entered(capsys):
    words = ["fit", "synthetic-20x7x60", "--steps", "2", "--controls", "none", "--devices", "1"]
    code = cli.main([*words, "--out", "model", "--test-fraction", "0"])
    assert code == 0, capsys.readouterr().err
    capsys.readouterr()
    if not LEDGER.exists():  # where the fit has entered it already, entering it again is refused
        assert run(capsys, "add", "model")[0] == 0
    (found,) = shown(capsys)["data_sets"]
    assert found["releases"] == 1
    assert len(found["data_hashes"][0]) == 64
    assert run(capsys, "add", "model")[0] == 2


def test_a_total_is_never_shown_at_a_smaller_delta_than_it_has(capsys):
    saved("runs/a", guarantee(delta=1.2345612e-5))  # nearest in six digits: 1.23456e-05
    run(capsys, "add", "runs/a")
    code, out, _ = run(capsys, "show")
    assert code == 0
    assert "at δ = 1.23457e-05, unit: one rating value" in out
    assert "1.23456e-05" not in out
