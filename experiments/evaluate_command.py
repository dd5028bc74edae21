"""`dpmf evaluate`: errors and ranking of a saved model on ratings it was not fitted with. Unpriced, for the curator."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from experiments import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """RMSE, MAE, NDCG@k and recall@k over all unseen items; for the curator's eyes, the numbers are not priced."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder that `dpmf fit` wrote."""
    data: str
    """Ratings to evaluate on: a file, or a data set that `dpmf data list` knows."""
    top: int = 10
    """k of the ranking metrics."""
    split: str | None = None
    """Evaluate on the test side of this official split of the data set."""
    data_dir: Path | None = None
    """Where the data sets are; else the environment's DPMF_DATA."""
    user_column: str | None = None
    """Column of the user ids in your own file."""
    item_column: str | None = None
    """Column of the item ids."""
    rating_column: str | None = None
    """Column of the ratings."""
    delimiter: str | None = None
    """Between the columns of a text file."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    from dpmf_jax import datasets, load_model, metrics

    model = load_model(command.model)
    known = command.data in datasets.DATASETS
    loaded = datasets.load(
        command.data,
        data_dir=command.data_dir,
        split=command.split,
        rating_range=None if known else model.rating_range,
        user_column=command.user_column,
        item_column=command.item_column,
        rating_column=command.rating_column,
        delimiter=command.delimiter,
    )
    ratings = loaded[1] if isinstance(loaded, tuple) else loaded
    result = {
        "data": ratings.name,
        **model.evaluate(ratings, k=command.top),
        "definitions": dict(metrics.DEFINITIONS),
        "guarantee": model.guarantee.headline,
        "note": "for the curator: these numbers are computed from the ratings and are not priced",
    }
    console.emit(result, json=command.json, render=render)


def render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table(title=f"on {result['data']}")
    table.add_column("")
    table.add_column("", justify="right")
    for name in ("rmse", "mae", "ndcg_at_k", "recall_at_k"):
        value = result[name]
        table.add_row(name.replace("_k", f"_{result['k']}"), "-" if value is None else f"{value:.4f}")
    for name in ("ratings", "users_evaluated", "users_left_out", "unknown"):
        table.add_row(name.replace("_", " "), f"{result[name]:,}")
    return Group(
        table,
        result["note"],
        f"model: {result['guarantee']}",
        *(f"{name}: {meaning}" for name, meaning in result["definitions"].items()),
    )
