"""The runs behind paper 002's figures, what is measured of each, and the searches.

All runs on the same ratings have the same split, 80% to train on, 10% for validation, 10% for the
test. Runs of one storage, rank and γ share one compiled program, since η, λ and the threshold are
leaves of it; they are trained side by side, one on each device.

η and λ are chosen by the validation RMSE, as the paper does: what is chosen depends on the ratings,
and no price covers that. Nothing here has a guarantee anyway.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.guarantee import Guarantee
from audits.release import kl
from dpmf_jax import layout
from dpmf_jax.data import splits
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout, ordered
from dpmf_jax.mechanisms.sketch import means as preprocessing
from dpmf_jax.mechanisms.sketch import online
from dpmf_jax.mechanisms.sketch import published as sketch
from dpmf_jax.models import metrics
from dpmf_jax.noise import keys
from dpmf_jax.protocol import Factors, Info, Mechanism, State, begin, factors, train
from dpmf_jax.training import controls, sweep
from experiments.cli import provenance
from experiments.reproduce import store
from experiments.reproduce.paper import Say
from experiments.reproduce.paper002 import table
from experiments.reproduce.paper002.table import Line, Storage, place

BOOTSTRAP_SEED, BOOTSTRAP_DRAWS = 0, 400
DIVERGENCES = ("kl", "kl_same", "kl_top", "kl_same_top")


class Run(NamedTuple):
    """One training. threshold: ε, None where everything is learnt from. epochs: T."""

    storage: Storage
    rank: int
    gain: float
    learning_rate: float
    regularization: float
    threshold: float | None
    epochs: int
    seed: int


class Measured(NamedTuple):
    """values: by axis; inf where the run left the finite numbers. The axes are
      rmse: on the test, rmse_valid: on the validation set, both less the rows of rare users and
        items, predictions as they are (18);
      rmse_top: on the test rows of top users;
      rmse_train: on the ratings trained on;
      skipped: share of ratings in the last epoch;
      kl: (19) with the paper's filter, on the test side alone;
      kl_same: (19) with one filter for both sides; _top: of top users.
    intervals: of the divergences, 95%, whole users drawn.
    seconds: that a run took beside the others of its program, a mean over those that had ended.
    """

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    seconds: float
    commit: str
    device: str


class Data:
    """Ratings in three parts, the first of them laid out, and which rows are compared."""

    def __init__(self, ratings: Ratings, *, num_devices: int = 1):
        self.ratings, self.num_devices = ratings, num_devices
        self.digest = ratings.sha256()
        rest, self.test = splits.random(ratings, fraction=table.TEST, seed=table.SPLIT_SEED)
        self.train, valid = splits.random(
            rest, fraction=table.VALIDATION / (1 - table.TEST), seed=table.SPLIT_SEED + 1
        )
        common = ~splits.rare(valid, self.train, table.RARE)
        self.valid = valid.take(
            common, f"less the rows of users or items with fewer than {table.RARE} training ratings"
        )
        self._schedules: dict[int, ordered.Schedule] = {}

    @functools.cached_property
    def layout(self) -> Layout:
        return layout.make(self.train, num_devices=1)

    @functools.cached_property
    def rows(self) -> dict[str, kl.Rows]:
        """By divergence, the rows that it compares."""
        number = max(1, round(table.TOP_SHARE * self.train.num_users))
        top = kl.of_users(self.train, self.test, kl.top_users(self.train, number))
        sides = {"kl": kl.paper_rows, "kl_same": kl.same_rows}
        whole = {name: rows(self.train, self.test, table.RARE) for name, rows in sides.items()}
        return whole | {
            f"{name}_top": kl.Rows(*map(np.logical_and, rows, top)) for name, rows in whole.items()
        }

    def schedule(self, seed: int) -> ordered.Schedule:
        """One rating after the other, in an order that the seed draws and every epoch has."""
        if seed not in self._schedules:
            order = np.random.default_rng(seed).permutation(len(self.train))
            self._schedules[seed] = ordered.schedule(self.train, order, size=1)
        return self._schedules[seed]


def config(run: Run) -> online.Config:
    """The paper's settings; on b, on the start and on the order of ratings it is silent."""
    return online.Config(
        rank=run.rank,
        learning_rate=run.learning_rate,
        decay=table.DECAY,
        num_epochs=run.epochs,
        regularization=run.regularization,
        threshold=run.threshold,
        depth=table.DEPTH[run.storage],
        gain=run.gain,
    )


def mechanism(run: Run, data: Data) -> Mechanism:
    """As published. regular: vectors as they are; hashed, sketched: a sketch of depth 1, 4."""
    factory = online.regular if run.storage == "regular" else sketch.mechanism
    return factory(config(run), data.schedule(run.seed))


def guarantee(run: Run, data: Data) -> Guarantee:
    """None, in words."""
    return mechanism(run, data).guarantee(run.epochs).with_seed()


def in_words(run: Run) -> str:
    """A run in a line."""
    ending = "" if run.threshold is None else f", threshold {run.threshold:g}"
    line = Line(run.storage, run.rank, run.gain).label
    return (
        f"{line}, η = {run.learning_rate:g}, λ = {run.regularization:g}{ending}, {run.epochs}"
        " epochs"
    )


def look(model: Factors, data: Data) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """(values, intervals) of a model, as in `Measured` but for the skipped share."""
    trained, held_out, valid = (
        _errors(model, part) for part in (data.train, data.test, data.valid)
    )
    here, top = data.rows["kl"].test, data.rows["kl_top"].test
    sides = {
        "rmse": held_out[here],
        "rmse_valid": valid,
        "rmse_train": trained,
        "rmse_top": held_out[top],
    }
    values = {name: _root_mean_square(errors) for name, errors in sides.items()}
    intervals = {}
    for name, rows in data.rows.items():
        one = _divergence(trained[rows.train], held_out[rows.test], data, rows)
        values[name], intervals[name] = one.value, (one.lower, one.upper)
    return values, intervals


def _errors(model: Factors, ratings: Ratings) -> np.ndarray:
    with np.errstate(all="ignore"):
        predicted = metrics.predict(model, ratings.user, ratings.item)
        return predicted.astype(np.float64) - ratings.value


def _root_mean_square(errors: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        value = float(np.sqrt(np.mean(errors**2))) if len(errors) else math.inf
    return value if math.isfinite(value) else math.inf


def _divergence(
    trained: np.ndarray, held_out: np.ndarray, data: Data, rows: kl.Rows
) -> kl.Interval:
    enough = min(len(trained), len(held_out)) >= 2
    if not (enough and np.isfinite(trained).all() and np.isfinite(held_out).all()):
        return kl.Interval(value=math.inf, lower=math.inf, upper=math.inf, confidence=0.95)
    owners = {"train_users": data.train.user[rows.train], "test_users": data.test.user[rows.test]}
    return kl.bootstrap(trained, held_out, seed=BOOTSTRAP_SEED, draws=BOOTSTRAP_DRAWS, **owners)


def means_alone(data: Data) -> Factors:
    """Global, user and item means and no factors: what every run starts from."""
    levels = jax.jit(preprocessing.means)(data.layout)
    nothing = [jnp.zeros((number, 0)) for number in (data.train.num_users, data.train.num_items)]
    model = Factors(levels.with_users(nothing[0]), levels.with_items(nothing[1]), levels.center)
    return Factors(*(np.asarray(part) for part in model))


CONTROLS: dict[str, Callable[[Data], Factors]] = {
    "means alone": means_alone,
    "global mean": lambda data: controls.global_mean(data.train),
}


def measure(
    runs: Sequence[Run], data: Data, folder: Path, say: Say = lambda text: None
) -> dict[Run, Measured]:
    """What is measured of all runs, from `folder` where it is kept, else trained."""

    def read(run: Run) -> Measured | None:
        kept = store.read(folder, f"sketch-{run.storage}", _settings(run, data))
        return None if kept is None else _from_json(kept)

    def keep(run: Run, measured: Measured) -> None:
        store.write(folder, f"sketch-{run.storage}", _settings(run, data), measured._asdict())
        say(
            f"{data.ratings.name}: {in_words(run)}, seed {run.seed}: validation RMSE "
            f"{measured.values['rmse_valid']:.4f}, {measured.seconds:.1f} s"
        )

    return store.collect(runs, read, lambda missing: _trained(missing, data), keep)


def _settings(run: Run, data: Data) -> dict[str, Any]:
    """What a stored run is of."""
    made_of = dataclasses.asdict(config(run))
    return {"run": run._asdict(), "config": made_of, "ratings": data.digest}


def _from_json(kept: Mapping[str, Any]) -> Measured:
    values = {name: float(value) for name, value in kept["values"].items()}
    intervals = {name: (float(low), float(high)) for name, (low, high) in kept["intervals"].items()}
    return Measured(values, intervals, kept["seconds"], kept["commit"], kept["device"])


def _trained(runs: Sequence[Run], data: Data) -> Iterator[tuple[Run, Measured]]:
    """Side by side, those of one program together; in the order in which they end."""
    groups: dict[Line, list[Run]] = {}
    for run in runs:
        groups.setdefault(Line(run.storage, run.rank, run.gain), []).append(run)
    for group in groups.values():
        jobs = []
        for run in group:
            trained = mechanism(run, data)
            init_key, train_key = jax.random.split(keys.from_seed(run.seed))
            start = begin(trained, init_key, data.layout)
            jobs.append(sweep.Job(trained, train_key, start, run.epochs))
        since, measuring = time.monotonic(), 0.0
        for done, (number, state, info) in enumerate(_ended(jobs, data), 1):
            rounds = -(-done // data.num_devices)  # of runs side by side
            seconds = (time.monotonic() - since - measuring) / rounds
            now = time.monotonic()
            whole = factors(jax.tree.map(jnp.asarray, state))
            model = Factors(*(None if part is None else np.asarray(part) for part in whole))
            values, intervals = look(model, data)
            values["skipped"] = float(info.clipped_fraction[-1])
            yield (
                group[number],
                Measured(values, intervals, seconds, provenance.commit(), provenance.device()),
            )
            measuring += time.monotonic() - now


def _ended(jobs: Sequence[sweep.Job], data: Data) -> Iterator[tuple[int, State, Info]]:
    """(number of the job, state, info of all epochs) of each, when it has come to its end."""
    if data.num_devices == 1:
        for number, job in enumerate(jobs):
            state, info = train(job.mechanism, job.key, job.state, data.layout, job.num_steps)
            yield number, jax.block_until_ready(state), info
        return
    longest = max(job.num_steps for job in jobs)  # a look takes a run to its end
    yield from sweep.run(jobs, data.layout, chunk_steps=longest, num_devices=data.num_devices)


class Search(NamedTuple):
    """The η and λ that were taken, and the validation RMSE of all that were tried, by (η, λ)."""

    learning_rate: float
    regularization: float
    tried: dict[tuple[float, float], float]


def search(
    lines: Sequence[Line], data: Data, folder: Path, epochs: int, seed: int, say: Say
) -> dict[Line, Search]:
    """Of every line the η and λ with the lowest validation RMSE, without a threshold.

    Two stages of line searches on a logarithmic grid: first η, then λ, in large steps; then η and λ
    one place of the grid, a factor of 1.78, up and down from the best so far.
    """
    tried: dict[Line, dict[tuple[int, int], float]] = {line: {} for line in lines}

    def best(line: Line) -> tuple[int, int]:
        return min(tried[line], key=lambda at: (tried[line][at], at))

    def step(places: Callable[[Line], Sequence[tuple[int, int]]]) -> None:
        asked = {
            line: {at: _searched(line, at, epochs, seed) for at in places(line)} for line in lines
        }
        every = [run for runs in asked.values() for run in runs.values()]
        measured = measure(every, data, folder, say)
        for line, runs in asked.items():
            tried[line] |= {at: measured[run].values["rmse_valid"] for at, run in runs.items()}

    step(lambda line: [(q, table.STRENGTH_START) for q in table.RATES])
    step(lambda line: [(best(line)[0], h) for h in table.STRENGTHS])
    step(lambda line: [(best(line)[0] + q, best(line)[1]) for q in (-1, 1)])
    step(lambda line: [(best(line)[0], best(line)[1] + h) for h in (-1, 1)])
    return {line: _taken(best(line), tried[line]) for line in lines}


def _searched(line: Line, at: tuple[int, int], epochs: int, seed: int) -> Run:
    return Run(*line, *map(place, at), None, epochs, seed)


def _taken(best: tuple[int, int], tried: Mapping[tuple[int, int], float]) -> Search:
    named = {(place(q), place(h)): value for (q, h), value in tried.items()}
    return Search(place(best[0]), place(best[1]), named)
