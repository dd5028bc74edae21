"""Where k rounds of `local` lead, forecast from public sizes and guesses.

What the randomness of reports and of a projection does to a round is exact (`variance`). Where k
rounds lead is a model of means, `follow`. In it, what can be learnt lies along a few directions of
equal strength. V and the users line up with these from a random start. What V has besides is noise,
and users fit that as well as they can.

What decides, each with a test:
- At one relative clip a round's gradient has a variance of about
  4·w²·deviation²·ratings_per_user/(g²n) with Φ, whatever q is, and items/ratings_per_user times
  that without: Φ gains one over the density, through the clip alone. Its own scatter falls by 1/q,
  so a larger q is never worse, only more work.
- V's gradient is a mean over all users, who rated few of its items. Its curvature is 2·density/d,
  the users' 2/d. They move at one rate, so V moves by a share of about the density/t in round t,
  with privacy or without.
- Noise lengthens V's rows, and users step by the square of that: beyond what they can bear a run
  diverges.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from accounting import guards
from dpmf_jax.mechanisms.local.config import Config
from dpmf_jax.mechanisms.local.variance import step_variance

MOST_USERS = 1e12  # that are looked at


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What a plan takes for granted; public constants, guesses that no private rating may inform.

    ratings_per_user: mean number [n_i].
    deviation: of ratings about their mean, which the residuals have at the start.
    gain: share of the deviation that factors without noise would take off in the end.
    directions: over how many, of equal strength, that gain is spread; at most d count.
    popularity: raters of a rating's item over those of the mean item; MovieLens-100K has 2.8.
    evenness: harmonic over arithmetic mean of the users' numbers of ratings; MovieLens-100K has
      0.5.
    largest_rate: of the first round [γ]; None for d/2/(1 + √(d/ratings_per_user))², at which no
      user of the mean number of ratings overshoots.
    """

    ratings_per_user: float = 100.0
    deviation: float = 1.1
    gain: float = 0.2
    directions: int = 4
    popularity: float = 3.0
    evenness: float = 0.5
    largest_rate: float | None = None

    def __post_init__(self) -> None:
        guards.fields(
            self,
            guards.positive,
            "ratings_per_user",
            "deviation",
            "directions",
            "popularity",
            optional=("largest_rate",),
        )
        guards.probability("gain", self.gain)
        guards.rate("evenness", self.evenness)

    @property
    def squared_gain(self) -> float:
        """By how much the factors lower the mean squared error of predicting the mean."""
        return self.deviation**2 * (1 - (1 - self.gain) ** 2)

    def rate(self, rank: int) -> float:
        """The largest learning rate of a first round."""
        if self.largest_rate is not None:
            return self.largest_rate
        return rank / 2 / (1 + math.sqrt(rank / self.ratings_per_user)) ** 2


def entry_deviation(rank: int, num_projected: int | None, assumptions: Assumptions) -> float:
    """Root mean square of a user's entries that are not 0 for want of a rating.

    Residuals are Gaussian, and users of unit length.

    Without Φ it is -2·e·u_l, of variance 4·Var(e)/d, at the n_i rated of m items. With Φ it is the
    sum of n_i of those, each times an entry of Φ: n_i/q of that variance, at every place.
    """
    residual = math.sqrt(
        assumptions.deviation**2 + 1 / rank
    )  # the start predicts at random, with variance 1/d
    share = 1.0 if num_projected is None else assumptions.ratings_per_user / num_projected
    return 2 * residual * math.sqrt(share / rank)


def clipped_share(relative_clip: float) -> float:
    """The share that is clipped: P(|e·u| > w) of two independent standard Gaussians.

    It is 1 - (2/π)·∫K₀ from 0 to w.
    """
    from scipy.special import iti0k0

    return max(0.0, 1 - 2 / math.pi * float(iti0k0(relative_clip)[1]))


def shrinkage(relative_clip: ArrayLike) -> np.ndarray:
    """E[u²; |e·u| < w], elementwise: what a clip at w root mean squares leaves of a small shift.

    A clipped Gaussian passes on a small shift with the probability of not being clipped (Bussgang
    1952), and users move V by the square of their factors: (2/π)·∫x·K₁(x) = (2/π)·(∫K₀ - w·K₀(w)).
    Near 2w/π for small w, where the noise falls with w as well: a hard clip costs speed, and hardly
    ever signal for the noise.
    """
    from scipy.special import iti0k0, k0

    clip = np.clip(np.asarray(relative_clip, np.float64), 1e-12, 30)
    return np.asarray(2 / math.pi * (iti0k0(clip)[1] - clip * k0(clip)))


class Grid(NamedTuple):
    """What the model reads of settings; arrays [settings].

    rank: d, the same in all.
    num_rounds: k.
    rate: γ of the first round.
    relative_clip: c in root mean squares of an entry.
    variance: of an entry of a round's gradient with one user.
    inside: share of the dimensions that V can move in.
    scatter: Φᵀ's own variance over a gradient's mean square.
    rare: entries over reports of a round with one user, without Φ; 0 with Φ, which spreads each
      report over all items.
    kind: 0 to 5, by schedule and projection.
    """

    rank: int
    num_rounds: np.ndarray
    rate: np.ndarray
    relative_clip: np.ndarray
    variance: np.ndarray
    inside: np.ndarray
    scatter: np.ndarray
    rare: np.ndarray
    kind: np.ndarray


def grid(configs: Sequence[Config], num_items: int, assumed: Assumptions) -> Grid:
    """The arrays that `follow` reads of these settings."""
    rows = np.array([config.num_projected or num_items for config in configs], float)
    fixed = np.array(
        [config.num_projected is not None and not config.fresh_projection for config in configs]
    )
    fresh = np.array([config.fresh_projection for config in configs])
    clip = [c.clip / entry_deviation(c.rank, c.num_projected, assumed) for c in configs]
    partition = np.array([config.schedule == "partition" for config in configs])
    return Grid(
        rank=configs[0].rank,
        num_rounds=np.array([config.num_rounds for config in configs]),
        rate=np.array([config.learning_rate for config in configs]),
        relative_clip=np.array(clip),
        variance=np.array(
            [step_variance(config, num_users=1, num_items=num_items) for config in configs]
        ),
        inside=np.where(fixed, rows / num_items, 1.0),
        scatter=np.where(fresh, (num_items + 1) / rows, 0.0),
        rare=np.array(
            [
                (
                    0
                    if c.num_projected
                    else num_items * c.rank * (c.num_rounds if c.schedule == "partition" else 1)
                )
                for c in configs
            ],
            float,
        ),
        kind=3 * partition + 2 * fresh + fixed,
    )


class End(NamedTuple):
    """What is expected after all rounds; arrays [settings].

    error: mean squared, of a prediction.
    noise: squared, in an entry of V.
    learnt: share of what there is to learn that the predictions follow.
    """

    error: np.ndarray
    noise: np.ndarray
    learnt: np.ndarray


def follow(grid: Grid, num_users: np.ndarray, num_items: int, assumed: Assumptions) -> End:
    """Where k rounds lead, by means over users, items and directions.

    num_users: of each setting.

    In each of C directions the best factors are s·a_i·b_j, a and b of variance 1, C·s² the gain.
    The users have a part x·a_i along it and the items y·b_j, at the start one over the root of
    their number; what they have besides is spread with variance p (users) and z (items) per
    dimension, 1/d at the start. All spreads are [with a direction, without]. With γ = γ_t, f raters
    of an item over users, S = z + y² and T = (what is left of 1/d) + x² what each side sees:

        x += 2γ(s·y - S·x)
        y += 2γf(s·x - T·y)
        z = (1 - 2γfT)²·z + γ²·(variance of the gradient)
        p = (what is left of 1/d) + (what users fit of the noise in few ratings)

    What users fit of V's noise does not shrink V: their residuals are smaller by as much (the echo,
    which is 0 once users fit as well as they can). f is multiplied by what the clip leaves,
    `shrinkage`, where entries grow with errors and users' lengths. Users step by the S of their own
    few items, which scatters about the mean by d over their number, and by more where few reports
    make few rows long: without Φ a report is m·d times what it says, at one entry.
    """
    rank, settings = grid.rank, len(grid.rate)
    directions = min(assumed.directions, rank)
    strength = math.sqrt(assumed.squared_gain / directions)
    unexplained = assumed.deviation**2 - assumed.squared_gain
    raters = min(assumed.popularity * assumed.ratings_per_user / num_items, 1.0)
    few = assumed.evenness * assumed.ratings_per_user
    share = np.array([[directions], [rank - directions]]) / rank
    signal = np.array([[1.0], [0.0]])
    x, y = num_users**-0.5, np.full(settings, num_items**-0.5)
    z, p, left = (np.full((2, settings), value) for value in (1 / rank, 1 / rank, 1 / rank))
    fitted, from_noise = np.zeros((2, settings)), np.zeros(settings)

    def residual() -> (
        np.ndarray
    ):  # of what is common to all users and items, and what no factors explain
        reached = grid.inside * y
        lost = x**2 * y**2 * grid.inside * (1 - grid.inside)
        return unexplained + directions * ((strength - x * reached) ** 2 + lost)

    def error() -> np.ndarray:
        crossed = directions * ((grid.inside * y) ** 2 * p[0] + x**2 * z[0])
        return residual() + crossed + rank * np.sum(share * p * z, axis=0)

    def entry() -> np.ndarray:
        return error() * (np.sum(share * p, axis=0) + directions * x**2 / rank)

    first = entry()
    with np.errstate(all="ignore"):  # a run that diverges ends at inf
        for t in range(1, int(grid.num_rounds.max()) + 1):
            rate, going = grid.rate / t, grid.num_rounds >= t
            reached, around = grid.inside * y, residual()
            asked = entry()
            kept = raters * shrinkage(grid.relative_clip * np.sqrt(first / asked))
            seen_items = z + signal * reached**2
            echo = fitted * (1 - fitted * seen_items) * around / assumed.ratings_per_user
            seen_users = left + signal * x**2 - echo
            missing = signal * (strength * x - seen_users[0] * y) ** 2
            squared = 4 * kept**2 * np.sum(share * (missing + seen_users**2 * z), axis=0)
            drawn = rate**2 * (grid.variance / num_users + squared * grid.scatter)
            sampled = rate**2 * 4 * raters * asked / num_users
            shorter = 1 - grid.inside + grid.inside * (1 - 2 * rate * kept * seen_users) ** 2
            step = 2 * rate * seen_items
            uneven = (rank + grid.rare / num_users * (from_noise / seen_items) ** 2) / few
            after = (
                x + 2 * rate * (strength * reached - seen_items[0] * x),
                y + 2 * rate * kept * (strength * x - seen_users[0] * y),
                z * shorter + drawn + sampled,
                from_noise * np.sum(share * shorter, axis=0) + drawn,
                left * ((1 - step) ** 2 + step**2 * uneven),
                fitted * np.abs(1 - step) + 2 * rate,
            )
            before = (x, y, z, from_noise, left, fitted)
            x, y, z, from_noise, left, fitted = (
                np.where(going, new, old) for new, old in zip(after, before, strict=True)
            )
            p = np.where(going, left + fitted**2 * around * seen_items / few, p)
        learnt = np.clip(x * grid.inside * y / strength, 0.0, 1.0)
        ends = (np.where(np.isfinite(value), value, np.inf) for value in (error(), from_noise))
    return End(*ends, np.nan_to_num(learnt))


def users_needed(grid: Grid, num_items: int, assumed: Assumptions) -> dict[int, float]:
    """By kind, the fewest users with whom one of its settings beats the mean.

    Found to 2%; inf above 10^12.
    """
    kinds = np.unique(grid.kind)
    low, high = np.zeros(len(kinds)), np.full(len(kinds), math.log(MOST_USERS))
    where = np.searchsorted(kinds, grid.kind)

    def beats(logarithm: np.ndarray) -> np.ndarray:
        error = follow(grid, np.exp(logarithm)[where], num_items, assumed).error
        return np.array([error[grid.kind == kind].min() < assumed.deviation**2 for kind in kinds])

    never = ~beats(high)
    while np.max(high - low) > 0.02:
        middle = (low + high) / 2
        enough = beats(middle)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return {
        int(kind): math.inf if no else math.exp(log)
        for kind, no, log in zip(kinds, never, high, strict=True)
    }
