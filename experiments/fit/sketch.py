"""Paper 002: its count sketch as published, and sound steps from secret samples; from flags to phases."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dpmf_jax.errors import PrivacyError, UsageError
from experiments.fit import gaussian as fit_gaussian
from experiments.fit.flags import MechanismFlags
from experiments.fit.objective import SOUND_EPSILON, public_center

MEANS = "means"  # of --center
_ALL = ("rank", "epsilon", "center", "learning_rate", "regularization")
_TABLE = ("depth", "gain", "query")
_SAMPLED = (*_ALL, "delta", "steps", "clip_norm", "relation", "sampling_rate")
FLAGS = {
    "sketch": (*_ALL, *_TABLE, "decay", "epochs", "threshold", "convention"),
    "sketch-dpsgd": (*_SAMPLED, *_TABLE, "decay"),
    "dpsgd": (*_SAMPLED, "decay"),
    "langevin": (*_SAMPLED, "decay", "temperature"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults:
    """Settings of a mechanism where the flags say nothing; steps: epochs of the sketch."""

    steps: int
    rank: int
    learning_rate: float
    regularization: float
    decay: float = 0.0
    gain: float = 1.0
    sampling_rate: float = 0.1


def defaults(mechanism: str, num_users: int, num_items: int) -> Defaults:
    """From public sizes alone, searched on generated data (experiments/DEFAULTS.md)."""
    widest = max(num_users, num_items)
    factors = Defaults(steps=100, rank=2, learning_rate=1 / widest, regularization=1.0)
    return {
        "sketch": Defaults(steps=20, rank=16, learning_rate=0.05, regularization=0.1),
        "sketch-dpsgd": dataclasses.replace(factors, rank=1, learning_rate=6 / widest, gain=0.25),
        "dpsgd": factors,
        "langevin": factors,
    }[mechanism]


def made(flags: MechanismFlags, train: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, their public settings) as the flags say; see `fit_mechanisms.made`."""
    usual = defaults(flags.mechanism, train.num_users, train.num_items)
    meant = FLAGS[flags.mechanism]

    def said(name: str) -> Any:
        given = getattr(flags, name)
        return getattr(usual, name, None) if given is None else given

    shared = {
        "data": train.name,
        "mechanism": flags.mechanism,
        **{name: said(name) for name in ("rank", "learning_rate", "regularization")},
        **{name: said(name) for name in (*_TABLE, "decay") if name in meant},
    }
    if flags.mechanism == "sketch":
        settings = shared | _published(flags, usual)
        return phases(settings, None), settings
    steps = said("steps")
    if steps < 1:
        raise UsageError(f"--steps must be at least 1; got {steps}", fix=f"--steps {usual.steps}")
    low, high = train.rating_range
    settings = shared | {
        "steps": steps,
        "num_steps": steps,
        "rating_range": [low, high],
        "center": (low + high) / 2 if flags.center is None else public_center(flags.center, flags.mechanism),
        "sampling_rate": said("sampling_rate"),
        "clip_norm": flags.clip_norm,
        "unit": flags.relation.replace("-", " "),
        "delta": flags.delta,
    }
    if flags.temperature is not None:
        if flags.epsilon is not None:
            raise UsageError("--temperature and --epsilon both set the noise", fix="give one of them")
        settings["temperature"] = flags.temperature
        return phases(settings, None), settings
    return _priced(settings, SOUND_EPSILON if flags.epsilon is None else flags.epsilon)


def _published(flags: MechanismFlags, usual: Defaults) -> dict[str, Any]:
    """Settings of the published sketch alone.

    Raises: PrivacyError for an ε, which the paper calls what is a threshold here; UsageError.
    """
    if flags.epsilon is not None:
        raise PrivacyError(
            "--epsilon asks for privacy, and --mechanism sketch has none",
            where="paper 002's epsilon is a threshold above which ratings are not learnt from, here --threshold",
            fix=f"--mechanism sketch-dpsgd --epsilon {flags.epsilon:g} for privacy, or --threshold {flags.epsilon:g}",
        )
    epochs = usual.steps if flags.epochs is None else flags.epochs
    if flags.threshold is None and flags.convention != MechanismFlags.convention:
        raise UsageError("--convention goes with --threshold", fix="--threshold 4, or leave out --convention")
    center = MEANS if flags.center is None else flags.center
    if center in ("item", "global", fit_gaussian.NOISY_MEANS):
        raise UsageError(
            f"--center {center} is not for --mechanism sketch",
            fix=f"--center {MEANS}, which paper 002 subtracts, or a number",
        )
    return {
        "steps": epochs,
        "num_epochs": epochs,
        "preprocess": center == MEANS,
        "center": 0.0 if center == MEANS else fit_gaussian.number(center),
        "threshold": None if flags.threshold == math.inf else flags.threshold,
        "convention": flags.convention,
    }


def _priced(settings: dict[str, Any], epsilon: float) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, settings) with the least noise whose steps cost at most `epsilon`, as the mechanism rounds it."""
    from accounting import subsampled

    phases(settings | dict.fromkeys(("noise_multiplier", "temperature"), 1.0), None)  # says what is wrong with the rest
    langevin = settings["mechanism"] == "langevin"
    solve: Any = subsampled.solve_langevin_temperature if langevin else subsampled.solve_noise_multiplier
    names = ("sampling_rate", "unit", *(("learning_rate", "decay", "clip_norm") if langevin else ()))
    amount = solve(epsilon, settings["delta"], num_steps=settings["steps"], **{name: settings[name] for name in names})
    while True:
        noisy = settings | {"temperature" if langevin else "noise_multiplier": amount}
        made_of = phases(noisy, None)
        ((mechanism, steps),) = made_of
        if min(mechanism.guarantee(steps).accountants.values()) <= epsilon:
            return made_of, noisy
        amount *= 1 + 1e-5  # what float32 took off, or a rough spot of the price


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Any, ...]:
    """The one phase of a run, made of what model.json keeps; see `fit_mechanisms.phases`."""
    from dpmf_jax.mechanisms.sampled import langevin, sampled
    from dpmf_jax.mechanisms.sketch import dpsgd as sketch_dpsgd
    from dpmf_jax.mechanisms.sketch import online
    from dpmf_jax.mechanisms.sketch import published as sketch

    del public  # of other mechanisms
    published = settings["mechanism"] == "sketch"
    kind = online.Config if published else sampled.Config
    names = {field.name for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {name: value for name, value in settings.items() if name in names}
    if published:
        return ((sketch.mechanism(online.Config(**values)), settings["steps"]),)
    values["rating_range"] = tuple(values["rating_range"])
    make = {"sketch-dpsgd": sketch_dpsgd.mechanism, "dpsgd": langevin.dpsgd, "langevin": langevin.dp}
    return ((make[settings["mechanism"]](sampled.Config(**values)), settings["steps"]),)


def num_steps(settings: Mapping[str, Any], priced: int) -> int:
    """Steps, or epochs; all of them are priced."""
    del settings
    return priced


def notes(settings: Mapping[str, Any]) -> list[str]:
    """See `fit_mechanisms.notes`."""
    if settings["mechanism"] != "langevin" or settings["decay"]:
        return []
    scale = settings["sampling_rate"] * math.sqrt(2 * settings["temperature"] / settings["learning_rate"])
    return [
        f"with one learning rate for all steps langevin is dpsgd, here with noise multiplier "
        f"{scale / settings['clip_norm']:.4g}; --decay makes it another algorithm"
    ]
