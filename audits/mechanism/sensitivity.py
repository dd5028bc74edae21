"""How far one record moves a step's statistics, exactly: both worlds follow one transcript.

With the responses fixed, the two worlds differ in their data and in what privately follows from it.
The L2 distance of their statistics is the sensitivity that the noise of that step has to hide.
Along one transcript it is a number, not an estimate: a single pair above the claimed Δ refutes the
claim that Δ bounds every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.guarantee import Guarantee
from accounting.loss import Gaussian, Loss, Unit
from audits import neighbours, search, side_by_side
from audits.finding import Finding, inconclusive, not_applicable
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism

TOLERANCE = 1e-5  # relative, of Δ
ROUNDING = 8 * 2.0**-23  # float32 sums, relative to the entries that differ
CLIMBED = 4  # of the worst pairs, how many are climbed from, or tried as additions
CHEAP = 1 << 30  # bytes of ratings that all pairs may read, over all steps
BATCH_BYTES = 1 << 26  # how much memory the neighbouring data sets that run side by side may take


class Distances(NamedTuple):
    """Distances of two worlds' statistics over the steps; leading axis of pairs.

    Attributes:
      largest: the largest distance.
      step: its step.
      root_mean_square: over the steps.
      rounding: of float32, in the largest one.
      loss: [pairs, 2], mean squared error that the first and the last step start from, in the first
        world.
      one_sided: whether, in some step, one world's statistics are finite and the other's are not.
    """

    largest: jax.Array | np.ndarray
    step: jax.Array | np.ndarray
    root_mean_square: jax.Array | np.ndarray
    rounding: jax.Array | np.ndarray
    loss: jax.Array | np.ndarray
    one_sided: jax.Array | np.ndarray


class Lot(NamedTuple):
    """Pairs that were tried, and what was measured of them.

    Attributes:
      ratings: of the data set.
      what: what the data set is, where it is not the one on trial.
    """

    ratings: Ratings
    tried: neighbours.Neighbours
    found: Distances
    what: str = ""

    def worst(self, which: str) -> tuple[Lot, int, bool]:
        """(this lot, the place of the worst pair, whether it is finite in one world alone)."""
        one_sided = bool(np.any(self.found.one_sided))
        of = self.found.one_sided if one_sided else _badness(getattr(self.found, which))
        return self, int(np.argmax(of)), one_sided

    def badness(self, which: str, place: int, one_sided: bool) -> float:
        return math.inf if one_sided else float(_badness(getattr(self.found, which))[place])

    def finite(self) -> Lot:
        """Without pairs that diverge: of other ratings than those on trial they say nothing."""
        kept = np.isfinite(self.found.largest) | self.found.one_sided
        distances = (np.where(kept, part, -1.0) for part in (self.found[0], self.found[2]))
        largest, root_mean_square = distances
        return self._replace(
            found=self.found._replace(largest=largest, root_mean_square=root_mean_square)
        )


def _finite(statistics: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(q)) for q in jax.tree.leaves(statistics)]))


def observe(response: Any, statistics: Any, other: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    def squares(a: jax.Array, b: jax.Array) -> jax.Array:
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return jnp.float32(0)  # whole numbers are not rounded
        return jnp.sum(jnp.where(a == b, 0.0, jnp.maximum(a * a, b * b)))

    differing = jax.tree.map(squares, statistics, other)
    magnitude = jnp.sqrt(jax.tree.reduce(jnp.add, differing))
    one_sided = _finite(statistics) != _finite(other)
    return protocol.l2_distance(response, statistics, other), magnitude, one_sided


@partial(jax.jit, static_argnames=("unit", "num_steps", "batch"))
def distances(
    mechanism: Mechanism,
    key: jax.Array,
    data: Layout,
    stacked: neighbours.Neighbour,
    *,
    unit: Unit,
    num_steps: int,
    batch: int,
    added: jax.Array | bool = False,
    reflected: tuple[jax.Array, jax.Array] | None = None,
    weights: jax.Array | float = 1.0,
    group: jax.Array | None = None,
) -> Distances:
    """`Distances` of every pair (data, neighbour), along the transcript that `data` and `key` make.

    One compiled program, `batch` neighbours side by side. The key makes the initial state and the
    noise.

    added: whether the transcript is the neighbour's instead; the data set then has a record more.
    reflected: where a user may be replaced: whether the neighbour is the one of
      `layout.reflect_user`, and its total.
    weights: by which each step's distance is multiplied; [groups, steps] with a `group`.
    group: int32[users], whose weights are which; None where all have the same.
    """
    init_key, train_key = jax.random.split(key)

    def one(neighbour: neighbours.Neighbour) -> Distances:
        other = neighbours.apply(unit, data, neighbour)
        if reflected is not None:
            turned = layout.reflect_user(data, neighbour.address.user, reflected[1])
            other = jax.tree.map(partial(jnp.where, reflected[0]), turned, other)
        pair = (data, other)
        worlds = [jax.tree.map(partial(jnp.where, added), b, a) for a, b in (pair, pair[::-1])]
        first, second = protocol.begin_each(mechanism, init_key, worlds)
        _, (distance, magnitude, one_sided), info = protocol.train_coupled(
            mechanism, train_key, (first, second), (worlds[0], worlds[1]), num_steps, observe
        )
        own = weights if group is None else jnp.asarray(weights)[group[neighbour.address.user]]
        distance, magnitude = own * distance, own * magnitude
        worst = jnp.where(jnp.isnan(distance), jnp.inf, distance)
        step = jnp.where(jnp.any(one_sided), jnp.argmax(one_sided), jnp.argmax(worst))
        loss = info.loss[jnp.array([0, -1])]  # for the curator's eyes only
        root_mean_square = jnp.sqrt(jnp.mean(distance**2))
        rounding = ROUNDING * magnitude[step]
        any_step = jnp.any(one_sided)
        return Distances(distance[step], step, root_mean_square, rounding, loss, any_step)

    return jax.lax.map(one, stacked, batch_size=batch)


def _badness(distance: Any) -> np.ndarray:
    """The distance; infinite where it is not a number."""
    return np.where(np.isfinite(distance), distance, np.inf)


def size_of(data: Layout) -> int:
    """Bytes."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(data))


def batch_size(data: Layout, num: int) -> int:
    """How many neighbours run side by side: as many as `BATCH_BYTES` hold, in equal batches."""
    most = int(np.clip(BATCH_BYTES // max(size_of(data), 1), 1, num))
    return -(-num // -(-num // most))


def step_weights(guarantee: Guarantee, num_steps: int) -> np.ndarray:
    """float32[num_steps]: the largest Δ over that of each step.

    A mechanism's noise is the same in all of its steps. So where they are priced by several
    z = σ/Δ, each has a Δ of its own; else all have the one that is stated.
    """
    multipliers = _multipliers(guarantee.losses)
    if len(multipliers) != num_steps or not num_steps:
        return np.ones(num_steps, np.float32)
    return (multipliers / multipliers.min()).astype(np.float32)


def _multipliers(losses: Sequence[Loss]) -> np.ndarray:
    """z of every step; empty where one is not Gaussian."""
    priced = [loss for loss in losses if isinstance(loss, Gaussian)]
    each = [loss.noise_multiplier for loss in priced for _ in range(loss.num_steps)]
    return np.array(each if len(priced) == len(losses) else [])


def group_weights(guarantee: Guarantee) -> np.ndarray:
    """float32[groups, steps]: the largest Δ over that of each step for a user of each group."""
    least = _multipliers(guarantee.losses).min()
    each = [_multipliers(group.losses) for group in guarantee.groups]
    return (np.array(each) / least).astype(np.float32)


def _ends(ratings: Ratings, tried: neighbours.Neighbours, found: Distances) -> list[int]:
    """The ratings whose changes moved most, one of either half of the declared range."""
    high = ratings.value[tried.index] > sum(ratings.rating_range) / 2
    order = np.argsort(-_badness(found.largest), kind="stable")
    return [int(tried.index[order[half[order]][0]]) for half in (high, ~high) if half.any()]


def _of_extremes(
    measure: Any,
    ratings: Ratings,
    data: Layout,
    unit: Unit,
    num: int,
    change: float | None,
    both_ways: bool,
) -> Iterator[Lot]:
    """Pairs among people whom the ratings on trial do not have."""
    made = neighbours.extreme(ratings, data)
    if made is None:
        return
    changed, other, new = made
    if unit == "user":
        new = new[np.unique(changed.user[new], return_index=True)[1]]
    # those who rated everything come first, with all sorts of values
    heavy = np.bincount(changed.user)[changed.user[new]] == changed.num_items
    index = np.concatenate([new[heavy], new[~heavy]])
    index = index[np.linspace(0, len(index) - 1, min(num, len(index))).astype(int)]
    why = ("of extremes",) * len(index)
    stacked = neighbours.changes(changed, other, index, change)
    tried = neighbours.Neighbours(unit, stacked, index, why, change)
    what = "two users have rated every item, and all users one item"
    for added in (False, True) if both_ways else (False,):
        found = measure(stacked, added=added, of=other)[1]
        yield Lot(changed, tried, found, what).finite()


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    num_neighbours: int = 64,
    num_rounds: int = 1,
    climb: bool = True,
    exhaustive: bool = False,
    beyond: bool = True,
    unit: Unit | None = None,
    group: np.ndarray | None = None,
) -> list[Finding]:
    """Two findings: the largest step, on which a step's price rests, and the root mean square.

    The total price rests on the root mean square.

    Args:
      ratings, data: the same data set on the host and laid out.
      num_neighbours: how many are tried at first; all of them where there are no more.
      num_rounds: as many again near the worst so far, so often (`search.greedy`).
      climb: whether the `CLIMBED` worst also get values that the slope leads to (`search.ascend`),
        where the unit is a rating's value. Where it is a presence or a user, and there are several
        steps, they are also tried the other way round: added. Where a user is replaced, they are
        tried with the opposite of what they rated, too: a message and its opposite are twice as far
        apart as one and none.
      exhaustive: whether all neighbours are tried at first where that is cheap (`CHEAP`): what goes
        wrong for one item alone is seen by its ratings alone.
      beyond: whether, where that is cheap, other pairs follow: values all over the range, and
        people whom the ratings do not have (`neighbours.to_values`, `neighbours.extreme`).
      unit: whose change; by default the guarantee's.
      group: int[users], which of the guarantee's groups is whose: each user is then held to a Δ of
        her own. None holds everybody to the largest.

    violated: above Δ(1 + 1e-5) and float32 rounding of the sums; or no number in one world where
      there is one in the other, which no noise hides. Exact, so no false alarm rate.
      `consistent` says that none of the pairs tried, along this one transcript, exceeds Δ.
    """
    names = ("sensitivity: largest step", "sensitivity: root mean square over steps")
    guarantee = mechanism.guarantee(num_steps)
    bound, unit = guarantee.sensitivity, unit or guarantee.unit
    if bound is None or guarantee.status == "none":
        why = f"{guarantee.mechanism} (status {guarantee.status}) states no sensitivity"
        return [not_applicable(name, "no sensitivity is claimed", why) for name in names]
    claims = (
        (
            f"one {unit} moves the statistics of every step by at most Δ = {bound:.6g} (L2, same"
            " transcript)"
        ),
        (
            f"over {num_steps} steps the root mean square of these distances is at most Δ ="
            f" {bound:.6g}"
        ),
    )
    weights = jnp.asarray(step_weights(guarantee, num_steps))
    of_user = None
    if group is not None and guarantee.groups:
        weights, of_user = jnp.asarray(group_weights(guarantee)), jnp.asarray(group)
        claims = tuple(f"{claim}, for users of smaller budgets by as much less" for claim in claims)
    elif float(jnp.max(weights)) > 1:
        claims = tuple(f"{claim}, in steps with a smaller Δ by as much less" for claim in claims)
    choose_key, run_key = jax.random.split(key)
    every = ratings.num_users if unit == "user" else ratings.num_ratings
    if exhaustive and every * size_of(data) * num_steps <= CHEAP:
        num_neighbours = max(every, num_neighbours)
    tried = neighbours.choose(
        choose_key, ratings, data, unit=unit, num=num_neighbours, change=guarantee.largest_change
    )
    batch = batch_size(data, tried.num)

    replaced = unit == "user" and guarantee.relation.kind == "user replaced"
    total = jnp.float32(sum(ratings.rating_range))

    def measure(
        stacked: neighbours.Neighbour,
        *,
        added: bool = False,
        reflected: bool = False,
        of: Layout = data,
    ) -> tuple[np.ndarray, Distances]:
        way, turned = jnp.asarray(added), jnp.asarray(reflected)  # traced: one program for all

        def one(some: neighbours.Neighbour) -> Distances:
            return jax.device_get(
                distances(
                    mechanism,
                    run_key,
                    of,
                    some,
                    unit=unit,
                    num_steps=num_steps,
                    batch=batch,
                    added=way,
                    reflected=(turned, total) if replaced else None,
                    weights=weights,
                    group=of_user,
                )
            )

        found = side_by_side.calls(one, neighbours.parts(stacked, batch))
        measured = jax.tree.map(
            lambda *pieces: np.concatenate(pieces)[: len(stacked.value)], *found
        )
        return _badness(measured.largest), measured

    tried, found = search.greedy(measure, ratings, data, tried, rounds=num_rounds)
    worst = np.argsort(-_badness(found.largest))[:CLIMBED]
    # Of one step no response comes before, so whose transcript it is makes no difference.
    both_ways = unit != "rating value" and num_steps > 1
    if unit != "rating value":
        more = []
        if both_ways:
            again = neighbours.again(tried, worst, neighbours.ADDED)
            more.append((again, measure(again.stacked, added=True)[1]))
        if replaced:
            again = neighbours.again(tried, worst, neighbours.REFLECTED)
            more.append((again, measure(again.stacked, reflected=True)[1]))
        for one in more:
            tried, found = search.concatenate((tried, found), one)
    elif climb:
        tried, found = search.concatenate(
            (tried, found), search.ascend(measure, ratings, tried, worst)
        )
    lots = [Lot(ratings, tried, found)]
    if beyond and batch * size_of(data) * num_steps <= CHEAP:
        if unit == "rating value" and tried.num:
            index = _ends(ratings, tried, found)
            some = neighbours.to_values(ratings, data, index, batch, tried.change)
            lots.append(Lot(ratings, some, measure(some.stacked)[1]))
        lots += _of_extremes(measure, ratings, data, unit, batch, tried.change, both_ways)
    shared = {
        "pairs": sum(lot.tried.num for lot in lots),
        "pairs_beyond": sum(lot.tried.num for lot in lots[1:]),
        "steps": num_steps,
        "rmse_at_first_step": float(np.sqrt(found.loss[0, 0])),
        "rmse_at_last_step": float(np.sqrt(found.loss[0, 1])),
        "power": (
            f"exact along this transcript: any of these pairs above Δ by more than {TOLERANCE:g}"
            " would be seen; other pairs and other transcripts are not covered"
        ),
    }
    findings = []
    for name, claim, which in zip(names, claims, ("largest", "root_mean_square"), strict=True):
        lot, worst, one_sided = max(
            (lot.worst(which) for lot in lots), key=lambda one: one[0].badness(which, *one[1:])
        )
        found, measured = lot.found, np.asarray(getattr(lot.found, which))
        replay = {
            "pair": neighbours.describe(lot.ratings, lot.tried, worst),
            "step": int(found.step[worst]),
            "key": np.asarray(jax.random.key_data(run_key)).tolist(),
            "data_sha256": ratings.sha256(),
        } | ({"data": lot.what} if lot.what else {})
        value = math.inf if one_sided else float(measured[worst])
        if one_sided:
            shared = shared | {"why": "one data set's statistics are no numbers, the other's are"}
        elif not np.isfinite(value):
            findings.append(
                inconclusive(
                    name, claim, "the descent diverged; lower learning_rate", replay=replay
                )
            )
            continue
        limit = bound * (1 + TOLERANCE) + (0.0 if one_sided else found.rounding[worst])
        details = shared | {"ratio": value / bound, "limit": float(limit), "replay": replay}
        findings.append(
            Finding(
                audit=name,
                claim=claim,
                measured=value,
                claimed=bound,
                # of the supremum over all pairs and transcripts, which has no upper end here
                lower=value,
                verdict="violated" if value > limit else "consistent",
                details=details,
            )
        )
    return findings
