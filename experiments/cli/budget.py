"""``dpmf budget show | add``: a ledger of releases on this machine, and what they cost together, by
population.

The ledger is one file of JSON lines (`accounting.ledger`). It holds a hash of the ratings and a
sample of hashed user ids (`accounting.people`), so it is the curator's: mode 0600, in a folder of
mode 0700 where this program makes the folder.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import hashlib
import math
import os
import secrets
import shlex
import textwrap
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from accounting import Guarantee, people
from accounting.digits import printed, printed_delta, printed_whole
from accounting.ledger import (
    COVERS,
    Budget,
    Entry,
    Overlap,
    budgets,
    check_name,
    overlaps,
    parse,
    to_line,
)
from dpmf_jax.errors import DataError, PrivacyError, UsageError
from experiments.cli import console


@dataclass(frozen=True, kw_only=True)
class Show:
    """Print what was released about each population, and what it costs together.

    A population has the name that fit --population gave, or else that of its data set; its releases
    add up whatever ratings they are of. Populations whose user ids overlap are said to hold the
    same people, for whom both add up. The ledger does not know of people under other ids, nor of
    releases that were entered elsewhere, never, or in a ledger that was deleted. Exits with 4 if a
    total, also of those in several populations, is above --limit, or if releases do not add up to
    one total. The ledger is the curator's.
    """

    population: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="POPULATION")] = (
        None
    )
    """Name of a population or of a data set of it, or the hash of ratings; without it, all."""
    different_people: bool = False
    """Equal user ids in two populations are different people, as where each numbers its users from
    1: look for no overlap.
    """
    limit: float | None = None
    """The largest total epsilon that is acceptable."""
    delta: float | None = None
    """Delta of the totals; without it, the largest delta of the releases that are added up."""
    ledger: Path | None = None
    """The ledger; without it, the environment variable DPMF_LEDGER, or dpmf/ledger.jsonl in the
    user's data folder.
    """
    json: bool = False
    """Print one JSON object on stdout."""


@dataclass(frozen=True, kw_only=True)
class Add:
    """Enter the release of a saved model in the ledger.

    A seeded experiment, and a model that releases nothing, are refused; so is the same release once
    more.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder of the model."""
    data_set: str | None = None
    """Name of the data set it was fitted on; without it, the name that the model has."""
    population: str | None = None
    """Name of those whose ratings they are; without it, what fit --population said, or else the
    data set's name.
    """
    ledger: Path | None = None
    """The ledger; without it, the environment variable DPMF_LEDGER, or dpmf/ledger.jsonl in the
    user's data folder.
    """
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Show | Add) -> int | None:
    match command:
        case Show():
            return _show(command)
        case Add():
            return _add(command)


def _show(command: Show) -> int | None:
    if command.limit is not None and not 0 <= command.limit < math.inf:
        console.refuse(
            f"a limit of {command.limit}",
            where="--limit",
            fix="give a number of at least 0, such as 3",
        )
    path = ledger_path(command.ledger)
    entries = read(path)
    if command.ledger is not None and not path.exists():
        raise DataError(
            "there is no such ledger",
            where=str(path),
            fix="mind the name, or enter a release first",
        )
    with console.usage_errors(
        where=str(path), fix="give another --delta, larger for (epsilon, delta) releases"
    ):
        found = budgets(entries, delta=command.delta)
        met = () if command.different_people else overlaps(entries, delta=command.delta)
    if command.population is not None:
        found = _named(command.population, found, path)
        met = tuple(
            overlap
            for overlap in met
            if any(set(budget.names) <= set(overlap.names) for budget in found)
        )
    totals = [*found, *(overlap.together for overlap in met)]
    result: dict[str, Any] = {
        "ledger": str(path),
        "limit": command.limit,
        "within_limit": (
            command.limit is None or all(budget.epsilon <= command.limit for budget in totals)
        ),
        "data_sets": [_as_result(budget) for budget in found],
        "overlaps": [_overlap(overlap) for overlap in met],
        "covers": list(COVERS),
    }
    console.emit(result, json=command.json, render=render_show)
    if result["within_limit"]:
        return None
    assert command.limit is not None
    beyond = [(", ".join(budget.names), budget) for budget in found]
    beyond += [
        (f"{' and '.join(one.names)}, where the same people probably are", one.together)
        for one in met
    ]
    console.print_error(
        "; ".join(
            _beyond(who, budget, command.limit)
            for who, budget in beyond
            if not budget.epsilon <= command.limit
        ),
        where=str(path),
        fix="release nothing more about these people; what is out cannot be taken back",
    )
    return PrivacyError.exit_code


def _add(command: Add) -> None:
    entry = record(
        command.model,
        data_set=command.data_set,
        population=command.population,
        ledger=command.ledger,
    )
    result = {"ledger": str(ledger_path(command.ledger)), "entry": _entry(entry)}
    console.emit(result, json=command.json, render=render_add)


class Entered(UsageError):
    """The release is in the ledger already."""


def record(
    model: Path,
    *,
    data_set: str | None = None,
    data_hash: str | None = None,
    population: str | None = None,
    ledger: Path | None = None,
) -> Entry:
    """Enter the release of a saved model in the ledger and return its `accounting.ledger.Entry`.

    Nothing about the model changes, and where this fails the ledger is as it was.

    Args:
      model: its folder.
      data_set: a name; without it, the one in the model's settings.
      data_hash: of the ratings; without it, the one of the training ratings in the model's
        private/, where it is there. The same ratings split otherwise have another, so the name
        matters.
      population: a name; without it, the one in the model's private/, or else that of the data set.
      ledger: its file, see `ledger_path`.

    Raises:
      PrivacyError: a seeded experiment. UsageError: no release, or no name. Entered: the release is
        there already.
      DataError: a model or a ledger that cannot be read or written.
    """
    from dpmf_jax.models import model as models
    from dpmf_jax.models import storage

    model = Path(model)
    loaded = models.load(model)
    if loaded.guarantee.seeded:
        raise PrivacyError(
            "a seeded experiment is not a release, and has no place in the ledger",
            where=str(model),
            fix=(
                "fit without --seed what is to be released; if this was shown to anyone, no epsilon"
                " holds for it"
            ),
        )
    released = model / models.RELEASE
    if all(part is None for part in loaded.release) or not released.exists():
        raise UsageError(
            "this model releases nothing, so there is nothing to enter",
            where=str(model),
            fix="enter models that have a release.safetensors",
        )
    saved = model / "private" / "run.json"
    if saved.exists():
        run = storage.read_json(saved)
        data_hash = run.get("ratings") if data_hash is None else data_hash
        population = run.get("command", {}).get("population") if population is None else population
    name = data_set or loaded.settings.get("data")
    if not name:
        raise UsageError(
            "the model does not name its data set", where=str(model), fix="give --data-set NAME"
        )
    with console.usage_errors(where=str(model)):
        if population is not None:
            check_name("population", population)
        entry = Entry(
            id=hashlib.sha256(released.read_bytes()).hexdigest(),
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            population=population or name,
            data_set=name,
            data_hash=data_hash,
            guarantee=loaded.guarantee,
            model=str(model.absolute()),
        )
    return _enter(entry, ledger_path(ledger), loaded.users)


# ---- the file ------------------------------------------------------------------------------------


def ledger_path(given: Path | None = None) -> Path:
    """The ledger's file: as given, or $DPMF_LEDGER, or dpmf/ledger.jsonl in $XDG_DATA_HOME or
    ~/.local/share.
    """
    if given is not None:
        return given
    if named := os.environ.get("DPMF_LEDGER"):
        return Path(named).expanduser()
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if os.path.isabs(data) else Path("~/.local/share").expanduser()
    return base / "dpmf" / "ledger.jsonl"


def read(path: Path) -> tuple[Entry, ...]:
    """The entries of the ledger; none where there is no file.

    Raises:
      DataError: it cannot be read, or a line is not an entry; it names the file and the line.
    """
    with _failures(path, "read"):
        try:
            descriptor = os.open(_regular(path), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return ()
        with os.fdopen(descriptor, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return _entries(file.read(), path)


def _enter(entry: Entry, path: Path, users: Iterable[Any] | None = None) -> Entry:
    """Append the entry by a single write, under a lock; what was there is read first and stays as
    it was.

    The ids of the users are sampled under the key of the ledger, which its first entry with a
    sample has drawn.
    """
    with _failures(path, "written"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(
            _regular(path), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = file.read()
            others = _entries(before, path)
            for other in others:
                if other.id == entry.id:
                    raise Entered(
                        f"this release is in the ledger already, since {other.time}, as"
                        f" {other.data_set}",
                        where=f"{path}, entered from {other.model}",
                        fix="nothing is to be done: it counts once",
                    )
            if users is not None:
                known = (other.people.key for other in others if other.people is not None)
                entry = replace(
                    entry, people=people.of(users, key=next(known, None) or secrets.token_hex(16))
                )
            os.fchmod(descriptor, 0o600)
            line = (b"\n" if before and not before.endswith(b"\n") else b"") + to_line(
                entry
            ).encode()
            try:
                if os.write(descriptor, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, len(before))
                raise
    return entry


def _regular(path: Path) -> Path:
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no ordinary file"
        raise DataError(f"the ledger is {kind}", where=str(path), fix=_NAME_A_FILE)
    return path


@contextlib.contextmanager
def _failures(path: Path, doing: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        again = ", then: dpmf budget add MODEL" if doing == "written" else ""
        raise DataError(
            f"the ledger cannot be {doing}: {error.strerror}",
            where=str(path),
            fix=f"mend that, or {_NAME_A_FILE}{again}",
        ) from None


def _entries(content: bytes, path: Path) -> tuple[Entry, ...]:
    try:
        return parse(content.decode())
    except UnicodeDecodeError:
        raise DataError("the ledger is not a text", where=str(path), fix=_NAME_A_FILE) from None
    except ValueError as error:
        number, _, what = str(error).removeprefix("line ").partition(": ")
        raise DataError(
            f"line {number} of the ledger cannot be used: {what}",
            where=f"{path}:{number}",
            fix=(
                f"is it the ledger? then copy it, take line {number} out, and enter its release"
                " again: dpmf budget add MODEL"
            ),
        ) from None


_NAME_A_FILE = "give another file: --ledger FILE.jsonl, or the environment variable DPMF_LEDGER"


# ---- results -------------------------------------------------------------------------------------


def _named(wanted: str, found: Sequence[Budget], path: Path) -> tuple[Budget, ...]:
    chosen = tuple(
        b
        for b in found
        if wanted
        in {
            *b.names,
            *(name for one in b.entries for name in (one.data_set, one.data_hash)),
        }
    )
    if chosen:
        return chosen
    known = ", ".join(name for budget in found for name in budget.names)
    raise DataError(
        f"no release of {wanted} is in the ledger",
        where=str(path),
        fix=f"one of: {known}" if known else "enter one: dpmf budget add MODEL",
    )


def _as_result(budget: Budget) -> dict[str, Any]:
    return {
        "names": budget.names,
        "data_hashes": sorted({entry.data_hash for entry in budget.entries if entry.data_hash}),
        **_sum(budget),
        "entries": [_entry(entry) for entry in budget.entries],
    }


def _overlap(overlap: Overlap) -> dict[str, Any]:
    return {
        "names": overlap.names,
        "pairs": [pair._asdict() for pair in overlap.pairs],
        **_sum(overlap.together),
    }


def _sum(budget: Budget) -> dict[str, Any]:
    return {
        "releases": len(budget.entries),
        "epsilon": budget.epsilon,
        "totals": [
            {
                "unit": total.unit,
                "relation": str(total.relation),
                "relation_kind": total.relation.kind,
                "epsilon": total.epsilon,
                "delta": total.delta,
                "status": total.status,
                "leaves_open": total.leaves_open,
                "accountants": total.accountants,
                "releases": sum(_is_of(entry.guarantee, total) for entry in budget.entries),
                "steps": total.steps,
            }
            for total in budget.totals
        ],
    }


def _is_of(guarantee: Guarantee, total: Guarantee) -> bool:
    return total.status == "none" or (guarantee.unit, guarantee.relation.kin) == (
        total.unit,
        total.relation.kin,
    )


def _entry(entry: Entry) -> dict[str, Any]:
    guarantee = entry.guarantee
    return {
        "id": entry.id,
        "time": entry.time,
        "population": entry.population,
        "data_set": entry.data_set,
        "data_hash": entry.data_hash,
        "model": entry.model,
        "mechanism": guarantee.mechanism,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "unit": guarantee.unit,
        "relation": str(guarantee.relation),
        "status": guarantee.status,
        "headline": guarantee.headline,
    }


def _beyond(names: str, budget: Budget, limit: float) -> str:
    if len(budget.totals) > 1:
        return (
            f"{names}: the releases protect different things, so no total is known to be within"
            f" {printed_whole(limit)}"
        )
    if budget.epsilon == math.inf:
        return f"{names}: no finite epsilon holds, the limit is {printed_whole(limit)}"
    return (
        f"{names}: the total epsilon is {printed(budget.epsilon)}, the limit is"
        f" {printed_whole(limit)}"
    )


def render_show(result: Mapping[str, Any]) -> str:
    """A paragraph a population: its totals, then its releases, oldest first; then those with the
    same people.
    """
    if not result["data_sets"]:
        return f"no release is in the ledger {result['ledger']}\nenter one: dpmf budget add MODEL"
    lines = []
    for data_set in result["data_sets"]:
        count = data_set["releases"]
        lines.append(f"{' = '.join(data_set['names'])}: {count} release{'s' if count != 1 else ''}")
        lines += [line for total in data_set["totals"] for line in _total_lines(total)]
        if len(data_set["totals"]) > 1:
            lines.append(
                "  these protect different things: no number covers all the releases together"
            )
        for entry in data_set["entries"]:
            known = f" {entry['data_hash'][:12]}" if entry["data_hash"] else ""
            data = f"data {entry['data_set']}{known}"
            text = (
                f"{entry['time']}  {entry['mechanism']}: {entry['headline']}; {data};"
                f" {entry['model']}"
            )
            lines += _wrapped(text, "    ", " " * 8)
        lines.append("")
    lines += [line for overlap in result["overlaps"] for line in (*_overlap_lines(overlap), "")]
    covers = [line for sentence in result["covers"] for line in _wrapped(sentence, "- ", "  ")]
    return "\n".join([*lines, *covers, f"for the curator; the ledger is {result['ledger']}"])


def _overlap_lines(overlap: Mapping[str, Any]) -> list[str]:
    names = " and ".join(overlap["names"])
    met = []
    for pair in overlap["pairs"]:
        first, second = pair["names"]
        where = "" if len(overlap["pairs"]) == 1 else f" of {first} and {second}"
        if pair["shared"] is None:
            met.append(f"data sets{where} have one name, and not all their user ids are known")
        else:
            here, there = pair["users"]
            met.append(
                f"about {pair['shared']:,} user ids{where} are in both, of {here:,} and {there:,}"
            )
    return [
        *_wrapped(f"the same people are probably in {names}: {'; '.join(met)}", "", "  "),
        f"  for a person in all of these, {overlap['releases']} releases add up",
        *(line for total in overlap["totals"] for line in _total_lines(total)),
        *(
            ["  these protect different things: no number covers all the releases together"][
                : len(overlap["totals"]) - 1
            ]
        ),
        "  one name for them from now on: dpmf fit --population NAME",
        "  equal ids are taken for one person; where they are different people: --different-people",
    ]


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text,
        110,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _total_lines(total: Mapping[str, Any]) -> list[str]:
    count = f"{total['releases']} release{'s' if total['releases'] != 1 else ''}"
    if total["status"] == "none":
        return [f"  total: NO GUARANTEE, {count}: one without a guarantee leaves none"]
    epsilon = (
        "NO FINITE EPSILON"
        if total["epsilon"] == math.inf
        else f"ε = {printed(total['epsilon'])} (rounded up)"
    )
    claim = {"proved": "", "claimed": ", claimed and NOT proved"}.get(
        total["status"], f", {total['status']}"
    )
    first = (
        f"  total: {epsilon} at δ = {printed_delta(total['delta'])}, unit: one {total['unit']},"
        f" {count}{claim}"
    )
    return [first, f"         {total['relation']}"]


def render_add(result: Mapping[str, Any]) -> str:
    entry = result["entry"]
    return (
        f"{entry['population']}: {entry['headline']}\nentered in {result['ledger']}; "
        f"all of it: dpmf budget show {shlex.quote(entry['population'])}"
    )
