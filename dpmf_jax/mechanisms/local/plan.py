"""How many rounds, which schedule, which projection: the best plan for `local` from public sizes.

A plan is made before any user is asked. `forecast` says where k rounds of given settings lead; here
settings are tried on a grid, and the best of every kind is returned.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from accounting import guards
from dpmf_jax.mechanisms.local import forecast
from dpmf_jax.mechanisms.local.config import Config, Lift, Schedule
from dpmf_jax.mechanisms.local.forecast import Assumptions, clipped_share, entry_deviation
from dpmf_jax.mechanisms.local.variance import rate_bound, run_variance

ROUNDS = (1, 2, 3, 5, 10, 20, 50, 100, 200)
CLIPS = (0.25, 0.5, 1.0, 2.0)  # in root mean squares of an entry
RATES = (1.0, 0.5, 0.25, 0.125)  # of the largest learning rate
LARGEST_EPSILON = 20.0  # of one report, see `noise.one_bit`
# Plans within so many times the least mean squared error count as equal; the least work decides.
CLOSE = 1.005


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A setting, and what may be expected of it; numbers in rating units.

    Attributes:
      config: k, q, schedule, lift, clip and learning rate, for `local.gd` or `local.gd_dr`.
      clipped: share of the entries that is clipped at the start, of rated ones without Φ.
      noise: root mean square of what the reports' randomness, and Φ's, leave in an entry of V after
        all rounds.
      learnt: share of what there is to learn that the predictions follow in the end, at most 1.
      rmse: expected of predictions for ratings that were not used; inf where the run diverges.
      mean_rmse: of predicting the mean, which is what it has to beat.
      users_needed: from how many users on a plan of this kind beats the mean (for the best plan:
        of any kind); inf where not even 10^12 do.
      rate_bound: theorem 2's, or corollary 2's, bound on the largest error of V; see `rate_bound`.
    """

    config: Config
    num_users: int
    num_items: int
    assumptions: Assumptions
    clipped: float
    noise: float
    learnt: float
    rmse: float
    mean_rmse: float
    users_needed: float
    rate_bound: float

    @property
    def useful(self) -> bool:
        return self.rmse < self.mean_rmse

    @property
    def users_for_noise(self) -> float:
        """From how many users on one round's noise is below what factors can explain.

        The round is at the full rate, with entries clipped at their root mean square and a fresh
        Φᵀ. With fewer users no plan that moves V can be useful.
        """
        once = dataclasses.replace(
            self.config,
            num_rounds=1,
            schedule="every-round",
            learning_rate=self.assumptions.rate(self.config.rank),
            clip=entry_deviation(self.config.rank, self.num_items, self.assumptions),
            num_projected=self.num_items,
            lift="transpose",
            fresh_projection=True,
        )
        return (
            run_variance(once, num_users=1, num_items=self.num_items)
            / self.assumptions.squared_gain
        )

    @property
    def sentence(self) -> str:
        """Whether local DP can be expected to be useful here."""
        where = (
            f"with {self.num_users:,} users at ε = {self.config.epsilon:g}, {self.num_items:,}"
            f" items and rank {self.config.rank}"
        )
        factors = math.sqrt(self.assumptions.squared_gain)
        if self.useful:
            return (
                f"Useful: {where}, RMSE is expected to be {self.mean_rmse - self.rmse:.2g} below"
                f" the mean's {self.mean_rmse:.3g} (noise {self.noise:.2g} in a prediction, where"
                f" factors can explain {factors:.2g}); it takes about {count(self.users_needed)}"
                " users."
            )
        noise = (
            f"one round at the full rate leaves noise below the {factors:.2g} that factors can"
            f" explain from about {count(self.users_for_noise)} users on"
        )
        if math.isinf(self.users_needed):
            return (
                f"Not useful: {where}, no plan is expected to beat predicting the mean (RMSE"
                f" {self.mean_rmse:.3g}), with any number of users: {noise}, but V moves too little"
                " at a rate that users can bear."
            )
        return (
            f"Not useful: {where}, no plan is expected to beat predicting the mean (RMSE"
            f" {self.mean_rmse:.3g}): {noise}, and to be useful takes about"
            f" {count(self.users_needed)}, {self.users_needed / self.num_users:.2g} times as many"
            " as there are."
        )


def count(number: float) -> str:
    """A number of users in two digits, rounded up."""
    if math.isinf(number):
        return "inf"
    step = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return f"{math.ceil(number / step) * step:,}"


def plan(**settings) -> Plan:
    """The best plan of all; arguments and errors as `plans`."""
    return plans(**settings)[0]


def plans(
    *,
    epsilon: float,
    num_users: int,
    num_items: int,
    rank: int,
    assumptions: Assumptions | None = None,
    rounds: Sequence[int] = ROUNDS,
    num_projected: Sequence[int] | None = None,
) -> tuple[Plan, ...]:
    """The best plan of every kind, the best of all first.

    A kind is a schedule with no Φ, with a fixed Φ†, or with a fresh Φᵀ. Left out are reports of an
    ε above 20 (`noise.one_bit`), a Φ† of more than items - 2 rows, and partitions of more rounds
    than users.

    Args:
      epsilon: of all reports of one user together.
      num_users, num_items, rank: public sizes.
      assumptions: what is taken for granted of the ratings.
      rounds: which k are tried.
      num_projected: which q are tried; by default items/64, /16, /4 and items.

    Raises: ValueError for sizes and counts that are not at least 1, more ratings of a user than
      items, an ε that is not positive and finite, or where nothing is left.
    """
    assumed = assumptions or Assumptions()
    for name, value in (("num_users", num_users), ("num_items", num_items), ("rank", rank)):
        guards.count(name, value)
    guards.positive("epsilon", epsilon)
    if not assumed.ratings_per_user <= num_items:
        raise ValueError(
            f"ratings_per_user must be at most {num_items}, the items; got"
            f" {assumed.ratings_per_user}"
        )
    if num_projected is None:
        num_projected = sorted({-(-num_items // 4**quarters) for quarters in range(4)})
    for name, values in (("rounds", rounds), ("num_projected", num_projected)):
        if not (len(values) and all(value >= 1 for value in values)):
            raise ValueError(f"{name} must be whole numbers of at least 1; got {tuple(values)}")
    configs = _configs(epsilon, num_users, num_items, rank, assumed, rounds, num_projected)
    if not configs:
        raise ValueError(
            f"no plan is left: more than {LARGEST_EPSILON:g} of the epsilon of {epsilon} would be"
            " spent on one report"
        )
    grid = forecast.grid(configs, num_items, assumed)
    now = forecast.follow(grid, np.full(len(configs), float(num_users)), num_items, assumed)
    needed = forecast.users_needed(grid, num_items, assumed)
    work = np.array([c.num_rounds * (c.num_projected or 1) for c in configs])
    found = []
    for kind in np.unique(grid.kind):
        own = np.flatnonzero(grid.kind == kind)
        least = now.error[own].min()
        close = (now.error[own] <= CLOSE * least) & (
            (now.error[own] < assumed.deviation**2) == (least < assumed.deviation**2)
        )
        at = own[np.argmin(np.where(close, work[own], np.inf))]
        config = configs[at]
        found.append(
            Plan(
                config=config,
                num_users=num_users,
                num_items=num_items,
                assumptions=assumed,
                clipped=clipped_share(grid.relative_clip[at]),
                noise=math.sqrt(now.noise[at]),
                learnt=float(now.learnt[at]),
                rmse=math.sqrt(now.error[at]),
                mean_rmse=assumed.deviation,
                users_needed=needed[kind],
                rate_bound=rate_bound(config, num_users=num_users, num_items=num_items),
            )
        )
    found.sort(key=lambda plan: plan.rmse)
    return (dataclasses.replace(found[0], users_needed=min(needed.values())), *found[1:])


def _configs(
    epsilon: float,
    num_users: int,
    num_items: int,
    rank: int,
    assumed: Assumptions,
    rounds: Sequence[int],
    num_projected: Sequence[int],
) -> list[Config]:
    projected: list[tuple[int | None, Lift]] = [(None, "pseudo-inverse")]
    projected += [(q, "pseudo-inverse") for q in num_projected if q <= num_items - 2]
    projected += [(q, "transpose") for q in num_projected]
    schedules: tuple[Schedule, ...] = ("every-round", "partition")
    return [
        Config(
            epsilon=epsilon,
            num_rounds=k,
            rank=rank,
            learning_rate=share * assumed.rate(rank),
            clip=clip * entry_deviation(rank, q, assumed),
            schedule=schedule,
            num_projected=q,
            lift=lift,
            fresh_projection=lift == "transpose",
        )
        for schedule, k, (q, lift), clip, share in itertools.product(
            schedules, rounds, projected, CLIPS, RATES
        )
        if (epsilon / k if schedule == "every-round" else epsilon) <= LARGEST_EPSILON
        and (schedule == "every-round" or 1 < k <= num_users)
    ]
