"""Settings of objective perturbation: checked on the host, then leaves and static parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from accounting import guards
from dpmf_jax.mechanisms import claims
from dpmf_jax.mechanisms.objective.perturbed import Law


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; host numbers, all public. Paper 003's letters in brackets.

    epsilon: of one release [ε]; `non_private` does not read it. delta: for Gaussian noise only,
      else 0.
    noise: law of η: "l2_laplace" [Theorem 1], "laplace" [Lemma 1], or "gaussian". `statistics` has
      Gaussian noise.
    rating_range: the declared smallest and largest rating; its width is [Δ].
    rank: [d]. regularization: of the item factors [μ].
    prior_count: number of ratings that the regularisation is weighed with, a declared constant [M].
    center: subtracted from ratings; a public constant.
    num_iterations: passes of stochastic gradient descent that V is made of (`mechanism`); None is
      the exact minimiser.
    user_regularization: [λ], learning_rate: [γ], num_passes: of the factorisation that U comes from
      (`mechanism`, `non_private`).
    rating_bound: centred ratings are clipped to ± this before they are summed; matrix_share: of the
      budget ρ that pays for Σuuᵀ (`statistics`). None is the largest distance of the centre from an
      end of the range.
    """

    epsilon: float
    rating_range: tuple[float, float]
    prior_count: int
    delta: float = 0.0
    noise: Law = "l2_laplace"
    rank: int = 50
    regularization: float = 0.001
    center: float = 0.0
    user_regularization: float = 0.001
    learning_rate: float = 2**-5
    num_passes: int = 100
    num_iterations: int | None = None
    rating_bound: float | None = None
    matrix_share: float = 0.5

    def __post_init__(self) -> None:
        guards.interval("rating_range", self.rating_range)
        guards.delta("delta", self.delta)
        guards.fields(
            self,
            guards.positive,
            "epsilon",
            "regularization",
            "learning_rate",
            optional=("rating_bound",),
        )
        guards.nonnegative("user_regularization", self.user_regularization)
        guards.finite("center", self.center)
        guards.fields(
            self, guards.count, "rank", "prior_count", "num_passes", optional=("num_iterations",)
        )
        guards.probability("matrix_share", self.matrix_share)

    @property
    def ridge(self) -> float:
        """Mμ."""
        return self.prior_count * self.regularization


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """What the parts share: real settings as leaves (a sweep compiles once), the rest static.

    scale: of η.
    """

    scale: jax.Array
    ridge: jax.Array
    regularization: jax.Array
    user_regularization: jax.Array
    learning_rate: jax.Array
    center: jax.Array
    low: jax.Array
    high: jax.Array
    user_factors: jax.Array | None
    range_width: float | jax.Array  # read on the host alone, as the next two, so a float
    delta: float | jax.Array
    rating_bound: float | jax.Array
    law: Law = dataclasses.field(metadata={"static": True})
    rank: int = dataclasses.field(metadata={"static": True})
    num_passes: int = dataclasses.field(metadata={"static": True})
    by_passes: bool = dataclasses.field(metadata={"static": True})


def make_params(config: Config, scale: float, *, user_factors: Any = None) -> Params:
    f32 = jnp.float32
    low, high = config.rating_range
    bound = max(abs(low - config.center), abs(high - config.center))
    return Params(
        scale=claims.float32_up(scale),
        ridge=f32(config.ridge),
        regularization=f32(config.regularization),
        user_regularization=f32(config.user_regularization),
        learning_rate=f32(config.learning_rate),
        center=f32(config.center),
        low=f32(low),
        high=f32(high),
        user_factors=user_factors,
        range_width=claims.width(config.rating_range),
        delta=config.delta,
        rating_bound=bound if config.rating_bound is None else config.rating_bound,
        law=config.noise,
        rank=config.rank,
        num_passes=config.num_passes,
        by_passes=config.num_iterations is not None,
    )
