"""Bytes that als before an untrusted recommender would send: from public sizes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpmf_jax.mechanisms.als.config import NUM_SLOPES

COUNTS, MEANS, FACTORS = "counts", "means", "factors"


def numbers(settings: Mapping[str, Any], num_items: int) -> dict[str, tuple[int, int]]:
    """By kind of pass, (how many there are, how many sums each opens).

    Of counts one for every item, of means one more for their mean scale, of factors d for every
    item and d² of the Gram matrix.
    """
    rank = settings["rank"]
    found = {COUNTS: (1, num_items), MEANS: (settings.get("num_means", 2), num_items + 1)}
    if settings["num_passes"]:
        found[FACTORS] = (settings["num_passes"], num_items * rank + rank**2)
    return found


def traffic(settings: Mapping[str, Any], num_users: int, num_items: int) -> dict[str, Any] | None:
    """See `Spec.traffic`: of one user in a pass, of each kind and of the kind with most; else None.

    A user sends a masked number for every sum, rated or not: whoever reads along sees nothing of
    who rated what. She gets as many masks and, but for the first pass, the public centres, factors
    and their variances, and the columns for slopes.
    """
    if settings.get("honest_shares") is None:
        return None
    import jax

    from dpmf_jax.mechanisms.federated import messages as sent

    def array(*shape: int, dtype: Any = np.uint32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    def of_pass(kind: str, opened: int) -> dict[str, int]:
        columns = 1 + 2 * settings["rank"] + NUM_SLOPES * settings.get("slopes", False)
        public = 0 if kind == COUNTS else num_items * columns + 1
        each = sent.Messages(
            sent.Ask(array(0, dtype=np.int32)),  # everybody answers for the whole catalogue
            sent.Request(array(opened, 1), array(public, 1, dtype=np.float32)),
            sent.Upload(array(0, dtype=np.int32), array(opened, 1)),
            sent.Total(array(opened, 1), array(1, dtype=bool), array(num_users, dtype=bool)),
        )
        return {
            f"{sender} to {receiver}": count
            for (sender, receiver), count in sent.traffic(each).items()
            if count
        }

    passes = numbers(settings, num_items)
    each = {kind: of_pass(kind, opened) for kind, (_, opened) in passes.items()}
    most = max(passes, key=lambda kind: passes[kind][1])
    return {
        "per_iteration": each[most],
        "per_pass": {kind: {"passes": passes[kind][0], **each[kind]} for kind in passes},
        "items_listed_by_a_user": num_items,
        "iterations": sum(times for times, _ in passes.values()),
    }
