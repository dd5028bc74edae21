"""How far a run is: a bar on a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def bar(
    label: str, total: int, *, shown: bool | None = None, console: Console | None = None
) -> Generator[Callable[..., None]]:
    """A bar on stderr, or in the cell of a notebook.

    Args:
      label: what is being done.
      total: how much there is of it.
      shown: whether there is a bar; None shows one where somebody looks: on a terminal, and in a
        notebook that has ipywidgets.
      console: where it goes.

    Yields:
      ``report(done, **values)``: how much is done, and numbers to show beside it.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = console or Console(stderr=True)
    if shown is None:
        shown = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[values]}"),
    )
    with Progress(*columns, console=console, disable=not shown) as progress:
        task = progress.add_task(label, total=total, values="")
        yield lambda done, **values: progress.update(
            task, completed=done, values=with_names(values)
        )


def with_names(values: Mapping[str, Any]) -> str:
    """Numbers in one line, each behind its name."""
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )
