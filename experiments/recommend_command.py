"""`dpmf recommend`: the best unseen items for one user of a saved model."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from experiments import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """The items of highest predicted rating that a user has not rated in training."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder that `dpmf fit` wrote."""
    user: str
    """The user's raw id."""
    top: int = 10
    """How many items."""
    include_seen: bool = False
    """Also items that the user rated in training; needs no private/seen.safetensors."""
    format: Literal["table", "csv"] = "table"
    """How to print them; --json prints one object."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    from dpmf_jax import load_model

    model = load_model(command.model)
    found = model.recommend(command.user, command.top, include_seen=command.include_seen)
    result = {
        "user": command.user,
        "recommended": [{"item": item, "predicted_rating": rating} for item, rating in found],
        "guarantee": model.guarantee.headline,
        "note": NOTE,
    }
    console.emit(result, json=command.json, render=as_csv if command.format == "csv" else as_table)


NOTE = "a list for this user alone: it may use private factors and ratings, which the guarantee does not cover"


def as_csv(result: Mapping[str, Any]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ("item", "predicted_rating"), lineterminator="\n")
    writer.writeheader()
    writer.writerows(result["recommended"])
    return text.getvalue().rstrip("\n")


def as_table(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table(title=f"for user {result['user']}")
    table.add_column("item")
    table.add_column("predicted rating", justify="right")
    for row in result["recommended"]:
        table.add_row(str(row["item"]), f"{row['predicted_rating']:.3f}")
    return Group(table, f"model: {result['guarantee']}", result["note"])
