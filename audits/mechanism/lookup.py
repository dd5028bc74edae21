"""Which of two neighbouring data sets can have made this response? Answered from tables of what
each of them can make.

Noise of floating-point numbers takes few values: q plus noise is another set of numbers for another
q, and a response that lies in one set and not in the other gives the data set away, however large
the noise. So do statistics off the noise's grid, and low digits that no noise reaches. Real-number
noise has no such sets, and whole-number noise on whole statistics has the same one in both worlds.

An attacker who knows the public state makes the tables: with the sampler itself, run on each
world's statistics. For floats a generator that counts in place of drawing (`lookup_tables`) gives
the sampler every word in turn: 2^23, since `jax.random` makes floats of 23 bits. Where a number
takes more than one word, and for whole numbers, the tables hold draws. T is what one table holds
and the other does not; of whole numbers what it holds e^ε times more often. Then fresh responses of
both worlds are looked up: a step that costs (ε, δ) has P(T) ≤ e^ε P'(T) + δ. T is fixed before they
are drawn, so the test is exact whatever the tables are worth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.guarantee import Guarantee, Unit
from audits import neighbours, transcript
from audits.finding import ALPHA, Finding, inconclusive, not_applicable
from audits.mechanism import lookup_tables
from dpmf_jax import protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.noise.laws import draws
from dpmf_jax.protocol import Mechanism, State

NAME = "noise: lookup"
CLAIM = "no table of what each of two worlds can make tells which of them made a response"
DRAWN, DRAWN_WHOLE, PIECE = (
    1 << 26,
    1 << 18,
    1 << 22,
)  # numbers of a table that is drawn; of whole numbers; made at once
RUNS = 1 << 13  # responses of each world that are looked up
COINS, NOISES = 32, 4  # coins and draws of noise among which a place is looked for
USUAL = 8  # statistics of each world that tables are made of, where coins decide which they are
TRIED = 1 << 12  # draws that show whether the words that were counted are all that a number takes
MOST_ENTRIES = 256  # of a response that are compared there
WORK = 1 << 28  # numbers drawn for one table, or for all lookups of one world
BATCH = 1 << 20  # numbers drawn at once


class Place(NamedTuple):
    """Where a response is looked at. pair: of the neighbours tried; leaf, entry: of the response,
    entry in flat order;
    coins: of either world, keys of those that gave its usual statistics there; size: of the
      response there, about.
    """

    pair: int
    leaf: int
    entry: int
    coins: tuple[jax.Array, jax.Array]
    size: float


class Lookup(NamedTuple):
    """One direction and view of one place: `first` of `num` responses of a world lie in T, `second`
    of the other's.

    known: the share of its own responses that its table holds; right: the share of guesses that are
    right, both worlds equally likely; several: whether a number takes more than one word of noise;
    able: whether worlds with nothing in common would have been seen.
    """

    where: dict[str, Any]
    num: int
    first: int
    second: int
    known: float
    right: float
    several: bool
    able: bool


SEVERAL = (
    "a number of the response takes more than one word of noise; such numbers tell nothing one at a"
    " time, and a row of them is not looked up as one"
)


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Any,
    *,
    key: jax.Array,
    num_steps: int,
    num_neighbours: int = 8,
    num_places: int = 2,
    num_runs: int = RUNS,
    num_drawn: int = DRAWN,
    both_ends: bool = True,
) -> list[Finding]:
    """One finding, about the first step and the last (the 32nd at most): is one response told by
    lookup?

    violated: P(T) ≤ e^ε P'(T) + δ, ε and δ those of one step, is refuted at `finding.ALPHA` at one
      of the places.
    measured: a lower bound on the ε of one step at this δ, right with 95%. consistent: worlds with
    no response in common would have been seen. inconclusive: they would not; or floats take more
    than one word of noise each.

    Args:
      num_neighbours: among which pairs are chosen; num_places: entries of a response that are
        looked up, at each step.
      num_runs: responses of each world that are looked up. num_drawn: numbers of a table of draws.
      both_ends: the first step too, not only the last.
    """
    guarantee = mechanism.guarantee(1)
    if guarantee.status == "none" or not math.isfinite(guarantee.epsilon):
        why = f"{guarantee.mechanism} (status {guarantee.status}) states no price of a step"
        return [not_applicable(NAME, CLAIM, why)]
    if not draws(mechanism.noise):
        return [not_applicable(NAME, CLAIM, "there is no noise")]
    choose_key, start_key, *step_keys = jax.random.split(key, 4)
    tried = neighbours.choose(
        choose_key,
        ratings,
        data,
        unit=guarantee.unit,
        num=num_neighbours,
        change=guarantee.largest_change,
    )
    found: list[Lookup] = []
    last = min(num_steps, transcript.STEPS) - 1
    for step_key, step in zip(step_keys, sorted({0, last} if both_ends else {last}), strict=False):
        states = _states(mechanism, start_key, data, tried.stacked, tried.unit, step)
        place_key, draw_key = jax.random.split(step_key)
        for place in _places(mechanism, place_key, states, data, tried)[:num_places]:
            own_states = jax.tree.map(lambda leaf, at=place.pair: leaf[at], states)
            datas = (
                data,
                transcript.neighbour_at(data, tried.stacked, place.pair, unit=tried.unit),
            )
            worlds = tuple(zip(own_states, datas, strict=True))
            where = {"step": step, "leaf": place.leaf, "entry": place.entry, "position": place.pair}
            found += _looked_up(
                mechanism, draw_key, worlds, place, guarantee, where, num_runs, num_drawn
            )
    replay = {"key": np.asarray(jax.random.key_data(key)).tolist()}
    if not found:
        return [
            inconclusive(
                NAME,
                CLAIM,
                "no response differs between the data sets that were tried",
                replay=replay,
            )
        ]
    return [_judge(found, guarantee, ratings, tried, replay)]


# --- where to look


def _nothing(response: Any, statistics: Any, other: Any) -> None:
    del response, statistics, other


@partial(jax.jit, static_argnames=("unit", "step"))
def _states(
    mechanism: Mechanism,
    key: jax.Array,
    data: Any,
    stacked: neighbours.Neighbour,
    unit: Unit,
    step: int,
) -> tuple[State, State]:
    """Of each pair, leading axis of pairs: both worlds' states after `step` steps that the first
    one's responses drove.
    """
    init_key, train_key = jax.random.split(key)

    def pair(neighbour: neighbours.Neighbour) -> tuple[State, State]:
        datas = (data, neighbours.apply(unit, data, neighbour))
        states = tuple(mechanism.init(init_key, world, None) for world in datas)
        assert len(states) == 2
        if step:
            states, _ = protocol.train_coupled(mechanism, train_key, states, datas, step, _nothing)
        return states

    return jax.lax.map(pair, stacked)


@partial(jax.jit, static_argnames=("unit",))
def _responses(
    mechanism: Mechanism,
    coins_keys: jax.Array,
    noise_keys: jax.Array,
    states: tuple[State, State],
    data: Any,
    stacked: neighbours.Neighbour,
    unit: Unit,
) -> tuple[Any, Any]:
    """Both worlds' responses with the same coins and noise in both, axes [pairs, coins, noises,
    ...].
    """

    def pair(at: tuple[Any, neighbours.Neighbour]) -> Any:
        both, neighbour = at
        datas = (data, neighbours.apply(unit, data, neighbour))

        def responses(coins_key: jax.Array) -> Any:
            coins = mechanism.coins(coins_key)
            asked = [
                mechanism.query(state, world, coins)[0]
                for state, world in zip(both, datas, strict=True)
            ]
            return tuple(
                jax.lax.map(lambda key, q=q: mechanism.noise.sample(key, q), noise_keys)
                for q in asked
            )

        return jax.lax.map(responses, coins_keys)

    return jax.lax.map(pair, (states, stacked))


def _has_coins(mechanism: Mechanism) -> bool:
    return bool(jax.tree.leaves(jax.eval_shape(mechanism.coins, jax.random.key(0))))


def _places(
    mechanism: Mechanism, key: jax.Array, states: Any, data: Any, tried: neighbours.Neighbours
) -> list[Place]:
    """Entries of a response that differ between the worlds under the same noise, the most telling
    first.

    These are entries whose value comes up most often over the coins, so that a table knows it; and
    among them those of the smallest responses, where floating-point numbers lie closest.
    """
    coins_keys = jax.random.split(key, COINS if _has_coins(mechanism) else 1)
    noise_keys = jax.random.split(jax.random.fold_in(key, 1), NOISES)
    both = _responses(mechanism, coins_keys, noise_keys, states, data, tried.stacked, tried.unit)
    found: list[tuple[float, Place]] = []
    for leaf, worlds in enumerate(zip(*map(jax.tree.leaves, both), strict=True)):
        own, other = (np.asarray(world).reshape(*world.shape[:3], -1) for world in worlds)
        for pair in range(len(own)):
            apart = np.any(own[pair] != other[pair], axis=1)
            entries = np.flatnonzero(apart.any(axis=0))
            size = np.abs(own[pair][:, :, entries].astype(np.float64)).mean(axis=(0, 1))
            for at in np.argsort(size, kind="stable")[:MOST_ENTRIES]:
                entry = int(entries[at])
                usual, counts = zip(
                    *(_usual(world[pair, :, 0, entry]) for world in (own, other)), strict=True
                )
                coins = coins_keys[usual[0]], coins_keys[usual[1]]
                place = Place(pair, leaf, entry, coins, float(size[at]))
                telling = apart[usual[0], entry]
                found.append((-float(np.max(counts[0] * telling)), place))
    return [place for _, place in sorted(found, key=lambda one: (one[0], one[1].size))]


def _usual(responses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Of the most frequent values up to `USUAL` places where they stand, how often each comes
    up).
    """
    _, first, counts = np.unique(responses, return_index=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:USUAL]
    return first[order], counts[order]


# --- tables, and what is looked up in them


@partial(jax.jit, static_argnames=("leaf", "sampled", "batch"))
def _fresh(
    mechanism: Mechanism,
    keys: jax.Array,
    world: tuple[State, Any],
    leaf: int,
    entry: jax.Array,
    sampled: bool,
    batch: int,
) -> jax.Array:
    """What one entry of the response is in a step from the world's state, for each key; fresh
    coins, if `sampled`.
    """
    same = None if sampled else _asked(mechanism, world, keys[0])

    def one(key: jax.Array) -> jax.Array:
        coins_key, noise_key = jax.random.split(key)
        statistics = _asked(mechanism, world, coins_key) if sampled else same
        return jax.tree.leaves(mechanism.noise.sample(noise_key, statistics))[leaf].reshape(-1)[
            entry
        ]

    return jax.lax.map(one, keys, batch_size=batch)


@jax.jit
def _asked(mechanism: Mechanism, world: tuple[State, Any], coins_key: jax.Array) -> Any:
    return mechanism.query(*world, mechanism.coins(coins_key))[0]


def _looked_up(
    mechanism: Mechanism,
    key: jax.Array,
    worlds: tuple[Any, ...],
    place: Place,
    guarantee: Guarantee,
    where: dict[str, Any],
    num_runs: int,
    num_drawn: int,
) -> list[Lookup]:
    """Both directions and every view of one place."""
    sampled = _has_coins(mechanism)
    asked = [
        [_asked(mechanism, world, key) for key in coins]
        for world, coins in zip(worlds, place.coins, strict=True)
    ]
    response = jax.tree.leaves(jax.eval_shape(mechanism.noise.sample, key, asked[0][0]))
    entries = sum(leaf.size for leaf in response)
    at = response[place.leaf]
    rows, batch = (at.shape[0] if at.ndim else 1), max(1, BATCH // entries)
    runs = int(np.clip(WORK // max(entries, 1), 64, num_runs))
    if sampled:  # then every one of them reads the ratings
        runs = int(np.clip(WORK // 4 // max(worlds[0][1].num_ratings, entries), 64, runs))
    own_key, other_key, fresh_key = jax.random.split(key, 3)
    fresh = [
        np.asarray(_fresh(mechanism, keys, world, place.leaf, place.entry, sampled, batch))
        for keys, world in zip(jax.random.split(fresh_key, (2, runs)), worlds, strict=True)
    ]

    same_leaves = len(response) == len(jax.tree.leaves(asked[0][0])) and all(
        leaf.shape == part.shape
        for leaf, part in zip(response, jax.tree.leaves(asked[0][0]), strict=True)
    )
    by_entry = (
        same_leaves and lookup_tables.WORDS // rows * entries > WORK
    )  # too large to be counted row by row

    def numbers(keys: jax.Array, statistics: Any, counted: bool = False) -> np.ndarray:
        sample, flat = mechanism.noise.sample, counted and by_entry
        return np.asarray(
            lookup_tables.numbers(
                sample, keys, statistics, place.leaf, place.entry, batch, entries=flat
            )
        )

    def drawn(key: jax.Array, num: int) -> jax.Array:
        return jax.random.split(key, -(-num // rows))

    def table(own: jax.Array, statistics: Sequence[Any], num: int) -> Iterator[np.ndarray]:
        pieces = itertools.product(statistics, range(0, num, PIECE))
        for place, (q, start) in enumerate(pieces):
            yield numbers(drawn(jax.random.fold_in(own, place), min(PIECE, num - start)), q)

    whole = not jnp.issubdtype(at.dtype, jnp.floating)
    one_word = False
    if not whole and (by_entry or lookup_tables.WORDS // rows * entries <= WORK):
        counting = lookup_tables.every_word(at.size if by_entry else rows, entries=by_entry)
        some = numbers(drawn(own_key, TRIED), asked[0][0])
        one_word = bool(
            np.mean(lookup_tables.counts([numbers(counting, asked[0][0], True)], some, "value") > 0)
            > 0.99
        )
    num = min(DRAWN_WHOLE if whole else num_drawn, max(1, WORK // entries) * rows)
    tables: list[Callable[[], Iterable[np.ndarray]]] = [
        (
            partial(map, partial(numbers, counting, counted=True), some)
            if one_word
            else partial(table, own, some, num)
        )
        for own, some in zip((own_key, other_key), asked, strict=True)
    ]
    found: list[Lookup] = []
    for view in ("value", lookup_tables.LOW) if whole else ("value",):
        both = np.concatenate(fresh)
        # of each table, how often it holds what either world made
        held = [np.split(lookup_tables.counts(table(), both, view), 2) for table in tables]
        for world in (0, 1):
            counts = [[held[t][w] for t in (world, 1 - world)] for w in (world, 1 - world)]
            told = where | {
                "table": "every word" if one_word else "draws",
                "view": view,
                "world": world,
            }
            factor = math.exp(min(guarantee.epsilon, 700.0)) if whole else None
            found.append(_lookup(counts, guarantee, told, factor, several=not (whole or one_word)))
    return found


def _lookup(
    counts: list[list[np.ndarray]],
    guarantee: Guarantee,
    where: dict[str, Any],
    factor: float | None,
    *,
    several: bool,
) -> Lookup:
    """counts[world][table]: how often each table holds what the world made, that on trial and its
    table first.

    factor: how many times more often one table holds what is in T; None: the other table does not
      hold it.
    """
    num = len(counts[0][0])
    first, second = (
        int(np.sum((own > 0) & (other == 0 if factor is None else own > factor * other)))
        for own, other in counts
    )
    known = int(np.sum(counts[0][0] > 0))
    guesses = [
        np.mean(((own > 0) & (other == 0)) + 0.5 * ((own > 0) == (other > 0)))
        for own, other in (counts[0], counts[1][::-1])
    ]
    able = not several and _refuted(known, 0, num, guarantee, ALPHA)
    return Lookup(where, num, first, second, known / num, float(np.mean(guesses)), several, able)


def _bounds(first: int, second: int, num: int, alpha: float) -> tuple[float, float]:
    """A lower bound on P(T), an upper one on P'(T) (Clopper and Pearson), both right but with a
    chance of `alpha`.
    """
    from scipy.stats import beta

    low = float(beta.ppf(alpha / 2, first, num - first + 1)) if first else 0.0
    high = float(beta.isf(alpha / 2, second + 1, num - second)) if second < num else 1.0
    return low, high


def _epsilon(first: int, second: int, num: int, delta: float, alpha: float) -> float:
    """ε of a step is at least this, but with a chance of `alpha`."""
    low, high = _bounds(first, second, num, alpha)
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def _refuted(first: int, second: int, num: int, guarantee: Guarantee, alpha: float) -> bool:
    return _epsilon(first, second, num, guarantee.delta, alpha) > guarantee.epsilon


# --- the verdict


def _judge(
    found: list[Lookup],
    guarantee: Guarantee,
    ratings: Ratings,
    tried: neighbours.Neighbours,
    replay: dict[str, Any],
) -> Finding:
    def bound(one: Lookup) -> float:
        return _epsilon(one.first, one.second, one.num, guarantee.delta, 0.05 / len(found))

    worst = max(found, key=lambda one: (bound(one), one.right))
    broken = any(
        _refuted(one.first, one.second, one.num, guarantee, ALPHA / len(found)) for one in found
    )
    able = any(one.able for one in found)
    known = max(one.known for one in found)
    details = {
        "guessed_right": worst.right,
        "guesses_allowed": (
            (1 + guarantee.delta * math.exp(-guarantee.epsilon))
            / (1 + math.exp(-guarantee.epsilon))
        ),
        "told_apart": worst.first / worst.num,
        "told_apart_in_the_other_world": worst.second / worst.num,
        "known_to_the_table": worst.known,
        "where": {name: value for name, value in worst.where.items() if name != "position"},
        "lookups": worst.num,
        "tests": len(found),
        "alpha": ALPHA,
        "delta": guarantee.delta,
        "unit_of_measurement": "ε of one step, a lower bound that is right with 95%",
        "power": (
            "worlds with no response in common would be seen with probability 0.95"
            if able
            else f"none to count on: the best table knows {known:.1%} of the responses"
        ),
        "replay": replay | {"pair": neighbours.describe(ratings, tried, worst.where["position"])},
    }
    if not broken and not able:
        why = (
            SEVERAL
            if any(one.several for one in found)
            else f"the best table knows {known:.1%} of the responses, too few to look up"
        )
        return inconclusive(NAME, CLAIM, why, **details)
    return Finding(
        audit=NAME,
        claim=f"{CLAIM}; a step costs ε = {guarantee.epsilon:.4g}",
        measured=bound(worst),
        claimed=guarantee.epsilon,
        lower=bound(worst),
        confidence=0.95,
        verdict="violated" if broken else "consistent",
        details=details,
    )
