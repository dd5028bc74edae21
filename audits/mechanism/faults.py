"""Is there a way round the noise: legal extremes and broken numbers are fed to a mechanism.

An entry of a response that comes out the same under all keys has no noise. What is never noisy on
the ratings as they are is public by the mechanism's own claim, and for the other audits. What is
noisy there must be noisy everywhere: on no ratings at all, on the largest and the smallest, on
users without any, and beside a number that is none.

The same noise must be drawn on one device and on several.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audits import transcript
from audits.finding import Finding, Verdict, inconclusive, not_applicable
from audits.transcript import step_statistics
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import Layout
from dpmf_jax.noise.laws import Report
from dpmf_jax.protocol import Mechanism

NAMES = ("noise: faults", "noise: devices")
CLAIMS = (
    "whatever the ratings are, every entry of a response that should have noise has it",
    "the noise is the same on one device and on several: it is drawn by place, not by device",
)
KEYS = 8
STEPS = 8  # a crowd may need some steps until enough are online


def audit(
    mechanism: Mechanism, ratings: Ratings, data: Layout, *, key: jax.Array, num_steps: int
) -> list[Finding]:
    """Two findings: faults, which compares bits, and devices, which compares up to float32 sums.

    All queries are in the state in which a run on `ratings` starts. Reports of one bit are for the
    enumeration, which tries extreme entries and those that are not numbers.
    """
    return [
        _faults(mechanism, ratings, data, key, num_steps),
        _devices(mechanism, ratings, key, num_steps),
    ]


@jax.jit
def _responses(mechanism: Mechanism, keys: jax.Array, statistics: Any) -> Any:
    """A response for each key, leading axis of keys."""
    return jax.vmap(lambda key: protocol.traced_once(mechanism.noise.sample)(key, statistics))(keys)


def extremes(ratings: Ratings, data: Layout) -> dict[str, Any]:
    """Data sets of the shapes of `data`, by what they are; all but the last are legal."""
    address = layout.locate(data, ratings.user, ratings.item)
    low, high = ratings.rating_range
    num = np.arange(ratings.num_ratings)
    last = ratings.user[-1]

    def without(removed: np.ndarray) -> Any:
        index = np.resize(np.flatnonzero(removed), len(num))
        return layout.remove_rating(data, jax.tree.map(lambda leaf: leaf[index], address))

    value = ratings.value.copy()
    value[0] = np.nan
    return {
        "no ratings": without(num >= 0),
        "the ratings of a single user": (
            without(ratings.user != last) if np.any(ratings.user != last) else data
        ),
        "a single rating": without(num > 0) if len(num) > 1 else data,
        "all ratings at the top": layout.replace_value(
            data, address, jnp.full(len(num), high, jnp.float32)
        ),
        "all ratings at the bottom": layout.replace_value(
            data, address, jnp.full(len(num), low, jnp.float32)
        ),
        "a rating that is not a number": layout.replace_value(data, address, jnp.asarray(value)),
    }


def _broken(statistics: Any) -> dict[str, Any]:
    """Statistics in whose first float leaf one entry is no finite number, by what it is."""
    leaves, structure = jax.tree.flatten(statistics)
    at = next((i for i, leaf in enumerate(leaves) if np.issubdtype(leaf.dtype, np.floating)), None)
    if at is None:
        return {}
    broken = {}
    for what, value in {"not a number": np.nan, "infinite": np.inf}.items():
        changed = np.array(leaves[at])
        changed.flat[0] = value
        broken[f"an entry of the statistics that is {what}"] = jax.tree.unflatten(
            structure, [*leaves[:at], changed, *leaves[at + 1 :]]
        )
    return broken


def _faults(
    mechanism: Mechanism, ratings: Ratings, data: Layout, key: jax.Array, num_steps: int
) -> Finding:
    run_key, coins_key, noise_key = jax.random.split(key, 3)
    run = transcript.record(mechanism, run_key, data, min(num_steps, STEPS))
    if isinstance(run.statistics, Report):
        return not_applicable(NAMES[0], CLAIMS[0], "the response is of bits; see the enumeration")
    additive = jax.tree.structure(run.responses) == jax.tree.structure(run.statistics)
    keys = jax.random.split(noise_key, KEYS)
    statistics = {
        "the ratings as they are": transcript.first_step(run),
        **{
            what: jax.device_get(step_statistics(mechanism, run.start, world, coins_key))
            for what, world in extremes(ratings, data).items()
        },
        **(_broken(transcript.first_step(run)) if additive else {}),
    }
    responses = {
        what: jax.tree.leaves(jax.device_get(_responses(mechanism, keys, s)))
        for what, s in statistics.items()
    }
    own = responses["the ratings as they are"]
    noisy = [np.any(leaf != leaf[:1]) for leaf in own]
    if not any(noisy):
        last = jax.tree.map(lambda leaf: np.asarray(leaf[-1]), run.statistics)
        if not any(
            np.any(leaf != leaf[:1]) for leaf in jax.tree.leaves(_responses(mechanism, keys, last))
        ):
            return not_applicable(
                NAMES[0], CLAIMS[0], "no entry of a response has noise, on the ratings as they are"
            )
        return inconclusive(NAMES[0], CLAIMS[0], "there is no response in the first step")
    bare: dict[str, int] = {}
    entries = sum(leaf[0].size for leaf, has in zip(own, noisy, strict=True) if has)
    for what, leaves in responses.items():
        same = [
            np.all(leaf == leaf[:1], axis=0) & np.isfinite(leaf[0].astype(np.float64))
            for leaf, has in zip(leaves, noisy, strict=True)
            if has
        ]
        if count := sum(int(part.sum()) for part in same):
            bare[what] = count
    worst = max(bare, key=lambda what: bare[what], default=None)
    replay: dict[str, Any] = {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "data_sha256": ratings.sha256(),
    }
    verdict: Verdict = "violated" if bare else "consistent"
    return Finding(
        audit=NAMES[0],
        claim=CLAIMS[0],
        measured=float(max(bare.values(), default=0)),
        claimed=0.0,
        lower=float(max(bare.values(), default=0)),
        verdict=verdict,
        details={
            "tried": list(responses),
            "without_noise": bare,
            "entries": entries,
            "keys": KEYS,
            "unit_of_measurement": (
                "entries without noise where there are most; those that are no finite number are "
                "not counted"
            ),
            "power": (
                f"exact for these data sets: one finite entry that is the same under {KEYS} keys"
                " would be seen"
            ),
            "replay": replay | ({"world": worst} if worst else {}),
        },
    )


# --- devices


def _devices(mechanism: Mechanism, ratings: Ratings, key: jax.Array, num_steps: int) -> Finding:
    num = jax.local_device_count()
    if num < 2:
        return not_applicable(NAMES[1], CLAIMS[1], "there is one device")
    shapes = jax.eval_shape(
        partial(transcript.record, num_steps=1), mechanism, key, _laid_out(ratings, 1)
    )
    if isinstance(shapes.statistics, Report):
        return not_applicable(NAMES[1], CLAIMS[1], "the response is of bits; see the enumeration")
    if jax.tree.structure(shapes.responses) != jax.tree.structure(shapes.statistics):
        return not_applicable(NAMES[1], CLAIMS[1], "the response is not the statistics and noise")
    try:
        runs = [
            transcript.record(mechanism, key, _laid_out(ratings, devices), 1)
            for devices in (1, num)
        ]
    except UsageError as error:
        return not_applicable(NAMES[1], CLAIMS[1], f"it runs on one device alone: {error.what}")
    noise = [
        jax.device_get(jax.tree.map(jnp.subtract, run.responses, run.statistics)) for run in runs
    ]
    statistics = [jax.device_get(run.statistics) for run in runs]
    gap = largest = 0.0
    for a, b, s in zip(*map(jax.tree.leaves, (*noise, statistics[0])), strict=True):
        gap = max(gap, float(np.max(np.abs(signed(a) - signed(b)), initial=0)))
        largest = max(
            largest,
            float(np.max(np.abs(signed(a)), initial=0) + np.max(np.abs(signed(s)), initial=0)),
        )
    limit = 8 * 2.0**-23 * largest
    verdict: Verdict = "consistent" if gap <= limit else "violated"
    return Finding(
        audit=NAMES[1],
        claim=CLAIMS[1],
        measured=gap,
        claimed=0.0,
        verdict=verdict,
        details={
            "devices": num,
            "limit": limit,
            "unit_of_measurement": (
                "largest difference of two entries' noise, in the units of the statistics"
            ),
            "power": "exact for this step: any difference above float32 rounding",
            "replay": {
                "key": np.asarray(jax.random.key_data(key)).tolist(),
                "data_sha256": ratings.sha256(),
            },
        },
    )


def _laid_out(ratings: Ratings, devices: int) -> Layout:
    return layout.make(ratings, kind="dense", num_devices=devices)


def signed(leaf: np.ndarray) -> np.ndarray:
    """float64; sums mod 2^32 as the signed numbers."""
    return (
        leaf.view(np.int32).astype(np.float64)
        if leaf.dtype == np.uint32
        else leaf.astype(np.float64)
    )
