"""The audit's document: its headline, what is public in it, which file holds what, and its
markdown.
"""

import json
import re
import stat

import pytest

from dpmf_jax.errors import UsageError
from experiments.audit import (
    markdown as audit_markdown,
)
from experiments.audit import (
    pictures as audit_pictures,
)
from experiments.audit import (
    report as audit_report,
)
from experiments.audit import (
    view as audit_view,
)
from experiments.audit.view import Card, Picture
from tests.cases.audit_report import (
    CAUGHT,
    EXACT,
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
    shown, records = audit_report.parted(whole)
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


# ---- its sections


def test_sections_come_in_the_order_of_the_report():
    names = (
        "noise: scale",
        "KL: all",
        "membership: LiRA",
        TELLING,
        "sensitivity: largest step",
        "dice: loaded",
        "init",
    )
    whole = document(trial([finding(audit=name) for name in names]), self_test=[CAUGHT])
    assert [part.title for part in audit_view.sections(whole, "audit")] == [
        *(
            "The claim",
            "The verdict",
            "Who sees what",
            "Price at δ = 1e-05, by every accountant",
            "Closed form",
        ),
        *(
            "Sensitivity",
            "Privacy loss",
            "Membership inference",
            "KL divergence",
            "Noise and coins",
        ),
        *(
            "Post-processing and release",
            "dice",
            "Utility beside its controls",
            "Self-test of the audits",
        ),
        *("Where this comes from", "How to replay"),
    ]


def test_where_nothing_is_claimed_nothing_is_priced():
    titles = [part.title for part in audit_view.sections(document(trial([], status="none")), None)]
    assert titles[:3] == ["The claim", "The verdict", "Who sees what"]
    assert not [title for title in titles if "Price" in title or "Closed" in title]


def test_several_claims_begin_with_the_table_of_verdicts():
    whole = document(
        trial([finding("violated")], label="one"), trial([finding()], status="claimed", label="two")
    )
    first, *rest = audit_view.sections(whole, "audit")
    table = first.blocks[0]
    assert first.title == "Verdicts"
    assert [(row[0].text, row[2], row[4].verdict) for row in table.rows] == [
        ("one", "proved", "violated"),
        ("two", "claimed", "consistent"),
    ]
    anchors = [part.anchor for part in rest]
    assert {row[0].anchor for row in table.rows} <= set(anchors)
    assert len(set(anchors)) == len(anchors)


def test_who_sees_what_names_every_party():
    (part,) = [
        one
        for one in audit_view.sections(document(trial([])), None)
        if one.title == "Who sees what"
    ]
    assert part.blocks[0].rows == [
        ("trusted curator", "one party holds it all"),
        ("whoever gets the release", "user factors"),
        ("the server", "sees all of it"),
    ]


def test_the_closed_form_and_the_curve_are_those_of_the_price():
    bound = finding(audit=TELLING, measured=1.25)
    parts = {one.title: one.blocks for one in audit_view.sections(document(trial([bound])), None)}
    assert "ρ = J / (2 z²) = 3 / (2 · 2²) = 0.375" in parts["Closed form"][1].text
    assert "= 4.5307" in parts["Closed form"][1].text  # 0.375 + 2 √(0.375 · ln 1e5), rounded up
    curve, card = parts["Privacy loss"]
    assert curve.series["claimed"][7] == pytest.approx([EXACT, 1e-5])
    assert curve.series["measured"] == [[1.25, 0.01]]
    assert isinstance(card, Card)


def test_a_roc_stands_with_its_finding_and_its_claim():
    roc = {"fpr": [0.0, 0.1, 1.0], "tpr": [0.0, 0.4, 1.0]}
    found = finding(audit="membership: LiRA", details={"roc": roc})
    parts = {one.title: one.blocks for one in audit_view.sections(document(trial([found])), None)}
    card, picture = parts["Membership inference"]
    assert isinstance(picture, Picture)
    assert picture.series == {"private": [[0.0, 0.0], [0.1, 0.4], [1.0, 1.0]]}
    assert picture.claim == (parts_epsilon(parts), 1e-5)
    assert "best: 0.4 at 0.1" in picture.alt
    assert card.verdict == "consistent"


def test_attacks_stand_beside_those_without_noise():
    rows = [
        {
            "attack": "LiRA",
            "mechanism": which,
            "auc": auc,
            "advantage": 0.2,
            "curve": [[0.0, 0.0], [0.1, auc], [1.0, 1.0]],
        }
        for which, auc in (("private", 0.55), ("control", 0.98))
    ]
    rows[0]["advantage_bound"] = 0.9
    whole = document(
        trial([finding(audit="membership: rating, insider", details={"attacks": rows})])
    )
    _, table, picture = next(
        one.blocks for one in audit_view.sections(whole, None) if "Membership" in one.title
    )
    assert table.rows == [
        ["LiRA", "private", "0.55", "0.2", "0.9"],
        ["LiRA", "control", "0.98", "0.2", "-"],
    ]
    assert set(picture.series) == {"private: LiRA", "control: LiRA"}
    assert "best: 0.55 at 0.1" in picture.alt
    drawn = audit_pictures.draw(picture)
    assert [line.kind for line in drawn.lines] == ["chance", "claimed", "control", "measured"]
    assert [kind for kind, _ in drawn.key] == ["chance", "claimed", "control", "measured"]
    shown = audit_view.sections(audit_report.public(whole), None)
    assert len(next(one.blocks for one in shown if "Membership" in one.title)) == 1


def parts_epsilon(parts):
    rows = parts["Price at δ = 1e-05, by every accountant"][0].rows
    return float(rows[-1][1])


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_finding_says_what_its_verdict_rests_on(verdict):
    parts = audit_view.sections(document(trial([finding(verdict)])), None)
    (card,) = next(one.blocks for one in parts if one.title == "Sensitivity")
    remarks = " ".join(card.remarks)
    assert card.verdict == verdict
    assert ("Power: anything above" in remarks) == (verdict == "consistent")
    assert ("--replay with #1" in remarks) == (verdict == "violated")
    assert ("Why: it is so" in remarks) == (verdict in ("inconclusive", "not applicable"))
    assert ("measured" in dict(card.numbers)) == (verdict in ("violated", "consistent"))


# ---- markdown

HOSTILE = (
    "<script>alert(1)</script>|`x`](javascript:alert(2))\n# not a heading"
    " ![i](https://evil.example/p.png)"
)


def test_hostile_names_stay_text_in_markdown():
    whole = document(
        trial([finding(claim=HOSTILE)], data=HOSTILE, label=HOSTILE), trial([], label="two")
    )
    text = audit_markdown.markdown(whole["title"], audit_view.sections(whole, HOSTILE))
    lines = [
        line for line in text.splitlines() if not line.startswith("    ")
    ]  # the rest is code, which is literal
    for dangerous in ("<", "`", "]", "[", "!"):
        assert not [line for line in lines if re.search(rf"(?<!\\){re.escape(dangerous)}", line)]
    assert not [line for line in lines if line.startswith("# not")]
    rows = [
        re.sub(r"\\\\|\\\|", "", line)
        for line in lines
        if line.startswith("| ") and "alert" in line
    ]
    assert rows
    assert {line.count("|") for line in rows} == {7}  # the table of verdicts


def test_markdown_has_every_kind_of_block():
    whole = document(trial([finding(audit=TELLING)]), self_test=[CAUGHT])
    text = audit_markdown.markdown(whole["title"], audit_view.sections(whole, "audit"))
    assert text.startswith("# Audit of m on some ratings\n\n## The claim\n")
    assert "**caught**" in text
    assert "    dpmf audit --replay audit/findings.json#1" in text
    assert "*Claimed curve δ(ε), and measured lower bounds on ε.*" in text
    with pytest.raises(TypeError, match="no block"):
        audit_markdown.markdown("t", [audit_view.Section("s", 2, "a", ["a string"])])


def test_fields_are_tagged_once():
    assert all(len(set(names)) == len(names) for names in audit_report.PUBLIC.values())
    assert not set(audit_report.RECORDS) & set(audit_report.PUBLIC["details"])
