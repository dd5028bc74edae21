"""The declarations of paper 002's count sketch, as published and with sound steps from samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import PrivacyError, UsageError
from dpmf_jax.mechanisms.sampled.spec import (
    SAMPLES,
    Defaults,
    Sampled,
    config,
    sampled_settings,
    trial,
)
from dpmf_jax.mechanisms.spec import (
    NOISY_MEANS,
    FactorFlags,
    Settings,
    Spec,
    Trial,
    config_values,
    constant,
    given_or_default,
    without_noise,
)

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.protocol import Mechanism, Phase

MEANS = "means"  # of --center
_TABLE = ("depth", "gain", "query")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table(FactorFlags):
    """Settings of the sketch's table."""

    depth: int = 4
    """Number of rows of the table; 1 is feature hashing."""
    gain: float | None = None
    """How many times smaller the table is than all vectors together."""
    query: Literal["mean", "median"] = "mean"
    """How a vector is read from its rows; median is slow in the published sketch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published(Table):
    """Settings of the sketch as published."""

    center: str | None = None
    """What is subtracted from the ratings: a public number in their unit; none; or means, the
    global, user and item means, unpriced.
    """
    learning_rate: float | None = None
    """Step size of the first epoch, eta."""
    decay: float | None = None
    """Epoch t of T has the learning rate eta/(1 + decay t/T)."""
    epochs: int | None = None
    """Number of passes over the ratings, T."""
    threshold: float | None = None
    """Ratings with a larger loss are not learnt from. Paper 002 calls it epsilon; it promises no
    privacy.
    """
    convention: Literal["4.3", "3.2"] = "4.3"
    """With --threshold: the loss is the squared error (4.3), or half of it (3.2)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledTable(Table, Sampled):
    """Settings of DP-SGD on a sketch."""


def defaults(mechanism: str, num_users: int, num_items: int) -> Defaults:
    """From public sizes alone, searched on generated data (experiments/DEFAULTS.md)."""
    rate = 6 / max(num_users, num_items)
    return {
        "sketch": Defaults(steps=20, rank=16, learning_rate=0.05, regularization=0.1),
        "sketch-dpsgd": Defaults(
            steps=100, rank=1, learning_rate=rate, regularization=1.0, gain=0.25
        ),
    }[mechanism]


def settings(name: str, flags: Any, ratings: Ratings, public: Any) -> Settings:
    """See `Spec.settings`."""
    del public  # there are none
    usual = defaults(name, ratings.num_users, ratings.num_items)
    table = {field: given_or_default(flags, usual, field) for field in _TABLE}
    if name == "sketch-dpsgd":
        return sampled_settings(name, flags, ratings, usual, _dpsgd, table)
    return {
        **{
            field: given_or_default(flags, usual, field)
            for field in ("rank", "learning_rate", "regularization")
        },
        **table,
        "decay": given_or_default(flags, usual, "decay"),
        **_published(flags, usual),
    }


def _published(flags: Published, usual: Defaults) -> dict[str, Any]:
    """Settings of the published sketch alone.

    Raises: PrivacyError for an ε, which the paper calls what is a threshold here; UsageError.
    """
    if flags.epsilon is not None:
        raise PrivacyError(
            "--epsilon asks for privacy, and --mechanism sketch has none",
            where=(
                "paper 002's epsilon is a threshold above which ratings are not learnt from, here"
                " --threshold"
            ),
            fix=(
                f"--mechanism sketch-dpsgd --epsilon {flags.epsilon:g} for privacy, or --threshold"
                f" {flags.epsilon:g}"
            ),
        )
    epochs = usual.steps if flags.epochs is None else flags.epochs
    if flags.threshold is None and flags.convention != Published.convention:
        raise UsageError(
            "--convention goes with --threshold", fix="--threshold 4, or leave out --convention"
        )
    center = MEANS if flags.center is None else flags.center
    if center in ("item", "global", NOISY_MEANS):
        raise UsageError(
            f"--center {center} is not for --mechanism sketch",
            fix=f"--center {MEANS}, which paper 002 subtracts, or a number",
        )
    return {
        "steps": epochs,
        "num_epochs": epochs,
        "preprocess": center == MEANS,
        "center": 0.0 if center == MEANS else constant(center),
        "threshold": None if flags.threshold == math.inf else flags.threshold,
        "convention": flags.convention,
    }


def _dpsgd(config: Any) -> Mechanism:
    from dpmf_jax.mechanisms.sketch import dpsgd

    return dpsgd.mechanism(config)


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Phase, ...]:
    """See `Spec.phases`."""
    from dpmf_jax.mechanisms.sketch import online, published

    del public
    if settings["mechanism"] == "sketch-dpsgd":
        return ((_dpsgd(config(settings)), settings["steps"]),)
    return (
        (
            published.mechanism(online.Config(**config_values(online.Config, settings))),
            settings["steps"],
        ),
    )


_UNSAFE = (
    (
        "--mechanism sketch protects nothing: what paper 002 calls epsilon (here --threshold) is a"
        " threshold above which ratings are not learnt from, not a privacy parameter"
    ),
    "what it releases may show any rating, whatever the threshold",
    (
        "--mechanism sketch-dpsgd, which has a price; or --accept-no-guarantee, where no privacy is"
        " needed"
    ),
)
_PUBLISHED = Trial(
    "002 as published: sketch",
    "no claim of privacy; rank 16, 2 epochs",
    {"epochs": 2},
    small={"rank": 4},
    less={"divergence": {"num_runs": 24}},  # nothing is claimed, and a run is long
)
_SHARED: dict[str, Any] = {
    "paper": "002",
    "settings": settings,
    "phases": phases,
    "control": without_noise,
    "access": "in order",
}
SPECS = (
    Spec(
        name="sketch",
        flags=Published,
        unsafe=_UNSAFE,
        trials=(_PUBLISHED,),
        defaults={
            "epsilon": "none",
            "rank": 16,
            "epochs": 20,
            "gain": 1.0,
            "learning_rate": 0.05,
            "regularization": 0.1,
            "decay": 0.0,
            "center": MEANS,
            "threshold": "none",
        },
        **_SHARED,
    ),
    Spec(
        name="sketch-dpsgd",
        flags=SampledTable,
        trials=(trial("002 sound: sketch, DP-SGD"),),
        defaults=SAMPLES | {"rank": 1, "gain": 0.25, "learning_rate": "6 / max(users, items)"},
        **_SHARED,
    ),
)
