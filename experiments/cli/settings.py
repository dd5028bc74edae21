"""Strict settings files: TOML whose names are a command's flags; explicit flags win over the file.

# fit.toml, for: dpmf fit --config fit.toml --steps 100
data = "ml-1m"
mechanism = "gaussian"
rating-range = [1, 5]
"""

import dataclasses
import difflib
import os
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, Literal

from dpmf_jax.errors import UsageError


def load(path: Path, command: Any) -> dict[str, Any]:
    """The settings in a TOML file, by field of ``command``, each of the field's type.

    Args:
      path: the file.
      command: a dataclass, the class itself; ``rating_range`` is written ``rating-range`` or
        ``rating_range``.

    Raises:
      UsageError: no such file, no TOML, a name that is no field (with the nearest that is), a value
        of another type.
    """
    found = read(path)
    kinds = typing.get_type_hints(command, include_extras=True)
    names = [field.name for field in dataclasses.fields(command) if field.init]
    settings = {}
    for written, value in found.items():
        name = written.replace("-", "_")
        if name not in names and isinstance(value, dict):
            raise UsageError(
                f"`[{written}]` begins a table, and settings stand in none",
                where=str(path),
                fix=f"take the line [{written}] out; the settings below it stay",
            )
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
            raise UsageError(
                f"unknown setting `{written}`",
                where=str(path),
                fix=f"did you mean `{nearest.replace('_', '-')}`?",
            )
        if name in settings:
            raise UsageError(
                f"the setting `{written}` is there twice",
                where=str(path),
                fix="keep one of the two spellings",
            )
        try:
            settings[name] = convert(value, kinds[name])
        except TypeError as error:
            raise UsageError(
                f"`{written}` {error}", where=str(path), fix=f"not {value!r}"
            ) from error
    return settings


def read(path: Path) -> dict[str, Any]:
    """The content of a TOML file, under its own names.

    Raises: UsageError: no such file, no TOML.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read the settings file: {error.strerror}",
            where=str(path),
            fix="give --config the name of a TOML file",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the settings file is not TOML: {error}",
            where=str(path),
            fix="write lines such as: steps = 100",
        ) from error
    return found


def with_defaults(command: Any, settings: dict[str, Any], missing: Any) -> Any:
    """An instance for a parser to take defaults from.

    A field has its value in ``settings``, else its default, else ``missing``. ``__post_init__``
    does not run: a parser's defaults need not make sense together yet.
    """
    instance = object.__new__(command)
    for field in dataclasses.fields(command):
        if field.name in settings:
            value = settings[field.name]
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            value = missing
        object.__setattr__(instance, field.name, value)
    return instance


def convert(value: Any, kind: Any) -> Any:
    """A TOML value as the annotation ``kind`` wants it.

    Raises:
      TypeError: it is of another type; the message says what is wanted.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return convert(value, parts[0])
    if origin in (typing.Union, types.UnionType):
        for part in parts:
            try:
                return convert(value, part)
            except TypeError:
                continue
    elif origin is Literal:
        for choice in parts:
            if type(choice) is type(value) and choice == value:
                return choice
    elif origin in (tuple, list) and isinstance(value, list):
        if origin is list or parts[-1] is Ellipsis:
            return origin(convert(part, parts[0]) for part in value)
        if len(parts) == len(value):
            return tuple(convert(part, wanted) for part, wanted in zip(value, parts, strict=True))
    elif kind is float and type(value) is int:
        return float(value)
    elif isinstance(kind, type) and issubclass(kind, os.PathLike) and isinstance(value, str):
        return Path(value).expanduser()
    elif type(value) is kind:
        return value
    raise TypeError(f"must be {describe(kind)}")


def describe(kind: Any) -> str:
    """An annotation as a settings file writes it, such as "a whole number"."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return describe(parts[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(part) for part in parts if part is not types.NoneType)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in parts)
    if origin in (tuple, list):
        return f"[{', '.join('...' if part is Ellipsis else describe(part) for part in parts)}]"
    words = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    if isinstance(kind, type) and issubclass(kind, os.PathLike):
        return "a path"
    return words.get(kind, str(kind))
