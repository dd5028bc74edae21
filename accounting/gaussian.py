"""What J adaptive Gaussian steps cost, and which steps a budget buys.

One number carries a price: ρ = J/(2z²), z = σ/Δ the noise multiplier of a step with L2 sensitivity
Δ (ρ-zCDP, Bun & Steinke 2016). For Gaussians it says everything: J steps are together exactly one
Gaussian of mean shift μ = √(2ρ). `accountants` turns a price into ε five ways, and but for `basic`
always `exact <= pld (+1e-9) <= rdp <= closed_form`:

- `basic`: every step at (ε, δ/J) and J times that ε; an upper bound, the exact one at J = 1 and far
  off at J = 1000;
- `closed_form`: equation (9) of paper 001, that is Mironov's conversion minimised over real orders;
  an upper bound;
- `rdp`: dp_accounting's RDP accountant, whose conversion (Canonne, Kamath & Steinke 2020) is
  tighter; an upper bound;
- `pld`: dp_accounting's privacy loss distribution; an upper bound, nearly exact;
- `exact`: the Gaussian trade-off (`accounting.trade_off`); no smaller ε holds.

The neighbouring relation is folded into Δ before anything is priced here: dp_accounting's RDP
ignores REPLACE_ONE where its PLD doubles Δ, so its relations are not used. Every answer errs on the
upper side, every inverse on the safe one.
"""

import decimal
import math
from collections.abc import Callable, Iterable
from typing import Literal, get_args

from accounting import guards
from accounting.trade_off import bisect, delta_exact, epsilon_exact
from accounting.trade_off import mu_from_rho as mu_from_rho
from accounting.trade_off import rho_from_mu as rho_from_mu
from accounting.trade_off import trade_off as trade_off

Price = Literal["exact", "closed_form", "rdp", "pld"]

SEARCHED = (
    680.0  # the ε up to which dp_accounting's own search for one holds, where e^ε does not overflow
)
PLD_LIMIT = 1e4  # the ρ up to which the privacy loss distribution is asked; ε is above 10,000 there


# ---------------------------------------------------------------------------------------------- ρ,


def rho(noise_multiplier: float, num_steps: int) -> float:
    """ρ = J/(2z²) of J Gaussian steps at noise multiplier z = σ/Δ; 0 steps cost 0.

    Raises:
      ValueError: z is not positive and finite, J is not an integer of at least 0, or ρ is outside
        [1e-200, 1e200].
    """
    num_steps = guards.count("num_steps", num_steps, 0)
    z = guards.positive("noise_multiplier", noise_multiplier)
    if num_steps == 0:
        return 0.0
    total = num_steps / z / z / 2
    if not 1e-200 <= total <= 1e200:  # no underflow may look like a release that costs nothing
        raise ValueError(
            f"noise_multiplier {z!r} prices {num_steps} steps at ρ = {total!r}, which is out of"
            " range"
        )
    return total


def noise_multiplier_from_step(epsilon_step: float, delta_step: float = 0.01) -> float:
    """z = √(2 ln(1.25/δ))/ε_i, the way paper 001 writes σ/Δ.

    Theorem 1 of the paper, which reads (ε_i, δ) as the privacy of one step, is for ε_i < 1 only,
    and J such steps add up to J·δ, which is 1 from J = 100 on at δ = 0.01. Here the pair only
    writes z, for any ε_i > 0, and ρ prices it.
    """
    return _step_constant(delta_step) / guards.positive("epsilon_step", epsilon_step)


def step_from_noise_multiplier(noise_multiplier: float, delta_step: float = 0.01) -> float:
    """ε_i = √(2 ln(1.25/δ))/z, the inverse of `noise_multiplier_from_step`."""
    return _step_constant(delta_step) / guards.positive("noise_multiplier", noise_multiplier)


def rho_from_step(epsilon_step: float, delta_step: float, num_steps: int) -> float:
    """ρ = J ε_i²/(4 ln(1.25/δ)) of J steps written as (ε_i, δ); see
    `noise_multiplier_from_step`.
    """
    return rho(noise_multiplier_from_step(epsilon_step, delta_step), num_steps)


# --------------------------------------------------------------------------------------------------


def epsilon_closed_form(rho: float, delta: float) -> float:
    """ε_opt = ρ + 2√(ρ ln(1/δ)), equation (9) of paper 001: 8 to 68% above the exact ε on
    `epsilon_table`.
    """
    r, log_inverse = guards.nonnegative("rho", rho), -math.log(guards.probability("delta", delta))
    return r + 2 * math.sqrt(r * log_inverse)


def optimal_order(rho: float, delta: float) -> float:
    """α* = 1 + √(ln(1/δ)/ρ), equation (8) of paper 001: the Rényi order at which its ε is smallest;
    inf at ρ = 0.
    """
    r, log_inverse = guards.nonnegative("rho", rho), -math.log(guards.probability("delta", delta))
    return 1 + math.sqrt(log_inverse / r) if r > 0 else math.inf


def epsilon_rdp_mironov(rho: float, delta: float, orders: Iterable[float]) -> float:
    """min over the orders α of αρ + ln(1/δ)/(α − 1) (Mironov 2017, proposition 3), the paper's
    conversion on a grid.

    It equals `epsilon_closed_form` if `optimal_order` is among the orders, and is above it on any
    other grid.

    Raises:
      ValueError: there is no order, or an order is not above 1.
    """
    r, log_inverse = guards.nonnegative("rho", rho), -math.log(guards.probability("delta", delta))
    grid = [float(order) for order in orders]
    if not (grid and all(order > 1 for order in grid)):
        raise ValueError("orders: at least one, and every one above 1")
    return min(order * r + log_inverse / (order - 1) for order in grid)


def epsilon_rdp(noise_multiplier: float, num_steps: int, delta: float) -> float:
    """ε by dp_accounting's RDP accountant, its default orders joined by α* and by the best order of
    its own conversion.

    Its conversion is ε = αρ + ln(1 − 1/α) − ln(δα)/(α − 1) (Canonne, Kamath & Steinke 2020,
    proposition 12). Default orders alone end above the closed form at very small and very large ρ;
    with α* among them they cannot, except that dp_accounting refuses orders up to 1.01, which
    matter beyond ρ = 1e4: there the closed form is the better RDP bound.
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
    """ε by dp_accounting's privacy loss distribution, pessimistic rounding.

    The loss has standard deviation s = √(2ρ), and its grid here is h = s/1000: 0.02 to 0.2 s
    whatever ρ. Between its points δ is a chord of a convex curve, so ε is at most h²/8 of the
    loss's hazard rate too high: within 1e-6 of the exact value, or 1.25e-7 s where ε is below s/8,
    down to δ = 1e-9; within 2% at δ = 1e-15. The default grid of 1e-4 takes seconds from ρ = 30 on
    and is 9% too high at ρ = 1e-8.

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
    """The smallest ε with δ(ε) at most the target, to 1e-11 relative, of a δ that falls with ε."""
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
    """dp_accounting's `PLDAccountant` of J >= 1 steps: `get_epsilon` and `get_delta` as often as
    wanted, for one price.

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
    """J·ε, ε the exact price of one of J equal steps, together ρ, at δ/J: basic composition, an
    upper bound.

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


def accountants(noise_multiplier: float, num_steps: int, delta: float) -> dict[str, float]:
    """ε of J steps at noise multiplier z by name: basic, then, largest first, closed_form, rdp,
    pld, exact.

    pld is left out above `PLD_LIMIT`. The first call imports dp_accounting (a second); later ones
    take 20 to 200 ms.
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


def delta_closed_form(rho: float, epsilon: float) -> float:
    """δ = exp(−(ε − ρ)²/(4ρ)), which inverts `epsilon_closed_form`; 1 where ε is at most ρ, and
    never 0 at ρ > 0.
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
    """δ at this ε by dp_accounting's RDP accountant, with the orders that are best for it; see
    `epsilon_rdp`.
    """
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
    except (
        ValueError
    ):  # dp_accounting takes the logarithm of 0 where the divergence of an order is below 1e-16
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
        _priced(price),
    )
    log_inverse = -math.log(delta)
    # the root of ρ + 2√(ρ ln(1/δ)) = ε, without the cancellation of √(L + ε) − √L; every other
    # price affords it too
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
    """The smallest noise multiplier z (as near as `solve_rho`) at which J steps cost at most ε at
    δ.

    Raises:
      ValueError: as `solve_rho`, or there is no step to take.
    """
    steps, priced = guards.count("num_steps", num_steps, 1), _priced(price)
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
    """The largest ε_i (as near as `solve_rho`), see `noise_multiplier_from_step`, at which J steps
    cost at most ε at δ.

    The answer may exceed 1, where Theorem 1 of paper 001 says nothing; the price, by ρ, holds all
    the same.

    Raises:
      ValueError: as `solve_noise_multiplier`.
    """
    steps, priced = guards.count("num_steps", num_steps, 1), _priced(price)
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
    """The largest J (as near as `solve_rho`) at which J steps at z cost at most ε at δ; 0 where one
    step is too dear.

    Raises:
      ValueError: as `solve_rho`, or z is not positive and finite.
    """
    priced = _priced(price)
    num_steps = math.floor(solve_rho(epsilon, delta, price=price) / rho(noise_multiplier, 1))
    while num_steps > 0 and priced(noise_multiplier, num_steps, delta) > epsilon:
        num_steps -= 1
    # the quotient may have been rounded just below the integer that it is
    return num_steps + 1 if priced(noise_multiplier, num_steps + 1, delta) <= epsilon else num_steps


def solve_delta(
    epsilon: float, noise_multiplier: float, num_steps: int, *, price: Price = "exact"
) -> float:
    """The smallest δ at which J steps at z cost at most ε; 0 for no step, 1 where no δ below 1 will
    do.

    Raises:
      ValueError: ε is negative or NaN, z or J is out of range, or `price` has another name.
    """
    priced, target, r = (
        _priced(price),
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


def calibrate_classical(epsilon: float, delta: float) -> float:
    """z = √(2 ln(1.25/δ))/ε, at which one Gaussian step is (ε, δ) differentially private; for ε < 1
    only.

    Dwork & Roth 2014, theorem A.1, which is theorem 1 of paper 001. `calibrate_analytic` needs less
    noise; `noise_multiplier_from_step` has the same formula where the pair is only a way to write
    z.

    Raises:
      ValueError: ε is not in (0, 1), where the theorem says nothing, or δ not in (0, 1).
    """
    if not 0 < epsilon < 1:
        raise ValueError(
            "epsilon must be above 0 and below 1, where the classical theorem ends, got"
            f" {epsilon!r}"
        )
    return _step_constant(guards.probability("delta", delta)) / float(epsilon)


def calibrate_analytic(epsilon: float, delta: float) -> float:
    """The smallest z (to 1e-11 relative) at which one Gaussian step is (ε, δ) private, any ε > 0
    (Balle & Wang 2018).

    Raises:
      ValueError: ε is not positive and finite, or δ is not in (0, 1).
    """
    return solve_noise_multiplier(epsilon, delta, 1, price="exact")


def round_up(epsilon: float, digits: int = 4) -> float:
    """The smallest decimal with that many places that is not below ε, as the nearest float; inf
    stays inf.

    A float stands for the shortest decimal that names it, which is how its user wrote it: 0.1 stays
    0.1, though the float is 5e-18 above that, and what is printed, `f"{round_up(epsilon,
    digits):.{digits}f}"`, is never below ε when it is read back as a float. 0.1 + 0.2 is the float
    0.30000000000000004, and becomes 0.3001.

    Raises:
      ValueError: ε is negative or NaN, or `digits` is not an integer of at least 0.
    """
    epsilon, digits = guards.from_zero("epsilon", epsilon), guards.count("digits", digits, 0)
    if epsilon == math.inf:
        return math.inf
    named = decimal.Decimal(repr(epsilon))
    context = decimal.Context(prec=400 + digits, rounding=decimal.ROUND_CEILING)
    # rounding to the nearest float is monotone and takes `named` to ε, so this cannot fall below ε
    # again
    return float(named.quantize(decimal.Decimal(1).scaleb(-digits), context=context))


# --------------------------------------------------------------------------------------------------


def _rdp(noise_multiplier: float, num_steps: int, near: float, objective: Callable):
    """dp_accounting's RDP of J steps at its own orders, at `near`, and where the objective is
    least, to 1e-6.

    Any order gives a valid bound, so nothing rests on the objective having one minimum.
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


def _with_room(value: float, affords: Callable[[float], bool], *, room: float = 4e-12) -> float:
    """A number just below `value` that affords the target.

    The room is for σ = zΔ, which is stored and divided by Δ again and must still cost at most ε, or
    `round_up` shows one digit more.
    """
    value, less = value * (1 - room), 1e-13
    while not affords(value):
        value, less = value * (1 - less), 2 * less
    return value


def _between(gap: Callable[[float], float], low: float, high: float) -> float:
    """The ρ between a bound's and the exact answer at which the gap to the target is 0, on the safe
    side.
    """
    from scipy.optimize import brentq

    low, high = low * (1 - 1e-9), high * (1 + 1e-9)
    if gap(low) > 0:
        raise ValueError(
            "the target is out of reach of this price: it ends above the closed form there"
        )
    root = high if gap(high) <= 0 else brentq(gap, low, high, xtol=1e-10 * low, rtol=1e-10)
    return _with_room(root, lambda r: gap(r) <= 0)


# --------------------------------------------------------------------------------------------------


def _step_constant(delta_step: float) -> float:
    return math.sqrt(2 * math.log(1.25 / guards.probability("delta_step", delta_step)))


def _priced(price: str) -> Callable[[float, int, float], float]:
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
