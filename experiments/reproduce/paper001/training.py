"""Training of runs: once each, kept under `private/`, and resumed after any kind of end.

All training goes through `dpmf_jax.training.sweep.run`, so runs of one shape share one compiled
program and are spread over the devices. A run does not depend on the others, on chunking or on
interruptions: its curve is that of `dpmf fit` with its seed on one device. Runs on a part of the
ratings are measured on the rest as they go.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import UsageError
from dpmf_jax.models import storage
from dpmf_jax.noise import keys
from dpmf_jax.protocol import Factors, State, begin, factors
from dpmf_jax.training import checkpoint, sweep
from dpmf_jax.training.fit import Diverged
from experiments.cli import provenance
from experiments.reproduce.paper001 import plans
from experiments.reproduce.paper001.runs import TEST_STEPS, Curve, Run, split_part

# Steps between two looks of the host; the same for every run, so that one program serves all.
CHUNK_STEPS = 50
ACCELERATOR_CHUNK_STEPS = 1_000  # a look costs as much as hundreds of steps there


class Progress(NamedTuple):
    """Steps done and in all, over the whole sweep.

    run: that was looked at. rmse: its training RMSE (unpriced).
    minutes_left: at the pace so far, by what a step of each rank costs; None before there is a
      pace.
    """

    done: int
    total: int
    run: str
    rmse: float
    minutes_left: float | None


def train_all(
    runs: Iterable[Run],
    ratings: Ratings,
    store: Path,
    *,
    num_devices: int | None = None,
    chunk_steps: int = CHUNK_STEPS,
    checkpoint_seconds: float = 5.0,
    report: Callable[[Progress], None] = lambda progress: None,
) -> dict[Run, Curve]:
    """Every run's curve, from `store` where it is complete, else trained from where it stopped.

    Args:
      store: a folder that the caller has locked. `store`/private gets a folder for each run, since
        its last state holds the item factors. It is kept, so that who needs more steps goes on from
        there.
      chunk_steps: steps between two looks of the host; any number gives the same curves. Where
        something is held out, the largest divisor of it that meets every measurement.
      checkpoint_seconds: what a kill may cost. Ctrl-C costs nothing: it passes through after the
        states are saved.

    Raises: UsageError where the folder of a run has other ratings or settings. Diverged where a
      loss is not finite.
    """
    runs = tuple(runs)
    private, digest = storage.private_folder(store), ratings.sha256()
    trainings: dict[str, _Training] = {}
    for run in runs:
        if run.name not in trainings:
            trainings[run.name] = _Training.open(private / run.name, run, digest)
        trainings[run.name].asked.append(run)
    everything = _Sweep(tuple(trainings.values()), report)
    shapes = sorted({(one.run.part, one.run.config.rank) for one in trainings.values()})
    parts: dict[str, tuple[layout.Layout, Ratings | None]] = {}
    for part, rank in shapes:  # so that the states of other ranks need no memory
        alike = [
            one for one in trainings.values() if (one.run.part, one.run.config.rank) == (part, rank)
        ]
        while waiting := [training for training in alike if training.wants is not None]:
            if part not in parts:
                kept, test = split_part(part, ratings)
                parts = {part: (layout.make(kept, num_devices=1), test)}
            data, test = parts[part]
            before = [training.progress for training in waiting]
            _train(waiting, data, test, everything, num_devices, chunk_steps, checkpoint_seconds)
            if before == [training.progress for training in waiting]:
                raise RuntimeError(
                    f"no progress in {waiting[0].run.name}: what is asked for would never be there"
                )
    return {run: trainings[run.name].curve(run) for run in runs}


def _train(
    waiting: Sequence[_Training],
    data: layout.Layout,
    test: Ratings | None,
    everything: _Sweep,
    num_devices: int | None,
    chunk_steps: int,
    checkpoint_seconds: float,
) -> None:
    """Takes every run to the next number of steps that it wants, and stores what is reached."""
    jobs = []
    for training in waiting:
        earlier, mechanism = training.run.phases
        init_key, train_key = jax.random.split(keys.from_seed(training.run.seed))
        training.restore(jax.device_get(begin(mechanism, init_key, data, earlier)))
        training.measure(test)
        jobs.append(
            sweep.Job(mechanism, train_key, training.state, training.wants or len(training.loss))
        )
    finished: set[int] = set()
    if test is not None:
        chunk_steps = math.gcd(chunk_steps, TEST_STEPS)
    try:
        for position, training in enumerate(waiting):
            if len(training.loss) >= jobs[position].num_steps:
                training.finish()
        everything.looked = time.monotonic()
        chunks = sweep.run(
            jobs, data, chunk_steps=chunk_steps, num_devices=num_devices, finished=finished
        )
        for chunk in chunks:
            training = waiting[chunk.job]
            everything.count(training, training.take(chunk))
            training.measure(test)
            if training.is_enough or len(training.loss) >= jobs[chunk.job].num_steps:
                finished.add(chunk.job)
                training.finish()
            elif time.monotonic() - training.saved >= checkpoint_seconds:
                training.save()
            everything.tell(training)
    except BaseException:
        for training in waiting:
            training.save()
        raise


def _rmse(state: State, test: Ratings) -> float:
    """`metrics.rmse` with predictions made on the device: fast enough for every few steps."""
    whole = factors(jax.tree.map(jnp.asarray, state))
    predicted = np.asarray(_predict(whole, test.user, test.item), np.float64)
    return float(np.sqrt(np.mean((np.clip(predicted, *test.rating_range) - test.value) ** 2)))


@jax.jit
def _predict(whole: Factors, user: jax.Array, item: jax.Array) -> jax.Array:
    assert whole.user_factors is not None
    assert whole.item_factors is not None
    center = jnp.broadcast_to(jnp.asarray(whole.center), whole.item_factors.shape[:1])
    return jnp.sum(whole.user_factors[user] * whole.item_factors[item], axis=1) + center[item]


class _Training:
    """A run's folder: `run.json`, which has its settings and losses, and its state."""

    def __init__(self, folder: Path, run: Run, agreed: dict[str, Any], stored: Mapping[str, Any]):
        self.folder, self.run, self.agreed, self.asked = folder, run, agreed, list[Run]()
        self.loss: list[float] = list(stored.get("loss", ()))
        self.commits, self.devices = (set(stored.get(name, ())) for name in ("commits", "devices"))
        self.seconds: float = stored.get("seconds", 0.0)
        self.test = {int(steps): rmse for steps, rmse in stored.get("test_rmse", {}).items()}
        self.state: State = State(None, None, jnp.int32(0))  # see restore
        self.written = len(self.loss)
        self.saved = time.monotonic()
        self._enough = (-1, False)

    @classmethod
    def open(cls, folder: Path, run: Run, ratings: str) -> _Training:
        agreed = run.agreed | {"ratings": ratings}
        path = folder / "run.json"
        if not path.exists():
            return cls(folder, run, agreed, {})
        stored = storage.read_json(path)
        changed = [name for name, value in agreed.items() if stored.get(name) != value]
        if changed:
            raise UsageError(
                f"there is a run with another {' and another '.join(changed)} already",
                where=str(path),
                fix="give another --out, or remove this folder",
            )
        return cls(folder, run, agreed, stored)

    @property
    def progress(self) -> tuple[int, int]:
        """How many losses and test errors are there."""
        return len(self.loss), len(self.test)

    @property
    def wants(self) -> int | None:
        """The number of steps to go to next; None where all that is asked for is there."""
        left = self._left
        if not left:
            return None
        if self.run.part == "all":
            return max(left)
        first = self._first
        end, here = (
            min(steps for steps in left if steps >= first),
            len(self.loss) if len(self.loss) <= first else 0,
        )
        return (
            min(end, here + TEST_STEPS - here % TEST_STEPS) if here % TEST_STEPS else end
        )  # onto the grid first

    @property
    def _left(self) -> list[int]:
        return [run.num_steps for run in self.asked if self._num_losses(run) is None]

    @property
    def _untested(self) -> set[int]:
        return {steps for run in self.asked for steps in run.tests}.difference(self.test)

    @property
    def _first(self) -> int:
        """The first number of steps that is missing; the state to go on from is not past it."""
        return min([*self._left, *self._untested], default=0)

    @property
    def is_enough(self) -> bool:
        if self._enough[0] != len(
            self.loss
        ):  # a rule reads all of the losses: once for each length
            self._enough = (len(self.loss), self.wants is None)
        return self._enough[1]

    def _num_losses(self, run: Run) -> int | None:
        """How many losses answer the run; None where something is missing."""
        count = run.enough(self.loss)
        return count if all(steps in self.test for steps in run.tests) else None

    def curve(self, run: Run) -> Curve:
        count = self._num_losses(run)
        return Curve(
            tuple(self.loss[:count]),
            tuple(sorted(self.commits)),
            tuple(sorted(self.devices)),
            self.seconds * (count or 0) / max(len(self.loss), 1),
            MappingProxyType({steps: self.test[steps] for steps in run.tests}),
        )

    def restore(self, fresh: State) -> None:
        """Takes the newest stored state that is not past what is wanted, else `fresh`."""
        state = checkpoint.latest(self.folder, fresh)
        if state is None or int(state.step) > min(len(self.loss), self._first):
            state = fresh
        self.state = jax.device_get(state)
        self.seconds *= int(state.step) / max(len(self.loss), 1)
        self.loss = self.loss[: int(state.step)]
        self._enough = (-1, False)
        self.written = len(self.loss)

    def take(self, chunk: sweep.Chunk) -> int:
        """Adds what a chunk brought; returns the number of its steps. Raises: Diverged."""
        new = np.asarray(chunk.info.loss, np.float64)
        if bad := np.flatnonzero(~np.isfinite(new)).tolist():
            raise Diverged(
                f"diverged at step {len(self.loss) + bad[0]}: the loss is no longer finite",
                where=self.run.name,
                fix=(
                    "check the ratings (dpmf data check); the paper's settings do not diverge on"
                    " the paper's"
                ),
            )
        self.loss += new.tolist()
        self.state = chunk.state
        return len(new)

    def measure(self, test: Ratings | None) -> None:
        """The error on what is held out, where one is asked for after so many steps."""
        if test is not None and len(self.loss) in self._untested:
            self.test[len(self.loss)] = _rmse(self.state, test)
            self._enough = (-1, False)

    def finish(self) -> None:
        """Keeps the losses, then the last state alone."""
        self._enough = (-1, False)
        self._write()
        checkpoint.clear(self.folder)
        checkpoint.save(self.folder, self.state)

    def save(self) -> None:
        """Losses first: a checkpoint never gets ahead of them. Nothing to save, nothing done."""
        if len(self.loss) > self.written:
            self._write()
            checkpoint.save(self.folder, self.state)

    def _write(self) -> None:
        self.commits.add(provenance.commit())
        self.devices.add(provenance.device())
        content = self.agreed | {
            "loss": self.loss,
            "commits": sorted(self.commits),
            "devices": sorted(self.devices),
            "seconds": self.seconds,
            "test_rmse": {str(steps): rmse for steps, rmse in sorted(self.test.items())},
        }
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        storage.write_json(self.folder / "run.json", content, private=True)
        self.written, self.saved = len(self.loss), time.monotonic()


class _Sweep:
    """Where all trainings stand, and how long the rest takes."""

    def __init__(self, trainings: Sequence[_Training], report: Callable[[Progress], None]):
        self.trainings, self.report = trainings, report
        self.started = self.looked = time.monotonic()
        self.worked = 0.0
        self.walls: dict[tuple[str, str, int], tuple[float, int]] = {}

    def count(self, training: _Training, steps: int) -> None:
        """Shares wall time by steps among runs of one shape, which are trained side by side."""
        run = training.run
        shape, now = (run.variant, run.part, run.config.rank), time.monotonic()
        seconds, done = self.walls.get(shape, (0.0, 0))
        seconds, done = seconds + now - self.looked, done + steps
        self.walls[shape], self.looked = (seconds, done), now
        training.seconds += steps * seconds / done if done else 0.0
        self.worked += steps * plans.cost(run.config.rank)

    def tell(self, training: _Training) -> None:
        done = sum(len(other.loss) for other in self.trainings)
        left = {id(other): _expected(other) - len(other.loss) for other in self.trainings}
        work = sum(left[id(other)] * plans.cost(other.run.config.rank) for other in self.trainings)
        pace = self.worked / (time.monotonic() - self.started)
        rmse = float(np.sqrt(training.loss[-1]))
        minutes = work / pace / 60 if pace > 0 else None
        self.report(Progress(done, done + sum(left.values()), training.run.name, rmse, minutes))


def _expected(training: _Training) -> int:
    """Steps in all, as far as can be told."""
    have = len(training.loss)
    if training.is_enough:
        return have
    asked = (
        run.num_steps if run.rule is None else min(run.num_steps, plans.EXPECTED[run.rule])
        for run in training.asked
    )
    return max(have, *asked)
