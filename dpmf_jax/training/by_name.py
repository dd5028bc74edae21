"""Fit a mechanism by its name, on ratings in any form: what `dpmf fit` does, from Python."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dpmf_jax.data import datasets, formats, frames, given
from dpmf_jax.data.catalogue import DATASETS
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DpmfError, PrivacyError, UsageError
from dpmf_jax.mechanisms.spec import Spec
from dpmf_jax.models.model import Model
from dpmf_jax.protocol import Mechanism
from dpmf_jax.training import fit as fitting
from dpmf_jax.training import implicit_controls, resolve
from dpmf_jax.training import progress as progress_bar
from dpmf_jax.training import ratings as training_ratings
from dpmf_jax.training.controls import names_of
from dpmf_jax.training.identity import ratings_digest

_LOG = logging.getLogger("dpmf_jax")
# Arguments that say how ratings are read.
READING = (
    *("user_column", "item_column", "rating_column", "weight_column"),
    *("delimiter", "no_header", "duplicates", "out_of_range", "data_dir"),
)
# Errors are worded for a command line.
_FLAGS = re.compile(r"dpmf [a-z]+(?: --mechanism \S+)? --help|--([a-z][a-z0-9-]*)")


def fit(
    data: Any,
    mechanism: str | Mechanism | None = None,
    *,
    rating_range: tuple[float, float] | None = None,
    population: str | None = None,
    seed: int | None = None,
    catalogue_users: Any = None,
    catalogue_items: Any = None,
    test: Any = None,
    test_fraction: float = training_ratings.FRACTION,
    split: str | None = None,
    split_seed: int = 0,
    holdout_users: float | None = None,
    controls: str | Sequence[str] | None = None,
    implicit: bool = False,
    accept_no_guarantee: bool = False,
    out: Path | str | None = None,
    resume: bool = False,
    patience: int | None = None,
    layout_kind: str = "auto",
    num_devices: int | None = None,
    progress: bool | None = None,
    report: Callable[[fitting.Progress], None] = lambda now: None,
    **settings: Any,
) -> Model:
    """Fit a private model of a ratings matrix, and price it.

        model = dpmf_jax.fit(frame, "als", epsilon=4, rating_range=(1, 5), population="shop",
                             catalogue_users=all_users, catalogue_items=all_items)
        print(model.guarantee)
        model.recommend("ada", k=10)

    What is not given has the defaults of `dpmf fit`, with the same result for the same `seed`.

    Args:
      data: a pandas or polars DataFrame, an Arrow table, a mapping of columns, a `scipy.sparse`
        matrix, a tuple of columns, rows, checked `Ratings`, a path, or a name: see
        `data.given.read`.
      mechanism: its name, one of those that `dpmf fit --help` lists; "als" by default, and
        "als-implicit" for who has seen what. Or a `protocol.Mechanism`: then `num_steps` is
        required, `settings` are further arguments of `training.fit.fit`, and nothing is held out,
        compared or entered in a ledger.
      rating_range: declared (lowest, highest) possible rating, never computed from the ratings.
      population: name of the people whose ratings these are. Their releases add up in the ledger of
        `dpmf budget`. By default the name of the data set or file. Data in memory have no name:
        their release is entered where a population is given, else a warning says that it is not.
      seed: of an experiment, whose model must not be released. None is a release.
      catalogue_users, catalogue_items: every possible id, or a file with one id a line. Required
        where the guarantee hides who has rated at all, as that of "als" does: ids that are read
        off the ratings show it. A sparse matrix has its shape.
      test: ratings to measure errors on, in any form, of the catalogue of `data`.
      test_fraction: share of the ratings held out for that, if there is no `test`.
      split, split_seed: an official split ("u1"); the seed of the random one.
      holdout_users: of who has seen what, share or number of users held out whole; 0.1 by default.
      controls: baselines without privacy to measure beside: "all", the default; "simple"; "none".
        Of a Mechanism of your own, names of `training.controls`.
      implicit: learn from who has seen what alone.
      accept_no_guarantee: release with a mechanism that promises nothing.
      out: folder of the model, which must be new. None keeps it in memory; `Model.save` writes it.
      resume, patience, layout_kind, num_devices, report: see `training.fit.fit`.
      progress: whether to show a bar; None shows one on a terminal and in a notebook. Steps and
        what they cost also go to `logging`, at the level of INFO.
      settings: how `data` is read, as in `data.given.read`: user_column, item_column,
        rating_column, weight_column, delimiter, no_header, duplicates, out_of_range, data_dir. And
        the mechanism's own, as `dpmf fit --mechanism NAME --help` explains them, with underscores:
        epsilon, delta, rank, steps, ... Public factors and features (items, users, item_features)
        are a file, or an array with one row for each id of the catalogue, in its order.

    Returns: a Model. Its `guarantee` says what is promised, to whom, at which price. Its `metrics`
      are unpriced, for the curator.

    Raises: UsageError, DataError and PrivacyError for what cannot be fitted, with what to do; what
      `training.fit.fit` raises.
    """
    reading = {name: settings.pop(name) for name in READING if name in settings}
    reading["rating_range"] = rating_range
    run: dict[str, Any] = {
        "seed": seed,
        "out": out,
        "resume": resume,
        "patience": patience,
        "layout_kind": layout_kind,
        "num_devices": num_devices,
    }
    with words_of_python():
        if isinstance(mechanism, Mechanism):
            reading |= {"users": catalogue_users, "items": catalogue_items, "split": split}
            if seed is None:
                _refuse_undeclared(mechanism, data, reading, settings.get("num_steps", 1))
            loaded = given.read(data, implicit=implicit, **reading)
            train, held_out = loaded if isinstance(loaded, tuple) else (loaded, None)
            test = held_out if test is None else _on_catalogue(test, train, reading)
            run |= {"test": test, "controls": controls or ()}
            with _reported(train.name, settings.get("num_steps", 1), progress, report) as show:
                model = fitting.fit(train, mechanism, report=show, **run, **settings)
            return dataclasses.replace(model, frames=frames.kind_of(data))
        resolve.check_population(population)
        check_ledger(seed, data, population)
        spec = _spec(data, mechanism, reading.get("delimiter"), implicit=implicit)
        resolve.check_accepted(spec, accept_no_guarantee)
        public = settings.pop(spec.public, None) if spec.public else None
        resolve.check_public(spec, public)
        if spec.weighted and "weight_column" in reading:
            settings["weight_column"] = reading["weight_column"]
        flags = resolve.flags_of(spec, settings)
        train, held_out = training_ratings.read(
            spec,
            flags,
            data,
            catalogue_users=catalogue_users,
            catalogue_items=catalogue_items,
            split=split,
            test_fraction=test_fraction if test is None else 0.0,
            split_seed=split_seed,
            holdout_users=holdout_users,
            seeded=seed is not None,
            **reading,
        )
        test = held_out if test is None else _on_catalogue(test, train, reading)
        kept = {"population": population, "mechanism": spec.name}
        run |= {"command": {name: value for name, value in kept.items() if value is not None}}
        asked = "all" if controls is None else controls
        reported = partial(_reported, shown=progress, report=report)
        model = _fit(spec, flags, train, test, public, asked, split_seed, run, reported)
        enter(model, train, population, data)
    return dataclasses.replace(model, frames=frames.kind_of(data))


def _fit(
    spec: Spec,
    flags: Any,
    train: Ratings,
    test: Ratings | None,
    public: Any,
    controls: str | Sequence[str],
    split_seed: int,
    run: dict[str, Any],
    reported: Callable[..., Any],
) -> Model:
    """The model of a mechanism of the table, as `dpmf fit` makes it."""
    public = Path(public) if isinstance(public, str) else public
    phases, kept = resolve.phases_and_settings(spec, flags, train, public)
    if spec.access == "in order" and run["num_devices"] is None:
        run["num_devices"] = 1
    if spec.implicit:
        run["judge"] = implicit_controls.judge(train, test, controls, seed=split_seed)
    else:
        compare = resolve.comparisons(spec, flags, train, kept, public) if controls == "all" else {}
        run |= {"test": test, "compare": compare, "controls": names_of(controls)}
    mechanism, steps = phases[-1]
    with reported(train.name, steps) as show:
        return fitting.fit(
            train,
            mechanism,
            num_steps=steps,
            earlier=phases[:-1],
            settings=kept,
            report=show,
            **run,
        )


@contextlib.contextmanager
def _reported(
    name: str, steps: int, shown: bool | None, report: Callable[[fitting.Progress], None]
) -> Generator[Callable[[fitting.Progress], None]]:
    """What a fit calls after every chunk: it moves the bar, logs what is public, and tells on."""
    with progress_bar.bar(f"fit {name}", steps, shown=shown) as move:

        def tell(now: fitting.Progress) -> None:
            move(now.step, epsilon=now.epsilon)
            _LOG.info("fit: %d of %d steps, epsilon %.4g", now.step, now.num_steps, now.epsilon)
            report(now)

        yield tell


def _spec(data: Any, mechanism: str | None, delimiter: str | None, *, implicit: bool) -> Spec:
    """Of the mechanism that is named, or of the default for these data.

    Raises: UsageError for a mechanism that is not known, or reads other data.
    """
    if mechanism is not None:
        spec = resolve.spec_named(mechanism)
        if implicit and not spec.implicit:
            raise UsageError(
                f"{mechanism} learns from ratings, which --implicit leaves unread",
                fix=f"take {resolve.IMPLICIT}, or leave out --implicit",
            )
        return spec
    is_file = isinstance(data, str | Path) and Path(data).is_file()
    implicit = implicit or (is_file and formats.has_no_ratings(Path(data), delimiter))
    return resolve.spec_named(resolve.IMPLICIT if implicit else resolve.DEFAULT)


def _refuse_undeclared(
    mechanism: Mechanism, data: Any, reading: dict[str, Any], num_steps: int
) -> None:
    """Raises: PrivacyError where ids that are read off the ratings would show what is hidden."""
    declared = not any(reading[name] is None for name in ("users", "items"))
    if declared or given.has_catalogue(data) or (isinstance(data, str) and data in DATASETS):
        return
    guarantee = mechanism.guarantee(max(1, num_steps))
    if guarantee.unit in ("user", "rating presence"):
        raise PrivacyError(
            f"the guarantee of {guarantee.mechanism} needs a declared catalogue",
            where="users and items read off the ratings show who has a rating at all",
            fix="give --catalogue-users and --catalogue-items, or checked Ratings that were read"
            " with them; or give --seed for an experiment",
        )


def _on_catalogue(test: Any, train: Ratings, reading: dict[str, Any]) -> Ratings | None:
    """The ratings to measure errors on, over the catalogue of those that are trained on."""
    if test is None or isinstance(test, Ratings):
        return test
    same = {"rating_range": train.rating_range, "users": train.users, "items": train.items}
    return given.read_whole(test, **(reading | same | {"split": None}))


def check_ledger(seed: int | None, data: Any, population: str | None = None) -> None:
    """Before anything is spent: whether the release can be entered in the ledger.

    Raises: DataError where the ledger is there and cannot be read.
    """
    named = isinstance(data, str | Path) or population is not None
    generated = isinstance(data, str) and datasets.SYNTHETIC.fullmatch(data) is not None
    if seed is None and named and not generated:
        with contextlib.suppress(ImportError):  # a system without file locks has no ledger
            from dpmf_jax.models import ledger

            ledger.read(ledger.ledger_path())


def enter(model: Model, train: Ratings, population: str | None, data: Any) -> None:
    """Enters the release in the ledger, or warns why not: a fitted model is not lost for that."""
    named = isinstance(data, str | Path)
    generated = isinstance(data, str) and datasets.SYNTHETIC.fullmatch(data) is not None
    if model.guarantee.seeded or not model.released_arrays or generated:
        return
    if population is None and not named:
        _LOG.warning(
            "this release is in no ledger: nobody named whose ratings these are (population)"
        )
        return
    try:
        from dpmf_jax.models import ledger

        with contextlib.suppress(ledger.Entered):  # by the run that this one resumed
            ledger.record(
                model if model.path is None else model.path,
                data_set=None if named else population,
                data_hash=ratings_digest(train),
                population=population,
            )
    except DpmfError as error:
        _LOG.warning("this release is in no ledger: %s", error.what)
    except ImportError as error:
        _LOG.warning("this release is in no ledger: this system has no file locks (%s)", error)


@contextlib.contextmanager
def words_of_python() -> Generator[None]:
    """A block whose errors name arguments in place of flags."""
    try:
        yield
    except DpmfError as error:
        for name in ("what", "where", "fix"):
            setattr(error, name, _FLAGS.sub(_as_argument, getattr(error, name)))
        error.args = (error.what, *error.args[1:])
        raise


def _as_argument(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else found[1].replace("-", "_")
