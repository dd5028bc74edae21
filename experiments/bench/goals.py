"""What the benchmarks should reach, and whether a result reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from experiments.bench import als, noise, sweep

Result = Mapping[str, Any]
# Parts that were measured elsewhere: on a machine with a GPU, and on one with jax's CUDA plugin
# (--compile-only). Their results are put beside the others by hand.
GPU, COMPILED = "gpu", "gpu-compiled"


class Goal(NamedTuple):
    """What a benchmark should reach.

    what: the figure, in words.
    part: the benchmark, one of `suite.PARTS`, or `GPU`.
    goal: the most, or with at_least the least, that the figure may be.
    figure: a result -> the figure, or None where it was not measured.
    why: the reason, printed where the goal is missed.
    """

    what: str
    part: str
    goal: float
    figure: Callable[[Result], float | None]
    at_least: bool = False
    why: str = ""


def _row(result: Result, field: str = "ratio", **wanted: str | int) -> float | None:
    """A field of the only row with these entries; None where there is none, or more than one."""
    rows = [
        row
        for row in result["rows"]
        if all(row.get(name) == value for name, value in wanted.items())
    ]
    return rows[0][field] if len(rows) == 1 else None


def _over(contender: str, other: str, **part: str) -> Callable[[Result], float | None]:
    """A result -> the median time of a contender over that of another one, within a part."""

    def ratio(result: Result) -> float | None:
        ours, theirs = (_row(result, "ms", contender=name, **part) for name in (contender, other))
        return None if ours is None or theirs is None else ours / theirs

    return ratio


def _least_share(result: Result) -> float:
    """The least bound of the tightness table over its goal; a goal of 1 counts to three digits."""
    return min(
        (round(row["share"], 3) if row["goal"] == 1 else row["share"]) / row["goal"]
        for row in result["rows"]
    )


def _fastest(size: str, rank: int) -> Callable[[Result], float | None]:
    """A result -> the least milliseconds a step of all layouts."""

    def fastest(result: Result) -> float | None:
        times = (r["ms"] for r in result["rows"] if (r["size"], r["rank"]) == (size, rank))
        return min(times, default=None)

    return fastest


GATHER = (
    "XLA writes every gathered factor row to memory before it multiplies; torch and numba multiply"
    " out of registers"
)


def _dearest_draw(generator: str) -> Callable[[Result], float | None]:
    """A result -> the dearest draw of rounded normals over `jax.random.normal`, of all scales."""

    def dearest(result: Result) -> float | None:
        rows = (r for r in result["rows"] if r["draw"] != noise.NORMAL)
        return max((r["ratio"] for r in rows if r["generator"] == generator), default=None)

    return dearest


def _of_steps(field: str) -> Callable[[Result], float | None]:
    """A result -> the largest entry of a step in whole numbers, of all ranks."""

    def largest(result: Result) -> float | None:
        rows = (r for r in result["steps"] if r["contender"] == noise.WHOLE)
        return max((r[field] for r in rows), default=None)

    return largest


READS = (
    "95% of a step of 20 million ratings, rank 64, are four kernels that gather factor rows, two on"
    " either side: residuals, and sums"
)
PRODUCTS = (
    "nearly all of a pass are Gram matrices of 32 ratings at a time, which XLA multiplies at a"
    " fraction of the speed of a large product; implicit takes three steps of conjugate"
    " gradients in place of them"
)
INSTRUCTIONS = "158 instructions a rating in one thread, counted in experiments/bench/RESULTS.md"
GOALS = (
    Goal("step, rank 20, 1M: to torch CSR", "step-20", 1.1, _over("jax", "torch CSR"), why=GATHER),
    Goal("step, rank 20, 1M: to scipy", "step-20", 0.25, _over("jax", "scipy")),
    Goal("step, rank 20, 1M: to dense torch", "step-20", 0.2, _over("jax", "dense torch")),
    Goal(
        "step, rank 20, 1M: to numba (stretch)", "step-20", 1.0, _over("jax", "numba"), why=GATHER
    ),
    Goal("step, rank 64, 1M: to torch CSR", "step-64", 1.5, _over("jax", "torch CSR"), why=GATHER),
    Goal(
        "step, rank 320, 1M: to torch CSR", "step-320", 1.5, _over("jax", "torch CSR"), why=GATHER
    ),
    Goal(
        "step, rank 20, 20M: to torch CSR",
        "step-ml-20m",
        1.0,
        _over("jax", "torch CSR"),
        why=GATHER,
    ),
    Goal("step, 20M: peak MB", "step-ml-20m", 500, lambda r: _row(r, "peak_mb", contender="jax")),
    Goal(
        "noise, share of the private step",
        "step-20",
        0.1,
        lambda r: r["noise_share"],
        why="9.6 ns a normal; each device draws its part, and passes it on",
    ),
    Goal(
        "step: compilation, ms", "step-20", 1_000, lambda r: _row(r, "compile_ms", contender="jax")
    ),
    Goal(
        "private step: compilation, ms",
        "step-20",
        1_000,
        lambda r: _row(r, "compile_ms", contender="jax private step"),
        why=("noise takes four runs of Threefry for keys and draws, 39 of the 105 fused kernels"),
    ),
    Goal("a draw with threefry: to a normal", "noise", 2.5, _dearest_draw("threefry")),
    Goal("a draw with ChaCha20: to a normal", "noise", 3.5, _dearest_draw("chacha20")),
    Goal(
        "step in whole numbers: to float32",
        "noise",
        1.2,
        _of_steps("ratio"),
        why="a draw takes three words where a normal takes one, and sums are of two whole parts",
    ),
    Goal(
        "step in whole numbers: noise's share",
        "noise",
        0.2,
        lambda r: max(r["noise_share"].values()),
    ),
    Goal(
        "step in whole numbers: compilation, ms",
        "noise",
        1_500,
        _of_steps("compile_ms"),
        why="half of it is noise: two draws, each with a branch for words needed once in 2^31",
    ),
    Goal(
        "tables of a standard deviation: ms",
        "noise",
        500,
        lambda r: max(row["ms"] for row in r["tables"]),
    ),
    Goal("δ that tables take from a run", "noise", 1e-12, lambda r: r["booked"]),
    Goal(
        "sweep of 16: to separate runs",
        "sweep",
        0.55,
        lambda r: _row(r, contender="sweep"),
        why=(
            f"the row {sweep.AT_ONCE!r} is what two busy cores allow; the host takes 5 ms more to"
            " read results"
        ),
    ),
    Goal(
        "sweep of 16: programs compiled",
        "sweep",
        1,
        lambda r: _row(r, "programs", contender="sweep"),
    ),
    Goal(
        "exact sequential SGD: to numba",
        "online",
        3.0,
        _over("jax dense", "numba", part="dense"),
        why=INSTRUCTIONS,
    ),
    Goal(
        "exact sequential SGD: times Surprise's speed",
        "online",
        2.0,
        _over("Surprise SVD", "jax dense", part="dense"),
        at_least=True,
        why=INSTRUCTIONS,
    ),
    Goal(
        "exact count-sketch SGD: to numba",
        "online",
        0.8,
        _over("jax sketch", "numba", part="sketch"),
    ),
    Goal(
        "local DP round, 20M: to a NumPy loop over users",
        "local",
        0.1,
        lambda r: _row(r, variant="published", contender="jax"),
    ),
    *(
        Goal(
            f"a pass of als, rank {rank}, 1M: to an iteration of implicit",
            "als",
            1.0,
            lambda r, rank=rank: _row(r, contender=als.OURS, rank=rank),
            why=PRODUCTS,
        )
        for rank in als.RANKS
    ),
    Goal(
        "a pass of als, rank 64, 9M: ms",
        "als",
        6_000,
        lambda r: r["large"][0]["ms"],
        why="measured while other processes had most of both cores",
    ),
    Goal("a pass of als, rank 64, 9M: peak MB", "als", 1_500, lambda r: r["large"][0]["peak_mb"]),
    Goal(
        "a pass of als: exponent in the number of ratings",
        "als",
        1.1,
        lambda r: r["exponents"]["ratings"]["all"],
    ),
    Goal(
        "als: programs for all passes and noise multipliers",
        "als",
        1,
        lambda r: max((row["programs"] or 0 for row in r["rows"]), default=None),
    ),
    Goal(
        "closed form of paper 003: to NumPy", "objective", 1.5, _over("jax", "NumPy", part="whole")
    ),
    Goal(
        "reading 20M ratings, checked and laid out: ms",
        "read",
        20_000,
        lambda r: _row(r, "ms", contender=r["goal"]["contender"]),
    ),
    Goal(
        "tightness of the audits: least share of its goal",
        "audit",
        1.0,
        _least_share,
        at_least=True,
    ),
    Goal(
        "tightness of the audits: longest, s",
        "audit",
        60.0,
        lambda r: max(row["seconds"] for row in r["rows"]),
        why=(
            "the case of MovieLens-100K's size runs both neighbours' worlds through 50 steps, 200"
            " times"
        ),
    ),
    Goal("H200, 1M, rank 20, private step: ms", GPU, 0.06, _fastest("ml-1m", 20), why=READS),
    Goal("H200, 1M, rank 512, private step: ms", GPU, 0.6, _fastest("ml-1m", 512), why=READS),
    Goal(
        "H200, all MovieLens curves of paper 001: s",
        GPU,
        60.0,
        lambda r: r["curves"][0]["seconds"] if r["curves"] else None,
        why="broken off after 236 s on one H200, 55% done",
    ),
)


def rows(results: Mapping[str, Result]) -> Iterator[dict[str, Any]]:
    """A row for each goal: {what, goal, found, met, why}.

    met: None where the figure was not measured. why: of a goal that is missed, or "not measured".
    """
    for goal in GOALS:
        result = results.get(goal.part)
        found = None if result is None else goal.figure(result)
        met = (
            None if found is None else (found >= goal.goal if goal.at_least else found <= goal.goal)
        )
        yield {
            "what": goal.what,
            "goal": goal.goal,
            "found": None if found is None else float(found),
            "met": met,
            "why": "not measured" if met is None else "" if met else goal.why,
        }
