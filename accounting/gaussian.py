"""What J adaptive Gaussian steps cost.

One number carries a price: ρ = J/(2z²), z = σ/Δ the noise multiplier of a step with L2 sensitivity Δ (ρ-zCDP, Bun &
Steinke 2016). For Gaussians it says everything: J steps are together exactly one Gaussian of mean shift μ = √(2ρ).
`accountants` turns a price into ε four ways, always `exact <= pld (+1e-9) <= rdp <= closed_form`:

- `closed_form`: equation (9) of paper 001, that is Mironov's conversion minimised over real orders; an upper bound;
- `rdp`: dp_accounting's RDP accountant, whose conversion (Canonne, Kamath & Steinke 2020) is tighter; an upper bound;
- `pld`: dp_accounting's privacy loss distribution; an upper bound, nearly exact;
- `exact`: the Gaussian trade-off (Balle & Wang 2018, theorem 8; Dong, Roth & Su 2019); no smaller ε holds.

The neighbouring relation is folded into Δ before anything is priced here: dp_accounting's RDP ignores REPLACE_ONE where
its PLD doubles Δ, so its relations are not used. Every answer errs on the upper side, every inverse on the safe one.
"""

import decimal
import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Literal

Price = Literal["exact", "closed_form"]

PLD_LIMIT = 1e4  # the ρ up to which the privacy loss distribution is asked; ε is above 10,000 there


# ---------------------------------------------------------------------------------------------- ρ, and ways to write it


def rho(noise_multiplier: float, num_steps: int) -> float:
    """ρ = J/(2z²) of J Gaussian steps at noise multiplier z = σ/Δ; 0 steps cost 0.

    Raises:
      ValueError: z is not positive and finite, J is not an integer of at least 0, or ρ is outside [1e-200, 1e200].
    """
    num_steps = _steps(num_steps)
    z = _positive("noise_multiplier", noise_multiplier)
    if num_steps == 0:
        return 0.0
    total = num_steps / z / z / 2
    if not 1e-200 <= total <= 1e200:  # no underflow may look like a release that costs nothing
        raise ValueError(f"noise_multiplier {z!r} prices {num_steps} steps at ρ = {total!r}, which is out of range")
    return total


def noise_multiplier_from_step(epsilon_step: float, delta_step: float = 0.01) -> float:
    """z = √(2 ln(1.25/δ))/ε_i, the way paper 001 writes σ/Δ.

    Theorem 1 of the paper, which reads (ε_i, δ) as the privacy of one step, is for ε_i < 1 only, and J such steps add
    up to J·δ, which is 1 from J = 100 on at δ = 0.01. Here the pair only writes z, for any ε_i > 0, and ρ prices it.
    """
    return _step_constant(delta_step) / _positive("epsilon_step", epsilon_step)


def step_from_noise_multiplier(noise_multiplier: float, delta_step: float = 0.01) -> float:
    """ε_i = √(2 ln(1.25/δ))/z, the inverse of `noise_multiplier_from_step`."""
    return _step_constant(delta_step) / _positive("noise_multiplier", noise_multiplier)


def rho_from_step(epsilon_step: float, delta_step: float, num_steps: int) -> float:
    """ρ = J ε_i²/(4 ln(1.25/δ)) of J steps written as (ε_i, δ); see `noise_multiplier_from_step`."""
    return rho(noise_multiplier_from_step(epsilon_step, delta_step), num_steps)


# ---------------------------------------------------------------------------------------------------------- ε from ρ, δ


def epsilon_closed_form(rho: float, delta: float) -> float:
    """ε_opt = ρ + 2√(ρ ln(1/δ)), equation (9) of paper 001: an upper bound, 5% and more above `epsilon_exact`."""
    r, log_inverse = _rho(rho), -math.log(_delta(delta))
    return r + 2 * math.sqrt(r * log_inverse)


def optimal_order(rho: float, delta: float) -> float:
    """α* = 1 + √(ln(1/δ)/ρ), equation (8) of paper 001: the Rényi order at which its ε is smallest; inf at ρ = 0."""
    r, log_inverse = _rho(rho), -math.log(_delta(delta))
    return 1 + math.sqrt(log_inverse / r) if r > 0 else math.inf


def epsilon_rdp_mironov(rho: float, delta: float, orders: Iterable[float]) -> float:
    """min over the orders α of αρ + ln(1/δ)/(α − 1) (Mironov 2017, proposition 3), the paper's conversion on a grid.

    It equals `epsilon_closed_form` if `optimal_order` is among the orders, and is above it on any other grid.

    Raises:
      ValueError: there is no order, or an order is not above 1.
    """
    r, log_inverse = _rho(rho), -math.log(_delta(delta))
    grid = [float(order) for order in orders]
    if not (grid and all(order > 1 for order in grid)):
        raise ValueError("orders: at least one, and every one above 1")
    return min(order * r + log_inverse / (order - 1) for order in grid)


def epsilon_rdp(noise_multiplier: float, num_steps: int, delta: float) -> float:
    """ε by dp_accounting's RDP accountant, its default orders joined by α* and by the best order of its own conversion.

    Its conversion is ε = αρ + ln(1 − 1/α) − ln(δα)/(α − 1) (Canonne, Kamath & Steinke 2020, proposition 12). Default
    orders alone end above the closed form at very small and very large ρ; with α* among them they cannot, except that
    dp_accounting refuses orders up to 1.01, which matter beyond ρ = 1e4: there the closed form is the better RDP bound.
    """
    r, delta = rho(noise_multiplier, num_steps), _delta(delta)
    if r == 0:
        return 0.0
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant

    orders = {*rdp_privacy_accountant.DEFAULT_RDP_ORDERS, optimal_order(r, delta), _best_order(r, delta)}
    accountant = dp_accounting.rdp.RdpAccountant(sorted(orders))
    accountant.compose(dp_accounting.GaussianDpEvent(float(noise_multiplier)), _steps(num_steps))
    return min(float(accountant.get_epsilon(delta)), epsilon_closed_form(r, delta))


def epsilon_pld(noise_multiplier: float, num_steps: int, delta: float) -> float:
    """ε by dp_accounting's privacy loss distribution, pessimistic rounding.

    The loss has standard deviation √(2ρ), and its grid here is a thousandth of that: 0.02 to 0.2 s whatever ρ, within
    1e-6 relative of the exact value down to δ = 1e-9, within 2% at δ = 1e-15 and within 2 above ε = 700. The default
    grid of 1e-4 takes seconds from ρ = 30 on and is 9% too high at ρ = 1e-8.

    Raises:
      ValueError: as `rho`, δ is not in (0, 1), or ρ is above `PLD_LIMIT`, where it would take seconds to minutes.
    """
    r, delta = rho(noise_multiplier, num_steps), _delta(delta)
    if not r <= PLD_LIMIT:
        raise ValueError(f"ρ = {r:g} is above {PLD_LIMIT:g}, where the privacy loss distribution takes too long")
    if r == 0:
        return 0.0
    import dp_accounting

    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3 * math.sqrt(2 * r))
    accountant.compose(dp_accounting.GaussianDpEvent(float(noise_multiplier)), _steps(num_steps))
    return float(accountant.get_epsilon(delta))


def delta_exact(rho: float, epsilon: float) -> float:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ = √(2ρ): no smaller δ holds at this ε.

    Computed as φ(t)(R(t) − R(t + μ)) with t = ε/μ − μ/2 and R = (1 − Φ)/φ, which neither overflows nor cancels. An
    upper bound, at most 1e-11 relative above the true value for ρ in [1e-8, 1e4]; at ρ > 0 never 0.
    """
    r = _rho(rho)
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon!r}")
    if r == 0:
        return 0.0
    # one float up: below 1e-308 the slack is less than a digit, and 0 would claim a pure guarantee
    return math.nextafter(math.exp(min(0.0, _log_delta(math.sqrt(2 * r), float(epsilon)))), 1.0)


def epsilon_exact(rho: float, delta: float) -> float:
    """The ε of ρ at δ by the Gaussian trade-off: the root of `delta_exact`, 0 where δ is at least the total variation.

    An upper bound: `delta_exact(rho, epsilon_exact(rho, delta)) <= delta` holds in floats. Within 1e-10 relative (or
    1e-11·√ρ where that is more) of the true value for ρ in [1e-8, 1e4] and δ in [1e-15, 0.1], increasing in ρ,
    decreasing in δ.
    """
    r, delta = _rho(rho), _delta(delta)
    if delta_exact(r, 0.0) <= delta:
        return 0.0
    above = epsilon_closed_form(r, delta)
    if not delta_exact(r, above) <= delta:
        return above  # the larger one by theory; ρ is so large, or δ so small, that rounding swamps the difference
    return _bisect(lambda epsilon: delta_exact(r, epsilon) <= delta, 0.0, above)[1]


def accountants(noise_multiplier: float, num_steps: int, delta: float) -> dict[str, float]:
    """ε of J steps at noise multiplier z by name, largest first: closed_form, rdp, pld, exact.

    pld is left out above `PLD_LIMIT`. The first call imports dp_accounting (a second); later ones take 20 to 200 ms.
    """
    r = rho(noise_multiplier, num_steps)
    prices = {"closed_form": epsilon_closed_form(r, delta), "rdp": epsilon_rdp(noise_multiplier, num_steps, delta)}
    if r <= PLD_LIMIT:
        prices["pld"] = epsilon_pld(noise_multiplier, num_steps, delta)
    return {**prices, "exact": epsilon_exact(r, delta)}


# ------------------------------------------------------------------------------------------------------------- inverses


def solve_rho(epsilon: float, delta: float, *, price: Price = "exact") -> float:
    """The largest ρ (to 1e-11 relative) whose price at δ is at most ε, with room for a few roundings of z.

    Args:
      epsilon, delta: the target; ε > 0, 0 < δ < 1.
      price: the accountant that the target is stated in, "exact" or "closed_form".

    Raises:
      ValueError: ε or δ is out of range, or `price` has another name.
    """
    target, delta, priced = _positive("epsilon", epsilon), _delta(delta), _priced(price)
    log_inverse = -math.log(delta)
    # the root of ρ + 2√(ρ ln(1/δ)) = ε, without the cancellation of √(L + ε) − √L; the exact price affords it too
    affordable = (target / (math.sqrt(log_inverse + target) + math.sqrt(log_inverse))) ** 2
    if not affordable > 0:
        raise ValueError(f"epsilon {target!r} is too small: no positive ρ is affordable")
    if price == "exact":
        beyond = 2 * affordable
        while delta_exact(beyond, target) <= delta:
            affordable, beyond = beyond, 2 * beyond
        affordable, _ = _bisect(lambda r: delta_exact(r, target) > delta, affordable, beyond)
    # σ = zΔ, stored and divided by Δ again, must still cost at most ε, or `round_up` shows one digit more
    affordable *= 1 - 4e-12
    while priced(affordable, delta) > target:
        affordable *= 1 - 1e-13
    return affordable


def solve_noise_multiplier(epsilon: float, delta: float, num_steps: int, *, price: Price = "exact") -> float:
    """The smallest noise multiplier z (to 1e-11 relative) at which J steps cost at most ε at δ; see `solve_rho`.

    Raises:
      ValueError: as `solve_rho`, or there is no step to take.
    """
    return math.sqrt(_at_least_one_step(num_steps) / 2 / solve_rho(epsilon, delta, price=price))


def solve_epsilon_step(
    epsilon: float, delta: float, num_steps: int, delta_step: float = 0.01, *, price: Price = "exact"
) -> float:
    """The largest ε_i (to 1e-11 relative), see `noise_multiplier_from_step`, at which J steps cost at most ε at δ.

    The answer may exceed 1, where Theorem 1 of paper 001 says nothing; the price, by ρ, holds all the same.

    Raises:
      ValueError: as `solve_noise_multiplier`.
    """
    return step_from_noise_multiplier(solve_noise_multiplier(epsilon, delta, num_steps, price=price), delta_step)


def solve_num_steps(epsilon: float, delta: float, noise_multiplier: float, *, price: Price = "exact") -> int:
    """The largest J at which J steps at noise multiplier z cost at most ε at δ; 0 where one step is too dear.

    Raises:
      ValueError: as `solve_rho`, or z is not positive and finite.
    """
    priced = _priced(price)
    num_steps = math.floor(solve_rho(epsilon, delta, price=price) / rho(noise_multiplier, 1))
    while num_steps > 0 and priced(rho(noise_multiplier, num_steps), delta) > epsilon:
        num_steps -= 1
    # the quotient may have been rounded just below the integer that it is
    return num_steps + 1 if priced(rho(noise_multiplier, num_steps + 1), delta) <= epsilon else num_steps


def round_up(epsilon: float, digits: int = 4) -> float:
    """The smallest decimal with that many places that is not below ε, as the nearest float; inf stays inf.

    Never below ε, and `f"{round_up(epsilon, digits):.{digits}f}"` is never below it either.

    Raises:
      ValueError: ε is negative or NaN, or `digits` is not an integer of at least 0.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon!r}")
    if not operator.index(digits) >= 0:
        raise ValueError(f"digits must be at least 0, got {digits!r}")
    if epsilon == math.inf:
        return math.inf
    exact = decimal.Decimal(float(epsilon))  # the binary value, digit by digit
    context = decimal.Context(prec=400 + digits, rounding=decimal.ROUND_CEILING)
    # rounding to the nearest float is monotone and ε is a float, so this cannot fall below ε again
    return float(exact.quantize(decimal.Decimal(1).scaleb(-digits), context=context))


# ------------------------------------------------------------------------------------------------------------ numerics


def _log_delta(mu: float, epsilon: float) -> float:
    """An upper bound of ln δ(ε) of the trade-off with mean shift μ > 0, a few 1e-12 above it; decreasing in ε."""
    t = epsilon / mu - mu / 2
    if t > 1e6:
        return -t * t / 2  # δ < φ(t); the difference below would drown
    slack = 1e-12 + 1e-15 * (epsilon / mu + mu) * (1 + abs(t))  # of erfcx, and of rounding in t
    if mu <= 1:  # R(t) − R(t + μ) = ∫ 1 − sR(s) ds over [t, t + μ], where the difference itself would cancel
        nodes, weights = _quadrature()
        integral = float(weights @ _one_minus_s_mills(t + mu * nodes))
        return -t * t / 2 - math.log(2 * math.pi) / 2 + math.log(mu) + math.log(integral) + slack
    # R(t) is infinite from t = −37 down, and so is this bound: δ is 1 there to the last digit
    return -t * t / 2 - math.log(2 * math.pi) / 2 + math.log(_mills(t) - _mills(t + mu)) + slack


def _mills(x: float) -> float:
    """R(x) = (1 − Φ(x))/φ(x)."""
    from scipy.special import erfcx

    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))


def _one_minus_s_mills(s):
    """1 − sR(s) for an array s; from s = 5 on, where it would cancel, by R = 1/(s + 1/(s + 2/(s + 3/(s + …))))."""
    import numpy as np
    from scipy.special import erfcx

    near, far = np.minimum(s, 5.0), np.maximum(s, 5.0)
    tail = far
    for k in range(40, 1, -1):
        tail = far + k / tail
    tail = 1 / tail
    return np.where(s < 5, 1 - near * math.sqrt(math.pi / 2) * erfcx(near / math.sqrt(2)), tail / (far + tail))


@functools.cache
def _quadrature():
    """Ten Gauss–Legendre nodes and weights on [0, 1]."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(10)
    return (nodes + 1) / 2, weights / 2


def _bisect(passes: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Neighbouring floats (low, high) with `passes` false at low and true at high, given that it is so at the start."""
    floor = 1e-18 * high
    while high > floor:
        middle = low + (high - low) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if passes(middle) else (middle, high)
    return low, high


def _best_order(rho: float, delta: float) -> float:
    """The order α (to 1e-6) at which αρ + ln(1 − 1/α) − ln(δα)/(α − 1) is smallest; any order gives a valid bound."""
    import numpy as np

    def epsilon(log_excess):
        order = 1 + np.exp(log_excess)
        return order * rho + np.log1p(-1 / order) - np.log(delta * order) / (order - 1)

    centre, radius = math.log(optimal_order(rho, delta) - 1), 5.0
    while radius > 1e-6:
        grid = np.linspace(centre - radius, centre + radius, 65)
        centre, radius = float(grid[np.argmin(epsilon(grid))]), radius / 16
    return 1 + math.exp(centre)


# -------------------------------------------------------------------------------------------------------------- guards


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return float(value)


def _rho(value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"rho must be at least 0 and finite, got {value!r}")
    return float(value)


def _delta(value: float, name: str = "delta") -> float:
    if not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, both excluded, got {value!r}")
    return float(value)


def _steps(value: int) -> int:
    try:
        steps = operator.index(value)
    except TypeError:
        raise ValueError(f"num_steps must be an integer, got {value!r}") from None
    if not steps >= 0:
        raise ValueError(f"num_steps must be at least 0, got {value!r}")
    return steps


def _at_least_one_step(value: int) -> int:
    if not (steps := _steps(value)) >= 1:
        raise ValueError(f"num_steps must be at least 1 to solve for the noise, got {value!r}")
    return steps


def _step_constant(delta_step: float) -> float:
    return math.sqrt(2 * math.log(1.25 / _delta(delta_step, "delta_step")))


def _priced(price: str) -> Callable[[float, float], float]:
    prices = {"exact": epsilon_exact, "closed_form": epsilon_closed_form}
    if price not in prices:
        raise ValueError(f"price must be one of {', '.join(prices)}, got {price!r}")
    return prices[price]
