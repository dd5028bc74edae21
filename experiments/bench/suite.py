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
from typing import Any

from dpmf_jax.errors import DataError
from experiments.bench import goals, measure
from experiments.bench.goals import COMPILED, GPU, Result
from experiments.cli import devices, provenance

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
    "als": ["als", "--repeats", "5"],
    "read": ["read", "--repeats", "7"],
    "scale": ["scale", "--repeats", "7"],
    "objective": ["objective"],
    "audit": ["audit"],
}
BUSY = 0.1  # share of the machine that others took, above which ratios mean little


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
    rows = [*goals.rows(results)]
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
