"""How the cost of a step grows with ratings, users, rank, configurations and devices.

A step is joint noise (the default mechanism of `dpmf fit`) through the protocol, with noise and
Info, timed over consecutive steps in one program. Along a curve everything else stays as at
MovieLens-1M size. Users and items grow with the number of ratings, in MovieLens-20M's proportions,
with at least 724 items. The exponent of each curve is fitted: a cost in proportion has 1.

Devices: on a CPU they are virtual, one thread each, so beyond the number of cores they show that
results and noise stay the same, not that time falls. Strong: the same ratings over more devices.
Weak: as many ratings for each device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.errors import UsageError
from experiments.bench import generated, measure, roofline
from experiments.cli import devices

RATINGS = (10_000, 100_000, 1_000_000, 10_000_000, 20_000_000)
USERS = (2_000, 10_000, 50_000, 200_000, 1_000_000)
RANKS = (8, 16, 32, 64, 128, 256)
CONFIGURATIONS = (1, 2, 4, 8, 16)
DEVICES = (1, 2, 4, 8)
LEAST_ITEMS = 724  # five times what a user rates: fewer would be full
WEAK_RATINGS = 250_000  # of each device
SAME = 1e-6  # of the largest entry: how far factors on several devices may be from those on one


class Point(NamedTuple):
    """A point of a curve.

    value: what grows.
    once: runs the program.
    steps: in it, of all configurations.
    megabytes: of the ratings on the device.
    compile_ms: of the program.
    counted: flops and bytes of a step.
    """

    value: int
    once: Callable[[], Any]
    steps: int
    megabytes: float
    compile_ms: float
    counted: dict[str, float]


def run(
    rank: int = 20,
    repeats: int = 7,
    most_ratings: int = RATINGS[-1],
    *,
    num_devices: int | None = None,
) -> dict[str, Any]:
    """Times every curve on generated ratings.

    Args:
      repeats: rounds over the points of a curve, whose median counts. most_ratings: larger points
        are left out.

    Returns: a JSON-able object; `rows` is a list of {curve, value, ms, spread_ms, ratio, fraction,
      layout_mb, compile_ms, difference}: ms of one step of one configuration, ratio to the curve's
      first point, fraction what its floor is of ms (`roofline.step`, at the machine's speeds before
      the curve), difference (of devices) of the factors from those on one device. `exponents` is
      {curve: {all, last}}: slope of log ms over log value, over all points and between the last
      two.

    Raises: UsageError for numbers below 1. FloatingPointError where several devices do not compute
      what one does.
    """
    if min(rank, repeats, most_ratings) < 1:
        raise UsageError("rank, repeats and ratings must be at least 1", fix="dpmf bench scale")
    count = devices.use(num_devices or max(devices.cores(), DEVICES[-1]))
    used = min(count, devices.cores())
    others = measure.watch()
    rows: list[dict[str, Any]] = []
    for curve, points in _curves(rank, most_ratings, count, used).items():
        rows += _timed(curve, points, repeats)
    return {
        "benchmark": "scale",
        "data": f"generated; {used} devices but where they are counted",
        "rank": rank,
        "repeats": repeats,
        "rows": rows,
        "exponents": {
            curve: exponents(rows, curve) for curve in dict.fromkeys(row["curve"] for row in rows)
        },
        "others": others(),
        **measure.machine(count),
    }


def exponents(rows: Sequence[dict[str, Any]], curve: str) -> dict[str, float | None]:
    """Slopes of log ms over log value: over all points of a curve, and between its last two."""
    value, ms = (
        np.log([row[name] for row in rows if row["curve"] == curve]) for name in ("value", "ms")
    )
    if len(value) < 2:
        return {"all": None, "last": None}
    return {
        "all": float(np.polyfit(value, ms, 1)[0]),
        "last": float((ms[-1] - ms[-2]) / (value[-1] - value[-2])),
    }


def sized(num_ratings: int) -> tuple[int, int, int]:
    """(users, items, ratings) in MovieLens-20M's proportions."""
    users, items, ratings = generated.SIZES["ml-20m"]
    return (
        max(20, users * num_ratings // ratings),
        max(LEAST_ITEMS, items * num_ratings // ratings),
        num_ratings,
    )


def _curves(rank: int, most: int, count: int, used: int) -> dict[str, list[Callable[[], Any]]]:
    """For each curve, functions that make its points: not all data fit at once."""
    users, items, num = generated.SIZES["ml-1m"]
    num = min(num, most)
    counts = [k for k in DEVICES if k <= count]
    weak = min(WEAK_RATINGS, most)
    return {
        "ratings": [lambda n=n: _point(n, sized(n), rank, used) for n in RATINGS if n <= most],
        "ratings, streamed": [
            lambda n=n: _point(n, sized(n), rank, 1, "stream") for n in RATINGS if n <= most
        ],
        "users": [
            lambda n=n: _point(n, (n, items, num), rank, used)
            for n in USERS
            if n <= num and 2 * num <= n * items
        ],
        "rank": [lambda k=k: _point(k, (users, items, num), k, used) for k in RANKS],
        "configurations": [
            lambda k=k: _sweep(k, rank, min(num, 100_000), used) for k in CONFIGURATIONS
        ],
        "devices, the same ratings": [
            lambda k=k: _point(k, (users, items, num), rank, k) for k in counts
        ],
        "devices, as many ratings each": [
            lambda k=k: _point(k, sized(k * weak), rank, k) for k in counts
        ],
    }


def _timed(curve: str, makers: list[Callable[[], Any]], repeats: int) -> list[dict[str, Any]]:
    machine = roofline.machine()
    made = [make() for make in makers]
    points = [point for point, _ in made]
    calls = {
        place: functools.partial(measure.timed, point.once, point.steps)
        for place, point in enumerate(points)
    }
    found = [*measure.interleaved(calls, repeats).summary.values()]
    same = curve == "devices, the same ratings"
    reference = made[0][1]
    return [
        {
            "curve": curve,
            "value": point.value,
            "ms": summary["ms"],
            "spread_ms": summary["spread_ms"],
            "ratio": summary["ms"] / found[0]["ms"],
            "fraction": roofline.floor(curve, point.counted, machine, summary["ms"])["fraction"],
            "layout_mb": point.megabytes,
            "compile_ms": point.compile_ms,
            "difference": _difference(reference, factors) if same else None,
        }
        for point, summary, (_, factors) in zip(points, found, made, strict=True)
    ]


def _difference(one: Any, other: Any) -> float:
    """Largest difference over the largest entry. Raises: FloatingPointError beyond `SAME`."""
    found = max(
        float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(one, other, strict=True)
    )
    if not found <= SAME:
        raise FloatingPointError(
            f"several devices differ by {found:.2g} from one: they do not compute the same step"
        )
    return found


def _mechanism(rank: int, noise_multiplier: float = 20.0) -> Any:
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian

    config = gaussian.Config(
        rating_range=(1.0, 5.0),
        rank=rank,
        noise_multiplier=noise_multiplier,
        learning_rate=1e-3,
        center=3.0,
    )
    return gaussian.joint_noise(config)


_generated = functools.lru_cache(maxsize=8)(generated.ratings)


def _point(
    value: int, size: tuple[int, int, int], rank: int, num_devices: int, kind: str = "split"
) -> tuple[Point, list[np.ndarray]]:
    """The point, and the factors after its first program."""
    import jax

    from dpmf_jax import layout, protocol

    users, items, num_ratings = size
    data = layout.make(_generated(size), kind=kind, num_devices=num_devices)
    mechanism = _mechanism(rank)
    init_key, key = jax.random.split(jax.random.key(0))
    state = layout.replicate(data, protocol.begin(mechanism, init_key, data))
    steps = max(2, min(200, 20_000_000 // (num_ratings + users + items)))

    def once() -> Any:
        return jax.block_until_ready(protocol.train(mechanism, key, state, data, num_steps=steps))

    compile_ms = 1e3 * measure.compiling(once)
    factors = [np.asarray(part) for part in protocol.factors(once()[0])[:2]]
    counted = roofline.step(users, items, num_ratings, rank, data.nbytes)
    return Point(value, once, steps, data.nbytes / 2**20, compile_ms, counted), factors


def _sweep(
    number: int, rank: int, num_ratings: int, num_devices: int
) -> tuple[Point, list[np.ndarray]]:
    import jax

    from dpmf_jax import layout, protocol
    from dpmf_jax.training import sweep

    users, items, most = generated.SIZES["ml-100k"]
    ratings = _generated((users, items, min(num_ratings, most)))
    data = layout.make(ratings, kind="split", num_devices=1)
    jobs, steps = [], 20
    for place in range(number):
        mechanism, (init_key, key) = (
            _mechanism(rank, 20.0 + place),
            jax.random.split(jax.random.key(place)),
        )
        jobs.append(sweep.Job(mechanism, key, protocol.begin(mechanism, init_key, data), steps))

    def once() -> None:
        for _ in sweep.run(jobs, data, chunk_steps=steps, num_devices=num_devices):
            pass

    compile_ms = 1e3 * measure.compiling(once)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(data))
    counted = roofline.step(users, items, ratings.num_ratings, rank, held)
    return Point(number, once, steps * number, held / 2**20, compile_ms, counted), []
