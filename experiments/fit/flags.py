"""The flags that commands share which train or audit: which ratings, which mechanism."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms import table
from dpmf_jax.training.resolve import DEFAULT, IMPLICIT, spec_named
from experiments.cli.reading import RepairFlags
from experiments.fit import mechanism_file

_HELP = f"One of {', '.join(table())}. Each has flags of its own, see --mechanism NAME --help."


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatingsFlags(RepairFlags):
    """How the ratings to train on or to audit are found and read."""

    split: str | None = None
    """Official split, such as u1, whose training part is used. [none]"""
    slice: Literal["paper001"] | None = None
    """Keep users with 201 to 2,499 ratings, then items with more than 100. [all]"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismFlag:
    """The mechanism, whose `Spec` has flags of its own."""

    HEADING: ClassVar = "the mechanism"
    NAMED: ClassVar[bool] = True  # whether somebody chose it
    FILES: ClassVar[bool] = False  # whether it may be of a file, see `mechanism_file`

    mechanism: str = DEFAULT

    @classmethod
    def narrowed(cls, words: Sequence[str], chosen: Mapping[str, Any]) -> Any:
        """This command with the flags of the mechanism that a command line or settings file names.

        Raises: UsageError for a mechanism that is not known, and for a flag that other mechanisms
          have.
        """
        named = _mechanism_name(words, chosen, _mechanism_of(cls.earlier(words)))
        implicit = "--implicit" in words or chosen.get("implicit") is True
        mechanism = (IMPLICIT if implicit else DEFAULT) if named is None else named
        kind = with_flags_of(cls, mechanism, named=named is not None)
        given = [
            word.partition("=")[0][2:].replace("-", "_") for word in words if word.startswith("--")
        ]
        _check_meant(mechanism, {*given, *(name.replace("-", "_") for name in chosen)}, kind)
        return kind

    @classmethod
    def earlier(cls, words: Sequence[str]) -> Path | None:
        """The folder of an earlier run whose mechanism this command takes, if any."""
        del words
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
class ItemFeatures:
    """Public features of the items."""

    HEADING: ClassVar = MechanismFlag.HEADING

    item_features: Path | None = None
    """File of public item features: csv, tsv or parquet (item id, then columns of numbers or of
    categories), or MovieLens' movies.dat, movies.csv or u.item; movielens is the file beside the
    ratings of a named data set, lifelike are those that `lifelike` ratings are generated with.
    Everybody weighs them alone, at no price. [none]
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicFiles(PublicItems, PublicUsers, ItemFeatures):
    """Public factors of items or users, and features of items."""


PUBLIC = {
    "items": (PublicItems,),
    "users": (PublicUsers,),
    "item_features": (ItemFeatures,),
    None: (),
}


def public_file(command: Any) -> Path | None:
    """The file of public factors or features that a command names, if any.

    Raises: DataError for `--item-features movielens` of a data set that has no such file.
    """
    side = mechanism_file.declared(command.mechanism).public
    named = getattr(command, side) if side else None
    if side == "item_features" and named == Path("movielens"):
        from dpmf_jax.data import features

        return features.published(str(command.data), command.data_dir)
    return named


def with_flags_of(command: type, mechanism: str, *, named: bool = True) -> Any:
    """The dataclass of a command with the flags of one mechanism: the mechanism's, then its own.

    named: whether somebody chose it.

    Raises: UsageError for a mechanism that is not known, and for a file where the command takes
      none, or that holds no mechanism.
    """
    if not mechanism:
        raise UsageError("--mechanism needs a name", fix=f"--mechanism {DEFAULT}")
    of_a_file = mechanism_file.is_file(mechanism)
    if of_a_file and not getattr(command, "FILES", False):
        raise UsageError(
            f"--mechanism {mechanism} names a file, which `dpmf audit` alone takes",
            where=f"--mechanism {mechanism}",
            fix=f"name one of {', '.join(table())}",
        )
    if not of_a_file:
        spec_named(mechanism)
    return _joined(command, mechanism, named)


@functools.cache
def _joined(command: type, mechanism: str, named: bool) -> Any:
    spec = mechanism_file.declared(mechanism)
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
            *PUBLIC[spec.public],
            spec.flags,
            MechanismFlag,
        ),
        namespace={
            "__doc__": command.__doc__,
            "DEFAULTS": spec.defaults,
            "NAMED": named,
        },
        frozen=True,
        kw_only=True,
    )


def _mechanism_name(
    words: Sequence[str], chosen: Mapping[str, Any], earlier: str | None
) -> str | None:
    """The mechanism of a command line, else of its settings file, else of the earlier run."""
    named = chosen.get("mechanism") or earlier
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        if word == "--mechanism":
            named = following
        elif word.startswith("--mechanism="):
            named = word.partition("=")[2]
    return None if named is None else str(named)


def _mechanism_of(folder: Path | None) -> str | None:
    """The mechanism of an interrupted run or a saved model; None where the folder holds neither."""
    if folder is None:
        return None
    for file, part in (("private/run.json", "command"), ("model.json", "settings")):
        # The command itself says what is wrong with the folder.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            saved = json.loads((folder / file).read_bytes())[part]["mechanism"]
            if saved in table():
                return saved
    return None


def _check_meant(mechanism: str, names: Iterable[str], kind: Any) -> None:
    """Checks flags, by the names of their fields.

    Raises: UsageError for one that other mechanisms have and this one lacks.
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
