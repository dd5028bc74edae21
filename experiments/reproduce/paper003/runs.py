"""The runs behind paper 003's figures, and their errors at every checkpoint.

Two kinds. One release (S1, and what is sound beside it) is one step: the ratings are looked at once
for every seed, and each ε and number of passes is an answer of its own to the same statistics.
Iterations (the baseline, S2, S3) run side by side, one on each device, and are measured as they
pass a checkpoint.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from accounting.guarantee import Guarantee
from dpmf_jax import layout
from dpmf_jax.data import splits
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.federated import published as federated
from dpmf_jax.mechanisms.objective import mechanisms as objective
from dpmf_jax.models import metrics, storage
from dpmf_jax.noise import keys
from dpmf_jax.protocol import Factors, Mechanism, State, begin, factors
from dpmf_jax.training import sweep
from experiments.cli import provenance
from experiments.fit import mechanisms as fit_mechanisms
from experiments.reproduce import store
from experiments.reproduce.catalogue import HELD_OUT, SPLIT_SEED
from experiments.reproduce.paper import Say
from experiments.reproduce.paper003 import table

Scenario = Literal[
    "baseline",
    "S1",
    "S1-exact",
    "S2",
    "S2-exact",
    "S3",
    "S3-exact",
    "users-alone",
    "public-users",
    "statistics",
    "per-user",
    "user-statistics",
]
Part = Literal["all", "held-out"]
ON_FITTED_USERS = ("S1", "S1-exact")
ONE_RELEASE = (*ON_FITTED_USERS, "public-users", "statistics", "user-statistics")
AXES = ("train", "test", "test_clipped")


class Run(NamedTuple):
    """One training.

    epsilon: as the mechanism's Config takes it, 0 where it takes none.
    part: of the ratings that it is trained on.
    at: iterations after which it is measured; the last ends it.
    join, leave: S3's probabilities; None for the paper's.
    """

    scenario: Scenario
    epsilon: float
    seed: int
    part: Part
    at: tuple[int, ...]
    join: float | None = None
    leave: float | None = None


class Errors(NamedTuple):
    """Of |prediction - rating|; of what is not finite, inf and a CDF of 0.

    cdf: at `THRESHOLDS`.
    """

    mean: float
    rmse: float
    cdf: tuple[float, ...]


class Measured(NamedTuple):
    """errors: by axis, then by iterations done. Axes are `AXES`: on the ratings trained on, on
    held-out ones, and on those with predictions clipped to the declared range; the last two of runs
    on the held-out part alone.
    """

    errors: dict[str, dict[int, Errors]]
    seconds: float
    commit: str
    device: str


class Data:
    """Ratings, laid out on one device: `all`, or 80% of the pairs with the rest `held-out`."""

    def __init__(self, ratings: Ratings, *, num_devices: int = 1):
        self.ratings, self.num_devices = ratings, num_devices
        self.digest = ratings.sha256()
        self._layouts: dict[str, Layout] = {}

    @functools.cached_property
    def split(self) -> tuple[Ratings, Ratings]:
        return splits.by_pair(self.ratings, fraction=HELD_OUT, seed=SPLIT_SEED)

    def parts(self, part: Part) -> tuple[Ratings, Ratings | None]:
        """(trained on, held out or None)."""
        return (self.ratings, None) if part == "all" else self.split

    def layout(self, part: Part) -> Layout:
        if part not in self._layouts:
            self._layouts[part] = layout.make(self.parts(part)[0], num_devices=1)
        return self._layouts[part]


def config(run: Run, data: Data) -> dict[str, Any]:
    """What a run is made of, as JSON can hold it."""
    if run.scenario in SOUND:
        return _sound(run, data)[1]
    return dataclasses.asdict(published(run, data))


def published(run: Run, data: Data) -> objective.Config | federated.Config:
    """The paper's settings; center 0.

    M is the number of ratings trained on, which the paper's relation takes as public.
    """
    shared: dict[str, Any] = {
        "epsilon": run.epsilon or 1.0,  # where there is none, it is not read
        "rating_range": data.ratings.rating_range,
        "rank": table.RANK,
        "regularization": table.REGULARIZATION,
        "user_regularization": table.REGULARIZATION,
        "learning_rate": table.LEARNING_RATE,
    }
    if run.scenario in ("baseline", *ON_FITTED_USERS):
        passes = run.at[-1] if run.scenario == "S1" else None
        count = data.parts(run.part)[0].num_ratings
        return objective.Config(
            **shared, prior_count=count, num_passes=table.SHORT[-1], num_iterations=passes
        )
    if not run.scenario.startswith("S3"):
        return federated.Config(**shared)
    join, leave = (
        table.JOIN if run.join is None else run.join,
        table.LEAVE if run.leave is None else run.leave,
    )
    at_most = table.AT_MOST.get(data.ratings.name, LEAST_CROWD)
    return federated.Config(
        **shared, population=federated.Population(join=join, leave=leave, at_most=at_most)
    )


LEAST_CROWD = 5  # takes part in an iteration of S3 on ratings that are neither of the paper's two
SOUND = {
    "public-users": "objective-public-users",
    "statistics": "objective-statistics",
    "per-user": "federated-user",
    "user-statistics": "federated-statistics",
}


def _sound(run: Run, data: Data) -> tuple[Mechanism, dict[str, Any]]:
    """What `dpmf fit` makes of the mechanism and ε alone: no setting was searched."""
    steps = run.at[-1] if run.scenario == "per-user" else None
    name = SOUND[run.scenario]
    flags = fit_mechanisms.flags(name, epsilon=run.epsilon)
    asked = {"delta": table.DELTA, "steps": steps}
    known = {field.name for field in dataclasses.fields(flags)}
    flags = dataclasses.replace(
        flags, **{one: value for one, value in asked.items() if one in known}
    )
    ((sound, _),), settings = fit_mechanisms.phases_and_settings(
        name, flags, data.parts(run.part)[0]
    )
    return sound, settings


_FACTORIES: dict[str, Callable[..., Mechanism]] = {
    "baseline": objective.non_private,
    "S1": objective.mechanism,
    "S1-exact": objective.mechanism,
    "S2": federated.mechanism,
    "S3": federated.mechanism,
    "S2-exact": federated.non_private,
    "S3-exact": federated.non_private,
    "users-alone": federated.non_private,
}


def _users_alone(update: Any, state: State, response: Any, data: Layout) -> State:
    return update(state, response, data)._replace(public=state.public)


def mechanism(run: Run, data: Data) -> Mechanism:
    """What trains, with the paper's names: S1, S2, S3 as published; S1-exact: V the exact minimiser
    of (6), whose regularisation is Mμ; S2-exact, S3-exact: their descent without noise;
    users-alone: V stays at its public random start, and users descend on their own ratings, as in
    S2: ε = 0.
    """
    if run.scenario in SOUND:
        return _sound(run, data)[0]
    whole = _FACTORIES[run.scenario](published(run, data))
    if run.scenario != "users-alone":
        return whole
    return whole._replace(update=Partial(_users_alone, whole.update))


def guarantee(run: Run, data: Data) -> Guarantee:
    """Of the whole run."""
    return (
        mechanism(run, data).guarantee(1 if run.scenario in ONE_RELEASE else run.at[-1]).with_seed()
    )


def errors(model: Factors, ratings: Ratings, *, clip: bool = False) -> Errors:
    with np.errstate(all="ignore"):
        predicted = metrics.predict(
            model, ratings.user, ratings.item, rating_range=ratings.rating_range if clip else None
        )
        off = np.abs(predicted.astype(np.float64) - ratings.value)
        mean, rmse = float(off.mean()), float(np.sqrt(np.mean(off**2)))
    cdf = tuple(float(np.mean(off <= threshold)) for threshold in table.THRESHOLDS)
    return Errors(*(value if math.isfinite(value) else math.inf for value in (mean, rmse)), cdf)


def measure(
    runs: Sequence[Run], data: Data, folder: Path, say: Say = lambda text: None
) -> dict[Run, Measured]:
    """The errors of all runs, from `folder` where they are kept, else trained."""

    def read(run: Run) -> Measured | None:
        kept = store.read(folder, f"objective-{run.scenario}", _settings(run, data))
        return None if kept is None else _from_json(kept)

    def train(missing: list[Run]) -> Iterator[tuple[Run, Measured]]:
        released = [run for run in missing if run.scenario in ONE_RELEASE]
        fits = {_fit(run) for run in released if run.scenario in ON_FITTED_USERS}
        fits = {fit for fit in fits if not _users_path(fit, data, folder).exists()}
        iterated = dict.fromkeys(
            run for run in (*missing, *sorted(fits)) if run.scenario not in ONE_RELEASE
        )
        yield from _iterated(tuple(iterated), data, folder)
        yield from _released(released, data, folder)

    def keep(run: Run, measured: Measured) -> None:
        store.write(folder, f"objective-{run.scenario}", _settings(run, data), measured._asdict())
        last = measured.errors["train"][run.at[-1]]
        say(
            f"{data.ratings.name}: {in_words(run)}: mean training error {last.mean:.4f},"
            f" {measured.seconds:.1f} s"
        )

    return store.collect(runs, read, train, keep)


def in_words(run: Run) -> str:
    """A run in a line."""
    more = (
        ""
        if run.join is None and run.leave is None
        else f", joining {run.join:g}, leaving {run.leave:g}"
    )
    price = f", ε = {run.epsilon:g}" if run.epsilon else ""
    return (
        f"{run.scenario}{price}{more}, {run.at[-1]} iterations, {run.part} ratings, seed {run.seed}"
    )


def _settings(run: Run, data: Data) -> dict[str, Any]:
    """What a stored run is of."""
    return {"run": run._asdict(), "config": config(run, data), "ratings": data.digest}


def _from_json(kept: Mapping[str, Any]) -> Measured:
    by_axis = {
        axis: {
            int(t): Errors(float(one["mean"]), float(one["rmse"]), tuple(one["cdf"]))
            for t, one in by_t.items()
        }
        for axis, by_t in kept["errors"].items()
    }
    return Measured(by_axis, kept["seconds"], kept["commit"], kept["device"])


def _keys(run: Run) -> tuple[jax.Array, jax.Array]:
    """Keys of start and steps. The baseline starts where the fit of S1's users does."""
    init_key, train_key = jax.random.split(keys.from_seed(run.seed))
    return (jax.random.split(init_key, 3)[1] if run.scenario == "baseline" else init_key), train_key


class _Watch:
    """Errors of one run as it goes on."""

    def __init__(self, run: Run, data: Data):
        self.run, self.parts = run, data.parts(run.part)
        self.rating_range = data.ratings.rating_range
        self.errors: dict[str, dict[int, Errors]] = {}

    def look(self, state: State, done: int) -> None:
        whole = factors(jax.tree.map(jnp.asarray, state))
        model = Factors(*(None if part is None else np.asarray(part) for part in whole))
        train, test = self.parts
        found = {"train": errors(model, train)}
        if test is not None:
            found |= {"test": errors(model, test), "test_clipped": errors(model, test, clip=True)}
        for axis, one in found.items():
            self.errors.setdefault(axis, {})[done] = one

    def measured(self, seconds: float) -> Measured:
        return Measured(self.errors, seconds, provenance.commit(), provenance.device())


def _iterated(runs: Sequence[Run], data: Data, folder: Path) -> Iterator[tuple[Run, Measured]]:
    """Trains runs of equal part and checkpoints side by side, in the order in which they end."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault((run.part, run.at), []).append(run)
    for (part, at), group in groups.items():
        laid = data.layout(part)
        jobs, watches = [], []
        for run in group:
            trained = mechanism(run, data)
            init_key, train_key = _keys(run)
            jobs.append(sweep.Job(trained, train_key, begin(trained, init_key, laid), at[-1]))
            watches.append(_Watch(run, data))
        started, steps = time.monotonic(), 0
        for chunk in sweep.run(jobs, laid, chunk_steps=math.gcd(*at), num_devices=data.num_devices):
            run, watch, done = group[chunk.job], watches[chunk.job], int(chunk.state.step)
            steps += len(chunk.info.loss)
            if done in at:
                watch.look(chunk.state, done)
            if done == at[-1]:
                if run.scenario == "baseline":
                    users = {"user_factors": np.asarray(chunk.state.private.user_factors)}
                    storage.write_arrays(_users_path(run, data, folder), users, private=True)
                yield run, watch.measured((time.monotonic() - started) * at[-1] / steps)


def _fit(run: Run) -> Run:
    """The factorisation that S1 takes its user factors from: the baseline of the same seed."""
    return Run("baseline", 0.0, run.seed, run.part, table.SHORT)


def _users_path(fit: Run, data: Data, folder: Path) -> Path:
    return store.path_of(folder, "objective-users", _settings(fit, data), ".safetensors")


@jax.jit
def _query(
    mechanism: Mechanism, key: jax.Array, state: State, data: Layout
) -> tuple[Any, jax.Array]:
    """A step's statistics, and the key of its noise: the first half of `protocol.step`."""
    coins_key, noise_key = jax.random.split(jax.random.fold_in(key, state.step))
    return mechanism.query(state, data, mechanism.coins(coins_key))[0], noise_key


@jax.jit
def _update(
    mechanism: Mechanism, noise_key: jax.Array, state: State, statistics: Any, data: Layout
) -> State:
    return mechanism.update(state, mechanism.noise.sample(noise_key, statistics), data)


def _released(runs: Sequence[Run], data: Data, folder: Path) -> Iterator[tuple[Run, Measured]]:
    """One release each. S1 of one seed, at any ε and passes, has the same statistics: made once."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        alone = () if run.scenario == "S1" else (run.epsilon,)
        groups.setdefault((run.scenario, run.part, run.seed, *alone), []).append(run)
    for (scenario, part, *_), group in groups.items():
        since, laid = time.monotonic(), data.layout(part)
        init_key, key = _keys(group[0])
        released = mechanism(group[0], data)
        if scenario in ON_FITTED_USERS:
            own = published(group[0], data)
            assert isinstance(own, objective.Config)
            once = objective.mechanism(
                dataclasses.replace(own, num_passes=1)
            )  # the fit itself is the baseline's
            users = storage.read_arrays(_users_path(_fit(group[0]), data, folder))["user_factors"]
            state = begin(once, init_key, laid)
            state = state._replace(private=state.private._replace(user_factors=jnp.asarray(users)))
        else:
            state = begin(released, init_key, laid)
        statistics, noise_key = _query(released, key, state, laid)
        for run in group:
            watch = _Watch(run, data)
            for t in run.at:
                one = mechanism(run._replace(at=(t,)), data)
                watch.look(_update(one, noise_key, state, statistics, laid), t)
            now = time.monotonic()
            yield run, watch.measured(now - since)
            since = now
