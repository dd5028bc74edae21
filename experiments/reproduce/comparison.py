"""A paper's curves and ours, point by point, under a tolerance that was fixed beforehand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from experiments.reproduce.figures import Point

TOLERANCE = 0.005  # in RMSE, of the mean over seeds
FIRST_CHECKED_STEP = 100  # curves are steep before, and the paper's start is another random draw

_ROUNDING = 1e-12  # of two decimal numbers' difference; "at most 0.005" includes 0.005


class Row(NamedTuple):
    """One point compared. step: updates done. values: one a seed; value: their mean. difference: value - paper.

    tolerance: None where the row is informative only.
    """

    series: str
    kind: str
    step: int
    paper: float
    value: float
    values: tuple[float, ...]
    difference: float
    tolerance: float | None
    result: Literal["inside", "outside", "informative"]


def is_checked(point: Point) -> bool:
    """Whether a point decides: a curve's end, and its markers from step 100 on. The rest is shown beside them."""
    return point.kind == "line_end" or (point.kind == "marker" and round(point.x) >= FIRST_CHECKED_STEP)


def compare(points: Iterable[Point], curves: Mapping[str, Sequence[Any]], tolerance: float = TOLERANCE) -> list[Row]:
    """One row for every point of every series in `curves`, in the order of `curves`, then of steps.

    Args:
      points: x is the number of updates done, rounded to the nearest whole one.
      curves: by series, for each seed the training RMSE before update 0, 1, 2, … (an array or a list)

    A value that is not finite is outside.
    """
    rows = []
    place = {series: number for number, series in enumerate(curves)}
    for point in sorted((p for p in points if p.series in place), key=lambda p: (place[p.series], round(p.x))):
        step = round(point.x)
        values = tuple(float(curve[step]) for curve in curves[point.series])
        mean = math.fsum(values) / len(values)
        difference = mean - point.y
        checked = is_checked(point)
        close = abs(difference) <= tolerance + _ROUNDING
        rows.append(
            Row(
                series=point.series,
                kind=point.kind,
                step=step,
                paper=point.y,
                value=mean,
                values=values,
                difference=difference,
                tolerance=tolerance if checked else None,
                result=("inside" if close else "outside") if checked else "informative",
            )
        )
    return rows


def verdict(rows: Sequence[Row]) -> Literal["inside", "outside"]:
    """Inside if every checked row is, and there is one."""
    checked = [row for row in rows if row.result != "informative"]
    return "inside" if checked and all(row.result == "inside" for row in checked) else "outside"


def worst(rows: Sequence[Row]) -> Row:
    """The checked row furthest from the paper; one that is no number is further than any."""
    checked = [row for row in rows if row.result != "informative"]
    return max(checked, key=lambda row: math.inf if math.isnan(row.difference) else abs(row.difference))
