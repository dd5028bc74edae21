"""The phases of a run from a command's flags, or again from what a saved model keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmf_jax.mechanisms import table
from dpmf_jax.mechanisms.spec import AnyFlags
from dpmf_jax.training import resolve
from experiments.fit.mechanism_file import declared, is_file


def flags(mechanism: str, **values: Any) -> AnyFlags:
    """A mechanism's own flags; those that are not given have their defaults."""
    return declared(mechanism).flags(**values)


def comparisons(
    mechanism: str, flags: AnyFlags, train: Any, settings: Mapping[str, Any], public: Path | None
) -> Mapping[str, Any]:
    """`resolve.comparisons` of a mechanism's name, or of one in a file."""
    return resolve.comparisons(declared(mechanism), flags, train, dict(settings), public)


def phases_and_settings(
    mechanism: str, flags: AnyFlags, train: Any, public: Path | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`resolve.phases_and_settings` of a mechanism's name, or of one in a file."""
    command = "audit" if is_file(mechanism) else "fit"
    return resolve.phases_and_settings(
        declared(mechanism), flags, train, public, name=mechanism, command=command
    )


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Any, ...]:
    """The phases of a run from what model.json keeps.

    Args:
      public: the item or user factors that the run was given, if any.

    Raises: KeyError for a mechanism that is not known; ValueError, PrivacyError for what its
      settings do not allow.
    """
    return table()[settings["mechanism"]].phases(settings, public)


def chosen(command: Any) -> AnyFlags:
    """The mechanism's own flags among those of a command."""
    kind = declared(command.mechanism).flags
    return kind(**{field.name: getattr(command, field.name) for field in dataclasses.fields(kind)})
