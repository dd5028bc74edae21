"""The results page of paper 004, from its stored rows and its table of claims."""

from __future__ import annotations

from experiments.reproduce import page as shared
from experiments.reproduce.catalogue import Record, Stored
from experiments.reproduce.paper004 import report
from experiments.reproduce.paper004.table import CATALOGUE, FIGURES


def page(record: Record, stored: Stored) -> str:
    """Verdict and picture first, then what does not hold, every statement, the figures."""
    (useful,) = (row["verdict"] for row in record["rows"] if row["name"] == "useful")
    use = {
        "reproduced": "At these sizes it is of use.",
        "not reproduced": (
            "The use does not, at these sizes: no private run beats both the global mean and what "
            "users can fit alone, without sending anything."
        ),
        "not testable here": "Whether it is of use has not been measured yet.",
    }[useful]
    first = FIGURES["004/fig9"]
    opening = next((key for key, one in stored.items() if one["figure"] == first.name), None)
    return shared.results(
        record,
        heading="local differential privacy, one coordinate and one bit",
        verdict=(
            "The privacy holds: a report costs what the paper says, by exact enumeration, if there"
            f" are k rounds and not k + 1. {use}"
        ),
        picture=f"![{first.what}](004/{opening}.svg)" if opening else "",
        introduction=(
            "Lines are ours. RMSE is the error in stars on ratings that were held out; thin lines"
            " are simple controls. *Users alone* send nothing (ε = 0) and fit their own ratings to"
            " a random V; *fair coins* are the same runs with reports that say nothing about"
            " anybody. A private model has learnt only where it is below both.",
            shared.UNPRICED,
        ),
        sections=shared.every_section(CATALOGUE, record, stored, report.section),
    )
