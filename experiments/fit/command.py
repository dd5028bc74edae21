"""`dpmf fit`: from a ratings file to a priced, released model, with its controls beside it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dpmf_jax.errors import CannotWrite, DataError, DpmfError, PrivacyError, UsageError
from dpmf_jax.mechanisms import table
from experiments.cli import console, devices
from experiments.fit import mechanisms as fit_mechanisms
from experiments.fit.flags import DEFAULT, MechanismFlag, RatingsFlags, public_file, with_flags_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(devices.ProcessFlags, RatingsFlags, MechanismFlag):
    """Fit a model of a ratings matrix, price it, save it, and compare it with its controls."""

    data: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = None
    """A data set that `dpmf data list` knows, or a file of ratings."""
    test_fraction: float = 0.1
    """Share of the ratings held out at random."""
    split_seed: int = 0
    """Of the random split."""
    seed: int | None = None
    """Makes an experiment that can be repeated, not to be released. Without it the operating system
    gives the key.
    """
    patience: int | None = None
    """Stop after so many steps without a new minimum of the training RMSE. Not private."""
    controls: Literal["all", "simple", "none"] = "all"
    """Baselines beside the model: all (with a biased factorisation), simple (means and popularity),
    none.
    """
    out: Path | None = None
    """Folder of the model; by default a new one under runs/. Never overwritten."""
    population: str | None = None
    """Name of those whose ratings these are; without it the data set's name. In the ledger all
    releases of a population add up, whatever their data: give the same name to data of the same
    people. See dpmf budget show --help.
    """
    resume: Path | None = None
    """Folder of an interrupted run to go on with; needs no other flag."""
    catalogue_users: Path | None = None
    """Every user there could be, one id a line; without it the users who rate. Needed where the
    relation covers who rated what.
    """
    catalogue_items: Path | None = None
    """Every item there could be, likewise."""
    layout: Literal["auto", "split", "dense", "stream"] = "auto"
    """How ratings are laid out on the device; stream: in blocks from files, for ratings larger than
    the device.
    """
    devices: int | None = None
    """Number of devices; all by default (a CPU counts one per core), one for paper 002."""
    accept_no_guarantee: bool = False
    """Fit and release without any guarantee of privacy; for a mechanism that has none."""
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
        command = _resumed(command) if command.resume else command
        if command.data is None:
            raise UsageError(
                "no data set is named",
                fix="dpmf fit DATA, for example dpmf fit synthetic; or --resume FOLDER",
            )
        result = fit(command)
    except hosts.Lost:
        console.unmute()  # it may have been the first that is gone
        raise
    console.emit(result, json=command.json, render=render)
    if result["diverged"]:
        raise _diverged(result)


def _diverged(result: Mapping[str, Any]) -> DpmfError:
    """What is said of a run that diverged, after all that it made was kept and printed."""
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
    """Everything that `dpmf fit` does but the printing; the keys of the result are the command's
    JSON interface.
    """
    from dpmf_jax.devices import hosts
    from dpmf_jax.training import fit as fitting
    from dpmf_jax.training.controls import NAMES

    check_accepted(command)
    check_population(command)
    check_shared(command)
    check_streamed(command)
    spec = table()[command.mechanism]
    one = spec.access == "in order" or command.layout == "stream"
    num_devices = devices.use(1 if one and command.devices is None else command.devices)
    train, test = read(command)
    with hosts.together():
        flags = fit_mechanisms.chosen(command)
        phases, settings = fit_mechanisms.phases_and_settings(
            command.mechanism, flags, train, public_file(command)
        )
    settings |= {name: getattr(command, name) for name in ("test_fraction", "split", "split_seed")}
    mechanism, steps = phases[-1]
    out = command.resume or command.out or new_folder(command)
    controls = {
        "all": NAMES,
        "simple": tuple(name for name in NAMES if name != "biased_mf"),
        "none": (),
    }
    with console.progress(f"fit {train.name}", steps) as report:
        try:
            model = fitting.fit(
                train,
                mechanism,
                num_steps=steps,
                earlier=phases[:-1],
                seed=command.seed,
                test=test,
                out=out,
                resume=command.resume is not None,
                settings=settings,
                command=console.plain(dataclasses.asdict(command)),
                patience=command.patience,
                controls=controls[command.controls],
                layout_kind=command.layout,
                num_devices=num_devices,
                report=lambda now: report(now.step, rmse=now.rmse, epsilon=now.epsilon),
            )
        except fitting.Interrupted as stopped:
            console.say(str(stopped))
            raise console.Interrupted(_resume(command, out)) from None
        except CannotWrite as refused:
            if (out / "private" / "run.json").exists():
                refused.fix = f"free some space, then {_resume(command, out)}"
            raise
    assert model.metrics is not None
    guarantee = model.guarantee
    return {
        "data": train.name,
        "mechanism": command.mechanism,
        **model.metrics,
        "definitions": DEFINITIONS,
        "presence_is_public": presence_is_public(guarantee),
        "utility": utility(model.metrics, presence_is_public=presence_is_public(guarantee)),
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
        "notes": [*train.notes, *spec.notes(settings), *_of_several(train)],
        "out": str(out),
        "ledger": enter(out, model, str(command.data)) if hosts.first() else None,
    }


def _resume(command: Command, out: Path) -> str:
    """The command that goes on with the run in a folder."""
    several = ["--distributed", "--processes", "1"] if command.distributed else []
    return shlex.join(["dpmf", "fit", "--resume", str(out), *several])


def _of_several(train: Any) -> list[str]:
    from dpmf_jax.devices import hosts

    if hosts.count() == 1:
        return []
    held = (
        f"{train.num_ratings:,} training ratings are held by this process, of whose ratings the"
        " notes are"
    )
    return [held, f"{hosts.count()} processes exchanged sums without noise, unencrypted"]


def check_population(command: Command) -> None:
    """Raises: UsageError for a name that the ledger would refuse after the fit."""
    if command.population is not None:
        from accounting.ledger import check_name

        with console.usage_errors(
            where="--population", fix="give a name, such as --population shop"
        ):
            check_name("population", command.population)


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
            "--slice looks at all ratings, of which a process has its own only",
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


def check_accepted(command: Command) -> None:
    """Raises: PrivacyError for a release without a guarantee that was not asked for; UsageError for
    a needless flag.
    """
    unsafe, accepted = table()[command.mechanism].unsafe, command.accept_no_guarantee
    if accepted and not unsafe:
        raise UsageError(
            f"--accept-no-guarantee means nothing to --mechanism {command.mechanism}",
            fix="leave out --accept-no-guarantee",
        )
    if unsafe and not accepted:
        what, where, fix = unsafe
        raise PrivacyError(what, where=where, fix=fix)


def enter(out: Path, model: Any, data: str) -> str | None:
    """Enters the release in the ledger of `dpmf budget`, and says where that is.

    None where there is nothing to enter: an experiment, no release, generated ratings. A ledger
    that cannot be written is no reason to lose a model: that is said, with the command that enters
    it later.
    """
    from dpmf_jax.data import datasets

    nothing = all(part is None for part in model.release)
    if model.guarantee.seeded or nothing or datasets.SYNTHETIC.fullmatch(data):
        return None
    try:
        from experiments.cli import budget as budget_command

        with contextlib.suppress(
            budget_command.Entered
        ):  # before, by the run that this one resumed
            budget_command.record(out)
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
    return str(budget_command.ledger_path())


DEFINITIONS = {
    "rmse_train": (
        "root mean squared error on training ratings, predictions not clipped, as in the paper's"
        " figures"
    ),
    "rmse_test": (
        "on held-out ratings, predictions clipped to the declared rating range; null where none is"
        " held out"
    ),
    "controls": (
        "not private: predicting the global mean, each item's mean, and a biased matrix"
        " factorisation, clipped; popularity, the number of an item's ratings, only ranks, and is"
        " free where who rated what is public"
    ),
    "ndcg_at_10": (
        "of the items that a user has not rated in training, ranked by score, unclipped; relevant"
        " are all that are held out; mean over users with any, of many users and items over a"
        " sample, alike for the controls"
    ),
    "ranks_alike": "whether the model has one order of items for all users",
    "presence_is_public": (
        "whether the guarantee has who rated what public; popularity then costs no privacy"
    ),
}


def read(command: Command) -> tuple[Any, Any]:
    """(train, test) as the flags say; test is None where nothing is held out."""
    from dpmf_jax.data import datasets, splits

    if command.data is None:
        raise UsageError(
            "no data set is named",
            fix="dpmf fit DATA, for example dpmf fit synthetic; or --resume FOLDER",
        )
    catalogue = {"users": command.catalogue_users, "items": command.catalogue_items}
    unit, generated = table()[command.mechanism].unit, datasets.SYNTHETIC.fullmatch(command.data)
    per_user, own = unit == "user", unit in ("user", "rating presence")
    presence = own or getattr(command, "relation", None) == "rating-presence"
    what = f"the guarantee of {command.mechanism}" if own else "the relation rating-presence"
    less = "give --seed for an experiment" if own else "use --relation rating-value"
    if (
        presence
        and None in catalogue.values()
        and not generated
        and not (own and command.seed is not None)
    ):
        raise PrivacyError(
            f"{what} needs a declared catalogue",
            where="users and items read off the ratings show who has a rating at all",
            fix=f"give --catalogue-users FILE and --catalogue-items FILE, one id a line; or {less}",
        )
    if presence and (command.slice or (command.duplicates != "refuse" and not per_user)):
        flag = "--slice" if command.slice else "--duplicates"
        raise PrivacyError(
            f"{what} does not go with {flag}",
            where="one row more may then change or move other ratings",
            fix=f"leave out {flag}" + ("" if own else ", or use --relation rating-value"),
        )
    if not 0 <= command.test_fraction < 1:
        raise UsageError(
            "--test-fraction must be at least 0 and below 1",
            where=f"--test-fraction {command.test_fraction}",
            fix="--test-fraction 0.1, or 0 to hold out nothing",
        )
    loaded = datasets.load(
        command.data,
        data_dir=command.data_dir,
        split=command.split,
        rating_range=command.rating_range,
        user_column=command.user_column,
        item_column=command.item_column,
        rating_column=command.rating_column,
        delimiter=command.delimiter,
        no_header=command.no_header,
        duplicates=command.duplicates,
        out_of_range=command.out_of_range,
        slice=command.slice,
        shared=command.distributed,
        **{name: _ids(path) for name, path in catalogue.items() if path is not None},
    )
    if isinstance(loaded, tuple):
        return loaded
    if command.test_fraction == 0:
        return loaded, None
    split = (
        splits.by_pair if presence or command.distributed else splits.random
    )  # by what a process can see
    return split(loaded, fraction=command.test_fraction, seed=command.split_seed)


def _ids(path: Path) -> list[str]:
    """The lines of a file, as ids."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the catalogue cannot be read: {error}",
            where=str(path),
            fix="give a text file with one id a line",
        ) from None
    return [line.strip() for line in lines if line.strip()]


def new_folder(command: Command) -> Path:
    """The first free runs/NAME-MECHANISM-N."""
    stem = Path(command.data or "run").name.split(".")[0]
    for number in itertools.count(1):
        folder = Path("runs") / f"{stem}-{command.mechanism}-{number}"
        if not folder.exists():
            return folder
    raise AssertionError


_OF_THE_PROCESS = ("coordinator", "processes", "process_id", "lost_after")
_PATHS = ("items", "users", "data_dir", "catalogue_users", "catalogue_items")


def _resumed(command: Command) -> Command:
    """The command of the interrupted run; a flag that says otherwise is refused."""
    from dpmf_jax.devices import hosts
    from dpmf_jax.models import files as model_file
    from dpmf_jax.models import storage

    assert command.resume is not None
    where = command.resume / "private" / "run.json"
    if command.resume.is_file():
        raise DataError(
            "there is no such run",
            where=str(command.resume),
            fix="give the folder that --out named",
        )
    model_file.refuse_lost(command.resume)
    saved = hosts.result_of_first(lambda: storage.read_json(where)).get("command", {})
    mechanism = saved.get("mechanism", DEFAULT)
    if command.mechanism not in (DEFAULT, mechanism):
        raise _other("mechanism", mechanism, command.mechanism, where)
    kind = with_flags_of(Command, mechanism)
    fields: dict[str, Any] = {"mechanism": mechanism}
    for field in dataclasses.fields(kind):
        if field.name == "mechanism":
            continue
        given = getattr(command, field.name, field.default)
        if field.name in ("resume", "json", "devices", "layout", "out", *_OF_THE_PROCESS):
            fields[field.name] = given
            continue
        value = saved.get(field.name, field.default)
        if given != field.default and console.plain(given) != value:
            raise _other(field.name, value, given, where)
        is_path = value is not None and field.name in _PATHS
        fields[field.name] = (
            Path(value) if is_path else tuple(value) if isinstance(value, list) else value
        )
    if saved.get("distributed", False) and not command.distributed:
        raise UsageError(
            "the run was started with --distributed, which holds out other ratings",
            where=str(where),
            fix="add --distributed; --processes 1 where one process is enough",
        )
    return kind(**fields)


def _other(name: str, was: Any, now: Any, where: Path) -> PrivacyError:
    return PrivacyError(
        f"--{name.replace('_', '-')} was {was} when the run was started, now {now}",
        where=str(where),
        fix="resume without this flag, or start a new run",
    )


def presence_is_public(guarantee: Any) -> bool:
    """Whether the guarantee has who rated what public, so that popularity costs nothing."""
    return guarantee.status != "none" and guarantee.unit == "rating value"


def utility(metrics: Mapping[str, Any], *, presence_is_public: bool = False) -> str:
    """What is true of its use: whether it beats its controls, on held-out ratings where there are
    any; its order.
    """
    if metrics.get("diverged"):
        return (
            "DIVERGED: on its own training ratings the model is worse than any constant of the"
            " declared range"
        )
    if not metrics["controls"]:
        return "no control was asked for"
    return "; ".join((_errors(metrics), *_order(metrics, presence_is_public)))


def _errors(metrics: Mapping[str, Any]) -> str:
    side = "rmse_test" if metrics["rmse_test"] is not None else "rmse_train"
    ours, where = metrics[side], "held-out" if side == "rmse_test" else "training"
    errors = {
        name: values[side]
        for name, values in metrics["controls"].items()
        if values[side] is not None
    }
    beaten = [name for name, error in errors.items() if error > ours]
    simple = [name for name in ("global_mean", "item_means") if name in errors]
    text = {
        "global_mean": "the global mean",
        "item_means": "item means",
        "biased_mf": "a non-private factorisation",
    }
    if all(name in beaten for name in simple):
        names = " and ".join(text[name] for name in beaten)
        little = (
            "; that says little: hold some out (--test-fraction 0.1)" if where == "training" else ""
        )
        return f"beats {names} on {where} ratings{little}"
    lost = " or ".join(text[name] for name in simple if name not in beaten)
    return (
        f"NOT USEFUL: does not beat predicting {lost} on {where} ratings; such a model is worse"
        " than no factorisation"
    )


def _order(metrics: Mapping[str, Any], presence_is_public: bool) -> list[str]:
    """What is to be said of the model's ranking."""
    said = []
    ours, popular = (
        metrics.get("ndcg_at_10"),
        metrics["controls"].get("popularity", {}).get("ndcg_at_10"),
    )
    if ours is not None and popular is not None:
        free = (
            ", which is free here: who rated what is public"
            if presence_is_public
            else ", which is not private"
        )
        worse, figures = ours <= popular, f"({ours:.4f} against {popular:.4f} in NDCG@10)"
        said.append(
            f"ranks {'no better' if worse else 'better'} than popularity"
            f" {figures}{free if worse else ''}"
        )
    if metrics.get("ranks_alike"):
        said.append(
            "ranks items alike for all users: it recommends everyone the same, but for what they"
            " have rated"
        )
    return said


def _sent(traffic: Mapping[str, Any]) -> str:
    routes = ", ".join(f"{route} {count:,}" for route, count in traffic["per_iteration"].items())
    return (
        f"bytes in an iteration, of a user who lists {traffic['items_listed_by_a_user']} items:"
        f" {routes}"
    )


def render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table(title=f"{result['mechanism']} on {result['data']}")
    for heading in ("", "private", "RMSE train", "RMSE held-out", "NDCG@10"):
        table.add_column(heading, justify="left" if not heading else "right")

    def numbers(values: Mapping[str, Any]) -> Iterator[str]:
        for name in ("rmse_train", "rmse_test", "ndcg_at_10"):
            yield "-" if values[name] is None else f"{values[name]:.4f}"

    status = result["guarantee"]["status"]
    private = {"proved": "yes, proved", "claimed": "claimed only", "none": "no"}.get(
        status, f"yes, {status}"
    )
    table.add_row("this model", private, *numbers(result))
    for name, values in result["controls"].items():
        free = name == "popularity" and result["presence_is_public"]
        table.add_row(name.replace("_", " "), "public here" if free else "no", *numbers(values))
    seconds = result["seconds_per_step"]
    pace = "" if seconds is None else f", {1e3 * seconds:.2f} ms a step"
    lines = [
        "for the curator: the numbers above are computed from the ratings and are not priced",
        (
            "train of this model: predictions not clipped, as in the paper; all others: clipped to"
            " the declared range"
        ),
        "",
        result["guarantee"]["statement"],
        "",
        *([f"beside it: {result['shuffled']['statement']}", ""] if result["shuffled"] else []),
        *([_sent(result["bytes"]), ""] if result["bytes"] else []),
        f"utility: {result['utility']}",
        (
            f"{result['steps']} step{'s' * (result['steps'] != 1)} on {result['device']}{pace};"
            f" {result['layout']}"
        ),
        *(f"note: {note}" for note in result["notes"]),
        f"saved in {result['out']} (what may be shown stands outside private/)",
    ]
    if result["ledger"]:
        lines.append(
            f"entered in the ledger {result['ledger']}: dpmf budget show says what all releases"
            " cost together"
        )
    return Group(table, "\n".join(lines))
