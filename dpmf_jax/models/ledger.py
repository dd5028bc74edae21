"""The ledger of releases on this machine: one file of JSON lines (`accounting.ledger`).

It holds a hash of the ratings and a sample of hashed user ids (`accounting.people`), so it is the
curator's: mode 0600, in a folder of mode 0700 where this program makes the folder.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting import guards, people
from accounting.ledger import Entry, parse, to_line
from dpmf_jax.errors import DataError, PrivacyError, UsageError, usage_errors

if TYPE_CHECKING:
    from dpmf_jax.models.model import Model


class Entered(UsageError):
    """The release is in the ledger already."""


def record(
    model: Path | Model,
    *,
    data_set: str | None = None,
    data_hash: str | None = None,
    population: str | None = None,
    ledger: Path | None = None,
) -> Entry:
    """Enters the release of a model in the ledger and returns its `accounting.ledger.Entry`.

    The model does not change. A failure leaves the ledger as it was. A model in memory that is
    saved later is the same release.

    Args:
      model: its folder, or a model in memory.
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

    loaded = model if isinstance(model, models.Model) else models.load(model)
    folder = loaded.path
    where = "the model in memory" if folder is None else str(folder)
    if loaded.guarantee.seeded:
        raise PrivacyError(
            "a seeded experiment is not a release, and has no place in the ledger",
            where=where,
            fix=(
                "fit without --seed what is to be released; if this was shown to anyone, no epsilon"
                " holds for it"
            ),
        )
    released = None if folder is None else folder / models.RELEASE
    if not loaded.released_arrays or (released is not None and not released.exists()):
        raise UsageError(
            "this model releases nothing, so there is nothing to enter",
            where=where,
            fix="enter models that have a release.safetensors",
        )
    saved = None if folder is None else folder / "private" / "run.json"
    if saved is not None and saved.exists():
        run = storage.read_json(saved)
        data_hash = run.get("ratings") if data_hash is None else data_hash
        population = run.get("command", {}).get("population") if population is None else population
    name = data_set or loaded.settings.get("data")
    if not name:
        raise UsageError(
            "the model does not name its data set", where=where, fix="give --data-set NAME"
        )
    content = (
        storage.array_bytes(loaded.released_arrays) if released is None else released.read_bytes()
    )
    with usage_errors(where=where):
        if population is not None:
            guards.line("population", population)
        entry = Entry(
            id=hashlib.sha256(content).hexdigest(),
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            population=population or name,
            data_set=name,
            data_hash=data_hash,
            guarantee=loaded.guarantee,
            model="in memory" if folder is None else str(folder.absolute()),
        )
    return enter(entry, ledger_path(ledger), loaded.users)


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


def enter(entry: Entry, path: Path, users: Iterable[Any] | None = None) -> Entry:
    """Appends an entry by a single write, under a lock, after reading what is there.

    A failure leaves the ledger as it was. The ids of the users are sampled under the key of the
    ledger, which its first entry with a sample draws.
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
                    entry,
                    people=people.sample(users, key=next(known, None) or secrets.token_hex(16)),
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
        raise DataError(f"the ledger is {kind}", where=str(path), fix=NAME_A_FILE)
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
            fix=f"mend that, or {NAME_A_FILE}{again}",
        ) from None


def _entries(content: bytes, path: Path) -> tuple[Entry, ...]:
    try:
        return parse(content.decode())
    except UnicodeDecodeError:
        raise DataError("the ledger is not a text", where=str(path), fix=NAME_A_FILE) from None
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


NAME_A_FILE = "give another file: --ledger FILE.jsonl, or the environment variable DPMF_LEDGER"
