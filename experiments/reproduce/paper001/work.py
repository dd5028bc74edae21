"""What a figure's program hands to the command: runs to train, and how their curves become the
result.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from accounting.gaussian import epsilon_closed_form, noise_multiplier_from_step, rho_from_step
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from experiments.reproduce.comparison import Row, row
from experiments.reproduce.page import describe
from experiments.reproduce.paper001 import plans
from experiments.reproduce.paper001.figures import NON_PRIVATE, Figure
from experiments.reproduce.paper001.plans import Plan, Setting
from experiments.reproduce.paper001.runs import Curve, Run
from experiments.reproduce.paper001.stopping import RULES, WORDS


class Work(NamedTuple):
    """runs: what must be trained; others may share them.
    result: (curves of all runs) -> what `report.summary` takes.
    """

    runs: tuple[Run, ...]
    result: Callable[[Mapping[Run, Curve]], dict[str, Any]]


def config(figure: Figure, setting: Setting, rating_range: tuple[float, float]) -> gaussian.Config:
    """The paper's settings, with what the setting varies."""
    private = setting.series != NON_PRIVATE
    values: dict[str, Any] = plans.SETTINGS | {
        "rank": setting.rank,
        "learning_rate": setting.learning_rate,
    }
    return gaussian.Config(
        **values,
        tau=figure.tau,
        rating_range=rating_range,
        noise_multiplier=(
            noise_multiplier_from_step(float(setting.series), plans.DELTA_STEP) if private else None
        ),
    )


def config_beside(
    figure: Figure, setting: Setting, rating_range: tuple[float, float]
) -> gaussian.Config:
    """Of a variant beside the paper's: its rank, learning rate and λ, and the noise multiplier that
    its price is by.

    The sound variants are centred by a public constant (by what is priced, where noisy means come
    first), residuals are clipped at a quarter of the declared range, and τ is its width: usual
    here, and chosen without the ratings.
    """
    published = config(figure, setting, rating_range)
    if setting.beside not in ("joint-noise", "public-items"):
        return published
    low, high = rating_range
    change = {"center": (low + high) / 2, "residual_clip": (high - low) / 4, "tau": None}
    return dataclasses.replace(published, noise_multiplier=_priced_multiplier(published), **change)


@functools.cache
def _priced_multiplier(published: gaussian.Config) -> float:
    """z as float32 draws and prices it, a digit above the config's: no variant may cost more."""
    z = gaussian.mechanism(published).guarantee(1).noise_multiplier
    assert z is not None
    return z


def runs_of(figure: Figure, setting: Setting, rating_range: tuple[float, float]) -> list[Run]:
    """A run for every seed."""
    return [_run(figure, setting, rating_range, seed) for seed in setting.seeds]


def _run(figure: Figure, setting: Setting, rating_range: tuple[float, float], seed: int) -> Run:
    settings = config_beside(figure, setting, rating_range)
    part = "all" if setting.beside is None else "held-out"
    variant = setting.beside or ("non-private" if setting.series == NON_PRIVATE else "published")
    return Run(variant, settings, seed, setting.num_steps, setting.series, part, setting.rule)


def overall_epsilon(series: str, num_steps: float) -> float:
    """Equation (9) of the paper at ε_i = series, for a number of steps that need not be whole."""
    rho = rho_from_step(float(series), plans.DELTA_STEP, 1) * num_steps
    return epsilon_closed_form(rho, plans.SETTINGS["delta"])


def stopped(
    setting: Setting,
    x: float | None,
    curves: Sequence[Curve],
    rule: str,
    axes: Iterable[str],
    **paper: Any,
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
        note += (
            f"; {len(curves) - len(steps)} of {len(curves)} seeds went on to step"
            f" {len(curves[0].loss)}"
        )
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
    figure: Figure,
    plan: Plan,
    ratings: Ratings,
    trained: Mapping[Setting, Sequence[Run]],
    curves: Mapping[Run, Curve],
) -> dict[str, Any]:
    """What every result has beside its rows: ratings, settings, prices, and what computed it.

    Args:
      trained: the runs of the plan's settings and of those beside them.
    """
    varied = {"n": "rank", "mu": "learning_rate"}.get(figure.x_name)
    used = [curves[run] for runs in trained.values() for run in runs]
    own = [
        curves[run] for setting, runs in trained.items() for run in runs if setting.beside is None
    ]
    steps = sum(len(curve.loss) for curve in own)
    return {
        "ratings": describe(ratings),
        "config": (
            {name: value for name, value in plans.SETTINGS.items() if name != varied}
            | {
                "tau": figure.tau,
                "delta_step": plans.DELTA_STEP,
                "rating_range": list(ratings.rating_range),
            }
        ),
        "settings": [
            priced(figure, setting, ratings, curves, trained.get(setting, ()))
            for setting in plan.settings
        ],
        "left_out": list(plan.left_out),
        "commits": sorted({commit for curve in used for commit in curve.commits}),
        "devices": sorted({device for curve in used for device in curve.devices}),
        "milliseconds_per_step": (
            1e3 * sum(curve.seconds for curve in own) / steps if steps else None
        ),
        "seconds": sum(curve.seconds for curve in used),
    }


def steps_paid(setting: Setting, runs: Sequence[Run], curves: Mapping[Run, Curve]) -> int:
    """J. Where a rule chose it, the most that a seed took."""
    if setting.rule is not None and runs:
        return max(len(curves[run].loss) - 1 for run in runs)
    return setting.num_steps


def priced(
    figure: Figure,
    setting: Setting,
    ratings: Ratings,
    curves: Mapping[Run, Curve],
    runs: Sequence[Run],
) -> dict[str, Any]:
    """A setting as JSON has it, with its guarantee."""
    steps = steps_paid(setting, runs, curves)
    run = _run(figure, setting, ratings.rating_range, 0)._replace(num_steps=steps)
    guarantee = run.guarantee(steps)
    return {
        "series": setting.series,
        "x": setting.x,
        "rank": setting.rank,
        "learning_rate": setting.learning_rate,
        "noise_multiplier": run.config.noise_multiplier,
        "steps": steps,
        "implied_steps": setting.implied,
        "rule": setting.rule,
        "seeds": list(setting.seeds),
        "variant": run.variant,
        "part": run.part,
        "headline": guarantee.headline,
        "guarantee": guarantee,
    }
