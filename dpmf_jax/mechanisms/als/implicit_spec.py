"""Alternating least squares on what users have seen: its declaration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.mechanisms.spec import (
    Flags,
    Settings,
    Spec,
    Trial,
    check_steps,
    config_values,
    without_noise,
)

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.protocol import Phase, Release

EPSILON = 4.0
# (signal, rank, passes) from which on. The signal is n·μ/√items: how users' messages stand out of
# the noise in a sum. Below the first factors cost more than they give (DEFAULTS.md).
IMPLICIT_RANKS = ((30.0, 6, 4), (60.0, 8, 5), (200.0, 12, 5))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Implicit(Flags):
    """Settings of alternating least squares on what users have seen."""

    delta: float = 1e-5
    """Delta of the total."""
    change: Literal["remove", "replace"] = "remove"
    """What is hidden of a user: whether they take part, or which data they have."""
    rank: int | None = None
    """Number of factors; 0 for noisy popularity alone."""
    steps: int | None = None
    """Passes for the item factors, fixed up front."""


def settings(name: str, flags: Implicit, ratings: Ratings, public: Any) -> Settings:
    """See `Spec.settings`."""
    from accounting import gaussian, guards
    from dpmf_jax.mechanisms.als import implicit_config

    del name, public  # there are none
    epsilon = EPSILON if flags.epsilon is None else flags.epsilon
    noise = gaussian.solve_noise_multiplier(epsilon, flags.delta, 1, price="exact")
    shorter = 2 if flags.change == "replace" else 1
    signal = ratings.num_users / (shorter * noise) / math.sqrt(ratings.num_items)
    usual = (0, 0)
    for least, *more in IMPLICIT_RANKS:
        usual = tuple(more) if signal >= least else usual
    rank = usual[0] if flags.rank is None else guards.count("rank", flags.rank, 0)
    passes = (usual[1] or 4) if flags.steps is None else check_steps(flags.steps, 4)
    config = implicit_config.Config(
        num_users=ratings.num_users,
        noise_multiplier=noise,
        rank=rank,
        num_passes=passes if rank else 0,
        relation="user replaced" if flags.change == "replace" else "user added or removed",
        delta=flags.delta,
    )
    # All of them: a new user's factors follow from these, whatever later defaults are.
    return {"steps": config.num_passes, **dataclasses.asdict(config)}


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Phase, ...]:
    """See `Spec.phases`."""
    from dpmf_jax.mechanisms.als import implicit, implicit_config

    del public
    config = implicit_config.Config
    return implicit.phases(config(**config_values(config, settings)))


def user_factors(settings: Mapping[str, Any], release: Release, ratings: Ratings) -> Any:
    """See `Spec.fold_in`."""
    from dpmf_jax.mechanisms.als import implicit

    return implicit.fold_in(implicit.config_of(settings), release, ratings)


def last_steps(settings: Mapping[str, Any], priced: int) -> int:
    """See `Spec.num_steps`: the last phase is for factors, or for counts alone."""
    del priced
    return settings["num_passes"] or 1


def notes(settings: Mapping[str, Any], release: Release) -> list[str]:
    """Says where factors were left out."""
    del release
    if settings["rank"] == 0:
        return [
            "popularity alone: for so few users, so many items and this ε, noisy factors would cost"
            " more than they give, so everybody is recommended what many have seen"
        ]
    return []


IMPLICIT = Spec(
    name="als-implicit",
    paper="ours",
    flags=Implicit,
    defaults={
        "epsilon": EPSILON,
        "rank": "0, 6, 8 or 12, by sizes and price",
        "steps": "4 or 5, likewise",
    },
    settings=settings,
    phases=phases,
    control=without_noise,
    access="sums",
    unit="user",
    implicit=True,
    num_steps=last_steps,
    fold_in=user_factors,
    notes=notes,
    trials=(
        Trial(
            "ours: als-implicit",
            "rank 2, two passes",
            flags={"epsilon": 8.0, "rank": 2, "steps": 2},
        ),
    ),
)
