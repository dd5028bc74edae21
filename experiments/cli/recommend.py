"""`dpmf recommend`: the best unseen items for users of a saved model, and for new ones."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from dpmf_jax.errors import UsageError
from experiments.cli import console
from experiments.cli.reading import RowFlags

if TYPE_CHECKING:
    from dpmf_jax.models.model import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(RowFlags):
    """The items of highest predicted rating that users have not rated.

    --user names users of the training data. --ratings is for users who were never in it: their
    lists follow from the file and from the released part of the model, and nothing of the file is
    kept.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder that `dpmf fit` wrote."""
    user: tyro.conf.UseAppendAction[
        Annotated[tuple[tuple[str, ...], ...], tyro.conf.arg(metavar="ID [ID ...]")]
    ] = ()
    """Raw ids of users; can be given several times."""
    ratings: Path | None = None
    """File of new users' ratings, with columns item and rating (one user) or user, item and rating;
    for a model of `als`, `means` or `ridge`. For one of `als-implicit`: item, or user and item.
    Needs no private/.
    """
    weight_column: str | None = None
    """Column of how much each rating counts, likewise. [all count alike]"""
    ignore_unknown: bool = False
    """Leave out ratings of items that the model does not know."""
    top: int = 10
    """Number of items for each user."""
    include_seen: bool = False
    """Recommend items too that a user rated in training or in --ratings; needs no
    private/seen.safetensors.
    """
    format: Literal["table", "csv"] = "table"
    """How to print the items."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    from dpmf_jax import load_model

    named = [user for some in command.user for user in some]
    if named and command.ratings:
        raise UsageError(
            "--user names users of the training data, and --ratings new ones",
            where="--user, --ratings",
            fix="give one of them",
        )
    if command.ratings:
        model = load_model(command.model)
        users, table, left_out = _for_new_users(model, command.ratings, command)
    else:
        _refuse_without_ratings(command, named)
        model = load_model(command.model)
        users, left_out = named, None
        table = model.recommend(users, command.top, include_seen=command.include_seen)
    rows = table.drop_columns("user").to_pylist()
    note = NOTE if left_out is None else NOTE_OF_NEW
    result: dict[str, Any] = {"guarantee": model.guarantee.headline, "note": note}
    result["scale"] = table.column_names[-1]
    if left_out is not None:
        result["left_out"] = left_out
    if len(users) == 1:
        result = {"user": users[0], "recommended": rows, **result}
    else:
        rows = [
            {"user": user, **row} for user, row in zip(table["user"].to_pylist(), rows, strict=True)
        ]
        result = {"users": users, "recommended": rows, **result}
        result["note"] = note.replace("a list for this user", "each list is for its user")
    if left_out and not command.json:
        console.say(f"{left_out:,} ratings left out: the model does not know their items")
    if command.format == "csv" and not command.json:  # a file of rows has no place for it
        console.say(f"model: {result['guarantee']}")
        console.say(result["note"])
    console.emit(result, json=command.json, render=as_csv if command.format == "csv" else as_table)


def _refuse_without_ratings(command: Command, named: list[str]) -> None:
    """Raises: UsageError where nobody is named, and for a flag that says how --ratings is read."""
    if not named:
        raise UsageError(
            "no user is named",
            where="--user",
            fix="give one --user or more, or --ratings FILE of new users",
        )
    stray = [
        f"--{field.name.replace('_', '-')}"
        for field in dataclasses.fields(Command)
        if field.name in (*command.reading(), "ignore_unknown", "weight_column")
        and getattr(command, field.name) != field.default
    ]
    if stray:
        raise UsageError(
            f"{', '.join(stray)} says how --ratings is read, and there is no --ratings",
            fix="leave it out, or give --ratings FILE",
        )


def _for_new_users(model: Model, path: Path, command: Command) -> tuple[list[Any], Any, int]:
    """(users, their lists as `Model.recommend` has them, ratings that are left out)."""
    from dpmf_jax.data import datasets
    from dpmf_jax.models.catalogue import positions

    ratings = datasets.load_new_users(
        path,
        rating_range=model.rating_range,
        implicit=model.implicit,
        weight_column=command.weight_column,
        **command.reading(),
    )
    table = model.recommend(
        ratings=ratings,
        k=command.top,
        include_seen=command.include_seen,
        ignore_unknown=command.ignore_unknown,
    )
    left_out = int((positions(model.items, ratings.items)[ratings.item] < 0).sum())
    return ratings.users.tolist(), table, left_out


NOTE = (
    "a list for this user alone: it may use private factors and ratings, which the guarantee does"
    " not cover"
)
NOTE_OF_NEW = (
    "a list for this user alone: it follows from the user's own ratings, which the guarantee does"
    " not cover"
)


def as_csv(result: Mapping[str, Any]) -> str:
    text = io.StringIO()
    names = ("item", result["scale"]) if "user" in result else ("user", "item", result["scale"])
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
    table.add_column(result["scale"].replace("_", " "), justify="right")
    for row in result["recommended"]:
        *ids, rating = row.values()
        table.add_row(*map(str, ids), f"{rating:.3f}")
    return Group(table, f"model: {result['guarantee']}", result["note"])
