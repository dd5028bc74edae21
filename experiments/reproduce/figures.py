"""What can be reproduced, and the papers' points to hold it to; NumPy and jax are not needed to ask."""

from __future__ import annotations

import csv
import difflib
import importlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from dpmf_jax.errors import UsageError


class Point(NamedTuple):
    """One point of a plot. kind: marker, line_start, line_end or line_vertex; axis: what y is; x_name: what x is."""

    series: str
    x: float
    y: float
    axis: str
    kind: str
    x_name: str


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of a paper.

    name: what the command calls it. paper, number, title: where it stands. points: file of its points.
    data: the data set as `dpmf data list` names it. scale: how much work there is. minutes: on two CPU cores.
    program: "module:function" that trains it; see `Request` and `gaussian_curves.figure`.
    """

    name: str
    paper: str
    number: int
    title: str
    points: str
    data: str
    scale: str
    minutes: float
    program: str

    def run(self, request: Request) -> dict[str, Any]:
        module, _, function = self.program.partition(":")
        return getattr(importlib.import_module(module), function)(self, request)

    @property
    def folder(self) -> Path:
        """Where results go unless the user says otherwise."""
        return Path("runs") / "reproduce" / self.name.replace("/", "-")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a figure's program; series None is all of them."""

    series: tuple[str, ...] | None
    seeds: tuple[int, ...]
    data_dir: Path | None
    out: Path
    num_devices: int | None


FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure(
            name="001/fig1",
            paper="001, arXiv 2304.09096",
            number=1,
            title="training RMSE over steps, Gaussian mechanism as published, MovieLens-1M, rank 20",
            points="fig01.csv",
            data="ml-1m",
            scale="7 series x 3 seeds, 37,536 steps of 1,000,209 ratings",
            minutes=15,
            program="experiments.reproduce.gaussian_curves:figure",
        ),
    )
}


def find(name: str) -> Figure:
    """Raises: UsageError for a figure that is not in the table, with the nearest that is."""
    if name in FIGURES:
        return FIGURES[name]
    nearest = difflib.get_close_matches(name, FIGURES, n=1, cutoff=0.0)
    raise UsageError(
        f"there is no figure {name!r} to reproduce",
        where="dpmf reproduce --list names them",
        fix=f"dpmf reproduce {nearest[0]}",
    )


def points(file: str) -> tuple[Point, ...]:
    """The paper's points, in the order of the file; `points/README.md` says where they come from."""
    text = (resources.files("experiments") / "reproduce" / "points" / file).read_text(encoding="utf-8")
    return tuple(
        Point(row["series"], float(row["x"]), float(row["y"]), row["axis"], row["kind"], row["x_name"])
        for row in csv.DictReader(text.splitlines())
    )


def choose_series(plotted: tuple[Point, ...], asked: tuple[str, ...] | None) -> tuple[str, ...]:
    """The series asked for, as the paper spells them ("0.5" is "0.50"), in the paper's order; None is all of them.

    Raises: UsageError for one that the figure does not have.
    """
    known = tuple(dict.fromkeys(point.series for point in plotted))
    if asked is None:
        return known
    spelled = set()
    for name in asked:
        same = [series for series in known if series == name or _same_number(series, name)]
        if not same:
            raise UsageError(f"the figure has no series {name}", where="--series", fix=f"choose from {' '.join(known)}")
        spelled.add(same[0])
    return tuple(series for series in known if series in spelled)


def _same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return False
