"""Membership inference on the release: was a rating, or a user, in the data; or what was its value?

Two attackers see the release and nothing else of the run. The insider knows the mechanism, its
public start and all ratings but the canaries'. The outsider knows the mechanism, who rated what,
how values are distributed, and the record in question. Each trains shadows (`shadows`) on what he
knows. Both attack the same other runs in three ways (`attack_scores`).

The curator chooses the worst canaries (`canaries`). How many are guessed, and every threshold, is
chosen on shadows. The guesses about the other runs are judged as those of one run with many
canaries (`judging`), which allows for their dependence. A guarantee of a rating's value covers the
value alone: there a canary is low or high.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting import compose, user
from accounting.guarantee import Guarantee
from audits.finding import Finding, inconclusive, not_applicable
from audits.release import attack_scores, canaries, guesses, judging, roc, shadows
from audits.release.attack_scores import ATTACKS, Scores
from audits.release.canaries import ATTACKERS, Plan
from audits.release.judging import Claim
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.silent import silent
from dpmf_jax.protocol import Mechanism, Phase

LEVELS = ("rating", "user")
NUM_SHADOWS, LEAST = 64, 16
NUM_TARGETS = 24
WORK = 1 << 30  # `shadows.work` times shadows, about what a minute can do
STRONG = 0.9  # the AUC that the control must reach, or a private row says nothing
ATTACKED = 2  # the role of a run that is no attacker's shadow


class Seen(NamedTuple):
    """What runs predict.

    Attributes:
      predictions, rows: see `shadows.Observed`.
      coins: bool[runs, canaries].
      role: of each run, the attacker whose shadow it is, or `ATTACKED`.
    """

    predictions: np.ndarray
    rows: np.ndarray
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
    control: Callable[[Mechanism], Mechanism] = silent,
) -> list[Finding]:
    """Four findings: on a rating and on a user, by an insider and by an outsider.

    Where the guarantee is for a rating, a user's claim is its price for all of the user's ratings.

    violated: refuted at `finding.ALPHA`, a third for each attack.
    measured: a lower bound on ε, right with 95%.

    Args:
      earlier: phases that every run goes through before, as part of the claim.
      num_shadows: of the insider, and how many runs are attacked. The outsider has half as many,
        and the control half of all these runs. None: 64, or what about a minute can do, at least
        16.
      num_targets: ratings that are canaries. A sixth as many users are, since each user moves the
        data of the others.
      control: mechanism -> the same without noise, which is attacked as well (`Spec.control`).
        Where no attack on it reaches an AUC of 0.9, a claim that stands is inconclusive.
    """
    phases = (*earlier, (mechanism, num_steps))
    guarantee = compose(*(one.guarantee(steps) for one, steps in phases))
    names = {(level, who): f"membership: {level}, {who}" for level in LEVELS for who in ATTACKERS}
    if shadows.nothing_released(shadows.released(mechanism, data)):
        return [
            not_applicable(name, "a release tells nothing", "nothing is released")
            for name in names.values()
        ]
    choose_key, coin_key, run_key, start_key = jax.random.split(key, 4)
    all_steps = sum(steps for _, steps in phases)
    num = num_shadows or int(np.clip(WORK // shadows.work(ratings, all_steps), LEAST, NUM_SHADOWS))
    plan = canaries.plan(
        np.random.default_rng(np.asarray(jax.random.bits(choose_key, (4,)))),
        ratings,
        data,
        presence=guarantee.unit != "rating value",
        side=shadows.one_sided(shadows.released(mechanism, data)),
        change=guarantee.largest_change,
        num_ratings=num_targets,
        num_users=max(1, num_targets // 6),
    )
    # Of each run; 0 and 1: an attacker's shadow.
    role = np.repeat([0, 1, ATTACKED], [num, max(2, num // 2), num])
    coins = _coins(coin_key, role, plan.num)
    keys, starts = jax.random.split(run_key, len(role)), jax.random.split(start_key, len(role))
    same = jnp.broadcast_to(starts[-1], starts.shape)
    starts = jnp.where(jnp.asarray(role == 1), starts, same)  # an outsider's shadows start anywhere
    seen: dict[str, Seen] = {}
    at_once = -(-len(role) // 4)  # half of the control's runs
    silent_phases = [(control(one), steps) for one, steps in phases]
    for which, attacked in (("private", phases), ("control", silent_phases)):
        if which == "control" and guarantee.status == "none":
            continue  # there is nothing to judge, so nothing to compare with
        # Where there is no noise, half the runs will do.
        taken = np.arange(len(role)) % 2 == 0 if which == "control" else role >= 0
        observed = shadows.observe(
            attacked,
            ratings,
            data,
            plan,
            coins=coins[taken],
            keys=keys[taken],
            starts=starts[taken],
            stranger=role[taken] == 1,
            at_once=at_once,
        )
        seen[which] = Seen(*observed, coins[taken], role[taken])
    replay = {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "data_sha256": ratings.sha256(),
        "step": num_steps,
        "shadows": num,
    }
    settings = {"shadows": num, "runs_attacked": num, "steps": num_steps}
    return [
        _finding(names[level, who], level, who, guarantee, ratings, plan, seen, replay, settings)
        for level, who in names
    ]


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


def _finding(
    name: str,
    level: str,
    who: str,
    guarantee: Guarantee,
    ratings: Ratings,
    plan: Plan,
    runs: dict[str, Seen],
    replay: dict[str, Any],
    settings: dict[str, Any],
) -> Finding:
    chosen = np.arange(plan.num) < plan.num_ratings
    chosen = chosen if level == "rating" else ~chosen
    what = _question(level, plan)
    if not chosen.any():
        return not_applicable(
            name, f"nobody tells {what}", f"there are too few {level}s for a canary"
        )
    num = np.sum(runs["private"].role == ATTACKED) * np.sum(chosen)
    stated, claimed, why = _claimed(level, guarantee, plan, int(num))
    replay = replay | {"pair": canaries.describe(ratings, plan, int(np.argmax(chosen)))}
    tests: dict[str, guesses.Tried] = {}
    table, areas = [], {"private": 0.0, "control": 0.0}
    for which, (predictions, rows, coins, role) in runs.items():
        seen = predictions[:, min(ATTACKERS.index(who), predictions.shape[1] - 1)]
        if not (np.isfinite(seen).all() and np.isfinite(rows).all()):
            return inconclusive(
                name, f"nobody tells {what}", f"the {which} descent diverged", replay=replay
            )
        own, attacked = role == ATTACKERS.index(who), role == ATTACKED
        inside = coins[:, chosen]
        if any(len(np.unique(inside[part])) < 2 for part in (own, attacked)):
            return inconclusive(
                name, f"nobody tells {what}", "too few runs: all coins fell alike", replay=replay
            )
        for attack in ATTACKS:
            scores = attack_scores.score(attack, seen, rows, plan, chosen, coins, own, attacked)
            row = _row(scores, inside[own], inside[attacked])
            areas[which] = max(areas[which], row["auc"])
            if claimed is not None and stated is not None:
                row["advantage_bound"] = roc.advantage_bound(*stated)
                if which == "private":
                    shares = guesses.choose_shares(scores.shadows, inside[own], claimed.epsilon)
                    tests[attack] = guesses.Tried(
                        *(guesses.guess(scores.trials, inside[attacked], pair) for pair in shares)
                    )
            table.append({"attack": attack, "mechanism": which} | row)
    details = settings | {
        "targets": int(np.sum(chosen)),
        "unit": guarantee.unit,
        "status_of_the_guarantee": guarantee.status,
        "attacks": table,
    }
    if claimed is None:
        claim = f"no price is stated for whoever tells {what}"
        most = max(row["auc"] for row in table if row["mechanism"] == "private")
        return Finding(
            audit=name,
            claim=claim,
            verdict="not applicable",
            details=details | {"why": why, "auc": most, "replay": replay},
        )
    weak = None
    if areas["control"] < STRONG:
        weak = (
            f"without noise the attack's AUC is {areas['control']:.2f}, below {STRONG}: it says"
            " nothing of the noise"
        )
    return judging.judge(
        name,
        f"from the release nobody tells {what} better than (ε, δ) = ({claimed.epsilon:.6g},"
        f" {claimed.delta:g}) allows",
        tests,
        claimed,
        details=details | {"control_auc": areas["control"]},
        replay=replay,
        weak=weak,
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
    if own is None:
        return (
            None,
            None,
            f"the guarantee is that of one {guarantee.unit}, and says nothing of a user",
        )
    epsilon = guarantee.for_user(plan.largest).epsilon
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
