"""``dpmf data list | check | convert``: the known data sets, checks of one, and other formats."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dpmf_jax.errors import DataError
from experiments.cli import console
from experiments.cli.reading import FileFlags, RepairFlags, WeightFlags

Data = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class List:
    """Print the known data sets: size, declared range, and where they are or how to get them.

    Nothing is ever downloaded.
    """

    data_dir: Path | None = None
    """Folder of the data sets. [the environment variable DPMF_DATA]"""
    json: bool = False
    """Print one JSON object on stdout."""


@dataclass(frozen=True, kw_only=True)
class Check(FileFlags, WeightFlags):
    """Read a data set and report its rows, users, items, histogram, hashes, and every problem.

    The report is for the curator: its numbers are computed from the ratings, and nothing protects
    them. Exits with 3 if there is a problem.
    """

    data: Data
    """A data set that `dpmf data list` knows, or a csv, tsv or parquet file."""
    limit: int = 1000
    """The most problems to list; all are counted, and without --json 20 are shown."""
    json: bool = False
    """Print one JSON object on stdout."""


@dataclass(frozen=True, kw_only=True)
class Convert(RepairFlags, WeightFlags):
    """Write a data set as csv, tsv or parquet, with the columns user, item and rating.

    With --weight-column there is a column weight too, and with --time-column a column
    timestamp.
    """

    data: Data
    """A data set that `dpmf data list` knows, or a csv, tsv or parquet file."""
    destination: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DESTINATION")]
    """The file to write; its ending chooses the format: .csv, .tsv or .parquet."""
    slice: Literal["paper001"] | None = None
    """Keep users with 201 to 2,499 ratings, then items with more than 100. [keep all]"""
    time_column: str | None = None
    """Column of the times, to keep: name, position from 1, or `found`. [left out]"""
    overwrite: bool = False
    """Replace the file if it exists."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: List | Check | Convert) -> int | None:
    match command:
        case List():
            return _list(command)
        case Check():
            return _check(command)
        case Convert():
            return _convert(command)


def _list(command: List) -> None:
    from dpmf_jax.data import datasets

    rows = datasets.list_datasets(command.data_dir)
    console.emit({"datasets": rows}, json=command.json, render=render_list)


def _check(command: Check) -> int:
    from dpmf_jax.data.report import check

    if command.limit < 1:
        console.refuse(f"a list of {command.limit} problems", where="--limit", fix="give 1 or more")
    report = check(command.data, limit=command.limit, **command.reading())
    console.emit(report, json=command.json, render=render_check)
    if report["ok"]:
        return 0
    count = report["num_problems"]
    console.print_error(
        f"{count:,} problem{'s' if count != 1 else ''} in {command.data}",
        where=report["problems"][0]["where"] if report["problems"] else "",
        fix="mend the rows, or convert with --duplicates or --out-of-range",
    )
    return DataError.exit_code


def _convert(command: Convert) -> None:
    from dpmf_jax.data.export import convert

    ratings = convert(
        command.data,
        command.destination,
        overwrite=command.overwrite,
        slice=command.slice,
        time_column=True if command.time_column == "found" else command.time_column,
        **command.reading(),
    )
    result = {
        "name": ratings.name,
        "out": str(command.destination),
        "ratings": ratings.num_ratings,
        "users": ratings.num_users,
        "items": ratings.num_items,
        "rating_range": ratings.rating_range,
        "notes": ratings.notes,
        "triples_sha256": ratings.sha256(),
    }
    console.emit(result, json=command.json, render=render_convert)


def render_list(result: Mapping[str, Any]) -> str:
    """One paragraph a data set; those that are here come first."""
    from dpmf_jax.data.datasets import GENERATED

    rows = sorted(
        result["datasets"], key=lambda row: row["path"] is None and row["name"] not in GENERATED
    )
    width = max(len(row["name"]) for row in rows) + 2
    lines = []
    for row in rows:
        low, high = row["rating_range"]
        lines.append(
            f"{row['name']:<{width}}{row['title']}: {row['size']}, rated {low:g} to {high:g}"
        )
        if row["splits"]:
            lines.append(f"{'':<{width}}official splits: {', '.join(row['splits'])}")
        lines.append(f"{'':<{width}}{'at ' + row['path'] if row['path'] else row['how_to_get']}")
    return "\n".join(
        [*lines, "", "The folder of data sets: --data-dir, or the environment variable DPMF_DATA."]
    )


def render_check(report: Mapping[str, Any]) -> str:
    """The report as lines; a hash is the known one, another, or has none to compare with."""
    lines = [
        f"{report['name']} (for the curator: computed from the ratings, nothing protects it; do not"
        " show it)"
    ]
    for file in report["files"]:
        lines += [
            f"  file       {file['path']}, {file['bytes']:,} bytes",
            _hash_line(file["sha256"], file["known"]),
        ]
    if "rows" in report:
        lines.append(
            f"  rows       {report['rows']:,}: {report['users']:,} users, {report['items']:,} items"
        )
        if report["not_rated"]:
            lines.append(f"  not rated  {report['not_rated']:,} rows, dropped")
        lines.append(f"  duplicates {report['duplicates']:,}")
        lines += [f"  {value:>9}  {rows:,}" for value, rows in report["histogram"].items()]
    if report.get("triples_sha256"):
        lines += [
            "  sorted (user, item, value) triples",
            _hash_line(report["triples_sha256"], report["triples_known"]),
        ]
    lines += [f"  {problem['where']}: {problem['what']}" for problem in report["problems"][:SHOWN]]
    if report["num_problems"] > min(SHOWN, len(report["problems"])):
        lines.append(
            f"  ... {report['num_problems']:,} problems in all; --json and --limit list more"
        )
    return "\n".join([*lines, "ok" if report["ok"] else "NOT OK"])


def _hash_line(digest: str, known: bool | None) -> str:
    verdict = {
        True: "the known one",
        False: "NOT the known one",
        None: "no other to compare it with",
    }[known]
    return f"  sha256     {digest} ({verdict})"


def render_convert(result: Mapping[str, Any]) -> str:
    """What was written, and what was dropped on the way."""
    sizes = f"{result['ratings']:,} ratings, {result['users']:,} users, {result['items']:,} items"
    low, high = result["rating_range"]
    first = f"{result['out']}: {sizes}, rated {low:g} to {high:g}"
    last = (
        "  for the curator: these are the ratings themselves, nothing protects them; do not show"
        " the file"
    )
    return "\n".join([first, *(f"  {note}" for note in result["notes"]), last])
