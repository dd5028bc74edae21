"""How much a transcript tells two neighbouring data sets apart, held against the price, at two
values of δ.

Many runs are drawn, the responses of one world driving both; their losses add up over the steps and
bound ε from below by exact counts (`loss_bound`). For a small δ, which plain runs hardly ever
reach, responses are drawn around statistics shifted away from the other world's, and weighed by the
ratio of the densities.

On trial is what the guarantee's losses cost at each δ, not a looser form of it. The start is the
same in all runs: it is public. Where who is sampled is secret, everybody else's coins are known and
only the record's own is not (`sampled_loss`). All of it believes `log_ratio`, so the density audit
comes first: where that is violated, nothing is said here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting import gaussian, price
from accounting.guarantee import Guarantee, Unit
from accounting.loss import Pure, SubsampledGaussian
from audits import neighbours, side_by_side
from audits.finding import ALPHA, Finding, inconclusive, not_applicable
from audits.mechanism import density, loss_bound, sampled_loss
from audits.mechanism.loss_bound import Losses
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.noise.laws import Report
from dpmf_jax.protocol import Mechanism

DELTAS = (1e-2, 1e-5)
NUM_RUNS, LEAST = 3_000, 64
PILOT, LEAST_PILOT, FAR_PILOT = 256, 16, 64
CHUNK = 16  # runs of one call
MOST_RUNS = 30_000  # where they cost next to nothing
WORK, SMALL_WORK = (
    1 << 28,
    1 << 23,
)  # ratings times steps times runs: about what a minute can do, and a second
FAR = (1.0, 3.0, 30.0, 300.0)  # shifts of the search for the largest loss
BATCH_BYTES = 1 << 24
TOLERANCE = 1e-4  # of a pure ε, for float32 sums
CLAIM = "the privacy loss stays within the price"
DIRECTIONS = ("the data set against its neighbour", "the neighbour against the data set")


class Tilt(NamedTuple):
    """The law that responses are drawn from: around other + shift·(own - other); of a sampled
    record, in the sample with probability `rate` in place of the priced one. A shift of 1 (and the
    priced rate) is the data set's own law.
    """

    shift: jax.Array | float
    rate: jax.Array | float


class Found(NamedTuple):
    """Of a run: L, log w, and the loss of the response that has no noise (a Gaussian's is half of
    μ²), or L again.
    """

    loss: Any
    log_weight: Any
    centred: Any


def _run(
    mechanism: Mechanism,
    states: tuple[Any, Any],
    key: jax.Array,
    worlds: tuple[Any, Any],
    tilt: Tilt,
    num_steps: int,
) -> Found:
    def step(carry: tuple[Any, Found], key: jax.Array) -> tuple[tuple[Any, Found], None]:
        states, found = carry
        coins_key, noise_key = jax.random.split(key)
        coins = mechanism.coins(coins_key)
        if sampled_loss.sampling(coins) is None:
            own, other = (
                mechanism.query(state, data, coins)[0]
                for state, data in zip(states, worlds, strict=True)
            )
            around = jax.tree.map(lambda a, b: _shifted(a, b, jnp.float32(tilt.shift)), own, other)
            response = mechanism.noise.sample(noise_key, around)
            loss = mechanism.noise.log_ratio(response, own, other)
            log_weight = mechanism.noise.log_ratio(response, own, around)
            log_weight = jnp.where(tilt.shift == 1, 0.0, log_weight)
            like = jax.tree.structure(response) == jax.tree.structure(
                own
            )  # else a response is not statistics and noise
            centred = mechanism.noise.log_ratio(own, own, other) if like else loss
        else:
            response, loss, log_weight, centred = sampled_loss.step(
                mechanism, noise_key, coins, states, worlds, tilt.shift, tilt.rate
            )
        states = tuple(
            mechanism.update(state, response, data)._replace(step=state.step + 1)
            for state, data in zip(states, worlds, strict=True)
        )
        return (states, jax.tree.map(jnp.add, found, Found(loss, log_weight, centred))), None

    nothing = Found(*(jnp.float32(0) for _ in Found._fields))
    (_, found), _ = jax.lax.scan(step, (states, nothing), jax.random.split(key, num_steps))
    return found


def _shifted(own: jax.Array, other: jax.Array, shift: jax.Array) -> jax.Array:
    """other + shift · (own - other); of sums mod 2^32 in whole steps, and not further than a
    quarter of the ring.
    """
    if jnp.issubdtype(own.dtype, jnp.floating):
        return jnp.where(shift == 1, own, own + (shift - 1) * (own - other))
    if own.dtype != jnp.uint32:
        return own
    apart = jax.lax.bitcast_convert_type(own - other, jnp.int32).astype(jnp.float32)
    steps = jnp.clip(jnp.rint((shift - 1) * apart), -(2.0**30), 2.0**30).astype(jnp.int32)
    return own + jax.lax.bitcast_convert_type(steps, jnp.uint32)


@jax.jit
def _start(mechanism: Mechanism, key: jax.Array, data: Any) -> Any:
    return mechanism.init(key, data, None)


@partial(jax.jit, static_argnames=("num_steps", "batch"))
def _draw(
    mechanism: Mechanism,
    states: tuple[Any, Any],
    keys: jax.Array,
    worlds: tuple[Any, Any],
    tilt: Tilt,
    num_steps: int,
    batch: int,
) -> Found:
    """`Found` of a run of the first world for each key; one compiled program for all pairs and
    tilts.
    """
    return jax.lax.map(
        lambda key: _run(mechanism, states, key, worlds, tilt, num_steps), keys, batch_size=batch
    )


@partial(jax.jit, static_argnames=("unit", "num_steps", "batch"))
def _search(
    mechanism: Mechanism,
    start_key: jax.Array,
    key: jax.Array,
    data: Any,
    stacked: neighbours.Neighbour,
    *,
    unit: Unit,
    num_steps: int,
    batch: int,
) -> jax.Array:
    """`Found.centred` of one run against each neighbour."""
    own = mechanism.init(start_key, data, None)

    def one(neighbour: neighbours.Neighbour) -> jax.Array:
        worlds = (data, neighbours.apply(unit, data, neighbour))
        states = (own, mechanism.init(start_key, worlds[1], None))
        return _run(
            mechanism, states, key, worlds, Tilt(1.0, sampled_loss.rate(mechanism)), num_steps
        ).centred

    return jax.lax.map(one, stacked, batch_size=batch)


class Trial(NamedTuple):
    """A pair of worlds on trial, in one direction; everything but δ that drawing needs."""

    mechanism: Mechanism
    states: tuple[Any, Any]
    worlds: tuple[Any, Any]
    num_steps: int
    batch: int

    def draw(self, key: jax.Array, num: int, tilt: Tilt) -> tuple[Losses, np.ndarray]:
        """(Losses, `Found.centred`) of `num` runs, on the host in float64."""
        at = Tilt(jnp.float32(tilt.shift), jnp.float32(tilt.rate))
        keys = jax.random.split(key, -(-num // CHUNK) * CHUNK).reshape(-1, CHUNK)

        def drawn(some: jax.Array) -> Found:
            found = _draw(
                self.mechanism, self.states, some, self.worlds, at, self.num_steps, self.batch
            )
            return Found(*(np.asarray(part, np.float64) for part in found))

        chunks = side_by_side.calls(drawn, list(keys))
        loss, log_weight, centred = (
            np.concatenate(parts)[:num] for parts in zip(*chunks, strict=True)
        )
        return Losses(loss, log_weight), centred


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Any,
    *,
    key: jax.Array,
    num_steps: int,
    num_neighbours: int = 64,
    num_runs: int | None = None,
    deltas: tuple[float, ...] = DELTAS,
    density_findings: Sequence[Finding] | None = None,
) -> list[Finding]:
    """A finding for each δ, and for a pure price one more, on the neighbour that a run tells apart
    best.

    violated: ε(δ) is refuted at `finding.ALPHA` in one of both directions (half of it each).
    measured: a lower bound on ε at this δ, right with 95% (each direction 97.5%). A pure price is
    refuted by any response above it.

    Args:
      num_neighbours: how many are tried for the pair. num_runs: of each direction and δ; None:
        3,000; more where that takes a second, and fewer where it would take more than about a
        minute, but at least 64.
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
        lambda m, d, k: m.query(m.init(k, d, None), d, m.coins(k))[0], mechanism, data, start_key
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

    def searched(some: neighbours.Neighbour) -> np.ndarray:
        options = {"unit": guarantee.unit, "num_steps": num_steps, "batch": batch}
        return np.asarray(
            _search(mechanism, start_key, search_key, data, some, **options), np.float64
        )

    apart = np.zeros(1)
    if tried.num > 1:
        apart = np.concatenate(
            side_by_side.calls(searched, neighbours.parts(tried.stacked, batch))
        )[: tried.num]
    worst = int(np.argmax(np.where(np.isnan(apart), np.inf, apart)))
    neighbour = jax.tree.map(lambda leaf: leaf[worst], tried.stacked)
    worlds = (data, neighbours.apply(guarantee.unit, data, neighbour))
    states = (_start(mechanism, start_key, worlds[0]), _start(mechanism, start_key, worlds[1]))
    if why := sampled_loss.unknown(mechanism, guarantee, coins_key, states, worlds):
        return [inconclusive(name, CLAIM, why) for name in names]
    cost = num_steps * max(ratings.num_ratings, 1)
    num = num_runs or int(
        np.clip(WORK // cost, LEAST, max(NUM_RUNS, min(SMALL_WORK // cost, MOST_RUNS)))
    )
    batch = int(np.clip(BATCH_BYTES // size, 1, CHUNK))
    trials = [Trial(mechanism, states[::way], worlds[::way], num_steps, batch) for way in (1, -1)]
    replay = {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "pair": neighbours.describe(ratings, tried, worst),
        "data_sha256": ratings.sha256(),
    }
    # what the search saw is enough of a guess but where a record is mostly not sampled
    half = float(apart[worst]) if tried.num > 1 and sampled_loss.of(mechanism) is None else None
    keys = jax.random.split(draw_key, len(deltas) + 1)
    findings = [
        _at(trials, guarantee, delta, key=k, num=num, half=half, name=name, replay=replay)
        for delta, name, k in zip(deltas, names, keys, strict=False)
    ]
    if all(isinstance(loss, Pure) for loss in guarantee.losses):
        findings.append(_largest(trials, guarantee, keys[-1], min(_pilot(num), FAR_PILOT), replay))
    return findings


def _at(
    trials: list[Trial],
    guarantee: Guarantee,
    delta: float,
    *,
    key: jax.Array,
    num: int,
    half: float | None,
    name: str,
    replay: dict,
) -> Finding:
    claimed = price.epsilon(guarantee.losses, delta, unit=guarantee.unit)
    claim = (
        f"the privacy loss has δ({claimed:.6g}) ≤ {delta:g}, the price of {guarantee.steps} steps"
    )
    results: list[dict[str, Any]] = []
    for trial, direction, k in zip(
        trials, DIRECTIONS, jax.random.split(key, len(trials)), strict=True
    ):
        pilot_key, draw_key, coin_key = jax.random.split(k, 3)
        tilt, largest = _chosen(trial, guarantee, delta, pilot_key, _pilot(num), half)
        losses, centred = trial.draw(draw_key, num, tilt)
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
    if (
        seen > 1 and not violated
    ):  # no δ is as large: whatever the pair costs, nothing was to be seen
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


def _chosen(
    trial: Trial, guarantee: Guarantee, delta: float, key: jax.Array, num: int, half: float | None
) -> tuple[Tilt, float]:
    """The tilt whose pilot, of `num` runs, bounds ε best, and B: the largest term that it saw, and
    some more.

    half: about half of μ²; None: a pilot of plain runs tells. That of the terms of plain runs,
      whose B is 1, is δ.
    """
    priced_rate = sampled_loss.rate(trial.mechanism)
    plain_key, *keys = jax.random.split(key, 8)
    plain = Tilt(1.0, priced_rate)
    if half is None:
        half = float(np.mean(trial.draw(plain_key, num, plain)[1]))
    candidates = []
    if half > 0 and math.isfinite(half):
        guess = gaussian.epsilon_exact(half, delta)
        candidates.append(Tilt(max(1.0, guess / (2 * half) + 0.5), priced_rate))
        if any(isinstance(loss, SubsampledGaussian) for loss in guarantee.losses):
            candidates += sampled_loss.tilts(trial.mechanism, Tilt)
    best, found = (plain, 1.0), delta
    for k, tilt in zip(keys, candidates, strict=False):
        losses, _ = trial.draw(k, num, tilt)
        if not (np.isfinite(losses.loss).all() and np.isfinite(losses.log_weight).all()):
            continue
        guess = loss_bound.estimate(losses, delta)
        if not math.isfinite(guess):
            continue
        terms = loss_bound.terms(losses, guess)
        largest = 1.1 * float(np.max(terms))
        precise = float(
            np.mean(terms) / max(largest, 1e-300)
        )  # the rarer heads are, the fewer runs say anything
        if precise > found:
            best, found = (tilt, largest), precise
    return best


def _largest(
    trials: list[Trial], guarantee: Guarantee, key: jax.Array, num: int, replay: dict
) -> Finding:
    """The largest loss of any response found, against a pure ε."""
    claimed = math.fsum(loss.epsilon for loss in guarantee.losses if isinstance(loss, Pure))
    found = [
        (float(np.max(trial.draw(k, num, Tilt(shift, 1.0))[0].loss)), direction, shift)
        for trial, direction in zip(trials, DIRECTIONS, strict=True)
        for k, shift in zip(jax.random.split(key, len(FAR)), FAR, strict=True)
    ]
    name, claim = "privacy loss: largest", f"no response has a privacy loss above {claimed:.6g}"
    measured, direction, shift = max(found)
    if math.isnan(measured):
        return inconclusive(name, claim, "the loss is not a number", replay=replay)
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
                " would be seen"
            ),
            "replay": replay,
        },
    )
