"""Public item factors from a file, in the order of a catalogue."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpmf_jax.errors import DataError


def read(path: Path, items: np.ndarray) -> np.ndarray:
    """float32[items, rank] from one of

    - csv, tsv, parquet: the item id, then one column a factor; rows in any order, every catalogue item once;
    - npy: a matrix in the order of the catalogue (sorted ids);
    - safetensors: an array `item_factors` in that order, as in a released model.

    Raises: DataError naming the file, the item or the shape that is wrong.
    """
    if not path.is_file():
        raise DataError("there is no such file of item factors", where=str(path), fix="give --items an existing file")
    try:
        factors = _ordered(path, items) if path.suffix in (".csv", ".tsv", ".parquet") else _matrix(path)
    except (ValueError, OSError, EOFError) as error:  # pyarrow's errors are ValueErrors
        if isinstance(error, DataError):
            raise
        raise DataError(f"the item factors cannot be read: {error}", where=str(path), fix=_FORMATS) from None
    if factors.ndim != 2 or len(factors) != len(items) or not factors.shape[1]:
        raise DataError(
            f"the item factors have shape {factors.shape}; the catalogue has {len(items)} items",
            where=str(path),
            fix="give one row for every item of the catalogue",
        )
    if not np.isfinite(factors).all():
        raise DataError("an item factor is not a finite number", where=str(path), fix="remove NaN and infinities")
    return np.ascontiguousarray(factors, np.float32)


_FORMATS = "give csv, tsv or parquet (item id, then one column a factor), npy, or safetensors with item_factors"


def _matrix(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".safetensors":
        from dpmf_jax import storage

        arrays = storage.read_arrays(path)
        if "item_factors" not in arrays:
            raise DataError("there is no array `item_factors`", where=str(path), fix=f"it holds {', '.join(arrays)}")
        return arrays["item_factors"]
    raise DataError(f"item factors in a {path.suffix or 'nameless'} file", where=str(path), fix=_FORMATS)


def _ordered(path: Path, items: np.ndarray) -> np.ndarray:
    from pyarrow import csv, parquet

    from dpmf_jax.model import positions

    if path.suffix == ".parquet":
        table = parquet.read_table(path)
    else:
        table = csv.read_csv(path, parse_options=csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ","))
    if table.num_columns < 2:
        raise DataError("the file has no factor columns", where=str(path), fix=_FORMATS)
    columns = [column.to_numpy(zero_copy_only=False) for column in table.columns]
    row = positions(items, columns[0])
    known = row >= 0
    counts = np.bincount(row[known], minlength=len(items))
    if (counts != 1).any():
        wrong = int(np.flatnonzero(counts != 1)[0])
        state = "is missing" if counts[wrong] == 0 else "is there twice"
        raise DataError(
            f"item {items[wrong]} {state}", where=str(path), fix="give every item of the catalogue exactly one row"
        )
    factors = np.empty((len(items), len(columns) - 1), np.float32)
    factors[row[known]] = np.stack([column.astype(np.float32) for column in columns[1:]], axis=1)[known]
    return factors
