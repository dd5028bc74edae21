"""The two pictures of an audit's report, drawn by matplotlib as svg to stand in an HTML page.

They hold numbers alone, no text that anybody chose, and take the page's colours, light or dark. The
same picture gives the same bytes.
"""

from __future__ import annotations

import html
import io
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from experiments.audit.blocks import Picture

LEAST = 1e-4  # where a ROC's axes begin; a share of 0 is drawn there
# Colours that matplotlib draws with, and the page's own that take their place.
INK, RULE, SOFT, CLAIM, MEASURED, CONTROL = (f"#00000{digit}" for digit in range(1, 7))
PAGE = {
    INK: "ink",
    RULE: "rule",
    SOFT: "soft",
    CLAIM: "link",
    MEASURED: "violated",
    CONTROL: "consistent",
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text as text
    "font.size": 10,
    "legend.frameon": False,
    "grid.linewidth": 0.5,
    **dict.fromkeys(
        ("xtick.major.size", "ytick.major.size", "xtick.minor.size", "ytick.minor.size"), 0
    ),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), RULE),
}


def svg(picture: Picture, number: int) -> str:
    """The picture as an svg element; its ids begin with its number on the page."""
    import matplotlib

    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "dpmf audit"}):
        text = io.StringIO()
        figure(picture).savefig(
            text,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    for colour, name in PAGE.items():
        drawn = drawn.replace(colour, f"var(--{name})")
    # Inside a page an element needs no namespaces, and these pictures no clipping.
    drawn = re.sub(r' (?:xmlns(?::\w+)?|version|clip-path)="[^"]*"', "", drawn)
    drawn = re.sub(r'(\bid="|href="#)', rf"\g<1>picture-{number}-", drawn)
    label = html.escape(f"{picture.title}. {picture.alt}")
    return drawn.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def figure(picture: Picture) -> Figure:
    """The picture as a figure of matplotlib. Raises: KeyError for a kind that does not exist."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(5, 3.8), layout="constrained")
    axes = drawn.add_subplot()
    {"curve": _curve, "roc": _roc}[picture.kind](axes, picture)
    axes.grid(visible=True)
    drawn.legend(loc="outside lower left", ncols=2)
    return drawn


def _curve(axes: Axes, picture: Picture) -> None:
    """The claim as a line δ(ε), and measured lower bounds on ε as marks."""
    claimed, measured = picture.series["claimed"], picture.series.get("measured", ())
    epsilons, deltas = zip(*[*claimed, *measured], strict=True)
    line = sorted(map(tuple, claimed))
    axes.plot(*zip(*line, strict=True), color=CLAIM, clip_on=False, label="claimed")
    if measured:
        marks = [(max(0.0, epsilon), delta) for epsilon, delta in measured]
        axes.plot(
            *zip(*marks, strict=True),
            "o",
            color=MEASURED,
            clip_on=False,
            label="measured: ε is at least this",
        )
    axes.set(
        xlim=(0, max(*epsilons, 1e-3)),
        yscale="log",
        ylim=(10.0 ** math.floor(math.log10(min(deltas))), 1),
        xlabel="ε",
        ylabel="δ",
    )


def _roc(axes: Axes, picture: Picture) -> None:
    """Attacks on the mechanism and on the same without noise, on log axes; and what is allowed."""
    ends = [LEAST, 1.0]
    axes.plot(ends, ends, ":", color=SOFT, clip_on=False, label="guessing")
    if picture.claim is not None:
        rates = np.geomspace(LEAST, 1, 41)
        allowed = np.maximum(largest_rate(rates, *picture.claim), LEAST)
        label = "most that the claim allows"
        axes.plot(rates, allowed, color=CLAIM, clip_on=False, label=label)
    controls_first = sorted(picture.series, key=lambda name: not name.startswith("control"))
    labelled: set[str] = set()
    for name in controls_first:
        control = name.startswith("control")
        label = "the same without noise" if control else "measured"
        points = np.maximum(sorted(map(tuple, picture.series[name])), LEAST)
        axes.plot(
            *points.T,
            "--" if control else "-",
            color=CONTROL if control else MEASURED,
            clip_on=False,
            label=None if label in labelled else label,
        )
        labelled.add(label)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel="false alarms (FPR)", ylabel="members found (TPR)")


def largest_rate(false_alarms: Any, epsilon: float, delta: float) -> np.ndarray:
    """The largest TPR that (ε, δ) allows at a FPR.

    From both worlds: TPR ≤ e^ε FPR + δ, and 1 - FPR ≤ e^ε (1 - TPR) + δ.
    """
    slope = math.exp(min(epsilon, 700.0))
    false_alarms = np.asarray(false_alarms, np.float64)
    other = 1 - (1 - false_alarms - delta) / slope
    return np.minimum(np.minimum(slope * false_alarms + delta, other), 1.0)
