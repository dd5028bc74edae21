"""Does anything public depend on the ratings other than through the noise?

The responses of one run are recorded and played to other worlds by the same compiled program. All
that is public must come out the same to the last bit: the initial public state, the public state
after every step, and the release. The private states follow their own world's ratings throughout,
so a leak through them is seen too.

What follows from responses alone is the same for any ratings, not for neighbouring ones only. So
the worlds are neighbours, and data sets far away (`neighbours.far`): a choice that only a large
change of a private number turns round (the best checkpoint, a threshold, an order) is the same for
nearly every neighbour. Where the unit is a presence or a user, one neighbour and half of the
ratings are also laid out anew: the others keep sizes that the ratings have, such as their number
and their padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from accounting.guarantee import Guarantee
from audits import neighbours, transcript
from audits.finding import Finding, not_applicable
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism, Release, State

Difference = tuple[str, int | None, float]  # (leaf, first step, largest difference)
WORDS = "released: words"
LATE = 4  # worlds that are followed beyond the first block of steps


class Played(NamedTuple):
    """What one world shows of a block of steps.

    Attributes:
      end: the state after the last response.
      publics: the public state after each response, leading axis of steps.
      release: after the last one.
    """

    end: State
    publics: Any
    release: Release


@jax.jit
def _play(mechanism: Mechanism, start: State, responses: Any, data: Layout) -> Played:
    """Plays the responses to a world, from its own private state."""

    def body(state: State, response: Any) -> tuple[State, Any]:
        after = protocol.traced_once(mechanism.update)(state, response, data)
        state = after._replace(step=state.step + 1)
        return state, state.public

    state, publics = jax.lax.scan(body, start, responses)
    return Played(state, publics, mechanism.release(state))


class _World(NamedTuple):
    """pair: in words that replay it."""

    data: Layout
    pair: dict[str, Any]


class _Difference(NamedTuple):
    pair: dict[str, Any]
    leaf: str
    step: int | None
    gap: float


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    num_neighbours: int = 8,
) -> list[Finding]:
    """Four findings: the initial public state, that after every step, the release, its words.

    The run is followed in blocks of steps (`transcript.blocks`), up to 2,048 steps: the first block
    in all worlds, the others in `LATE` of them. The neighbours are those of the guarantee's unit,
    and data sets far away differ from the ratings by many changes of that unit. Compares bits, so
    it has no false alarms; `consistent` covers these worlds and steps. The words are those that the
    guarantee has for what is released: an array with a row for every user is named there.
    """
    guarantee = mechanism.guarantee(num_steps)
    choose_key, run_key = jax.random.split(key)
    init_key, _ = jax.random.split(run_key)
    far_key = jax.random.fold_in(key, 0)
    tried = neighbours.choose(
        choose_key,
        ratings,
        data,
        unit=guarantee.unit,
        num=num_neighbours,
        change=guarantee.largest_change,
    )
    worlds = _ordered(
        [
            _World(
                transcript.neighbour_at(data, tried.stacked, position, unit=tried.unit),
                neighbours.describe(ratings, tried, position),
            )
            for position in range(tried.num)
        ],
        [
            _World(other, {"change": words})
            for words, other in neighbours.far(far_key, ratings, data, guarantee.unit)
        ],
    )
    if guarantee.unit != "rating value":
        worlds += _laid_out_anew(ratings, data, tried)
    differing: dict[str, list[_Difference]] = {name: [] for name in CLAIMS}
    own, others, steps, played = None, [], 0, None
    for block in transcript.blocks(mechanism, run_key, data, num_steps):
        if own is None:
            own = block.start
            for world in worlds:
                start = protocol.begin(mechanism, init_key, world.data)
                found = differences(own.public, start.public)
                differing["init"] += [_Difference(world.pair, *one) for one in found]
                others.append((world, start._replace(public=own.public)))
        played = _play(mechanism, own, block.responses, data)
        followed = []
        for world, start in others:
            other = _play(mechanism, start, block.responses, world.data)
            for name, found in (
                ("post-processing", differences(played.publics, other.publics, steps=True)),
                ("release", differences(played.release, other.release)),
            ):
                differing[name] += [
                    _Difference(world.pair, leaf, None if step is None else steps + step, gap)
                    for leaf, step, gap in found
                ]
            # from here on what is public is the first world's again: each step is held by itself
            followed.append((world, other.end._replace(public=played.end.public)))
        own, others = played.end, followed[:LATE]
        steps += min(len(leaf) for leaf in jax.tree.leaves(block.responses))
    assert played is not None  # there is a step at least
    replay_key = np.asarray(jax.random.key_data(run_key)).tolist()
    of_all = {"pairs": len(worlds), "steps": steps, "status_of_the_guarantee": guarantee.status}
    return [
        *(
            _finding(name, _claim(name, steps, num_steps), found, of_all, replay_key)
            for name, found in differing.items()
        ),
        _words_finding(guarantee, played.release, data, replay_key),
    ]


def _laid_out_anew(
    ratings: Ratings, data: Layout, tried: neighbours.Neighbours
) -> Iterator[_World]:
    """The first neighbour, and one ever so many changes away, with sizes of their own layouts."""
    at = int(tried.index[0])
    pair = neighbours.describe(ratings, tried, 0)
    one, half = ratings.user != ratings.user[at], ratings.user % 2 == 0
    if tried.unit != "user":
        places = np.arange(ratings.num_ratings)
        one, half = places != at, places % 2 == 0
    for kept, change in ((one, pair["change"]), (half, f"every second {tried.unit} removed")):
        if kept.any():
            other = layout.make(ratings.take(np.flatnonzero(kept)), kind=data.kind, num_devices=1)
            yield _World(other, pair | {"change": f"{change}, and laid out anew"})


def _words_finding(guarantee: Guarantee, release: Release, data: Layout, key: list[int]) -> Finding:
    """Whether the guarantee says that something of each user is released, where it is."""
    said = guarantee.released
    claim = f"what is released is {'; '.join(said)}"
    if guarantee.status == "none":
        return not_applicable(WORDS, claim, "status none: nothing is promised")
    if data.num_users == data.num_items:
        return not_applicable(WORDS, claim, "there are as many users as items")
    of_users = [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree.leaves_with_path(release)
        if np.ndim(leaf) and len(leaf) == data.num_users
    ]
    unsaid = [] if any("user" in words for words in said) else of_users
    return Finding(
        audit=WORDS,
        claim=claim,
        measured=float(len(unsaid)),
        claimed=0.0,
        lower=float(len(unsaid)),
        verdict="violated" if unsaid else "consistent",
        details={
            "leaves": unsaid,
            "replay": {"key": key},
            "power": "an array with a row for every user would be seen; what rows hold is not read",
            "unit_of_measurement": "released arrays with a row for every user that no word names",
        },
    )


def _ordered(near: list[_World], far: list[_World]) -> list[_World]:
    """Those that are followed to the end come first: of either kind, by turns."""
    both = max(len(near), len(far))
    return [world for place in range(both) for kind in (far, near) for world in kind[place:][:1]]


CLAIMS = {
    "init": "the initial public state does not depend on the ratings",
    "post-processing": (
        "the public part of {each} depends on the public state and the response alone"
    ),
    "release": "given the responses of {all}, the release does not depend on the ratings",
}


def _claim(name: str, steps: int, num_steps: int) -> str:
    """The claim in words, with the steps that were replayed."""
    some = steps < num_steps
    each = f"each of the first {steps} updates, of {num_steps}," if some else "every update"
    return CLAIMS[name].format(
        each=each, all=f"the first {steps} steps, of {num_steps}" if some else "all steps"
    )


def differences(tree: Any, other: Any, *, steps: bool = False) -> list[Difference]:
    """Leaves that are not the same bits.

    steps: whether leaves have a leading axis of steps; then each difference names its first step.
    """
    leaves, structure = jax.tree.flatten_with_path(tree)
    others, other_structure = jax.tree.flatten_with_path(other)
    if structure != other_structure:
        return [("the tree's structure", None, np.inf)]
    found: list[Difference] = []
    for (path, leaf), (_, other_leaf) in zip(leaves, others, strict=True):
        name, a, b = (
            jax.tree_util.keystr(path) or "the value",
            np.asarray(leaf),
            np.asarray(other_leaf),
        )
        if a.shape != b.shape or a.dtype != b.dtype:
            found.append((f"{name} (shape or type)", None, np.inf))
        elif a.tobytes() != b.tobytes():
            same = (
                np.array([x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True)])
                if steps
                else None
            )
            gap = np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)))
            found.append((name, None if same is None else int(np.argmin(same)), float(gap)))
    return found


def _finding(
    name: str,
    claim: str,
    broken: list[_Difference],
    of_all: dict[str, Any],
    key: list[int],
) -> Finding:
    details: dict[str, Any] = of_all | {
        "power": "exact for these worlds and steps: a single differing bit would be seen",
    }
    if broken:
        worst = max(broken, key=lambda one: one.gap)
        details["leaves"] = sorted({one.leaf for one in broken})
        details["largest_difference"] = worst.gap
        details["replay"] = {
            "pair": worst.pair,
            "leaf": worst.leaf,
            "first_step": worst.step,
            "key": key,
        }
    return Finding(
        audit=name,
        claim=claim,
        measured=float(len(broken)),
        claimed=0.0,
        lower=float(len(broken)),
        verdict="violated" if broken else "consistent",
        details=details | {"unit_of_measurement": "leaves that differ, over all worlds"},
    )
