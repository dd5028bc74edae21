"""Settings of alternating least squares, and how its phases share one price."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from accounting import guards
from dpmf_jax.errors import PrivacyError
from dpmf_jax.mechanisms import claims, grid
from dpmf_jax.mechanisms.als import budgets
from dpmf_jax.mechanisms.als.budgets import Budget
from dpmf_jax.mechanisms.spec import config_values
from dpmf_jax.noise import normal_shares, whole

Relation = Literal["user added or removed", "user replaced"]

SCALE = 4.0  # clips and variances are for ratings from 1 to 5, so in quarters of the declared width
COARSEST = 64  # units of a clip
LEAST_SHARE = 3.0  # units of a user's share of the noise: below, shares do not add up to a normal
TAIL = 16.0  # deviations of noise for which sums have room
NUM_SLOPES = 2  # for an item's mean and for its popularity
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
    slopes: whether every user has slopes of their own for the items' means and popularity, which
      are columns beside the factors; they are answered to, and nothing is sent about them.
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
    signal: variance of a rating that factors explain, a public guess; feature_signal: that public
      features explain; slope_signal: that either slope does.
    evenness: 0 keeps the directions of the factors as strong as they are, 1 makes them equal.
    few: factors that are learned where noisy counts say that more would cost more than they give.
    least_signal, much_signal: what the counts say (`estimates.signal`): below the first passes for
      factors learn means, below the second `few` factors, else all of them.
    non_negative: whether factors are at least 0, those of items and those of users. Levels, and a
      user's slopes and weights for public features, which are about 0, have any sign.
    delta: of the guarantee.
    honest_shares: k, before an untrusted recommender: so many users other than the protected one
      surely add their share of the noise and keep it secret. None: a curator adds the noise.
    num_users: n, declared. Sums of so many messages keep within 32 bits; with honest_shares all n
      take part, each with a share. None: sums of about 40,000 users and more may wrap around.
    budgets: groups of users with an ε of their own (`budgets`); empty where all have the same. The
      largest is that of `noise_multiplier`.

    Raises: ValueError for a number out of range; PrivacyError for a price for which the grid of
      the noise would be too coarse, and for more honest users than there are others.
    """

    rating_range: tuple[float, float]
    noise_multiplier: float
    rank: int = 5
    num_passes: int = 8
    num_features: int = 0
    slopes: bool = False
    num_means: int = 2
    growth: float = 1.3
    counts_share: float = 0.05
    means_share: float = 0.3
    factors_share: float = 0.65
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
    signal: float = 0.15
    feature_signal: float = 0.1
    slope_signal: float = 0.0025
    evenness: float = 0.5
    few: int = 3
    least_signal: float = 0.0
    much_signal: float = 0.0
    non_negative: bool = False
    delta: float = 1e-5
    honest_shares: int | None = None
    num_users: int | None = None
    budgets: tuple[Budget, ...] = ()

    def __post_init__(self) -> None:
        claims.check(self.rating_range, None, "rating value", self.delta)
        for name in (
            *("noise_multiplier", "growth", "residual_clip", "means_clip", "factors_clip"),
            *("gram_clip", "noise_variance", "level_regularization", "regularization", "signal"),
            *("feature_signal", "slope_signal"),
        ):
            guards.positive(name, getattr(self, name))
        guards.count("rank", self.rank, 0)
        guards.count("num_passes", self.num_passes, 0)
        guards.count("num_features", self.num_features, 0)
        guards.count("num_means", self.num_means, 1)
        guards.count("few", self.few, 1)
        for name in ("least_signal", "much_signal"):
            guards.nonnegative(name, getattr(self, name))
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
        budgets.check(self.budgets, self.noise_multiplier)
        if self.budgets and self.honest_shares is not None:
            raise ValueError("budgets of one's own go with a curator's noise, not shares of it")
        self._check_shares()

    def _check_shares(self) -> None:
        if self.num_users is not None:
            guards.count("num_users", self.num_users, 1)
        if self.honest_shares is None:
            return
        if self.num_users is None:
            raise ValueError("honest_shares need num_users")
        guards.count("honest_shares", self.honest_shares, 1)
        if self.honest_shares >= self.num_users:
            raise PrivacyError(
                f"{self.honest_shares} honest shares of the noise cannot be relied on",
                where=f"beside the protected one, {self.num_users - 1} of {self.num_users} users"
                " take part",
                fix="set fewer honest shares, or let a curator add the noise",
            )

    @property
    def num_columns(self) -> int:
        """Of an item, beside the 1 for the level: factors, then slopes, then features."""
        return self.rank + NUM_SLOPES * self.slopes + self.num_features

    @property
    def num_non_negative(self) -> int:
        """Columns of factors, the first ones, that are at least 0."""
        return self.rank if self.non_negative else 0

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


def of_settings(settings: Mapping[str, Any]) -> Config:
    """The config that model.json keeps.

    Raises: TypeError, ValueError for settings of no such model.
    """
    values = config_values(Config, settings)
    if "budgets" in values:
        values["budgets"] = tuple(Budget(**one) for one in values["budgets"])
    return Config(**values)


class Scales(NamedTuple):
    """Of the noise of a phase, in units.

    priced: σ, which the guarantee relies on.
    drawn: of the noise in a response, at least σ.
    share: σ₁, of what a user adds; None where a curator adds the noise.
    distance: of a step's noise from what is priced, in total variation.
    """

    priced: float
    drawn: float
    share: float | None
    distance: float


def scales(config: Config, ratio: float) -> Scales:
    """The noise of a phase on its grid.

    A curator's noise is the largest that tables hold, or that lets a sum keep within 32 bits where
    all users spend their whole messages on one entry: what leaves them wraps around, which costs
    no privacy and all sense. So do the shares of n users (`normal_shares`) all together. But a
    share is `LEAST_SHARE` at least, so from about a million users on their sum could leave 32
    bits: of two million, if most rated one item alone; of ten million, if a twentieth did.

    Args:
      ratio: Δ/σ of the phase's largest step.

    Raises: PrivacyError for so many users that their shares would be too small.
    """
    users, honest = config.num_users, config.honest_shares
    if honest is None or users is None:
        room = math.inf if users is None else 2.0**31 / (users * ratio + TAIL)
        scale = float(claims.float32_down(min(noise_scale(), room)))
        return Scales(scale, scale, None, grid.STEP_DISTANCE)
    held = math.sqrt(max(noise_scale() ** 2 / users - 1 / 12, 0)) * (1 - 2.0**-20)
    # n·Δ, and noise that is hardly more than σ₁√n
    room = 2.0**31 / (users * ratio * math.sqrt(honest) + 1.01 * TAIL * math.sqrt(users))
    share = float(claims.float32_down(min(held, max(room, LEAST_SHARE))))
    if share < LEAST_SHARE:
        raise PrivacyError(
            f"a share of the noise of {users} users is too small",
            where=(
                f"it is drawn in whole numbers of a grid, and would be {share:.2g} of its units;"
                f" below {LEAST_SHARE:g} shares do not add up to what is priced"
            ),
            fix="let fewer users take part in a run",
        )
    return Scales(
        priced=share * math.sqrt(honest) * (1 - 2.0**-50),
        drawn=float(claims.float32_up(normal_shares.deviation(share, users))),
        share=share,
        distance=grid.STEP_NUMBERS * normal_shares.distance(share, honest),
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
            fix="set a larger ε or δ, fewer passes, or more honest shares where there are any",
        )
    return found


def noise_scale() -> float:
    """The largest noise that the tables hold, in units."""
    return float(np.float32(whole.LARGEST))


def length(part: float, whole_clip: int) -> tuple[int, int]:
    """(rest, part): whole numbers whose squares add up to at most whole_clip²."""
    second = math.floor(whole_clip * math.sqrt(part))
    return math.isqrt(whole_clip**2 - second**2), second
