"""The table of claims on paper, and the results page of the repository: both made from stored rows,
never by hand.

The same rows give the same bytes. The page shows errors on public research data, which no price
covers: fine to publish for these, and said there; not for ratings of your own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reproduce.claims import VERDICTS, Claim, Told, claims_csv, counted
from experiments.reproduce.comparison import Row
from experiments.reproduce.files import written
from experiments.reproduce.paper001 import beside, figures, pictures, report
from experiments.reproduce.paper001.figures import AXES, FIGURES, X_LABELS, Figure
from experiments.reproduce.pictures import NOTICE

STEM = "001-claims"
REPEATED = (
    ("n", ("rmse", "overall_epsilon")),
    ("mu", ("rmse", "overall_epsilon")),
)  # figures 13 and 25 on twin axes


def summary(claims: Sequence[Claim], stored: Mapping[str, Told], **rest: Any) -> dict[str, Any]:
    """The table as JSON can hold it. rest: command, commit, device and what else is to be kept."""
    return {
        "claims": figures.CLAIMS,
        "notice": NOTICE,
        "counts": {
            verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS
        },
        "beside": _headline(stored),
        **rest,
        "from": {
            name: {
                "ratings": told["ratings"],
                "commits": told["commits"],
                "devices": told["devices"],
            }
            for name, told in stored.items()
        },
        "rows": [claim._asdict() for claim in claims],
    }


def write(told: Mapping[str, Any], out: Path) -> list[Path]:
    """Writes 001-claims.csv, .json and .md in `out`; returns their paths."""
    lines = [
        f"# Paper 001, section 5: {counted(told)}",
        "",
        f"**{told['notice'].capitalize()}.**",
        "",
        *_claims(told),
        "",
        *([f"Sound beside published. {told['beside']}", ""] if told["beside"] else []),
        f"Commit {told['commit']}; device {told['device']}. Repeat: `{told['command']}`",
        "",
    ]
    content = {
        "csv": claims_csv(told),
        "json": json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "md": "\n".join(lines),
    }
    return written(out, {f"{STEM}.{suffix}": text for suffix, text in content.items()})


def write_docs(told: Mapping[str, Any], stored: Mapping[str, Told], docs: Path) -> list[Path]:
    """Writes `docs`/001.md, and its pictures and the csv of the rows it is made from in `docs`/001;
    returns the paths.

    What an earlier call left there of figures that are no longer stored is removed.

    Raises: ModuleNotFoundError without matplotlib; nothing is written then.
    """
    content = {f"001/{STEM}.csv": claims_csv(told)}
    for name, one in stored.items():
        stem = FIGURES[name].stem
        content |= {
            f"001/{stem}.csv": report.table(one),
            f"001/{stem}.svg": picture(_shown(name, one), one),
        }
        if _verdicts(one):
            content[f"001/{stem}{report.HELD_OUT}"] = pictures.held_out(
                _shown(name, one), _beside_rows(one)
            )
    content["001.md"] = page(told, stored)
    for figure in FIGURES.values():
        for name in (f"001/{figure.stem}{suffix}" for suffix in (".csv", ".svg", report.HELD_OUT)):
            if name not in content:
                (docs / name).unlink(missing_ok=True)
    return written(docs, content)


def picture(figure: Figure, told: Told) -> str:
    """The figure from its rows alone; a curve's bends are among them, and between two of them it is
    straight.
    """
    rows = _rows_of(told["rows"])
    points = figure.plotted if any(row.paper is not None for row in rows) else ()
    if figure.x_name != "iteration":
        return pictures.settings(figure, rows, points, _beside_rows(told))
    curves = {}
    for series in dict.fromkeys(row.series for row in rows):
        known = {
            row.x: float(row.value)
            for row in rows
            if row.series == series and row.kind != "patience" and row.axis == "rmse"
        }
        steps = sorted(known)
        curves[series] = [
            np.interp(np.arange(steps[-1] + 1), steps, [known[step] for step in steps])
        ]
    return pictures.curves(figure, curves, rows, points, _beside_rows(told))


def _shown(name: str, told: Told) -> Figure:
    return FIGURES[name].shown_on(told["ratings"]["name"])


def _rows_of(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [Row(**row)._replace(value=float(row["value"])) for row in rows]


def _beside_rows(told: Told) -> list[Row]:
    return _rows_of(told["beside"]["rows"]) if told.get("beside") else []


def _verdicts(told: Told) -> Sequence[Mapping[str, Any]]:
    """On held-out ratings; none of a figure that was stored before there were any."""
    return told["beside"]["verdicts"] if told.get("beside") else ()


def _new_verdicts(stored: Mapping[str, Told]) -> dict[str, list[Mapping[str, Any]]]:
    """By figure, those that no figure before it has: figures share runs."""
    seen: set[tuple[Any, ...]] = set()
    new: dict[str, list[Mapping[str, Any]]] = {}
    for name, one in stored.items():
        for verdict in _verdicts(one):
            same = tuple(verdict[field] for field in ("variant", "series", "rank", "steps"))
            run = (one["ratings"]["sha256"], tuple(verdict["seeds"]), *same)
            if run not in seen:
                new.setdefault(name, []).append(verdict)
            seen.add(run)
    return new


def _headline(stored: Mapping[str, Told]) -> str:
    """A sentence for each data set; "" where nothing was measured on held-out ratings."""
    by_ratings: dict[str, list[Mapping[str, Any]]] = {}
    for name, verdicts in _new_verdicts(stored).items():
        by_ratings.setdefault(stored[name]["ratings"]["name"], []).extend(verdicts)
    return " ".join(beside.sentence(verdicts, name) for name, verdicts in by_ratings.items())


# ---------------------------------------------------------------------------------------------- the


def page(told: Mapping[str, Any], stored: Mapping[str, Told]) -> str:
    """Verdict and picture first, then what does not hold, the figures, every statement, what was
    run and what not.
    """
    lines = ["# Paper 001: a private recommender by Gaussian noise", "", _verdict(told, stored), ""]
    lines += [f"**{told['beside']}**", ""] if told["beside"] else []
    if opening := next(
        (name for name in stored if stored[name]["checked"]), next(iter(stored), None)
    ):
        lines += [f"![{_alternative(FIGURES[opening])}](001/{FIGURES[opening].stem}.svg)", ""]
    lines += [
        (
            "Crosses and lines are ours, circles and dotted lines the paper's (arXiv 2304.09096),"
            " thin lines are simple controls. RMSE is the error in stars on the ratings that were"
            " trained on, as in the paper; predicting every movie's mean has 0.975 on MovieLens-1M."
            " Errors on held-out ratings are under [Sound beside"
            " published](#sound-beside-published). ε_i sets the noise of a step, the larger the"
            " less; the overall ε is the price of all steps, the smaller the more private."
        ),
        "",
        (
            "All of this is unpriced error on public research data sets, which may be shown for"
            " that reason; for ratings of your own the same numbers are for the curator's eyes"
            " only. The guarantee of the mechanism as published is claimed by the paper, not"
            " proved; see Theorem 2 below."
        ),
        "",
    ]
    failed = [row for row in told["rows"] if row["verdict"] == "not reproduced"]
    if failed:
        lines += ["## What does not hold", ""]
        lines += [
            f"- *{row['statement']}* ({row['where']}) Measured: {row['value']}." for row in failed
        ]
        lines += [""]
    lines += ["## Figures", ""]
    lines += _summary(stored) if stored else ["None has been run."]
    for name, one in stored.items():
        lines += ["", *_figure(_shown(name, one), one, name == opening)]
    lines += ["", "## Sound beside published", "", *_sound(stored)]
    lines += [
        "",
        "## Statements",
        "",
        *_claims(told),
        "",
        "## What was run",
        "",
        *_run(told, stored),
        "",
    ]
    lines += ["## What was not run", "", *_not_run(stored), ""]
    lines += [
        f"This page and its pictures are written by `{told['command']}` from the rows in `001/`.",
        "",
    ]
    return "\n".join(lines)


def _verdict(told: Mapping[str, Any], stored: Mapping[str, Told]) -> str:
    """One or two sentences for somebody who has not read the paper."""
    checked, outside = (
        sum(one[name] for figure, one in stored.items() if not _repeats(FIGURES[figure]))
        for name in ("checked", "outside")
    )
    counts = told["counts"]
    if not checked:
        first = "No plotted number of this paper has been checked yet."
    elif not outside:
        first = (
            f"The paper's plots can be reproduced: trained again, all {checked} of its plotted"
            " numbers that we checked come out within tolerances fixed beforehand (0.005 in RMSE,"
            " 0.01 without a known number of steps or in ε)."
        )
    else:
        first = (
            f"The paper's plots can be reproduced in part: trained again, {checked - outside} of"
            f" its {checked} plotted numbers that we checked come out within tolerances fixed"
            f" beforehand (0.005 in RMSE, 0.01 without a known number of steps or in ε), {outside}"
            " do not."
        )
    return (
        f"**{first} Of {sum(counts.values())} readings of what it says about them,"
        f" {counts['reproduced']} hold here, {counts['not reproduced']} do not, and"
        f" {counts['not testable here']} could not be tested.**"
    )


def _repeats(figure: Figure) -> bool:
    return (figure.x_name, figure.axes) in REPEATED


def _alternative(figure: Figure) -> str:
    return f"Figure {figure.number}: {figure.what}; the paper's points and ours"


def _summary(stored: Mapping[str, Told]) -> list[str]:
    lines = [
        "| figure | what | ratings | result | checked | inside | furthest |",
        "|---|---|---|---|---:|---:|---|",
    ]
    for name, told in stored.items():
        figure = FIGURES[name]
        furthest = report.furthest(told) if told["worst"] else ""
        lines.append(
            f"| [{figure.number}](#{_anchor(figure)}) | {figure.what} | {told['ratings']['name']} |"
            f" {report.verdict_words(told)} | {told['checked']} |"
            f" {told['checked'] - told['outside']} | {furthest} |"
        )
    return lines


def _anchor(figure: Figure) -> str:
    return f"figure-{figure.number}"


def _figure(figure: Figure, told: Told, shown: bool) -> list[str]:
    """Heading, picture, verdict, and a table by series; a figure without checked points has its
    rows instead.
    """
    lines = [
        f"### Figure {figure.number}",
        "",
        f"{figure.title[:1].upper()}{figure.title[1:]}. Rule: {told['rule']}.",
        "",
    ]
    if not shown:
        lines += [f"![{_alternative(figure)}](001/{figure.stem}.svg)", ""]
    if told["left_out"]:
        lines += [f"{report.left_out(told)}", ""]
    return lines + (_by_series(figure, told) if told["checked"] else _rows(figure, told))


def _sound(stored: Mapping[str, Told]) -> list[str]:
    """Held-out errors of every figure that has some; a table that another figure has already is not
    repeated.
    """
    new = _new_verdicts(stored)
    lines = []
    for name, one in stored.items():
        if not _verdicts(one):
            continue
        figure = FIGURES[name]
        lines += [f"### Figure {figure.number}, held out", ""]
        lines += [
            (
                f"![Figure {figure.number}: held-out RMSE by"
                f" mechanism](001/{figure.stem}{report.HELD_OUT})"
            ),
            "",
        ]
        if name in new:
            lines += [*report.beside(figure, one), ""]
        else:
            lines += ["The runs are those of a figure above.", ""]
    if not lines:
        return [
            "No run on held-out ratings is stored; `dpmf reproduce` trains them unless `--beside"
            " none` is given."
        ]
    return lines[:-1]


def _by_series(figure: Figure, told: Told) -> list[str]:
    lines = [
        f"| series | of | checked | inside | furthest | at {X_LABELS[figure.x_name]} |",
        "|---|---|---:|---:|---:|---:|",
    ]
    checked = [row for row in told["rows"] if row["result"] != "informative"]
    for (series, axis), group in itertools.groupby(
        checked, key=lambda row: (row["series"], row["axis"])
    ):
        rows = list(group)
        worst = max(rows, key=lambda row: abs(float(row["difference"])) / row["tolerance"])
        inside = sum(row["result"] == "inside" for row in rows)
        lines.append(
            f"| {series} | {AXES[axis]} | {len(rows)} | {inside} |"
            f" {report.signed(worst['difference'])} | {worst['x']:g} |"
        )
    return lines


def _rows(figure: Figure, told: Told) -> list[str]:
    lines = [
        f"| series | {X_LABELS[figure.x_name]} | of | J | paper | ours |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for row in told["rows"]:
        if row["kind"] in ("line_vertex", "line_start"):
            continue
        steps = "" if row["num_steps"] is None else f"{row['num_steps']:.6g}"
        paper, ours = report.number(row["paper"]), report.number(row["value"])
        lines.append(
            f"| {row['series']} | {row['x']:g} | {AXES[row['axis']]} | {steps} | {paper} | {ours} |"
        )
    return lines


def _claims(told: Mapping[str, Any]) -> list[str]:
    lines = [
        (
            f"{counted(told).capitalize()}. The paper gives a criterion for hardly any of them;"
            " those here are ours."
        ),
        "",
        "| statement, in our words | where | verdict | measured | how | why |",
        "|---|---|---|---|---|---|",
    ]
    for row in told["rows"]:
        cells = (
            row["statement"],
            row["where"],
            f"**{row['verdict']}**",
            row["value"],
            row["how"],
            row["why"],
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def _run(told: Mapping[str, Any], stored: Mapping[str, Told]) -> list[str]:
    lines = []
    if stored:
        lines += [
            (
                "Wall time: of the runs that the figure reads, each its share of the runs that were"
                " trained side by side. Figures share runs, so it does not add up."
            ),
            "",
            "| figure | ratings | seeds | wall time | commit | device | repeat |",
            "|---|---|---|---:|---|---|---|",
        ]
    for name, one in stored.items():
        seeds = (
            _joined(sorted({seed for setting in one["settings"] for seed in setting["seeds"]}))
            or "not trained"
        )
        if _verdicts(one):
            seeds += f"; held out: {_joined(one['beside']['seeds'])}"
        ratings = (
            f"{one['ratings']['name']}, {one['ratings']['count']:,}, sha256"
            f" {one['ratings']['sha256'][:12]}"
        )
        lines.append(
            f"| {FIGURES[name].number} | {ratings} | {seeds} | {_wall(one)} |"
            f" {_joined(commit[:12] for commit in one['commits'])} | {_joined(one['devices'])} |"
            f" `{one['command']}` |"
        )
    audit = told["audit"]
    lines += [
        "",
        (
            f"Sensitivity: {audit['data']}, {audit['steps']} steps, {audit['pairs']} pairs of data"
            f" sets, seed {audit['seed']}; commit {told['commit'][:12]}, device {told['device']}."
        ),
    ]
    return lines


def _wall(told: Told) -> str:
    """As stored with the runs; "" where nothing was trained step by step."""
    seconds = told.get("seconds")
    if not seconds:
        return ""
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"


def _joined(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def _not_run(stored: Mapping[str, Told]) -> list[str]:
    missing: dict[tuple[str, str | None], list[str]] = {}
    for name, figure in FIGURES.items():
        if name not in stored:
            missing.setdefault((figure.data, figure.fallback), []).append(name)
    lines = [
        f"- On {data}{f' (or {fallback} in its place)' if fallback else ''}: figures "
        f"{_joined(FIGURES[name].number for name in names)}; `dpmf reproduce {' '.join(names)}`"
        for (data, fallback), names in missing.items()
    ]
    for name, told in stored.items():
        if told["left_out"]:
            ranks = " ".join(map(str, told["left_out"]))
            lines.append(
                f"- Of figure {FIGURES[name].number}: training at rank {_joined(told['left_out'])};"
                f" `dpmf reproduce {name} --ranks {ranks}`"
            )
    return lines or ["Nothing is left out."]
