"""`dpmf evaluate`: errors and rankings of saved models on ratings they were not fitted with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from dpmf_jax.errors import UsageError
from experiments.cli import console
from experiments.cli.reading import RepairFlags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(RepairFlags):
    """RMSE, MAE, NDCG@k and recall@k over all unseen items, with intervals over users.

    Of several models, a table with one beside the other. For the curator: the numbers are computed
    from the ratings, and no guarantee covers them.
    """

    model: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="MODEL"),
    ]
    """Folders that `dpmf fit` wrote."""
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
    from dpmf_jax.models import evaluation

    if not command.model:
        raise UsageError("no model is named", fix="dpmf evaluate MODEL --data DATA")
    found = [_measured(command, folder) for folder in command.model]
    shared = {
        "definitions": evaluation.DEFINITIONS,
        "note": "for the curator: these numbers are computed from the ratings and are not priced",
    }
    one = {**found[0]} if len(found) == 1 else {"data": found[0]["data"], "models": found}
    console.emit(one | shared, json=command.json, render=render)


def _measured(command: Command, folder: Path) -> dict[str, Any]:
    from dpmf_jax import load_model
    from dpmf_jax.data import datasets

    model = load_model(folder)
    reading = command.reading()
    if model.implicit:
        reading["implicit"] = True
    elif command.data not in datasets.DATASETS:
        reading["rating_range"] = command.rating_range or model.rating_range
    loaded = datasets.load(command.data, split=command.split, **reading)
    ratings = loaded[1] if isinstance(loaded, tuple) else loaded
    measured = model.evaluate(ratings, k=command.top)
    return {
        "data": ratings.name,
        "model": str(folder),
        **measured,
        "warning": _warning(measured),
        "guarantee": model.guarantee.headline,
    }


def _warning(measured: Mapping[str, Any]) -> str | None:
    """What a reader must know of the ratings that the model was fitted with."""
    seen, unseen = measured["seen"], measured["unseen"]
    if seen is None:
        return (
            "warning: without private/seen.safetensors nobody can tell which ratings the model was"
            " fitted with: any errors are of all of them, and nothing is ranked"
        )
    if not seen:
        return None
    if measured["rmse"] is None and unseen:
        return f"warning: the model was fitted with {seen:,} of these; the other {unseen:,} count"
    if not unseen:
        return f"warning: the model was fitted with all {seen:,} ratings: nothing here is unseen"
    return (
        f"warning: the model was fitted with {seen:,} of these ratings; rmse and mae are of the"
        f" other {unseen:,}"
    )


def render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    models = result.get("models", [result])
    table = Table(title=f"on {result['data']}")
    table.add_column("")
    for one in models:
        table.add_column(one["model"] if len(models) > 1 else "", justify="right")
    again = ("rmse_seen", "mae_seen") if any(one["seen"] for one in models) else ()
    rows = ("rmse", "mae", *again, "ndcg_at_k", "recall_at_k", "popularity_ndcg_at_k")
    for name in (*rows, "ndcg_at_k_gain"):
        if all(one[name] is None for one in models):
            continue
        table.add_row(
            name.replace("_k", f"_{models[0]['k']}").replace("_gain", " over popularity"),
            *(_number(one, name) for one in models),
        )
    counts = ("unseen", "seen") if again else ()
    for name in ("ratings", *counts, "users_evaluated", "users_left_out", "unknown"):
        table.add_row(
            name.replace("_", " "),
            *("-" if one[name] is None else f"{one[name]:,}" for one in models),
        )
    named = len(models) > 1
    return Group(
        table,
        "± is half the interval over users, at 95%",
        *(
            f"{one['model']}: {one['warning']}" if named else one["warning"]
            for one in models
            if one["warning"]
        ),
        result["note"],
        *(f"{one['model'] if named else 'model'}: {one['guarantee']}" for one in models),
        *(f"{name}: {meaning}" for name, meaning in result["definitions"].items()),
    )


def _number(found: Mapping[str, Any], name: str) -> str:
    value, low, high = (found.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return "-"
    return f"{value:.4f}" + ("" if low is None else f" ± {(high - low) / 2:.4f}")
