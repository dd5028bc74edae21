"""One run of a program that fits, in a folder of its own: all that it leaves and prints."""

from __future__ import annotations

import contextlib
import io
import re
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.models.model import Model

Program = Callable[[Ratings, Path, jax.Array], Model]
NUMBER = re.compile(r"[-+]?(?:\d[\d.,]*(?:e[-+]?\d+)?|nan|inf)", re.IGNORECASE)


class Run(NamedTuple):
    """What one run leaves.

    Attributes:
      model: what was returned.
      files: content and mode by name, of all that stood in the folder.
      log: all that its thread printed, with numbers masked.
      taken: steps done; None where the run does not say.
      priced: steps that the guarantee pays for.
    """

    model: Model
    files: dict[str, tuple[bytes, int]]
    log: str
    taken: int | None
    priced: int

    @property
    def public(self) -> dict[str, bytes]:
        """The content of what lies outside private/, by name."""
        return {
            name: content
            for name, (content, _) in self.files.items()
            if not name.startswith("private/")
        }


def run(program: Program, ratings: Ratings, key: jax.Array, priced: Callable[[Model], int]) -> Run:
    """One call of the program, in a temporary folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "run"
        with _listening() as printed:
            model = program(ratings, folder, key)
        files = {
            path.relative_to(folder).as_posix(): (
                path.read_bytes(),
                stat.S_IMODE(path.stat().st_mode),
            )
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        log = NUMBER.sub("#", printed.getvalue().replace(base, ""))
    lines = [content for name, (content, _) in files.items() if name.endswith("metrics.jsonl")]
    taken = lines[0].count(b"\n") if lines else (model.metrics or {}).get("steps")
    return Run(model, files, log, taken, priced(model))


class _Overheard(io.TextIOBase):
    """A stream that keeps what one thread writes.

    What other threads write, such as a progress bar, goes on to where it went before.
    """

    def __init__(self, kept: io.StringIO, usual: Any):
        self._kept, self._usual, self._thread = kept, usual, threading.get_ident()

    def _stream(self) -> Any:
        return self._kept if threading.get_ident() == self._thread else self._usual

    def write(self, text: str, /) -> int:
        return self._stream().write(text)

    def flush(self) -> None:
        self._stream().flush()

    def isatty(self) -> bool:
        return self._stream().isatty()

    def fileno(self) -> int:
        return self._stream().fileno()


_ONE_LISTENER = threading.Lock()  # there is one sys.stdout for all threads


@contextlib.contextmanager
def _listening() -> Generator[io.StringIO]:
    printed = io.StringIO()
    with (
        _ONE_LISTENER,
        contextlib.redirect_stdout(_Overheard(printed, sys.stdout)),
        contextlib.redirect_stderr(_Overheard(printed, sys.stderr)),
    ):
        yield printed
