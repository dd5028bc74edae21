"""Two attacks on what a release predicts of a canary: each makes a score of it, high where the
canary was in.

- loss threshold: the smaller the error at the record, the likelier it was in (Yeom et al. 2018), or
  the other way round where shadows say so;
- LiRA: the ratio of two Gaussians, of what shadows with and without the record predict (Carlini et
  al. 2022).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from audits.release import roc
from audits.release.canaries import Plan

ATTACKS = ("loss threshold", "LiRA")
PRIOR = 8.0  # how many runs the spread over all canaries counts for beside a canary's own


class Scores(NamedTuple):
    """Of one attack: of the shadows, each as if it had not been fitted to, and of the trials;
    [runs, canaries].
    """

    shadows: np.ndarray
    trials: np.ndarray


def _statistic(seen: np.ndarray, plan: Plan) -> np.ndarray:
    """[runs, canaries]: how much better the prediction suits the canary in than out, squared, over
    its probes.
    """
    fits = -((seen - plan.value_in) ** 2)
    if not plan.presence:
        fits = fits + (seen - plan.value_out) ** 2
    return _mean(fits, plan)


def _mean(each: np.ndarray, plan: Plan) -> np.ndarray:
    """[runs, probes] -> [runs, canaries]."""
    member = (plan.owner[:, None] == np.arange(plan.num)).astype(np.float64)
    return each @ (member / np.maximum(member.sum(0), 1))


def score(
    attack: str,
    seen: np.ndarray,
    plan: Plan,
    chosen: np.ndarray,
    inside: np.ndarray,
    own: np.ndarray,
    attacked: np.ndarray,
) -> Scores:
    """One of `ATTACKS` on some canaries; high scores are guessed "in".

    Args:
      seen: predictions, [runs, probes]. chosen: bool[canaries]; inside: bool[runs, chosen], their
        coins.
      own, attacked: bool[runs], the attacker's shadows and the runs that are attacked.
    """
    statistic = _statistic(seen, plan)[:, chosen]
    if attack == "loss threshold":
        return _turned(Scores(statistic[own], statistic[attacked]), inside[own])
    single = np.arange(plan.num)[chosen] < plan.num_ratings
    statistic = np.where(
        single, _mean(seen, plan)[:, chosen], statistic
    )  # of a single rating, its side counts too
    return _turned(likelihood_ratios(statistic[own], inside[own], statistic[attacked]), inside[own])


def likelihood_ratios(own: np.ndarray, inside: np.ndarray, attacked: np.ndarray) -> Scores:
    """log N(x; in) - log N(x; out), per canary: means and spreads of the shadows in which it was
    in, and out.

    A spread is drawn to the one over all canaries, since a canary has few shadows. A shadow's own
    score is from the canary's other shadows.
    """
    ways = [_leave_one_out(own, inside == way) for way in (True, False)]
    scores = [
        sum(
            sign * _log_normal(x, mean, spread)
            for sign, (mean, spread) in zip((1, -1), way, strict=True)
        )
        for x, way in (
            (own, [(mean, spread) for (mean, spread), _ in ways]),
            (attacked, [whole for _, whole in ways]),
        )
    ]
    return Scores(np.asarray(scores[0]), np.asarray(scores[1]))


def _leave_one_out(x: np.ndarray, taken: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """(mean, spread) of the runs taken: at each run from the others, [runs, canaries]; from all,
    [canaries].
    """
    count, total = taken.sum(0), np.where(taken, x, 0.0).sum(0)
    center = total / np.maximum(count, 1)
    squares = np.where(taken, (x - center) ** 2, 0.0).sum(0)
    typical = np.sum(squares) / max(1, np.sum(np.maximum(count - 1, 0)))

    def spread(squared: np.ndarray, num: np.ndarray) -> np.ndarray:
        return np.sqrt((squared + PRIOR * typical) / (np.maximum(num - 1, 0) + PRIOR) + 1e-12)

    left = np.maximum(count - taken, 1)
    away = np.where(taken, x - center, 0.0)
    without = np.where(taken, (total - x) / left, center)
    remaining = np.maximum(squares - away**2 * count / np.maximum(count - 1, 1), 0.0)
    return (without, spread(remaining, count - taken)), (center, spread(squares, count))


def _log_normal(x: np.ndarray, mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    return -0.5 * ((x - mean) / spread) ** 2 - np.log(spread)


def _turned(scores: Scores, inside: np.ndarray) -> Scores:
    """High for members, as the shadows have it: a vector fitted to one record may suit it better
    where it was out.
    """
    sign = 1.0 if roc.auc(scores.shadows, inside) >= 0.5 else -1.0
    return Scores(sign * scores.shadows, sign * scores.trials)
