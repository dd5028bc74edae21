"""From a mechanism's name and flags to the phases of a run, and the settings that a model keeps.

`dpmf fit`, `dpmf audit` and `dpmf_jax.fit` all come here.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, PrivacyError, UsageError, usage_errors
from dpmf_jax.mechanisms import table
from dpmf_jax.mechanisms.spec import AnyFlags, Comparison, Settings, Spec

if TYPE_CHECKING:
    from dpmf_jax.protocol import Phase

DEFAULT = "als"
IMPLICIT = "als-implicit"  # the default for what users have seen

Public = Path | np.ndarray | None  # a file, or the rows of the catalogue in its order


def spec_named(mechanism: str) -> Spec:
    """The spec of a mechanism in the table.

    Raises: UsageError that names the nearest one.
    """
    if mechanism in table():
        return table()[mechanism]
    nearest = difflib.get_close_matches(mechanism.lower(), table(), n=1, cutoff=0.0)[0]
    raise UsageError(
        f"there is no mechanism {mechanism!r}; there are {', '.join(table())}",
        where=f"--mechanism {mechanism}",
        fix=f"--mechanism {nearest}",
    )


def flags_of(spec: Spec, values: Mapping[str, Any]) -> AnyFlags:
    """The mechanism's flags with these values; the others have their defaults.

    Raises: UsageError for a name that the mechanism does not know, and for a value of another type.
    """
    hints = typing.get_type_hints(spec.flags)
    known = [field.name for field in dataclasses.fields(spec.flags)]
    for name in values:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            fix = f"did you mean {nearest[0]}? " if nearest else ""
            raise UsageError(
                f"the mechanism {spec.name} has no setting {name!r}",
                fix=f"{fix}it has {', '.join(known)}",
            )
    return spec.flags(**{name: _of_type(name, values[name], hints[name]) for name in values})


_MISFIT = object()


def _of_type(name: str, value: Any, hint: Any) -> Any:
    """Raises: UsageError for a value that is none of the type that `hint` says."""
    found = _converted(value, hint)
    if found is _MISFIT:
        choices = typing.get_args(hint)
        words = (
            ", ".join(repr(choice) for choice in choices)
            if typing.get_origin(hint) is typing.Literal
            else str(getattr(hint, "__name__", hint)).replace("pathlib.Path", "a path")
        )
        raise UsageError(f"{name} is {value!r}", fix=f"give it one of these: {words}")
    return found


def _converted(value: Any, hint: Any) -> Any:
    """The value as the type that `hint` says, or `_MISFIT`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        tried = (_converted(value, one) for one in typing.get_args(hint))
        return next((found for found in tried if found is not _MISFIT), _MISFIT)
    if typing.get_origin(hint) is typing.Literal:
        return value if value in typing.get_args(hint) else _MISFIT
    if hint is type(None):
        return None if value is None else _MISFIT
    number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    if hint is bool:
        return bool(value) if isinstance(value, bool | np.bool_) else _MISFIT
    if hint is int:
        return int(value) if isinstance(value, Integral) and number else _MISFIT
    if hint is float:
        return float(value) if number else _MISFIT
    if hint is str:  # such as a centre, which may be a number
        return value if isinstance(value, str) else f"{value}" if number else _MISFIT
    if hint is Path:
        return Path(value) if isinstance(value, str | Path) else _MISFIT
    return value


def phases_and_settings(
    spec: Spec,
    flags: AnyFlags,
    ratings: Ratings,
    public: Public = None,
    *,
    name: str | None = None,
    command: str = "fit",
) -> tuple[tuple[Phase, ...], Settings]:
    """(phases, their public settings) as the flags say.

    A phase is (Mechanism, number of steps); the last one trains.

    Args:
      flags: of the type `spec.flags`.
      public: factors or features, of items or users as the mechanism takes them.
      name: what the settings call the mechanism; else as the spec does.
      command: whose help says more.

    Raises: UsageError for flags that contradict each other; PrivacyError for what a guarantee does
      not allow; DataError for a file that does not hold factors of this catalogue.
    """
    name = name or spec.name
    factors = _public_rows(spec, public, flags, ratings)
    with usage_errors(
        fix=f"dpmf {command} --mechanism {name} --help explains the settings of {name}"
    ):
        settings = {
            "data": ratings.name,
            "mechanism": name,
            **spec.settings(name, flags, ratings, factors),
        }
        phases = spec.phases(settings, factors, *_group(spec, flags, ratings))
    _check_priceable(phases, flags, settings)
    return phases, settings


def comparisons(
    spec: Spec, flags: AnyFlags, ratings: Ratings, settings: Settings, public: Public = None
) -> Mapping[str, Comparison]:
    """What a fit with these settings is measured beside, as `Spec.comparisons` has it."""
    factors = _public_rows(spec, public, flags, ratings)
    return spec.comparisons(settings, factors, *_group(spec, flags, ratings))


def check_accepted(spec: Spec, accepted: bool) -> None:
    """Checks `accept_no_guarantee`.

    Raises: PrivacyError where a release has no guarantee and nobody accepted that; UsageError where
      there is nothing to accept.
    """
    if accepted and not spec.unsafe:
        raise UsageError(
            f"--accept-no-guarantee means nothing to --mechanism {spec.name}",
            fix="leave out --accept-no-guarantee",
        )
    if spec.unsafe and not accepted:
        what, where, fix = spec.unsafe
        raise PrivacyError(what, where=where, fix=fix)


def check_population(population: str | None) -> None:
    """Raises: UsageError for a name that the ledger would refuse after the fit."""
    if population is not None:
        from accounting import guards

        with usage_errors(where="--population", fix="give a name, such as --population shop"):
            guards.line("population", population)


def _group(spec: Spec, flags: AnyFlags, ratings: Ratings) -> tuple[Any, ...]:
    """The third argument of `Spec.phases`, where there is one: the group of each user."""
    group = None if spec.groups is None else spec.groups(flags, ratings)
    return () if group is None else (group,)


def _check_priceable(phases: tuple[Phase, ...], flags: AnyFlags, settings: Settings) -> None:
    """Raises: UsageError for a total ε that noise in whole numbers has no price for."""
    import accounting
    from accounting import price

    own = [one["epsilon"] for one in settings.get("budgets", ())]
    asked = max(own) if own else getattr(flags, "epsilon", None)
    if asked is None:
        return
    whole = accounting.compose(*(phase.guarantee(steps) for phase, steps in phases))
    if whole.epsilon == math.inf > (most := price.largest(whole.losses, whole.delta)):
        raise UsageError(
            f"at delta {whole.delta:g} noise in whole numbers has a price for an epsilon below"
            f" {math.floor(most)} only; got {asked:g}",
            where="--user-budgets" if own else "--epsilon",
            fix="give a smaller one, or a larger --delta",
        )


def check_public(spec: Spec, public: Any) -> None:
    """Raises: UsageError for public rows that are neither a file nor an array."""
    if public is None or isinstance(public, str | Path | np.ndarray):
        return
    side = "user" if spec.public == "users" else "item"
    raise UsageError(
        f"{spec.public} is a {type(public).__name__}",
        fix=f"give a file, or an array with a row for every {side}, in the catalogue's order",
    )


def _public_rows(spec: Spec, public: Public, flags: AnyFlags, ratings: Ratings) -> Any:
    """float32[users or items, factors or features], or None where none are given."""
    if public is None:
        return None
    side = "user" if spec.public == "users" else "item"
    ids = getattr(ratings, f"{side}s")
    if isinstance(public, np.ndarray):
        rows = np.asarray(public, np.float32)
        if rows.ndim != 2 or len(rows) != len(ids) or not np.isfinite(rows).all():
            raise DataError(
                f"the array has shape {rows.shape}; the catalogue has {len(ids):,} {side}s",
                where=f"--{spec.public}".replace("_", "-"),
                fix=f"give a row of finite numbers for every {side}, in the catalogue's order",
            )
    elif spec.public == "item_features":
        from dpmf_jax.data import datasets, features

        if public == Path("lifelike"):
            return datasets.generated_features(ratings.name)
        return features.read(public, ids)
    else:
        from dpmf_jax.training import item_files

        rows = item_files.read(public, ids, side)
    if spec.public == "item_features":
        return rows
    rank = getattr(flags, "rank", None)
    if rank not in (None, rows.shape[1]):
        raise UsageError(
            f"--rank {rank} and {rows.shape[1]} factors in the file",
            where=str(public) if isinstance(public, Path) else f"--{spec.public}",
            fix="leave out --rank",
        )
    return rows
