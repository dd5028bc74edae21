"""Flags that say how a file of ratings is read: the commands that read one share them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnFlags:
    """What stands where in a file of your own."""

    HEADING: ClassVar = "how ratings are read"

    user_column: str | None = None
    """Column of the user ids in your file: name, or position from 1. [found]"""
    item_column: str | None = None
    """Column of the item ids, likewise."""
    rating_column: str | None = None
    """Column of the ratings, likewise."""
    delimiter: str | None = None
    """What separates the columns of a text file. [found]"""
    no_header: bool = False
    """The first line holds ratings. The columns are user, item, rating, or at the positions
    given.
    """

    def reading(self) -> dict[str, Any]:
        """The flags of this module as arguments of `dpmf_jax.data.datasets`, by name."""
        names = (
            field.name
            for kind in type(self).__mro__
            if dataclasses.is_dataclass(kind) and kind.__module__ == __name__
            for field in dataclasses.fields(kind)
        )
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileFlags(ColumnFlags):
    """Where the data sets are, and what stands where in a file of your own."""

    data_dir: Path | None = None
    """Folder of the data sets. [the environment variable DPMF_DATA]"""
    rating_range: tuple[float, float] | None = None
    """Lowest and highest possible rating. Required for a file of your own; never compute it from
    the ratings.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowFlags(ColumnFlags):
    """`ColumnFlags`, and what happens to rows that are not as they should be."""

    duplicates: Literal["refuse", "first", "last", "mean"] = "refuse"
    """What to do where a user rates an item twice."""
    out_of_range: Literal["refuse", "drop", "clip"] = "refuse"
    """What to do with a rating outside the declared range."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightFlags:
    """Where a file of your own says how much each rating counts."""

    weight_column: str | None = None
    """Column of the weights, from 0 to 1: name, or position from 1. [none]"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepairFlags(FileFlags, RowFlags):
    """How a data set or a file of your own is read."""
