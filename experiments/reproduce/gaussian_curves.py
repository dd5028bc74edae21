"""Learning curves of paper 001: training RMSE over steps, one curve a series (ε_i) and seed, each resumable.

All private series differ in real numbers only, so they share one compiled program; the non-private one is a second.
A run does not depend on the others, on chunking or on interruptions: its curve is that of `dpmf fit` with its seed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from accounting.gaussian import noise_multiplier_from_step
from dpmf_jax import checkpoint, datasets, gaussian, keys, layout, storage
from dpmf_jax.errors import UsageError
from dpmf_jax.fitting import Diverged
from dpmf_jax.protocol import Mechanism, State, train
from dpmf_jax.ratings import Ratings
from experiments import console
from experiments.reproduce import comparison, provenance
from experiments.reproduce.figures import Figure, Point, Request, choose_series, points

NON_PRIVATE = "non-private"
DELTA_STEP = 0.01  # δ, with which the paper writes σ for an ε_i
CHUNK_STEPS = 50  # the same for every run, so that one program serves all

# The paper's text gives rank, learning rate, C, δ and δ_r; its plots give the rest (τ = 5, centring by movie means).
SETTINGS: dict[str, Any] = {
    "rank": 20,
    "learning_rate": 5e-4,
    "regularization": 0.01,
    "clip_norm": 1.0,
    "tau": 5.0,
    "center": "item",
    "delta": 1e-5,
}


class Run(NamedTuple):
    """One curve to train: `num_steps` values of the training RMSE, before update 0, 1, 2, …"""

    series: str
    seed: int
    num_steps: int
    config: gaussian.Config

    @property
    def name(self) -> str:
        return f"{self.series}-seed-{self.seed}"

    @property
    def mechanism(self) -> Mechanism:
        return (gaussian.non_private if self.series == NON_PRIVATE else gaussian.mechanism)(self.config)


class Curve(NamedTuple):
    """What is stored of a run. loss: mean squared errors, one a step done. commits, devices: all that took part."""

    loss: tuple[float, ...]
    commits: tuple[str, ...]
    devices: tuple[str, ...]
    seconds: float

    @property
    def rmse(self) -> np.ndarray:
        return np.sqrt(np.asarray(self.loss, np.float64))


class Progress(NamedTuple):
    """Steps done and in all, over the whole sweep; which run this is, and its training RMSE (unpriced)."""

    done: int
    total: int
    run: str
    rmse: float


def figure(what: Figure, request: Request) -> dict[str, Any]:
    """Trains what is asked of figure `what` and compares it; the result is what `report.write` writes."""
    plotted = points(what.points)
    chosen = choose_series(plotted, request.series)
    ratings = datasets.load(what.data, data_dir=request.data_dir)
    assert isinstance(ratings, Ratings)
    runs = plan(plotted, chosen, request.seeds, ratings.rating_range)
    with console.progress(what.name, sum(run.num_steps for run in runs), every=20.0) as bar:
        curves = sweep(runs, ratings, request.out, num_devices=request.num_devices, report=_with_estimate(bar))
    rmse = {series: [curves[run].rmse for run in runs if run.series == series] for series in chosen}
    first = {series: next(run for run in runs if run.series == series) for series in chosen}
    return {
        "ratings": {"name": ratings.name, "count": ratings.num_ratings, "sha256": ratings.sha256()},
        "config": SETTINGS | {"delta_step": DELTA_STEP, "rating_range": list(ratings.rating_range)},
        "seeds": list(request.seeds),
        "series": {
            series: {
                "steps": run.num_steps,
                "noise_multiplier": run.config.noise_multiplier,
                "guarantee": run.mechanism.guarantee(run.num_steps).with_seed(),
            }
            for series, run in first.items()
        },
        "commits": sorted({commit for curve in curves.values() for commit in curve.commits}),
        "devices": sorted({device for curve in curves.values() for device in curve.devices}),
        "milliseconds_per_step": 1e3
        * sum(curve.seconds for curve in curves.values())
        / sum(len(curve.loss) for curve in curves.values()),
        "rows": comparison.compare(plotted, rmse),
        "curves": rmse,
    }


def _with_estimate(bar: Callable[..., None]) -> Callable[[Progress], None]:
    """Adds the minutes that the rest of the sweep will take at the pace so far."""
    pace: list[tuple[float, int]] = []

    def report(now: Progress) -> None:
        pace.append((time.monotonic(), now.done))
        (started, before), (here, done) = pace[0], pace[-1]
        left = (here - started) / (done - before) * (now.total - done) / 60 if done > before else None
        bar(now.done, run=now.run, rmse=now.rmse, left="?" if left is None else f"{left:.1f} min")

    return report


def plan(
    plotted: Sequence[Point], series: Sequence[str], seeds: Sequence[int], rating_range: tuple[float, float]
) -> list[Run]:
    """A run for every series and seed; its number of steps J is the series' last plotted step + 1."""
    last = {point.series: round(point.x) for point in plotted if point.kind == "line_end"}
    return [Run(name, seed, last[name] + 1, config(name, rating_range)) for name in series for seed in seeds]


def config(series: str, rating_range: tuple[float, float]) -> gaussian.Config:
    """The settings of one series: its name is ε_i, or non-private."""
    z = None if series == NON_PRIVATE else noise_multiplier_from_step(float(series), DELTA_STEP)
    return gaussian.Config(**SETTINGS, rating_range=rating_range, noise_multiplier=z)


def sweep(
    runs: Sequence[Run],
    ratings: Ratings,
    out: Path,
    *,
    num_devices: int | None = None,
    chunk_steps: int = CHUNK_STEPS,
    checkpoint_seconds: float = 5.0,
    report: Callable[[Progress], None] = lambda progress: None,
) -> dict[Run, Curve]:
    """Every run's curve, from `out` where it is complete, else trained from where it stopped.

    Args:
      out: folder of the figure; `out`/private gets a folder for each run, since checkpoints hold the item factors.
      chunk_steps: steps between two looks of the host; any number gives the same curves.
      checkpoint_seconds: what a kill may cost. Ctrl-C costs nothing: it passes through after the state is saved.

    Raises: UsageError where `out` has another run of the same name. Diverged where a loss is not finite.
    """
    private = storage.private_folder(out)
    files = {run: _File.open(private / run.name, run, ratings) for run in runs}
    total = sum(run.num_steps for run in runs)
    data = None
    for run, file in files.items():
        if file.curve is not None and len(file.curve.loss) == run.num_steps:
            continue
        if data is None:
            data = layout.make(ratings, num_devices=num_devices)
        others = sum(len(other.curve.loss) for other in files.values() if other is not file and other.curve is not None)

        def tell(loss: Sequence[float], run: Run = run, others: int = others) -> None:
            report(Progress(others + len(loss), total, run.name, float(np.sqrt(loss[-1]))))

        file.curve = _train(run, data, file, chunk_steps, checkpoint_seconds, tell)
    return {run: file.curve for run, file in files.items() if file.curve is not None}


@jax.jit
def _init(init: Any, key: jax.Array, data: layout.Layout) -> State:
    return init(key, data, None)


def _train(
    run: Run,
    data: layout.Layout,
    file: _File,
    chunk_steps: int,
    checkpoint_seconds: float,
    report: Callable[[Sequence[float]], None],
) -> Curve:
    mechanism = run.mechanism
    init_key, train_key = jax.random.split(keys.from_seed(run.seed))
    state, loss = file.restore(_init(mechanism.init, init_key, data))
    state = layout.replicate(data, state)
    saved = started = time.monotonic()
    try:
        while len(loss) < run.num_steps:  # whole chunks only: the last one may run past J, its surplus is dropped
            ahead, info = train(mechanism, train_key, state, data, num_steps=chunk_steps)
            new = np.asarray(info.loss, np.float64)
            if bad := np.flatnonzero(~np.isfinite(new[: run.num_steps - len(loss)])).tolist():
                raise Diverged(
                    f"diverged at step {len(loss) + bad[0]}: the loss is no longer finite",
                    where=f"series {run.series}, seed {run.seed}",
                    fix="check the ratings (dpmf data check); the paper's settings do not diverge on the paper's",
                )
            state, loss = ahead, [*loss, *new.tolist()]
            if len(loss) < run.num_steps and time.monotonic() - saved >= checkpoint_seconds:
                saved = time.monotonic()
                file.save(state, loss, saved - started)
            report(loss[: run.num_steps])
    except KeyboardInterrupt:
        file.save(state, loss, time.monotonic() - started)
        raise
    return file.finish(loss[: run.num_steps], time.monotonic() - started)


class _File:
    """A run's folder: `run.json` (what it must agree with, and the losses so far) and checkpoints while it is open."""

    def __init__(self, folder: Path, agreed: dict[str, Any], curve: Curve | None):
        self.folder, self.agreed, self.curve = folder, agreed, curve

    @classmethod
    def open(cls, folder: Path, run: Run, ratings: Ratings) -> _File:
        agreed = {
            "series": run.series,
            "seed": run.seed,
            "steps": run.num_steps,
            "config": dataclasses.asdict(run.config) | {"rating_range": list(run.config.rating_range)},
            "ratings": ratings.sha256(),
        }
        path = folder / "run.json"
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cls(folder, agreed, None)
        stored = storage.read_json(path)
        changed = [name for name, value in agreed.items() if stored.get(name) != value]
        if changed:
            raise UsageError(
                f"there is a run with another {' and another '.join(changed)} already",
                where=str(path),
                fix="give another --out, or remove this folder",
            )
        curve = Curve(tuple(stored["loss"]), tuple(stored["commits"]), tuple(stored["devices"]), stored["seconds"])
        return cls(folder, agreed, curve)

    def restore(self, fresh: State) -> tuple[State, list[float]]:
        """(state, losses up to it); the fresh state where nothing usable is stored."""
        if self.curve is not None:
            state = checkpoint.latest(self.folder, fresh)
            if state is not None and int(state.step) <= len(self.curve.loss):
                return state, list(self.curve.loss[: int(state.step)])
        self.curve = None
        return fresh, []

    def save(self, state: State, loss: Sequence[float], seconds: float) -> None:
        """Losses first: a checkpoint never gets ahead of them."""
        self._write(loss[: int(state.step)], seconds)
        checkpoint.save(self.folder, state)

    def finish(self, loss: Sequence[float], seconds: float) -> Curve:
        curve = self._write(loss, seconds)
        checkpoint.clear(self.folder)
        return curve

    def _write(self, loss: Sequence[float], seconds: float) -> Curve:
        before = self.curve or Curve((), (), (), 0.0)
        curve = Curve(
            tuple(loss),
            tuple(sorted({*before.commits, provenance.commit()})),
            tuple(sorted({*before.devices, provenance.device()})),
            before.seconds + seconds,
        )
        storage.write_json(self.folder / "run.json", self.agreed | curve._asdict(), private=True)
        return curve
