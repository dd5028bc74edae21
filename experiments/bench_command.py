"""`dpmf bench`: one training step against its peers, a sweep against separate runs, the reading of a large file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import tyro

from experiments import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Time a training step, a sweep over configurations, or the reading of a ratings file with checks and layout."""

    what: Annotated[Literal["step", "sweep", "read"], tyro.conf.Positional]
    """step: both gradients and updates at a data set's size, on generated ratings. sweep: many configurations at once
    against separate runs. read: a generated, shuffled csv."""
    rank: int = 20
    """step, sweep: number of factors."""
    size: Literal["ml-100k", "ml-1m", "ml-20m"] = "ml-1m"
    """step, sweep: the data set whose size the generated ratings have."""
    repeats: int = 9
    """step, sweep: interleaved rounds; the median counts."""
    configurations: int = 16
    """sweep: how many."""
    devices: int | None = None
    """step, sweep: number of devices; all by default (a CPU counts one per core)."""
    num_ratings: int = 20_000_000
    """read: rows of the file."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    if command.what == "step":
        from experiments.bench import step

        result = step.run(command.rank, command.size, command.repeats, num_devices=command.devices)
    elif command.what == "sweep":
        from experiments.bench import sweep

        result = sweep.run(
            command.configurations, command.rank, command.size, command.repeats, num_devices=command.devices
        )
    else:
        from experiments.bench import read

        result = read.run(command.num_ratings)
    console.emit(result, json=command.json, render=render)


def render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table(title=f"bench {result.get('benchmark', '')}")
    names = list(result["rows"][0]) if result["rows"] else []
    for name in names:
        table.add_column(name, justify="left" if name == "contender" else "right")
    for row in result["rows"]:
        table.add_row(*(_cell(row[name]) for name in names))
    rest = (f"{name}: {value}" for name, value in result.items() if name not in ("rows", "benchmark"))
    return Group(table, *rest)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
    return "-" if value is None else str(value)
