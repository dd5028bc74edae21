"""All benchmarks one after the other, each in its own process, and their results beside the goals.

Every result is a JSON file, kept as soon as it is there; `tables` and `pictures` need nothing but
these files, so a page is always what some run printed, with the machine's name.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dpmf_jax.errors import DataError
from experiments.bench import measure, noise, sweep
from experiments.cli import devices, provenance

Result = Mapping[str, Any]

# Name of the file: flags of `dpmf bench`. The longest come last.
PARTS: dict[str, list[str]] = {
    "step-20": ["step", "--rank", "20"],
    "step-64": ["step", "--rank", "64"],
    "step-320": ["step", "--rank", "320"],
    "noise": ["noise"],
    "sweep": ["sweep", "--repeats", "7"],
    "online": ["online"],
    "step-ml-20m": ["step", "--size", "ml-20m", "--repeats", "7"],
    "local": ["local", "--repeats", "7"],
    "read": ["read", "--repeats", "7"],
    "scale": ["scale", "--repeats", "7"],
    "objective": ["objective"],
    "audit": ["audit"],
}
# Of a machine with a GPU, and of one with jax's CUDA plugin (--compile-only): put beside the others
# by hand.
GPU, COMPILED = "gpu", "gpu-compiled"
BUSY = 0.1  # share of the machine that others took, above which ratios mean little


class Goal(NamedTuple):
    """What a benchmark should reach.

    what: the figure, in words.
    part: the benchmark, one of `PARTS`.
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


def run(
    folder: Path, *, again: bool = False, say: Callable[[str], None] = lambda message: None
) -> dict[str, Any]:
    """Runs what `folder` lacks (all if `again`); writes pictures there and a page beside it.

    Returns: {rows: the goals' table, parts: {name: seconds}, ...}. A part that fails is named under
      `failed`; the others are run all the same.

    Raises: DataError where the folder cannot be written, or holds a file of ours that is no result.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what, fix = (
            f"the folder cannot be made: {error.strerror or error}",
            "give --out the name of a folder",
        )
        raise DataError(what, where=str(folder), fix=fix) from None
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, flags in PARTS.items():
        place = folder / f"{name}.json"
        if place.exists() and not again:
            continue
        say(f"bench {' '.join(flags)}")
        start = time.perf_counter()
        command = [sys.executable, "-m", "experiments.cli", "bench", *flags, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds[name] = time.perf_counter() - start
        if done.returncode:
            failed[name] = done.stderr.strip()[-500:]
            continue
        result = {
            "command": f"dpmf bench {' '.join(flags)}",
            "commit": provenance.commit(),
            "processor": measure.processor(),
            "cores": devices.cores(),
            "versions": measure.versions(),
        } | json.loads(done.stdout)
        place.write_text(json.dumps(result, indent=1) + "\n")
    results = load(folder)
    rows = [*goals(results)]
    place = folder.with_name(f"{folder.name}.md")
    place.write_text(page(results, rows, folder.name))
    for name, drawing in pictures(results):
        (folder / name).write_text(drawing)
    return {
        "benchmark": "all",
        "rows": rows,
        "seconds": seconds,
        "failed": failed,
        "out": str(place),
    }


def load(folder: Path) -> dict[str, Result]:
    """The results that are in a folder, by part. Raises: DataError for a file that is none."""
    results = {}
    for name in (*PARTS, GPU, COMPILED):
        place = folder / f"{name}.json"
        if not place.exists():
            continue
        try:
            results[name] = json.loads(place.read_text())
            results[name]["rows"]
        except (ValueError, KeyError, TypeError):
            raise DataError(
                "the file is no result of a benchmark", where=str(place), fix="remove it"
            ) from None
    return results


# --- the goals


def _row(result: Result, field: str = "ratio", **wanted: str) -> float | None:
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
    Goal("H200, 1M, rank 20, private step: ms", GPU, 0.06, _fastest("ml-1m", 20)),
    Goal("H200, 1M, rank 512, private step: ms", GPU, 0.6, _fastest("ml-1m", 512)),
    Goal(
        "H200, all MovieLens curves of paper 001: s",
        GPU,
        60.0,
        lambda r: r["curves"][0]["seconds"] if r["curves"] else None,
    ),
)


def goals(results: Mapping[str, Result]) -> Iterator[dict[str, Any]]:
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


# --- the page


def page(results: Mapping[str, Result], rows: list[dict[str, Any]], folder: str) -> str:
    """The page in Markdown; folder: where the results are, as seen from the page."""
    lines = [
        "# How fast",
        "",
        f"Written by `dpmf bench all`, of the results in `{folder}/` and nothing else.",
        "",
    ]
    machines = {name: _machine(result) for name, result in results.items()}
    if len(set(machines.values())) == 1:
        lines += [f"Machine: {next(iter(machines.values()))}.", ""]
    busy = [name for name, result in results.items() if (result.get("others") or 0) > BUSY]
    if busy:
        lines += [
            f"Other processes took more than {BUSY:.0%} of the machine during: {', '.join(busy)}.",
            "",
        ]
    lines += ["## Beside the goals", "", "| | goal | found | met | |", "|---|---|---|---|---|"]
    for row in rows:
        met = {None: "-", True: "yes", False: "**no**"}[row["met"]]
        lines.append(
            f"| {row['what']} | {_number(row['goal'])} | {_number(row['found'], 4)} | {met} |"
            f" {row['why']} |"
        )
    lines.append("")
    last = next(iter(machines.values()), None) if len(set(machines.values())) == 1 else None
    for name, result in results.items():
        lines += [
            f"## {name}",
            "",
            f"`{result.get('command', '')}`: {result.get('data', '')}; {_of(result)}`{name}.json`",
            "",
        ]
        if machines[name] != last:
            last = machines[name]
            lines += [f"Machine, until another one is named: {last}.", ""]
        for field in measure.TABLES:
            if result.get(field):
                lines += [*_table(result[field]), ""]
        if slopes := result.get("exponents"):
            lines += ["| exponent of | over all points | between the last two |", "|---|---|---|"]
            lines += [
                f"| {c} | {_number(e['all'])} | {_number(e['last'])} |" for c, e in slopes.items()
            ]
            lines += ["", f"![growth]({folder}/scale.svg)", ""]
        if (others := result.get("others")) is not None:
            lines += [f"Other processes took {others:.1%} of the machine.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _of(result: Result) -> str:
    sha, mark, dirty = result.get("commit", "").partition("-")
    return f"commit {sha[:7]}{mark}{dirty}; " if sha else ""


def _machine(result: Result) -> str:
    versions = ", ".join(
        f"{name} {version}" for name, version in result.get("versions", {}).items()
    )
    cores = f"{result['cores']} cores" if "cores" in result else None
    return (
        "; ".join(filter(None, (cores, result.get("processor"), result.get("device"), versions)))
        or "unknown"
    )


def _table(rows: list[Mapping[str, Any]]) -> list[str]:
    names = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    head = [
        f"| {' | '.join(name.replace('_', ' ') for name in names)} |",
        "|---" * len(names) + "|",
    ]
    return head + [f"| {' | '.join(_number(row.get(name)) for name in names)} |" for row in rows]


def _number(value: Any, digits: int = 3) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def pictures(results: Mapping[str, Result]) -> Iterator[tuple[str, str]]:
    """(file name, svg) of the growth curves, if they are measured and matplotlib is installed."""
    result = results.get("scale")
    if result is None:
        return
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return
    import io

    import matplotlib as mpl

    curves = list(dict.fromkeys(row["curve"] for row in result["rows"]))
    with mpl.rc_context({"svg.hashsalt": "dpmf", "svg.fonttype": "none"}):
        figure = Figure(figsize=(11, 6.5), layout="constrained")
        for place, curve in enumerate(curves):
            axes = figure.add_subplot(2, -(-len(curves) // 2), place + 1)
            points = [(row["value"], row["ms"]) for row in result["rows"] if row["curve"] == curve]
            axes.loglog(*zip(*points, strict=True), "o-", color="#1f5fa8")
            axes.set(title=curve, ylabel="ms a step")
            axes.grid(visible=True, which="major", linewidth=0.3)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    yield "scale.svg", drawn.getvalue()
