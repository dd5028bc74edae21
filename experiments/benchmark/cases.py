"""What the benchmark fits, in named tables, and the errors that were set as goals beforehand."""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """A setting, which is fitted once for every split.

    data: a name that `dpmf data list` has, or of generated ratings.
    epsilon: at δ = 1e-5.
    flags: further flags of `dpmf fit`, as (field, value) pairs; all others have their defaults.
    must, stretch: RMSE on held-out ratings that was set as a goal, mean over splits.
    tried: settings of which `dpmf tune` chooses, at that ε in all, as it takes them.
    """

    data: str
    mechanism: str
    epsilon: float
    flags: tuple[tuple[str, Any], ...] = ()
    must: float | None = None
    stretch: float | None = None
    tried: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        more = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.flags)
        tuned = f"tuned: {' '.join(self.tried)}" if self.tried else ""
        return " ".join(part for part in (self.mechanism, more, tuned) if part)


ML_10M_SIZE = "synthetic-69878x10677x9000000"
SHIPPED = ("ml-100k", "ml-1m", "anime-5000", "netflix-52", "libimseti-9k")
GENRES = (("item_features", "movielens"),)


def _goals() -> tuple[Case, ...]:
    rows = (
        ("ml-1m", "als", (), {1: (0.943, 0.930), 4: (0.900, 0.892)}),
        ("ml-1m", "als", (), {8: (0.883, 0.875), 20: (0.870, 0.862)}),
        ("ml-1m", "als", GENRES, {1: (0.912, 0.905), 4: (0.881, 0.875)}),
        ("ml-100k", "als", (), {4: (0.968, 0.960), 20: (0.935, 0.925)}),
        ("ml-100k", "als", GENRES, {4: (0.936, 0.928)}),
        ("ml-1m", "ridge", (), {1: (0.914, 0.910)}),
        ("ml-100k", "ridge", (), {1: (0.947, 0.940)}),
        (ML_10M_SIZE, "als", (), {1: (0.918, 0.905)}),
    )
    return tuple(
        Case(data, mechanism, float(epsilon), flags, *goal)
        for data, mechanism, flags, goals in rows
        for epsilon, goal in goals.items()
    )


def _factors() -> tuple[Case, ...]:
    return tuple(
        Case(data, mechanism, epsilon)
        for data in SHIPPED
        for epsilon in (1.0, 4.0, 20.0)
        for mechanism in ("means", "als")
    )


def _tuned() -> tuple[Case, ...]:
    """Defaults, each value that is tried by itself, and the private choice among them."""
    settings = (("als", (4.0, 20.0), (0, 3, 8)), ("gaussian-joint-noise", (4.0,), (2, 20)))
    found = []
    for data in ("ml-100k", "ml-1m"):
        for mechanism, epsilons, ranks in settings:
            for epsilon in epsilons:
                fixed = ((("rank", rank),) for rank in ranks)
                found += [Case(data, mechanism, epsilon, flags) for flags in ((), *fixed)]
                tried = f"rank={','.join(map(str, ranks))}"
                found.append(Case(data, mechanism, epsilon, tried=(tried,)))
    return tuple(found)


# Name: (what it shows, its cases)
TABLES: dict[str, tuple[str, tuple[Case, ...]]] = {
    "goals": ("the per-user recommender and ridge, beside the errors set as goals", _goals()),
    "factors": ("als beside means of the same price, on all data sets", _factors()),
    "tuned": ("a private choice of the rank beside fixed ones, at the same price", _tuned()),
}
