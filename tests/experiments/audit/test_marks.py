"""Marks of what may not be published, in a curator's report."""

import pytest

from experiments.audit import markdown as audit_markdown
from experiments.audit import marks
from experiments.audit import report as audit_report
from experiments.audit import view as audit_view
from experiments.audit.blocks import Card, Folded, Section, Text
from experiments.audit.phrases import number
from tests.cases.audit_report import CAUGHT, SECRET, VERDICTS, document, finding, trial

TELLING = "privacy loss: δ = 0.01"
POWER = "0.02 would be seen, on these ratings"


@pytest.fixture
def whole():
    found = [finding(verdict) for verdict in VERDICTS]
    found += [finding(audit=TELLING, details={"power": POWER}), finding("violated", TELLING)]
    return document(trial(found), self_test=[CAUGHT])


@pytest.fixture
def sections(whole):
    shown, _ = audit_report.split_records(whole)
    public = audit_view.sections(audit_report.public(whole), None)
    return marks.marked(audit_view.sections(shown, "audit"), public)


def texts(block):
    """All strings of blocks, however deep."""
    if isinstance(block, str):
        yield block
    elif isinstance(block, dict):
        yield from texts(list(block))
    elif isinstance(block, list | tuple):
        for part in block:
            yield from texts(part)


def test_what_a_public_report_says_is_not_marked_and_all_else_is(whole, sections):
    public = set(texts([s.blocks for s in audit_view.sections(audit_report.public(whole), None)]))
    kept = {text for text in texts([s.blocks for s in sections]) if isinstance(text, marks.Kept)}
    assert f"Power: {POWER}." in kept
    assert kept & public == {"Why: it is so."}  # of an undecided finding, and of no claim
    for text in texts([section.blocks for section in sections]):
        measured = str(SECRET) in text and f"anything above {SECRET} would be seen" not in text
        if measured or number(SECRET) in text:
            assert isinstance(text, marks.Kept), text


def test_a_number_is_marked_by_what_it_says_and_not_by_its_value():
    """What was measured may equal what was claimed, which is public."""

    def card(*numbers):
        return [Section("", 2, "a", [Card("audit", "consistent", "claim", numbers, [])])]

    (section,) = marks.marked(card(("measured", "1"), ("claimed", "1")), card(("claimed", "1")))
    (_, measured), (_, claimed) = section.blocks[0].numbers
    assert (type(measured), type(claimed)) == (marks.Kept, str)


def test_why_nothing_could_be_said_is_marked_beside_why_there_is_no_claim(sections):
    """The first is measured, the other follows from the claim; both read alike here."""
    cards = [block for part in sections for block in part.blocks if isinstance(block, Card)]
    (undecided,) = [card for card in cards if card.verdict == "inconclusive"]
    folded = [block for part in sections for block in part.blocks if isinstance(block, Folded)]
    ((no_claim,),) = [block.cards for block in folded]
    assert undecided.remarks == no_claim.remarks
    assert [type(card.remarks[0]) for card in (undecided, no_claim)] == [marks.Kept, str]


def test_what_is_folded_is_marked_too():
    card = Card("audit", "not applicable", "claim", [], ["why"])
    public = card._replace(remarks=[])
    (section,) = marks.marked(
        [Section("", 2, "a", [Folded("not applicable", [card])])],
        [Section("", 2, "a", [Folded("not applicable", [public])])],
    )
    (found,) = section.blocks[0].cards
    assert (type(found.claim), type(found.remarks[0])) == (str, marks.Kept)


def test_the_legend_stands_in_front(sections):
    assert sections[0].blocks[-1] == Text(marks.LEGEND)
    text = audit_markdown.markdown("title", sections)
    assert text.count(marks.LEGEND) == 1
    assert text.count(marks.MARK) > 5


def test_reports_have_marks_where_they_are_the_curators(tmp_path, whole):
    audit_report.write(tmp_path / "whole", whole)
    audit_report.write(tmp_path / "public", audit_report.public(whole))
    for name in ("report.html", "report.md"):
        assert marks.MARK in (tmp_path / "whole" / "private" / name).read_text()
        assert marks.MARK not in (tmp_path / "public" / name).read_text()
    page = (tmp_path / "whole" / "private" / "report.html").read_text()
    assert page.count("<mark>") == page.count("</mark>") == page.count('class="dagger"')
