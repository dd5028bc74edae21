"""Four attacks on what a release holds of a canary; each scores high where the canary was in.

- loss threshold: the smaller the error at the record, the likelier it was in (Yeom et al. 2018), or
  the other way round where shadows say so.
- LiRA: the ratio of two Gaussians, fitted to what shadows with and without the record predict
  (Carlini et al. 2022).
- matched filter: shadows say by linear regression how every coin moves every released number; all
  coins of a run are estimated together, by the best linear estimate. Predictions at a user's
  ratings hardly change where a whole user goes; the sum over all that changed does.
- lists: the same filter on which items are recommended to other users, where an attacker sees no
  more than that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from audits.release import roc
from audits.release.canaries import Plan

LISTS = "lists"
ATTACKS = ("loss threshold", "LiRA", "matched filter", LISTS)
FOLDS = 4  # of an attacker's shadows, each of which is scored by the others
PRIOR = 8.0  # how many runs of a canary the spread over all canaries counts for


class Scores(NamedTuple):
    """Scores of one attack, [runs, canaries].

    Attributes:
      shadows: of the shadows, each as if the attack had not been fitted to it.
      trials: of the runs that are attacked.
    """

    shadows: np.ndarray
    trials: np.ndarray


def _statistic(seen: np.ndarray, plan: Plan) -> np.ndarray:
    """How much better predictions suit the canary in than out, [runs, canaries].

    By squared error, over the canary's probes.
    """
    fits = -((seen - plan.value_in) ** 2)
    if not plan.presence:
        fits = fits + (seen - plan.value_out) ** 2
    return _mean(fits, plan)


def _mean(each: np.ndarray, plan: Plan) -> np.ndarray:
    """Means over each canary's probes, [runs, probes] -> [runs, canaries]."""
    member = (plan.owner[:, None] == np.arange(plan.num)).astype(np.float64)
    return each @ (member / np.maximum(member.sum(0), 1))


def score(
    attack: str,
    seen: np.ndarray,
    rows: np.ndarray,
    lists: np.ndarray,
    plan: Plan,
    chosen: np.ndarray,
    coins: np.ndarray,
    own: np.ndarray,
    attacked: np.ndarray,
) -> Scores:
    """Scores of one of `ATTACKS` on some canaries; high scores are guessed "in".

    Args:
      seen: predictions, [runs, probes].
      rows: released numbers, [runs, numbers].
      lists: recommended items, [runs, watchers, items].
      chosen: bool[canaries], which are scored.
      coins: bool[runs, canaries].
      own: bool[runs], the attacker's shadows.
      attacked: bool[runs], the runs that are attacked.
    """
    inside = coins[:, chosen]
    if attack in ("matched filter", LISTS):
        rows = _shown(lists, own) if attack == LISTS else rows
        tossed = chosen | (coins[own].any(0) & ~coins[own].all(0))  # others are always in
        found = matched_filter(rows[own], coins[own][:, tossed], rows[attacked])
        return Scores(found.shadows[:, chosen[tossed]], found.trials[:, chosen[tossed]])
    statistic = _statistic(seen, plan)[:, chosen]
    if attack == "loss threshold":
        return _high_for_members(Scores(statistic[own], statistic[attacked]), inside[own])
    single = np.arange(plan.num)[chosen] < plan.num_ratings
    statistic = np.where(
        single, _mean(seen, plan)[:, chosen], statistic
    )  # of a single rating, its side counts too
    return _high_for_members(
        likelihood_ratios(statistic[own], inside[own], statistic[attacked]), inside[own]
    )


def _shown(lists: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Whether each watcher is shown each item, [runs, pairs], of pairs that shadows differ in."""
    runs, watchers, _ = lists.shape
    codes = (lists * watchers + np.arange(watchers)[:, None]).reshape(runs, -1)
    pairs, times = np.unique(codes[own], return_counts=True)
    pairs = pairs[times < np.sum(own)]
    at = np.minimum(np.searchsorted(pairs, codes), max(0, len(pairs) - 1))
    shown = np.zeros((runs, len(pairs)))
    if len(pairs):
        run, place = np.nonzero(pairs[at] == codes)
        shown[run, at[run, place]] = 1.0
    return shown


def matched_filter(own: np.ndarray, coins: np.ndarray, attacked: np.ndarray) -> Scores:
    """Estimates of all coins, less a half, from what the shadows' coins do to released numbers.

    Args:
      own: float64[shadows, numbers]. coins: bool[shadows, canaries]. attacked: as own, of the runs
        that are attacked.
    """
    fold = np.arange(len(own)) % FOLDS
    shadows = np.zeros(coins.shape)
    for which in range(FOLDS):
        shadows[fold == which] = _decoded(
            own[fold != which], coins[fold != which], own[fold == which]
        )
    return Scores(shadows, _decoded(own, coins, attacked))


def _decoded(own: np.ndarray, coins: np.ndarray, attacked: np.ndarray) -> np.ndarray:
    """The best linear estimates of coins, float64[attacked runs, canaries].

    A coin's effect is as small as its regression allows: the ridge is one shadow.
    """
    sides = coins - 0.5
    center = own.mean(0)
    moved = own - center
    gram = sides.T @ sides + 0.25 * np.eye(sides.shape[1])
    effects = np.linalg.solve(gram, sides.T @ moved)
    degrees = max(1.0, len(own) - np.trace(np.linalg.solve(gram, sides.T @ sides)) - 1)
    noise = np.sum((moved - sides @ effects) ** 2, axis=0) / degrees
    weight = 1 / (noise + 1e-9 * np.max(noise, initial=0.0) + 1e-12)
    precision = (effects * weight) @ effects.T + 4 * np.eye(len(effects))
    return np.linalg.solve(precision, (effects * weight) @ (attacked - center).T).T


def likelihood_ratios(own: np.ndarray, inside: np.ndarray, attacked: np.ndarray) -> Scores:
    """log N(x; in) - log N(x; out) for each canary, by means and spreads of its shadows in and out.

    A spread is shrunk towards that over all canaries, since a canary has few shadows. A shadow's
    own score is from the canary's other shadows.
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
    """(mean, spread) of the runs taken, twice: for each run from the others; and from all of them.

    The first are [runs, canaries], the second [canaries].
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


def _high_for_members(scores: Scores, inside: np.ndarray) -> Scores:
    """The scores, with their sign turned where shadows say that members score low.

    A vector fitted to one record may suit it better where it was out.
    """
    sign = 1.0 if roc.auc(scores.shadows, inside) >= 0.5 else -1.0
    return Scores(sign * scores.shadows, sign * scores.trials)
