"""Sixteen configurations at once against sixteen separate runs, interleaved in one process.

Every contender takes the same steps of paper 001's mechanism, with noise and Info, in each configuration; they differ
in the noise, the learning rate, λ and the seed. What can be won: separate runs on one device leave the other cores
idle, so the floor is 1/(number of devices). Separate runs that spread their users over all devices use them too, but
pay for summing the items' gradients in every step. A look of the host at a run costs some 10 ms of its device, whatever
the number of steps; the commands look every 50.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from dpmf_jax.errors import UsageError
from experiments import devices
from experiments.bench import step
from experiments.bench.step import SIZES

STEPS = 20
SEPARATE = "separate runs, one device"


def run(
    num_configurations: int = 16,
    rank: int = 20,
    size: str = "ml-1m",
    repeats: int = 7,
    *,
    steps: int = STEPS,
    num_devices: int | None = None,
) -> dict[str, Any]:
    """Times a sweep at a data set's size on generated ratings; steps: that each configuration takes.

    Returns: a JSON-able object; `rows` is a list of {contender, ms, ratio, programs, fastest_ms}: ms is the median of
      one step of one configuration, ratio is to separate runs on one device, programs is how many were compiled.

    Raises: UsageError for an unknown size, or numbers below 1.
    """
    if size not in SIZES:
        raise UsageError(f"unknown size {size!r}", where="--size", fix=f"one of {', '.join(SIZES)}")
    if min(num_configurations, rank, repeats, steps) < 1:
        raise UsageError("configurations, rank, repeats and steps must be at least 1", fix="dpmf bench sweep")
    count = devices.use(num_devices)
    contenders = _contenders(num_configurations, rank, size, count, steps)
    programs = {}
    for name, (once, compiled) in contenders.items():
        before = compiled()
        once()
        programs[name] = compiled() - before
        once()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    before = step._busy()
    names = list(contenders)
    for turn in range(repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            time.sleep(step.PAUSE)
            start = time.perf_counter()
            contenders[name][0]()
            times[name].append((time.perf_counter() - start) / steps / num_configurations)
    after = step._busy()
    medians = {name: statistics.median(spent) for name, spent in times.items()}
    return {
        "benchmark": "sweep",
        "data": f"generated, {SIZES[size][2]:,} ratings, {SIZES[size][0]:,} x {SIZES[size][1]:,}",
        "configurations": num_configurations,
        "rank": rank,
        "consecutive_steps": steps,
        "repeats": repeats,
        "goal": {"ratio": 0.55, "contender": "sweep"},
        "rows": [
            {
                "contender": name,
                "ms": 1e3 * medians[name],
                "ratio": medians[name] / medians[SEPARATE],
                "programs": programs[name],
                "fastest_ms": 1e3 * min(times[name]),
            }
            for name in contenders
        ],
        "others": None
        if before is None or after is None
        else max(0.0, (after[0] - before[0]) / (after[1] - before[1])),
        "device": step._device(count),
        "cores": devices.cores(),
        "versions": step._versions(),
    }


def _compiled(function: Any) -> Callable[[], int]:
    """How many programs of a jitted function there are by now."""
    return function._cache_size


def _contenders(
    number: int, rank: int, size: str, count: int, steps: int
) -> dict[str, tuple[Callable[[], Any], Callable[[], int]]]:
    """By name: (all steps of all configurations, how many programs of its kind are compiled by now)."""
    import jax
    import jax.numpy as jnp

    from dpmf_jax import gaussian, layout, protocol, sweep, synthetic

    num_users, num_items, num_ratings = SIZES[size]
    ratings = synthetic.generate(num_users=num_users, num_items=num_items, num_ratings=num_ratings)
    alone, spread = layout.make(ratings, num_devices=1), layout.make(ratings, num_devices=count)
    mechanisms = [
        gaussian.mechanism(
            gaussian.Config(
                rating_range=ratings.rating_range,
                rank=rank,
                noise_multiplier=10.0 + position,
                learning_rate=1e-4 * (1 + position / number),
                regularization=0.01 * (1 + position),
                center="item",
            )
        )
        for position in range(number)
    ]
    keys = jax.random.split(jax.random.key(0), 2 * number)
    init = jax.jit(lambda mechanism, key, data: mechanism.init(key, data, None))
    states = [init(made, key, alone) for made, key in zip(mechanisms, keys, strict=False)]
    train_keys = keys[number:]

    def separate(data, states):
        for mechanism, key, state in zip(mechanisms, train_keys, states, strict=True):
            jax.block_until_ready(protocol.train(mechanism, key, state, data, num_steps=steps))

    jobs = [sweep.Job(m, key, state, steps) for m, key, state in zip(mechanisms, train_keys, states, strict=True)]

    def all_jobs(data, devices_used):
        for _ in sweep.run(jobs, data, chunk_steps=steps, num_devices=devices_used):
            pass

    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *mechanisms)
    stacked_states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    @jax.jit
    def batched(mechanisms, keys, states, data):
        return jax.vmap(lambda m, key, state: protocol.train(m, key, state, data, num_steps=steps))(
            mechanisms, keys, states
        )

    spread_states = [layout.replicate(spread, state) for state in states]
    return {
        SEPARATE: (lambda: separate(alone, states), _compiled(protocol.train)),
        f"separate runs, users over {count} devices": (
            lambda: separate(spread, spread_states),
            _compiled(protocol.train),
        ),
        "sweep": (lambda: all_jobs(alone, count), _compiled(sweep.train_many)),
        "sweep, one device": (lambda: all_jobs(alone, 1), _compiled(sweep.train_many)),
        "vmap, one device": (
            lambda: jax.block_until_ready(batched(stacked, train_keys, stacked_states, alone)),
            _compiled(batched),
        ),
    }
