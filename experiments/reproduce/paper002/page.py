"""The results page of paper 002, from its stored rows and its table of claims."""

from __future__ import annotations

from experiments.reproduce import page as shared
from experiments.reproduce.catalogue import Record, Stored
from experiments.reproduce.paper002 import report
from experiments.reproduce.paper002.table import CATALOGUE, FIGURES, MOVIELENS

OPENING = FIGURES["002/fig3"].stem_on(MOVIELENS)
PRIVACY = {
    "reproduced": "A threshold on the loss was not seen to give anything away.",
    "not reproduced": (
        "There is no differential privacy in a threshold on the loss: given its hashes, start and"
        " order, the result is a function of the ratings."
    ),
    "not testable here": "Its privacy has not been tested.",
}


def page(record: Record, stored: Stored) -> str:
    """Verdict and picture first, then what does not hold, every statement, the figures."""
    (privacy,) = (row["verdict"] for row in record["rows"] if row["name"] == "privacy")
    opening = OPENING if OPENING in stored else next(iter(stored), None)
    picture = ""
    if opening is not None:
        picture = f"![{FIGURES[stored[opening]['figure']].what}](002/{opening}.svg)"
    return shared.results(
        record,
        heading="matrix factorisation in a count sketch",
        verdict=PRIVACY[privacy],
        picture=picture,
        introduction=(
            "Lines are ours. *Regular* stores every vector, *hashed* and *sketched* share a table"
            " that is γ times smaller; *means alone* is the global, user and item means that all of"
            " them start from. ε is a threshold: a rating whose squared error is above it is"
            " skipped. It is no privacy parameter, and no run of the paper's figures has a"
            " guarantee (status none). What can be proved is compared at equal ε in 002/budget.",
            "The paper's figures were not digitised: only the numbers of its text are compared."
            " EachMovie, on which it draws figure 1, was withdrawn by its publisher; here"
            " everything is MovieLens-1M. The divergence is an attack's yardstick: it compares"
            " averages, and bounds nothing.",
            shared.UNPRICED,
        ),
        sections=shared.every_section(CATALOGUE, record, stored, report.section),
    )
