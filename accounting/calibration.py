"""What a budget buys on secret Poisson samples: noise, a rate, steps, a decay, a temperature.

Every answer is on the safe side: its price, by the accountant that the target is stated in, is at
most ε. It is the largest (or the smallest) up to the accuracy of that price; see `composition.pld`.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from accounting import composition, gaussian, guards
from accounting.langevin import decaying_rates, langevin_phases
from accounting.loss import SubsampledGaussian, Unit

Accountant = Literal["pld", "rdp"]

# A price by rdp takes as long for any number of steps.
STEPS_LIMIT = {"pld": composition.STEPS_LIMIT, "rdp": 10**15}
# Up to this many steps one step more has a price of its own.
EXACT_UP_TO = {"pld": 10**5, "rdp": 10**9}


def solve_noise_multiplier(
    epsilon: float,
    delta: float,
    *,
    sampling_rate: float,
    num_steps: int,
    unit: Unit,
    accountant: Accountant = "pld",
) -> float:
    """The smallest z (to 1e-5 relative) at which J steps at rate q cost at most ε at δ.

    It takes some ten prices, which is seconds.

    Args:
      epsilon, delta: the target; ε > 0, 0 < δ < 1.
      accountant: what the target is stated in, "pld" or "rdp".

    Raises:
      ValueError: a number is out of range; or no z in [1e-3, 1e6] is the answer (where q·J is below
        δ any noise does).
    """
    epsilon, epsilon_of = guards.positive("epsilon", epsilon), _epsilon_by(accountant, delta, unit)

    def excess(log_z: float) -> float:
        phase = SubsampledGaussian(
            noise_multiplier=math.exp(log_z), sampling_rate=sampling_rate, num_steps=num_steps
        )
        return _excess(epsilon_of((phase,)), epsilon)

    return math.exp(_cheapest(excess, "noise_multiplier", 1e-3, 1e6, start=1.0, sign=1))


def solve_sampling_rate(
    epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    num_steps: int,
    unit: Unit,
    accountant: Accountant = "pld",
) -> float:
    """The largest q (to 1e-5 relative) at which J steps at noise z cost at most ε at δ.

    It is 1 where all data may be used.

    Raises:
      ValueError: a number is out of range, or q would be below 1e-9.
    """
    epsilon, epsilon_of = guards.positive("epsilon", epsilon), _epsilon_by(accountant, delta, unit)

    def excess(log_q: float) -> float:
        q = min(1.0, math.exp(log_q))
        phase = SubsampledGaussian(
            noise_multiplier=noise_multiplier, sampling_rate=q, num_steps=num_steps
        )
        return _excess(epsilon_of((phase,)), epsilon)

    if excess(0.0) <= 0:
        return 1.0
    return min(1.0, math.exp(_cheapest(excess, "sampling_rate", 1e-9, 1.0, start=0.01, sign=-1)))


def solve_num_steps(
    epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    sampling_rate: float,
    unit: Unit,
    accountant: Accountant = "pld",
) -> int:
    """The largest J at which J steps cost at most ε at δ; 0 where one is too dear.

    One step more costs more than ε. Above 100,000 steps by "pld", or a billion by "rdp", the answer
    is known to 1e-5 or 1e-9 of J only. It takes a handful of prices: seconds for "rdp" and below a
    million steps, a minute near the limit of "pld".

    One step more costs more than ε; above 100,000 steps by "pld", a billion by "rdp", so many more
    as are 1e-5 or 1e-9 of J. A handful of prices: seconds for "rdp" and below a million steps, a
    minute near the limit of "pld".

    Raises:
      ValueError: a number is out of range, or `STEPS_LIMIT` steps or more are affordable: ten
        million by "pld".
    """
    epsilon, most = guards.positive("epsilon", epsilon), _by_accountant(STEPS_LIMIT, accountant)
    price = _epsilon_by(accountant, delta, unit)

    def phases(steps: int) -> tuple[SubsampledGaussian, ...]:
        return (
            SubsampledGaussian(
                noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, num_steps=steps
            ),
        )

    @functools.cache
    def excess(steps: int) -> float:
        return _excess(price(phases(steps)), epsilon)

    likely = gaussian.solve_rho(epsilon, delta) / composition.step_rho(phases(1)[0], unit=unit)
    beyond = accountant == "pld" and unit != "rating value" and likely > most / 4
    # Rényi's price is an upper bound and takes no time: it may spare one that takes half a minute.
    if beyond and _epsilon_by("rdp", delta, unit)(phases(most)) <= epsilon:
        found = most
    else:
        found = last_affordable(
            excess, round(min(likely, most)), most, apart=_by_accountant(EXACT_UP_TO, accountant)
        )
    if found == most:
        more = (
            "; rdp prices any number of them, pld would take minutes" if accountant == "pld" else ""
        )
        raise ValueError(f"{most} steps or more are affordable{more}")
    return found


def solve_langevin_rate(
    epsilon: float,
    delta: float,
    *,
    num_steps: int,
    learning_rate: float,
    decay: float = 0.0,
    clip_norm: float,
    temperature: float,
    unit: Unit,
    accountant: Accountant = "pld",
) -> float:
    """The q (to 1e-5 relative) down to which J Langevin steps cost at most ε at δ, from q = 1 on.

    The noise z = q·√(2T/η)/C grows with q. A smaller sample may therefore cost more, and the price
    need not be monotone. From q = 1 the rate is halved as long as the price is at most ε; then the
    crossing between the last such rate and the first dearer one is searched. The answer costs at
    most ε, and so does every rate above it that was looked at; of the others nothing is said. At
    far smaller q the price may fall again, where δ alone covers that a record takes part at all
    (J·q < δ). That branch is not searched.

    Args:
      epsilon, delta: the target; ε > 0, 0 < δ < 1.
      num_steps, learning_rate, decay: J, η and b of `decaying_rates`.
      clip_norm, temperature: C and T of `langevin_phases`.
      accountant: what the target is stated in, "pld" or "rdp".

    Raises:
      ValueError: a number is out of range; even the full batch costs more; or no rate down to 1e-9
        does.
    """
    epsilon, epsilon_of = guards.positive("epsilon", epsilon), _epsilon_by(accountant, delta, unit)
    rates = decaying_rates(learning_rate, decay, num_steps)

    def excess(log_q: float) -> float:
        q = min(1.0, math.exp(log_q))
        if accountant == "pld" and num_steps * q <= delta:
            return -30.0  # nobody takes part, but for δ
        phases = langevin_phases(
            sampling_rate=q,
            temperature=temperature,
            clip_norm=clip_norm,
            learning_rates=rates,
        )
        try:
            return _excess(epsilon_of(phases), epsilon)
        except ArithmeticError:
            # z is so small that no float holds the losses: dear, but for what δ covers.
            return 30.0

    if excess(0.0) > 0:
        raise ValueError(
            f"even the full batch, sampling_rate 1, costs more than epsilon {epsilon!r}"
        )
    if (answer := _lowest(excess, math.log(1e-9))) is None:
        raise ValueError(
            f"no sampling_rate down to 1e-09 that was looked at costs more than epsilon {epsilon!r}"
        )
    return min(1.0, math.exp(answer))


def solve_langevin_temperature(
    epsilon: float,
    delta: float,
    *,
    num_steps: int,
    learning_rate: float,
    decay: float = 0.0,
    sampling_rate: float,
    clip_norm: float,
    unit: Unit,
    accountant: Accountant = "pld",
) -> float:
    """The smallest T (to 2e-5 relative) at which J Langevin steps cost at most ε at δ.

    Noise grows with √T.

    Learning rates are those of `decaying_rates`, priced in the groups of `langevin_phases`.

    Raises:
      ValueError: a number is out of range; or no T between those with z = 1e-3 and 1e6 at the first
        step is the answer.
    """
    epsilon, epsilon_of = guards.positive("epsilon", epsilon), _epsilon_by(accountant, delta, unit)
    rates = decaying_rates(learning_rate, decay, num_steps)
    one = (
        guards.positive("clip_norm", clip_norm) / guards.rate("sampling_rate", sampling_rate)
    ) ** 2 / 2
    one *= guards.positive("learning_rate", learning_rate)  # T where z = 1 at the first step

    def temperature(log_z: float) -> float:
        return one * math.exp(2 * log_z)

    def excess(log_z: float) -> float:
        phases = langevin_phases(
            sampling_rate=sampling_rate,
            temperature=temperature(log_z),
            clip_norm=clip_norm,
            learning_rates=rates,
        )
        return _excess(epsilon_of(phases), epsilon)

    return temperature(
        _cheapest(excess, "noise multiplier of the first step", 1e-3, 1e6, start=1.0, sign=1)
    )


def solve_langevin_decay(
    epsilon: float,
    delta: float,
    *,
    num_steps: int,
    learning_rate: float,
    sampling_rate: float,
    clip_norm: float,
    temperature: float,
    unit: Unit,
    accountant: Accountant = "pld",
) -> float:
    """The smallest decay b at which J Langevin steps cost at most ε at δ; 0 where that will do.

    It is as near as the price is known.

    Learning rates are those of `decaying_rates`, priced in the groups of `langevin_phases`. The
    price falls in b, but not below that of the first step, whose learning rate no decay lowers.

    Raises:
      ValueError: a number is out of range; the first step alone costs more; or no decay up to 1e12
        is enough.
    """
    epsilon, epsilon_of = guards.positive("epsilon", epsilon), _epsilon_by(accountant, delta, unit)

    @functools.cache
    def excess(log_decay: float, steps: int = num_steps) -> float:
        phases = langevin_phases(
            sampling_rate=sampling_rate,
            temperature=temperature,
            clip_norm=clip_norm,
            learning_rates=decaying_rates(learning_rate, math.expm1(log_decay), num_steps)[:steps],
        )
        return _excess(epsilon_of(phases), epsilon)

    if excess(0.0) <= 0:
        return 0.0
    if excess(0.0, 1) > 0:
        raise ValueError(
            "the first step alone, which no decay makes cheaper, costs more than epsilon"
            f" {epsilon!r}"
        )
    dear, cheap, most = 0.0, math.log(4), math.log(1e12)
    while excess(cheap) > 0:
        if not cheap < most:
            raise ValueError(
                f"no decay up to 1e12 is enough: {num_steps} steps cost more than epsilon"
                f" {epsilon!r}"
            )
        dear, cheap = cheap, min(cheap + math.log(4), most)
    return math.expm1(_crossing(excess, cheap, dear))


# --------------------------------------------------------------------------------------------------


def _epsilon_by(
    accountant: str, delta: float, unit: Unit
) -> Callable[[Sequence[SubsampledGaussian]], float]:
    compose = _by_accountant({"pld": composition.pld, "rdp": composition.rdp}, accountant)
    return lambda phases: compose(phases, unit=unit).epsilon(delta)


def _by_accountant(by_name: Mapping[str, Any], accountant: str) -> Any:
    if accountant not in by_name:
        raise ValueError(f"accountant must be one of {', '.join(by_name)}, got {accountant!r}")
    return by_name[accountant]


def _excess(price: float, epsilon: float) -> float:
    """ln(price/ε) within ±30, so that a root search may meet prices of 0 and infinity."""
    if price == math.inf:
        return 30.0
    return max(-30.0, min(30.0, math.log(price / epsilon))) if price > 0 else -30.0


def _cheapest(
    excess: Callable[[float], float],
    name: str,
    least: float,
    most: float,
    *,
    start: float,
    sign: int,
) -> float:
    """ln of the unknown at which the price all but reaches the target, and never exceeds it.

    sign: 1 where more of the unknown is cheaper, −1 where it is dearer.
    """
    excess = functools.cache(excess)  # each price takes seconds, and ends are looked at twice
    low, high, far = math.log(least), math.log(most), sign * math.log(4)
    cheap = dear = math.log(start)
    while excess(cheap) > 0:
        if not low < cheap < high:
            raise ValueError(f"no {name} between {least:g} and {most:g} costs as little as that")
        dear, cheap = cheap, min(max(cheap + far, low), high)
    while cheap == dear or excess(dear) <= 0:
        if not low < dear < high:
            raise ValueError(
                f"{name} {math.exp(dear):g} costs less than that, and nothing beyond is tried"
            )
        cheap, dear = dear, min(max(dear - far, low), high)
    return _crossing(excess, cheap, dear)


def _lowest(excess: Callable[[float], float], least: float) -> float | None:
    """The first crossing coming down from 0 by steps of ln 2, on its affordable side.

    None where there is none down to `least`. Below the crossing the price may fall again.

    The excess may fall again below it.
    """
    excess = functools.cache(excess)
    cheap, dear = 0.0, -math.log(2)
    while excess(dear) <= 0:
        if not dear > least:
            return None
        cheap, dear = dear, max(dear - math.log(2), least)
    return _crossing(excess, cheap, dear)


def _crossing(excess: Callable[[float], float], cheap: float, dear: float) -> float:
    """Where the price all but reaches the target, on the cheap side of a cheap and a dear point."""
    from scipy.optimize import brentq

    nudge = 2e-6
    root = brentq(excess, cheap, dear, xtol=nudge)
    while excess(root) > 0:
        root, nudge = root + math.copysign(nudge, cheap - dear), 2 * nudge
    return root


def last_affordable(excess: Callable[[int], float], likely: int, most: int, *, apart: int) -> int:
    """The largest count up to `most` with an excess of at most 0, for an excess that grows.

    Above `apart` it is known to one part in `apart` only.
    """
    low, high, factor, count = 0, 0, 1.02, min(max(likely, 1), most)
    while not (low and high):
        if excess(count) <= 0:
            low, count = count, min(most, max(count + 1, math.ceil(count * factor)))
            if low == most:
                return most
        else:
            high, count = count, max(1, min(count - 1, math.floor(count / factor)))
            if high == 1:
                return 0
        factor **= 2
    # Regula falsi on logarithms. The end that stays weighs less (Illinois), so that both ends move.
    at_low, at_high = excess(low), excess(high)
    while high - low > (step := max(1, low // apart)):
        share = at_low / (at_low - at_high)
        count = min(max(round(low * (high / low) ** share), low + step), high - step)
        if (found := excess(count)) <= 0:
            low, at_low, at_high = count, found, at_high / 2
        else:
            high, at_high, at_low = count, found, at_low / 2
    return low
