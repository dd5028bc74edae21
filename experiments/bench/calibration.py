"""False alarms of the audits on what is true, and their power on noise that is a little too small.

- calibration: each audit that rests on chance, many times over on what is true, each time with
  other randomness. How often its p-value is at most 0.05, and how often it said `violated`, which
  may happen once in 1 / `finding.ALPHA`.
- power: noise of 0.95 of the priced scale, in the sampler and in its density; how often 3,000
  transcripts showed it.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from experiments.bench.audited import DELTAS, joint, small

LEVEL = 0.05  # of the p-values that are counted


def calibration(trials: int) -> Iterator[dict[str, Any]]:
    """Rows of audits of what is true. allowed: 5% and three standard errors."""
    costly = max(trials // 10, 10)
    yield _row("noise: scale", [_null_scale(seed) for seed in range(trials)])
    yield _row("noise: independence", [_null_independence(seed) for seed in range(trials)])
    yield _row("density: sampler", [_null_density(seed) for seed in range(trials)])
    for delta in DELTAS:
        yield _row(
            f"privacy loss: δ = {delta:g}, Gaussian losses",
            [_null_loss(s, delta) for s in range(trials)],
        )
    yield _row("privacy loss: δ = 0.01, transcripts", [*_null_transcripts(costly)])
    yield _row("guesses, under a Gaussian curve", [_null_guesses(seed) for seed in range(trials)])


class Trial(NamedTuple):
    p_value: float
    violated: bool


def _row(name: str, trials: list[Trial]) -> dict[str, Any]:
    num = len(trials)
    return {
        "audit": name,
        "trials": num,
        "rejected_at_5%": float(np.mean([trial.p_value <= LEVEL for trial in trials])),
        "allowed": LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / num),
        "violated": sum(trial.violated for trial in trials),
    }


def _null_scale(seed: int) -> Trial:
    from audits.mechanism import sampler

    random = np.random.default_rng(seed)
    drawn = [random.normal(size=(40, 30)) * 1.7 for _ in range(3)]
    finding = sampler._scale(drawn, 1.7, 1e-5, 1, {})
    # Massart's bound of the tail, over three worlds
    p = min(1.0, 3 * 2 * math.exp(-2 * drawn[0].size * finding.details["ks_distance"] ** 2))
    return Trial(p, finding.verdict == "violated")


def _null_independence(seed: int) -> Trial:
    from audits.mechanism import sampler

    random = np.random.default_rng(seed)
    leaves = [random.normal(size=(5, 30)), random.normal(size=(5, 12))]
    finding = sampler._independence(leaves, 1.0, {})
    return Trial(
        min(1.0, 2 * finding.details["pairs"] * finding.details["p_value"]),
        finding.verdict == "violated",
    )


def _null_density(seed: int) -> Trial:
    from scipy.special import ndtr

    from audits.mechanism import density

    random = np.random.default_rng(seed)
    finding = density._sampler(0.7**2 / 2 + 0.7 * random.normal(size=density.DRAWS), {})
    assert finding.measured is not None
    assert finding.upper is not None
    error = (finding.upper - finding.measured) / 1.96
    return Trial(float(2 * ndtr(-abs(finding.measured - 1) / error)), finding.verdict == "violated")


def _null_loss(seed: int, delta: float) -> Trial:
    """1,000 losses of a Gaussian pair of μ = 1, drawn with the tilt that the audit would take."""
    from accounting import gaussian
    from audits.finding import ALPHA
    from audits.mechanism import loss_bound

    random = np.random.default_rng(seed)
    mu, num = 1.0, 1_000
    epsilon = gaussian.epsilon_exact(mu**2 / 2, delta)
    shift = max(1.0, epsilon / mu**2 + 0.5)
    # ⟨response - other, own - other⟩/σ², of a response around other + shift·(own - other)
    place = shift * mu**2 + mu * random.normal(size=num)
    loss = place - mu**2 / 2
    log_weight = (1 - shift) * place - (1 - shift**2) * mu**2 / 2
    at = np.log(shift / (shift - 1)) if shift > 1 else np.inf
    largest = 1.0
    if shift > 1:
        largest = float(
            -np.expm1(-at) * np.exp(-(shift - 1) * (epsilon + at) + shift * (shift - 1) * mu**2 / 2)
        )
    scored = loss_bound.scores(
        loss_bound.Losses(loss, log_weight), random.random(num), 1.05 * largest
    )
    p = loss_bound.p_value(scored, epsilon, delta, 1.05 * largest)
    return Trial(p, p <= ALPHA)


def _audited(made: Any, trials: int, num_runs: int, delta: float) -> Iterator[Any]:
    """Findings of many audits of one mechanism; one compiled program."""
    from audits.mechanism import privacy_loss
    from dpmf_jax import layout
    from dpmf_jax.noise import keys

    ratings = small()
    data = layout.make(ratings, num_devices=1)
    for seed in range(trials):
        [finding] = privacy_loss.audit(
            made,
            ratings,
            data,
            key=keys.from_seed(seed),
            num_steps=20,
            num_neighbours=8,
            num_runs=num_runs,
            deltas=(delta,),
        )
        yield finding


def _null_guesses(seed: int) -> Trial:
    """The surest 80 of 400 canaries, each behind its own noise, at a claim that holds exactly."""
    from audits.finding import ALPHA
    from audits.release import trade_off
    from experiments.bench import guessing

    mu = 1.5
    made = guessing.surest(np.random.default_rng(seed), 400, mu, 0.1)
    p = trade_off.p_value(made, _curve(mu))
    return Trial(p, p <= ALPHA)


@functools.cache
def _curve(mu: float) -> Any:
    from audits.release import trade_off

    return trade_off.of_gaussian(mu)


def _null_transcripts(trials: int) -> Iterator[Trial]:
    for finding in _audited(joint(20), trials, 512, 1e-2):
        p = min(1.0, 2 * min(direction["p_value"] for direction in finding.details["directions"]))
        yield Trial(p, finding.verdict == "violated")


def power(trials: int, share: float = 0.95, num_runs: int = 3_000) -> Iterator[dict[str, Any]]:
    """How often the same audit at the same α sees noise that is `share` of what is priced."""
    from dpmf_jax.noise import whole

    made = joint(20)
    scale = np.float32(share * made.guarantee(1).noise_scale)
    less = made._replace(noise=whole.rounded_normal(float(scale)))
    for delta in DELTAS:
        start = time.perf_counter()
        seen = [
            finding.verdict == "violated" for finding in _audited(less, trials, num_runs, delta)
        ]
        yield {
            "audit": f"privacy loss: δ = {delta:g}",
            "planted": f"σ × {share:g} in sample and log_prob",
            "trials": trials,
            "seen": float(np.mean(seen)),
            "goal": 0.95,
            "runs": num_runs,
            "seconds_each": (time.perf_counter() - start) / trials,
        }
