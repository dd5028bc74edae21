"""What a run is, so that a resume of another one is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.data.splits import scrambled
from dpmf_jax.devices import hosts
from dpmf_jax.errors import PrivacyError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """The fields of private/run.json that a resume compares.

    Attributes:
      settings: JSON values that describe the run.
      guarantee: as `Guarantee.to_dict` writes it.
      mechanism: `fingerprint` of the mechanism, or of the mechanisms of all phases.
      ratings: `ratings_digest`.
      steps: number of steps of the training phase.
      seed: of an experiment; None for a release.
      patience: steps without a new minimum after which the run stops; None where it does not.
    """

    settings: Mapping[str, Any]
    guarantee: Mapping[str, Any]
    mechanism: str
    ratings: str
    steps: int
    seed: int | None
    patience: int | None

    def refuse_changes(self, saved: Mapping[str, Any], where: str) -> None:
        """Raises: PrivacyError that names the first field in which the saved run is another."""
        for name, now in dataclasses.asdict(self).items():
            if json.loads(json.dumps(now)) != saved.get(name):
                detail = _first_difference(now, saved.get(name))
                raise PrivacyError(
                    f"the run was started with another {name}{detail}",
                    where=where,
                    fix=(
                        "resume with the settings and the ratings it was started with, or start a"
                        " new run"
                    ),
                )


def _first_difference(now: Any, saved: Any) -> str:
    if isinstance(now, Mapping) and isinstance(saved, Mapping):
        for name in sorted({*now, *saved}):
            if json.loads(json.dumps(now.get(name))) != saved.get(name):
                return f": {name} was {saved.get(name)}, now {now.get(name)}"
    return "" if isinstance(now, str) else f": it was {saved}, now {now}"


def fingerprint(tree: Any) -> str:
    """SHA-256 of a pytree's paths and leaves: mechanisms of equal settings have the same."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def ratings_digest(ratings: Ratings) -> str:
    """SHA-256 of sizes, declared range and all processes' ratings.

    It depends neither on the order of the ratings nor on how many processes hold them.
    """
    place = ratings.user.astype(np.uint64) * np.uint64(ratings.num_items) + ratings.item.astype(
        np.uint64
    )
    value = ratings.value.view(np.uint32).astype(np.uint64)
    sums = [
        len(ratings),
        *(
            int(np.sum(scrambled(scrambled(place + np.uint64(salt)) + value)))
            for salt in (0, 1 << 62)
        ),
    ]
    whole = hosts.total(np.array(sums, np.uint64)).tolist()
    text = json.dumps([ratings.num_users, ratings.num_items, *ratings.rating_range, *whole])
    return hashlib.sha256(text.encode()).hexdigest()
