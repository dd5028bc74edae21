"""`004/error`: ‖V* − V‖max over users, items and q, against theorem 2 and corollary 2.

It generates its ratings. Nothing of it is stored: it takes seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpmf_jax import layout
from dpmf_jax.data import synthetic
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.noise import keys
from dpmf_jax.protocol import begin, train
from experiments.reproduce.comparison import mean
from experiments.reproduce.page import Outcome
from experiments.reproduce.paper import Bench
from experiments.reproduce.paper004.runs import Run, promise
from experiments.reproduce.paper004.table import RANK, REGULARIZATION

ERROR = {"users": 8_000, "items": 400, "q": 40}  # where one is varied, the others
ERROR_OVER = {
    "users": (1_000, 4_000, 16_000, 64_000),
    "items": (100, 400, 1_600),
    "q": (10, 20, 40, 80, 160),
}
ERROR_RATINGS = 20  # of a user
ERROR_ROUNDS, ERROR_EPSILON, ERROR_RATE = 10, 10.0, 0.01


def errors(bench: Bench) -> Outcome:
    """The largest entry of V* - V after the same rounds from the same start, mean over seeds; at a
    small γ, so that V hardly moves and both runs' gradients are taken near the same V, as the proof
    takes them.
    """
    outcome = Outcome([], [], [], {"searches": {}})
    for over, values in ERROR_OVER.items():
        for algorithm in ("GD", "GD-DR") if over != "q" else ("GD-DR",):
            name = f"{algorithm}, over {over}"
            for value in values:
                sizes = ERROR | {over: value}
                differences = [_error(sizes, algorithm == "GD-DR", seed) for seed in bench.seeds]
                steps = {"step": ERROR_ROUNDS, "num_steps": ERROR_ROUNDS}
                outcome.row(name, "error", "end", float(value), differences, **steps)
                bench.say(f"004/error: {name} = {value}: {mean(differences):.4g}")
            config = _error_config(ERROR | {over: values[0]}, algorithm == "GD-DR")
            run = Run("gd" if algorithm == "GD" else "gd-dr", config, 0, (ERROR_ROUNDS,))
            headline, settings = promise(run, ERROR["items"]), dataclasses.asdict(config)
            outcome.setting(name, None, algorithm, headline, bench.seeds, config=settings)
    return outcome


def _error_config(sizes: Mapping[str, int], with_phi: bool) -> local.Config:
    return local.Config(
        epsilon=ERROR_EPSILON,
        num_rounds=ERROR_ROUNDS,
        rank=RANK,
        learning_rate=ERROR_RATE,
        regularization=REGULARIZATION,
        center=3.0,
        num_projected=sizes["q"] if with_phi else None,
    )


def _error(sizes: Mapping[str, int], with_phi: bool, seed: int) -> float:
    users, items = sizes["users"], sizes["items"]
    ratings = synthetic.generate(
        num_users=users, num_items=items, num_ratings=ERROR_RATINGS * users, seed=seed
    )
    data = layout.make(ratings, num_devices=1)
    config = _error_config(sizes, with_phi)
    start, run_key = jax.random.split(keys.from_seed(seed))
    ends = []
    for one in ((local.gd_dr if with_phi else local.gd)(config), local.non_private(config)):
        state, _ = train(one, run_key, begin(one, start, data), data, num_steps=ERROR_ROUNDS)
        ends.append(np.asarray(state.public.item_factors, np.float64))
    return float(np.abs(ends[0] - ends[1]).max())


def slope(rows: Sequence[Mapping[str, Any]], series: str) -> float:
    """Of log error over log x, least squares: the measured exponent."""
    here = [row for row in rows if row["series"] == series]
    x, y = (np.log([float(row[name]) for row in here]) for name in ("x", "value"))
    return float(np.polyfit(x, y, 1)[0])
