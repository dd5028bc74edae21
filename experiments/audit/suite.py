"""What `dpmf audit --all` puts on trial: the published claims at their papers' settings, and each sound variant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments.audit.trial import Trial
from experiments.fit import mechanisms as fit_mechanisms

DATA = "ml-100k"  # of the published claims, where it is found
# Less of everything on real ratings than one mechanism alone gets: all of this is to take 20 minutes on two cores.
LESS = {
    "sensitivity": {"num_neighbours": 16, "climb": False},
    "coins": {"num_neighbours": 3},
    "privacy loss": {"num_neighbours": 16, "num_runs": 64},
    "membership": {"num_shadows": 24},
    "fit": {"tempting": ("value", "item")},
}
# Users, items, ratings and rank of generated ratings, on which the sensitivity of paper 001 fails; of all entries where
# no data are named, so that they share programs.
GENERATED = (40, 30, 600, 5)


class Entry(NamedTuple):
    """A mechanism at fixed settings. flags: of `dpmf fit`; on real ratings `real`, elsewhere `small` are added to them;
    own: always on generated ratings; short, less: as `Trial.short` and `Trial.options`, on real ratings, `less` beside
    `LESS`; why: the settings in words."""

    label: str
    why: str
    flags: Mapping[str, Any]
    real: Mapping[str, Any] = {}
    small: Mapping[str, Any] = {}
    own: bool = False
    short: Mapping[str, int] = {}
    less: Mapping[str, Mapping[str, Any]] = {}


_PAPER_001 = {"mechanism": "gaussian", "epsilon_step": 0.15, "regularization": 0.01}
_REAL_001 = {"rank": 20, "steps": 300, "learning_rate": 5e-4}
_SMALL_001 = {"rank": 5, "steps": 100, "learning_rate": 5e-3, "center": "middle"}
_REFUTING_001 = {
    "epsilon_step": 0.2071,
    "center": "middle",
    "clip_norm": 0.25,
    "rank": 5,
    "learning_rate": 0.012,
}
_FEW, _SHORT = {"steps": 4}, {"privacy loss": 5}
_LONG = {"privacy loss": 3, "membership": 100, "one run": 100, "divergence": 100}
_SAMPLED = {"sensitivity": 20, "privacy loss": 2, "membership": 15, "one run": 10, "divergence": 10}
_SAMPLED_LESS = {"privacy loss": {"num_neighbours": 8, "num_runs": 64, "deltas": (1e-2,)}}
_CROWD = {"sensitivity": 25, "privacy loss": 2, "membership": 25, "one run": 25, "divergence": 25}

ENTRIES = (
    Entry(
        "001 as published, τ the range's width",
        "Theorem 2's sensitivity, with the middle of the range as centre; ε_i = 0.15, rank 20, 300 steps",
        _PAPER_001 | {"center": "middle"},
        _REAL_001,
        _SMALL_001,
        short=_LONG,
    ),
    Entry(
        "001 as published, τ of the plots",
        "τ = 5 on ratings from 1 to 5, with movie means, as the figures were drawn",
        _PAPER_001 | {"tau": "highest", "center": "item"},
        _REAL_001,
        _SMALL_001,
        short=_LONG,
    ),
    Entry(
        "001 as published, C = 0.25",
        "40 users, 30 items, generated; rank 5, learning rate 0.012, 300 steps: stable, and it learns",
        _PAPER_001 | _REFUTING_001,
        {"steps": 300},
        {"steps": 100},
        own=True,
    ),
    Entry("001 sound: joint noise", "defaults", {"mechanism": "gaussian-joint-noise"}, small=_FEW, short=_SHORT),
    Entry("001 sound: public items", "defaults", {"mechanism": "gaussian-public-items"}, small=_FEW, short=_SHORT),
    Entry(
        "002 as published: sketch",
        "no claim of privacy; rank 16, 2 epochs",
        {"mechanism": "sketch", "epochs": 2},
        small={"rank": 4},
    ),
    Entry(
        "002 sound: sketch, DP-SGD",
        "defaults",
        {"mechanism": "sketch-dpsgd"},
        {"steps": 50},
        _FEW,
        short=_SAMPLED,
        less=_SAMPLED_LESS,
    ),
    Entry(
        "002 sound: DP-SGD", "defaults", {"mechanism": "dpsgd"}, {"steps": 50}, _FEW, short=_SAMPLED, less=_SAMPLED_LESS
    ),
    Entry(
        "002 sound: Langevin",
        "defaults",
        {"mechanism": "langevin"},
        {"steps": 50},
        _FEW,
        short=_SAMPLED,
        less=_SAMPLED_LESS,
    ),
    Entry(
        "003 as published: S1, objective",
        "ε = 0.15, rank 50, user factors by 100 passes over the same ratings",
        {"mechanism": "objective"},
        small={"rank": 5, "user_passes": 10},
        less={  # a run takes as long as a hundred steps of the others
            "privacy loss": {"num_neighbours": 8, "num_runs": 32},
            "membership": {"num_shadows": 16},
            "divergence": {"num_runs": 48},
            "one run": {"num_known": 32},
        },
    ),
    Entry(
        "003 as published: S2, federated",
        "ε = 0.1 in each of 100 iterations, which the paper states for all of them; rank 50",
        {"mechanism": "federated", "steps": 100},
        small={"rank": 5, "steps": 4},
        short=_CROWD,
    ),
    Entry(
        "003 as published: S3, federated, users come and go",
        "ε = 0.1; 100 of the paper's 10,000 iterations",
        {"mechanism": "federated", "dynamic": True, "steps": 100},
        small={"rank": 5, "steps": 4},
        short=_CROWD,
    ),
    Entry("003 sound: objective, public users", "defaults", {"mechanism": "objective-public-users"}),
    Entry("003 sound: objective, statistics", "defaults", {"mechanism": "objective-statistics"}),
    Entry(
        "003 sound: federated, per user",
        "defaults",
        {"mechanism": "federated-user"},
        small=_FEW,
        less={"privacy loss": {"num_neighbours": 8, "num_runs": 64, "deltas": (1e-2,)}},  # and its largest loss
    ),
    Entry("003 sound: federated, statistics", "defaults", {"mechanism": "federated-statistics"}),
    Entry("004 Private GD", "ε = 1.6, rank 15, 20 rounds", {"mechanism": "local"}, small={"rank": 5, "rounds": 4}),
    Entry(
        "004 Private GD-DR",
        "the same, with a random projection of a quarter of the items",
        {"mechanism": "local", "projection": "quarter"},
        small={"rank": 5, "rounds": 4},
    ),
)


def made(entry: Entry, ratings: Any, *, small: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, settings) of the entry on these ratings; what depends on the range or the catalogue is filled in."""
    low, high = ratings.rating_range
    words = {
        "middle": f"{(low + high) / 2:g}",
        "highest": max(high, high - low),
        "quarter": max(1, ratings.num_items // 4),
    }
    values = {**entry.flags, **(entry.small if small else entry.real)}
    values = {name: words.get(value, value) if isinstance(value, str) else value for name, value in values.items()}
    mechanism = values.pop("mechanism")
    return fit_mechanisms.made(mechanism, fit_mechanisms.flags(mechanism, **values), ratings)


def generated() -> Any:
    """Ratings of the sizes of `GENERATED`."""
    from dpmf_jax.data import synthetic

    users, items, num, rank = GENERATED
    return synthetic.generate(num_users=users, num_items=items, num_ratings=num, rank=rank)


def makers(ratings: Any, source: Mapping[str, Any], *, small: bool) -> dict[str, Callable[[], Trial]]:
    """By label, what makes each trial when its turn comes.

    Args:
      ratings: of all entries but those with generated ones of their own.
      source: the command that asks for all of them, as a trial keeps it.
      small: take the entries' small settings.
    """

    def make(entry: Entry) -> Trial:
        own = generated() if entry.own else ratings

        phases, settings = made(entry, own, small=small)
        cut = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in entry.small.items())
        why = f"cut short: {cut}" if small and cut else entry.why
        short, less = ({}, {}) if small or entry.own else (entry.short, {**LESS, **entry.less})
        for steps in sorted(set(short.values())):
            held = ", ".join(family for family in short if short[family] == steps)
            why += f"; {held} over the first {steps} steps"
        told = {**source, "label": entry.label}
        return Trial(
            entry.label, phases, settings, own, told, why, short, less, lambda other: made(entry, other, small=small)
        )

    return {entry.label: lambda entry=entry: make(entry) for entry in ENTRIES}
