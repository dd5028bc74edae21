"""`002/budget`: what `sketch_budget` compares at equal ε, kept as a whole under `private/`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpmf_jax.models import storage
from experiments.cli import console
from experiments.reproduce.comparison import Row
from experiments.reproduce.paper002 import budget as sketch_budget
from experiments.reproduce.paper002.runs import Data

ASKED = (
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


def run(
    data: Data, store: Path, seeds: tuple[int, ...], say: Callable[[str], None]
) -> tuple[list[Row], list[dict[str, Any]], dict[str, dict[str, Any]], list[str]]:
    """(rows, settings, searches, notes); compares what is not stored yet."""
    asked = {name: getattr(sketch_budget, name) for name in ASKED}
    asked |= {"methods": list(sketch_budget.METHODS), "seeds": seeds, "ratings": data.digest}
    asked = json.loads(json.dumps(asked))
    name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    path = storage.private_folder(store) / f"sketch-budget-{name}.json"
    if not path.exists() or storage.read_json(path)["asked"] != asked:
        found = sketch_budget.compare(data.ratings, seeds, say)
        storage.write_json(path, console.plain({"asked": asked, "found": found}), private=True)
    kept = storage.read_json(path)["found"]
    return [row(one) for one in kept["rows"]], kept["settings"], kept["searches"], kept["notes"]


def row(one: Mapping[str, Any]) -> Row:
    """Of a row as json has it."""
    read: dict[str, Callable[[Any], Any]] = {
        "x": float,
        "value": float,
        "values": lambda values: tuple(float(value) for value in values),
    }
    return Row._make(read.get(name, lambda value: value)(one[name]) for name in Row._fields)
