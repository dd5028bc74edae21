"""An epoch of paper 002's online factorisation, one rating after the other, against plain loops.

All do the same: p ← p + η(e q - λp), q ← q + η(e p - λq), e = r - p·q, in one shuffled order, over
dense factors or a count sketch; values are centred beforehand by the paper's global, user and item
means, which ours does on the way. Ours is `protocol.train` over `EPOCHS` consecutive epochs in one
compiled program, which also makes the loss. "numba" is the loop as one writes it; "numba, hashes at
once" hashes an id once and steps from one component to the next, where the plain one works each
hash out as it is defined. Surprise's SVD without biases has the same rule in float64; it goes
through the ratings user by user, which is easier on the cache, and so does not end where the others
do.

All of it runs on one core, since no other contender has a second thread.

What an epoch must cost, counted for n ratings and d factors, one core:

- dense: 8d flops a rating, 0.16 GFlop at n = 1,000,209 and d = 20; two rows of 4d bytes read and
  written, from the second-level cache (0.78 MB in all), 0.3 GB. The numba loop is bound by neither
  but by latency: a rating waits for its row, a product, a sum over d, and cannot start before the
  last one of its user or item is done.
- ours adds copies of both rows, 24 floats in place of 20, two means a rating and, once for all
  epochs of a program, a gather of the values into their order, from a table of 4.5 MB. In the
  machine code: 158 instructions a rating.
- sketch: 4·k·d hashes of a rating (2 families, address and sign), k = 4: 320, and as many cells
  read and written.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpmf_jax.data.ratings import Ratings
from experiments.bench import generated, measure, process, roofline
from experiments.bench.online_loops import kernels
from experiments.cli import devices

if TYPE_CHECKING:
    from dpmf_jax.layout import Layout

MODULE = "experiments.bench.online"

EPOCHS = 3  # consecutive ones, which a contender is timed over
LEARNING_RATE, REGULARIZATION = 0.02, 0.02
DEPTH, MEMORY_GAIN = 4, 4.0
MEMORY_SIZE = (1_000_000, 20_000, 5_000_000)  # users, items, ratings
REFERENCE, SURPRISE = "numba", "Surprise SVD"
GOALS = {
    "jax dense": f"at most 3 x {REFERENCE}, 0.5 x {SURPRISE}",
    "jax sketch": f"at most 0.8 x {REFERENCE}",
}


@measure.one_core()
def run(
    size: str = "ml-1m",
    rank: int = 20,
    repeats: int = 9,
    *,
    gain: float = 1.0,
    memory_size: tuple[int, int, int] = MEMORY_SIZE,
) -> dict[str, Any]:
    """Times epochs at a data set's size on generated ratings.

    Peers that are not installed are left out and named.

    Args:
      size: one of `generated.SIZES`. rank: d. gain: γ of the sketch that is timed; its depth is 4.
      repeats: interleaved rounds, whose median counts; every contender is warm before the first.
      memory_size: users, items and ratings of the comparison of memory.

    Returns: a JSON-able object; `rows` is a list of {part, contender, ms, ratio, spread_ms, cpu_ms,
      compile_ms, peak_mb}: ms is the median of an epoch, spread_ms half the distance of the
      quartiles, ratio is to the plain numba loop of the same part and round, the median over the
      rounds (None without numba), cpu_ms the median CPU time, all threads; peak_mb what a contender
      holds, ratings included, and the growth of the process in its first call. `memory` is a list
      of {contender, parameters_mb, growth_mb, peak_mb} of processes of their own: parameters, by
      how much an epoch raises the peak over what the ratings, the start and the compiled epoch
      take, and the peak meanwhile. `floors` has `roofline.floor` of ours, as if no rating waited
      for another. `largest_difference` is that from numba after the epochs, relative to the largest
      entry. `others` as in `step.run`.

    Raises: UsageError for an unknown size, a rank or number of repeats below 1. FloatingPointError
      where the contenders do not compute the same.
    """
    generated.check(size, rank, repeats)
    count = devices.use(1)
    memory = [process.run(MODULE, storage, *memory_size, rank) for storage in MECHANISMS]
    problem = make_problem(generated.SIZES[size], rank, gain)
    made, growth, differences = _contenders(problem)
    calls = {
        who: functools.partial(measure.timed, contender.call, EPOCHS)
        for who, contender in made.items()
    }
    rounds = measure.interleaved(calls, repeats)
    machine = roofline.machine()
    return {
        "benchmark": "online",
        "data": f"{generated.describe(size)}, one shuffled order, one core",
        "rank": rank,
        "depth": DEPTH,
        "gain": gain,
        "consecutive_epochs": EPOCHS,
        "repeats": repeats,
        "goal": GOALS,
        "rows": [
            {
                "part": part,
                "contender": name,
                **rounds.summary[part, name],
                "ratio": (
                    rounds.ratio((part, name), (part, REFERENCE))
                    if (part, REFERENCE) in made
                    else None
                ),
                "cpu_ms": rounds.median_cpu_ms((part, name)),
                "compile_ms": made[part, name].compile_ms,
                "peak_mb": (made[part, name].held + growth[part, name]) / 2**20,
            }
            for part, name in made
        ],
        "floors": [
            roofline.floor(
                f"jax {part}",
                epoch(len(problem.ratings), rank, depth),
                machine,
                rounds.summary[part, f"jax {part}"]["ms"],
            )
            for part, depth in (("dense", 0), ("sketch", DEPTH))
        ],
        "memory": memory,
        "memory_data": f"{generated.describe(memory_size)}; 1 epoch",
        "memory_gain": MEMORY_GAIN,
        "left_out": sorted({package for package in NEEDS.values() if not _installed(package)}),
        "largest_difference": differences,
        "others": rounds.others,
        **measure.machine(count),
        "versions": measure.versions("scikit-surprise"),
    }


def epoch(num_ratings: int, rank: int, depth: int) -> dict[str, float]:
    """{flops, bytes}; depth: rows of the sketch, 0 without one.

    flops: 8d a rating, and 4d more for each row: both vectors are read and written as sums over
    rows. bytes: 12 of each rating, once. Parameters, which are to come out of a cache, are not
    counted, nor hashes.
    """
    return {"flops": (8.0 + 4.0 * depth) * rank * num_ratings, "bytes": 12.0 * num_ratings}


# --- what all of them start from


class Problem(NamedTuple):
    """What all contenders start from.

    ratings, data: the generated ratings, and their layout.
    mechanisms, states: our two mechanisms, and their states before the first epoch.
    order: int[ratings], the order of an epoch.
    user, item, left: the ratings in that order, values without the means.
    """

    ratings: Ratings
    data: Layout
    mechanisms: dict[str, Any]
    states: dict[str, Any]
    order: np.ndarray
    user: np.ndarray
    item: np.ndarray
    left: np.ndarray


def make_problem(size: tuple[int, int, int], rank: int, gain: float) -> Problem:
    """The problem at so many users, items and ratings, which are generated."""
    import jax

    from dpmf_jax import layout, protocol
    from dpmf_jax.layout import ordered
    from dpmf_jax.mechanisms.sketch import means as preprocessing

    ratings = generated.ratings(size)
    data = layout.make(ratings, num_devices=1)
    order = np.random.default_rng(0).permutation(len(ratings))
    schedule = ordered.schedule(ratings, order, size=1)
    mechanisms = {storage: make(rank, gain, schedule) for storage, make in MECHANISMS.items()}
    states = {
        storage: protocol.begin(made, jax.random.key(0), data)
        for storage, made in mechanisms.items()
    }
    user, item = ratings.user[order], ratings.item[order]
    means = jax.jit(preprocessing.means)(data).at(jax.numpy.asarray(user), jax.numpy.asarray(item))
    left = ratings.value[order] - np.asarray(means)
    return Problem(ratings, data, mechanisms, states, order, user, item, left)


def _config(rank: int, gain: float) -> Any:
    from dpmf_jax.mechanisms.sketch import online

    settings: dict[str, Any] = {"learning_rate": LEARNING_RATE, "regularization": REGULARIZATION}
    return online.Config(rank=rank, depth=DEPTH, gain=gain, **settings)


def _dense(rank: int, gain: float, schedule: Any) -> Any:
    from dpmf_jax.mechanisms.sketch import online

    return online.regular(_config(rank, gain), schedule)


def _sketch(rank: int, gain: float, schedule: Any) -> Any:
    from dpmf_jax.mechanisms.sketch import published as sketch

    return sketch.mechanism(_config(rank, gain), schedule)


MECHANISMS = {"dense": _dense, "sketch": _sketch}


# --- the contenders


class Contender(NamedTuple):
    """One way to compute the epochs.

    call: () -> the parameters after `EPOCHS` epochs from the start.
    held: bytes of ratings and parameters.
    compile_ms: milliseconds of compilation; None where there is none.
    """

    call: Callable[[], tuple[np.ndarray, ...]]
    held: int
    compile_ms: float | None = None


def _jax(storage: str, problem: Problem) -> Contender:
    import jax

    mechanism, state = problem.mechanisms[storage], problem.states[storage]
    start = time.perf_counter()
    ready = _compiled(mechanism, state, problem.data, EPOCHS)
    compile_ms = 1e3 * (time.perf_counter() - start)
    parts = jax.tree.leaves((mechanism, state, problem.data))
    held = sum(part.nbytes for part in parts if hasattr(part, "nbytes"))
    return Contender(lambda: _parameters(storage, ready(state)), held, compile_ms)


def _compiled(mechanism: Any, state: Any, data: Layout, num_epochs: int) -> Callable[[Any], Any]:
    """state -> the state after so many epochs. No array is a constant of the program."""
    import jax

    from dpmf_jax import protocol

    def train(leaves: list[Any]) -> Any:
        mechanism, key, state, data = tree.unflatten(leaves)
        return protocol.train(mechanism, key, state, data, num_epochs)[0]

    leaves, tree = jax.tree.flatten((mechanism, jax.random.key(0), state, data))
    ready = jax.jit(train).lower(leaves).compile()
    del leaves

    def call(state: Any) -> Any:
        return jax.block_until_ready(
            ready(jax.tree.leaves((mechanism, jax.random.key(0), state, data)))
        )

    return call


def _parameters(storage: str, state: Any) -> tuple[np.ndarray, ...]:
    public = state.public
    return tuple(
        map(np.asarray, (public.users, public.items) if storage == "dense" else (public.table,))
    )


def _numba(storage: str, problem: Problem, *, kernel: str | None = None) -> Contender:
    loop = kernels()[kernel or storage]
    start, state = _parameters(storage, problem.states[storage]), problem.states[storage]
    columns = problem.user, problem.item, problem.left
    rates = np.float32(LEARNING_RATE), np.float32(REGULARIZATION)
    words = () if storage == "dense" else (np.asarray(state.public.hashes.words).astype(np.uint64),)
    more = () if storage == "dense" else (state.public.rank,)

    def epochs(number: int, columns: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        moved = tuple(part.copy() for part in start)
        for _ in range(number):
            loop(*moved, *words, *columns, *rates, *more)
        return moved

    began = time.perf_counter()
    epochs(1, tuple(column[:0] for column in columns))
    held = sum(part.nbytes for part in (*start, *columns))
    return Contender(lambda: epochs(EPOCHS, columns), held, 1e3 * (time.perf_counter() - began))


def _surprise(storage: str, problem: Problem) -> Contender:
    """Surprise's SVD. Its start and its order are its own, so its result is not compared."""
    from surprise import SVD, Trainset

    del storage
    ratings, value = problem.ratings, np.empty(len(problem.order), np.float32)
    value[problem.order] = problem.left
    raters: dict[int, list[tuple[int, float]]] = {user: [] for user in range(ratings.num_users)}
    for user, item, left in zip(
        ratings.user.tolist(), ratings.item.tolist(), value.tolist(), strict=True
    ):
        raters[user].append((item, left))
    sizes = ratings.num_users, ratings.num_items, len(ratings)
    trainset = Trainset(raters, {}, *sizes, ratings.rating_range, {}, {})
    rank = problem.states["dense"].public.users.shape[1]
    rates: dict[str, Any] = {"lr_all": LEARNING_RATE, "reg_all": REGULARIZATION}
    model = SVD(n_factors=rank, n_epochs=EPOCHS, biased=False, random_state=0, **rates)
    held = sum(sys.getsizeof(part) for part in raters.values()) + len(ratings) * (
        sys.getsizeof((0, 0.0)) + 24
    )

    def call() -> tuple[np.ndarray, ...]:
        model.fit(trainset)
        return model.pu, model.qi

    return Contender(call, held)


CONTENDERS: dict[tuple[str, str], Callable[[Problem], Contender]] = {
    ("dense", "jax dense"): functools.partial(_jax, "dense"),
    ("dense", REFERENCE): functools.partial(_numba, "dense"),
    ("dense", SURPRISE): functools.partial(_surprise, "dense"),
    ("sketch", "jax sketch"): functools.partial(_jax, "sketch"),
    ("sketch", REFERENCE): functools.partial(_numba, "sketch"),
    ("sketch", "numba, hashes at once"): functools.partial(
        _numba, "sketch", kernel="sketch, hashes at once"
    ),
}
NEEDS = {REFERENCE: "numba", SURPRISE: "surprise", "numba, hashes at once": "numba"}


def _installed(package: str | None) -> bool:
    return package is None or importlib.util.find_spec(package) is not None


# --- side by side


def _contenders(
    problem: Problem,
) -> tuple[dict[tuple[str, str], Contender], dict[tuple[str, str], int], dict[str, float]]:
    """(installed contenders, warm; bytes by which the first call raised the peak; differences)."""
    made, growth, first = {}, {}, {}
    for who, maker in CONTENDERS.items():
        if _installed(NEEDS.get(who[1])):
            made[who] = maker(problem)
            growth[who] = measure.growth(lambda who=who: first.update({who: made[who].call()}))
    return made, growth, _differences(first)


def _differences(first: dict[tuple[str, str], tuple[np.ndarray, ...]]) -> dict[str, float]:
    """Largest difference of each contender from its part's plain loop, over the largest entry.

    Raises: FloatingPointError above 1e-3, where two do not compute the same.
    """
    differences = {}
    for (part, name), mine in first.items():
        loops = first.get((part, REFERENCE), ())
        if name not in (REFERENCE, SURPRISE) and loops:
            pairs = zip(mine, loops, strict=True)
            differences[f"{part}, {name}"] = max(
                measure.relative_difference(*pair) for pair in pairs
            )
    return measure.check_same(differences)


# --- memory, each storage in a process of its own


def _measure(
    storage: str, num_users: int, num_items: int, num_ratings: int, rank: int
) -> dict[str, Any]:
    """Memory of a compiled epoch in this process, once ratings and order are laid out."""
    import jax

    from dpmf_jax import layout, protocol
    from dpmf_jax.layout import ordered

    devices.use(1)
    ratings = generated.ratings((num_users, num_items, num_ratings))
    data = jax.block_until_ready(layout.make(ratings, num_devices=1))
    order = np.random.default_rng(0).permutation(len(ratings))
    mechanism = MECHANISMS[storage](rank, MEMORY_GAIN, ordered.schedule(ratings, order, size=1))
    del ratings, order
    state = jax.block_until_ready(protocol.begin(mechanism, jax.random.key(0), data))
    parameters = sum(part.nbytes for part in _parameters(storage, state))
    ready = _compiled(mechanism, state, data, 1)
    growth = measure.growth(lambda: jax.block_until_ready(ready(state)))
    sizes = {"parameters_mb": parameters, "growth_mb": growth, "peak_mb": measure.memory("VmHWM")}
    return {"contender": f"jax {storage}"} | {name: size / 2**20 for name, size in sizes.items()}


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], *map(int, sys.argv[2:]))))
