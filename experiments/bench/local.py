"""A round of paper 004's local DP against NumPy loops over users, interleaved in one process.

A round: every user draws a place, works out the own entry there and randomises it into one bit; the
server adds the bits up, lifts the sum and moves V; every user moves the own row of U. Fresh coins
and bits in each round, and in one variant a fresh Φ. Ours is `protocol.train` over `STEPS`
consecutive rounds in one compiled program, which also makes the loss of all ratings. The loops do
per user what a careful person would: rows by `take`, products by BLAS, coins, bits and the sum at
the server for all users at once; Φ is stored. "two passes" goes through the users once for the
entries and once for U, as both algorithms are printed; "one pass" does both at once, which
algorithm 2 allows. They are timed over random users and scaled up per user; all that is not per
user is timed whole.

What a round must cost, counted for 20 million ratings, q = 2,700, d = 15 and two cores of 8 lanes
(Zen 4):

- the ratings: 8 bytes each with 9% padding, 175 MB from memory, 9 ms; and for each a row of 64
  bytes of V is copied out of a table in cache and read twice: 5.3 GB at 32 bytes a cycle, 23 ms.
  Products: 1.3 GFlop in the shadow of that. Sums of 0.7 million pieces are added to 138,493 rows in
  cache, block by block.
- Φ at the ratings: 22 million entries of about 115 instructions (Threefry 75, the normal quantile
  40), 15 ms.
- the lift: 72 million such entries, 48 ms, and 2.3 GFlop on them, 12 ms. (ΦΦᵀ)⁻¹: 29 MB, 3 ms.
- the rest: 0.3 million coins and bits, U and V, the sum of both devices' users: 10 ms.

So the floor is about 120 ms on two cores, 75 without Φ, whose two passes over the ratings differ
and cannot be one. That of a run (`floors`) counts bytes and products alone.

What was tried and does not pay, in CPU time: Φ in pairs of entries by both words of one Threefry
call, 1.1 to 4.5 times a lift (XLA makes the words once per output, or stops vectorising); Estrin's
scheme for the polynomials, 0.96 of a lift; sums over the width of a piece in halves or as a product
with three columns, 1.2 to 2.9 times a pass. What would pay: 13 rounds of Threefry, 0.84 of a lift,
but another Φ for each seed; vector registers of 512 bits, 0.67 of a lift on Zen 4, by
`XLA_FLAGS=--xla_cpu_prefer_vector_width=512`. A Φ that is stored would be 289 MB a device, in each
checkpoint too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import UsageError
from experiments.bench import generated, measure, process, roofline
from experiments.bench.local_loops import (
    SETTINGS,
    Loop,
    factored,
    numpy_round,
    server_step,
    user_entries,
    user_steps,
)
from experiments.cli import devices

if TYPE_CHECKING:
    from dpmf_jax.layout import Layout

MODULE = "experiments.bench.local"

STEPS = 3  # consecutive rounds of ours in one program
TIMED_USERS = 5_000  # of the loops
VARIANTS = {
    "published": {},
    "fresh": {"lift": "transpose", "fresh_projection": True},
    "unprojected": {"num_projected": None},
}
WHAT = {
    "published": "algorithm 2: one Gaussian Φ, lifted by its pseudo-inverse",
    "fresh": "algorithm 2 with another Gaussian Φ in every round, lifted by its transpose",
    "unprojected": "algorithm 1: no Φ",
}
LOOPS = {
    "published": ("one pass", "two passes"),
    "fresh": ("one pass", "two passes"),
    "unprojected": ("two passes",),
}


def run(
    size: str = "ml-20m",
    rank: int = 15,
    num_projected: int = 2_700,
    repeats: int = 5,
    *,
    num_devices: int | None = None,
) -> dict[str, Any]:
    """Times rounds on generated ratings, and measures each contender's peak in its own process.

    Args:
      size: one of `generated.SIZES`.
      rank, num_projected: d and q.
      repeats: interleaved rounds, whose median counts; every contender is warm before the first.
      num_devices: of ours; None takes one device per core, or every accelerator.

    Returns: a JSON-able object; `rows` is a list of {variant, contender, ms, ratio, peak_mb,
      ratings_mb, once_ms, compile_ms, fastest_ms, cpu_ms}, of one round: ratio is to the two passes
      of NumPy of the same variant; peak_mb is that of a process that reads the ratings as three
      columns, lays them out and does rounds, Python and jax included, and ratings_mb what the
      ratings are of that, in columns and laid out; once_ms is what is made before the first round
      (with a fixed Φ: (ΦΦᵀ)⁻¹). `variants` says what they are. `peak_after` has the peaks of
      "published" after each stage. `whole_loop_ms` is a round of all users in the loop's own
      process, to hold the scaled-up ms to. `largest_difference` is that of ours from the loops
      (`_differences`). `floors` has `roofline.floor` of ours in each variant. `others` as in
      `step.run`.

    Raises: UsageError for an unknown size, a rank or number of repeats below 1, or more rows of Φ
      than items. FloatingPointError where the contenders do not compute the same.
    """
    generated.check(size, rank, repeats)
    num_users, num_items, num_ratings = generated.SIZES[size]
    if not 1 <= num_projected <= num_items:
        raise UsageError(
            f"{num_projected} rows of Φ for {num_items:,} items",
            where="--projection",
            fix=f"at most {num_items:,}",
        )
    count = devices.use(num_devices)
    ratings = generated.ratings(size)
    peaks = _peaks(ratings, rank, num_projected, count)
    contenders, differences = _contenders(ratings, rank, num_projected, count)
    rounds = measure.interleaved(
        {(made.variant, made.name): made.round for made in contenders}, repeats
    )
    found = rounds.summary
    machine = roofline.machine()
    return {
        "benchmark": "local",
        "data": generated.describe(size),
        "rank": rank,
        "projection": num_projected,
        "variants": {variant: WHAT[variant] for variant in VARIANTS},
        "consecutive_steps": STEPS,
        "repeats": repeats,
        "timed_users": min(TIMED_USERS, num_users),
        "goal": {"ratio": 0.1, "peak_mb": 2_500, "contender": "jax"},
        "rows": [
            {
                "variant": made.variant,
                "contender": made.name,
                **found[made.variant, made.name],
                "ratio": (
                    found[made.variant, made.name]["ms"]
                    / found[made.variant, "NumPy, two passes"]["ms"]
                ),
                "peak_mb": peaks[made.variant, made.kind]["after"]["rounds"],
                "ratings_mb": peaks[made.variant, made.kind]["ratings_mb"],
                "once_ms": made.once_ms,
                "compile_ms": made.compile_ms,
                "cpu_ms": rounds.least_cpu_ms((made.variant, made.name)),
            }
            for made in contenders
        ],
        "floors": [
            roofline.floor(
                f"{variant}, jax",
                one_round(
                    num_users,
                    num_items,
                    num_ratings,
                    rank,
                    0 if variant == "unprojected" else num_projected,
                ),
                machine,
                found[variant, "jax"]["ms"],
            )
            for variant in VARIANTS
        ],
        "peak_after": peaks["published", "jax"]["after"],
        "whole_loop_ms": {variant: peaks[variant, "numpy"]["round_ms"] for variant in VARIANTS},
        "largest_difference": differences,
        "others": rounds.others,
        **measure.machine(count),
    }


def one_round(
    num_users: int, num_items: int, num_ratings: int, rank: int, num_projected: int
) -> dict[str, float]:
    """{flops, bytes} of a round; num_projected is 0 without Φ.

    flops: residual and step of U, 4d a rating; with Φ its entry times the residual, 2 more, the
    lift, 2qmd, and (ΦΦᵀ)⁻¹, 2q²d. bytes: 8 a rating, in the one orientation that a round needs; U
    and V read and written. Gathered rows and the drawing of Φ, coins and bits are not counted.
    """
    each = 4 * rank + (2 if num_projected else 0)
    lift = 2 * num_projected * rank * (num_items + num_projected)
    return {
        "flops": float(each * num_ratings + lift),
        "bytes": 8.0 * num_ratings + 8.0 * rank * (num_users + num_items),
    }


# --- ours


def _mechanism(variant: str, rank: int, num_projected: int) -> Any:
    from dpmf_jax.mechanisms.local import gd as local

    settings: dict[str, Any] = (
        {"rank": rank, "num_projected": num_projected} | SETTINGS | VARIANTS[variant]
    )
    config = local.Config(**settings)
    return local.gd(config) if config.num_projected is None else local.gd_dr(config)


def _started(mechanism: Any, data: Layout) -> tuple[Any, Any, float]:
    """(state, key, milliseconds of making the state without compilation)."""
    import jax

    from dpmf_jax import layout

    init_key, train_key = jax.random.split(jax.random.key(0))
    compiled, _ms = measure.compiled(
        lambda key, data: mechanism.init(key, data, None), init_key, data
    )
    start = time.perf_counter()
    state = jax.block_until_ready(compiled(init_key, data))
    once = time.perf_counter() - start
    return layout.replicate(data, state), train_key, 1e3 * once


def _loop_of(variant: str, ratings: Ratings, state: Any, num_projected: int) -> Loop:
    """The loop with the start and the Φ of ours."""
    import jax
    import jax.numpy as jnp

    from dpmf_jax.kernels import projection

    users, items = (
        np.array(part) for part in (state.private.user_factors, state.public.item_factors)
    )
    starts = np.searchsorted(ratings.user, np.arange(ratings.num_users + 1))
    phi = factor = None
    if (words := state.public.words) is not None:
        # of the first round, which adds 0 to the words also where they are fresh
        rows = jax.jit(
            lambda row: projection.entries(
                words, "gaussian", row, jnp.arange(len(items)), num_projected
            )
        )
        phi = np.stack([np.asarray(rows(row)) for row in range(num_projected)])
        factor = factored(phi) if variant == "published" else None
    return Loop(ratings, starts, users, items, phi, factor, variant == "fresh")


# --- side by side


class Contender(NamedTuple):
    """One way to compute a round.

    variant, name: in the rows of the result.
    kind: "jax" or "numpy", whose process has its peak.
    round: () -> the seconds of a round.
    once_ms: milliseconds of what is computed before the first round.
    compile_ms: milliseconds of compilation; None where there is none.
    """

    variant: str
    name: str
    kind: str
    round: Callable[[], measure.Spent]
    once_ms: float | None
    compile_ms: float | None


def _contenders(
    ratings: Ratings, rank: int, num_projected: int, num_devices: int
) -> tuple[list[Contender], dict[str, float]]:
    """(contenders, warm and compared; largest difference by quantity)."""
    from dpmf_jax import layout

    data = layout.make(ratings, num_devices=num_devices)
    rng = np.random.default_rng(0)
    who = np.sort(rng.choice(ratings.num_users, min(TIMED_USERS, ratings.num_users), replace=False))
    contenders: list[Contender] = []
    largest: dict[str, float] = {}
    for variant in VARIANTS:
        mechanism = _mechanism(variant, rank, num_projected)
        state, key, once = _started(mechanism, data)
        start = time.perf_counter()
        loop = _loop_of(variant, ratings, state, num_projected)
        loop_once = 1e3 * (time.perf_counter() - start)
        for name, difference in _differences(mechanism, key, state, data, loop, who).items():
            largest[name] = max(largest.get(name, 0.0), difference)
        ours, compile_ms = _rounds(mechanism, key, state, data)
        contenders.append(Contender(variant, "jax", "jax", ours, once, compile_ms))
        contenders += [
            Contender(
                variant,
                f"NumPy, {way}",
                "numpy",
                _loop_measure(loop, who, way, rng),
                loop_once,
                None,
            )
            for way in LOOPS[variant]
        ]
    return contenders, largest


def _rounds(
    mechanism: Any, key: Any, state: Any, data: Layout
) -> tuple[Callable[[], measure.Spent], float]:
    """(`STEPS` more rounds, milliseconds of compilation)."""
    import jax

    from dpmf_jax import protocol

    def train(key, state, data):
        return protocol.train(mechanism, key, state, data, num_steps=STEPS)

    compiled, compile_ms = measure.compiled(train, key, state, data)

    def rounds() -> None:
        nonlocal state
        state, _info = jax.block_until_ready(compiled(key, state, data))

    rounds()
    return partial(measure.timed, rounds, STEPS), compile_ms


def _loop_measure(
    loop: Loop, who: np.ndarray, way: str, rng: np.random.Generator
) -> Callable[[], measure.Spent]:
    def seconds_of_all() -> measure.Spent:
        start, start_cpu = time.perf_counter(), time.process_time()
        seconds = numpy_round(loop, who, rng, one_pass=way == "one pass")
        wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        return measure.Spent(seconds, cpu * seconds / wall)

    seconds_of_all()
    return seconds_of_all


def _differences(
    mechanism: Any, key: Any, state: Any, data: Layout, loop: Loop, who: np.ndarray
) -> dict[str, float]:
    """Largest difference of our first round from the loop's, by quantity.

    entries: those of the users in `who`, in [-1, 1] after the clip. item_factors: V. user_factors:
    these users' rows of U. The factors' are relative to their largest step.

    Raises: FloatingPointError above 1e-3, where the two do not compute the same.
    """
    import jax

    from dpmf_jax import protocol

    @jax.jit
    def first(mechanism, key, state, data):
        coins_key, noise_key = jax.random.split(jax.random.fold_in(key, state.step))
        asked, _info = mechanism.query(state, data, mechanism.coins(coins_key))
        return asked, mechanism.noise.sample(noise_key, asked)

    asked, said = jax.tree.map(np.asarray, first(mechanism, key, state, data))
    after, _info = protocol.train(mechanism, key, state, data, num_steps=1)
    items, users = np.asarray(after.public.item_factors), np.asarray(after.private.user_factors)
    entries = np.clip(user_entries(loop, who, asked.row[who], asked.column[who]), -1, 1)
    lifted = server_step(loop, said.row, said.column, said.value)
    moved = np.zeros_like(loop.users)
    user_steps(loop._replace(items=lifted) if loop.phi is None else loop, who, moved)
    differences = {
        "entries": float(np.abs(entries - asked.value[who]).max()),
        "item_factors": float(np.abs(lifted - items).max() / np.abs(lifted - loop.items).max()),
        "user_factors": float(
            np.abs(moved - users)[who].max() / np.abs(moved - loop.users)[who].max()
        ),
    }
    return measure.check_same(differences, "round")


# --- peaks, each in a process of its own


def _peaks(
    ratings: Ratings, rank: int, num_projected: int, num_devices: int
) -> dict[tuple[str, str], dict[str, Any]]:
    """What `_measure` says in a fresh process, by (variant, kind)."""
    sizes = (ratings.num_users, ratings.num_items, rank, num_projected, num_devices)
    with process.columns_on_disk(ratings) as folder:
        return {
            (variant, kind): process.run(MODULE, folder, variant, kind, *sizes)
            for variant in VARIANTS
            for kind in ("jax", "numpy")
        }


def _measure(folder: str, variant: str, kind: str, sizes: list[int]) -> dict[str, Any]:
    """One contender in this process: {after, ratings_mb, round_ms}.

    after: the peak in MB so far when a stage is done, by stage.
    """
    num_users, num_items, rank, num_projected, count = sizes
    ratings = process.read_columns(folder, num_users, num_items)
    after = {"reading": _peak_mb()}
    held = sum(column.nbytes for column in (ratings.user, ratings.item, ratings.value))
    if kind == "numpy":
        rng = np.random.default_rng(0)
        users, items = (
            rng.standard_normal((rows, rank), np.float32) / rank for rows in (num_users, num_items)
        )
        starts = np.searchsorted(ratings.user, np.arange(num_users + 1))
        phi = factor = None
        if variant != "unprojected":
            phi = rng.standard_normal((num_projected, num_items), np.float32)
            phi *= np.float32(num_projected**-0.5)
            factor = factored(phi) if variant == "published" else None
        after["start"] = _peak_mb()
        loop = Loop(ratings, starts, users, items, phi, factor, variant == "fresh")
        seconds = numpy_round(loop, np.arange(num_users), rng, one_pass=False)
        held += starts.nbytes
    else:
        import jax

        from dpmf_jax import layout

        data = jax.block_until_ready(layout.make(ratings, num_devices=devices.use(count)))
        after["layout"] = _peak_mb()
        held += sum(leaf.nbytes for leaf in jax.tree.leaves(data))
        mechanism = _mechanism(variant, rank, num_projected)
        state, key, _once = _started(mechanism, data)
        after["start"] = _peak_mb()
        rounds, _compile_ms = _rounds(mechanism, key, state, data)
        seconds, _cpu = rounds()
    after["rounds"] = _peak_mb()
    return {"after": after, "ratings_mb": held / 2**20, "round_ms": 1e3 * seconds}


def _peak_mb() -> float:
    return measure.memory("VmHWM") / 2**20


if __name__ == "__main__":
    print(
        json.dumps(
            _measure(sys.argv[1], sys.argv[2], sys.argv[3], [int(size) for size in sys.argv[4:]])
        )
    )
