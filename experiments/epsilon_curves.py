"""Curves of a price: ε against the number of steps and δ against ε, as svg, and their numbers as csv.

Every point is priced by the accountants themselves. The same numbers give the same bytes.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dpmf_jax.errors import UsageError
from experiments import epsilon_report as report

Prices = Callable[[int, float], Mapping[str, float]]  # (steps, δ) -> ε by accountant
DELTAS = [float(f"1e-{power}") for power in range(1, 13)]


def write(
    folder: Path, prices: Prices, *, steps: int, delta: float, title: str, status: str, relation: str, points: int = 13
) -> list[str]:
    """Writes epsilon-steps.svg, .csv and delta-epsilon.svg, .csv; returns their paths.

    Args:
      folder: made if it is not there; files of these names are replaced.
      prices: ε by accountant, of so many steps at a δ.
      steps, delta: the release itself; curves go from 1 to twice its steps at its δ, and over δ at its steps.
      title: whose price it is. status, relation: of the guarantee, part of every title.
      points: at how many numbers of steps; each prices every accountant.

    Raises:
      ModuleNotFoundError: without matplotlib, before anything is priced or written.
      UsageError: the folder cannot be made.
    """
    import matplotlib  # noqa: F401  before anything is priced

    from dpmf_jax import storage

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder: {error.strerror}", where=str(folder), fix="--curves FOLDER"
        ) from None
    by_steps = [(count, prices(count, delta)) for count in _counts(steps, points)]
    by_delta = [(at, prices(steps, at)) for at in sorted({delta, *DELTAS})]
    told = f"{title}; {status}\n{relation}"
    texts = {
        "epsilon-steps.svg": _plot(
            "epsilon-steps",
            by_steps,
            f"ε at δ = {report.shown(delta)}, {told}",
            x="number of steps J",
            y="ε",
            mark=steps,
        ),
        "epsilon-steps.csv": _csv("steps", by_steps),
        "delta-epsilon.svg": _plot(
            "delta-epsilon",
            by_delta,
            f"δ of {report.counted(steps, 'step')}, {told}",
            x="ε",
            y="δ",
            mark=delta,
            swapped=True,
        ),
        "delta-epsilon.csv": _csv("delta", by_delta),
    }
    for name, text in texts.items():
        storage.write_bytes(folder / name, text.encode())
    return [str(folder / name) for name in texts]


def _counts(steps: int, points: int) -> list[int]:
    """Whole numbers from 1 to 2·steps (at least 10) at equal ratios, `steps` among them."""
    last = max(2 * steps, 10)
    return sorted({steps, *(round(last ** (k / (points - 1))) for k in range(points))})


def _names(rows: Sequence[tuple[float, Mapping[str, float]]]) -> list[str]:
    return list(dict.fromkeys(name for _, prices in rows for name in prices))


def _csv(first: str, rows: Sequence[tuple[float, Mapping[str, float]]]) -> str:
    """One row a point; an accountant that has no price there leaves its cell empty."""
    names, lines = _names(rows), io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow([first, *names])
    writer.writerows([at, *(prices.get(name, "") for name in names)] for at, prices in rows)
    return lines.getvalue()


def _plot(
    name: str,
    rows: Sequence[tuple[float, Mapping[str, float]]],
    title: str,
    *,
    x: str,
    y: str,
    mark: float,
    swapped: bool = False,
) -> str:
    """One line an accountant. swapped: the priced ε goes along x, and what it is priced at along y."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 8}):
        canvas = Figure(figsize=(7, 4.5), layout="constrained")
        axes = canvas.add_subplot()
        for accountant in _names(rows):
            points = [
                (at, prices[accountant]) for at, prices in rows if math.isfinite(prices.get(accountant, math.inf))
            ]
            points = [(value, at) for at, value in points] if swapped else points
            if points:
                dashes = "--" if accountant == "exact" else "-"  # pld lies below it
                axes.plot(*zip(*points, strict=True), marker=".", linewidth=1.2, linestyle=dashes, label=accountant)
        (axes.axhline if swapped else axes.axvline)(mark, color="0.6", linewidth=0.8, linestyle=":")
        axes.set(xlabel=x, ylabel=y, title=title, xscale="log", yscale="log")  # accountants differ by orders
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        drawn = io.StringIO()
        canvas.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()
