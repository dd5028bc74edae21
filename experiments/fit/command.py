"""`dpmf fit`: from a file of ratings to a priced, released model, compared with its controls."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dpmf_jax.errors import CannotWrite, DpmfError, UsageError
from dpmf_jax.mechanisms import table
from experiments.cli import console, devices
from experiments.fit import implicit, report, resume
from experiments.fit import mechanisms as fit_mechanisms
from experiments.fit.flags import MechanismFlag, RatingsFlags, public_file
from experiments.fit.ratings import check_named, read


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(devices.ProcessFlags, RatingsFlags, MechanismFlag):
    """Fit a model of a ratings matrix, price it, save it, and compare it with its controls."""

    data: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = None
    """A data set that `dpmf data list` knows, or a file of ratings."""
    test_fraction: float = 0.1
    """Share of the ratings held out at random, from 0 to below 1."""
    split_seed: int = 0
    """Seed of the random split."""
    implicit: bool = False
    """Learn from who has seen what alone. [where a file has two columns]"""
    holdout_users: float | None = None
    """With --implicit, share or number of users held out whole, 80% of whose items the model is
    shown. [0.1]
    """
    seed: int | None = None
    """Seed of an experiment, whose model must not be released. [a secret key]"""
    patience: int | None = None
    """Stop after so many steps without a lower training RMSE; not private. [never]"""
    controls: Literal["all", "simple", "none"] = "all"
    """Baselines: simple are means and popularity; all adds a factorisation and, for als and means,
    no release, means alone and no noise.
    """
    out: Path | None = None
    """Folder of the model, which must be new. [one in runs/]"""
    population: str | None = None
    """Name of the people whose ratings these are: their releases add up in the ledger, see dpmf
    budget show --help. [the data set's name]
    """
    resume: Path | None = None
    """Go on with the interrupted run in this folder; needs no other flag."""
    catalogue_users: Path | None = None
    """File with the id of every possible user, one a line. Required where the guarantee hides who
    rated what. [the users who rate]
    """
    catalogue_items: Path | None = None
    """File with the id of every possible item, likewise."""
    layout: Literal["auto", "split", "dense", "stream"] = "auto"
    """How ratings lie on the device; stream reads them in blocks from files, where they are larger
    than its memory.
    """
    devices: int | None = None
    """Number of devices; a CPU has one per core. [all; of paper 002 one]"""
    accept_no_guarantee: bool = False
    """Fit and release with a mechanism that promises no privacy."""
    json: bool = False
    """Print one JSON object on stdout."""

    @classmethod
    def earlier(cls, words: Sequence[str]) -> Path | None:
        """See `MechanismFlag.earlier`: the folder to go on with."""
        for word, following in itertools.pairwise([*words, ""]):
            flag, _, value = word.partition("=")
            if flag == "--resume":
                return Path(value or following)
        return None


def run(command: Command) -> None:
    from dpmf_jax.devices import hosts

    try:
        devices.join(
            command, json.dumps(console.plain(dataclasses.asdict(command) | {"process_id": None}))
        )
        if command.resume:
            command = resume.original_command(command, Command)
        check_named(command)
        command = implicit.taken(command, Command)
        result = fit(command)
    except hosts.Lost:
        console.unmute()  # it may have been the first that is gone
        raise
    console.emit(result, json=command.json, render=report.render)
    if result["diverged"]:
        # So it does in all processes: one that left at once would take the others with it.
        console.abrupt = False
        raise _diverged(result)


def _diverged(result: Mapping[str, Any]) -> DpmfError:
    """The error of a run that diverged. Its model is kept and its result printed."""
    from dpmf_jax.training import fit as fitting

    low, high = result["settings"]["rating_range"]
    spent = "" if result["guarantee"]["seeded"] else "the model is kept, since its ε is spent; "
    return fitting.Diverged(
        f"the training diverged: its RMSE is {result['rmse_train']:.4g} on training ratings, where"
        f" any constant from {low:g} to {high:g} errs by at most {high - low:g}",
        where=result["out"],
        fix=f"{spent}lower --learning-rate, or add less noise (a larger ε, fewer steps)",
    )


def fit(command: Command) -> dict[str, Any]:
    """The result of `dpmf fit`, not printed; its keys are those of --json."""
    from dpmf_jax.devices import hosts
    from dpmf_jax.training import by_name, implicit_controls, resolve
    from dpmf_jax.training import fit as fitting
    from dpmf_jax.training.controls import names_of

    resolve.check_accepted(table()[command.mechanism], command.accept_no_guarantee)
    implicit.check(command)
    resolve.check_population(command.population)
    check_shared(command)
    check_streamed(command)
    spec = table()[command.mechanism]
    one = spec.access == "in order" or command.layout == "stream"
    num_devices = devices.use(1 if one and command.devices is None else command.devices)
    train, test = read(command)
    with hosts.together():
        if hosts.first():
            by_name.check_ledger(command.seed, str(command.data))
        flags = fit_mechanisms.chosen(command)
        phases, settings = fit_mechanisms.phases_and_settings(
            command.mechanism, flags, train, public_file(command)
        )
        compare = {}
        if command.controls == "all":
            compare = fit_mechanisms.comparisons(
                command.mechanism, flags, train, settings, public_file(command)
            )
    names = ("holdout_users",) if spec.implicit else ("test_fraction", "split")
    settings |= {name: getattr(command, name) for name in (*names, "split_seed")}
    mechanism, steps = phases[-1]
    out = command.resume or command.out or new_folder(command.data, command.mechanism)
    judge, controls = None, names_of("none")
    if spec.implicit:
        judge = implicit_controls.judge(train, test, command.controls, seed=command.split_seed)
    else:
        controls = names_of(command.controls)
    with console.progress(f"fit {train.name}", steps) as show:
        try:
            model = fitting.fit(
                train,
                mechanism,
                num_steps=steps,
                earlier=phases[:-1],
                seed=command.seed,
                test=None if spec.implicit else test,
                judge=judge,
                out=out,
                resume=command.resume is not None,
                settings=settings,
                command=console.plain(dataclasses.asdict(command)),
                patience=command.patience,
                controls=controls,
                compare=compare,
                layout_kind=command.layout,
                num_devices=num_devices,
                report=lambda now: show(
                    now.step, **({} if judge else {"rmse": now.rmse}), epsilon=now.epsilon
                ),
            )
        except fitting.Interrupted as stopped:
            console.say(str(stopped))
            raise console.Interrupted(resume.resuming_command(command, out)) from None
        except CannotWrite as refused:
            if (out / "private" / "run.json").exists():
                refused.fix = f"free some space, then {resume.resuming_command(command, out)}"
            raise
    assert model.metrics is not None
    guarantee, public = model.guarantee, report.presence_is_public(model.guarantee)
    return {
        "data": train.name,
        "mechanism": command.mechanism,
        **model.metrics,
        "definitions": implicit.DEFINITIONS if spec.implicit else report.DEFINITIONS,
        "presence_is_public": public,
        "utility": (
            implicit.utility(model.metrics)
            if spec.implicit
            else report.utility(model.metrics, presence_is_public=public)
        ),
        "guarantee": (
            guarantee.to_dict()
            | {
                "statement": guarantee.statement,
                "accountants": dict(guarantee.accountants),
            }
        ),
        "shuffled": spec.second_price(settings, train.num_users, getattr(flags, "delta", 0.0)),
        "bytes": spec.traffic(settings, train.num_users, train.num_items),
        "settings": settings,
        "notes": [*train.notes, *spec.notes(settings, model.release), *_notes_of_processes(train)],
        "out": str(out),
        "ledger": enter(out, model, str(command.data)) if hosts.first() else None,
    }


def _notes_of_processes(train: Any) -> list[str]:
    from dpmf_jax.devices import hosts

    if hosts.count() == 1:
        return []
    held = (
        f"{train.num_ratings:,} training ratings are held by this process, of whose ratings the"
        " notes are"
    )
    return [held, f"{hosts.count()} processes exchanged sums without noise, unencrypted"]


def check_shared(command: Command) -> None:
    """Raises: UsageError for what several processes cannot do together."""
    if not command.distributed:
        return
    if table()[command.mechanism].access in ("in order", "by item"):
        raise UsageError(
            f"--mechanism {command.mechanism} goes through ratings one after the other, in one"
            " process",
            fix="leave out --distributed",
        )
    if command.slice:
        raise UsageError(
            "--slice looks at all ratings, and a process has those of its own users only",
            fix="dpmf data convert first, with --slice, and give the file",
        )
    if command.layout in ("dense", "stream"):
        raise UsageError(
            f"several processes cannot share a {command.layout} layout", fix="leave out --layout"
        )


def check_streamed(command: Command) -> None:
    """Raises: UsageError for a mechanism whose ratings must be in place."""
    dynamic = " --dynamic" * getattr(command, "dynamic", False)
    if command.layout == "stream" and (table()[command.mechanism].access != "sums" or dynamic):
        raise UsageError(
            f"--mechanism {command.mechanism}{dynamic} needs more of streamed ratings than sums",
            fix="leave out --layout",
        )


def enter(out: Path, model: Any, data: str) -> str | None:
    """The path of the ledger of `dpmf budget` in which the release is entered.

    None where there is nothing to enter: a seeded experiment, no release, generated ratings. None
    too where the ledger cannot be written: the model is not lost for that. A message then says so,
    with the command that enters the release later.
    """
    from dpmf_jax.data import datasets

    nothing = all(part is None for part in model.release)
    if model.guarantee.seeded or nothing or datasets.SYNTHETIC.fullmatch(data):
        return None
    try:
        from dpmf_jax.models import ledger

        # The run that this one resumed may have entered it.
        with contextlib.suppress(ledger.Entered):
            ledger.record(out)
    except (DpmfError, ImportError) as error:
        what = (
            error.what
            if isinstance(error, DpmfError)
            else f"this system has no file locks ({error})"
        )
        where = error.where if isinstance(error, DpmfError) else ""
        console.print_error(f"the model is saved, its release is in no ledger: {what}", where=where)
        console.say(f"later: dpmf budget add {shlex.quote(str(out))}")
        return None
    return str(ledger.ledger_path())


def new_folder(data: str | None, mechanism: str) -> Path:
    """The first free runs/NAME-MECHANISM-N."""
    stem = Path(data or "run").name.split(".")[0]
    for number in itertools.count(1):
        folder = Path("runs") / f"{stem}-{mechanism}-{number}"
        if not folder.exists():
            return folder
    raise AssertionError
