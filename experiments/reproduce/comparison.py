"""A paper's values and ours, point by point, under tolerances that were fixed beforehand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

NON_PRIVATE = "non-private"
NOTHING = (  # a promise, as figures print it
    "nothing that depends on a rating leaves a device: ε = 0"
)


class Point(NamedTuple):
    """One point of a plot. kind: marker, line_start, line_end or line_vertex; axis: what y is;
    x_name: what x is.

    num_steps: for an overall ε, the J (not a whole number) at which equation (9) gives it.
    """

    series: str
    x: float
    y: float
    axis: str
    kind: str
    x_name: str
    num_steps: float | None = None


TOLERANCE = 0.005  # in RMSE, of the mean over seeds
NON_PRIVATE_TOLERANCE = 0.01  # where the step is not the paper's but that of a rule
EPSILON_TOLERANCE = 0.01  # in overall ε
FIRST_CHECKED_STEP = 100  # curves are steep before, and the paper's start is another random draw

_ROUNDING = 1e-12  # of two decimal numbers' difference; "at most 0.005" includes 0.005


class Row(NamedTuple):
    """One value of ours, beside the paper's where it has one. value: the mean of values, one a
    seed.

    axis: what the value is. kind: of the paper's point, or the rule that chose the step
      ("patience", "small fall"); of what the paper does not have, "along" and "end" of a run, and
      "control".
    x: on the figure's axis. step: updates done before the value was read, a mean where seeds
      differ; None for a price.
    num_steps: J, the updates that are paid for. difference: value - paper.
    tolerance, paper, difference: None where there is none. result: informative where nothing is
      decided.
    variant: "published", "non-private" or what `beside` has. part: of the ratings, that was trained
      on.
    """

    series: str
    axis: str
    kind: str
    x: float
    step: float | None
    num_steps: float | None
    paper: float | None
    value: float
    values: tuple[float, ...]
    difference: float | None
    tolerance: float | None
    result: Literal["inside", "outside", "informative"]
    note: str = ""
    variant: str = "published"
    part: str = "all"


def row(
    series: str,
    axis: str,
    kind: str,
    x: float,
    values: Sequence[float],
    *,
    paper: float | None = None,
    tolerance: float | None = None,
    step: float | None = None,
    num_steps: float | None = None,
    note: str = "",
    variant: str | None = None,
    part: str = "all",
) -> Row:
    """One row. It decides where there are a paper's value and a tolerance.

    A value that is not finite is outside.
    """
    values = tuple(map(float, values))
    value = math.fsum(values) / len(values)
    difference = None if paper is None else value - paper
    result: Literal["inside", "outside", "informative"] = "informative"
    if difference is None or tolerance is None:
        tolerance = None
    else:
        result = "inside" if abs(difference) <= tolerance + _ROUNDING else "outside"
    variant = variant or ("non-private" if series == NON_PRIVATE else "published")
    decided = (paper, value, values, difference, tolerance, result)
    return Row(series, axis, kind, x, step, num_steps, *decided, note, variant, part)


def is_checked(point: Point) -> bool:
    """Whether a point decides: a curve's end, and its markers from step 100 on."""
    return point.kind == "line_end" or (
        point.kind == "marker" and round(point.x) >= FIRST_CHECKED_STEP
    )


def compare(
    points: Iterable[Point],
    curves: Mapping[str, Sequence[Any]],
    tolerance: float = TOLERANCE,
    *,
    compared: bool = True,
) -> list[Row]:
    """One row for every point of every series in `curves`, in the order of `curves`, then of steps.

    Args:
      points: x is the number of updates done, rounded to the nearest whole one.
      curves: by series, for each seed the training RMSE before update 0, 1, 2, … (an array or a
        list)
      compared: False leaves the paper's values out: the ratings are others.
    """
    rows = []
    place = {series: number for number, series in enumerate(curves)}
    for point in sorted(
        (p for p in points if p.series in place), key=lambda p: (place[p.series], round(p.x))
    ):
        step = round(point.x)
        rows.append(
            row(
                point.series,
                "rmse",
                point.kind,
                float(step),
                [float(curve[step]) for curve in curves[point.series]],
                paper=point.y if compared else None,
                tolerance=tolerance if is_checked(point) else None,
                step=step,
                num_steps=len(curves[point.series][0]),
            )
        )
    return rows


Verdict = Literal["inside", "outside", "informative", "no points to compare"]


def verdict(rows: Sequence[Row]) -> Verdict:
    """Inside if every checked row is. Without any, nothing is decided."""
    checked = [row for row in rows if row.result != "informative"]
    if not checked:
        return (
            "informative" if any(row.paper is not None for row in rows) else "no points to compare"
        )
    return "inside" if all(row.result == "inside" for row in checked) else "outside"


def worst(rows: Sequence[Row]) -> Row | None:
    """The checked row furthest from the paper, in tolerances; no number is furthest of all."""

    def distance(row: Row) -> float:
        assert row.difference is not None
        assert row.tolerance is not None
        return math.inf if math.isnan(row.difference) else abs(row.difference) / row.tolerance

    return max((row for row in rows if row.result != "informative"), key=distance, default=None)


def furthest(worst: Mapping[str, Any], axis: str | None = None) -> str:
    """A row by its distance from the paper, in words. axis: how its axis is called."""
    at = f"step {worst['step']:g}" if worst["step"] == worst["x"] else f"x = {worst['x']:g}"
    return f"{axis or worst['axis']} {worst['difference']:+.5f} (series {worst['series']}, {at})"


def row_from(stored: Mapping[str, Any]) -> Row:
    """A row that json has kept."""
    values = tuple(float(value) for value in stored["values"])
    numbers = {"x": float(stored["x"]), "value": float(stored["value"]), "values": values}
    kept: dict[str, Any] = {**stored, **numbers}
    return Row(**kept)


def mean(values: Iterable[float]) -> float:
    """Infinite where one of them is."""
    values = tuple(values)
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf


def number(value: Any) -> str:
    """As tables print it; nothing for None."""
    return "" if value is None else f"{float(value):.5f}"


def signed(value: Any) -> str:
    """As tables print a difference; nothing for None."""
    return "" if value is None else f"{float(value):+.5f}"
