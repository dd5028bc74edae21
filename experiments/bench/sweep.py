"""Sixteen configurations at once against sixteen separate runs, interleaved in one process.

Every contender takes the same steps of paper 001's mechanism, with noise and Info, in each
configuration; they differ in the noise, the learning rate, λ and the seed. What can be won:
separate runs on one device leave the other cores idle, so the floor is 1/(number of devices), or
more where cores that are all busy are slower: separate runs on all devices at once, each on one,
share no work and wait for nobody, so they say what the machine allows in the same minutes. Separate
runs that spread their users over all devices use them too, but pay for summing the items' gradients
in every step. A look of the host at a run costs some 5 ms of its device, whatever the number of
steps; the commands look every 50.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from dpmf_jax.errors import UsageError
from experiments.bench import generated, measure, roofline
from experiments.cli import devices

STEPS = 20
SEPARATE = "separate runs, one device"
AT_ONCE = "separate runs, one on each device"  # the floor of a sweep


def run(
    num_configurations: int = 16,
    rank: int = 20,
    size: str = "ml-1m",
    repeats: int = 7,
    *,
    steps: int = STEPS,
    num_devices: int | None = None,
) -> dict[str, Any]:
    """Times a sweep at a data set's size on generated ratings.

    Args:
      steps: of each configuration.

    Returns: a JSON-able object; `rows` is a list of {contender, ms, spread_ms, fastest_ms, ratio,
      programs, compile_ms, peak_mb}: the first three of one step of one configuration, as of
      `measure.summary`; ratio is to separate runs on one device, programs how many were compiled,
      compile_ms how long that took, and all else that the first call compiled, peak_mb the stored
      ratings and what the second call needed beside them. `floors` has `roofline.floor` of the
      sweep, which is that of a step on all devices.

    Raises: UsageError for an unknown size, or numbers below 1.
    """
    generated.check(size, rank, repeats)
    if min(num_configurations, steps) < 1:
        raise UsageError("configurations and steps must be at least 1", fix="dpmf bench sweep")
    count = devices.use(num_devices)
    contenders = _contenders(num_configurations, rank, size, count, steps)
    first = {}
    for name, made in contenders.items():
        before = made.compiled()
        seconds = measure.compiling(made.once)
        first[name] = {
            "programs": made.compiled() - before,
            "compile_ms": 1e3 * seconds,
            "peak_mb": (made.held + measure.growth(made.once)) / 2**20,
        }
    units = steps * num_configurations
    calls = {name: partial(measure.timed, made.once, units) for name, made in contenders.items()}
    rounds = measure.interleaved(calls, repeats)
    found = rounds.summary
    counted = roofline.step(*generated.SIZES[size], rank, contenders["sweep"].held)
    return {
        "benchmark": "sweep",
        "data": generated.describe(size),
        "configurations": num_configurations,
        "rank": rank,
        "consecutive_steps": steps,
        "repeats": repeats,
        "goal": {"ratio": 0.55, "contender": "sweep"},
        "rows": [
            {
                "contender": name,
                **found[name],
                "ratio": found[name]["ms"] / found[SEPARATE]["ms"],
                **first[name],
            }
            for name in contenders
        ],
        "floors": [roofline.floor("sweep", counted, roofline.machine(), found["sweep"]["ms"])],
        "others": rounds.others,
        **measure.machine(count),
    }


class Contender(NamedTuple):
    """One way to run all configurations.

    once: runs all steps of all configurations.
    compiled: () -> number of programs of its kind that are compiled by now.
    held: bytes of the ratings.
    """

    once: Callable[[], Any]
    compiled: Callable[[], int]
    held: int


def _compiled(function: Any) -> Callable[[], int]:
    """() -> number of programs of a jitted function that are compiled by now."""
    return function._cache_size


def _contenders(number: int, rank: int, size: str, count: int, steps: int) -> dict[str, Contender]:
    import jax
    import jax.numpy as jnp

    from dpmf_jax import layout, protocol
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
    from dpmf_jax.training import sweep

    ratings = generated.ratings(size)
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

    runs = list(zip(mechanisms, train_keys, states, strict=True))

    def separate(data, runs):
        for mechanism, key, state in runs:
            jax.block_until_ready(protocol.train(mechanism, key, state, data, num_steps=steps))

    places = jax.devices()[:count]
    each = [
        jax.device_put((alone, runs[position::count]), place)
        for position, place in enumerate(places)
    ]

    def at_once():
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(lambda given: separate(*given), each))

    jobs = [sweep.Job(mechanism, key, state, steps) for mechanism, key, state in runs]

    def all_jobs(data, devices_used):
        for _ in sweep.run(jobs, data, chunk_steps=steps, num_devices=devices_used):
            pass

    stacked = jax.tree.map(
        lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *mechanisms
    )
    stacked_states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    @jax.jit
    def batched(mechanisms, keys, states, data):
        return jax.vmap(lambda m, key, state: protocol.train(m, key, state, data, num_steps=steps))(
            mechanisms, keys, states
        )

    spread_runs = [
        (mechanism, key, layout.replicate(spread, state)) for mechanism, key, state in runs
    ]
    trained, swept = _compiled(protocol.train), _compiled(sweep.train_many)
    one, cut = (sum(leaf.nbytes for leaf in jax.tree.leaves(data)) for data in (alone, spread))
    return {
        SEPARATE: Contender(lambda: separate(alone, runs), trained, one),
        AT_ONCE: Contender(at_once, trained, count * one),
        f"separate runs, users over {count} devices": Contender(
            lambda: separate(spread, spread_runs), trained, cut
        ),
        "sweep": Contender(lambda: all_jobs(alone, count), swept, one),
        "sweep, one device": Contender(lambda: all_jobs(alone, 1), swept, one),
        "vmap, one device": Contender(
            lambda: jax.block_until_ready(batched(stacked, train_keys, stacked_states, alone)),
            _compiled(batched),
            one,
        ),
    }
