"""`dpmf reproduce`: train figures of a paper again and hold them to the paper's points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmf_jax.errors import OutsideTolerance, UsageError
from experiments.cli import console
from experiments.reproduce import paper as papers
from experiments.reproduce.catalogue import Listing
from experiments.reproduce.flags import Command as Command
from experiments.reproduce.flags import command_line
from experiments.reproduce.paper001.paper import PAPER as PAPER_001
from experiments.reproduce.paper002.paper import PAPER as PAPER_002
from experiments.reproduce.paper003.paper import PAPER as PAPER_003
from experiments.reproduce.paper004.paper import PAPER as PAPER_004

PAPERS = (PAPER_001, PAPER_002, PAPER_003, PAPER_004)
OF_FIGURES = ("scale", "beside", "ranks", "series", "seeds")  # flags that claims do not take


def run(command: Command) -> None:
    if command.list:
        here = _data_sets(command.data_dir)
        listings = [paper.listing(here, command) for paper in PAPERS]
        content = {name: value for one in listings for name, value in one.content.items()}
        console.emit(content, json=command.json, render=lambda _: _render_list(listings))
        return
    result = reproduce(command)
    console.emit(result, json=command.json, render=_render)
    if outside := [one for one in result["figures"] if one["result"] == "outside"]:
        raise _outside(outside)


def reproduce(command: Command) -> dict[str, Any]:
    """Everything but the printing. The result's keys are the command's JSON interface."""
    chosen = _chosen(command)
    here = _data_sets(command.data_dir)
    result: dict[str, Any] = {"result": "informative", "figures": [], "out": str(command.out)}
    try:
        for paper, figures in zip(PAPERS, chosen, strict=True):
            if figures:
                result["figures"] += papers.reproduce(paper, figures, command, here)
    except KeyboardInterrupt:
        raise console.Interrupted(command_line(command)) from None
    results = {record["result"] for record in result["figures"]} or {"informative"}
    order = ("outside", "inside", "informative", "no points to compare")
    result["result"] = next(one for one in order if one in results)
    for paper in PAPERS:
        if paper.catalogue.claims in command.figures:
            result[paper.claims_key] = papers.judge(paper, command)
    return result


def _chosen(command: Command) -> list[list[Any]]:
    """The figures that are named, by paper.

    Raises: UsageError for what is not known, or means nothing to what is named.
    """
    if not command.figures:
        raise UsageError(
            "no figure is named", fix="dpmf reproduce 001/fig1, or dpmf reproduce --list"
        )
    claims = {paper.catalogue.claims for paper in PAPERS}
    names = [name for name in command.figures if name not in claims]
    prefixes = tuple(paper.catalogue.prefix for paper in PAPERS)
    chosen = []
    for paper in PAPERS:
        its = [name for name in names if name.startswith(paper.catalogue.prefix)]
        if paper is PAPERS[0]:  # it says which name is near
            its += [name for name in names if not name.startswith(prefixes)]
        chosen.append(paper.catalogue.expand(its))
    if command.docs is not None and not claims.intersection(command.figures):
        raise UsageError(
            "--docs goes with 001/claims", fix=f"dpmf reproduce 001/claims --docs {command.docs}"
        )
    for flag in OF_FIGURES:
        _check_flag(flag, command, chosen)
    for paper, figures in zip(PAPERS, chosen, strict=True):
        if figures:
            paper.check(figures, command)
    return chosen


def _check_flag(flag: str, command: Command, chosen: Sequence[Sequence[Any]]) -> None:
    """Raises: UsageError for a flag that does nothing here."""
    value = getattr(command, flag)
    if value in (None, "auto"):
        return
    if not any(chosen):
        names = " ".join(command.figures)
        raise UsageError(
            f"{names} trains nothing", where=f"--{flag}", fix=f"dpmf reproduce {names}"
        )
    if flag == "seeds":
        if not value or len(set(value)) < len(value) or min(value) < 0:
            raise UsageError(
                f"--seeds {' '.join(map(str, value))} are not distinct numbers from 0 on",
                fix="--seeds 0 1 2",
            )
        return
    known = [paper for paper in PAPERS if flag in paper.flags]
    if not any(
        figures and flag in paper.flags for paper, figures in zip(PAPERS, chosen, strict=True)
    ):
        numbers = " and ".join(paper.catalogue.number for paper in known)
        raise UsageError(
            f"--{flag} goes with figures of paper {numbers}", fix=f"leave out --{flag}"
        )


def _data_sets(data_dir: Path | None) -> set[str]:
    """The names of the data sets that are there."""
    from dpmf_jax.data import datasets

    return {row["name"] for row in datasets.list_datasets(data_dir) if row["path"] is not None}


def _outside(records: Sequence[Mapping[str, Any]]) -> OutsideTolerance:
    from experiments.reproduce.comparison import furthest

    first = records[0]
    return OutsideTolerance(
        "; ".join(
            f"{one['figure']}: {one['outside']} of {one['checked']} checked points are too far"
            for one in records
        )
        + " from the paper",
        where=(
            f"the furthest of {first['figure']}: {furthest(first['worst'])}; all of them in"
            f" {first['files'][0]}"
        ),
        fix=(
            "check that the ratings are the published ones (dpmf data check); "
            f"{first['ratings']['name']} has {first['ratings']['count']} ratings here"
        ),
    )


def _render_list(listings: Sequence[Listing]) -> Any:
    from rich.table import Table

    table = Table(
        title="dpmf reproduce FIGURE…",
        caption=" ".join(
            (
                *(note for listing in listings for note in listing.notes),
                "Figures share runs; an interrupted call goes on. --data-dir says where the data"
                " sets are.",
            )
        ),
    )
    for heading in ("figure", "what", "data", "small scale", "full scale"):
        table.add_column(
            heading,
            justify="right" if heading.endswith("scale") else "left",
            no_wrap=heading not in ("what", "data"),
        )
    for listing in listings:
        for line in listing.lines:
            table.add_row(*line)
        table.add_section()
    return table


def _render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group

    of = {name: paper for paper in PAPERS for name in paper.catalogue.figures}
    shown = []
    for record in result["figures"]:
        paper = of[record["figure"]]
        figure = paper.catalogue.figures[record["figure"]]
        shown += [
            *paper.programs().render(record, figure),
            "\n".join(f"wrote {file}" for file in record["files"]),
            "",
        ]
    for paper in PAPERS:
        if paper.claims_key in result:
            shown += _render_claims(result[paper.claims_key])
    return Group(*shown)


def _render_claims(record: Mapping[str, Any]) -> list[Any]:
    from rich.table import Table

    from experiments.reproduce.claims import count_verdicts

    table = Table(title=f"{record['claims']} ({record['notice']})", show_lines=True)
    for heading in ("statement, in our words", "verdict", "measured, and why"):
        table.add_column(heading, ratio={"verdict": None, "measured, and why": 3}.get(heading, 2))
    for row in record["rows"]:
        parts = [row["value"], row["why"], f"[dim]how: {row['how']}[/dim]"]
        table.add_row(
            f"{row['statement']} ({row['where']})",
            row["verdict"],
            "\n".join(part for part in parts if part),
        )
    lines = [count_verdicts(record), *([record["beside"]] if record["beside"] else [])]
    return [table, "\n".join([*lines, *(f"wrote {file}" for file in record["files"])])]
