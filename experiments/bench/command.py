"""`dpmf bench`: how fast the steps, sweeps and files are, and how tight the audits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from experiments.cli import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Time steps, sweeps and reading; measure how tight the audits are, and how costs grow."""

    what: Annotated[
        Literal[
            "step",
            "noise",
            "local",
            "als",
            "objective",
            "online",
            "sweep",
            "audit",
            "read",
            "scale",
            "all",
        ]
        | None,
        tyro.conf.Positional,
    ] = None
    """step: both gradients and updates. noise: draws, tables and steps in whole numbers, beside
    float32. local: a round of paper 004's local DP against NumPy loops over users, with peaks of
    memory. als: a pass of it against an iteration of implicit, its parts, and how it grows.
    objective: paper 003's closed form against NumPy, and its iterations with users who come
    and go. online: an epoch of paper 002, one rating after the other, over factors and over a count
    sketch, against numba and Surprise. sweep: many configurations at once against separate runs.
    audit: how near the audits come to what is true. read: a generated, shuffled csv, with checks
    and layout. scale: a step over the number of ratings, users, ranks, configurations and devices,
    with fitted exponents. all: each in a process of its own, for most of an hour, and a table
    beside the goals. All run on generated ratings.
    """
    gpu: bool = False
    """In place of WHAT: all that only an accelerator can say, in under eight minutes."""
    compile_only: bool = False
    """With --gpu, where there is none: compile its programs and count what they read and hold."""
    rank: int | None = None
    """All but read: number of factors. [20; of noise 20 and 64, of als 16 and 64, of local 15, of
    objective 50]
    """
    size: Literal["ml-100k", "ml-1m", "ml-20m"] | None = None
    """All but read: data set whose size the generated ratings have. [ml-1m; of local ml-20m]"""
    repeats: int = 9
    """All but audit: number of interleaved rounds; the median counts."""
    projection: int = 2_700
    """local: rows of the random projection, at most the number of items."""
    configurations: int = 16
    """sweep: number of configurations."""
    steps: int = 20
    """sweep: number of steps of each configuration."""
    devices: int | None = None
    """All but read and online: number of devices; a CPU has one per core. [all]"""
    trials: int = 2_000
    """audit: number of trials of cheap audits; of costly ones a tenth."""
    num_ratings: int = 20_000_000
    """read: number of rows of the file. scale, als: the most ratings."""
    out: Path = Path("bench")
    """all: folder of the results; the page is written beside it. Keeps results that are there."""
    again: bool = False
    """all: run again what is there already."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> int:
    if (command.what is None) != command.gpu:
        console.refuse(
            "name one benchmark, or --gpu",
            fix="dpmf bench step; dpmf bench --help explains the others",
        )
    if command.compile_only and not command.gpu:
        console.refuse(
            "--compile-only is for a GPU that is not here", fix="dpmf bench --gpu --compile-only"
        )
    rank = (
        {"local": 15, "objective": 50}.get(command.what, 20)
        if command.rank is None
        else command.rank
    )
    size = command.size or ("ml-20m" if command.what == "local" else "ml-1m")
    if command.compile_only:
        from experiments.bench import compiled

        result = compiled.run()
    elif command.gpu:
        from experiments.bench import gpu

        result = gpu.run(command.repeats)
    elif command.what == "step":
        from experiments.bench import step

        result = step.run(rank, size, command.repeats, num_devices=command.devices)
    elif command.what == "noise":
        from experiments.bench import noise

        result = noise.run(command.rank, size, command.repeats, num_devices=command.devices)
    elif command.what == "local":
        from experiments.bench import local

        result = local.run(
            size, rank, command.projection, command.repeats, num_devices=command.devices
        )
    elif command.what == "als":
        from experiments.bench import als

        result = als.run(
            size,
            als.RANKS if command.rank is None else (rank,),
            command.repeats,
            command.num_ratings,
            num_devices=command.devices,
        )
    elif command.what == "objective":
        from experiments.bench import objective

        result = objective.run(size, rank, command.repeats, num_devices=command.devices)
    elif command.what == "online":
        from experiments.bench import online

        result = online.run(size, rank, command.repeats)
    elif command.what == "sweep":
        from experiments.bench import sweep

        result = sweep.run(
            command.configurations,
            rank,
            size,
            command.repeats,
            steps=command.steps,
            num_devices=command.devices,
        )
    elif command.what == "audit":
        from experiments.bench import audit

        result = audit.run(command.trials)
    elif command.what == "scale":
        from experiments.bench import scale

        result = scale.run(rank, command.repeats, command.num_ratings, num_devices=command.devices)
    elif command.what == "all":
        from experiments.bench import suite

        result = suite.run(command.out, again=command.again, say=console.say)
    else:
        from experiments.bench import read

        result = read.run(command.num_ratings, command.repeats)
    console.emit(result, json=command.json, render=render)
    return 1 if result.get("failed") else 0


def render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    from experiments.bench import measure

    def table(title: str, rows: list[Mapping[str, Any]]) -> Table:
        drawn = Table(title=title)
        names = list(rows[0]) if rows else []
        for name in names:
            drawn.add_column(
                name,
                justify=(
                    "left"
                    if name
                    in (
                        "variant",
                        "part",
                        "contender",
                        "draw",
                        "generator",
                        "case",
                        "audit",
                        "of",
                        "bound_by",
                        "label",
                        "refused",
                        "method",
                    )
                    else "right"
                ),
            )
        for row in rows:
            drawn.add_row(*(_cell(row[name]) for name in names))
        return drawn

    tables = [table(f"bench {result.get('benchmark', '')}", result["rows"])]
    if iterations := result.get("iterations"):
        tables.append(table(f"iterations, {result['iterations_data']}", iterations))
    if memory := result.get("memory"):
        tables.append(table(f"memory, {result['memory_data']}", memory))
    tables += [table(name, rows) for name in measure.TABLES[3:] if (rows := result.get(name))]
    rest = (
        f"{name}: {value}"
        for name, value in result.items()
        if name not in (*measure.TABLES, "benchmark")
    )
    return Group(*tables, *rest)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
    return "-" if value is None else str(value)
