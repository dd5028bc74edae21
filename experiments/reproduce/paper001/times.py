"""Time of an iteration over the rank n, figure 16 of paper 001: the authors' device is a Tesla
P100, so informative.

One run at a time on all devices, its users spread over them, as in `dpmf fit`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.models import storage
from dpmf_jax.noise import keys
from dpmf_jax.protocol import train
from experiments.cli import console, provenance
from experiments.reproduce.comparison import row
from experiments.reproduce.paper001 import plans
from experiments.reproduce.paper001.figures import Figure, Request
from experiments.reproduce.paper001.plans import Setting
from experiments.reproduce.paper001.runs import Curve, Run
from experiments.reproduce.paper001.work import Work, described, runs_of

CHUNK_STEPS = 10


def figure(what: Figure, request: Request, ratings: Ratings) -> Work:
    """Times every setting once; what was timed on this device before is not timed again."""
    plan = plans.plan(what, request)
    timed = {setting: runs_of(what, setting, ratings.rating_range) for setting in plan.settings}

    def result(curves: Mapping[Run, Curve]) -> dict[str, Any]:
        del curves  # nothing is shared: a run beside others takes longer
        paper = (
            {(point.series, round(point.x)): point.y for point in what.plotted}
            if request.compared
            else {}
        )
        data = None
        rows, commits = [], set()
        for setting, (run,) in timed.items():
            path = (
                storage.private_folder(request.store)
                / f"{run.name}-time-{request.num_devices or 'all'}.json"
            )
            kept = _stored(path, setting, ratings)
            if kept is None:
                if data is None:
                    data = layout.make(ratings, num_devices=request.num_devices)
                kept = _measure(path, setting, run, data, ratings)
            commits.add(kept["commit"])
            rows.append(
                row(
                    setting.series,
                    "ms_per_iteration",
                    "marker",
                    float(setting.rank),
                    [kept["milliseconds"]],
                    paper=paper.get((setting.series, setting.rank)),
                    num_steps=setting.num_steps,
                    note=(
                        f"mean of {setting.num_steps} iterations, {kept['device']}; the paper's:"
                        " of 300, Tesla P100"
                    ),
                )
            )
        rows.sort(key=lambda row: (what.series.index(row.series), row.x))
        where = {"commits": sorted(commits), "devices": [provenance.device()]}
        return {"rows": rows} | described(what, plan, ratings, {}, {}) | where

    return Work((), result)


def _stored(path: Path, setting: Setting, ratings: Ratings) -> dict[str, Any] | None:
    if not path.exists():
        return None
    kept = storage.read_json(path)
    wanted = {
        "steps": setting.num_steps,
        "device": provenance.device(),
        "ratings": ratings.sha256(),
    }
    return kept if all(kept[name] == value for name, value in wanted.items()) else None


def _measure(
    path: Path, setting: Setting, run: Run, data: layout.Layout, ratings: Ratings
) -> dict[str, Any]:
    mechanism = run.mechanism
    init_key, train_key = jax.random.split(keys.from_seed(run.seed))
    state = layout.replicate(data, mechanism.init(init_key, data, None))
    state, _ = jax.block_until_ready(
        train(mechanism, train_key, state, data, num_steps=CHUNK_STEPS)
    )  # compiles
    started = time.perf_counter()
    for _ in range(setting.num_steps // CHUNK_STEPS):
        state, _ = train(mechanism, train_key, state, data, num_steps=CHUNK_STEPS)
    jax.block_until_ready(state)
    kept = {
        "milliseconds": 1e3 * (time.perf_counter() - started) / setting.num_steps,
        "steps": setting.num_steps,
        "device": provenance.device(),
        "commit": provenance.commit(),
        "ratings": ratings.sha256(),
    }
    storage.write_json(path, kept, private=True)
    console.say(
        f"rank {setting.rank}, {setting.series}: {kept['milliseconds']:.2f} ms per iteration"
    )
    return kept
