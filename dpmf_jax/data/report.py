"""What a data set holds, and everything in it that loading would refuse, row by row."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax.data.columns import Columns
from dpmf_jax.data.datasets import SYNTHETIC, generated
from dpmf_jax.data.formats import has_no_ratings
from dpmf_jax.data.ids import Coded, count_rows
from dpmf_jax.data.lines import opened
from dpmf_jax.data.ratings import Problem, duplicated, no_weight, not_finite, out_of
from dpmf_jax.data.sources import Source, find
from dpmf_jax.data.text import problems as text_problems
from dpmf_jax.errors import DataError


def check(
    name_or_path: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    rating_range: tuple[float, float] | None = None,
    user_column: str | None = None,
    item_column: str | None = None,
    rating_column: str | None = None,
    weight_column: str | None = None,
    delimiter: str | None = None,
    no_header: bool = False,
    limit: int = 1000,
) -> dict[str, Any]:
    """A report on a data set, for its curator: all that `load` would refuse, row by row.

    A file of two columns, whose range nobody declares, is who has seen what: every row is a 1.

    Returns:
      ok, name, rating_range.
      files: {path, bytes, sha256, known} of each.
      rows, users, items, histogram ({value: rows}), not_rated, duplicates: where the file parses.
      num_problems, problems: their number, and the first `limit` of them: {where, what}.
      triples_sha256, triples_known: where there are no problems.

    `known` is None where no hash is known, else the comparison.

    Raises: DataError for a missing file or one that is no table at all; UsageError as `load`.
    """
    if match := SYNTHETIC.fullmatch(str(name_or_path)):
        ratings = generated(match, weight_column)
        user, item = Coded(ratings.user, ratings.users), Coded(ratings.item, ratings.items)
        columns = Columns(user, item, ratings.value, count_rows(ratings.name))
        source = Source(
            name=ratings.name,
            paths=(),
            layout=None,
            rating_range=ratings.rating_range,
            columns=columns,
        )
    else:
        flags = {
            "user_column": user_column,
            "item_column": item_column,
            "rating_column": rating_column,
            "weight_column": weight_column,
        }
        source = find(
            name_or_path,
            data_dir,
            flags | {"delimiter": delimiter, "no_header": no_header},
            rating_range,
            implicit=rating_range is None and has_no_ratings(Path(name_or_path), delimiter),
        )
    report: dict[str, Any] = {
        "ok": False,
        "name": source.name,
        "files": [],
        "rating_range": source.rating_range,
    }
    for path in source.paths:
        digest = _file_hash(path)
        known = None if source.sha256 is None else digest == source.sha256
        report["files"].append(
            {"path": str(path), "bytes": path.stat().st_size, "sha256": digest, "known": known}
        )
    try:
        columns = source.read()
    except DataError as error:
        faults = (
            []
            if source.layout is None
            else list(
                text_problems(source.paths[0], source.layout, source.rating_range, source.not_rated)
            )
        )
        found = [
            {"where": f"{source.paths[0]}, line {line}", "what": what} for line, what in faults
        ]
        found = found or [{"where": error.where, "what": error.what}]
        return report | {"num_problems": len(found), "problems": found[:limit]}
    report |= _counts(columns, source)
    rated = np.arange(len(columns.value))
    if source.not_rated is not None:
        rated = np.flatnonzero(columns.value != np.float32(source.not_rated))
    value, user, item = columns.value[rated], columns.user.codes[rated], columns.item.codes[rated]
    repeated = duplicated(user, item, len(columns.item.ids))
    problems = [*not_finite(value), out_of(value, source.rating_range), repeated]
    problems = [problem._replace(rows=rated[problem.rows]) for problem in problems]
    if columns.weight is not None:
        problems.append(no_weight(columns.weight))
    report |= {
        "duplicates": len(repeated.rows),
        "num_problems": sum(len(problem.rows) for problem in problems),
    }
    report["problems"] = _faults_by_row(problems, columns, limit)
    if report["num_problems"]:
        return report
    try:
        digest = source.rate(columns).sha256()
    except DataError as error:  # too few users or items, or no rating
        return report | {
            "num_problems": 1,
            "problems": [{"where": error.where, "what": error.what}],
        }
    known = None if source.triples is None else digest == source.triples
    return report | {"ok": True, "triples_sha256": digest, "triples_known": known}


def _faults_by_row(found: list[Problem], columns: Columns, limit: int) -> list[dict[str, str]]:
    faults: list[dict[str, str]] = []
    for problem in found:
        rows = problem.rows[: limit - len(faults)]
        faults += [
            {"where": where, "what": problem.what(place)}
            for place, where in enumerate(columns.where(rows))
        ]
    return faults


def _counts(columns: Columns, source: Source) -> dict[str, Any]:
    """Sizes and histogram of raw columns."""
    rated = (
        columns.value
        if source.not_rated is None
        else columns.value[columns.value != np.float32(source.not_rated)]
    )
    values, rows = np.unique(rated, return_counts=True)
    return {
        "rows": len(columns.value),
        "users": len(columns.user.ids),
        "items": len(columns.item.ids),
        "histogram": {f"{value:g}": int(count) for value, count in zip(values, rows, strict=True)},
        "not_rated": len(columns.value) - len(rated),
    }


def _file_hash(path: Path) -> str:
    with opened(path, unpack=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
