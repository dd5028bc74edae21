"""What of paper 003 can be reproduced, its parameters, and the numbers in its text; neither NumPy
nor jax is needed.

The paper's figures are not digitised: what its text says in numbers is in `TEXT`, and columns for a
paper's value are empty elsewhere. Its Netflix slice, 191,668 users and 100 movies drawn at random,
cannot be had; `netflix-52` stands in.
"""

from __future__ import annotations

from typing import NamedTuple

from experiments.reproduce.catalogue import Catalogue, Figure

NETFLIX, MOVIELENS = "netflix-52", "ml-100k"
PAPER_NETFLIX = (191_668, 100)  # users, movies
RANK, REGULARIZATION, LEARNING_RATE = 50, 0.001, 2**-5  # d, λ = μ, γ
JOIN, LEAVE = 0.005, 0.01
AT_MOST = {NETFLIX: 1000, MOVIELENS: 100}
SHORT = (
    10,
    20,
    40,
    70,
    100,
)  # iterations of the baseline, of S1 and of S2 at which errors are measured
LONG = (500, 1000, 2000, 5000, 10_000)  # of S3
EPSILONS = (0.05, 0.1, 0.15, 0.2, 0.4, 0.8)
WIDE = (3.2, 12.8, 51.2, 204.8)  # beyond the paper's, of S1: where its noise becomes small
DYNAMIC_EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8)  # of S3
ALONG_EPSILON = 0.1  # of panels (a) over iterations
DYNAMIC_ALONG_EPSILON = {NETFLIX: 0.8, MOVIELENS: 0.1}
JOINS, JOINS_LEAVE = (0.005, 0.01, 0.015, 0.02), 0.01
LEAVES, LEAVES_JOIN = (0.005, 0.01, 0.02), 0.01
TOTALS = (
    1.5,
    5.0,
    15.0,
    80.0,
)  # whole prices ε; 15 and 80 are what 100 iterations at 0.15 and 0.8 add up to
DELTA = 1e-5
SEEDS = (0, 1, 2)
LONG_SEEDS = {NETFLIX: 1, MOVIELENS: 3}  # of S3, whose runs are long: so many of the seeds
THRESHOLDS = tuple(round(0.1 * tenth, 1) for tenth in range(1, 31))  # of the stored CDF, in stars


class Said(NamedTuple):
    """A number in the paper's text.

    value: mean increase of the error, in stars.
    epsilon: at which it is said.
    """

    value: float
    epsilon: float


TEXT = {
    (NETFLIX, "S1"): Said(0.03, 0.15),  # below, from 70 iterations on
    (NETFLIX, "S2"): Said(0.14, 0.15),  # around
    (NETFLIX, "S3"): Said(0.1, 0.8),  # below
}

_CDF, _INCREASE = "CDF of |prediction − rating|", "mean increase of the error"


_RUN = {
    NETFLIX: 1.6,
    MOVIELENS: 0.25,
}  # minutes of one run of S3 where two are trained side by side
_REST = {
    NETFLIX: 4.0,
    MOVIELENS: 0.7,
}  # of a figure's other runs, those of the figures before it apart


def _pair(
    first: int, what: str, x_name: str, y_name: str, *, long: int = 0, log: bool = False
) -> list[Figure]:
    """The figure on Netflix and that on MovieLens behind it.

    x_name: of panels (a) | (b).
    long: new settings of S3.
    """
    return [
        Figure(
            f"003/fig{first + place}",
            what,
            x_name,
            y_name,
            (data,),
            (log, False),
            long * LONG_SEEDS[data] * _RUN[data] + (_REST[data] if log or not long else 0),
        )
        for place, data in enumerate((NETFLIX, MOVIELENS))
    ]


_CROWDS = {(join, JOINS_LEAVE) for join in JOINS} | {(LEAVES_JOIN, leave) for leave in LEAVES}
CATALOGUE = Catalogue.of(
    "003",
    "003, IJCAI 2015",
    (
        *_pair(1, f"S1, trusted recommender: {_CDF}", "iterations | ε", _CDF),
        *_pair(3, f"S2, untrusted recommender: {_CDF}", "iterations | ε", _CDF),
        *_pair(
            5,
            f"S3, users join and leave: {_CDF}",
            "iterations | ε",
            _CDF,
            long=len(DYNAMIC_EPSILONS),
        ),
        *_pair(
            7,
            "S1, S2 (a) and S3 (b): mean increase of the error over ε",
            "ε | ε",
            _INCREASE,
            long=1,
            log=True,
        ),
        *_pair(
            9,
            "S3, probabilities of joining (a) and leaving (b)",
            "joining | leaving",
            _INCREASE,
            long=len(_CROWDS) - 1,
        ),
        Figure(
            "003/sound",
            "held-out error over the whole price, published and sound",
            "total ε",
            "mean error",
            (NETFLIX, MOVIELENS),
            (True, False),
            3,
        ),
        Figure(
            "003/theorem1",
            "log-ratios of the exact density of V over ε, neighbours that one rating's value sets"
            " apart",
            "neighbour",
            "log-ratio over ε",
            (MOVIELENS,),
            (False, True),
            2,
        ),
    ),
)
FIGURES = CATALOGUE.figures
