"""The runs behind paper 004's figures: trained once, their errors kept under `private/`, learning
rates searched.

The slides leave the learning rate open but for O(1/t). Every setting's γ is searched on generated
ratings of the data's public sizes, `RATES`, the lowest training error at the end; the real ratings
are not looked at for it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.guarantee import Guarantee
from dpmf_jax import layout
from dpmf_jax.data import splits, synthetic
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.devices import keys
from dpmf_jax.kernels import descent
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.local import laplace as local_laplace
from dpmf_jax.models import metrics, storage
from dpmf_jax.protocol import Factors, Mechanism, State, begin, factors, train
from experiments.cli import provenance
from experiments.reproduce.catalogue import HELD_OUT, SEARCH_SEED, SPLIT_SEED

Variant = Literal["gd", "gd-dr", "laplace", "non-private", "fair-coins", "users-alone"]
RATES = tuple(round(10 ** (half / 2), 6) for half in range(-8, 4))  # 0.0001, 0.000316, …, 10, 31.6


class Run(NamedTuple):
    """One training. variant: see `mechanism`. at: numbers of rounds after which it is measured; the
    last ends it.
    """

    variant: Variant
    config: local.Config
    seed: int
    at: tuple[int, ...]

    def settings(self) -> dict[str, Any]:
        return {**self._asdict(), "config": dataclasses.asdict(self.config), "at": list(self.at)}


class Measured(NamedTuple):
    """Errors by the number of rounds done; inf where the run left the finite numbers.

    train: on the ratings trained on, predictions as they are. test: on the held-out ones, as they
    are. clipped: on the held-out ones, predictions clipped to the declared range, as `dpmf fit`
    reports. outside: mean share of reporting users whose entry was clipped, over the rounds.
    """

    train: dict[int, float]
    test: dict[int, float]
    clipped: dict[int, float]
    outside: float
    seconds: float
    commit: str
    device: str


class Search(NamedTuple):
    """The learning rate that was taken, and the training error at the end of each that was
    tried.
    """

    learning_rate: float
    tried: dict[float, float]


def _fair_coins(query: Any, state: State, data: Any, coins: Any) -> Any:
    report, info = query(state, data, coins)
    return report._replace(value=jnp.zeros_like(report.value)), info


def _users_alone(update: Any, state: State, response: Any, data: Any) -> State:
    after = update(state, response, data)
    return after._replace(
        public=state.public._replace(optimizer_state=after.public.optimizer_state)
    )


def mechanism(variant: Variant, config: local.Config, num_items: int) -> Mechanism:
    """What trains.

    gd, gd-dr: paper 004, algorithms 1 and 2. non-private: the paper's baseline. laplace: whole
    gradients under Laplace
      noise, `local_laplace`. fair-coins: gd-dr or gd with every entry replaced by 0, so that
      reports say nothing about
      anybody: what gd-dr is above it, reports have taught. users-alone: V stays at its public
      random start, and users descend on their own ratings: ε = 0.
    """
    from jax.tree_util import Partial

    private = local.gd if config.num_projected is None else local.gd_dr
    if variant in ("gd", "gd-dr"):
        return private(config)
    if variant == "non-private":
        return local.non_private(config)
    if variant == "laplace":
        names = {field.name for field in dataclasses.fields(local_laplace.Config)} - {"num_items"}
        shared = {name: getattr(config, name) for name in names}
        return local_laplace.mechanism(local_laplace.Config(**shared, num_items=num_items))
    if variant == "fair-coins":
        made = private(config)
        return made._replace(query=Partial(_fair_coins, made.query))
    assert variant == "users-alone", variant
    made = local.non_private(config)
    return made._replace(update=Partial(_users_alone, made.update))


def guarantee(run: Run, num_items: int) -> Guarantee:
    """Of all of a run's rounds; fair-coins and users-alone release nothing of anybody's and are
    stated as what they were made of.
    """
    return mechanism(run.variant, run.config, num_items).guarantee(run.at[-1]).with_seed()


class Data:
    """Ratings in two parts, laid out; and generated ratings of the same public sizes for searches,
    when asked for.
    """

    def __init__(
        self, ratings: Ratings, *, num_devices: int | None = None, held_out: float = HELD_OUT
    ):
        self.ratings, self.num_devices = ratings, num_devices
        self.train, self.test = splits.by_pair(ratings, fraction=held_out, seed=SPLIT_SEED)
        self.digest = ratings.sha256()

    @functools.cached_property
    def layout(self) -> Any:
        return layout.make(self.train, num_devices=self.num_devices)

    @functools.cached_property
    def generated(self) -> Data:
        sizes = self.train.num_users, self.train.num_items, self.train.num_ratings
        return Data.generate(sizes, self.ratings.rating_range, num_devices=self.num_devices)

    @classmethod
    def generate(
        cls,
        sizes: tuple[int, int, int],
        rating_range: tuple[float, float],
        *,
        num_devices: int | None = None,
    ) -> Data:
        """sizes: users, items, ratings to train on."""
        users, items, num_ratings = sizes
        made = synthetic.generate(
            num_users=users,
            num_items=items,
            num_ratings=num_ratings,
            seed=SEARCH_SEED,
            rating_range=rating_range,
        )
        return cls(made, num_devices=num_devices, held_out=0.0)


def search(
    variant: Variant,
    config: local.Config,
    rounds: int,
    data: Data,
    store: Path,
    say: Callable[[str], None],
) -> Search:
    """The learning rate of `RATES` with the lowest training error after `rounds`, on generated
    ratings.
    """
    tried = {}
    for rate in RATES:
        run = Run(variant, dataclasses.replace(config, learning_rate=rate), SEARCH_SEED, (rounds,))
        tried[rate] = measure(run, data.generated, store, say).train[rounds]
    best = min(tried, key=lambda rate: (tried[rate], rate))
    return Search(best, tried)


def measure(
    run: Run, data: Data, store: Path, say: Callable[[str], None] = lambda text: None
) -> Measured:
    """The errors of a run, from `store` where they are, else trained. A run is a minute at most: it
    starts anew.
    """
    settings = json.loads(json.dumps(run.settings() | {"ratings": data.digest}))
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    path = storage.private_folder(store) / f"local-{run.variant}-{name}.json"
    if path.exists():
        stored = storage.read_json(path)
        if stored["settings"] == settings:
            return _measured(stored)
    found = _train(run, data)
    by_rounds = {
        part: {str(t): _plain(v) for t, v in getattr(found, part).items()} for part in _PARTS
    }
    rest = {
        "outside": found.outside,
        "seconds": found.seconds,
        "commit": found.commit,
        "device": found.device,
    }
    storage.write_json(path, {"settings": settings, **by_rounds, **rest}, private=True)
    last = found.train[run.at[-1]]
    say(
        f"{data.train.name}: {run.variant}, ε = {run.config.epsilon:g}, k ="
        f" {run.config.num_rounds}, γ = {run.config.learning_rate:g}, seed {run.seed}: training"
        f" RMSE {last:.4f}, {found.seconds:.1f} s"
    )
    return found


_PARTS = ("train", "test", "clipped")


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"


def _measured(stored: Mapping[str, Any]) -> Measured:
    parts = {part: {int(t): float(v) for t, v in stored[part].items()} for part in _PARTS}
    rest: dict[str, Any] = {
        name: stored[name] for name in ("outside", "seconds", "commit", "device")
    }
    return Measured(parts["train"], parts["test"], parts["clipped"], **rest)


_mean_squared_error = jax.jit(descent.mean_squared_error)


def _train(run: Run, data: Data) -> Measured:
    started = time.monotonic()
    made = mechanism(run.variant, run.config, data.train.num_items)
    init_key, train_key = jax.random.split(keys.from_seed(run.seed))
    state = layout.replicate(data.layout, begin(made, init_key, data.layout))
    found: dict[str, dict[int, float]] = {part: {} for part in _PARTS}
    outside = []
    for done in range(1, run.at[-1] + 1):
        state, info = train(made, train_key, state, data.layout, num_steps=1)
        outside.append(float(info.clipped_fraction[0]))
        if done in run.at:
            whole = factors(state)
            found["train"][done] = _finite(
                float(np.sqrt(np.float64(_mean_squared_error(*whole, data.layout))))
            )
            on_host = Factors(*(None if part is None else np.asarray(part) for part in whole))
            for part, clip in (("test", False), ("clipped", True)):
                held_out = data.test.num_ratings and math.isfinite(found["train"][done])
                found[part][done] = (
                    _finite(metrics.rmse(on_host, data.test, clip=clip)) if held_out else math.inf
                )
        if not math.isfinite(float(info.loss[0])):
            for part in _PARTS:
                found[part] |= {t: math.inf for t in run.at if t >= done}
            break
    finite = [share for share in outside if math.isfinite(share)]
    return Measured(
        *found.values(),
        outside=math.fsum(finite) / max(len(finite), 1),
        seconds=time.monotonic() - started,
        commit=provenance.commit(),
        device=provenance.device(),
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def over_seeds(runs: Sequence[Measured], part: str, rounds: int) -> tuple[float, ...]:
    return tuple(getattr(run, part)[rounds] for run in runs)
