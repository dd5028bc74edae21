"""A lower bound on ε from the release of one run with many canaries (see `judging`).

Where all guesses about one run may be right under the claim, several runs are attacked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from accounting.guarantee import Guarantee
from audits.finding import ALPHA, Finding, inconclusive, not_applicable
from audits.release import canaries, guesses, judging, roc, shadows
from audits.release.guesses import Tried
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.silent import silent
from dpmf_jax.protocol import Mechanism

NUM_CANARIES = 256
LEAST = 32  # runs with known coins
RUNS = 8  # that are attacked where one could refute nothing
WORK = 1 << 27  # `shadows.work` times runs, about what ten seconds can do


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    num_canaries: int = NUM_CANARIES,
    num_known: int | None = None,
    control: Callable[[Mechanism], Mechanism] = silent,
) -> list[Finding]:
    """One finding: many canaries in one run, guessed from its release alone.

    Other runs without noise show what each coin does to each prediction, and a few with it show how
    much noise there is. Then all coins of the one run are estimated together. A canary is a rating
    that is there or not, or low or high, as the unit of the guarantee has it. Where not even right
    guesses alone refute the claim, `RUNS` runs are attacked, and counted run by run.

    violated: refuted at `finding.ALPHA`, all canaries guessed.
    measured: a lower bound on ε, by the surest guesses where the claim is more than one (ε, δ).

    Args:
      num_canaries: at most, and a quarter of the ratings at most. Each changes the data of the
        others.
      num_known: runs without noise whose coins are known; None: what ten seconds can do, at least
        32.
      control: mechanism -> the same without noise (`Spec.control`).
    """
    name, guarantee = "one run: many canaries", mechanism.guarantee(num_steps)
    claim = "whose coin fell how is guessed no better than the price allows"
    if why := why_not_attacked(mechanism, data, guarantee):
        return [not_applicable(name, claim, why)]
    choose_key, coin_key, run_key, start_key = jax.random.split(key, 4)
    presence = guarantee.unit != "rating value"
    side = shadows.one_sided(shadows.released(mechanism, data))
    plan = canaries.plan(
        np.random.default_rng(np.asarray(jax.random.bits(choose_key, (4,)))),
        ratings,
        data,
        presence=presence,
        side=side,
        change=guarantee.largest_change,
        num_ratings=num_canaries,
        num_users=0,
    )
    most = 2 * plan.num + LEAST
    known = num_known or int(np.clip(WORK // shadows.work(ratings, num_steps), LEAST, most))
    promised = judging.claim_at(guarantee, plan.num)
    attacked = 1 if judging.least_right(plan.num, plan.num, promised, ALPHA) is not None else RUNS
    coins = np.asarray(jax.random.bernoulli(coin_key, 0.5, (known + LEAST + attacked, plan.num)))
    found = [
        shadows.observe(
            ((which, num_steps),),
            ratings,
            data,
            plan,
            coins=coins[part],
            keys=jax.random.split(run_key, len(coins))[part],
            starts=jnp.repeat(start_key[None], len(coins[part])),
            stranger=np.zeros(len(coins[part]), bool),
            at_once=-(-(LEAST + 1) // 2),
        ).predictions[:, 0]
        for which, part in (
            (control(mechanism), slice(known)),
            (mechanism, slice(known, None)),
        )
    ]
    replay = {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "pair": canaries.describe(ratings, plan),
        "data_sha256": ratings.sha256(),
        "step": num_steps,
    }
    if not all(np.isfinite(part).all() for part in found):
        return [
            inconclusive(name, claim, "the descent diverged; lower learning_rate", replay=replay)
        ]
    plain, noisy = found
    effects = _effects(plain, coins[:known])
    inside = coins[-attacked:]
    noise = noisy[:LEAST] - effects.of(coins[known:-attacked])
    scores = _decoded(noisy[LEAST:], effects, noise)
    promised = judging.claim_at(guarantee, inside.size)
    shares = [judging.best_share(inside.size, promised, alpha) for alpha in (0.05, ALPHA)]
    test = Tried(
        *(guesses.guess(scores, inside, (share, share)) for share in shares),
        guesses.guess_surest_of_runs(
            scores, inside, judging.best_share(plan.num, promised, ALPHA / 2, runs=attacked)
        )
        if attacked > 1
        else None,
    )
    epsilon, delta = promised.epsilon, promised.delta
    details: dict[str, Any] = {
        "canaries": plan.num,
        "runs_attacked": attacked,
        "unit": guarantee.unit,
    }
    if 0 < np.sum(inside) < inside.size:
        details["attack"] = roc.summary(scores, inside)
    return [
        judging.judge(
            name,
            f"whose coin fell how is guessed no better than (ε, δ) = ({epsilon:.6g}, {delta:g})"
            " allows",
            {"control": test},
            promised,
            details=details,
            replay=replay,
        )
    ]


class Effects(NamedTuple):
    """What coins do to predictions.

    Attributes:
      base: predictions with all canaries out.
      each: what each coin adds to each prediction, float64[canaries, canaries].
    """

    base: np.ndarray
    each: np.ndarray

    def of(self, coins: np.ndarray) -> np.ndarray:
        return self.base + coins @ self.each


def _effects(seen: np.ndarray, coins: np.ndarray) -> Effects:
    """Effects by least squares; with too few runs, of each prediction's own coin alone."""
    runs, num = coins.shape
    if runs >= 2 * num:
        # LAPACK's gelsy: a fifth of gelsd's time at 1,000 canaries, with no singular values
        design = np.column_stack([np.ones(runs), coins])
        solved = scipy.linalg.lstsq(design, seen, lapack_driver="gelsy")[0]
        return Effects(solved[0], solved[1:])
    inside, outside = (
        np.where(way, seen, 0.0).sum(0) / np.maximum(way.sum(0), 1) for way in (coins, ~coins)
    )
    return Effects(outside, np.diag(inside - outside))


def _decoded(seen: np.ndarray, effects: Effects, noise: np.ndarray) -> np.ndarray:
    """The best linear estimate of every coin, less a half.

    seen: [canaries], or [attacked runs, canaries], and so is what is returned.
    noise: [runs, canaries], what the effects do not explain.
    """
    spread = np.mean(noise**2, axis=0)
    covariance = effects.each.T @ effects.each / 4 + np.diag(spread + 1e-9 * np.max(spread) + 1e-12)
    moved = seen - effects.of(np.full(len(covariance), 0.5))
    return (effects.each @ np.linalg.solve(covariance, moved.T)).T


def why_not_attacked(mechanism: Mechanism, data: Layout, guarantee: Guarantee) -> str | None:
    """Why there is nothing to refute or to look at; None where there is something."""
    if shadows.nothing_released(shadows.released(mechanism, data)):
        return "nothing is released"
    if guarantee.status == "none":
        return f"{guarantee.mechanism} (status none) states no price"
    return None
