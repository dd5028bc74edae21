"""`dpmf bench`: a training step or a local round against its peers, a sweep against separate runs, reading a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import tyro

from experiments import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Time a training step, a round of local DP, a sweep over configurations, or the reading of a ratings file."""

    what: Annotated[Literal["step", "local", "sweep", "read"], tyro.conf.Positional]
    """step: both gradients and updates at a data set's size, on generated ratings. local: a round of paper 004's local
    DP against NumPy loops over users, with the peak memory of each. sweep: many configurations at once against separate
    runs. read: a generated, shuffled csv, with checks and layout."""
    rank: int | None = None
    """step, local, sweep: number of factors; 20 by default, of local 15."""
    size: Literal["ml-100k", "ml-1m", "ml-20m"] | None = None
    """step, local, sweep: the data set whose size the generated ratings have; ml-1m by default, of local ml-20m."""
    repeats: int = 9
    """step, local, sweep: interleaved rounds; the median counts."""
    projection: int = 2_700
    """local: rows of the random projection, at most the number of items."""
    configurations: int = 16
    """sweep: how many."""
    steps: int = 20
    """sweep: that each configuration takes."""
    devices: int | None = None
    """step, local, sweep: number of devices; all by default (a CPU counts one per core)."""
    num_ratings: int = 20_000_000
    """read: rows of the file."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    local_round = command.what == "local"
    rank = (15 if local_round else 20) if command.rank is None else command.rank
    size = command.size or ("ml-20m" if local_round else "ml-1m")
    if command.what == "step":
        from experiments.bench import step

        result = step.run(rank, size, command.repeats, num_devices=command.devices)
    elif command.what == "local":
        from experiments.bench import local

        result = local.run(size, rank, command.projection, command.repeats, num_devices=command.devices)
    elif command.what == "sweep":
        from experiments.bench import sweep

        result = sweep.run(
            command.configurations, rank, size, command.repeats, steps=command.steps, num_devices=command.devices
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
        table.add_column(name, justify="left" if name in ("variant", "contender") else "right")
    for row in result["rows"]:
        table.add_row(*(_cell(row[name]) for name in names))
    rest = (f"{name}: {value}" for name, value in result.items() if name not in ("rows", "benchmark"))
    return Group(table, *rest)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
    return "-" if value is None else str(value)
