"""Paper 002's figures on paper and on the terminal: sections of markdown, pictures, tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.reproduce import page, pictures
from experiments.reproduce.catalogue import Figure, Record
from experiments.reproduce.comparison import row_from
from experiments.reproduce.page import joined
from experiments.reproduce.paper002 import budget
from experiments.reproduce.paper002.table import BUDGET, GAINS, RANKS

AXES = {
    "best_lambda": "best λ",
    "best_rate": "best η",
    "rmse": "RMSE, test",
    "rmse_test": "RMSE, held out",
    "rmse_valid": "RMSE, validation",
    "rmse_train": "RMSE, trained on",
    "rmse_top": "RMSE, test, top users",
    "skipped": "share of ratings that is skipped",
    "kl": "divergence, the paper's filter",
    "kl_same": "divergence, one filter for both sides",
    "kl_top": "divergence, the paper's filter, top users",
    "kl_same_top": "divergence, one filter for both sides, top users",
}
PANELS = {
    "002/fig1": ("rmse", "rmse_train"),
    "002/fig2": ("best_lambda", "rmse"),
    "002/fig3": ("rmse", "rmse_top"),
    "002/fig4": ("kl", "kl_same", "kl_top", "kl_same_top"),
    BUDGET: ("rmse_test",),
}
GREY, UNDRAWN = {"means alone": "0.4"}, ("global mean",)  # far above all lines
STYLES = ("-", "--", ":")  # of γ, in the order of `GAINS`


def files(figure: Figure, record: Record) -> dict[str, str]:
    content = page.files(figure, record, section, picture)
    if record["intervals"]:
        content["-intervals.csv"] = page.as_csv(record["intervals"])
    return content


def section(figure: Figure, record: Record, svg: str) -> list[str]:
    """Picture, numbers, what each series promises, how to repeat it."""
    lines = page.opening(figure, record, svg)
    for axis in page.axes_of(record, AXES):
        lines += [f"{AXES[axis][0].upper()}{AXES[axis][1:]}:", "", *_grid(figure, record, axis), ""]
    if record["searches"]:
        lines += [*(_searches if figure.name != BUDGET else _budget_searches)(record), ""]
    lines += ["| promise | seeds | series |", "|---|---|---|"]
    lines += [
        f"| {headline} | {seeds} | {'; '.join(names)} |"
        for (headline, seeds), names in _promises(record).items()
    ]
    return [*lines, *page.ending(record)]


def _promises(record: Record) -> dict[tuple[str, str], list[str]]:
    """The series that promise the same."""
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for setting in record["settings"]:
        groups.setdefault((setting["headline"], joined(setting["seeds"])), {})[
            setting["series"]
        ] = None
    return {promise: list(names) for promise, names in groups.items()}


def _grid(figure: Figure, record: Record, axis: str) -> list[str]:
    """Series by place, with intervals where there are any."""
    ends = {
        (one["series"], float(one["x"])): one for one in record["intervals"] if one["axis"] == axis
    }

    def cell(row: Record) -> str:
        return _with_ends(axis, row["value"], ends.get((row["series"], float(row["x"]))))

    rows = [row for row in record["rows"] if row["axis"] == axis]
    return page.grid(rows, figure.x_name, cell, place=place_name)


def place_name(x: float) -> str:
    return "∞" if math.isinf(x) else f"{x:g}"


def _with_ends(axis: str, value: Any, ends: Mapping[str, Any] | None) -> str:
    shown = number(value, axis)
    return (
        shown
        if ends is None
        else f"{shown} ({number(ends['lower'], axis)}–{number(ends['upper'], axis)})"
    )


def number(value: Any, axis: str = "rmse") -> str:
    value = float(value)
    if not math.isfinite(value):
        return "diverged"
    if axis in ("best_lambda", "best_rate"):
        return f"{value:g}"
    return f"{value:.2%}" if axis == "skipped" else f"{value:.4f}"


def _searches(record: Record) -> list[str]:
    lines = [
        (
            "What the searches found, and the validation RMSE from the best to the worst that was"
            " tried:"
        ),
        "",
    ]
    lines += ["| | η | λ | best | worst | tried |", "|---|---:|---:|---:|---:|---:|"]
    for name, best in record["searches"].items():
        tried = [float(value) for value in best["tried"].values()]
        lines.append(
            f"| {name} | {best['learning_rate']:g} | {best['regularization']:g} |"
            f" {number(min(tried))} | {number(max(tried))} | {len(tried)} |"
        )
    return lines


def _budget_searches(record: Record) -> list[str]:
    lines = [
        (
            "What the searches on generated ratings found, the RMSE there, and how many settings"
            " were tried:"
        ),
        "",
    ]
    lines += ["| | setting | RMSE | tried |", "|---|---|---:|---:|"]
    for name, best in record["searches"].items():
        words = ", ".join(
            f"{key} {value:g}" for key, value in best.items() if key not in ("rmse", "tried")
        )
        lines.append(f"| {name} | {words} | {number(best['rmse'])} | {best['tried']} |")
    return lines


def picture(figure: Figure, record: Record) -> str:
    """svg; the same rows give the same text. Raises: ModuleNotFoundError without matplotlib."""
    if figure.name == BUDGET:
        return budget.picture(list(map(row_from, record["rows"])), page.title(figure, record))
    panels = page.axes_of(record, PANELS[figure.name])
    lines, foot = -(-len(panels) // 2), f"{pictures.NOTICE}; no guarantee"
    with pictures.canvas(
        page.stem(figure, record),
        (9, 3.4 * lines),
        rows=lines,
        columns=min(len(panels), 2),
        font=8,
        foot=foot,
    ) as (canvas, grid, svg):
        for one, axis in zip(grid.flat, panels, strict=False):
            rows = [
                row | {"value": float(row["value"])}
                for row in record["rows"]
                if row["axis"] == axis
            ]
            if axis == "best_lambda":
                _heatmap(one, rows)
            else:
                _lines(
                    figure, one, rows, [end for end in record["intervals"] if end["axis"] == axis]
                )
            one.set_title(AXES[axis], fontsize=8)
        handles, labels = grid.flat[-1].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=6)
        canvas.suptitle(page.title(figure, record), fontsize=8)
    return svg.getvalue()


def _heatmap(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """λ over (d, γ), each cell with its number; regular storage, which has no γ, above."""
    places, names = page.places(rows), list(dict.fromkeys(row["series"] for row in rows))
    values = {(row["series"], float(row["x"])): row["value"] for row in rows}
    grid = [[math.log10(max(values.get((name, x), 1e-9), 1e-9)) for x in places] for name in names]
    axes.imshow(grid, cmap="viridis", aspect="auto", origin="lower", vmin=-4, vmax=0)
    for line, name in enumerate(names):
        for column, x in enumerate(places):
            colour = "w" if grid[line][column] < -1.5 else "k"
            axes.text(
                column,
                line,
                f"{values[name, x]:g}",
                ha="center",
                va="center",
                color=colour,
                fontsize=8,
            )
    axes.set_xticks(range(len(places)), [f"{x:g}" for x in places])
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="d")


def _lines(
    figure: Figure, axes: Any, rows: Sequence[Mapping[str, Any]], ends: Sequence[Mapping[str, Any]]
) -> None:
    """Values over places side by side; levels are thin lines, intervals bars."""
    places = page.places(rows)
    series = [name for name in dict.fromkeys(row["series"] for row in rows) if name not in UNDRAWN]
    for place, (name, (colour, style)) in enumerate(zip(series, _looks(series), strict=True)):
        aside = 0.03 * (place - len(series) / 2) if ends else 0.0  # or bars would lie on each other
        own = [row for row in rows if row["series"] == name]
        if own[0]["kind"] == "level":
            if math.isfinite(own[0]["value"]):
                axes.axhline(own[0]["value"], color=colour, linestyle=style, lw=0.8, label=name)
            continue
        kept = sorted((float(row["x"]), row["value"]) for row in own if math.isfinite(row["value"]))
        at = [places.index(x) + aside for x, _ in kept]
        axes.plot(
            at,
            [value for _, value in kept],
            linestyle=style,
            marker=".",
            color=colour,
            lw=1,
            ms=4,
            label=name,
        )
        for end in (end for end in ends if end["series"] == name):
            low, high = float(end["lower"]), float(end["upper"])
            if math.isfinite(low) and math.isfinite(high):
                axes.vlines(places.index(float(end["x"])) + aside, low, high, color=colour, lw=0.7)
    axes.set_xticks(range(len(places)), list(map(place_name, places)))
    axes.set(xlabel=figure.x_name)
    axes.grid(alpha=0.3)
    if figure.log[1]:
        axes.set_yscale("log")


def _looks(series: Sequence[str]) -> list[tuple[str, str]]:
    """Colour for d, style for γ; regular storage is dash-dotted, controls are grey."""
    looks = []
    for place, name in enumerate(series):
        rank = next((rank for rank in RANKS if f"d = {rank}" in name), None)
        gain = next((gain for gain in GAINS if f"γ = {gain:g}" in name), None)
        colour = GREY.get(name) or f"C{place if rank is None else RANKS.index(rank)}"
        plain = "-" if rank is None else "-."
        looks.append((colour, plain if gain is None else STYLES[GAINS.index(gain)]))
    return looks


def render(record: Record, figure: Figure) -> list[Any]:
    from rich.table import Table

    tables = []
    for axis in PANELS[figure.name]:
        rows = [row for row in record["rows"] if row["axis"] == axis]
        places = page.places(rows)
        where = f"{record['figure']} on {record['ratings']['name']}"
        table = Table(title=f"{where}, {AXES[axis]} ({record['notice']})")
        table.add_column(f"over {figure.x_name}")
        for x in places:
            table.add_column(place_name(x), justify="right")
        for series in dict.fromkeys(row["series"] for row in rows):
            own = {
                float(row["x"]): number(row["value"], axis)
                for row in rows
                if row["series"] == series
            }
            level = next(row["kind"] for row in rows if row["series"] == series) == "level"
            table.add_row(series, *(own[0.0] if level else own.get(x, "") for x in places))
        tables.append(table)
    lines = [*record["notes"], *dict.fromkeys(headline for headline, _ in _promises(record))]
    return [*tables, "\n".join(lines)]
