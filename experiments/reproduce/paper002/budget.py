"""At one (ε, δ) for a rating's presence: DP-SGD on a sketch over γ, dense DP-SGD, Langevin
dynamics, joint noise.

Settings are searched on generated ratings of the data's sizes, for every method and ε anew, setting
by setting, lowest held-out error; the ratings that are compared are not looked at for it. Langevin
dynamics is at temperature 1, that of the posterior: its step size follows from the price. (At a
free temperature and steps of one size it is dense DP-SGD.)
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from accounting import calibration
from accounting import gaussian as gaussian_price
from accounting.guarantee import Guarantee
from accounting.status import REAL_NUMBERS
from dpmf_jax import layout, protocol
from dpmf_jax.data import splits, synthetic
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.sampled import langevin, sampled
from dpmf_jax.mechanisms.sketch import dpsgd as sketch_dpsgd
from dpmf_jax.models import metrics
from dpmf_jax.noise import keys
from dpmf_jax.protocol import Mechanism
from dpmf_jax.training import controls
from experiments.cli import provenance
from experiments.reproduce import pictures
from experiments.reproduce.catalogue import HELD_OUT, SEARCH_SEED, SPLIT_SEED
from experiments.reproduce.comparison import Row
from experiments.reproduce.page import Outcome
from experiments.reproduce.paper import Say

EPSILONS, DELTA, UNIT = (1.0, 4.0), 1e-6, "rating presence"
GAINS, DEPTH = (1.0, 2.0, 4.0), 4
STEPS, JOINT_STEPS = 100, 20
SAFE = 1 + 2e-5  # times the noise that is solved for: what float32 takes off
AXES = ("rmse_test", "rmse_train")
GLOBAL, MEANS, PRICED = "global mean", "item means", "priced item means"


class Setting(NamedTuple):
    """What is searched.

    pace: η·max(users, items); not read where η follows from the price.
    sampling: q; joint noise takes all ratings.
    scale: of the sketch's random table.
    """

    pace: float = 3.0
    regularization: float = 1.0
    rank: int = 2
    sampling: float = 0.1
    scale: float = 0.1


STAGES: dict[str, tuple[float, ...]] = {
    "pace": (0.3, 1.0, 3.0, 10.0, 30.0),
    "sampling": (0.03, 0.1),
    "scale": (0.1, 0.3),
    "regularization": (0.1, 1.0, 10.0),
    "rank": (1, 2),
}
COLD = (0.01, 0.03, 0.1)  # q of Langevin dynamics, whose η is 2(q/z)²


class Method(NamedTuple):
    """make: (ratings, ε, setting, γ) -> (mechanism, steps).
    searched: by setting, in this order, what is tried.
    gain: γ.
    start: of the search.
    """

    make: Callable[[Ratings, float, Setting, float], tuple[Mechanism, int]]
    searched: Mapping[str, Sequence[float]]
    gain: float = 1.0
    start: Setting = Setting()

    def mechanism(
        self, ratings: Ratings, epsilon: float, setting: Setting
    ) -> tuple[Mechanism, int]:
        """And its number of steps."""
        return self.make(ratings, epsilon, setting, self.gain)


@functools.cache
def multiplier(epsilon: float, sampling: float) -> float:
    """z of `STEPS` steps on Poisson samples."""
    return SAFE * calibration.solve_noise_multiplier(
        epsilon, DELTA, sampling_rate=sampling, num_steps=STEPS, unit="rating presence"
    )


def _config(ratings: Ratings, setting: Setting, gain: float, **more: Any) -> sampled.Config:
    return sampled.Config(
        rating_range=ratings.rating_range,
        num_steps=STEPS,
        sampling_rate=setting.sampling,
        rank=setting.rank,
        regularization=setting.regularization,
        depth=DEPTH,
        gain=gain,
        initial_scale=setting.scale,
        unit="rating presence",
        delta=DELTA,
        **more,
    )


def _rate(ratings: Ratings, setting: Setting) -> float:
    return setting.pace / max(ratings.num_users, ratings.num_items)


def _dense(
    ratings: Ratings, epsilon: float, setting: Setting, gain: float
) -> tuple[Mechanism, int]:
    noise, rate = multiplier(epsilon, setting.sampling), _rate(ratings, setting)
    return (
        langevin.dpsgd(_config(ratings, setting, gain, learning_rate=rate, noise_multiplier=noise)),
        STEPS,
    )


def _sketch(
    ratings: Ratings, epsilon: float, setting: Setting, gain: float
) -> tuple[Mechanism, int]:
    noise, rate = multiplier(epsilon, setting.sampling), _rate(ratings, setting)
    config = _config(ratings, setting, gain, learning_rate=rate, noise_multiplier=noise)
    return sketch_dpsgd.mechanism(config), STEPS


def _langevin(
    ratings: Ratings, epsilon: float, setting: Setting, gain: float
) -> tuple[Mechanism, int]:
    """z = q√(2T/η)/C with T = C = 1, so η = 2(q/z)²."""
    rate = 2 * (setting.sampling / multiplier(epsilon, setting.sampling)) ** 2
    return langevin.dp(_config(ratings, setting, gain, learning_rate=rate, temperature=1.0)), STEPS


def _joint(
    ratings: Ratings, epsilon: float, setting: Setting, gain: float
) -> tuple[Mechanism, int]:
    del gain
    low, high = ratings.rating_range
    config = gaussian.Config(
        rating_range=ratings.rating_range,
        noise_multiplier=SAFE
        * gaussian_price.solve_noise_multiplier(epsilon, DELTA, JOINT_STEPS, price="exact"),
        rank=setting.rank,
        learning_rate=_rate(ratings, setting),
        regularization=setting.regularization,
        relation="rating presence",
        residual_clip=(high - low) / 4,
        delta=DELTA,
    )
    return gaussian.joint_noise(config), JOINT_STEPS


def _stages(*names: str) -> dict[str, tuple[float, ...]]:
    return {name: STAGES[name] for name in names}


_LAST = _stages("regularization", "rank")
METHODS: dict[str, Method] = {
    "dense DP-SGD": Method(_dense, _stages("pace", "sampling") | _LAST),
    **{f"sketch, γ = {gain:g}": Method(_sketch, STAGES, gain) for gain in GAINS},
    "Langevin, T = 1": Method(
        _langevin, {"sampling": COLD} | _LAST, start=Setting(sampling=COLD[1])
    ),
    "joint noise": Method(_joint, _stages("pace") | _LAST),
}


class Data(NamedTuple):
    """80% of some ratings, laid out, and the rest."""

    train: Ratings
    test: Ratings
    laid: layout.Layout

    @classmethod
    def of(cls, ratings: Ratings) -> Data:
        train, test = splits.by_pair(ratings, fraction=HELD_OUT, seed=SPLIT_SEED)
        return cls(train, test, layout.make(train, num_devices=1))


def errors(trained: tuple[Mechanism, int], data: Data, seed: int) -> dict[str, float]:
    """RMSE by axis, predictions clipped to the declared range; inf where a run diverged."""
    mechanism, steps = trained
    init_key, train_key = jax.random.split(keys.from_seed(seed))
    state = protocol.begin(mechanism, init_key, data.laid)
    state, _info = protocol.train(mechanism, train_key, state, data.laid, steps)
    model = protocol.factors(state)
    values = (metrics.rmse(model, part) for part in (data.test, data.train))
    return {
        axis: value if math.isfinite(value) else math.inf
        for axis, value in zip(AXES, values, strict=True)
    }


def search(method: Method, epsilon: float, data: Data) -> tuple[Setting, float, int]:
    """(the best setting, its held-out RMSE, settings tried). One setting is searched at a time."""
    tried: dict[Setting, float] = {}
    best = method.start
    for name, values in method.searched.items():
        for value in values:
            change: dict[str, Any] = {name: value}
            setting = best._replace(**change)
            if setting not in tried:
                trained = method.mechanism(data.train, epsilon, setting)
                tried[setting] = errors(trained, data, SEARCH_SEED)["rmse_test"]
        best = min(tried, key=lambda setting: tried[setting])
    return best, tried[best], len(tried)


def guarantee(method: Method, ratings: Ratings, epsilon: float, setting: Setting) -> Guarantee:
    """Of the whole run. Raises: ValueError where it costs more than ε."""
    mechanism, steps = method.mechanism(ratings, epsilon, setting)
    promised = mechanism.guarantee(steps).with_seed()
    if not promised.epsilon <= epsilon * (1 + 1e-9):
        raise ValueError(f"a run costs {promised.epsilon}, more than {epsilon}")
    return promised


def compare(
    ratings: Ratings,
    seeds: Sequence[int],
    say: Say = lambda text: None,
    *,
    epsilons: Sequence[float] = EPSILONS,
) -> Outcome:
    """Every method at every ε on these ratings, and the controls beside them. x is ε.

    more: searches, by series and ε: the setting that was found, its error on generated ratings and
      how many were tried.
    """
    sizes = {
        "num_users": ratings.num_users,
        "num_items": ratings.num_items,
        "num_ratings": ratings.num_ratings,
    }
    generated = Data.of(synthetic.generate(**sizes, rating_range=ratings.rating_range))
    data = Data.of(ratings)
    out = Outcome([], [], [_about(ratings, len(seeds))], {"searches": {}})
    for epsilon in epsilons:
        for series, method in METHODS.items():
            started = time.monotonic()
            setting, error, tried = search(method, epsilon, generated)
            measured = [
                errors(method.mechanism(data.train, epsilon, setting), data, seed) for seed in seeds
            ]
            seconds = time.monotonic() - started
            promised = guarantee(method, data.train, epsilon, setting)
            _add(out, series, epsilon, measured, seeds, promised.headline)
            out.settings[-1] |= {"config": _read(method, setting), "seconds": seconds}
            out.more["searches"][f"{series}, ε = {epsilon:g}"] = _read(method, setting) | {
                "rmse": error,
                "tried": tried,
            }
            mean = math.fsum(one["rmse_test"] for one in measured) / len(measured)
            say(
                f"{ratings.name}: {series}, ε = {epsilon:g}: held-out RMSE {mean:.4f},"
                f" {seconds:.0f} s"
            )
    _controls(out, data, seeds, epsilons)
    return out


def _read(method: Method, setting: Setting) -> dict[str, Any]:
    return {name: value for name, value in setting._asdict().items() if name in method.searched}


def _add(
    out: Outcome,
    series: str,
    epsilon: float | None,
    measured: Sequence[dict[str, float]],
    seeds: Sequence[int],
    headline: str,
) -> None:
    kind, x = ("level", 0.0) if epsilon is None else ("end", epsilon)
    for axis in AXES:
        values = [one[axis] for one in measured]
        out.row(series, axis, kind, x, values, variant=series, part="held-out")
    where = {"commits": [provenance.commit()], "devices": [provenance.device()]}
    out.setting(series, epsilon, series, headline, seeds, **where)


def _controls(out: Outcome, data: Data, seeds: Sequence[int], epsilons: Sequence[float]) -> None:
    def both(model: Any) -> dict[str, float]:
        return {
            axis: metrics.rmse(model, part)
            for axis, part in zip(AXES, (data.test, data.train), strict=True)
        }

    for series, fit in ((GLOBAL, controls.global_mean), (MEANS, controls.item_means)):
        _add(out, series, None, [both(fit(data.train))], [], "not private")
    for epsilon in epsilons:
        noisy = [
            controls.noisy_item_means(
                data.train,
                keys.from_seed(seed),
                epsilon=epsilon,
                delta=DELTA,
                relation="rating presence",
            )
            for seed in seeds
        ]
        headline = (
            f"{REAL_NUMBERS}, ε = {epsilon:g} at δ = {DELTA:g}, unit: {UNIT}; released: item means"
        )
        _add(out, PRICED, epsilon, [both(one.factors) for one in noisy], seeds, headline)


def _about(ratings: Ratings, num_seeds: int) -> str:
    return (
        f"All at the same δ = {DELTA:g} and for one rating's presence, {STEPS} steps on Poisson"
        f" samples ({JOINT_STEPS} on all ratings for joint noise), clip 1, k = {DEPTH}; held-out"
        f" RMSE on {HELD_OUT:.0%} of {ratings.name}, predictions clipped to the declared range,"
        f" {num_seeds} seeds of start, samples and noise on one split. Step size, λ, rank, sampling"
        " rate and the sketch's start were searched on generated ratings of the same numbers of"
        " users, items and ratings, one run each. The price does not cover the choice among the"
        " methods shown here."
    )


def picture(rows: Sequence[Row], title: str) -> str:
    """svg: methods below each other, a mark for every seed and ε, controls as vertical lines.

    Raises: ModuleNotFoundError without matplotlib.
    """
    rows = [one for one in rows if one.axis == "rmse_test"]
    series = list(dict.fromkeys(one.series for one in rows if one.kind == "end"))
    epsilons = sorted({one.x for one in rows if one.kind == "end"})
    with pictures.canvas(title, (8, 4)) as (_, ((axes,),), svg):
        axes.set(xlabel="held-out RMSE")
        axes.set_title(f"{title}; δ = {DELTA:g}, one rating's presence", fontsize=8)
        axes.grid(alpha=0.3, axis="x")
        for place, one in ((series.index(one.series), one) for one in rows if one.kind == "end"):
            number = epsilons.index(one.x)
            at = -place + 0.12 * (len(epsilons) - 1 - 2 * number)
            label = f"ε = {one.x:g}" if place == 0 else None
            axes.plot(one.values, [at] * len(one.values), "|", color=f"C{number}", markersize=8)
            axes.plot([one.value], [at], "o", color=f"C{number}", markersize=4, label=label)
        levels = (one for one in rows if one.kind == "level")
        for style, one in zip((":", "--"), levels, strict=True):
            label = f"{one.series}, not private"
            axes.axvline(one.value, color="0.5", linestyle=style, lw=0.8, label=label)
        axes.set_yticks([-place for place in range(len(series))], series)
        axes.legend(frameon=False, fontsize=7)
    return svg.getvalue()
