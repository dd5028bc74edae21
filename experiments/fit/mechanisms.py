"""Every mechanism that a command can name: what its flags make, and what a saved model is made of again."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from dpmf_jax.errors import UsageError
from experiments.cli import console
from experiments.fit.flags import MechanismFlags

OBJECTIVE = ("objective", "objective-public-users", "objective-statistics")

# Name: its family, a module with `made`, `phases`, `num_steps`, and FLAGS: the settings that mean something to it, or
# those by mechanism.
FAMILIES = (
    dict.fromkeys(
        ("gaussian", "gaussian-joint-noise", "gaussian-public-items", "non-private"), "experiments.fit.gaussian"
    )
    | {"local": "experiments.fit.local"}
    | dict.fromkeys(OBJECTIVE, "experiments.fit.objective")
    | dict.fromkeys(("federated", "federated-user", "federated-statistics"), "experiments.fit.federated")
    | dict.fromkeys(("sketch", "sketch-dpsgd", "dpsgd", "langevin"), "experiments.fit.sketch")
)
PER_USER = ("local", "federated-user", "federated-statistics")  # the relation covers which items a user rated
PRESENCE = ("objective-statistics",)  # it covers whether a rating is there
NO_GUARANTEE = ("sketch",)  # it releases, and promises nothing
ONE_PROCESS = ("objective",)  # an item's ratings one after the other, whosever they are
ONE_DEVICE = ("sketch", "sketch-dpsgd", "dpsgd", "langevin")  # one rating after the other; samples are faster on one
NOT_STREAMED = (*OBJECTIVE, *ONE_DEVICE)  # more than sums over the ratings of a user or an item


def made(flags: MechanismFlags, train: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, their public settings) as the flags say; a phase is (Mechanism, number of steps), the last one trains.

    Raises: UsageError for flags that contradict each other or mean nothing to the mechanism; PrivacyError for what a
      guarantee does not allow.
    """
    family = _family(flags.mechanism)
    meant = family.FLAGS[flags.mechanism] if isinstance(family.FLAGS, Mapping) else family.FLAGS
    for field in dataclasses.fields(MechanismFlags):
        if field.name not in ("mechanism", *meant) and getattr(flags, field.name) != field.default:
            flag = f"--{field.name.replace('_', '-')}"
            raise UsageError(f"{flag} means nothing to --mechanism {flags.mechanism}", fix=f"leave out {flag}")
    with console.usage_errors(fix=f"dpmf fit --help explains the settings of {flags.mechanism}"):
        return family.made(flags, train)


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Any, ...]:
    """The phases of a run, made of what model.json keeps; public: item or user factors, where it was given some.

    Raises: KeyError for a mechanism that is not known; ValueError, PrivacyError for what its settings do not allow.
    """
    return _family(settings["mechanism"]).phases(settings, public)


def num_steps(settings: Mapping[str, Any], priced: int) -> int:
    """Steps of the training phase of a saved model, of those that its guarantee prices."""
    return _family(settings["mechanism"]).num_steps(settings, priced)


def beside(settings: Mapping[str, Any], num_users: int, delta: float) -> dict[str, Any] | None:
    """A price under another trust model that stands beside the guarantee, never in its place; None for most."""
    family = _family(settings["mechanism"])
    return family.beside(settings, num_users, delta) if hasattr(family, "beside") else None


def messages(settings: Mapping[str, Any], num_users: int, num_items: int) -> dict[str, Any] | None:
    """Bytes sent in an iteration, from public sizes alone; None where one party holds the ratings."""
    family = _family(settings["mechanism"])
    return family.messages(settings, num_users, num_items) if hasattr(family, "messages") else None


def notes(settings: Mapping[str, Any]) -> list[str]:
    """What is to be said of a run with these settings, whatever its ratings are."""
    family = _family(settings["mechanism"])
    return family.notes(settings) if hasattr(family, "notes") else []


def _family(name: str) -> Any:
    return importlib.import_module(FAMILIES[name])
