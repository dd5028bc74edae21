"""Does anything public depend on the ratings other than through the noise?

The responses of one run are recorded and played to both worlds by the same compiled program. All
that is public must come out the same to the last bit: the initial public state, the public state
after every step that is replayed (the first 32, `transcript.record`), and the release after the
last of these. The private states follow their own world's ratings throughout, so a leak through
them is seen too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from audits import neighbours, transcript
from audits.finding import Finding
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism, Release, State

Difference = tuple[str, int | None, float]  # (leaf, first step, largest difference)


class World(NamedTuple):
    """What one world shows.

    Attributes:
      start: its initial public state.
      publics: the public state after each response, leading axis of steps.
      release: after the last one.
    """

    start: Any
    publics: Any
    release: Release


@jax.jit
def _replay(
    mechanism: Mechanism, key: jax.Array, start: Any, responses: Any, data: Layout
) -> World:
    """Plays the responses to a world with its own private state, and the public state `start`."""
    init_key, _ = jax.random.split(key)
    own = mechanism.init(init_key, data, None)

    def body(state: State, response: Any) -> tuple[State, Any]:
        state = mechanism.update(state, response, data)._replace(step=state.step + 1)
        return state, state.public

    state, publics = jax.lax.scan(body, own._replace(public=start), responses)
    return World(own.public, publics, mechanism.release(state))


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    num_neighbours: int = 8,
) -> list[Finding]:
    """Three findings: the initial public state, that after each of the first steps, the release.

    The first 32 steps are recorded with the key's noise, fewer where they would be more than 2^24
    numbers; later steps are not covered. The neighbours are those of the guarantee's unit. Compares
    bits, so it has no false alarms; `consistent` covers these pairs and steps.
    """
    guarantee = mechanism.guarantee(num_steps)
    choose_key, run_key = jax.random.split(key)
    tried = neighbours.choose(
        choose_key,
        ratings,
        data,
        unit=guarantee.unit,
        num=num_neighbours,
        change=guarantee.largest_change,
    )
    start, responses, _ = transcript.record(mechanism, run_key, data, num_steps)
    first = _replay(mechanism, run_key, start.public, responses, data)

    differing: dict[str, list[tuple[int, list[Difference]]]] = {name: [] for name in CLAIMS}
    for position in range(tried.num):
        other = transcript.neighbour_at(data, tried.stacked, position, unit=tried.unit)
        second = _replay(mechanism, run_key, start.public, responses, other)
        differing["init"].append((position, differences(first.start, second.start)))
        differing["post-processing"].append(
            (position, differences(first.publics, second.publics, steps=True))
        )
        differing["release"].append((position, differences(first.release, second.release)))
    steps = min(len(leaf) for leaf in jax.tree.leaves(responses))
    replay_key = np.asarray(jax.random.key_data(run_key)).tolist()
    return [
        _finding(
            name,
            _claim(name, steps, num_steps),
            by_pair,
            steps,
            ratings,
            tried,
            replay_key,
            guarantee.status,
        )
        for name, by_pair in differing.items()
    ]


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
    by_pair: list[tuple[int, list[Difference]]],
    num_steps: int,
    ratings: Ratings,
    tried: neighbours.Neighbours,
    key: list[int],
    status: str,
) -> Finding:
    broken = [(position, leaf) for position, leaves in by_pair for leaf in leaves]
    details: dict[str, Any] = {
        "pairs": len(by_pair),
        "steps": num_steps,
        "status_of_the_guarantee": status,
        "power": "exact for these pairs and steps: a single differing bit would be seen",
    }
    if broken:
        position, (leaf, step, gap) = max(broken, key=lambda entry: entry[1][2])
        details["leaves"] = sorted({leaf for _, (leaf, _, _) in broken})
        details["largest_difference"] = gap
        pair = neighbours.describe(ratings, tried, position)
        details["replay"] = {"pair": pair, "leaf": leaf, "first_step": step, "key": key}
    return Finding(
        audit=name,
        claim=claim,
        measured=float(len(broken)),
        claimed=0.0,
        lower=float(len(broken)),
        verdict="violated" if broken else "consistent",
        details=details | {"unit_of_measurement": "leaves that differ, over all pairs"},
    )
