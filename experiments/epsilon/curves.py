"""Curves of a price as svg and csv: ε against the number of steps, and δ against ε.

Every point is priced by the accountants themselves. The same numbers give the same bytes.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accounting.loss import BestOf
from dpmf_jax.errors import UsageError
from experiments.epsilon import report
from experiments.epsilon.flags import LARGEST_COUNT

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee
    from accounting.loss import Loss, Unit

DELTAS = [float(f"1e-{power}") for power in range(1, 13)]
# Of the total variation, at which the ε of pure rounds falls to 0.
SHARES = (0.9, 0.75, 0.5, 0.25, 0.1)
SHUFFLED = "shuffled"  # prices that no loss has by itself: see `others`


def draw(
    folder: Path,
    losses: Callable[[int], Sequence[Loss]],
    guarantee: Guarantee,
    *,
    title: str,
    accountants: Sequence[str],
    noun: str = "step",
    letter: str = "J",
    points: int = 13,
    most: int = LARGEST_COUNT,
    others: Mapping[str, Callable[[int, float], float]] | None = None,
) -> list[str]:
    """Writes epsilon-steps.svg, .csv and delta-epsilon.svg, .csv; returns their paths.

    The first pair prices 1 to twice the steps of the release, at its δ; it is left out for the best
    of several runs, which has no fewer steps. The second prices its steps at powers of ten of δ.
    Pure rounds are priced by their optimal composition (for a single round
    δ = (e^ε₀ − e^ε)/(1 + e^ε₀)), and by their sum at δ = 0.

    Args:
      folder: made if it is not there; files of these names are replaced.
      losses: what so many steps spend.
      guarantee: of the release itself: its δ, steps, unit, status and relation, and the paper's
        number if it has one.
      title: whose price it is.
      accountants: those that are drawn, in this order; one that does not price such losses is left
        out.
      noun, letter: what is counted, and the field's letter for it.
      points: at how many numbers of steps; each prices every accountant.
      most: steps that the curve does not go beyond.
      others: further prices by name, ε of (number of steps, δ).

    Raises:
      ModuleNotFoundError: without matplotlib, before anything is priced or written.
      UsageError: the folder cannot be made.
    """
    import matplotlib  # noqa: F401  before anything is priced

    from dpmf_jax.models import storage

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder: {error.strerror}", where=str(folder), fix="--curves FOLDER"
        ) from None
    steps, delta, others = guarantee.steps, guarantee.delta, others or {}
    names = [*accountants, *others]

    def prices(count: int) -> Callable[[float], dict[str, float]]:
        known = _epsilon_by_delta(losses(count), guarantee, accountants)

        def at(delta: float) -> dict[str, float]:
            priced = {
                **known(delta),
                **({name: price(count, delta) for name, price in others.items()} if delta else {}),
            }
            return {name: priced[name] for name in names if name in priced}

        return at

    by_steps = []
    if not any(isinstance(phase, BestOf) for phase in losses(steps)):
        by_steps = [(count, prices(count)(delta)) for count in _counts(steps, points, most)]
    of_release = prices(steps)
    by_delta = [(at, of_release(at)) for at in _deltas(losses(steps), delta, accountants)]
    subtitle = f"{title}\n{guarantee.status}, unit: one {guarantee.unit}\n{guarantee.relation}"
    texts = {}
    if by_steps:
        texts = {
            "epsilon-steps.svg": _plot(
                "epsilon-steps",
                by_steps,
                f"ε at δ = {report.delta_text(delta)}, {subtitle}",
                x=f"number of {noun}s {letter}",
                y="ε",
                mark=steps,
            ),
            "epsilon-steps.csv": _csv(f"{noun}s", by_steps),
        }
    texts |= {
        "delta-epsilon.svg": _plot(
            "delta-epsilon",
            by_delta,
            f"δ of {report.counted(steps, noun)}, {subtitle}",
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


def first_steps(losses: Sequence[Loss]) -> Callable[[int], list[Loss]]:
    """What the first k steps of a release spend; past its end, more of the last phase.

    The release takes its phases in this order.

    Pure rounds are cut at ε/k of each, rounded up.
    """
    from accounting import loss

    def first(count: int) -> list[Loss]:
        taken, left = [], count
        for place, phase in enumerate(losses):
            own = loss.num_steps([phase])
            part = left if place == len(losses) - 1 else min(left, own)
            if part:
                taken.append(phase if part == own else _with_num_steps(phase, part))
            left -= part
        return taken

    return first


def _with_num_steps(phase: Loss, count: int) -> Loss:
    from accounting import loss, pure

    if not isinstance(phase, loss.Pure):
        return dataclasses.replace(phase, num_steps=count)
    each = (
        math.nextafter(phase.epsilon / phase.num_rounds, math.inf)
        if phase.num_rounds > 1
        else phase.epsilon
    )
    return loss.Pure(epsilon=pure.epsilon_basic(each, count), num_rounds=count)


def _epsilon_by_delta(
    losses: Sequence[Loss], guarantee: Guarantee, accountants: Sequence[str]
) -> Callable[[float], dict[str, float]]:
    """ε of these losses as a function of δ; a distribution is built once and asked at every δ."""
    from accounting import composition, loss, price

    unit: Unit = guarantee.unit
    paper = {name: value for name, value in guarantee.accountants.items() if name == "paper"}
    if all(isinstance(phase, loss.SubsampledGaussian) for phase in losses):
        compose = {"rdp": composition.rdp, "pld": composition.pld}
        composed = {
            name: compose[name](losses, unit=unit) for name in accountants if name in compose
        }
        return lambda delta: {name: one.epsilon(delta) for name, one in composed.items()}
    if set(accountants) <= {"paper", "basic"}:  # of pure losses, whose sum holds at every δ
        return lambda delta: {**paper, **price.accountants(losses, 0.0, unit=unit)}
    return lambda delta: {**paper, **price.accountants(losses, delta, unit=unit)}


def _counts(steps: int, points: int, most: int) -> list[int]:
    """Whole numbers from 1 to 2·steps (at least 10) at equal ratios, `steps` among them."""
    last = min(max(2 * steps, 10), max(most, steps))
    return sorted({steps, *(round(last ** (k / (points - 1))) for k in range(points))})


def _deltas(losses: Sequence[Loss], delta: float, accountants: Sequence[str]) -> list[float]:
    """Powers of ten, the release's own, and for pure rounds some next to the δ at which ε is 0."""
    from accounting import loss, pure

    reserved = sum(
        phase.delta * phase.num_steps for phase in losses if isinstance(phase, loss.Approximate)
    )
    deltas = {delta, *(at for at in DELTAS if at > reserved)}
    if len(losses) == 1 and isinstance(only := losses[0], loss.Pure) and "optimal" in accountants:
        variation = pure.delta_optimal(only.epsilon / only.num_rounds, only.num_rounds, 0.0)
        deltas |= {share * variation for share in SHARES}
    return sorted(deltas)


def _names(rows: Sequence[tuple[float, Mapping[str, float]]]) -> list[str]:
    return list(dict.fromkeys(name for _, prices in rows for name in prices))


def _csv(first: str, rows: Sequence[tuple[float, Mapping[str, float]]]) -> str:
    """One row a point; an accountant that has no price there leaves its cell empty."""
    names, lines = _names(rows), io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow([first, *names])
    writer.writerows([at, *(prices.get(name, "") for name in names)] for at, prices in rows)
    return lines.getvalue()


def _label(accountant: str) -> str:
    """The accountant and what kind of number it gives."""
    from accounting.statement import KINDS

    if accountant == SHUFFLED:
        return f"{SHUFFLED}: upper bound, behind a trusted shuffler only"
    kind = KINDS.get(accountant, "").partition(",")[0]
    return accountant if kind in ("", accountant) else f"{accountant}: {kind}"


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
    """The curves as svg, one line an accountant.

    swapped: the priced ε goes along x, and what it is priced at along y.
    """
    import matplotlib
    from matplotlib.figure import Figure

    title = "\n".join(textwrap.fill(line, 110) for line in title.splitlines())
    with matplotlib.rc_context(
        {"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 8}
    ):
        canvas = Figure(figsize=(7, 4.5), layout="constrained")
        axes = canvas.add_subplot()
        for accountant in _names(rows):
            points = [(at, prices[accountant]) for at, prices in rows if accountant in prices]
            points = [
                pair for pair in points if all(0 < value < math.inf for value in pair)
            ]  # axes are logarithmic
            points = [(value, at) for at, value in points] if swapped else points
            if points:
                dashes = "--" if accountant == "exact" else "-"  # pld lies below it
                axes.plot(
                    *zip(*points, strict=True),
                    marker=".",
                    linewidth=1.2,
                    linestyle=dashes,
                    label=_label(accountant),
                )
        if mark > 0:
            (axes.axhline if swapped else axes.axvline)(
                mark, color="0.6", linewidth=0.8, linestyle=":"
            )
        axes.set(
            xlabel=x, ylabel=y, title=title, xscale="log", yscale="log"
        )  # accountants differ by orders
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        drawn = io.StringIO()
        canvas.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()
