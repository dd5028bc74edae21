"""`dpmf reproduce` for paper 002."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from experiments.reproduce.paper002.table import CATALOGUE, SEEDS, Scale
from experiments.reproduce.run import Paper

if TYPE_CHECKING:
    from experiments.reproduce.papers import Programs


def _programs(scale: Scale = "small") -> Programs:
    from experiments.reproduce import papers
    from experiments.reproduce.paper002 import (
        claims as sketch_claims,
    )
    from experiments.reproduce.paper002 import (
        figures as sketch_figures,
    )
    from experiments.reproduce.paper002 import (
        page as sketch_page,
    )
    from experiments.reproduce.paper002 import (
        report as sketch_report,
    )
    from experiments.reproduce.paper002 import (
        runs as sketch_runs,
    )

    return papers.Programs(
        data=sketch_runs.Data,
        run=partial(sketch_figures.run, scale=scale),
        summary=sketch_report.summary,
        files=sketch_report.files,
        render=sketch_report.render,
        judge=sketch_claims.judge,
        page=sketch_page.page,
    )


def _at(scale: Scale) -> Paper:
    return PAPER._replace(seeds=lambda: SEEDS[scale], programs=partial(_programs, scale))


PAPER = Paper("sketch", CATALOGUE, "training on neighbours", lambda: SEEDS["small"], _programs, _at)
