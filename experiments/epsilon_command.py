"""`dpmf epsilon`: what Gaussian steps cost, by every accountant; no data, no training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from dpmf_jax.errors import UsageError
from experiments import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """The price of J Gaussian steps, or (--epsilon) the noise and epsilon_step that a budget buys."""

    steps: int
    """J, fixed up front."""
    epsilon_step: float | None = None
    """Paper 001's epsilon_i: sigma / sensitivity = sqrt(2 ln(1.25 / delta_step)) / epsilon_i."""
    noise_multiplier: float | None = None
    """sigma / sensitivity of a step, instead."""
    epsilon: float | None = None
    """A total to solve the noise for, instead; the answer costs no more than this."""
    price: Literal["exact", "closed_form"] = "exact"
    """The accountant that --epsilon is stated in."""
    delta_step: float = 0.01
    """Goes with --epsilon-step."""
    delta: float = 1e-5
    """Delta of the total."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    from accounting import gaussian
    from accounting.gaussian import round_up

    given = [name for name in ("epsilon_step", "noise_multiplier", "epsilon") if getattr(command, name) is not None]
    if len(given) != 1:
        raise UsageError(
            "exactly one of --epsilon-step, --noise-multiplier and --epsilon is needed",
            fix="dpmf epsilon --steps 791 --epsilon-step 0.15",
        )
    if command.steps < 1:
        raise UsageError(f"--steps must be at least 1; got {command.steps}", fix="--steps 100")
    with console.usage_errors(fix="dpmf epsilon --help"):
        if command.noise_multiplier is not None:
            z = command.noise_multiplier
        elif command.epsilon_step is not None:
            z = gaussian.noise_multiplier_from_step(command.epsilon_step, command.delta_step)
        else:
            assert command.epsilon is not None
            z = gaussian.solve_noise_multiplier(command.epsilon, command.delta, command.steps, price=command.price)
        rho = gaussian.rho(z, command.steps)
        prices = gaussian.accountants(z, command.steps, command.delta)
        result = {
            "steps": command.steps,
            "noise_multiplier": z,
            "epsilon_step": gaussian.step_from_noise_multiplier(z, command.delta_step),
            "delta_step": command.delta_step,
            "rho": rho,
            "optimal_order": gaussian.optimal_order(rho, command.delta),
            "delta": command.delta,
            "accountants": {name: round_up(value, 6) for name, value in prices.items()},
            "kinds": KINDS,
            "unit": "whatever one step's sensitivity is the sensitivity of; see a mechanism's guarantee",
        }
    console.emit(result, json=command.json, render=render)


KINDS = {
    "closed_form": "upper bound: paper 001, equation (9)",
    "rdp": "upper bound: Rényi, dp-accounting",
    "pld": "upper bound: privacy loss distribution, dp-accounting",
    "exact": "exact: the Gaussian trade-off",
}


def render(result: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table(
        title=f"{result['steps']} Gaussian steps, z = {result['noise_multiplier']:.6g} "
        f"(epsilon_i = {result['epsilon_step']:.6g} at delta = {result['delta_step']:g}), rho = {result['rho']:.6g}",
        caption=f"unit: {result['unit']}; alpha* = {result['optimal_order']:.4g}",
    )
    table.add_column("accountant")
    table.add_column(f"ε at δ = {result['delta']:g}, rounded up", justify="right")
    table.add_column("kind")
    for name, value in result["accountants"].items():
        table.add_row(name, f"{value:.6f}", result["kinds"].get(name, ""))
    return table
