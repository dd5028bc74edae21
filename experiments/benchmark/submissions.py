"""Results of others in the benchmark: their file, what is checked of it, and what is not.

A submission is JSON of the schema in schema.json. Nothing of it is computed here, so its numbers
are its author's. Its price stands beside proved ones only as what it is: with the whole privacy
statement, "stated by its author"; without one, "claimed by its author".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpmf_jax.data.catalogue import DATASETS
from dpmf_jax.errors import DataError, UsageError
from dpmf_jax.models import storage
from experiments.benchmark.protocol import (
    GENERATED,
    GROUPS,
    REAL,
    SPLITS,
    SUBMISSIONS,
    TRUST,
    contenders,
)
from experiments.benchmark.scores import NUMBERS

VERSION = 1
CLAIMED, STATED = "claimed by its author", "stated by its author"
UNITS = ("rating value", "rating presence", "user")
NAME = r"^[\w .,:;()+'&/-]+$"  # nothing that a table of markdown would take for its own
TEXT = {"type": "string", "minLength": 1}
POSITIVE = {"type": "number", "exclusiveMinimum": 0}
SHARES = ("ndcg_at_10", "recall_at_20", "coverage_at_10", "popularity_at_10")


def _object(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a submission."""
    share = {"type": "number", "minimum": 0, "maximum": 1}
    number = {
        name: {
            "type": "array",
            "minItems": 1,
            "items": share if name in SHARES else {"type": "number", "minimum": 0},
            "description": "one value for each repeat",
        }
        for name in NUMBERS
    }
    error = {"type": ["number", "null"], "minimum": 0}
    promise = _object(
        {
            "epsilon": POSITIVE,
            "delta": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
            "unit": {"enum": list(UNITS)},
            "relation": {**TEXT, "description": "which two data sets count as neighbours"},
            "trust_model": {"enum": sorted(set(TRUST.values()))},
            "released": {"type": "array", "items": TEXT, "minItems": 1},
            "statement": {
                "type": ["string", "null"],
                "description": "the whole privacy statement: unit, relation, what is released,"
                " assumptions, and how ε was computed; null where there is none",
            },
        }
    )
    result = _object(
        {
            "data": {"enum": [*REAL, GENERATED]},
            "data_sha256": {
                "type": ["string", "null"],
                "description": "of the file, or of its triples; null of generated data",
            },
            "split": {"enum": list(SPLITS)},
            "seeds": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            "promise": {"anyOf": [promise, {"type": "null"}]},
            "settings": {"type": "object"},
            "numbers": {"minProperties": 1, **_object({}, **number)},
        },
        rmse_by_activity={
            "type": "array",
            "items": error,
            "minItems": GROUPS,
            "maxItems": GROUPS,
        },
        seconds=POSITIVE,
        memory_mib=POSITIVE,
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Results for the benchmark of private recommenders",
        **_object(
            {
                "version": {"const": VERSION},
                "name": {**TEXT, "maxLength": 60, "pattern": NAME},
                "authors": TEXT,
                "source": {**TEXT, "description": "the paper, or where the program is"},
                "results": {"type": "array", "items": result, "minItems": 1},
            }
        ),
    }


def add(path: Path, folder: Path = SUBMISSIONS, *, replace: bool = False) -> dict[str, Any]:
    """Checks a submission and keeps it in `folder`: {kept, name, rows}.

    Raises: ModuleNotFoundError without jsonschema. DataError for what is no submission, and for
      other data than the benchmark's. UsageError for a name that is taken.
    """
    submission = read(path)
    kept = folder / f"{file_name(submission['name'])}.json"
    if submission["name"] in [one.label for one in contenders()]:
        raise UsageError(
            f"{submission['name']!r} is the name of a row of the benchmark's own",
            where=f"{path}: $.name",
            fix="give yours another name",
        )
    if kept.exists() and not replace:
        raise UsageError(
            f"there is a submission {submission['name']!r} already",
            where=str(kept),
            fix="give yours another name, or --replace it",
        )
    folder.mkdir(parents=True, exist_ok=True)
    storage.write_json(kept, submission)
    return {"kept": str(kept), "name": submission["name"], "rows": list(rows_of(submission))}


def read(path: Path) -> dict[str, Any]:
    """A submission that was checked. Raises: as `add`."""
    import jsonschema

    try:
        submission = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(
            f"this is no file of JSON: {error}",
            where=str(path),
            fix="see docs/benchmark/protocol.md",
        ) from None
    found = jsonschema.Draft202012Validator(schema()).iter_errors(submission)
    wrong = jsonschema.exceptions.best_match(found)
    if wrong is not None:
        raise DataError(
            f"this is no submission: {wrong.message[:200]}",
            where=f"{path}: {wrong.json_path}",
            fix="docs/benchmark/schema.json says what it has to have",
        )
    for at, result in enumerate(submission["results"]):
        _check(result, where=f"{path}: $.results[{at}]")
    return submission


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _check(result: Mapping[str, Any], where: str) -> None:
    """What a schema cannot say. Raises: DataError."""
    counts = {name: len(values) for name, values in result["numbers"].items()}
    if any(count != len(result["seeds"]) for count in counts.values()):
        raise DataError(
            f"there are {len(result['seeds'])} seeds and {counts} numbers",
            where=where,
            fix="give one number for each seed",
        )
    dataset = DATASETS.get(result["data"])
    hashes = (dataset.sha256, dataset.triples) if dataset else ()
    known = {one for one in hashes if one is not None}
    if known and result["data_sha256"] not in known:
        raise DataError(
            f"these are other data than the benchmark's {result['data']}",
            where=f"{where}.data_sha256",
            fix=f"compute it on the published file: {' or '.join(sorted(known))}",
        )
    if "rmse" in result["numbers"] and dataset:
        low, high = dataset.rating_range
        worst = max(result["numbers"]["rmse"])
        if worst > high - low:
            raise DataError(
                f"an RMSE of {worst:g} is more than any prediction in the range {low:g} to"
                f" {high:g} can have",
                where=f"{where}.numbers.rmse",
                fix="clip predictions to the range, as the protocol says",
            )


def file_name(name: str) -> str:
    return re.sub(r"[^\w-]+", "-", name.lower()).strip("-") or "submission"


def rows_of(submission: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Its results as rows, beside those of `board.row_of`."""
    from experiments.benchmark.board import interval

    for result in submission["results"]:
        promise = result["promise"]
        if promise is not None:
            own = {name: promise[name] for name in ("unit", "relation", "epsilon", "delta")}
            promise = own | {
                "status": STATED if promise["statement"] else CLAIMED,
                "trust": promise["trust_model"],
                "claimed_by": submission["name"],
                "epsilon_of_a_user": promise["epsilon"] if promise["unit"] == "user" else None,
            }
        yield {
            "data": result["data"],
            "split": result["split"],
            "contender": submission["name"],
            "kind": "submission",
            "epsilon": None if promise is None else promise["epsilon"],
            "repeats": len(result["seeds"]),
            "diverged": 0,
            "promise": promise,
            "audits": None,
            "numbers": {
                name: interval(result["numbers"][name]) if name in result["numbers"] else None
                for name in NUMBERS
            },
            "rmse_by_activity": result.get("rmse_by_activity"),
            "seconds": result.get("seconds"),
            "memory_mib": result.get("memory_mib"),
            "commits": [],
            "devices": [],
            "absent": "",
        }


def all_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of every submission of a folder, in order of their names."""
    return [row for path in sorted(folder.glob("*.json")) for row in rows_of(read(path))]
