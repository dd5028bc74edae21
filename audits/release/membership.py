"""Membership inference on the release: was a rating, or a user, in the data; or what was its value?

Two attackers see the release and nothing else of the run. The insider knows the mechanism, its
public start and all ratings but the canaries'. The outsider knows the mechanism, who rated what,
how values are distributed, and the record in question. Each trains shadows (`shadows`) on what he
knows. Both attack the same other runs in four ways (`attack_scores`).

The curator chooses the worst canaries (`canaries`). Ratings and users are attacked in runs of their
own: whole users that come and go would hide a single rating. How many are guessed, and every
threshold, is chosen on shadows. The guesses about the other runs are judged as those of one run
with many canaries (`judging`), which allows for their dependence. A guarantee of a rating's value
covers the value alone: there a canary is low or high.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting import compose, user
from accounting.guarantee import Guarantee
from audits.finding import Finding, inconclusive, not_applicable
from audits.release import attack_scores, canaries, guesses, judging, roc, shadows
from audits.release.attack_scores import ATTACKS, LISTS, Scores
from audits.release.canaries import ATTACKERS, Plan
from audits.release.judging import Claim
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.silent import silent
from dpmf_jax.protocol import Mechanism, Phase

LEVELS = ("rating", "user")
NUM_SHADOWS, LEAST = 64, 16
NUM_TARGETS = 12
SPARE = 2  # candidates for a canary
WATCHERS = 32
WORK = 1 << 30  # `shadows.work` times shadows, about what a minute can do
VAST = 10.0  # an ε that lets 22,026 guesses of 22,027 be right
STRONG = 0.9  # the AUC that the control must reach, or a private row says nothing
ATTACKED = 2  # the role of a run that is no attacker's shadow


class Seen(NamedTuple):
    """What runs predict.

    Attributes:
      predictions, rows, lists: see `shadows.Observed`.
      coins: bool[runs, canaries].
      role: of each run, the attacker whose shadow it is (0 or 1), or `ATTACKED`.
    """

    predictions: np.ndarray
    rows: np.ndarray
    lists: np.ndarray
    coins: np.ndarray
    role: np.ndarray


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    earlier: Sequence[Phase] = (),
    num_shadows: int | None = None,
    num_targets: int = NUM_TARGETS,
    num_users: int | None = None,
    num_watchers: int = WATCHERS,
    control: Callable[[Mechanism], Mechanism] = silent,
) -> list[Finding]:
    """Two findings: on a rating and on a user, each attacked by an insider and by an outsider.

    Where the guarantee is for a rating, a user's claim is its price for all of the user's ratings.

    violated: refuted at `finding.ALPHA`, shared by the attackers, their attacks, and two ways to
      count what they guess (`judging`).
    measured: a lower bound on ε, right with 95%.

    Args:
      earlier: phases that every run goes through before, as part of the claim.
      num_shadows: of the insider, and how many runs are attacked. The outsider has half as many,
        and the control the same, but half of the others. None: 64, or what about a minute can do,
        at least 16. Where nothing is claimed there are 16.
      num_targets: ratings that are canaries.
      num_users: users that are. None: two thirds as many, since each moves the data of the others.
      num_watchers: other users, whose lists of recommended items are attacked too.
      control: mechanism -> the same without noise, which is attacked as well (`Spec.control`). What
        else is left to chance, such as samples and a private start, is the same in all its runs.
        Where no attack on it reaches an AUC of 0.9, a claim that stands is inconclusive. Its runs
        also choose the canaries: of twice as many, those which it gives away most.
    """
    phases = (*earlier, (mechanism, num_steps))
    guarantee = compose(*(one.guarantee(steps) for one, steps in phases))
    names = {level: f"membership: {level}" for level in LEVELS}
    if shadows.nothing_released(shadows.released(mechanism, data)):
        return [
            not_applicable(name, "a release tells nothing", "nothing is released")
            for name in names.values()
        ]
    choose_key, start_key, *level_keys = jax.random.split(key, 2 + len(LEVELS))
    all_steps = sum(steps for _, steps in phases)
    num = num_shadows or int(np.clip(WORK // shadows.work(ratings, all_steps), LEAST, NUM_SHADOWS))
    most = {"rating": num_targets, "user": num_users or max(2, 2 * num_targets // 3)}
    plan = canaries.plan(
        np.random.default_rng(np.asarray(jax.random.bits(choose_key, (4,)))),
        ratings,
        data,
        presence=guarantee.unit != "rating value",
        side=shadows.one_sided(shadows.released(mechanism, data)),
        change=guarantee.largest_change,
        num_ratings=SPARE * most["rating"],
        num_users=SPARE * most["user"],
        num_watchers=num_watchers,
    )
    silent_phases = [(control(one), steps) for one, steps in phases]
    replay = {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "data_sha256": ratings.sha256(),
        "step": num_steps,
    }

    def observed(which: Sequence[Phase], taken: Runs) -> Seen:
        seen = shadows.observe(
            which,
            ratings,
            data,
            plan,
            coins=taken.coins,
            keys=taken.keys,
            starts=taken.starts,
            stranger=taken.role == 1,
            at_once=max(1, num // 2),
        )
        return Seen(*seen, taken.coins, taken.role)

    found = []
    for level, own_key in zip(LEVELS, level_keys, strict=True):
        # Where nothing is claimed, there is nothing to judge, and a few runs say what comes of it.
        claims = _claimed(level, guarantee, plan, 1)[1] is not None
        own_num = num if claims else min(num, LEAST)
        runs = _runs(own_key, start_key, own_num, plan.num)
        chosen, seen = _attacked(
            runs,
            (np.arange(plan.num) < plan.num_ratings) == (level == "rating"),
            most[level],
            plan,
            partial(observed, phases),
            partial(observed, silent_phases) if claims else None,
        )
        settings = {"shadows": own_num, "runs_attacked": own_num, "steps": num_steps}
        found.append(
            _finding(names[level], level, chosen, seen, guarantee, ratings, plan, replay, settings)
        )
    return found


class Runs(NamedTuple):
    """Runs of one audit; leading axis of runs.

    Attributes:
      role: see `Seen`.
      coins: bool[runs, canaries].
      keys: of the runs.
      starts: of the public parts of their initial states. An outsider's shadows start anywhere, the
        others where the attacked ones do.
    """

    role: np.ndarray
    coins: np.ndarray
    keys: jax.Array
    starts: jax.Array

    def of(self, taken: np.ndarray) -> Runs:
        return jax.tree.map(lambda part: part[taken], self)


def _runs(key: jax.Array, start_key: jax.Array, num: int, num_canaries: int) -> Runs:
    """An insider's shadows, half as many of an outsider's, and as many that are attacked."""
    role = np.repeat([0, 1, ATTACKED], [num, max(2, num // 2), num])
    coin_key, run_key = jax.random.split(key)
    starts = jax.random.split(start_key, len(role))
    same = jnp.broadcast_to(starts[-1], starts.shape)
    return Runs(
        role,
        _coins(coin_key, role, num_canaries),
        jax.random.split(run_key, len(role)),
        jnp.where(jnp.asarray(role == 1), starts, same),
    )


def _attacked(
    runs: Runs,
    candidates: np.ndarray,
    most: int,
    plan: Plan,
    observed: Callable[[Runs], Seen],
    observed_silent: Callable[[Runs], Seen] | None,
) -> tuple[np.ndarray, dict[str, Seen]]:
    """(the canaries, bool[canaries]; what runs show in which no others toss coins).

    Args:
      candidates: bool[canaries], of which at most so many are chosen.
      observed_silent: runs without noise; None where there is nothing to compare with.
    """
    runs = runs._replace(coins=runs.coins | ~candidates)
    known = runs._replace(  # in the control nothing is left to chance
        keys=jnp.broadcast_to(runs.keys[0], runs.keys.shape)
    )
    own = runs.role == 0
    search = observed_silent(known.of(own)) if observed_silent else None
    chosen = _most_telling(search, plan, candidates, most)
    coins = runs.coins | ~chosen
    seen = {"private": observed(runs._replace(coins=coins))}
    if observed_silent:
        # Where there is no noise, half of the other runs will do.
        half = own | (np.arange(len(own)) % 2 == 0)
        seen["control"] = observed_silent(known._replace(coins=coins).of(half))
    return chosen, seen


def _coins(key: jax.Array, role: np.ndarray, num: int) -> np.ndarray:
    """Coins, bool[runs, canaries]: fair and independent in the runs that are attacked.

    Each canary is in half of an attacker's shadows.
    """
    random = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
    coins = random.random((len(role), num)) < 0.5
    for which in (0, 1):
        runs = np.sum(role == which)
        coins[role == which] = random.permuted(
            np.arange(runs)[:, None] % 2 == np.zeros(num), axis=0
        )
    return coins


def _separation(scores: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Each canary's distance of the mean scores in and out, in spreads of both; [canaries]."""
    found = np.zeros(scores.shape[1])
    for at, (score, coins) in enumerate(zip(scores.T, inside.T, strict=True)):
        both = score[coins], score[~coins]
        if min(map(len, both)) > 1:
            spread = math.sqrt(sum(map(np.var, both)) / 2)
            found[at] = (np.mean(both[0]) - np.mean(both[1])) / (spread + 1e-12)
    return np.nan_to_num(found)


def _most_telling(search: Seen | None, plan: Plan, candidates: np.ndarray, most: int) -> np.ndarray:
    """bool[canaries]: the candidates that runs without noise tell best; the first without a search.

    No private run has a say, so whatever is chosen, the test of the private runs is exact.
    """
    at = np.flatnonzero(candidates)
    if search is not None and len(at) > most:
        own, inside = search.role == 0, search.coins[:, candidates]
        seen = search.predictions[:, 0], search.rows, search.lists
        of_all = *seen, plan, candidates, search.coins, own, own
        apart = [
            _separation(attack_scores.score(attack, *of_all).shadows, inside)
            for attack in _attacks(search.lists)
        ]
        at = at[np.argsort(-np.max(apart, axis=0), kind="stable")]
    chosen = np.zeros(plan.num, bool)
    chosen[at[:most]] = True
    return chosen


def _attacks(lists: np.ndarray) -> tuple[str, ...]:
    """Those of `ATTACKS` that have something to look at."""
    return ATTACKS if lists.size else tuple(name for name in ATTACKS if name != LISTS)


def _finding(
    name: str,
    level: str,
    chosen: np.ndarray,
    runs: dict[str, Seen],
    guarantee: Guarantee,
    ratings: Ratings,
    plan: Plan,
    replay: dict[str, Any],
    settings: dict[str, Any],
) -> Finding:
    """The finding about the chosen canaries, bool[canaries]."""
    what = _question(level, plan)
    claim = f"from the release nobody tells {what}"
    if not chosen.any():
        return not_applicable(name, claim, f"there are too few {level}s for a canary")
    num = np.sum(runs["private"].role == ATTACKED) * np.sum(chosen)
    stated, claimed, why = _claimed(level, guarantee, plan, int(num))
    replay = replay | {"pair": canaries.describe(ratings, plan, int(np.argmax(chosen)))}
    tests: dict[str, guesses.Tried] = {}
    table, areas = [], {"private": 0.0, "control": 0.0}
    for which, (predictions, rows, lists, coins, role) in runs.items():
        if not (np.isfinite(predictions).all() and np.isfinite(rows).all()):
            return inconclusive(name, claim, f"the {which} descent diverged", replay=replay)
        attacked, inside = role == ATTACKED, coins[:, chosen]
        for place, who in enumerate(ATTACKERS):
            seen, own = predictions[:, min(place, predictions.shape[1] - 1)], role == place
            if any(len(np.unique(inside[part])) < 2 for part in (own, attacked)):
                why = "too few runs: all coins fell alike"
                return inconclusive(name, claim, why, replay=replay)
            for attack in _attacks(lists):
                scores = attack_scores.score(
                    attack, seen, rows, lists, plan, chosen, coins, own, attacked
                )
                row = _row(scores, inside[own], inside[attacked])
                areas[which] = max(areas[which], row["auc"])
                if claimed is not None and stated is not None:
                    row["advantage_bound"] = roc.advantage_bound(*stated)
                    if which == "private":
                        tests[f"{attack}, {who}"] = _guesses(
                            scores, inside[own], inside[attacked], claimed
                        )
                table.append({"attack": f"{attack}, {who}", "mechanism": which} | row)
    details = settings | {
        "targets": int(np.sum(chosen)),
        "unit": guarantee.unit,
        "status_of_the_guarantee": guarantee.status,
        "attacks": table,
    }
    if claimed is None:
        most = max(row["auc"] for row in table if row["mechanism"] == "private")
        return Finding(
            audit=name,
            claim=f"no price that rules anything out is stated for whoever tells {what}",
            verdict="not applicable",
            details=details | {"why": why, "auc": most, "replay": replay},
        )
    weak = None
    if areas["control"] < STRONG:
        weak = (
            "without noise, and with nothing else left to chance, the attack's AUC is"
            f" {areas['control']:.2f}, below {STRONG}: it says nothing of the noise"
        )
    return judging.judge(
        name,
        f"{claim} better than (ε, δ) = ({claimed.epsilon:.6g}, {claimed.delta:g}) allows",
        tests,
        claimed,
        details=details | {"control_auc": areas["control"]},
        replay=replay,
        weak=weak,
    )


def _guesses(
    scores: Scores, own: np.ndarray, attacked: np.ndarray, claimed: Claim
) -> guesses.Tried:
    """Guesses about the attacked runs' coins; all that is chosen is chosen on the shadows' own."""
    shares = guesses.choose_shares(scores.shadows, own, claimed.epsilon)
    best = roc.best_threshold(scores.shadows, own)
    # a pure claim is one of each guess, so runs tell no more by themselves
    return guesses.Tried(
        *(guesses.guess(scores.trials, attacked, pair) for pair in shares),
        guesses.guess_by_run(scores.trials, attacked, best) if claimed.delta > 0 else None,
    )


def _question(level: str, plan: Plan) -> str:
    if plan.presence:
        return "whether a rating was there" if level == "rating" else "whether a user took part"
    low, high = plan.value_out[0], plan.value_in[0]
    return (
        f"whether {'a rating was' if level == 'rating' else 'all ratings of a user were'} {low:g}"
        f" or {high:g}"
    )


def _claimed(
    level: str, guarantee: Guarantee, plan: Plan, num: int
) -> tuple[tuple[float, float] | None, Claim | None, str | None]:
    """((ε, δ) as stated, the claim that `num` guesses are held to, why there is none)."""
    if guarantee.status == "none":
        return None, None, f"{guarantee.mechanism} (status none) states no price"
    if level == "rating" or guarantee.unit == "user":
        return (guarantee.epsilon, guarantee.delta), judging.claim_at(guarantee, num), None
    own = user.losses(guarantee.losses, plan.largest)
    epsilon = math.inf if own is None else guarantee.for_user(plan.largest).epsilon
    if own is not None and epsilon >= VAST:
        return (
            None,
            None,
            f"the guarantee is that of one {guarantee.unit}: of {plan.largest}, all of a user's,"
            f" the price is {f'ε = {epsilon:.4g}' if epsilon < math.inf else 'no finite ε'}, which"
            " lets everybody be told",
        )
    if own is None:
        return (
            None,
            None,
            f"the guarantee is that of one {guarantee.unit}, and says nothing of a user",
        )
    for_user = dataclasses.replace(guarantee, losses=own, epsilon=epsilon, accountants={})
    return (epsilon, guarantee.delta), judging.claim_at(for_user, num), None


def _row(scores: Scores, own: np.ndarray, attacked: np.ndarray) -> dict[str, Any]:
    """AUC and rates of the trials, and the advantage at the threshold that is best on shadows."""
    at = roc.rates(scores.trials, attacked, roc.best_threshold(scores.shadows, own))
    low = {}
    for rate in roc.LOW_RATES:
        found = roc.rates(scores.trials, attacked, roc.threshold_at(scores.shadows, own, rate))
        low[f"{rate:g}"] = {
            "false_positives": roc.clopper_pearson(found.false_positives, found.others),
            "true_positives": roc.clopper_pearson(found.true_positives, found.members),
        }
    return roc.summary(scores.trials, attacked) | {
        "advantage": at.advantage,
        "thresholds_of_shadows": low,
    }
