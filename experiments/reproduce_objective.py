"""`dpmf reproduce` for paper 003."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.reproduce.objective_table import CATALOGUE, SEEDS
from experiments.reproduce_paper import Paper

if TYPE_CHECKING:
    from experiments.reproduce.papers import Programs


def _programs() -> Programs:
    from experiments.reproduce import (
        objective_claims,
        objective_figures,
        objective_page,
        objective_report,
        objective_runs,
        papers,
    )

    return papers.Programs(
        data=objective_runs.Data,
        run=objective_figures.run,
        summary=objective_report.summary,
        files=objective_report.files,
        render=objective_report.render,
        judge=objective_claims.judge,
        page=objective_page.page,
    )


PAPER = Paper("objective", CATALOGUE, "counting bytes and shares", lambda: SEEDS, _programs)
