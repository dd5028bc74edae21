"""One Gaussian step, ours against other ways to compute it, interleaved in one process.

Each contender is timed over `STEPS` consecutive steps, as a training run makes them: ours in one
compiled scan, the others in a loop. Milliseconds are those of one step.

The step, for rank k and n ratings: e_ui = v_ui - c_i - ⟨θ_u, x_i⟩ at the ratings, both clipped
gradients (-Σ_i e s_i x_i per user, -Σ_u e t_u θ_u per item, s and t one over the clipped norms),
and both updates with λ. No noise and no RMSE, except in the row "jax private step"; "jax silent
step" is the same without noise. The peers get values that are centred beforehand, which ours does
in the step.

What it must cost, counted at MovieLens-1M size and rank 20:

- flops: 3 products of 2k a rating make 120 MFlop, 4 (each orientation makes its own residuals) 160
  MFlop, under 2 ms on two cores with AVX-512.
- bytes: each orientation reads 8 bytes a rating (9 MB with padding); then a factor row of 96 bytes
  (rank 20 padded to 24) is read from the table in the second-level cache, written to a block and
  read twice by the two products: 107 MB written and 321 MB read per orientation, all of it in
  cache. At 32 bytes a cycle that is 3.6 ms on one core.
- measured on one core (Zen 4): 7.6 ms for the users, 8.3 for the items, so 2.2 times that floor.
  The gather alone is 2.6 ms (`layout.split.take`), the products 3.5. Two devices take 15 ms of CPU
  time in all, 8.0 ms of wall time on two idle cores; the numba kernel takes 13 and 7.1.

What was tried before rows were copied in vectors, in CPU time of the users' orientation against 8.2
ms for gather and products alone: multiply and sum in place of matrix products 13.7; rank not padded
10.8; no barrier after the gather 13.9; slices summed one by one over the width 8.1, but 0.2 s more
to compile; widths of 16 to 64 within 8%, 128 a quarter more (padding); int16 columns 0.2 more; item
gradients scattered from the users' pass 11.5 more where the items' own pass costs 10.2; residuals
handed from one pass to the other save the second product and cost as much. What paid: blocks of 128
KB in place of 2 MB (0.8 ms), once XLA was kept from handing halves of small gathers to other
threads (5 ms an orientation; see `layout.split`).
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from experiments.bench import generated, measure, peers, roofline
from experiments.bench.problem import (
    CLIP_NORM,
    LEARNING_RATE,
    REFERENCE,
    REGULARIZATION,
    STEPS,
    Contender,
    Problem,
)
from experiments.cli import devices


def run(
    rank: int = 20, size: str = "ml-1m", repeats: int = 9, *, num_devices: int | None = None
) -> dict[str, Any]:
    """Times the step at a data set's size on generated ratings.

    Peers that are not installed are left out and named.

    Args:
      rank: number of factors.
      size: one of `generated.SIZES`.
      repeats: interleaved rounds, whose median counts; every contender is warm before the first.
      num_devices: of ours; None takes one device per core, or every accelerator.

    Returns: a JSON-able object; `rows` is a list of {contender, ms, spread_ms, fastest_ms, ratio,
      peak_mb, compile_ms, cpu_ms}: the first three as of `measure.summary`, ratio is to torch CSR
      (None where torch is absent), peak_mb the stored ratings plus the growth of the process in the
      first step (compilation apart; device memory of an accelerator is not seen), cpu_ms the least
      CPU time of a step, all threads. `floors` has `roofline.floor` of the row "jax", noise_share
      what noise takes of the private step, `others` what `measure.watch` says.

    Raises: UsageError for an unknown size, a rank or number of repeats below 1.
    """
    generated.check(size, rank, repeats)
    count = devices.use(num_devices)
    problem = _problem(rank, size)
    made = [
        _warm(maker(problem, count))
        for maker in (_jax, _jax_private, _jax_silent, *peers.makers(problem))
    ]
    differences = _differences(made)
    contenders = {
        warm.contender.name: partial(measure.timed, warm.contender.steps, STEPS) for warm in made
    }
    rounds = measure.interleaved(contenders, repeats)
    medians = {name: summary["ms"] for name, summary in rounds.summary.items()}
    rows = [
        {
            "contender": contender.name,
            **rounds.summary[contender.name],
            "ratio": medians[contender.name] / medians[REFERENCE] if REFERENCE in medians else None,
            "peak_mb": (contender.held + growth) / 2**20,
            "compile_ms": contender.compile_ms,
            "cpu_ms": rounds.least_cpu_ms(contender.name),
        }
        for contender, growth, _first in made
    ]
    users, items, num_ratings = generated.SIZES[size]
    counted = roofline.step(users, items, num_ratings, rank, made[0].contender.held)
    noisy, silent = (medians[name] for name in ("jax private step", "jax silent step"))
    return {
        "benchmark": "step",
        "floors": [roofline.floor("jax", counted, roofline.machine(), medians["jax"])],
        "noise_share": (noisy - silent) / noisy,
        "data": generated.describe(size),
        "rank": rank,
        "consecutive_steps": STEPS,
        "repeats": repeats,
        "goal": {"ratio": 1.1 if rank <= 32 else 1.5, "contender": "jax"},
        "rows": rows,
        "left_out": [name for name, there in peers.installed(problem).items() if not there],
        "largest_difference": differences,
        "others": rounds.others,
        **measure.machine(count),
    }


def _problem(rank: int, size: str) -> Problem:
    ratings = generated.ratings(size)
    num_users, num_items = ratings.num_users, ratings.num_items
    rng = np.random.default_rng(0)
    users, items = (rng.standard_normal((n, rank), np.float32) for n in (num_users, num_items))
    users /= np.linalg.norm(users, axis=1, keepdims=True)
    items *= 1.2 / np.linalg.norm(
        items, axis=1, keepdims=True
    )  # so that clipping has something to do
    total = np.bincount(ratings.item, ratings.value, num_items)
    center = total / np.maximum(np.bincount(ratings.item, minlength=num_items), 1)
    return Problem(ratings, center.astype(np.float32), users, items)


# --- ours


def _jax_step(data, center, state):
    """Both gradients as the mechanisms compute them, without Info and noise."""
    import jax.numpy as jnp

    from dpmf_jax.kernels import descent

    (users, items), clip_norm = state, jnp.float32(CLIP_NORM)
    of_users, _info = descent.user_gradient(users, items, center, clip_norm, None, data)
    of_items = descent.item_gradient(users, items, center, clip_norm, None, data)
    return tuple(
        factors - LEARNING_RATE * (gradient + REGULARIZATION * factors)
        for factors, gradient in ((users, of_users), (items, of_items))
    )


def _jax_steps(data, center, state):
    import jax

    from dpmf_jax.devices import spread

    state, _ = jax.lax.scan(
        lambda state, _: (_jax_step(data, center, state), None), state, length=STEPS
    )
    return spread.replicated(data.num_devices, state)


def _jax(problem: Problem, num_devices: int) -> Contender:
    import jax

    from dpmf_jax import layout

    data = layout.make(problem.ratings, num_devices=num_devices)
    center, state = layout.replicate(data, (problem.center, (problem.users, problem.items)))
    compiled, compile_ms = measure.compiled(_jax_steps, data, center, state)

    def steps():
        nonlocal state
        state = jax.block_until_ready(compiled(data, center, state))
        return state

    held = sum(leaf.nbytes for leaf in jax.tree.leaves(data))
    return Contender("jax", steps, held, compile_ms)


def _jax_private(problem: Problem, num_devices: int, *, noisy: bool = True) -> Contender:
    """As published in paper 001, with noise and Info, through the protocol."""
    import jax

    from dpmf_jax import layout, protocol
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
    from dpmf_jax.noise import laws as noise

    data = layout.make(problem.ratings, num_devices=num_devices)
    config = gaussian.Config(
        rating_range=problem.ratings.rating_range,
        rank=problem.users.shape[1],
        noise_multiplier=20.0,
        center="item",
    )
    mechanism = gaussian.mechanism(config)
    mechanism = mechanism if noisy else mechanism._replace(noise=noise.none())
    init_key, train_key = jax.random.split(jax.random.key(0))
    state = layout.replicate(data, mechanism.init(init_key, data, None))
    start = time.perf_counter()
    compiled = protocol.train.lower(mechanism, train_key, state, data, num_steps=STEPS).compile()
    seconds = time.perf_counter() - start

    def steps():
        nonlocal state
        state, info = jax.block_until_ready(compiled(mechanism, train_key, state, data))
        return None, info  # no figures to compare: its start and its noise are its own

    held = sum(leaf.nbytes for leaf in jax.tree.leaves(data))
    return Contender(f"jax {'private' if noisy else 'silent'} step", steps, held, 1e3 * seconds)


def _jax_silent(problem: Problem, num_devices: int) -> Contender:
    return _jax_private(problem, num_devices, noisy=False)


# --- measuring


class Warm(NamedTuple):
    contender: Contender
    growth: int  # bytes by which the first steps raised the peak of the process
    first: tuple[Any, Any]  # what it returned, on the host


def _warm(contender: Contender) -> Warm:
    first: tuple[Any, Any] = (None, None)

    def steps() -> None:
        nonlocal first
        first = contender.steps()

    growth = measure.growth(steps)
    users, items = first
    first = (None, None) if users is None else (np.array(users), np.array(items))
    contender.steps()
    return Warm(contender, growth, first)


def _differences(made: list[Warm]) -> float:
    """Largest difference of any contender's first steps from ours.

    Raises: FloatingPointError from 1e-4, where contenders do not compute the same.
    """
    ours, *rest = (warm.first for warm in made if warm.first[0] is not None)
    largest = max(
        (float(np.abs(a - b).max()) for other in rest for a, b in zip(ours, other, strict=True)),
        default=0.0,
    )
    if not largest < 1e-4:
        raise FloatingPointError(
            f"the contenders differ by {largest}: they do not compute the same step"
        )
    return largest
