"""Pictures of the benchmark: error against ε, and against what a user pays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.reproduce.pictures import canvas, if_installed, palette

Row = Mapping[str, Any]
BESIDE = ("global mean", "item means", "biased mf")  # without privacy, as lines
FOOT = "unpriced errors of published or generated ratings; every fit has a seed"


def front(rows: Sequence[Row]) -> list[Row]:
    """The proved promises of one split that no other beats in both error and price of a user, from
    the lowest price on.
    """
    found: list[Row] = []
    for row in sorted(filter(has_proved_price, rows), key=lambda row: (_price(row), _error(row))):
        if not found or _error(row) < _error(found[-1]):
            found.append(row)
    return found


def has_proved_price(row: Row) -> bool:
    promise = row["promise"]
    return (
        promise is not None
        and promise["status"] == "proved"
        and isinstance(promise["epsilon_of_a_user"], float | int)
        and math.isfinite(promise["epsilon_of_a_user"])
        and row["numbers"]["rmse"] is not None
    )


def _price(row: Row) -> float:
    return row["promise"]["epsilon_of_a_user"]


def _error(row: Row) -> float:
    return row["numbers"]["rmse"]["mean"]


def draw(data: str, rows: Sequence[Row]) -> dict[str, str]:
    """svg by name: of the split by rating, the curves and the front; nothing without matplotlib."""
    own = [row for row in rows if row["split"] == "ratings" and row["numbers"]["rmse"]]
    if not any(row["promise"] and row["epsilon"] is not None for row in own):
        return {}
    return if_installed(
        lambda: {f"{data}-epsilon": draw_curves(data, own), f"{data}-user": draw_front(data, own)}
    )


def draw_curves(data: str, rows: Sequence[Row]) -> str:
    """Error against ε, a panel for what each promise hides."""
    priced = [row for row in rows if row["promise"] and row["epsilon"] is not None]
    units = list(dict.fromkeys(row["promise"]["unit"] for row in priced))
    epsilons = sorted({row["epsilon"] for row in priced})
    plain = [row for row in rows if row["contender"] in BESIDE]
    worst = max(map(_error, plain), default=1.5) * 1.3
    with canvas(data, (4.0 * len(units), 4.2), columns=len(units), foot=FOOT, sharey=True) as drawn:
        _, axes, svg = drawn
        for axis, unit in zip(axes[0], units, strict=True):
            own = [row for row in priced if row["promise"]["unit"] == unit]
            labels = list(dict.fromkeys(row["contender"] for row in own))
            for label, colour in zip(labels, palette(len(labels)), strict=True):
                line = sorted(
                    (row for row in own if row["contender"] == label),
                    key=lambda row: row["epsilon"],
                )
                halves = [row["numbers"]["rmse"]["half"] or 0.0 for row in line]
                style = "-" if line[0]["promise"]["status"] == "proved" else ":"
                axis.errorbar(
                    [row["epsilon"] for row in line],
                    list(map(_error, line)),
                    yerr=halves,
                    color=colour,
                    linestyle=style,
                    marker=".",
                    label=label,
                    capsize=2,
                )
            for row in plain:
                axis.axhline(_error(row), color="0.7", linewidth=0.6)
                axis.text(
                    0.99,
                    _error(row),
                    row["contender"],
                    fontsize=5,
                    color="0.4",
                    ha="right",
                    va="bottom",
                    transform=axis.get_yaxis_transform(),
                )
            axis.set(xscale="log", xlabel="ε", title=f"{data}: one {unit} is hidden")
            axis.set_xticks(epsilons, [f"{one:g}" for one in epsilons])
            axis.minorticks_off()
            axis.set_ylim(min(map(_error, rows)) - 0.02, worst)
            axis.legend(fontsize=6)
        axes[0][0].set_ylabel("RMSE; dotted: not proved")
    return svg.getvalue()


def draw_front(data: str, rows: Sequence[Row]) -> str:
    """Error against what a user pays, and those that nothing else beats in both."""
    with canvas(f"{data} user", (5.5, 4.0), foot=FOOT) as (_, axes, svg):
        axis = axes[0][0]
        standing = [row for row in rows if has_proved_price(row)]
        units = list(dict.fromkeys(row["promise"]["unit"] for row in standing))
        for unit, colour in zip(units, palette(len(units)), strict=True):
            own = [row for row in standing if row["promise"]["unit"] == unit]
            axis.scatter(
                list(map(_price, own)), list(map(_error, own)), s=12, color=colour,
                label=f"one {unit} is hidden",
            )  # fmt: skip
        best = front(rows)
        axis.step(
            [_price(row) for row in best], [_error(row) for row in best], where="post", color="0.3"
        )
        axis.set(
            xscale="log",
            xlabel="ε of a user; where one rating is hidden, of 20 of them",
            ylabel="RMSE",
            title=data,
        )
        if standing:
            axis.legend(fontsize=7)
    return svg.getvalue()
