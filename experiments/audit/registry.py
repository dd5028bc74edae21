"""A registry of audits: a record of every mechanism, so that claims can be compared.

A record is JSON of the schema in schema.json, beside a page for readers. It holds what may be shown
of an audit (`report.public`), and nothing that was measured on ratings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.audit import report
from experiments.audit.phrases import in_a_sentence, number

VERSION = 1
CLAIMED = (
    *("epsilon", "delta", "unit", "relation", "released", "trust_model", "status"),
    *("claimed_by", "assumptions", "statement"),
)
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
COUNT = {"type": "integer", "minimum": 0}
NUMBER_OR_NOTHING = {"type": ["number", "null"]}


def _object(**properties: Any) -> dict[str, Any]:
    """Of a JSON object that has all of these and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a record."""
    verdict = {"enum": list(report.VERDICTS)}
    finding = _object(
        audit=TEXT,
        claim=TEXT,
        verdict=verdict,
        claimed=NUMBER_OR_NOTHING,
        confidence={"type": "number", "minimum": 0, "maximum": 1},
        power={"type": ["string", "null"], "description": "the least that would have been seen"},
        why={"type": ["string", "null"], "description": "why there is no such claim"},
    )
    promise = _object(
        epsilon={"type": ["number", "null"], "description": "rounded up; null: no such number"},
        delta=NUMBER_OR_NOTHING,
        unit=TEXT,
        relation=TEXT,
        released=TEXTS,
        trust_model=TEXT,
        status=TEXT,
        claimed_by={"type": ["string", "null"]},
        assumptions=TEXTS,
        statement=TEXT,
    )
    claim = _object(
        label=TEXT,
        why={"type": "string", "description": "where its settings come from"},
        data=TEXT,
        steps=COUNT,
        settings={"type": "object"},
        promise=promise,
        verdict=verdict,
        evidence=TEXT,
        findings={"type": "array", "items": finding},
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What audits found of a mechanism's claims",
        **_object(
            version={"const": VERSION},
            mechanism=TEXT,
            sentence={"type": "string", "description": "what it came to"},
            counts=_object(**dict.fromkeys(report.VERDICTS, COUNT)),
            claims={"type": "array", "items": claim, "minItems": 1},
            quick={"type": "boolean", "description": "fewer runs, neighbours and audits"},
            seed={"type": "integer"},
            provenance=_object(
                versions={"type": "object", "additionalProperties": TEXT},
                commit={"type": ["string", "null"]},
                device={"type": ["string", "null"]},
            ),
        ),
    }


def records(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The record of every mechanism of a document, public or not, by the mechanism's name."""
    parts = _by_mechanism(report.public(document))
    return {name: _record(name, part) for name, part in parts.items()}


def write(folder: Path, document: Mapping[str, Any]) -> list[str]:
    """Writes MECHANISM.json and MECHANISM.md of each, schema.json, and README.md; their paths.

    README.md lists all records in the folder, also those of earlier audits.
    """
    from dpmf_jax.models import storage
    from experiments.audit import markdown, view

    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def keep(name: str, text: str) -> None:
        storage.write_bytes(folder / name, text.encode())
        written.append(str(folder / name))

    parts = _by_mechanism(report.public(document))
    for mechanism, part in parts.items():
        name = _file_name(mechanism)
        storage.write_json(folder / f"{name}.json", _record(mechanism, part))
        written.append(str(folder / f"{name}.json"))
        keep(f"{name}.md", markdown.markdown(f"Audit of {mechanism}", view.sections(part, None)))
    storage.write_json(folder / "schema.json", schema())
    written.append(str(folder / "schema.json"))
    keep("README.md", _index(folder))
    return written


def _file_name(mechanism: str) -> str:
    return re.sub(r"[^\w.-]+", "-", mechanism).strip("-.") or "mechanism"


def _by_mechanism(public: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The same document in parts, of one mechanism each, whose findings are numbered anew."""
    found: dict[str, dict[str, Any]] = {}
    for trial in public["trials"]:
        part = found.setdefault(
            trial["mechanism"], {**public, "trials": [], "findings": [], "self_test": []}
        )
        first, last = trial["findings"]
        before = len(part["findings"])
        part["findings"] += [
            {**one, "number": before + place, "trial": len(part["trials"])}
            for place, one in enumerate(public["findings"][first - 1 : last], start=1)
        ]
        part["trials"].append({**trial, "findings": [before + 1, len(part["findings"])]})
    for part in found.values():
        part["violated"] = sum(one["verdict"] == "violated" for one in part["findings"])
    return found


def _record(mechanism: str, part: Mapping[str, Any]) -> dict[str, Any]:
    verdicts = [one["verdict"] for one in part["findings"]]
    return {
        "version": VERSION,
        "mechanism": mechanism,
        "sentence": in_a_sentence(part),
        "counts": {verdict: verdicts.count(verdict) for verdict in report.VERDICTS},
        "claims": [_claim(trial, part["findings"]) for trial in part["trials"]],
        "quick": part["quick"],
        "seed": part["seed"],
        "provenance": {name: part["provenance"][name] for name in ("versions", "commit", "device")},
    }


def _claim(trial: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, last = trial["findings"]
    promise = {name: trial["guarantee"][name] for name in CLAIMED}
    return {
        "label": trial["label"],
        "why": trial.get("why") or "",
        "data": trial["data"],
        "steps": trial["guarantee"]["steps"],
        "settings": trial["settings"],
        "promise": promise
        | {name: _finite(promise[name]) for name in ("epsilon", "delta")}
        | {"released": list(promise["released"]), "assumptions": list(promise["assumptions"])},
        "verdict": trial["verdict"],
        "evidence": trial["evidence"],
        "findings": [_finding(one) for one in findings[first - 1 : last]],
    }


def _finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "audit": finding["audit"],
        "claim": finding["claim"],
        "verdict": finding["verdict"],
        "claimed": _finite(finding.get("claimed")),
        "confidence": finding["confidence"],
        "power": finding["details"].get("power"),
        "why": finding["details"].get("why"),
    }


def _finite(value: Any) -> float | None:
    """The number; None where there is none, or it is infinite."""
    found = math.nan if value is None else float(value)
    return found if math.isfinite(found) else None


def _short(commit: str | None) -> str:
    name, *changed = (commit or "unknown").split("-", 1)
    return "-".join([name[:12], *changed])


def _index(folder: Path) -> str:
    import json

    from experiments.audit.markdown import escaped

    rows = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_bytes())
        except ValueError:
            continue
        known = {"version", "mechanism", "claims", "provenance"}
        if not isinstance(record, dict) or not known <= set(record) or record["version"] != VERSION:
            continue
        for claim in record["claims"]:
            promise = claim["promise"]
            cells = (
                claim["label"],
                promise["status"],
                promise["unit"],
                number(promise["epsilon"]),
                claim["data"],
                claim["verdict"],
            )
            named = " | ".join(escaped(cell) for cell in cells)
            rows.append(
                f"| {named} | [page]({path.stem}.md), [record]({path.name})"
                f" | {_short(record['provenance']['commit'])} |"
            )
    return "\n".join(
        [
            "# What audits found",
            "",
            "One row a claim. *Consistent*: no audit broke it; that is no proof. Records are JSON"
            " of [one schema](schema.json).",
            "",
            "| claim | status | unit | ε | data | verdict | | commit |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )
