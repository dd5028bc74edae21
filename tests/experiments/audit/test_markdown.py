"""An audit's report as markdown."""

import re

import pytest

from experiments.audit import blocks as audit_blocks
from experiments.audit import markdown as audit_markdown
from experiments.audit import view as audit_view
from tests.cases.audit_report import (
    CAUGHT,
    document,
    finding,
    trial,
)

HOSTILE = (
    "<script>alert(1)</script>|`x`](javascript:alert(2))\n# not a heading"
    " ![i](https://evil.example/p.png)"
)
TELLING = "privacy loss: δ = 0.01"


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
    found = [finding(audit=TELLING), finding("not applicable", audit="coins: rate")]
    whole = document(trial(found), self_test=[CAUGHT])
    text = audit_markdown.markdown(whole["title"], audit_view.sections(whole, "audit"))
    assert text.startswith("# Audit of m on some ratings\n\n## In a sentence\n")
    assert "\n\n## The claim\n" in text
    assert "**caught**" in text
    assert "\nNot applicable: coins: rate.\n" in text
    assert "    dpmf audit --replay audit/findings.json#1" in text
    assert "*Claimed curve δ(ε), and measured lower bounds on ε.*" in text
    with pytest.raises(TypeError, match="no block"):
        audit_markdown.markdown("t", [audit_blocks.Section("s", 2, "a", ["a string"])])
