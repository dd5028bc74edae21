"""``dpmf budget show | add``: what all releases about the same people cost together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from accounting.ledger import COVERS, Budget, budgets, overlaps
from dpmf_jax.errors import DataError, PrivacyError, usage_errors
from dpmf_jax.models.ledger import ledger_path, read, record
from experiments.cli import budget_report, console


@dataclass(frozen=True, kw_only=True)
class Show:
    """Print what was released about each population, and what it costs together.

    A population has the name that fit --population gave, or else that of its data set. All its
    releases add up, whatever ratings they are of. Populations whose user ids overlap probably hold
    the same people, for whom both add up. The ledger does not know of people under other ids, nor
    of releases that were entered elsewhere, never, or in a ledger that was deleted. Exits with 4 if
    a total is above --limit, also that of people in several populations, or if releases do not add
    up to one total. The ledger is the curator's.
    """

    population: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="POPULATION")] = (
        None
    )
    """Name of a population or of its data set, or hash of its ratings. [all populations]"""
    different_people: bool = False
    """Look for no overlap: equal user ids in two populations are different people, as where each
    numbers its users from 1.
    """
    limit: float | None = None
    """The largest acceptable total epsilon. [no limit]"""
    delta: float | None = None
    """Delta of the totals. [the largest delta of the releases that are added up]"""
    ledger: Path | None = None
    """File of the ledger. [the environment variable DPMF_LEDGER, or dpmf/ledger.jsonl in the
    user's data folder]
    """
    json: bool = False
    """Print one JSON object on stdout."""


@dataclass(frozen=True, kw_only=True)
class Add:
    """Enter the release of a saved model in the ledger.

    Refuses a seeded experiment, a model that releases nothing, and a release that is in the ledger.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder of the model."""
    data_set: str | None = None
    """Name of the data set it was fitted on. [the name that the model has]"""
    population: str | None = None
    """Name of the people whose ratings they are. [that of fit --population, or the data set's]"""
    ledger: Path | None = None
    """File of the ledger. [the environment variable DPMF_LEDGER, or dpmf/ledger.jsonl in the
    user's data folder]
    """
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Show | Add) -> int | None:
    match command:
        case Show():
            return _show(command)
        case Add():
            return _add(command)


def _show(command: Show) -> int | None:
    if command.limit is not None and not 0 <= command.limit < math.inf:
        console.refuse(
            f"a limit of {command.limit}",
            where="--limit",
            fix="give a number of at least 0, such as 3",
        )
    path = ledger_path(command.ledger)
    entries = read(path)
    if command.ledger is not None and not path.exists():
        raise DataError(
            "there is no such ledger",
            where=str(path),
            fix="mind the name, or enter a release first",
        )
    with usage_errors(
        where=str(path), fix="give another --delta, larger for (epsilon, delta) releases"
    ):
        found = budgets(entries, delta=command.delta)
        met = () if command.different_people else overlaps(entries, delta=command.delta)
    if command.population is not None:
        found = _of_population(command.population, found, path)
        met = tuple(
            overlap
            for overlap in met
            if any(set(budget.names) <= set(overlap.names) for budget in found)
        )
    totals = [*found, *(overlap.together for overlap in met)]
    result: dict[str, Any] = {
        "ledger": str(path),
        "limit": command.limit,
        "within_limit": (
            command.limit is None or all(budget.epsilon <= command.limit for budget in totals)
        ),
        "data_sets": [budget_report.budget_values(budget) for budget in found],
        "overlaps": [budget_report.overlap_values(overlap) for overlap in met],
        "covers": list(COVERS),
    }
    console.emit(result, json=command.json, render=budget_report.render_show)
    if result["within_limit"]:
        return None
    assert command.limit is not None
    beyond = [(", ".join(budget.names), budget) for budget in found]
    beyond += [
        (f"{' and '.join(one.names)}, where the same people probably are", one.together)
        for one in met
    ]
    console.print_error(
        "; ".join(
            budget_report.excess(who, budget, command.limit)
            for who, budget in beyond
            if not budget.epsilon <= command.limit
        ),
        where=str(path),
        fix="release nothing more about these people; what is out cannot be taken back",
    )
    return PrivacyError.exit_code


def _add(command: Add) -> None:
    entry = record(
        command.model,
        data_set=command.data_set,
        population=command.population,
        ledger=command.ledger,
    )
    result = {
        "ledger": str(ledger_path(command.ledger)),
        "entry": budget_report.entry_values(entry),
    }
    console.emit(result, json=command.json, render=budget_report.render_add)


def _of_population(wanted: str, found: Sequence[Budget], path: Path) -> tuple[Budget, ...]:
    """The budgets of one population, data set or hash of ratings.

    Raises: DataError where the ledger has no release of it.
    """
    chosen = tuple(
        b
        for b in found
        if wanted
        in {
            *b.names,
            *(name for one in b.entries for name in (one.data_set, one.data_hash)),
        }
    )
    if chosen:
        return chosen
    known = ", ".join(name for budget in found for name in budget.names)
    raise DataError(
        f"no release of {wanted} is in the ledger",
        where=str(path),
        fix=f"one of: {known}" if known else "enter one: dpmf budget add MODEL",
    )
