"""The help of a command: its flags by group, each with its default, read off its dataclass."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import pathlib
import shutil
import textwrap
import types
import typing
from typing import Any, Literal

import tyro

COLUMN = 24  # where the text on a flag begins
WIDEST = 100  # columns
KINDS = {int: "INT", float: "FLOAT", str: "TEXT", pathlib.Path: "PATH"}
ARGUMENTS, FLAGS = "arguments", "flags"


def text(name: str, command: Any, defaults: Any, more: str) -> str:
    """The help of a command, at most `WIDEST` columns wide.

    Args:
      name: the words that start it, such as "dpmf fit".
      command: its dataclass. A flag stands under the `HEADING` of the class that declares it. What
        a flag of None means is in `DEFAULTS` of the command, by field, or in its text.
      defaults: has the default of each field as an attribute.
      more: a paragraph below the description.
    """
    width = min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)
    hints, documented = typing.get_type_hints(command, include_extras=True), _documented(command)
    groups: dict[str, list[str]] = {ARGUMENTS: [], FLAGS: []}
    places = []
    for field in dataclasses.fields(command):
        heading, about = documented.get(field.name, (FLAGS, ""))
        marks = getattr(hints[field.name], "__metadata__", ())
        metavar = _setting(marks, "metavar") or _metavar(hints[field.name])
        shown = f"--{field.name.replace('_', '-')} {metavar}".rstrip()
        if tyro.conf.Positional in marks:
            heading, shown = ARGUMENTS, metavar
            places.append(metavar)
        value = getattr(defaults, field.name)
        value = getattr(command, "DEFAULTS", {}).get(field.name) if value is None else value
        about = f"{_setting(marks, 'help') or about}{_default(value)}"
        groups.setdefault(heading, []).append(_entry(shown, about, width))
    lines = [f"usage: {' '.join([name, '[flags]', *places])}", ""]
    for paragraph in (*(inspect.getdoc(command) or "").split("\n\n"), more):
        lines += [textwrap.fill(paragraph, width), ""]
    for heading, entries in groups.items():
        if entries:
            lines += [f"{heading}:", *entries, ""]
    return "\n".join(lines).rstrip()


def _documented(command: type) -> dict[str, tuple[str, str]]:
    """(heading, the string below the field) by name of the field; a class wins over its bases."""
    found: dict[str, tuple[str, str]] = {}
    for kind in reversed(command.__mro__):
        if not dataclasses.is_dataclass(kind):
            continue
        heading = FLAGS if kind.__name__ == command.__name__ else getattr(kind, "HEADING", FLAGS)
        for name, about in _strings(kind).items():
            found[name] = (found[name][0] if name in found else heading, about)
    return found


def _strings(kind: type) -> dict[str, str]:
    """The string below each field that a class declares; none where it has no source."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):
        return dict.fromkeys(kind.__annotations__, "")
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(below.value.value.split())
        for field, below in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def _setting(marks: tuple[Any, ...], name: str) -> str | None:
    return next((found for mark in marks if (found := getattr(mark, name, None))), None)


def _metavar(kind: Any) -> str:
    """What to write after a flag of a type: "" for one that is either there or not."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _metavar(parts[0])
    if origin is Literal:
        return f"{{{','.join(map(str, parts))}}}"
    if origin in (typing.Union, types.UnionType):
        return "|".join(_metavar(part) for part in parts if part is not types.NoneType)
    if origin is tuple and parts[-1] is Ellipsis:
        return f"{_metavar(parts[0])} [{_metavar(parts[0])} ...]"
    if origin is tuple:
        return " ".join(map(_metavar, parts))
    return KINDS.get(kind, "")


def _default(value: Any) -> str:
    if value is tyro.MISSING:
        return " [required]"
    if value is None or value is False or value == () or value == "":
        return ""
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return f" [{shown}]"


def _entry(shown: str, about: str, width: int) -> str:
    return textwrap.fill(
        about,
        width,
        initial_indent=f"  {shown}  ".ljust(COLUMN),
        subsequent_indent=" " * COLUMN,
        break_on_hyphens=False,
        break_long_words=False,
    )
