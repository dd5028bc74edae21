"""Paper 004's figures on paper: rows as csv and json, a picture, one page of markdown, and what the
terminal shows.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from dpmf_jax.data.ratings import Ratings
from experiments.reproduce import papers
from experiments.reproduce.comparison import number
from experiments.reproduce.paper004.figures import Outcome
from experiments.reproduce.paper004.table import Figure
from experiments.reproduce.papers import Told, joined
from experiments.reproduce.pictures import NOTICE

AXES = {
    "rmse": "held out",
    "rmse_clipped": "held out, clipped",
    "rmse_train": "trained on",
    "error": "‖V* − V‖max",
}
CONTROLS = ("global-mean", "item-means")
HIGHEST = 30.0  # of a picture; what is above it has left any use behind


def summary(
    figure: Figure, outcome: Outcome, ratings: Ratings | None, **rest: Any
) -> dict[str, Any]:
    """Everything, as JSON can hold it. rest: command, commit and device."""
    more = {"searches": outcome.searches, "notes": outcome.notes}
    return papers.summary(figure, outcome.rows, outcome.settings, ratings, **rest, **more)


def files(figure: Figure, told: Told) -> dict[str, str]:
    return papers.files(figure, told, section, picture)


# ---------------------------------------------------------------------------------------------- a p


def section(figure: Figure, told: Mapping[str, Any], svg: str) -> list[str]:
    """Picture, numbers, what each series promises and was run with, how to repeat it."""
    shown = [axis for axis in AXES if any(row["axis"] == axis for row in told["rows"])]
    lines = [f"**{told['notice'].capitalize()}.**", "", f"![{figure.what}]({svg})", ""]
    lines += [f"{note}" + "\n" for note in told["notes"]]
    for axis in shown:
        lines += [f"{AXES[axis].capitalize()}:", "", *_grid(figure, told, axis), ""]
    if any(row["paper"] is not None for row in told["rows"]):
        lines += ["The slides' numbers, on held-out ratings here:", "", *_compared(told), ""]
    lines += [
        "| series | learning rate γ | clipped entries | seeds | promise |",
        "|---|---:|---:|---|---|",
    ]
    for setting in told["settings"]:
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
    if told["searches"]:
        lines += [
            "",
            "γ was searched on generated ratings of the same numbers of users, items and ratings:"
            " the lowest training error at the end, among "
            + ", ".join(next(iter(told["searches"].values()))["tried"])
            + ". No rating of this data set was looked at for it.",
        ]
    about = told["ratings"]
    where = (
        ""
        if about is None
        else f"Ratings: {about['name']}, {about['count']}, sha256 {about['sha256']}. "
    )
    lines += ["", f"{where}Commit {joined(told['commits'])}; device {joined(told['devices'])}."]
    return [*lines, f"Repeat: `{told['command']}`"]


def _grid(figure: Figure, told: Mapping[str, Any], axis: str) -> list[str]:
    rows = [row for row in told["rows"] if row["axis"] == axis]
    if figure.name == "004/variants":
        lines = ["| | mean over seeds | spread |", "|---|---:|---:|"]
        for series in dict.fromkeys(row["series"] for row in rows):
            one = next(row for row in rows if row["series"] == series)
            values = [float(value) for value in one["values"]]
            lines.append(
                f"| {series} | {_number(one['value'])} | {max(values) - min(values):.5f} |"
            )
        return lines
    places = sorted({float(row["x"]) for row in rows})
    lines = [
        f"| {figure.x_name} | " + " | ".join(f"{x:g}" for x in places) + " |",
        "|---" + "|---:" * len(places) + "|",
    ]
    for series in dict.fromkeys(row["series"] for row in rows):
        here = {float(row["x"]): row["value"] for row in rows if row["series"] == series}
        lines.append(f"| {series} | " + " | ".join(_number(here.get(x)) for x in places) + " |")
    return lines


def _number(value: Any) -> str:
    return (
        "diverged"
        if value == "inf"
        else number(value)
        if value is None or float(value) < 100
        else f"{value:.3g}"
    )


def _compared(told: Mapping[str, Any]) -> list[str]:
    lines = ["| series | rounds | paper | ours | difference | |", "|---|---:|---:|---:|---:|---|"]
    for row in told["rows"]:
        if row["paper"] is not None:
            values = (number(row["paper"]), _number(row["value"]), row["difference"], row["result"])
            lines.append(
                f"| {row['series']} | {row['x']:g} | " + " | ".join(map(str, values)) + " |"
            )
    return lines


# ---------------------------------------------------------------------------------------------- a p


def picture(figure: Figure, told: Mapping[str, Any]) -> str:
    """Held-out errors (or ‖V* − V‖max) as svg, a line a series; the slides' points as circles,
    controls as thin lines.

    The same rows give the same text. Raises: ModuleNotFoundError without matplotlib.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    axis = (
        "error"
        if figure.name == "004/error"
        else "rmse_clipped"
        if figure.name == "004/variants"
        else "rmse"
    )
    rows = [row | {"value": float(row["value"])} for row in told["rows"] if row["axis"] == axis]
    drawn = io.StringIO()
    with matplotlib.rc_context(
        {"svg.hashsalt": papers.stem(figure, told), "svg.fonttype": "none", "font.size": 9}
    ):
        canvas = Canvas(figsize=(8, 4.5), layout="constrained")
        axes = canvas.add_subplot()
        names = [
            name for name in dict.fromkeys(row["series"] for row in rows) if name not in CONTROLS
        ]
        if figure.name == "004/variants":
            values = [next(row["value"] for row in rows if row["series"] == name) for name in names]
            axes.plot(
                [min(value, HIGHEST) for value in values],
                range(len(names)),
                "o",
                color="C0",
                markersize=5,
            )
            axes.set_yticks(range(len(names)), names)
            axes.invert_yaxis()
            axes.set(xlabel=f"RMSE, {AXES[axis]}")
        else:
            colours = matplotlib.colormaps["viridis"](
                [place / max(1, len(names)) for place in range(len(names))]
            )
            for name, colour in zip(names, colours, strict=True):
                line = sorted((row["x"], row["value"]) for row in rows if row["series"] == name)
                kept = [(x, y) for x, y in line if y < HIGHEST or axis == "error"]
                axes.plot(
                    *zip(*kept, strict=True) if kept else ((), ()),
                    "-x",
                    color=colour,
                    label=name,
                    lw=1,
                    ms=4,
                )
                paper = [
                    (row["x"], row["paper"])
                    for row in rows
                    if row["series"] == name and row["paper"] is not None
                ]
                axes.plot(
                    *zip(*paper, strict=True) if paper else ((), ()),
                    "o",
                    color=colour,
                    markerfacecolor="none",
                )
            axes.set(
                xlabel=figure.x_name,
                ylabel=figure.y_name if axis == "error" else f"RMSE, {AXES[axis]}",
            )
            axes.set(
                xscale="log" if figure.log[0] else "linear",
                yscale="log" if figure.log[1] else "linear",
            )
        for name, style in zip(CONTROLS, ("-.", ":"), strict=True):
            if level := next((row["value"] for row in rows if row["series"] == name), None):
                line = axes.axvline if figure.name == "004/variants" else axes.axhline
                line(
                    level,
                    color="0.5",
                    linestyle=style,
                    linewidth=0.8,
                    label=f"{name.replace('-', ' ')}, not private",
                )
        axes.grid(alpha=0.3)
        axes.set_title(papers.title(figure, told), fontsize=8)
        canvas.legend(loc="outside right upper", frameon=False, fontsize=7)
        canvas.text(0.995, 0.005, NOTICE, ha="right", va="bottom", fontsize=6, color="0.4")
        canvas.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


# ---------------------------------------------------------------------------------------------- the


def render(told: Mapping[str, Any], figure: Figure) -> list[Any]:
    from rich.table import Table

    axis = "error" if figure.name == "004/error" else "rmse"
    rows = [row for row in told["rows"] if row["axis"] == axis]
    where = "generated ratings" if told["ratings"] is None else told["ratings"]["name"]
    table = Table(title=f"{told['figure']} on {where}, {AXES[axis]} ({told['notice']})")
    table.add_column("series")
    if figure.name == "004/variants":
        clipped = [row for row in told["rows"] if row["axis"] == "rmse_clipped"]
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
    headlines = {setting["series"]: setting["headline"] for setting in told["settings"]}
    words = [
        f"{told['result']}: {told['checked'] - told['outside']} of {told['checked']} checked points"
    ]
    words += told["notes"] + [f"{name}: {headline}" for name, headline in headlines.items()]
    return [table, "\n".join(words), "\n".join(f"wrote {file}" for file in told["files"]), ""]
