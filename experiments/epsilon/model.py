"""`dpmf epsilon model`: what a saved model promised, priced again; no data, and no jax."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dpmf_jax.errors import UsageError
from experiments.cli import console
from experiments.epsilon import flags as epsilon_flags
from experiments.epsilon import report

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee

PROGRAM = "dpmf epsilon model"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """The price of a saved model by every accountant, from the noise it says it had.

    At another --delta too. It reads model.json, checks that files are the ones that were saved, and
    nothing private.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """The folder that `dpmf fit` wrote."""
    delta: float | None = None
    """Price it at this delta; by default the one it was saved with."""
    user_ratings: int | None = None
    """Also the price of all ratings of a user who has so many."""
    curves: Path | None = None
    """Folder for epsilon-steps (phases in their order) and delta-epsilon, as svg and csv (extra
    `report`).
    """
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    from accounting import loss
    from dpmf_jax.models import files as model_file

    epsilon_flags.check_flags(command, pure=True)
    saved = model_file.read(command.model).guarantee
    if (
        command.delta == 0
        and saved.status != "none"
        and not all(isinstance(one, loss.Pure) for one in saved.losses)
    ):
        raise UsageError(
            "--delta must be between 0 and 1, both excluded: the noise of this model has no finite"
            " ε at δ = 0",
            where=str(command.model),
            fix=f"--delta {report.delta_text(saved.delta)}, with which it was saved",
        )
    with epsilon_flags.pricing(PROGRAM):
        result, guarantee = _price(command, saved)
        if command.curves is not None:
            result["curves"] = _curves(command.curves, result, guarantee)
    console.emit(result, json=command.json, render=lambda shown: _render(shown, guarantee))


def _price(command: Command, saved: Guarantee) -> tuple[dict[str, Any], Guarantee]:
    from accounting import price

    delta = saved.delta if command.delta is None else command.delta
    guarantee, notes = saved.at_delta(delta), []
    if saved.status == "none":
        delta, prices = saved.delta, {}
        notes.append("no noise stands between the ratings and what is released, at any δ")
    else:
        prices = price.accountants(guarantee.losses, delta, unit=guarantee.unit)
    for name, value in prices.items():
        before = saved.accountants.get(name) if delta == saved.delta else None
        if before is not None and not math.isclose(before, value, rel_tol=1e-6):
            notes.append(
                f"{name} was {before:.6g} when the model was saved, {value:.6g} now: another"
                " version of a library?"
            )
    notes += report.price_notes(prices, delta)
    own = {name: value for name, value in guarantee.accountants.items() if name == "paper"}
    user = None
    if command.user_ratings and saved.status != "none":
        user = guarantee.for_user(command.user_ratings)._asdict()
    elif command.user_ratings:
        notes.append("no price per user is known where nothing is promised")
    result = {
        "model": str(command.model),
        "mechanism": guarantee.mechanism,
        "epsilon": guarantee.epsilon,
        "delta": delta,
        "saved_epsilon": saved.epsilon,
        "saved_delta": saved.delta,
        "steps": guarantee.steps,
        "rho": guarantee.rho,
        "noise_multiplier": guarantee.noise_multiplier,
        "sensitivity": guarantee.sensitivity,
        "seeded": guarantee.seeded,
        "released": list(guarantee.released),
        **own,
        **prices,
        "accountants": {**own, **prices},
        "kinds": report.kinds([*own, *prices]),
        **report.guarantee_fields(guarantee),
        "user": user,
        "curves": None,
        "notes": notes,
    }
    return result, guarantee


def _curves(folder: Path, result: Mapping[str, Any], guarantee: Guarantee) -> list[str]:
    from experiments.epsilon import curves as epsilon_curves

    if guarantee.status == "none":
        raise UsageError(
            "--curves: without a guarantee there is no price to draw",
            where=result["model"],
            fix="leave out --curves",
        )
    return epsilon_curves.draw(
        folder,
        epsilon_curves.first_steps(guarantee.losses),
        guarantee,
        title=f"{guarantee.mechanism}, saved",
        accountants=("paper", "basic", "optimal", "closed_form", "rdp", "pld", "exact"),
        points=7,
    )


def _render(result: Mapping[str, Any], guarantee: Guarantee) -> Any:
    lines = [*report.user_lines(result), *report.written_lines(result)]
    if result["delta"] != result["saved_delta"]:
        lines.append(
            f"saved with ε = {report.epsilon_text(result['saved_epsilon'], 4)} at δ ="
            f" {report.delta_text(result['saved_delta'])}"
        )
    title = f"{result['model']}: {guarantee.mechanism}, {report.counted(guarantee.steps, 'step')}"
    drawn = (
        report.table(title, result["accountants"], result["delta"])
        if result["accountants"]
        else title
    )
    return report.page(drawn, lines, result["notes"], report.without_prices(guarantee))
