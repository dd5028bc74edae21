"""What every picture of a reproduction is drawn on: axes, colours, and the notice at its foot.

Everything here raises ModuleNotFoundError without matplotlib. The same input gives the same text.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Generator
from typing import Any

from experiments.cli import console

NOTICE = "seeded, not private: unpriced errors, for the curator's eyes only"


@contextlib.contextmanager
def canvas(
    salt: str,
    size: tuple[float, float],
    *,
    rows: int = 1,
    columns: int = 1,
    font: int = 9,
    foot: str = "",
    **more: Any,
) -> Generator[tuple[Any, Any, io.StringIO]]:
    """(matplotlib's figure, its axes by row and column, where the svg is when the block ends).

    Args:
      salt: what the ids of the svg are drawn from.
      size: width and height in inches.
      foot: a line below the axes in place of `NOTICE`, which stands inside the figure.
      more: of `Figure.subplots`.
    """
    import matplotlib
    from matplotlib.figure import Figure

    svg = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none", "font.size": font}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **more), svg
        if foot:
            figure.supxlabel(foot, x=0.995, ha="right", fontsize=6, color="0.4")
        else:
            figure.text(0.995, 0.005, NOTICE, ha="right", va="bottom", fontsize=6, color="0.4")
        figure.savefig(svg, format="svg", metadata={"Date": None})


def palette(number: int) -> Any:
    """So many colours of viridis, evenly from its start; its end is left out."""
    import matplotlib

    return matplotlib.colormaps["viridis"]([place / max(1, number) for place in range(number)])


def if_installed(draw: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What `draw` returns; without matplotlib nothing, and a line on stderr that says so."""
    try:
        return draw()
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "matplotlib":
            raise
        console.say(
            "matplotlib is not installed, so there is no svg: pip install 'dpmf-jax[report]'"
        )
        return {}
