"""The declarations of paper 001's mechanism, its sound variants, and the descent without noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import PrivacyError, UsageError
from dpmf_jax.mechanisms.spec import (
    FEW_STEPS,
    NOISY_MEANS,
    SOUND_EPSILON,
    FactorFlags,
    Settings,
    Spec,
    Trial,
    check_steps,
    constant,
    given_or_default,
    without_noise,
)

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.protocol import Phase


@dataclasses.dataclass(frozen=True, kw_only=True)
class Descent(FactorFlags):
    """Settings of gradient descent with noise on gradients."""

    delta: float = 1e-5
    """Delta of the total."""
    center: str | None = None
    """What is subtracted from the ratings: a public number in their unit, or none; noisy-means,
    item means with noise, paid for (sound variants); item or global, unpriced means (the others).
    """
    learning_rate: float | None = None
    """Step size."""
    steps: int | None = None
    """Number of steps, fixed up front."""
    epsilon_step: float | None = None
    """In place of --epsilon: noise of a step as paper 001 writes it, with standard deviation
    sensitivity * sqrt(2 ln(1.25/delta_step)) / epsilon_step.
    """
    delta_step: float = 0.01
    """Of the formula of --epsilon-step; no price."""
    tau: float | None = None
    """Largest change of one rating, in its unit; 5 in paper 001's figures on MovieLens."""
    center_share: float | None = None
    """Share of the price (in rho) that --center noisy-means takes, from 0 to 1."""
    clip_norm: float = 1.0
    """Bound on a factor row's norm where it enters a gradient."""
    relation: Literal["rating-value", "rating-presence"] = "rating-value"
    """What is protected: one rating's value, or whether it exists (sound variants only)."""
    residual_clip: float | None = None
    """Bound on a rating's residual where it enters a gradient, in the ratings' unit."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults:
    """Settings of a mechanism where the flags say nothing."""

    rank: int
    steps: int
    learning_rate: float
    regularization: float
    epsilon_step: float | None = None
    epsilon: float | None = None
    residual_clip: float | None = None
    center: str | None = None
    center_share: float = 0.5


def defaults(
    mechanism: str, num_users: int, num_items: int, rating_range: tuple[float, float]
) -> Defaults:
    """Defaults from public sizes alone.

    The paper's own for what it published; the sound ones were searched on generated data
    (experiments/DEFAULTS.md). A row of a gradient sums at most as many ratings as the other side
    has rows, which bounds the step size at which the descent is stable.
    """
    widest, span = max(num_users, num_items), rating_range[1] - rating_range[0]
    paper = Defaults(rank=20, steps=791, learning_rate=5e-4, regularization=0.01)
    sound: dict[str, Any] = {
        "epsilon": SOUND_EPSILON,
        "residual_clip": span / 4,
        "center": NOISY_MEANS,
    }
    return {
        "gaussian": dataclasses.replace(paper, epsilon_step=0.15),
        "gaussian-joint-noise": Defaults(
            rank=2,
            steps=20,
            learning_rate=3 / widest,
            regularization=1.0,
            center_share=0.25,
            **sound,
        ),
        "gaussian-public-items": Defaults(
            rank=1, steps=30, learning_rate=2 / widest, regularization=1.0, **sound
        ),
        "non-private": paper,
    }[mechanism]


def settings(name: str, flags: Descent, ratings: Ratings, public: Any) -> Settings:
    """See `Spec.settings`; public: item factors."""
    usual = defaults(name, ratings.num_users, ratings.num_items, tuple(ratings.rating_range))
    steps = check_steps(given_or_default(flags, usual, "steps"), 100)
    center = given_or_default(flags, usual, "center")
    center = center if center in (None, "item", "global", NOISY_MEANS) else constant(center)
    if center != NOISY_MEANS and flags.center_share is not None:
        raise UsageError(
            "--center-share goes with --center noisy-means",
            fix="--center noisy-means, or leave out --center-share",
        )
    made = {
        "steps": steps,
        "rating_range": list(ratings.rating_range),
        **_noise(name, flags, usual, steps, center),
        "rank": given_or_default(flags, usual, "rank") if public is None else public.shape[1],
        "learning_rate": given_or_default(flags, usual, "learning_rate"),
        "regularization": given_or_default(flags, usual, "regularization"),
        "clip_norm": flags.clip_norm,
        "tau": flags.tau,
        "center": center,
        "relation": flags.relation.replace("-", " "),
        "residual_clip": given_or_default(flags, usual, "residual_clip"),
        "delta": flags.delta,
        "items": None if public is None else "public file",
    }
    if made["residual_clip"] is None and name in ("gaussian-joint-noise", "gaussian-public-items"):
        made["residual_clip"] = 2 * _config(made).span
    return made


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Phase, ...]:
    """See `Spec.phases`; public: item factors."""
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
    from dpmf_jax.mechanisms.gaussian import noisy_means

    name, config = settings["mechanism"], _config(settings)
    mechanism = {
        "gaussian": gaussian.mechanism,
        "gaussian-joint-noise": gaussian.joint_noise,
        "gaussian-public-items": lambda config: gaussian.public_items(config, public),
        "non-private": gaussian.non_private,
    }[name](config)
    training = (mechanism, settings["steps"])
    if settings.get("center") != NOISY_MEANS:
        return (training,)
    if name not in ("gaussian-joint-noise", "gaussian-public-items"):
        raise PrivacyError(
            "--center noisy-means goes with the sound mechanisms",
            where=f"--mechanism {name}",
            fix="--mechanism gaussian-joint-noise or gaussian-public-items",
        )
    first = noisy_means.mechanism(
        noisy_means.Config(
            rating_range=config.rating_range,
            noise_multiplier=settings["center_noise_multiplier"],
            tau=config.tau,
            relation=config.relation,
            delta=config.delta,
        )
    )
    return ((first, 1), training)


def num_steps(settings: Mapping[str, Any], priced: int) -> int:
    """Of the training phase, of all steps that a guarantee prices: patience may have ended it."""
    return priced - (settings.get("center") == NOISY_MEANS)


def _config(settings: Mapping[str, Any]) -> Any:
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
    from dpmf_jax.mechanisms.spec import config_values

    values = config_values(gaussian.Config, settings)
    if values.get("center") == NOISY_MEANS:
        values["center"] = None
    return gaussian.Config(**values)


def _noise(
    name: str, flags: Descent, usual: Defaults, steps: int, center: Any
) -> dict[str, float | None]:
    """The noise multiplier of a training step, and that of the noisy means where there are some."""
    whole = _noise_multiplier(name, flags, usual, steps)
    if center != NOISY_MEANS:
        return {"noise_multiplier": whole}
    from dpmf_jax.mechanisms.gaussian import noisy_means

    if whole is None:
        raise PrivacyError(
            "--center noisy-means has a price, and --mechanism non-private has none",
            fix="leave out --center, or give a number, item or global",
        )
    means, training = noisy_means.split(
        whole, steps, given_or_default(flags, usual, "center_share")
    )
    return {"noise_multiplier": training, "center_noise_multiplier": means}


def _noise_multiplier(name: str, flags: Descent, usual: Defaults, steps: int) -> float | None:
    from accounting import gaussian as price

    given = [flag for flag in ("epsilon_step", "epsilon") if getattr(flags, flag) is not None]
    if name == "non-private":
        if given:
            flag = given[0].replace("_", "-")
            raise PrivacyError(
                f"--{flag} asks for privacy, and --mechanism non-private has none",
                fix=f"leave out --{flag}, or choose a private mechanism",
            )
        return None
    if len(given) == 2:
        raise UsageError("--epsilon-step and --epsilon both set the noise", fix="give one of them")
    source = flags if given else usual
    if source.epsilon_step is not None:
        return price.noise_multiplier_from_step(source.epsilon_step, flags.delta_step)
    assert source.epsilon is not None
    kind = (
        "closed_form" if name == "gaussian" else "exact"
    )  # the accountant its guarantee is stated in
    return price.solve_noise_multiplier(source.epsilon, flags.delta, steps, price=kind)


_PUBLISHED = {"epsilon_step": 0.15, "regularization": 0.01}
_REAL = {"rank": 20, "steps": 300, "learning_rate": 5e-4}
_SMALL = {"rank": 5, "steps": 100, "learning_rate": 5e-3, "center": "middle"}
_LONG = {"privacy loss": 3, "membership": 50, "one run": 100, "divergence": 100}
_SHORT = {"privacy loss": 5}
_TRIALS = (
    Trial(
        "001 as published, τ the range's width",
        "Theorem 2's sensitivity, with the middle of the range as centre; ε_i = 0.15, rank 20, 300"
        " steps",
        _PUBLISHED | {"center": "middle"},
        _REAL,
        _SMALL,
        short=_LONG,
    ),
    Trial(
        "001 as published, τ of the plots",
        "τ = 5 on ratings from 1 to 5, with movie means, as the figures were drawn",
        _PUBLISHED | {"tau": "highest", "center": "item"},
        _REAL,
        _SMALL,
        short=_LONG,
    ),
    Trial(
        "001 as published, C = 0.25",
        "40 users, 30 items, generated; rank 5, learning rate 0.012, 300 steps: stable, and it"
        " learns",
        {
            "regularization": 0.01,
            "epsilon_step": 0.2071,
            "center": "middle",
            "clip_norm": 0.25,
            "rank": 5,
            "learning_rate": 0.012,
        },
        {"steps": 300},
        {"steps": 100},
        own=True,
    ),
)
_JOINT = Trial("001 sound: joint noise", "defaults", small=FEW_STEPS, short=_SHORT)
_PUBLIC = Trial("001 sound: public items", "defaults", small=FEW_STEPS, short=_SHORT)
_SHARED: dict[str, Any] = {
    "paper": "001",
    "flags": Descent,
    "settings": settings,
    "phases": phases,
    "control": without_noise,
    "access": "sums",
    "num_steps": num_steps,
}
_RANGE = "the width of the rating range"
_PAPERS: dict[str, Any] = {
    "rank": 20,
    "steps": 791,
    "learning_rate": 5e-4,
    "regularization": 0.01,
    "center": "item",
    "tau": _RANGE,
    "residual_clip": "none",
    "epsilon": "none",
    "epsilon_step": "none",
    "center_share": "none",
}
_SOUND: dict[str, Any] = {
    "epsilon": SOUND_EPSILON,
    "regularization": 1.0,
    "center": NOISY_MEANS,
    "tau": _RANGE,
    "residual_clip": "a quarter of the rating range",
    "epsilon_step": "none",
}
_RATE = "max(users, items)"
SPECS = (
    Spec(
        name="gaussian",
        trials=_TRIALS,
        defaults=_PAPERS | {"epsilon_step": 0.15},
        **_SHARED,
    ),
    Spec(
        name="gaussian-joint-noise",
        trials=(_JOINT,),
        defaults=_SOUND
        | {"rank": 2, "steps": 20, "learning_rate": f"3 / {_RATE}", "center_share": 0.25},
        **_SHARED,
    ),
    Spec(
        name="gaussian-public-items",
        public="items",
        trials=(_PUBLIC,),
        defaults=_SOUND
        | {"rank": 1, "steps": 30, "learning_rate": f"2 / {_RATE}", "center_share": 0.5},
        **_SHARED,
    ),
    Spec(name="non-private", defaults=_PAPERS, **_SHARED),
)
