"""An audit as one document: its headline, which of its fields may be shown, and its files.

There are three kinds of field. Public ones follow from the claim, the settings and the catalogue's
name, or are verdicts. Private ones are measured on the ratings, and not priced. Records name a
person or a rating, or identify the data. A field in no list here is private, so that a new audit
shows nothing before somebody says that it may.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmf_jax.errors import UsageError
from experiments.audit.phrases import number, prefix

SCHEMA = 1

PUBLIC = {
    "document": (
        *(
            "schema",
            "title",
            "public",
            "seed",
            "quick",
            "sizes",
            "trials",
            "findings",
            "violated",
            "false_alarms",
        ),
        *("self_test", "provenance"),
    ),
    "trial": (
        *(
            "label",
            "why",
            "mechanism",
            "data",
            "steps",
            "phases",
            "settings",
            "guarantee",
            "curve",
            "verdict",
        ),
        *("evidence", "findings"),
    ),
    "finding": (
        "number",
        "trial",
        "mechanism",
        "family",
        "audit",
        "claim",
        "verdict",
        "claimed",
        "confidence",
    ),
    "details": ("steps", "alpha", "status_of_the_guarantee", "unit_of_measurement", "phase"),
    "self_test": ("bug", "audit", "caught", "sound"),
}
# Families whose power follows from their design, without any number measured on the ratings.
PUBLIC_POWER = frozenset({"sensitivity", "post-processing", "enumeration", "fit"})
# Families whose claims follow from the guarantee alone; other claims may price the ratings of the
# user who is attacked.
PUBLIC_CLAIM = PUBLIC_POWER | frozenset(
    {"noise", "noise law", "keys", "faults", "coins", "density", "privacy loss", "one run"}
)
RECORDS = (
    *(
        "pair",
        "user",
        "item",
        "users",
        "items",
        "rating",
        "ratings",
        "record",
        "records",
        "target",
        "targets",
    ),
    *("canary", "canaries", "data_sha256"),
)

VERDICTS = ("violated", "inconclusive", "consistent", "not applicable")
# Families whose power says most about a claim; the first one is shown.
TELLING = ("privacy loss", "enumeration", "sensitivity", "one run", "membership")


def document(
    trials: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]],
    *,
    seed: int,
    sizes: Mapping[str, Any],
    self_test: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The whole document, for JSON.

    trials: what is said of each, and its findings, which are numbered here from 1.
    """
    from audits.finding import ALPHA

    told, findings = [], []
    for place, (trial, found) in enumerate(trials):
        first = len(findings) + 1
        findings += [{"number": first + i, "trial": place, **one} for i, one in enumerate(found)]
        verdict, evidence = headline(trial["guarantee"], found)
        told.append(
            {**trial, "verdict": verdict, "evidence": evidence, "findings": [first, len(findings)]}
        )
    by_chance = sum(one["confidence"] < 1 or "alpha" in one["details"] for one in findings)
    what = told[0]["label"] if len(told) == 1 else f"{len(told)} mechanisms"
    return {
        "schema": SCHEMA,
        "title": f"Audit of {what}" + (f" on {told[0]['data']}" if len(told) == 1 else ""),
        "public": False,
        "seed": seed,
        "quick": bool(sizes["quick"]),
        "sizes": dict(sizes),
        "trials": told,
        "findings": findings,
        "violated": sum(one["verdict"] == "violated" for one in findings),
        "false_alarms": {
            "of_a_finding": ALPHA,
            "findings_that_rest_on_chance": by_chance,
            "of_all": ALPHA * by_chance,
        },
        "self_test": [dict(row) for row in self_test],
        "provenance": provenance(),
    }


def headline(
    guarantee: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]
) -> tuple[str, str]:
    """(verdict on the whole claim, what broke it or else the least that would have been seen)."""
    of = {name: [one for one in findings if one["verdict"] == name] for name in VERDICTS}
    open_ones = f"; {len(of['inconclusive'])} inconclusive" if of["inconclusive"] else ""
    if of["violated"]:
        return "violated", "; ".join(_broken(one) for one in of["violated"])
    if guarantee["status"] == "none":
        return (
            "not applicable",
            "no claim of privacy is made, so there is none to break" + open_ones,
        )
    if not of["consistent"]:
        return "inconclusive", "no audit could say anything" + open_ones
    return "consistent", _seen(of["consistent"]) + open_ones


def _broken(finding: Mapping[str, Any]) -> str:
    ratio = finding["details"].get("ratio")  # a number, or "inf" as JSON has it
    if ratio is not None:
        return f"{finding['audit']}: {float(ratio):.4g} times the claim"
    measured, claimed = finding["measured"], finding["claimed"]
    against = "" if claimed is None else f", claimed {number(claimed)}"
    return f"{finding['audit']}: {number(measured)}{against}"


def _seen(consistent: Sequence[Mapping[str, Any]]) -> str:
    for family in TELLING:
        for one in consistent:
            if prefix(one) == family and "power" in one["details"]:
                return f"{one['audit']}: {one['details']['power']}"
    return f"{len(consistent)} audits failed to break it"


def provenance() -> dict[str, Any]:
    """What computed this: versions, commit, device."""
    from importlib.metadata import PackageNotFoundError, version

    from experiments.cli import provenance as where

    versions = {"python": platform.python_version()}
    for name in ("dpmf-jax", "jax", "jaxlib", "numpy", "scipy", "dp-accounting"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return {"versions": versions, "commit": where.commit(), "device": where.device()}


# ---- what may be shown ---------------------------------------------------------------------------


def public(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The document without its private fields: for anybody who may know the claim and verdict."""
    kept = _only(whole, PUBLIC["document"]) | {"public": True}
    kept["trials"] = [_public_trial(trial, whole["findings"]) for trial in whole["trials"]]
    kept["findings"] = [_public_finding(one) for one in whole["findings"]]
    kept["self_test"] = [_only(row, PUBLIC["self_test"]) for row in whole["self_test"]]
    return kept


def _public_trial(
    trial: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    first, last = trial["findings"]
    shown = [_public_finding(one) for one in findings[first - 1 : last]]
    kept = _only(trial, PUBLIC["trial"])
    if trial["verdict"] == "violated":
        kept["evidence"] = "; ".join(one["audit"] for one in shown if one["verdict"] == "violated")
    elif trial["verdict"] == "consistent":
        kept["evidence"] = _seen([one for one in shown if one["verdict"] == "consistent"])
    return kept


def _public_finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    names = list(PUBLIC["details"])
    names += ["power"] if finding.get("family") in PUBLIC_POWER else []
    names += ["why"] if finding["verdict"] == "not applicable" else []  # it follows from the claim
    claim = (
        {}
        if finding.get("family") in PUBLIC_CLAIM
        else {"claim": "in the curator's report", "claimed": None}
    )
    return _only(finding, PUBLIC["finding"]) | claim | {"details": _only(finding["details"], names)}


def _only(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def split_records(whole: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the document without records; the records by finding, and hashes of the data by trial)."""
    findings, records = [], {}
    for one in whole["findings"]:
        rest, taken = _without_records(one["details"])
        findings.append({**one, "details": rest})
        if taken:
            records[str(one["number"])] = taken
    trials = [
        {name: value for name, value in trial.items() if name not in RECORDS}
        for trial in whole["trials"]
    ]
    hashes = {trial["label"]: trial.get("data_sha256") for trial in whole["trials"]}
    return {**whole, "trials": trials, "findings": findings}, {
        "data_sha256": hashes,
        "findings": records,
    }


def _without_records(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    rest: dict[str, Any] = {}
    taken: dict[str, Any] = {}
    for name, value in values.items():
        if name in RECORDS:
            taken[name] = value
        elif isinstance(value, Mapping):
            rest[name], inner = _without_records(value)
            if inner:
                taken[name] = inner
        else:
            rest[name] = value
    return rest, taken


# ---- its files -----------------------------------------------------------------------------------


def check_folder(out: Path, flag: str = "--out") -> None:
    """Raises: UsageError where no report can be written, before hours of work."""
    import jinja2  # noqa: F401

    nearest = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise UsageError(
            "this is a file, not a folder",
            where=str(nearest),
            fix=f"give {flag} the name of a folder",
        )
    if not os.access(nearest, os.W_OK):
        raise UsageError(
            "nothing can be written here", where=str(nearest), fix=f"give {flag} another folder"
        )


def write(out: Path, whole: Mapping[str, Any]) -> list[str]:
    """Writes findings.json, report.md and report.html, each whole or not at all; their paths.

    A public document lies in `out`, for anybody to read. Any other was measured on ratings and is
    not priced: it lies in `out`/private, readable by its owner alone, with the records apart in
    records.json.
    """
    from dpmf_jax.models import storage
    from experiments.audit import markdown as audit_markdown
    from experiments.audit import marks
    from experiments.audit import page as audit_page
    from experiments.audit import view as audit_view

    private = not whole["public"]
    shown, records = split_records(whole) if private else (whole, {})
    sections = audit_view.sections(shown, str(out))
    if private:
        sections = marks.marked(sections, audit_view.sections(public(whole), None))
    out.mkdir(parents=True, exist_ok=True)
    written = []
    outside = out
    if private:
        out = storage.private_folder(out)
        storage.write_json(out / "records.json", records, private=True)
        written.append(str(out / "records.json"))
    texts = {
        "report.html": audit_page.html(shown["title"], sections),
        "report.md": audit_markdown.markdown(shown["title"], sections),
    }
    for name, text in texts.items():
        storage.write_bytes(out / name, text.encode(), private=private)
        written.append(str(out / name))
    storage.write_json(out / "findings.json", shown, private=private)
    if private:
        _remove_unpriced(outside)
    return [*written, str(out / "findings.json")]


def _remove_unpriced(out: Path) -> None:
    """Removes a report that is not public and lies outside private/."""
    import json

    try:
        public = json.loads((out / "findings.json").read_bytes()).get("public", True)
    except (OSError, ValueError, AttributeError):
        return
    if not public:
        for name in ("report.html", "report.md", "findings.json"):
            (out / name).unlink(missing_ok=True)
