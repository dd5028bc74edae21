"""Paper 004's figures on paper and on the terminal: a section of markdown, a picture, a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from experiments.reproduce import page, pictures
from experiments.reproduce.catalogue import Figure, Record
from experiments.reproduce.comparison import number
from experiments.reproduce.page import joined

AXES = {
    "rmse": "held out",
    "rmse_clipped": "held out, clipped",
    "rmse_train": "trained on",
    "error": "‖V* − V‖max",
}
CONTROLS = ("global-mean", "item-means")
HIGHEST = 30.0  # of a picture; what is above it has left any use behind


def files(figure: Figure, record: Record) -> dict[str, str]:
    return page.files(figure, record, section, picture)


def section(figure: Figure, record: Record, svg: str) -> list[str]:
    """Picture, numbers, what each series promises and was run with, how to repeat it."""
    lines = page.opening(figure, record, svg)
    for axis in page.axes_of(record, AXES):
        lines += [f"{AXES[axis].capitalize()}:", "", *_grid(figure, record, axis), ""]
    if any(row["paper"] is not None for row in record["rows"]):
        lines += ["The slides' numbers, on held-out ratings here:", "", *_compared(record), ""]
    lines += [
        "| series | learning rate γ | clipped entries | seeds | promise |",
        "|---|---:|---:|---|---|",
    ]
    for setting in record["settings"]:
        place = (
            ""
            if setting["x"] is None or figure.name == "004/variants"
            else f", {figure.x_name} {setting['x']:g}"
        )
        rate = setting.get("config", {}).get("learning_rate")
        outside = setting.get("outside")
        lines.append(
            f"| {setting['series']}{place} | {'' if rate is None else f'{rate:g}'} "
            f"| {'' if outside is None else f'{float(outside):.1%}'} | {joined(setting['seeds'])} "
            f"| {setting['headline']} |"
        )
    if record["searches"]:
        lines += [
            "",
            "γ was searched on generated ratings of the same numbers of users, items and ratings:"
            " the lowest training error at the end, among "
            + ", ".join(next(iter(record["searches"].values()))["tried"])
            + ". No rating of this data set was looked at for it.",
        ]
    return [*lines, *page.ending(record)]


def _grid(figure: Figure, record: Record, axis: str) -> list[str]:
    rows = [row for row in record["rows"] if row["axis"] == axis]
    if figure.name == "004/variants":
        lines = ["| | mean over seeds | spread |", "|---|---:|---:|"]
        for series in dict.fromkeys(row["series"] for row in rows):
            one = next(row for row in rows if row["series"] == series)
            values = [float(value) for value in one["values"]]
            lines.append(
                f"| {series} | {_number(one['value'])} | {max(values) - min(values):.5f} |"
            )
        return lines
    return page.grid(rows, figure.x_name, lambda row: _number(row["value"]))


def _number(value: Any) -> str:
    return (
        "diverged"
        if value == "inf"
        else number(value)
        if value is None or float(value) < 100
        else f"{value:.3g}"
    )


def _compared(record: Record) -> list[str]:
    lines = ["| series | rounds | paper | ours | difference | |", "|---|---:|---:|---:|---:|---|"]
    for row in record["rows"]:
        if row["paper"] is not None:
            values = (number(row["paper"]), _number(row["value"]), row["difference"], row["result"])
            lines.append(
                f"| {row['series']} | {row['x']:g} | " + " | ".join(map(str, values)) + " |"
            )
    return lines


def picture(figure: Figure, record: Record) -> str:
    """Held-out errors (or ‖V* − V‖max) as svg, a line a series; the slides' points as circles,
    controls as thin lines.

    The same rows give the same text. Raises: ModuleNotFoundError without matplotlib.
    """
    axis = {"004/error": "error", "004/variants": "rmse_clipped"}.get(figure.name, "rmse")
    rows = [row | {"value": float(row["value"])} for row in record["rows"] if row["axis"] == axis]
    with pictures.canvas(page.stem(figure, record), (8, 4.5)) as (canvas, ((axes,),), svg):
        if figure.name == "004/variants":
            _draw_variants(axes, rows)
            axes.set(xlabel=f"RMSE, {AXES[axis]}")
            level = axes.axvline
        else:
            _draw_lines(axes, rows, HIGHEST if axis != "error" else math.inf)
            x_scale, y_scale = ("log" if log else "linear" for log in figure.log)
            y_name = figure.y_name if axis == "error" else f"RMSE, {AXES[axis]}"
            axes.set(xlabel=figure.x_name, ylabel=y_name)
            axes.set(xscale=x_scale, yscale=y_scale)
            level = axes.axhline
        for name, style in zip(CONTROLS, ("-.", ":"), strict=True):
            if value := next((row["value"] for row in rows if row["series"] == name), None):
                label = f"{name.replace('-', ' ')}, not private"
                level(value, color="0.5", linestyle=style, linewidth=0.8, label=label)
        axes.grid(alpha=0.3)
        axes.set_title(page.title(figure, record), fontsize=8)
        canvas.legend(loc="outside right upper", frameon=False, fontsize=7)
    return svg.getvalue()


def _models(rows: Sequence[Record]) -> list[str]:
    """The series that are not controls."""
    return [name for name in dict.fromkeys(row["series"] for row in rows) if name not in CONTROLS]


def _draw_variants(axes: Any, rows: Sequence[Record]) -> None:
    """A mark for each variant, below each other."""
    names = _models(rows)
    values = [next(row["value"] for row in rows if row["series"] == name) for name in names]
    shown = [min(value, HIGHEST) for value in values]
    axes.plot(shown, range(len(names)), "o", color="C0", markersize=5)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def _draw_lines(axes: Any, rows: Sequence[Record], highest: float) -> None:
    """A line for each series up to `highest`, and the slides' points as circles."""
    names = _models(rows)
    for name, colour in zip(names, pictures.palette(len(names)), strict=True):
        here = [row for row in rows if row["series"] == name]
        ours = sorted((row["x"], row["value"]) for row in here)
        ours = [(x, y) for x, y in ours if y < highest]
        theirs = [(row["x"], row["paper"]) for row in here if row["paper"] is not None]
        axes.plot(*_sides(ours), "-x", color=colour, label=name, lw=1, ms=4)
        axes.plot(*_sides(theirs), "o", color=colour, markerfacecolor="none")


def _sides(points: Sequence[tuple[float, float]]) -> Any:
    """All x and all y of some points."""
    return zip(*points, strict=True) if points else ((), ())


def render(record: Record, figure: Figure) -> list[Any]:
    from rich.table import Table

    axis = "error" if figure.name == "004/error" else "rmse"
    rows = [row for row in record["rows"] if row["axis"] == axis]
    where = "generated ratings" if record["ratings"] is None else record["ratings"]["name"]
    table = Table(title=f"{record['figure']} on {where}, {AXES[axis]} ({record['notice']})")
    table.add_column("series")
    if figure.name == "004/variants":
        clipped = [row for row in record["rows"] if row["axis"] == "rmse_clipped"]
        for heading in ("held out", "held out, clipped"):
            table.add_column(heading, justify="right")
        for row, other in zip(rows, clipped, strict=True):
            if row["series"] not in CONTROLS or row["x"] == 0:
                table.add_row(row["series"], _number(row["value"]), _number(other["value"]))
    else:
        places = sorted({float(row["x"]) for row in rows})
        for x in places:
            table.add_column(f"{x:g}", justify="right")
        for series in dict.fromkeys(row["series"] for row in rows):
            here = {float(row["x"]): row["value"] for row in rows if row["series"] == series}
            table.add_row(series, *(_number(here.get(x)) for x in places))
    headlines = {setting["series"]: setting["headline"] for setting in record["settings"]}
    inside = record["checked"] - record["outside"]
    lines = [
        f"{record['result']}: {inside} of {record['checked']} checked points",
        *record["notes"],
        *(f"{name}: {headline}" for name, headline in headlines.items()),
    ]
    return [table, "\n".join(lines)]
