"""`dpmf audit`: try to break the claim of a mechanism, of a saved model, or of every mechanism
there is.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dpmf_jax.errors import AuditViolated, DataError, UsageError
from dpmf_jax.mechanisms import table
from experiments.audit import (
    replay as audit_replay,
)
from experiments.audit import (
    report as audit_report,
)
from experiments.audit import (
    suite as audit_suite,
)
from experiments.audit import (
    trial as audit_trial,
)
from experiments.audit.trial import Sizes, Trial
from experiments.cli import console, devices
from experiments.fit import command as fit_command
from experiments.fit import mechanisms as fit_mechanisms
from experiments.fit import ratings as fit_ratings
from experiments.fit.flags import (
    DEFAULT,
    MechanismFlag,
    PublicFiles,
    RatingsFlags,
    public_file,
    with_flags_of,
)

USUAL_DELTA = 1e-5
_OTHER_FOLDERS = (
    "--out",
    "--data-dir",
    "--ratings",
    "--replay",
)  # flags whose value is no model to audit
SMALL = (
    60,
    40,
    700,
    3,
)  # users, items, ratings and rank of what is generated where no data are named


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(RatingsFlags, MechanismFlag):
    """Try to break a claim: run every audit there is on a mechanism. Exit code 5 if one finds it
    false.
    """

    target: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATA|MODEL")] = None
    """A data set that `dpmf data list` knows, a file of ratings, or the folder of a saved model. By
    default small generated ratings.
    """
    ratings: str | None = None
    """For a saved model: the ratings to audit it on."""
    all: bool = False
    """Every mechanism: the published claims at their papers' settings and each sound variant, on
    DATA; by default on ml-100k where it is found, with --quick on generated ratings.
    """
    quick: bool = False
    """Fewer runs, neighbours and steps, and no one run, divergence and fit: less power, the same
    rate of false alarms.
    """
    out: Path | None = None
    """Folder for findings.json, report.md and report.html: in its private/, since they are measured
    on the ratings and not priced; with --public in the folder itself.
    """
    public: bool = False
    """Leave out all that was measured on the ratings: what may be shown to others."""
    replay: str | None = None
    """A findings.json, or the folder that --out named, or either with #n: run again what was
    violated in it, or the n-th finding.
    """
    only: tuple[str, ...] = ()
    """Families of audits to run, such as sensitivity; all by default."""
    neighbours: int | None = None
    """How many neighbouring data sets the sensitivity and privacy-loss audits try first; 64, with
    --all 16, with --quick 16 and 1.
    """
    runs: int | None = None
    """How many transcripts the privacy-loss audit draws; by default what a minute can do, with
    --all 96.
    """
    seed: int = 0
    """Of the audit's own randomness; the same seed gives the same findings."""
    layout: Literal["auto", "split", "dense"] = "auto"
    """How ratings are laid out on the device."""
    devices: int | None = None
    """Compare the noise of one device with that of so many, such as 2 cores of a CPU; all else runs
    on one.
    """
    json: bool = False
    """Print one JSON object on stdout."""

    @classmethod
    def earlier(cls, words: Sequence[str]) -> Path | None:
        """See `MechanismFlag.earlier`: the saved model to audit."""
        named = (
            word
            for before, word in itertools.pairwise(["", *words])
            if before not in _OTHER_FOLDERS
        )
        return next((Path(word) for word in named if (Path(word) / "model.json").is_file()), None)


def run(command: Command) -> None:
    """Prints the findings, and writes the report.

    Raises:
      AuditViolated: a claim was found to be false; after the findings were printed and written.
      OutsideTolerance: a finding was not seen again; likewise.
    """
    try:
        result = audit(command) if command.replay is None else _replay(command)
    except KeyboardInterrupt:
        raise console.Interrupted(_words(command)) from None
    from experiments.audit import console as audit_console

    if command.replay is not None:
        console.emit(result, json=command.json, render=audit_console.replayed)
        audit_replay.end(result)
        return
    written = audit_report.write(command.out, _document(result)) if command.out else []
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
    """Everything that `dpmf audit` does but the printing; the keys of the result are the command's
    JSON interface.

    Of one mechanism, what is said of it stands at the top as well.
    """
    import audits

    families, sizes = _checked(command, audits)
    if command.out is not None:
        audit_report.check_folder(command.out)
    full = command.out is not None or (command.all and not command.quick)
    makers = trials(command)
    if len(makers) == 1:
        console.say(f"auditing {next(iter(makers))}: {', '.join(families)}")
    parts = len(makers) * (len(families) + full)
    with console.progress("audit", parts) as report, audit_trial.compiling(sizes):
        told = audit_trial.run_all(
            list(makers.values()),
            families,
            seed=command.seed,
            sizes=sizes,
            useful=full,
            report=report,
        )
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


def _checked(command: Command, audits: Any) -> tuple[list[str], Sizes]:
    """(families to run, sizes).

    Raises: UsageError for what is none.
    """
    for name, usual in (("neighbours", 64), ("runs", 3000)):
        value = getattr(command, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1; got {value}", fix=f"--{name} {usual}")
    if unknown := [name for name in command.only if name not in audits.FAMILIES]:
        raise UsageError(
            f"there are no audits named {unknown[0]!r}",
            fix=f"choose among {', '.join(audits.FAMILIES)}",
        )
    asked = getattr(command, "delta", USUAL_DELTA)
    if not 0 <= asked < 1:
        raise UsageError(
            f"--delta must be at least 0 and below 1; got {asked:g}", fix="--delta 1e-5"
        )
    delta = asked if 0 < asked != USUAL_DELTA else None
    sizes = Sizes(
        neighbours=command.neighbours,
        runs=command.runs,
        quick=command.quick,
        delta=delta,
        layout=command.layout,
    )
    return audits.families(quick=command.quick, only=command.only or None), sizes


def _sizes(sizes: Sizes, families: Sequence[str], audits: Any) -> dict[str, Any]:
    """For JSON, with what --quick stands for."""
    cut = (
        {name: audits.QUICK[name] for name in families if name in audits.QUICK}
        if sizes.quick
        else {}
    )
    return console.plain(
        {"audits": ", ".join(families), **dataclasses.asdict(sizes), "cut_by_quick": cut}
    )


def _document(result: Mapping[str, Any]) -> dict[str, Any]:
    """Without what stands at the top for one mechanism."""
    return {
        name: value for name, value in result.items() if name in audit_report.PUBLIC["document"]
    }


def _words(command: Command) -> str:
    """The command line that says the same."""
    words = ["dpmf", "audit"]
    for field in dataclasses.fields(command):
        value, flag = getattr(command, field.name), f"--{field.name.replace('_', '-')}"
        if value == (DEFAULT if field.name == "mechanism" else field.default):
            continue
        if field.name == "target":
            words.insert(2, str(value))
        elif isinstance(value, bool):
            words.append(flag)
        else:
            words += [flag, *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(words)


# ---- what is on trial ----------------------------------------------------------------------------


def trials(command: Command) -> dict[str, Callable[[], Trial]]:
    """Makers of what the command puts on trial, by label; each is made when its turn comes.

    Raises: UsageError for flags that contradict each other; what `devices.use` raises.
    """
    if command.devices is not None:
        devices.use(command.devices)
    if command.all:
        return _all(command)
    folder = (
        Path(command.target)
        if command.target and (Path(command.target) / "model.json").is_file()
        else None
    )
    if folder is None and command.ratings is not None:
        raise UsageError(
            "--ratings goes with a saved model",
            fix="dpmf audit DATA, or dpmf audit MODEL --ratings DATA",
        )
    made: Callable[[Any], Any]
    if folder is None:
        ratings = read(command, command.target)
        flags, file = fit_mechanisms.chosen(command), public_file(command)
        made = functools.partial(
            fit_mechanisms.phases_and_settings, command.mechanism, flags, public=file
        )
        phases, settings = made(ratings)
    else:
        phases, settings = saved(folder, command)
        made = lambda other: (phases, settings)  # noqa: E731
        ratings = read(command, command.ratings)
        if list(ratings.rating_range) != settings["rating_range"]:
            raise UsageError(
                f"the ratings have range {list(ratings.rating_range)}, the model was made for "
                f"{settings['rating_range']}",
                fix="audit the model on ratings of the range it was made for",
            )
    source = {"command": audit_replay.kept(command), "label": settings["mechanism"]}
    trial = Trial(settings["mechanism"], phases, settings, ratings, source, made=made)
    return {trial.label: lambda: trial}


def _all(command: Command) -> dict[str, Callable[[], Trial]]:
    if command.ratings is not None or (
        command.target and (Path(command.target) / "model.json").is_file()
    ):
        raise UsageError(
            "--all audits mechanisms, not a saved model", fix="leave out --all, or the model"
        )
    if flag := _first_given(command):
        raise UsageError(
            f"--all has its own settings; {flag} would be another claim", fix=f"leave out {flag}"
        )
    data = command.target
    if data is None and not (command.quick and command.data_dir is None):
        from dpmf_jax.data import datasets

        here = {row["name"]: row["path"] for row in datasets.list_datasets(command.data_dir)}
        data = audit_suite.DATA if here[audit_suite.DATA] is not None else None
        if data is None and command.data_dir is not None:
            raise DataError(
                f"{audit_suite.DATA} is not there",
                where=str(command.data_dir),
                fix="name another --data-dir, or none",
            )
    source = {"command": audit_replay.kept(dataclasses.replace(command, target=data))}
    ratings = audit_suite.generated() if data is None else read(command, data)
    return audit_suite.makers(ratings, source, small=data is None or command.quick)


def _replay(command: Command) -> dict[str, Any]:
    """What became of earlier findings, for JSON.

    Raises: UsageError for a flag that would change what is run.
    """
    assert command.replay is not None
    told, wanted = audit_replay.read(command.replay)
    given = [
        field.name
        for field in dataclasses.fields(command)
        if getattr(command, field.name) != field.default
    ]
    given += ["mechanism"] if command.mechanism != DEFAULT else []
    if other := [name for name in given if name not in ("replay", "json", "data_dir")]:
        flag = "DATA" if other[0] == "target" else f"--{other[0].replace('_', '-')}"
        raise UsageError(
            f"--replay takes its settings from the file; {flag} would be another audit",
            fix=f"leave out {flag}",
        )
    rows = audit_replay.again(told, wanted, lambda trial: _made_again(command, trial))
    violated = sum(row["verdict_now"] == "violated" for row in rows)
    return {"file": command.replay, "replayed": rows, "violated": violated}


def _first_given(command: Command, mechanism: str = DEFAULT) -> str | None:
    """The first flag that makes another claim; --delta is no such flag: it asks for another point
    of the same curve.
    """
    if command.mechanism not in (DEFAULT, mechanism):
        return "--mechanism"
    own = (*dataclasses.fields(table()[command.mechanism].flags), *dataclasses.fields(PublicFiles))
    fields = (field for field in own if field.name != "delta" and hasattr(command, field.name))
    given = (field.name for field in fields if getattr(command, field.name) != field.default)
    return next((f"--{name.replace('_', '-')}" for name in given), None)


def _made_again(command: Command, told: Mapping[str, Any]) -> Trial:
    """The trial of a document, from the command that the document keeps.

    Raises: DataError where the ratings are not those that were audited.
    """
    earlier = audit_replay.restored(Command, told["source"])
    if command.data_dir is not None:
        earlier = dataclasses.replace(earlier, data_dir=command.data_dir)
    makers = trials(earlier)
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


def read(command: Command, data: str | None) -> Any:
    """The ratings to audit on; small generated ones where none are named."""
    if data is None:
        from dpmf_jax.data import synthetic

        users, items, num, rank = SMALL
        return synthetic.generate(num_users=users, num_items=items, num_ratings=num, rank=rank)
    return fit_ratings.read(_fit(command, data))[0]


def _fit(command: Command, data: str | None) -> fit_command.Command:
    """The same settings as flags of `dpmf fit`, all ratings in training."""
    kind = with_flags_of(fit_command.Command, command.mechanism)
    shared = {field.name for field in dataclasses.fields(kind)} - {"seed", "data", "json"}
    values = {name: value for name, value in vars(command).items() if name in shared}
    return kind(data=data, test_fraction=0.0, seed=command.seed, **values)


def saved(folder: Path, command: Command) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, settings) of a saved model, made anew from its public settings.

    Raises:
      UsageError: a flag that would change the claim of the model, or settings that are not those of
        a known mechanism.
    """
    import accounting
    from dpmf_jax.models import model

    loaded = model.load(folder)
    settings = dict(loaded.settings)
    if flag := _first_given(command, str(settings.get("mechanism"))):
        raise UsageError(
            f"a saved model has its own settings; {flag} would be another claim",
            fix=f"leave out {flag}",
        )
    public = loaded.release.item_factors if settings.get("items") else None
    public = loaded.release.user_factors if settings.get("users") else public
    try:
        steps = table()[settings["mechanism"]].num_steps(
            settings, loaded.guarantee.steps
        )  # patience may have ended it
        phases = fit_mechanisms.phases(settings | {"steps": steps}, public)
    except KeyError:
        where = str(folder / "model.json")
        raise UsageError(
            "the model does not say how it was made", where=where, fix="fit it anew"
        ) from None
    if (
        accounting.compose(*(phase.guarantee(num) for phase, num in phases)).epsilon
        != loaded.guarantee.epsilon
    ):
        raise UsageError(
            "the model's guarantee is not that of its settings",
            where=str(folder / "model.json"),
            fix="fit it anew",
        )
    return phases, settings
