"""Paper 001's mechanism, its sound variants and the same descent without noise: from flags to phases."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpmf_jax.errors import PrivacyError, UsageError
from experiments.fit.flags import MechanismFlags

NOISY_MEANS = "noisy-means"  # of --center
FLAGS = (
    *("rank", "epsilon", "delta", "center", "learning_rate", "regularization", "steps", "epsilon_step", "delta_step"),
    *("tau", "center_share", "clip_norm", "relation", "residual_clip", "items"),
)


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


def defaults(mechanism: str, num_users: int, num_items: int, rating_range: tuple[float, float]) -> Defaults:
    """From public sizes alone. The paper's own for what it published; the sound ones were searched on generated data
    (experiments/DEFAULTS.md). A row of a gradient sums at most as many ratings as the other side has rows, which bounds
    the step size at which the descent is stable.
    """
    widest, span = max(num_users, num_items), rating_range[1] - rating_range[0]
    paper = Defaults(rank=20, steps=791, learning_rate=5e-4, regularization=0.01)
    return {
        "gaussian": dataclasses.replace(paper, epsilon_step=0.15),
        "gaussian-joint-noise": Defaults(
            rank=2,
            steps=20,
            learning_rate=3 / widest,
            regularization=1.0,
            epsilon=3.0,
            residual_clip=span / 4,
            center=NOISY_MEANS,
            center_share=0.25,
        ),
        "gaussian-public-items": Defaults(
            rank=1,
            steps=30,
            learning_rate=2 / widest,
            regularization=1.0,
            epsilon=3.0,
            residual_clip=span / 4,
            center=NOISY_MEANS,
        ),
        "non-private": paper,
    }[mechanism]


def made(flags: MechanismFlags, train: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, their public settings) as the flags say; see `fit_mechanisms.made`."""
    name = flags.mechanism
    usual = defaults(name, train.num_users, train.num_items, tuple(train.rating_range))
    steps = usual.steps if flags.steps is None else flags.steps
    if steps < 1:
        raise UsageError(f"--steps must be at least 1; got {steps}", fix="--steps 100")
    items, rank = None, flags.rank
    if flags.items is not None:
        if name != "gaussian-public-items":
            raise UsageError("--items goes with --mechanism gaussian-public-items", fix="leave out one of the two")
        from experiments.fit import item_files

        items = item_files.read(flags.items, train.items)
        if rank not in (None, items.shape[1]):
            raise UsageError(
                f"--rank {rank} and {items.shape[1]} factors in the file",
                where=str(flags.items),
                fix="leave out --rank",
            )
        rank = items.shape[1]
    center = _center(usual.center if flags.center is None else flags.center)
    if center != NOISY_MEANS and flags.center_share is not None:
        raise UsageError(
            "--center-share goes with --center noisy-means", fix="--center noisy-means, or leave out --center-share"
        )
    settings = {
        "data": train.name,
        "mechanism": name,
        "steps": steps,
        "rating_range": list(train.rating_range),
        **_noise(flags, usual, steps, center),
        "rank": usual.rank if rank is None else rank,
        "learning_rate": usual.learning_rate if flags.learning_rate is None else flags.learning_rate,
        "regularization": usual.regularization if flags.regularization is None else flags.regularization,
        "clip_norm": flags.clip_norm,
        "tau": flags.tau,
        "center": center,
        "relation": "rating value" if flags.relation == "rating-value" else "rating presence",
        "residual_clip": usual.residual_clip if flags.residual_clip is None else flags.residual_clip,
        "delta": flags.delta,
        "items": None if items is None else "public file",
    }
    made_of, config = _phases(settings, items)
    if config.residual_clip is None and name in ("gaussian-joint-noise", "gaussian-public-items"):
        settings["residual_clip"] = 2 * config.span
    return made_of, settings


def phases(settings: Mapping[str, Any], items: Any) -> tuple[Any, ...]:
    """The phases of a run, made of what model.json keeps; see `fit_mechanisms.phases`."""
    return _phases(settings, items)[0]


def num_steps(settings: Mapping[str, Any], priced: int) -> int:
    """Of the training phase, of all steps that a guarantee prices: patience may have ended it."""
    return priced - (settings.get("center") == NOISY_MEANS)


def _phases(settings: Mapping[str, Any], items: Any) -> tuple[tuple[Any, ...], Any]:
    """(phases, the Config of the last one)."""
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
    from dpmf_jax.mechanisms.gaussian import noisy_means

    name = settings["mechanism"]
    names = {field.name for field in dataclasses.fields(gaussian.Config)}
    values: dict[str, Any] = {name: value for name, value in settings.items() if name in names}
    values["rating_range"] = tuple(values["rating_range"])
    noisy = values.get("center") == NOISY_MEANS
    if noisy:
        values["center"] = None
    config = gaussian.Config(**values)
    mechanism = {
        "gaussian": gaussian.mechanism,
        "gaussian-joint-noise": gaussian.joint_noise,
        "gaussian-public-items": lambda config: gaussian.public_items(config, items),
        "non-private": gaussian.non_private,
    }[name](config)
    training = (mechanism, settings["steps"])
    if not noisy:
        return (training,), config
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
    return ((first, 1), training), config


def _noise(flags: MechanismFlags, usual: Defaults, steps: int, center: Any) -> dict[str, float | None]:
    """The noise multiplier of a training step, and that of the noisy means where there are some."""
    whole = _noise_multiplier(flags, usual, steps)
    if center != NOISY_MEANS:
        return {"noise_multiplier": whole}
    from dpmf_jax.mechanisms.gaussian import noisy_means

    if whole is None:
        raise PrivacyError(
            "--center noisy-means has a price, and --mechanism non-private has none",
            fix="leave out --center, or give a number, item or global",
        )
    share = usual.center_share if flags.center_share is None else flags.center_share
    means, training = noisy_means.split(whole, steps, share)
    return {"noise_multiplier": training, "center_noise_multiplier": means}


def _noise_multiplier(flags: MechanismFlags, usual: Defaults, steps: int) -> float | None:
    from accounting import gaussian as price

    given = [flag for flag in ("epsilon_step", "epsilon") if getattr(flags, flag) is not None]
    if flags.mechanism == "non-private":
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
    kind = "closed_form" if flags.mechanism == "gaussian" else "exact"  # the accountant its guarantee is stated in
    return price.solve_noise_multiplier(source.epsilon, flags.delta, steps, price=kind)


def _center(text: str | None) -> Any:
    return text if text is None or text in ("item", "global", NOISY_MEANS) else number(text)


def number(text: str) -> float:
    """--center as a public constant.

    Raises: UsageError.
    """
    try:
        return 0.0 if text == "none" else float(text)
    except ValueError:
        raise UsageError(
            f"--center {text} is not noisy-means, item, global, none or a number", fix="--center 3.5"
        ) from None
