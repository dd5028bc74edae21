"""A figure of paper 001 in the paper's axes as svg, from its record: the paper's points and ours.

The same record gives the same text. Everything raises ModuleNotFoundError without matplotlib.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.reproduce import pictures
from experiments.reproduce.catalogue import Record
from experiments.reproduce.comparison import Point, Row, row_from
from experiments.reproduce.paper001 import plans
from experiments.reproduce.paper001.figures import AXES, NON_PRIVATE, X_LABELS, Figure
from experiments.reproduce.paper001.variants import GLOBAL, MEANS, PRICED, WORDS

HELD_OUT = "-held-out.svg"  # how the name of the second picture ends


def svgs(figure: Figure, record: Record) -> dict[str, str]:
    """By suffix: the figure and, where something was held out, errors on that."""
    rows = [row_from(row) for row in record["rows"]]
    beside = record.get("beside") or {"rows": [], "verdicts": []}
    beside_rows = [row_from(row) for row in beside["rows"]]
    points = figure.plotted if any(row.paper is not None for row in rows) else ()
    over_steps = figure.x_name == "iteration"
    content = {".svg": (_curves if over_steps else _settings)(figure, rows, points, beside_rows)}
    if beside["verdicts"]:
        content[HELD_OUT] = _held_out(figure, beside_rows)
    return content


def _curves(
    figure: Figure, rows: Sequence[Row], points: Sequence[Point], beside: Sequence[Row]
) -> str:
    """RMSE over steps: ours as a line, the paper's dotted; diamonds where early stopping would have
    ended a run. Thin lines are controls, which are among the rows of `beside`.

    Our curve's bends are among the rows, and between two of them it is straight.
    """
    names = list(dict.fromkeys(row.series for row in rows))
    with _canvas(figure) as (axes, svg):
        for series, colour in zip(names, _colours(len(names)), strict=True):
            known = {
                row.x: row.value
                for row in rows
                if row.series == series and row.kind != "patience" and row.axis == "rmse"
            }
            steps = sorted(known)
            mean = np.interp(np.arange(steps[-1] + 1), steps, [known[step] for step in steps])
            axes.plot(np.arange(len(mean)), mean, color=colour, linewidth=1.2, label=_label(series))
            theirs = sorted((p.x, p.y) for p in points if p.series == series and p.kind != "marker")
            if theirs:
                axes.plot(*zip(*theirs, strict=True), color=colour, linewidth=0.8, linestyle=":")
            mine = [row for row in rows if row.series == series and row.axis == "rmse"]
            marked = [
                row for row in mine if row.kind in ("marker", "line_end") and row.paper is not None
            ]
            _marks(axes, marked, colour)
            _paper(axes, [(row.x, row.paper) for row in marked], colour)
            for row in mine:
                if row.kind == "patience":
                    axes.plot([row.x], [row.value], "D", color=colour, markersize=5)
        axes.plot([], [], "k-x", markersize=5, label="ours, mean over seeds")
        axes.plot([], [], "k:o", markerfacecolor="none", label="the paper's")
        axes.plot([], [], "kD", markersize=5, label="ended by patience, not private")
        _levels(axes, [row for row in beside if row.axis == "rmse" and row.variant != MEANS])
        axes.set(ylabel="RMSE")
        axes.legend(frameon=False)
    return svg.getvalue()


def _settings(
    figure: Figure, rows: Sequence[Row], points: Sequence[Point], beside: Sequence[Row]
) -> str:
    """Values over a setting, a line a series, and the paper's points of these series, trained by us
    or not; thin lines are controls, as in `curves`.

    Of two axes the second stands on the right, dashed. Early stopping, where something else gives
    the paper's J, is dotted; many series on two axes leave no room for it.
    """
    with _canvas(figure) as (axes, svg):
        sides = {
            axis: axes if number == 0 else axes.twinx() for number, axis in enumerate(figure.axes)
        }
        room = figure.x_name == "epsilon_i" or len(sides) == 1
        palette = dict(zip(figure.series, _colours(len(figure.series)), strict=True))
        early: list[Row] = []
        another = [row for row in rows if row.kind == "another rank"]
        rows = [row for row in rows if row.kind != "another rank"]
        for (axis, side), style in zip(sides.items(), ("-", "--"), strict=False):
            for series, line in _lines(figure, [row for row in rows if row.axis == axis]).items():
                colour = (
                    palette[series] if series else {"-": "C0", "--": "C3"}[style]
                )  # one line on each axis
                main = [row for row in line if row.kind != "patience"] or line
                label = (
                    AXES[axis] if not series else _label(series) if axis == figure.axes[0] else None
                )
                side.plot(
                    [r.x for r in main],
                    [r.value for r in main],
                    style,
                    color=colour,
                    linewidth=1.0,
                    label=label,
                )
                _marks(side, main, colour)
                theirs = [
                    point for point in points if point.axis == axis and series in ("", point.series)
                ]
                _paper(side, [(point.x, point.y) for point in theirs], colour)
                if room and main is not line:
                    here = [row for row in line if row.kind == "patience"]
                    early += here
                    side.plot(
                        [r.x for r in here],
                        [r.value for r in here],
                        "D:",
                        color=colour,
                        markersize=3,
                        lw=0.6,
                    )
            side.set_ylabel(AXES[axis] + (" (dashed)" if style == "--" else ""))
        axes.plot([], [], "kx", markersize=5, label="ours, mean over seeds")
        if points:
            axes.plot([], [], "ko", markerfacecolor="none", label="the paper's")
        if another:
            sides["rmse"].plot(
                [row.x for row in another], [row.value for row in another], "k+", markersize=5
            )
            axes.plot([], [], "k+", markersize=5, label="ours, another rank\n(see the table)")
        if early:
            axes.plot([], [], "kD:", markersize=3, label="ended by patience,\nnot private")
        if "rmse" in sides:
            _levels(
                sides["rmse"],
                [row for row in beside if row.axis == "rmse" and row.variant != MEANS],
            )
        handles = [
            handle for side in sides.values() for handle in side.get_legend_handles_labels()[0]
        ]
        axes.figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=7)
    return svg.getvalue()


def _held_out(figure: Figure, beside: Sequence[Row]) -> str:
    """A panel for each private variant: held-out RMSE solid, RMSE on the part trained on dashed,
    and the controls.

    Over ε_i the priced item means are a line; elsewhere those of the smallest ε, as labelled.
    """
    rows = [row for row in beside if row.part != "all"]
    series = [
        name
        for name in figure.series
        if name != NON_PRIVATE and any(row.series == name for row in rows)
    ]
    palette = dict(zip(figure.series, _colours(len(figure.series)), strict=True)) | {
        NON_PRIVATE: "k"
    }
    simple = [row for row in rows if row.kind == "control"]
    seeds = max(len(row.values) for row in rows if row.kind == "end")
    with _panels(figure, columns=len(plans.BESIDE)) as (canvas, panels, svg):
        words = f"mean over {seeds} seeds" if seeds > 1 else "1 seed"
        canvas.suptitle(
            f"{figure.name}: held-out RMSE, by mechanism, {figure.on}, {words}", fontsize=8
        )
        for variant, axes in zip(plans.BESIDE, panels, strict=True):
            _errors(
                figure,
                axes,
                [row for row in rows if row.variant in (variant, NON_PRIVATE)],
                palette,
            )
            _controls(figure, axes, [row for row in simple if row.axis == "rmse_test"])
            axes.set_title(WORDS[variant], fontsize=8)
        panels[0].set_ylabel("RMSE")
        low, high = panels[0].get_ylim()
        panels[0].set_ylim(low, min(high, HIGHEST * max(row.value for row in simple)))
        for name in () if figure.x_name == "epsilon_i" else series:
            panels[-1].plot([], [], color=palette[name], label=_label(name))
        panels[-1].plot([], [], "k", label="without privacy")
        panels[-1].plot([], [], "-", color="0.5", label="held out")
        panels[-1].plot([], [], "--", color="0.5", label="trained on")
        handles, labels = panels[-1].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=7)
    return svg.getvalue()


# the top of a picture of held-out errors, in the worst control's; what is above is far from any use
HIGHEST = 1.3


def _errors(figure: Figure, axes: Any, rows: Sequence[Row], palette: Mapping[str, Any]) -> None:
    """A line a series; over ε_i, one for all of them, and the run without privacy as a level."""
    for axis, style, width in (("rmse_test", "-", 1.0), ("rmse_train", "--", 0.6)):
        lines: dict[str, list[Row]] = {}
        for row in rows:
            if row.axis == axis and row.kind != "control":
                private = row.series != NON_PRIVATE
                lines.setdefault(
                    "" if private and figure.x_name == "epsilon_i" else row.series, []
                ).append(row)
        for name, line in lines.items():
            look = {"linestyle": style, "color": palette.get(name, "C0"), "linewidth": width}
            if name == NON_PRIVATE and figure.x_name == "epsilon_i":
                axes.axhline(line[0].value, **look)
            else:
                axes.plot(
                    [row.x for row in line],
                    [row.value for row in line],
                    marker=".",
                    markersize=3,
                    **look,
                )


def _controls(figure: Figure, axes: Any, controls: Sequence[Row]) -> None:
    priced = [row for row in controls if row.variant == PRICED]
    _levels(axes, [row for row in controls if row.variant != PRICED])
    if figure.x_name == "iteration":
        _levels(axes, priced[:1])
        return
    same = (
        priced
        if figure.x_name == "epsilon_i"
        else [row for row in priced if row.series == priced[0].series]
    )
    label = "priced item means" + ("" if same == priced else f", ε_i = {priced[0].series}")
    axes.plot(
        [row.x for row in same],
        [row.value for row in same],
        ":",
        color="C3",
        linewidth=1.0,
        label=label,
    )


def _levels(axes: Any, controls: Sequence[Row]) -> None:
    """A thin line at the error of each control, labelled with what it costs."""
    for row in controls:
        style = {GLOBAL: "-.", MEANS: (0, (1, 3)), PRICED: ":"}[row.variant]
        cost = row.note.partition(",")[0] if row.variant == PRICED else "not private"
        label = f"{WORDS[row.variant]}, {cost}" + (
            f"\n(ε_i = {row.series})" if row.variant == PRICED else ""
        )
        axes.axhline(
            row.value,
            color="C3" if row.variant == PRICED else "0.5",
            linestyle=style,
            lw=0.8,
            label=label,
        )


def _lines(figure: Figure, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By series; over ε_i every series is one point, and all of them are one line."""
    lines: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.x):
        lines.setdefault("" if figure.x_name == "epsilon_i" else row.series, []).append(row)
    return {name: lines[name] for name in ("", *figure.series) if name in lines}


def _marks(axes: Any, rows: Sequence[Row], colour: Any) -> None:
    axes.plot([row.x for row in rows], [row.value for row in rows], "x", color=colour, markersize=5)


def _paper(axes: Any, points: Sequence[tuple[float, Any]], colour: Any) -> None:
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        "o",
        color=colour,
        markersize=7,
        markerfacecolor="none",
    )


@contextlib.contextmanager
def _panels(figure: Figure, columns: int) -> Generator[tuple[Any, list[Any], io.StringIO]]:
    """So many pairs of axes side by side that share their y."""
    size = (10, 4) if columns > 1 else (8, 5)
    with pictures.canvas(figure.name, size, columns=columns, sharey=True) as (canvas, grid, svg):
        for axes in grid.flat:
            axes.set(xlabel=X_LABELS[figure.x_name])
            axes.grid(alpha=0.3)
        yield canvas, list(grid.flat), svg


@contextlib.contextmanager
def _canvas(figure: Figure) -> Generator[tuple[Any, io.StringIO]]:
    """One pair of axes, titled."""
    with _panels(figure, 1) as (_, (axes,), svg):
        axes.set_title(f"{figure.name}: {figure.title}", fontsize=8)
        yield axes, svg


def _colours(number: int) -> Any:
    import matplotlib

    return matplotlib.colormaps["viridis"](np.linspace(0, 0.9, number))


def _label(series: str) -> str:
    return series if series == NON_PRIVATE else f"ε_i = {series}"
