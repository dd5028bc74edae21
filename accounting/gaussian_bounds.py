"""Upper bounds of what J Gaussian steps cost: paper 001's closed form, and dp_accounting's two.

Each is above the exact price (`accounting.trade_off`). The neighbouring relation is folded into Δ
before anything is priced here. dp_accounting's own relations are not used: its RDP ignores
REPLACE_ONE, where its PLD doubles Δ.
"""

import math
from collections.abc import Callable

from accounting import guards
from accounting.trade_off import epsilon_exact, rho

# The ε up to which dp_accounting's own search for one holds: e^ε does not overflow there.
SEARCHED = 680.0
PLD_LIMIT = 1e4  # the ρ up to which the privacy loss distribution is asked; ε is above 10,000 there


def epsilon_closed_form(rho: float, delta: float) -> float:
    """ε_opt = ρ + 2√(ρ ln(1/δ)), equation (9) of paper 001.

    It is 8 to 68% above the exact ε on `epsilon_table`.
    """
    r, log_inverse = guards.nonnegative("rho", rho), -math.log(guards.probability("delta", delta))
    return r + 2 * math.sqrt(r * log_inverse)


def optimal_order(rho: float, delta: float) -> float:
    """α* = 1 + √(ln(1/δ)/ρ), the Rényi order at which paper 001's ε is smallest; inf at ρ = 0.

    Equation (8) of paper 001.
    """
    r, log_inverse = guards.nonnegative("rho", rho), -math.log(guards.probability("delta", delta))
    return 1 + math.sqrt(log_inverse / r) if r > 0 else math.inf


def epsilon_rdp(noise_multiplier: float, num_steps: int, delta: float) -> float:
    """ε by dp_accounting's RDP accountant, at its default orders, α* and its own best order.

    Its conversion is ε = αρ + ln(1 − 1/α) − ln(δα)/(α − 1) (Canonne, Kamath & Steinke 2020,
    proposition 12). At the default orders alone it ends above the closed form where ρ is very small
    or very large. With α* among them it cannot, with one exception: dp_accounting refuses orders up
    to 1.01, which matter beyond ρ = 1e4. There the closed form is the better bound and is returned.
    """
    r, delta = rho(noise_multiplier, num_steps), guards.probability("delta", delta)
    if r == 0:
        return 0.0

    def price(order):
        import numpy as np

        return order * r + np.log1p(-1 / order) - np.log(delta * order) / (order - 1)

    accountant = _rdp(noise_multiplier, num_steps, optimal_order(r, delta), price)
    return min(float(accountant.get_epsilon(delta)), epsilon_closed_form(r, delta))


def epsilon_pld(noise_multiplier: float, num_steps: int, delta: float) -> float:
    """ε by dp_accounting's privacy loss distribution, rounded upwards.

    The loss has standard deviation s = √(2ρ). The grid here is h = s/1000, which takes 0.02 to 0.2
    seconds at any ρ. Between grid points δ is a chord of a convex curve, so ε is too high by at
    most h²/8 times the loss's hazard rate. Down to δ = 1e-9 it is within 1e-6 of the exact value,
    or within 1.25e-7·s where ε is below s/8; at δ = 1e-15 it is within 2%. The default grid of 1e-4
    takes seconds from ρ = 30 on, and is 9% too high at ρ = 1e-8.

    Raises:
      ValueError: as `loss_distribution`, or δ is not in (0, 1).
    """
    r, delta = rho(noise_multiplier, num_steps), guards.probability("delta", delta)
    if r == 0:
        return 0.0
    distribution = loss_distribution(noise_multiplier, num_steps)
    if epsilon_exact(r, delta) > SEARCHED:
        return inverse(lambda epsilon: float(distribution.get_delta(epsilon)), delta)
    return float(distribution.get_epsilon(delta))


def inverse(delta_of: Callable[[float], float], target: float) -> float:
    """The smallest ε (to 1e-11 relative) with δ(ε) at most the target, for a δ that falls."""
    from scipy.optimize import brentq

    if delta_of(0.0) <= target:
        return 0.0
    if delta_of(1e200) > target:  # what is left there is what was cut off
        return math.inf
    high = 1.0
    while delta_of(high) > target:
        high *= 2

    def above(epsilon: float) -> float:
        return math.log(max(delta_of(epsilon), 1e-300) / target)

    epsilon, step = brentq(above, 0.0, high, xtol=1e-12 * high), 1e-12 * high
    while delta_of(epsilon) > target:
        epsilon, step = epsilon + step, 2 * step
    return epsilon


def loss_distribution(noise_multiplier: float, num_steps: int):
    """dp_accounting's `PLDAccountant` of J >= 1 steps.

    It is slow to make; its `get_epsilon` and `get_delta` are quick.

    Raises:
      ValueError: as `rho`, there is no step, or ρ is above `PLD_LIMIT`, where it would take seconds
        to minutes.
    """
    steps = guards.count("num_steps", num_steps, 1)
    r = rho(noise_multiplier, steps)
    if not r <= PLD_LIMIT:
        raise ValueError(
            f"ρ = {r:g} is above {PLD_LIMIT:g}, where the privacy loss distribution takes too long"
        )
    import dp_accounting

    accountant = dp_accounting.pld.PLDAccountant(
        value_discretization_interval=1e-3 * math.sqrt(2 * r)
    )
    return accountant.compose(dp_accounting.GaussianDpEvent(float(noise_multiplier)), steps)


def epsilon_basic(rho: float, num_steps: int, delta: float) -> float:
    """J·ε by basic composition, where ε is the exact price at δ/J of one of J equal steps.

    An upper bound. The J steps have ρ together.

    Raises:
      ValueError: ρ or δ is out of range, or J is not an integer of at least 0, or is 0 where ρ is
        not.
    """
    r = guards.nonnegative("rho", rho)
    delta = guards.probability("delta", delta)
    steps = guards.count("num_steps", num_steps, 0)
    if r == 0:
        return 0.0
    if steps == 0:
        raise ValueError(f"num_steps must be at least 1 where rho is {r!r}, got 0")
    return steps * epsilon_exact(max(r / steps, math.ulp(0.0)), max(delta / steps, math.ulp(0.0)))


def delta_closed_form(rho: float, epsilon: float) -> float:
    """δ = exp(−(ε − ρ)²/(4ρ)), the inverse of `epsilon_closed_form`.

    It is 1 where ε is at most ρ, and never 0 at ρ > 0.
    """
    r, excess = guards.nonnegative("rho", rho), guards.from_zero("epsilon", epsilon) - rho
    if r == 0:
        return 0.0
    if excess <= 0:
        return 1.0
    log_inverse = excess / r * excess / 4
    slack = 1e-15 * (1 + log_inverse) if log_inverse < math.inf else 0.0
    return math.nextafter(math.exp(min(0.0, slack - log_inverse)), 1.0)


def delta_rdp(noise_multiplier: float, num_steps: int, epsilon: float) -> float:
    """δ at this ε by dp_accounting's RDP accountant, at its best orders; see `epsilon_rdp`."""
    r, epsilon = rho(noise_multiplier, num_steps), guards.from_zero("epsilon", epsilon)
    if r == 0:
        return 0.0
    if epsilon == math.inf:
        return math.ulp(0.0)

    def log_delta(order):
        import numpy as np

        return (order - 1) * (order * r - epsilon + np.log1p(-1 / order)) - np.log(order)

    near = 1 + max(epsilon - r, 0.0) / (2 * r) + 1 / math.sqrt(2 * r)
    try:
        delta = float(_rdp(noise_multiplier, num_steps, near, log_delta).get_delta(epsilon))
    except ValueError:
        # dp_accounting takes the logarithm of 0 where the divergence of an order is below 1e-16
        return delta_closed_form(r, epsilon)
    return min(math.nextafter(delta, 1.0), delta_closed_form(r, epsilon))


def delta_pld(noise_multiplier: float, num_steps: int, epsilon: float) -> float:
    """δ at this ε by dp_accounting's privacy loss distribution; see `epsilon_pld`.

    Raises:
      ValueError: as `epsilon_pld`, or ε is negative or NaN.
    """
    r, epsilon = rho(noise_multiplier, num_steps), guards.from_zero("epsilon", epsilon)
    if r == 0:
        return 0.0
    return math.nextafter(
        float(loss_distribution(noise_multiplier, num_steps).get_delta(epsilon)), 1.0
    )


# --------------------------------------------------------------------------------------------------


def _rdp(noise_multiplier: float, num_steps: int, near: float, objective: Callable):
    """dp_accounting's RDP of J steps at its own orders, at `near`, and at the objective's minimum.

    The minimum is searched to 1e-6. Any order gives a valid bound, so the objective need not have a
    single one.
    """
    import dp_accounting
    import numpy as np
    from dp_accounting.rdp import rdp_privacy_accountant

    centre, radius = math.log(near - 1), 5.0
    while radius > 1e-6:
        grid = np.linspace(centre - radius, centre + radius, 65)
        centre, radius = float(grid[np.argmin(objective(1 + np.exp(grid)))]), radius / 16
    orders = {*rdp_privacy_accountant.DEFAULT_RDP_ORDERS, near, 1 + math.exp(centre)}
    accountant = dp_accounting.rdp.RdpAccountant(sorted(orders))
    return accountant.compose(
        dp_accounting.GaussianDpEvent(float(noise_multiplier)),
        guards.count("num_steps", num_steps, 0),
    )
