"""The audit's document: its headline, what is public in it, and which file holds what."""

import json
import stat

import pytest

from dpmf_jax.errors import UsageError
from experiments.audit import markdown as audit_markdown
from experiments.audit import report as audit_report
from experiments.audit import view as audit_view
from tests.cases.audit_report import (
    CAUGHT,
    PERSON,
    SECRET,
    VERDICTS,
    document,
    finding,
    trial,
)

TELLING = "privacy loss: δ = 0.01"


def headline(*verdicts, status="proved"):
    told, _ = trial([], status=status)
    return audit_report.headline(told["guarantee"], [finding(verdict) for verdict in verdicts])


@pytest.mark.parametrize(
    ("verdicts", "status", "expected"),
    [
        (VERDICTS, "proved", "violated"),
        (("violated",), "none", "violated"),
        (("consistent", "inconclusive"), "proved", "consistent"),
        (("inconclusive", "not applicable"), "claimed", "inconclusive"),
        (("not applicable",), "proved", "inconclusive"),
        (("consistent", "not applicable"), "none", "not applicable"),
        ((), "proved", "inconclusive"),
    ],
)
def test_what_outweighs_what(verdicts, status, expected):
    assert headline(*verdicts, status=status)[0] == expected


def test_the_headline_names_everything_that_broke_the_claim():
    told, _ = trial([])
    broken = [
        finding("violated", "noise: scale", measured=0.5),
        finding("violated", details={"ratio": 1.24}),
    ]
    said = audit_report.headline(told["guarantee"], [finding(), *broken])[1]
    assert said == "noise: scale: 0.5, claimed 1; sensitivity: largest step: 1.24 times the claim"


def test_a_consistent_headline_says_what_would_have_been_seen_and_what_is_open():
    told, _ = trial([])
    some = [
        finding(),
        finding(audit=TELLING, details={"power": "0.02 would be seen"}),
        finding("inconclusive"),
    ]
    said = audit_report.headline(told["guarantee"], some)[1]
    assert said == f"{TELLING}: 0.02 would be seen; 1 inconclusive"


def test_findings_are_numbered_through_and_trials_know_theirs():
    whole = document(
        trial([finding(), finding("violated")]), trial([finding("violated")], label="n")
    )
    assert [one["number"] for one in whole["findings"]] == [1, 2, 3]
    assert [one["trial"] for one in whole["findings"]] == [0, 0, 1]
    assert [one["findings"] for one in whole["trials"]] == [[1, 2], [3, 3]]
    assert whole["violated"] == 2
    assert whole["title"] == "Audit of 2 mechanisms"


def test_false_alarms_are_counted_over_what_rests_on_chance():
    found = [finding(), finding(confidence=0.95), finding(details={"alpha": 1e-4})]
    rate = document(trial(found))["false_alarms"]
    assert (rate["findings_that_rest_on_chance"], rate["of_all"]) == (2, 2 * rate["of_a_finding"])


# ---- what may be shown


def test_a_public_document_holds_nothing_that_was_measured_or_names_a_record():
    private = finding("violated", TELLING, mood=SECRET) | {
        "details": {**finding()["details"], "deep": {"a": [SECRET]}}
    }
    whole = document(
        trial([finding(), private, finding("not applicable")], diary=PERSON), self_test=[CAUGHT]
    )
    shown = audit_report.public(whole | {"extra": SECRET})
    text = json.dumps(shown)
    for hidden in (
        str(SECRET),
        PERSON,
        "c0ffee",
        "/somewhere",
        "utility",
        "seconds",
        "mood",
        "diary",
        "extra",
    ):
        assert hidden in json.dumps(whole | {"extra": SECRET})
        if hidden == str(SECRET):  # the power of this family is a sentence of its design
            text = text.replace(f"anything above {SECRET} would be seen", "")
        assert hidden not in text
    assert shown["public"] is True
    assert [one["verdict"] for one in shown["findings"]] == [
        "consistent",
        "violated",
        "not applicable",
    ]
    assert shown["trials"][0]["evidence"] == TELLING
    assert shown["trials"][0]["guarantee"] == whole["trials"][0]["guarantee"]
    assert shown["findings"][2]["details"]["why"] == "it is so"


def test_the_power_of_an_audit_that_looked_at_the_ratings_for_it_is_private():
    shown = audit_report.public(
        document(trial([finding(audit=TELLING), finding("inconclusive", TELLING)]))
    )
    assert str(SECRET) not in json.dumps(shown)
    assert shown["trials"][0]["evidence"] == "1 audits failed to break it"
    assert "why" not in shown["findings"][1]["details"]


def test_a_claim_that_may_price_one_persons_ratings_is_private():
    claims = {"claim": f"no better than {SECRET}", "claimed": SECRET}
    found = [
        finding(audit=name, **claims)
        for name in ("membership: user, insider", "never heard of: it", TELLING)
    ]
    shown = audit_report.public(document(trial(found)))["findings"]
    assert [one["claimed"] for one in shown] == [None, None, SECRET]
    assert [str(SECRET) in one["claim"] for one in shown] == [False, False, True]


def test_public_and_whole_documents_have_the_same_sections_but_for_the_unpriced_ones():
    whole = document(trial([finding(), finding("violated", TELLING)]), self_test=[CAUGHT])
    titles = [
        [part.title for part in audit_view.sections(d, None)]
        for d in (whole, audit_report.public(whole))
    ]
    assert set(titles[0]) - set(titles[1]) == {"Utility beside its controls"}
    assert set(titles[1]) <= set(titles[0])


def test_what_names_records_is_parted_from_the_rest():
    whole = document(trial([finding(), finding("not applicable", details={})]))
    shown, records = audit_report.split_records(whole)
    assert PERSON not in json.dumps(shown)
    assert "c0ffee" not in json.dumps(shown)
    assert shown["findings"][0]["details"]["replay"] == {"step": 2, "key": [0, 1]}
    assert shown["findings"][0]["details"]["surprise"] == SECRET
    assert records["data_sha256"] == {"m": "c0ffee"}
    assert records["findings"] == {
        "1": {"replay": {"pair": {"user": PERSON, "item": PERSON}, "data_sha256": "c0ffee"}}
    }


# ---- its files


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_all_that_was_measured_lies_in_private_open_to_its_owner_alone(tmp_path):
    out, whole = tmp_path / "a" / "b", document(trial([finding()]))
    written = audit_report.write(out, whole)
    assert sorted(
        path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()
    ) == [
        f"private/{name}" for name in ("findings.json", "records.json", "report.html", "report.md")
    ]
    assert written == [
        str(out / "private" / name)
        for name in ("records.json", "report.html", "report.md", "findings.json")
    ]
    assert {mode(path) for path in out.rglob("*.*")} == {0o600}
    assert mode(out / "private") == 0o700
    assert PERSON in (out / "private" / "records.json").read_text()
    for name in ("findings.json", "report.md", "report.html"):
        assert PERSON not in (out / "private" / name).read_text()
    assert (
        json.loads((out / "private" / "findings.json").read_text())["findings"][0]["measured"]
        == SECRET
    )


def test_a_public_report_stands_alone(tmp_path):
    whole = document(trial([finding()]))
    audit_report.write(tmp_path, audit_report.public(whole))
    assert {path.name for path in tmp_path.iterdir()} == {
        "findings.json",
        "report.md",
        "report.html",
    }
    for name in ("findings.json", "report.md", "report.html"):
        assert mode(tmp_path / name) == 0o644
        assert PERSON not in (tmp_path / name).read_text()
    assert "it cannot be replayed" in (tmp_path / "report.md").read_text()


def test_a_public_report_beside_the_curators_leaves_it_as_it_is(tmp_path):
    whole = document(trial([finding()]))
    audit_report.write(tmp_path, whole)
    before = {path: path.read_bytes() for path in (tmp_path / "private").iterdir()}
    audit_report.write(tmp_path, audit_report.public(whole))
    assert {path: path.read_bytes() for path in (tmp_path / "private").iterdir()} == before


def test_what_an_older_version_left_outside_private_goes_with_a_new_report(tmp_path):
    """It put unpriced pages there, open to their owner alone; a public one is left."""
    whole = document(trial([finding()]))
    for name in ("report.html", "report.md", "findings.json"):
        (tmp_path / name).write_text(json.dumps(whole) if name == "findings.json" else str(SECRET))
    audit_report.write(tmp_path, whole)
    assert [path.name for path in tmp_path.iterdir()] == ["private"]
    audit_report.write(tmp_path, audit_report.public(whole))
    audit_report.write(tmp_path, whole)
    assert (tmp_path / "findings.json").exists()


def test_a_report_that_cannot_be_finished_leaves_the_earlier_one(tmp_path, monkeypatch):
    audit_report.write(tmp_path, document(trial([finding()])))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def fails(title, sections):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(audit_markdown, "markdown", fails)
        with pytest.raises(KeyboardInterrupt):
            audit_report.write(tmp_path, document(trial([finding("violated")])))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not list(tmp_path.rglob("*.partial"))


def test_a_file_in_the_way_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="a file, not a folder"):
            audit_report.check_folder(out)
    audit_report.check_folder(tmp_path / "new" / "folder")
    assert not (tmp_path / "new").exists()


def test_fields_are_tagged_once():
    assert all(len(set(names)) == len(names) for names in audit_report.PUBLIC.values())
    assert not set(audit_report.RECORDS) & set(audit_report.PUBLIC["details"])
