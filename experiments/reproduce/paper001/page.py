"""The results page of paper 001, from its stored rows and its table of claims.

The same rows give the same bytes. The page shows errors on public research data, which no price
covers: fine to publish for these, and said there; not for ratings of your own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.reproduce import page as shared
from experiments.reproduce.catalogue import Record, Stored
from experiments.reproduce.claims import count_verdicts
from experiments.reproduce.page import joined
from experiments.reproduce.paper001 import report, variants
from experiments.reproduce.paper001.figures import AXES, FIGURES, X_LABELS, Figure
from experiments.reproduce.paper001.pictures import HELD_OUT

REPEATED = (
    ("n", ("rmse", "overall_epsilon")),
    ("mu", ("rmse", "overall_epsilon")),
)  # figures 13 and 25 on twin axes


def page(record: Record, stored: Stored) -> str:
    """Verdict and picture first, then what fails, figures, statements, and what was run."""
    opening = next((name for name in stored if stored[name]["checked"]), next(iter(stored), None))
    picture = ""
    if opening is not None:
        picture = f"![{_alternative(FIGURES[opening])}](001/{FIGURES[opening].stem}.svg)"
    figures = _summary(stored) if stored else ["None has been run."]
    for name, one in stored.items():
        figure = FIGURES[name].shown_on(one["ratings"]["name"])
        figures += ["", *_figure(figure, one, name == opening)]
    counted = (
        f"{count_verdicts(record).capitalize()}. The paper gives a criterion for hardly any of"
        " them; those here are ours."
    )
    return shared.results(
        record,
        heading="a private recommender by Gaussian noise",
        verdict=_checked(stored),
        picture=picture,
        introduction=(
            "Crosses and lines are ours, circles and dotted lines the paper's (arXiv 2304.09096),"
            " thin lines are simple controls. RMSE is the error in stars on the ratings that were"
            " trained on, as in the paper; predicting every movie's mean has 0.975 on MovieLens-1M."
            " Errors on held-out ratings are under [Sound beside"
            " published](#sound-beside-published). ε_i sets the noise of a step, the larger the"
            " less; the overall ε is the price of all steps, the smaller the more private.",
            f"{shared.UNPRICED} The guarantee of the mechanism as published is claimed by the"
            " paper, not proved; see Theorem 2 below.",
        ),
        sections={
            "What does not hold": shared.failed(record),
            "Figures": figures,
            "Sound beside published": _sound(stored),
            "Statements": [counted, "", *shared.claims_table(record)],
            "What was run": _run(record, stored),
            "What was not run": _not_run(stored),
        },
    )


def _checked(stored: Stored) -> str:
    """A sentence for somebody who has not read the paper."""
    checked, outside = (
        sum(one[name] for figure, one in stored.items() if not _repeats(FIGURES[figure]))
        for name in ("checked", "outside")
    )
    if not checked:
        return "No plotted number of this paper has been checked yet."
    within = (
        "within tolerances fixed beforehand (0.005 in RMSE, 0.01 without a known number of steps or"
        " in ε)"
    )
    if not outside:
        return (
            f"The paper's plots can be reproduced: trained again, all {checked} of its plotted"
            f" numbers that we checked come out {within}."
        )
    return (
        f"The paper's plots can be reproduced in part: trained again, {checked - outside} of its"
        f" {checked} plotted numbers that we checked come out {within}, {outside} do not."
    )


def _repeats(figure: Figure) -> bool:
    return (figure.x_name, figure.axes) in REPEATED


def _alternative(figure: Figure) -> str:
    return f"Figure {figure.number}: {figure.what}; the paper's points and ours"


def _verdicts(record: Record) -> Sequence[Mapping[str, Any]]:
    """On held-out ratings; none of a figure that was stored before there were any."""
    return record["beside"]["verdicts"] if record.get("beside") else ()


def _new_verdicts(stored: Stored) -> dict[str, list[Mapping[str, Any]]]:
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


def held_out_sentence(stored: Stored) -> str:
    """A sentence for each data set; "" where nothing was measured on held-out ratings."""
    by_ratings: dict[str, list[Mapping[str, Any]]] = {}
    for name, verdicts in _new_verdicts(stored).items():
        by_ratings.setdefault(stored[name]["ratings"]["name"], []).extend(verdicts)
    return " ".join(variants.sentence(verdicts, name) for name, verdicts in by_ratings.items())


def _summary(stored: Stored) -> list[str]:
    lines = [
        "| figure | what | ratings | result | checked | inside | furthest |",
        "|---|---|---|---|---:|---:|---|",
    ]
    for name, record in stored.items():
        figure = FIGURES[name]
        furthest = report.furthest(record) if record["worst"] else ""
        lines.append(
            f"| [{figure.number}](#{_anchor(figure)}) | {figure.what} |"
            f" {record['ratings']['name']} | {report.verdict_of(record)} | {record['checked']} |"
            f" {record['checked'] - record['outside']} | {furthest} |"
        )
    return lines


def _anchor(figure: Figure) -> str:
    return f"figure-{figure.number}"


def _figure(figure: Figure, record: Record, shown: bool) -> list[str]:
    """Heading, picture, and a table by series; without checked points the rows instead."""
    lines = [
        f"### Figure {figure.number}",
        "",
        f"{figure.title[:1].upper()}{figure.title[1:]}. Rule: {record['rule']}.",
        "",
    ]
    if not shown:
        lines += [f"![{_alternative(figure)}](001/{figure.stem}.svg)", ""]
    if record["left_out"]:
        lines += [f"{report.left_out(record)}", ""]
    return lines + (_by_series(figure, record) if record["checked"] else _rows(figure, record))


def _sound(stored: Stored) -> list[str]:
    """Held-out errors of every figure that has some; no table stands there twice."""
    new = _new_verdicts(stored)
    lines = []
    for name, one in stored.items():
        if not _verdicts(one):
            continue
        figure = FIGURES[name]
        lines += [f"### Figure {figure.number}, held out", ""]
        lines += [
            (f"![Figure {figure.number}: held-out RMSE by mechanism](001/{figure.stem}{HELD_OUT})"),
            "",
        ]
        if name in new:
            lines += [*report.beside_section(figure, one), ""]
        else:
            lines += ["The runs are those of a figure above.", ""]
    if not lines:
        return [
            "No run on held-out ratings is stored; `dpmf reproduce` trains them unless `--beside"
            " none` is given."
        ]
    return lines[:-1]


def _by_series(figure: Figure, record: Record) -> list[str]:
    lines = [
        f"| series | of | checked | inside | furthest | at {X_LABELS[figure.x_name]} |",
        "|---|---|---:|---:|---:|---:|",
    ]
    checked = [row for row in record["rows"] if row["result"] != "informative"]
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


def _rows(figure: Figure, record: Record) -> list[str]:
    lines = [
        f"| series | {X_LABELS[figure.x_name]} | of | J | paper | ours |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for row in record["rows"]:
        if row["kind"] in ("line_vertex", "line_start"):
            continue
        steps = "" if row["num_steps"] is None else f"{row['num_steps']:.6g}"
        paper, ours = report.number(row["paper"]), report.number(row["value"])
        lines.append(
            f"| {row['series']} | {row['x']:g} | {AXES[row['axis']]} | {steps} | {paper} | {ours} |"
        )
    return lines


def _run(record: Record, stored: Stored) -> list[str]:
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
            joined(sorted({seed for setting in one["settings"] for seed in setting["seeds"]}))
            or "not trained"
        )
        if _verdicts(one):
            seeds += f"; held out: {joined(one['beside']['seeds'])}"
        ratings = (
            f"{one['ratings']['name']}, {one['ratings']['count']:,}, sha256"
            f" {one['ratings']['sha256'][:12]}"
        )
        lines.append(
            f"| {FIGURES[name].number} | {ratings} | {seeds} | {_wall(one)} |"
            f" {joined(commit[:12] for commit in one['commits'])} | {joined(one['devices'])} |"
            f" `{one['command']}` |"
        )
    audit = record["audit"]
    lines += [
        "",
        (
            f"Sensitivity: {audit['data']}, {audit['steps']} steps, {audit['pairs']} pairs of data"
            f" sets, seed {audit['seed']}; commit {record['commit'][:12]}, device"
            f" {record['device']}."
        ),
    ]
    return lines


def _wall(record: Record) -> str:
    """As stored with the runs; "" where nothing was trained step by step."""
    seconds = record.get("seconds")
    if not seconds:
        return ""
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"


def _not_run(stored: Stored) -> list[str]:
    missing: dict[tuple[str, str | None], list[str]] = {}
    for name, figure in FIGURES.items():
        if name not in stored:
            missing.setdefault((figure.paper_data, figure.fallback), []).append(name)
    lines = [
        f"- On {data}{f' (or {fallback} in its place)' if fallback else ''}: figures "
        f"{joined(FIGURES[name].number for name in names)}; `dpmf reproduce {' '.join(names)}`"
        for (data, fallback), names in missing.items()
    ]
    for name, record in stored.items():
        if record["left_out"]:
            ranks = " ".join(map(str, record["left_out"]))
            lines.append(
                f"- Of figure {FIGURES[name].number}: training at rank"
                f" {joined(record['left_out'])}; `dpmf reproduce {name} --ranks {ranks}`"
            )
    return lines or ["Nothing is left out."]
