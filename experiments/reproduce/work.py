"""What a figure's program hands to the command: runs to train, and how their curves become the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from accounting.gaussian import epsilon_closed_form, noise_multiplier_from_step, rho_from_step
from dpmf_jax import gaussian
from dpmf_jax.ratings import Ratings
from experiments.reproduce import plans
from experiments.reproduce.comparison import Row, row
from experiments.reproduce.figures import NON_PRIVATE, Figure
from experiments.reproduce.plans import Plan, Setting
from experiments.reproduce.runs import Curve, Run
from experiments.reproduce.stopping import RULES, WORDS


class Work(NamedTuple):
    """runs: what must be trained; others may share them. result: of all their curves, what `report` writes."""

    runs: tuple[Run, ...]
    result: Callable[[Mapping[Run, Curve]], dict[str, Any]]


def config(figure: Figure, setting: Setting, rating_range: tuple[float, float]) -> gaussian.Config:
    """The paper's settings, with what the setting varies."""
    private = setting.series != NON_PRIVATE
    values: dict[str, Any] = plans.SETTINGS | {"rank": setting.rank, "learning_rate": setting.learning_rate}
    return gaussian.Config(
        **values,
        tau=figure.tau,
        rating_range=rating_range,
        noise_multiplier=noise_multiplier_from_step(float(setting.series), plans.DELTA_STEP) if private else None,
    )


def runs_of(figure: Figure, setting: Setting, rating_range: tuple[float, float]) -> list[Run]:
    """A run for every seed."""
    variant = "non-private" if setting.series == NON_PRIVATE else "published"
    made = config(figure, setting, rating_range)
    return [Run(variant, made, seed, setting.num_steps, setting.series, rule=setting.rule) for seed in setting.seeds]


def overall_epsilon(series: str, num_steps: float) -> float:
    """Equation (9) of the paper at ε_i = series, for a number of steps that need not be whole."""
    rho = rho_from_step(float(series), plans.DELTA_STEP, 1) * num_steps
    return epsilon_closed_form(rho, plans.SETTINGS["delta"])


def stopped(
    setting: Setting, x: float | None, curves: Sequence[Curve], rule: str, axes: Iterable[str], **paper: Any
) -> list[Row]:
    """Where a rule ends the runs of a setting: a row for each axis; none if it ended no run.

    Args:
      x: on the figure's axis; None is the step itself.
      paper: the paper's value and the tolerance, where there is one (see `comparison.row`).
    """
    steps = [step for curve in curves if (step := RULES[rule](curve.rmse)) is not None]
    if not steps:
        return []
    ended = [curve for curve in curves if RULES[rule](curve.rmse) is not None]
    mean = sum(steps) / len(steps)
    note = WORDS[rule]
    if len(steps) < len(curves):
        note += f"; {len(curves) - len(steps)} of {len(curves)} seeds went on to step {len(curves[0].loss)}"
    values = {"rmse": [float(curve.rmse[step]) for curve, step in zip(ended, steps, strict=True)]}
    if setting.series != NON_PRIVATE:
        values["overall_epsilon"] = [overall_epsilon(setting.series, step) for step in steps]
    place = mean if x is None else x
    return [
        row(
            setting.series,
            axis,
            rule,
            place,
            values[axis],
            step=mean if axis == "rmse" else None,
            num_steps=mean,
            note=note,
            **(paper if axis == "rmse" else {}),
        )
        for axis in axes
        if axis in values
    ]


def described(
    figure: Figure, plan: Plan, ratings: Ratings, trained: Mapping[Setting, Sequence[Run]], curves: Mapping[Run, Curve]
) -> dict[str, Any]:
    """What every result has beside its rows: ratings, settings, prices, and what computed it."""
    varied = {"n": "rank", "mu": "learning_rate"}.get(figure.x_name)
    used = [curves[run] for runs in trained.values() for run in runs]
    steps = sum(len(curve.loss) for curve in used)
    return {
        "ratings": {"name": ratings.name, "count": ratings.num_ratings, "sha256": ratings.sha256()},
        "config": {name: value for name, value in plans.SETTINGS.items() if name != varied}
        | {"tau": figure.tau, "delta_step": plans.DELTA_STEP, "rating_range": list(ratings.rating_range)},
        "settings": [_priced(figure, setting, ratings, curves, trained.get(setting, ())) for setting in plan.settings],
        "left_out": list(plan.left_out),
        "commits": sorted({commit for curve in used for commit in curve.commits}),
        "devices": sorted({device for curve in used for device in curve.devices}),
        "milliseconds_per_step": 1e3 * sum(curve.seconds for curve in used) / steps if steps else None,
    }


def _priced(
    figure: Figure, setting: Setting, ratings: Ratings, curves: Mapping[Run, Curve], runs: Sequence[Run]
) -> dict[str, Any]:
    """A setting as JSON has it, with its guarantee. Where a rule chose the steps, the most that a seed took."""
    steps = setting.num_steps
    if setting.rule is not None and runs:
        steps = max(len(curves[run].loss) - 1 for run in runs)
    made = config(figure, setting, ratings.rating_range)
    variant = "non-private" if setting.series == NON_PRIVATE else "published"
    guarantee = Run(variant, made, 0, steps, setting.series).mechanism.guarantee(steps).with_seed()
    return {
        "series": setting.series,
        "x": setting.x,
        "rank": setting.rank,
        "learning_rate": setting.learning_rate,
        "noise_multiplier": made.noise_multiplier,
        "steps": steps,
        "implied_steps": setting.implied,
        "rule": setting.rule,
        "seeds": list(setting.seeds),
        "headline": guarantee.headline,
        "guarantee": guarantee,
    }
