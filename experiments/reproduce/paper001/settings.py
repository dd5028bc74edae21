"""Paper 001 over a setting (ε_i, the rank n, the learning rate μ): the training RMSE and the price
of a whole run.

The number of steps J of a private run is what the paper's own overall ε implies, so that both sides
take as many: its RMSE is read before the last of them, at step J - 1, as the last step of figure
1's curves is J - 1. Where the paper has no J (non-private runs) or none is known (over μ), a rule
of `stopping` ends the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpmf_jax.data.ratings import Ratings
from experiments.reproduce import comparison
from experiments.reproduce.comparison import Row, row
from experiments.reproduce.paper001 import plans, variants
from experiments.reproduce.paper001.figures import NON_PRIVATE, Figure, Request
from experiments.reproduce.paper001.plans import Setting
from experiments.reproduce.paper001.runs import Curve, Run
from experiments.reproduce.paper001.stopping import WORDS
from experiments.reproduce.paper001.work import Work, described, overall_epsilon, runs_of, stopped

ROUNDED = "J is read from the paper's ε at this point, to the nearest whole step"
IMPLIED = "J is read from this very point: it checks the formula, not the training"


def figure(what: Figure, request: Request, ratings: Ratings) -> Work:
    """Trains every setting and compares it at the paper's points, early stopping beside it."""
    plan = plans.plan(what, request)
    trained = {setting: runs_of(what, setting, ratings.rating_range) for setting in plan.trained}

    def result(curves: Mapping[Run, Curve]) -> dict[str, Any]:
        its = {one: [curves[run] for run in trained[one]] for one in plan.settings}
        return {
            "rows": rows_of(what, its, request.compared),
            **described(what, plan, ratings, trained, curves),
            "beside": variants.summary(what, plan, ratings, trained, curves),
        }

    return Work(tuple(run for runs in trained.values() for run in runs), result)


def rows_of(what: Figure, curves: Mapping[Setting, Sequence[Curve]], compared: bool) -> list[Row]:
    """By axis, series and x. compared: with the paper's points."""
    points = what.plotted if compared else ()
    paper = {(point.axis, point.series, _place(point.x)): point.y for point in points}
    rows = [row for setting, its in curves.items() for row in _rows(what, setting, its, paper)]
    axes = list(what.axes)
    return sorted(
        rows, key=lambda row: (axes.index(row.axis), what.series.index(row.series), row.x)
    )


def _place(x: float) -> float:
    """What a plotted x stands for: an ε_i of two decimals, or a rank."""
    return round(x, 2) if x < 1 else float(round(x))


def _rows(
    what: Figure,
    setting: Setting,
    curves: Sequence[Curve],
    paper: Mapping[tuple[str, str, float], float],
) -> list[Row]:
    assert setting.x is not None
    where = {axis: paper.get((axis, setting.series, setting.x)) for axis in what.axes}
    if setting.rule is not None:
        return _ended(what, setting, curves, where.get("rmse"))
    rows = []
    if "rmse" in what.axes and curves:
        rows.append(
            row(
                setting.series,
                "rmse",
                "another rank" if setting.is_likely else "marker",
                setting.x,
                [curve.rmse[setting.num_steps - 1] for curve in curves],
                paper=where["rmse"],
                tolerance=None if setting.is_likely else comparison.TOLERANCE,
                step=setting.num_steps - 1,
                num_steps=setting.num_steps,
                note=f"{ROUNDED}; trained at rank {setting.rank}" if setting.is_likely else ROUNDED,
            )
        )
    if setting.is_likely:
        return rows
    if "overall_epsilon" in what.axes:
        whole = (
            what.x_name == "epsilon_i"
        )  # there the plotted J is whole, to what can be read from the plot
        steps = setting.num_steps if whole or setting.implied is None else setting.implied
        rows.append(
            row(
                setting.series,
                "overall_epsilon",
                "marker",
                setting.x,
                [overall_epsilon(setting.series, steps)],
                paper=where["overall_epsilon"],
                tolerance=comparison.EPSILON_TOLERANCE,
                num_steps=steps,
                note=ROUNDED if whole else IMPLIED,
            )
        )
    return rows + (stopped(setting, setting.x, curves, "patience", what.axes) if curves else [])


def _ended(
    what: Figure, setting: Setting, curves: Sequence[Curve], paper: float | None
) -> list[Row]:
    """A run that a rule ends; of one that it did not end, the last value."""
    assert setting.rule is not None
    assert setting.x is not None
    tolerance = comparison.NON_PRIVATE_TOLERANCE if setting.series == NON_PRIVATE else None
    rows = stopped(
        setting, setting.x, curves, setting.rule, what.axes, paper=paper, tolerance=tolerance
    )
    if rows or "rmse" not in what.axes:
        return rows
    return [
        row(
            setting.series,
            "rmse",
            setting.rule,
            setting.x,
            [curve.rmse[-1] for curve in curves],
            paper=paper,
            tolerance=tolerance,
            step=setting.num_steps - 1,
            num_steps=setting.num_steps,
            note=f"not {WORDS[setting.rule]}, within {setting.num_steps} steps",
        )
    ]
