"""`dpmf reproduce` for paper 003."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.reproduce.paper003.table import CATALOGUE, SEEDS
from experiments.reproduce.run import Paper

if TYPE_CHECKING:
    from experiments.reproduce.papers import Programs


def _programs() -> Programs:
    from experiments.reproduce import papers
    from experiments.reproduce.paper003 import (
        claims as objective_claims,
    )
    from experiments.reproduce.paper003 import (
        figures as objective_figures,
    )
    from experiments.reproduce.paper003 import (
        page as objective_page,
    )
    from experiments.reproduce.paper003 import (
        report as objective_report,
    )
    from experiments.reproduce.paper003 import (
        runs as objective_runs,
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
