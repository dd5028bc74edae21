"""Noise in whole numbers beside float32 noise: draws, tables, and whole private steps.

- **draws**: nanoseconds of one draw on one core, of one program with a key, beside
  `jax.random.normal` with threefry in the same rounds. The key is threefry's, as an experiment has
  it, or ChaCha20's, as a release has it.
- **tables**: milliseconds of working the tables of a standard deviation out on the host. Later
  calls with the same number find them.
- **steps**: milliseconds of a step of `gaussian-joint-noise`. "float32" is the same descent as it
  would be with real numbers: the same gradients, noise of the same multiplier, the same update.
  "silent" has whole statistics, and no noise.

What a draw must cost: three words (Threefry makes two in 20 rounds of five operations, so 150
operations), two gathers of 4 bytes from tables of 64 KB, which the second cache of a core holds,
and some 20 operations more. `jax.random.normal` takes one word, and a polynomial of the inverse
error function.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from experiments.bench import generated, measure
from experiments.bench.problem import CLIP_NORM, LEARNING_RATE, REGULARIZATION, STEPS
from experiments.cli import devices

DRAWS = 1 << 18
# Standard deviations in units: of one table below 528, of two beyond.
SCALES = (20.0, 100.0, 500.0, 4097.0, 50000.0)
RANKS = (20, 64)
NOISE_MULTIPLIER = 20.0
NORMAL = "jax.random.normal"
FLOAT, WHOLE, SILENT = "float32", "whole numbers", "whole numbers, silent"


def run(
    rank: int | None = None,
    size: str = "ml-1m",
    repeats: int = 9,
    *,
    num_devices: int | None = None,
) -> dict[str, Any]:
    """Times draws, tables and steps, on generated ratings of a data set's size.

    Args:
      rank: of the steps; None takes 20 and 64.
      size: one of `generated.SIZES`.
      repeats: interleaved rounds, whose median counts; every contender is warm before the first.
      num_devices: of the steps; None takes one per core, or every accelerator.

    Returns: a JSON-able object. `rows`: {draw, generator, scale, ns, ratio, compile_ms}, ratio to
      `jax.random.normal`, the median of the rounds. `tables`: {scale, ms}. `steps`: {rank,
      contender, generator, ms, spread_ms, fastest_ms, ratio, compile_ms}, ratio to float32
      likewise.
      `noise_share`: by rank, what noise takes of the whole step. `booked`: the most that any
      mechanism's defaults add to δ because draws come from tables.

    Raises: UsageError for an unknown size, a rank or number of repeats below 1.
    """
    generated.check(size, 1 if rank is None else rank, repeats)
    count = devices.use(num_devices)
    ratings = generated.ratings(size)
    tables = [_tables(scale) for scale in SCALES]
    with measure.one_core():
        rows = draws(repeats)
    steps, shares, others = [], {}, []
    for each in RANKS if rank is None else (rank,):
        found, shares[str(each)], busy = private_steps(each, ratings, repeats, count)
        steps += found
        others.append(busy)
    return {
        "benchmark": "noise",
        "data": generated.describe(size),
        "draws_at_once": DRAWS,
        "consecutive_steps": STEPS,
        "repeats": repeats,
        "rows": rows,
        "tables": tables,
        "steps": steps,
        "noise_share": shares,
        "booked": booked(ratings),
        "others": max((busy for busy in others if busy is not None), default=None),
        **measure.machine(count),
    }


def _tables(scale: float) -> dict[str, float]:
    from dpmf_jax.noise import tables, whole

    tables.rounded_normal.cache_clear()
    tables.discrete_normal.cache_clear()
    return {
        "scale": scale,
        "ms": 1e3 * measure.timed(lambda: whole.numbers.__wrapped__(scale)).wall,
    }


def booked(ratings: Ratings) -> float:
    """The most of δ that a run of any mechanism's defaults pays for tables: (1 + e^ε)·distance."""
    from accounting.loss import distance
    from dpmf_jax.mechanisms import table
    from experiments.fit import mechanisms

    paid = [0.0]
    for spec in table().values():
        if spec.public == "users":
            continue  # has no defaults without a file
        phases, _ = mechanisms.phases_and_settings(spec.name, spec.flags(), ratings)
        for mechanism, num_steps in phases:
            guarantee = mechanism.guarantee(num_steps)
            if apart := distance(guarantee.losses):
                paid.append((1 + math.exp(guarantee.epsilon)) * apart)
    return max(paid)


def _keys() -> dict[str, Any]:
    """A key of each generator: an experiment's, and a release's."""
    import jax
    import jax.numpy as jnp

    from dpmf_jax.noise import chacha

    return {
        "threefry": jax.random.key(0),
        "chacha20": jax.random.wrap_key_data(jnp.arange(8, dtype=jnp.uint32), impl=chacha.IMPL),
    }


# --- draws


def draws(repeats: int, at_once: int = DRAWS) -> list[dict[str, Any]]:
    """The rows of `run`, of so many draws in one program."""
    import jax
    import jax.numpy as jnp

    from dpmf_jax.noise import whole

    keys = _keys()

    def normal(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (at_once,), jnp.float32)

    def rounded(law: whole.Law, key: jax.Array) -> jax.Array:
        return whole.draw(law, key, (at_once,))

    laws = {scale: whole.Law(*map(jnp.asarray, whole.numbers(scale))) for scale in SCALES}
    made: dict[tuple[str, str, float | None], tuple[Callable[[], Any], float]] = {}
    for generator, key in keys.items():
        ready, compile_ms = measure.compiled(normal, key)
        made[NORMAL, generator, None] = (functools.partial(ready, key), compile_ms)
        ready, compile_ms = measure.compiled(rounded, laws[SCALES[0]], key)  # of every scale
        for scale, law in laws.items():
            call = functools.partial(ready, law, key)
            made["rounded normal", generator, scale] = (call, compile_ms)

    def once(call: Callable[[], Any]) -> measure.Spent:
        return measure.timed(lambda: jax.block_until_ready(call()), at_once)

    contenders = {who: functools.partial(once, call) for who, (call, _) in made.items()}
    for contender in contenders.values():
        contender()
    rounds = measure.interleaved(contenders, repeats)
    reference = (NORMAL, "threefry", None)
    return [
        {
            "draw": who[0],
            "generator": who[1],
            "scale": who[2],
            "ns": 1e6 * rounds.summary[who]["ms"],
            "ratio": rounds.ratio(who, reference),
            "compile_ms": made[who][1],
        }
        for who in made
    ]


# --- steps


def private_steps(
    rank: int,
    ratings: Ratings,
    repeats: int,
    num_devices: int,
    generators: Sequence[str] = ("threefry",),
) -> tuple[list[dict[str, Any]], float, float | None]:
    """(rows of `run`'s steps, what noise takes of the whole step, what other processes took).

    generators: whose keys the steps have; of `_keys`. Ratios are to float32 with the first one.
    """
    import jax

    from dpmf_jax import layout, protocol

    data = layout.make(ratings, num_devices=num_devices)
    contenders, compile_ms = {}, {}
    for name, mechanism in _mechanisms(rank, ratings.rating_range).items():
        state = layout.replicate(data, mechanism.init(jax.random.key(0), data, None))
        for generator in generators[:1] if name == SILENT else generators:
            key = _keys()[generator]
            call = functools.partial(protocol.train, mechanism, key, state, data, STEPS)

            def once(call: Callable[[], Any] = call) -> measure.Spent:
                return measure.timed(lambda: jax.block_until_ready(call()), STEPS)

            compile_ms[name, generator] = 1e3 * measure.compiling(once)
            contenders[name, generator] = once
    rounds = measure.interleaved(contenders, repeats)
    rows = [
        {
            "rank": rank,
            "contender": who[0],
            "generator": who[1],
            **rounds.summary[who],
            "ratio": rounds.ratio(who, (FLOAT, generators[0])),
            "compile_ms": compile_ms[who],
        }
        for who in contenders
    ]
    share = 1 - rounds.ratio((SILENT, generators[0]), (WHOLE, generators[0]))
    return rows, share, rounds.others


def _mechanisms(rank: int, rating_range: tuple[float, float]) -> Mapping[str, Any]:
    from jax.tree_util import Partial

    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
    from dpmf_jax.noise import laws

    config = gaussian.Config(
        rating_range=rating_range,
        rank=rank,
        center=sum(rating_range) / 2,
        noise_multiplier=NOISE_MULTIPLIER,
        clip_norm=CLIP_NORM,
        learning_rate=LEARNING_RATE,
        regularization=REGULARIZATION,
    )
    exact = gaussian.joint_noise(config)
    params = gaussian.make_params(config, None, sensitivity=2**0.5 * config.span * config.clip_norm)
    return {
        FLOAT: exact._replace(
            query=Partial(_float_query, params),
            noise=laws.gaussian(params.noise_scale),
            update=Partial(_float_update, params),
        ),
        WHOLE: exact,
        SILENT: exact._replace(noise=laws.none()),
    }


def _float_query(params: Any, state: Any, data: Layout, coins: None) -> Any:
    """Both gradients as the published mechanism computes them."""
    from dpmf_jax.kernels import descent

    del coins
    given = (
        *(state.public.user_factors, state.public.item_factors),
        *(state.public.center, params.clip_norm, None, data),
    )
    users, info = descent.user_gradient(*given)
    return (users, descent.item_gradient(*given)), info


def _float_update(params: Any, state: Any, response: Any, data: Layout) -> Any:
    del data
    factors = (state.public.user_factors, state.public.item_factors)
    users, items = (
        factor - params.learning_rate * (gradient + params.regularization * factor)
        for factor, gradient in zip(factors, response, strict=True)
    )
    return state._replace(public=state.public._replace(user_factors=users, item_factors=items))
