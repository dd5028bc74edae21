"""The store of runs: a file each under `private/`, named by a hash of the run's settings, so that a
run is trained once.

A file also holds the settings themselves: where two settings share a hash, neither gets the other's
numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from dpmf_jax.models import storage
from experiments.cli import console

Run = TypeVar("Run")
Measured = TypeVar("Measured")


def locked(store: Path) -> AbstractContextManager[None]:
    """Keeps other processes out of the store: two would undo each other's runs.

    Raises: UsageError where another process is at work in it.
    """
    return storage.lock(storage.private_folder(store))


def as_json(settings: Any) -> Any:
    """Settings as a JSON file gives them back: lists for tuples, strings for keys."""
    return json.loads(json.dumps(settings))


def digest(settings: Any, digits: int = 16) -> str:
    """The first hexadecimal digits of the SHA-256 of settings."""
    text = json.dumps(as_json(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def path_of(store: Path, kind: str, settings: Any, suffix: str = ".json") -> Path:
    """Where a run with these settings is kept. kind: how the file's name begins."""
    return storage.private_folder(store) / f"{kind}-{digest(settings)}{suffix}"


def read(
    store: Path, kind: str, settings: Any, *, label: str = "settings"
) -> dict[str, Any] | None:
    """What is kept of a run, None where nothing is. label: the file's name for the settings."""
    path = path_of(store, kind, settings)
    if not path.exists():
        return None
    kept = storage.read_json(path)
    return kept if kept[label] == as_json(settings) else None


def write(
    store: Path, kind: str, settings: Any, content: Mapping[str, Any], *, label: str = "settings"
) -> None:
    """Keeps what a run gave; numbers that are not finite become strings."""
    kept = {label: as_json(settings), **console.plain(content)}
    storage.write_json(path_of(store, kind, settings), kept, private=True)


def collect(
    runs: Iterable[Run],
    read: Callable[[Run], Measured | None],
    train: Callable[[list[Run]], Iterator[tuple[Run, Measured]]],
    keep: Callable[[Run, Measured], None],
) -> dict[Run, Measured]:
    """What each run gave: read where it is kept, else trained, and kept as soon as it is done.

    train: may yield runs beside those that are missing, such as those that they start from.
    """
    collected: dict[Run, Measured] = {}
    missing = []
    for run in dict.fromkeys(runs):
        kept = read(run)
        if kept is None:
            missing.append(run)
        else:
            collected[run] = kept
    for run, measured in train(missing) if missing else ():
        keep(run, measured)
        collected[run] = measured
    return collected
