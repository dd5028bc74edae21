"""The results page of paper 002, from its stored rows and its table of claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.reproduce import papers
from experiments.reproduce.catalogue import Stored
from experiments.reproduce.paper002 import report as sketch_report
from experiments.reproduce.paper002.table import CATALOGUE, FIGURES, MOVIELENS

OPENING = FIGURES["002/fig3"].stem_on(MOVIELENS)


def page(told: Mapping[str, Any], found: Stored) -> str:
    """Verdict and picture first, then what does not hold, every statement, the figures."""
    counts = told["counts"]
    lines = ["# Paper 002: matrix factorisation in a count sketch", ""]
    lines += [
        (
            f"**{_privacy(told)} Of {sum(counts.values())} readings of what it says,"
            f" {counts['reproduced']} hold here, {counts['not reproduced']} do not, and"
            f" {counts['not testable here']} could not be tested.**"
        ),
        "",
    ]
    opening = OPENING if OPENING in found else next(iter(found), None)
    if opening:
        lines += [f"![{FIGURES[found[opening]['figure']].what}](002/{opening}.svg)", ""]
    lines += [
        (
            "Lines are ours. *Regular* stores every vector, *hashed* and *sketched* share a table"
            " that is γ times smaller; *means alone* is the global, user and item means that all of"
            " them start from. ε is a threshold: a rating whose squared error is above it is"
            " skipped. It is no privacy parameter, and no run of the paper's figures has a"
            " guarantee (status none). What can be proved is compared at equal ε in 002/budget."
        ),
        "",
        (
            "The paper's figures were not digitised: only the numbers of its text are compared."
            " EachMovie, on which it draws figure 1, was withdrawn by its publisher; here"
            " everything is MovieLens-1M. The divergence is an attack's yardstick: it compares"
            " averages, and bounds nothing."
        ),
        "",
    ]
    return "\n".join([*lines, *papers.rest_of_page(CATALOGUE, told, found, sketch_report.section)])


def _privacy(told: Mapping[str, Any]) -> str:
    """In a sentence, from the verdict."""
    (verdict,) = (row["verdict"] for row in told["rows"] if row["name"] == "privacy")
    return {
        "reproduced": "A threshold on the loss was not seen to give anything away.",
        "not reproduced": (
            "There is no differential privacy in a threshold on the loss: given its hashes, start"
            " and order, the result is a function of the ratings."
        ),
        "not testable here": "Its privacy has not been tested.",
    }[verdict]
