"""`dpmf benchmark add`: results of others, checked and kept beside ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from experiments.benchmark.protocol import SUBMISSIONS
from experiments.cli import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Check results for the benchmark, and keep them beside the others.

    Nothing of them is computed here. A price stands as stated by its author where the privacy
    statement is there, and else as claimed.
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """JSON of the schema that docs/benchmark/schema.json has."""
    to: Path = SUBMISSIONS
    """Folder of the submissions."""
    replace: bool = False
    """Replace an earlier submission of that name."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    from experiments.benchmark import submissions

    added = submissions.add(command.file, command.to, replace=command.replace)
    console.emit(added, json=command.json, render=render)


def render(result: Mapping[str, Any]) -> Any:
    rows = result["rows"]
    return "\n".join(
        [
            f"{result['name']}: {len(rows)} results are in {result['kept']}",
            *(
                f"{row['data']}, {row['split']}: "
                + (
                    "no privacy"
                    if row["promise"] is None
                    else f"ε = {row['epsilon']:g}, {row['promise']['status']}"
                )
                for row in rows
            ),
            "dpmf benchmark writes the pages anew",
        ]
    )
