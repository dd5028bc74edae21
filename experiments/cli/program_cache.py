"""Compiled programs on disk: a command takes those that an earlier one compiled.

A program depends on the sizes of the ratings, and on no rating and no key
(`tests/experiments/cli/test_program_cache.py`). Whoever can write to the folder decides what
the next command runs, so one that others could write to is not used.
"""

import hashlib
import itertools
import os
import platform
import stat
import warnings
from contextlib import suppress
from pathlib import Path

ROOM = 2**29  # bytes; beyond, what was compiled first goes


def keep() -> None:
    """Has jax keep what this process and its children compile. Called before jax is imported.

    Does nothing where `JAX_COMPILATION_CACHE_DIR` names a folder, or where there is none to use.
    """
    # A command that was killed may have left half a program. It is compiled again.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation")
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = default_folder()
    if not _made_for_us_alone(folder):
        return
    _make_room(folder)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def default_folder() -> Path:
    """dpmf/programs in $XDG_CACHE_HOME or ~/.cache, and in it one for each kind of processor: home
    folders are shared by machines, and what was compiled for one may not run on another.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(named) if os.path.isabs(named) else Path(os.path.expanduser("~/.cache"))
    return base / "dpmf" / "programs" / _processor()


def size(folder: Path) -> int:
    """Bytes of the programs in it."""
    return sum(told.st_size for _, told in _entries(folder))


def _processor() -> str:
    """A name for what this machine's processor can do."""
    try:
        with Path("/proc/cpuinfo").open() as lines:  # of all cores; an empty line ends the first
            first = list(itertools.takewhile(str.strip, lines))
        kinds = ("model name", "flags", "Features", "CPU ")
        words = [line for line in first if line.startswith(kinds)]
    except OSError:
        words = [platform.processor(), platform.node()]
    told = "".join([platform.machine(), *words])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _made_for_us_alone(folder: Path) -> bool:
    """Makes the folder where it is not there; whether nobody else can write to it."""
    if not folder.is_absolute():  # nobody's home
        return False
    try:
        folder.parents[2].mkdir(parents=True, exist_ok=True)
        for part in (folder.parents[1], folder.parent, folder):
            part.mkdir(mode=stat.S_IRWXU, exist_ok=True)
            told = part.stat()
            if told.st_uid != os.geteuid() or told.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return False
        return os.access(folder, os.W_OK)
    except OSError:  # no room, a file in its place
        return False


def _make_room(folder: Path) -> None:
    """Deletes the oldest programs where all of them take more than `ROOM`, until half is free."""
    left = size(folder)
    if left <= ROOM:
        return
    for path, told in sorted(_entries(folder), key=lambda entry: entry[1].st_mtime):
        with suppress(OSError):  # another process was faster
            os.unlink(path)
        left -= told.st_size
        if left <= ROOM // 2:
            return


def _entries(folder: Path) -> list[tuple[str, os.stat_result]]:
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    found.append((entry.path, entry.stat(follow_symlinks=False)))
    return found
