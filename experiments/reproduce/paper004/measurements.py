"""Measurements behind the statements of paper 004: what stored rows, and its randomiser, say.

Each takes the stored records and returns a `Judged`, or raises `NotTestable` where rows are
missing. The slides give a criterion for hardly anything; those here are ours.
"""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import jax
import jax.numpy as jnp

from accounting import pure
from dpmf_jax.kernels import projection
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.noise import bits
from dpmf_jax.noise import laws as noise
from experiments.reproduce.catalogue import Record, Stored
from experiments.reproduce.claims import Judged, NotTestable, values_of
from experiments.reproduce.paper004.difference import slope
from experiments.reproduce.paper004.figures import CHANGES, EVERY
from experiments.reproduce.paper004.runs import RATES
from experiments.reproduce.paper004.table import EPSILONS, RANK, ROUNDS

SLOPE = 0.15  # how far a measured exponent may be from the theorem's
FAILURE = 0.05  # β of the theorem's logarithm
LITTLE = 0.01  # relative; a difference in RMSE that says nothing
ENTRIES = (-1.0, 1.0, 0.0, 0.5, -0.25, 1e-30, 2.0, -7.0, math.inf, -math.inf)


def _by_ratings(stored: Stored, name: str) -> list[tuple[str, list[Record]]]:
    """(ratings, rows) of a figure, for each data set that it was run on."""
    pairs = [
        (record["ratings"]["name"] if record["ratings"] else "generated", record["rows"])
        for record in stored.values()
        if record["figure"] == name
    ]
    if not pairs:
        raise NotTestable(f"run dpmf reproduce {name} first")
    return pairs


def one_report_costs(stored: Stored) -> Judged:
    """By enumeration of what the sampler does, in whole numbers of 2^64: every entry, every bit."""
    del stored
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
    parts = ", ".join(f"{value:.12g} at ε/k = {epsilon}" for epsilon, value in numbers.items())
    why = (
        "the coordinate is drawn without looking at data, so its probability cancels; whatever"
        " u_i is"
    )
    return Judged(f"largest log-ratio {parts}", holds, why, numbers)


def printed_loop_costs(stored: Stored) -> Judged:
    del stored
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


def falls_during(stored: Stored) -> Judged:
    return _falls(stored, "private, seen during 50 rounds")


def falls_over(stored: Stored) -> Judged:
    return _falls(stored, "private, k rounds in all")


def _falls(stored: Stored, series: str) -> Judged:
    numbers, holds, parts, whys = {}, True, [], []
    for data, rows in _by_ratings(stored, "004/fig9"):
        values = values_of(rows, series, "rmse")
        line = [values[float(t)] for t in ROUNDS]
        falling = all(later < earlier for earlier, later in itertools.pairwise(line))
        whys.append(f"{'falls at each' if falling else 'does not fall at each'} on {data}")
        holds &= falling
        numbers |= {f"{data}, {t}": value for t, value in zip(ROUNDS, line, strict=True)}
        parts.append(
            f"{data}: {', '.join(map(_number, line))} at {', '.join(map(str, ROUNDS))} rounds"
        )
    return Judged("; ".join(parts), holds, ", ".join(whys), numbers)


def non_private_below(stored: Stored) -> Judged:
    numbers, holds, parts = {}, True, []
    for data, rows in _by_ratings(stored, "004/fig9"):
        private, exact = (
            values_of(rows, name, "rmse")
            for name in ("private, seen during 50 rounds", "non-private")
        )
        gaps = {t: private[float(t)] - exact[float(t)] for t in ROUNDS}
        holds &= all(gap > 0 for gap in gaps.values())
        numbers |= {f"{data}, {t}": gap for t, gap in gaps.items()}
        parts.append(
            f"{data}: from {_number(gaps[ROUNDS[0]])} after one round to"
            f" {_number(gaps[ROUNDS[-1]])} after 50"
        )
    return Judged("gap " + "; ".join(parts), holds, "", numbers)


def reports_teach(stored: Stored) -> Judged:
    numbers, parts = {}, []
    for data, rows in _by_ratings(stored, "004/fig9"):
        private, coins = (
            values_of(rows, name, "rmse")[float(ROUNDS[-1])]
            for name in ("private, seen during 50 rounds", "fair coins in place of reports")
        )
        alone = values_of(rows, "users alone", "rmse")[float(ROUNDS[-1])]
        numbers |= {
            f"{data}, private": private,
            f"{data}, fair coins": coins,
            f"{data}, users alone": alone,
        }
        parts.append(
            f"{data}: {_number(private)} with reports, {_number(coins)} with fair coins,"
            f" {_number(alone)} without a V"
        )
    gains = [
        1 - numbers[f"{data}, private"] / numbers[f"{data}, fair coins"]
        for data, _ in _by_ratings(stored, "004/fig9")
    ]
    why = (
        "reports that say nothing about anybody give the same errors, up to the spread over seeds:"
        " what falls over rounds is each user's own fit to a noisy V"
    )
    holds = all(gain > LITTLE for gain in gains)
    return Judged("after 50 rounds, " + "; ".join(parts), holds, "" if holds else why, numbers)


def some_setting_useful(stored: Stored) -> Judged:
    numbers, holds, parts = {}, False, []
    for data, rows in _by_ratings(stored, "004/epsilon"):
        names = ("GD", "GD-DR", "every variant", "as planned")
        private = {name: values_of(rows, name, "rmse_clipped") for name in names}
        mean = next(iter(values_of(rows, "global-mean", "rmse_clipped").values()))
        alone = min(values_of(rows, "users alone", "rmse_clipped").values())
        best = min(
            (value, name, x) for name, values in private.items() for x, value in values.items()
        )
        holds |= best[0] < min(mean, alone)
        numbers |= {
            f"{data}, best": best[0],
            f"{data}, global mean": mean,
            f"{data}, users alone": alone,
        }
        parts.append(
            f"{data}: best {_number(best[0])} ({best[1]}, ε = {best[2]:g}), global mean {mean:.4f},"
            f" users alone {alone:.4f}"
        )
    return Judged("; ".join(parts), holds, "", numbers)


def projection_helps(stored: Stored) -> Judged:
    return _beats(stored, "GD-DR", "GD")


def beats_laplace(stored: Stored) -> Judged:
    return _beats(stored, "GD-DR", "Laplace")


def _beats(stored: Stored, better: str, worse: str) -> Judged:
    numbers, holds, parts, tested = {}, True, [], False
    for data, rows in _by_ratings(stored, "004/epsilon"):
        if not any(row["series"] == worse for row in rows):
            continue
        tested = True
        ours, theirs = (values_of(rows, name, "rmse") for name in (better, worse))
        ratios = {x: ours[x] / theirs[x] for x in ours}
        holds &= all(ratio < 1 - LITTLE for ratio in ratios.values())
        numbers |= {f"{data}, {x:g}": ratio for x, ratio in ratios.items()}
        parts.append(f"{data}: {', '.join(f'{ratio:.3f}' for ratio in ratios.values())}")
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
    return Judged(f"{better} over {worse} at ε = {places}: {'; '.join(parts)}", holds, why, numbers)


def rate_users(stored: Stored) -> Judged:
    return _rate(
        stored, {name: lambda n: n**-0.5 for name in ("GD, over users", "GD-DR, over users")}
    )


def rate_items(stored: Stored) -> Judged:
    return _rate(stored, {"GD, over items": lambda m: math.sqrt(m * math.log(m * RANK / FAILURE))})


def rate_projected(stored: Stored) -> Judged:
    judged = _rate(stored, {"GD-DR, over q": lambda q: q * math.sqrt(math.log(q * RANK / FAILURE))})
    why = (
        "Φ† lifts the noise of a round to about q^(3/2)/m; for q up to m that stays below the"
        " bound, which is no rate"
    )
    return judged._replace(why="" if judged.holds else why)


def _rate(stored: Stored, theorem: Mapping[str, Callable[[float], float]]) -> Judged:
    """Exponents of the measured errors against the theorem's rate with its logarithm."""
    ((_, rows),) = _by_ratings(stored, "004/error")
    numbers, parts, holds = {}, [], True
    for series, rate in theorem.items():
        places = values_of(rows, series, "error")  # refuses where it is not stored
        expected = slope([{"series": series, "x": x, "value": rate(x)} for x in places], series)
        numbers[series] = slope(rows, series)
        holds &= abs(numbers[series] - expected) <= SLOPE
        parts.append(f"{series}: {numbers[series]:+.2f} (theorem {expected:+.2f})")
    return Judged(f"exponent {', '.join(parts)}", holds, "", numbers)


SHRINK_ITEMS, SHRINK_PROJECTED, SHRINK_DRAWS = 60, 6, 200


def lift_unbiased(stored: Stored) -> Judged:
    """Over draws of Φ: what its two lifts leave of a matrix, in the mean."""
    del stored
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
    parts, whole = bits.public_words(key), jnp.eye(SHRINK_ITEMS)
    image = projection.apply(parts, "gaussian", whole, SHRINK_PROJECTED)
    inverse = projection.gram_inverse(parts, "gaussian", SHRINK_PROJECTED, SHRINK_ITEMS)
    lifted = projection.apply_pseudo_inverse(parts, "gaussian", inverse, image, SHRINK_ITEMS)
    straight = projection.apply_transpose(parts, "gaussian", image, SHRINK_ITEMS)
    return jnp.trace(lifted) / SHRINK_ITEMS, jnp.trace(straight) / SHRINK_ITEMS


def entries_inside(stored: Stored) -> Judged:
    numbers = {}
    for record in stored.values():
        if record["figure"] == "004/variants":
            for setting in record["settings"]:
                if setting["series"] in ("published", "no Φ"):
                    numbers[setting["series"]] = float(setting["outside"])
    if not numbers:
        raise NotTestable("run dpmf reproduce 004/variants first")
    parts = {
        "published": "with Φ (algorithm 2)",
        "no Φ": "without Φ (algorithm 1), 0 for items not rated included",
    }
    value = ", ".join(
        f"{share:.1%} of the asked entries {parts[name]}" for name, share in numbers.items()
    )
    why = (
        "entries outside are projected onto [−1, 1], which biases the mean; the lemma assumes them"
        " inside"
    )
    return Judged(f"clipped: {value}", max(numbers.values()) < 1e-3, why, numbers)


def some_variant_useful(stored: Stored) -> Judged:
    ((_, rows),) = _by_ratings(stored, "004/variants")
    values = {name: values_of(rows, name, "rmse_clipped") for name in CHANGES}
    numbers = {name: next(iter(value.values())) for name, value in values.items()}
    coins = next(iter(values_of(rows, f"{EVERY}, fair coins", "rmse_clipped").values()))
    alone = next(iter(values_of(rows, "users alone", "rmse_clipped").values()))
    mean = next(iter(values_of(rows, "global-mean", "rmse_clipped").values()))
    best = min(numbers, key=lambda name: numbers[name])
    parts = ", ".join(f"{name} {_number(value)}" for name, value in numbers.items())
    holds = numbers[best] < min(coins, alone, mean) * (1 - LITTLE)
    value = (
        f"{parts}; {EVERY} with fair coins {_number(coins)}, users alone {_number(alone)},"
        f" global mean {mean:.4f}"
    )
    rate = next(
        setting["config"]["learning_rate"]
        for record in stored.values()
        if record["figure"] == "004/variants"
        for setting in record["settings"]
        if setting["series"] == best
    )
    why = f"the lowest, {best}, has γ = {rate:g}" + (
        ", at which nothing moves" if rate <= RATES[0] else ""
    )
    others = {"fair coins": coins, "users alone": alone, "global mean": mean}
    return Judged(value, holds, why, numbers | others)


def _number(value: float) -> str:
    return (
        "diverged"
        if not math.isfinite(value)
        else f"{value:.4f}"
        if value < 100
        else f"{value:.3g}"
    )
