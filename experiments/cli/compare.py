"""`dpmf compare`: several mechanisms on the same splits of the ratings, beside popularity."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import tyro

from dpmf_jax.errors import UsageError
from experiments.cli import console
from experiments.cli.reading import RepairFlags

ERRORS = ("rmse", "ndcg_at_k", "recall_at_k")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(RepairFlags):
    """Fit several mechanisms on the same splits, and print their errors beside each other.

    Every rating is held out once, or of each user the last. Intervals are over users. For the
    curator: the numbers are computed from the ratings, no guarantee covers them, and every model
    has a seed.
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Ratings: a file, or a data set that `dpmf data list` knows."""
    mechanism: tuple[str, ...] = ("als", "means")
    """Names of mechanisms, as `dpmf fit --help` lists them; each has its own defaults."""
    epsilon: tuple[float, ...] = ()
    """Fit every mechanism at each of these. [the mechanism's default]"""
    holdout: Literal["ratings", "last"] = "ratings"
    """What is held out: each of --folds random parts of the ratings, or each user's last rating."""
    folds: int = 5
    """Parts of the ratings; each is held out once."""
    time_column: str | None = None
    """Column of the times, for --holdout last: name, or position from 1. [found]"""
    top: int = 10
    """k of the ranking metrics, a number of items."""
    beside: tuple[str, ...] = ("simple",)
    """Controls without privacy: names, or "simple", "all" or "none"."""
    seed: int = 0
    """Seed of the folds and of the noise."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    console.emit(compared(command), json=command.json, render=render)


def compared(command: Command) -> dict[str, Any]:
    """What `dpmf_jax.cross_validate` says; its keys are the command's JSON interface.

    Raises: UsageError for an ε that is not above 0; what `dpmf_jax.cross_validate` raises.
    """
    import dpmf_jax

    if wrong := [one for one in command.epsilon if not one > 0]:
        raise UsageError(f"--epsilon must be above 0; got {wrong[0]:g}", fix="--epsilon 1 4")
    asked: dict[str, dict[str, Any]] = {name: {} for name in command.mechanism}
    if command.epsilon:
        asked = {
            f"{name}, ε = {epsilon:g}": {"mechanism": name, "epsilon": epsilon}
            for name in command.mechanism
            for epsilon in command.epsilon
        }
    groups = len(command.beside) == 1 and command.beside[0] in ("simple", "all", "none")
    try:
        return dpmf_jax.cross_validate(
            command.data,
            asked,
            holdout=command.holdout,
            time_column=command.time_column,
            folds=command.folds,
            k=command.top,
            seed=command.seed,
            beside=command.beside[0] if groups else command.beside,
            report=console.say,
            **command.reading(),
        )
    except KeyboardInterrupt:
        raise console.Interrupted(f"dpmf compare {command.data}") from None


def render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    number = result["splits"]
    how = f"{number} folds" if result["holdout"] == "ratings" else "the last rating of each user"
    table = Table(title=f"{result['data']}: {how}")
    for heading in ("", "unit", "status"):
        table.add_column(heading)
    for heading in ("ε", *(name.replace("_k", f"_{result['k']}") for name in ERRORS)):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("over popularity", justify="right", no_wrap=True)
    for row in result["rows"]:
        promise = (row["unit"], row["status"]) if row["mechanism"] else ("", "no privacy")
        table.add_row(
            *(row["label"], *promise, _price(row["epsilon"])),
            *(_interval(row, name) for name in (*ERRORS, "ndcg_at_k_gain")),
        )
    return Group(
        table,
        "± is half the interval over users, at 95%; over popularity: NDCG less popularity's, same"
        " users",
        result["note"],
    )


def _price(epsilon: float | str | None) -> str:
    """ε, rounded up."""
    if epsilon is None or epsilon == "inf":
        return "" if epsilon is None else "∞"
    return f"{math.ceil(float(epsilon) * 1e3 - 1e-9) / 1e3:g}"


def _interval(row: Mapping[str, Any], name: str) -> str:
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    if value is None:
        return "-"
    sign = "+" if name.endswith("gain") else ""
    return f"{value:{sign}.4f}" + ("" if low is None else f" ± {(high - low) / 2:.4f}")
