"""What users report in worlds that differ in the ratings of one user, or of everybody else."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from dpmf_jax import protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.noise.laws import Report
from dpmf_jax.protocol import Mechanism, State


class Seen(NamedTuple):
    """What the users of one world report; leading axis of steps, and one of users.

    Attributes:
      asked: what they were asked for, and had to say.
      said: what they said.
    """

    asked: Report
    said: Report


class World(NamedTuple):
    """A world in which the ratings of one user, or of everybody else, are changed.

    Attributes:
      user: the user's index.
      seen, before: what that user reports with the change, and without.
      moved: bool[steps, users], who is asked for another coordinate, or only in one of the worlds.
      pair: what was changed, in words.
    """

    user: int
    seen: Seen
    before: Seen
    moved: np.ndarray
    pair: dict[str, Any]


@jax.jit
def follow(
    mechanism: Mechanism, key: jax.Array, start: Any, responses: Report, data: Layout
) -> Seen:
    """What a world's users report while the responses of another run are played to it.

    The world has its own private state, and the public state `start`. Coins and noise have the same
    keys in every world, so that equal entries at equal places say equal bits.
    """
    init_key, train_key = jax.random.split(key)
    state = mechanism.init(init_key, data, None)._replace(public=start)

    def body(state: State, response: Report) -> tuple[State, Seen]:
        coins_key, noise_key = jax.random.split(jax.random.fold_in(train_key, state.step))
        asked, _info = mechanism.query(state, data, mechanism.coins(coins_key))
        said = mechanism.noise.sample(noise_key, asked)
        return mechanism.update(state, response, data)._replace(step=state.step + 1), Seen(
            asked, said
        )

    return jax.lax.scan(body, state, responses)[1]


def changed_world(user: int, own: Seen, seen: Seen, pair: dict[str, Any]) -> World:
    """The `World` of a user; own: all users' reports without the change, seen: with it."""
    a, b = seen.asked, own.asked
    moved = (a.sent != b.sent) | (a.row != b.row) | (a.column != b.column)
    there, before = (
        jax.tree.map(lambda leaf: leaf[:, user].copy(), world) for world in (seen, own)
    )
    return World(user, there, before, np.asarray(moved), pair)


def describe(ratings: Ratings, user: int, change: str) -> dict[str, Any]:
    """A changed user in words."""
    return {
        "user": ratings.users[user].item(),
        "ratings": int(np.sum(ratings.user == user)),
        "change": change,
    }


def sends(response: Report, statistics: Report) -> jax.Array:
    """Who reports: bool of the shape of the reports."""
    return response.sent | statistics.sent | (response.value != 0)


@partial(jax.jit, static_argnames="num_steps")
def senders(mechanism: Mechanism, key: jax.Array, data: Layout, num_steps: int) -> jax.Array:
    """Who reports in the steps of a run, bool[steps, users]."""
    init_key, train_key = jax.random.split(key)
    start = mechanism.init(init_key, data, None)
    return protocol.train_coupled(mechanism, train_key, (start,), (data,), num_steps, sends)[1]
