"""What a reproduction leaves behind: rows as csv and json, a plot as svg, a page of markdown; each whole or absent."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax import storage
from experiments import console
from experiments.reproduce import comparison
from experiments.reproduce.comparison import Row
from experiments.reproduce.figures import Figure, Point

NOTICE = "seeded, not private: unpriced training errors, for the curator's eyes only"

_KINDS = {"marker": "marker", "line_end": "end of the curve", "line_start": "start", "line_vertex": "bend"}


def summary(figure: Figure, result: Mapping[str, Any], *, command: str) -> dict[str, Any]:
    """Everything but the curves, as JSON can hold it. command: the line that repeats it."""
    rows: Sequence[Row] = result["rows"]
    worst = comparison.worst(rows)
    checked = [row for row in rows if row.result != "informative"]
    series = {
        name: {**values, "headline": values["guarantee"].headline, "guarantee": values["guarantee"].to_dict()}
        for name, values in result["series"].items()
    }
    return console.plain(
        {
            "figure": figure.name,
            "notice": NOTICE,
            "result": comparison.verdict(rows),
            "tolerance": comparison.TOLERANCE,
            "rule": RULE,
            "checked": len(checked),
            "outside": sum(row.result == "outside" for row in checked),
            "worst": worst._asdict(),
            **{name: value for name, value in result.items() if name not in ("rows", "curves", "series")},
            "series": series,
            "command": command,
            "rows": [row._asdict() for row in rows],
        }
    )


RULE = (
    f"|RMSE - paper| <= {comparison.TOLERANCE:g} at every marker from step {comparison.FIRST_CHECKED_STEP} on and at "
    "the end of each curve, mean over the seeds; the other points are informative"
)


def write(figure: Figure, told: Mapping[str, Any], result: Mapping[str, Any], plotted: Sequence[Point], out: Path):
    """Writes STEM.csv, .json, .md and, where matplotlib is installed, .svg in `out`; returns their paths."""
    stem = figure.name.replace("/", "-")
    content = {"csv": table(told), "json": json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n"}
    try:
        content["svg"] = plot(figure, result["curves"], result["rows"], plotted)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "matplotlib":
            raise
        console.say("matplotlib is not installed, so there is no svg: pip install 'dpmf-jax[report]'")
    content["md"] = page(figure, told, plot=f"{stem}.svg" if "svg" in content else None)
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, text in content.items():
        paths.append(out / f"{stem}.{suffix}")
        storage.write_bytes(paths[-1], text.encode())
    return paths


def table(told: Mapping[str, Any]) -> str:
    """The rows as csv, each complete in itself: configuration, seeds, commit, device, guarantee and notice included."""
    lines = io.StringIO()
    writer = None
    for row in told["rows"]:
        series = told["series"][row["series"]]
        cells = {
            "figure": told["figure"],
            **row,
            "values": _joined(row["values"]),
            "seeds": _joined(told["seeds"]),
            "steps": series["steps"],
            "noise_multiplier": series["noise_multiplier"],
            "guarantee": series["headline"],
            **{name: _joined(value) for name, value in told["config"].items()},
            "commit": _joined(told["commits"]),
            "device": _joined(told["devices"]),
            "notice": told["notice"],
        }
        if writer is None:
            writer = csv.DictWriter(lines, list(cells), lineterminator="\n")
            writer.writeheader()
        writer.writerow(cells)
    return lines.getvalue()


def _joined(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def page(figure: Figure, told: Mapping[str, Any], *, plot: str | None) -> str:
    """One page: verdict, every checked point, the price of each series, settings, how to repeat it."""
    worst = told["worst"]
    lines = [
        f"# Paper {figure.paper}, figure {figure.number}: {told['result']} tolerance",
        "",
        f"**{told['notice'].capitalize()}.**",
        "",
        f"{figure.title}: {told['checked'] - told['outside']} of {told['checked']} checked points are inside; "
        f"the furthest is {worst['difference']:+.5f} (series {worst['series']}, step {worst['step']}).",
        f"Rule: {told['rule']}.",
        "",
    ]
    if plot:
        lines += [f"![The paper's points and ours]({plot})", ""]
    lines += ["| series | step | point | paper | ours | spread over seeds | difference | |"]
    lines += ["|---|---:|---|---:|---:|---:|---:|---|"]
    for row in told["rows"]:
        if row["kind"] == "line_vertex":
            continue
        spread = max(row["values"]) - min(row["values"])
        lines.append(
            f"| {row['series']} | {row['step']} | {_KINDS[row['kind']]} | {row['paper']:.5f} | {row['value']:.5f} "
            f"| {spread:.5f} | {row['difference']:+.5f} | {row['result']} |"
        )
    lines += ["", "| series | guarantee at its last step |", "|---|---|"]
    lines += [f"| {name} | {series['headline']} |" for name, series in told["series"].items()]
    config = ", ".join(f"{name} {_joined(value)}" for name, value in told["config"].items())
    ratings = told["ratings"]
    lines += [
        "",
        f"Settings: {config}; seeds {_joined(told['seeds'])}. Ratings: {ratings['name']}, {ratings['count']} "
        f"(sha256 of the sorted triples {ratings['sha256']}). The number of steps of a series is the paper's last "
        "plotted step + 1: when the authors stopped is not known, and no price covers stopping on private errors.",
        "",
        f"Commit {_joined(told['commits'])}; device {_joined(told['devices'])}; "
        f"{told['milliseconds_per_step']:.1f} ms a step. Repeat: `{told['command']}`",
        "",
    ]
    return "\n".join(lines)


def plot(
    figure: Figure, curves: Mapping[str, Sequence[np.ndarray]], rows: Sequence[Row], plotted: Sequence[Point]
) -> str:
    """The figure in the paper's axes as svg: the paper's curves and points, and ours. The same input, the same text.

    Raises: ModuleNotFoundError without matplotlib.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context({"svg.hashsalt": figure.name, "svg.fonttype": "none", "font.size": 9}):
        canvas = Canvas(figsize=(8, 5), layout="constrained")
        axes = canvas.add_subplot()
        colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, max(len(curves), 1)))
        for (series, values), colour in zip(curves.items(), colours, strict=True):
            mean = np.mean(values, axis=0)
            axes.plot(np.arange(len(mean)), mean, color=colour, linewidth=1.2, label=_label(series))
            theirs = sorted((p.x, p.y) for p in plotted if p.series == series and p.kind != "marker")
            axes.plot(*zip(*theirs, strict=True), color=colour, linewidth=0.8, linestyle=":")
            here = [row for row in rows if row.series == series and row.kind in ("marker", "line_end")]
            steps = [row.step for row in here]
            axes.plot(steps, [row.value for row in here], "x", color=colour, markersize=5)
            axes.plot(steps, [row.paper for row in here], "o", color=colour, markersize=7, markerfacecolor="none")
        axes.plot([], [], "k-x", markersize=5, label="ours, mean over seeds")
        axes.plot([], [], "k:o", markerfacecolor="none", label="the paper's")
        axes.set(xlabel="Iterations", ylabel="RMSE", title=f"{figure.name}: {figure.title}")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        canvas.text(0.995, 0.005, NOTICE, ha="right", va="bottom", fontsize=6, color="0.4")
        drawn = io.StringIO()
        canvas.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


def _label(series: str) -> str:
    return series if series == "non-private" else f"ε_i = {series}"
