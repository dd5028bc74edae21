"""`dpmf evaluate`: errors and ranking of a saved model on ratings it was not fitted with. Unpriced,
for the curator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from experiments.cli import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """RMSE, MAE, NDCG@k and recall@k over all unseen items; for the curator's eyes, the numbers are
    not priced.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder that `dpmf fit` wrote."""
    data: str
    """Ratings to evaluate on: a file, or a data set that `dpmf data list` knows."""
    top: int = 10
    """k of the ranking metrics."""
    split: str | None = None
    """Evaluate on the test side of this official split of the data set."""
    rating_range: tuple[float, float] | None = None
    """Lowest and highest rating of your own file; else the model's."""
    duplicates: Literal["refuse", "first", "last", "mean"] = "refuse"
    """What to do with two ratings of one item by one user."""
    out_of_range: Literal["refuse", "drop", "clip"] = "refuse"
    """What to do with a rating outside the declared range."""
    data_dir: Path | None = None
    """Where the data sets are; else the environment's DPMF_DATA."""
    user_column: str | None = None
    """Column of the user ids in your own file, by name or position (1 is the first; digits are
    always a position).
    """
    item_column: str | None = None
    """Column of the item ids, by name or position."""
    rating_column: str | None = None
    """Column of the ratings, by name or position."""
    delimiter: str | None = None
    """Between the columns of a text file."""
    no_header: bool = False
    """The first line holds ratings, no header. Columns are user, item, rating in this order, or as
    positions say.
    """
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    from dpmf_jax import load_model
    from dpmf_jax.data import datasets
    from dpmf_jax.models import metrics

    model = load_model(command.model)
    known = command.data in datasets.DATASETS
    loaded = datasets.load(
        command.data,
        data_dir=command.data_dir,
        split=command.split,
        rating_range=command.rating_range or (None if known else model.rating_range),
        duplicates=command.duplicates,
        out_of_range=command.out_of_range,
        user_column=command.user_column,
        item_column=command.item_column,
        rating_column=command.rating_column,
        delimiter=command.delimiter,
        no_header=command.no_header,
    )
    ratings = loaded[1] if isinstance(loaded, tuple) else loaded
    measured = model.evaluate(ratings, k=command.top)
    result = {
        "data": ratings.name,
        **measured,
        "warning": _warning(measured),
        "definitions": dict(metrics.DEFINITIONS),
        "guarantee": model.guarantee.headline,
        "note": "for the curator: these numbers are computed from the ratings and are not priced",
    }
    console.emit(result, json=command.json, render=render)


def _warning(measured: Mapping[str, Any]) -> str | None:
    """What a reader of the numbers must know of the ratings that the model was fitted with."""
    seen, unseen = measured["seen"], measured["unseen"]
    if seen is None:
        return (
            "warning: without private/seen.safetensors nobody can tell which ratings the model was"
            " fitted with: rmse and mae are of all of them, and nothing is ranked"
        )
    if not seen:
        return None
    if not unseen:
        return f"warning: the model was fitted with all {seen:,} ratings: nothing here is unseen"
    return (
        f"warning: the model was fitted with {seen:,} of these ratings; rmse and mae are of the"
        f" other {unseen:,}"
    )


def render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table(title=f"on {result['data']}")
    table.add_column("")
    table.add_column("", justify="right")
    again = ("rmse_seen", "mae_seen") if result["seen"] else ()
    for name in ("rmse", "mae", *again, "ndcg_at_k", "recall_at_k"):
        value = result[name]
        table.add_row(
            name.replace("_k", f"_{result['k']}"), "-" if value is None else f"{value:.4f}"
        )
    counts = ("unseen", "seen") if result["seen"] else ()
    for name in ("ratings", *counts, "users_evaluated", "users_left_out", "unknown"):
        table.add_row(name.replace("_", " "), "-" if result[name] is None else f"{result[name]:,}")
    return Group(
        table,
        *filter(None, [result["warning"]]),
        result["note"],
        f"model: {result['guarantee']}",
        *(f"{name}: {meaning}" for name, meaning in result["definitions"].items()),
    )
