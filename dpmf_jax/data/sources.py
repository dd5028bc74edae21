"""From a name or a path to files that exist, their layout and their declared range."""

import dataclasses
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmf_jax.data import netflix, parquet
from dpmf_jax.data.catalogue import COLONS, COMMAS, DATASETS, Dataset
from dpmf_jax.data.columns import Columns, Keep
from dpmf_jax.data.formats import Format, sniff
from dpmf_jax.data.lines import first_line
from dpmf_jax.data.ratings import Ratings, check_range
from dpmf_jax.data.text import read_text
from dpmf_jax.errors import DataError, UsageError

ENVIRONMENT = "DPMF_DATA"
RANGE_FIX = "declare the lowest and the highest possible rating, for example --rating-range 1 5"
SEEN = (0.0, 1.0)  # the range where a rating says that an item is seen: 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Files that were found, and what is declared about them."""

    name: str
    paths: tuple[Path, ...]
    layout: Format | None  # None: the Netflix Prize's own, or parquet
    rating_range: tuple[float, float]
    parquet: Mapping[str, Any] | None = None  # the columns that are named of a parquet file
    columns: Columns | None = None  # of what is in no file
    not_rated: float | None = None
    splits: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    sha256: str | None = None
    triples: str | None = None

    def read(self, keep: Keep | None = None) -> Columns:
        """The columns. With `keep`, only the rows of the users that it says yes to."""
        if self.layout is not None:
            return read_text(self.paths[0], self.layout, keep)
        if self.columns is not None:
            return self.columns
        if self.parquet is not None:
            return parquet.read_parquet(self.paths[0], **self.parquet, keep=keep)
        return netflix.read_netflix(self.paths, keep)

    def rate(self, columns: Columns, **options: Any) -> Ratings:
        """The columns as checked ratings, with `options` of `Ratings.from_columns`."""
        return Ratings.from_columns(
            columns.user,
            columns.item,
            columns.value,
            rating_range=self.rating_range,
            name=self.name,
            not_rated=self.not_rated,
            where=columns.where,
            origin=str(self.paths[0]) if len(self.paths) == 1 else self.name,
            weight=columns.weight,
            time=columns.time,
            **options,
        )


def find(
    name_or_path: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None,
    flags: dict[str, Any],
    rating_range: tuple[float, float] | None,
    *,
    implicit: bool = False,
) -> Source:
    """The files that a name or a path means, their layout and their declared range.

    flags: the columns, delimiter and no_header of `datasets.load`. Of its columns a data set that
      is known by name takes the times alone, and these as they were published.
    implicit: whether a file's ratings are not read, nor need be there.

    Raises: DataError for files that are not there, with every place looked at; UsageError for a
      file without a range.
    """
    rating_range = None if rating_range is None else check_range(rating_range)
    path, name = Path(name_or_path), str(name_or_path)
    if name not in DATASETS and path.is_dir() and path.resolve().name in DATASETS:
        name, data_dir = path.resolve().name, path
    if name in DATASETS:
        return _named(name, data_dir, flags, rating_range)
    if path.is_dir():
        paths = existing(DATASETS["netflix"], path, DATASETS["netflix"].files)
        if not paths:
            fix = (
                "name a file in it, or a folder with files of the Netflix Prize, or one of"
                f" {', '.join(DATASETS)}"
            )
            raise DataError("the folder is no data set that is known", where=str(path), fix=fix)
        _refuse_columns(path.name, flags)
        _refuse_times(path.name, flags)
        return Source(
            name=path.name, paths=tuple(paths), layout=None, rating_range=rating_range or (1.0, 5.0)
        )
    check_exists(path)
    return of_file(path, flags, rating_range, implicit=implicit)


def check_exists(path: Path) -> None:
    """Raises: DataError where there is nothing at the path, which names no data set either."""
    if not path.exists():
        names = ["synthetic", *DATASETS]
        near = difflib.get_close_matches(str(path).lower(), names, n=1)
        fix = f"name a file that exists, or one of {', '.join(names)}"
        raise DataError(
            f"there is no data set or file {str(path)!r}",
            where=f"looked for {path.absolute()}",
            fix=f"did you mean {near[0]}? Or {fix}" if near else fix,
        )


def of_file(
    path: Path,
    flags: dict[str, Any],
    rating_range: tuple[float, float] | None,
    *,
    lone_user: bool = False,
    implicit: bool = False,
) -> Source:
    """One file of text or parquet; `flags`, `implicit` and what is raised are as in `find`.

    lone_user: whether a text file may be without a column of users (`formats.sniff`).
    """
    if implicit:
        rating_range = SEEN
    if path.suffix in (".parquet", ".pq"):
        if flags.get("no_header"):
            raise UsageError(
                "a parquet file names its columns", where="--no-header", fix="leave out --no-header"
            )
        columns = {key: value for key, value in flags.items() if key.endswith("_column")}
        columns |= {"implicit": implicit}
        declared = parquet.declared_range(path, **columns)
        rating_range = rating_range or declared
        if rating_range is None:
            raise UsageError(
                "the rating range of a file must be declared", where=str(path), fix=RANGE_FIX
            )
        return Source(
            name=path.stem, paths=(path,), layout=None, rating_range=rating_range, parquet=columns
        )
    if rating_range is None:
        raise UsageError(
            "the rating range of a file must be declared", where=str(path), fix=RANGE_FIX
        )
    timed, others = flags.get("time_column"), {**flags, "time_column": None}
    named = any(others.values()) or timed not in (None, True)
    layout = None if named else _official_layout(path)
    layout = (
        _timed(layout, bool(timed))
        if layout
        else sniff(path, **flags, lone_user=lone_user, implicit=implicit)
    )
    return Source(
        name=path.name.split(".")[0], paths=(path,), layout=layout, rating_range=rating_range
    )


def _refuse_columns(name: str, flags: dict[str, Any]) -> None:
    """UsageError where columns are told of files that are read as they were published."""
    if given := [
        f"--{flag.replace('_', '-')}"
        for flag, value in flags.items()
        if value not in (None, False) and (flag, value) != ("time_column", True)
    ]:
        raise UsageError(
            f"{name} has its own layout",
            where=", ".join(given),
            fix="leave it out, or name the file itself",
        )


def _refuse_times(name: str, flags: dict[str, Any]) -> None:
    """UsageError where times are asked for that are not read."""
    if flags.get("time_column"):
        raise UsageError(
            f"no times are read of {name}", where="--time-column", fix="name a file that has some"
        )


def _timed(layout: Format, timed: bool) -> Format:
    """The layout, with its times only where they are asked for."""
    return layout if timed else dataclasses.replace(layout, time=None)


def _named(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    flags: dict[str, Any],
    rating_range: tuple[float, float] | None,
) -> Source:
    dataset = DATASETS[name]
    _refuse_columns(name, flags)
    folder = data_folder(data_dir)
    if folder is None:
        fix = f"name the folder by --data-dir or {ENVIRONMENT}; to get the data, {dataset.source}"
        raise DataError(f"no data folder is named, so {name} cannot be found", fix=fix)
    timed = bool(flags.get("time_column"))
    if dataset.layout is None or dataset.layout.time is None:
        _refuse_times(name, flags)
    paths = existing(dataset, folder, dataset.files)
    if not paths:
        looked = ", ".join(str(folder / file) for file in dataset.files)
        fix = (
            f"point --data-dir or {ENVIRONMENT} at the folder that holds it; to get the data,"
            f" {dataset.source}"
        )
        raise DataError(
            f"the files of {name} are not there", where=f"looked for {looked} (and .gz)", fix=fix
        )
    return Source(
        name=name,
        paths=tuple(paths),
        layout=dataset.layout and _timed(dataset.layout, timed),
        rating_range=rating_range or check_range(dataset.rating_range),
        not_rated=dataset.not_rated,
        splits=dataset.splits,
        sha256=dataset.sha256,
        triples=dataset.triples,
    )


def data_folder(data_dir: str | os.PathLike[str] | None) -> Path | None:
    named = data_dir if data_dir is not None else os.environ.get(ENVIRONMENT) or None
    return None if named is None else Path(named).expanduser()


def existing(dataset: Dataset, folder: Path, files: Sequence[str]) -> list[Path]:
    for file in files:
        found = (
            sorted(folder.glob(file))
            if "*" in file
            else [path for path in (folder / file, folder / f"{file}.gz") if path.is_file()]
        )
        if found:
            return found if dataset.layout is None else found[:1]
    return []


def _official_layout(path: Path) -> Format | None:
    """The layout of a file that carries the name of an official one without a header."""
    if path.name == "u.data" or re.fullmatch(r"u[1-5ab]\.(base|test)", path.name):
        return DATASETS["ml-100k"].layout
    if path.name in ("ratings.dat", "ratings.dat.gz"):
        _, line = first_line(path)
        return COLONS if "::" in line else COMMAS
    return None
