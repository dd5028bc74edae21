"""Alternating least squares with joint privacy per user, and its means: their declarations.

Beside them stands `ridge`, means for the value of one rating.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.als.implicit_spec import IMPLICIT
from dpmf_jax.mechanisms.spec import (
    SOUND_EPSILON,
    Comparison,
    Flags,
    Settings,
    Spec,
    Trial,
    check_steps,
    config_values,
    without_noise,
)

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.protocol import Phase, Release

EPSILON = 4.0
RIDGE_PASSES = 3
# Where users have fewer ratings on average, factors cost more than they give (DEFAULTS.md).
RIDGE_FACTORS: dict[str, Any] = {"rank": 8, "least_ratings": 10.0}
# n·μ/items: how an item's messages stand out of the noise in their sum. Below the first of these
# factors cost more than they give; from the other on more passes pay, and more factors where
# counts say so (DEFAULTS.md).
SIGNALS = {0.75: (3, 4), 1.6: (5, 8)}  # the least: (rank, passes)
# What noisy counts have to say (`estimates.signal`) for factors to pay, and for more than three.
COUNTED = {"least_signal": 5.0, "much_signal": 16.0}
# What the phases take of the price where there are means alone.
MEANS_ALONE: dict[str, Any] = {
    "num_means": 4,
    "counts_share": 0.1,
    "means_share": 0.9,
    "factors_share": 0.0,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Promise(Flags):
    """What a promise to a user is about."""

    delta: float = 1e-5
    """Delta of the total."""
    change: Literal["remove", "replace"] = "remove"
    """What is hidden of a user: whether they take part, or which data they have."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Means(Promise):
    """Settings of item means with everybody's own level."""

    user_budgets: Path | None = None
    """File with an epsilon of a user's own, declared beforehand and not made from ratings: csv with
    columns user, epsilon; others have --epsilon. The table of budgets is released.
    """
    weight_column: str | None = None
    """Column of how much each rating counts, from 0 to 1 in steps of 1/8: name, or position from 1.
    Weights are as private as the ratings.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Factors(Promise):
    """Settings of factors beside the levels."""

    rank: int | None = None
    """Number of factors beside the levels; 0 for means alone."""
    steps: int | None = None
    """Passes for the item factors, fixed up front."""
    non_negative: bool = False
    """Keep factors of items and of users at 0 or above, at the same price; levels and weights of
    features have any sign.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Als(Factors, Means):
    """Settings of alternating least squares with noisy item statistics."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Federated(Factors):
    """Settings of the same before an untrusted recommender."""

    honest_shares: int | None = None
    """How many other users surely add their share of the noise and keep it secret. By default
    nobody who takes part may drop out or collude.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ridge(Flags):
    """Settings of item means from residuals of everybody's own level and factors."""

    delta: float = 1e-5
    """Delta of the total."""
    rank: int | None = None
    """Number of item factors made of who rated what, which is public; 0 for levels alone."""
    steps: int = RIDGE_PASSES
    """Passes over the ratings, fixed up front."""


def _signal(prices: Sequence[tuple[int, float]], num_items: int) -> float:
    """What decides how much a run can learn, from declared sizes and prices alone.

    prices: (number of users, their noise multiplier).
    """
    return sum(users / noise for users, noise in prices) / num_items


def _epsilon(flags: Promise) -> float:
    return EPSILON if flags.epsilon is None else flags.epsilon


def _declared(flags: Promise, ratings: Ratings) -> tuple[Any, Any]:
    """(groups of equal budget, everybody's group); nothing where all have the same."""
    if not isinstance(flags, Means) or flags.user_budgets is None:
        return (), None
    from dpmf_jax.data import user_budgets
    from dpmf_jax.mechanisms.als import budgets

    epsilons = user_budgets.read(flags.user_budgets, ratings.users, others=_epsilon(flags))
    return budgets.declared(epsilons, flags.delta)


def groups(flags: Means, ratings: Ratings) -> Any:
    """See `Spec.groups`."""
    return _declared(flags, ratings)[1]


def settings(name: str, flags: Promise, ratings: Ratings, public: Any) -> Settings:
    """See `Spec.settings`."""
    from accounting import gaussian, guards

    table, _ = _declared(flags, ratings)
    if table:
        prices = [(one.num_users, one.noise_multiplier) for one in table]
    else:
        solved = gaussian.solve_noise_multiplier(_epsilon(flags), flags.delta, 1, price="exact")
        prices = [(ratings.num_users, solved)]
    noise = min(one for _, one in prices)
    rank, passes = 0, 0
    shares: Settings = {}
    counted: Mapping[str, float] = {}
    if isinstance(flags, Federated):
        honest = flags.honest_shares
        # whoever takes part, but for the protected one
        honest = max(1, ratings.num_users - 1) if honest is None else honest
        shares = {"honest_shares": guards.count("honest_shares", honest, 1)}
    if isinstance(flags, Factors):
        larger = 2.0 if flags.change == "replace" else 1.0
        if shares:  # all users' shares are there, and only those are priced
            larger *= math.sqrt(max(1.0, ratings.num_users / shares["honest_shares"]))
        signal = _signal(prices, ratings.num_items) / larger
        usual = max((size for least, size in SIGNALS.items() if least <= signal), default=(0, 0))
        rank = usual[0] if flags.rank is None else guards.count("rank", flags.rank, 0)
        passes = (usual[1] or 4) if flags.steps is None else check_steps(flags.steps, 4)
        passes = passes if rank else 0
        counted = COUNTED if rank and flags.rank is None else {}
    low, high = ratings.rating_range
    return {
        "steps": passes,
        "rank": rank,
        "num_passes": passes,
        "num_features": 0 if public is None else public.shape[1],
        "rating_range": [low, high],
        "noise_multiplier": noise,
        "relation": f"user {'replaced' if flags.change == 'replace' else 'added or removed'}",
        "delta": flags.delta,
        "num_users": ratings.num_users,
        **shares,
        "slopes": True,
        **(MEANS_ALONE if rank == 0 else {}),
        **counted,
        **({"non_negative": True} if getattr(flags, "non_negative", False) else {}),
        **({"budgets": [one._asdict() for one in table]} if table else {}),
    }


def phases(settings: Mapping[str, Any], public: Any, group: Any = None) -> tuple[Phase, ...]:
    """See `Spec.phases`.

    Raises: UsageError for budgets without everybody's group, which no model keeps.
    """
    from dpmf_jax.mechanisms.als import config, phases

    if settings.get("budgets") and group is None:
        raise UsageError(
            "users have budgets of their own, and it is not known who has which",
            where="a saved model keeps the table of budgets alone",
            fix="give the data and --user-budgets in place of the model",
        )
    return phases.phases(config.of_settings(settings), public, group)


def user_factors(settings: Mapping[str, Any], release: Release, ratings: Ratings) -> Any:
    """See `Spec.fold_in`."""
    from dpmf_jax.mechanisms.als import fold_in

    return fold_in.fold_in(settings, release, ratings)


def comparisons(
    settings: Mapping[str, Any], public: Any, group: Any = None
) -> dict[str, Comparison]:
    """See `Spec.comparisons`: nothing released, means alone for the same price, and no noise."""
    from dpmf_jax.mechanisms.als import phases as made

    own = phases(settings, public, group)
    alone = {**settings, "rank": 0, "num_passes": 0, **MEANS_ALONE}
    # Any noise will do, and without it nobody has a budget.
    factors = {**settings, "noise_multiplier": 1.0, "budgets": ()}
    if settings["rank"] == 0:
        rank, passes = max(SIGNALS.values())
        factors = {name: value for name, value in factors.items() if name not in MEANS_ALONE}
        factors |= {"rank": rank, "num_passes": passes}
    return {
        "nothing_released": (((own[0][0], 0),), True),
        **({"means_same_price": (phases(alone, public, group), True)} if settings["rank"] else {}),
        "als_without_noise": (made.without_noise(phases(factors, public)), False),
    }


def last_steps(settings: Mapping[str, Any], priced: int) -> int:
    """See `Spec.num_steps`: the last phase is for means."""
    del priced
    return settings["num_means"] if settings["rank"] == 0 else 1


def _num_learned(settings: Mapping[str, Any], release: Release) -> int:
    """How many columns of factors a run has learned; the others are 0."""
    assert release.item_factors is not None
    return int(release.item_factors[:, 1 : 1 + settings["rank"]].any(axis=0).sum())


def notes(settings: Mapping[str, Any], release: Release) -> list[str]:
    """Says where factors were left out, and where a run stands for a protocol of many."""
    said = []
    learned = _num_learned(settings, release)
    if settings["rank"] and not learned:
        said.append(
            "means alone: the noisy counts say that factors would cost more than they give, so what"
            " they would have taken of the price went to the means"
        )
    elif learned < settings["rank"]:
        said.append(
            f"{learned} of {settings['rank']} factors are learned: the noisy counts say that more"
            " would cost more than they give"
        )
    if settings["mechanism"] in ("als", "als-federated") and settings["rank"] == 0:
        said.append(
            "means alone: for so few users, so many items and this ε, noisy factors would cost more"
            " than they give"
        )
    if settings.get("honest_shares") is not None:
        said.append(
            "this program plays all parts of the protocol, and draws the noise of all users' shares"
            " at once"
        )
    return said


def traffic(settings: Mapping[str, Any], num_users: int, num_items: int) -> dict[str, Any] | None:
    """See `Spec.traffic`."""
    from dpmf_jax.mechanisms.als import traffic

    return traffic.traffic(settings, num_users, num_items)


def ridge_settings(name: str, flags: Ridge, ratings: Ratings, public: Any) -> Settings:
    """See `Spec.settings`."""
    from accounting import gaussian, guards

    del public  # there are none
    epsilon = SOUND_EPSILON if flags.epsilon is None else flags.epsilon
    steps = check_steps(flags.steps, RIDGE_PASSES)
    return {
        "steps": steps,
        "rating_range": [*ratings.rating_range],
        "noise_multiplier": gaussian.solve_noise_multiplier(
            epsilon, flags.delta, steps, price="exact"
        ),
        "num_items": ratings.num_items,
        **(RIDGE_FACTORS if flags.rank is None else {"rank": guards.count("rank", flags.rank, 0)}),
        "delta": flags.delta,
    }


def ridge_notes(settings: Mapping[str, Any], release: Release) -> list[str]:
    """Says where factors were left out."""
    if settings["rank"] and not _num_learned(settings, release):
        return ["levels alone: users have too few ratings for factors of the items to pay"]
    return []


def ridge_phases(settings: Mapping[str, Any], public: Any) -> tuple[Phase, ...]:
    """See `Spec.phases`."""
    from dpmf_jax.mechanisms.als import ridge

    del public
    made = ridge.mechanism(ridge.Config(**config_values(ridge.Config, settings)))
    return ((made, settings["steps"]),)


def levels(settings: Mapping[str, Any], release: Release, ratings: Ratings) -> Any:
    """See `Spec.fold_in`."""
    from dpmf_jax.mechanisms.als import ridge

    return ridge.fold_in(ridge.Config(**config_values(ridge.Config, settings)), release, ratings)


SPECS = (
    Spec(
        name="als",
        paper="ours",
        flags=Als,
        defaults={
            "epsilon": EPSILON,
            "user_budgets": "none",
            "weight_column": "none",
            "rank": "0, 3 or 5, by sizes, price and noisy counts",
            "steps": "4 or 8, likewise",
        },
        settings=settings,
        phases=phases,
        control=without_noise,
        access="sums",
        unit="user",
        public="item_features",
        groups=groups,
        weighted=True,
        num_steps=last_steps,
        fold_in=user_factors,
        comparisons=comparisons,
        notes=notes,
        trials=(
            Trial(
                "ours: als",
                "rank 2, two passes",
                flags={"epsilon": 8.0, "rank": 2, "steps": 2},
            ),
        ),
    ),
    Spec(
        name="als-federated",
        paper="ours",
        flags=Federated,
        defaults={
            "epsilon": EPSILON,
            "rank": "0, 3 or 5, by sizes, price and noisy counts",
            "steps": "4 or 8, likewise",
            "honest_shares": "all others",
        },
        settings=settings,
        phases=phases,
        control=without_noise,
        access="sums",
        unit="user",
        public="item_features",
        num_steps=last_steps,
        fold_in=user_factors,
        comparisons=comparisons,
        notes=notes,
        traffic=traffic,
        trials=(
            Trial(
                "ours: als-federated",
                "rank 2, two passes",
                flags={"epsilon": 8.0, "rank": 2, "steps": 2},
            ),
        ),
    ),
    Spec(
        name="means",
        paper="ours",
        flags=Means,
        defaults={
            "epsilon": EPSILON,
            "user_budgets": "none",
            "weight_column": "none",
        },
        settings=settings,
        phases=phases,
        control=without_noise,
        access="sums",
        unit="user",
        public="item_features",
        groups=groups,
        weighted=True,
        num_steps=last_steps,
        fold_in=user_factors,
        comparisons=comparisons,
        trials=(Trial("ours: means", "defaults"),),
    ),
    IMPLICIT,
    Spec(
        name="ridge",
        paper="ours",
        flags=Ridge,
        defaults={"epsilon": SOUND_EPSILON, "rank": "0 or 8, by ratings a user"},
        settings=ridge_settings,
        phases=ridge_phases,
        control=without_noise,
        access="sums",
        unit="rating value",
        fold_in=levels,
        notes=ridge_notes,
        trials=(Trial("ours: ridge", "defaults", small={"rank": 2}),),
    ),
)
