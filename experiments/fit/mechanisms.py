"""The phases of a run from a command's flags, or again from what a saved model keeps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms import table
from dpmf_jax.mechanisms.spec import AnyFlags, Spec
from experiments.cli import console
from experiments.fit.mechanism_file import declared, is_file


def flags(mechanism: str, **values: Any) -> AnyFlags:
    """A mechanism's own flags; those that are not given have their defaults."""
    return declared(mechanism).flags(**values)


def comparisons(
    mechanism: str, flags: AnyFlags, train: Any, settings: Mapping[str, Any], public: Path | None
) -> Mapping[str, Any]:
    """What a fit with these settings is measured beside, as `Spec.comparisons` has it."""
    spec = declared(mechanism)
    factors = public and _public(spec, public, flags, train)
    return spec.comparisons(settings, factors, *_group(spec, flags, train))


def _group(spec: Spec, flags: AnyFlags, train: Any) -> tuple[Any, ...]:
    """The third argument of `Spec.phases`, where there is one: the group of each user."""
    group = None if spec.groups is None else spec.groups(flags, train)
    return () if group is None else (group,)


def phases_and_settings(
    mechanism: str, flags: AnyFlags, train: Any, public: Path | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, their public settings) as the flags say.

    A phase is (Mechanism, number of steps); the last one trains.

    Args:
      public: a file of public factors, of items or users as the mechanism takes them.

    Raises: UsageError for flags that contradict each other; PrivacyError for what a guarantee does
      not allow; DataError for a file that does not hold factors of this catalogue.
    """
    spec = declared(mechanism)
    factors = None if public is None else _public(spec, public, flags, train)
    command = "audit" if is_file(mechanism) else "fit"
    with console.usage_errors(
        fix=f"dpmf {command} --mechanism {mechanism} --help explains the settings of {mechanism}"
    ):
        settings = {
            "data": train.name,
            "mechanism": mechanism,
            **spec.settings(mechanism, flags, train, factors),
        }
        phases = spec.phases(settings, factors, *_group(spec, flags, train))
    _check_priceable(phases, flags, settings)
    return phases, settings


def _check_priceable(phases: tuple[Any, ...], flags: AnyFlags, settings: Mapping[str, Any]) -> None:
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


def _public(spec: Spec, path: Path, flags: AnyFlags, train: Any) -> Any:
    if spec.public == "item_features":
        from dpmf_jax.data import datasets, features

        if path == Path("lifelike"):
            return datasets.generated_features(train.name)
        return features.read(path, train.items)
    from experiments.fit import item_files

    side = "user" if spec.public == "users" else "item"
    factors = item_files.read(path, getattr(train, f"{side}s"), side)
    rank = getattr(flags, "rank", None)
    if rank not in (None, factors.shape[1]):
        raise UsageError(
            f"--rank {rank} and {factors.shape[1]} factors in the file",
            where=str(path),
            fix="leave out --rank",
        )
    return factors


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Any, ...]:
    """The phases of a run from what model.json keeps.

    Args:
      public: the item or user factors that the run was given, if any.

    Raises: KeyError for a mechanism that is not known; ValueError, PrivacyError for what its
      settings do not allow.
    """
    return table()[settings["mechanism"]].phases(settings, public)


def chosen(command: Any) -> AnyFlags:
    """The mechanism's own flags among those of a command."""
    kind = declared(command.mechanism).flags
    return kind(**{field.name: getattr(command, field.name) for field in dataclasses.fields(kind)})
