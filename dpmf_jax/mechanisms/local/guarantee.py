"""Paper 004: what k one-bit reports of a user promise, to the server and behind a shuffler."""

import math
from fractions import Fraction

from accounting import guards, shuffle, words
from accounting.guarantee import Guarantee, priced
from accounting.loss import Pure
from accounting.relation import USER_REPLACED


def epsilon_spent(epsilon: float, reports: int, num_rounds: int) -> float:
    """ε·reports/num_rounds, rounded up: what so many reports of one user cost."""
    exact = Fraction(float(epsilon)) * reports / num_rounds
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def local_guarantee(
    epsilon: float,
    num_rounds: int,
    *,
    mechanism: str = "local DP, one-bit reports (paper 004)",
    delta: float = 0.0,
    released: tuple[str, ...] = ("item factors", "every report: a coordinate and a bit"),
    assumptions: tuple[str, ...] = (),
    not_covered: tuple[str, ...] = (),
    seeded: bool = False,
) -> Guarantee:
    """ε per user, pure, against the server itself: k one-bit reports of each user, each for ε/k.

    Proved: each report is ε/k-differentially private whatever the user's factors and the public
    state are (lemma 1), and k adaptive rounds add up (theorem 1). The loop of the printed
    algorithms runs k + 1 rounds; here it is k. The item factors, and their lift by a public
    projection, are post-processing of the reports.

    Args:
      epsilon: of all rounds of one user together.
      num_rounds: k, reports of one user: the number of rounds where everybody reports in each, 1
        where users are split into groups without looking at data and each group reports once, with
        all of ε.
      delta: 0 for the pure price; above 0 the optimal composition of the k reports, which costs
        less.

    Raises:
      ValueError: ε is not positive and finite, k is not an integer of at least 1, δ is not in [0,
        1).
    """
    loss = Pure(epsilon=guards.positive("epsilon", epsilon), num_rounds=num_rounds)
    return priced(
        mechanism=mechanism,
        losses=(loss,),
        delta=delta,
        unit="user",
        relation=USER_REPLACED,
        released=released,
        trust_model=(
            "local: nobody but the user sees the user's ratings; "
            "the server, and whoever reads its traffic, sees every report and may be dishonest"
        ),
        rounds_are_seen=True,
        status="proved",
        assumptions=(*_report_assumptions(loss.num_rounds), *assumptions),
        not_covered=("taking part, and how often: who sends reports is visible", *not_covered),
        seeded=seeded,
    )


def shuffled_guarantee(
    epsilon: float,
    num_rounds: int,
    *,
    num_reports: int,
    delta: float,
    mechanism: str = "local DP, one-bit reports (paper 004)",
    released: tuple[str, ...] = ("item factors", "the shuffled reports of each round"),
    assumptions: tuple[str, ...] = (),
    not_covered: tuple[str, ...] = (),
    seeded: bool = False,
) -> Guarantee:
    """(ε, δ) of k rounds of local reports at ε/k each, every round shuffled by a third party.

    A number beside the local one of `local_guarantee`, never in its place: it holds against whoever
    sees shuffled reports only. The price is `accounting.shuffle.epsilon_shuffled`, an upper bound.

    Args:
      epsilon, num_rounds, num_reports, delta: as `accounting.shuffle.epsilon_shuffled`.

    Raises:
      ValueError: an argument is out of range.
    """
    loss = shuffle.shuffled_loss(epsilon, num_rounds, num_reports, delta)
    n = guards.count("num_reports", num_reports, 1, shuffle.REPORTS_LIMIT)
    return priced(
        mechanism=f"{mechanism}; central, after shuffling",
        losses=(loss,),
        delta=delta,
        unit="user",
        relation=USER_REPLACED,
        released=released,
        trust_model=(
            "a trusted shuffler stands between users and server: it drops who sent what, when and"
            " from where, and does not collude; against the shuffler itself, and whoever sees"
            " reports before it, only the local ε holds"
        ),
        status="proved",
        assumptions=(
            f"at least {n} honest users report in each shuffle; what the others send hides nobody",
            "every user has the same randomiser, with the same ε, which the public state decides",
            (
                "a coordinate is drawn privately, afresh in each round, and seen only in the"
                " anonymous message"
            ),
            "no time, size, order or address tells reports apart",
            words.REAL_RANDOMNESS,
            *assumptions,
        ),
        not_covered=("taking part: how many report in a shuffle is visible", *not_covered),
        seeded=seeded,
    )


def _report_assumptions(num_rounds: int) -> tuple[str, ...]:
    times = (
        "once"
        if num_rounds == 1
        else f"exactly {num_rounds} times (k rounds, not the printed loop's k + 1)"
    )
    return (
        (
            f"each user reports {times}, whatever the data; a report that is sent again is the same"
            " report"
        ),
        "which coordinate is reported is drawn uniformly and without looking at data",
        "a user's factors never leave the device, except through the reports",
        words.REAL_RANDOMNESS,
    )
