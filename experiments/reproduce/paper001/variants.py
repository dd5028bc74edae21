"""Sound beside published: the same settings by mechanisms whose price is proved, held-out error,
and simple controls.

At every private setting of a figure, `plans.BESIDE` are trained on 80% of the ratings with the
figure's J, at the exact ε of the published run (whose own guarantee is claimed, not proved), and
once without noise at the longest J. Each is held to item means that are priced at the same exact ε
and δ: a model that does not beat them is not worth its factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import accounting
from accounting.digits import printed
from accounting.gaussian import epsilon_exact
from accounting.gaussian import rho as rho_of
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.gaussian import noisy_means
from dpmf_jax.models import metrics
from dpmf_jax.noise import keys
from dpmf_jax.protocol import Factors
from dpmf_jax.training import controls
from experiments.reproduce.comparison import Row, row
from experiments.reproduce.paper001 import plans
from experiments.reproduce.paper001.figures import NON_PRIVATE, Figure
from experiments.reproduce.paper001.plans import Plan, Setting
from experiments.reproduce.paper001.runs import (
    NOISY_MEANS_SHARE,
    PARTS,
    TEST_STEPS,
    Curve,
    Run,
    split_part,
)
from experiments.reproduce.paper001.work import config, config_beside, priced, steps_paid

HELD_OUT = "held-out"
PRICED, MEANS, GLOBAL = "priced-item-means", "item-means", "global-mean"
WORDS = {
    "published": "as published",
    "joint-noise": "joint noise",
    "public-items": "public items",
    NON_PRIVATE: "without privacy",
    PRICED: "priced item means",
    MEANS: "item means",
    GLOBAL: "global mean",
}
ALONG = 8  # measurements of a curve that become rows; the picture is straight between them

EQUAL = (
    "All at the figure's J, learning rate, λ, rank and clip, and at the exact ε and δ of the"
    " published run. As published: the paper's own, its guarantee claimed and not proved, its"
    " centring by movie means unpriced. Joint noise: centred by the middle of the declared range."
    " Public items: random item factors, centred by noisy item means that take"
    f" {NOISY_MEANS_SHARE:.0%} of ρ. Both clip residuals at a quarter of the declared range and"
    " take its width as τ. None of these settings was searched for the sound variants: the"
    " learning rate and J are the paper's."
)


def summary(
    figure: Figure,
    plan: Plan,
    ratings: Ratings,
    trained: Mapping[Setting, Sequence[Run]],
    curves: Mapping[Run, Curve],
) -> dict[str, Any]:
    """What a record has beside the paper's rows:

    rows: controls on all ratings, and what was measured on held-out ones; without a paper's value.
    settings: what each of these rows promises.
    verdicts: see `_verdict`. sentence: what they come to.
    """
    paid = {setting: steps_paid(setting, trained[setting], curves) for setting in plan.settings}
    private = {setting: steps for setting, steps in paid.items() if setting.series != NON_PRIVATE}
    rows, settings, verdicts = [], [], []
    if private and "rmse" in figure.axes:
        smallest = min(
            private, key=lambda setting: _rho(figure, setting, ratings, private[setting])
        )
        seeds = smallest.seeds or plans.SEEDS[:1]
        rows, settings = _controls(figure, smallest, private[smallest], seeds, ratings, "all")
    if plan.beside:
        more, alike, verdicts = _held_out(figure, plan.beside, ratings, trained, curves)
        rows += more
        settings += alike
    return {
        "part": PARTS[HELD_OUT],
        "test_steps": TEST_STEPS,
        "seeds": sorted({seed for setting in plan.beside for seed in setting.seeds}),
        "equal": EQUAL if verdicts else "",
        "not_beside": plan.not_beside,
        "sentence": sentence(verdicts, ratings.name),
        "rows": rows,
        "settings": settings,
        "verdicts": verdicts,
    }


def _rho(figure: Figure, setting: Setting, ratings: Ratings, num_steps: int) -> float:
    z = config(figure, setting, ratings.rating_range).noise_multiplier
    assert z is not None
    return rho_of(z, num_steps)


def _held_out(
    figure: Figure,
    beside: Sequence[Setting],
    ratings: Ratings,
    trained: Mapping[Setting, Sequence[Run]],
    curves: Mapping[Run, Curve],
) -> tuple[list[Row], list[dict[str, Any]], list[dict[str, Any]]]:
    rows: list[Row] = []
    settings: list[dict[str, Any]] = []
    verdicts = []
    for setting in beside:
        if setting.beside == plans.BESIDE[0]:  # once a setting
            first = not rows
            more, promises = _controls(
                figure, setting, setting.num_steps, setting.seeds, ratings, HELD_OUT, first
            )
            rows += more
            settings += promises
        seeds = [curves[run] for run in trained[setting]]
        rows += _measured(setting, seeds, figure.x_name == "iteration")
        one = priced(figure, setting, ratings, curves, trained[setting]) | {
            "config": _config(figure, setting, ratings)
        }
        settings.append(one)
        against = PRICED if setting.series != NON_PRIVATE else MEANS
        verdicts.append(_verdict(one, rows, against) | _lowest(seeds))
    return rows, settings, verdicts


def _measured(setting: Setting, curves: Sequence[Curve], along: bool) -> list[Row]:
    """At the end and, over steps, along the way.

    The training error is that before the last update, as in the paper.
    """
    steps = sorted(curves[0].test)
    if along:
        chosen = {*np.round(np.geomspace(1, len(steps), ALONG)).astype(int).tolist(), len(steps)}
        steps = [steps[number - 1] for number in sorted(chosen)]
    else:
        steps = steps[-1:]
    rows = []
    for done in steps:
        assert setting.beside is not None
        values = {
            "rmse_train": [float(curve.rmse[min(done, len(curve.loss) - 1)]) for curve in curves],
            "rmse_test": [curve.test[done] for curve in curves],
        }
        place = float(done) if setting.x is None else setting.x
        kind = "end" if done == setting.num_steps else "along"
        rows += [
            row(
                setting.series,
                axis,
                kind,
                place,
                values[axis],
                step=done,
                num_steps=setting.num_steps,
                variant=setting.beside,
                part=HELD_OUT,
            )
            for axis in values
        ]
    return rows


def _config(figure: Figure, setting: Setting, ratings: Ratings) -> dict[str, Any]:
    """What differs from the figure's own settings."""
    published = config(figure, setting, ratings.rating_range)
    beside = config_beside(figure, setting, ratings.rating_range)
    if beside == published:
        return {}
    center = (
        f"noisy item means, {NOISY_MEANS_SHARE:g} of ρ"
        if setting.beside == "public-items"
        else beside.center
    )
    return {"center": center, "tau": beside.span, "residual_clip": beside.residual_clip}


def _controls(
    figure: Figure,
    setting: Setting,
    num_steps: int,
    seeds: Sequence[int],
    ratings: Ratings,
    part: str,
    unpriced: bool = True,
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Rows of the controls, and what they promise: item means at the whole exact price of a
    setting, and unpriced ones.

    On all ratings the axis is the paper's, "rmse"; on a part, that of the part and that of the
    rest.
    """
    train, test = split_part(part, ratings)
    rho = _rho(figure, setting, ratings, num_steps)
    noisy = [
        controls.noisy_item_means(train, keys.from_seed(seed), rho=rho).factors for seed in seeds
    ]
    models: list[tuple[str, str, list[Factors]]] = [(setting.series, PRICED, noisy)]
    if unpriced:
        models += [(NON_PRIVATE, MEANS, [controls.item_means(train)])]
        models += [(NON_PRIVATE, GLOBAL, [controls.global_mean(train)])]
    rows, settings = [], []
    for series, variant, seeded in models:
        place = float(num_steps) if setting.x is None else setting.x
        guarantee = _promise(variant, rho, ratings).with_seed(variant == PRICED)
        note = (
            f"ε = {printed(epsilon_exact(rho, plans.SETTINGS['delta']))}, the exact price of"
            f" {num_steps} steps at ε_i = {setting.series}"
            if variant == PRICED
            else "not private; the same for every setting"
        )
        for axis, measured_on in (
            {"rmse": train} if test is None else {"rmse_train": train, "rmse_test": test}
        ).items():
            values = [metrics.rmse(factors, measured_on) for factors in seeded]
            rows.append(
                row(series, axis, "control", place, values, note=note, variant=variant, part=part)
            )
        settings.append(
            {
                "series": series,
                "x": setting.x,
                "rank": None,
                "learning_rate": None,
                "noise_multiplier": math.sqrt(0.5 / rho) if variant == PRICED else None,
                "steps": guarantee.steps,
                "seeds": list(seeds) if variant == PRICED else [],
                "variant": variant,
                "part": part,
                "config": {
                    "center": None,
                    "regularization": None,
                    "clip_norm": None,
                    "delta_step": None,
                    "tau": (
                        ratings.rating_range[1] - ratings.rating_range[0]
                        if variant == PRICED
                        else None
                    ),
                },
                "headline": guarantee.headline,
                "guarantee": guarantee,
            }
        )
    return rows, settings


def _promise(variant: str, rho: float, ratings: Ratings) -> accounting.Guarantee:
    if variant != PRICED:
        return accounting.no_guarantee(mechanism=variant, num_steps=1, released=("the mean",))
    means = noisy_means.Config(
        rating_range=ratings.rating_range,
        noise_multiplier=math.sqrt(0.5 / rho),
        delta=plans.SETTINGS["delta"],
    )
    return noisy_means.mechanism(means).guarantee(1)


def _verdict(setting: Mapping[str, Any], rows: Iterable[Row], against: str) -> dict[str, Any]:
    """A variant at a setting against its control: held-out RMSE, mean over the seeds; below it, the
    model beats it.

    Private models are held to the private control of the same exact ε and δ, the non-private one to
    item means.
    """
    rows = list(rows)

    def value(variant: str, axis: str, kind: str) -> float:
        place = setting["x"]
        series = setting["series"]
        (its,) = [
            one.value
            for one in rows
            if (one.series, one.variant, one.axis, one.kind) == (series, variant, axis, kind)
            and (place is None or one.x == place or variant == MEANS)
        ]
        return its

    guarantee = setting["guarantee"]
    error, control = (
        value(setting["variant"], "rmse_test", "end"),
        value(against, "rmse_test", "control"),
    )
    return {
        **{
            name: setting[name]
            for name in ("series", "x", "rank", "variant", "steps", "seeds", "headline")
        },
        "epsilon_exact": (
            None if guarantee.rho is None else epsilon_exact(guarantee.rho, guarantee.delta)
        ),
        "status": guarantee.status,
        "relation": str(guarantee.relation),
        "rmse_train": value(setting["variant"], "rmse_train", "end"),
        "rmse_test": error,
        "control": against,
        "control_rmse_test": control,
        "verdict": "beats" if error < control else "DOES NOT BEAT",
    }


def _lowest(curves: Sequence[Curve]) -> dict[str, Any]:
    """The lowest held-out RMSE along the run, mean over seeds: found with the held-out ratings."""
    mean = {
        steps: math.fsum(curve.test[steps] for curve in curves) / len(curves)
        for steps in curves[0].test
    }
    step = min(mean, key=lambda steps: mean[steps])
    return {"lowest_rmse_test": mean[step], "lowest_step": step}


def sentence(verdicts: Sequence[Mapping[str, Any]], ratings: str) -> str:
    """What the verdicts come to, for a reader who sees nothing else; "" where nothing was
    measured.
    """
    if not verdicts:
        return ""
    seeds = sorted({len(one["seeds"]) for one in verdicts})
    counts = {}
    for variant in plans.BESIDE:
        here = [one for one in verdicts if one["variant"] == variant]
        counts[variant] = (sum(one["verdict"] == "beats" for one in here), len(here))
    number = counts[plans.BESIDE[0]][1]
    opening = (
        f"On held-out ratings of {ratings} ({_seeds(seeds)}), at {number} private"
        f" setting{'' if number == 1 else 's'}, item means that cost the same exact ε and δ and"
        " need no factors are beaten "
    )
    if not any(beaten for beaten, _ in counts.values()):
        nothing = "by no private model, neither as published nor sound."
        return f"{opening}{nothing} {_without(verdicts)}".strip()
    sound = ", ".join(
        f"at {counts[variant][0]} by {WORDS[variant]}" for variant in plans.BESIDE[1:]
    )
    published = (
        f"at {counts['published'][0]} by the mechanism as published, whose guarantee is claimed and"
        " not proved"
    )
    return f"{opening}{sound}, and {published}. {_without(verdicts)}".strip()


def _without(verdicts: Sequence[Mapping[str, Any]]) -> str:
    open_ones = [one for one in verdicts if one["variant"] == NON_PRIVATE]
    if not open_ones:
        return ""
    beaten = sum(one["verdict"] == "beats" for one in open_ones)
    return (
        f"Without noise the factorisation beats plain item means in {beaten} of {len(open_ones)}"
        " runs."
    )


def _seeds(numbers: Sequence[int]) -> str:
    words = " to ".join(str(number) for number in dict.fromkeys((numbers[0], numbers[-1])))
    return f"{words} seed{'' if numbers[-1] == 1 else 's'} each"
