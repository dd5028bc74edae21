"""Calls of one compiled program side by side: on a CPU a single call keeps one core busy."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")
MOST = 8  # threads; each call has memory of its own


def calls(fn: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """`fn` of each part, in the order of the parts."""
    if len(parts) < 2:
        return [fn(part) for part in parts]
    with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1, MOST)) as pool:
        return list(pool.map(fn, parts))
