"""How figures of paper 001 are made: what they need is trained together, then each is compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dpmf_jax.data.ratings import Ratings
from experiments.cli import console
from experiments.reproduce.paper import Asked, Bench
from experiments.reproduce.paper001 import curves, plans, report, settings, times, training
from experiments.reproduce.paper001.figures import Figure, Request
from experiments.reproduce.paper001.runs import Curve, Run
from experiments.reproduce.paper001.work import Work
from experiments.reproduce.pictures import NOTICE

PROGRAMS: dict[str, Callable[[Figure, Request, Ratings], Work]] = {
    "curves": curves.figure,
    "settings": settings.figure,
    "times": times.figure,
}


def work_of(figure: Figure, request: Request, ratings: Ratings) -> Work:
    """What has to be trained for a figure, and how the outcome is compared."""
    return PROGRAMS[figure.program](figure, request, ratings)


class Data(NamedTuple):
    """What figures on the same ratings share. curves: of all their runs."""

    work: Mapping[Figure, Work]
    curves: Mapping[Run, Curve]
    compared: bool


def data(ratings: Ratings, asked: Asked) -> Data:
    """Trains what the figures on these ratings need, each run once."""
    scale = asked.command.scale or ("small" if _on_cpu() else "full")
    wanted = plans.requests(asked.chosen, asked.command, scale=scale, num_devices=asked.num_devices)
    wanted = {figure: wanted[figure] for figure in asked.figures}
    planned = {figure: plans.plan(figure, request) for figure, request in wanted.items()}
    names = " ".join(figure.name for figure in wanted)
    everything = [setting for plan in planned.values() for setting in plan.trained]
    estimate = plans.minutes(everything, asked.num_devices)
    asked.say(
        f"{names} ({NOTICE})\nall of it: {_amount(everything)}, about {estimate:.0f} minutes on"
        " a CPU"
    )
    for figure, plan in planned.items():
        if plan.left_out:
            asked.say(f"{figure.name}: {report.left_out({'left_out': plan.left_out})}")
        if plan.not_beside:
            asked.say(f"{figure.name}: {plan.not_beside}")
    compared = all(ratings.name == figure.paper_data for figure in wanted)
    work = {
        figure: work_of(
            figure, dataclasses.replace(request, compared=compared, store=asked.store), ratings
        )
        for figure, request in wanted.items()
    }
    trained = (s for figure, one in work.items() if one.runs for s in planned[figure].trained)
    total = sum(plans.work(trained).values())
    with console.progress(names, total, every=20.0) as bar:
        by_run = training.train_all(
            [run for one in work.values() for run in one.runs],
            ratings,
            asked.store,
            num_devices=asked.num_devices,
            chunk_steps=training.CHUNK_STEPS if _on_cpu() else training.ACCELERATOR_CHUNK_STEPS,
            report=_report_on(bar, total),
        )
    return Data(work, by_run, compared)


def run(figure: Figure, bench: Bench) -> tuple[dict[str, Any], bool]:
    """The result, and whether the ratings are the paper's."""
    shared: Data = bench.data
    return shared.work[figure].result(shared.curves), shared.compared


def summary(
    figure: Figure,
    outcome: tuple[dict[str, Any], bool],
    ratings: Ratings,
    *,
    command: str,
    commit: str,
    device: str,
) -> dict[str, Any]:
    """The record; commits and devices are those that were kept with its runs."""
    del ratings, commit, device
    result, compared = outcome
    return report.summary(figure, result, command=command, compared=compared)


def _on_cpu() -> bool:
    import jax

    return jax.default_backend() == "cpu"


def _amount(some: Sequence[plans.Setting]) -> str:
    steps = plans.work(some)
    number = "1 run" if len(steps) == 1 else f"{len(steps)} runs"
    return f"{number}, {sum(steps.values()):,} steps"


def _report_on(bar: Callable[..., None], total: int) -> Callable[[training.Progress], None]:
    def report_progress(now: training.Progress) -> None:
        left = "?" if now.minutes_left is None else f"{now.minutes_left:.1f} min"
        # a rule ends a run when it does, so the total is an estimate
        more = {} if now.total == total else {"of": f"about {now.total}"}
        bar(now.done, **more, run=now.run, rmse=now.rmse, left=left)

    return report_progress
