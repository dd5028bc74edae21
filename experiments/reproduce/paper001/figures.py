"""What can be reproduced, and the papers' points to hold it to; NumPy and jax are not needed to
ask.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpmf_jax.errors import UsageError
from experiments.reproduce.comparison import NON_PRIVATE, Point

if TYPE_CHECKING:
    pass

AXES = {
    "rmse": "RMSE",
    "overall_epsilon": "overall ε",
    "ms_per_iteration": "ms per iteration",
    "rmse_train": "RMSE on the part trained on",
    "rmse_test": "held-out RMSE",
}
X_LABELS = {"iteration": "Iterations", "epsilon_i": "ε_i", "n": "n", "mu": "μ"}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of a paper.

    name: what the command calls it. paper, number: where it stands. what, on: what is plotted, on
      which ratings.
    x_name: iteration, epsilon_i, n or mu.
    axes: what is plotted over it. points: files of the paper's points, none where they are not
      known.
    steps: file whose points imply the numbers of steps J; "" where something else gives them.
    data: the data set as `dpmf data list` names it. fallback: what is taken where it is absent,
      without comparison.
    slice: of `data`, see `datasets.load`. tau: the τ that the noise is drawn with.
    program: "module:function" that says what to train and compares it; see `work.Work`.
    """

    name: str
    paper: str
    number: int
    what: str
    on: str
    x_name: Literal["iteration", "epsilon_i", "n", "mu"]
    axes: tuple[str, ...]
    points: tuple[str, ...]
    steps: str
    data: str
    fallback: str | None
    slice: str | None
    tau: float
    program: str

    @property
    def title(self) -> str:
        return f"{self.what}, Gaussian mechanism as published, {self.on}"

    def shown_on(self, ratings: str) -> Figure:
        """The same, said of the ratings that it was run on, where they are not the paper's."""
        return self if ratings == self.data else dataclasses.replace(self, on=ratings)

    @property
    def stem(self) -> str:
        """Name of its files and of their folder."""
        return self.name.replace("/", "-")

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
    """What is asked of a figure. None: series, ranks and seeds are all that the scale has.

    scale: full is every rank with three seeds; small leaves out what takes a CPU hours (see
      `plans`).
    beside: which of the sound variants, on held-out ratings, are trained too; auto is by the scale.
    store: where the runs are kept. compared: whether the ratings are the paper's, so that its
      points apply.
    """

    series: tuple[str, ...] | None = None
    ranks: tuple[int, ...] | None = None
    seeds: tuple[int, ...] | None = None
    scale: Literal["small", "full"] = "small"
    beside: Literal["auto", "all", "none"] = "none"
    num_devices: int | None = None
    store: Path = Path()
    compared: bool = True


# ---------------------------------------------------------------------------------------------- pap

SWEPT = (
    "0.20",
    "0.30",
    "0.50",
    "0.75",
    "0.90",
    NON_PRIVATE,
)  # of figures over μ: those of the figures over n

# Ratings as the paper uses them: title, data set, fallback, slice, τ (5 on MovieLens, found from
# its plots; the largest rating of a declared range that starts at 1, so 5 and 10 elsewhere).
_DATA = (
    ("MovieLens-1M", "ml-1m", None, None, 5.0),
    ("Netflix slice", "netflix", None, "paper001", 5.0),
    ("AnimeReco slice", "anime", "anime-5000", "paper001", 10.0),
)
_CURVES, _SETTINGS, _TIMES = (
    f"experiments.reproduce.paper001.{program}:figure"
    for program in ("curves", "settings", "times")
)

# The first of three figures, one a data set; what, x, axes, the first figures of its points and of
# its J, program.
_KINDS = (
    (1, "training RMSE over steps, rank 20", "iteration", ("rmse",), (1,), 0, _CURVES),
    (
        4,
        "training RMSE and overall ε over ε_i, rank 20",
        "epsilon_i",
        ("rmse", "overall_epsilon"),
        (4,),
        4,
        _SETTINGS,
    ),
    (7, "training RMSE over the rank n", "n", ("rmse",), (7,), 10, _SETTINGS),
    (10, "overall ε over the rank n", "n", ("overall_epsilon",), (10,), 10, _SETTINGS),
    (
        13,
        "training RMSE and overall ε over the rank n",
        "n",
        ("rmse", "overall_epsilon"),
        (7, 10),
        10,
        _SETTINGS,
    ),
    (16, "time of an iteration over the rank n", "n", ("ms_per_iteration",), (16,), 0, _TIMES),
    (19, "training RMSE over the learning rate μ, rank 20", "mu", ("rmse",), (), 0, _SETTINGS),
    (
        22,
        "overall ε over the learning rate μ, rank 20",
        "mu",
        ("overall_epsilon",),
        (),
        0,
        _SETTINGS,
    ),
    (
        25,
        "training RMSE and overall ε over μ, rank 20",
        "mu",
        ("rmse", "overall_epsilon"),
        (),
        0,
        _SETTINGS,
    ),
)

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for place, (name, data, fallback, cut, tau) in enumerate(_DATA)
    for first, what, x_name, axes, numbers, steps, program in _KINDS
    for figure in (
        Figure(
            name=f"001/fig{first + place}",
            paper="001, arXiv 2304.09096",
            number=first + place,
            what=what,
            on=name,
            x_name=x_name,
            axes=axes,
            points=tuple(f"fig{number + place:02}.csv" for number in numbers),
            steps=f"fig{steps + place:02}.csv" if steps else "",
            data=data,
            fallback=fallback,
            slice=cut,
            tau=tau,
            program=program,
        ),
    )
}

CLAIMS = "001/claims"  # no figure: a table of the paper's statements, see `claims`
GROUPS = {"001/all": tuple(name for name, figure in FIGURES.items() if figure.data == "ml-1m")}


def expand(names: Sequence[str]) -> list[Figure]:
    """The figures that are named, each once; a group such as 001/all stands for its figures.

    Raises: UsageError for a figure that is not in the table, with the nearest that is.
    """
    return [
        find(name)
        for name in dict.fromkeys(one for name in names for one in GROUPS.get(name, (name,)))
    ]


def find(name: str) -> Figure:
    """Raises: UsageError for a figure that is not in the table, with the nearest that is."""
    if name in FIGURES:
        return FIGURES[name]
    nearest = difflib.get_close_matches(name, (*FIGURES, *GROUPS, CLAIMS), n=1, cutoff=0.0)
    raise UsageError(
        f"there is no figure {name!r} to reproduce",
        where="dpmf reproduce --list names them",
        fix=f"dpmf reproduce {nearest[0]}",
    )


@functools.cache
def points(file: str) -> tuple[Point, ...]:
    """The paper's points, in the order of the file; `points/README.md` says where they come
    from.
    """
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
