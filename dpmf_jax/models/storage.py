"""Files that are whole or absent: atomic writes, and arrays that are checked when read.

Arrays are safetensors; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax.errors import CannotWrite, DataError, UsageError

PRIVATE_MODE = 0o600


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """A block that writes `path`.

    Raises: CannotWrite for what the operating system refuses in it.
    """
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(path.name, where=str(path), error=error) from error


@contextlib.contextmanager
def _replacing(path: Path, mode: int) -> Generator[int]:
    """A descriptor to write to, whose file takes the place of `path` at once on success.

    On failure nothing changes.
    """
    with writing(path), _replaced(path, mode) as descriptor:
        yield descriptor


@contextlib.contextmanager
def _replaced(path: Path, mode: int) -> Generator[int]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        try:
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> str:
    """The SHA-256 of what is written atomically (temporary file, fsync, rename).

    A private file has mode 0600.
    """
    with _replacing(path, PRIVATE_MODE if private else 0o644) as descriptor:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
    return hashlib.sha256(content).hexdigest()


def write_json(path: Path, content: Mapping[str, Any], *, private: bool = False) -> str:
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    return write_bytes(path, (text + "\n").encode(), private=private)


def read_json(path: Path) -> dict[str, Any]:
    """Raises DataError where the file is missing or is not a JSON object."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{path.name} is missing", where=str(path), fix="give the folder that `dpmf fit` wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path.name} cannot be read: {error}",
            where=str(path),
            fix="restore the file, or fit again",
        ) from None
    if not isinstance(content, dict):
        raise DataError(
            f"{path.name} is not a JSON object",
            where=str(path),
            fix="restore the file, or fit again",
        )
    return content


def write_arrays(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    *,
    metadata: Mapping[str, str] | None = None,
    private: bool = False,
) -> str:
    """Write named arrays as one safetensors file and return its SHA-256."""
    return write_bytes(path, array_bytes(arrays, metadata), private=private)


def array_bytes(
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> bytes:
    """What `write_arrays` writes."""
    from safetensors.numpy import save

    contiguous = {
        name: np.asarray(array, order="C") for name, array in arrays.items()
    }  # a scalar stays a scalar
    return save(contiguous, metadata=dict(metadata or {}))


def read_arrays(path: Path, *, sha256: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file.

    Args:
      sha256: what the file must hash to; None skips this check.

    Raises: DataError where the file is missing, truncated, no safetensors file, or not the one that
      was hashed.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path.name} cannot be read: {error.strerror}",
            where=str(path),
            fix="restore the file, or fit again",
        ) from None
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(
            f"{path.name} is not the file that was saved: it was changed or cut short",
            where=str(path),
            fix="restore the file from a copy, or fit again",
        )
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise DataError(
            f"{path.name} is not a readable safetensors file: {error}",
            where=str(path),
            fix="restore the file from a copy, or fit again",
        ) from None


def remove_partials(folder: Path) -> None:
    """Delete what writes that were killed half-way left below a folder."""
    for path in folder.rglob(".*.partial"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def lock(folder: Path) -> Generator[None]:
    """A block that keeps other processes out of a folder, however this one ends.

    Without file locks on the system it does nothing.

    Raises: UsageError where another process, or this one already, is at work there.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                "another process is at work in this folder",
                where=str(folder),
                fix="wait for it, or give another folder",
            ) from None
        yield
    finally:
        os.close(descriptor)


def private_folder(folder: Path) -> Path:
    """`folder`/private, made if needed, open to its owner alone.

    Raises: UsageError where a file is in the way; CannotWrite.
    """
    nearest = next(above for above in (folder, *folder.absolute().parents) if above.exists())
    if not nearest.is_dir():
        raise UsageError(
            "this is a file, not a folder",
            where=str(nearest),
            fix="give --out the name of a folder",
        )
    private = folder / "private"
    with writing(private):
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
        private.chmod(0o700)
    return private
