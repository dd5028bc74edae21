"""A pass of `als` for item factors, beside an iteration of `implicit`'s alternating least squares.

A pass is one step of the phase for factors, through the protocol: norms of all residuals, the sums
over items and the Gram matrix, noise, what is made of them, and everybody's own solution for what
comes next. An iteration of implicit is both of its solvers on the same matrix, with as many factors
and threads. It solves another problem (every cell that is not rated counts as 0) and knows no
privacy. By default it takes three steps of conjugate gradients for each row; "Cholesky" solves each
row's normal equations, as ours does, for users and for items, where ours solves for users alone.

What a pass must cost, for m users, n ratings, d factors and k = d + 1:

- flops: half of each Gram matrix, nk²; elimination of half a matrix, mk³/3; the residuals of both
  sides and the messages, 6nd.
- bytes: the stored ratings, users' answers and the public numbers of items, read and written once.
  Gathered rows of factors, which are to come out of a cache, are not counted.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dpmf_jax.data.ratings import Ratings
from experiments.bench import generated, measure, process, roofline, scale
from experiments.cli import devices

if TYPE_CHECKING:
    from dpmf_jax.layout import Layout

OURS, REFERENCE, EXACT = "jax", "implicit", "implicit, Cholesky"
RANKS = (16, 64)
NOISE_MULTIPLIERS = (1.0, 2.0)  # the first is timed, the other must not compile anew
PASSES = 4  # of the run that a pass is of
LARGE = (69_878, 10_677, 9_000_000)  # of MovieLens-10M, nine tenths of it
RATINGS = (100_000, 1_000_000, 5_000_000, 20_000_000)
MODULE = "experiments.bench.als"


def run(
    size: str = "ml-1m",
    ranks: Sequence[int] = RANKS,
    repeats: int = 9,
    most_ratings: int = RATINGS[-1],
    *,
    large: tuple[int, int, int] = LARGE,
    num_devices: int | None = None,
) -> dict[str, Any]:
    """Times a pass at a data set's size, its parts, and how it grows, on generated ratings.

    Args:
      size: one of `generated.SIZES`. ranks: numbers of factors.
      repeats: interleaved rounds, whose median counts; every contender is warm before the first.
      most_ratings: of the growth; larger points are left out.
      large: users, items and ratings of a pass in a process of its own, at the largest rank.
      num_devices: of ours; None takes one device per core, or every accelerator.

    Returns: a JSON-able object; `rows` is a list of {rank, contender, ms, spread_ms, fastest_ms,
      ratio, cpu_ms, compile_ms, programs}: ratio is to implicit at the same rank and in the same
      round, the median over the rounds, None without implicit; programs how many were compiled for
      two passes at each of two noise multipliers. `parts` times what a pass is made of, each part
      in a program of its own: "solve" is "normal equations" and "elimination". `floors` has
      `roofline.floor` of a pass. `large` is a row with the peak of its process in MB, and `growth`
      and `exponents` are as the `rows` and `exponents` of `scale.run`, at the least rank. `others`
      as in `step.run`. `skipped`: contenders whose package is not installed.

    Raises: UsageError for an unknown size, a rank or number of repeats below 1.
    """
    for rank in ranks:
        generated.check(size, rank, repeats)
    count = devices.use(num_devices)
    others = measure.watch()
    ratings = generated.ratings(size)
    machine = roofline.machine()
    parts, floors = [], []
    passes = {rank: begun(ratings, rank, count) for rank in ranks}
    made = {(rank, OURS): one.once for rank, one in passes.items()}
    peers = [REFERENCE, EXACT] if importlib.util.find_spec("implicit") else []
    for name in peers:
        for rank in ranks:
            made[rank, name] = _implicit(ratings, rank, conjugate=name == REFERENCE)
    calls = {who: partial(measure.timed, call) for who, call in made.items()}
    rounds = measure.interleaved(calls, repeats)
    for rank, one in passes.items():
        parts += _parts(one, rank, repeats)
        counted = pass_costs(*generated.SIZES[size], rank, one.data.nbytes)
        ms = rounds.summary[rank, OURS]["ms"]
        floors.append(roofline.floor(f"rank {rank}, {OURS}", counted, machine, ms))
    of_ours = {
        rank: {"compile_ms": one.compile_ms, "programs": _programs(one, rank)}
        for rank, one in passes.items()
    }
    passes.clear()
    made.clear()
    calls.clear()
    growth = _growth([n for n in RATINGS if n <= most_ratings], min(ranks), repeats, count)
    return {
        "benchmark": "als",
        "data": generated.describe(size),
        "repeats": repeats,
        "rows": [
            {
                "rank": rank,
                "contender": name,
                **rounds.summary[rank, name],
                "ratio": rounds.ratio((rank, name), (rank, REFERENCE)) if peers else None,
                "cpu_ms": rounds.median_cpu_ms((rank, name)),
                **(of_ours[rank] if name == OURS else {"compile_ms": None, "programs": None}),
            }
            for rank, name in sorted(rounds.summary, key=lambda who: who[0])
        ],
        "parts": parts,
        "floors": floors,
        "large": [_large(large, max(ranks), repeats, count)],
        "growth": growth,
        "exponents": {"ratings": scale.exponents(growth, "ratings")},
        "skipped": [name for name in (REFERENCE, EXACT) if name not in peers],
        "others": others(),
        **measure.machine(count),
        "versions": measure.versions("implicit"),
    }


def pass_costs(
    num_users: int, num_items: int, num_ratings: int, rank: int, stored_bytes: int
) -> dict[str, float]:
    """{flops, bytes} of a pass, see above."""
    k = rank + 1
    flops = num_ratings * (k**2 + 6 * rank) + num_users * k**3 / 3
    numbers = num_users * k + num_items * (2 * rank + 1)
    return {"flops": float(flops), "bytes": float(stored_bytes + 2 * 4 * numbers)}


# --- ours


class Pass(NamedTuple):
    """A pass that is compiled and warm.

    once: does it. state: what it starts from, after another pass.
    """

    once: Callable[[], Any]
    mechanism: Any
    state: Any
    data: Layout
    compile_ms: float


def mechanism(rank: int, noise_multiplier: float) -> Any:
    """The phase for factors of a run of so many passes."""
    from dpmf_jax.mechanisms.als import config, phases

    settings = config.Config(
        rating_range=(1.0, 5.0),
        noise_multiplier=noise_multiplier,
        rank=rank,
        num_passes=PASSES,
    )
    of_run = phases.phases(settings)
    return next(phase for phase, num_steps in of_run if num_steps == PASSES)


def begun(ratings: Ratings, rank: int, num_devices: int) -> Pass:
    import jax

    from dpmf_jax import layout, protocol

    data = layout.make(ratings, kind="split", num_devices=num_devices)
    of_factors, key = mechanism(rank, NOISE_MULTIPLIERS[0]), jax.random.key(0)

    def after(state: Any) -> Any:
        passed = protocol.train(of_factors, key, state, data, num_steps=1)
        return jax.block_until_ready(passed)[0]

    first = layout.replicate(data, protocol.begin(of_factors, key, data))
    made = []
    compile_ms = 1e3 * measure.compiling(lambda: made.append(after(first)))
    (state,) = made
    once = partial(after, state)
    once()
    return Pass(once, of_factors, state, data, compile_ms)


def _programs(one: Pass, rank: int) -> int:
    """Programs of `protocol.train` that runs of every noise multiplier, two passes each, take."""
    import jax

    from dpmf_jax import layout, protocol

    train: Any = protocol.train
    before, key = train._cache_size(), jax.random.key(1)
    for noise_multiplier in NOISE_MULTIPLIERS:
        of_factors = mechanism(rank, noise_multiplier)
        state = layout.replicate(one.data, protocol.begin(of_factors, key, one.data))
        for _ in range(2):
            state, _info = train(of_factors, key, state, one.data, num_steps=1)
    return 1 + train._cache_size() - before


def _parts(one: Pass, rank: int, repeats: int) -> list[dict[str, Any]]:
    """{rank, part, ms, spread_ms, fastest_ms, cpu_ms}; each part is a program of its own."""
    import jax

    calls = {}
    for name, (program, given) in _programs_of_parts(one).items():
        ready, _ = measure.compiled(program, *given)
        once = partial(lambda ready, given: jax.block_until_ready(ready(*given)), ready, given)
        once()
        calls[name] = partial(measure.timed, once)
    rounds = measure.interleaved(calls, repeats)
    return [
        {"rank": rank, "part": name, **summary, "cpu_ms": rounds.median_cpu_ms(name)}
        for name, summary in rounds.summary.items()
    ]


def _programs_of_parts(one: Pass) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """By name: a function, and the arguments that it has within a pass."""
    import jax
    import jax.numpy as jnp

    from dpmf_jax import layout
    from dpmf_jax.kernels import local_ridge, steady
    from dpmf_jax.layout import few
    from dpmf_jax.mechanisms.als import messages
    from dpmf_jax.mechanisms.als import state as states

    state, data, params = one.state, one.data, one.mechanism.init.args[0]
    (public, private), num_users = state[:2], data.num_users
    items, users, count = public.items, private.users, private.count
    columns = (items.center, items.units, items.variance)

    def equations(columns: Any, data: Layout) -> Any:
        rows = (local_ridge.each(params.grid, num_users),)
        return layout.sum_by_user(data, local_ridge._normal_equations, rows, columns)

    def eliminated(*sums: Any) -> Any:
        priors = params.priors.at[1:].divide(items.unit**2)

        def solved(sums: Any) -> Any:
            zero = steady.hidden_zero(sums[-1].astype(jnp.int32))
            return local_ridge._solved(*sums[:-1], priors, zero)

        return few.after(solved, sums)

    def norms(users: Any, items: Any, data: Layout) -> Any:
        return local_ridge.residual_norms(users, items, params.grid, data)

    def statistics_of(state: Any, data: Layout) -> Any:
        return one.mechanism.query(state, data, None)[0]

    def item_sums(users: Any, sent: Any, items: Any, data: Layout) -> Any:
        return messages.item_sums(users, sent, items, params.grid, data, rank=params.rank)

    clip, further = params.clip[0]
    kappa = jnp.float32(0.1)
    sent = jax.jit(partial(messages.scales, rank=params.rank))(
        users, count, jax.jit(norms)(users, items, data), clip, kappa
    )
    statistics = jax.jit(statistics_of)(state, data)
    return {
        "query": (statistics_of, (state, data)),
        "residual norms": (norms, (users, items, data)),
        "item sums": (item_sums, (users, sent, items, data)),
        "gram": (partial(messages.gram, rank=params.rank), (users, sent, count, further, kappa)),
        "noise": (one.mechanism.noise.sample, (jax.random.key(2), statistics)),
        "estimates": (
            partial(_estimates, params, num_users=num_users),
            (state, statistics, data),
        ),
        "solve": (partial(states.solve, params), (items, data)),
        "normal equations": (equations, (columns, data)),
        # on one device: a loop over a few users at a time is for what each device has
        "elimination": (eliminated, jax.device_get(jax.jit(equations)(columns, data))),
    }


def _estimates(params: Any, state: Any, response: Any, data: Layout, *, num_users: int) -> Any:
    from dpmf_jax.mechanisms.als import factor_passes
    from dpmf_jax.mechanisms.als import state as states

    make = partial(factor_passes.new_factors, num_users=num_users)
    return states.alike(make, state.step, (params, state.public, state.step, response), data)


# --- implicit


def _implicit(ratings: Ratings, rank: int, *, conjugate: bool) -> Callable[[], Any]:
    """An iteration of implicit, on all threads that this process may use; warm."""
    import scipy.sparse
    from implicit.cpu.als import AlternatingLeastSquares
    from threadpoolctl import threadpool_limits

    threads = devices.cores()
    shape = (ratings.num_users, ratings.num_items)
    by_user = scipy.sparse.coo_array((ratings.value, (ratings.user, ratings.item)), shape=shape)
    by_user = scipy.sparse.csr_matrix(by_user)
    by_item = by_user.T.tocsr()

    def once() -> None:
        users, items, more = model.user_factors, model.item_factors, model.regularization
        with threadpool_limits(1, "blas"):  # as implicit asks: its own threads call BLAS
            model.solver(by_user, users, items, more, num_threads=threads)
            model.solver(by_item, items, users, more, num_threads=threads)

    with threadpool_limits(1, "blas"):
        model = AlternatingLeastSquares(
            factors=rank, use_cg=conjugate, iterations=1, num_threads=threads, random_state=0
        )
        model.fit(by_user, show_progress=False)
    once()
    return once


# --- growth


def _growth(
    points: Sequence[int], rank: int, repeats: int, num_devices: int
) -> list[dict[str, Any]]:
    """{curve, value, ms, spread_ms, ratio}: ratio is to the first point."""
    calls = {
        num: partial(
            measure.timed, begun(generated.ratings(scale.sized(num)), rank, num_devices).once
        )
        for num in points
    }
    found = measure.interleaved(calls, repeats).summary if calls else {}
    return [
        {
            "curve": "ratings",
            "value": num,
            "ms": summary["ms"],
            "spread_ms": summary["spread_ms"],
            "ratio": summary["ms"] / found[points[0]]["ms"],
        }
        for num, summary in found.items()
    ]


def _large(size: tuple[int, int, int], rank: int, repeats: int, num_devices: int) -> dict[str, Any]:
    with process.columns_on_disk(generated.ratings(size)) as folder:
        found = process.run(MODULE, folder, *size[:2], rank, num_devices, repeats)
    return {"of": f"{generated.describe(size)}, rank {rank}", **found}


def _large_pass(
    folder: str, num_users: int, num_items: int, rank: int, num_devices: int, repeats: int
) -> dict[str, float]:
    """{ms, spread_ms, fastest_ms, compile_ms, peak_mb} of passes in this process."""
    ratings = process.read_columns(folder, num_users, num_items)
    one = begun(ratings, rank, devices.use(num_devices))
    spent = [measure.timed(one.once).wall for _ in range(repeats)]
    peak = measure.memory("VmHWM") / 2**20
    return {**measure.summary(spent), "compile_ms": one.compile_ms, "peak_mb": peak}


if __name__ == "__main__":
    print(json.dumps(_large_pass(sys.argv[1], *map(int, sys.argv[2:]))))
