"""The problem that the contenders of a step are given, and what each must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.data.ratings import Ratings

LEARNING_RATE, REGULARIZATION, CLIP_NORM = 1e-4, 0.01, 1.0
STEPS = 5  # consecutive ones, which a contender is timed over: a training run, not a single call
REFERENCE = "torch CSR"


class Contender(NamedTuple):
    """One way to compute the step.

    name: in the rows of the result.
    steps: () -> (users, items) after `STEPS` more steps.
    held: bytes of the ratings.
    compile_ms: milliseconds of compilation, before the first step; None where there is none.
    """

    name: str
    steps: Callable[[], tuple[Any, Any]]
    held: int
    compile_ms: float | None = None


class Problem(NamedTuple):
    ratings: Ratings
    center: np.ndarray  # float32[items]
    users: np.ndarray  # float32[users, rank]
    items: np.ndarray


def consecutive(step: Callable[[], Any]) -> Callable[[], Any]:
    """A function that calls `step` `STEPS` times and returns the last result."""

    def steps() -> Any:
        for _ in range(STEPS - 1):
            step()
        return step()

    return steps
