"""What was released about a population, release by release, and what all of it costs together.

A ledger is a text of JSON lines, one for each release, and is only ever appended to. A curator
names the population; by default it has the name of the data set. Entries belong together where they
share a population's name or the hash of their ratings, directly or through other entries: the same
ratings under two names are one population.

All releases of a population add up, whatever ratings they were computed from: that is the price for
a person who is in all of them. Losses of one kind of relation add up (`relation.common`). Releases
that protect different things stand side by side, as no one number covers them. Two populations stay
two, but `overlaps` finds those that probably hold the same people, by samples of hashed user ids
(`accounting.people`), and adds them up for these people.
"""

import dataclasses
import datetime
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from accounting import guards
from accounting.guarantee import Guarantee, compose
from accounting.loss import Approximate, total
from accounting.people import People, num_shared

FORMAT = 2  # 1 knew of no populations: a data set was one, and no sample of its users was kept

COVERS = (
    (
        "choosing the best of the releases listed is covered: the total is that of all of them;"
        " runs that are not in the ledger, and numbers of the curator that were never priced,"
        " are not"
    ),
    (
        "the settings of a later release may depend on what earlier ones released; the budget was"
        " fixed beforehand"
    ),
    (
        "a total is for a person in all of these releases; the same people under other user ids, in"
        " another ledger, or in one that was deleted, are not known here"
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One release.

    Attributes:
      id: SHA-256 of the released file: the same release has the same one, wherever its folder is.
      time: when it was entered, ISO 8601 with an offset.
      data_set: the name of the ratings.
      population: the name of those whose ratings they are; empty is the data set's name.
      data_hash: of the ratings that it was computed from; None where it is not known. Ratings
        themselves, so private.
      people: a sample of the users' ids; None where it is not known.
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
    population: str = ""
    people: People | None = None

    def __post_init__(self):
        object.__setattr__(self, "population", self.population or self.data_set)
        if not (isinstance(self.id, str) and re.fullmatch(r"[0-9a-f]{64}", self.id)):
            raise ValueError(f"id must be a SHA-256 in hexadecimal digits, got {self.id!r}")
        for name in ("population", "data_set", "model"):
            guards.line(name, getattr(self, name))
        if not (self.data_hash is None or (isinstance(self.data_hash, str) and self.data_hash)):
            raise ValueError(f"data_hash must be a text or null, got {self.data_hash!r}")
        try:
            aware = datetime.datetime.fromisoformat(self.time).tzinfo is not None
        except (TypeError, ValueError):
            aware = False
        if not aware:
            raise ValueError(
                f"time must be a date and time with its offset from UTC, got {self.time!r}"
            )
        if self.guarantee.seeded:
            raise ValueError("a seeded experiment is not a release")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What is known about one population.

    Attributes:
      names: of the population, as they were entered.
      entries: its releases, oldest first.
      totals: one guarantee for each unit and kind of relation, see `budgets`; the first covers most
        releases.
    """

    names: tuple[str, ...]
    entries: tuple[Entry, ...]
    totals: tuple[Guarantee, ...]

    @property
    def epsilon(self) -> float:
        """ε of all releases together; inf where they do not add up to one total."""
        return self.totals[0].epsilon if len(self.totals) == 1 else math.inf


class Pair(NamedTuple):
    """Two populations, and about how many users are in both.

    names: of each.
    shared: None where the ids of one are not known, and only the data sets are called the same.
    users: how many are in the release of each that has most in common with one of the other.
    """

    names: tuple[str, str]
    shared: int | None
    users: tuple[int, int] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlap:
    """Populations that probably hold the same people.

    Attributes:
      names: of all of them.
      pairs: those that share people directly.
      together: all their releases: what a person pays who is in all of them.
    """

    names: tuple[str, ...]
    pairs: tuple[Pair, ...]
    together: Budget


def to_line(entry: Entry) -> str:
    """One line of a ledger, its newline included."""
    fields = {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
    fields["people"] = None if entry.people is None else entry.people.to_dict()
    return (
        json.dumps(
            {"format": FORMAT, **fields, "guarantee": entry.guarantee.to_dict()}, allow_nan=False
        )
        + "\n"
    )


def parse(text: str) -> tuple[Entry, ...]:
    """The entries of a ledger.

    Raises:
      ValueError: a line is torn, is no entry, or repeats another one's release; it begins with
        "line N: ".
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
    """One budget for each population, by name; the order of the entries does not matter.

    The releases of each kind of relation are composed at one δ: `delta`, or `common_delta`. One
    release without a guarantee leaves none for the population. A claimed one makes its total
    claimed.

    Raises:
      ValueError: δ is out of range; no ε holds at that δ, as where (ε, δ) losses add up to more: it
        names whose.
    """
    if delta is not None:
        guards.delta("delta", delta)
    found = []
    for together in _connected(entries):
        names = _names(together)
        guarantees = [entry.guarantee for entry in together]
        if any(guarantee.status == "none" for guarantee in guarantees):
            groups = [guarantees]
        else:
            kinds = dict.fromkeys(
                (guarantee.unit, guarantee.relation.kin) for guarantee in guarantees
            )
            groups = [[g for g in guarantees if (g.unit, g.relation.kin) == kind] for kind in kinds]
        try:
            totals = [_total(group, delta) for group in sorted(groups, key=len, reverse=True)]
        except ValueError as error:
            raise ValueError(f"{', '.join(names)}: {error}") from error
        found.append(Budget(names=names, entries=tuple(together), totals=tuple(totals)))
    return tuple(sorted(found, key=lambda budget: budget.names))


def overlaps(entries: Sequence[Entry], *, delta: float | None = None) -> tuple[Overlap, ...]:
    """Populations that probably hold the same people, each with at least one other.

    The order of the entries does not matter.

    Two populations share people where a user id is in a release of both (`people.num_shared`).
    Where the ids of one are not known, as in a ledger of format 1, they do where two data sets have
    one name. Equal ids are taken for one person.

    Raises:
      ValueError: as `budgets`.
    """
    apart = sorted(_connected(entries), key=_names)
    pairs = [
        (i, j, pair)
        for j in range(len(apart))
        for i in range(j)
        if (pair := _shared_people(apart[i], apart[j]))
    ]
    groups: list[set[int]] = []
    for i, j, _ in pairs:
        joined = {i, j}.union(*(group for group in groups if group & {i, j}))
        groups = [*(group for group in groups if not group & joined), joined]
    found = []
    for group in sorted(groups, key=min):
        members = [entry for index in sorted(group) for entry in apart[index]]
        names = tuple(name for index in sorted(group) for name in _names(apart[index]))
        as_one = [dataclasses.replace(entry, population=" and ".join(names)) for entry in members]
        (together,) = budgets(as_one, delta=delta)
        found.append(
            Overlap(
                names=names,
                pairs=tuple(pair for i, _, pair in pairs if i in group),
                together=together,
            )
        )
    return tuple(found)


def common_delta(guarantees: Sequence[Guarantee]) -> float:
    """The δ at which releases are added up: their largest, or what (ε, δ) losses add up to."""
    losses = [
        loss
        for guarantee in guarantees
        for loss in guarantee.losses
        if isinstance(loss, Approximate)
    ]
    spent = total(loss.delta for loss in losses for _ in range(loss.num_steps))
    others = [
        g.delta for g in guarantees if not all(isinstance(loss, Approximate) for loss in g.losses)
    ]
    return max(
        spent + max(others, default=0.0) if losses else 0.0,
        *(guarantee.delta for guarantee in guarantees),
    )


def _time_and_id(entry: Entry) -> tuple[datetime.datetime, str]:
    return datetime.datetime.fromisoformat(entry.time), entry.id


def _names(entries: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(sorted({entry.population for entry in entries}))


def _shared_people(first: Sequence[Entry], second: Sequence[Entry]) -> Pair | None:
    """The two releases with most users in common; None where nobody is known to be in both."""
    names = " = ".join(_names(first)), " = ".join(_names(second))
    if known := [
        (both, here.users, there.users)
        for here, there, both in _samples_compared(first, second)
        if both
    ]:
        both, *users = max(known)
        return Pair(names, both, (users[0], users[1]))
    blind = any(
        here.data_set == there.data_set and (here.people is None or there.people is None)
        for here in first
        for there in second
    )
    return Pair(names, None, None) if blind else None


def _samples_compared(
    first: Sequence[Entry], second: Sequence[Entry]
) -> Iterator[tuple[People, People, int | None]]:
    """Each pair of different samples, once, with what they share."""
    for here in dict.fromkeys(entry.people for entry in first if entry.people is not None):
        for there in dict.fromkeys(entry.people for entry in second if entry.people is not None):
            yield here, there, num_shared(here, there)


def _total(guarantees: Sequence[Guarantee], delta: float | None) -> Guarantee:
    at = common_delta(guarantees) if delta is None else delta
    return compose(*(guarantee.at_delta(at) for guarantee in guarantees))


def _connected(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The entries in groups that share a population or a hash, directly or through others."""
    groups: list[tuple[set[tuple[str, str]], list[Entry]]] = []
    for entry in entries:
        marks = {("name", entry.population)} | (
            {("hash", entry.data_hash)} if entry.data_hash else set()
        )
        touched = [group for group in groups if group[0] & marks]
        groups = [group for group in groups if not group[0] & marks]
        members = [member for _, part in touched for member in part]
        groups.append((marks.union(*(known for known, _ in touched)), [*members, entry]))
    return [sorted(members, key=_time_and_id) for _, members in groups]


def _from_line(line: str) -> Entry:
    try:
        values = json.loads(line)
    except ValueError:
        raise ValueError(
            "not a whole JSON object; it was cut short, or is no entry of a ledger"
        ) from None
    if not (isinstance(values, Mapping) and "format" in values):
        raise ValueError("not an entry of a ledger of releases")
    if values["format"] not in (1, FORMAT):
        raise ValueError(f"an entry of format {values['format']!r}, this program reads {FORMAT}")
    fields: dict[str, Any] = {name: value for name, value in values.items() if name != "format"}
    if values["format"] == 1:
        fields = {"population": "", "people": None} | fields
    wanted = {field.name for field in dataclasses.fields(Entry)}
    if different := sorted(wanted ^ set(fields)):
        raise ValueError(f"keys that are missing or unknown: {', '.join(different)}")
    fields["guarantee"] = Guarantee.from_dict(fields["guarantee"])
    fields["people"] = None if fields["people"] is None else People.from_dict(fields["people"])
    return Entry(**fields)
