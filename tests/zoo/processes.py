"""Tasks of the zoo side by side, one process each: what is compiled for one is of no use to others.

The programs of a process stay in memory; so each ends with its task.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any


def in_order(task: Callable[[Any], Any], asked: Iterable[Any]) -> Iterator[Any]:
    """What `task`, a function of a module, makes of each, in their order."""
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), max_tasks_per_child=1) as pool:
        yield from pool.map(partial(_compiled_quickly, task), asked)


def _compiled_quickly(task: Callable[[Any], Any], asked: Any) -> Any:
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    return task(asked)
