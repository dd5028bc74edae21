"""A figure of paper 001 on paper: its record, rows as csv, pictures, one page of markdown.

All of it looks at errors on ratings, which no price covers: for the curator's eyes, and every file
says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accounting.digits import printed
from experiments.cli import console
from experiments.reproduce import comparison
from experiments.reproduce import page as shared
from experiments.reproduce import pictures as shared_pictures
from experiments.reproduce.catalogue import Record
from experiments.reproduce.comparison import number, signed
from experiments.reproduce.paper001 import pictures
from experiments.reproduce.paper001.figures import AXES, CATALOGUE, NON_PRIVATE, X_LABELS, Figure
from experiments.reproduce.paper001.pictures import HELD_OUT
from experiments.reproduce.paper001.variants import GLOBAL, MEANS, WORDS
from experiments.reproduce.pictures import NOTICE

_KINDS = {
    "marker": "marker",
    "line_end": "end of the curve",
    "line_start": "start",
    "line_vertex": "bend",
    "patience": "early stopping by patience",
    "another rank": "trained at another rank",
    "small fall": "end by the fall of a step",
}


def summary(
    figure: Figure, result: Mapping[str, Any], *, command: str, compared: bool = True
) -> dict[str, Any]:
    """Everything but the curves, as JSON can hold it.

    Args:
      command: the line that repeats it. compared: whether the ratings are the paper's.
    """
    rows = result["rows"]
    own = ("rows", "settings", "beside")
    beside = result.get("beside")
    if beside is not None:
        beside = beside | {
            "rows": [row._asdict() for row in beside["rows"]],
            "settings": _plain(beside["settings"]),
        }
    return console.plain(
        {
            "figure": figure.name,
            "notice": NOTICE,
            "result": comparison.verdict(rows),
            "rule": _rule(figure, compared),
            **shared.comparison_of(rows),
            **{name: value for name, value in result.items() if name not in own},
            "settings": _plain(result["settings"]),
            "command": command,
            "rows": [row._asdict() for row in rows],
            "beside": beside,
        }
    )


def _plain(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**setting, "guarantee": setting["guarantee"].to_dict()} for setting in settings]


def _rule(figure: Figure, compared: bool) -> str:
    """What decides, in words."""
    if not compared:
        return (
            f"none: these are not the paper's ratings ({figure.paper_data}), so its points do not"
            " apply"
        )
    if not figure.points:
        return "none: the paper's points are not known"
    if figure.x_name == "iteration":
        return (
            f"|RMSE - paper| <= {comparison.TOLERANCE:g} at every marker from step"
            f" {comparison.FIRST_CHECKED_STEP} on and at the end of each curve, mean over the"
            " seeds; the other points are informative"
        )
    if "ms_per_iteration" in figure.axes:
        return "none: the authors' device is a Tesla P100; times are informative"
    rules = []
    if "rmse" in figure.axes:
        rules.append(
            f"|RMSE - paper| <= {comparison.TOLERANCE:g} at step J - 1, mean over the seeds"
        )
        if NON_PRIVATE in figure.series:
            rules.append(
                f"{comparison.NON_PRIVATE_TOLERANCE:g} for the non-private ones, whose J is not"
                " known"
            )
    if "overall_epsilon" in figure.axes:
        rules.append(f"|ε - paper| <= {comparison.EPSILON_TOLERANCE:g} by equation (9)")
    return "; ".join((*rules, "early stopping is informative"))


def files(figure: Figure, record: Record) -> dict[str, str]:
    """csv, json, page and, where matplotlib is installed, pictures, as text by suffix."""
    figure = figure.shown_on(record["ratings"]["name"])
    drawn = shared_pictures.if_installed(lambda: pictures.svgs(figure, record))
    names = {suffix: f"{figure.stem}{suffix}" for suffix in drawn}
    text = page(figure, record, plot=names.get(".svg"), held_out=names.get(HELD_OUT))
    return {".csv": table(record), ".json": shared.as_json(record), **drawn, ".md": text}


def table(record: Record) -> str:
    """The rows as csv, each complete in itself: configuration, seeds, commit, device, guarantee and
    notice included.

    Those of the paper's points first, then those of what stands beside them.
    """
    beside = record.get("beside") or {"rows": [], "settings": []}
    lines = []
    for rows, settings in (
        (record["rows"], record["settings"]),
        (beside["rows"], beside["settings"]),
    ):
        for row in rows:
            setting = _setting(settings, row)
            config = {**record["config"], "residual_clip": None, **setting.get("config", {})}
            cells = {
                "figure": record["figure"],
                **row,
                "values": _joined(row["values"]),
                **{
                    name: _joined(setting[name])
                    for name in ("rank", "learning_rate", "noise_multiplier", "seeds")
                },
                "guarantee": setting["headline"],
                **{name: _joined(value) for name, value in config.items()},
                "ratings": record["ratings"]["name"],
                "ratings_sha256": record["ratings"]["sha256"],
                "commit": _joined(record["commits"]),
                "device": _joined(record["devices"]),
                "notice": record["notice"],
            }
            lines.append(cells)
    return shared.as_csv(lines)


def _setting(settings: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(
        one
        for one in settings
        if (one["series"], one.get("variant")) == (row["series"], row.get("variant"))
        and one["x"] in (None, row["x"])
    )


def _joined(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def page(figure: Figure, record: Record, *, plot: str | None, held_out: str | None = None) -> str:
    """One page: points side by side, promises, what stands beside, settings, how to repeat it."""
    lines = [
        f"# Paper {CATALOGUE.cited}, figure {figure.number}: {verdict_of(record)}",
        "",
        f"**{record['notice'].capitalize()}.**",
        "",
        f"{figure.title}. {record['checked'] - record['outside']} of {record['checked']} checked"
        " points are inside" + (f"; the furthest: {furthest(record)}." if record["worst"] else "."),
        f"Rule: {record['rule']}.",
        "",
    ]
    if record["left_out"]:
        lines += [left_out(record), ""]
    if plot:
        lines += [f"![The paper's points and ours]({plot})", ""]
    for axis in figure.axes:
        lines += [f"## {AXES[axis]}", "", *_side_by_side(figure, record, axis), ""]
    if figure.x_name == "iteration":
        lines += ["## Overall ε", "", *_side_by_side(figure, record, "overall_epsilon"), ""]
    notes = dict.fromkeys(row["note"] for row in record["rows"] if row["note"])
    lines += [f"- {note}" for note in notes] + ([""] if notes else [])
    lines += _promises(figure, record)
    if record["beside"]:
        lines += ["", "## Sound beside published", ""]
        lines += [f"![Held-out RMSE]({held_out})", ""] if held_out else []
        lines += beside_section(figure, record)
    config = ", ".join(f"{name} {_joined(value)}" for name, value in record["config"].items())
    ratings, pace = record["ratings"], record["milliseconds_per_step"]
    lines += [
        "",
        (
            f"Settings: {config}. Ratings: {ratings['name']}, {ratings['count']} (sha256 of the"
            f" sorted triples {ratings['sha256']}). When the authors stopped is not known; the"
            " numbers of steps are those that their own points imply, and no price covers stopping"
            " on private errors."
        ),
        "",
        f"Commit {_joined(record['commits'])}; device {_joined(record['devices'])}"
        + (f"; {pace:.1f} ms a step" if pace else "")
        + f". Repeat: `{record['command']}`",
        "",
    ]
    return "\n".join(lines)


def beside_section(figure: Figure, record: Record) -> list[str]:
    """What the variants come to, each with its promise, against simple controls."""
    beside = record["beside"]
    lines = (
        [f"**{beside['sentence']}**", "", f"{_trained_on(beside)} {beside['equal']}", ""]
        if beside["verdicts"]
        else []
    )
    lines += [f"{beside['not_beside']}", ""] if beside["not_beside"] else []
    if simple := simple_controls(beside):
        lines += [f"{simple}", ""]
    if not beside["verdicts"]:
        return lines[:-1]
    place = "" if figure.x_name == "iteration" else f" {X_LABELS[figure.x_name]} |"
    lines += [
        (
            f"| trained | series |{place} J | exact ε | RMSE on its part | held-out RMSE | lowest,"
            " at step | control | its held-out RMSE | verdict | guarantee |"
        ),
        f"|---|---|{'---:|' if place else ''}---:|---:|---:|---:|---:|---|---:|---|---|",
    ]
    for one in beside["verdicts"]:
        here = f" {one['x']:g} |" if place else ""
        epsilon = "" if one["epsilon_exact"] is None else printed(float(one["epsilon_exact"]))
        lowest = f"{number(one['lowest_rmse_test'])}, {one['lowest_step']}"
        numbers = " | ".join((epsilon, number(one["rmse_train"]), number(one["rmse_test"]), lowest))
        lines.append(
            f"| {WORDS[one['variant']]} | {one['series']} |{here} {one['steps']} | {numbers} |"
            f" {WORDS[one['control']]} | {number(one['control_rmse_test'])} | {one['verdict']} |"
            f" {one['headline']} |"
        )
    return [*lines, "", *[f"- {line}" for line in relations(beside)]]


def relations(beside: Mapping[str, Any]) -> list[str]:
    """What the private rows promise about, and what the lowest error along a run is not."""
    by_relation: dict[str, dict[str, None]] = {}
    for one in beside["verdicts"]:
        if one["status"] != "none":
            by_relation.setdefault(one["relation"], {})[WORDS[one["variant"]]] = None
    return [
        *(
            f"Neighbours, {', '.join(words)}: {relation}."
            for relation, words in by_relation.items()
        ),
        (
            "The lowest error along a run was found with the ratings that are held out: it says"
            " where the run overfits, and is no result."
        ),
    ]


def _trained_on(beside: Mapping[str, Any]) -> str:
    seeds = f"seed{'' if len(beside['seeds']) == 1 else 's'} {_joined(beside['seeds'])}"
    return (
        f"Trained on {beside['part']}, measured on the rest every {beside['test_steps']} steps and"
        f" at the end ({seeds}; a difference smaller than the spread over seeds decides nothing)."
    )


def simple_controls(beside: Mapping[str, Any]) -> str:
    """The controls without a price, in a sentence; "" where there is none."""
    numbers = {
        (row["variant"], row["axis"]): float(row["value"])
        for row in beside["rows"]
        if row["kind"] == "control"
    }
    parts = []
    for variant in (GLOBAL, MEANS):
        shown = [
            (axis, words) for axis, words in _CONTROL_AXES.items() if (variant, axis) in numbers
        ]
        if shown:
            values = ", ".join(f"{numbers[variant, axis]:.5f} {words}" for axis, words in shown)
            parts.append(f"{WORDS[variant]}: {values}")
    return f"Controls, not private: {'; '.join(parts)}." if parts else ""


_CONTROL_AXES = {
    "rmse": "on all ratings",
    "rmse_train": "on the part trained on",
    "rmse_test": "held out",
}


def verdict_of(record: Record) -> str:
    return f"{record['result']} tolerance" if record["checked"] else record["result"]


def furthest(record: Record) -> str:
    return comparison.furthest(record["worst"], AXES[record["worst"]["axis"]])


def left_out(record: Record) -> str:
    return (
        f"Not trained at this scale: rank {', '.join(map(str, record['left_out']))}; --scale full"
        " has them."
    )


def _side_by_side(figure: Figure, record: Record, axis: str) -> list[str]:
    lines = [
        f"| series | {X_LABELS[figure.x_name]} | J | point | paper | ours | spread over seeds |"
        " difference | |"
    ]
    lines += ["|---|---:|---:|---|---:|---:|---:|---:|---|"]
    for row in record["rows"]:
        if row["axis"] != axis or row["kind"] == "line_vertex":
            continue
        values = [float(value) for value in row["values"]]
        spread = f"{max(values) - min(values):.5f}" if len(values) > 1 else ""
        steps = "" if row["num_steps"] is None else f"{row['num_steps']:.6g}"
        numbers = (number(row["paper"]), number(row["value"]), spread, signed(row["difference"]))
        lines.append(
            f"| {row['series']} | {row['x']:g} | {steps} | {_KINDS[row['kind']]} |"
            f" {' | '.join(numbers)} | {row['result']} |"
        )
    return lines


def _promises(figure: Figure, record: Record) -> list[str]:
    place = "" if figure.x_name == "iteration" else f" {X_LABELS[figure.x_name]} |"
    lines = [
        f"| series |{place} seeds | guarantee at its last step |",
        f"|---|{'---:|' if place else ''}---|---|",
    ]
    for setting in record["settings"]:
        here = f" {setting['x']:g} |" if place else ""
        seeds = _joined(setting["seeds"]) or "not trained"
        lines.append(f"| {setting['series']} |{here} {seeds} | {setting['headline']} |")
    return lines
