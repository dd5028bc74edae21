"""Learning curves of paper 001: training RMSE over steps, one curve a series (ε_i), the mean over
the seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpmf_jax.data.ratings import Ratings
from experiments.reproduce import comparison
from experiments.reproduce.paper001 import plans, variants
from experiments.reproduce.paper001.figures import Figure, Request
from experiments.reproduce.paper001.runs import Curve, Run
from experiments.reproduce.paper001.work import Work, described, runs_of, stopped


def figure(what: Figure, request: Request, ratings: Ratings) -> Work:
    """Trains every series for as many steps as the paper plots, and compares it at the paper's
    points.

    Beside them, informative: where early stopping by patience would have ended each, and what it
    would have cost.
    """
    plan = plans.plan(what, request)
    trained = {setting: runs_of(what, setting, ratings.rating_range) for setting in plan.trained}

    def result(curves: Mapping[Run, Curve]) -> dict[str, Any]:
        own = {setting: [curves[run] for run in trained[setting]] for setting in plan.settings}
        rmse = {setting.series: [curve.rmse for curve in seeds] for setting, seeds in own.items()}
        rows = comparison.compare(what.plotted, rmse, compared=request.compared)
        for setting, seeds in own.items():
            rows += stopped(setting, None, seeds, "patience", ("rmse", "overall_epsilon"))
        return {
            "rows": rows,
            **described(what, plan, ratings, trained, curves),
            "beside": variants.summary(what, plan, ratings, trained, curves),
        }

    return Work(tuple(run for runs in trained.values() for run in runs), result)
