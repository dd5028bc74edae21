"""Paper 004's figures: what is trained for each on which ratings, and the rows that come of it.

- `004/fig9` RMSE over rounds at ε = 0.1, private GD-DR and non-private GD: the slides' only table
  of numbers.
- `004/epsilon` RMSE over ε from 0.05 to 1.6: GD, GD-DR, the planned variant, whole gradients under
  Laplace noise.
- `004/variants` what each departure from the published algorithm changes, one at a time.
- `004/error` is `difference`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.local import plan as local_plan
from dpmf_jax.mechanisms.local.forecast import Assumptions
from dpmf_jax.models import metrics
from dpmf_jax.training import controls
from experiments.reproduce.catalogue import Figure
from experiments.reproduce.comparison import mean, row
from experiments.reproduce.page import Outcome
from experiments.reproduce.paper import Bench
from experiments.reproduce.paper004 import difference, runs, table
from experiments.reproduce.paper004.runs import Run, Search, Variant, promise

LAPLACE_CELLS = 943 * 1_682  # users x items: whole gradients of more are not held for a comparison


def run(figure: Figure, bench: Bench) -> Outcome:
    """Trains what is not stored yet."""
    program = {
        "004/fig9": over_rounds,
        "004/epsilon": over_epsilon,
        "004/variants": over_variants,
        "004/error": difference.errors,
    }[figure.name]
    return program(bench)


def projected(num_items: int) -> int:
    """q at the paper's share of the items, which is a tenth."""
    return max(1, round(num_items * table.PAPER_PROJECTED / table.PAPER_ITEMS))


def base(ratings: Ratings, *, epsilon: float, num_rounds: int, **rest: Any) -> local.Config:
    """The slides' settings; centred by the middle of the declared range, a public constant."""
    low, high = ratings.rating_range
    center = (low + high) / 2
    shared = local.Config(
        epsilon=epsilon,
        num_rounds=num_rounds,
        rank=table.RANK,
        regularization=table.REGULARIZATION,
        center=center,
    )
    return dataclasses.replace(shared, **rest)


class _Series(NamedTuple):
    name: str
    variant: Variant
    config: local.Config
    at: tuple[int, ...]
    x: float | None = None  # where it stands, or None: at its rounds


def _trained(bench: Bench, series: _Series, outcome: Outcome, rate: Search | None = None) -> Search:
    """Adds a series at its searched learning rate, mean over seeds, without the paper's values."""
    rounds = series.at[-1]
    search = rate or runs.search(
        series.variant, series.config, rounds, bench.data, bench.store, bench.say
    )
    config = dataclasses.replace(series.config, learning_rate=search.learning_rate)
    every = [Run(series.variant, config, seed, series.at) for seed in bench.seeds]
    measured = [runs.measure(one, bench.data, bench.store, bench.say) for one in every]
    for t in series.at:
        place = float(t) if series.x is None else series.x
        for axis, part in (("rmse", "test"), ("rmse_clipped", "clipped"), ("rmse_train", "train")):
            values = [getattr(one, part)[t] for one in measured]
            variant = "published" if series.variant in ("gd", "gd-dr") else series.variant
            its: dict[str, Any] = {"step": t, "num_steps": rounds, "variant": variant}
            outcome.row(series.name, axis, "end", place, values, part="held-out", **its)
    outcome.setting(
        series.name,
        series.x,
        series.variant,
        promise(every[0], bench.data.train.num_items),
        bench.seeds,
        measured,
        config=dataclasses.asdict(config),
        outside=mean(one.outside for one in measured),
    )
    place = "" if series.x is None else f" at {series.x:g}"
    tried = {f"{rate:g}": value for rate, value in search.tried.items()}
    outcome.more["searches"][f"{series.name}{place}"] = {
        "learning_rate": search.learning_rate,
        "tried": tried,
    }
    return search


def _controls(bench: Bench, outcome: Outcome, places: Iterable[float]) -> None:
    """Adds the global mean and item means, which are not private, over the whole axis."""
    trained, test = bench.data.train, bench.data.test
    for name, model in (
        ("global-mean", controls.global_mean(trained)),
        ("item-means", controls.item_means(trained)),
    ):
        for axis, part, clip in (
            ("rmse", test, False),
            ("rmse_clipped", test, True),
            ("rmse_train", trained, False),
        ):
            value = metrics.rmse(model, part, clip=clip)
            for x in places:
                outcome.row(name, axis, "control", float(x), [value], variant=name, part="held-out")
        outcome.setting(name, None, name, "not private")


def _nothing() -> Outcome:
    return Outcome([], [], [], {"searches": {}})


def over_rounds(bench: Bench) -> Outcome:
    """Both readings of "over k": one run whose k is 50, seen after t rounds; and a run for each k,
    with all of ε.
    """
    ratings, outcome = bench.data.train, _nothing()
    q = projected(ratings.num_items)
    longest = base(
        ratings, epsilon=table.FIG9_EPSILON, num_rounds=table.ROUNDS[-1], num_projected=q
    )
    rate = _trained(
        bench, _Series("private, seen during 50 rounds", "gd-dr", longest, table.ROUNDS), outcome
    )
    _trained(
        bench,
        _Series("fair coins in place of reports", "fair-coins", longest, table.ROUNDS),
        outcome,
        rate,
    )
    for k in table.ROUNDS:
        one = dataclasses.replace(longest, num_rounds=k)
        _trained(bench, _Series("private, k rounds in all", "gd-dr", one, (k,), float(k)), outcome)
    exact = dataclasses.replace(longest, num_projected=None)
    _trained(bench, _Series("non-private", "non-private", exact, table.ROUNDS), outcome)
    _trained(bench, _Series("users alone", "users-alone", exact, table.ROUNDS), outcome)
    _controls(bench, outcome, table.ROUNDS)
    compared = ratings.name == table.PAPER_DATA
    paper = {"private, seen during 50 rounds": "private", "non-private": "non-private"}
    for place, one in enumerate(outcome.rows):
        if one.axis == "rmse" and one.series in paper and one.step is not None:
            value = table.PAPER[paper[one.series]][round(one.step)]
            outcome.rows[place] = row(
                *(one.series, one.axis, one.kind, one.x, one.values),
                paper=value if compared else None,
                tolerance=table.TOLERANCE * value if compared else None,
                step=one.step,
                num_steps=one.num_steps,
                variant=one.variant,
                part=one.part,
            )
    if not compared:
        outcome.notes.append(
            f"{table.PAPER_DATA} is not there, so no number is compared with the slides', but their"
            f" shape is, in 004/claims. q = {q} is the slides' share of the items, a tenth."
        )
    return outcome


def planned(ratings: Ratings, epsilon: float) -> local_plan.Plan:
    """The best plan of `local.plan` for the public sizes.

    Its assumptions are its own, but the mean number of ratings of a user counts as public here.
    """
    assumed = Assumptions(ratings_per_user=ratings.num_ratings / ratings.num_users)
    return local_plan.plan(
        epsilon=epsilon,
        num_users=ratings.num_users,
        num_items=ratings.num_items,
        rank=table.RANK,
        assumptions=assumed,
    )


def over_epsilon(bench: Bench) -> Outcome:
    ratings, outcome = bench.data.train, _nothing()
    small = ratings.num_users * ratings.num_items <= LAPLACE_CELLS
    for epsilon in table.EPSILONS:
        plain = base(ratings, epsilon=epsilon, num_rounds=table.EPSILON_ROUNDS)
        with_phi = dataclasses.replace(plain, num_projected=projected(ratings.num_items))
        at = (table.EPSILON_ROUNDS,)
        _trained(bench, _Series("GD", "gd", plain, at, epsilon), outcome)
        _trained(bench, _Series("GD-DR", "gd-dr", with_phi, at, epsilon), outcome)
        if small:
            _trained(bench, _Series("Laplace", "laplace", plain, at, epsilon), outcome)
        changes = changed(bench, with_phi, EVERY)
        rate = _trained(bench, _Series("every variant", "gd-dr", changes, at, epsilon), outcome)
        _trained(
            bench,
            _Series("every variant, fair coins", "fair-coins", changes, at, epsilon),
            outcome,
            rate,
        )
        plan = planned(ratings, epsilon)
        config = dataclasses.replace(
            plan.config, center=plain.center, regularization=table.REGULARIZATION
        )
        variant: Variant = "gd" if config.num_projected is None else "gd-dr"
        _trained(
            bench, _Series("as planned", variant, config, (config.num_rounds,), epsilon), outcome
        )
        if epsilon == table.EPSILONS[-1]:
            outcome.notes.append(f"The planner, before anything is trained: {plan.sentence}")
    exact = base(ratings, epsilon=table.EPSILONS[0], num_rounds=table.EPSILON_ROUNDS)
    for name, variant in (("non-private", "non-private"), ("users alone", "users-alone")):
        rate = None
        for epsilon in table.EPSILONS:
            rate = _trained(
                bench,
                _Series(name, variant, exact, (table.EPSILON_ROUNDS,), epsilon),
                outcome,
                rate,
            )
    _controls(bench, outcome, table.EPSILONS)
    if not small:
        outcome.notes.append(
            "Laplace, whole gradients of every user, is run on MovieLens-100K alone: it holds them."
        )
    return outcome


# Of `004/variants`: name, what differs from the published settings; "published" is theirs. OWN
# stands for the rate that suits users alone, searched on generated ratings too.
OWN = "users alone"
EVERY = "all but the clip of 4"
CHANGES: Mapping[str, dict[str, Any]] = {
    "published": {},
    "Φᵀ, one Φ": {"lift": "transpose"},
    "Φᵀ, fresh Φ": {"lift": "transpose", "fresh_projection": True},
    "sign Φ": {"law": "sign"},
    "clip 0.25": {"clip": 0.25},
    "clip 4": {"clip": 4.0},
    "partition": {"schedule": "partition"},
    "users' own rate": {"user_learning_rate": OWN},
    "no Φ": {"num_projected": None},
    EVERY: {
        "lift": "transpose",
        "fresh_projection": True,
        "law": "sign",
        "schedule": "partition",
        "clip": 0.25,
        "user_learning_rate": OWN,
    },
}


def changed(bench: Bench, config: local.Config, name: str) -> local.Config:
    """The config with one of `CHANGES`."""
    change = dict(CHANGES[name])
    if change.get("user_learning_rate") == OWN:
        exact = dataclasses.replace(config, num_projected=None)
        alone = runs.search(
            "users-alone", exact, config.num_rounds, bench.data, bench.store, bench.say
        )
        change["user_learning_rate"] = alone.learning_rate
    return dataclasses.replace(config, **change)


def over_variants(bench: Bench) -> Outcome:
    ratings, outcome = bench.data.train, _nothing()
    q = min(table.VARIANTS_PROJECTED, ratings.num_items)
    published = base(
        ratings, epsilon=table.VARIANTS_EPSILON, num_rounds=table.VARIANTS_ROUNDS, num_projected=q
    )
    rate, config = None, published
    for place, name in enumerate(CHANGES):
        config = changed(bench, published, name)
        variant: Variant = "gd" if config.num_projected is None else "gd-dr"
        rate = _trained(
            bench, _Series(name, variant, config, (table.VARIANTS_ROUNDS,), float(place)), outcome
        )
    places = len(CHANGES), len(CHANGES) + 1
    coins = _Series(
        f"{EVERY}, fair coins", "fair-coins", config, (table.VARIANTS_ROUNDS,), float(places[0])
    )
    _trained(bench, coins, outcome, rate)
    exact = dataclasses.replace(published, num_projected=None)
    _trained(
        bench,
        _Series("users alone", "users-alone", exact, (table.VARIANTS_ROUNDS,), float(places[1])),
        outcome,
    )
    _controls(bench, outcome, range(places[1] + 1))
    return outcome
