"""Paper 002's figures: which runs each needs, and the rows that come of them. Those of the paper
have the status none.

- `002/fig1` RMSE over λ: vectors stored as they are (regular), hashed (k = 1), sketched (k = 4),
  each at its own η.
- `002/fig2` the λ with the lowest validation RMSE, over (d, γ).
- `002/fig3` RMSE over the threshold ε, at the η and λ that were found without one; regular without
  one beside it.
- `002/fig4` the divergence (19) of the same runs: by the paper's filter and by one for both sides,
  all and top users.

In these ε is a threshold above which a rating is not learnt from, and no privacy parameter.
`002/budget` is another matter: what can be proved, at equal ε; see `budget`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.reproduce.catalogue import Figure
from experiments.reproduce.comparison import mean
from experiments.reproduce.page import Outcome
from experiments.reproduce.paper import Bench
from experiments.reproduce.paper002 import equal, table
from experiments.reproduce.paper002.runs import (
    CONTROLS,
    DIVERGENCES,
    Data,
    Run,
    Search,
    config,
    guarantee,
    look,
    measure,
    search,
)
from experiments.reproduce.paper002.table import Line


def run(figure: Figure, bench: Bench) -> Outcome:
    """Trains what is not stored yet. Searches have the first of the seeds."""
    if figure.name == table.BUDGET:
        chosen = (
            table.BUDGET_SEEDS if bench.seeds == table.SEEDS[bench.scale] else bench.seeds
        )  # short runs
        return equal.run(bench.data, bench.store, chosen, bench.say)
    program = {
        "002/fig1": over_regularization,
        "002/fig2": best_regularization,
        "002/fig3": over_threshold,
        "002/fig4": divergences,
    }[figure.name]
    outcome = program(bench)
    outcome.notes[:0] = notes_of(figure, bench)
    return outcome


def _empty() -> Outcome:
    """intervals: of divergences, the ends a mean over seeds. searches: by line, what was tried."""
    return Outcome([], [], [], {"intervals": [], "searches": {}})


def notes_of(figure: Figure, bench: Bench) -> list[str]:
    """What every figure was made with, and where that is not the paper's."""
    data, epochs, paper = bench.data, table.EPOCHS[bench.scale], table.EPOCHS["full"]
    notes = [
        "Nothing here has a guarantee (status none): ε is a threshold above which a rating is"
        " skipped, not a privacy parameter."
    ]
    if figure.name == "002/fig1":
        notes.append(
            "The paper draws this on EachMovie, which its publisher withdrew; here it is"
            f" {data.ratings.name}."
        )
    fewer = "" if epochs == paper else f", where the paper has {paper} (--scale full)"
    notes.append(
        f"T = {epochs} epochs{fewer}; {len(data.train):,} ratings to train on,"
        f" {len(data.valid):,} for validation, {int(data.rows['kl'].test.sum()):,} for the test,"
        f" the last two less the rows of users or items with fewer than {table.RARE}. A run takes"
        " its ratings in one random order, the same in every epoch; η falls as 1/(1 +"
        f" {table.DECAY:g}·t/T), and the paper does not say how fast; η and λ are those with the"
        f" lowest validation RMSE, for every d and γ anew; {_runs(len(bench.seeds))}."
    )
    return notes


def _runs(number: int) -> str:
    return (
        "one run each, so differences that a seed makes are not seen"
        if number == 1
        else f"{number} runs each"
    )


class _Point(NamedTuple):
    """One point of a series; x None is a level over the whole axis."""

    series: str
    runs: Sequence[Run]
    x: float | None


def _searched(bench: Bench, lines: Sequence[Line], outcome: Outcome) -> dict[Line, Search]:
    best = search(
        tuple(lines), bench.data, bench.store, table.EPOCHS[bench.scale], bench.seeds[0], bench.say
    )
    for line, one in best.items():
        tried = {
            f"η = {rate:g}, λ = {strength:g}": value
            for (rate, strength), value in one.tried.items()
        }
        outcome.more["searches"][line.label] = {
            "learning_rate": one.learning_rate,
            "regularization": one.regularization,
            "tried": tried,
        }
    return best


def _runs_at(
    bench: Bench,
    line: Line,
    best: Search,
    *,
    strength: float | None = None,
    threshold: float = math.inf,
) -> list[Run]:
    """A run for every seed, at the η that was found, and at its λ unless another is given."""
    strength = best.regularization if strength is None else strength
    ending = threshold if math.isfinite(threshold) else None
    return [
        Run(*line, best.learning_rate, strength, ending, table.EPOCHS[bench.scale], seed)
        for seed in bench.seeds
    ]


def _add(bench: Bench, outcome: Outcome, points: Sequence[_Point], axes: Sequence[str]) -> None:
    """Adds every point's mean over seeds on the axes, and the intervals of divergences."""
    every = [one for point in points for one in point.runs]
    by_run = measure(every, bench.data, bench.store, bench.say)
    for point in points:
        measured, first = [by_run[one] for one in point.runs], point.runs[0]
        kind, x = ("level", 0.0) if point.x is None else ("end", point.x)
        for axis in axes:
            values = [one.values[axis] for one in measured]
            place: dict[str, Any] = {"step": first.epochs, "num_steps": first.epochs}
            place |= {"variant": first.storage}
            outcome.row(point.series, axis, kind, x, values, part="held-out", **place)
            if axis in DIVERGENCES:
                ends = [mean(one.intervals[axis][end] for one in measured) for end in (0, 1)]
                _add_interval(outcome, point.series, x, axis, *ends)
        settings = dataclasses.asdict(config(first))
        outcome.setting(
            point.series,
            point.x,
            first.storage,
            _promise(first, bench.data),
            [one.seed for one in point.runs],
            measured,
            config={name: value for name, value in settings.items() if value is not None},
        )


def _add_interval(
    outcome: Outcome, series: str, x: float, axis: str, lower: float, upper: float
) -> None:
    outcome.more["intervals"].append(
        {"series": series, "x": x, "axis": axis, "lower": lower, "upper": upper}
    )


def _promise(run: Run, data: Data) -> str:
    promised = guarantee(run, data)
    ending = "" if run.threshold is None else "; ε is a threshold, no privacy parameter"
    return f"{promised.headline}, status {promised.status}{ending}"


def _controls(bench: Bench, outcome: Outcome, axes: Sequence[str]) -> None:
    """Adds what is there before a factor is learnt: what a threshold of 0 comes to."""
    for series, fit in CONTROLS.items():
        values, intervals = look(fit(bench.data), bench.data)
        for axis in (axis for axis in axes if axis in values):
            value = [values[axis]]
            outcome.row(series, axis, "level", 0.0, value, variant=series, part="held-out")
            if axis in intervals:
                _add_interval(outcome, series, 0.0, axis, *intervals[axis])
        outcome.setting(series, None, series, "not private")


def over_regularization(bench: Bench) -> Outcome:
    """Each storage at the η that its search found, over λ."""
    outcome = _empty()
    best = _searched(bench, tuple(table.FIG1.values()), outcome)
    points = [
        _Point(series, _runs_at(bench, line, best[line], strength=strength), strength)
        for series, line in table.FIG1.items()
        for strength in table.LAMBDAS
    ]
    _add(bench, outcome, points, ("rmse", "rmse_valid", "rmse_train"))
    _controls(bench, outcome, ("rmse", "rmse_valid", "rmse_train"))
    return outcome


def best_regularization(bench: Bench) -> Outcome:
    """What the searches found, a series for each γ and one for regular storage; and errors."""
    outcome = _empty()
    best = _searched(bench, (*table.SKETCHED, *table.REGULAR), outcome)
    points = []
    for line, one in best.items():
        series = "regular" if line.storage == "regular" else f"γ = {line.gain:g}"
        points.append(_Point(series, _runs_at(bench, line, one), float(line.rank)))
        for axis, value in (("best_lambda", one.regularization), ("best_rate", one.learning_rate)):
            outcome.row(series, axis, "end", float(line.rank), [value], variant=line.storage)
    _add(bench, outcome, points, ("rmse", "rmse_valid", "rmse_train"))
    return outcome


def over_threshold(bench: Bench) -> Outcome:
    outcome = _empty()
    axes = ("rmse", "rmse_top", "rmse_train", "skipped")
    _add(bench, outcome, _thresholds(bench, outcome), axes)
    _controls(bench, outcome, axes)
    return outcome


def divergences(bench: Bench) -> Outcome:
    outcome = _empty()
    axes = (*DIVERGENCES, "rmse", "rmse_top")
    _add(bench, outcome, _thresholds(bench, outcome), axes)
    _controls(bench, outcome, axes)
    top = max(1, round(table.TOP_SHARE * bench.data.train.num_users))
    outcome.notes.append(
        "The divergence is that of two Gaussians which are fitted to errors: an attack's"
        " yardstick, which bounds nothing, so no ε follows from a small one. The paper drops rare"
        " users and items from the test side alone, which makes it positive where nothing was"
        f" learnt (means alone); one filter for both sides stands beside it. Top users: the {top}"
        f" with most training ratings, {table.TOP_SHARE:.0%}. Intervals: 95%, whole users drawn,"
        " for this one split and fit."
    )
    return outcome


def _thresholds(bench: Bench, outcome: Outcome) -> list[_Point]:
    """Every sketch over the thresholds, every regular storage as a level without one."""
    best = _searched(bench, (*table.SKETCHED, *table.REGULAR), outcome)
    points = [
        _Point(line.label, _runs_at(bench, line, best[line], threshold=threshold), threshold)
        for line in table.SKETCHED
        for threshold in table.THRESHOLDS
    ]
    return [
        *points,
        *(_Point(line.label, _runs_at(bench, line, best[line]), None) for line in table.REGULAR),
    ]
