"""`dpmf evaluate`: errors and ranking of a saved model on ratings it was not fitted with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from experiments.cli import console
from experiments.cli.reading import RepairFlags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(RepairFlags):
    """RMSE, MAE, NDCG@k and recall@k over all unseen items.

    For the curator: the numbers are computed from the ratings, and no guarantee covers them.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder that `dpmf fit` wrote."""
    data: str
    """Ratings to evaluate on: a file, or a data set that `dpmf data list` knows."""
    top: int = 10
    """k of the ranking metrics, a number of items."""
    split: str | None = None
    """Evaluate on the test part of this official split of the data set. [none]"""
    rating_range: tuple[float, float] | None = None
    """Lowest and highest rating of your own file. [the model's]"""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    from dpmf_jax import load_model
    from dpmf_jax.data import datasets
    from dpmf_jax.models import metrics

    model = load_model(command.model)
    reading = command.reading()
    if command.data not in datasets.DATASETS:
        reading["rating_range"] = command.rating_range or model.rating_range
    loaded = datasets.load(command.data, split=command.split, **reading)
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
    """What a reader must know of the ratings that the model was fitted with."""
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
