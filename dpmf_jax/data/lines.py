"""The bytes of a text file: opened and unpacked, in lines for messages, in blocks for the parser.

What is not text is refused.
"""

import contextlib
import gzip
import io
import itertools
import time
import traceback
import weakref
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dpmf_jax.errors import DataError

Parsed = TypeVar("Parsed")

LONGEST_LINE = 1 << 20  # characters
PATIENCE = 5.0  # seconds that a parser has to give back what it was lent
SEPARATOR = "\x1f"  # stands for a delimiter of several characters, which no fast parser knows

NOT_TEXT = {
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a parquet file",
    b"ARROW1": "an Arrow file",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"\xfd7zXZ": "xz data",
    b"7z\xbc\xaf": "a 7z archive",
    b"BZh": "bzip2 data",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


@contextlib.contextmanager
def opened(path: Path, *, unpack: bool = True) -> Generator[Any, None, None]:
    """The text file as a binary stream, unpacked if it is gzip.

    What goes wrong inside the `with` becomes a DataError.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(6)
            file.seek(0)
            for magic, kind in NOT_TEXT.items():
                if unpack and start.startswith(magic):
                    fix = (
                        "give UTF-8 text (plain or gzip), or parquet under a name that ends in"
                        " .parquet"
                    )
                    raise DataError(f"the file is {kind}, not UTF-8 text", where=str(path), fix=fix)
            if unpack and start.startswith(b"\x1f\x8b"):
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield unpacked
            else:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        what, fix = f"the gzip data is damaged or cut short: {error}", "fetch the file again"
        raise DataError(what, where=str(path), fix=fix) from None
    except OSError as error:
        what, fix = (
            f"the file cannot be read: {error.strerror or error}",
            "name a file that exists and can be read",
        )
        raise DataError(what, where=str(path), fix=fix) from None


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines (from 1) without line ends and without blank lines.

    Slow: for first lines and for messages.
    """
    with opened(path) as file:
        text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline=None)
        for number in itertools.count(1):
            line = text.readline(LONGEST_LINE)
            if not line:
                break
            if line != "\n":
                yield number, line.removesuffix("\n")
        text.detach()


def first_line(path: Path) -> tuple[int, str]:
    """The number of the first line that is not blank, and the line.

    Raises: DataError if the file is empty or is no text.
    """
    number, line = next(lines(path), (0, ""))
    if not line:
        raise DataError("the file is empty", where=str(path), fix="give a file with ratings")
    if "\0" in line:
        raise DataError(
            "the file has NUL bytes, so it is not text",
            where=str(path),
            fix="give UTF-8 text or parquet",
        )
    return number, line


def parsed(file: Any, path: Path, delimiter: str, parse: Callable[[Any], Parsed]) -> Parsed:
    """`parse(stream)` of an opened file's `Blocks`; returns when Arrow has given all of it back.

    Arrow lets go of a stream and of its blocks in threads of its own, some time after it is done,
    and needs Python for that. A program that ends meanwhile, because the file was wrong, would be
    aborted.
    """
    import pyarrow as pa

    lent: list[weakref.ref] = []
    try:
        return parse(pa.PythonFile(Blocks(file, path, delimiter, lent), mode="r"))
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # they have the stream
        raise
    finally:
        until = time.monotonic() + PATIENCE
        while any(what() is not None for what in lent) and time.monotonic() < until:
            time.sleep(1e-3)


class Blocks:
    """A stream for the parser: no NUL bytes, and SEPARATOR for a delimiter of several characters.

    lent: receives weak references to the stream and to every block that is read.
    """

    closed = False

    def __init__(self, file: Any, path: Path, delimiter: str, lent: list[weakref.ref]):
        self.file, self.path, self.lent = file, path, lent
        lent.append(weakref.ref(self))
        self.delimiter = delimiter.encode() if len(delimiter.encode()) > 1 else b""
        self.waiting = b""  # what may be the start of a delimiter that the next block ends

    def read(self, size: int) -> np.ndarray:
        block = self._read(size)
        # bytes have no weak references
        lent = np.frombuffer(block, np.uint8) if block else np.zeros(0, np.uint8)
        self.lent.append(weakref.ref(lent))
        return lent

    def _read(self, size: int) -> bytes:
        block = self.file.read(size)
        if b"\0" in block:
            what, fix = "the file has NUL bytes, so it is not text", "give UTF-8 text or parquet"
            raise DataError(what, where=str(self.path), fix=fix)
        if not self.delimiter:
            return block
        ended, block = not block, self.waiting + block
        whole = len(block) if ended else len(block.rstrip(self.delimiter))
        block, self.waiting = block[:whole], block[whole:]
        if not block and not ended:
            return self._read(size)
        for stray in (self.delimiter + self.delimiter[-1:], SEPARATOR.encode()):
            if stray in block:
                self._refuse(stray.decode())
        return block.replace(self.delimiter, SEPARATOR.encode())

    def _refuse(self, stray: str) -> None:
        number = next((number for number, line in lines(self.path) if stray in line), 0)
        fix = f"separate columns by {self.delimiter.decode()!r} and nothing else"
        raise DataError(f"{stray!r} is no delimiter", where=f"{self.path}, line {number}", fix=fix)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
