"""A paper's statements, each with its verdict: what is judged, and how the table is written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from experiments.reproduce.catalogue import Figure, Record, Stored

Verdict = Literal["reproduced", "not reproduced", "not testable here"]
VERDICTS = ("reproduced", "not reproduced", "not testable here")


class Judged(NamedTuple):
    """value: what was measured, in words.
    holds: under the statement's criterion.
    numbers: the same to compute with.
    """

    value: str
    holds: bool
    why: str
    numbers: dict[str, float]


class NotTestable(Exception):
    """What is missing, as a sentence that says how to get it."""


class Claim(NamedTuple):
    """One statement with its verdict.

    where: in the paper.
    how: the measurement and the criterion.
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
            judged = check(evidence)
        except NotTestable as missing:
            claims.append(
                Claim(name, where, statement, how, "", "not testable here", str(missing), {})
            )
            continue
        verdict: Verdict = "reproduced" if judged.holds else "not reproduced"
        claims.append(
            Claim(name, where, statement, how, judged.value, verdict, judged.why, judged.numbers)
        )
    return claims


def rows_of(stored: Stored, figure: Figure, data: str | None = None) -> list[Record]:
    """The stored rows of a figure on one of its data sets, the first unless another is given.

    Raises: NotTestable where there are none.
    """
    record = stored.get(figure.key_on(data or figure.data[0]))
    if record is None:
        raise NotTestable(f"run dpmf reproduce {figure.name} first")
    return record["rows"]


def values_of(rows: Sequence[Record], series: str, axis: str) -> dict[float, float]:
    """A series' values on an axis, by x. Raises: NotTestable where there are none."""
    values = {
        float(row["x"]): float(row["value"])
        for row in rows
        if (row["series"], row["axis"]) == (series, axis)
    }
    if not values:
        raise NotTestable(f"series {series!r} is not stored")
    return values


def claims_csv(record: Record) -> str:
    """The claims as csv."""
    lines = io.StringIO()
    names = [*Claim._fields, "commit", "device", "notice"]
    writer = csv.DictWriter(lines, names, lineterminator="\n")
    writer.writeheader()
    for row in record["rows"]:
        numbers = json.dumps(row["numbers"], ensure_ascii=False)
        writer.writerow({**row, "numbers": numbers, **{name: record[name] for name in names[-3:]}})
    return lines.getvalue()


def count_verdicts(record: Record) -> str:
    """How many claims have which verdict, in words."""
    return ", ".join(f"{number} {verdict}" for verdict, number in record["counts"].items())
