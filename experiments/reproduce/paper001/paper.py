"""Paper 001 for `dpmf reproduce`."""

from __future__ import annotations

from experiments.reproduce.paper import Paper, Programs
from experiments.reproduce.paper001 import listing, plans
from experiments.reproduce.paper001.figures import CATALOGUE


def _programs() -> Programs:
    from experiments.reproduce.paper001 import claims, page, programs, report, terminal

    return Programs(
        data=programs.data,
        run=programs.run,
        summary=programs.summary,
        files=report.files,
        render=terminal.render,
        judge=claims.judge_stored,
        page=page.page,
    )


PAPER = Paper(
    CATALOGUE,
    key="figures",
    claims_key="claims",
    judging="auditing the sensitivity",
    flags=("scale", "beside", "ranks", "series"),
    seeds=lambda scale: plans.SEEDS,  # a figure's plan says how many of them it takes
    programs=_programs,
    check=plans.requests,
    listing=listing.listing,
)
