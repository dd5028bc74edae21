"""`002/budget`: what `budget` compares at equal ε, kept as a whole."""

from __future__ import annotations

from pathlib import Path

from experiments.cli import console
from experiments.reproduce import store
from experiments.reproduce.comparison import row_from
from experiments.reproduce.page import Outcome
from experiments.reproduce.paper import Say
from experiments.reproduce.paper002 import budget
from experiments.reproduce.paper002.runs import Data

SETTINGS = (
    "EPSILONS",
    "DELTA",
    "UNIT",
    "GAINS",
    "DEPTH",
    "STEPS",
    "JOINT_STEPS",
    "SAFE",
    "STAGES",
    "COLD",
)


def run(data: Data, folder: Path, seeds: tuple[int, ...], say: Say) -> Outcome:
    """Compares what is not stored yet."""
    settings = {name: getattr(budget, name) for name in SETTINGS}
    settings |= {"methods": list(budget.METHODS), "seeds": seeds, "ratings": data.digest}
    kept = store.read(folder, "sketch-budget", settings, label="asked")
    if kept is None:
        outcome = budget.compare(data.ratings, seeds, say)
        found = {
            "rows": outcome.rows,
            "settings": outcome.settings,
            **outcome.more,
            "notes": outcome.notes,
        }
        kept = {"found": console.plain(found)}
        store.write(folder, "sketch-budget", settings, kept, label="asked")
    found = kept["found"]
    more = {"intervals": [], "searches": found["searches"]}
    return Outcome(
        [row_from(row) for row in found["rows"]], found["settings"], found["notes"], more
    )
