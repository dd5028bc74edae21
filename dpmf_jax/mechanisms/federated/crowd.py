"""A changing crowd (paper 003, section 4.3): who is online and who takes part; both are public.

Before every iteration each user who is offline joins with one probability and each who is online
leaves with another; then at most so many of those online take part, chosen uniformly. All of it is
drawn before anybody looks at a rating.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from accounting import guards
from dpmf_jax.noise.laws import Noise


@dataclasses.dataclass(frozen=True, kw_only=True)
class Population:
    """The paper's S3. Nobody is online before the first iteration.

    join: probability, per user and iteration, that an absent user comes online.
    leave: probability that a user who is online goes.
    at_most: so many users take part in an iteration; in the paper 1,000 (Netflix) or 100
      (MovieLens).

    Raises: ValueError for a probability outside [0, 1], or at_most below 1.
    """

    join: float = 0.005
    leave: float = 0.01
    at_most: int = 1000

    def __post_init__(self) -> None:
        guards.fields(self, guards.share, "join", "leave")
        guards.count("at_most", self.at_most, most=2**31 - 1)


@partial(jax.tree_util.register_dataclass, data_fields=["join", "leave"], meta_fields=["at_most"])
@dataclasses.dataclass(frozen=True)
class Rates:
    """A `Population` as arrays, so that a sweep over probabilities compiles once.

    at_most is a shape.
    """

    join: jax.Array
    leave: jax.Array
    at_most: int


def rates(population: Population | None) -> Rates | None:
    """None where everybody takes part in every iteration."""
    if population is None:
        return None
    return Rates(jnp.float32(population.join), jnp.float32(population.leave), population.at_most)


OFFLINE, ONLINE, TAKES_PART = 0, 1, 2


def nobody(num_users: int) -> jax.Array:
    """int32[users]: everybody is OFFLINE."""
    return jnp.zeros(num_users, jnp.int32)


def advance(rates: Rates, key: jax.Array, before: jax.Array) -> jax.Array:
    """int32[users]: who is OFFLINE, ONLINE or TAKES_PART in the next iteration. Spends `key`.

    before: the same of the iteration before.
    """
    change_key, choice_key = jax.random.split(key)
    coin = jax.random.uniform(change_key, before.shape)
    online = jnp.where(before == OFFLINE, coin < rates.join, coin >= rates.leave)
    chosen = choose(choice_key, online, rates.at_most)
    return jnp.where(chosen, TAKES_PART, jnp.where(online, ONLINE, OFFLINE)).astype(jnp.int32)


def choose(key: jax.Array, among: jax.Array, at_most: int) -> jax.Array:
    """bool[users]: `at_most` of those `among` (bool[users]), uniformly, or all if they are fewer.

    The largest of random 31-bit numbers, found by bisection instead of sorting: 31 counts. Of equal
    ones at the edge (one pair in 2^31) the first by index are taken.
    """
    ticket = jnp.where(
        among, (jax.random.bits(key, among.shape, jnp.uint32) >> 1).astype(jnp.int32), -1
    )

    def closer(bit: jax.Array, edge: jax.Array) -> jax.Array:
        higher = edge | (jnp.int32(1 << 30) >> bit)
        return jnp.where(jnp.sum(ticket >= higher) >= at_most, higher, edge)

    edge = jax.lax.fori_loop(
        0, 31, closer, jnp.int32(0)
    )  # the largest with at least `at_most` tickets from it on
    level = ticket == edge
    room = at_most - jnp.sum(ticket > edge)
    return (ticket > edge) | (level & (_running_count(level) <= room))


def _running_count(mask: jax.Array) -> jax.Array:
    """int32, as cumsum, which takes six times as long on a CPU."""
    return jax.lax.associative_scan(jnp.add, mask.astype(jnp.int32))


def members(attendance: jax.Array, at_most: int) -> jax.Array:
    """int32[min(at_most, users)]: who TAKES_PART, in order, filled up with the number of users."""
    places = jnp.arange(1, min(at_most, attendance.shape[0]) + 1)
    return jnp.searchsorted(_running_count(attendance == TAKES_PART), places).astype(jnp.int32)


class Sums(NamedTuple):
    """What an iteration makes of those who take part: the part that gets noise, and what is public.

    secret: a pytree. count: float32[items], how many ratings were summed, public where who rated
      what is; else None.
    crowd: int32[users], see `advance`; None where everybody takes part.
    """

    secret: Any
    count: jax.Array | None
    crowd: jax.Array | None


def noisy_sums(noise: Noise, at_least: jax.Array) -> Noise:
    """`noise` on the secret part of `Sums`, whose public parts stay as they are.

    at_least: int32. In an iteration with fewer participants, nothing is released: the secret part
      is 0 in every world.
    """
    return Noise(
        sample=Partial(_sample, noise, at_least),
        log_prob=Partial(_log_prob, noise, at_least),
        log_ratio=Partial(_log_ratio, noise, at_least),
    )


def enough(crowd: jax.Array | None, at_least: jax.Array) -> jax.Array:
    """bool[], whether as many take part as the noise needs; always where everybody does."""
    return jnp.bool_(True) if crowd is None else jnp.sum(crowd == TAKES_PART) >= at_least


def _sample(noise: Noise, at_least: jax.Array, key: jax.Array, statistics: Sums) -> Sums:
    released = enough(statistics.crowd, at_least)
    noisy = noise.sample(key, statistics.secret)
    return statistics._replace(
        secret=jax.tree.map(lambda leaf: jnp.where(released, leaf, 0), noisy)
    )


def _same(tree: Any, other: Any) -> jax.Array:
    same = jax.tree.map(lambda a, b: jnp.all(a == b), tree, other)
    return jax.tree.reduce(jnp.logical_and, same, jnp.bool_(True))


def _possible(at_least: jax.Array, response: Sums, statistics: Sums) -> jax.Array:
    """Whether the parts without noise could be these."""
    silent = jax.tree.map(lambda leaf: jnp.all(leaf == 0), response.secret)
    silent = jax.tree.reduce(jnp.logical_and, silent, jnp.bool_(True))
    same = _same((response.count, response.crowd), (statistics.count, statistics.crowd))
    return same & (silent | enough(statistics.crowd, at_least))


def _log_prob(noise: Noise, at_least: jax.Array, response: Sums, statistics: Sums) -> jax.Array:
    density = jnp.where(
        enough(statistics.crowd, at_least),
        noise.log_prob(response.secret, statistics.secret),
        jnp.float32(0),
    )
    return jnp.where(_possible(at_least, response, statistics), density, -jnp.inf)


def _log_ratio(
    noise: Noise, at_least: jax.Array, response: Sums, statistics: Sums, other: Sums
) -> jax.Array:
    here, there = (_possible(at_least, response, world) for world in (statistics, other))
    ratio = jnp.where(
        enough(statistics.crowd, at_least),
        noise.log_ratio(response.secret, statistics.secret, other.secret),
        jnp.float32(0),
    )
    return jnp.where(
        here & there, ratio, jnp.where(here == there, 0.0, jnp.where(here, jnp.inf, -jnp.inf))
    )
