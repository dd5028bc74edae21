"""What every picture of a reproduction carries."""

from io import StringIO
from typing import Any

NOTICE = "seeded, not private: unpriced errors, for the curator's eyes only"


def save(canvas: Any, drawn: StringIO) -> None:
    """Writes a matplotlib figure as svg, with the notice on it."""
    canvas.text(0.995, 0.005, NOTICE, ha="right", va="bottom", fontsize=6, color="0.4")
    canvas.savefig(drawn, format="svg", metadata={"Date": None})
