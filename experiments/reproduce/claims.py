"""A paper's statements, each with its verdict: what is judged, and how the table is written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Verdict = Literal["reproduced", "not reproduced", "not testable here"]
VERDICTS = ("reproduced", "not reproduced", "not testable here")
Told = Mapping[str, Any]  # a figure's json, as `report.summary` makes it


class Judged(NamedTuple):
    """value: what was measured, in words. holds: under the statement's criterion. numbers: the same
    to compute with.
    """

    value: str
    holds: bool
    why: str
    numbers: dict[str, float]


class NotTestable(Exception):
    """What is missing, as a sentence that says how to get it."""


class Claim(NamedTuple):
    """One statement with its verdict. where: in the paper. how: the measurement and the
    criterion.
    """

    name: str
    where: str
    statement: str
    how: str
    value: str
    verdict: Verdict
    why: str
    numbers: dict[str, float]


class Statement(NamedTuple):
    name: str
    where: str
    statement: str
    how: str
    judge: Callable[[Any], Judged]


def judge(evidence: Any, statements: Sequence[Statement]) -> list[Claim]:
    """Every one of the statements, in their order."""
    claims = []
    for name, where, statement, how, check in statements:
        try:
            found = check(evidence)
        except NotTestable as missing:
            claims.append(
                Claim(name, where, statement, how, "", "not testable here", str(missing), {})
            )
            continue
        verdict: Verdict = "reproduced" if found.holds else "not reproduced"
        claims.append(
            Claim(name, where, statement, how, found.value, verdict, found.why, found.numbers)
        )
    return claims


def claims_csv(told: Mapping[str, Any]) -> str:
    """The claims as csv."""
    lines = io.StringIO()
    names = [*Claim._fields, "commit", "device", "notice"]
    writer = csv.DictWriter(lines, names, lineterminator="\n")
    writer.writeheader()
    for row in told["rows"]:
        numbers = json.dumps(row["numbers"], ensure_ascii=False)
        writer.writerow({**row, "numbers": numbers, **{name: told[name] for name in names[-3:]}})
    return lines.getvalue()


def counted(told: Mapping[str, Any]) -> str:
    """How many claims have which verdict, in words."""
    return ", ".join(f"{number} {verdict}" for verdict, number in told["counts"].items())
