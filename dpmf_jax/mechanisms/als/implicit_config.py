"""Settings of `als-implicit`, and how its phases share one price."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from accounting import guards
from dpmf_jax.mechanisms.als.config import Relation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; host numbers, all public.

    num_users: declared, n.
    noise_multiplier: z of the whole run, which costs what one Gaussian step with σ = z·Δ costs.
    rank: d, factors; 0 for popularity alone.
    num_passes: T, for factors; 0 for popularity alone.
    growth: each pass for factors has so many times the share of the one before.
    counts_share: of μ² = 1/z², the price of the whole, what the noisy counts take. The passes for
      factors have the rest; where there are none, counts have all.
    gram_share: of a pass for factors, what its Gram matrix takes.
    relation: what a neighbouring data set may differ in.
    unseen_weight: α₀, of a pair that is not seen, where one that is weighs 1.
    regularization: λ of the users' factors, in units of what all items weigh on average.
    factors_clip: of a user's deviation from the average user, in lengths that it would have if all
      users drew from the same popularity.
    gram_clip: of a deviation in the Gram matrix, in units of `factors_clip`.
    sampling: how much of what like users differ by counts as noise in an item's factors; 0 or more.
    evenness: 0 keeps the directions of the factors as users weigh them, 1 makes users vary alike in
      all of them.
    delta: of the guarantee.

    Raises: ValueError for a number out of range.
    """

    num_users: int
    noise_multiplier: float
    rank: int = 8
    num_passes: int = 5
    growth: float = 1.4
    counts_share: float = 0.2
    gram_share: float = 0.03
    relation: Relation = "user added or removed"
    unseen_weight: float = 0.7
    regularization: float = 0.4
    factors_clip: float = 0.7
    gram_clip: float = 1.5
    sampling: float = 1.0
    evenness: float = 0.75
    delta: float = 1e-5

    def __post_init__(self) -> None:
        guards.count("num_users", self.num_users, 1)
        for name in (
            *("noise_multiplier", "growth", "unseen_weight", "regularization", "factors_clip"),
            "gram_clip",
        ):
            guards.positive(name, getattr(self, name))
        for name in ("sampling", "evenness"):
            guards.nonnegative(name, getattr(self, name))
        guards.count("rank", self.rank, 0)
        guards.count("num_passes", self.num_passes, 0)
        if (self.rank == 0) != (self.num_passes == 0):
            raise ValueError("rank and num_passes must both be 0, or neither")
        if self.relation not in ("user added or removed", "user replaced"):
            raise ValueError(f"no such relation: {self.relation!r}")
        for name in ("counts_share", "gram_share", "delta"):
            guards.probability(name, getattr(self, name))

    def clips(self) -> tuple[float, tuple[float, ...]]:
        """(counts, every pass for factors): Δ/σ of each step.

        Their squares add up to at most 1/z².
        """
        mu = 1 / self.noise_multiplier
        if self.relation == "user replaced":
            mu /= 2  # a message of norm C is replaced by its opposite
        if not self.num_passes:
            return mu, ()
        grown = np.power(self.growth, np.arange(self.num_passes))
        shares = (1 - self.counts_share) * grown / grown.sum()
        return mu * math.sqrt(self.counts_share), tuple(mu * math.sqrt(one) for one in shares)
