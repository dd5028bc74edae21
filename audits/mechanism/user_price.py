"""Is what a user pays enough for all of the user's ratings?

Where the unit is one rating, a guarantee may also price a user by the number m of their ratings: so
many times ρ (`accounting.user`). That is a claim about how far all of them together move the
statistics. Here they do, along one transcript: every value from one end of the range to the other,
or all of them gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accounting import gaussian, user
from accounting.loss import Gaussian, Loss, Unit
from audits import neighbours
from audits.finding import Finding, inconclusive, not_applicable
from audits.mechanism import sensitivity
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism

NAME = "user price"
CLAIM = "all ratings of one user move the statistics no further than what the user pays is for"
MOST = 1 << 12  # values of a user that are changed, at most
EVERYBODY = 64  # users, at most, that are tried where that is cheap


@partial(jax.jit, static_argnames="num_steps")
def _apart(
    mechanism: Mechanism, key: jax.Array, worlds: tuple[Layout, Layout], num_steps: int
) -> tuple[jax.Array, jax.Array]:
    """(root mean square over the steps of the worlds' distance, that of its rounding)."""
    init_key, train_key = jax.random.split(key)
    first, second = protocol.begin_each(mechanism, init_key, worlds)
    _, (distance, magnitude, _), _ = protocol.train_coupled(
        mechanism, train_key, (first, second), worlds, num_steps, sensitivity.observe
    )
    return jnp.sqrt(jnp.mean(distance**2)), jnp.sqrt(jnp.mean(magnitude**2))


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    num_users: int = 4,
) -> list[Finding]:
    """One finding: the root mean square over steps, of which the price is made.

    Args:
      num_users: how many are tried: the one with the most ratings, the one with the fewest (two or
        more), and others between them; up to `EVERYBODY` where that is cheap. Two who rated
        everything are tried too (`neighbours.extreme`).

    violated: further than Δ times the root of what the user pays over ρ. Exact, so no false alarm
      rate. `consistent` says so of these users, along this one transcript.
    """
    guarantee = mechanism.guarantee(num_steps)
    delta, losses = guarantee.sensitivity, guarantee.losses
    if guarantee.unit == "user":
        return [not_applicable(NAME, CLAIM, "the unit is the user, whatever they rated")]
    if delta is None or guarantee.status == "none" or not losses:
        return [not_applicable(NAME, CLAIM, f"status {guarantee.status}: no sensitivity is stated")]
    priced = [loss for loss in losses if isinstance(loss, Gaussian) and loss.user_rho is not None]
    if len(priced) < len(losses):
        why = "a user's price follows from ε alone, or from a mixture, or there is none"
        return [not_applicable(NAME, CLAIM, why)]
    count = np.bincount(ratings.user, minlength=ratings.num_users)
    several = np.flatnonzero(count > 1)
    if not len(several):
        return [not_applicable(NAME, CLAIM, "nobody has two ratings")]
    order = several[np.argsort(count[several], kind="stable")]
    if len(order) * sensitivity.size_of(data) * num_steps <= sensitivity.CHEAP:
        num_users = max(num_users, EVERYBODY)
    chosen = order[np.unique(np.linspace(0, len(order) - 1, num_users).astype(int))]
    people = [(ratings, data, int(one)) for one in chosen]
    if made := neighbours.extreme(ratings, data):
        changed, other, new = made
        heaviest = np.argsort(-np.bincount(changed.user[new]), kind="stable")[:2]
        people += [(changed, other, int(one)) for one in heaviest]
    spent = _rho(priced)
    worst: dict[str, Any] = {}
    for own, of, one in people:
        num = int(np.sum(own.user == one))
        num = min(num, MOST) if guarantee.unit == "rating value" else num  # else all are removed
        worlds = _worlds(own, of, one, num, guarantee.unit, guarantee.largest_change)
        distance, magnitude = map(float, _apart(mechanism, key, worlds, num_steps))
        pays = _rho(user.losses(priced, num) or ())
        bound = delta * (pays / spent) ** 0.5
        limit = bound * (1 + sensitivity.TOLERANCE) + sensitivity.ROUNDING * magnitude
        found = {"distance": distance, "bound": bound, "limit": limit, "num_ratings": num}
        found |= {"user": ratings.users[one].item(), "times_rho": pays / spent}
        if not np.isfinite(distance) and own is not ratings:
            continue
        if not np.isfinite(distance):
            return [inconclusive(NAME, CLAIM, "the descent diverged; lower learning_rate")]
        if not worst or distance / limit > worst["distance"] / worst["limit"]:
            worst = found
    changed = "every value moved" if guarantee.unit == "rating value" else "every rating removed"
    pair = {"user": worst["user"], "ratings": worst["num_ratings"], "change": changed}
    return [
        Finding(
            audit=NAME,
            claim=CLAIM,
            measured=worst["distance"],
            claimed=worst["bound"],
            lower=worst["distance"],
            verdict="violated" if worst["distance"] > worst["limit"] else "consistent",
            details={
                "users": len(people),
                "steps": num_steps,
                "limit": worst["limit"],
                "ratio": worst["distance"] / worst["bound"],
                "times_rho": worst["times_rho"],
                "power": (
                    "exact along this transcript: any of these users above the limit would be seen;"
                    " other users and other transcripts are not covered"
                ),
                "replay": {"pair": pair, "key": np.asarray(jax.random.key_data(key)).tolist()},
            },
        )
    ]


def _rho(spent: Iterable[Loss]) -> float:
    return sum(
        gaussian.rho(loss.noise_multiplier, loss.num_steps)
        for loss in spent
        if isinstance(loss, Gaussian)
    )


def _worlds(
    ratings: Ratings, data: Layout, one: int, num: int, unit: Unit, change: float | None
) -> tuple[Layout, Layout]:
    """Two data sets that differ in one user's ratings alone."""
    if unit != "rating value":
        return data, layout.remove_user(data, jnp.int32(one))
    low, high = ratings.rating_range
    index = np.resize(np.flatnonzero(ratings.user == one)[:num], MOST)  # one program for all users
    ends = low, min(high, low + change) if change is not None else high
    first, second = (neighbours.with_values(ratings, data, index, end) for end in ends)
    return first, second
