"""`dpmf reproduce`: train a figure of a paper again and hold it to the paper's points."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from dpmf_jax.errors import OutsideTolerance, UsageError
from experiments import console, devices
from experiments.reproduce import figures
from experiments.reproduce.figures import Figure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Train a figure of a paper again and compare it with the paper's points; exit code 6 outside the tolerance.

    Seeded and not private: for the curator. It goes on where an earlier run into the same folder stopped.
    """

    figure: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="FIGURE")] = None
    """Such as 001/fig1; --list names them."""
    list: bool = False
    """Print what can be reproduced, and how long it takes."""
    series: tuple[str, ...] | None = None
    """Only these curves, such as 0.15 0.5 non-private; all by default."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One training a seed and series; the mean is compared."""
    data_dir: Path | None = None
    """Where the data sets are; else the environment's DPMF_DATA."""
    out: Path | None = None
    """Folder of the results; runs/reproduce/FIGURE by default. What is complete there is not trained again."""
    devices: int | None = None
    """Number of devices; all by default (a CPU counts one per core)."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    if command.list:
        rows = [_listed(figure) for figure in figures.FIGURES.values()]
        console.emit({"figures": rows}, json=command.json, render=_render_list)
        return
    if command.figure is None:
        raise UsageError("no figure is named", fix="dpmf reproduce 001/fig1, or dpmf reproduce --list")
    figure = figures.find(command.figure)
    seeds = command.seeds
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UsageError(f"--seeds {' '.join(map(str, seeds))} are not distinct numbers from 0 on", fix="--seeds 0 1 2")
    told = reproduce(figure, command)
    console.emit(told, json=command.json, render=_render)
    if told["result"] == "outside":
        worst = told["worst"]
        raise OutsideTolerance(
            f"{told['outside']} of {told['checked']} checked points are more than {told['tolerance']:g} from the paper",
            where=f"the furthest: {worst['difference']:+.4f}, series {worst['series']}, step {worst['step']}; "
            f"all of them in {told['files'][0]}",
            fix="check that the ratings are the published ones (dpmf data check); "
            f"{told['ratings']['name']} has {told['ratings']['count']} ratings here; the table: {figure.scale}",
        )


def reproduce(figure: Figure, command: Command) -> dict[str, Any]:
    """Everything but the printing: trains, compares, writes; the result's keys are the command's JSON interface."""
    from experiments.reproduce import report

    plotted = figures.points(figure.points)
    figures.choose_series(plotted, command.series)  # refuses what is not there before anything is loaded
    out = command.out or figure.folder
    num_devices = devices.use(command.devices)
    console.say(f"{figure.name} ({report.NOTICE})\nall of it: {figure.scale}, {figure.minutes:g} minutes on two cores")
    try:
        result = figure.run(
            figures.Request(
                series=command.series,
                seeds=command.seeds,
                data_dir=command.data_dir,
                out=out,
                num_devices=num_devices,
            )
        )
    except KeyboardInterrupt:
        raise console.Interrupted(words(command)) from None
    repeat = dataclasses.replace(command, data_dir=None, out=None, devices=None, json=False)
    told = report.summary(figure, result, command=words(repeat))
    files = report.write(figure, told, result, plotted, out)
    return told | {"out": str(out), "files": [str(file) for file in files]}


def words(command: Command) -> str:
    """The command line that does, or resumes, this."""
    said = ["dpmf", "reproduce", str(command.figure)]
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        if field.name == "figure" or value == field.default:
            continue
        said.append(f"--{field.name.replace('_', '-')}")
        if value is not True:
            said += map(str, value) if isinstance(value, tuple) else [str(value)]
    return shlex.join(said)


def _listed(figure: Figure) -> dict[str, Any]:
    fields = {field.name: getattr(figure, field.name) for field in dataclasses.fields(figure)}
    return {name: fields[name] for name in ("name", "paper", "number", "title", "data", "scale", "minutes")}


def _render_list(result: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title="dpmf reproduce FIGURE", caption="minutes: on two CPU cores; an interrupted run goes on")
    for heading in ("figure", "paper", "what", "data", "scale", "minutes"):
        table.add_column(heading, justify="right" if heading == "minutes" else "left")
    for row in result["figures"]:
        paper = f"{row['paper']}, figure {row['number']}"
        table.add_row(row["name"], paper, row["title"], row["data"], row["scale"], f"{row['minutes']:g}")
    return table


def _render(told: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table(title=f"{told['figure']} ({told['notice']})")
    for heading in ("series", "step", "paper", "ours", "difference", "result"):
        table.add_column(heading, justify="left" if heading in ("series", "result") else "right")
    for row in told["rows"]:
        if row["result"] != "informative":
            numbers = (f"{row['paper']:.5f}", f"{row['value']:.5f}", f"{row['difference']:+.5f}")
            table.add_row(row["series"], str(row["step"]), *numbers, row["result"])
    starts = [abs(row["difference"]) for row in told["rows"] if row["kind"] == "line_start"]
    lines = [
        f"{told['result']} tolerance: {told['checked'] - told['outside']} of {told['checked']} checked points",
        f"rule: {told['rule']}",
        f"seeds {' '.join(map(str, told['seeds']))}; at step 0 within {max(starts):.4f} of the paper (informative)",
        *(f"{name}: {series['headline']}" for name, series in told["series"].items()),
        *(f"wrote {file}" for file in told["files"]),
    ]
    return Group(table, "\n".join(lines))
