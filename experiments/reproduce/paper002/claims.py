"""What paper 002 says, statement by statement, held to the stored rows of its figures and to its
mechanism.

The paper gives a number for few of them; every other criterion is ours, beside the verdict. Nothing
of size is trained.
"""

from __future__ import annotations

from functools import partial

from experiments.reproduce import claims
from experiments.reproduce.catalogue import Stored
from experiments.reproduce.claims import Claim, Statement
from experiments.reproduce.paper002 import measurements
from experiments.reproduce.paper002.measurements import (
    AROUND,
    CLOSE,
    DENSE,
    LITTLE,
    LITTLE_ERROR,
    MUCH,
    SKETCHES,
)
from experiments.reproduce.paper002.neighbours import NEIGHBOUR_EPOCHS, same_tables
from experiments.reproduce.paper002.table import FIG1_GAIN, FIG1_RANK, GAINS, RANKS, TEXT


def judge(stored: Stored) -> list[Claim]:
    return claims.judge(stored, STATEMENTS)


_FIG1 = f"MovieLens-1M in place of EachMovie, d = {FIG1_RANK}, γ = {FIG1_GAIN:g}, η by validation"
_FILTERS = {"kl": "the paper's filter", "kl_same": "one filter for both sides"}
_BUDGET = "MovieLens-100K, equal ε, δ and unit (a rating's presence), held-out RMSE"
_KL = "divergence (19) of errors on ratings trained on and held out"
_TENTH = TEXT["top users' divergence"] * AROUND
_STEADY = "every (d, γ): no step against it of more than"


def _divergences() -> tuple[Statement, ...]:
    """Each statement on the divergence, under the paper's filter and under one for both sides."""
    statements = []
    for axis, words in _FILTERS.items():
        statements += [
            Statement(
                f"divergence over ε, {words}",
                "section 5.4, figure 4",
                f"The divergence grows with the threshold ε ({words}).",
                f"{_KL}; {_STEADY} {LITTLE:.0%}, and higher without a threshold than at ε = 2",
                partial(measurements.divergence_grows, axis),
            ),
            Statement(
                f"divergence below regular's, {words}",
                "section 5.4, figure 4",
                f"For most settings regular factorisation has the higher divergence ({words}).",
                f"{_KL}, regular of the same d without a threshold: higher by more than"
                f" {LITTLE:.0%} at more than half of all (d, γ, ε)",
                partial(measurements.below_regular, axis),
            ),
            *(
                Statement(
                    f"compact in {over}, {words}",
                    "section 5.4, figure 4",
                    f"Compact models leak less: the divergence is lower with {change} ({words}).",
                    f"{_KL}: lower by more than {LITTLE:.0%} at {over} = {low:g} than at {high:g},"
                    " at every ε",
                    partial(measurements.compact_leaks_less, over, axis),
                )
                for over, change, low, high in (
                    ("γ", "a larger γ", GAINS[-1], GAINS[0]),
                    ("d", "a smaller d", RANKS[0], RANKS[-1]),
                )
            ),
            Statement(
                f"top users' divergence, {words}",
                "section 5.4",
                "The divergence of users with many ratings is an order of magnitude smaller"
                f" ({words}).",
                f"{_KL}, median over all (d, γ, ε) of top users' over everyone's: at most"
                f" {_TENTH:.2f}, where the nearest power of ten is a tenth",
                partial(measurements.top_users_divergence, axis),
            ),
        ]
    return tuple(statements)


STATEMENTS = (
    Statement(
        "self-regularisation",
        "sections 4.2 and 5.2, figure 1",
        "Without regularisation (λ = 0) the sketch has a lower error than regular and hashed"
        " factorisation.",
        f"{_FIG1}: test RMSE at λ = 0 lower by more than {LITTLE_ERROR:.1%}",
        measurements.without_regularization,
    ),
    Statement(
        "degradation",
        "section 5.2, figure 1",
        "Below the best λ the sketch degrades less than the other two.",
        f"{_FIG1}: test RMSE at λ = 0 relative to the lowest over λ; less by more than"
        f" {LITTLE_ERROR:.1%}",
        measurements.degradation,
    ),
    Statement(
        "best λ, figure 1",
        "section 5.2, figure 1",
        f"The best λ is around {TEXT['best λ, figure 1']:g} for all three, and the error grows"
        " beyond.",
        f"{_FIG1}: lowest validation RMSE within a factor of √10 of {TEXT['best λ, figure 1']:g};"
        f" test RMSE falls at no step beyond by more than {LITTLE_ERROR:.1%}, and is higher at"
        " the end",
        measurements.optimum,
    ),
    Statement(
        "best λ over γ",
        "section 5.2, figure 2",
        "The best λ falls as γ grows, at every d.",
        f"lowest validation RMSE; never higher from one γ to the next, and lower at {GAINS[-1]:g}"
        f" than at {GAINS[0]:g}",
        measurements.falls_with_gain,
    ),
    Statement(
        "best λ over d",
        "section 5.2, figure 2",
        "The best λ falls with d: smaller models need less of it.",
        "lowest validation RMSE; never higher from one d to the next lower, and lower at"
        f" {RANKS[0]} than at {RANKS[-1]}, at every γ",
        measurements.grows_with_rank,
    ),
    Statement(
        "best λ, figure 2",
        "section 5.2, figure 2",
        f"The best λ is often below {TEXT['best λ, figure 2']:g}.",
        "lowest validation RMSE; at more than half of all (d, γ)",
        measurements.often_small,
    ),
    Statement(
        "error over ε",
        "section 5.3, figure 3",
        "A larger threshold ε gives a lower error.",
        f"test RMSE; {_STEADY} {LITTLE_ERROR:.1%}, and lower without a threshold than at ε = 2",
        measurements.improves,
    ),
    Statement(
        "gradually",
        "section 5.3, figure 3",
        "The improvement is significant where ε is small, and drops as it grows.",
        "test RMSE; at every (d, γ) the first step brings most, and no step more than the one"
        " before it",
        measurements.gradually,
    ),
    Statement(
        "near regular",
        "section 5.3, figure 3",
        f"Above ε = {TEXT['near regular from ε']:g} the error is close to that of regular"
        " factorisation.",
        f"test RMSE at that ε, every (d, γ): at most {CLOSE:.0%} above regular's of the same d",
        measurements.nears_regular,
    ),
    *_divergences(),
    Statement(
        "top users' error",
        "section 5.4",
        "Users with many ratings have a lower error.",
        "test RMSE of the twentieth of users with most training ratings, every (d, γ, ε): lower by"
        f" more than {LITTLE_ERROR:.1%}",
        measurements.top_users_errors,
    ),
    Statement(
        "divergence below ε",
        "section 5.4",
        "The divergence is much smaller than ε, which is a guarantee for the worst case.",
        f"{_KL}, the paper's filter: at most {MUCH:g}·ε at every ε. That ε guarantees nothing is"
        " the next statement",
        measurements.far_below_threshold,
    ),
    Statement(
        "privacy",
        "section 4.3",
        "Skipping ratings whose loss is above a threshold gives ε-differential privacy.",
        f"a sketch with the same hashes, start and order, {NEIGHBOUR_EPOCHS} epochs: the tables of"
        " neighbours",
        same_tables,
    ),
    Statement(
        "sound: as dense",
        "ours",
        "With a proved price, a sketch of any γ is as good as dense storage.",
        f"{_BUDGET}: at most {LITTLE:.0%} above dense DP-SGD at every γ and ε",
        measurements.sketch_keeps_up,
    ),
    *(
        Statement(
            f"sound: {words}",
            "ours",
            f"With a proved price, {words} is worth having.",
            f"{_BUDGET}: at some ε at least {LITTLE:.0%} below the global mean and item means that"
            " cost as much",
            partial(measurements.worth_having, names),
        )
        for words, names in (
            ("a sketch of some γ", SKETCHES),
            ("dense DP-SGD", (DENSE,)),
            ("Langevin dynamics", ("Langevin, T = 1",)),
            ("joint noise", ("joint noise",)),
        )
    ),
)
