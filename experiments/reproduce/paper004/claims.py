"""What paper 004 says, statement by statement, held to the stored rows of its figures and to its
own randomiser.

The slides give a criterion for hardly anything; those here are ours, beside every verdict. Nothing
is trained.
"""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp

from accounting import pure
from dpmf_jax.devices import bits
from dpmf_jax.kernels import projection
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.noise import laws as noise
from experiments.reproduce import claims
from experiments.reproduce.catalogue import Stored
from experiments.reproduce.claims import Claim, Judged, NotTestable, Statement
from experiments.reproduce.paper004.figures import CHANGES, EVERY, slope
from experiments.reproduce.paper004.runs import RATES
from experiments.reproduce.paper004.table import (
    CATALOGUE,
    EPSILONS,
    FIGURES,
    RANK,
    ROUNDS,
    VARIANTS_EPSILON,
    VARIANTS_ROUNDS,
)

SLOPE = 0.15  # how far a measured exponent may be from the theorem's
FAILURE = 0.05  # β of the theorem's logarithm
LITTLE = 0.01  # relative; a difference in RMSE that says nothing
ENTRIES = (-1.0, 1.0, 0.0, 0.5, -0.25, 1e-30, 2.0, -7.0, math.inf, -math.inf)

stored = CATALOGUE.stored


def judge(found: Stored) -> list[Claim]:
    return claims.judge(found, STATEMENTS)


# ---------------------------------------------------------------------------------------------- mea


def _told(found: Stored, name: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """(ratings, rows) of a figure on everything that it was run on."""
    figure = FIGURES[name]
    here = [(told["ratings"] and told["ratings"]["name"], told["rows"]) for told in found.values()]
    here = [
        (data or "generated", rows)
        for (data, rows), told in zip(here, found.values(), strict=True)
        if told["figure"] == figure.name
    ]
    if not here:
        raise NotTestable(f"run dpmf reproduce {name} first")
    return here


def _values(
    rows: Sequence[Mapping[str, Any]], series: str, axis: str = "rmse"
) -> dict[float, float]:
    values = {
        float(row["x"]): float(row["value"])
        for row in rows
        if (row["series"], row["axis"]) == (series, axis)
    }
    if not values:
        raise NotTestable(f"series {series!r} is not stored")
    return values


def one_report(found: Stored) -> Judged:
    """By enumeration of what the sampler does, in whole numbers of 2^64: every entry, every bit."""
    del found
    numbers = {}
    for epsilon in (0.002, 0.1, 1.6):
        law = noise.one_bit_law(epsilon, jnp.asarray(ENTRIES, jnp.float32))
        ones = [Fraction(one, 2**64) for one in law]
        largest = max(max(ones) / min(ones), (1 - min(ones)) / (1 - max(ones)))
        with decimal.localcontext(prec=50):  # two logarithms of 2^64 would cancel in floats
            numbers[f"{epsilon:g}"] = float(
                (decimal.Decimal(largest.numerator) / largest.denominator).ln()
            )
    worst = max(abs(value / float(epsilon) - 1) for epsilon, value in numbers.items())
    holds = (
        all(value <= float(epsilon) * (1 + 1e-12) for epsilon, value in numbers.items())
        and worst < 1e-9
    )
    words = ", ".join(f"{value:.12g} at ε/k = {epsilon}" for epsilon, value in numbers.items())
    why = (
        "the coordinate is drawn without looking at data, so its probability cancels; whatever"
        " u_i is"
    )
    return Judged(f"largest log-ratio {words}", holds, why, numbers)


def off_by_one(found: Stored) -> Judged:
    del found
    epsilon, k = 0.1, 50
    printed = pure.epsilon_basic(epsilon / k, k + 1)
    made = local.gd(local.Config(epsilon=epsilon, num_rounds=k, rank=2))
    ours = made.guarantee(k).epsilon
    value = (
        f"at ε = {epsilon:g}, k = {k}: {k + 1} reports, ε = {printed:.4g}; with k rounds, as built"
        f" here, {ours:g}"
    )
    why = "`iter = 0; while iter ≤ k` runs k + 1 times, each at ε/k: it spends (k + 1)/k of ε"
    return Judged(value, printed <= epsilon, why, {"printed": printed, "built": ours})


def falls_during(found: Stored) -> Judged:
    return _falls(found, "private, seen during 50 rounds")


def falls_over(found: Stored) -> Judged:
    return _falls(found, "private, k rounds in all")


def _falls(found: Stored, series: str) -> Judged:
    numbers, holds, words, whys = {}, True, [], []
    for data, rows in _told(found, "004/fig9"):
        values = _values(rows, series)
        line = [values[float(t)] for t in ROUNDS]
        falling = all(later < earlier for earlier, later in itertools.pairwise(line))
        whys.append(f"{'falls at each' if falling else 'does not fall at each'} on {data}")
        holds &= falling
        numbers |= {f"{data}, {t}": value for t, value in zip(ROUNDS, line, strict=True)}
        words.append(
            f"{data}: {', '.join(_said(value) for value in line)} at {', '.join(map(str, ROUNDS))}"
            " rounds"
        )
    return Judged("; ".join(words), holds, ", ".join(whys), numbers)


def below(found: Stored) -> Judged:
    numbers, holds, words = {}, True, []
    for data, rows in _told(found, "004/fig9"):
        private, exact = (
            _values(rows, name) for name in ("private, seen during 50 rounds", "non-private")
        )
        gaps = {t: private[float(t)] - exact[float(t)] for t in ROUNDS}
        holds &= all(gap > 0 for gap in gaps.values())
        numbers |= {f"{data}, {t}": gap for t, gap in gaps.items()}
        words.append(
            f"{data}: from {_said(gaps[ROUNDS[0]])} after one round to {_said(gaps[ROUNDS[-1]])}"
            " after 50"
        )
    return Judged("gap " + "; ".join(words), holds, "", numbers)


def learnt(found: Stored) -> Judged:
    numbers, words = {}, []
    for data, rows in _told(found, "004/fig9"):
        private, coins = (
            _values(rows, name)[float(ROUNDS[-1])]
            for name in ("private, seen during 50 rounds", "fair coins in place of reports")
        )
        alone = _values(rows, "users alone")[float(ROUNDS[-1])]
        numbers |= {
            f"{data}, private": private,
            f"{data}, fair coins": coins,
            f"{data}, users alone": alone,
        }
        words.append(
            f"{data}: {_said(private)} with reports, {_said(coins)} with fair coins, {_said(alone)}"
            " without a V"
        )
    gains = [
        1 - numbers[f"{data}, private"] / numbers[f"{data}, fair coins"]
        for data, _ in _told(found, "004/fig9")
    ]
    why = (
        "reports that say nothing about anybody give the same errors, up to the spread over seeds:"
        " what falls over rounds is each user's own fit to a noisy V"
    )
    holds = all(gain > LITTLE for gain in gains)
    return Judged("after 50 rounds, " + "; ".join(words), holds, "" if holds else why, numbers)


def useful(found: Stored) -> Judged:
    numbers, holds, words = {}, False, []
    for data, rows in _told(found, "004/epsilon"):
        names = ("GD", "GD-DR", "every variant", "as planned")
        private = {name: _values(rows, name, "rmse_clipped") for name in names}
        mean = next(iter(_values(rows, "global-mean", "rmse_clipped").values()))
        alone = min(_values(rows, "users alone", "rmse_clipped").values())
        best = min(
            (value, name, x) for name, values in private.items() for x, value in values.items()
        )
        holds |= best[0] < min(mean, alone)
        numbers |= {
            f"{data}, best": best[0],
            f"{data}, global mean": mean,
            f"{data}, users alone": alone,
        }
        words.append(
            f"{data}: best {_said(best[0])} ({best[1]}, ε = {best[2]:g}), global mean {mean:.4f},"
            f" users alone {alone:.4f}"
        )
    return Judged("; ".join(words), holds, "", numbers)


def projection_helps(found: Stored) -> Judged:
    return _beats(found, "GD-DR", "GD")


def beats_laplace(found: Stored) -> Judged:
    return _beats(found, "GD-DR", "Laplace")


def _beats(found: Stored, better: str, worse: str) -> Judged:
    numbers, holds, words, tested = {}, True, [], False
    for data, rows in _told(found, "004/epsilon"):
        if not any(row["series"] == worse for row in rows):
            continue
        tested = True
        ours, theirs = _values(rows, better), _values(rows, worse)
        ratios = {x: ours[x] / theirs[x] for x in ours}
        holds &= all(ratio < 1 - LITTLE for ratio in ratios.values())
        numbers |= {f"{data}, {x:g}": ratio for x, ratio in ratios.items()}
        words.append(f"{data}: {', '.join(f'{ratio:.3f}' for ratio in ratios.values())}")
    if not tested:
        raise NotTestable(
            f"{worse} is run on MovieLens-100K alone: dpmf reproduce 004/epsilon with it there"
        )
    why = (
        ""
        if holds
        else (
            "each has its own searched γ, small where noise is large: then little moves, and errors"
            " are alike"
        )
    )
    places = ", ".join(f"{x:g}" for x in EPSILONS)
    return Judged(f"{better} over {worse} at ε = {places}: {'; '.join(words)}", holds, why, numbers)


def rate_users(found: Stored) -> Judged:
    return _rate(
        found, {name: lambda n: n**-0.5 for name in ("GD, over users", "GD-DR, over users")}
    )


def rate_items(found: Stored) -> Judged:
    return _rate(found, {"GD, over items": lambda m: math.sqrt(m * math.log(m * RANK / FAILURE))})


def rate_projected(found: Stored) -> Judged:
    judged = _rate(found, {"GD-DR, over q": lambda q: q * math.sqrt(math.log(q * RANK / FAILURE))})
    why = (
        "Φ† lifts the noise of a round to about q^(3/2)/m; for q up to m that stays below the"
        " bound, which is no rate"
    )
    return judged._replace(why="" if judged.holds else why)


def _rate(found: Stored, theorem: Mapping[str, Callable[[float], float]]) -> Judged:
    """Exponents of the measured errors against those of the theorem's rate with its logarithm, at
    the same places.
    """
    ((_, rows),) = _told(found, "004/error")
    numbers, words, holds = {}, [], True
    for series, rate in theorem.items():
        places = _values(rows, series, "error")  # refuses where it is not stored
        expected = slope([{"series": series, "x": x, "value": rate(x)} for x in places], series)
        numbers[series] = slope(rows, series)
        holds &= abs(numbers[series] - expected) <= SLOPE
        words.append(f"{series}: {numbers[series]:+.2f} (theorem {expected:+.2f})")
    return Judged(f"exponent {', '.join(words)}", holds, "", numbers)


SHRINK_ITEMS, SHRINK_PROJECTED, SHRINK_DRAWS = 60, 6, 200


def shrinkage(found: Stored) -> Judged:
    """Over draws of Φ: what its two lifts leave of a matrix, in the mean."""
    del found
    keys = jax.random.split(jax.random.key(0), SHRINK_DRAWS)
    pseudo, transpose = (float(jnp.mean(kept)) for kept in jax.jit(jax.vmap(_kept))(keys))
    share = SHRINK_PROJECTED / SHRINK_ITEMS
    value = f"mean slope {pseudo:.3f} with Φ†, {transpose:.3f} with Φᵀ, at q/m = {share:g}"
    why = (
        "Φ† projects onto q of m dimensions: unbiased for ΦV's part of V, and q/m of V in the mean"
    )
    return Judged(
        value, abs(pseudo - 1) < 0.1, why, {"pseudo-inverse": pseudo, "transpose": transpose}
    )


def _kept(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean share of an item's row that Φ†Φ and ΦᵀΦ leave."""
    words, whole = bits.public_words(key), jnp.eye(SHRINK_ITEMS)
    image = projection.apply(words, "gaussian", whole, SHRINK_PROJECTED)
    inverse = projection.gram_inverse(words, "gaussian", SHRINK_PROJECTED, SHRINK_ITEMS)
    lifted = projection.apply_pseudo_inverse(words, "gaussian", inverse, image, SHRINK_ITEMS)
    straight = projection.apply_transpose(words, "gaussian", image, SHRINK_ITEMS)
    return jnp.trace(lifted) / SHRINK_ITEMS, jnp.trace(straight) / SHRINK_ITEMS


def inside(found: Stored) -> Judged:
    numbers = {}
    for told in found.values():
        if told["figure"] == "004/variants":
            for setting in told["settings"]:
                if setting["series"] in ("published", "no Φ"):
                    numbers[setting["series"]] = float(setting["outside"])
    if not numbers:
        raise NotTestable("run dpmf reproduce 004/variants first")
    words = {
        "published": "with Φ (algorithm 2)",
        "no Φ": "without Φ (algorithm 1), 0 for items not rated included",
    }
    value = ", ".join(
        f"{share:.1%} of the asked entries {words[name]}" for name, share in numbers.items()
    )
    why = (
        "entries outside are projected onto [−1, 1], which biases the mean; the lemma assumes them"
        " inside"
    )
    return Judged(f"clipped: {value}", max(numbers.values()) < 1e-3, why, numbers)


def variants(found: Stored) -> Judged:
    ((_, rows),) = _told(found, "004/variants")
    values = {name: _values(rows, name, "rmse_clipped") for name in CHANGES}
    numbers = {name: next(iter(value.values())) for name, value in values.items()}
    coins = next(iter(_values(rows, f"{EVERY}, fair coins", "rmse_clipped").values()))
    alone = next(iter(_values(rows, "users alone", "rmse_clipped").values()))
    mean = next(iter(_values(rows, "global-mean", "rmse_clipped").values()))
    best = min(numbers, key=lambda name: numbers[name])
    words = ", ".join(f"{name} {_said(value)}" for name, value in numbers.items())
    holds = numbers[best] < min(coins, alone, mean) * (1 - LITTLE)
    value = (
        f"{words}; {EVERY} with fair coins {_said(coins)}, users alone {_said(alone)}, global mean"
        f" {mean:.4f}"
    )
    rate = next(
        setting["config"]["learning_rate"]
        for told in found.values()
        if told["figure"] == "004/variants"
        for setting in told["settings"]
        if setting["series"] == best
    )
    why = f"the lowest, {best}, has γ = {rate:g}" + (
        ", at which nothing moves" if rate <= RATES[0] else ""
    )
    others = {"fair coins": coins, "users alone": alone, "global mean": mean}
    return Judged(value, holds, why, numbers | others)


def _said(value: float) -> str:
    return (
        "diverged"
        if not math.isfinite(value)
        else f"{value:.4f}"
        if value < 100
        else f"{value:.3g}"
    )


# ---------------------------------------------------------------------------------------------- the

STATEMENTS = (
    Statement(
        "one report",
        "lemma 1",
        "A report of one coordinate and one bit is ε/k-differentially private, whatever the user"
        " rated.",
        "the largest log-ratio over entries and bits, in whole numbers of 2^64 as the sampler"
        " compares them: ε/k, and never above",
        one_report,
    ),
    Statement(
        "k rounds",
        "algorithms 1 and 2, theorem 1, corollary 1",
        "The printed loop costs ε for each user.",
        "rounds of `iter = 0; while iter <= k`, times ε/k",
        off_by_one,
    ),
    Statement(
        "falls, during a run",
        "figure 9",
        "At ε = 0.1 the error falls as rounds go on.",
        "one run of 50 rounds, held-out RMSE after 1, 3, 5, 10, 20, 50 of them: falls at each",
        falls_during,
    ),
    Statement(
        "falls, over k",
        "figure 9",
        "At ε = 0.1 the error falls with the number of rounds that share ε.",
        "a run for each k, with all of ε: held-out RMSE falls from each k to the next",
        falls_over,
    ),
    Statement(
        "non-private below",
        "figure 9",
        "Non-private GD is below private GD-DR at every k.",
        "held-out RMSE, during a run of 50 rounds",
        below,
    ),
    Statement(
        "reports teach",
        "figure 9, in our reading",
        "The error is low because the reports taught the server V.",
        f"after 50 rounds at ε = 0.1: RMSE at least {LITTLE:.0%} below that of the same run with"
        " every entry replaced by 0, whose reports are fair coins",
        learnt,
    ),
    Statement(
        "useful",
        "the experiments' aim",
        "At ε up to 1.6 local DP gives recommendations that are better than none.",
        "held-out RMSE, predictions clipped: below the global mean's and below what users reach"
        " alone (ε = 0), on some data set at some ε, by any of the variants",
        useful,
    ),
    Statement(
        "projection helps",
        "attempt 2",
        "Private GD-DR has a lower error than private GD.",
        f"held-out RMSE at least {LITTLE:.0%} lower at every ε, on every data set",
        projection_helps,
    ),
    Statement(
        "better than whole gradients",
        "the comparison with Hua et al.",
        "Private GD-DR has a lower error than whole gradients under Laplace noise.",
        f"held-out RMSE at least {LITTLE:.0%} lower at every ε; on MovieLens-100K",
        beats_laplace,
    ),
    Statement(
        "theorem 2, n",
        "theorem 2, corollary 2",
        "‖V* − V‖max falls as n^(−1/2).",
        f"generated ratings, same start, small γ: exponent within {SLOPE:g}",
        rate_users,
    ),
    Statement(
        "theorem 2, m",
        "theorem 2",
        "‖V* − V‖max grows as m^(1/2), but for a logarithm.",
        f"generated ratings, same start, small γ: exponent within {SLOPE:g}",
        rate_items,
    ),
    Statement(
        "corollary 2, q",
        "corollary 2",
        "‖V* − V‖max of algorithm 2 grows as q, but for a logarithm.",
        f"generated ratings, same start, small γ: exponent within {SLOPE:g}. Its proof bounds Φ†'s"
        " error by that in q dimensions, though V has a large part in Φ's null space",
        rate_projected,
    ),
    Statement(
        "lift",
        "algorithm 2, line 22",
        "The lift by Φ† gives back the gradient of V.",
        f"the mean over {SHRINK_DRAWS} draws of Φ of the share that is left of V: 1, within 0.1",
        shrinkage,
    ),
    Statement(
        "inside",
        "lemma 1's assumption",
        "The entries of users' gradients lie in [−1, 1].",
        f"share of reporting users whose entry is clipped, MovieLens-1M, ε = {VARIANTS_EPSILON:g},"
        " mean over the rounds: below 0.1%",
        inside,
    ),
    Statement(
        "variants",
        "ours, on algorithm 2",
        "Some departure with the same guarantee makes reports useful on MovieLens-1M.",
        f"ε = {VARIANTS_EPSILON:g}, {VARIANTS_ROUNDS} rounds: held-out RMSE, clipped, at least"
        f" {LITTLE:.0%} below fair coins, users alone and the global mean",
        variants,
    ),
)
