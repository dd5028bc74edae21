"""The blocks of which the sections of an audit's report are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Text(NamedTuple):
    """A paragraph."""

    text: str


class Items(NamedTuple):
    items: Sequence[str]


class Code(NamedTuple):
    text: str


class Badge(NamedTuple):
    """A verdict, and what it rests on."""

    verdict: str
    text: str


class Table(NamedTuple):
    """A cell is text, a `Link` or a `Verdict`."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Link(NamedTuple):
    text: str
    anchor: str


class Verdict(NamedTuple):
    verdict: str


class Card(NamedTuple):
    """A finding: its name, verdict, claim, numbers (name, value) and remarks."""

    name: str
    verdict: str
    claim: str
    numbers: Sequence[tuple[str, str]]
    remarks: Sequence[str]


class Folded(NamedTuple):
    """Cards of one verdict that a reader need not see."""

    verdict: str
    cards: Sequence[Card]


class Picture(NamedTuple):
    """A picture of some series of points.

    Attributes:
      kind: "curve": points (ε, δ), "claimed" and "measured". "roc": points (FPR, TPR) by name, of
        runs without noise where that begins with "control".
      title: of the picture.
      alt: the picture in words.
      series: points by name.
      claim: of a "roc", the claim's (ε, δ), or None.
    """

    kind: str
    title: str
    alt: str
    series: Mapping[str, Sequence[Sequence[float]]]
    claim: tuple[float, float] | None = None


class Section(NamedTuple):
    title: str
    level: int
    anchor: str
    blocks: Sequence[Any]
