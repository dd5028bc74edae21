"""The declarations of Gaussian steps on secret Poisson samples: DP-SGD and Langevin dynamics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.spec import (
    FEW_STEPS,
    SOUND_EPSILON,
    FactorFlags,
    Settings,
    Spec,
    Trial,
    check_steps,
    config_values,
    given_or_default,
    public_center,
    without_noise,
)

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.protocol import Mechanism, Phase, Release


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled(FactorFlags):
    """Settings of steps on samples."""

    delta: float = 1e-5
    """Delta of the total."""
    learning_rate: float | None = None
    """Step size of the first step, eta."""
    steps: int | None = None
    """Number of samples, one a step, fixed up front."""
    clip_norm: float = 1.0
    """Bound on the norm of one rating's gradient."""
    relation: Literal["rating-value", "rating-presence"] = "rating-value"
    """What is protected: one rating's value, or whether it exists."""
    sampling_rate: float | None = None
    """Probability with which each rating, by itself, is in a step's sample, q."""
    decay: float | None = None
    """Step t of T has the learning rate eta/(1 + decay t/T)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Langevin(Sampled):
    """Settings of Langevin dynamics."""

    temperature: float | None = None
    """In place of --epsilon: T of the noise sqrt(2 eta T) of a step; 1 samples the posterior.
    Without --decay langevin is dpsgd with T = eta (noise multiplier clip_norm/sampling_rate)^2/2.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults:
    """Settings of a mechanism where the flags say nothing.

    steps: epochs, of the published sketch.
    """

    steps: int
    rank: int
    learning_rate: float
    regularization: float
    decay: float = 0.0
    gain: float = 1.0
    sampling_rate: float = 0.1


def defaults(num_users: int, num_items: int) -> Defaults:
    """From public sizes alone, searched on generated data (experiments/DEFAULTS.md)."""
    return Defaults(
        steps=100, rank=2, learning_rate=1 / max(num_users, num_items), regularization=1.0
    )


def settings(name: str, flags: Any, ratings: Ratings, public: Any) -> Settings:
    """See `Spec.settings`."""
    del public  # there are none
    make = {"dpsgd": dpsgd, "langevin": langevin}[name]
    return sampled_settings(
        name, flags, ratings, defaults(ratings.num_users, ratings.num_items), make
    )


def sampled_settings(
    name: str,
    flags: Any,
    ratings: Ratings,
    usual: Defaults,
    make: Callable[[Any], Mechanism],
    table: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings with the least noise whose steps cost at most the ε that is asked for.

    ε is priced for the noise as the mechanism rounds it.

    Args:
      make: a `sampled.Config` -> the mechanism.
      table: further settings, of a sketch.
    """
    steps = check_steps(given_or_default(flags, usual, "steps"), usual.steps)
    low, high = ratings.rating_range
    made: Settings = {
        **{
            field: given_or_default(flags, usual, field)
            for field in ("rank", "learning_rate", "regularization")
        },
        **(table or {}),
        "decay": given_or_default(flags, usual, "decay"),
        "steps": steps,
        "num_steps": steps,
        "rating_range": [low, high],
        "center": (low + high) / 2 if flags.center is None else public_center(flags.center, name),
        "sampling_rate": given_or_default(flags, usual, "sampling_rate"),
        "clip_norm": flags.clip_norm,
        "unit": flags.relation.replace("-", " "),
        "delta": flags.delta,
    }
    if (temperature := getattr(flags, "temperature", None)) is not None:
        if flags.epsilon is not None:
            raise UsageError(
                "--temperature and --epsilon both set the noise", fix="give one of them"
            )
        return made | {"temperature": temperature}
    return _priced(name, made, SOUND_EPSILON if flags.epsilon is None else flags.epsilon, make)


def _priced(
    name: str, made: Settings, epsilon: float, make: Callable[[Any], Mechanism]
) -> Settings:
    from accounting import calibration

    make(
        config(made | dict.fromkeys(("noise_multiplier", "temperature"), 1.0))
    )  # says what is wrong with the rest
    hot = name == "langevin"
    solve: Any = (
        calibration.solve_langevin_temperature if hot else calibration.solve_noise_multiplier
    )
    names = ("sampling_rate", "unit", *(("learning_rate", "decay", "clip_norm") if hot else ()))
    amount = solve(
        epsilon, made["delta"], num_steps=made["steps"], **{field: made[field] for field in names}
    )
    while True:
        noisy = made | {"temperature" if hot else "noise_multiplier": amount}
        price = min(make(config(noisy)).guarantee(made["steps"]).accountants.values())
        if price <= epsilon or price == math.inf:  # no such ε has a price: `fit` refuses it
            return noisy
        amount *= 1 + 1e-5  # what float32 took off, or a rough spot of the price


def config(settings: Mapping[str, Any]) -> Any:
    """The `sampled.Config` of public settings."""
    from dpmf_jax.mechanisms.sampled import sampled

    return sampled.Config(**config_values(sampled.Config, settings))


def dpsgd(config: Any) -> Mechanism:
    """DP-SGD, of a `sampled.Config`."""
    from dpmf_jax.mechanisms.sampled import langevin

    return langevin.dpsgd(config)


def langevin(config: Any) -> Mechanism:
    """Langevin dynamics, of a `sampled.Config`."""
    from dpmf_jax.mechanisms.sampled import langevin

    return langevin.dp(config)


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Phase, ...]:
    """See `Spec.phases`."""
    del public
    make = {"dpsgd": dpsgd, "langevin": langevin}[settings["mechanism"]]
    return ((make(config(settings)), settings["steps"]),)


def notes(settings: Mapping[str, Any], release: Release) -> list[str]:
    """See `Spec.notes`."""
    del release
    if settings["decay"]:
        return []
    scale = settings["sampling_rate"] * math.sqrt(
        2 * settings["temperature"] / settings["learning_rate"]
    )
    return [
        "with one learning rate for all steps langevin is dpsgd, here with noise multiplier "
        f"{scale / settings['clip_norm']:.4g}; --decay makes it another algorithm"
    ]


def trial(label: str) -> Trial:
    """Of a mechanism that samples, at its defaults."""
    short = {
        "sensitivity": 20,
        "privacy loss": 2,
        "membership": 15,
        "one run": 10,
        "divergence": 10,
    }
    less = {"privacy loss": {"num_neighbours": 8, "num_runs": 64, "deltas": (1e-2,)}}
    return Trial(label, "defaults", {}, {"steps": 50}, FEW_STEPS, short=short, less=less)


_SHARED: dict[str, Any] = {
    "paper": "002",
    "settings": settings,
    "phases": phases,
    "control": without_noise,
    "access": "in order",
}
SAMPLES: dict[str, Any] = {
    "epsilon": SOUND_EPSILON,
    "steps": 100,
    "sampling_rate": 0.1,
    "decay": 0.0,
    "regularization": 1.0,
    "center": "middle of the rating range",
}
_DEFAULTS = SAMPLES | {"rank": 2, "learning_rate": "1 / max(users, items)"}
SPECS = (
    Spec(
        name="dpsgd",
        flags=Sampled,
        trials=(trial("002 sound: DP-SGD"),),
        defaults=_DEFAULTS,
        **_SHARED,
    ),
    Spec(
        name="langevin",
        flags=Langevin,
        defaults=_DEFAULTS | {"temperature": "solved for --epsilon"},
        notes=notes,
        trials=(trial("002 sound: Langevin"),),
        **_SHARED,
    ),
)
