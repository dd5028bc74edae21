"""Paper 004's table of claims on paper, and the results page of the repository: both made from
stored rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.reproduce import papers
from experiments.reproduce.catalogue import Stored
from experiments.reproduce.paper004 import report as local_report
from experiments.reproduce.paper004.table import CATALOGUE, FIGURES

STEM = CATALOGUE.claims_stem
summary = partial(papers.claims_summary, CATALOGUE)


def page(told: Mapping[str, Any], found: Stored) -> str:
    """Verdict and picture first, then what does not hold, the figures, every statement."""
    counts = told["counts"]
    rows = {row["name"]: row for row in told["rows"]}
    lines = ["# Paper 004: local differential privacy, one coordinate and one bit", ""]
    first = (
        "The privacy holds: a report costs what the paper says, by exact enumeration, if there are"
        " k rounds and not k + 1."
    )
    second = {
        "reproduced": "At these sizes it is of use.",
        "not reproduced": (
            "The use does not, at these sizes: no private run beats both the global mean and what "
            "users can fit alone, without sending anything."
        ),
        "not testable here": "Whether it is of use has not been measured yet.",
    }[rows["useful"]["verdict"]]
    lines += [
        (
            f"**{first} {second} Of {sum(counts.values())} readings of what it says,"
            f" {counts['reproduced']} hold here, {counts['not reproduced']} do not, and"
            f" {counts['not testable here']} could not be tested.**"
        ),
        "",
    ]
    opening = next((name for name, one in found.items() if one["figure"] == "004/fig9"), None)
    if opening:
        lines += [f"![{FIGURES['004/fig9'].what}](004/{opening}.svg)", ""]
    lines += [
        (
            "Lines are ours. RMSE is the error in stars on ratings that were held out; thin lines"
            " are simple controls. *Users alone* send nothing (ε = 0) and fit their own ratings to"
            " a random V; *fair coins* are the same runs with reports that say nothing about"
            " anybody. A private model has learnt only where it is below both."
        ),
        "",
    ]
    return "\n".join([*lines, *papers.rest_of_page(CATALOGUE, told, found, local_report.section)])
