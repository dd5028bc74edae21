"""`dpmf reproduce` for paper 004."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.reproduce.local_table import CATALOGUE, SEEDS
from experiments.reproduce_paper import Paper

if TYPE_CHECKING:
    from experiments.reproduce.papers import Programs


def _programs() -> Programs:
    from experiments.reproduce import local_claims, local_figures, local_page, local_report, local_runs, papers

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
