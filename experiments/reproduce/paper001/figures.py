"""What can be reproduced, and the papers' points to hold it to; NumPy and jax are not needed to
ask.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import UsageError
from experiments.cli import console
from experiments.reproduce import catalogue
from experiments.reproduce.comparison import NON_PRIVATE, Point

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings

AXES = {
    "rmse": "RMSE",
    "overall_epsilon": "overall ε",
    "ms_per_iteration": "ms per iteration",
    "rmse_train": "RMSE on the part trained on",
    "rmse_test": "held-out RMSE",
}
X_LABELS = {"iteration": "Iterations", "epsilon_i": "ε_i", "n": "n", "mu": "μ"}


@dataclass(frozen=True, kw_only=True)
class Figure(catalogue.Figure):
    """One figure of the paper. data: the paper's data set, then what stands in for it where that is
    absent, without comparison.

    number: in the paper.
    on: its ratings, as its title says it.
    axes: what is plotted over x.
    points: files of the paper's points; empty where they are not known.
    steps: file whose points imply the numbers of steps J; "" where something else gives them.
    slice: of the paper's data set, see `datasets.load`.
    tau: the τ that the noise is drawn with.
    program: of `programs.PROGRAMS`, which says what to train and compares it.
    """

    number: int
    on: str
    axes: tuple[str, ...]
    points: tuple[str, ...]
    steps: str
    slice: str | None
    tau: float
    program: Literal["curves", "settings", "times"]

    @property
    def title(self) -> str:
        return f"{self.what}, Gaussian mechanism as published, {self.on}"

    @property
    def paper_data(self) -> str:
        return self.data[0]

    @property
    def fallback(self) -> str | None:
        return self.data[1] if len(self.data) > 1 else None

    def shown_on(self, ratings: str) -> Figure:
        """The same, said of the ratings that it was run on, where they are not the paper's."""
        return self if ratings == self.paper_data else dataclasses.replace(self, on=ratings)

    def stem_on(self, ratings: str | None) -> str:
        """It is run on one data set alone, which its files do not name."""
        del ratings
        return self.stem

    def key_on(self, ratings: str | None) -> str:
        del ratings
        return self.name

    def data_in(self, here: Iterable[str]) -> list[str]:
        """The paper's data, else what stands in for it. `load` refuses what is absent."""
        return [next((name for name in self.data if name in here), self.paper_data)]

    def load(self, name: str, data_dir: Path | None) -> Ratings:
        from dpmf_jax.data import datasets

        if name == self.paper_data:
            return datasets.load(name, data_dir=data_dir, split=None, slice=self.slice)
        console.say(
            f"{self.paper_data} is not there: {name} instead, with numbers of its own, nothing to"
            " compare"
        )
        return super().load(name, data_dir)

    @property
    def plotted(self) -> tuple[Point, ...]:
        """The paper's points, of the axes shown."""
        return tuple(
            point for file in self.points for point in points(file) if point.axis in self.axes
        )

    @property
    def series(self) -> tuple[str, ...]:
        """In the paper's order."""
        known = dict.fromkeys(point.series for point in self.plotted)
        return tuple(known or (SWEPT if "rmse" in self.axes else SWEPT[:-1]))


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a figure.

    series, ranks, seeds: None is all that the scale has.
    scale: full is every rank with three seeds; small leaves out what takes a CPU hours (see
      `plans`).
    beside: which of the sound variants, on held-out ratings, are trained too; auto is by the scale.
    store: where the runs are kept.
    compared: whether the ratings are the paper's, so that its points apply.
    """

    series: tuple[str, ...] | None = None
    ranks: tuple[int, ...] | None = None
    seeds: tuple[int, ...] | None = None
    scale: Literal["small", "full"] = "small"
    beside: Literal["auto", "all", "none"] = "none"
    num_devices: int | None = None
    store: Path = Path()
    compared: bool = True


SWEPT = (
    "0.20",
    "0.30",
    "0.50",
    "0.75",
    "0.90",
    NON_PRIVATE,
)  # of figures over μ: those of the figures over n

# Ratings as the paper uses them: title, data set and what stands in for it, slice, τ. τ is 5 on
# MovieLens, found from its plots: the largest rating of a declared range that starts at 1. So it is
# 5 and 10 elsewhere.
_DATA = (
    ("MovieLens-1M", ("ml-1m",), None, 5.0),
    ("Netflix slice", ("netflix",), "paper001", 5.0),
    ("AnimeReco slice", ("anime", "anime-5000"), "paper001", 10.0),
)
# The first of three figures, one a data set; what, x, axes, the first figures of its points and of
# its J, program.
_KINDS: tuple[tuple[Any, ...], ...] = (
    (1, "training RMSE over steps, rank 20", "iteration", ("rmse",), (1,), 0, "curves"),
    (
        4,
        "training RMSE and overall ε over ε_i, rank 20",
        "epsilon_i",
        ("rmse", "overall_epsilon"),
        (4,),
        4,
        "settings",
    ),
    (7, "training RMSE over the rank n", "n", ("rmse",), (7,), 10, "settings"),
    (10, "overall ε over the rank n", "n", ("overall_epsilon",), (10,), 10, "settings"),
    (
        13,
        "training RMSE and overall ε over the rank n",
        "n",
        ("rmse", "overall_epsilon"),
        (7, 10),
        10,
        "settings",
    ),
    (16, "time of an iteration over the rank n", "n", ("ms_per_iteration",), (16,), 0, "times"),
    (19, "training RMSE over the learning rate μ, rank 20", "mu", ("rmse",), (), 0, "settings"),
    (
        22,
        "overall ε over the learning rate μ, rank 20",
        "mu",
        ("overall_epsilon",),
        (),
        0,
        "settings",
    ),
    (
        25,
        "training RMSE and overall ε over μ, rank 20",
        "mu",
        ("rmse", "overall_epsilon"),
        (),
        0,
        "settings",
    ),
)

CATALOGUE = catalogue.Catalogue.of(
    "001",
    "001, arXiv 2304.09096",
    (
        Figure(
            name=f"001/fig{first + place}",
            what=what,
            x_name=x_name,
            data=data,
            number=first + place,
            on=name,
            axes=axes,
            points=tuple(f"fig{number + place:02}.csv" for number in numbers),
            steps=f"fig{steps + place:02}.csv" if steps else "",
            slice=cut,
            tau=tau,
            program=program,
        )
        for place, (name, data, cut, tau) in enumerate(_DATA)
        for first, what, x_name, axes, numbers, steps, program in _KINDS
    ),
    every=(f"001/fig{first}" for first, *_ in _KINDS),  # on MovieLens
)
FIGURES: Mapping[str, Figure] = CATALOGUE.figures


@functools.cache
def points(file: str) -> tuple[Point, ...]:
    """The paper's points, in the order of the file. `points/README.md` has their source."""
    text = (resources.files("experiments") / "reproduce" / "points" / file).read_text(
        encoding="utf-8"
    )
    return tuple(
        Point(
            row["series"],
            float(row["x"]),
            float(row["y"]),
            row["axis"],
            row["kind"],
            row["x_name"],
            float(row["J_implied"]) if row["J_implied"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    )


def choose_series(known: Sequence[str], asked: Sequence[str] | None) -> tuple[str, ...]:
    """The series asked for, as the paper spells them ("0.5" is "0.50"), in the paper's order; None
    is all of them.

    Raises: UsageError for one that is not known.
    """
    if asked is None:
        return tuple(known)
    spelled = set()
    for name in asked:
        same = [series for series in known if series == name or _same_number(series, name)]
        if not same:
            raise UsageError(
                f"the figure has no series {name}",
                where="--series",
                fix=f"choose from {' '.join(known)}",
            )
        spelled.add(same[0])
    return tuple(series for series in known if series in spelled)


def _same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return False
