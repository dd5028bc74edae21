"""Which of two neighbouring data sets can have made a response: asked of tables of what each makes.

Floating-point noise takes few values. q plus noise is another set of numbers for another q, and a
response that lies in one set and not in the other gives the data set away, however large the noise.
So do statistics off the noise's grid, and low digits that no noise reaches. Real-number noise has
no such sets. Whole-number noise on whole statistics has the same set in both worlds.

An attacker who knows the public state makes the tables with the sampler itself, run on each world's
statistics. For floats a generator that counts in place of drawing (`lookup_tables`) gives the
sampler every word in turn: 2^23, since `jax.random` makes floats of 23 bits. Where a number takes
more than one word, and for whole numbers, the tables hold draws.

T is what one table holds and the other does not; of whole numbers, what it holds e^ε times more
often. Then fresh responses of both worlds are looked up: a step that costs (ε, δ) has P(T) ≤ e^ε
P'(T) + δ. T is fixed before they are drawn, so the test is exact whatever the tables are worth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.guarantee import Guarantee
from audits import neighbours, transcript
from audits.finding import ALPHA, Finding, inconclusive, not_applicable
from audits.mechanism import lookup_places, lookup_tables
from audits.mechanism.lookup_places import Place
from audits.transcript import step_statistics
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.noise.laws import draws
from dpmf_jax.protocol import Mechanism, State

NAME = "noise: lookup"
CLAIM = "no table of what each of two worlds can make tells which of them made a response"
DRAWN, DRAWN_WHOLE = 1 << 22, 1 << 18  # numbers of a table that is drawn; of whole numbers
PIECE = 1 << 22  # numbers of a table that are drawn before they are compared
RUNS = 1 << 13  # responses of each world that are looked up
TRIED = 1 << 12  # draws, apart from the responses, that show how many a table knows
FEW = 16  # part of all words that shows first whether a number takes one
WORK = 1 << 28  # numbers drawn for one table, or for all lookups of one world
WORK_FLOATS = 1 << 24  # the same of floats, unless a table of so many is worth a larger one
WORTH = 0.1  # share of the responses that a larger table must promise to know
BATCH = 1 << 20  # numbers drawn at once


class Lookup(NamedTuple):
    """What looking up the responses of both worlds showed, for one direction and view of one place.

    Attributes:
      where: the place, the table, the view and the world.
      num: responses of each world.
      first: how many of the one world's lie in T.
      second: how many of the other world's do.
      known: share of the one world's that its own table holds.
      right: share of guesses that are right, where both worlds are equally likely.
      several: whether a number takes more than one word of noise.
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
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    num_neighbours: int = 8,
    num_places: int = 2,
    num_runs: int = RUNS,
    num_drawn: int = DRAWN,
    num_whole: int = DRAWN_WHOLE,
    both_ends: bool = True,
) -> list[Finding]:
    """One finding: do lookups tell the worlds apart, in the first step or the last (at most 32nd)?

    violated: P(T) ≤ e^ε P'(T) + δ, with ε and δ of one step, is refuted at `finding.ALPHA` at one
      of the places.
    consistent: worlds with no response in common would have been seen.
    inconclusive: they would not, or a float takes more than one word of noise.
    measured: a lower bound on the ε of one step at this δ, right with 95%.

    Args:
      num_neighbours: among which pairs are chosen.
      num_places: entries of a response that are looked up, at each step.
      num_runs: responses of each world that are looked up.
      num_drawn: numbers of a table of draws, where they are floats.
      num_whole: the same, where they are whole numbers.
      both_ends: whether to try the first step too, not only the last.
    """
    try:
        guarantee = mechanism.guarantee(1)
    except ValueError as error:
        return [not_applicable(NAME, CLAIM, f"it states no price of one step: {error}")]
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
        states = lookup_places.states(mechanism, start_key, data, tried.stacked, tried.unit, step)
        place_key, draw_key = jax.random.split(step_key)
        for place in lookup_places.places(
            mechanism, place_key, states, data, tried, most=num_places
        ):
            own_states = jax.tree.map(lambda leaf, at=place.pair: leaf[at], states)
            datas = (
                data,
                transcript.neighbour_at(data, tried.stacked, place.pair, unit=tried.unit),
            )
            worlds = tuple(zip(own_states, datas, strict=True))
            where = {"step": step, "leaf": place.leaf, "entry": place.entry, "position": place.pair}
            found += _lookups(
                mechanism, draw_key, worlds, place, guarantee, where, num_runs, num_drawn, num_whole
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
    """One entry of the response in a step from the world's state, for each key.

    sampled: whether each key draws coins of its own too.
    """
    same = None if sampled else step_statistics(mechanism, *world, keys[0])

    def one(key: jax.Array) -> jax.Array:
        coins_key, noise_key = jax.random.split(key)
        statistics = step_statistics(mechanism, *world, coins_key) if sampled else same
        return jax.tree.leaves(mechanism.noise.sample(noise_key, statistics))[leaf].reshape(-1)[
            entry
        ]

    return jax.lax.map(one, keys, batch_size=batch)


def _lookups(
    mechanism: Mechanism,
    key: jax.Array,
    worlds: tuple[Any, ...],
    place: Place,
    guarantee: Guarantee,
    where: dict[str, Any],
    num_runs: int,
    num_drawn: int,
    num_whole: int,
) -> list[Lookup]:
    """Lookups at one place, in both directions and in every view."""
    sampled = lookup_places.has_coins(mechanism)
    statistics = [  # of each world, the usual ones
        [step_statistics(mechanism, *world, key) for key in coins]
        for world, coins in zip(worlds, place.coins, strict=True)
    ]
    response = jax.tree.leaves(jax.eval_shape(mechanism.noise.sample, key, statistics[0][0]))
    entries = sum(leaf.size for leaf in response)
    at = response[place.leaf]
    rows, batch = (at.shape[0] if at.ndim else 1), max(1, BATCH // entries)
    whole = not jnp.issubdtype(at.dtype, jnp.floating)
    most = (WORK if whole else 4 * WORK_FLOATS) // max(entries, 1)
    runs = int(np.clip(most, min(64, num_runs), num_runs))
    if sampled:  # then every one of them reads the ratings
        runs = int(np.clip(WORK // 4 // max(worlds[0][1].num_ratings, entries), 64, runs))
    own_key, other_key, fresh_key = jax.random.split(key, 3)
    fresh = [
        np.asarray(_fresh(mechanism, keys, world, place.leaf, place.entry, sampled, batch))
        for keys, world in zip(jax.random.split(fresh_key, (2, runs)), worlds, strict=True)
    ]

    same_leaves = len(response) == len(jax.tree.leaves(statistics[0][0])) and all(
        leaf.shape == part.shape
        for leaf, part in zip(response, jax.tree.leaves(statistics[0][0]), strict=True)
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
        for piece, (q, start) in enumerate(pieces):
            yield numbers(drawn(jax.random.fold_in(own, piece), min(PIECE, num - start)), q)

    one_word, some = False, np.zeros(0)
    if not whole:
        some = numbers(drawn(own_key, TRIED), statistics[0][0])
    if not whole and (by_entry or lookup_tables.WORDS // rows * entries <= WORK):
        counting = lookup_tables.every_word(at.size if by_entry else rows, entries=by_entry)

        def known(keys: jax.Array) -> float:
            made = numbers(keys, statistics[0][0], True)
            return float(np.mean(lookup_tables.counts([made], some, "value") > 0))

        # of one word each, as many are among those of the first words as these are of all words
        first = max(1, len(counting) // FEW)
        one_word = known(counting[:first]) > 0.5 * first / len(counting) and known(counting) > 0.99
    num, few = (
        min(num_whole if whole else num_drawn, max(1, work // entries) * rows)
        for work in (WORK, WORK_FLOATS)
    )
    if not whole and not one_word and few < num:
        found_in_few = lookup_tables.counts(table(own_key, statistics[0][:1], few), some, "value")
        num = num if np.mean(found_in_few > 0) * num / few >= WORTH else few
    tables: list[Iterable[np.ndarray]] = [
        (map(partial(numbers, counting, counted=True), some) if one_word else table(own, some, num))
        for own, some in zip((own_key, other_key), statistics, strict=True)
    ]
    if whole:  # few numbers, for two views
        tables = [list(pieces) for pieces in tables]
    found: list[Lookup] = []
    for view in ("value", lookup_tables.LOW) if whole else ("value",):
        both = np.concatenate(fresh)
        # of each table, how often it holds what either world made
        held = [np.split(lookup_tables.counts(pieces, both, view), 2) for pieces in tables]
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
    """What the counts show of T, in one direction.

    Args:
      counts: [world][table], how often each table holds what the world made; first the world on
        trial, and its table.
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
    """A lower bound on P(T) and an upper one on P'(T), both right with 1 - alpha.

    By Clopper and Pearson.
    """
    from scipy.stats import beta

    low = float(beta.ppf(alpha / 2, first, num - first + 1)) if first else 0.0
    high = float(beta.isf(alpha / 2, second + 1, num - second)) if second < num else 1.0
    return low, high


def _epsilon_bound(first: int, second: int, num: int, delta: float, alpha: float) -> float:
    """A lower bound on the ε of a step, right with 1 - alpha."""
    low, high = _bounds(first, second, num, alpha)
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def _refuted(first: int, second: int, num: int, guarantee: Guarantee, alpha: float) -> bool:
    return _epsilon_bound(first, second, num, guarantee.delta, alpha) > guarantee.epsilon


def _judge(
    found: list[Lookup],
    guarantee: Guarantee,
    ratings: Ratings,
    tried: neighbours.Neighbours,
    replay: dict[str, Any],
) -> Finding:
    def bound(one: Lookup) -> float:
        return _epsilon_bound(one.first, one.second, one.num, guarantee.delta, 0.05 / len(found))

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
