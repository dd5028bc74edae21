"""Paper 004's local mechanisms: their declaration, and the shuffled price beside the local one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.local.guarantee import shuffled_guarantee
from dpmf_jax.mechanisms.spec import (
    NOISY_MEANS,
    FactorFlags,
    Settings,
    Spec,
    Trial,
    check_steps,
    config_values,
    constant,
)

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.protocol import Mechanism, Phase

RANK, ROUNDS, EPSILON = 15, 20, 1.6  # d is the paper's; ε the largest of its figures
REGULARIZATION = 1e-8
LARGEST_RATE, STABLE = 2.0, 1.5  # of `learning_rate`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reports(FactorFlags):
    """Settings of users' reports and of the server's steps."""

    epsilon: float | None = None
    """Epsilon of all reports of one user together."""
    delta: float = 1e-5
    """Delta of the shuffled price, which is printed too; the local price needs none."""
    learning_rate: float | None = None
    """Step size of the first round; round t takes a t-th of it."""
    rounds: int | None = None
    """Number of rounds, k, fixed up front."""
    schedule: Literal["every-round", "partition"] = "every-round"
    """Everybody reports in each round, at epsilon/k as in the paper; or each of k groups in one
    round, at epsilon.
    """
    projection: int | None = None
    """Number of rows of the random projection, q (Private GD-DR)."""
    projection_law: Literal["gaussian", "sign"] = "gaussian"
    """Law of the projection's entries."""
    lift: Literal["pseudo-inverse", "transpose"] = "pseudo-inverse"
    """How a projected gradient comes back; the paper's pseudo-inverse shrinks it by q/items."""
    fresh_projection: bool = False
    """Draw another projection in each round; needs --lift transpose."""
    user_learning_rate: float | None = None
    """Step size of the users' own steps, which cost no privacy."""
    entry_clip: float = 1.0
    """Bound on an entry of a user's gradient; reports are scaled by it."""


def learning_rate(config: Any, num_users: int, num_items: int) -> float:
    """γ of the first round where the flags say none, from public numbers alone.

    The noise of the first round makes rows of V as long as γ·√(d·variance), and a user's step of
    γ_u on the own factors is stable while γ_u times the square of that stays below about 3: γ =
    min(2, 1.5/(d·variance)^(1/3)) where γ_u is γ, else √(1.5³/(γ_u·d·variance)). The constants were
    searched on generated data (experiments/DEFAULTS.md).
    """
    from dpmf_jax.mechanisms.local import variance as local_variance

    if config.lift == "pseudo-inverse" and (config.num_projected or 0) > num_items - 2:
        config = dataclasses.replace(
            config, num_projected=None
        )  # Φ† has no finite mean square: V's own rows bound it
    variance = local_variance.step_variance(config, num_users=num_users, num_items=num_items)
    if config.user_learning_rate is None:
        return min(LARGEST_RATE, STABLE / (config.rank * variance) ** (1 / 3))
    return min(
        LARGEST_RATE, (STABLE**3 / (config.user_learning_rate * config.rank * variance)) ** 0.5
    )


def settings(name: str, flags: Reports, ratings: Ratings, public: Any) -> Settings:
    """See `Spec.settings`."""
    del name, public  # one mechanism, without public factors
    rounds = check_steps(ROUNDS if flags.rounds is None else flags.rounds, ROUNDS, "--rounds")
    if flags.center in ("item", "global", NOISY_MEANS):
        raise UsageError(
            f"--center {flags.center} needs ratings of all users, which nobody has in the local"
            " model",
            fix="--center with a number that is public, such as the middle of the range",
        )
    if flags.projection is not None and flags.projection > ratings.num_items:
        raise UsageError(
            f"--projection {flags.projection} has more rows than there are items,"
            f" {ratings.num_items}",
            fix=f"--projection {max(1, ratings.num_items // 4)}",
        )
    low, high = ratings.rating_range
    made: Settings = {
        "steps": rounds,
        "rating_range": list(ratings.rating_range),
        "epsilon": EPSILON if flags.epsilon is None else flags.epsilon,
        "num_rounds": rounds,
        "rank": RANK if flags.rank is None else flags.rank,
        "learning_rate": flags.learning_rate,
        "user_learning_rate": flags.user_learning_rate,
        "regularization": REGULARIZATION if flags.regularization is None else flags.regularization,
        "center": (low + high) / 2 if flags.center is None else constant(flags.center),
        "clip": flags.entry_clip,
        "schedule": flags.schedule,
        "num_projected": flags.projection,
        "law": flags.projection_law,
        "lift": flags.lift,
        "fresh_projection": flags.fresh_projection,
    }
    if flags.projection is None:
        for field in ("projection_law", "lift", "fresh_projection"):
            if getattr(flags, field) != getattr(Reports, field):
                flag = f"--{field.replace('_', '-')}"
                raise UsageError(
                    f"{flag} goes with --projection", fix=f"--projection 512, or leave out {flag}"
                )
    if flags.learning_rate is None:
        made["learning_rate"] = 1.0
        made["learning_rate"] = learning_rate(_config(made), ratings.num_users, ratings.num_items)
    return made


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Phase, ...]:
    """See `Spec.phases`."""
    from dpmf_jax.mechanisms.local import gd as local

    del public
    config = _config(settings)
    mechanism = local.gd(config) if config.num_projected is None else local.gd_dr(config)
    return ((mechanism, settings["steps"]),)


def _config(settings: Mapping[str, Any]) -> Any:
    from dpmf_jax.mechanisms.local import gd as local

    return local.Config(**config_values(local.Config, settings))


def control(mechanism: Mechanism) -> Mechanism:
    """See `Spec.control`: descent on whole gradients, without reports."""
    from dpmf_jax.mechanisms.local import gd as local

    return local.silent(mechanism)


def num_steps(settings: Mapping[str, Any], priced: int) -> int:
    """Rounds; a guarantee's steps are the reports of one user."""
    return priced * settings["num_rounds"] if settings["schedule"] == "partition" else priced


def shuffled_price(settings: Mapping[str, Any], num_users: int, delta: float) -> dict[str, Any]:
    """The central price behind a trusted shuffler, if all users report honestly.

    It never stands in place of the local price.

    {"reports": honest reports in each shuffle, "statement": …, "epsilon", "delta"}.
    """
    once = settings["schedule"] == "partition"
    times, groups = (1, settings["num_rounds"]) if once else (settings["num_rounds"], 1)
    reports = num_users // groups
    price: dict[str, Any] = {"reports": reports, "delta": delta}
    try:
        if reports < 1:
            raise ValueError(f"{num_users} users cannot be split into {groups} groups")
        central = shuffled_guarantee(settings["epsilon"], times, num_reports=reports, delta=delta)
    except ValueError as refused:
        return price | {"epsilon": None, "statement": f"no shuffled price: {refused}"}
    return price | {"epsilon": central.epsilon, "statement": central.statement}


_FEW = {"rank": 5, "rounds": 4}
SPECS = (
    Spec(
        name="local",
        paper="004",
        flags=Reports,
        defaults={
            "epsilon": EPSILON,
            "rank": RANK,
            "rounds": ROUNDS,
            "regularization": REGULARIZATION,
            "center": "middle of the rating range",
            "learning_rate": "from public sizes",
            "user_learning_rate": "that of the items, as in the paper",
            "projection": "none: Private GD",
        },
        settings=settings,
        phases=phases,
        control=control,
        access="sums",
        unit="user",
        trials=(
            Trial("004 Private GD", "ε = 1.6, rank 15, 20 rounds", small=_FEW),
            Trial(
                "004 Private GD-DR",
                "the same, with a random projection of a quarter of the items",
                {"projection": "quarter"},
                small=_FEW,
            ),
        ),
        num_steps=num_steps,
        second_price=shuffled_price,
    ),
)
