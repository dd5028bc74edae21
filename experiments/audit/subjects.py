"""What a command puts on trial: a mechanism, a saved model, or every mechanism, on some ratings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmf_jax.errors import DataError, UsageError
from dpmf_jax.mechanisms import table
from experiments.audit import replay, suite
from experiments.audit.flags import Command
from experiments.audit.trial import Trial
from experiments.cli import devices
from experiments.fit import command as fit_command
from experiments.fit import mechanisms as fit_mechanisms
from experiments.fit import ratings as fit_ratings
from experiments.fit.flags import DEFAULT, PublicFiles, public_file, with_flags_of
from experiments.fit.mechanism_file import declared

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings

# Users, items, ratings and rank of what is generated where no data are named.
SMALL = (60, 40, 700, 3)


def trials(command: Command) -> dict[str, Callable[[], Trial]]:
    """Makers of what the command puts on trial, by label; each is called when its turn comes.

    Raises: UsageError for flags that contradict each other; what `devices.use` raises.
    """
    if command.devices is not None:
        devices.use(command.devices)
    if command.all:
        return _every_mechanism(command)
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
    make_phases: Callable[[Any], Any]
    group = None
    if folder is None:
        ratings = read(command, command.target)
        flags, file = fit_mechanisms.chosen(command), public_file(command)
        make_phases = functools.partial(
            fit_mechanisms.phases_and_settings, command.mechanism, flags, public=file
        )
        phases, settings = make_phases(ratings)
        groups = declared(command.mechanism).groups
        group = None if groups is None else groups(flags, ratings)
    else:
        phases, settings = saved(folder, command)
        make_phases = lambda other: (phases, settings)  # noqa: E731
        ratings = read(command, command.ratings)
        if list(ratings.rating_range) != settings["rating_range"]:
            raise UsageError(
                f"the ratings have range {list(ratings.rating_range)}, the model was made for "
                f"{settings['rating_range']}",
                fix="audit the model on ratings of the range it was made for",
            )
    source = {"command": replay.kept_fields(command), "label": settings["mechanism"]}
    trial = Trial(
        *(settings["mechanism"], phases, settings, ratings, source),
        make_phases=make_phases,
        group=group,
    )
    return {trial.label: lambda: trial}


def _every_mechanism(command: Command) -> dict[str, Callable[[], Trial]]:
    if command.ratings is not None or (
        command.target and (Path(command.target) / "model.json").is_file()
    ):
        raise UsageError(
            "--all audits mechanisms, not a saved model", fix="leave out --all, or the model"
        )
    if flag := _other_claim(command):
        raise UsageError(
            f"--all has its own settings; {flag} would be another claim", fix=f"leave out {flag}"
        )
    data = command.target
    if data is None and not (command.quick and command.data_dir is None):
        from dpmf_jax.data import datasets

        here = {row["name"]: row["path"] for row in datasets.list_datasets(command.data_dir)}
        data = suite.DATA if here[suite.DATA] is not None else None
        if data is None and command.data_dir is not None:
            raise DataError(
                f"{suite.DATA} is not there",
                where=str(command.data_dir),
                fix="name another --data-dir, or none",
            )
    source = {"command": replay.kept_fields(dataclasses.replace(command, target=data))}
    ratings = suite.generated() if data is None else read(command, data)
    return suite.makers(ratings, source, small=data is None or command.quick)


def _other_claim(command: Command, mechanism: str = DEFAULT) -> str | None:
    """The first flag that makes another claim; None where there is none.

    --delta makes none: it asks for another point of the same curve. Nor does --weight-column: it is
    about the ratings.
    """
    if command.mechanism not in (DEFAULT, mechanism):
        return "--mechanism"
    own = (*dataclasses.fields(declared(command.mechanism).flags), *dataclasses.fields(PublicFiles))
    same = ("delta", "weight_column")
    fields = (field for field in own if field.name not in same and hasattr(command, field.name))
    given = (field.name for field in fields if getattr(command, field.name) != field.default)
    return next((f"--{name.replace('_', '-')}" for name in given), None)


def read(command: Command, data: str | None) -> Ratings:
    """The ratings to audit on; small generated ones where none are named."""
    if data is None:
        from dpmf_jax.data import synthetic

        users, items, num, rank = SMALL
        return synthetic.generate(num_users=users, num_items=items, num_ratings=num, rank=rank)
    return fit_ratings.read(_fit_flags(command, data))[0]


class _FitOfAFile(fit_command.Command):
    """Flags of `dpmf fit`, also for a mechanism in a file, which that command does not train."""

    FILES = True


def _fit_flags(command: Command, data: str | None) -> fit_command.Command:
    """The same settings as flags of `dpmf fit`, all ratings in training."""
    kind = with_flags_of(_FitOfAFile, command.mechanism)
    shared = {field.name for field in dataclasses.fields(kind)} - {"seed", "data", "json"}
    values = {name: value for name, value in vars(command).items() if name in shared}
    return kind(data=data, test_fraction=0.0, seed=command.seed, **values)


def saved(folder: Path, command: Command) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, settings) of a saved model, made anew from its public settings.

    Raises:
      UsageError: a flag that would change the claim of the model, settings that are not those of
        a known mechanism, or a model of an earlier version, whose noise is no longer drawn.
    """
    import accounting
    from accounting.status import REAL_NUMBERS
    from dpmf_jax.models import model

    loaded = model.load(folder)
    settings = dict(loaded.settings)
    if flag := _other_claim(command, str(settings.get("mechanism"))):
        raise UsageError(
            f"a saved model has its own settings; {flag} would be another claim",
            fix=f"leave out {flag}",
        )
    public = loaded.release.item_factors if settings.get("items") else None
    public = loaded.release.user_factors if settings.get("users") else public
    features, factors = settings.get("num_features"), loaded.release.item_factors
    if features and factors is not None:  # released as the last factors
        public = factors[:, -features:]
    try:
        priced = loaded.guarantee.steps - bool(settings.get("tuned"))  # less the score
        # patience may have ended it
        steps = table()[settings["mechanism"]].num_steps(settings, priced)
        phases = fit_mechanisms.phases(settings | {"steps": steps}, public)
    except KeyError:
        where = str(folder / "model.json")
        raise UsageError(
            "the model does not say how it was made", where=where, fix="fit it anew"
        ) from None
    today = accounting.compose(*(phase.guarantee(num) for phase, num in phases))
    if loaded.guarantee.status == REAL_NUMBERS != today.status:
        raise UsageError(
            f"an earlier version made this model, and its statement is {loaded.guarantee.status!r}:"
            f" today's mechanism of these settings, whose statement is {today.status!r}, draws"
            " other noise, and auditing it would say nothing about the model",
            where=str(folder / "model.json"),
            fix="fit it anew; dpmf evaluate and dpmf recommend read it as it is",
        )
    tuned = settings.get("tuned")  # its price is that of a choice among runs like this one
    if today.epsilon != loaded.guarantee.epsilon and not (
        tuned and today.epsilon < loaded.guarantee.epsilon
    ):
        raise UsageError(
            "the model's guarantee is not that of its settings",
            where=str(folder / "model.json"),
            fix="fit it anew",
        )
    return phases, settings
