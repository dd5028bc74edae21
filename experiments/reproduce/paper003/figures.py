"""Paper 003's figures: which runs each needs, and the rows that come of them.

- `003/fig1`-`003/fig6` the CDF of |prediction - rating|, over iterations (a) and over ε (b): S1,
  S2, S3.
- `003/fig7`, `003/fig8` mean increase of |prediction - rating| over the non-private baseline of 100
  iterations.
- `003/fig9`, `003/fig10` S3 over the probabilities of joining (a) and leaving (b).
- `003/sound` held-out error over the whole price: published, sound, and simple controls.
- `003/theorem1` log-ratios of the exact density of V: `density`.

S1, S2 and the baseline are trained twice: on all ratings, whose training error is the paper's, and
on 80% of them, for the error on the rest. S3, whose runs are long, is trained on the 80% alone,
which gives both errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from accounting.gaussian import solve_rho
from accounting.status import REAL_NUMBERS
from dpmf_jax.mechanisms.federated import spec as federated_spec
from dpmf_jax.noise import keys
from dpmf_jax.protocol import Factors
from dpmf_jax.training import controls
from experiments.reproduce.catalogue import Figure
from experiments.reproduce.comparison import NOTHING, mean
from experiments.reproduce.page import Outcome
from experiments.reproduce.paper import Bench
from experiments.reproduce.paper003 import density, table
from experiments.reproduce.paper003.runs import (
    ONE_RELEASE,
    Data,
    Measured,
    Part,
    Run,
    Scenario,
    config,
    errors,
    guarantee,
    measure,
)

BASELINE, ALONE = "not private", "users alone, V random"
PARTS: tuple[Part, ...] = ("all", "held-out")
SINGLE, SOUND_ITERATIONS = (
    (1,),
    (federated_spec.USER_ITERATIONS,),
)  # of what is one release; of `dpmf fit`'s default
CDFS: dict[str, Scenario] = {
    "003/fig1": "S1",
    "003/fig2": "S1",
    "003/fig3": "S2",
    "003/fig4": "S2",
    "003/fig5": "S3",
    "003/fig6": "S3",
}


def run(figure: Figure, bench: Bench) -> Outcome:
    """Trains what is not stored yet."""
    if figure.name == "003/theorem1":
        return density.run(bench)
    if figure.name in CDFS:
        outcome = cdfs(bench, CDFS[figure.name])
    elif figure.name == "003/sound":
        outcome = sound(bench)
    else:
        outcome = increases(bench) if figure.name in ("003/fig7", "003/fig8") else crowds(bench)
    outcome.notes[:0] = notes_of(bench.data)
    return outcome


def _empty() -> Outcome:
    """curves: of a series at x, on an axis, the CDF of |prediction - rating| at `THRESHOLDS`."""
    return Outcome([], [], [], {"curves": []})


def notes_of(data: Data) -> list[str]:
    """How the ratings differ from the paper's."""
    ratings = data.ratings
    if ratings.name == table.MOVIELENS:
        return []
    paper = f"{table.PAPER_NETFLIX[0]:,} users and {table.PAPER_NETFLIX[1]} movies"
    here = f"{ratings.num_users:,} users and {ratings.num_items} movies"
    return [
        f"The paper's Netflix slice has {paper}, which cannot be had; {ratings.name} has {here}."
        " Both have 5 stars."
    ]


class _Point(NamedTuple):
    """Runs of one setting after t iterations, at x.

    x: None for a level over the whole axis.
    """

    series: str
    runs: Sequence[Run]
    t: int
    x: float | None


def _runs(bench: Bench, scenario: Scenario, epsilon: float = 0.0, **crowd: float) -> list[Run]:
    """Of one setting: for every part, then every seed."""
    dynamic = scenario.startswith("S3")
    seeds, parts = (_long_seeds(bench), PARTS[1:]) if dynamic else (bench.seeds, PARTS)
    at = table.LONG if dynamic else table.SHORT
    if scenario == "per-user":
        at = SOUND_ITERATIONS
    elif scenario in ONE_RELEASE and scenario != "S1":
        at = SINGLE
    return [Run(scenario, epsilon, seed, part, at, **crowd) for part in parts for seed in seeds]


def _long_seeds(bench: Bench) -> tuple[int, ...]:
    return bench.seeds[: table.LONG_SEEDS.get(bench.data.ratings.name, 1)]


def _held_out(runs: Iterable[Run], seeds: Sequence[int] | None = None) -> list[Run]:
    return [one for one in runs if one.part == "held-out" and (seeds is None or one.seed in seeds)]


def _base(one: Run) -> Run:
    """The baseline of the same seed and part."""
    return Run("baseline", 0.0, one.seed, one.part, table.SHORT)


def _add(
    bench: Bench,
    outcome: Outcome,
    points: Sequence[_Point],
    *,
    axes: Sequence[str] = ("train", "test"),
    increase: bool = True,
    curves: bool = False,
) -> None:
    """Every point's mean error on each axis, its increase over the baseline of the same seed and
    part, and its CDF.

    Training errors are those of runs on all ratings where there are such runs.
    """
    runs = [one for point in points for one in point.runs]
    measured = measure((*map(_base, runs), *runs), bench.data, bench.store, bench.say)
    for point in points:
        its: list[Measured] = []
        for axis in axes:
            parts = {one.part for one in point.runs}
            part: Part = "all" if axis == "train" and "all" in parts else "held-out"
            here = [one for one in point.runs if one.part == part]
            values = [measured[one].errors[axis][point.t] for one in here]
            bases = [measured[_base(one)].errors[axis][table.SHORT[-1]] for one in here]
            place: dict[str, Any] = {"step": point.t, "num_steps": point.t}
            place |= {"variant": here[0].scenario, "part": part}
            kind, x = ("level", 0.0) if point.x is None else ("end", point.x)
            outcome.row(point.series, axis, kind, x, [one.mean for one in values], **place)
            if increase and point.series != BASELINE:
                over = [_over(one.mean, base.mean) for one, base in zip(values, bases, strict=True)]
                said = _in_text(bench, point) if axis == "train" else None
                name = f"increase_{axis}"
                outcome.row(point.series, name, kind, x, over, paper=said, **place)
            if curves:
                cdf = [mean(column) for column in zip(*(one.cdf for one in values), strict=True)]
                outcome.more["curves"].append(
                    {"series": point.series, "x": x, "axis": axis, "part": part, "cdf": cdf}
                )
            its += [measured[one] for one in here]
        first = point.runs[0]
        settings = config(first, bench.data)
        headline = guarantee(first._replace(at=(point.t,)), bench.data).headline
        outcome.setting(
            point.series,
            point.x,
            first.scenario,
            NOTHING if first.scenario == "users-alone" else headline,
            sorted({one.seed for one in point.runs}),
            its,
            config={name: value for name, value in settings.items() if value is not None},
        )


def _over(value: float, base: float) -> float:
    """inf where either left the finite numbers."""
    return value - base if math.isfinite(value) and math.isfinite(base) else math.inf


def _in_text(bench: Bench, point: _Point) -> float | None:
    """The number in the paper's text, where it speaks of this point."""
    one = point.runs[0]
    said = table.TEXT.get((bench.data.ratings.name, one.scenario))
    paper = one.join is None and one.leave is None and point.t == one.at[-1]
    return said.value if said and paper and one.epsilon == said.epsilon else None


def cdfs(bench: Bench, scenario: Scenario) -> Outcome:
    """(a) over iterations at one ε, (b) over ε after all iterations; and the baseline in both."""
    outcome, dynamic = _empty(), scenario == "S3"
    at, epsilons = (
        (table.LONG, table.DYNAMIC_EPSILONS) if dynamic else (table.SHORT, table.EPSILONS)
    )
    along = _dynamic_epsilon(bench) if dynamic else table.ALONG_EPSILON
    base = _runs(bench, "baseline")
    points = [
        *(_Point(f"(a) ε = {along:g}", _runs(bench, scenario, along), t, float(t)) for t in at),
        *(
            _Point(f"(b) {at[-1]} iterations", _runs(bench, scenario, e), at[-1], e)
            for e in epsilons
        ),
        _Point(
            BASELINE,
            _held_out(base, _long_seeds(bench)) if dynamic else base,
            table.SHORT[-1],
            None,
        ),
    ]
    _add(bench, outcome, points, curves=True)
    outcome.more["thresholds"] = list(table.THRESHOLDS)
    return outcome


def _dynamic_epsilon(bench: Bench) -> float:
    return table.DYNAMIC_ALONG_EPSILON.get(bench.data.ratings.name, table.ALONG_EPSILON)


def increases(bench: Bench) -> Outcome:
    """S1, S2 and S3 over ε, and other readings of them.

    Of S1: the exact minimiser, whose regularisation has the M of equation (1). Of S2 and S3:
    without noise, which shows what their way to descend makes of the baseline.
    """
    outcome = _empty()
    points = []
    for epsilon in (*table.EPSILONS, *table.WIDE):
        mine = _runs(bench, "S1", epsilon)
        iterations = (
            [t for t in table.SHORT if t >= S1_FROM]
            if epsilon in table.EPSILONS
            else table.SHORT[-1:]
        )
        points += [_Point(f"(a) S1, {t} iterations", mine, t, epsilon) for t in iterations]
        points.append(
            _Point("(a) S1, exact with Mμ", _runs(bench, "S1-exact", epsilon), 1, epsilon)
        )
    points += [
        _Point("(a) S2", _runs(bench, "S2", epsilon), table.SHORT[-1], epsilon)
        for epsilon in table.EPSILONS
    ]
    points.append(_Point("(a) S2 without noise", _runs(bench, "S2-exact"), table.SHORT[-1], None))
    points.append(_Point(f"(a) {ALONE}", _runs(bench, "users-alone"), table.SHORT[-1], None))
    points += [
        _Point("(b) S3", _runs(bench, "S3", epsilon), table.LONG[-1], epsilon)
        for epsilon in table.DYNAMIC_EPSILONS
    ]
    points.append(_Point("(b) S3 without noise", _runs(bench, "S3-exact"), table.LONG[-1], None))
    points.append(_Point(BASELINE, _runs(bench, "baseline"), table.SHORT[-1], None))
    _add(bench, outcome, points)
    return outcome


S1_FROM = 40  # iterations, of S1's lines in the figures of increases


def crowds(bench: Bench) -> Outcome:
    """(a) over the probability of joining, (b) over that of leaving, after all iterations."""
    outcome, epsilon = _empty(), _dynamic_epsilon(bench)
    over = [
        *(
            (f"(a) leaving {table.JOINS_LEAVE:g}", join, table.JOINS_LEAVE, join)
            for join in table.JOINS
        ),
        *(
            (f"(b) joining {table.LEAVES_JOIN:g}", table.LEAVES_JOIN, leave, leave)
            for leave in table.LEAVES
        ),
    ]
    usual = (table.JOIN, table.LEAVE)  # a run of the other figures
    points = []
    for series, join, leave, x in over:
        crowd = {} if (join, leave) == usual else {"join": join, "leave": leave}
        points.append(_Point(series, _runs(bench, "S3", epsilon, **crowd), table.LONG[-1], x))
    _add(bench, outcome, points)
    return outcome


S1, PUBLIC_USERS, STATISTICS = "S1 as published", "S1, U public", "noisy statistics"
S2, PER_USER, USER_STATISTICS = "S2 as published", "S2 per user", "noisy statistics per user"
PRICED, MEANS, GLOBAL = "priced item means", "item means", "global mean"


def sound(bench: Bench) -> Outcome:
    """Everything at its whole price, on held-out ratings, each for its own unit."""
    outcome = _empty()
    points = []
    for total in table.TOTALS:
        each = total / table.SHORT[-1]  # of an iteration of S2
        for series, scenario, epsilon in (
            (S1, "S1", total),
            (S2, "S2", each),
            (PUBLIC_USERS, "public-users", total),
            (STATISTICS, "statistics", total),
            (PER_USER, "per-user", total),
            (USER_STATISTICS, "user-statistics", total),
        ):
            runs = _held_out(_runs(bench, scenario, epsilon))
            points.append(_Point(series, runs, runs[0].at[-1], total))
    for series, scenario in ((BASELINE, "baseline"), (ALONE, "users-alone")):
        points.append(_Point(series, _held_out(_runs(bench, scenario)), table.SHORT[-1], None))
    _add(bench, outcome, points, axes=("train", "test", "test_clipped"), increase=False)
    _controls(bench, outcome)
    return outcome


def _controls(bench: Bench, outcome: Outcome) -> None:
    """Adds the global mean and item means, and item means priced for a rating's value."""
    train, test = bench.data.split

    def add(
        series: str, x: float | None, models: Sequence[Factors], headline: str, seeds: Sequence[int]
    ) -> None:
        for axis, ratings, clip in (
            ("train", train, False),
            ("test", test, False),
            ("test_clipped", test, True),
        ):
            values = [errors(model, ratings, clip=clip).mean for model in models]
            kind, place = ("level", 0.0) if x is None else ("control", x)
            outcome.row(series, axis, kind, place, values, variant=series, part="held-out")
        outcome.setting(series, x, series, headline, seeds)

    add(GLOBAL, None, [controls.global_mean(train)], "not private", ())
    add(MEANS, None, [controls.item_means(train)], "not private", ())
    for total in table.TOTALS:
        noisy = [
            controls.noisy_item_means(train, keys.from_seed(s), rho=solve_rho(total, table.DELTA))
            for s in bench.seeds
        ]
        headline = (
            f"{REAL_NUMBERS}, ε = {total:g} at δ = {table.DELTA:g}, unit: rating value; released:"
            " item means"
        )
        add(PRICED, total, [one.factors for one in noisy], headline, bench.seeds)
