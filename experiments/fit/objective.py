"""Paper 003 with a trusted recommender: the perturbed objective, as published and sound; from flags to phases."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dpmf_jax.errors import UsageError
from experiments.fit import gaussian as fit_gaussian
from experiments.fit.flags import MechanismFlags

_ALL = ("rank", "epsilon", "center", "regularization", "prior_count")
FLAGS = {
    "objective": (*_ALL, "noise", "learning_rate", "user_regularization", "user_passes", "sgd_passes"),
    "objective-public-users": (*_ALL, "noise", "delta", "users"),
    "objective-statistics": (*_ALL, "delta", "users", "rating_bound", "matrix_share"),
}
RANK, EPSILON, REGULARIZATION, LEARNING_RATE, PASSES = 50, 0.15, 1e-3, 2.0**-5, 100  # the paper's
SOUND_EPSILON = 3.0


def made(flags: MechanismFlags, train: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, their public settings) as the flags say; see `fit_mechanisms.made`."""
    name, published = flags.mechanism, flags.mechanism == "objective"
    noise = "gaussian" if name == "objective-statistics" else (flags.noise or "l2-laplace").replace("-", "_")
    if published and noise == "gaussian":
        raise UsageError(
            "--noise gaussian is not the paper's", fix="--mechanism objective-public-users, or --noise l2-laplace"
        )
    if noise != "gaussian" and flags.delta != MechanismFlags.delta:
        raise UsageError(
            f"--delta means nothing for pure noise ({noise.replace('_', '-')})",
            fix="leave out --delta, or --noise gaussian",
        )
    users, rank = public_users(flags, train)
    low, high = train.rating_range
    middle = 0.0 if published else (low + high) / 2
    settings: dict[str, Any] = {
        "data": train.name,
        "mechanism": name,
        "steps": 1,
        "rating_range": list(train.rating_range),
        "epsilon": (EPSILON if published else SOUND_EPSILON) if flags.epsilon is None else flags.epsilon,
        "delta": flags.delta if noise == "gaussian" else 0.0,
        "noise": noise,
        "rank": (RANK if published else 1) if rank is None else rank,
        "regularization": REGULARIZATION if flags.regularization is None else flags.regularization,
        "prior_count": flags.prior_count,
        "center": middle if flags.center is None else public_center(flags.center, name),
    }
    if published:
        settings |= {
            "user_regularization": REGULARIZATION if flags.user_regularization is None else flags.user_regularization,
            "learning_rate": LEARNING_RATE if flags.learning_rate is None else flags.learning_rate,
            "num_passes": PASSES if flags.user_passes is None else flags.user_passes,
            "num_iterations": flags.sgd_passes,
        }
    else:
        settings["users"] = None if users is None else "public file"
    if name == "objective-statistics":
        bound = max(high - settings["center"], settings["center"] - low)
        settings["rating_bound"] = bound if flags.rating_bound is None else flags.rating_bound
        settings["matrix_share"] = flags.matrix_share
    if flags.prior_count is None:
        settings["prior_count"] = prior_count(settings, train.num_ratings)
    return phases(settings, users), settings


def public_users(flags: MechanismFlags, train: Any) -> tuple[Any, int | None]:
    """(user factors of the file that the flags name, or None; the rank that the flags or the file give, or None)."""
    if flags.users is None:
        return None, flags.rank
    from experiments.fit import item_files

    users = item_files.read(flags.users, train.users, "user")
    if flags.rank not in (None, users.shape[1]):
        raise UsageError(
            f"--rank {flags.rank} and {users.shape[1]} factors in the file",
            where=str(flags.users),
            fix="leave out --rank",
        )
    return users, users.shape[1]


def public_center(text: str, mechanism: str) -> float:
    """--center, a public constant for all of paper 003's mechanisms.

    Raises: UsageError.
    """
    if text in ("item", "global", fit_gaussian.NOISY_MEANS):
        raise UsageError(
            f"--center {text} is not for --mechanism {mechanism}: its price is that of a centre which is public",
            fix="--center with a number that is public, such as the middle of the range",
        )
    return fit_gaussian.number(text)


def prior_count(settings: Mapping[str, Any], num_ratings: int) -> int:
    """M where the flags say none, from public numbers alone.

    As published it is the number of ratings, as equation (1) has it: who rated what is public there. Sound: M·μ is
    2(1 + s), s the standard deviation of the noise on a coordinate of Σur in quarters of the rating range, a public
    guess of how far ratings spread; searched on generated data (experiments/DEFAULTS.md).
    """
    if settings["mechanism"] == "objective":
        return max(1, num_ratings)
    if not settings["regularization"] > 0:
        raise ValueError(f"regularization must be positive and finite; got {settings['regularization']}")
    low, high = settings["rating_range"]
    spread = 4 * vector_noise(settings) / (high - low)
    return max(1, round(2 * (1 + spread) / settings["regularization"]))


def vector_noise(settings: Mapping[str, Any]) -> float:
    """The standard deviation of the noise on a coordinate of Σur."""
    from accounting import objective

    low, high = settings["rating_range"]
    epsilon, rank = settings["epsilon"], settings["rank"]
    if settings["mechanism"] == "objective-statistics":
        bound, share = settings["rating_bound"], settings["matrix_share"]
        return objective.statistics_scales(
            epsilon=epsilon, delta=settings["delta"], rating_bound=bound, matrix_share=share
        )[1]
    delta = settings["delta"] or None
    scale = objective.value_change_scale(
        noise=settings["noise"], epsilon=epsilon, delta=delta, range_width=high - low, rank=rank
    )
    return math.sqrt(objective.squared_noise(settings["noise"], scale=scale, rank=rank) / rank) / 2


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Any, ...]:
    """The one phase of a run, made of what model.json keeps; public: user factors, where there are some."""
    from dpmf_jax.mechanisms.objective import mechanisms as objective

    names = {field.name for field in dataclasses.fields(objective.Config)}
    values: dict[str, Any] = {name: value for name, value in settings.items() if name in names}
    values["rating_range"] = tuple(values["rating_range"])
    config = objective.Config(**values)
    if settings["mechanism"] == "objective":
        mechanism = objective.mechanism(config)
    elif settings["mechanism"] == "objective-public-users":
        mechanism = objective.public_users(config, public)
    else:
        mechanism = objective.statistics(config, public)
    return ((mechanism, settings["steps"]),)


def num_steps(settings: Mapping[str, Any], priced: int) -> int:
    """Releases; one."""
    del settings
    return priced
