"""What `dpmf reproduce --list` says of paper 001: runs, steps and minutes at both scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.cli import devices
from experiments.reproduce.catalogue import (
    CLAIMS_MINUTES,
    CLAIMS_WHAT,
    Listing,
    claims_line,
    duration,
)
from experiments.reproduce.flags import Command
from experiments.reproduce.paper001 import plans
from experiments.reproduce.paper001.figures import CATALOGUE, FIGURES, Figure, Request

CLAIMS_DATA = "--out, and ml-100k or generated"


def listing(here: set[str], command: Command) -> Listing:
    """here: the data sets that are there."""
    rows = [_row(figure, here, command) for figure in FIGURES.values()]
    first = FIGURES[CATALOGUE.every[0]]
    group = {
        "name": CATALOGUE.whole,
        "figures": CATALOGUE.every,
        "here": _data_here(first, here),
        **_amounts(CATALOGUE.every, command),
    }
    claims = {
        "name": CATALOGUE.claims,
        "what": CLAIMS_WHAT,
        "data": CLAIMS_DATA,
        "minutes": CLAIMS_MINUTES,
    }
    content = {
        "figures": rows,
        "groups": [group],
        "cores": devices.cores(),
        "minutes_are": plans.COST_OF,
        "claims": claims,
    }
    numbers = ", ".join(name.partition("fig")[2] for name in CATALOGUE.every)
    lines = [_line(row) for row in rows]
    lines += [(CATALOGUE.whole, f"figures {numbers}", first.paper_data, *_times(group))]
    notes = (
        "* the paper's points are not known.",
        f"Minutes: estimates for {content['cores']} CPU cores ({plans.COST_OF}), what is trained"
        " beside included (--beside).",
    )
    return Listing(content, [*lines, claims_line(claims)], notes)


def _row(figure: Figure, here: set[str], command: Command) -> dict[str, Any]:
    return {
        "name": figure.name,
        "paper": CATALOGUE.cited,
        "number": figure.number,
        "title": figure.title,
        "what": figure.what,
        "x_name": figure.x_name,
        "data": figure.paper_data,
        "fallback": figure.fallback,
        "compared": bool(figure.points),
        "here": _data_here(figure, here),
        **_amounts((figure.name,), command),
    }


def _data_here(figure: Figure, here: set[str]) -> str | None:
    """What the figure runs on here: the paper's data, else what stands in for it, else None."""
    return next((name for name in figure.data if name in here), None)


def _amounts(names: Sequence[str], command: Command) -> dict[str, Any]:
    """Runs, steps and minutes at both scales, of figures that share their runs."""
    amounts = {}
    for scale in ("small", "full"):
        request = Request(scale=scale, beside=command.beside)
        settings = [
            setting for name in names for setting in plans.plan(FIGURES[name], request).trained
        ]
        steps = plans.work(settings)
        minutes = round(plans.minutes(settings, devices.cores()), 1)
        amounts[scale] = {"runs": len(steps), "steps": sum(steps.values()), "minutes": minutes}
    return amounts


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    there = row["here"] in (row["data"], None)
    data = row["data"] if there else f"{row['here']}, not {row['data']}"
    what = row["what"] if row["compared"] else f"{row['what']} *"
    return (row["name"], what, data, *_times(row))


def _times(row: dict[str, Any]) -> list[str]:
    if row["here"] is None:
        return ["data absent"] * 2
    return [
        f"{row[scale]['runs']} runs, {duration(row[scale]['minutes'])}"
        for scale in ("small", "full")
    ]
