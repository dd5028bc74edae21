"""`dpmf epsilon federated`: the price of T noisy iterations of paper 003, claimed or per user."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.federated.guarantee import (
    iterations_guarantee,
    published_iterations_guarantee,
)
from experiments.cli import console
from experiments.epsilon import flags as epsilon_flags
from experiments.epsilon import report
from experiments.epsilon import scale as scale_of

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee

PROGRAM = "dpmf epsilon federated"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Federated:
    """The price of T noisy iterations of paper 003's federated protocol.

    With --epsilon alone: as published, the paper's number and T times as much, claimed and not
    proved. With --clip-norm: every user clips a whole message; proved, per user, by --scale or
    solved for an --epsilon.
    """

    iterations: int | None = None
    """T, fixed up front."""
    epsilon: float | None = None
    """As published: of the noise in each iteration. With --clip-norm: a target of the whole to
    solve the scale for.
    """
    range_width: float | None = None
    """As published: width of the declared range of ratings, 4 by default (1 to 5 stars); the price
    is the same.
    """
    clip_norm: float | None = None
    """C, the bound on a user's whole message in one iteration."""
    noise: Literal["laplace", "l2-laplace", "gaussian"] | None = None
    """With --clip-norm: its law, gaussian by default; it decides in which norm a message is
    clipped.
    """
    scale: float | None = None
    """With --clip-norm: b or sigma of the sum over users, in every iteration."""
    change: Literal["replace", "remove"] | None = None
    """With --clip-norm: a user's data are all replaced (the default), or removed."""
    honest_shares: int | None = None
    """With --clip-norm: how many users, whoever drops out or colludes, surely add their share of
    the noise.
    """
    delta: float | None = None
    """With --clip-norm: 1e-5 for Gaussian noise; for pure noise that of the optimal composition,
    none by default.
    """
    solve: Literal["epsilon", "scale", "iterations", "delta"] | None = None
    """With --clip-norm: what is unknown; without it the scale where --epsilon is given, epsilon
    otherwise.
    """
    curves: Path | None = None
    """Folder for epsilon-steps (of iterations) and delta-epsilon, as svg and csv (extra `report`).
    """
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Federated) -> None:
    epsilon_flags.check_flags(command, pure=command.noise in ("laplace", "l2-laplace"))
    with epsilon_flags.pricing(PROGRAM):
        result, guarantee = _price(command)
        if command.curves is not None:
            result["curves"] = scale_of.curves(
                command.curves, result, guarantee, noun="iteration", letter="T"
            )
    console.emit(result, json=command.json, render=lambda shown: scale_of.render(shown, guarantee))


def _price(command: Federated) -> tuple[dict[str, Any], Guarantee]:
    if command.clip_norm is None:
        unused = ("scale", "honest_shares", "delta", "noise", "change")
        why = "without --clip-norm, as published"
        unused = (*unused, *(("solve",) if command.solve not in (None, "epsilon") else ()))
        epsilon_flags.require(
            command, PROGRAM, needed=("epsilon", "iterations"), unused=unused, why=why
        )
        assert command.epsilon is not None
        assert command.iterations is not None
        guarantee = published_iterations_guarantee(
            epsilon=command.epsilon,
            num_iterations=command.iterations,
            range_width=command.range_width or 4.0,
        )
        title = f"{report.counted(command.iterations, 'iteration')} as published"
        fields = scale_of.result_fields(command, guarantee, title, None, "epsilon")
        fields |= {
            "target": None,
            "epsilon_iteration": command.epsilon,
            "iterations": command.iterations,
        }
        note = (
            "the paper states ε once, for the whole run; each iteration is a release of its own,"
            " and they add up"
        )
        return {**fields, "user": None, "curves": None, "notes": [note]}, guarantee
    why = "with --clip-norm, per user"
    epsilon_flags.require(
        command, PROGRAM, needed=("honest_shares",), unused=("range_width",), why=why
    )
    solve = epsilon_flags.unknown_quantity(
        command, PROGRAM, noise=(("scale",),), others=("iterations",)
    )
    noise, change = scale_of.law(command.noise or "gaussian"), command.change or "replace"
    delta = (
        command.delta
        if noise != "gaussian" or command.delta is not None
        else epsilon_flags.USUAL_DELTA
    )
    shape: dict[str, Any] = {"clip_norm": command.clip_norm, "change": change}
    scale, iterations, cut = command.scale, command.iterations, []
    if solve == "scale":
        assert iterations is not None
        scale = _iterations_scale(command, noise, delta, shape)
    assert scale is not None
    if solve == "iterations":
        iterations, cut = _affordable(command, noise, scale, delta, shape, PROGRAM)
    assert iterations is not None
    assert command.honest_shares is not None
    shape |= {"num_iterations": iterations}
    guarantee = iterations_guarantee(
        noise=noise, scale=scale, honest_shares=command.honest_shares, delta=delta or 0.0, **shape
    )
    if solve == "delta":
        guarantee = guarantee.at_delta(
            scale_of.least_delta(guarantee, command.epsilon or math.nan, PROGRAM)
        )
    law = noise.replace("_", "-")
    title = (
        f"{report.counted(iterations, 'iteration')}, {law} noise, b or σ = {report.at_least(scale)}"
    )
    fields = scale_of.result_fields(command, guarantee, title, scale, solve)
    fields |= {"iterations": iterations, "clip_norm": command.clip_norm, "change": change}
    return {
        **fields,
        "noise": law,
        "user": None,
        "curves": None,
        "notes": [*cut, *report.price_notes(guarantee.accountants, guarantee.delta)],
    }, guarantee


def _iterations_scale(
    command: Federated, noise: Any, delta: float | None, shape: Mapping[str, Any]
) -> float:
    """The smallest scale whose stated price is at most ε.

    Where pure noise has a δ, that is the optimal composition.
    """
    from accounting import iterations, pure

    assert command.epsilon is not None
    assert command.iterations is not None
    if noise == "gaussian" or not delta:
        of_solver = delta if noise == "gaussian" else None
        epsilon, count = command.epsilon, command.iterations
        return iterations.iterations_scale(
            noise=noise, epsilon=epsilon, delta=of_solver, num_iterations=count, **shape
        )
    each = pure.solve_epsilon_round(command.epsilon, command.iterations, delta)
    scale = iterations.iterations_scale(noise=noise, epsilon=each, num_iterations=1, **shape)
    # ε of all iterations is a product, rounded up, and shared again where it is priced.
    return scale * (1 + 1e-12)


def _affordable(
    command: Federated,
    noise: Any,
    scale: float,
    delta: float | None,
    shape: Mapping[str, Any],
    program: str,
) -> tuple[int, list[str]]:
    """The largest number of iterations that costs at most ε, and a note where it is cut."""
    from accounting import gaussian, iterations, loss, pure

    assert command.epsilon is not None
    one = iterations.iterations_per_user(noise=noise, scale=scale, num_iterations=1, **shape)
    if isinstance(one, loss.Gaussian):
        assert delta is not None
        count = gaussian.solve_num_steps(command.epsilon, delta, one.noise_multiplier)
    else:
        assert isinstance(one, loss.Pure)
        each = one.epsilon if not delta else one.epsilon * (1 + 1e-12)
        count = pure.solve_num_rounds(command.epsilon, each, delta or 0.0)
        more = iterations.iterations_per_user(
            noise=noise, scale=scale, num_iterations=count + 1, **shape
        )
        if not delta and isinstance(more, loss.Pure) and more.epsilon <= command.epsilon:
            count += 1  # ε of one was rounded up, and the product is not that of rounded ones
    if not count >= 1:
        raise UsageError(
            f"not one iteration costs as little as ε = {report.in_full(command.epsilon)}",
            where=PROGRAM,
            fix="a larger --scale or --epsilon, or a smaller --clip-norm",
        )
    return epsilon_flags.capped(count, "iterations")
