"""A reproduction on paper: rows as csv and json, the plot in the paper's axes as svg, one page of markdown.

All of it looks at training errors, which no price covers: for the curator's eyes, and every file says so.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmf_jax import storage
from experiments import console
from experiments.reproduce import comparison, pictures
from experiments.reproduce.figures import AXES, NON_PRIVATE, X_LABELS, Figure
from experiments.reproduce.pictures import NOTICE

_KINDS = {
    "marker": "marker",
    "line_end": "end of the curve",
    "line_start": "start",
    "line_vertex": "bend",
    "patience": "early stopping by patience",
    "small fall": "end by the fall of a step",
}


def summary(figure: Figure, result: Mapping[str, Any], *, command: str, compared: bool = True) -> dict[str, Any]:
    """Everything but the curves, as JSON can hold it.

    Args:
      command: the line that repeats it. compared: whether the ratings are the paper's.
    """
    rows = result["rows"]
    worst = comparison.worst(rows)
    checked = [row for row in rows if row.result != "informative"]
    settings = [{**setting, "guarantee": setting["guarantee"].to_dict()} for setting in result["settings"]]
    return console.plain(
        {
            "figure": figure.name,
            "notice": NOTICE,
            "result": comparison.verdict(rows),
            "rule": _rule(figure, compared),
            "checked": len(checked),
            "outside": sum(row.result == "outside" for row in checked),
            "worst": None if worst is None else worst._asdict(),
            **{name: value for name, value in result.items() if name not in ("rows", "curves", "settings")},
            "settings": settings,
            "command": command,
            "rows": [row._asdict() for row in rows],
        }
    )


def _rule(figure: Figure, compared: bool) -> str:
    """What decides, in words."""
    if not compared:
        return f"none: these are not the paper's ratings ({figure.data}), so its points do not apply"
    if not figure.points:
        return "none: the paper's points are not known"
    if figure.x_name == "iteration":
        return (
            f"|RMSE - paper| <= {comparison.TOLERANCE:g} at every marker from step {comparison.FIRST_CHECKED_STEP} on "
            "and at the end of each curve, mean over the seeds; the other points are informative"
        )
    if "ms_per_iteration" in figure.axes:
        return "none: the authors' device is a Tesla P100; times are informative"
    rules = []
    if "rmse" in figure.axes:
        rules.append(f"|RMSE - paper| <= {comparison.TOLERANCE:g} at step J - 1, mean over the seeds")
        if NON_PRIVATE in figure.series:
            rules.append(f"{comparison.NON_PRIVATE_TOLERANCE:g} for the non-private ones, whose J is not known")
    if "overall_epsilon" in figure.axes:
        rules.append(f"|ε - paper| <= {comparison.EPSILON_TOLERANCE:g} by equation (9)")
    return "; ".join((*rules, "early stopping is informative"))


def write(figure: Figure, told: Mapping[str, Any], result: Mapping[str, Any], out: Path) -> list[Path]:
    """Writes STEM.csv, .json, .md and, where matplotlib is installed, .svg in `out`; returns their paths."""
    content = {"csv": table(told), "json": json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n"}
    points = figure.plotted if any(row.paper is not None for row in result["rows"]) else ()
    try:
        if "curves" in result:
            content["svg"] = pictures.curves(figure, result["curves"], result["rows"], points)
        else:
            content["svg"] = pictures.settings(figure, result["rows"], points)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "matplotlib":
            raise
        console.say("matplotlib is not installed, so there is no svg: pip install 'dpmf-jax[report]'")
    content["md"] = page(figure, told, plot=f"{figure.stem}.svg" if "svg" in content else None)
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, text in content.items():
        paths.append(out / f"{figure.stem}.{suffix}")
        storage.write_bytes(paths[-1], text.encode())
    return paths


def table(told: Mapping[str, Any]) -> str:
    """The rows as csv, each complete in itself: configuration, seeds, commit, device, guarantee and notice included."""
    lines = io.StringIO()
    writer = None
    for row in told["rows"]:
        setting = _setting(told, row)
        cells = {
            "figure": told["figure"],
            **row,
            "values": _joined(row["values"]),
            **{name: _joined(setting[name]) for name in ("rank", "learning_rate", "noise_multiplier", "seeds")},
            "guarantee": setting["headline"],
            **{name: _joined(value) for name, value in told["config"].items()},
            "ratings": told["ratings"]["name"],
            "ratings_sha256": told["ratings"]["sha256"],
            "commit": _joined(told["commits"]),
            "device": _joined(told["devices"]),
            "notice": told["notice"],
        }
        if writer is None:
            writer = csv.DictWriter(lines, list(cells), lineterminator="\n")
            writer.writeheader()
        writer.writerow(cells)
    return lines.getvalue()


def _setting(told: Mapping[str, Any], row: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(s for s in told["settings"] if s["series"] == row["series"] and s["x"] in (None, row["x"]))


def _joined(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def page(figure: Figure, told: Mapping[str, Any], *, plot: str | None) -> str:
    """One page: verdict, the points side by side, what each run promises, settings, how to repeat it."""
    lines = [
        f"# Paper {figure.paper}, figure {figure.number}: {verdict_words(told)}",
        "",
        f"**{told['notice'].capitalize()}.**",
        "",
        f"{figure.title}. {told['checked'] - told['outside']} of {told['checked']} checked points are inside"
        + (f"; the furthest: {furthest(told)}." if told["worst"] else "."),
        f"Rule: {told['rule']}.",
        "",
    ]
    if told["left_out"]:
        lines += [left_out(told), ""]
    if plot:
        lines += [f"![The paper's points and ours]({plot})", ""]
    for axis in figure.axes:
        lines += [f"## {AXES[axis]}", "", *_side_by_side(figure, told, axis), ""]
    if figure.x_name == "iteration":
        lines += ["## Overall ε", "", *_side_by_side(figure, told, "overall_epsilon"), ""]
    notes = dict.fromkeys(row["note"] for row in told["rows"] if row["note"])
    lines += [f"- {note}" for note in notes] + ([""] if notes else [])
    lines += _promises(figure, told)
    config = ", ".join(f"{name} {_joined(value)}" for name, value in told["config"].items())
    ratings, pace = told["ratings"], told["milliseconds_per_step"]
    lines += [
        "",
        f"Settings: {config}. Ratings: {ratings['name']}, {ratings['count']} (sha256 of the sorted triples "
        f"{ratings['sha256']}). When the authors stopped is not known; the numbers of steps are those that their own "
        "points imply, and no price covers stopping on private errors.",
        "",
        f"Commit {_joined(told['commits'])}; device {_joined(told['devices'])}"
        + (f"; {pace:.1f} ms a step" if pace else "")
        + f". Repeat: `{told['command']}`",
        "",
    ]
    return "\n".join(lines)


def verdict_words(told: Mapping[str, Any]) -> str:
    return f"{told['result']} tolerance" if told["checked"] else told["result"]


def furthest(told: Mapping[str, Any]) -> str:
    worst = told["worst"]
    where = f"step {worst['step']:g}" if worst["step"] == worst["x"] else f"x = {worst['x']:g}"
    return f"{AXES[worst['axis']]} {worst['difference']:+.5f} (series {worst['series']}, {where})"


def left_out(told: Mapping[str, Any]) -> str:
    return f"Not trained at this scale: rank {', '.join(map(str, told['left_out']))}; --scale full has them."


def _side_by_side(figure: Figure, told: Mapping[str, Any], axis: str) -> list[str]:
    lines = [f"| series | {X_LABELS[figure.x_name]} | J | point | paper | ours | spread over seeds | difference | |"]
    lines += ["|---|---:|---:|---|---:|---:|---:|---:|---|"]
    for row in told["rows"]:
        if row["axis"] != axis or row["kind"] == "line_vertex":
            continue
        values = [float(value) for value in row["values"]]
        spread = f"{max(values) - min(values):.5f}" if len(values) > 1 else ""
        steps = "" if row["num_steps"] is None else f"{row['num_steps']:.6g}"
        numbers = (number(row["paper"]), number(row["value"]), spread, signed(row["difference"]))
        lines.append(
            f"| {row['series']} | {row['x']:g} | {steps} | {_KINDS[row['kind']]} | {' | '.join(numbers)} "
            f"| {row['result']} |"
        )
    return lines


def number(value: Any) -> str:
    return "" if value is None else f"{float(value):.5f}"


def signed(value: Any) -> str:
    return "" if value is None else f"{float(value):+.5f}"


def _promises(figure: Figure, told: Mapping[str, Any]) -> list[str]:
    place = "" if figure.x_name == "iteration" else f" {X_LABELS[figure.x_name]} |"
    lines = [f"| series |{place} seeds | guarantee at its last step |", f"|---|{'---:|' if place else ''}---|---|"]
    for setting in told["settings"]:
        here = f" {setting['x']:g} |" if place else ""
        seeds = _joined(setting["seeds"]) or "not trained"
        lines.append(f"| {setting['series']} |{here} {seeds} | {setting['headline']} |")
    return lines
