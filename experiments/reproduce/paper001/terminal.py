"""What the terminal shows of a figure of paper 001."""

from __future__ import annotations

from typing import Any

from experiments.reproduce.catalogue import Record
from experiments.reproduce.paper001 import report
from experiments.reproduce.paper001.figures import AXES, Figure
from experiments.reproduce.paper001.variants import WORDS


def render(record: Record, figure: Figure) -> list[Any]:
    """The decided points, what each series promises, and what stands beside."""
    del figure
    from rich.table import Table

    table = Table(title=f"{record['figure']} ({record['notice']})")
    left = ("series", "of", "result")
    for heading in ("series", "of", "x", "J", "paper", "ours", "difference", "result"):
        table.add_column(heading, justify="left" if heading in left else "right")
    decided = [row for row in record["rows"] if row["result"] != "informative"]
    shown = [
        row
        for row in record["rows"]
        if row["kind"] not in ("line_start", "line_vertex") and row not in decided
    ]
    for row in decided or shown:
        numbers = (
            report.number(row["paper"]),
            report.number(row["value"]),
            report.signed(row["difference"]),
        )
        steps = "" if row["num_steps"] is None else f"{row['num_steps']:.6g}"
        table.add_row(
            row["series"], AXES[row["axis"]], f"{row['x']:g}", steps, *numbers, row["result"]
        )
    starts = [
        abs(r["difference"])
        for r in record["rows"]
        if r["kind"] == "line_start" and r["difference"] is not None
    ]
    ended = [row for row in record["rows"] if row["kind"] == "patience" and row["axis"] == "rmse"]
    headlines = {
        setting["series"]: setting["headline"] for setting in record["settings"]
    }  # the last of each series
    lines = [
        (
            f"{report.verdict_of(record)}: {record['checked'] - record['outside']} of"
            f" {record['checked']} checked points"
        ),
        f"rule: {record['rule']}",
        *([f"at step 0 within {max(starts):.4f} of the paper (informative)"] if starts else []),
        *([report.left_out(record)] if record["left_out"] else []),
        *(
            [
                f"early stopping by patience (not private, informative): {len(ended)} rows in the"
                " files"
            ]
            if ended
            else []
        ),
        *(f"{name}: {headline}" for name, headline in headlines.items()),
    ]
    return [table, "\n".join(lines), *_render_beside(record)]


def _render_beside(record: Record) -> list[Any]:
    """The variants, each with its promise, and whether it beats a simple control."""
    from rich.table import Table

    beside = record["beside"]
    if not beside:
        return []
    sentences = [
        text
        for text in (beside["sentence"], report.simple_controls(beside), beside["not_beside"])
        if text
    ]
    if not beside["verdicts"]:
        return ["\n".join(sentences)]
    table = Table(title=f"{record['figure']}, held out ({record['notice']})")
    for heading in (
        "trained, and what it promises",
        "series",
        "x",
        "held out",
        "control",
        "of control",
        "verdict",
    ):
        numeric = heading in ("x", "held out", "of control")
        table.add_column(
            heading,
            justify="right" if numeric else "left",
            ratio=1 if "promises" in heading else None,
        )
    for one in beside["verdicts"]:
        place = "" if one["x"] is None else f"{one['x']:g}"
        numbers = (
            report.number(one["rmse_test"]),
            WORDS[one["control"]],
            report.number(one["control_rmse_test"]),
        )
        promise = f"{WORDS[one['variant']]}: [dim]{one['headline']}[/dim]"
        table.add_row(promise, one["series"], place, *numbers, one["verdict"])
    return [table, "\n".join([*sentences, *report.relations(beside)])]
