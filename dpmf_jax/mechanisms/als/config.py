"""Settings of alternating least squares, and how its phases share one price."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np

from accounting import guards
from dpmf_jax.errors import PrivacyError
from dpmf_jax.mechanisms import claims
from dpmf_jax.noise import whole

Relation = Literal["user added or removed", "user replaced"]

SCALE = 4.0  # clips and variances are for ratings from 1 to 5, so in quarters of the declared width
COARSEST = 64  # units of a clip
# Share of a clip that is left for what float32 rounds in the norm of a message.
ROOM = 2.0**-18


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; host numbers, all public.

    rating_range: the declared smallest and largest rating; ratings are clipped to it.
    noise_multiplier: z of the whole run, which costs what one Gaussian step with σ = z·Δ costs.
    rank: d, factors beside the levels; 0 for means alone.
    num_features: public features of the items, for which every user has weights of their own; they
      are answered to, and nothing is sent about them.
    num_passes: T, for factors; 0 for means alone.
    num_means: passes for means; the last one is after the factors.
    growth: each pass for factors has so many times the share of the one before.
    counts_share, means_share, factors_share: of μ² = 1/z², the price of the whole, what the noisy
      counts take, all passes for means and all passes for factors; they add up to 1.
    gram_share: of a pass for factors, what its Gram matrix takes.
    scale_share: of a pass for means, what the mean scale of its messages takes.
    relation: what a neighbouring data set may differ in.
    residual_clip, means_clip, factors_clip, gram_clip: bounds of a residual, of a user's message
      in either kind of pass, and of what she adds to the Gram matrix, in quarters of the width of
      the range (for factors, times a factor).
    noise_variance: s², of a rating around its prediction, in quarters of the width squared.
    level_regularization, regularization: λ_b and λ_u.
    signal: variance of a rating that factors explain, a public guess.
    evenness: 0 keeps the directions of the factors as strong as they are, 1 makes them equal.
    delta: of the guarantee.

    Raises: ValueError for a number out of range; PrivacyError for a price for which the grid of
      the noise would be too coarse.
    """

    rating_range: tuple[float, float]
    noise_multiplier: float
    rank: int = 5
    num_passes: int = 6
    num_features: int = 0
    num_means: int = 2
    growth: float = 2.0
    counts_share: float = 0.18
    means_share: float = 0.28
    factors_share: float = 0.54
    gram_share: float = 0.03
    scale_share: float = 0.01
    relation: Relation = "user added or removed"
    residual_clip: float = 3.0
    means_clip: float = 0.8
    factors_clip: float = 0.4
    gram_clip: float = 0.5
    noise_variance: float = 0.8
    level_regularization: float = 5.0
    regularization: float = 0.8
    signal: float = 0.25
    evenness: float = 0.5
    delta: float = 1e-5

    def __post_init__(self) -> None:
        claims.check(self.rating_range, None, "rating value", self.delta)
        for name in (
            *("noise_multiplier", "growth", "residual_clip", "means_clip", "factors_clip"),
            *("gram_clip", "noise_variance", "level_regularization", "regularization", "signal"),
        ):
            guards.positive(name, getattr(self, name))
        guards.count("rank", self.rank, 0)
        guards.count("num_passes", self.num_passes, 0)
        guards.count("num_features", self.num_features, 0)
        guards.count("num_means", self.num_means, 1)
        if (self.rank == 0) != (self.num_passes == 0):
            raise ValueError("rank and num_passes must both be 0, or neither")
        if self.relation not in ("user added or removed", "user replaced"):
            raise ValueError(f"no such relation: {self.relation!r}")
        shares = self.counts_share, self.means_share, self.factors_share
        if min(shares) < 0 or not math.isclose(sum(shares), 1, rel_tol=0, abs_tol=1e-9):
            raise ValueError(f"shares must be at least 0 and add up to 1, got {shares}")
        if (self.factors_share == 0) != (self.num_passes == 0) or not min(shares[:2]):
            raise ValueError(f"every phase needs a share, and no other one, got {shares}")
        for name in ("gram_share", "scale_share"):
            guards.probability(name, getattr(self, name))

    @property
    def step(self) -> float:
        """A quarter of the width of the range, in rating units."""
        return claims.width(self.rating_range) / SCALE

    def clips(self) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
        """(counts, every pass for means, every pass for factors): Δ/σ of each step.

        Their squares add up to at most 1/z².
        """
        mu = 1 / self.noise_multiplier
        if self.relation == "user replaced":
            mu /= 2  # a message of norm C is replaced by its opposite
        grown = np.power(self.growth, np.arange(self.num_passes))
        of_factors = self.factors_share * grown / max(grown.sum(), 1)
        return (
            mu * math.sqrt(self.counts_share),
            (mu * math.sqrt(self.means_share / self.num_means),) * self.num_means,
            tuple(mu * math.sqrt(share) for share in of_factors),
        )


def units(ratio: float, scale: float) -> int:
    """Δ in units of the noise's grid, for Δ/σ = ratio, rounded down.

    Raises: PrivacyError where that is fewer than 64.
    """
    found = math.floor(ratio * scale)
    if found < COARSEST:
        raise PrivacyError(
            "the noise is too large",
            where=(
                "it is drawn in whole numbers of a grid, and a message would be bounded by fewer"
                f" than {COARSEST} of its units"
            ),
            fix="set a larger ε or δ, or fewer passes",
        )
    return found


def noise_scale() -> float:
    """σ in units, of every step: the largest that the noise's tables hold."""
    return float(np.float32(whole.LARGEST))


def length(part: float, whole_clip: int) -> tuple[int, int]:
    """(rest, part): whole numbers whose squares add up to at most whole_clip²."""
    second = math.floor(whole_clip * math.sqrt(part))
    return math.isqrt(whole_clip**2 - second**2), second
