"""What was released about a data set, release by release, and what all of it costs together.

A ledger is a text of JSON lines, one a release; it is only ever appended to. Entries belong together where they share
the name of a data set or the hash of its ratings, over any number of steps: the same ratings under two names are one.

Losses of one kind of relation add up (`relation.common`). Releases that protect different things stand side by side: no
number covers them together, and none is made up. A total is a price for one neighbour of the whole data set; two data
sets that hold data of the same people are not added.
"""

import dataclasses
import datetime
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from accounting import guards
from accounting.guarantee import Guarantee, compose
from accounting.loss import Approximate, total

FORMAT = 1

COVERS = (
    "choosing the best of the releases listed is covered: the total is that of all of them; runs that are not in the "
    "ledger, and numbers of the curator that were never priced, are not",
    "the settings of a later release may depend on what earlier ones released; the budget was fixed beforehand",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One release.

    Attributes:
      id: SHA-256 of the released file: the same release has the same one, wherever its folder is.
      time: when it was entered, ISO 8601 with an offset.
      data_set: a name.
      data_hash: of the ratings that it was computed from; None where it is not known. Ratings themselves, so private.
      guarantee: what was promised about it; never of a seeded experiment, which is no release.
      model: where it was then.

    Raises:
      ValueError: a field is not what it should be.
    """

    id: str
    time: str
    data_set: str
    data_hash: str | None
    guarantee: Guarantee
    model: str

    def __post_init__(self):
        if not (isinstance(self.id, str) and re.fullmatch(r"[0-9a-f]{64}", self.id)):
            raise ValueError(f"id must be a SHA-256 in hexadecimal digits, got {self.id!r}")
        for name in ("data_set", "model"):
            if not (isinstance(text := getattr(self, name), str) and text.strip() and text.isprintable()):
                raise ValueError(f"{name} must be one line of text, got {text!r}")
        if not (self.data_hash is None or (isinstance(self.data_hash, str) and self.data_hash)):
            raise ValueError(f"data_hash must be a text or null, got {self.data_hash!r}")
        try:
            aware = datetime.datetime.fromisoformat(self.time).tzinfo is not None
        except (TypeError, ValueError):
            aware = False
        if not aware:
            raise ValueError(f"time must be a date and time with its offset from UTC, got {self.time!r}")
        if self.guarantee.seeded:
            raise ValueError("a seeded experiment is not a release")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What is known about one data set.

    Attributes:
      names: of the data set, as they were entered. entries: its releases, oldest first.
      totals: one guarantee for each unit and kind of relation, see `budgets`; the first covers most releases.
    """

    names: tuple[str, ...]
    entries: tuple[Entry, ...]
    totals: tuple[Guarantee, ...]

    @property
    def epsilon(self) -> float:
        """Of all releases together: the total where there is one, inf where they do not add up to one."""
        return self.totals[0].epsilon if len(self.totals) == 1 else math.inf


def to_line(entry: Entry) -> str:
    """One line of a ledger, its newline included."""
    fields = {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
    return json.dumps({"format": FORMAT, **fields, "guarantee": entry.guarantee.to_dict()}, allow_nan=False) + "\n"


def parse(text: str) -> tuple[Entry, ...]:
    """The entries of a ledger.

    Raises:
      ValueError: a line is torn, is no entry, or repeats another one's release; it begins with "line N: ".
    """
    entries: dict[str, tuple[int, Entry]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = _from_line(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if entry.id in entries:
            raise ValueError(f"line {number}: the release of line {entries[entry.id][0]} once more")
        entries[entry.id] = (number, entry)
    return tuple(entry for _, entry in entries.values())


def budgets(entries: Sequence[Entry], *, delta: float | None = None) -> tuple[Budget, ...]:
    """One budget for each data set, by name; the order of the entries does not matter.

    Within a data set, the releases of each kind of relation are composed at one δ: `delta`, or `common_delta`. One
    release without a guarantee leaves none for the data set. A claimed one makes its total claimed.

    Raises:
      ValueError: δ is out of range; no ε holds at that δ, as where (ε, δ) losses add up to more: it names the data set.
    """
    if delta is not None:
        guards.delta("delta", delta)
    found = []
    for together in _connected(entries):
        names = tuple(sorted({entry.data_set for entry in together}))
        guarantees = [entry.guarantee for entry in together]
        if any(guarantee.status == "none" for guarantee in guarantees):
            groups = [guarantees]
        else:
            kinds = dict.fromkeys((guarantee.unit, guarantee.relation.kin) for guarantee in guarantees)
            groups = [[g for g in guarantees if (g.unit, g.relation.kin) == kind] for kind in kinds]
        try:
            totals = [_total(group, delta) for group in sorted(groups, key=len, reverse=True)]
        except ValueError as error:
            raise ValueError(f"{', '.join(names)}: {error}") from error
        found.append(Budget(names=names, entries=tuple(together), totals=tuple(totals)))
    return tuple(sorted(found, key=lambda budget: budget.names))


def common_delta(guarantees: Sequence[Guarantee]) -> float:
    """The δ that releases are added up at: the largest of theirs, or more where (ε, δ) losses add up to more."""
    losses = [loss for guarantee in guarantees for loss in guarantee.losses if isinstance(loss, Approximate)]
    spent = total(loss.delta for loss in losses for _ in range(loss.num_steps))
    others = [g.delta for g in guarantees if not all(isinstance(loss, Approximate) for loss in g.losses)]
    return max(spent + max(others, default=0.0) if losses else 0.0, *(guarantee.delta for guarantee in guarantees))


def _age(entry: Entry) -> tuple[datetime.datetime, str]:
    return datetime.datetime.fromisoformat(entry.time), entry.id


def _total(guarantees: Sequence[Guarantee], delta: float | None) -> Guarantee:
    at = common_delta(guarantees) if delta is None else delta
    return compose(*(guarantee.at_delta(at) for guarantee in guarantees))


def _connected(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The entries in groups that share a name or a hash, directly or through others."""
    groups: list[tuple[set[tuple[str, str]], list[Entry]]] = []
    for entry in entries:
        marks = {("name", entry.data_set)} | ({("hash", entry.data_hash)} if entry.data_hash else set())
        touched = [group for group in groups if group[0] & marks]
        groups = [group for group in groups if not group[0] & marks]
        members = [member for _, part in touched for member in part]
        groups.append((marks.union(*(known for known, _ in touched)), [*members, entry]))
    return [sorted(members, key=_age) for _, members in groups]


def _from_line(line: str) -> Entry:
    try:
        values = json.loads(line)
    except ValueError:
        raise ValueError("not a whole JSON object; it was cut short, or is no entry of a ledger") from None
    if not (isinstance(values, Mapping) and "format" in values):
        raise ValueError("not an entry of a ledger of releases")
    if values["format"] != FORMAT:
        raise ValueError(f"an entry of format {values['format']!r}, this program reads {FORMAT}")
    fields: dict[str, Any] = {name: value for name, value in values.items() if name != "format"}
    wanted = {field.name for field in dataclasses.fields(Entry)}
    if different := sorted(wanted ^ set(fields)):
        raise ValueError(f"keys that are missing or unknown: {', '.join(different)}")
    fields["guarantee"] = Guarantee.from_dict(fields["guarantee"])
    return Entry(**fields)
