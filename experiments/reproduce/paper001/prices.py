"""Measurements of the price of paper 001's runs: equations (7) to (9), without any stored rows.

Each takes the `Evidence`, of which it reads nothing, and returns a `Judged`.
"""

from __future__ import annotations

import math

from accounting.gaussian import epsilon_closed_form, epsilon_exact, rho_from_step
from experiments.reproduce.claims import Judged
from experiments.reproduce.paper001 import figures, plans
from experiments.reproduce.paper001.measurements import Evidence, each
from experiments.reproduce.paper001.work import overall_epsilon

TIGHT = 0.01  # relative, above the exact ε


def _prices() -> dict[str, tuple[float, int]]:
    """ρ and J of the paper's plotted runs at rank 20, by ε_i."""
    plan = plans.plan(figures.FIGURES["001/fig4"], figures.Request())
    return {
        s.series: (rho_from_step(float(s.series), plans.DELTA_STEP, s.num_steps), s.num_steps)
        for s in plan.settings
    }


def closed_form(evidence: Evidence) -> Judged:
    del evidence
    from scipy.optimize import minimize_scalar

    delta, off = plans.SETTINGS["delta"], {}
    for series, (rho, _) in _prices().items():

        def price(log: float, rho: float = rho) -> float:
            return (1 + math.exp(log)) * rho + math.log(1 / delta) * math.exp(-log)

        least = minimize_scalar(
            price, bounds=(-20, 20), method="bounded", options={"xatol": 1e-12}
        ).fun
        off[series] = abs(epsilon_closed_form(rho, delta) / least - 1)
    worst = max(off.values())
    value = f"largest relative difference {worst:.1e} at the {len(off)} plotted settings"
    return Judged(value, worst <= 1e-9, "dpmf epsilon verify does the same at 10,000 settings", off)


def tight(evidence: Evidence) -> Judged:
    del evidence
    delta, above, parts = plans.SETTINGS["delta"], {}, []
    for series, (rho, steps) in _prices().items():
        claimed, exact = epsilon_closed_form(rho, delta), epsilon_exact(rho, delta)
        above[series] = claimed / exact - 1
        parts.append(
            f"ε_i = {series}, J = {steps}: {claimed:.2f}, exact {exact:.2f} ({above[series]:+.1%})"
        )
    holds = max(above.values()) <= TIGHT
    why = (
        "a valid upper bound; the same runs have a smaller ε at the same δ, by the exact Gaussian"
        " trade-off"
    )
    return Judged("; ".join(parts), holds, why, above)


def proportional(evidence: Evidence) -> Judged:
    del evidence
    prices = _prices().items()
    times = {
        name: overall_epsilon(name, 2 * steps) / overall_epsilon(name, steps)
        for name, (_, steps) in prices
    }
    holds = all(abs(ratio - 2) <= 0.02 for ratio in times.values())
    why = (
        "ε grows with J; what is proportional to J is ρ, the Rényi price at a fixed order, not the"
        " ε after (8)"
    )
    return Judged(f"twice the steps: {each(times, '.2f')} times the ε", holds, why, times)
