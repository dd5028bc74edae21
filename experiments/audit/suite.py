"""What `dpmf audit --all` puts on trial: every trial that the table of mechanisms declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dpmf_jax.mechanisms import table
from dpmf_jax.mechanisms.spec import Trial as SpecTrial
from experiments.audit.trial import Trial
from experiments.fit import mechanisms as fit_mechanisms

DATA = "ml-100k"  # of the published claims, where it is found
# Arguments, by family, on real ratings: less than for one mechanism alone, since there are many.
LESS = {
    "sensitivity": {"num_neighbours": 16, "climb": False},
    "coins": {"num_neighbours": 3},
    "privacy loss": {"num_neighbours": 16, "num_runs": 64},
    "membership": {"num_watchers": 0},
    "lookup": {"num_places": 1},
    "fit": {"tempting": ("value", "item")},
}
# Families that --quick leaves out of all mechanisms: in so few runs they refute nothing.
NOT_QUICK = ("membership",)
# Users, items, ratings and rank of generated ratings, on which the sensitivity of paper 001 fails.
# All entries take them where no data are named, so that they share programs.
GENERATED = (40, 30, 600, 5)


class Entry(NamedTuple):
    """A mechanism at the settings of one of its trials."""

    mechanism: str
    trial: SpecTrial

    @property
    def label(self) -> str:
        return self.trial.label


ENTRIES = tuple(Entry(spec.name, trial) for spec in table().values() for trial in spec.trials)


def phases_of(entry: Entry, ratings: Any, *, small: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, settings) of the entry, with flags that follow from the ratings' range and sizes."""
    low, high = ratings.rating_range
    words = {
        "middle": f"{(low + high) / 2:g}",
        "highest": max(high, high - low),
        "quarter": max(1, ratings.num_items // 4),
    }
    values = {**entry.trial.flags, **(entry.trial.small if small else entry.trial.real)}
    values = {
        name: words.get(value, value) if isinstance(value, str) else value
        for name, value in values.items()
    }
    return fit_mechanisms.phases_and_settings(
        entry.mechanism, fit_mechanisms.flags(entry.mechanism, **values), ratings
    )


def generated() -> Any:
    """Ratings of the sizes of `GENERATED`."""
    from dpmf_jax.data import synthetic

    users, items, num, rank = GENERATED
    return synthetic.generate(num_users=users, num_items=items, num_ratings=num, rank=rank)


def makers(
    ratings: Any, source: Mapping[str, Any], *, small: bool
) -> dict[str, Callable[[], Trial]]:
    """Makers of the trials, by label; each is called when its turn comes.

    Args:
      ratings: of all entries but those that have generated ones of their own.
      source: the command that asks for all of them, as a trial keeps it.
      small: whether to take the entries' small settings.
    """

    def make(entry: Entry) -> Trial:
        own = generated() if entry.trial.own else ratings

        phases, settings = phases_of(entry, own, small=small)
        cut = ", ".join(
            f"{name.replace('_', ' ')} {value}" for name, value in entry.trial.small.items()
        )
        why = f"cut short: {cut}" if small and cut else entry.trial.why
        short, less = (
            ({}, {})
            if small or entry.trial.own
            else (entry.trial.short, {**LESS, **entry.trial.less})
        )
        for steps in sorted(set(short.values())):
            held = ", ".join(family for family in short if short[family] == steps)
            why += f"; {held} over the first {steps} steps"
        told = {**source, "label": entry.label}
        return Trial(
            entry.label,
            phases,
            settings,
            own,
            told,
            why,
            short,
            less,
            lambda other: phases_of(entry, other, small=small),
        )

    return {entry.label: lambda entry=entry: make(entry) for entry in ENTRIES}
