"""Settings of the Gaussian mechanisms: checked on the host, then leaves and static parts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from accounting import guards
from dpmf_jax.errors import PrivacyError
from dpmf_jax.kernels import whole_descent
from dpmf_jax.kernels.whole_descent import Grid
from dpmf_jax.mechanisms import claims
from dpmf_jax.mechanisms.claims import Relation
from dpmf_jax.noise import whole

# Halvings of a sum, at least. Then 2^19 ratings of a row, each as large as may be, do not wrap
# around, and rounding moves a sum by less than 1% of what a rating does.
LEAST_SHIFT = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of one run; host numbers, all public. Paper 001's letters in brackets.

    rating_range: the declared smallest and largest rating.
    noise_multiplier: noise standard deviation over sensitivity, z = σ/Δ, per step; None where there
      is no noise. Paper 001 writes it as z = √(2 ln(1.25/δ)) / ε_i:
      `accounting.gaussian.noise_multiplier_from_step`.
    rank: number of factors [n].
    learning_rate: [μ]; used by the default optimizer, plain gradient descent.
    regularization: [λ].
    clip_norm: bound on the norm of a factor row where it enters the other side's gradient [C].
    tau: largest change of one rating [τ]; None is the width of rating_range. The paper's figures
      use 5 on MovieLens.
    center: what is subtracted from the ratings: a public constant, or (`mechanism` and
      `non_private` only) the unpriced "item" or "global" mean. None is "item" for those two and the
      middle of rating_range for the sound ones.
    relation: what a neighbouring data set may differ in (sound variants only; the paper's is
      "rating value").
    residual_clip: bound on |e_ui| where it enters a gradient [c]; needed for "rating presence".
      None is 2τ for the sound variants: it costs nothing there, and keeps a descent that blows up
      from drowning its noise in float32.
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
        claims.check(self.rating_range, self.tau, self.relation, self.delta)
        guards.count("rank", self.rank)
        guards.nonnegative("regularization", self.regularization)
        guards.fields(
            self,
            guards.positive,
            "learning_rate",
            "clip_norm",
            optional=("noise_multiplier", "residual_clip"),
        )
        if isinstance(self.center, str) and self.center not in ("item", "global"):
            raise ValueError(f"center must be a number, 'item' or 'global'; got {self.center!r}")
        if not isinstance(self.center, str | None):
            guards.finite("center", self.center)

    @property
    def span(self) -> float:
        """τ: the largest change of one rating that the noise is made for."""
        return claims.width(self.rating_range) if self.tau is None else self.tau


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """What the parts share: real settings as leaves (a sweep compiles once), the rest static.

    noise_scale, sensitivity: σ and Δ; of the sound variants in whole units of their `grid`.
    grid: of the sound variants; None where gradients are floats.
    """

    noise_scale: jax.Array
    sensitivity: jax.Array
    grid: Grid | None
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


def make_params(
    config: Config,
    optimizer: Any,
    *,
    sensitivity: float,
    grid: Grid | None = None,
    item_factors: Any = None,
) -> Params:
    """The parameters of a mechanism of this sensitivity, Δ; the price divides σ by the same Δ."""
    f32 = jnp.float32
    named = isinstance(config.center, str)
    bound = claims.float32_up(sensitivity)  # the price divides σ by this very number
    return Params(
        noise_scale=claims.float32_up(float(bound) * (config.noise_multiplier or 0.0)),
        sensitivity=bound,
        grid=grid,
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


def whole_params(
    config: Config, optimizer: Any, *, rows_moved: int, item_factors: Any = None
) -> Params:
    """The parameters of a sound variant, of whose gradients a rating moves one row or two.

    A residual has E steps, at most 256, in its clip. A changed value moves it by at most D steps:
    those of τ, or of the range where that is wider, or 2E; a rating more or less by at most E. Each
    row that it moves then moves by at most (2048·D)/2^k + √rank units, see `whole_descent`. k is
    the smallest that leaves tables of the noise wide enough.

    Raises: PrivacyError for a noise multiplier that no k does for.
    """
    assert config.residual_clip is not None
    assert config.noise_multiplier is not None
    step = 2.0 ** math.ceil(math.log2(config.residual_clip / whole_descent.MOST_STEPS))
    bound = int(config.residual_clip / step)
    half = math.ceil(claims.width(config.rating_range) / (2 * step))
    change = bound
    if config.relation == "rating value":
        change = min(max(2 * half, math.ceil(config.span / step)), 2 * bound)
    for shift in range(LEAST_SHIFT, whole_descent.MOST_SHIFT + 1):
        moved = whole_descent.RADIUS * change / 2**shift + math.sqrt(config.rank)
        sensitivity = math.sqrt(rows_moved) * moved
        if sensitivity * config.noise_multiplier * (1 + 2.0**-20) <= whole.LARGEST:
            break
    else:
        raise PrivacyError(
            f"the noise multiplier {config.noise_multiplier:g} is too large",
            where="noise is drawn in whole numbers, and no table holds so wide a law",
            fix="set a smaller noise multiplier, or a larger ε or δ",
        )
    f32 = jnp.float32
    grid = Grid(
        middle=f32(sum(config.rating_range) / 2),
        half=f32(half),
        step=f32(step),
        bound=f32(bound),
        clip_norm=claims.float32_down(config.clip_norm),
        shift=jnp.int32(shift),
    )
    return make_params(
        config, optimizer, sensitivity=sensitivity, grid=grid, item_factors=item_factors
    )
