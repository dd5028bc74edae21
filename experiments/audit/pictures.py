"""The two pictures of an audit's report as lines and marks in an svg: numbers alone, no text that
anybody chose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

WIDTH, HEIGHT = 360, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 12, 42
LEAST = 1e-4  # where a ROC's axes begin; a share of 0 is drawn there

Scale = Callable[[float], float]


class Tick(NamedTuple):
    at: float
    label: str


class Line(NamedTuple):
    """kind: its class in the style sheet; points: as an svg polyline has them."""

    kind: str
    points: str


class Drawing(NamedTuple):
    """Everything the template needs: the frame, ticks, lines, marks (x, y), axis names, and what
    each kind means.
    """

    frame: tuple[float, float, float, float]  # left, top, right, bottom
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    lines: Sequence[Line]
    marks: Sequence[tuple[float, float]]
    x_name: str
    y_name: str
    key: Sequence[tuple[str, str]]


def draw(picture: Any) -> Drawing:
    """Of a `audit_view.Picture`. Raises: KeyError for a kind that is none."""
    return {"curve": _curve, "roc": _roc}[picture.kind](picture)


def _curve(picture: Any) -> Drawing:
    claimed, measured = picture.series["claimed"], picture.series.get("measured", ())
    everything = [*claimed, *measured]
    most = _nice(max((epsilon for epsilon, _ in everything), default=1.0))
    least = math.floor(math.log10(min(delta for _, delta in everything)))
    x, y = _linear(0.0, most), _log(10.0**least, 1.0)
    powers = range(least, 1, max(1, -least // 4))
    marks = [(x(max(0.0, epsilon)), y(delta)) for epsilon, delta in measured]
    key = [("claimed", "claimed")] + ([("mark", "measured: ε is at least this")] if marks else [])
    return Drawing(
        _FRAME,
        [Tick(x(most * i / 4), f"{most * i / 4:.3g}") for i in range(5)],
        [Tick(y(10.0**power), _power(power)) for power in powers],
        [Line("claimed", _points(sorted((x(epsilon), y(delta)) for epsilon, delta in claimed)))],
        marks,
        "ε",
        "δ",
        key,
    )


def _roc(picture: Any) -> Drawing:
    x, y = _log(LEAST, 1.0, across=True), _log(LEAST, 1.0)
    grid = [10.0 ** (-4 + i / 10) for i in range(41)]
    lines = [Line("chance", _points([(x(LEAST), y(LEAST)), (x(1.0), y(1.0))]))]
    key = [("chance", "guessing")]
    if picture.claim is not None:
        epsilon, delta = picture.claim
        slope = math.exp(min(epsilon, 700.0))
        # from both worlds: TPR <= e^ε FPR + δ, and 1 - FPR <= e^ε (1 - TPR) + δ
        bound = [min(slope * fpr + delta, 1 - (1 - fpr - delta) / slope, 1.0) for fpr in grid]
        lines.append(
            Line(
                "claimed",
                _points(
                    [(x(fpr), y(max(tpr, LEAST))) for fpr, tpr in zip(grid, bound, strict=True)]
                ),
            )
        )
        key.append(("claimed", "most that the claim allows"))
    meanings = {"control": "the same without noise", "measured": "measured"}
    kinds = {
        name: "control" if name.startswith("control") else "measured" for name in picture.series
    }
    for name, points in sorted(picture.series.items(), key=lambda entry: kinds[entry[0]]):
        at = [(x(max(fpr, LEAST)), y(max(tpr, LEAST))) for fpr, tpr in sorted(points)]
        lines.append(Line(kinds[name], _points(at)))
    key += [(kind, meanings[kind]) for kind in sorted(set(kinds.values()))]
    powers = range(-4, 1)
    ticks = (
        [Tick(x(10.0**power), _power(power)) for power in powers],
        [Tick(y(10.0**p), _power(p)) for p in powers],
    )
    return Drawing(_FRAME, *ticks, lines, [], "false alarms (FPR)", "members found (TPR)", key)


_FRAME = (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)


def _linear(low: float, high: float) -> Scale:
    return lambda value: round(LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)


def _log(low: float, high: float, *, across: bool = False) -> Scale:
    width = math.log10(high / low)
    if across:
        return lambda value: round(
            LEFT + math.log10(value / low) / width * (WIDTH - LEFT - RIGHT), 1
        )
    return lambda value: round(
        HEIGHT - BOTTOM - math.log10(value / low) / width * (HEIGHT - TOP - BOTTOM), 1
    )


def _nice(value: float) -> float:
    """The least of 1, 2, 4, 5, 8, 10 times a power of ten that is not below a value."""
    if not value > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * (1 - 1e-9))


def _power(power: int) -> str:
    return "1" if power == 0 else f"1e{power}"


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
