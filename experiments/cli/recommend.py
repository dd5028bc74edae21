"""`dpmf recommend`: the best unseen items for users of a saved model."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dpmf_jax.errors import UsageError
from experiments.cli import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """The items of highest predicted rating that users have not rated in training."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder that `dpmf fit` wrote."""
    user: tyro.conf.UseAppendAction[
        Annotated[tuple[tuple[str, ...], ...], tyro.conf.arg(metavar="ID [ID ...]")]
    ]
    """Raw ids of users; can be given several times."""
    top: int = 10
    """Number of items for each user."""
    include_seen: bool = False
    """Recommend items too that a user rated in training; needs no private/seen.safetensors."""
    format: Literal["table", "csv"] = "table"
    """How to print the items."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    from dpmf_jax import load_model

    users = [user for some in command.user for user in some]
    if not users:
        raise UsageError("no user is named", where="--user", fix="give one --user or more")
    model = load_model(command.model)
    table = model.recommend(users, command.top, include_seen=command.include_seen)
    rows = table.drop_columns("user").to_pylist()
    result: dict[str, Any] = {"guarantee": model.guarantee.headline, "note": NOTE}
    if len(users) == 1:
        result = {"user": users[0], "recommended": rows, **result}
    else:
        rows = [
            {"user": user, **row} for user, row in zip(table["user"].to_pylist(), rows, strict=True)
        ]
        result = {"users": users, "recommended": rows, **result, "note": NOTE_OF_SEVERAL}
    console.emit(result, json=command.json, render=as_csv if command.format == "csv" else as_table)


NOTE = (
    "a list for this user alone: it may use private factors and ratings, which the guarantee does"
    " not cover"
)
NOTE_OF_SEVERAL = NOTE.replace("a list for this user alone", "each list is for its user alone")


def as_csv(result: Mapping[str, Any]) -> str:
    text = io.StringIO()
    names = (
        ("item", "predicted_rating") if "user" in result else ("user", "item", "predicted_rating")
    )
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(result["recommended"])
    return text.getvalue().rstrip("\n")


def as_table(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    single = "user" in result
    table = Table(
        title=f"for user {result['user']}" if single else f"for {len(result['users'])} users"
    )
    for name in ("item",) if single else ("user", "item"):
        table.add_column(name)
    table.add_column("predicted rating", justify="right")
    for row in result["recommended"]:
        *ids, rating = row.values()
        table.add_row(*map(str, ids), f"{rating:.3f}")
    return Group(table, f"model: {result['guarantee']}", result["note"])
