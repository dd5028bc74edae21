"""How much a transcript tells two neighbours apart, against the price at two values of δ.

Many runs are drawn, the responses of one world driving both (`loss_draws`). Their losses add up
over the steps and bound ε from below by exact counts (`loss_bound`). Plain runs hardly ever reach a
small δ: there responses are drawn around statistics that are shifted away from the other world's,
and weighed by the ratio of the densities.

On trial is what the guarantee's losses cost at each δ, not a looser form of it. The start is the
same in all runs: it is public. Where who is sampled is secret, everybody else's coins are known and
only the record's own is not (`sampled_loss`).

This audit trusts `log_ratio`; the density audit tests it and runs first. Where that is violated,
this one says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting import gaussian, price
from accounting.guarantee import Guarantee
from accounting.loss import Pure, SubsampledGaussian
from audits import neighbours, side_by_side, transcript
from audits.finding import ALPHA, Finding, inconclusive, not_applicable
from audits.mechanism import density, loss_bound, loss_draws, sampled_loss
from audits.mechanism.loss_draws import CHUNK, Pair, Tilt
from dpmf_jax import protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.noise.laws import Report
from dpmf_jax.protocol import Mechanism

DELTAS = (1e-2, 1e-5)
NUM_RUNS, LEAST = 3_000, 64
PILOT, LEAST_PILOT, FAR_PILOT = 256, 16, 64
MOST_RUNS = 30_000  # where they cost next to nothing
# ratings times steps times runs: about what a minute can do, and a second
WORK, SMALL_WORK = 1 << 28, 1 << 23
FAR = (1.0, 3.0, 30.0, 300.0)  # shifts of the search for the largest loss
BATCH_BYTES = 1 << 24
TOLERANCE = 1e-4  # of a pure ε, for float32 sums
CLAIM = "the privacy loss stays within the price"
DIRECTIONS = ("the data set against its neighbour", "the neighbour against the data set")


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    num_neighbours: int = 64,
    num_runs: int | None = None,
    deltas: tuple[float, ...] = DELTAS,
    density_findings: Sequence[Finding] | None = None,
) -> list[Finding]:
    """A finding for each δ, on the neighbour that a run tells apart best.

    violated: ε(δ) is refuted at `finding.ALPHA` in one of both directions (half of it each). A pure
      price has a finding more, and is refuted by any response above it.
    measured: a lower bound on ε at this δ, right with 95% (each direction 97.5%).

    Args:
      num_neighbours: how many are tried for the pair.
      num_runs: of each direction and δ. None: 3,000; more where that takes a second, fewer where it
        would take more than about a minute, at least 64.
      density_findings: those of `density.audit`, where it ran; None: it runs here. Where one of
        them is violated, `log_ratio` is not the density of what is drawn, and whatever follows from
        it is inconclusive.
    """
    guarantee = mechanism.guarantee(num_steps)
    names = [f"privacy loss: δ = {delta:g}" for delta in deltas]
    if guarantee.status == "none" or not guarantee.losses:
        why = f"{guarantee.mechanism} (status {guarantee.status}) states no price"
        return [not_applicable(name, "no price is claimed", why) for name in names]
    choose_key, start_key, search_key, draw_key = jax.random.split(key, 4)
    density_key, coins_key = jax.random.split(jax.random.fold_in(key, 0))
    statistics = jax.eval_shape(
        lambda m, d, k: transcript.step_statistics(m, protocol.begin(m, k, d), d, k),
        mechanism,
        data,
        start_key,
    )
    if isinstance(statistics, Report):
        why = "of finite outputs the enumeration finds the exact largest loss"
        return [not_applicable(name, "see the enumeration", why) for name in names]
    if density_findings is None:
        density_findings = density.audit(
            mechanism, ratings, data, key=density_key, num_steps=num_steps
        )
    if wrong := [finding.audit for finding in density_findings if finding.verdict == "violated"]:
        why = (
            f"{' and '.join(wrong)} is violated: log_ratio, on which this rests, is not that of the"
            " noise that is drawn"
        )
        return [inconclusive(name, CLAIM, why) for name in names]
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(data)) + 8 * sum(
        s.size for s in jax.tree.leaves(statistics)
    )
    tried = neighbours.choose(
        choose_key,
        ratings,
        data,
        unit=guarantee.unit,
        num=num_neighbours,
        change=guarantee.largest_change,
    )
    batch = int(np.clip(BATCH_BYTES // size, 1, tried.num))

    replaced = guarantee.relation.kind == "user replaced"
    total = jnp.float32(sum(ratings.rating_range))

    def centred(
        stacked: neighbours.Neighbour, of: Layout = data, *, turned: bool = False
    ) -> np.ndarray:
        def one(some: neighbours.Neighbour) -> np.ndarray:
            found = loss_draws.centred_losses(
                mechanism,
                start_key,
                search_key,
                of,
                some,
                unit=guarantee.unit,
                num_steps=num_steps,
                batch=batch,
                reflected=(jnp.asarray(turned), total) if replaced else None,
            )
            return np.asarray(found, np.float64)

        found = side_by_side.calls(one, neighbours.parts(stacked, batch))
        return np.concatenate(found)[: len(stacked.value)]

    pure = all(isinstance(loss, Pure) for loss in guarantee.losses)
    apart = centred(tried.stacked) if tried.num > 1 or pure else np.zeros(1)
    worst = int(np.argmax(np.where(np.isnan(apart), np.inf, apart)))
    neighbour = jax.tree.map(lambda leaf: leaf[worst], tried.stacked)
    worlds = (data, neighbours.apply(guarantee.unit, data, neighbour))
    first, second = (protocol.begin(mechanism, start_key, world) for world in worlds)
    states = (first, second)
    if why := sampled_loss.why_unknown(mechanism, guarantee, coins_key, states, worlds):
        return [inconclusive(name, CLAIM, why) for name in names]
    cost = num_steps * max(ratings.num_ratings, 1)
    num = num_runs or int(
        np.clip(WORK // cost, LEAST, max(NUM_RUNS, min(SMALL_WORK // cost, MOST_RUNS)))
    )
    batch = int(np.clip(BATCH_BYTES // size, 1, CHUNK))
    pairs = [
        Pair(mechanism, (states[a], states[b]), (worlds[a], worlds[b]), num_steps, batch)
        for a, b in ((0, 1), (1, 0))
    ]
    replay = {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "pair": neighbours.describe(ratings, tried, worst),
        "data_sha256": ratings.sha256(),
    }
    # The search's estimate is good enough, except for sampled mechanisms, where most runs do not
    # contain the record.
    half = (
        float(apart[worst])
        if tried.num > 1 and sampled_loss.poisson_of(mechanism) is None
        else None
    )
    keys = jax.random.split(draw_key, len(deltas) + 1)
    findings = [
        _at(pairs, guarantee, delta, key=k, num=num, half=half, name=name, replay=replay)
        for delta, name, k in zip(deltas, names, keys, strict=False)
    ]
    if pure:
        additive = jax.tree.structure(statistics) == jax.tree.structure(
            jax.eval_shape(mechanism.noise.sample, start_key, statistics)
        )
        still = _without_noise(centred, apart, ratings, data, tried, replaced) if additive else []
        few = min(_pilot(num), FAR_PILOT)
        findings.append(_largest(pairs, guarantee, keys[-1], few, replay, still))
    return findings


class Still(NamedTuple):
    """The largest loss of a response that is the statistics themselves, and its pair in words."""

    loss: float
    pair: dict[str, Any]


def _without_noise(
    centred: Callable[..., np.ndarray],
    apart: np.ndarray,
    ratings: Ratings,
    data: Layout,
    tried: neighbours.Neighbours,
    replaced: bool,
) -> list[Still]:
    """Of all neighbours that were tried, and of people whom the ratings do not have.

    Where noise is of a Laplace law, no response has a larger loss than the statistics themselves.
    """
    lots = [(ratings, data, tried, apart)]
    made = neighbours.extreme(ratings, data)
    if made is not None:
        changed, other, new = made
        if tried.unit == "user":
            new = new[np.unique(changed.user[new], return_index=True)[1]]
        index = new[np.linspace(0, len(new) - 1, tried.num).astype(int)]
        stacked = neighbours.changes(changed, other, index, tried.change)
        why = ("of extremes",) * tried.num
        some = neighbours.Neighbours(tried.unit, stacked, index, why, tried.change)
        lots.append((changed, other, some, centred(stacked, other)))
    found = []
    for own, of, pairs, losses in lots:
        ways = [(pairs, losses)]
        if replaced:
            turned = neighbours.again(pairs, np.arange(pairs.num), neighbours.REFLECTED)
            ways.append((turned, centred(pairs.stacked, of, turned=True)))
        for way, each in ways:
            finite = np.where(np.isfinite(each), each, -np.inf)
            at = int(np.argmax(finite))
            found.append(Still(float(finite[at]), neighbours.describe(own, way, at)))
    return found


def _at(
    pairs: list[Pair],
    guarantee: Guarantee,
    delta: float,
    *,
    key: jax.Array,
    num: int,
    half: float | None,
    name: str,
    replay: dict,
) -> Finding:
    """The finding at one δ; half: see `_best_tilt`."""
    claimed = price.epsilon(guarantee.losses, delta, unit=guarantee.unit)
    claim = (
        f"the privacy loss has δ({claimed:.6g}) ≤ {delta:g}, the price of {guarantee.steps} steps"
    )
    results: list[dict[str, Any]] = []
    for pair, direction, k in zip(
        pairs, DIRECTIONS, jax.random.split(key, len(pairs)), strict=True
    ):
        pilot_key, draw_key, coin_key = jax.random.split(k, 3)
        tilt, largest = _best_tilt(pair, guarantee, delta, pilot_key, _pilot(num), half)
        losses, centred = pair.draw(draw_key, num, tilt)
        if np.isnan(losses.loss).any() or np.isnan(losses.log_weight).any():
            return inconclusive(
                name, claim, "the loss is not a number: the descent diverged", replay=replay
            )
        uniform = np.random.default_rng(np.asarray(jax.random.bits(coin_key, (4,)))).random(num)
        scored = loss_bound.scores(losses, uniform, largest)
        results.append(
            {
                "direction": direction,
                "bound": loss_bound.epsilon_bound(scored, delta, largest, 0.025),
                "p_value": loss_bound.p_value(scored, claimed, delta, largest),
                "delta_seen": loss_bound.delta_seen(num, delta, largest, ALPHA / 2),
                "mu": math.sqrt(2 * max(0.0, float(np.mean(centred)))),
                "shift": float(tilt.shift),
                "rate": float(tilt.rate),
            }
        )
    best = max(results, key=lambda result: result["bound"])
    seen = min(result["delta_seen"] for result in results)
    details = {
        "runs": num,
        "alpha": ALPHA,
        "directions": results,
        "power": (
            f"a pair whose δ({claimed:.4g}) is {seen:.3g}, not {delta:g}, would be seen with"
            " probability 0.95; other pairs are not covered"
        ),
        "replay": replay,
    }
    violated = min(result["p_value"] for result in results) <= ALPHA / 2
    # No δ is above 1: whatever the pair costs, these runs would not show it.
    if seen > 1 and not violated:
        why = f"{num:,} runs whose losses lie so far apart would show no violation, however large"
        return inconclusive(name, claim, why, **{k: v for k, v in details.items() if k != "power"})
    if guarantee.rho is not None:  # what this very pair costs, were all runs alike
        details["epsilon_of_the_pair"] = (
            gaussian.epsilon_exact(best["mu"] ** 2 / 2, delta) if best["mu"] else 0.0
        )
    return Finding(
        audit=name,
        claim=claim,
        measured=best["bound"],
        claimed=claimed,
        lower=best["bound"],
        confidence=0.95,
        verdict="violated" if violated else "consistent",
        details=details,
    )


def _pilot(num: int) -> int:
    """Runs of a pilot for `num` runs."""
    return int(np.clip(num // 4, LEAST_PILOT, PILOT))


def _best_tilt(
    pair: Pair, guarantee: Guarantee, delta: float, key: jax.Array, num: int, half: float | None
) -> tuple[Tilt, float]:
    """(the tilt whose pilot bounds ε best, B: the largest term that the pilot saw, and 10% more).

    Of plain runs B is 1, and the mean of the terms is δ.

    Args:
      num: runs of a pilot.
      half: about half of μ²; None: a pilot of plain runs tells.
    """
    priced_rate = sampled_loss.rate(pair.mechanism)
    plain_key, *keys = jax.random.split(key, 8)
    plain = Tilt(1.0, priced_rate)
    if half is None:
        half = float(np.mean(pair.draw(plain_key, num, plain)[1]))
    candidates = []
    if half > 0 and math.isfinite(half):
        guess = gaussian.epsilon_exact(half, delta)
        candidates.append(Tilt(max(1.0, guess / (2 * half) + 0.5), priced_rate))
        if any(isinstance(loss, SubsampledGaussian) for loss in guarantee.losses):
            candidates += sampled_loss.tilts(pair.mechanism, Tilt)
    best, most_precise = (plain, 1.0), delta
    for k, tilt in zip(keys, candidates, strict=False):
        losses, _ = pair.draw(k, num, tilt)
        if not (np.isfinite(losses.loss).all() and np.isfinite(losses.log_weight).all()):
            continue
        guess = loss_bound.estimate(losses, delta)
        if not math.isfinite(guess):
            continue
        terms = loss_bound.terms(losses, guess)
        largest = 1.1 * float(np.max(terms))
        # The share of heads: the rarer they are, the fewer runs say anything.
        precise = float(np.mean(terms) / max(largest, 1e-300))
        if precise > most_precise:
            best, most_precise = (tilt, largest), precise
    return best


def _largest(
    pairs: list[Pair],
    guarantee: Guarantee,
    key: jax.Array,
    num: int,
    replay: dict,
    still: Sequence[Still] = (),
) -> Finding:
    """The largest loss of any response found, against a pure ε."""
    claimed = math.fsum(loss.epsilon for loss in guarantee.losses if isinstance(loss, Pure))
    losses = [
        (float(np.max(pair.draw(k, num, Tilt(shift, 1.0))[0].loss)), direction, shift)
        for pair, direction in zip(pairs, DIRECTIONS, strict=True)
        for k, shift in zip(jax.random.split(key, len(FAR)), FAR, strict=True)
    ]
    name, claim = "privacy loss: largest", f"no response has a privacy loss above {claimed:.6g}"
    measured, direction, shift = max(losses)
    if math.isnan(measured):
        return inconclusive(name, claim, "the loss is not a number", replay=replay)
    at = max(still, key=lambda one: one.loss, default=None)
    if at is not None and at.loss > measured:
        measured, direction, shift = at.loss, DIRECTIONS[0], None
        replay = replay | {"pair": at.pair}
    return Finding(
        audit=name,
        claim=claim,
        measured=measured,
        claimed=claimed,
        lower=measured,
        verdict="violated" if measured > claimed * (1 + TOLERANCE) + TOLERANCE else "consistent",
        details={
            "direction": direction,
            "shift": shift,
            "power": (
                f"any loss above ε by more than {TOLERANCE:g} of it, among the responses tried,"
                " would be seen; where noise is added, the statistics of all neighbours tried are"
                " among them, and no response of a Laplace law has a larger loss"
            ),
            "replay": replay,
        },
    )
