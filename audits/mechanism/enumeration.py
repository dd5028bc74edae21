"""What one report can tell, exactly: its outputs are so few that its whole law is a table.

This is for mechanisms of local differential privacy, whose statistics are `noise.Report`s: a user
says one bit about one coordinate. The law of the bit is written down for every entry tried
(`enumeration_table`), among them those of worlds that differ in all ratings of one user
(`enumeration_worlds`). The largest ratio in it is held against the price of one report, and the
reports of a user are counted over the run.

That price stands on more, which is tried too. A user's report depends on the ratings of nobody
else. Which coordinate is asked for depends on no ratings. What is drawn (`enumeration_draws`)
follows the table.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import numpy as np

from accounting.guarantee import Guarantee
from accounting.loss import Pure
from audits import neighbours, transcript
from audits.finding import ALPHA, Finding, not_applicable
from audits.mechanism import (
    enumeration_draws,
    enumeration_table,
    enumeration_worlds,
    post_processing,
)
from audits.mechanism.enumeration_table import OUTPUTS, Table, largest_ratio, table
from audits.mechanism.enumeration_worlds import World
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.noise.laws import Report
from dpmf_jax.protocol import Mechanism

TOLERANCE = 1e-12  # relative, of the price of a report; and of probabilities
ROUNDING = 4e-16  # of a difference of two logarithms in float64
TARGETS = 4  # users whose ratings are changed, at most
NAMES = tuple(
    f"enumeration: {name}"
    for name in ("largest ratio", "reports of a user", "others", "coordinates", "sampler")
)


def audit(
    mechanism: Mechanism, ratings: Ratings, data: Layout, *, key: jax.Array, num_steps: int
) -> list[Finding]:
    """Five findings on mechanisms whose statistics are reports; not applicable to all others.

    largest ratio: over outputs and pairs of entries. The entries are extreme and random floats, and
      those of up to four users whose ratings are removed, replaced and moved to other items, along
      one transcript of up to 32 steps. Exact to 1e-12.
    reports of a user: counted over the whole run.
    others: a user's report, bit by bit, where everybody else's ratings change.
    coordinates: equal in all worlds, and uniform.
    sampler: draws against the table, for each user.

    The last two have false alarms, at `finding.ALPHA` each; the others compare numbers and bits.
    """
    guarantee = mechanism.guarantee(num_steps)
    if not isinstance(jax.eval_shape(_first_statistics, mechanism, key, data), Report):
        why = (
            f"the statistics of {guarantee.mechanism} are no reports of a coordinate and a bit:"
            " outputs are not few"
        )
        return [not_applicable(name, "no report of one bit is claimed", why) for name in NAMES]
    search_key, run_key, coins_key, draw_key = jax.random.split(key, 4)
    random = np.random.default_rng(np.asarray(jax.random.bits(search_key, (4,))))
    run = transcript.record(mechanism, run_key, data, num_steps)
    follow = partial(enumeration_worlds.follow, mechanism, run_key, run.start.public, run.responses)
    own = jax.device_get(follow(data))
    users = neighbours.some_users(random, ratings, TARGETS)
    address = layout.locate(data, ratings.user, ratings.item)
    of_the_user, of_others = (
        [
            enumeration_worlds.changed_world(
                user,
                own,
                jax.device_get(follow(other)),
                enumeration_worlds.describe(ratings, user, change),
            )
            for user in users
            for change, other in changes(user).items()
        ]
        for changes in (
            partial(neighbours.any_change, random, ratings, data, address),
            partial(neighbours.change_of_others, ratings, data, address),
        )
    )
    like = jax.tree.map(lambda leaf: leaf[0], own.asked)
    tables = {
        user: table(
            mechanism.noise, like, user, enumeration_table.entries(random, user, of_the_user)
        )
        for user in users
    }
    drawn = np.array(enumeration_draws.ENTRIES, np.float32)
    laws = [
        np.exp(table(mechanism.noise, like, user, drawn).log[:, 2])
        for user in (0, ratings.num_users - 1)
    ]
    whole = len(own.said.value) == num_steps  # of longer runs the beginning was written down
    sent = (
        enumeration_worlds.sends(run.responses, run.statistics)
        if whole
        else enumeration_worlds.senders(mechanism, run_key, data, num_steps)
    )
    counts = np.sum(np.asarray(sent), axis=0)
    places = enumeration_draws.coordinates(mechanism, coins_key, run.start, data)
    replay: dict[str, Any] = {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "data_sha256": ratings.sha256(),
    }
    return [
        _largest_ratio(guarantee, tables, of_the_user, ratings, replay),
        _reports(guarantee, counts, num_steps, ratings, replay),
        _others(of_others, replay),
        _coordinates([*of_the_user, *of_others], enumeration_draws.uniform(*places), replay),
        enumeration_draws.sampler(NAMES[4], mechanism.noise, draw_key, like, laws, ratings, replay),
    ]


def _first_statistics(mechanism: Mechanism, key: jax.Array, data: Layout) -> Any:
    return transcript.step_statistics(mechanism, protocol.begin(mechanism, key, data), data, key)


def _price(guarantee: Guarantee) -> tuple[float, int] | None:
    """(ε of one report, reports of a user that are paid for); None unless of equal pure rounds."""
    if len(guarantee.losses) != 1 or not isinstance(only := guarantee.losses[0], Pure):
        return None
    return only.epsilon / only.num_rounds, only.num_rounds


def _largest_ratio(
    guarantee: Guarantee,
    tables: dict[int, Table],
    worlds: list[World],
    ratings: Ratings,
    replay: dict[str, Any],
) -> Finding:
    if (priced := _price(guarantee)) is None:
        return not_applicable(
            NAMES[0], "no price of a report is claimed", f"{guarantee.mechanism} has no pure price"
        )
    epsilon, _ = priced
    found = {user: largest_ratio(law) for user, law in tables.items()}
    user = max(found, key=lambda user: math.inf if math.isnan(found[user][0]) else found[user][0])
    measured, at = found[user]
    pair = enumeration_worlds.describe(ratings, user, "the ratings that make one entry the other")
    if moved := next((world for world in worlds if world.moved[:, world.user].any()), None):
        measured, pair = math.inf, moved.pair
        at = {"why": "the same coins ask for another coordinate, or only in one world for a report"}
    entries, logs = (np.concatenate(parts) for parts in zip(*tables.values(), strict=True))
    probabilities = np.exp(logs)
    sum_error = float(np.max(np.abs(probabilities.sum(axis=1) - 1)))
    expected = math.tanh(epsilon / 2) * np.clip(
        np.where(np.isnan(entries), 0.0, entries), -1.0, 1.0
    )
    limit = epsilon * (1 + TOLERANCE) + ROUNDING
    holds = measured <= limit and sum_error <= TOLERANCE  # not-a-number is no pass
    return Finding(
        audit=NAMES[0],
        claim=(
            "whatever a user rated, no report is more than e^ε times as likely as otherwise, ε ="
            f" {epsilon:.6g}"
        ),
        measured=measured,
        claimed=epsilon,
        lower=None if math.isnan(measured) else measured,
        verdict="consistent" if holds else "violated",
        details={
            **({"ratio": measured / epsilon} if math.isfinite(measured) else {}),
            "limit": limit,
            "entries": len(entries),
            "worlds": len(worlds),
            "steps": len(worlds[0].moved),
            "sum_error": sum_error,
            "expectation_error": float(
                np.max(np.abs(probabilities @ np.array(OUTPUTS) - expected))
            ),
            "unit_of_measurement": (
                "log-ratio; sum_error of probabilities from 1, expectation_error of the mean bit "
                "from tanh(ε/2) times the clipped entry, which costs accuracy and no privacy"
            ),
            "power": (
                f"exact: any of these entries and worlds above ε by more than {TOLERANCE:g} would"
                " be seen; other floats are not covered"
            ),
            "replay": replay | {"pair": pair} | at,
        },
    )


def _reports(
    guarantee: Guarantee,
    counts: np.ndarray,
    num_steps: int,
    ratings: Ratings,
    replay: dict[str, Any],
) -> Finding:
    if (priced := _price(guarantee)) is None:
        return not_applicable(
            NAMES[1], "no number of reports is claimed", f"{guarantee.mechanism} has no pure price"
        )
    epsilon, reports = priced
    user, most = int(np.argmax(counts)), int(counts.max())
    return Finding(
        audit=NAMES[1],
        claim=(
            f"in {num_steps} rounds a user reports at most as often as is paid for: {reports} times"
        ),
        measured=float(most),
        claimed=float(reports),
        lower=float(most),
        verdict="violated" if most > reports else "consistent",
        details={
            "fewest": int(counts.min()),
            "users": len(counts),
            "users_above": int(np.sum(counts > reports)),
            "epsilon_of_that_many": most * epsilon,
            "epsilon": guarantee.epsilon,
            "unit_of_measurement": "reports of the user who reports most often",
            "power": (
                "exact for this run, over all its rounds and users: a single report too many would"
                " be seen"
            ),
            "replay": replay
            | {
                "pair": enumeration_worlds.describe(
                    ratings, user, "none, this is counted in one world"
                )
            },
        },
    )


def _others(worlds: list[World], replay: dict[str, Any]) -> Finding:
    claim = (
        "what a user reports depends on that user's ratings and on what is public, on no other"
        " ratings"
    )
    if not worlds:
        return not_applicable(NAMES[2], claim, "nobody else has ratings")
    broken = [
        (world.pair, leaf, step)
        for world in worlds
        for leaf, step, _ in post_processing.differences(world.before, world.seen, steps=True)
    ]
    if broken:
        pair, leaf, step = broken[0]
        replay = replay | {"pair": pair, "leaf": leaf, "first_step": step}
    return Finding(
        audit=NAMES[2],
        claim=claim,
        measured=float(len(broken)),
        claimed=0.0,
        lower=float(len(broken)),
        verdict="violated" if broken else "consistent",
        details={
            "users": len({world.user for world in worlds}),
            "worlds": len(worlds),
            "steps": len(worlds[0].moved),
            "unit_of_measurement": "parts of reports that differ, over all these worlds",
            "power": (
                "exact for these users, worlds and steps: a single differing bit would be seen"
            ),
            "replay": replay,
        },
    )


def _coordinates(
    worlds: list[World], uniform: enumeration_draws.Uniform, replay: dict[str, Any]
) -> Finding:
    moved = [
        (world, int(user)) for world in worlds for user in np.flatnonzero(world.moved.any(axis=0))
    ]
    if moved:
        world, user = moved[0]
        replay = replay | {
            "pair": world.pair,
            "first_step": int(np.argmax(world.moved[:, user])),
            "user_index": user,
        }
    return Finding(
        audit=NAMES[3],
        claim=(
            "which coordinate a user is asked for is drawn without looking at ratings, uniformly,"
            " for each apart"
        ),
        measured=float(len(moved)),
        claimed=0.0,
        lower=float(len(moved)),
        verdict="violated" if moved or not uniform.p_value > ALPHA else "consistent",
        details={
            **uniform._asdict(),
            "alpha": ALPHA,
            "worlds": len(worlds),
            "unit_of_measurement": (
                "users whose coordinate moves with ratings, over all these worlds; p_value is that "
                "of uniform coordinates, ranges being the largest that were drawn"
            ),
            "power": (
                "exact for these worlds and steps; a coordinate (or a cell of those taken"
                f" together) drawn {uniform.visible:.2f} times as often as it should would be seen"
                " with probability 0.95"
            ),
            "replay": replay,
        },
    )
