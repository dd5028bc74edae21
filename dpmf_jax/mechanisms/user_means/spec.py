"""Noisy user levels: their declaration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpmf_jax.mechanisms.spec import (
    SOUND_EPSILON,
    Flags,
    Settings,
    Spec,
    Trial,
    config_values,
    public_center,
    without_noise,
)

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.protocol import Phase


@dataclasses.dataclass(frozen=True, kw_only=True)
class Levels(Flags):
    """Settings of noisy user levels."""

    delta: float = 1e-5
    """Delta of the total."""
    center: str | None = None
    """What is subtracted from the ratings: a public number in their unit, or none."""


def settings(name: str, flags: Levels, ratings: Ratings, public: Any) -> Settings:
    """See `Spec.settings`."""
    from accounting import gaussian

    del public  # there are none
    low, high = ratings.rating_range
    epsilon = SOUND_EPSILON if flags.epsilon is None else flags.epsilon
    return {
        "steps": 1,
        "rating_range": [low, high],
        "noise_multiplier": gaussian.solve_noise_multiplier(epsilon, flags.delta, 1, price="exact"),
        "center": (low + high) / 2 if flags.center is None else public_center(flags.center, name),
        "delta": flags.delta,
    }


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Phase, ...]:
    """See `Spec.phases`."""
    from dpmf_jax.mechanisms.user_means import levels

    del public
    return (
        (
            levels.mechanism(levels.Config(**config_values(levels.Config, settings))),
            settings["steps"],
        ),
    )


SPECS = (
    Spec(
        name="user-means",
        paper="001",
        flags=Levels,
        defaults={"epsilon": SOUND_EPSILON, "center": "middle of the rating range"},
        settings=settings,
        phases=phases,
        control=without_noise,
        access="sums",
        unit="rating value",
        trials=(Trial("001 sound: user means", "defaults"),),
    ),
)
