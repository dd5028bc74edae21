"""How settings of `als` do on generated ratings, beside its defaults: what the defaults come from.

    python -m experiments.fit.search growth 1.5 2 3 --epsilons 4 20

Each value is compared with the default in every case, a size and an ε, on the same ratings with the
same draws: the ratings are `data.lifelike`, so no real rating decides about a default. Every case
is repeated for a few seeds, which are both of the ratings and of the noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from experiments.cli import console

# Users, items, ratings: of MovieLens 100K and 1M; few items for many users; few ratings an item.
SIZES = {
    "ml-100k": (943, 1_682, 100_000),
    "ml-1m": (6_040, 3_706, 1_000_209),
    "tall": (30_000, 1_000, 1_500_000),
    "sparse": (20_000, 8_000, 600_000),
}
HELD_OUT = 0.1


class Case(NamedTuple):
    """users, items, ratings: numbers of them. epsilon: at δ = 1e-5, for a user."""

    users: int
    items: int
    ratings: int
    epsilon: float


class Problem(NamedTuple):
    """Ratings to train on, in a layout too, and held out; public features of the items, or None."""

    train: Ratings
    test: Ratings
    data: Layout
    public: Any
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Compare values of a setting of als with its default, on generated ratings."""

    setting: tyro.conf.Positional[str]
    """A number among the settings of als, such as growth or means_clip."""
    values: tyro.conf.Positional[tuple[float, ...]]
    """What to try."""
    sizes: tuple[str, ...] = tuple(SIZES)
    """Names of the sizes."""
    epsilons: tuple[float, ...] = (1.0, 4.0, 8.0, 20.0)
    """Prices of a user."""
    seeds: int = 2
    """How many sets of ratings of each size."""
    item_features: bool = False
    """Give the public features that the ratings were generated with."""
    json: Annotated[bool, tyro.conf.arg(help="Print one JSON object on stdout.")] = False


def run(command: Command) -> None:
    unknown = [name for name in command.sizes if name not in SIZES]
    if unknown:
        console.refuse(f"no such size: {unknown[0]}", fix=f"one of {', '.join(SIZES)}")
    cases = [Case(*SIZES[size], epsilon) for size in command.sizes for epsilon in command.epsilons]
    rows = compare(
        [{command.setting: value} for value in command.values],
        cases,
        range(1, 1 + command.seeds),
        item_features=command.item_features,
    )
    console.emit({"rows": rows}, json=command.json, render=render)


def compare(
    candidates: Sequence[Mapping[str, Any]],
    cases: Sequence[Case],
    seeds: Sequence[int],
    *,
    item_features: bool = False,
) -> list[dict[str, Any]]:
    """One row a case and candidate: {case, settings, rmse, difference, error}.

    rmse: on held-out ratings, the mean over the seeds. difference: to the defaults on the same
    ratings with the same draws; error: its standard error over the seeds, None for one seed. The
    first row of a case is of the defaults.

    Args:
      candidates: fields of `als.config.Config` that replace those of the defaults.
    """
    rows = []
    for case in cases:
        tried: list[Mapping[str, Any]] = [{}, *candidates]
        found = [
            [held_out_rmse(problem, case.epsilon, settings) for settings in tried]
            for problem in (generated(case, seed, item_features=item_features) for seed in seeds)
        ]
        usual, *others = zip(*found, strict=True)
        rows.append(_row(case, {}, usual, usual))
        rows += [_row(case, *pair, usual) for pair in zip(candidates, others, strict=True)]
    return rows


def _row(
    case: Case, settings: Mapping[str, Any], found: Sequence[float], usual: Sequence[float]
) -> dict[str, Any]:
    differences = np.subtract(found, usual)
    several = len(differences) > 1
    return {
        "case": case._asdict(),
        "settings": dict(settings),
        "rmse": float(np.mean(found)),
        "difference": float(differences.mean()),
        "error": float(differences.std(ddof=1) / math.sqrt(len(differences))) if several else None,
    }


def generated(case: Case, seed: int, *, item_features: bool = False) -> Problem:
    """Lifelike ratings of the case's sizes."""
    from dpmf_jax import layout
    from dpmf_jax.data import lifelike, splits

    ratings = lifelike.generate(
        num_users=case.users, num_items=case.items, num_ratings=case.ratings, seed=seed
    )
    train, test = splits.random(ratings, fraction=HELD_OUT, seed=seed)
    public = lifelike.item_features(num_items=case.items, seed=seed) if item_features else None
    return Problem(train, test, layout.make(train, num_devices=1), public, seed)


def held_out_rmse(problem: Problem, epsilon: float, settings: Mapping[str, Any]) -> float:
    """RMSE of one run of als, whose defaults `settings` replace, on ratings held out."""
    import jax

    from dpmf_jax import protocol
    from dpmf_jax.mechanisms.als import spec
    from dpmf_jax.models import metrics

    flags = spec.Als(epsilon=epsilon)
    chosen = spec.settings("als", flags, problem.train, problem.public) | dict(settings)
    for name in ("rank", "num_passes", "num_means"):  # a command line has them as floats
        if name in chosen:
            chosen[name] = int(chosen[name])
    *earlier, (mechanism, num_steps) = spec.phases(chosen, problem.public)
    init_key, train_key = jax.random.split(jax.random.key(problem.seed))
    state = protocol.begin(mechanism, init_key, problem.data, earlier)
    state, _info = protocol.train(mechanism, train_key, state, problem.data, num_steps)
    return metrics.rmse(jax.device_get(protocol.factors(state)), problem.test)


def render(result: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title="held-out RMSE, and differences to the defaults in units of 0.0001")
    for name in ("users", "items", "ratings", "ε", "settings", "RMSE", "difference", "error"):
        table.add_column(name, justify="right")
    for row in result["rows"]:
        told = ", ".join(f"{name} {value:g}" for name, value in row["settings"].items())
        error = "-" if row["error"] is None else f"{1e4 * row['error']:.1f}"
        numbers = (f"{value:,g}" for value in row["case"].values())
        table.add_row(
            *numbers,
            told or "defaults",
            f"{row['rmse']:.4f}",
            f"{1e4 * row['difference']:+.1f}" if told else "-",
            error if told else "-",
        )
    return table


if __name__ == "__main__":
    run(tyro.cli(Command))
