"""What J adaptive Gaussian steps cost, and which steps a budget buys.

One number carries a price: ρ = J/(2z²), z = σ/Δ the noise multiplier of a step with L2 sensitivity
Δ (ρ-zCDP, Bun & Steinke 2016). For Gaussians it says everything: J steps are together exactly one
Gaussian of mean shift μ = √(2ρ). `accountants` turns ρ into ε in five ways. All but `basic` are
ordered: `exact <= pld (+1e-9) <= rdp <= closed_form`.

- `basic`: every step at (ε, δ/J) and J times that ε. An upper bound: exact at J = 1, far off at
  J = 1000.
- `closed_form`: equation (9) of paper 001, which is Mironov's conversion minimised over real
  orders. An upper bound.
- `rdp`: dp_accounting's RDP accountant, whose conversion (Canonne, Kamath & Steinke 2020) is
  tighter. An upper bound.
- `pld`: dp_accounting's privacy loss distribution. An upper bound, nearly exact.
- `exact`: the Gaussian trade-off; no smaller ε holds.

Every price errs on the upper side, every inverse on the safe one. The exact price is
`accounting.trade_off`, the bounds are `accounting.gaussian_bounds`; their names are here as well.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal, get_args

from accounting import guards
from accounting.gaussian_bounds import PLD_LIMIT as PLD_LIMIT
from accounting.gaussian_bounds import delta_closed_form as delta_closed_form
from accounting.gaussian_bounds import delta_pld as delta_pld
from accounting.gaussian_bounds import delta_rdp as delta_rdp
from accounting.gaussian_bounds import epsilon_basic as epsilon_basic
from accounting.gaussian_bounds import epsilon_closed_form as epsilon_closed_form
from accounting.gaussian_bounds import epsilon_pld as epsilon_pld
from accounting.gaussian_bounds import epsilon_rdp as epsilon_rdp
from accounting.gaussian_bounds import inverse as inverse
from accounting.gaussian_bounds import loss_distribution as loss_distribution
from accounting.gaussian_bounds import optimal_order as optimal_order
from accounting.trade_off import bisect
from accounting.trade_off import delta_exact as delta_exact
from accounting.trade_off import epsilon_exact as epsilon_exact
from accounting.trade_off import rho as rho

Price = Literal["exact", "closed_form", "rdp", "pld"]


def noise_multiplier_from_step(epsilon_step: float, delta_step: float = 0.01) -> float:
    """z = √(2 ln(1.25/δ))/ε_i, the way paper 001 writes σ/Δ.

    Theorem 1 of the paper reads (ε_i, δ) as the privacy of one step. It holds for ε_i < 1 only, and
    J such steps add up to J·δ, which is 1 from J = 100 on at δ = 0.01. Here the pair only writes z,
    for any ε_i > 0, and ρ prices it.
    """
    return _step_constant(delta_step) / guards.positive("epsilon_step", epsilon_step)


def step_from_noise_multiplier(noise_multiplier: float, delta_step: float = 0.01) -> float:
    """ε_i = √(2 ln(1.25/δ))/z, the inverse of `noise_multiplier_from_step`."""
    return _step_constant(delta_step) / guards.positive("noise_multiplier", noise_multiplier)


def rho_from_step(epsilon_step: float, delta_step: float, num_steps: int) -> float:
    """ρ = J ε_i²/(4 ln(1.25/δ)) of J steps that are written as (ε_i, δ)."""
    return rho(noise_multiplier_from_step(epsilon_step, delta_step), num_steps)


def accountants(noise_multiplier: float, num_steps: int, delta: float) -> dict[str, float]:
    """ε of J steps at noise multiplier z, by accountant: basic, closed_form, rdp, pld, exact.

    From closed_form on they fall. pld is left out above `PLD_LIMIT`. The first call imports
    dp_accounting, which takes a second; later ones take 20 to 200 ms.
    """
    r = rho(noise_multiplier, num_steps)
    prices = {
        "basic": epsilon_basic(r, num_steps, delta),
        "closed_form": epsilon_closed_form(r, delta),
        "rdp": epsilon_rdp(noise_multiplier, num_steps, delta),
    }
    if r <= PLD_LIMIT:
        prices["pld"] = epsilon_pld(noise_multiplier, num_steps, delta)
    return {**prices, "exact": epsilon_exact(r, delta)}


# --------------------------------------------------------------------------------------------------


def solve_rho(epsilon: float, delta: float, *, price: Price = "exact") -> float:
    """The largest ρ whose price at δ is at most ε, with room for a few roundings of z.

    Largest to 1e-11 relative for the prices that are formulas, to 1e-8 for the others.

    Args:
      epsilon, delta: the target; ε > 0, 0 < δ < 1.
      price: the accountant that the target is stated in: "exact", "closed_form", "rdp" or "pld".

    Raises:
      ValueError: ε or δ is out of range, `price` has another name, or it is "pld" and cannot be had
        at this ε and δ.
    """
    target, delta, priced = (
        guards.positive("epsilon", epsilon),
        guards.probability("delta", delta),
        _epsilon_by(price),
    )
    log_inverse = -math.log(delta)
    # The root of ρ + 2√(ρ ln(1/δ)) = ε, without the cancellation of √(L + ε) − √L. Every other
    # price affords it too.
    affordable = (target / (math.sqrt(log_inverse + target) + math.sqrt(log_inverse))) ** 2
    if not affordable > 0:
        raise ValueError(f"epsilon {target!r} is too small: no positive ρ is affordable")
    if price == "closed_form":
        return _with_room(affordable, lambda r: epsilon_closed_form(r, delta) <= target)
    dear = 2 * affordable
    low = affordable
    while delta_exact(dear, target) <= delta:
        low, dear = dear, 2 * dear
    low, _ = bisect(lambda r: delta_exact(r, target) > delta, low, dear)
    if price == "exact":
        return _with_room(low, lambda r: epsilon_exact(r, delta) <= target)
    return _between(lambda r: priced(1 / math.sqrt(2 * r), 1, delta) - target, affordable, low)


def solve_noise_multiplier(
    epsilon: float, delta: float, num_steps: int, *, price: Price = "exact"
) -> float:
    """The smallest noise multiplier z at which J steps cost at most ε at δ, as near as `solve_rho`.

    Raises:
      ValueError: as `solve_rho`, or there is no step to take.
    """
    steps, priced = guards.count("num_steps", num_steps, 1), _epsilon_by(price)
    z = math.sqrt(steps / 2 / solve_rho(epsilon, delta, price=price))
    return 1 / _with_room(
        1 / z, lambda inverse: priced(1 / inverse, steps, delta) <= epsilon, room=0.0
    )


def solve_epsilon_step(
    epsilon: float,
    delta: float,
    num_steps: int,
    delta_step: float = 0.01,
    *,
    price: Price = "exact",
) -> float:
    """The largest ε_i at which J steps cost at most ε at δ, as near as `solve_rho`.

    `noise_multiplier_from_step` says what ε_i is. The answer may exceed 1, where Theorem 1 of paper
    001 says nothing. Its price holds all the same, since it follows from ρ.

    Raises:
      ValueError: as `solve_noise_multiplier`.
    """
    steps, priced = guards.count("num_steps", num_steps, 1), _epsilon_by(price)
    step = step_from_noise_multiplier(
        math.sqrt(steps / 2 / solve_rho(epsilon, delta, price=price)), delta_step
    )
    return _with_room(
        step,
        lambda e: priced(noise_multiplier_from_step(e, delta_step), steps, delta) <= epsilon,
        room=0.0,
    )


def solve_num_steps(
    epsilon: float, delta: float, noise_multiplier: float, *, price: Price = "exact"
) -> int:
    """The largest J at which J steps at z cost at most ε at δ; 0 where one step is too dear.

    As near as `solve_rho`.

    Raises:
      ValueError: as `solve_rho`, or z is not positive and finite.
    """
    priced = _epsilon_by(price)
    num_steps = math.floor(solve_rho(epsilon, delta, price=price) / rho(noise_multiplier, 1))
    while num_steps > 0 and priced(noise_multiplier, num_steps, delta) > epsilon:
        num_steps -= 1
    # the quotient may have been rounded just below the integer that it is
    return num_steps + 1 if priced(noise_multiplier, num_steps + 1, delta) <= epsilon else num_steps


def solve_delta(
    epsilon: float, noise_multiplier: float, num_steps: int, *, price: Price = "exact"
) -> float:
    """The smallest δ at which J steps at z cost at most ε: 0 for no step, 1 if no δ < 1 will do.

    Raises:
      ValueError: ε is negative or NaN, z or J is out of range, or `price` has another name.
    """
    priced, target, r = (
        _epsilon_by(price),
        guards.from_zero("epsilon", epsilon),
        rho(noise_multiplier, num_steps),
    )
    by_name = {
        "exact": lambda: delta_exact(r, target),
        "closed_form": lambda: delta_closed_form(r, target),
        "rdp": lambda: delta_rdp(noise_multiplier, num_steps, target),
        "pld": lambda: delta_pld(noise_multiplier, num_steps, target),
    }
    delta, more = by_name[price](), 1e-15
    while 0 < delta < 1 and priced(noise_multiplier, num_steps, delta) > target:
        delta, more = delta * (1 + more), 2 * more
    return min(delta, 1.0)


# --------------------------------------------------------------------------------------------------


def _with_room(value: float, affords: Callable[[float], bool], *, room: float = 4e-12) -> float:
    """A number just below `value` that affords the target.

    The room is for σ = zΔ. It is stored, divided by Δ again, and must still cost at most ε: else
    `digits.round_up` shows one digit more.
    """
    value, less = value * (1 - room), 1e-13
    while not affords(value):
        value, less = value * (1 - less), 2 * less
    return value


def _between(gap: Callable[[float], float], low: float, high: float) -> float:
    """The ρ between a bound's answer and the exact one where the gap is 0, on the safe side."""
    from scipy.optimize import brentq

    gap = functools.cache(gap)
    low, high = low * (1 - 1e-9), high * (1 + 1e-9)
    if gap(low) > 0:
        raise ValueError(
            "the target is out of reach of this price: it ends above the closed form there"
        )
    root = high if gap(high) <= 0 else brentq(gap, low, high, xtol=1e-10 * low, rtol=1e-10)
    return _with_room(root, lambda r: gap(r) <= 0)


def _step_constant(delta_step: float) -> float:
    return math.sqrt(2 * math.log(1.25 / guards.probability("delta_step", delta_step)))


def _epsilon_by(price: str) -> Callable[[float, int, float], float]:
    """ε of (z, J, δ) by the accountant of that name."""
    prices = {
        "exact": lambda z, steps, delta: epsilon_exact(rho(z, steps), delta),
        "closed_form": lambda z, steps, delta: epsilon_closed_form(rho(z, steps), delta),
        "rdp": epsilon_rdp,
        "pld": epsilon_pld,
    }
    if price not in prices:
        raise ValueError(f"price must be one of {', '.join(get_args(Price))}, got {price!r}")
    return prices[price]
