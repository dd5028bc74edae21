"""Marks in a curator's report: what of it may not be shown to anybody else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from experiments.audit.blocks import (
    Badge,
    Card,
    Code,
    Folded,
    Items,
    Picture,
    Section,
    Table,
    Text,
)

MARK = "†"
LEGEND = (
    f"What has a {MARK} is for the curator: it was measured on the ratings and is not priced, or"
    " says where files lie. All else may be published; --public writes a report of that alone."
)


class Kept(str):
    """Text that is not to be shown."""

    __slots__ = ()


def marked(sections: Sequence[Section], public: Sequence[Section]) -> list[Section]:
    """The sections of a whole document: whatever those of its public one lack is `Kept`.

    The first section gets the legend.
    """
    shown = {section.anchor: set(_facts(section.blocks)) for section in public}
    found = [
        section._replace(
            blocks=[_marked(block, shown.get(section.anchor, set())) for block in section.blocks]
        )
        for section in sections
    ]
    return [found[0]._replace(blocks=[*found[0].blocks, Text(LEGEND)]), *found[1:]]


def _facts(blocks: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Every text, with what it is said of."""
    for block in blocks:
        match block:
            case Text(text) | Code(text):
                yield ("", text)
            case Items(items):
                yield from (("", item) for item in items)
            case Badge(verdict, text):
                yield (verdict, text)
            case Table(_, rows):
                yield from ((row[0], place, cell) for row in rows for place, cell in enumerate(row))
            case Card(name, verdict, claim, numbers, remarks):
                yield from ((name, verdict, text) for text in (claim, *remarks))
                yield from ((name, verdict, label, value) for label, value in numbers)
            case Folded(_, cards):
                yield from _facts(cards)
            case Picture(_, title, alt):
                yield (title, alt)


def _marked(block: Any, shown: set[tuple[Any, ...]]) -> Any:
    def text(*fact: Any) -> Any:
        """The last of a fact, as it is to stand there."""
        kept = fact not in shown and isinstance(fact[-1], str) and fact[-1]
        return Kept(fact[-1]) if kept else fact[-1]

    match block:
        case Text() | Code():
            return block._replace(text=text("", block.text))
        case Items():
            return Items([text("", item) for item in block.items])
        case Badge():
            return block._replace(text=text(block.verdict, block.text))
        case Table():
            rows = [
                [text(row[0], place, cell) for place, cell in enumerate(row)] for row in block.rows
            ]
            return block._replace(rows=rows)
        case Card():
            of = block.name, block.verdict
            return block._replace(
                claim=text(*of, block.claim),
                numbers=[(label, text(*of, label, value)) for label, value in block.numbers],
                remarks=[text(*of, remark) for remark in block.remarks],
            )
        case Folded():
            return block._replace(cards=[_marked(card, shown) for card in block.cards])
        case Picture():
            return block._replace(alt=text(block.title, block.alt))
    raise TypeError(f"{type(block).__name__} is no block of a report")
