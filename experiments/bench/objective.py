"""Paper 003 against NumPy and LAPACK: S1, an objective in closed form, and iterations of S3.

S1, for d factors, n ratings and m items: per item A = Σuuᵀ and b = Σ(r - center)u over its raters
(assemble); a noise vector η; v = (A + Mμ I)⁻¹(b - η/2) (solve). Ours is the query and the sampler
of `objective.public_users`, one compiled program over all devices; the query also makes the loss of
all ratings. NumPy does per item what a careful person would: the rows of U by `take`, A by a
product of a matrix with its own transpose (half of it, which NumPy notices), and `np.linalg.solve`
of all systems at once. "threads" is the same with the items shared out among as many threads as
there are cores. S3 is `protocol.train` over consecutive iterations in one compiled program.

What S1 must cost, counted for 1,000,209 ratings, 3,706 items and d = 50:

- flops: 2nd² for whole matrices A, 5.0 GFlop; 2.5 where half is enough; 2md³/3 = 0.3 for the
  solutions by LU, half of that by Cholesky.
- bytes: a row of 200 bytes of U for every rating, copied out of cache and read again by the
  product, 0.4 GB; A written once and read once, 74 MB; 9 MB of ratings.

The floor of a run (`floors`) counts half of A and Cholesky, at the speed of one large product on
all cores.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpmf_jax.data.ratings import Ratings
from experiments.bench import generated, measure, process, roofline
from experiments.cli import devices

if TYPE_CHECKING:
    from dpmf_jax.layout import Layout

PARTS = ("whole", "assemble", "solve")
CONTENDERS = ("jax", "NumPy", "NumPy, threads")
EPSILON, CENTER, RIDGE = 1.0, 3.0, 20.0
REGULARIZATION = 1e-3
ITERATIONS_SIZE = (95_029, 52, 245_189)  # netflix-52
ITERATIONS = {"static": 100, "dynamic": 10_000}  # of a whole run, as the paper has it
CONSECUTIVE = 20  # of S3 in one program
MODULE = "experiments.bench.objective"


def run(
    size: str = "ml-1m",
    rank: int = 50,
    repeats: int = 9,
    *,
    num_devices: int | None = None,
    iterations_size: tuple[int, int, int] = ITERATIONS_SIZE,
) -> dict[str, Any]:
    """Times the closed form at a data set's size, and S3 at netflix-52's, on generated ratings.

    Args:
      size: one of `generated.SIZES`. rank: d, of both.
      repeats: interleaved rounds, whose median counts; every contender is warm before the first.
      num_devices: of ours; None takes one device per core, or every accelerator.
      iterations_size: users, items and ratings of S3.

    Returns: a JSON-able object; `rows` is a list of {part, contender, ms, ratio, spread_ms, cpu_ms,
      compile_ms, peak_mb}: ms is the median, spread_ms half the distance of the quartiles, ratio is
      to NumPy in the same part and round, the median over the rounds, cpu_ms the median CPU time of
      all threads. peak_mb is that of a process of its own that reads the ratings as three columns,
      lays them out and does the whole, Python and jax included. `floors` has `roofline.floor` of
      each part of ours. `iterations` is a list of {variant, ms, spread_ms, compile_ms, iterations,
      whole_run_s}. `largest_difference` is that of our A, b and v, relative to NumPy's largest.
      `others` as in `step.run`.

    Raises: UsageError for an unknown size, a rank or number of repeats below 1. FloatingPointError
      where the contenders do not compute the same.
    """
    generated.check(size, rank, repeats)
    count = devices.use(num_devices)
    ratings = generated.ratings(size)
    peaks = _peaks(ratings, rank, count)
    made, differences = _contenders(ratings, rank, count)
    calls = {who: partial(measure.timed, contender.call) for who, contender in made.items()}
    rounds = measure.interleaved(calls, repeats)
    machine = roofline.machine()
    return {
        "benchmark": "objective",
        "data": generated.describe(size),
        "rank": rank,
        "repeats": repeats,
        "goal": {"ratio": 1.5, "contender": "jax", "whole_run_s": 600},
        "rows": [
            {
                "part": part,
                "contender": name,
                **rounds.summary[part, name],
                "ratio": rounds.ratio((part, name), (part, "NumPy")),
                "cpu_ms": rounds.median_cpu_ms((part, name)),
                "compile_ms": made[part, name].compile_ms,
                "peak_mb": peaks.get(name) if part == "whole" else None,
            }
            for part, name in made
        ],
        "floors": [
            roofline.floor(f"{part}, jax", counted, machine, rounds.summary[part, "jax"]["ms"])
            for part, counted in closed_form(ratings.num_items, len(ratings), rank).items()
        ],
        "iterations": _iterations(iterations_size, rank, repeats, count),
        "iterations_data": generated.describe(iterations_size),
        "largest_difference": differences,
        "others": rounds.others,
        **measure.machine(count),
    }


def closed_form(num_items: int, num_ratings: int, rank: int) -> dict[str, dict[str, float]]:
    """{flops, bytes} of the whole and of both parts.

    flops: half of A, nd², and b, 2nd; Cholesky, md³/3, and two triangular solutions, 2md². bytes: 8
    a rating; A and b written by one part and read by the other, v written. Rows of U, which are to
    come out of a cache, are not counted.
    """
    systems = 4.0 * num_items * (rank**2 + rank)
    assemble = {
        "flops": float(num_ratings * (rank**2 + 2 * rank)),
        "bytes": 8.0 * num_ratings + systems,
    }
    solve = {
        "flops": num_items * (rank**3 / 3 + 2 * rank**2),
        "bytes": systems + 4.0 * num_items * rank,
    }
    whole = {name: assemble[name] + solve[name] for name in assemble}
    return {"whole": whole, "assemble": assemble, "solve": solve}


# --- NumPy


class ByItem(NamedTuple):
    """Ratings in the order of items. starts: int[items + 1]. value: centred, float32."""

    user: np.ndarray
    value: np.ndarray
    starts: np.ndarray


def by_item(ratings: Ratings) -> ByItem:
    order = np.lexsort((ratings.user, ratings.item))
    starts = np.searchsorted(ratings.item[order], np.arange(ratings.num_items + 1))
    return ByItem(ratings.user[order], ratings.value[order] - np.float32(CENTER), starts)


def assemble(
    rated: ByItem, users: np.ndarray, pool: ThreadPoolExecutor | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(A float32[items, d, d], b float32[items, d]), item by item."""
    num_items, rank = len(rated.starts) - 1, users.shape[1]
    matrix = np.empty((num_items, rank, rank), np.float32)
    vector = np.empty((num_items, rank), np.float32)

    def chunk_of(items: np.ndarray) -> None:
        for j in items:
            own = slice(rated.starts[j], rated.starts[j + 1])
            rows = users.take(rated.user[own], axis=0)
            np.matmul(rows.T, rows, out=matrix[j])
            np.matmul(rated.value[own], rows, out=vector[j])

    _on_chunks(chunk_of, num_items, pool)
    return matrix, vector


def solve(
    matrix: np.ndarray,
    vector: np.ndarray,
    scale: float,
    rng: np.random.Generator,
    pool: ThreadPoolExecutor | None = None,
) -> np.ndarray:
    """v = (A + ridge·I)⁻¹(b - η/2), float32[items, d]; η is L2-Laplace noise of this scale."""
    num_items, rank = vector.shape
    eta = rng.standard_normal(vector.shape, np.float32)
    radius = rng.standard_gamma(rank, (num_items, 1), np.float32) * np.float32(scale)
    target = vector - eta * (radius / np.linalg.norm(eta, axis=1, keepdims=True) / 2)
    factors = np.empty_like(vector)

    def chunk_of(items: np.ndarray) -> None:
        chunk = slice(items[0], items[-1] + 1)
        system = matrix[chunk] + np.float32(RIDGE) * np.eye(rank, dtype=np.float32)
        factors[chunk] = np.linalg.solve(system, target[chunk, :, None])[..., 0]

    _on_chunks(chunk_of, num_items, pool)
    return factors


def _on_chunks(
    chunk_of: Callable[[np.ndarray], None], num_items: int, pool: ThreadPoolExecutor | None
) -> None:
    if pool is None:
        chunk_of(np.arange(num_items))
        return
    for done in [
        pool.submit(chunk_of, part)
        for part in np.array_split(np.arange(num_items), 4 * devices.cores())
    ]:
        done.result()


# --- side by side


class Contender(NamedTuple):
    call: Callable[[], Any]
    compile_ms: float | None = None


def _contenders(
    ratings: Ratings, rank: int, num_devices: int
) -> tuple[dict[tuple[str, str], Contender], dict[str, float]]:
    """(contenders by part and name, warm and compared; largest difference by quantity)."""
    users = _users(ratings.num_users, rank)
    ours, scale = _ours(ratings, users, num_devices)
    rated, rng = by_item(ratings), np.random.default_rng(0)
    pool = ThreadPoolExecutor(devices.cores())
    matrix, vector = assemble(rated, users)
    made = dict(ours)
    for name, threads in (("NumPy", None), ("NumPy, threads", pool)):
        made["whole", name] = Contender(
            lambda t=threads: solve(*assemble(rated, users, t), scale, rng, t)
        )
        made["assemble", name] = Contender(lambda t=threads: assemble(rated, users, t))
        made["solve", name] = Contender(lambda t=threads: solve(matrix, vector, scale, rng, t))
    differences = _differences(made, rated, users)
    for contender in made.values():
        contender.call()
    return {(part, name): made[part, name] for part in PARTS for name in CONTENDERS}, differences


def _users(num_users: int, rank: int) -> np.ndarray:
    rows = np.random.default_rng(1).standard_normal((num_users, rank), np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _mechanism(users: np.ndarray, rating_range: tuple[float, float]) -> tuple[Any, float]:
    """(mechanism, scale of its noise)."""
    from accounting import objective as price
    from dpmf_jax.mechanisms.objective import mechanisms as objective

    config = objective.Config(
        epsilon=EPSILON,
        rating_range=rating_range,
        rank=users.shape[1],
        regularization=REGULARIZATION,
        prior_count=round(RIDGE / REGULARIZATION),
        center=CENTER,
    )
    width = rating_range[1] - rating_range[0]
    scale = price.value_change_scale(
        noise="l2_laplace", epsilon=EPSILON, range_width=width, rank=users.shape[1]
    )
    return objective.public_users(config, users), scale


def _ours(
    ratings: Ratings, users: np.ndarray, num_devices: int
) -> tuple[dict[tuple[str, str], Contender], float]:
    """(query, sampler, and both in one program, each compiled; scale of the noise)."""
    import jax

    from dpmf_jax import layout

    mechanism, scale = _mechanism(users, ratings.rating_range)
    data = layout.make(ratings, num_devices=num_devices)
    init_key, noise_key = jax.random.split(jax.random.key(0))
    state = layout.replicate(data, jax.jit(mechanism.init)(init_key, data, None))

    def query(state, data):
        return mechanism.query(state, data, None)

    def whole(key, state, data):
        asked, info = query(state, data)
        return mechanism.noise.sample(key, asked), info

    def compiled(program: Any, *given: Any) -> Contender:
        ready, compile_ms = measure.compiled(program, *given)
        return Contender(lambda: jax.block_until_ready(ready(*given)), compile_ms)

    made = {
        ("whole", "jax"): compiled(whole, noise_key, state, data),
        ("assemble", "jax"): compiled(query, state, data),
    }
    asked, _info = made["assemble", "jax"].call()
    return made | {("solve", "jax"): compiled(mechanism.noise.sample, noise_key, asked)}, scale


def _differences(
    made: dict[tuple[str, str], Contender], rated: ByItem, users: np.ndarray
) -> dict[str, float]:
    """Largest difference of our A, b and noiseless v from NumPy's, relative to NumPy's largest.

    Raises: FloatingPointError above 1e-3, where the two do not compute the same.
    """
    from dpmf_jax.mechanisms.objective import perturbed

    asked, _info = made["assemble", "jax"].call()
    matrix, vector = assemble(rated, users)
    silent = perturbed.minimiser("l2_laplace", 0.0, RIDGE)
    pairs = {
        "matrix": (np.asarray(asked.matrix), matrix),
        "vector": (np.asarray(asked.vector), vector),
        "item_factors": (
            np.asarray(_call(silent.sample, asked)),
            solve(matrix, vector, 0.0, np.random.default_rng(0)),
        ),
    }
    return measure.check_same(
        {name: measure.relative_difference(*pair) for name, pair in pairs.items()}
    )


def _call(sample: Any, asked: Any) -> Any:
    import jax

    return jax.jit(sample)(jax.random.key(0), asked)


# --- iterations of S2 and S3


def _iterations(
    size: tuple[int, int, int], rank: int, repeats: int, num_devices: int
) -> list[dict[str, Any]]:
    import jax

    from dpmf_jax import layout, protocol
    from dpmf_jax.mechanisms.federated import published as federated

    ratings = generated.ratings(size)
    data = layout.make(ratings, num_devices=num_devices)
    shared: dict[str, Any] = {"epsilon": 0.8, "rank": rank, "rating_range": ratings.rating_range}
    rows = []
    for variant, population in (("static", None), ("dynamic", federated.Population())):
        mechanism = federated.mechanism(federated.Config(population=population, **shared))
        init_key, train_key = jax.random.split(jax.random.key(0))
        state = layout.replicate(data, protocol.begin(mechanism, init_key, data))
        train = partial(_consecutive, mechanism)
        compiled, compile_ms = measure.compiled(train, train_key, state, data)
        spent = []
        for turn in range(repeats + 1):
            start = time.perf_counter()
            state = jax.block_until_ready(compiled(train_key, state, data))
            if turn:  # the first one warms up
                spent.append((time.perf_counter() - start) / CONSECUTIVE)
        median = statistics.median(spent)
        rows.append(
            {
                "variant": variant,
                **measure.summary(spent),
                "compile_ms": compile_ms,
                "iterations": ITERATIONS[variant],
                "whole_run_s": median * ITERATIONS[variant],
            }
        )
    return rows


def _consecutive(mechanism: Any, key: Any, state: Any, data: Layout) -> Any:
    from dpmf_jax import protocol

    return protocol.train(mechanism, key, state, data, num_steps=CONSECUTIVE)[0]


# --- peaks, each in a process of its own


def _peaks(ratings: Ratings, rank: int, num_devices: int) -> dict[str, float]:
    """MB by contender."""
    sizes = (ratings.num_users, ratings.num_items, rank, num_devices)
    with process.columns_on_disk(ratings) as folder:
        return {name: process.run(MODULE, folder, name, *sizes) for name in ("jax", "NumPy")}


def _peak_of(folder: str, name: str, sizes: list[int]) -> float:
    """The peak in MB of one contender in this process, after two rounds of the whole."""
    num_users, num_items, rank, count = sizes
    ratings = process.read_columns(folder, num_users, num_items)
    users = _users(num_users, rank)
    if name == "NumPy":
        rated, rng = by_item(ratings), np.random.default_rng(0)
        for _ in range(2):
            solve(*assemble(rated, users), 8.0 / EPSILON, rng)
    else:
        made, _scale = _ours(ratings, users, devices.use(count))
        for _ in range(2):
            made["whole", "jax"].call()
    return measure.memory("VmHWM") / 2**20


if __name__ == "__main__":
    print(json.dumps(_peak_of(sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3:]])))
