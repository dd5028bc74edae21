"""Many runs of a mechanism on ratings whose canaries toss coins, and what their releases hold.

One compiled program takes the runs one after the other: side by side they take no less time on a
CPU, and longer to compile. In every run each canary is in or out by its own coin, and shapes stay.
The public part of the initial state is that of the run's `start`, since it is no secret; its
private part and all noise are fresh.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from audits import side_by_side
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.kernels import count_sketch, positive_systems
from dpmf_jax.kernels.count_sketch import ITEMS, USERS, Hashes
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism, Phase, Release

NOWHERE = 2**31 - 1  # an index outside all arrays: what is written there is dropped
LISTED = 10  # items that are recommended to a user


class Toggles(NamedTuple):
    """The ratings that coins decide.

    Attributes:
      address: where each is.
      owner: the index of its canary.
      value_in, value_out: its value with the canary in, and out.
    """

    address: layout.Address
    owner: jax.Array
    value_in: jax.Array
    value_out: jax.Array


class Known(NamedTuple):
    """The ratings that an attacker knows for each probe, [probes, most].

    Attributes:
      other: ids on the released side.
      value: the values.
      weight: 1, or 0 where there is none.
    """

    other: jax.Array
    value: jax.Array
    weight: jax.Array


class Watchers(NamedTuple):
    """Users who show an attacker what is recommended to them; none of them is a canary.

    Attributes:
      user: int32[watchers].
      known: what each of them rated; these items are not recommended.
    """

    user: jax.Array
    known: Known


class Probes(NamedTuple):
    """The pairs that are predicted, and whose lists are looked at.

    Attributes:
      user, item: int32[probes].
      known: by attacker; empty where nothing is fitted.
      middle: of the declared range, the centre where none is released.
      watchers: None where nobody's lists are seen.
    """

    user: jax.Array
    item: jax.Array
    known: tuple[Known, ...]
    middle: jax.Array
    watchers: Watchers | None = None


class Runs(NamedTuple):
    """What differs between runs; leading axis of runs.

    Attributes:
      key: of the run.
      start: key of the public part of its initial state, and of what is dealt out.
      coins: bool[canaries].
      stranger: whether the values of all ratings are dealt out anew: the data of somebody who knows
        how ratings are distributed and not what they are.
    """

    key: jax.Array
    start: jax.Array
    coins: jax.Array
    stranger: jax.Array


class Observed(NamedTuple):
    """What an attacker sees of runs.

    Attributes:
      predictions: [runs, attackers, probes], predicted ratings.
      rows: [runs, numbers], what is released of the users and items of all probes.
      lists: [runs, watchers, `LISTED` at most], the items that are recommended; no watchers where
        no item is released.
    """

    predictions: Any
    rows: Any
    lists: Any


class Sketched(NamedTuple):
    """How a released sketch is read; static."""

    rank: int
    how: Any


def released(mechanism: Mechanism, data: Layout) -> Release:
    """The shapes of what is released; None for a part that is not."""
    return jax.eval_shape(_first_release, mechanism, data, jax.random.key(0))


def _first_release(mechanism: Mechanism, data: Layout, key: jax.Array) -> Release:
    """Of no step. It has a name so that jax traces it once for all that ask."""
    return mechanism.release(mechanism.init(key, data, None))


def sketched(mechanism: Mechanism, data: Layout) -> Sketched | None:
    """How the released sketch is read; None where there is none."""
    if released(mechanism, data).sketch is None:
        return None
    release = mechanism.release(protocol.begin(mechanism, jax.random.key(0), data))
    assert release.rank is not None
    median = release.median is not None and bool(release.median)
    return Sketched(int(release.rank), "median" if median else "mean")


def one_sided(release: Release) -> str | None:
    """The side, "user" or "item", whose factors alone are released; None for both or neither."""
    sides = [
        release.sketch is not None or factors is not None
        for factors in (release.user_factors, release.item_factors)
    ]
    return ("user" if sides[0] else "item") if sides[0] != sides[1] else None


def nothing_released(release: Release) -> bool:
    return all(
        part is None
        for part in (release.user_factors, release.item_factors, release.center, release.sketch)
    )


def world(data: Layout, toggles: Toggles, coins: jax.Array, *, presence: bool) -> Layout:
    """The ratings with the canaries as their coins say.

    presence: whether canaries that are out are removed.
    """
    inside = coins[toggles.owner]
    data = layout.replace_value(
        data, toggles.address, jnp.where(inside, toggles.value_in, toggles.value_out)
    )
    if not presence:
        return data
    return layout.remove_rating(
        data, jax.tree.map(lambda at: jnp.where(inside, NOWHERE, at), toggles.address)
    )


@partial(jax.jit, static_argnames=("presence", "steps", "reading"))
def predictions(
    mechanisms: Sequence[Mechanism],
    runs: Runs,
    data: Layout,
    everyone: tuple[layout.Address, jax.Array, jax.Array],
    toggles: Toggles,
    probes: Probes,
    rows: tuple[jax.Array, jax.Array],
    *,
    presence: bool,
    steps: tuple[int, ...],
    reading: Sketched | None,
) -> Observed:
    """What is seen of the last release of each run, float32.

    Args:
      mechanisms: of all phases. steps: of each.
      rows: the users and items whose released numbers are looked at.
      everyone: of all ratings the addresses, the values, and the values in some random order, which
        a stranger's run deals out from a random place on.
    """
    address, values, anew = everyone

    def one(run: Runs) -> Observed:
        deal_key = jax.random.fold_in(run.start, len(mechanisms))  # no phase has this one
        turned = jnp.roll(anew, jax.random.randint(deal_key, (), 0, len(values)))
        dealt = jnp.where(run.stranger, turned, values)
        own = world(
            layout.replace_value(data, address, dealt), toggles, run.coins, presence=presence
        )
        public = None
        for place, (mechanism, num_steps) in enumerate(zip(mechanisms, steps, strict=True)):
            start, own_key = run.start, run.key
            if place:
                start, own_key = (jax.random.fold_in(key, place) for key in (start, own_key))
            _, init_key, train_key = jax.random.split(own_key, 3)
            init = protocol.traced_once(mechanism.init)
            state = init(start, own, public)
            if jax.tree.leaves(state.private):
                state = init(init_key, own, public)._replace(public=state.public)
            state, _info = protocol.train(mechanism, train_key, state, own, num_steps=num_steps)
            public = state.public
        release = mechanisms[-1].release(state)
        return Observed(
            predicted(release, probes, reading),
            _numbers(release, rows, reading),
            _lists(release, probes, data.num_items, reading),
        )

    return jax.lax.map(one, runs)


def predicted(release: Release, probes: Probes, reading: Sketched | None) -> jax.Array:
    """Predicted ratings, float32[attackers, probes]: centre and product of the factors.

    Where one side alone is released, the other's vector is a ridge regression on what the attacker
    knows; where no centre is released, it has a constant of its own.
    """
    center = probes.middle if release.center is None else jnp.asarray(release.center)
    base = center[probes.item] if center.ndim else jnp.broadcast_to(center, probes.item.shape)
    side = one_sided(release)
    if side is None:
        users, items = (
            _rows(release, *what, reading) for what in ((USERS, probes.user), (ITEMS, probes.item))
        )
        both = base if users is None or items is None else base + jnp.sum(users * items, axis=-1)
        return jnp.broadcast_to(both, (max(len(probes.known), 1), *base.shape))
    family, ids = (USERS, probes.user) if side == "user" else (ITEMS, probes.item)
    own = _rows(release, family, ids, reading)
    assert own is not None
    return jnp.stack(
        [_fitted(release, family, own, base, known, center, reading) for known in probes.known]
    )


def _numbers(
    release: Release, ids: tuple[jax.Array, jax.Array], reading: Sketched | None
) -> jax.Array:
    """All that is released of some users and items, in one row."""
    users, items = ids
    parts = [_rows(release, USERS, users, reading), _rows(release, ITEMS, items, reading)]
    if release.center is not None:
        center = jnp.asarray(release.center)
        parts.append(center[items] if center.ndim else center)
    return jnp.concatenate([jnp.ravel(part) for part in parts if part is not None])


def _rows(
    release: Release, family: int, ids: jax.Array, reading: Sketched | None
) -> jax.Array | None:
    """The released vectors of users or items, float32[..., rank]; None where none are."""
    factors = release.user_factors if family == USERS else release.item_factors
    parts = [] if factors is None else [jnp.asarray(factors)[ids]]
    if reading is not None:
        assert release.sketch is not None
        table, words = jnp.asarray(release.sketch), Hashes(jnp.asarray(release.hashes))
        parts.insert(
            0, count_sketch.query(table, words, family, ids, rank=reading.rank, how=reading.how)
        )
    return jnp.concatenate(parts, axis=-1) if parts else None


def _fitted(
    release: Release,
    family: int,
    own: jax.Array,
    base: jax.Array,
    known: Known,
    center: jax.Array,
    reading: Sketched | None,
) -> jax.Array:
    """Predictions, float32[probes], by the other side's vector fitted to the known ratings."""
    around = center[known.other] if center.ndim and family == ITEMS else base[:, None]
    solved = _vectors(release, family, known, around, reading)
    return base + jnp.sum(_with_constant(release, own) * solved, axis=-1)


def _with_constant(release: Release, rows: jax.Array) -> jax.Array:
    """The rows, and beside them a 1 where no centre is released: a vector then has a constant."""
    if release.center is not None:
        return rows
    return jnp.concatenate([rows, jnp.ones((*rows.shape[:-1], 1))], axis=-1)


def _vectors(
    release: Release, family: int, known: Known, around: jax.Array, reading: Sketched | None
) -> jax.Array:
    """Vectors of the other side, a ridge regression on the known ratings less what is `around`.

    The ridge is one typical released row.
    """
    features = _rows(release, family, known.other, reading)
    assert features is not None
    typical = jnp.sum(known.weight * jnp.sum(features**2, axis=-1)) / jnp.maximum(
        jnp.sum(known.weight), 1
    )
    features = _with_constant(release, features)
    weighted = known.weight[..., None] * features
    gram = jnp.einsum("pld,ple->pde", weighted, features, precision="highest")
    target = jnp.einsum("pld,pl->pd", weighted, known.value - around, precision="highest")
    return positive_systems.solve(gram, target, typical + 1e-6).solved


def _lists(release: Release, probes: Probes, num_items: int, reading: Sketched | None) -> jax.Array:
    """The items that are recommended to the watchers, best first; int32[watchers, LISTED].

    By released vectors, or by fitted ones where items alone are released.
    """
    items = _rows(release, ITEMS, jnp.arange(num_items), reading)
    if probes.watchers is None or (items is None and release.center is None):
        return jnp.zeros((0, LISTED), jnp.int32)
    user, known = probes.watchers
    center = probes.middle if release.center is None else jnp.asarray(release.center)
    scores = jnp.broadcast_to(center, (len(user), num_items))
    if items is not None and one_sided(release) == "item":
        around = center[known.other] if center.ndim else center
        vectors = _vectors(release, ITEMS, known, around, reading)
        scores += vectors @ _with_constant(release, items).T
    elif items is not None:
        vectors = _rows(release, USERS, user, reading)
        assert vectors is not None
        scores += vectors @ items.T
    who = jnp.arange(len(user))[:, None]
    rated = jnp.zeros(scores.shape, bool).at[who, known.other].max(known.weight > 0)
    return jax.lax.top_k(jnp.where(rated, -jnp.inf, scores), min(LISTED, num_items))[1]


def work(ratings: Ratings, num_steps: int) -> int:
    """About what a run takes, in ratings gone through; a step alone takes as long as 3,000."""
    return num_steps * (ratings.num_ratings + 3000)


def observe(
    phases: Sequence[Phase],
    ratings: Ratings,
    data: Layout,
    plan: Any,
    *,
    coins: np.ndarray,
    keys: jax.Array,
    starts: jax.Array,
    stranger: np.ndarray,
    at_once: int | None = None,
) -> Observed:
    """What is seen of runs with these coins, bool[runs, canaries], on the host in float64.

    Args:
      phases: that a run is made of.
      plan: a `canaries.Plan`.
      at_once: runs of one call; half by default. Two mechanisms of one shape share the program
        where it is the same for both.
    """
    # Each run cuts this order at a place of its own.
    anew = np.random.default_rng(0).permutation(ratings.value)
    everyone = (
        layout.locate(data, ratings.user, ratings.item),
        jnp.asarray(ratings.value),
        jnp.asarray(anew),
    )
    runs = Runs(keys, starts, jnp.asarray(coins), jnp.asarray(stranger))
    mechanisms, steps = zip(*phases, strict=True)
    reading = sketched(mechanisms[-1], data)
    num, at_once = len(coins), at_once or -(-len(coins) // 2)

    rows = tuple(jnp.unique(ids) for ids in (plan.probes.user, plan.probes.item))

    def observed(some: Runs) -> Observed:
        arguments = (mechanisms, some, data, everyone, plan.toggles, plan.probes, rows)
        options = {"presence": plan.presence, "steps": steps, "reading": reading}
        found = predictions(*arguments, **options)
        return jax.tree.map(lambda part: np.asarray(part, np.float64), found)

    parts = []
    for first in range(0, num, at_once):
        # The last run again, where the call has room.
        some = np.minimum(np.arange(first, first + at_once), num - 1)
        parts.append(jax.tree.map(operator.itemgetter(some), runs))
    found = side_by_side.calls(observed, parts)
    return jax.tree.map(lambda *some: np.concatenate(some)[:num], *found)
