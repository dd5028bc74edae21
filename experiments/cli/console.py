"""What a command says, where, and how it ends: results on stdout, all else on stderr, exit codes.

Exit codes: 0 done, 1 a bug or a broken machine, 2 usage, 3 data, 4 privacy or environment
precondition, 5 audit violated, 6 reproduction outside tolerance, 130 interrupted.

``--json`` prints one object and nothing else on stdout. JSON has no infinities: they are the
strings "inf" and "-inf", not-a-number is "nan", and ``float`` reads all three back; null means that
there is no such number.
"""

import dataclasses
import errno
import json as jsonlib
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, NoReturn

from dpmf_jax.errors import DpmfError, UsageError
from dpmf_jax.training.progress import bar, with_names

INTERRUPTED = 130
BROKEN_PIPE = 141  # as the shell reports a program ended by SIGPIPE
PRECONDITION = 4

# The optional extra that brings a package.
EXTRA_OF = {
    "matplotlib": "report",
    "jinja2": "report",
    "torch": "bench",
    "numba": "bench",
    "implicit": "bench",
    "surprise": "bench",
    "lenskit": "lenskit",
    "jsonschema": "report",
    "pytest": "test",
    "hypothesis": "test",
    "mpmath": "report",
}


# Whether a failure must end the process at once, without waiting for anything at exit.
abrupt: bool = False


def own_stdout() -> None:
    """Keeps stdout for what Python prints: libraries below it, such as Gloo, print there too."""
    sys.stdout.flush()
    ours, encoding, errors = os.dup(sys.stdout.fileno()), sys.stdout.encoding, sys.stdout.errors
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stdout = open(ours, "w", encoding=encoding, errors=errors)  # noqa: SIM115


def mute() -> None:
    """Silences this process, where another one speaks."""
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def unmute() -> None:
    """Undoes `mute`."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


# ---- results -------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: dicts, lists, strings, finite numbers, booleans and None."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(part) for part in value)
    if hasattr(value, "tolist"):  # NumPy and jax, scalars and arrays
        return plain(value.tolist())
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in a result: {value!r}")


def emit(
    result: Mapping[str, Any], *, json: bool, render: Callable[[Mapping[str, Any]], Any]
) -> None:
    """Prints a result on stdout: one JSON object if ``json``, else whatever ``render`` makes of it.

    Args:
      result: the result, names to values; see `plain` for what a value may be.
      json: the command's ``--json``.
      render: makes a string, or anything rich can print, out of ``result``; not called for JSON.
    """
    if json:
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        print(jsonlib.dumps(plain(result), allow_nan=False, ensure_ascii=not utf8))
        return
    shown = render(result)
    if isinstance(shown, str):
        print(shown)
    else:
        from rich.console import Console

        Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 120).print(
            shown
        )


# ---- progress and messages -----------------------------------------------------------------------


def say(message: str) -> None:
    """One message for the person at the keyboard, on stderr."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def progress(
    label: str, total: int, *, every: float = 5.0
) -> Generator[Callable[..., None], None, None]:
    """Shows progress on stderr: a bar on a terminal, else a plain line now and then.

    Args:
      label: what is being done.
      total: how much there is of it.
      every: least seconds between plain lines; the last step always gets one.

    Yields:
      ``report(done, **values)``: how much is done, and numbers to show beside it, such as
      ``rmse=0.93, epsilon=1.2``.
    """
    if sys.stderr.isatty():
        with bar(label, total) as report:
            yield report
        return
    last = time.monotonic()

    def report(done: int, **values: Any) -> None:
        nonlocal last
        if done < total and time.monotonic() - last < every:
            return
        last = time.monotonic()
        say(f"{label}: {done}/{total} {with_names(values)}".rstrip())

    yield report


# ---- ends ----------------------------------------------------------------------------------------


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a run that was saved; ``resume`` is the command that goes on with it."""

    def __init__(self, resume: str = ""):
        super().__init__()
        self.resume = resume


def print_error(what: str, *, where: str = "", fix: str = "") -> None:
    """`error_text` on stderr."""
    say(error_text(what, where=where, fix=fix))


def error_text(what: str, *, where: str = "", fix: str = "") -> str:
    """Three lines, ``error:``, ``where:`` and ``fix:``; the ones without content are left out."""
    parts = (("error", what), ("where", where), ("fix", fix))
    return "\n".join(f"{_coloured(name)}: {' '.join(text.split())}" for name, text in parts if text)


def _coloured(name: str) -> str:
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return name
    return f"\x1b[1;{'31' if name == 'error' else '36'}m{name}\x1b[0m"


def end(error: BaseException, *, debug: bool) -> int:
    """Says how the command ended and returns its exit code, with a traceback if ``debug``."""
    if isinstance(error, BrokenPipeError):
        # Python flushes stdout once more on the way out; there is nobody to read it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    if debug:
        traceback.print_exception(error)
    match error:
        case KeyboardInterrupt():
            print_error("interrupted", fix=_resume(error))
            return INTERRUPTED
        case DpmfError():
            print_error(error.what, where=error.where, fix=error.fix)
            return error.exit_code
        case ModuleNotFoundError(name=str(name)) if (package := name.partition(".")[0]) in EXTRA_OF:
            print_error(
                f"{package} is not installed", fix=f"pip install 'dpmf-jax[{EXTRA_OF[package]}]'"
            )
            return PRECONDITION
        case FloatingPointError():  # a run that diverged; what follows the semicolon is the remedy
            what, _, fix = str(error).partition("; ")
            print_error(what, fix=fix)
        case OSError(
            errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG, strerror=str(reason), filename=filename
        ):
            print_error(
                reason,
                where=str(filename or ""),
                fix="free some space or write elsewhere, then run it again",
            )
            return PRECONDITION
        case OSError(strerror=str(reason), filename=filename):
            print_error(reason, where=str(filename or ""), fix=_DEBUG)
        case MemoryError():
            print_error(
                "out of memory", fix="use fewer ratings, a smaller rank, or a larger machine"
            )
        case _:
            print_error(f"{type(error).__name__}: {error}".rstrip(": "), fix=_DEBUG)
    return 1


_DEBUG = "run again with --debug for the traceback"


def _resume(error: BaseException) -> str:
    command = getattr(error, "resume", "")
    return f"resume with: {command}" if command else ""


def refuse(what: str, *, where: str = "", fix: str = "") -> NoReturn:
    """Raises a `UsageError`."""
    raise UsageError(what, where=where, fix=fix)
