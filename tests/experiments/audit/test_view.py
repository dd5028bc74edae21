"""The sections of an audit's report: their order, and what each rests on."""

import pytest

from experiments.audit import pictures as audit_pictures
from experiments.audit import report as audit_report
from experiments.audit import view as audit_view
from experiments.audit.blocks import Card, Folded, Picture
from tests.cases.audit_report import (
    CAUGHT,
    EXACT,
    VERDICTS,
    document,
    finding,
    trial,
)

TELLING = "privacy loss: δ = 0.01"


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
            "In a sentence",
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
    assert titles[:4] == ["In a sentence", "The claim", "The verdict", "Who sees what"]
    assert not [title for title in titles if "Price" in title or "Closed" in title]


def test_several_claims_begin_with_the_table_of_verdicts():
    whole = document(
        trial([finding("violated")], label="one"), trial([finding()], status="claimed", label="two")
    )
    sentence, first, *rest = audit_view.sections(whole, "audit")
    assert sentence.blocks[0].text == "Of 2 claims: 1 found false, 1 not broken."
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
    (axes,) = audit_pictures.figure(picture).axes
    assert [line.get_label() for line in axes.get_lines()] == [
        "guessing",
        "most that the claim allows",
        "the same without noise",
        "measured",
    ]
    shown = audit_view.sections(audit_report.public(whole), None)
    assert len(next(one.blocks for one in shown if "Membership" in one.title)) == 1


def parts_epsilon(parts):
    rows = parts["Price at δ = 1e-05, by every accountant"][0].rows
    return float(rows[-1][1])


@pytest.mark.parametrize(
    ("verdicts", "status", "words"),
    [
        (
            ("consistent", "not applicable"),
            "proved",
            "No audit (of 1) found that the release tells more about",
        ),
        (("violated", "consistent"), "claimed", "The claim does not hold: 1 of 2 audits found"),
        (("inconclusive",), "proved", "cannot be said by what ran: 1 audit."),
        ((), "proved", "was not tried: 0 audits."),
        (("consistent",), "none", "Nothing is promised"),
    ],
)
def test_the_first_line_says_what_it_all_came_to(verdicts, status, words):
    whole = document(trial([finding(verdict) for verdict in verdicts], status=status))
    first, *_ = audit_view.sections(whole, None)
    assert words in first.blocks[0].text
    shown = audit_view.sections(audit_report.public(whole), None)
    assert shown[0].blocks == first.blocks  # it holds no number of the ratings


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_finding_says_what_its_verdict_rests_on(verdict):
    parts = audit_view.sections(document(trial([finding(verdict)])), None)
    (block,) = next(one.blocks for one in parts if one.title == "Sensitivity")
    assert isinstance(block, Folded) == (verdict == "not applicable")
    card = block.cards[0] if isinstance(block, Folded) else block
    remarks = " ".join(card.remarks)
    assert card.verdict == verdict
    assert ("Power: anything above" in remarks) == (verdict == "consistent")
    assert ("--replay with #1" in remarks) == (verdict == "violated")
    assert ("Why: it is so" in remarks) == (verdict in ("inconclusive", "not applicable"))
    assert ("measured" in dict(card.numbers)) == (verdict in ("violated", "consistent"))
