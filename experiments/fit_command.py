"""`dpmf fit`: from a ratings file to a priced, released model, with its controls beside it."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dpmf_jax.errors import DataError, DpmfError, PrivacyError, UsageError
from experiments import console, devices

NOISY_MEANS = "noisy-means"  # of --center
MechanismName = Literal["gaussian", "gaussian-joint-noise", "gaussian-public-items", "non-private"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults:
    """Settings of a mechanism where the flags say nothing."""

    rank: int
    steps: int
    learning_rate: float
    regularization: float
    epsilon_step: float | None = None
    epsilon: float | None = None
    residual_clip: float | None = None
    center: str | None = None


def defaults(mechanism: str, num_users: int, num_items: int, rating_range: tuple[float, float]) -> Defaults:
    """From public sizes alone. The paper's own for what it published; the sound ones were searched on generated data
    (experiments/DEFAULTS.md). A row of a gradient sums at most as many ratings as the other side has rows, which bounds
    the step size at which the descent is stable.
    """
    widest, span = max(num_users, num_items), rating_range[1] - rating_range[0]
    paper = Defaults(rank=20, steps=791, learning_rate=5e-4, regularization=0.01)
    return {
        "gaussian": dataclasses.replace(paper, epsilon_step=0.15),
        "gaussian-joint-noise": Defaults(
            rank=2, steps=20, learning_rate=3 / widest, regularization=1.0, epsilon=3.0, residual_clip=span / 4
        ),
        "gaussian-public-items": Defaults(
            rank=1,
            steps=30,
            learning_rate=2 / widest,
            regularization=1.0,
            epsilon=3.0,
            residual_clip=span / 4,
            center=NOISY_MEANS,
        ),
        "non-private": paper,
    }[mechanism]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Fit a model of a ratings matrix, price it, save it, and compare it with its controls."""

    data: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = None
    """A data set that `dpmf data list` knows, or a file of ratings."""
    mechanism: MechanismName = "gaussian-joint-noise"
    """gaussian is as published (claimed, not proved), the next two are sound, non-private protects nothing."""
    rank: int | None = None
    """Number of factors; like all settings whose default is None, the mechanism's own (experiments/DEFAULTS.md)."""
    epsilon_step: float | None = None
    """Noise of a step as paper 001 writes it: sigma = sensitivity * sqrt(2 ln(1.25 / delta_step)) / epsilon_step."""
    delta_step: float = 0.01
    """Goes with --epsilon-step; a way to write sigma, not a price."""
    epsilon: float | None = None
    """Total epsilon: the noise is solved for it, on the safe side; 3 by default for the two sound mechanisms."""
    delta: float = 1e-5
    """Delta of the total."""
    steps: int | None = None
    """Number of steps, fixed up front; 20 for joint-noise, 30 for public-items, 791 for the other two."""
    tau: float | None = None
    """Largest change of one rating; by default the width of the rating range (the paper's figures: 5 on MovieLens)."""
    center: str | None = None
    """What is subtracted from the ratings: a number, none; noisy-means: item means with noise, which are a part of the
    price (sound mechanisms; public-items' default); item or global: unpriced means (gaussian, non-private)."""
    center_share: float = 0.5
    """Share of the price (in rho) that --center noisy-means takes."""
    learning_rate: float | None = None
    """Step size of gradient descent."""
    regularization: float | None = None
    """Weight of the squared norms of the factors."""
    clip_norm: float = 1.0
    """Bound on a factor row's norm where it enters a gradient."""
    relation: Literal["rating-value", "rating-presence"] = "rating-value"
    """What is protected: one rating's value, or (sound mechanisms, with --residual-clip) that it is there at all."""
    residual_clip: float | None = None
    """Bound on a rating's residual where it enters a gradient; the sound ones take a quarter of the range."""
    items: Path | None = None
    """Public item factors for gaussian-public-items: csv (item id, then one column a factor), npy or safetensors."""
    test_fraction: float = 0.1
    """Share of the ratings held out at random."""
    split: str | None = None
    """An official split of the data set instead, such as u1."""
    split_seed: int = 0
    """Of the random split."""
    seed: int | None = None
    """Makes an experiment that can be repeated, not to be released. Without it the operating system gives the key."""
    patience: int | None = None
    """Stop after so many steps without a new minimum of the training RMSE. Not private."""
    controls: Literal["all", "simple", "none"] = "all"
    """Baselines beside the model: all (with a biased factorisation), simple (means only), none."""
    out: Path | None = None
    """Folder of the model; by default a new one under runs/. Never overwritten."""
    resume: Path | None = None
    """Folder of an interrupted run to go on with; needs no other flag."""
    data_dir: Path | None = None
    """Where the data sets are; else the environment's DPMF_DATA."""
    rating_range: tuple[float, float] | None = None
    """Lowest and highest rating of your own file: declared, never computed."""
    user_column: str | None = None
    """Column of the user ids in your own file."""
    item_column: str | None = None
    """Column of the item ids."""
    rating_column: str | None = None
    """Column of the ratings."""
    delimiter: str | None = None
    """Between the columns of a text file."""
    duplicates: Literal["refuse", "first", "last", "mean"] = "refuse"
    """What to do with two ratings of one item by one user."""
    out_of_range: Literal["refuse", "drop", "clip"] = "refuse"
    """What to do with a rating outside the declared range."""
    catalogue_users: Path | None = None
    """Every user there could be, one id a line; without it the users who rate. Needed for rating-presence."""
    catalogue_items: Path | None = None
    """Every item there could be, likewise."""
    slice: Literal["paper001"] | None = None
    """Paper 001's rule: users with 201 to 2,499 ratings, then items with more than 100."""
    layout: Literal["auto", "split", "dense"] = "auto"
    """How ratings are laid out on the device."""
    devices: int | None = None
    """Number of devices; all by default (a CPU counts one per core)."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    command = _resumed(command) if command.resume else command
    if command.data is None:
        raise UsageError(
            "no data set is named", fix="dpmf fit DATA, for example dpmf fit synthetic; or --resume FOLDER"
        )
    result = fit(command)
    console.emit(result, json=command.json, render=render)


def fit(command: Command) -> dict[str, Any]:
    """Everything that `dpmf fit` does but the printing; the keys of the result are the command's JSON interface."""
    from dpmf_jax import fitting

    num_devices = devices.use(command.devices)
    train, test = read(command)
    phases, settings = mechanism(command, train)
    made, steps = phases[-1]
    out = command.resume or command.out or new_folder(command)
    labels = ("global_mean", "item_means", "biased_mf")
    controls = {"all": labels, "simple": labels[:2], "none": ()}[command.controls]
    with console.progress(f"fit {train.name}", steps) as report:
        try:
            model = fitting.fit(
                train,
                made,
                num_steps=steps,
                earlier=phases[:-1],
                seed=command.seed,
                test=test,
                out=out,
                resume=command.resume is not None,
                settings=settings,
                command=console.plain(dataclasses.asdict(command)),
                patience=command.patience,
                controls=controls,
                layout_kind=command.layout,
                num_devices=num_devices,
                report=lambda now: report(now.step, rmse=now.rmse, epsilon=now.epsilon),
            )
        except fitting.Interrupted as stopped:
            console.say(str(stopped))
            raise console.Interrupted(shlex.join(["dpmf", "fit", "--resume", str(out)])) from None
    assert model.metrics is not None
    guarantee = model.guarantee
    return {
        "data": train.name,
        "mechanism": command.mechanism,
        **model.metrics,
        "definitions": DEFINITIONS,
        "utility": utility(model.metrics),
        "guarantee": guarantee.to_dict()
        | {"statement": guarantee.statement, "accountants": dict(guarantee.accountants)},
        "settings": settings,
        "notes": list(train.notes),
        "out": str(out),
        "ledger": enter(out, model, str(command.data)),
    }


def enter(out: Path, model: Any, data: str) -> str | None:
    """Enters the release in the ledger of `dpmf budget`, and says where that is.

    None where there is nothing to enter: an experiment, no release, generated ratings. A ledger that cannot be written
    is no reason to lose a model: that is said, with the command that enters it later.
    """
    from dpmf_jax import datasets

    nothing = all(part is None for part in model.release)
    if model.guarantee.seeded or nothing or datasets.SYNTHETIC.fullmatch(data):
        return None
    try:
        from experiments import budget_command

        budget_command.record(out)
    except UsageError:
        return str(budget_command.ledger_path())  # entered before, by the run that this one resumed
    except (DpmfError, ImportError) as error:
        what = error.what if isinstance(error, DpmfError) else f"this system has no file locks ({error})"
        where = error.where if isinstance(error, DpmfError) else ""
        console.print_error(f"the model is saved, its release is in no ledger: {what}", where=where)
        console.say(f"later: dpmf budget add {shlex.quote(str(out))}")
        return None
    return str(budget_command.ledger_path())


DEFINITIONS = {
    "rmse_train": "root mean squared error on training ratings, predictions not clipped, as in the paper's figures",
    "rmse_test": "on held-out ratings, predictions clipped to the declared rating range; null where none is held out",
    "controls": "not private: predicting the global mean, each item's mean, and a biased matrix factorisation; clipped",
}


def read(command: Command) -> tuple[Any, Any]:
    """(train, test) as the flags say; test is None where nothing is held out."""
    from dpmf_jax import datasets, splits

    if command.data is None:
        raise UsageError(
            "no data set is named", fix="dpmf fit DATA, for example dpmf fit synthetic; or --resume FOLDER"
        )
    catalogue = {"users": command.catalogue_users, "items": command.catalogue_items}
    presence, generated = command.relation == "rating-presence", datasets.SYNTHETIC.fullmatch(command.data)
    if presence and None in catalogue.values() and not generated:
        raise PrivacyError(
            "the relation rating-presence needs a declared catalogue",
            where="users and items read off the ratings show who has a rating at all",
            fix="give --catalogue-users FILE and --catalogue-items FILE, one id a line; or use --relation rating-value",
        )
    if presence and (command.slice or command.duplicates != "refuse"):
        flag = "--slice" if command.slice else "--duplicates"
        raise PrivacyError(
            f"the relation rating-presence does not go with {flag}",
            where="one row more may then change or move other ratings",
            fix=f"leave out {flag}, or use --relation rating-value",
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
        duplicates=command.duplicates,
        out_of_range=command.out_of_range,
        slice=command.slice,
        **{name: _ids(path) for name, path in catalogue.items() if path is not None},
    )
    if isinstance(loaded, tuple):
        return loaded
    if command.test_fraction == 0:
        return loaded, None
    split = splits.by_pair if presence else splits.random
    return split(loaded, fraction=command.test_fraction, seed=command.split_seed)


def _ids(path: Path) -> list[str]:
    """The lines of a file, as ids."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the catalogue cannot be read: {error}", where=str(path), fix="give a text file with one id a line"
        ) from None
    return [line.strip() for line in lines if line.strip()]


def mechanism(command: Command, train: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, their public settings) as the flags say; a phase is (Mechanism, number of steps), the last one trains.

    Raises: UsageError for flags that contradict each other; PrivacyError for what a guarantee does not allow.
    """
    name = command.mechanism
    usual = defaults(name, train.num_users, train.num_items, tuple(train.rating_range))
    steps = usual.steps if command.steps is None else command.steps
    if steps < 1:
        raise UsageError(f"--steps must be at least 1; got {steps}", fix="--steps 100")
    items = None
    rank = command.rank
    if command.items is not None:
        if name != "gaussian-public-items":
            raise UsageError("--items goes with --mechanism gaussian-public-items", fix="leave out one of the two")
        from experiments import item_files

        items = item_files.read(command.items, train.items)
        if rank not in (None, items.shape[1]):
            raise UsageError(
                f"--rank {rank} and {items.shape[1]} factors in the file",
                where=str(command.items),
                fix="leave out --rank",
            )
        rank = items.shape[1]
    center = _center(usual.center if command.center is None else command.center)
    with console.usage_errors(fix=f"dpmf fit --help explains the settings of {name}"):
        noise = _noise(command, usual, steps, center)
    settings = {
        "data": train.name,
        "mechanism": name,
        "steps": steps,
        "rating_range": list(train.rating_range),
        **noise,
        "rank": usual.rank if rank is None else rank,
        "learning_rate": usual.learning_rate if command.learning_rate is None else command.learning_rate,
        "regularization": usual.regularization if command.regularization is None else command.regularization,
        "clip_norm": command.clip_norm,
        "tau": command.tau,
        "center": center,
        "relation": "rating value" if command.relation == "rating-value" else "rating presence",
        "residual_clip": usual.residual_clip if command.residual_clip is None else command.residual_clip,
        "delta": command.delta,
        "items": None if items is None else "public file",
        "test_fraction": command.test_fraction,
        "split": command.split,
        "split_seed": command.split_seed,
    }
    with console.usage_errors(fix=f"dpmf fit --help explains the settings of {name}"):
        made, config = phases(settings, items)
    if config.residual_clip is None and name in ("gaussian-joint-noise", "gaussian-public-items"):
        settings["residual_clip"] = 2 * config.span
    return made, settings


def phases(settings: Mapping[str, Any], items: Any) -> tuple[tuple[Any, ...], Any]:
    """(the phases of a run, the Config of the last one), made of what model.json keeps.

    Raises: KeyError for a mechanism that is not known; ValueError, PrivacyError for what its settings do not allow.
    """
    from dpmf_jax import gaussian, noisy_means

    name = settings["mechanism"]
    names = {field.name for field in dataclasses.fields(gaussian.Config)}
    values: dict[str, Any] = {name: value for name, value in settings.items() if name in names}
    values["rating_range"] = tuple(values["rating_range"])
    noisy = values.get("center") == NOISY_MEANS
    if noisy:
        values["center"] = None
    config = gaussian.Config(**values)
    made = {
        "gaussian": gaussian.mechanism,
        "gaussian-joint-noise": gaussian.joint_noise,
        "gaussian-public-items": lambda config: gaussian.public_items(config, items),
        "non-private": gaussian.non_private,
    }[name](config)
    training = (made, settings["steps"])
    if not noisy:
        return (training,), config
    if name not in ("gaussian-joint-noise", "gaussian-public-items"):
        raise PrivacyError(
            "--center noisy-means goes with the sound mechanisms",
            where=f"--mechanism {name}",
            fix="--mechanism gaussian-joint-noise or gaussian-public-items",
        )
    first = noisy_means.mechanism(
        noisy_means.Config(
            rating_range=config.rating_range,
            noise_multiplier=settings["center_noise_multiplier"],
            tau=config.tau,
            relation=config.relation,
            delta=config.delta,
        )
    )
    return ((first, 1), training), config


def _noise(command: Command, usual: Defaults, steps: int, center: Any) -> dict[str, float | None]:
    """The noise multiplier of a training step, and that of the noisy means where there are some."""
    whole = _noise_multiplier(command, usual, steps)
    if center != NOISY_MEANS:
        return {"noise_multiplier": whole}
    from dpmf_jax import noisy_means

    if whole is None:
        raise PrivacyError(
            "--center noisy-means has a price, and --mechanism non-private has none",
            fix="leave out --center, or give a number, item or global",
        )
    means, training = noisy_means.split(whole, steps, command.center_share)
    return {"noise_multiplier": training, "center_noise_multiplier": means}


def _noise_multiplier(command: Command, usual: Defaults, steps: int) -> float | None:
    from accounting import gaussian as price

    given = [flag for flag in ("epsilon_step", "epsilon") if getattr(command, flag) is not None]
    if command.mechanism == "non-private":
        if given:
            flag = given[0].replace("_", "-")
            raise PrivacyError(
                f"--{flag} asks for privacy, and --mechanism non-private has none",
                fix=f"leave out --{flag}, or choose a private mechanism",
            )
        return None
    if len(given) == 2:
        raise UsageError("--epsilon-step and --epsilon both set the noise", fix="give one of them")
    source = command if given else usual
    if source.epsilon_step is not None:
        return price.noise_multiplier_from_step(source.epsilon_step, command.delta_step)
    assert source.epsilon is not None
    kind = "closed_form" if command.mechanism == "gaussian" else "exact"  # the accountant its guarantee is stated in
    return price.solve_noise_multiplier(source.epsilon, command.delta, steps, price=kind)


def _center(text: str | None) -> Any:
    if text is None or text in ("item", "global", NOISY_MEANS):
        return text
    if text == "none":
        return 0.0
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"--center {text} is not noisy-means, item, global, none or a number", fix="--center 3.5"
        ) from None


def new_folder(command: Command) -> Path:
    """The first free runs/NAME-MECHANISM-N."""
    stem = Path(command.data or "run").name.split(".")[0]
    for number in itertools.count(1):
        folder = Path("runs") / f"{stem}-{command.mechanism}-{number}"
        if not folder.exists():
            return folder
    raise AssertionError


def _resumed(command: Command) -> Command:
    """The command of the interrupted run; a flag that says otherwise is refused."""
    from dpmf_jax import storage

    assert command.resume is not None
    where = command.resume / "private" / "run.json"
    saved = storage.read_json(where).get("command", {})
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(Command):
        given = getattr(command, field.name)
        if field.name in ("resume", "json", "devices", "layout", "out"):
            fields[field.name] = given
            continue
        value = saved.get(field.name, field.default)
        if given != field.default and console.plain(given) != value:
            raise PrivacyError(
                f"--{field.name.replace('_', '-')} was {value} when the run was started, now {given}",
                where=str(where),
                fix="resume without this flag, or start a new run",
            )
        is_path = value is not None and field.name in ("items", "data_dir", "catalogue_users", "catalogue_items")
        fields[field.name] = Path(value) if is_path else tuple(value) if isinstance(value, list) else value
    return Command(**fields)


def utility(metrics: Mapping[str, Any]) -> str:
    """One honest sentence: whether the model beats its controls, on held-out ratings where there are any."""
    side = "rmse_test" if metrics["rmse_test"] is not None else "rmse_train"
    ours, where = metrics[side], "held-out" if side == "rmse_test" else "training"
    beaten = {name: values[side] for name, values in metrics["controls"].items() if values[side] > ours}
    simple = [name for name in ("global_mean", "item_means") if name in metrics["controls"]]
    if not metrics["controls"]:
        return "no control was asked for"
    text = {"global_mean": "the global mean", "item_means": "item means", "biased_mf": "a non-private factorisation"}
    if all(name in beaten for name in simple):
        names = " and ".join(text[name] for name in beaten)
        little = "; that says little: hold some out (--test-fraction 0.1)" if where == "training" else ""
        return f"beats {names} on {where} ratings{little}"
    lost = " or ".join(text[name] for name in simple if name not in beaten)
    return (
        f"NOT USEFUL: does not beat predicting {lost} on {where} ratings; such a model is worse than no factorisation"
    )


def render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table(title=f"{result['mechanism']} on {result['data']}")
    for heading in ("", "private", "RMSE train", "RMSE held-out"):
        table.add_column(heading, justify="left" if not heading else "right")

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4f}"

    status = result["guarantee"]["status"]
    private = {"proved": "yes, proved", "claimed": "claimed only", "none": "no"}[status]
    table.add_row("this model", private, number(result["rmse_train"]), number(result["rmse_test"]))
    for name, values in result["controls"].items():
        table.add_row(name.replace("_", " "), "no", number(values["rmse_train"]), number(values["rmse_test"]))
    seconds = result["seconds_per_step"]
    pace = "" if seconds is None else f", {1e3 * seconds:.2f} ms a step"
    lines = [
        "for the curator: the numbers above are computed from the ratings and are not priced",
        "train of this model: predictions not clipped, as in the paper; all others: clipped to the declared range",
        "",
        result["guarantee"]["statement"],
        "",
        f"utility: {result['utility']}",
        f"{result['steps']} steps on {result['device']}{pace}; {result['layout']}",
        *(f"note: {note}" for note in result["notes"]),
        f"saved in {result['out']} (what may be shown stands outside private/)",
    ]
    if result["ledger"]:
        lines.append(f"entered in the ledger {result['ledger']}: dpmf budget show says what all releases cost together")
    return Group(table, "\n".join(lines))
