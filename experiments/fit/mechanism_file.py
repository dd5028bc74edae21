"""A mechanism of one's own, `--mechanism FILE.py:NAME`, declared as those of the table are.

NAME is a `Spec`, a `Mechanism`, or a function of public sizes that returns one.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmf_jax.errors import DpmfError, UsageError
from dpmf_jax.mechanisms import table
from dpmf_jax.mechanisms.spec import AnyFlags, Spec

if TYPE_CHECKING:
    from types import ModuleType

    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.protocol import Mechanism, Phase

_NAMED = re.compile(r"(?P<file>.+\.py):(?P<name>.*)")
SIZES = ("num_users", "num_items", "rating_range")  # what a function may ask for, by these names
_FIX = "dpmf audit DATA --mechanism my_file.py:my_mechanism"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnFlags(AnyFlags):
    """What a mechanism can be told that declares no flags."""

    steps: int = 10
    """Steps of the runs, and of the claim."""


def is_file(mechanism: str) -> bool:
    """Whether `--mechanism` names a file, with or without a name in it."""
    return mechanism.endswith(".py") or _NAMED.fullmatch(mechanism) is not None


def declared(mechanism: str) -> Spec:
    """The `Spec` of a mechanism: of the table, or of the file that is named. Runs that file, and
    again when it has changed.

    Raises: KeyError for a name that is not in the table; UsageError for a file that is not there or
      ends in an error, and for what is no mechanism.
    """
    if not is_file(mechanism):
        return table()[mechanism]
    path = Path(mechanism.rpartition(":")[0]).expanduser().resolve()
    return _spec(mechanism, path, path.read_bytes() if path.is_file() else None)


@functools.lru_cache(maxsize=16)
def _spec(mechanism: str, path: Path, content: bytes | None) -> Spec:
    """Of this very file: another folder's, or the same one edited, is run anew."""
    del path, content
    named = _NAMED.fullmatch(mechanism)
    if named is None or not named["name"]:
        raise UsageError(
            "--mechanism FILE.py:NAME names what is on trial; no name is given",
            where=f"--mechanism {mechanism}",
            fix=f"--mechanism {mechanism.rstrip(':')}:NAME",
        )
    file, name = Path(named["file"]).expanduser(), named["name"]
    found = _attribute(_module(file), name, file)
    if isinstance(found, Spec):
        return dataclasses.replace(found, name=mechanism)
    return _declared_here(mechanism, _maker(found, file, name))


def _module(file: Path) -> ModuleType:
    """The file, run. It finds what lies beside it."""
    if not file.is_file():
        raise UsageError("there is no such file", where=str(file), fix=_FIX)
    spec = importlib.util.spec_from_file_location(f"mechanism_file_{file.stem}", file.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except DpmfError:
        raise
    except Exception as error:  # a stranger's code may raise anything; it is told, with its line
        raise _failed("the file", error, file) from error
    return module


def _attribute(module: ModuleType, name: str, file: Path) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    names = [one for one in vars(module) if not one.startswith("_")]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0) or ["my_mechanism"]
    raise UsageError(
        f"there is no {name!r} in the file",
        where=str(file),
        fix=f"--mechanism {file}:{near[0]}",
    )


def _maker(found: Any, file: Path, name: str) -> Callable[..., Any]:
    """A function of some of `SIZES`, by name.

    Raises: UsageError where `found` is no mechanism and no function, or asks for something else.
    """
    from dpmf_jax.protocol import Mechanism

    if isinstance(found, Mechanism):
        return lambda **sizes: found
    fix = f"{name}: a Mechanism, or a function of some of {', '.join(SIZES)} that returns one"
    if not callable(found) or isinstance(found, type):
        kind = "a class" if isinstance(found, type) else f"a {type(found).__name__}"
        raise UsageError(f"{name} is {kind}, no mechanism", where=str(file), fix=fix)
    parameters = inspect.signature(found).parameters.values()
    everything = any(one.kind is one.VAR_KEYWORD for one in parameters)
    unknown = [
        one.name
        for one in parameters
        if one.name not in SIZES
        and one.default is one.empty
        and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    if unknown:
        raise UsageError(
            f"{name} asks for {', '.join(unknown)}; a mechanism is made of public sizes",
            where=str(file),
            fix=fix,
        )
    names = [one.name for one in parameters]
    wanted = [size for size in SIZES if everything or size in names]

    def make(**sizes: Any) -> Any:
        try:
            made = found(**{one: sizes[one] for one in wanted})
        except DpmfError:
            raise
        except Exception as error:  # likewise
            raise _failed(name, error, file) from error
        if not isinstance(made, Mechanism):
            raise UsageError(
                f"{name} returns a {type(made).__name__}, no mechanism", where=str(file), fix=fix
            )
        return made

    return make


def _declared_here(mechanism: str, make: Callable[..., Mechanism]) -> Spec:
    def settings(name: str, flags: Any, ratings: Ratings, public: Any) -> dict[str, Any]:
        del name, public
        if flags.steps < 1:
            raise UsageError(f"--steps must be at least 1; got {flags.steps}", fix="--steps 10")
        return {
            "steps": flags.steps,
            "num_users": ratings.num_users,
            "num_items": ratings.num_items,
            "rating_range": list(ratings.rating_range),
        }

    def phases(settings: Mapping[str, Any], public: Any) -> tuple[Phase, ...]:
        del public
        sizes = {name: settings[name] for name in SIZES}
        sizes["rating_range"] = tuple(sizes["rating_range"])
        return ((make(**sizes), settings["steps"]),)

    def control(made: Mechanism) -> Mechanism:
        from dpmf_jax.mechanisms.silent import silent

        return silent(made)

    return Spec(
        name=mechanism,
        paper="ours",
        flags=OwnFlags,
        settings=settings,
        phases=phases,
        control=control,
        access="in order",  # nothing is known of it
    )


def _failed(what: str, error: Exception, file: Path) -> UsageError:
    """An error whose place is the last line of the stranger's file that it went through."""
    from dpmf_jax.parts import first_line

    path = str(file.resolve())
    lines = [
        one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == path
    ]
    line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
    return UsageError(
        f"{what} ends in {first_line(error)}",
        where=str(file) if line is None else f"{file}:{line}",
        fix="mend it; --debug shows the whole traceback",
    )
