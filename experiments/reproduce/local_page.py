"""Paper 004's table of claims on paper, and the results page of the repository: both made from stored rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.reproduce import local_report
from experiments.reproduce.claims import Claim
from experiments.reproduce.local_claims import Stored
from experiments.reproduce.local_table import CLAIMS, FIGURES
from experiments.reproduce.page import VERDICTS, claims_csv, counted, written
from experiments.reproduce.pictures import NOTICE

STEM = "004-claims"


def summary(claims: Sequence[Claim], found: Stored, **rest: Any) -> dict[str, Any]:
    """The table as JSON can hold it. rest: command, commit, device."""
    return {
        "claims": CLAIMS,
        "notice": NOTICE,
        "counts": {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS},
        "beside": "",
        **rest,
        "from": {name: {"ratings": told["ratings"], "commits": told["commits"]} for name, told in found.items()},
        "rows": [claim._asdict() for claim in claims],
    }


def table(told: Mapping[str, Any]) -> list[str]:
    lines = ["| statement, in our words | where | verdict | measured | how | why |", "|---|---|---|---|---|---|"]
    for row in told["rows"]:
        cells = (row["statement"], row["where"], f"**{row['verdict']}**", row["value"], row["how"], row["why"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def write(told: Mapping[str, Any], out: Path) -> list[Path]:
    """Writes 004-claims.csv, .json and .md in `out`; returns their paths."""
    last = f"Commit {told['commit']}; device {told['device']}. Repeat: `{told['command']}`"
    page = [f"# Paper 004: {counted(told)}", "", f"**{told['notice'].capitalize()}.**", "", *table(told), "", last, ""]
    content = {
        f"{STEM}.csv": claims_csv(told),
        f"{STEM}.json": json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        f"{STEM}.md": "\n".join(page),
    }
    return written(out, content)


def write_docs(told: Mapping[str, Any], found: Stored, docs: Path) -> list[Path]:
    """Writes `docs`/004.md, and its pictures and the csv of its rows in `docs`/004; returns the paths.

    Raises: ModuleNotFoundError without matplotlib; nothing is written then.
    """
    content = {f"004/{STEM}.csv": claims_csv(told)}
    for name, one in found.items():
        content |= {f"004/{name}.csv": local_report.table(one)}
        content |= {f"004/{name}.svg": local_report.picture(FIGURES[one["figure"]], one)}
    content["004.md"] = page(told, found)
    for figure in FIGURES.values():
        for data in figure.data or ("",):
            name = f"{figure.stem}-{data}" if data else figure.stem
            for path in (f"004/{name}.csv", f"004/{name}.svg"):
                if path not in content:
                    (docs / path).unlink(missing_ok=True)
    return written(docs, content)


def page(told: Mapping[str, Any], found: Stored) -> str:
    """Verdict and picture first, then what does not hold, the figures, every statement."""
    counts = told["counts"]
    rows = {row["name"]: row for row in told["rows"]}
    lines = ["# Paper 004: local differential privacy, one coordinate and one bit", ""]
    first = (
        "The privacy holds: a report costs what the paper says, by exact enumeration, if there are k rounds and not "
        "k + 1."
    )
    second = {
        "reproduced": "At these sizes it is of use.",
        "not reproduced": "The use does not, at these sizes: no private run beats both the global mean and what "
        "users can fit alone, without sending anything.",
        "not testable here": "Whether it is of use has not been measured yet.",
    }[rows["useful"]["verdict"]]
    lines += [
        f"**{first} {second} Of {sum(counts.values())} readings of what it says, {counts['reproduced']} hold here, "
        f"{counts['not reproduced']} do not, and {counts['not testable here']} could not be tested.**",
        "",
    ]
    opening = next((name for name, one in found.items() if one["figure"] == "004/fig9"), None)
    if opening:
        lines += [f"![{FIGURES['004/fig9'].what}](004/{opening}.svg)", ""]
    lines += [
        "Lines are ours. RMSE is the error in stars on ratings that were held out; thin lines are simple controls. "
        "*Users alone* send nothing (ε = 0) and fit their own ratings to a random V; *fair coins* are the same runs "
        "with reports that say nothing about anybody. A private model has learnt only where it is below both.",
        "",
        "All of this is unpriced error on public research data sets, which may be shown for that reason; for ratings "
        "of your own the same numbers are for the curator's eyes only.",
        "",
    ]
    failed = [row for row in told["rows"] if row["verdict"] == "not reproduced"]
    if failed:
        lines += ["## What does not hold", ""]
        lines += [f"- *{row['statement']}* ({row['where']}) Measured: {row['value']}." for row in failed]
        lines += [""]
    lines += ["## Statements", "", *table(told), "", "## Figures", ""]
    for name, one in found.items():
        figure = FIGURES[one["figure"]]
        lines += [
            f"### {local_report.title(figure, one)}",
            "",
            *local_report.section(figure, one, f"004/{name}.svg"),
            "",
        ]
    missing = [
        f"- {figure.name}{f' on {data}' if data else ''}: `dpmf reproduce {figure.name}`"
        for figure in FIGURES.values()
        for data in (figure.data or ("",))
        if (f"{figure.stem}-{data}" if data else figure.stem) not in found
    ]
    lines += ["## What was not run", "", *(missing or ["Nothing is left out."]), ""]
    lines += [f"This page and its pictures are written by `{told['command']}` from the rows in `004/`.", ""]
    return "\n".join(lines)
