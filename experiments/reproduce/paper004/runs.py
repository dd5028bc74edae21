"""The runs behind paper 004's figures, and the search of their learning rates.

The slides leave the learning rate open but for O(1/t). Every setting's γ is searched on generated
ratings of the data's public sizes, `RATES`, the lowest training error at the end; the real ratings
are not looked at for it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.guarantee import Guarantee
from dpmf_jax import layout
from dpmf_jax.data import splits, synthetic
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.kernels import descent
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.local import laplace as local_laplace
from dpmf_jax.models import metrics
from dpmf_jax.noise import keys
from dpmf_jax.protocol import Factors, Mechanism, State, begin, factors, train
from experiments.cli import provenance
from experiments.reproduce import store
from experiments.reproduce.catalogue import HELD_OUT, SEARCH_SEED, SPLIT_SEED
from experiments.reproduce.comparison import NOTHING

Variant = Literal["gd", "gd-dr", "laplace", "non-private", "fair-coins", "users-alone"]
RATES = tuple(round(10 ** (half / 2), 6) for half in range(-8, 4))  # 0.0001, 0.000316, …, 10, 31.6


class Run(NamedTuple):
    """One training.

    variant: see `mechanism`.
    at: numbers of rounds after which it is measured; the last ends it.
    """

    variant: Variant
    config: local.Config
    seed: int
    at: tuple[int, ...]

    def settings(self, ratings: str) -> dict[str, Any]:
        """What a stored run is of. ratings: their hash."""
        config = dataclasses.asdict(self.config)
        return {**self._asdict(), "config": config, "at": self.at, "ratings": ratings}


class Measured(NamedTuple):
    """Errors by the number of rounds done; inf where the run left the finite numbers.

    train: on the ratings trained on, predictions as they are.
    test: on the held-out ones, as they are.
    clipped: on the held-out ones, predictions clipped to the declared range, as `dpmf fit` reports.
    outside: mean share of reporting users whose entry was clipped, over the rounds.
    """

    train: dict[int, float]
    test: dict[int, float]
    clipped: dict[int, float]
    outside: float
    seconds: float
    commit: str
    device: str


class Search(NamedTuple):
    """The learning rate that was taken, and the training error at the end of each one tried."""

    learning_rate: float
    tried: dict[float, float]


def _fair_coins(query: Any, state: State, data: Layout, coins: Any) -> Any:
    report, info = query(state, data, coins)
    return report._replace(value=jnp.zeros_like(report.value)), info


def _users_alone(update: Any, state: State, response: Any, data: Layout) -> State:
    after = update(state, response, data)
    return after._replace(
        public=state.public._replace(optimizer_state=after.public.optimizer_state)
    )


def mechanism(variant: Variant, config: local.Config, num_items: int) -> Mechanism:
    """What trains.

    gd, gd-dr: paper 004, algorithms 1 and 2.
    non-private: the paper's baseline.
    laplace: whole gradients under Laplace noise, `local.laplace`.
    fair-coins: gd-dr or gd with every entry replaced by 0, so that reports say nothing about
      anybody. Where gd-dr is better, its reports have taught.
    users-alone: V stays at its public random start, and users descend on their own ratings: ε = 0.
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
        whole = private(config)
        return whole._replace(query=Partial(_fair_coins, whole.query))
    assert variant == "users-alone", variant
    exact = local.non_private(config)
    return exact._replace(update=Partial(_users_alone, exact.update))


def guarantee(run: Run, num_items: int) -> Guarantee:
    """Of all of a run's rounds.

    fair-coins and users-alone release nothing of anybody's: it is that of what they are made of.
    """
    return mechanism(run.variant, run.config, num_items).guarantee(run.at[-1]).with_seed()


def promise(run: Run, num_items: int) -> str:
    """What a run promises, in a line."""
    if run.variant in ("fair-coins", "users-alone"):
        return NOTHING
    return guarantee(run, num_items).headline


class Data:
    """Ratings in two parts, laid out; and generated ones of the same public sizes, for searches."""

    def __init__(
        self, ratings: Ratings, *, num_devices: int | None = None, held_out: float = HELD_OUT
    ):
        self.ratings, self.num_devices = ratings, num_devices
        self.train, self.test = splits.by_pair(ratings, fraction=held_out, seed=SPLIT_SEED)
        self.digest = ratings.sha256()

    @functools.cached_property
    def layout(self) -> Layout:
        return layout.make(self.train, num_devices=self.num_devices)

    @functools.cached_property
    def generated(self) -> Data:
        ratings = synthetic.generate(
            num_users=self.train.num_users,
            num_items=self.train.num_items,
            num_ratings=self.train.num_ratings,
            seed=SEARCH_SEED,
            rating_range=self.ratings.rating_range,
        )
        return Data(ratings, num_devices=self.num_devices, held_out=0.0)


def search(
    variant: Variant,
    config: local.Config,
    rounds: int,
    data: Data,
    folder: Path,
    say: Callable[[str], None],
) -> Search:
    """The rate of `RATES` with the lowest training error after `rounds`, on generated ratings."""
    tried = {}
    for rate in RATES:
        run = Run(variant, dataclasses.replace(config, learning_rate=rate), SEARCH_SEED, (rounds,))
        tried[rate] = measure(run, data.generated, folder, say).train[rounds]
    best = min(tried, key=lambda rate: (tried[rate], rate))
    return Search(best, tried)


def measure(
    run: Run, data: Data, folder: Path, say: Callable[[str], None] = lambda text: None
) -> Measured:
    """A run's errors, from `folder` where they are kept, else trained.

    A run takes a minute at most, so that an interrupted one starts anew.
    """
    settings, kind = run.settings(data.digest), f"local-{run.variant}"
    if (kept := store.read(folder, kind, settings)) is not None:
        return _from_json(kept)
    measured = _train(run, data)
    store.write(folder, kind, settings, measured._asdict())
    last = measured.train[run.at[-1]]
    say(
        f"{data.train.name}: {run.variant}, ε = {run.config.epsilon:g}, k ="
        f" {run.config.num_rounds}, γ = {run.config.learning_rate:g}, seed {run.seed}: training"
        f" RMSE {last:.4f}, {measured.seconds:.1f} s"
    )
    return measured


_PARTS = ("train", "test", "clipped")


def _from_json(kept: Mapping[str, Any]) -> Measured:
    parts: dict[str, Any] = {
        part: {int(t): float(v) for t, v in kept[part].items()} for part in _PARTS
    }
    return Measured(**parts, **{name: kept[name] for name in Measured._fields[len(_PARTS) :]})


_mean_squared_error = jax.jit(descent.mean_squared_error)


def _train(run: Run, data: Data) -> Measured:
    started = time.monotonic()
    trained = mechanism(run.variant, run.config, data.train.num_items)
    init_key, train_key = jax.random.split(keys.from_seed(run.seed))
    state = layout.replicate(data.layout, begin(trained, init_key, data.layout))
    errors: dict[str, dict[int, float]] = {part: {} for part in _PARTS}
    outside = []
    for done in range(1, run.at[-1] + 1):
        state, info = train(trained, train_key, state, data.layout, num_steps=1)
        outside.append(float(info.clipped_fraction[0]))
        if done in run.at:
            whole = factors(state)
            errors["train"][done] = _finite(
                float(np.sqrt(np.float64(_mean_squared_error(*whole, data.layout))))
            )
            on_host = Factors(*(None if part is None else np.asarray(part) for part in whole))
            for part, clip in (("test", False), ("clipped", True)):
                held_out = data.test.num_ratings and math.isfinite(errors["train"][done])
                errors[part][done] = (
                    _finite(metrics.rmse(on_host, data.test, clip=clip)) if held_out else math.inf
                )
        if not math.isfinite(float(info.loss[0])):
            for part in _PARTS:
                errors[part] |= {t: math.inf for t in run.at if t >= done}
            break
    finite = [share for share in outside if math.isfinite(share)]
    return Measured(
        *(errors[part] for part in _PARTS),
        outside=math.fsum(finite) / max(len(finite), 1),
        seconds=time.monotonic() - started,
        commit=provenance.commit(),
        device=provenance.device(),
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf
