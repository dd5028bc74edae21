"""Paper 004 for `dpmf reproduce`."""

from __future__ import annotations

from experiments.reproduce.paper import Paper, Programs
from experiments.reproduce.paper004.table import CATALOGUE, SEEDS


def _programs() -> Programs:
    from experiments.reproduce import page as shared
    from experiments.reproduce.paper004 import claims, figures, page, report, runs

    return Programs(
        data=lambda ratings, asked: runs.Data(ratings, num_devices=asked.num_devices),
        run=figures.run,
        summary=shared.summary,
        files=report.files,
        render=report.render,
        judge=lambda stored, data_dir: (claims.judge(stored), {}),
        page=page.page,
    )


PAPER = Paper.of(
    CATALOGUE,
    "local",
    judging="enumerating the randomiser",
    seeds=lambda scale: SEEDS,
    programs=_programs,
)
