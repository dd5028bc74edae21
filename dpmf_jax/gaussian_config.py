"""Settings of the Gaussian mechanisms: checked on the host, then split into traced leaves and static parts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpmf_jax.errors import PrivacyError

Relation = Literal["rating value", "rating presence"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of one run; host numbers, all public. Paper 001's letters in brackets.

    rating_range: the declared smallest and largest rating.
    noise_multiplier: noise standard deviation over sensitivity, z = σ/Δ, per step; None where there is no noise.
      Paper 001 writes it as z = √(2 ln(1.25/δ)) / ε_i: `accounting.gaussian.noise_multiplier_from_step`.
    rank: number of factors [n].
    learning_rate: [μ]; used by the default optimizer, plain gradient descent.
    regularization: [λ].
    clip_norm: bound on the norm of a factor row where it enters the other side's gradient [C].
    tau: largest change of one rating [τ]; None is the width of rating_range. The paper's figures use 5 on MovieLens.
    center: what is subtracted from the ratings: a public constant, or (`mechanism` and `non_private` only) the
      unpriced "item" or "global" mean. None is "item" for those two and the middle of rating_range for the sound
      ones.
    relation: what a neighbouring data set may differ in (sound variants only; the paper's is "rating value").
    residual_clip: bound on |e_ui| where it enters a gradient [c]; needed for "rating presence". None is 2τ for the
      sound variants: it costs nothing there, and keeps a descent that blows up from drowning its noise in float32.
    delta: of the total guarantee [δ_r].
    """

    rating_range: tuple[float, float]
    noise_multiplier: float | None = None
    rank: int = 20
    learning_rate: float = 5e-4
    regularization: float = 0.01
    clip_norm: float = 1.0
    tau: float | None = None
    center: float | Literal["item", "global"] | None = None
    relation: Relation = "rating value"
    residual_clip: float | None = None
    delta: float = 1e-5

    def __post_init__(self) -> None:
        low, high = self.rating_range
        if not -math.inf < low < high < math.inf:
            raise ValueError(f"rating_range must be two finite numbers, low < high; got {self.rating_range}")
        if not self.rank >= 1:
            raise ValueError(f"rank must be at least 1; got {self.rank}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite; got {self.learning_rate}")
        if not 0 <= self.regularization < math.inf:
            raise ValueError(f"regularization must be non-negative and finite; got {self.regularization}")
        if not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm must be positive and finite; got {self.clip_norm}")
        if self.noise_multiplier is not None and not 0 < self.noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier must be positive and finite, or None; got {self.noise_multiplier}")
        if self.tau is not None and not _width(self.rating_range) <= self.tau < math.inf:
            raise PrivacyError(
                f"tau {self.tau:g} is below the width {_width(self.rating_range):g} of the declared rating range",
                where="tau bounds the change of one rating: the noise would be too small for its price",
                fix=f"set tau to {_width(self.rating_range):g} or more, or leave it out",
            )
        if isinstance(self.center, str) and self.center not in ("item", "global"):
            raise ValueError(f"center must be a number, 'item' or 'global'; got {self.center!r}")
        if not isinstance(self.center, str | None) and not math.isfinite(self.center):
            raise ValueError(f"center must be finite; got {self.center}")
        if self.relation not in ("rating value", "rating presence"):
            raise ValueError(f"relation must be 'rating value' or 'rating presence'; got {self.relation!r}")
        if self.residual_clip is not None and not 0 < self.residual_clip < math.inf:
            raise ValueError(f"residual_clip must be positive and finite, or None; got {self.residual_clip}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1; got {self.delta}")

    @property
    def span(self) -> float:
        """τ: the largest change of one rating that the noise is made for."""
        return _width(self.rating_range) if self.tau is None else self.tau


def _width(rating_range: tuple[float, float]) -> float:
    """Of the declared range, as it is or as float32 holds its ends, whichever is more."""
    low, high = rating_range
    return max(high - low, float(np.float32(high)) - float(np.float32(low)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """What the parts of a mechanism share: real settings as leaves (a sweep compiles once), the rest static."""

    noise_scale: jax.Array
    sensitivity: jax.Array
    learning_rate: jax.Array
    regularization: jax.Array
    clip_norm: jax.Array
    residual_clip: jax.Array | None
    center: jax.Array
    delta: float | jax.Array  # read on the host alone, so a float
    item_factors: jax.Array | None
    rank: int = dataclasses.field(metadata={"static": True})
    centering: str = dataclasses.field(metadata={"static": True})
    span: float | jax.Array  # read on the host alone, so a float
    relation: Relation = dataclasses.field(metadata={"static": True})
    optimizer: optax.GradientTransformation | None = dataclasses.field(metadata={"static": True})


def _up(x: float) -> jax.Array:
    """float32 not below x, so that the noise is never less than what is priced."""
    single = np.float32(x)
    return jnp.asarray(single if float(single) >= x else np.nextafter(single, np.float32(np.inf)))


def make_params(config: Config, sensitivity: float, optimizer: Any, *, item_factors: Any = None) -> Params:
    f32 = jnp.float32
    named = isinstance(config.center, str)
    bound = _up(sensitivity)  # the price divides σ by this very number
    return Params(
        noise_scale=_up(float(bound) * (config.noise_multiplier or 0.0)),
        sensitivity=bound,
        learning_rate=f32(config.learning_rate),
        regularization=f32(config.regularization),
        clip_norm=f32(config.clip_norm),
        residual_clip=None if config.residual_clip is None else f32(config.residual_clip),
        center=f32(0.0 if named else config.center),
        delta=config.delta,
        span=config.span,
        item_factors=item_factors,
        rank=config.rank,
        centering=str(config.center) if named else "constant",
        relation=config.relation,
        optimizer=optimizer,
    )
