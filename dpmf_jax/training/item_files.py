"""Public factors of items or users from a file, in the order of a catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from dpmf_jax.errors import DataError


def read(path: Path, ids: np.ndarray, side: Literal["item", "user"] = "item") -> np.ndarray:
    """Public factors of the items or users of a catalogue, float32[ids, rank], from one of

    - csv, tsv, parquet: the id, then one column a factor; rows in any order, every id of the
      catalogue once;
    - npy: a matrix in the order of the catalogue (sorted ids);
    - safetensors: an array `item_factors` or `user_factors` in that order, as in a released model.

    Raises: DataError naming the file, the id or the shape that is wrong.
    """
    formats = (
        f"give csv, tsv or parquet ({side} id, then one column a factor), npy, or safetensors with"
        f" {side}_factors"
    )
    if not path.is_file():
        raise DataError(
            f"there is no such file of {side} factors",
            where=str(path),
            fix=f"give --{side}s an existing file",
        )
    try:
        if path.suffix in (".csv", ".tsv", ".parquet"):
            factors = _ordered(path, ids, side, formats)
        else:
            factors = _matrix(path, side, formats)
    except (ValueError, OSError, EOFError) as error:  # pyarrow's errors are ValueErrors
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"the {side} factors cannot be read: {error}", where=str(path), fix=formats
        ) from None
    if factors.ndim != 2 or len(factors) != len(ids) or not factors.shape[1]:
        raise DataError(
            f"the {side} factors have shape {factors.shape}; the catalogue has {len(ids)} {side}s",
            where=str(path),
            fix=f"give one row for every {side} of the catalogue",
        )
    if not np.isfinite(factors).all():
        raise DataError(
            f"a number among the {side} factors is not finite",
            where=str(path),
            fix="give finite numbers",
        )
    return np.ascontiguousarray(factors, np.float32)


def _matrix(path: Path, side: str, formats: str) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".safetensors":
        from dpmf_jax.models import storage

        arrays = storage.read_arrays(path)
        if f"{side}_factors" not in arrays:
            raise DataError(
                f"there is no array `{side}_factors`",
                where=str(path),
                fix=f"it holds {', '.join(arrays)}",
            )
        return arrays[f"{side}_factors"]
    raise DataError(
        f"{side} factors in a {path.suffix or 'nameless'} file", where=str(path), fix=formats
    )


def _ordered(path: Path, ids: np.ndarray, side: str, formats: str) -> np.ndarray:
    from pyarrow import csv, parquet

    from dpmf_jax.models.catalogue import positions

    if path.suffix == ".parquet":
        table = parquet.read_table(path)
    else:
        table = csv.read_csv(
            path, parse_options=csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
        )
    if table.num_columns < 2:
        raise DataError("the file has no factor columns", where=str(path), fix=formats)
    columns = [column.to_numpy(zero_copy_only=False) for column in table.columns]
    row = positions(ids, columns[0])
    known = row >= 0
    counts = np.bincount(row[known], minlength=len(ids))
    if (counts != 1).any():
        wrong = int(np.flatnonzero(counts != 1)[0])
        state = "is missing" if counts[wrong] == 0 else "is there twice"
        raise DataError(
            f"{side} {ids[wrong]} {state}",
            where=str(path),
            fix=f"give every {side} of the catalogue exactly one row",
        )
    factors = np.empty((len(ids), len(columns) - 1), np.float32)
    factors[row[known]] = np.stack([column.astype(np.float32) for column in columns[1:]], axis=1)[
        known
    ]
    return factors
