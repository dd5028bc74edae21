"""One fit of the benchmark: a contender on a split of a data set, at a price, with a seed."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import dpmf_jax
from accounting.plain import TYPICAL
from dpmf_jax import layout
from dpmf_jax.data import given, splits
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms import table
from dpmf_jax.models import metrics, strong_generalisation
from dpmf_jax.models.model import Model
from dpmf_jax.noise import keys
from dpmf_jax.protocol import Factors
from dpmf_jax.training import controls, implicit_controls, resolve
from dpmf_jax.training.measure import Diverged, trained
from experiments.benchmark.peers import PEERS
from experiments.benchmark.protocol import DELTA, TRUST, Contender, Setting, Split
from experiments.benchmark.scores import NUMBERS, scores
from experiments.cli import provenance

# Nothing is held out of what a contender is given, and nothing measured beside it.
_ALONE: dict[str, Any] = {"test_fraction": 0.0, "controls": "none", "progress": False}
PROMISED = ("status", "unit", "relation", "trust_model", "epsilon", "delta", "claimed_by")
SHARE = 0.1  # of the ratings, or of the users, held out


class Parts(NamedTuple):
    """train: what a contender learns from. shown: what the users of `test` have rated, on the
    catalogue of `test`; `train` itself where they are the same users.
    """

    train: Ratings
    shown: Ratings
    test: Ratings


class Contestant(NamedTuple):
    """model: of a mechanism. errors, order: as in `scores`."""

    factors: Factors
    model: Model | None = None
    errors: bool = True
    order: bool = True


def missing(contender: Contender) -> str:
    """The package that is not installed and would be needed, or nothing."""
    needed = PEERS[contender.name].package if contender.kind == "peer" else ""
    return needed if needed and importlib.util.find_spec(needed) is None else ""


@functools.lru_cache(maxsize=1)
def ratings_of(data: str, split: Split, data_dir: Path | None) -> Ratings:
    """Raises: DataError where the data set is not here."""
    timed = {"time_column": True} if split == "last" else {}
    return given.read_whole(data, data_dir=data_dir, **timed)


@functools.lru_cache(maxsize=1)
def parts(data: str, split: Split, seed: int, data_dir: Path | None) -> Parts:
    """The split of this seed; the last ratings are the same with every seed."""
    ratings = ratings_of(data, split, data_dir)
    if split == "users":
        train, others = splits.whole_users(ratings, fraction=SHARE, seed=seed)
        shown, hidden = strong_generalisation.held_out(others, seed=seed)
        return Parts(train, shown, hidden)
    if split == "last":
        train, test = splits.last(ratings)
    else:
        train, test = splits.random(ratings, fraction=SHARE, seed=seed)
    return Parts(train, train, test)


def fitted(setting: Setting, seed: int, *, data_dir: Path | None = None) -> dict[str, Any]:
    """What one fit gave: its numbers, its promise, its price in time and memory, and where it ran.

    A run that left the finite numbers has none of the numbers, and says so.

    Raises: DataError where the data set is not here; as `dpmf_jax.fit` does.
    """
    cut = parts(setting.data, setting.split, seed, data_dir)
    contender, found = setting.contender, dict.fromkeys((*NUMBERS, "rmse_by_activity"))
    promise, made = None, None
    with _memory() as memory:
        started = time.perf_counter()
        with contextlib.suppress(Diverged):
            made = fit_contender(
                contender, cut, setting.epsilon, seed, users=setting.split == "users"
            )
            jax.block_until_ready(made.factors)
        seconds = time.perf_counter() - started
    if made is not None and made.model is not None:
        promise = _promise(made.model)
    finite = made is not None and all(np.isfinite(np.asarray(part)).all() for part in made.factors)
    if made is not None and finite:
        found = scores(made.factors, cut.shown, cut.test, errors=made.errors, order=made.order)
    return {
        **found,
        "promise": promise,
        "diverged": not finite,
        "seconds": seconds,
        "memory_mib": memory(),
        "commit": provenance.commit(),
        "device": provenance.device(),
    }


def _promise(model: Model) -> dict[str, Any]:
    """Of a guarantee, with what somebody with `TYPICAL` ratings pays for all of them."""
    told = model.guarantee.to_dict()
    user = told["epsilon"] if told["unit"] == "user" else None
    if user is None and told["epsilon"] is not None:
        try:
            user = model.guarantee.for_user(TYPICAL).epsilon
        except ValueError:  # of that no price is known
            user = None
    trust = next(short for words, short in TRUST.items() if told["trust_model"].startswith(words))
    return {name: told[name] for name in PROMISED} | {"trust": trust, "epsilon_of_a_user": user}


def fit_contender(
    contender: Contender, cut: Parts, epsilon: float | None, seed: int, *, users: bool
) -> Contestant:
    if contender.kind == "peer":
        peer = PEERS[contender.name]
        return Contestant(peer.fit(cut.train, seed), errors=peer.errors)
    if contender.kind == "control":
        return fit_control(contender.name, cut, seed)
    model = fit_mechanism(contender, cut.train, epsilon, seed)
    if not users:
        return Contestant(model.all_factors(), model)
    rows = Factors(
        model.fold_in(cut.shown), model.release.item_factors, np.asarray(model.release.center)
    )
    return Contestant(rows, model, errors=not model.implicit)


def fit_mechanism(contender: Contender, train: Ratings, epsilon: float | None, seed: int) -> Model:
    spec = table()[contender.name]
    words: dict[str, Any] = {"seed": seed, **dict(contender.flags)}
    if contender.priced:
        assert epsilon is not None
        words["epsilon"] = epsilon / contender.rounds
        if hasattr(spec.flags, "delta"):
            words["delta"] = DELTA
    if contender.tried:
        tried = {name: list(values) for name, values in contender.tried}
        return dpmf_jax.tune(train, contender.name, tried, **words)
    if spec.implicit:
        return dpmf_jax.fit(
            train, contender.name, holdout_users=0.0, controls="none", progress=False, **words
        )
    accepted = {"accept_no_guarantee": True} if spec.unsafe else {}
    return dpmf_jax.fit(train, contender.name, **_ALONE, **accepted, **words)


def fit_control(name: str, cut: Parts, seed: int) -> Contestant:
    """`cut.shown` has the users to measure, and `cut.train` what is learned from."""
    train, shown = cut.train, cut.shown
    if name == "implicit_als":
        return Contestant(implicit_controls.implicit_als(train, shown, seed=seed), errors=False)
    if name in ("nothing_released", "als_without_noise"):
        return Contestant(als_comparison(name, train, seed))
    made = controls.CONTROLS[name](train)
    if shown is not train:  # one score of an item for everybody, so for new users too
        made = metrics.constant(shown, np.asarray(made.center))
    return Contestant(
        made, errors=name not in controls.NO_ERRORS, order=name not in controls.NO_ORDER
    )


def als_comparison(name: str, train: Ratings, seed: int) -> Factors:
    """What `als` is measured beside: everybody's own ratings alone, and no noise."""
    spec = table()["als"]
    flags = resolve.flags_of(spec, {})
    _, kept = resolve.phases_and_settings(spec, flags, train)
    phases, _ = resolve.comparisons(spec, flags, train, kept)[name]
    begin_key, train_key = jax.random.split(keys.from_seed(seed))
    return trained(phases, (begin_key, train_key), layout.make(train), train)


@contextmanager
def _memory() -> Generator[Callable[[], float | None]]:
    """How much more memory this process held at most within the block than before it, in MiB;
    looked at every 20 ms, and None where the system does not tell.
    """
    told: list[int] = []
    done = threading.Event()

    def look() -> None:
        with contextlib.suppress(OSError):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            told.append(pages * os.sysconf("SC_PAGE_SIZE"))

    def watch() -> None:
        while not done.wait(0.02):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    look()
    thread.start()
    try:
        yield lambda: (max(told) - told[0]) / 2**20 if told else None
    finally:
        done.set()
        thread.join()
        look()
