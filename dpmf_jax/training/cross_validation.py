"""Several mechanisms on the same splits of the same ratings, beside controls: a table to choose by.

Unpriced, for the curator: the numbers are computed from the ratings, and so is a choice that is
made by them (`dpmf tune` prices one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dpmf_jax.data import given, splits
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import UsageError
from dpmf_jax.models import evaluation
from dpmf_jax.models.evaluation import Measured
from dpmf_jax.training import by_name, controls, resolve

NOTE = (
    "for the curator: the numbers are computed from the ratings and are not priced, nor is a choice"
    " that is made by them; every model here has a seed and may not be released"
)

HOLDOUTS = ("ratings", "last")
# What a fit is told here: nothing is held out of a fold, and nothing measured beside it.
_ALONE: dict[str, Any] = {"test_fraction": 0.0, "controls": "none", "progress": False}


def cross_validate(
    data: Any,
    mechanisms: Sequence[str] | Mapping[str, Mapping[str, Any]] = ("als", "means"),
    *,
    holdout: str = "ratings",
    folds: int = 5,
    k: int = 10,
    seed: int = 0,
    beside: str | Sequence[str] = "simple",
    rating_range: tuple[float, float] | None = None,
    time_column: str | None = None,
    report: Callable[[str], None] = lambda what: None,
    **settings: Any,
) -> dict[str, Any]:
    """Errors and rankings of several mechanisms, each fitted once for every split.

        found = dpmf_jax.cross_validate("ml-100k", ["als", "means"], epsilon=4)
        pandas.DataFrame(found["rows"])

    Args:
      data: in any form, as in `fit`.
      mechanisms: names; or by label the settings of each, "mechanism" among them where the label is
        not its name: {"als, rank 20": {"mechanism": "als", "rank": 20}}.
      holdout: "ratings": each of `folds` random parts of the ratings is held out once, and all
        numbers are over all ratings. "last": the last rating of each user by time, once.
      folds: the number of parts.
      k: of the rankings, a number of items.
      time_column: of `data`, where the last ratings are held out; None finds one with a usual name.
      seed: of the folds; that of fold i's noise is seed + i.
      beside: controls without privacy: names of `training.controls`, "simple", "all" or "none".
      report: told what is fitted next.
      settings: of all mechanisms, and how `data` is read, as in `fit`.

    Returns: {data, holdout, splits, k, rows, definitions, note}. A row has label, mechanism,
      private, status, unit, relation, epsilon, delta (None of a control), and the numbers of
      `evaluation.numbers`.

    Raises: UsageError for a mechanism that predicts no ratings, or a setting that one of them does
      not know; what `fit` raises.
    """
    reading = {name: settings.pop(name) for name in by_name.READING if name in settings}
    for name in ("users", "items"):
        reading[name] = settings.pop(f"catalogue_{name}", None)
    with by_name.words_of_python():
        asked = dict(_contenders(mechanisms, settings))
        named = controls.names_of(beside)
        if holdout == "last" and not isinstance(data, Ratings):
            reading["time_column"] = time_column or True
        ratings = given.read_whole(data, rating_range=rating_range, **reading)
        parts = _parts(ratings, holdout, folds, seed)
    found: dict[str, list[Measured]] = {label: [] for label in (*asked, *named)}
    promises: dict[str, dict[str, Any]] = {}
    for at, (train, test) in enumerate(parts):
        for label, (mechanism, own) in asked.items():
            report(f"split {at + 1}: {label}")
            model = by_name.fit(train, mechanism, seed=seed + at, **(_ALONE | own))
            promises[label] = _promise(mechanism, model)
            found[label].append(evaluation.measured(model.all_factors(), train, test, k=k))
        for name in named:
            report(f"split {at + 1}: {name}")
            found[name].append(_of_control(name, train, test, k))
    return {
        "data": ratings.name,
        "holdout": holdout,
        "splits": folds if holdout == "ratings" else 1,
        "k": k,
        "rows": [
            {
                "label": label,
                **promises.get(label, _NO_PROMISE),
                **evaluation.numbers(evaluation.pooled(measured)),
            }
            for label, measured in found.items()
        ],
        "definitions": evaluation.DEFINITIONS,
        "note": NOTE,
    }


_FIELDS = ("status", "unit", "relation", "epsilon", "delta")
_NO_PROMISE = {"mechanism": None, "private": False, **dict.fromkeys(_FIELDS)}


def _parts(
    ratings: Ratings, holdout: str, folds: int, seed: int
) -> Iterable[tuple[Ratings, Ratings]]:
    """(train, test) of every split. Raises: UsageError for another `holdout`."""
    if holdout not in HOLDOUTS:
        raise UsageError(f"holdout is {holdout!r}", fix=f"choose one of {', '.join(HOLDOUTS)}")
    if holdout == "last":
        return [splits.last(ratings)]
    return splits.folds(ratings, k=folds, seed=seed)


def _promise(mechanism: str, model: Any) -> dict[str, Any]:
    told = model.guarantee.to_dict()
    return {"mechanism": mechanism, "private": told["status"] != "none"} | {
        name: told[name] for name in _FIELDS
    }


def _contenders(
    mechanisms: Sequence[str] | Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    """(label, (mechanism, its settings)) of each.

    Raises: UsageError for one that is not known or predicts no ratings, and for none at all.
    """
    if isinstance(mechanisms, str):
        mechanisms = (mechanisms,)
    if not mechanisms:
        raise UsageError("no mechanism is named", fix='name some: ["als", "means"]')
    if not isinstance(mechanisms, Mapping):
        mechanisms = {name: {} for name in mechanisms}
    for label, settings in mechanisms.items():
        told = {**shared, **settings}
        name = told.pop("mechanism", label)
        if resolve.spec_named(name).implicit:
            raise UsageError(
                f"{name} learns who has seen what, and predicts no ratings",
                fix="dpmf fit --holdout-users 0.1 says how well it finds items",
            )
        yield label, (name, told)


def _of_control(name: str, train: Ratings, test: Ratings, k: int) -> Measured:
    factors = controls.CONTROLS[name](train)
    ordered = None if name in controls.NO_ORDER else train
    errors = name not in controls.NO_ERRORS
    return evaluation.measured(factors, ordered, test, k=k, errors=errors)
