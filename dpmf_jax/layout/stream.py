"""Ratings larger than the device: the split layout in files, which a program reads block by block.

A block is some megabytes of one orientation's pieces. While the device works on one, a thread of
the host reads the next. Streamed ratings allow sums per user and per item, and nothing else: enough
for the descents of paper 001, for noisy means, and for federated and local mechanisms; not for a
dynamic population, paper 002's mechanisms or objective perturbation.

The files are as private as the ratings. They have no names: nobody else can open them, and they are
gone with the process, however that ends.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.errors import DataError
from dpmf_jax.layout import split

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings

BLOCK_BYTES = 16 << 20  # of columns and values


class Blocks:
    """One orientation in files, cut into `num` blocks of `pieces` pieces; the last is filled up."""

    def __init__(self, side: split.Side, num_rows: int, num_columns: int, block_bytes: int):
        total, self.width = side.column.shape
        most = 1 << max(5, (block_bytes // (8 * self.width)).bit_length() - 1)
        self.pieces = min(most, total)
        self.num, self.total = -(-total // self.pieces), total
        parts = jax.tree.leaves(side)
        self._empty = (num_rows, num_columns, *[0.0] * (len(parts) - 2))
        self._wide = (1, *[self.width] * (len(parts) - 1))
        self._types = [np.dtype(part.dtype) for part in parts]
        self._files = [_unnamed_file(self, np.ascontiguousarray(part)) for part in parts]
        self._reader = ThreadPoolExecutor(1)
        self._ahead: dict[int, Future] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Of one block on the device."""
        return 4 * self.pieces * sum(self._wide)

    @property
    def shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return tuple(
            jax.ShapeDtypeStruct((self.pieces,) if wide == 1 else (self.pieces, wide), kind)
            for wide, kind in zip(self._wide, self._types, strict=True)
        )

    def fetch(self, index: Any) -> tuple[np.ndarray, ...]:
        """A block, and in the background the one after it."""
        at = int(index)
        with self._lock:
            waiting = self._ahead.pop(at, None)
            after = (at + 1) % self.num
            if self.num > 1 and after not in self._ahead:
                self._ahead = {after: self._reader.submit(self._read, after)}
        return self._read(at) if waiting is None else waiting.result()

    def _read(self, at: int) -> tuple[np.ndarray, ...]:
        start, end = at * self.pieces, min(self.total, (at + 1) * self.pieces)
        parts = []
        for file, kind, wide, empty in zip(
            self._files, self._types, self._wide, self._empty, strict=True
        ):
            whole = np.full(self.pieces * wide, empty, kind)
            _read_into(file, whole[: (end - start) * wide], start * wide * kind.itemsize)
            parts.append(whole if wide == 1 else whole.reshape(self.pieces, wide))
        return tuple(parts)


def _unnamed_file(owner: Any, array: np.ndarray) -> int:
    """An open file without a name that holds an array, closed with its owner."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    weakref.finalize(owner, file.close)
    left = array.data.cast("B")
    while left:  # a write may take less than it was given
        left = left[file.write(left) :]
    return file.fileno()


def _read_into(file: int, array: np.ndarray, offset: int) -> None:
    """Reads an array from a file, in as many reads as it takes."""
    wanted, done = array.data.cast("B"), 0
    while done < len(wanted):
        read = os.preadv(file, [wanted[done:]], offset + done)
        if not read:
            raise OSError("the file of a block ended too soon")
        done += read


@jax.tree_util.register_static
class Stream:
    """Both orientations in files.

    It has no arrays: a jitted program takes it as static, and reads while it runs.
    """

    def __init__(self, ratings: Ratings, block_bytes: int):
        self.weighted = ratings.weight is not None
        try:
            shape = (ratings.num_users, ratings.num_items)
            sides = split.make(ratings, num_shards=1)
            self.sides = tuple(
                Blocks(side, *sizes, block_bytes)
                for side, sizes in zip(sides, (shape, shape[::-1]), strict=True)
            )
        except OSError as error:
            raise DataError(
                f"the blocks of the ratings cannot be written: {error.strerror}",
                where=tempfile.gettempdir(),
                fix="set TMPDIR to a folder with room for 20 bytes a rating",
            ) from None

    @property
    def nbytes(self) -> int:
        """Bytes on the device at a time: two blocks of each orientation."""
        return 2 * sum(side.nbytes for side in self.sides)


def sum_rows(
    stream: Stream,
    fn: Any,
    row_tree: Any,
    column_tree: Any,
    num_rows: int,
    num_columns: int,
    *,
    orientation: int,
    weighted: bool = False,
) -> Any:
    """`split.sum_rows` over blocks that come from files."""
    blocks = stream.sides[orientation]

    def add(side: split.Side, sums: Any = None) -> Any:
        side = side if weighted else side._replace(weight=None)
        return split.sum_rows(side, fn, row_tree, column_tree, num_rows, num_columns, sums)

    def one(sums: Any, index: jax.Array) -> tuple[Any, None]:
        side = jax.pure_callback(blocks.fetch, blocks.shapes, index, vmap_method="sequential")
        return add(split.Side(*side), sums), None

    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(add, split.Side(*blocks.shapes)),
    )
    return jax.lax.scan(one, zeros, jnp.arange(blocks.num))[0]
