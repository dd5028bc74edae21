"""`dpmf benchmark`: tables of private recommenders, every setting on several splits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dpmf_jax.errors import UsageError
from experiments.benchmark.cases import TABLES
from experiments.cli import console

ROOT = Path("runs") / "benchmark"
NAMES = "; ".join(f"{name}: {what}" for name, (what, _) in TABLES.items())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Fit the settings of a table on several splits, and print mean errors with their spread.

    Each fit is that of dpmf fit with its defaults and 10% held out; split and noise have the same
    seed. Seeded, so for the curator: nothing of it may be released. Runs that are there are not
    fitted again, so an interrupted table goes on where it was.
    """

    table: Annotated[
        Literal[*TABLES],  # ty: ignore[invalid-type-form]
        tyro.conf.Positional,
        tyro.conf.arg(metavar="TABLE", help=NAMES),
    ] = "goals"
    data: tuple[str, ...] = ()
    """Only these data sets. [all of the table that are here]"""
    repeats: int = 5
    """Splits, and fits of every setting."""
    out: Path = ROOT
    """Folder of the runs, under private/."""
    again: bool = False
    """Fit also what the folder holds."""
    data_dir: Path | None = None
    """Where the data sets are; else the environment's DPMF_DATA."""
    devices: int | None = None
    """Number of devices; all by default (a CPU counts one per core)."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    console.emit(benchmark(command), json=command.json, render=render)


def benchmark(command: Command) -> dict[str, Any]:
    """Everything but the printing. The result's keys are the command's JSON interface.

    Raises: UsageError for a data set that the table has not, and for no splits at all.
    """
    from experiments.benchmark import runs

    what, cases = TABLES[command.table]
    known = list(dict.fromkeys(case.data for case in cases))
    if unknown := [name for name in command.data if name not in known]:
        raise UsageError(
            f"the table {command.table} has no {unknown[0]}", fix=f"--data {' '.join(known)}"
        )
    if command.repeats < 1:
        raise UsageError(f"--repeats must be at least 1; got {command.repeats}", fix="--repeats 5")
    rows = []
    try:
        for found in runs.collect(
            [case for case in cases if not command.data or case.data in command.data],
            command.repeats,
            command.out,
            again=command.again,
            data_dir=command.data_dir,
            devices=command.devices,
            report=console.say,
        ):
            rows.append(runs.summary(*found))
    except KeyboardInterrupt:
        raise console.Interrupted(f"dpmf benchmark {command.table}") from None
    return {
        "table": command.table,
        "shows": what,
        "definitions": {
            "rmse": "on the 10% of ratings that were held out, predictions clipped to the range;"
            " mean over splits",
            "rmse_deviation": "standard deviation over splits, which have noise of their own",
            "must": "the error that was set as a goal before the mechanism was built",
        },
        "rows": rows,
        "out": str(command.out),
    }


def render(result: Mapping[str, Any]) -> Any:
    """The table as rich prints it."""
    from rich.console import Group
    from rich.table import Table

    table = Table(title=f"{result['table']}: {result['shows']}")
    for heading in ("data", "mechanism", "unit", "status"):
        table.add_column(heading)
    for heading in ("ε", "RMSE", "±", "splits", "item means", "NDCG@10", "goal"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result["rows"]:
        promise = row["promise"] or {"unit": "", "status": "not here"}
        goal = "" if row["must"] is None else f"{row['must']:.3f} {_verdict(row['met'])}"
        table.add_row(
            *(row["data"], row["label"], promise["unit"], promise["status"]),
            f"{row['epsilon']:g}",
            *(_number(row[name]) for name in ("rmse", "rmse_deviation")),
            str(row["splits"]),
            *(_number(row[name]) for name in ("item_means", "ndcg_at_10")),
            goal,
        )
    lines = [
        "for the curator: errors are computed from the ratings and are not priced; each fit has a"
        " seed, so none may be released",
        f"± is the {result['definitions']['rmse_deviation']}; item means are not private",
    ]
    absent = dict.fromkeys(
        f"{row['data']}: {row['absent']}" for row in result["rows"] if row["absent"]
    )
    lines += [f"not here: {text}" for text in absent]
    commits = sorted({one for row in result["rows"] for one in row["commits"]})
    if len(commits) > 1:
        lines.append(f"runs are of several commits: {', '.join(one[:12] for one in commits)}")
    return Group(table, "\n".join(lines))


def _verdict(met: bool | None) -> str:
    return {True: "met", False: "missed", None: "?"}[met]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
