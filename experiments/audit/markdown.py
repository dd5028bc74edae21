"""The sections of an audit's report as markdown; names of data sets and mechanisms stay text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.audit.blocks import (
    Badge,
    Card,
    Code,
    Folded,
    Items,
    Link,
    Picture,
    Section,
    Table,
    Text,
    Verdict,
)
from experiments.audit.marks import MARK, Kept

_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>#|!"})


def escaped(text: Any) -> str:
    """Text on one line that markdown takes literally; with a mark where it is `Kept`."""
    mark = MARK if isinstance(text, Kept) else ""
    return " ".join(str(text).split()).translate(_SPECIAL) + mark


def markdown(title: str, sections: Sequence[Section]) -> str:
    lines = [f"# {escaped(title)}", ""]
    for section in sections:
        lines += [f"{'#' * section.level} {escaped(section.title)}", ""]
        for block in section.blocks:
            lines += [*_block(block), ""]
    return "\n".join(lines).rstrip() + "\n"


def _block(block: Any) -> list[str]:
    match block:
        case Text(text):
            return [escaped(text)]
        case Items(items):
            return [f"- {escaped(item)}" for item in items]
        case Code(text):
            mark = MARK if isinstance(text, Kept) else ""
            return [f"    {line}" for line in f"{text}{mark}".splitlines()]
        case Badge(verdict, text):
            return [f"**{escaped(verdict)}**: {escaped(text)}"]
        case Table(head, rows):
            return [_row(head), _row(["---"] * len(head), raw=True), *(_row(row) for row in rows)]
        case Card(name, verdict, claim, numbers, remarks):
            told = "; ".join(f"{escaped(label)} {escaped(value)}" for label, value in numbers)
            lines = [f"- **{escaped(name)}**: **{escaped(verdict)}**. {escaped(claim)}."]
            return lines + [
                f"  - {line}" for line in ([told] if told else []) + list(map(escaped, remarks))
            ]
        case Folded(verdict, cards):
            names = "; ".join(card.name for card in cards)
            return [f"{escaped(verdict.capitalize())}: {escaped(names)}."]
        case Picture(_, picture_title, alt):
            return [f"*{escaped(picture_title)}.* {escaped(alt)}"]
    raise TypeError(f"{type(block).__name__} is no block of a report")


def _row(cells: Sequence[Any], *, raw: bool = False) -> str:
    return f"| {' | '.join(cell if raw else _cell(cell) for cell in cells)} |"


def _cell(cell: Any) -> str:
    match cell:
        case Link(text, _):
            return escaped(text)
        case Verdict(verdict):
            return f"**{escaped(verdict)}**"
    return escaped(cell)
