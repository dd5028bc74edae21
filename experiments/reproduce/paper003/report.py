"""Paper 003's figures on paper and on the terminal: sections of markdown, panels, tables."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from experiments.reproduce import page, pictures
from experiments.reproduce.catalogue import Figure, Record
from experiments.reproduce.page import joined
from experiments.reproduce.paper003.figures import BASELINE, CDFS, GLOBAL, MEANS, PRICED

AXES = {
    "train": "trained on",
    "increase_train": "increase, trained on",
    "test": "held out",
    "increase_test": "increase, held out",
    "test_clipped": "held out, predictions clipped to the range",
    "log_ratio": "largest log-ratio over ε",
}
GREY = {GLOBAL: "0.2", MEANS: "0.5", PRICED: "0.7"}  # simple controls
SHOWN = (0.5, 1.0, 2.0, 3.0)  # thresholds of the CDF in tables
STARS = 0.1  # below it the axis of increases is linear, above it logarithmic


def files(figure: Figure, record: Record) -> dict[str, str]:
    content = page.files(figure, record, section, picture)
    if record["curves"]:
        content["-cdf.csv"] = page.as_csv(
            [
                {name: curve[name] for name in ("series", "x", "axis", "part")}
                | {
                    f"<={at:g}": f"{share:.5f}"
                    for at, share in zip(record["thresholds"], curve["cdf"], strict=True)
                }
                for curve in record["curves"]
            ]
        )
    return content


def section(figure: Figure, record: Record, svg: str) -> list[str]:
    """Picture, numbers, what each series promises, how to repeat it."""
    lines = page.opening(figure, record, svg)
    for axis in page.axes_of(record, AXES):
        unit = "" if axis == "log_ratio" else ", mean |prediction − rating| in stars"
        lines += [f"{AXES[axis].capitalize()}{unit}:", "", *_grid(figure, record, axis), ""]
    if record["curves"]:
        lines += [
            "Share of ratings whose error is at most so many stars:",
            "",
            *_shares(record),
            "",
        ]
    if any(row["paper"] is not None for row in record["rows"]):
        lines += [
            (
                "What the paper's text says in numbers (ours on other ratings, so nothing is"
                " decided here):"
            ),
            "",
        ]
        lines += [
            f"- {row['series'][4:]}, {row['x']:g}: paper {row['paper']:g}, ours"
            f" {number(row['value'])}"
            for row in record["rows"]
            if row["paper"] is not None
        ]
        lines += [""]
    lines += ["| series | seeds | promise |", "|---|---|---|"]
    for headline, group in _promises(record).items():
        lines.append(f"| {'; '.join(group)} | {joined(_seeds(record, group[0]))} | {headline} |")
    return [*lines, *page.ending(record)]


def _promises(record: Record) -> dict[str, list[str]]:
    """The series that promise the same, by promise."""
    groups: dict[str, list[str]] = {}
    for setting in record["settings"]:
        place = "" if setting["x"] is None else f" at {setting['x']:g}"
        groups.setdefault(setting["headline"], []).append(f"{setting['series']}{place}")
    return groups


def _seeds(record: Record, name: str) -> Sequence[int]:
    return next(one["seeds"] for one in record["settings"] if name.startswith(one["series"]))


def _grid(figure: Figure, record: Record, axis: str) -> list[str]:
    """A table for each panel: series by place."""
    lines: list[str] = []
    for panel in _panels(record, axis):
        rows = [row for row in record["rows"] if row["axis"] == axis and _in(panel, row)]
        lines += [""] if lines else []
        lines += page.grid(
            rows, _x_name(figure, panel), lambda row: number(row["value"]), name=_name
        )
    return lines


def _shares(record: Record) -> list[str]:
    at = [
        record["thresholds"].index(threshold)
        for threshold in SHOWN
        if threshold in record["thresholds"]
    ]
    lines = page.heading("", [f"{record['thresholds'][place]:g}" for place in at])
    for curve in record["curves"]:
        shares = " | ".join(f"{curve['cdf'][place]:.3f}" for place in at)
        lines.append(f"| {_label(curve)}, {AXES[curve['axis']]} | {shares} |")
    return lines


def number(value: Any) -> str:
    value = float(value)
    if not math.isfinite(value):
        return "diverged"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


def _panels(record: Record, axis: str) -> list[str]:
    """ "(a) " and "(b) ", of series that are named so; "" where none is."""
    starts = {
        row["series"][:4]
        for row in record["rows"]
        if row["axis"] == axis and row["series"].startswith("(")
    }
    return sorted(starts) or [""]


def _in(panel: str, row: Mapping[str, Any]) -> bool:
    return row["series"].startswith(panel) or not row["series"].startswith("(")


def _name(series: str) -> str:
    return series[4:] if series.startswith("(") else series


def _x_name(figure: Figure, panel: str) -> str:
    first, _, second = figure.x_name.partition(" | ")
    return second if second and panel == "(b) " else first


def _label(curve: Mapping[str, Any]) -> str:
    """Of a CDF: what differs from the others of its panel."""
    if curve["series"] == BASELINE:
        return BASELINE
    return (
        f"{curve['x']:g} iterations" if curve["series"].startswith("(a)") else f"ε = {curve['x']:g}"
    )


def picture(figure: Figure, record: Record) -> str:
    """svg; the same rows give the same text. Raises: ModuleNotFoundError without matplotlib."""
    if figure.name in CDFS:
        return _distributions(figure, record)
    return _lines(figure, record)


def _distributions(figure: Figure, record: Record) -> str:
    """The CDFs: on the ratings trained on, as the paper, above; held out below."""
    with _canvas(figure, record, rows=2, columns=2) as (panels, svg):
        for line, axis in zip(panels, ("train", "test"), strict=True):
            for axes, panel in zip(line, ("(a) ", "(b) "), strict=True):
                curves = [
                    curve
                    for curve in record["curves"]
                    if curve["axis"] == axis and curve["series"][:4] == panel
                ]
                for curve, colour in zip(curves, pictures.palette(len(curves)), strict=True):
                    axes.plot(
                        record["thresholds"], curve["cdf"], color=colour, lw=1, label=_label(curve)
                    )
                for curve in record["curves"]:
                    if curve["axis"] == axis and curve["series"] == BASELINE:
                        axes.plot(record["thresholds"], curve["cdf"], "k--", lw=1, label=BASELINE)
                title = next((curve["series"] for curve in curves), panel)
                axes.set_title(f"{title}, {AXES[axis]}", fontsize=8)
                axes.set(
                    ylim=(0, 1), xlabel="|prediction − rating| in stars", ylabel="share of ratings"
                )
                if axis == "train":
                    axes.legend(frameon=False, fontsize=6)
    return svg.getvalue()


def _lines(figure: Figure, record: Record) -> str:
    """Values over x, a line a series: trained on solid, held out dashed; levels thin."""
    increases = any(row["axis"] == "increase_train" for row in record["rows"])
    axes_drawn = {row["axis"] for row in record["rows"]}
    styles = {"increase_train": "-", "increase_test": "--"} if increases else {"log_ratio": "o"}
    styles = {"test_clipped": "-"} if "test_clipped" in axes_drawn else styles
    first = next(iter(styles))
    names = _panels(record, first)
    with _canvas(figure, record, rows=1, columns=len(names)) as ((panels,), svg):
        for axes, panel in zip(panels, names, strict=True):
            rows = [
                row | {"value": float(row["value"])} for row in record["rows"] if _in(panel, row)
            ]
            series = list(dict.fromkeys(row["series"] for row in rows if row["axis"] == first))
            coloured = [name for name in series if name not in GREY]
            looks = (
                dict(zip(coloured, [f"C{place}" for place in range(len(coloured))], strict=True))
                | GREY
            )
            for name in series:
                for axis, style in styles.items():
                    here = [row for row in rows if (row["series"], row["axis"]) == (name, axis)]
                    _draw(axes, here, style, looks[name])
                marker = {"linestyle": "", "marker": "o"} if styles[first] == "o" else {}
                axes.plot([], [], color=looks[name], ms=4, lw=1, label=_name(name), **marker)
            _scales(figure, axes, panel, rows, increases)
            for style, words in (("k-", "trained on"), ("k--", "held out")) if increases else ():
                axes.plot([], [], style, lw=1, label=words)
            outside = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if len(names) == 1 else {}
            axes.legend(frameon=False, fontsize=6, **outside)
    return svg.getvalue()


def _draw(axes: Any, rows: Sequence[Mapping[str, Any]], style: str, colour: Any) -> None:
    if rows and rows[0]["kind"] == "level":
        if math.isfinite(rows[0]["value"]):
            axes.axhline(rows[0]["value"], color=colour, linestyle=style, lw=0.7)
        return
    kept = sorted((row["x"], row["value"]) for row in rows if math.isfinite(row["value"]))
    points = zip(*kept, strict=True) if kept else ((), ())
    line = "" if style == "o" else style
    axes.plot(
        *points, linestyle=line, marker="o" if style == "o" else ".", color=colour, lw=1, ms=4
    )
    for row in rows:
        if row["paper"] is not None:
            axes.plot([row["x"]], [row["paper"]], "o", color=colour, markerfacecolor="none", ms=8)


def _scales(
    figure: Figure, axes: Any, panel: str, rows: Sequence[Mapping[str, Any]], increases: bool
) -> None:
    axes.set(xlabel=_x_name(figure, panel), ylabel=figure.y_name)
    if figure.log[0]:
        places = sorted({row["x"] for row in rows if row["kind"] != "level"})
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{x:g}" for x in places], rotation=90)
        axes.set_xticks([], minor=True)
    if increases:
        axes.set_yscale("symlog", linthresh=STARS)
        axes.axhline(0, color="0.5", lw=0.6)
    elif figure.log[1]:
        axes.set_yscale("log")
        axes.axhline(1, color="0.5", lw=0.8)


@contextlib.contextmanager
def _canvas(
    figure: Figure, record: Record, *, rows: int, columns: int
) -> Generator[tuple[Any, io.StringIO]]:
    with pictures.canvas(
        page.stem(figure, record),
        (8, 3.6 * rows if rows > 1 else 4),
        rows=rows,
        columns=columns,
        font=8,
        foot=pictures.NOTICE,
    ) as (canvas, panels, svg):
        for axes in panels.flat:
            axes.grid(alpha=0.3)
        canvas.suptitle(page.title(figure, record), fontsize=8)
        yield panels, svg


def render(record: Record, figure: Figure) -> list[Any]:
    from rich.table import Table

    axes = page.axes_of(record, AXES)
    table = Table(title=f"{record['figure']} on {record['ratings']['name']} ({record['notice']})")
    table.add_column("series")
    for heading in ("x", *(AXES[axis] for axis in axes)):
        table.add_column(heading, justify="right")
    values = {
        (row["series"], row["x"], row["axis"]): number(row["value"]) for row in record["rows"]
    }
    for series, x in dict.fromkeys((row["series"], row["x"]) for row in record["rows"]):
        cells = (values.get((series, x, axis), "") for axis in axes)
        table.add_row(series, f"{x:g}" if x else "", *cells)
    lines = [
        *record["notes"],
        *(f"{group[0]}: {headline}" for headline, group in _promises(record).items()),
    ]
    return [table, "\n".join(lines)]
