"""What paper 004 says, statement by statement, held to the stored rows of its figures and to its
own randomiser.

The slides give a criterion for hardly anything; those here are ours, beside every verdict. Nothing
is trained.
"""

from __future__ import annotations

from experiments.reproduce import claims
from experiments.reproduce.catalogue import Stored
from experiments.reproduce.claims import Claim, Statement
from experiments.reproduce.paper004 import measurements
from experiments.reproduce.paper004.measurements import LITTLE, SHRINK_DRAWS, SLOPE
from experiments.reproduce.paper004.table import VARIANTS_EPSILON, VARIANTS_ROUNDS


def judge(stored: Stored) -> list[Claim]:
    return claims.judge(stored, STATEMENTS)


STATEMENTS = (
    Statement(
        "one report",
        "lemma 1",
        "A report of one coordinate and one bit is ε/k-differentially private, whatever the user"
        " rated.",
        "the largest log-ratio over entries and bits, in whole numbers of 2^64 as the sampler"
        " compares them: ε/k, and never above",
        measurements.one_report_costs,
    ),
    Statement(
        "k rounds",
        "algorithms 1 and 2, theorem 1, corollary 1",
        "The printed loop costs ε for each user.",
        "rounds of `iter = 0; while iter <= k`, times ε/k",
        measurements.printed_loop_costs,
    ),
    Statement(
        "falls, during a run",
        "figure 9",
        "At ε = 0.1 the error falls as rounds go on.",
        "one run of 50 rounds, held-out RMSE after 1, 3, 5, 10, 20, 50 of them: falls at each",
        measurements.falls_during,
    ),
    Statement(
        "falls, over k",
        "figure 9",
        "At ε = 0.1 the error falls with the number of rounds that share ε.",
        "a run for each k, with all of ε: held-out RMSE falls from each k to the next",
        measurements.falls_over,
    ),
    Statement(
        "non-private below",
        "figure 9",
        "Non-private GD is below private GD-DR at every k.",
        "held-out RMSE, during a run of 50 rounds",
        measurements.non_private_below,
    ),
    Statement(
        "reports teach",
        "figure 9, in our reading",
        "The error is low because the reports taught the server V.",
        f"after 50 rounds at ε = 0.1: RMSE at least {LITTLE:.0%} below that of the same run with"
        " every entry replaced by 0, whose reports are fair coins",
        measurements.reports_teach,
    ),
    Statement(
        "useful",
        "the experiments' aim",
        "At ε up to 1.6 local DP gives recommendations that are better than none.",
        "held-out RMSE, predictions clipped: below the global mean's and below what users reach"
        " alone (ε = 0), on some data set at some ε, by any of the variants",
        measurements.some_setting_useful,
    ),
    Statement(
        "projection helps",
        "attempt 2",
        "Private GD-DR has a lower error than private GD.",
        f"held-out RMSE at least {LITTLE:.0%} lower at every ε, on every data set",
        measurements.projection_helps,
    ),
    Statement(
        "better than whole gradients",
        "the comparison with Hua et al.",
        "Private GD-DR has a lower error than whole gradients under Laplace noise.",
        f"held-out RMSE at least {LITTLE:.0%} lower at every ε; on MovieLens-100K",
        measurements.beats_laplace,
    ),
    Statement(
        "theorem 2, n",
        "theorem 2, corollary 2",
        "‖V* − V‖max falls as n^(−1/2).",
        f"generated ratings, same start, small γ: exponent within {SLOPE:g}",
        measurements.rate_users,
    ),
    Statement(
        "theorem 2, m",
        "theorem 2",
        "‖V* − V‖max grows as m^(1/2), but for a logarithm.",
        f"generated ratings, same start, small γ: exponent within {SLOPE:g}",
        measurements.rate_items,
    ),
    Statement(
        "corollary 2, q",
        "corollary 2",
        "‖V* − V‖max of algorithm 2 grows as q, but for a logarithm.",
        f"generated ratings, same start, small γ: exponent within {SLOPE:g}. Its proof bounds Φ†'s"
        " error by that in q dimensions, though V has a large part in Φ's null space",
        measurements.rate_projected,
    ),
    Statement(
        "lift",
        "algorithm 2, line 22",
        "The lift by Φ† gives back the gradient of V.",
        f"the mean over {SHRINK_DRAWS} draws of Φ of the share that is left of V: 1, within 0.1",
        measurements.lift_unbiased,
    ),
    Statement(
        "inside",
        "lemma 1's assumption",
        "The entries of users' gradients lie in [−1, 1].",
        f"share of reporting users whose entry is clipped, MovieLens-1M, ε = {VARIANTS_EPSILON:g},"
        " mean over the rounds: below 0.1%",
        measurements.entries_inside,
    ),
    Statement(
        "variants",
        "ours, on algorithm 2",
        "Some departure with the same guarantee makes reports useful on MovieLens-1M.",
        f"ε = {VARIANTS_EPSILON:g}, {VARIANTS_ROUNDS} rounds: held-out RMSE, clipped, at least"
        f" {LITTLE:.0%} below fair coins, users alone and the global mean",
        measurements.some_variant_useful,
    ),
)
