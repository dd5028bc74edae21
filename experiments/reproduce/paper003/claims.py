"""What paper 003 says, statement by statement, held to the stored rows of its figures and to what
is built of it.

The paper gives numbers for a few errors; every other criterion is ours, beside the verdict. Nothing
is trained.
"""

from __future__ import annotations

from functools import partial

from experiments.reproduce import claims
from experiments.reproduce.catalogue import Stored
from experiments.reproduce.claims import Claim, Statement
from experiments.reproduce.paper003 import measurements
from experiments.reproduce.paper003.density import BY_PASSES, EPSILON, KEPT, LEMMA, PUBLIC, REFITTED
from experiments.reproduce.paper003.figures import (
    BASELINE,
    PER_USER,
    PUBLIC_USERS,
    S1,
    S2,
    STATISTICS,
    USER_STATISTICS,
)
from experiments.reproduce.paper003.measurements import CLOSE, CROWD_ITEMS, LITTLE, NEAR, USER_ITEMS
from experiments.reproduce.paper003.table import (
    DYNAMIC_EPSILONS,
    MOVIELENS,
    NETFLIX,
    RANK,
    SHORT,
    TEXT,
)


def judge(stored: Stored) -> list[Claim]:
    return claims.judge(stored, STATEMENTS)


_TRAINED, _HELD_OUT = "increase_train", "increase_test"
_INCREASE = (
    "mean increase of |prediction − rating| over the non-private baseline of 100 iterations, in"
    " stars"
)
_KEPT_BELOW = (
    f"{_INCREASE}: below {TEXT[NETFLIX, 'S1'].value:g} at every ε ≥ {TEXT[NETFLIX, 'S1'].epsilon:g}"
)
_PASSES = [f"(a) S1, {t} iterations" for t in SHORT if t >= 70]
_NEAR = f"{_INCREASE}: within {NEAR:g}, what the paper calls negligible, of"
_BEATS = (
    f"mean |prediction − rating| on ratings held out, predictions clipped: at least {LITTLE:.0%}"
    " below that of the global mean and that of item means whose Gaussian noise costs as much for"
    " a rating's value, on some data set at some whole price"
)
_DENSITY = (
    f"MovieLens-100K, a slice, d = {RANK}, ε = {EPSILON:g}: the largest |log p(V) − log p'(V)| over"
    " neighbours and responses, by the exact density with its Jacobian: at most ε"
)


def _errors(axis: str) -> tuple[Statement, ...]:
    """What the paper says of errors: on the ratings trained on, as there, or on held-out ones."""
    said, also = measurements.where_measured(axis), "" if axis == _TRAINED else " held out"
    s2, s3 = TEXT[NETFLIX, "S2"], TEXT[NETFLIX, "S3"]
    return (
        Statement(
            f"S1, Netflix{also}",
            "section 5, figure 7(a)",
            "S1 on Netflix: from ε = 0.15 on, the mean increase is below 0.03 after 70"
            f" iterations{said}.",
            f"{_KEPT_BELOW}, after 70 and 100 passes",
            partial(measurements.trusted_netflix, _PASSES, axis),
        ),
        Statement(
            f"S1, Netflix, with M{also}",
            "equation (6), where the regularisation has M",
            f"The same with V the exact minimiser of (6){said}.",
            f"{_KEPT_BELOW}, regularisation Mμ",
            partial(measurements.trusted_netflix, ["(a) S1, exact with Mμ"], axis),
        ),
        Statement(
            f"S1, MovieLens{also}",
            "section 5, figure 2",
            f"S1 on MovieLens: at ε = 0.05 it is very near the baseline after 40 iterations{said}.",
            f"{_NEAR} 0",
            partial(
                measurements.near_number, MOVIELENS, "(a) S1, 40 iterations", (0.05,), 0.0, axis
            ),
        ),
        Statement(
            f"S2, Netflix{also}",
            "section 5, figure 7(a)",
            f"S2 on Netflix: the mean increase is about {s2.value:g} at ε = {s2.epsilon:g}{said}.",
            f"{_NEAR} {s2.value:g}",
            partial(measurements.near_number, NETFLIX, "(a) S2", (s2.epsilon,), s2.value, axis),
        ),
        Statement(
            f"S2, MovieLens{also}",
            "section 5, figure 8(a)",
            f"S2 on MovieLens: the mean increase is near 0 at ε = {s2.epsilon:g}{said}.",
            f"{_NEAR} 0",
            partial(measurements.near_number, MOVIELENS, "(a) S2", (s2.epsilon,), 0.0, axis),
        ),
        Statement(
            f"S3, Netflix{also}",
            "section 5, figure 7(b)",
            f"S3 on Netflix: after 10,000 iterations it is below {s3.value:g} at ε ="
            f" {s3.epsilon:g}{said}.",
            f"{_INCREASE}: below {s3.value:g}",
            partial(measurements.dynamic_netflix, axis),
        ),
        Statement(
            f"S3, MovieLens{also}",
            "section 5, figure 6",
            "S3 on MovieLens: from ε = 0.05 on it cannot be told from the baseline after 10,000"
            f" iterations{said}.",
            f"{_NEAR} 0, at every ε",
            partial(measurements.near_number, MOVIELENS, "(b) S3", DYNAMIC_EPSILONS, 0.0, axis),
        ),
    )


_FALLS = (
    Statement(
        f"{words}, {scenario}",
        "section 5, figures 1 to 6",
        f"The error falls with {words}, {scenario}.",
        "mean |prediction − rating| on the ratings trained on, both data sets: falls from each"
        " place to the next",
        partial(measurements.error_falls, scenario, panel),
    )
    for words, panel in (("the number of iterations", "(a)"), ("ε", "(b)"))
    for scenario in ("S1", "S2", "S3")
)

_BESIDE = (
    Statement(
        f"useful: {series}",
        "ours",
        f"{words} it is worth having.",
        _BEATS,
        partial(measurements.beats_means, series),
    )
    for series, words in (
        (BASELINE, "Without any privacy"),
        (S1, "S1 as published (claimed, a rating's value) at its price ε:"),
        (PUBLIC_USERS, "S1 with public U (proved for real-number noise, a rating's value):"),
        (STATISTICS, "Noisy statistics with public U (proved, a rating's presence):"),
        (S2, "S2 as published (claimed, a rating's value) at its whole price T·ε:"),
        (PER_USER, "S2 with the whole message clipped (proved, a user), all iterations paid:"),
        (USER_STATISTICS, "One round of noisy statistics (proved, a user):"),
    )
)

STATEMENTS = (
    *_errors(_TRAINED),
    Statement(
        "S1, MovieLens, below",
        "section 5, figure 8",
        "S1 on MovieLens: the error is even a little below the baseline's.",
        f"{_INCREASE}: negative at some ε of the paper's",
        measurements.below_baseline,
    ),
    *_FALLS,
    Statement(
        "S2 as S1",
        "section 5, figures 3 and 4",
        "S2 is very close to S1: the noise of every iteration hardly matters.",
        f"{_INCREASE}, after 100 iterations: S2's within {CLOSE:g} of S1's at every ε, as the"
        " paper's own numbers are",
        measurements.s2_near_s1,
    ),
    Statement(
        "joining",
        "figures 9(a) and 10(a)",
        "With a larger probability of joining, the increase is smaller.",
        "S3 after 10,000 iterations, both data sets: the increase falls from each probability to"
        " the next",
        measurements.falls_with_joining,
    ),
    Statement(
        "leaving",
        "figures 9(b) and 10(b)",
        "The probability of leaving matters less than that of joining.",
        "S3 after 10,000 iterations, both data sets: the spread over leaving is less than half of"
        " that over joining",
        measurements.leaving_matters_less,
    ),
    *(
        Statement(
            f"what V teaches, {words}",
            "section 5, in our reading",
            f"The training error of S2 is low because of what V has learnt ({words}).",
            "below that of users who descend on their own ratings at a V that stays random (ε = 0),"
            " at every ε",
            partial(measurements.items_taught, figure),
        )
        for figure, words in (("003/fig7", "Netflix"), ("003/fig8", "MovieLens"))
    ),
    *_errors(_HELD_OUT),
    *_BESIDE,
    Statement(
        "theorem 1",
        "theorem 1",
        "With noise of density exp(−ε‖η‖/2Δ), V is ε-differentially private, U given and of norm 1"
        " at most.",
        f"{_DENSITY}; public random U",
        partial(measurements.within_epsilon, PUBLIC),
    ),
    Statement(
        "lemma 1",
        "lemma 1",
        "Laplace noise of scale 2Δ√d/ε in every coordinate does as well.",
        f"{_DENSITY}; public random U",
        partial(measurements.within_epsilon, LEMMA),
    ),
    Statement(
        "theorem 1, by passes",
        "equation (9)",
        "So it is where V is made by passes of gradient descent.",
        f"{_DENSITY}; public random U, 100 passes in a fixed order",
        partial(measurements.within_epsilon, BY_PASSES),
    ),
    Statement(
        "theorem 1, fitted U kept",
        "section 4.1",
        "So it is with a U that was fitted first, as the proof takes it: the same in both worlds.",
        f"{_DENSITY}; U fitted on the one world's ratings",
        partial(measurements.within_epsilon, KEPT),
    ),
    Statement(
        "theorem 1, as used",
        "section 4.1",
        "So it is as the procedure goes: U fitted on the ratings that it is to protect.",
        f"{_DENSITY}; U fitted in each world on its own ratings",
        partial(measurements.within_epsilon, REFITTED),
    ),
    Statement(
        "shares",
        "section 4.2, equation (12)",
        "The recommender, who draws H, learns nothing of use about the users' noise.",
        "given H the log-ratio of the sum of shares in two worlds that one rating sets apart stays"
        " within ε",
        measurements.shares_given_factor,
    ),
    Statement(
        "price",
        "section 4.2",
        "A run of noisy iterations costs ε.",
        "iterations times the ε of each",
        measurements.iterations_cost,
    ),
    Statement(
        "bytes down",
        "section 5",
        f"A user with {USER_ITEMS} items gets at most 12 KB from the recommender in an iteration.",
        "item factors, pads and pieces of τ̂, counted from the arrays; k and H of equation (12) are"
        " not in the paper's",
        partial(measurements.bytes_sent, "down", 12_000),
    ),
    Statement(
        "bytes up",
        "section 5",
        f"A user with {USER_ITEMS} items sends at most 5 KB to the third party in an iteration.",
        "counted from the arrays",
        partial(measurements.bytes_sent, "up", 5_000),
    ),
    Statement(
        "bytes of the third party",
        "section 5",
        f"For {CROWD_ITEMS:,} items the third party sends less than 3 MB in an iteration.",
        "counted from the arrays",
        partial(measurements.bytes_sent, "third party", 3_000_000 - 1),
    ),
)
