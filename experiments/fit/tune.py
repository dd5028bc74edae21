"""`dpmf tune`: several settings, of which the best by a noisy score is released, at one price."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms import table
from experiments.cli import console, devices
from experiments.cli.reading import RepairFlags
from experiments.fit import mechanisms as fit_mechanisms
from experiments.fit import report
from experiments.fit.command import enter, new_folder
from experiments.fit.flags import MechanismFlag, public_file

EPSILON = 4.0  # of a mechanism that has no default


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(RepairFlags, MechanismFlag):
    """Fit several settings, release the best by a noisy score, and price all of it at once.

    A random number of runs is fitted, each with settings drawn from the candidates. How many runs
    there were stays secret, and so do those that are not the best: keep what this command takes of
    time, and what it says meanwhile, to yourself.
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """A data set that `dpmf data list` knows, or a file of ratings."""
    candidates: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE,VALUE")]
    """Settings of the mechanism and the values to try, such as rank=0,3,5 steps=4,8; all
    combinations are tried.
    """
    runs: float = 5.0
    """How many runs there are on average."""
    shape: float = 0.0
    """Of the law of their number, from 0 (logarithmic, the cheapest) to 1 (geometric)."""
    score_share: float = 0.1
    """Part of what a run spends that its score takes."""
    holdout: float = 0.1
    """Share of the ratings that runs are scored on, and that none fits."""
    seed: int | None = None
    """Seed of an experiment, whose model must not be released. [secret keys]"""
    out: Path | None = None
    """Folder of the model, which must be new. [one in runs/]"""
    population: str | None = None
    """Name of the people whose ratings these are, see dpmf budget show --help. [the data set's
    name]
    """
    catalogue_users: Path | None = None
    """File with the id of every possible user, one a line. Required where the guarantee hides who
    rated what. [the users who rate]
    """
    catalogue_items: Path | None = None
    """File with the id of every possible item, likewise."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    console.emit(tuned(command), json=command.json, render=render)


def tuned(command: Any) -> dict[str, Any]:
    """The result of `dpmf tune`, not printed; its keys are those of --json."""
    candidates = parsed(command.candidates)
    devices.use(None)
    import dpmf_jax

    flags = fit_mechanisms.chosen(command)
    given = {
        field.name: getattr(flags, field.name)
        for field in dataclasses.fields(flags)
        if getattr(flags, field.name) != field.default and field.name != "epsilon"
    }
    if (public := public_file(command)) is not None:
        given[str(table()[command.mechanism].public)] = public
    epsilon = getattr(flags, "epsilon", None)
    usual = table()[command.mechanism].defaults.get("epsilon", EPSILON)
    out = command.out or new_folder(command.data, command.mechanism)
    try:
        model = dpmf_jax.tune(
            command.data,
            command.mechanism,
            candidates,
            epsilon=usual if epsilon is None else epsilon,
            out=out,
            report=console.say,
            **{
                name: getattr(command, name)
                for name in (
                    *("runs", "shape", "score_share", "holdout", "seed", "population"),
                    *("catalogue_users", "catalogue_items"),
                )
            },
            **given,
            **command.reading(),
        )
    except KeyboardInterrupt:
        raise console.Interrupted("dpmf tune again: nothing was released") from None
    guarantee = model.guarantee
    return {
        "data": command.data,
        "mechanism": command.mechanism,
        "tuned": model.settings["tuned"],
        "guarantee": guarantee.to_dict()
        | {"statement": guarantee.statement, "accountants": dict(guarantee.accountants)},
        "settings": dict(model.settings),
        "out": str(out),
        "ledger": enter(out, model, str(command.data)),
    }


def parsed(texts: Sequence[str]) -> dict[str, list[Any]]:
    """{"rank": [0, 3, 5]} of "rank=0,3,5".

    Raises: UsageError for text of another shape, and for a setting that is named twice.
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not (name and sign and values):
            raise UsageError(f"{text} names no values to try", fix="--candidates rank=0,3,5")
        if name in found:
            raise UsageError(f"{name} is named twice", fix="name all its values at once")
        found[name] = [_value(value.strip()) for value in values.split(",")]
    return found


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return text


def render(result: Mapping[str, Any]) -> Any:
    tuned = result["tuned"]
    chosen = ", ".join(f"{name} {value}" for name, value in tuned["chosen"].items())
    among = f"of {len(tuned['candidates'])} settings, by the score of its run, {tuned['score']:.4f}"
    return "\n".join(
        (
            result["guarantee"]["statement"],
            "",
            f"chosen and released: {chosen}, {among}",
            "the score is a mean of squared errors per user, with noise; the smaller the better",
            *report.saved(result),
        )
    )
