"""The ratings of a command, as its flags say."""

from __future__ import annotations

from typing import Any

from dpmf_jax.errors import UsageError
from dpmf_jax.training import ratings
from experiments.fit.mechanism_file import declared
from experiments.fit.mechanisms import chosen


def read(command: Any) -> tuple[Any, Any]:
    """`dpmf_jax.training.ratings.read` with the flags of `dpmf fit`.

    Raises: UsageError where no data set is named; what that raises.
    """
    check_named(command)
    names = ("catalogue_users", "catalogue_items", "split", "slice")
    names += ("test_fraction", "split_seed", "holdout_users")
    return ratings.read(
        declared(command.mechanism),
        chosen(command),
        command.data,
        seeded=command.seed is not None,
        shared=command.distributed,
        weight_column=getattr(command, "weight_column", None),
        **{name: getattr(command, name) for name in names},
        **command.reading(),
    )


def check_named(command: Any) -> None:
    """Raises: UsageError for a command without a data set."""
    if command.data is None:
        raise UsageError(
            "no data set is named",
            fix="dpmf fit DATA, for example dpmf fit synthetic; or --resume FOLDER",
        )
