"""`dpmf reproduce` for paper 004."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.reproduce.paper004.table import CATALOGUE, SEEDS
from experiments.reproduce.run import Paper

if TYPE_CHECKING:
    from experiments.reproduce.papers import Programs


def _programs() -> Programs:
    from experiments.reproduce import papers
    from experiments.reproduce.paper004 import (
        claims as local_claims,
    )
    from experiments.reproduce.paper004 import (
        figures as local_figures,
    )
    from experiments.reproduce.paper004 import (
        page as local_page,
    )
    from experiments.reproduce.paper004 import (
        report as local_report,
    )
    from experiments.reproduce.paper004 import (
        runs as local_runs,
    )

    def run(figure, data, store, seeds, say):
        bench = None if data is None else papers.Bench(data, store, seeds, say)
        return local_figures.run(figure, bench, store, say)

    return papers.Programs(
        data=local_runs.Data,
        run=run,
        summary=local_report.summary,
        files=local_report.files,
        render=local_report.render,
        judge=local_claims.judge,
        page=local_page.page,
    )


PAPER = Paper("local", CATALOGUE, "enumerating the randomiser", lambda: SEEDS, _programs)
