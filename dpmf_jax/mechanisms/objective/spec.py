"""The declarations of paper 003's perturbed objective, for a trusted recommender."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.spec import (
    SOUND_EPSILON,
    FactorFlags,
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

RANK, EPSILON, REGULARIZATION, LEARNING_RATE, PASSES = 50, 0.15, 1e-3, 2.0**-5, 100  # the paper's


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective(FactorFlags):
    """Settings of an objective of the item factors."""

    delta: float = 1e-5
    """Delta of the total, where the noise is Gaussian."""
    regularization: float | None = None
    """Weight of the items' squared norms, mu."""
    prior_count: int | None = None
    """Public M: items minimise the sum of squares plus M mu times their squared norm."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published(Objective):
    """Settings of the objective as published."""

    noise: Literal["l2-laplace", "laplace", "gaussian"] | None = None
    """Law of the perturbation: l2-laplace of theorem 1 or laplace of lemma 1."""
    learning_rate: float | None = None
    """Step size of the factorisation that the user factors come from."""
    user_regularization: float | None = None
    """Weight of the users' squared norms, lambda."""
    user_passes: int | None = None
    """Passes of the non-private factorisation that the user factors come from."""
    sgd_passes: int | None = None
    """Item factors by so many passes of updates at each rating, as in the paper's figures."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicUsers(Objective):
    """Settings of the objective with public users."""

    noise: Literal["l2-laplace", "laplace", "gaussian"] | None = None
    """Law of the perturbation; --delta goes with gaussian."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistics(Objective):
    """Settings of noisy statistics of the items."""

    rating_bound: float | None = None
    """Ratings are clipped to so much on either side of the centre, in their unit."""
    matrix_share: float = 0.5
    """Share of the price (in rho) that the noise on the sum of u·u' takes, from 0 to 1."""


def settings(name: str, flags: Any, ratings: Ratings, public: Any) -> Settings:
    """See `Spec.settings`; public: user factors."""
    published = name == "objective"
    noise = (
        "gaussian"
        if name == "objective-statistics"
        else (flags.noise or "l2-laplace").replace("-", "_")
    )
    if published and noise == "gaussian":
        raise UsageError(
            "--noise gaussian is not the paper's",
            fix="--mechanism objective-public-users, or --noise l2-laplace",
        )
    if noise != "gaussian" and flags.delta != Objective.delta:
        raise UsageError(
            f"--delta means nothing for pure noise ({noise.replace('_', '-')})",
            fix="leave out --delta, or --noise gaussian",
        )
    rank = flags.rank if public is None else public.shape[1]
    low, high = ratings.rating_range
    middle = 0.0 if published else (low + high) / 2
    made: Settings = {
        "steps": 1,
        "rating_range": list(ratings.rating_range),
        "epsilon": (
            (EPSILON if published else SOUND_EPSILON) if flags.epsilon is None else flags.epsilon
        ),
        "delta": flags.delta if noise == "gaussian" else 0.0,
        "noise": noise,
        "rank": (RANK if published else 1) if rank is None else rank,
        "regularization": REGULARIZATION if flags.regularization is None else flags.regularization,
        "prior_count": flags.prior_count,
        "center": middle if flags.center is None else public_center(flags.center, name),
    }
    if published:
        made |= {
            "user_regularization": (
                REGULARIZATION if flags.user_regularization is None else flags.user_regularization
            ),
            "learning_rate": LEARNING_RATE if flags.learning_rate is None else flags.learning_rate,
            "num_passes": PASSES if flags.user_passes is None else flags.user_passes,
            "num_iterations": flags.sgd_passes,
        }
    else:
        made["users"] = None if public is None else "public file"
    if name == "objective-statistics":
        bound = max(high - made["center"], made["center"] - low)
        made["rating_bound"] = bound if flags.rating_bound is None else flags.rating_bound
        made["matrix_share"] = flags.matrix_share
    if flags.prior_count is None:
        made["prior_count"] = prior_count(made | {"mechanism": name}, ratings.num_ratings)
    return made


def prior_count(settings: Mapping[str, Any], num_ratings: int) -> int:
    """M where the flags say none, from public numbers alone.

    As published it is the number of ratings, as equation (1) has it: who rated what is public
    there. Sound: M·μ is 2(1 + s), s the standard deviation of the noise on a coordinate of Σur in
    quarters of the rating range, a public guess of how far ratings spread; searched on generated
    data (experiments/DEFAULTS.md).
    """
    if settings["mechanism"] == "objective":
        return max(1, num_ratings)
    if not settings["regularization"] > 0:
        raise ValueError(
            f"regularization must be positive and finite; got {settings['regularization']}"
        )
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


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Phase, ...]:
    """See `Spec.phases`; public: user factors."""
    from dpmf_jax.mechanisms.objective import mechanisms as objective

    config = objective.Config(**config_values(objective.Config, settings))
    if settings["mechanism"] == "objective":
        mechanism = objective.mechanism(config)
    elif settings["mechanism"] == "objective-public-users":
        mechanism = objective.public_users(config, public)
    else:
        mechanism = objective.statistics(config, public)
    return ((mechanism, settings["steps"]),)


_PUBLISHED = Trial(
    "003 as published: S1, objective",
    "ε = 0.15, rank 50, user factors by 100 passes over the same ratings",
    small={"rank": 5, "user_passes": 10},
    less={  # a run takes as long as a hundred steps of the others
        "privacy loss": {"num_neighbours": 8, "num_runs": 32},
        "membership": {"num_shadows": 16},
        "divergence": {"num_runs": 48},
        "one run": {"num_known": 32},
    },
)
_SHARED: dict[str, Any] = {
    "paper": "003",
    "settings": settings,
    "phases": phases,
    "control": without_noise,
}
_MIDDLE = "middle of the rating range"
_SOUND: dict[str, Any] = {
    "epsilon": SOUND_EPSILON,
    "rank": 1,
    "regularization": REGULARIZATION,
    "center": _MIDDLE,
    "prior_count": "by the size of the noise",
}
SPECS = (
    Spec(
        name="objective",
        defaults={
            "epsilon": EPSILON,
            "rank": RANK,
            "center": 0.0,
            "noise": "l2-laplace",
            "regularization": REGULARIZATION,
            "user_regularization": REGULARIZATION,
            "learning_rate": LEARNING_RATE,
            "user_passes": PASSES,
            "prior_count": "number of ratings",
            "sgd_passes": "none: the exact minimiser",
        },
        flags=Published,
        access="by item",
        unit="rating value",
        trials=(_PUBLISHED,),
        **_SHARED,
    ),
    Spec(
        name="objective-public-users",
        defaults=_SOUND | {"noise": "l2-laplace"},
        flags=PublicUsers,
        access="in place",
        unit="rating value",
        public="users",
        trials=(Trial("003 sound: objective, public users", "defaults"),),
        **_SHARED,
    ),
    Spec(
        name="objective-statistics",
        defaults=_SOUND | {"rating_bound": "up to the end of the rating range"},
        flags=Statistics,
        access="in place",
        unit="rating presence",
        public="users",
        trials=(Trial("003 sound: objective, statistics", "defaults"),),
        **_SHARED,
    ),
)
