"""`dpmf epsilon objective`: the price of the noise of paper 003's perturbed objective."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import PrivacyError, UsageError
from dpmf_jax.mechanisms.objective.guarantee import (
    published_guarantee,
    real_closed_form_guarantee,
    real_statistics_guarantee,
)
from experiments.cli import console
from experiments.epsilon import flags as epsilon_flags
from experiments.epsilon import report
from experiments.epsilon import scale as scale_of

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee

PROGRAM = "dpmf epsilon objective"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """The price of paper 003's perturbed objective at a --scale, or the scale for an --epsilon.

    objective is as published: its user factors are fitted on the same ratings, so it is only
    claimed. objective-public-users is its sound variant. Both are for a rating's value.
    objective-statistics has noise on both sums, and is for a rating's presence.
    """

    mechanism: Literal["objective", "objective-public-users", "objective-statistics"] = "objective"
    """Whose noise it is: it decides status and relation."""
    unit: Literal["rating-value", "rating-presence"] | None = None
    """What neighbouring data sets differ in; the mechanism's own by default."""
    noise: Literal["laplace", "l2-laplace", "gaussian"] | None = None
    """laplace: in every coordinate; l2-laplace: by its L2 norm (the default); gaussian: always for
    the statistics.
    """
    scale: float | None = None
    """b of the Laplace noises, sigma of the Gaussian, of the noise on twice the sum of u·r."""
    epsilon: float | None = None
    """A target to solve the scale for, instead; the answer costs no more."""
    range_width: float | None = None
    """Width of the declared range of ratings: the largest change of one."""
    rank: int | None = None
    """d, the number of factors."""
    matrix_scale: float | None = None
    """objective-statistics: sigma on the sum of u·u', instead of --scale."""
    vector_scale: float | None = None
    """objective-statistics: sigma on the sum of u·r."""
    rating_bound: float | None = None
    """objective-statistics: ratings are clipped to so much on either side of a public centre."""
    delta: float | None = None
    """For Gaussian noise, 1e-5 by default; pure noise needs none."""
    solve: Literal["epsilon", "scale", "delta"] | None = None
    """What is unknown; without it the scale where --epsilon is given, epsilon otherwise. delta:
    Gaussian noise only.
    """
    user_ratings: int | None = None
    """Also the price of all ratings of a user who has so many."""
    curves: Path | None = None
    """Folder for epsilon-steps (of releases, this being one) and delta-epsilon, as svg and csv
    (extra `report`).
    """
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Objective) -> None:
    epsilon_flags.check_flags(command)
    with epsilon_flags.pricing(PROGRAM):
        result, guarantee = _price(command)
        if command.curves is not None:
            result["curves"] = scale_of.curves(
                command.curves, result, guarantee, noun="release", letter="k"
            )
    console.emit(result, json=command.json, render=lambda shown: scale_of.render(shown, guarantee))


def _price(command: Objective) -> tuple[dict[str, Any], Guarantee]:
    statistics = command.mechanism == "objective-statistics"
    own = "rating-presence" if statistics else "rating-value"
    if command.unit not in (None, own):
        if not statistics:
            raise PrivacyError(
                f"mechanism {command.mechanism} has no finite ε for a rating's presence",
                where=(
                    "a rating added or removed moves the noise by its residual, which grows with"
                    " the item factors"
                ),
                fix="--mechanism objective-statistics, which has noise on both sums",
            )
        raise PrivacyError(
            "mechanism objective-statistics is priced for a rating's presence",
            where="a changed value is one removed and one added, at up to four times ρ",
            fix="--unit rating-presence, or --mechanism objective-public-users",
        )
    result, guarantee = _statistics(command) if statistics else _value_change(command)
    user = guarantee.for_user(command.user_ratings)._asdict() if command.user_ratings else None
    return {
        **result,
        "user": user,
        "curves": None,
        "notes": report.price_notes(guarantee.accountants, guarantee.delta),
    }, guarantee


def _value_change(command: Objective) -> tuple[dict[str, Any], Guarantee]:
    from accounting import objective

    unused = ("matrix_scale", "vector_scale", "rating_bound")
    epsilon_flags.require(
        command,
        PROGRAM,
        needed=("range_width", "rank"),
        unused=unused,
        why=f"mechanism {command.mechanism}",
    )
    solve = epsilon_flags.unknown_quantity(command, PROGRAM, noise=(("scale",),))
    noise = scale_of.law(command.noise or "l2-laplace")
    delta = _delta(command, noise)
    if solve == "delta" and delta is None:
        raise UsageError(
            "pure noise costs the same at every δ", where=PROGRAM, fix="--solve epsilon, or scale"
        )
    assert command.range_width is not None
    assert command.rank is not None
    shape: dict[str, Any] = {"range_width": command.range_width, "rank": command.rank}
    scale = command.scale
    if solve == "scale":
        assert command.epsilon is not None
        scale = objective.value_change_scale(
            noise=noise, epsilon=command.epsilon, delta=delta, **shape
        )
    assert scale is not None
    if command.mechanism == "objective":
        guarantee = published_guarantee(noise=noise, scale=scale, **shape)
    else:
        guarantee = real_closed_form_guarantee(
            noise=noise, scale=scale, delta=delta or 0.0, **shape
        )
    if solve == "delta":
        guarantee = guarantee.at_delta(
            scale_of.least_delta(guarantee, command.epsilon or math.nan, PROGRAM)
        )
    title = f"{noise.replace('_', '-')} noise, b or σ = {report.at_least(scale)}"
    fields = scale_of.result_fields(command, guarantee, title, scale, solve)
    squared = objective.squared_noise(noise, scale=scale, rank=command.rank)
    return {
        **fields,
        "noise": noise.replace("_", "-"),
        **shape,
        "squared_noise_per_item": squared,
    }, guarantee


def _statistics(command: Objective) -> tuple[dict[str, Any], Guarantee]:
    from accounting import objective

    why = "mechanism objective-statistics"
    epsilon_flags.require(
        command, PROGRAM, needed=("rating_bound",), unused=("scale", "range_width", "rank"), why=why
    )
    solve = epsilon_flags.unknown_quantity(
        command, PROGRAM, noise=(("matrix_scale", "vector_scale"),)
    )
    if command.noise not in (None, "gaussian"):
        raise UsageError(
            f"{why} has Gaussian noise, not {command.noise}", where=PROGRAM, fix="--noise gaussian"
        )
    delta = _delta(command, "gaussian")
    assert delta is not None
    assert command.rating_bound is not None
    matrix, vector = command.matrix_scale, command.vector_scale
    if solve == "scale":
        assert command.epsilon is not None
        matrix, vector = objective.statistics_scales(
            epsilon=command.epsilon, delta=delta, rating_bound=command.rating_bound
        )
    assert matrix is not None
    assert vector is not None
    guarantee = real_statistics_guarantee(
        matrix_scale=matrix, vector_scale=vector, rating_bound=command.rating_bound, delta=delta
    )
    if solve == "delta":
        guarantee = guarantee.at_delta(
            scale_of.least_delta(guarantee, command.epsilon or math.nan, PROGRAM)
        )
    title = (
        f"gaussian noise, σ = {report.at_least(matrix)} on Σuuᵀ, {report.at_least(vector)} on Σur"
    )
    fields = scale_of.result_fields(command, guarantee, title, None, solve)
    scales = {"matrix_scale": matrix, "vector_scale": vector, "rating_bound": command.rating_bound}
    return {**fields, "noise": "gaussian", **scales}, guarantee


def _delta(command: Objective, noise: str) -> float | None:
    """δ of the Gaussian; None for pure noise, where giving one is refused."""
    if noise == "gaussian":
        if command.mechanism == "objective":
            raise UsageError(
                "mechanism objective is the paper's: its noise is laplace or l2-laplace",
                where=PROGRAM,
                fix="--mechanism objective-public-users --noise gaussian",
            )
        return epsilon_flags.USUAL_DELTA if command.delta is None else command.delta
    if command.delta is not None:
        raise UsageError(
            f"--delta means nothing for pure noise ({command.noise or 'l2-laplace'})",
            where=PROGRAM,
            fix="leave out --delta",
        )
    return None
