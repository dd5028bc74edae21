"""Several processes that run one program: who holds whose ratings, and how they agree.

They are on one machine or many, started by `jax.distributed`, and all call the same functions in
the same order. Each holds the ratings of its own users and nothing of the others' (`owned`).
Everything else is the same in all: factors, keys and prices. All processes belong to the curator.
What they exchange (ids, sums without noise) is not private, and goes over their network as it is.
With one process everything here is the identity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import numpy as np

from dpmf_jax.errors import DpmfError

GO_ON = "start the run again; one with a folder goes on by --resume, with any number of processes"


class Lost(DpmfError):
    """Another process of the run is gone, or cannot be reached."""

    exit_code = 1


class Elsewhere(DpmfError):
    """What went wrong in another process, which printed more about it."""


def count() -> int:
    """How many processes there are."""
    import jax

    return jax.process_count()


def first() -> bool:
    """Whether this process is the one that prints and writes."""
    import jax

    return jax.process_index() == 0


def gather(message: bytes) -> list[bytes]:
    """The messages of all processes, in their order; in every process."""
    if count() == 1:
        return [message]
    from jax.experimental import multihost_utils

    lengths = multihost_utils.process_allgather(np.array([len(message)], np.int32))[:, 0]
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(message)] = np.frombuffer(message, np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(count(), -1)
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def total(values: Any) -> Any:
    """The sum of an array or a number over the processes, added in their order, in its own type."""
    array = np.asarray(values)
    parts = [
        np.frombuffer(part, array.dtype).reshape(array.shape) for part in gather(array.tobytes())
    ]
    return np.sum(parts, axis=0, dtype=array.dtype)


def largest(value: int) -> int:
    """The largest of the processes' numbers."""
    return max(int(part) for part in gather(str(value).encode()))


def result_of_first(function: Callable[[], Any]) -> Any:
    """What `function` returns, anything JSON can hold; the first process alone calls it."""
    result: Any = None
    with together():
        result = function() if first() else None
    return json.loads(gather(json.dumps(result).encode())[0])


def from_first(tree: Any) -> Any:
    """A pytree of arrays as the first process has it; all have the same shapes."""
    if count() == 1:
        return tree
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(tree)


@contextmanager
def together() -> Generator[None, None, None]:
    """A block that fails in all processes if it fails in one, with the first failure's message.

    Inside the block nothing may be exchanged.

    Raises: the process's own DpmfError, or `Elsewhere`.
    """
    error: DpmfError | None = None
    try:
        yield
    except DpmfError as raised:
        if count() == 1:
            raise
        error = raised
    if count() == 1:
        return
    words = [error.what, error.where, error.fix, error.exit_code] if error else None
    for process, message in enumerate(gather(json.dumps(words).encode())):
        if (said := json.loads(message)) is None:
            continue
        if error is not None:
            raise error
        what, where, fix, exit_code = said
        elsewhere = Elsewhere(what, where=f"{where} (process {process})".strip(), fix=fix)
        elsewhere.exit_code = exit_code
        raise elsewhere


@contextmanager
def watched(when: str) -> Generator[None, None, None]:
    """A block in which the processes compute together.

    Raises: `Lost` where it ends because one of them is gone.
    """
    import jax

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if count() == 1:
            raise
        reason = (str(error).splitlines() or [""])[0][:200]
        raise Lost(
            f"another process of the run is gone, {when}", where=reason, fix=GO_ON
        ) from error


def owned(ids: Iterable[Any]) -> np.ndarray:
    """bool[ids]: whether this process holds the ratings of these users, by a hash of the raw id."""
    import jax

    number = [
        int.from_bytes(hashlib.blake2b(str(entry).encode(), digest_size=8).digest())
        for entry in ids
    ]
    return np.array(number, np.uint64) % np.uint64(count()) == np.uint64(jax.process_index())


def union(ids: np.ndarray) -> np.ndarray:
    """All processes' ids, sorted and distinct: int64 where all are integers, else str."""
    if count() == 1:
        return np.unique(ids)
    lists = [json.loads(part) for part in gather(json.dumps(ids.tolist()).encode())]
    together = {entry for part in lists for entry in part}
    whole = all(isinstance(entry, int) for entry in together)
    return np.array(sorted(together if whole else map(str, together)), np.int64 if whole else str)
