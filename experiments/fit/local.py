"""Paper 004's local mechanisms: from flags to phases, and the shuffled price beside the local one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.local.guarantee import shuffled_guarantee
from experiments.fit import gaussian as fit_gaussian
from experiments.fit.flags import MechanismFlags

FLAGS = (
    *("rank", "epsilon", "delta", "center", "learning_rate", "regularization", "rounds", "schedule", "projection"),
    *("projection_law", "lift", "fresh_projection", "user_learning_rate", "entry_clip"),
)
RANK, ROUNDS, EPSILON = 15, 20, 1.6  # d is the paper's; ε the largest of its figures
REGULARIZATION = 1e-8
LARGEST_RATE, STABLE = 2.0, 1.5  # of `learning_rate`


def learning_rate(config: Any, num_users: int, num_items: int) -> float:
    """γ of the first round where the flags say none, from public numbers alone.

    The noise of the first round makes rows of V as long as γ·√(d·variance), and a user's step of γ_u on the own factors
    is stable while γ_u times the square of that stays below about 3: γ = min(2, 1.5/(d·variance)^(1/3)) where γ_u is γ,
    else √(1.5³/(γ_u·d·variance)). The constants were searched on generated data (experiments/DEFAULTS.md).
    """
    from dpmf_jax.mechanisms.local import variance as local_variance

    if config.lift == "pseudo-inverse" and (config.num_projected or 0) > num_items - 2:
        config = dataclasses.replace(config, num_projected=None)  # Φ† has no finite mean square: V's own rows bound it
    variance = local_variance.step_variance(config, num_users=num_users, num_items=num_items)
    if config.user_learning_rate is None:
        return min(LARGEST_RATE, STABLE / (config.rank * variance) ** (1 / 3))
    return min(LARGEST_RATE, (STABLE**3 / (config.user_learning_rate * config.rank * variance)) ** 0.5)


def made(flags: MechanismFlags, train: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, their public settings) as the flags say; see `fit_mechanisms.made`."""
    rounds = ROUNDS if flags.rounds is None else flags.rounds
    if rounds < 1:
        raise UsageError(f"--rounds must be at least 1; got {rounds}", fix=f"--rounds {ROUNDS}")
    if flags.center in ("item", "global", fit_gaussian.NOISY_MEANS):
        raise UsageError(
            f"--center {flags.center} needs ratings of all users, which nobody has in the local model",
            fix="--center with a number that is public, such as the middle of the range",
        )
    if flags.projection is not None and flags.projection > train.num_items:
        raise UsageError(
            f"--projection {flags.projection} has more rows than there are items, {train.num_items}",
            fix=f"--projection {max(1, train.num_items // 4)}",
        )
    low, high = train.rating_range
    settings = {
        "data": train.name,
        "mechanism": flags.mechanism,
        "steps": rounds,
        "rating_range": list(train.rating_range),
        "epsilon": EPSILON if flags.epsilon is None else flags.epsilon,
        "num_rounds": rounds,
        "rank": RANK if flags.rank is None else flags.rank,
        "learning_rate": flags.learning_rate,
        "user_learning_rate": flags.user_learning_rate,
        "regularization": REGULARIZATION if flags.regularization is None else flags.regularization,
        "center": (low + high) / 2 if flags.center is None else fit_gaussian.number(flags.center),
        "clip": flags.entry_clip,
        "schedule": flags.schedule,
        "num_projected": flags.projection,
        "law": flags.projection_law,
        "lift": flags.lift,
        "fresh_projection": flags.fresh_projection,
    }
    if flags.projection is None:
        for name in ("projection_law", "lift", "fresh_projection"):
            if getattr(flags, name) != getattr(MechanismFlags, name):
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} goes with --projection", fix=f"--projection 512, or leave out {flag}")
    if flags.learning_rate is None:
        settings["learning_rate"] = 1.0
        settings["learning_rate"] = learning_rate(_config(settings), train.num_users, train.num_items)
    return phases(settings, None), settings


def phases(settings: Mapping[str, Any], items: Any) -> tuple[Any, ...]:
    """The one phase of a run, made of what model.json keeps; see `fit_mechanisms.phases`."""
    from dpmf_jax.mechanisms.local import gd as local

    del items  # of other mechanisms
    config = _config(settings)
    mechanism = local.gd(config) if config.num_projected is None else local.gd_dr(config)
    return ((mechanism, settings["steps"]),)


def _config(settings: Mapping[str, Any]) -> Any:
    from dpmf_jax.mechanisms.local import gd as local

    names = {field.name for field in dataclasses.fields(local.Config)}
    return local.Config(**{name: value for name, value in settings.items() if name in names})


def num_steps(settings: Mapping[str, Any], priced: int) -> int:
    """Rounds; a guarantee's steps are the reports of one user."""
    return priced * settings["num_rounds"] if settings["schedule"] == "partition" else priced


def beside(settings: Mapping[str, Any], num_users: int, delta: float) -> dict[str, Any]:
    """The central price behind a trusted shuffler, if all users report honestly; never in the local one's place.

    {"reports": honest reports in each shuffle, "statement": …, "epsilon", "delta"}.
    """

    once = settings["schedule"] == "partition"
    times, groups = (1, settings["num_rounds"]) if once else (settings["num_rounds"], 1)
    reports = num_users // groups
    told: dict[str, Any] = {"reports": reports, "delta": delta}
    try:
        if reports < 1:
            raise ValueError(f"{num_users} users cannot be split into {groups} groups")
        central = shuffled_guarantee(settings["epsilon"], times, num_reports=reports, delta=delta)
    except ValueError as refused:
        return told | {"epsilon": None, "statement": f"no shuffled price: {refused}"}
    return told | {"epsilon": central.epsilon, "statement": central.statement}
