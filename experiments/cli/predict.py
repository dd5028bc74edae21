"""`dpmf predict`: ratings for pairs of user and item by a saved model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from dpmf_jax.errors import UsageError
from experiments.cli import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Predict ratings; --user and --item can each name several ids, pair by pair."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder that `dpmf fit` wrote."""
    user: tuple[str, ...]
    """Raw ids of users."""
    item: tuple[str, ...]
    """Raw ids of items, as many as users."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    from dpmf_jax import load_model

    if len(command.user) != len(command.item):
        raise UsageError(
            f"{len(command.user)} users and {len(command.item)} items",
            fix="give one --item for each --user",
        )
    model = load_model(command.model)
    predicted = model.predict(command.user, command.item)
    rows = zip(command.user, command.item, predicted.tolist(), strict=True)
    result = {
        "predicted": [
            {"user": user, "item": item, "rating": rating} for user, item, rating in rows
        ],
        "rating_range": list(model.rating_range),
        "guarantee": model.guarantee.headline,
        "note": "these may use private factors, which the guarantee does not cover",
    }
    console.emit(result, json=command.json, render=render)


def render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table()
    for name in ("user", "item", "predicted rating"):
        table.add_column(name, justify="right" if name.startswith("predicted") else "left")
    for row in result["predicted"]:
        table.add_row(row["user"], row["item"], f"{row['rating']:.3f}")
    return Group(table, f"model: {result['guarantee']}", result["note"])
