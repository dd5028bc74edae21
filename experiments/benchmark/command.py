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
BOARD = "board"
BOARD_SHOWS = "every mechanism, controls and other libraries, by the benchmark's protocol"
NAMES = "; ".join(
    f"{name}: {what}"
    for name, what in {BOARD: BOARD_SHOWS, **{n: w for n, (w, _) in TABLES.items()}}.items()
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Fit the settings of a table on several splits, and print mean errors with their spread.

    Each fit has the defaults of dpmf fit; split and noise have the same seed. Seeded, so for the
    curator: nothing of it may be released. Runs that are there are not fitted again, so an
    interrupted table goes on where it was. Pages are written after each split of a data set.
    """

    table: Annotated[
        Literal[BOARD, *TABLES],  # ty: ignore[invalid-type-form]
        tyro.conf.Positional,
        tyro.conf.arg(metavar="TABLE", help=NAMES),
    ] = BOARD
    scale: Literal["small", "full"] | None = None
    """Of the table board: small takes minutes, full hours. [small]"""
    page: Path | None = None
    """Of the table board: folder of the pages and their rows. [OUT/private/SCALE]"""
    data: tuple[str, ...] = ()
    """Only these data sets. [all of the table that are here]"""
    split: tuple[Literal["ratings", "last", "users"], ...] = ()
    """Of the table board: only these splits. [all of the scale]"""
    repeats: int | None = None
    """Splits, and fits of every setting. [5; of the table board as the scale has it]"""
    out: Path = ROOT
    """Folder of the runs, under private/."""
    again: bool = False
    """Fit also what the folder holds."""
    data_dir: Path | None = None
    """Where the data sets are; else the environment's DPMF_DATA."""
    devices: int | None = None
    """Number of devices, of the other tables; all by default (a CPU counts one per core)."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    if command.table == BOARD:
        console.emit(board(command), json=command.json, render=render_board)
    else:
        console.emit(benchmark(command), json=command.json, render=render)


def board(command: Command) -> dict[str, Any]:
    """The board without the printing. The result's keys are the command's JSON interface.

    Raises: UsageError for a data set that the scale has not, no repeats at all, and devices.
    """
    from dpmf_jax.models import storage
    from experiments.benchmark import board as rows_of_board
    from experiments.benchmark import page, protocol, scores

    if command.devices is not None:
        raise UsageError("--devices is for the other tables", fix="leave it out")
    scale = command.scale or "small"
    _check(command, [data for part in protocol.SCALES[scale] for data in part.data], scale)
    folder = command.page or storage.private_folder(command.out) / scale
    rows: list[dict[str, Any]] = []
    try:
        for row in rows_of_board.collect(
            scale,
            command.out,
            data=command.data,
            split=command.split,
            repeats=command.repeats,
            again=command.again,
            data_dir=command.data_dir,
            report=console.say,
        ):
            if rows and (row["data"], row["split"]) != (rows[-1]["data"], rows[-1]["split"]):
                page.write(folder, scale, rows, protocol.SUBMISSIONS)  # to be looked at meanwhile
            rows.append(row)
    except KeyboardInterrupt:
        raise console.Interrupted(f"dpmf benchmark --scale {scale}") from None
    written = page.write(folder, scale, rows, protocol.SUBMISSIONS)
    return {
        "table": BOARD,
        "scale": scale,
        "definitions": scores.DEFINITIONS,
        "rows": rows,
        "out": str(command.out),
        "page": written,
    }


def render_board(result: Mapping[str, Any]) -> Any:
    """The rows in short, by data set and split; the pages have the rest."""
    from rich.console import Group
    from rich.table import Table

    from experiments.benchmark.page import in_short

    table = Table(title=f"the benchmark, scale {result['scale']}")
    for heading in ("data, split", "mechanism", "unit", "status"):
        table.add_column(heading)
    for heading in ("ε", "RMSE", "NDCG@10", "fit, s"):
        table.add_column(heading, justify="right", no_wrap=True)
    before = None
    for row in result["rows"]:
        if not row["absent"]:
            place = f"{row['data']}, {row['split']}"
            table.add_row("" if place == before else place, *in_short(row))
            before = place
    absent = dict.fromkeys(row["absent"] for row in result["rows"] if row["absent"])
    lines = [
        "for the curator: errors are computed from the ratings and are not priced; each fit has a"
        " seed, so none may be released",
        *(f"not here: {text}" for text in absent),
        f"pages: {Path(result['page'][-1]).parent}",
    ]
    return Group(table, "\n".join(lines))


def _check(command: Command, known: list[str], table: str) -> None:
    """Raises: UsageError for a data set that is not `known`, and for no repeats at all."""
    known = list(dict.fromkeys(known))
    if unknown := [name for name in command.data if name not in known]:
        raise UsageError(f"{table} has no {unknown[0]}", fix=f"--data {' '.join(known)}")
    if command.repeats is not None and command.repeats < 1:
        raise UsageError(f"--repeats must be at least 1; got {command.repeats}", fix="--repeats 5")


def benchmark(command: Command) -> dict[str, Any]:
    """Everything but the printing. The result's keys are the command's JSON interface.

    Raises: UsageError for a data set that the table has not, and for no splits at all.
    """
    from experiments.benchmark import runs

    what, cases = TABLES[command.table]
    for flag in ("scale", "page", "split"):
        if getattr(command, flag):
            raise UsageError(
                f"--{flag} is for the table {BOARD}",
                fix=f"leave it out, or dpmf benchmark {BOARD}",
            )
    _check(command, [case.data for case in cases], f"the table {command.table}")
    rows = []
    try:
        for found in runs.collect(
            [case for case in cases if not command.data or case.data in command.data],
            5 if command.repeats is None else command.repeats,
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
