"""Rules that end a descent by looking at its training RMSE. What they look at is not priced: not
private.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from dpmf_jax.training.fit import stopping_step

PATIENCE = 5  # steps without a new minimum
LEAST_FALL = 5.5e-6  # in RMSE, of one step


def no_new_minimum(rmse: np.ndarray) -> int | None:
    """The first step with `PATIENCE` steps behind it without a new minimum, as in `dpmf fit`."""
    return stopping_step(rmse.tolist(), PATIENCE)


def small_fall(rmse: np.ndarray) -> int | None:
    """The first step that lowered the RMSE by less than `LEAST_FALL`; this is what fits the paper's
    non-private runs.

    Step s is the number of updates done: rmse[s - 1] - rmse[s] is what the last of them brought.
    """
    fell = _first(rmse[:-1] - rmse[1:] < LEAST_FALL)
    return None if fell is None else fell + 1


RULES: Mapping[str, Callable[[np.ndarray], int | None]] = MappingProxyType(
    {"patience": no_new_minimum, "small fall": small_fall}
)

WORDS = {
    "patience": (
        f"stopped where {PATIENCE} steps brought no new minimum of the training RMSE; not private"
    ),
    "small fall": f"stopped where a step lowers the RMSE by less than {LEAST_FALL:g}; not private",
}


def _first(where: np.ndarray) -> int | None:
    places = np.flatnonzero(where)
    return int(places[0]) if len(places) else None
