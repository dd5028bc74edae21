"""`dpmf audit --replay`: runs the audits of earlier findings again, and compares what they find."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmf_jax.errors import AuditViolated, DataError, OutsideTolerance, UsageError
from experiments.audit import compilation
from experiments.audit import trial as audit_trial
from experiments.audit.trial import Sizes, Trial
from experiments.cli import console
from experiments.cli import settings as settings_files
from experiments.fit.flags import with_flags_of

# The default of versions whose reports did not name it.
UNNAMED = "gaussian-joint-noise"
FIX = (
    "use a mechanism whose status is proved, not only for real-number noise; or report a bug if it"
    " is one"
)


def read_findings(named: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the document, the findings to run again): of FILE#n the n-th, else all that are violated.

    named: a findings.json, or the folder that `--out` named, or what `--json` printed.
      FOLDER/findings.json is the one in FOLDER/private where there is no other.

    Raises:
      DataError: the file holds no findings.
      UsageError: a number that is not there, or nothing to run again.
    """
    name, mark, wanted = named.rpartition("#")
    if not mark or Path(named).exists():
        name, wanted = named, ""
    path = Path(name) / "findings.json" if Path(name).is_dir() else Path(name)
    inner = path.parent / "private" / path.name
    path = inner if inner.is_file() and (Path(name).is_dir() or not path.exists()) else path
    told = _document(path)
    if told["public"]:
        raise UsageError(
            "a public report does not say on which records it rests",
            where=str(path),
            fix="replay the one that was written without --public",
        )
    found = told["findings"]
    if wanted:
        if not (wanted.isdecimal() and 1 <= int(wanted) <= len(found)):
            raise UsageError(
                f"there is no finding {wanted!r}, they count from 1 to {len(found)}",
                where=str(path),
                fix=f"dpmf audit --replay {path}#1",
            )
        return told, [found[int(wanted) - 1]]
    violated = [one for one in found if one["verdict"] == "violated"]
    if not violated:
        raise UsageError(
            "no finding is violated",
            where=str(path),
            fix=f"name one of the {len(found)}: --replay {path}#1",
        )
    return told, violated


def _document(path: Path) -> dict[str, Any]:
    fix = "give the findings.json that `dpmf audit --out FOLDER` wrote"
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"the findings cannot be read: {what}", where=str(path), fix=fix) from None
    sizes = {field.name for field in dataclasses.fields(Sizes)}
    if (
        not isinstance(told, dict)
        or not {"schema", "public", "trials", "findings", "sizes", "seed"} <= set(told)
        or not sizes <= set(told["sizes"])
    ):
        raise DataError("these are not the findings of an audit", where=str(path), fix=fix)
    if told["schema"] != 1:
        raise DataError(
            f"findings of an unknown kind, {told['schema']!r}", where=str(path), fix="audit anew"
        )
    beside, inside = path.parent / "records.json", path.parent / "private" / "records.json"
    records = beside if beside.is_file() else inside
    if records.is_file():
        hashes = json.loads(records.read_bytes())["data_sha256"]
        for trial in told["trials"]:
            trial.setdefault("data_sha256", hashes.get(trial["label"]))
    return told


def restored(command: type, source: Mapping[str, Any]) -> Any:
    """The command that a trial's source keeps, with the flags of its mechanism.

    Raises: DataError for a source that does not say what was audited.
    """
    try:
        kind = with_flags_of(command, source["command"].get("mechanism", UNNAMED))
        kinds = typing.get_type_hints(kind, include_extras=True)
        values = {
            name: settings_files.convert(value, kinds[name])
            for name, value in source["command"].items()
        }
    except (KeyError, TypeError, UsageError) as error:
        raise DataError(
            f"the findings do not say what was audited: {error}", fix="audit anew"
        ) from None
    return kind(**values)


def kept_fields(command: Any) -> dict[str, Any]:
    """The mechanism and the fields that are not at their defaults, but for where output goes."""
    fields = {field.name: field.default for field in dataclasses.fields(command)}
    fields["mechanism"] = None  # a later version may have another default
    return {
        name: console.plain(getattr(command, name))
        for name, default in fields.items()
        if name not in ("json", "out", "public", "replay") and getattr(command, name) != default
    }


def again(
    told: Mapping[str, Any],
    wanted: Sequence[Mapping[str, Any]],
    make_trial: Callable[[Mapping[str, Any]], Trial],
) -> list[dict[str, Any]]:
    """What became of each finding. Its family runs once for each trial, with the document's key.

    make_trial: from a trial of the document to the trial itself.
    """
    trials: dict[int, Trial] = {}
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    rows = []
    for was in wanted:
        place, family = was["trial"], was["family"]
        if place not in trials:
            trials[place] = make_trial(told["trials"][place])
        trial = trials[place]
        if (place, family) not in found:
            console.say(f"again: {trial.label}: {family}")
            sizes = Sizes(
                **{field.name: told["sizes"][field.name] for field in dataclasses.fields(Sizes)}
            )
            with compilation.compiling(quickly=sizes.quick):
                found[place, family] = audit_trial.findings(
                    trial, family, seed=told["seed"], sizes=sizes
                )
        rows.append(_compared(was, console.plain(found[place, family])))
    return rows


def _compared(was: Mapping[str, Any], now: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One finding then and now: seen again or not, and the same to the last bit or not."""
    same = (
        one for one in now if (one["mechanism"], one["audit"]) == (was["mechanism"], was["audit"])
    )
    found = next(same, {"verdict": None, "measured": None})
    return {
        **{name: was[name] for name in ("number", "mechanism", "audit", "verdict", "measured")},
        "verdict_now": found["verdict"],
        "measured_now": found["measured"],
        "seen_again": found["verdict"] == was["verdict"],
        "same_bits": found["measured"] == was["measured"] and found["verdict"] is not None,
    }


def check_seen_again(result: Mapping[str, Any]) -> None:
    """Raises:
    OutsideTolerance: a finding is not seen again.
    AuditViolated: all are, and one of them is violated.
    """
    rows = result["replayed"]

    def named(chosen: Sequence[Mapping[str, Any]]) -> str:
        return "; ".join(f"#{row['number']} {row['mechanism']}: {row['audit']}" for row in chosen)

    if lost := [row for row in rows if not row["seen_again"]]:
        raise OutsideTolerance(
            f"{len(lost)} of {len(rows)} findings are not seen again",
            where=named(lost),
            fix="use the machine, the versions and the ratings that the report names",
        )
    if broken := [row for row in rows if row["verdict_now"] == "violated"]:
        raise AuditViolated(
            f"seen again: {len(broken)} of {len(rows)} findings are violated",
            where=named(broken),
            fix=FIX,
        )
