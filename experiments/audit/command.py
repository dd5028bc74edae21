"""`dpmf audit`: try to break the claim of a mechanism, of a saved model, or of every mechanism."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpmf_jax.errors import AuditViolated, DataError, UsageError
from experiments.audit import compilation, registry, subjects, suite, workers
from experiments.audit import replay as audit_replay
from experiments.audit import report as audit_report
from experiments.audit import trial as audit_trial
from experiments.audit.flags import Command, command_line
from experiments.audit.trial import Sizes, Trial
from experiments.cli import console
from experiments.fit.flags import DEFAULT
from experiments.fit.mechanism_file import is_file

USUAL_DELTA = 1e-5


def run(command: Command) -> None:
    """Prints the findings, and writes the report and the records.

    Raises:
      AuditViolated: a claim is false; after the findings are printed and written.
      OutsideTolerance: a finding is not seen again; likewise.
    """
    try:
        result = audit(command) if command.replay is None else _replay(command)
    except KeyboardInterrupt:
        raise console.Interrupted(command_line(command)) from None
    from experiments.audit import console as audit_console

    if command.replay is not None:
        console.emit(result, json=command.json, render=audit_console.render_replay)
        audit_replay.check_seen_again(result)
        return
    written = audit_report.write(command.out, _document(result)) if command.out else []
    if command.registry is not None:
        written += registry.write(command.registry, _document(result))
    console.emit(result | {"written": written}, json=command.json, render=audit_console.render)
    if broken := [finding for finding in result["findings"] if finding["verdict"] == "violated"]:
        false = list(dict.fromkeys(result["trials"][one["trial"]]["label"] for one in broken))
        whose = f"the claim of {false[0]} does" if len(false) == 1 else f"{len(false)} claims do"
        raise AuditViolated(
            f"{whose} not hold: {len(broken)} of {len(result['findings'])} findings",
            where="; ".join(
                dict.fromkeys(one["audit"] for one in broken) if len(false) == 1 else false
            ),
            fix=audit_replay.FIX,
        )


def audit(command: Command) -> dict[str, Any]:
    """What `dpmf audit --json` prints: its keys are the command's JSON interface.

    For one mechanism, what is said of its trial stands at the top as well.
    """
    import audits

    families, sizes = _checked(command, audits)
    if sizes.quick:
        compilation.start_quickly()
    for flag, folder in (("--out", command.out), ("--registry", command.registry)):
        if folder is not None:
            audit_report.check_folder(folder, flag)
    full = command.out is not None or (command.all and not command.quick)
    makers = subjects.trials(command)
    if len(makers) == 1:
        console.say(f"auditing {next(iter(makers))}: {', '.join(families)}")
    parts = len(makers) * (len(families) + full)
    with console.progress("audit", parts) as report:
        told = _results(command, makers, families, sizes, full, report)
        report(parts, now="done")
    self_test: Sequence[Mapping[str, Any]] = ()
    if full:
        from experiments.audit import selftest as audit_selftest

        self_test = audit_selftest.run(console.say if command.all else lambda what: None)
    document = audit_report.document(
        told,
        seed=command.seed,
        sizes=_sizes(sizes, families, audits),
        self_test=self_test,
    )
    document = audit_report.public(document) if command.public else document
    first = {name: value for name, value in document["trials"][0].items() if name not in document}
    return first | document if len(makers) == 1 else document


def _results(
    command: Command,
    makers: Mapping[str, Callable[[], Trial]],
    families: Sequence[str],
    sizes: Sizes,
    useful: bool,
    report: Callable[..., None],
) -> list[audit_trial.Told]:
    """What is said of each trial; of several, side by side in processes of their own."""
    settings = {"seed": command.seed, "sizes": sizes, "useful": useful}
    if len(makers) > 1:
        task = workers.Task({"command": audit_replay.kept_fields(command)}, families, **settings)
        return workers.run_all(task, list(makers), report=report)
    parts = itertools.count()
    with compilation.compiling(quickly=sizes.quick):
        ((label, make),) = makers.items()
        begins = lambda what: report(next(parts), now=f"{label}: {what}")  # noqa: E731
        return [audit_trial.run(make(), families, **settings, report=begins)]


def _checked(command: Command, audits: Any) -> tuple[list[str], Sizes]:
    """(families to run, sizes).

    Raises: UsageError for a flag that is out of range, or names no family.
    """
    for name, usual in (("neighbours", 64), ("runs", 3000)):
        value = getattr(command, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1; got {value}", fix=f"--{name} {usual}")
    if unknown := [name for name in command.only if name not in audits.FAMILIES]:
        near = difflib.get_close_matches(unknown[0].lower(), audits.FAMILIES, n=1)
        choose = f"choose among {', '.join(audits.FAMILIES)}"
        raise UsageError(
            f"there are no audits named {unknown[0]!r}",
            fix=f"did you mean {near[0]!r}? Or {choose}" if near else choose,
        )
    delta = getattr(command, "delta", USUAL_DELTA)
    if not 0 <= delta < 1:
        raise UsageError(
            f"--delta must be at least 0 and below 1; got {delta:g}", fix="--delta 1e-5"
        )
    sizes = Sizes(
        neighbours=command.neighbours,
        runs=command.runs,
        quick=command.quick,
        delta=delta if 0 < delta != USUAL_DELTA else None,
        layout=command.layout,
    )
    families = audits.families(quick=command.quick, only=command.only or None)
    if command.all and command.quick and not command.only:
        families = [name for name in families if name not in suite.NOT_QUICK]
    return families, sizes


def _sizes(sizes: Sizes, families: Sequence[str], audits: Any) -> dict[str, Any]:
    """The sizes for JSON, with what --quick stands for."""
    cut = (
        {name: audits.QUICK[name] for name in families if name in audits.QUICK}
        if sizes.quick
        else {}
    )
    return console.plain(
        {"audits": ", ".join(families), **dataclasses.asdict(sizes), "cut_by_quick": cut}
    )


def _document(result: Mapping[str, Any]) -> dict[str, Any]:
    """The document without what stands at the top for one mechanism."""
    return {
        name: value for name, value in result.items() if name in audit_report.PUBLIC["document"]
    }


def _replay(command: Command) -> dict[str, Any]:
    """What became of earlier findings, for JSON.

    Raises: UsageError for a flag that would change what is run.
    """
    assert command.replay is not None
    told, wanted = audit_replay.read_findings(command.replay)
    given = [
        field.name
        for field in dataclasses.fields(command)
        if getattr(command, field.name) != field.default
    ]
    named = command.mechanism not in (DEFAULT, *map(_mechanism_file, told["trials"]))
    given += ["mechanism"] if named else []
    if other := [name for name in given if name not in ("replay", "json", "data_dir")]:
        flag = "DATA" if other[0] == "target" else f"--{other[0].replace('_', '-')}"
        raise UsageError(
            f"--replay takes its settings from the file; {flag} would be another audit",
            fix=f"leave out {flag}",
        )
    if told["sizes"]["quick"]:
        compilation.start_quickly()
    rows = audit_replay.again(told, wanted, lambda trial: _trial_again(command, trial))
    violated = sum(row["verdict_now"] == "violated" for row in rows)
    return {"file": command.replay, "replayed": rows, "violated": violated}


def _mechanism_file(trial: Mapping[str, Any]) -> str | None:
    """What `--mechanism FILE.py:NAME` was, of a trial in a document; None for other mechanisms."""
    named = str(trial.get("source", {}).get("command", {}).get("mechanism", ""))
    return named if is_file(named) else None


def _trial_again(command: Command, told: Mapping[str, Any]) -> Trial:
    """The trial of a document, from the command that the document keeps.

    Raises: DataError where the ratings are not those that were audited.
    """
    file = _mechanism_file(told)
    if file not in (None, command.mechanism):
        raise UsageError(
            f"these findings are of {file}, a file of code that would be run",
            where=str(command.replay),
            fix=f"dpmf audit --replay {command.replay} --mechanism {file}",
        )
    earlier = audit_replay.restored(Command, told["source"])
    if command.data_dir is not None:
        earlier = dataclasses.replace(earlier, data_dir=command.data_dir)
    makers = subjects.trials(earlier)
    if told["label"] not in makers:
        raise DataError(f"nothing is called {told['label']!r} any more", fix="audit anew")
    made = makers[told["label"]]()
    if told.get("data_sha256") not in (None, made.ratings.sha256()):
        raise DataError(
            "these are not the ratings that were audited",
            where=made.ratings.name,
            fix="give the --data-dir of the ones that were",
        )
    return made
