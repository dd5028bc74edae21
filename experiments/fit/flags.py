"""The flags that commands share which train or audit: which ratings, which mechanism."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms import table
from experiments.cli.reading import RepairFlags

DEFAULT = "gaussian-joint-noise"
_HELP = f"One of {', '.join(table())}. Each has flags of its own, see --mechanism NAME --help."


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatingsFlags(RepairFlags):
    """How the ratings to train on or to audit are found and read."""

    split: str | None = None
    """Official split of the data set, such as u1, whose training part is used. [none]"""
    slice: Literal["paper001"] | None = None
    """Keep users with 201 to 2,499 ratings, then items with more than 100. [keep all]"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismFlag:
    """Which mechanism; its own flags are those of its `Spec`."""

    HEADING: ClassVar = "the mechanism"

    mechanism: str = DEFAULT

    @classmethod
    def narrowed(cls, words: Sequence[str], chosen: Mapping[str, Any]) -> Any:
        """This command with the flags of the mechanism that the words or a settings file name.

        Raises: UsageError for a mechanism that is not known, and for a flag that other mechanisms
          have.
        """
        mechanism = _named(words, chosen, _mechanism_of(cls.earlier(words)))
        kind = with_flags_of(cls, mechanism)
        given = [
            word.partition("=")[0][2:].replace("-", "_") for word in words if word.startswith("--")
        ]
        _check_meant(mechanism, {*given, *(name.replace("-", "_") for name in chosen)}, kind)
        return kind

    @classmethod
    def earlier(cls, words: Sequence[str]) -> Path | None:
        """The folder of an earlier run that this command is about; its mechanism is then this
        one's.
        """
        del words  # of most commands there is none
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicItems:
    """Public factors of the items."""

    HEADING: ClassVar = MechanismFlag.HEADING

    items: Path | None = None
    """File of public item factors: csv (item id, then a column for each factor), npy or
    safetensors. [one constant column]
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicUsers:
    """Public factors of the users."""

    HEADING: ClassVar = MechanismFlag.HEADING

    users: Path | None = None
    """File of public user factors: csv (user id, then a column for each factor), npy or
    safetensors. Rows longer than 1 are scaled to 1. [random rows]
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicFiles(PublicItems, PublicUsers):
    """Both."""


PUBLIC = {"items": (PublicItems,), "users": (PublicUsers,), None: ()}


def public_file(command: Any) -> Path | None:
    """The file of public factors that a command names."""
    side = table()[command.mechanism].public
    return getattr(command, side) if side else None


def with_flags_of(command: type, mechanism: str) -> Any:
    """The dataclass of a command with the flags of one mechanism; its fields are the mechanism's,
    then the command's.

    Raises: UsageError for a mechanism that is not known.
    """
    if not mechanism:
        raise UsageError("--mechanism needs a name", fix=f"--mechanism {DEFAULT}")
    if mechanism not in table():
        nearest = difflib.get_close_matches(mechanism, table(), n=1, cutoff=0.0)[0]
        raise UsageError(
            f"there is no mechanism {mechanism!r}; there are {', '.join(table())}",
            where=f"--mechanism {mechanism}",
            fix=f"--mechanism {nearest}",
        )
    return _joined(command, mechanism)


@functools.cache
def _joined(command: type, mechanism: str) -> Any:
    return dataclasses.make_dataclass(
        command.__name__,
        [
            (
                "mechanism",
                Annotated[str, tyro.conf.arg(metavar="NAME", help=_HELP)],
                dataclasses.field(default=mechanism),
            )
        ],
        bases=(
            command,
            *PUBLIC[table()[mechanism].public],
            table()[mechanism].flags,
            MechanismFlag,
        ),
        namespace={"__doc__": command.__doc__, "DEFAULTS": table()[mechanism].defaults},
        frozen=True,
        kw_only=True,
    )


def _named(words: Sequence[str], chosen: Mapping[str, Any], earlier: str | None) -> str:
    """The mechanism that a command line names, else its settings file, else the earlier run, else
    the default.
    """
    found = chosen.get("mechanism") or earlier or DEFAULT
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        if word == "--mechanism":
            found = following
        elif word.startswith("--mechanism="):
            found = word.partition("=")[2]
    return str(found)


def _mechanism_of(folder: Path | None) -> str | None:
    """The mechanism of an interrupted run or a saved model; None where the folder holds neither."""
    for file, part in (("private/run.json", "command"), ("model.json", "settings")):
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError
        ):  # the command says what is wrong with it
            found = (
                None
                if folder is None
                else json.loads((folder / file).read_bytes())[part]["mechanism"]
            )
            if found in table():
                return found
    return None


def _check_meant(mechanism: str, names: Iterable[str], kind: Any) -> None:
    """Raises: UsageError for a flag, by the name of its field, that other mechanisms have and this
    one has not.
    """
    for name in sorted(set(names) - _names(kind)):
        others = [
            spec.name
            for spec in table().values()
            if name in _names(spec.flags) or name == spec.public
        ]
        if others:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} means nothing to --mechanism {mechanism}; it goes with"
                f" {', '.join(others)}",
                fix=f"leave out {flag}",
            )


def _names(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}
